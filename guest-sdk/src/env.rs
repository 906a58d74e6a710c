//! [`EnvCtx`]: typed access to the context of the `env` hook, [`EnvName`] and [`EnvValue`] for its texts, and [`env!`](crate::env) to stand
//! on it.

use crate::abi::{EnvContext, env_action};
use crate::raw;

/// A look-up of one of NCCL's settings.
pub struct EnvCtx<'a>(&'a mut EnvContext);

/// A text of `N` times eight bytes, padded with NUL, as the context and maps hold it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvText<const N: usize>(pub [u64; N]);

/// The name of a setting.
pub type EnvName = EnvText<8>;
/// The value of a setting.
pub type EnvValue = EnvText<32>;

impl<const N: usize> EnvText<N> {
    /// The text, to be made at compile time: `const ALGO: EnvName = EnvName::new("NCCL_ALGO");`
    ///
    /// # Panics
    /// If the text is longer than what there is room for, less one byte.
    pub const fn new(text: &str) -> EnvText<N> {
        let (bytes, mut words, mut i) = (text.as_bytes(), [0; N], 0);
        assert!(bytes.len() < 8 * N, "the text is too long");
        while i < bytes.len() {
            words[i / 8] |= (bytes[i] as u64) << (8 * (i % 8));
            i += 1;
        }
        EnvText(words)
    }
}

impl<'a> EnvCtx<'a> {
    /// Wraps the memory that the host hands to an entry point; [`env!`](crate::env) does this.
    #[inline(always)]
    pub fn new(ctx: &'a mut EnvContext) -> EnvCtx<'a> {
        EnvCtx(ctx)
    }

    /// NCCL's version: `major << 16 | minor << 8 | patch`.
    #[inline(always)]
    pub fn nccl_version(&self) -> u32 {
        raw::load(&self.0.nccl_version)
    }

    /// Is this the name that NCCL asks for?
    #[inline(always)]
    pub fn is(&self, name: &EnvName) -> bool {
        let mut i = 0;
        while i < 8 {
            if raw::load(&self.0.name[i]) != name.0[i] {
                return false;
            }
            i += 1;
        }
        true
    }

    /// Answers with this value.
    #[inline(always)]
    pub fn answer(&mut self, value: &EnvValue) {
        let mut i = 0;
        while i < 32 {
            raw::store(&mut self.0.value[i], value.0[i]);
            i += 1;
        }
        raw::store(&mut self.0.value_len, 255);
        raw::store(&mut self.0.action, env_action::ANSWER);
    }

    /// Says that it is not set.
    #[inline(always)]
    pub fn hide(&mut self) {
        raw::store(&mut self.0.action, env_action::HIDE);
    }

    /// Leaves it to the process environment, whatever stands so far.
    #[inline(always)]
    pub fn pass(&mut self) {
        raw::store(&mut self.0.action, env_action::PASS);
    }
}

/// Places a function on the `env` hook. Its argument is a `&mut EnvCtx<'_>`, its value a [`Verdict`](crate::Verdict).
///
/// ```
/// use ringfence_guest::{EnvName, EnvValue, Verdict, env};
/// const ALGO: EnvName = EnvName::new("NCCL_ALGO");
/// const RING: EnvValue = EnvValue::new("Ring");
/// env! {
///     fn ring(ctx) {
///         if ctx.is(&ALGO) {
///             ctx.answer(&RING);
///             return Verdict::Submit;
///         }
///         Verdict::Keep
///     }
/// }
/// ```
#[macro_export]
macro_rules! env {
    ($(#[$meta:meta])* fn $name:ident($ctx:ident) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "env")]
        pub extern "C" fn $name(context: &mut $crate::abi::EnvContext) -> u64 {
            #[inline(always)]
            fn policy($ctx: &mut $crate::EnvCtx<'_>) -> $crate::Verdict $body
            policy(&mut $crate::EnvCtx::new(context)) as u64
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bytes_in_order() {
        let name = EnvName::new("NCCL_ALGO");
        assert_eq!(name.0[0].to_le_bytes(), *b"NCCL_ALG");
        assert_eq!(name.0[1].to_le_bytes(), *b"O\0\0\0\0\0\0\0");
        assert_eq!(name.0[2..], [0; 6]);
    }

    #[test]
    fn an_answer_is_written() {
        let mut raw = EnvContext {
            name: EnvName::new("NCCL_ALGO").0,
            name_len: 9,
            nccl_version: 0x02_1e_07,
            action: 0,
            value_len: 0,
            value: [0; 32],
        };
        let mut ctx = EnvCtx::new(&mut raw);
        assert!(ctx.is(&EnvName::new("NCCL_ALGO")) && !ctx.is(&EnvName::new("NCCL_ALGOS")));
        assert_eq!(ctx.nccl_version(), 0x02_1e_07);
        ctx.answer(&EnvValue::new("Ring"));
        assert_eq!(
            (raw.action, raw.value_len, raw.value[0]),
            (env_action::ANSWER, 255, u64::from_le_bytes(*b"Ring\0\0\0\0"))
        );
        EnvCtx::new(&mut raw).hide();
        assert_eq!(raw.action, env_action::HIDE);
        EnvCtx::new(&mut raw).pass();
        assert_eq!(raw.action, env_action::PASS);
    }
}
