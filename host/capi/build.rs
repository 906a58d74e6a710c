//! Link settings of libringfence.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // As for the plugin (host/plugin/build.rs): thread-local destructors and the engine's tables point into the library
    // after a dlclose, and what is undefined is to fail when it is linked.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libringfence.so.0");
}
