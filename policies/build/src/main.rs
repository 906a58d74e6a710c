//! `ringfence-bpf-build`.
fn main() {}
