//! The declarations of a policy: [`tuner!`](crate::tuner), [`profiler!`](crate::profiler!), [`profiler_event!`](crate::profiler_event!),
//! [`hook!`](crate::hook), [`maps!`](crate::maps), [`license!`](crate::license); and
//! [`printk!`](crate::printk).
//!
//! Their `unsafe` attributes place symbols in named sections. That is sound in an object that nothing links: the
//! loader reads the sections, and two symbols of one name are an error there.

/// Places a function on the `tuner` hook. Its argument is a `&mut TunerCtx<'_>`, its value a
/// [`Verdict`](crate::Verdict); its name is the program's name.
///
/// ```
/// use ringfence_guest::{Verdict, tuner};
/// tuner! {
///     /// Four channels for everything.
///     fn four_channels(ctx) {
///         ctx.set_channels(4);
///         Verdict::Submit
///     }
/// }
/// ```
#[macro_export]
macro_rules! tuner {
    ($(#[$meta:meta])* fn $name:ident($ctx:ident) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "tuner")]
        pub extern "C" fn $name(context: &mut $crate::abi::CollContext) -> u64 {
            #[inline(always)]
            fn policy($ctx: &mut $crate::TunerCtx<'_>) -> $crate::Verdict $body
            policy(&mut $crate::TunerCtx::new(context)) as u64
        }
    };
}

/// Places a function on the `profiler` hook: one call for each collective that has finished. Its argument is a
/// `&ProfilerCtx<'_>`; its [`Verdict`](crate::Verdict) only counts in the metrics.
///
/// ```
/// use ringfence_guest::{Verdict, profiler};
/// profiler! {
///     fn slow_ones(ctx) {
///         if ctx.duration_ns() > 1_000_000 { Verdict::Submit } else { Verdict::Keep }
///     }
/// }
/// ```
#[macro_export]
macro_rules! profiler {
    ($(#[$meta:meta])* fn $name:ident($ctx:ident) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "profiler")]
        pub extern "C" fn $name(context: &$crate::abi::ProfilerContext) -> u64 {
            #[inline(always)]
            fn policy($ctx: &$crate::ProfilerCtx<'_>) -> $crate::Verdict $body
            policy(&$crate::ProfilerCtx::new(context)) as u64
        }
    };
}

/// Places a function on the `profiler/event` hook: one call for each event that the manifest's `events` ask for. Its argument is a
/// `&ProfilerEventCtx<'_>`; its [`Verdict`](crate::Verdict) only counts in the metrics.
#[macro_export]
macro_rules! profiler_event {
    ($(#[$meta:meta])* fn $name:ident($ctx:ident) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "profiler/event")]
        pub extern "C" fn $name(context: &$crate::abi::ProfilerEventContext) -> u64 {
            #[inline(always)]
            fn policy($ctx: &$crate::ProfilerEventCtx<'_>) -> $crate::Verdict $body
            policy(&$crate::ProfilerEventCtx::new(context)) as u64
        }
    };
}

/// Places a function on the hook of a library. The context is what `ringfence schema header --rust` makes of the hook's schema; its
/// fields are read with [`load`](crate::load()) and decided with [`store`](crate::store()), one at a time.
///
/// ```
/// use ringfence_guest::{Verdict, hook, load, store};
/// # #[repr(C, align(8))] pub struct EpModeContext { pub max_tokens: u32, pub mode: u32 }
/// hook! {
///     "ep/mode";
///     fn by_tokens(ctx: EpModeContext) {
///         let large = load(&ctx.max_tokens) > 128;
///         store(&mut ctx.mode, u32::from(large));
///         Verdict::Submit
///     }
/// }
/// # let mut ctx = EpModeContext { max_tokens: 129, mode: 7 };
/// # assert_eq!((by_tokens(&mut ctx), ctx.mode), (0, 1));
/// ```
#[macro_export]
macro_rules! hook {
    ($section:literal; $(#[$meta:meta])* fn $name:ident($ctx:ident: $ty:ty) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = $section)]
        pub extern "C" fn $name(context: &mut $ty) -> u64 {
            #[inline(always)]
            fn policy($ctx: &mut $ty) -> $crate::Verdict $body
            policy(context) as u64
        }
    };
}

/// Declares maps: the Rust name of the static, its type, and the map's name for the host. Maps of one name and
/// shape are one map, across policies and languages.
///
/// ```
/// use ringfence_guest::{Array, HashMap, maps};
/// maps! {
///     /// Calls per communicator.
///     static CALLS: HashMap<u64, u64, 128> = "calls";
///     static LIMITS: Array<u32, 5> = "limits";
/// }
/// ```
#[macro_export]
macro_rules! maps {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $kind:ident<$($arg:tt),+ $(,)?> = $elf:literal;)+) => {
        $($(#[$meta])*
        #[unsafe(export_name = $elf)]
        #[unsafe(link_section = ".maps")]
        $vis static $name: $kind<$($arg),+> = $kind::new();)+
    };
}

/// A line for the log of the job: a format as the kernel's `bpf_printk` takes it (`%d %u %x %lld %llu %llx %c %p`), and at most three
/// numbers. The host writes some lines a second for each policy and counts the rest. *Rank-local.*
///
/// ```
/// use ringfence_guest::{Verdict, printk, tuner};
/// tuner! {
///     fn talks(ctx) {
///         printk!("%llu bytes on %u ranks", ctx.n_bytes(), u64::from(ctx.n_ranks()));
///         Verdict::Keep
///     }
/// }
/// ```
#[macro_export]
macro_rules! printk {
    ($fmt:literal) => {
        $crate::printk!(@ $fmt, 0, 0, 0)
    };
    ($fmt:literal, $a:expr $(,)?) => {
        $crate::printk!(@ $fmt, $a, 0, 0)
    };
    ($fmt:literal, $a:expr, $b:expr $(,)?) => {
        $crate::printk!(@ $fmt, $a, $b, 0)
    };
    ($fmt:literal, $a:expr, $b:expr, $c:expr $(,)?) => {
        $crate::printk!(@ $fmt, $a, $b, $c)
    };
    (@ $fmt:literal, $a:expr, $b:expr, $c:expr) => {
        $crate::helpers::trace_printk(::core::concat!($fmt, "\0").as_bytes(), [$a, $b, $c])
    };
}

/// The license string of the object, once in each policy.
#[macro_export]
macro_rules! license {
    ($text:literal) => {
        #[doc(hidden)]
        #[unsafe(export_name = "LICENSE")]
        #[unsafe(link_section = "license")]
        pub static LICENSE: [u8; ::core::concat!($text, "\0").len()] = {
            let (text, mut bytes, mut i) = (::core::concat!($text, "\0").as_bytes(), [0; _], 0);
            while i < text.len() {
                bytes[i] = text[i];
                i += 1;
            }
            bytes
        };
    };
}
