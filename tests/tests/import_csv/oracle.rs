//! [`Config`]: NCCL's example tuner once more, for comparison: written from the rules of the file format, on raw bytes with
//! a buffer of 256, as C would, and on purpose without a look at `ringfence_host::csv`.

/// A loaded configuration.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) rows: Vec<Entry>,
}

/// `TuningConfig`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    func: i32,
    pub(crate) min: u64,
    pub(crate) max: u64,
    algo: usize,
    proto: usize,
    channels: i32,
    nodes: i32,
    ranks: i32,
    pipe_ops: i32,
    reg_buff: i32,
}

/// A call of `getCollInfo`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) func: i32,
    pub(crate) bytes: u64,
    pub(crate) nodes: u32,
    pub(crate) ranks: u32,
    pub(crate) pipe_ops: i32,
    pub(crate) reg_buff: bool,
}

/// `fgets(line, 256, file)`: the buffer up to its zero byte.
fn fgets(file: &[u8], at: &mut usize) -> Option<[u8; 256]> {
    if *at >= file.len() {
        return None;
    }
    let mut line = [0; 256];
    let mut n = 0;
    while n < 255 && *at < file.len() {
        line[n] = file[*at];
        n += 1;
        *at += 1;
        if line[n - 1] == b'\n' {
            break;
        }
    }
    Some(line)
}

fn strlen(s: &[u8]) -> usize {
    s.iter().position(|b| *b == 0).unwrap_or(s.len())
}

fn skip_space(s: &[u8]) -> usize {
    s.iter().take_while(|b| [b' ', b'\t', b'\n', 0x0b, 0x0c, b'\r'].contains(b)).count()
}

/// The sign and the number at the start; `None` stands for a number beyond 128 bits of digits.
fn digits(s: &[u8]) -> (bool, Option<u128>) {
    let mut s = &s[skip_space(s)..];
    let negative = s.first() == Some(&b'-');
    if negative || s.first() == Some(&b'+') {
        s = &s[1..];
    }
    let mut n = Some(0_u128);
    for b in s.iter().take_while(|b| b.is_ascii_digit()) {
        n = n.and_then(|n| n.checked_mul(10)).map(|n| n + u128::from(b - b'0'));
    }
    (negative, n)
}

fn strtoull(s: &[u8]) -> u64 {
    match digits(s) {
        (_, None) => u64::MAX,
        (_, Some(n)) if n > u128::from(u64::MAX) => u64::MAX,
        (true, Some(n)) => (n as u64).wrapping_neg(),
        (false, Some(n)) => n as u64,
    }
}

fn atoi(s: &[u8]) -> i32 {
    let (negative, n) = digits(s);
    let n = n.and_then(|n| i128::try_from(n).ok()).unwrap_or(i128::MAX);
    let n = if negative { n.saturating_neg() } else { n };
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64 as i32
}

fn lookup(s: &[u8], names: &[&str], default: usize) -> usize {
    names.iter().position(|name| name.as_bytes() == s).unwrap_or(default)
}

impl Config {
    pub(crate) fn load(file: &[u8]) -> Config {
        let mut config = Config::default();
        let mut at = 0;
        while let Some(line) = fgets(file, &mut at) {
            if line[0] == b'#' || line[0] == b'\n' {
                continue;
            }
            let end = strlen(&line);
            let end = line[..end].iter().position(|b| *b == b'\n').unwrap_or(end);
            let mut tokens: Vec<&[u8]> = Vec::new();
            let mut rest = &line[..end];
            // strtok: skip delimiters, then take up to the next.
            while tokens.len() < 10 {
                while rest.first() == Some(&b',') {
                    rest = &rest[1..];
                }
                if rest.is_empty() {
                    break;
                }
                let len = rest.iter().position(|b| *b == b',').unwrap_or(rest.len());
                let mut token = &rest[..len];
                rest = &rest[len..];
                while matches!(token.first(), Some(b' ' | b'\t')) {
                    token = &token[1..];
                }
                while token.len() > 1 && matches!(token.last(), Some(b' ' | b'\t')) {
                    token = &token[..token.len() - 1];
                }
                tokens.push(token);
            }
            if tokens.len() >= 8 {
                config.rows.push(Entry {
                    func: lookup(
                        tokens[0],
                        &["broadcast", "reduce", "allgather", "reducescatter", "allreduce"],
                        4,
                    ) as i32,
                    min: strtoull(tokens[1]),
                    max: strtoull(tokens[2]),
                    algo: lookup(
                        tokens[3],
                        &["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"],
                        1,
                    ),
                    proto: lookup(tokens[4], &["ll", "ll128", "simple"], 2),
                    channels: atoi(tokens[5]),
                    nodes: atoi(tokens[6]),
                    ranks: atoi(tokens[7]),
                    pipe_ops: tokens.get(8).map_or(-1, |t| atoi(t)),
                    reg_buff: tokens.get(9).map_or(-1, |t| atoi(t)),
                });
            }
        }
        config
    }

    /// `pluginGetCollInfo`: the pair that was set to 0, and what a row says of channels.
    pub(crate) fn find(&self, call: &Call, costs: &[f32]) -> Option<(usize, usize, i32)> {
        for row in &self.rows {
            let any_or = |field: i32, value: i32| field == -1 || field == value;
            let matches = row.func == call.func
                && call.bytes >= row.min
                && call.bytes <= row.max
                && any_or(row.nodes, call.nodes as i32)
                && any_or(row.ranks, call.ranks as i32)
                && any_or(row.pipe_ops, call.pipe_ops)
                && any_or(row.reg_buff, i32::from(call.reg_buff));
            if matches && row.algo < costs.len() / 3 && costs[row.algo * 3 + row.proto] != -1.0 {
                return Some((row.algo, row.proto, row.channels));
            }
        }
        None
    }
}
