//! [`CType`]: how a Rust type of the border is written in C.

use crate::table::{RfError, RfGroup, RfHookStats, RfMapInfo, RfOptions, RfOutcome, RfStats, RfVisit};
use std::ffi::{c_char, c_void};

/// A type that crosses the border. Size and alignment are Rust's; the header asserts that C's are the same.
pub(crate) trait CType {
    /// A declaration of `name` in C, as `const void *ctx` or `char text[504]`.
    fn declare(name: &str) -> String;
}

macro_rules! named {
    ($($ty:ty = $c:literal,)*) => {$(
        impl CType for $ty {
            fn declare(name: &str) -> String {
                format!(concat!($c, " {}"), name).trim_end().to_owned()
            }
        }
    )*};
}

named! {
    u32 = "uint32_t",
    u64 = "uint64_t",
    i32 = "int32_t",
    usize = "size_t",
    c_char = "char",
    c_void = "void",
    () = "void",
    RfError = "rf_error",
    RfOptions = "rf_options",
    RfGroup = "rf_group",
    RfOutcome = "rf_outcome",
    RfStats = "rf_host_stats",
    RfHookStats = "rf_totals",
    RfMapInfo = "rf_map_shape",
    RfHost = "rf_host",
    RfHook = "rf_hook",
    Option<RfVisit> = "rf_visit",
}

/// An opaque host: a number in the form of a pointer, which is never followed.
pub enum RfHost {}
/// An opaque hook, likewise.
pub enum RfHook {}

impl<T: CType> CType for *const T {
    fn declare(name: &str) -> String {
        // `const T *const *` for a pointer to a pointer.
        match T::declare("").ends_with('*') {
            true => T::declare(&format!("const *{name}")),
            false => format!("const {}", T::declare(&format!("*{name}"))),
        }
    }
}

impl<T: CType> CType for *mut T {
    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}
