//! [`NetCtx`]: typed access to the context of the `net` hook, and [`net!`](crate::net) to stand on it.

use crate::abi::{NetContext, net_op, net_verdict};
use crate::raw;

/// One call of the net plugin that Ringfence wraps. `docs/net.md` says when each is told.
pub struct NetCtx<'a>(&'a mut NetContext);

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name(&self) -> $ty {
            raw::load(&self.0.$name)
        })*
    };
}

impl<'a> NetCtx<'a> {
    /// Wraps the memory that the host hands to an entry point; [`net!`](crate::net) does this.
    #[inline(always)]
    pub fn new(ctx: &'a mut NetContext) -> NetCtx<'a> {
        NetCtx(ctx)
    }

    inputs! {
        /// NCCL's communicator id; 0 before net v11.
        comm_id: u64,
        /// Number of the connection; 0 before there is one.
        conn: u64,
        /// Bytes of the transfer or registration.
        size: u64,
        /// Monotonic clock in nanoseconds.
        time_ns: u64,
        /// At `TEST_DONE`: nanoseconds since the request was made.
        latency_ns: u64,
        /// Which call, see [`net_op`].
        op: u32,
        /// Device of the plugin below.
        dev: u32,
        /// Tag of the transfer.
        tag: u32,
        /// Receives of a grouped receive; 1 else.
        count: u32,
        /// Requests under way on this connection.
        in_flight: u32,
        /// What the plugin below returned; 0 where it was not called yet.
        result: u32,
        /// Operations that NCCL announced last, a bit mask; all ones: unknown.
        attr_op: u32,
        /// Algorithms that NCCL announced last, a bit mask; all ones: unknown.
        attr_algo: u32,
        /// Protocols that NCCL announced last, a bit mask; all ones: unknown.
        attr_proto: u32,
    }

    /// Is this the question whether a connection may be made? Only then [`deny`](NetCtx::deny) counts.
    #[inline(always)]
    pub fn asks(&self) -> bool {
        self.op() == net_op::CONNECT && self.conn() == 0 && self.result() == 0
    }

    /// The verdict so far: is the connection denied?
    #[inline(always)]
    pub fn is_denied(&self) -> bool {
        raw::load(&self.0.verdict) == net_verdict::DENY
    }

    /// Denies the connection: the job fails where it needs it.
    #[inline(always)]
    pub fn deny(&mut self) {
        raw::store(&mut self.0.verdict, net_verdict::DENY);
    }

    /// Allows the connection, whatever an earlier policy said.
    #[inline(always)]
    pub fn allow(&mut self) {
        raw::store(&mut self.0.verdict, net_verdict::ALLOW);
    }
}

/// Places a function on the `net` hook. Its argument is a `&mut NetCtx<'_>`, its value a [`Verdict`](crate::Verdict).
///
/// ```
/// use ringfence_guest::{Verdict, net};
/// net! {
///     /// Device 3 is out of bounds.
///     fn not_three(ctx) {
///         if ctx.asks() && ctx.dev() == 3 {
///             ctx.deny();
///             return Verdict::Submit;
///         }
///         Verdict::Keep
///     }
/// }
/// ```
#[macro_export]
macro_rules! net {
    ($(#[$meta:meta])* fn $name:ident($ctx:ident) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "net")]
        pub extern "C" fn $name(context: &mut $crate::abi::NetContext) -> u64 {
            #[inline(always)]
            fn policy($ctx: &mut $crate::NetCtx<'_>) -> $crate::Verdict $body
            policy(&mut $crate::NetCtx::new(context)) as u64
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(op: u32, conn: u64) -> NetContext {
        NetContext {
            comm_id: 1,
            conn,
            size: 2,
            time_ns: 3,
            latency_ns: 4,
            op,
            dev: 5,
            tag: 6,
            count: 7,
            in_flight: 8,
            result: 0,
            attr_op: 9,
            attr_algo: 10,
            attr_proto: 11,
            verdict: 0,
        }
    }

    #[test]
    fn only_an_attempt_asks() {
        assert!(NetCtx::new(&mut context(net_op::CONNECT, 0)).asks());
        assert!(!NetCtx::new(&mut context(net_op::CONNECT, 9)).asks());
        assert!(!NetCtx::new(&mut context(net_op::ACCEPT, 0)).asks());
    }

    #[test]
    fn the_verdict_is_written() {
        let mut raw = context(net_op::CONNECT, 0);
        let mut ctx = NetCtx::new(&mut raw);
        assert_eq!((ctx.dev(), ctx.size(), ctx.attr_proto(), ctx.is_denied()), (5, 2, 11, false));
        ctx.deny();
        assert!(ctx.is_denied());
        ctx.allow();
        assert_eq!(raw.verdict, net_verdict::ALLOW);
    }
}
