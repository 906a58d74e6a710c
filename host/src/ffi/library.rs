//! [`Library`]: another plugin, opened as NCCL opens plugins, for the ends of our chains.

use super::sys::last_dl_error;
use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

/// An open library. It is never closed: the plugin may have threads, and what it exports is used to the end of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library(NonNull<c_void>);

// SAFETY: a handle of dlopen may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens `value` as NCCL opens what `NCCL_*_PLUGIN` names (`plugin_open.cc`): a path or a library's name first; if that
    /// fails, and it has no slash and is not of the form `lib....so`, then `PREFIX-VALUE.so`. `prefix` is `libnccl-net`,
    /// `libnccl-tuner` or `libnccl-profiler`. NCCL's short form for symbols of the executable ("static") is not understood.
    ///
    /// # Errors
    /// What dlopen says of each name that was tried, in one line.
    pub(crate) fn open(value: &OsStr, prefix: &str) -> Result<Library, String> {
        let first = match open(value) {
            Ok(library) => return Ok(library),
            Err(text) => text,
        };
        let bytes = value.as_bytes();
        if bytes.contains(&b'/') || (bytes.starts_with(b"lib") && bytes.ends_with(b".so")) {
            return Err(first);
        }
        let name = format!("{prefix}-{}.so", value.to_string_lossy());
        open(OsStr::new(&name)).map_err(|second| format!("{first}; {second}"))
    }

    /// The address of a symbol, if the library (or one that it needs) has it.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open for good, and `name` is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

fn open(name: &OsStr) -> Result<Library, String> {
    let Ok(text) = CString::new(name.as_bytes()) else { return Err("a name with a NUL in it".to_owned()) };
    // SAFETY: runs the initialisers of a library that the operator named, as NCCL would if the same name stood in its own variable.
    let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).map(Library).ok_or_else(last_dl_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tried_as_nccl_does() {
        let fails = |value: &str| Library::open(OsStr::new(value), "libnccl-net").unwrap_err();
        let both = fails("nosuch");
        assert!(
            both.contains("nosuch: cannot open") && both.contains("libnccl-net-nosuch.so: cannot"),
            "{both}"
        );
        for one in ["/nowhere/x.so", "./x", "libnosuch.so"] {
            let text = fails(one);
            assert!(text.contains(one) && !text.contains("libnccl-net-"), "{text}");
        }
        assert!(fails("a\0b").contains("NUL"));
    }

    #[test]
    fn symbols_are_found_in_an_open_library() {
        let library = Library::open(OsStr::new("libc.so.6"), "libnccl-net").unwrap();
        assert!(library.symbol(c"getenv").is_some());
        assert!(library.symbol(c"ncclNetPlugin_v12").is_none());
    }
}
