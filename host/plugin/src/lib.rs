//! `libnccl_ringfence.so`: what NCCL opens. The data symbols that it looks up (`ncclTunerPlugin_v2` to `_v6`, and those of the
//! profiler, net and env interfaces) are defined in [`ringfence_host::ffi`]; naming the crate links them in.

pub use ringfence_host as host;

/// Run by the loader when the library is opened: NCCL looks at the name of a net plugin before it calls anything of it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = host::ffi::net::at_load;
