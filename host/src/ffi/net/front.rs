//! The entries that NCCL calls, for each version `N` of ours, in three layers: `extern "C"` functions of a version's signature, one
//! function per operation in the shape of the newest version, and [`Down`], which goes on to the plugin below. Here are `init` and what
//! is about devices; `connections` and `transfers` have the rest.
//!
//! What the plugin returns and writes goes to NCCL as it is, except for the pointers that stand for a connection, a context, or a
//! followed request: those are keys of ours. A pointer that is not one of ours goes on as it is (there was no room for a key);
//! one that was ours and is closed gets `ncclInternalError` rather than a call with freed memory.
//!
//! # Safety
//! Every function here is called by NCCL with NCCL's arguments, which the contract of `ncclNet_vN_t` describes, and passes them on.
//! Pointers of ours are checked, never followed; a pointer of NCCL's is read or written only where the contract says that it can be.

use super::chain::Below;
use super::down::Down;
use super::properties::Properties;
use super::scopes;
use super::types::*;
use crate::ffi::guard::enter;
use crate::ffi::types::{INTERNAL_ERROR, Logger, NcclResult, SUCCESS};
use crate::net::{self, CONNS, Call, Conn, Found, SCOPES, address};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

#[inline]
pub(super) fn down<const N: usize>() -> Option<&'static Down> {
    Below::get(N)?.down()
}

/// What the plugin calls a connection of NCCL's, and what we know of it; `None` if it is closed.
#[inline]
pub(super) fn resolve(held: Ptr) -> Option<(Ptr, Option<&'static Conn>)> {
    match CONNS.find(address(held)) {
        Found::Ours(conn) => Some((conn.inner(), Some(conn))),
        Found::Foreign => Some((held, None)),
        Found::Stale => None,
    }
}

pub(super) fn unsigned(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// Tells of a call on a connection.
pub(super) fn tell_conn(conn: Option<&Conn>, call: Call) {
    enter(|| {
        let Some(conn) = conn else { return };
        if let Found::Ours(scope) = SCOPES.find(conn.scope()) {
            net::told(scope, &Call { conn: conn.number(), dev: conn.dev(), ..call });
        }
    });
}

/// Gives NCCL our key for what the plugin made, or tells of its error. `out` is as the plugin left it.
pub(super) unsafe fn adopt<const N: usize>(scope: u64, out: Out, call: Call) {
    enter(|| {
        // SAFETY: see the head of this file: NCCL's place for the connection.
        let inner = if call.result == 0 && !out.is_null() { unsafe { out.read() } } else { null_mut() };
        if !inner.is_null() {
            let scope = if N < 11 { scopes::hold() } else { scope };
            // SAFETY: as above.
            unsafe { out.write(net::established(scope, inner, &call)) };
        } else if call.result != 0
            && let Found::Ours(scope) = SCOPES.find(scope)
        {
            net::told(scope, &call);
        }
    });
}

pub(super) unsafe extern "C" fn init_v6<const N: usize>(logger: Option<Logger>) -> NcclResult {
    // SAFETY: see the head of this file.
    unsafe { init_once::<N>(logger, None) }
}

pub(super) unsafe extern "C" fn init_v10(
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult {
    // SAFETY: see the head of this file.
    unsafe { init_once::<10>(logger, profiler) }
}

unsafe fn init_once<const N: usize>(
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult {
    let mut rc = SUCCESS;
    enter(|| {
        let below = super::prepare(N, logger);
        let Some(below) = below else { return };
        // SAFETY: NCCL's logger lives as long as it uses the plugin.
        unsafe { scopes::remember_logger(logger) };
        // SAFETY: see the head of this file; a plugin of v10 or before takes neither context nor configuration.
        rc = unsafe { below.init(false, null_mut(), 0, null_mut(), logger, profiler) };
        super::publish(N, below, logger);
    });
    rc
}

pub(super) unsafe extern "C" fn init_v11<const N: usize>(
    ctx: Out,
    comm_id: u64,
    config: *mut CommConfig,
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult {
    let mut rc = SUCCESS;
    enter(|| {
        if ctx.is_null() {
            return;
        }
        // SAFETY: see the head of this file: NCCL's place for the context.
        unsafe { ctx.write(null_mut()) };
        let Some(below) = super::prepare(N, logger) else { return };
        let mut inner = null_mut();
        // SAFETY: see the head of this file; `inner` is ours.
        rc = unsafe { below.init(true, &mut inner, comm_id, config, logger, profiler) };
        super::publish(N, below, logger);
        // SAFETY: NCCL's configuration, if there is one.
        let class = if config.is_null() { -1 } else { unsafe { (*config).traffic_class } };
        if rc == SUCCESS {
            // SAFETY: as above; NCCL's logger lives as long as its communicators.
            unsafe { ctx.write(scopes::open(comm_id, inner, class, logger)) };
        }
    });
    rc
}

pub(super) unsafe extern "C" fn finalize<const N: usize>(ctx: Ptr) -> NcclResult {
    let Some(below) = Below::get(N) else { return SUCCESS };
    let inner = match SCOPES.find(address(ctx)) {
        Found::Ours(scope) => scope.inner(),
        Found::Foreign => ctx,
        Found::Stale => return INTERNAL_ERROR,
    };
    // SAFETY: see the head of this file; `inner` is what the plugin's `init` gave.
    let rc = unsafe { below.finalize(inner) };
    enter(|| scopes::close(address(ctx), rc));
    rc
}

/// Without a plugin below: no devices, and NCCL goes on to its own.
pub(super) unsafe extern "C" fn devices<const N: usize>(count: *mut c_int) -> NcclResult {
    match down::<N>() {
        // SAFETY: see the head of this file.
        Some(down) => unsafe { (down.devices)(count) },
        None => {
            if !count.is_null() {
                // SAFETY: NCCL's pointer to its count.
                unsafe { count.write(0) };
            }
            SUCCESS
        }
    }
}

pub(super) unsafe extern "C" fn get_properties<const N: usize, P: Properties>(
    dev: c_int,
    props: *mut P,
) -> NcclResult {
    let Some(down) = down::<N>() else { return INTERNAL_ERROR };
    // SAFETY: see the head of this file.
    unsafe { down.get_properties(dev, props) }
}

pub(super) unsafe extern "C" fn make_v_device<const N: usize, V>(
    dev: *mut c_int,
    props: *mut V,
) -> NcclResult {
    let Some(down) = down::<N>() else { return INTERNAL_ERROR };
    // SAFETY: see the head of this file.
    unsafe { down.make_v_device(dev, props.cast()) }
}

pub(super) unsafe extern "C" fn set_net_attr<const N: usize>(ctx: Ptr, attr: *mut NetAttr) -> NcclResult {
    let Some(f) = down::<N>().and_then(|down| down.set_net_attr) else { return INTERNAL_ERROR };
    let inner = match SCOPES.find(address(ctx)) {
        Found::Ours(scope) => {
            if !attr.is_null() {
                // SAFETY: NCCL's attributes.
                let NetAttr { op, algo, proto, .. } = unsafe { attr.read() };
                scope.announce(op, algo, proto);
            }
            scope.inner()
        }
        Found::Foreign => ctx,
        Found::Stale => return INTERNAL_ERROR,
    };
    // SAFETY: see the head of this file.
    unsafe { f(inner, attr) }
}

/// The name for a table of ours: that of the plugin below, since `NCCL_NET` and `config.netName` choose by it.
pub(super) fn name_of(below: &Below) -> *const c_char {
    let name = below.name_pointer();
    if name.is_null() { super::NAME.as_ptr() } else { name }
}
