//! `ringfence import-csv`: the configuration of NCCL's example tuner as a policy.

use super::{Exit, Out, input, number};
use crate::csv::{self, Import, ImportError, Options, Warning};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Arguments of `ringfence import-csv`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration, as NCCL_TUNER_CONFIG_FILE names it.
    file: PathBuf,
    /// Where the policy goes.
    #[arg(short, long, value_name = "POLICY.bpf.o")]
    output: PathBuf,
    /// Ask for one channel where a row says -1 and where no row matches, as NCCL's example tuner does.
    #[arg(long)]
    bug_compatible: bool,
    /// Write nothing, with exit code 1, if there is a warning about a line.
    #[arg(long)]
    deny_warnings: bool,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let bytes = input::read_capped(&args.file, csv::MAX_BYTES as u64)?;
    let name = args.file.file_name().unwrap_or(args.file.as_os_str()).to_string_lossy().into_owned();
    let options = Options { file: name, bug_compatible: args.bug_compatible };
    let import = match csv::import(&bytes, &options) {
        Ok(import) => import,
        Err(error) => {
            if let ImportError::NoRows(warnings) = &error {
                print(args, warnings, 0, out)?;
            }
            bail!("{}: {error}", args.file.display());
        }
    };
    print(args, &import.warnings, import.more_warnings, out)?;
    if args.deny_warnings && import.warnings.iter().any(|w| w.line > 0) {
        out.flush()?;
        writeln!(
            io::stderr(),
            "ringfence: {}: warnings, and --deny-warnings: nothing is written",
            args.file.display()
        )?;
        return Ok(Exit::Refused);
    }
    write_whole(&args.output, &import.object)?;
    if args.json {
        writeln!(out, "{}", summary(args, &import))?;
    } else {
        tell(args, &import, out)?;
    }
    Ok(Exit::Ok)
}

fn print(args: &Args, warnings: &[Warning], more: usize, out: Out<'_>) -> anyhow::Result<()> {
    for w in warnings {
        if args.json {
            let line = (w.line > 0).then_some(w.line);
            let file = args.file.to_string_lossy();
            let value = json!({"event": "warning", "file": file, "line": line, "code": w.code, "message": w.message, "fix": w.fix});
            writeln!(out, "{value}")?;
        } else {
            let place = if w.line > 0 { format!(":{}", w.line) } else { String::new() };
            writeln!(out, "{}{place}: {w}", args.file.display())?;
        }
    }
    if more > 0 && !args.json {
        writeln!(out, "{}: {more} more warnings", args.file.display())?;
    }
    Ok(())
}

/// Writes a file so that nobody sees half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", path.display());
    let mut temp = tempfile::Builder::new().prefix(".ringfence-").tempfile_in(dir).with_context(cannot)?;
    temp.write_all(bytes).with_context(cannot)?;
    // As the umask would have made it, but writable for the owner alone: the plugin refuses a policy that others can write.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    temp.as_file().set_permissions(mode).with_context(cannot)?;
    temp.persist(path).with_context(cannot)?;
    Ok(())
}

fn summary(args: &Args, import: &Import) -> Value {
    json!({
        "event": "policy",
        "file": args.output.to_string_lossy(),
        "rows": import.rows,
        "warnings": import.warnings.len() + import.more_warnings,
        "bug_compatible": args.bug_compatible,
        "table_bytes": import.table_bytes,
        "longest_list": import.longest_list,
        "max_insns": import.stats.max_insns,
        "max_fuel": import.stats.max_fuel,
    })
}

fn tell(args: &Args, import: &Import, out: Out<'_>) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} in a table of {} bytes, verified; a call looks at no more than {} and runs at most {} insns, {} fuel",
        args.output.display(),
        number::count(import.rows as u64, "row"),
        import.table_bytes,
        import.longest_list,
        import.stats.max_insns,
        import.stats.max_fuel
    )
}
