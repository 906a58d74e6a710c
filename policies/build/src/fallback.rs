//! [`MEM`] and [`UMULO`]: definitions in LLVM's text form for what the BPF back end cannot expand.
//!
//! They are linked after optimisation, so that no pass turns a byte loop back into a call of the function that it
//! defines, and only where something still calls them.

use std::ffi::CStr;

/// A function of C's string.h as a loop over bytes.
pub(crate) struct Fallback {
    /// Its symbol.
    pub(crate) name: &'static CStr,
    /// Its definition.
    pub(crate) ir: &'static str,
}

/// What LLVM and `core` call by name. The verifier has to bound each loop where it is called, so a constant length
/// (which LLVM expands itself, up to 128 bytes) is always better.
pub(crate) const MEM: [Fallback; 5] = [
    Fallback {
        name: c"memset",
        ir: "
define ptr @memset(ptr %to, i32 %value, i64 %len) noinline nounwind {
entry:
  %byte = trunc i32 %value to i8
  %none = icmp eq i64 %len, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = getelementptr i8, ptr %to, i64 %i
  store i8 %byte, ptr %at
  %next = add i64 %i, 1
  %last = icmp eq i64 %next, %len
  br i1 %last, label %done, label %loop
done:
  ret ptr %to
}",
    },
    Fallback {
        name: c"memcpy",
        ir: "
define ptr @memcpy(ptr %to, ptr %from, i64 %len) noinline nounwind {
entry:
  %none = icmp eq i64 %len, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %source = getelementptr i8, ptr %from, i64 %i
  %target = getelementptr i8, ptr %to, i64 %i
  %byte = load i8, ptr %source
  store i8 %byte, ptr %target
  %next = add i64 %i, 1
  %last = icmp eq i64 %next, %len
  br i1 %last, label %done, label %loop
done:
  ret ptr %to
}",
    },
    // Overlapping buffers: upwards when the target lies below the source, else downwards.
    Fallback {
        name: c"memmove",
        ir: "
define ptr @memmove(ptr %to, ptr %from, i64 %len) noinline nounwind {
entry:
  %none = icmp eq i64 %len, 0
  br i1 %none, label %done, label %choose
choose:
  %below = icmp ult ptr %to, %from
  br i1 %below, label %up, label %down
up:
  %i = phi i64 [0, %choose], [%i.next, %up]
  %up.source = getelementptr i8, ptr %from, i64 %i
  %up.target = getelementptr i8, ptr %to, i64 %i
  %up.byte = load i8, ptr %up.source
  store i8 %up.byte, ptr %up.target
  %i.next = add i64 %i, 1
  %up.last = icmp eq i64 %i.next, %len
  br i1 %up.last, label %done, label %up
down:
  %left = phi i64 [%len, %choose], [%j, %down]
  %j = add i64 %left, -1
  %down.source = getelementptr i8, ptr %from, i64 %j
  %down.target = getelementptr i8, ptr %to, i64 %j
  %down.byte = load i8, ptr %down.source
  store i8 %down.byte, ptr %down.target
  %down.last = icmp eq i64 %j, 0
  br i1 %down.last, label %done, label %down
done:
  ret ptr %to
}",
    },
    Fallback {
        name: c"memcmp",
        ir: "
define i32 @memcmp(ptr %a, ptr %b, i64 %len) noinline nounwind {
entry:
  %none = icmp eq i64 %len, 0
  br i1 %none, label %equal, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %same]
  %a.at = getelementptr i8, ptr %a, i64 %i
  %b.at = getelementptr i8, ptr %b, i64 %i
  %x = load i8, ptr %a.at
  %y = load i8, ptr %b.at
  %match = icmp eq i8 %x, %y
  br i1 %match, label %same, label %differ
same:
  %next = add i64 %i, 1
  %last = icmp eq i64 %next, %len
  br i1 %last, label %equal, label %loop
differ:
  %x.wide = zext i8 %x to i32
  %y.wide = zext i8 %y to i32
  %order = sub i32 %x.wide, %y.wide
  ret i32 %order
equal:
  ret i32 0
}",
    },
    Fallback {
        name: c"bcmp",
        ir: "
define i32 @bcmp(ptr %a, ptr %b, i64 %len) noinline nounwind {
entry:
  %none = icmp eq i64 %len, 0
  br i1 %none, label %equal, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %same]
  %a.at = getelementptr i8, ptr %a, i64 %i
  %b.at = getelementptr i8, ptr %b, i64 %i
  %x = load i8, ptr %a.at
  %y = load i8, ptr %b.at
  %match = icmp eq i8 %x, %y
  br i1 %match, label %same, label %differ
same:
  %next = add i64 %i, 1
  %last = icmp eq i64 %next, %len
  br i1 %last, label %equal, label %loop
differ:
  ret i32 1
equal:
  ret i32 0
}",
    },
];

/// Name of the intrinsic behind `u64::checked_mul` and its kin.
pub(crate) const UMULO_INTRINSIC: &CStr = c"llvm.umul.with.overflow.i64";
/// Name of its stand-in.
pub(crate) const UMULO_NAME: &CStr = c"__ringfence_umulo";

/// BPF has no high half of a product, so LLVM would call `__multi3` on 128 bits. A product overflowed just if
/// dividing it by one factor does not give the other.
pub(crate) const UMULO: &str = "
define { i64, i1 } @__ringfence_umulo(i64 %a, i64 %b) alwaysinline nounwind {
  %product = mul i64 %a, %b
  %zero = icmp eq i64 %b, 0
  %divisor = select i1 %zero, i64 1, i64 %b
  %quotient = udiv i64 %product, %divisor
  %differs = icmp ne i64 %quotient, %a
  %nonzero = xor i1 %zero, true
  %overflow = and i1 %differs, %nonzero
  %half = insertvalue { i64, i1 } poison, i64 %product, 0
  %both = insertvalue { i64, i1 } %half, i1 %overflow, 1
  ret { i64, i1 } %both
}";
