//! Link settings of the plugin.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // NCCL closes plugins in mid-process (after the last communicator), while thread-local destructors and the engine's
    // process-wide tables still point into this library. With nodelete the memory stays; dlclose becomes harmless.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // NCCL opens with RTLD_NOW: an undefined symbol is to fail here, not there.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
}
