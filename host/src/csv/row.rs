//! [`Row`]: one row of a configuration, read as NCCL's example tuner reads it, and the warnings about what it misreads.

use super::lines::{self, Oddity, Piece};
use super::warn::{Sink, quote};

/// Names of the collectives, by `ncclFunc_t`.
pub(super) const FUNCS: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
/// Names of the algorithms, by number.
pub(super) const ALGOS: [&str; 7] =
    ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
/// Names of the protocols, by number.
pub(super) const PROTOS: [&str; 3] = ["ll", "ll128", "simple"];
/// Fields that a row must have.
const REQUIRED: usize = 8;
/// "Any", and for channels "keep".
pub(super) const ANY: i32 = -1;
/// Most channels that NCCL has.
pub(super) const MAX_CHANNELS: i32 = 64;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Line of the file, from 1.
    pub(super) line: u32,
    pub(super) func: u8,
    pub(super) algo: u8,
    pub(super) proto: u8,
    /// Smallest and largest size in bytes, both included.
    pub(super) min: u64,
    pub(super) max: u64,
    /// [`ANY`] keeps what is there.
    pub(super) channels: i32,
    pub(super) nodes: i32,
    pub(super) ranks: i32,
    pub(super) pipe_ops: i32,
    pub(super) reg_buff: i32,
}

/// The value of an unknown name, by column (`parseCollType`, `parseAlgorithm`, `parseProtocol`).
const DEFAULTS: [usize; 3] = [4, 1, 2];

impl Row {
    /// Reads one portion of the file; `None` if it is no row.
    pub(super) fn read(piece: &Piece<'_>, sink: &mut Sink) -> Option<Row> {
        if piece.skipped() {
            return None;
        }
        let fields = piece.fields();
        about_line(piece, &fields, sink);
        if fields.len() < REQUIRED {
            return None;
        }
        let field = |i: usize| fields.get(i).copied();
        let mut reader = Reader { line: piece.line, sink, quiet: is_header(&fields) };
        let name = |r: &mut Reader<'_>, at, what, known: &[&str], default| {
            r.name(what, field(at).unwrap_or_default(), known, default)
        };
        let func = name(&mut reader, 0, "collective", &FUNCS, DEFAULTS[0]);
        let algo = name(&mut reader, 3, "algorithm", &ALGOS, DEFAULTS[1]);
        let proto = name(&mut reader, 4, "protocol", &PROTOS, DEFAULTS[2]);
        let row = Row {
            line: piece.line,
            func,
            algo,
            proto,
            min: reader.size("minBytes", fields[1]),
            max: reader.size("maxBytes", fields[2]),
            channels: reader.int("channels", fields[5]),
            nodes: reader.int("nNodes", fields[6]),
            ranks: reader.int("nRanks", fields[7]),
            pipe_ops: field(8).map_or(ANY, |text| reader.int("numPipeOps", text)),
            reg_buff: field(9).map_or(ANY, |text| reader.int("regBuff", text)),
        };
        if !reader.quiet {
            row.judge(sink);
        }
        Some(row)
    }

    /// "allreduce ring/ll128".
    pub(super) fn title(&self) -> String {
        let name = |names: &[&'static str], i: u8| names.get(usize::from(i)).copied().unwrap_or("?");
        let (func, algo) = (name(&FUNCS, self.func), name(&ALGOS, self.algo));
        format!("{func} {algo}/{}", name(&PROTOS, self.proto))
    }

    /// Bit of the pair in `available`.
    pub(super) fn pair(&self) -> u8 {
        self.algo * 3 + self.proto
    }

    /// Whatever matches `other` matches this row, and both ask for the same pair.
    pub(super) fn covers(&self, other: &Row) -> bool {
        let wider = |mine: i32, its: i32| mine == ANY || mine == its;
        (self.func, self.pair()) == (other.func, other.pair())
            && self.min <= other.min
            && self.max >= other.max
            && wider(self.nodes, other.nodes)
            && wider(self.ranks, other.ranks)
            && wider(self.pipe_ops, other.pipe_ops)
            && wider(self.reg_buff, other.reg_buff)
    }

    /// Says what a row that was read without trouble will do that nobody means.
    fn judge(&self, sink: &mut Sink) {
        if let Some(why) = self.never() {
            sink.warn(
                self.line,
                "never-matches",
                format!("this row is never taken: {why}"),
                "correct it, or remove it",
            );
        }
        if let Some(why) = never_offered(self.func, self.algo, self.proto) {
            let text = format!("NCCL never offers {}: {why}; calls fall through to later rows", self.title());
            sink.warn(
                self.line,
                "never-offered",
                text,
                "choose a pair that NCCL has for this collective, or remove the row",
            );
        }
        if self.max == u64::from(u32::MAX) {
            let text = "maxBytes 4294967295 does not cover sizes from 4 GiB up, which match no such row";
            sink.warn(self.line, "four-gib", text, "write 18446744073709551615 for \"no limit\"");
        }
        if self.channels != ANY && !(1..=MAX_CHANNELS).contains(&self.channels) {
            self.judge_channels(sink);
        }
        if self.reg_buff == 0 || self.reg_buff == 1 {
            let text =
                "regBuff can differ between the ranks of a communicator: ranks that take different rows hang";
            sink.warn(self.line, "rank-local", text, "write -1, or leave the field out");
        }
    }

    fn judge_channels(&self, sink: &mut Sink) {
        let (text, fix) = match self.channels {
            0 => ("channels 0 leaves the number to NCCL, as NCCL takes 0 for unset".to_owned(), "write -1"),
            n if n > MAX_CHANNELS => {
                let text =
                    format!("{n} channels are more than NCCL has; this policy asks for {MAX_CHANNELS}");
                (text, "write at most 64")
            }
            n => {
                (format!("{n} channels would crash NCCL; this policy reads it as -1"), "write -1, or 1 to 64")
            }
        };
        sink.warn(self.line, "channels", text, fix);
    }

    /// Why no call can match.
    fn never(&self) -> Option<String> {
        let (min, max) = (self.min, self.max);
        if min > max {
            return Some(format!("minBytes {min} is above maxBytes {max}"));
        }
        let counts = [("nNodes", self.nodes), ("nRanks", self.ranks), ("numPipeOps", self.pipe_ops)];
        if let Some((name, n)) = counts.into_iter().find(|(_, n)| *n != ANY && *n < 1) {
            return Some(format!("{name} is {n}, and NCCL's is at least 1"));
        }
        (!(-1..=1).contains(&self.reg_buff))
            .then(|| format!("regBuff is {}, and NCCL's is 0 or 1", self.reg_buff))
    }
}

/// Pairs that no NCCL offers for a collective (src/graph/tuning.cc, `ncclTopoTuneModel`, 2.30.7).
fn never_offered(func: u8, algo: u8, proto: u8) -> Option<&'static str> {
    let known = match func {
        0 | 1 => algo == 1,
        2 | 3 => matches!(algo, 1 | 2 | 4 | 6),
        _ => algo != 6,
    };
    match algo {
        _ if !known => Some("that collective has no such algorithm"),
        2..=6 if proto != 2 => Some("that algorithm has the simple protocol alone"),
        _ => None,
    }
}

/// Is this the line of column names that spreadsheets (and the example's README) put on top?
fn is_header(fields: &[&[u8]]) -> bool {
    let names =
        |text: &[u8]| text.iter().any(u8::is_ascii_alphabetic) && !text.iter().any(u8::is_ascii_digit);
    let [first, second, third, ..] = fields else { return false };
    let first = canonical(first);
    names(second) && names(third) && first.contains("coll") && !FUNCS.contains(&first.as_str())
}

/// Remarks on the line as a whole, before its fields are looked at.
fn about_line(piece: &Piece<'_>, fields: &[&[u8]], sink: &mut Sink) {
    let (line, text) = (piece.line, piece.text());
    if piece.has_nul() {
        sink.warn(
            line,
            "nul-byte",
            "there is a zero byte, behind which nothing is read",
            "save the file as plain text",
        );
    }
    if fields.iter().all(|field| lines::trim(field).is_empty() || *field == b"\r") {
        return;
    }
    let start = lines::trim(text);
    if piece.tail {
        let text = format!(
            "the line is longer than 255 bytes, and from {} on it is read as a line of its own",
            quote(text)
        );
        sink.warn(line, "long-line", text, "keep lines, comments too, below 255 bytes");
    } else if start.starts_with(b"#") {
        let effect = if fields.len() < REQUIRED { "is skipped as too short" } else { "IS READ AS A ROW" };
        let text = format!("# makes a comment in column one only; this line {effect}");
        sink.warn(line, "indented-comment", text, "begin the line with #");
    } else if is_header(fields) {
        let text = header_text(fields);
        sink.warn(line, "header", text, "remove the line, or put # before it");
        return;
    }
    about_fields(piece, fields, sink);
}

fn header_text(fields: &[&[u8]]) -> String {
    let is_data = fields.iter().any(|f| canonical(f).contains("sizebytes"));
    match (is_data, fields.len() < REQUIRED) {
        (true, _) => "this is a table of measurements, the input of optimize_config.py; its output is what is wanted here".into(),
        (_, true) => "the line of column names is skipped as too short".into(),
        (_, false) => "the line of column names is read as a row of allreduce, which nothing matches as its nNodes is read as 0".into(),
    }
}

fn about_fields(piece: &Piece<'_>, fields: &[&[u8]], sink: &mut Sink) {
    let line = piece.line;
    if let Some(at) = piece.vanished() {
        let text = format!("field {at} is empty and not counted, so those behind it move one to the left");
        sink.warn(line, "empty-field", text, "write every field; -1 means any");
    }
    let comment = lines::trim(piece.text()).starts_with(b"#");
    if fields.len() < REQUIRED && !comment {
        let n = fields.len();
        let text = format!(
            "{} has {n} of the {REQUIRED} fields that a row needs, and is skipped",
            quote(piece.text())
        );
        sink.warn(
            line,
            "too-few-fields",
            text,
            "collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks",
        );
    }
    if piece.surplus() > 0 {
        let text = format!(
            "the last {} fields are ignored: a row has at most {}",
            piece.surplus(),
            lines::MAX_FIELDS
        );
        sink.warn(line, "too-many-fields", text, "remove them");
    }
}

/// In lower case, without what is no letter or digit.
fn canonical(text: &[u8]) -> String {
    let kept = text.iter().filter(|b| b.is_ascii_alphanumeric());
    kept.map(|b| b.to_ascii_lowercase() as char).collect()
}

/// The fields of one row.
struct Reader<'s> {
    line: u32,
    sink: &'s mut Sink,
    /// The line has its warning already.
    quiet: bool,
}

impl Reader<'_> {
    fn name(&mut self, what: &str, text: &[u8], known: &[&str], default: usize) -> u8 {
        if let Some(at) = known.iter().position(|name| name.as_bytes() == text) {
            return at as u8;
        }
        // An indented comment has been told already.
        if !self.quiet && !text.starts_with(b"#") {
            let read = known.get(default).copied().unwrap_or_default();
            let code = ["unknown-collective", "unknown-algorithm", "unknown-protocol"];
            let code = code.into_iter().find(|code| code.ends_with(what)).unwrap_or("unknown-name");
            let message = format!("{} is no {what} and is read as {read}", quote(text));
            let meant = known.iter().find(|name| canonical(name.as_bytes()) == canonical(text));
            let fix = match meant {
                Some(name) => format!("write {name}"),
                None => format!("write one of {}", known.join(", ")),
            };
            self.sink.warn(self.line, code, message, fix);
        }
        default as u8
    }

    fn size(&mut self, what: &str, text: &[u8]) -> u64 {
        let number = lines::size(text);
        self.odd(what, text, &number.value.to_string(), number.oddity);
        number.value
    }

    fn int(&mut self, what: &str, text: &[u8]) -> i32 {
        let number = lines::int(text);
        self.odd(what, text, &number.value.to_string(), number.oddity);
        number.value
    }

    fn odd(&mut self, what: &str, text: &[u8], value: &str, oddity: Option<Oddity>) {
        let Some(oddity) = oddity.filter(|_| !self.quiet) else { return };
        let message = format!("{what} {} is read as {value}", quote(text));
        let (code, message, fix) = match oddity {
            Oddity::NoDigits => ("not-a-number", message, "write decimal digits; -1 means any".to_owned()),
            Oddity::Trailing => ("trailing-text", format!("{message}; the rest is ignored"), in_full(text)),
            Oddity::Overflow => ("overflow", message, "write a number that fits".to_owned()),
            Oddity::Negative => {
                ("negative-size", message, format!("write {value}, or the size that is meant"))
            }
        };
        self.sink.warn(self.line, code, message, fix);
    }
}

/// The number that `4M` means.
fn in_full(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match crate::cli::number::parse(text.trim()) {
        Ok(n) => format!("write {n}"),
        Err(_) => "write decimal digits and nothing else".to_owned(),
    }
}
