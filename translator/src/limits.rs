//! Every bound of the translator, with unit and source.

/// Largest object that is read, in bytes. Our largest sample is 1.6 MB (cilium's bpf_lxc).
pub const MAX_OBJECT_BYTES: usize = 16 << 20;
/// Most slots in a linked program (Linux `BPF_COMPLEXITY_LIMIT_INSNS` bounds visits to one million; so do we).
pub const MAX_PROGRAM_SLOTS: usize = 1 << 20;
/// Most maps in one program (Linux `MAX_USED_MAPS`).
pub const MAX_MAPS: usize = 64;
/// Bytes of stack in one frame (Linux `MAX_BPF_STACK`).
pub const STACK_BYTES: u32 = 512;
/// Frames on the deepest call path (Linux `MAX_CALL_FRAMES`).
pub const MAX_FRAMES: u32 = 8;
/// Most laps of `bpf_loop` (Linux `BPF_MAX_LOOPS`).
pub const MAX_LOOPS: u64 = 8 << 20;
/// Most tail calls in a row (Linux `MAX_TAIL_CALL_CNT`).
pub const MAX_TAIL_CALLS: u32 = 33;
/// Largest key in bytes (Linux hash keys are bounded by `MAX_BPF_STACK`).
pub const MAX_KEY_BYTES: u32 = 512;
/// Slots of a per-CPU map: copies of each value, one for each rank of the process that calls, as far as they go round.
pub const PERCPU_SLOTS: u32 = 64;
/// Largest value of a per-CPU map in bytes (Linux `PCPU_MIN_UNIT_SIZE`).
pub const MAX_PERCPU_BYTES: u32 = 32 << 10;
/// Largest value in bytes.
pub const MAX_VALUE_BYTES: u32 = 1 << 20;
/// Default budget of the verifier in visited instructions (Linux `BPF_COMPLEXITY_LIMIT_INSNS`).
pub const DEFAULT_INSN_BUDGET: u64 = 1_000_000;
/// Default bound on the instructions that one run may execute: 2^30, of the order of a second. Room for a `bpf_loop` of
/// the most laps that Linux allows (2^23) with a body of a hundred instructions.
pub const DEFAULT_RUN_BUDGET: u64 = 1 << 30;
/// Most sections in an object (cilium's bpf_lxc has 80; Rust makes one per function and per map).
pub const MAX_SECTIONS: usize = 1 << 14;
/// Most symbols in an object.
pub const MAX_SYMBOLS: usize = 1 << 17;
/// Longest symbol, section or type name in bytes (Linux `KSYM_NAME_LEN` is 512; mangled Rust names are longer).
pub const MAX_NAME_BYTES: usize = 1024;
/// Bytes of source text and file names that one program's line info may take. Lines beyond it are dropped.
pub const MAX_LINE_BYTES: usize = 16 << 20;
