//! NCCL's names (`src/collectives.cc`) and their numbers: [`func_id`], [`algo_id`], [`proto_id`], [`datatype_id`] read a C string,
//! the `_text` functions give one. Version 1 of the profiler has numbers, later ones have names.

use ringfence_guest::abi::UNSET;
use std::ffi::{CStr, c_char};

/// A table of names by number.
macro_rules! names {
    ($($(#[$doc:meta])* $id:ident, $text:ident: $($number:literal = $name:literal),+;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $id(text: *const c_char) -> u32 {
            if text.is_null() {
                return UNSET;
            }
            // SAFETY: NCCL passes static C strings or null.
            match unsafe { CStr::from_ptr(text) } {
                $(name if name == $name => $number,)+
                _ => UNSET,
            }
        }

        /// The static name of a number; `Unknown` if it has none.
        pub(crate) fn $text(number: u32) -> *const c_char {
            let name: &'static CStr = match number {
                $($number => $name,)+
                _ => c"Unknown",
            };
            name.as_ptr()
        }
    )*};
}

names! {
    /// `ncclFunc_t`; [`UNSET`] for a name that is none.
    func_id, func_text: 4 = c"AllReduce", 2 = c"AllGather", 3 = c"ReduceScatter", 0 = c"Broadcast", 1 = c"Reduce",
        6 = c"Send", 7 = c"Recv", 5 = c"SendRecv", 8 = c"AlltoAll", 9 = c"Scatter", 10 = c"Gather",
        11 = c"AllGatherV", 12 = c"PutSignal", 13 = c"Signal", 14 = c"WaitSignal";
    /// `NCCL_ALGO_*`; [`UNSET`] for a name that is none.
    algo_id, algo_text: 1 = c"RING", 0 = c"TREE", 4 = c"NVLS", 5 = c"NVLS_TREE", 2 = c"COLLNET_DIRECT",
        3 = c"COLLNET_CHAIN", 6 = c"PAT";
    /// `NCCL_PROTO_*`; [`UNSET`] for a name that is none.
    proto_id, proto_text: 2 = c"SIMPLE", 0 = c"LL", 1 = c"LL128";
    /// `ncclDataType_t`; [`UNSET`] for a name that is none. NCCL has no name for `ncclUint8` (1) and says `Unknown`.
    datatype_id, datatype_text: 9 = c"ncclBfloat16", 6 = c"ncclFloat16", 7 = c"ncclFloat32", 0 = c"ncclInt8",
        2 = c"ncclInt32", 3 = c"ncclUint32", 4 = c"ncclInt64", 5 = c"ncclUint64", 8 = c"ncclFloat64",
        10 = c"ncclFloat8e4m3", 11 = c"ncclFloat8e5m2", 1 = c"Unknown";
}

/// A number as version 1's byte; 255 for none.
pub(crate) fn code(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    #[test]
    fn names_and_numbers_are_inverse() {
        assert!((0..15).all(|n| func_id(func_text(n)) == n));
        assert!((0..7).all(|n| algo_id(algo_text(n)) == n));
        assert!((0..3).all(|n| proto_id(proto_text(n)) == n));
        assert!((0..12).all(|n| datatype_id(datatype_text(n)) == n));
        let others = [func_id(c"Invalid".as_ptr()), algo_id(c"Unknown".as_ptr()), proto_id(c"".as_ptr())];
        assert_eq!(others, [UNSET; 3]);
        assert_eq!([func_id(null()), algo_id(null()), proto_id(null()), datatype_id(null())], [UNSET; 4]);
        assert_eq!((code(3), code(UNSET)), (3, 255));
    }
}
