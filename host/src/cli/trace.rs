//! [`Step`]: one line of a trace of collectives.
//!
//! The format is CSV: `collective,bytes[,count]`, `#` starts a comment. `bytes` is what NCCL tells a tuner (the full
//! buffer for AllGather and ReduceScatter) and may carry a suffix (`4M`); `count` repeats the line.

use crate::cli::{names, number};
use anyhow::{Context, bail, ensure};
use std::path::Path;

/// Longest trace, in collectives, after repeats.
pub(crate) const MAX_STEPS: usize = 1 << 20;
/// Largest trace file, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// One collective of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Step {
    /// `ncclFunc_t`.
    pub(crate) func: u32,
    /// Bytes as the tuner sees them.
    pub(crate) bytes: u64,
}

/// Reads a trace file; errors name file and line.
pub(crate) fn load(path: &Path) -> anyhow::Result<Vec<Step>> {
    let bytes = crate::cli::input::read_capped(path, MAX_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: is no text", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Reads the text of a trace.
fn parse(text: &str) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let (step, count) = parse_line(line).with_context(|| format!("line {}", i + 1))?;
        ensure!(steps.len() + count <= MAX_STEPS, "line {}: more than {MAX_STEPS} collectives", i + 1);
        steps.resize(steps.len() + count, step);
    }
    ensure!(!steps.is_empty(), "the trace holds no collective");
    Ok(steps)
}

fn parse_line(line: &str) -> anyhow::Result<(Step, usize)> {
    let parts: Vec<&str> = line.split(',').map(str::trim).collect();
    let (func, bytes, count) = match parts[..] {
        [func, bytes] => (func, bytes, "1"),
        [func, bytes, count] => (func, bytes, count),
        _ => bail!("\"{line}\" is not collective,bytes[,count]"),
    };
    let step = Step { func: names::func_by_name(func)?, bytes: number::parse(bytes)? };
    let count = usize::try_from(number::parse(count)?).unwrap_or(usize::MAX);
    ensure!((1..=MAX_STEPS).contains(&count), "count {count} is not in 1..={MAX_STEPS}");
    Ok((step, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_guest::abi::func;

    #[test]
    fn reads_comments_suffixes_and_counts() {
        let steps = parse("# head\nall_reduce, 4M, 2 # twice\n\nallgather,100\n").unwrap();
        let ar = Step { func: func::ALL_REDUCE, bytes: 4 << 20 };
        assert_eq!(steps, [ar, ar, Step { func: func::ALL_GATHER, bytes: 100 }]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, part) in [
            ("allreduce,1\nallreduce\n", "line 2"),
            ("sendrecv,1", "no collective"),
            ("allreduce,x", "no number"),
            ("allreduce,1,0", "count 0"),
            ("allreduce,1,99M", "count"),
            ("# nothing", "holds no collective"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
