//! Plugin for bpf_conformance.
fn main() {}
