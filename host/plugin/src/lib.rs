//! `libnccl_ringfence.so`: what NCCL opens. The data symbols that it looks up (`ncclTunerPlugin_v2` to `_v6`) are defined in
//! [`ringfence_host::ffi`]; naming the crate links them in.

pub use ringfence_host as host;
