//! [`Types`]: BTF of the policy, so that tools can name what is in the table, and [`ext`]: the lines of its program.
//!
//! The format is that of the kernel's Documentation/bpf/btf.rst.

use super::code::Code;
use super::row::FUNCS;
use super::table::{Index, ROW, SEGMENT, Table};

const MAGIC: u16 = 0xeb9f;
/// Kinds of types.
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
/// Linkage of a function and of a variable: global.
const GLOBAL: u32 = 1;

/// The numbers of both records, in order: name, bytes, is it signed.
const ROW_FIELDS: [(&str, u32, bool); 11] = [
    ("min_bytes", 8, false),
    ("max_bytes", 8, false),
    ("n_nodes", 4, true),
    ("n_ranks", 4, true),
    ("num_pipe_ops", 4, true),
    ("reg_buff", 4, true),
    ("pair", 1, false),
    ("algo", 1, false),
    ("proto", 1, false),
    ("channels", 1, false),
    ("line", 4, false),
];
const SEGMENT_FIELDS: [(&str, u32, bool); 3] =
    [("start_less_one", 8, false), ("first_row_byte", 4, false), ("row_count", 4, false)];

/// A symbol of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) at: usize,
    pub(super) bytes: usize,
}

/// The variables of a table, in order.
pub(super) fn variables(table: &Table) -> Vec<Variable> {
    let name = |index: &Index| FUNCS.get(usize::from(index.func)).copied().unwrap_or("unknown");
    let segments = table.indices.iter().map(|index| Variable {
        name: format!("{}_sizes", name(index)),
        at: index.at,
        bytes: index.len * SEGMENT,
    });
    let rows =
        Variable { name: "rows".to_owned(), at: table.rows_at, bytes: table.bytes.len() - table.rows_at };
    segments.chain([rows]).collect()
}

/// A BTF section in the making.
#[derive(Debug, Default)]
pub(super) struct Types {
    records: Vec<u8>,
    count: u32,
    strings: Vec<u8>,
    /// Id of the program's function.
    function: u32,
}

impl Types {
    /// Types of the table and of the program.
    pub(super) fn new(table: &Table, program: &str) -> Types {
        let mut types = Types { strings: vec![0], ..Types::default() };
        let context = types.record("", PTR, 0, 0, &[]);
        let int = types.int("int", 4, true);
        let ctx = types.string("ctx");
        let proto = types.record("", FUNC_PROTO, 1, int, &[ctx, context]);
        types.function = types.record(program, FUNC, GLOBAL, proto, &[]);
        let index = types.int("__u32", 4, false);
        let row = types.fields("nccl_tuner_row", &ROW_FIELDS);
        let segment = types.fields("nccl_tuner_sizes", &SEGMENT_FIELDS);
        let mut members = Vec::new();
        let variables = variables(table);
        for variable in &variables {
            let (element, size) = if variable.name == "rows" { (row, ROW) } else { (segment, SEGMENT) };
            let array = types.record("", ARRAY, 0, 0, &[element, index, (variable.bytes / size) as u32]);
            let var = types.record(&variable.name, VAR, 0, array, &[GLOBAL]);
            members.extend([var, variable.at as u32, variable.bytes as u32]);
        }
        types.record(".rodata", DATASEC, variables.len() as u32, table.bytes.len() as u32, &members);
        types
    }

    /// Offset of a string, which is added.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().map(|b| if b == 0 { b' ' } else { b }));
        self.strings.push(0);
        at
    }

    /// Adds a type and returns its id. `info` is the count of members, or a linkage.
    fn record(&mut self, name: &str, kind: u32, info: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, kind << 24 | info, size_or_type].iter().chain(tail) {
            self.records.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    fn int(&mut self, name: &str, bytes: u32, signed: bool) -> u32 {
        self.record(name, INT, 0, bytes, &[(u32::from(signed) << 24) | (bytes * 8)])
    }

    fn fields(&mut self, name: &str, fields: &[(&str, u32, bool)]) -> u32 {
        let (mut members, mut at) = (Vec::new(), 0);
        for (field, bytes, signed) in fields {
            let sign = if *signed { "s" } else { "u" };
            let int = self.int(&format!("__{sign}{}", bytes * 8), *bytes, *signed);
            members.extend([self.string(field), int, at * 8]);
            at += bytes;
        }
        self.record(name, STRUCT, fields.len() as u32, at, &members)
    }

    /// The section `.BTF`.
    pub(super) fn section(&self) -> Vec<u8> {
        let (types, strings) = (self.records.len() as u32, self.strings.len() as u32);
        let mut out = header(24);
        for word in [0, types, types, strings] {
            out.extend(word.to_le_bytes());
        }
        out.extend(&self.records);
        out.extend(&self.strings);
        out
    }
}

fn header(len: u32) -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend([1, 0]);
    out.extend(len.to_le_bytes());
    out
}

/// The section `.BTF.ext`: where functions begin, and of which line of `file` each instruction is. Adds strings to `types`.
pub(super) fn ext(types: &mut Types, code: &Code, section: &str, file: &str) -> Vec<u8> {
    let (section, file) = (types.string(section), types.string(file));
    let funcs = [8, section, 1, 0, types.function];
    let mut lines = vec![16, section, code.lines.len() as u32];
    for (at, line, text) in &code.lines {
        // The column goes into the lower 10 bits.
        lines.extend([*at, file, types.string(text), (*line).min(u32::MAX >> 10) << 10]);
    }
    let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let (funcs, lines) = (bytes(&funcs), bytes(&lines));
    let (first, second) = (funcs.len() as u32, lines.len() as u32);
    let mut out = header(32);
    for word in [0, first, first, second, first + second, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(funcs);
    out.extend(lines);
    out
}
