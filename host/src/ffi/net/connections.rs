//! The entries that make and close connections, and register memory with them.
//!
//! # Safety
//! As at the head of [`front`](super::front).

use super::down::Down;
use super::front::{adopt, down, resolve, tell_conn, unsigned};
use super::scopes;
use super::types::*;
use crate::ffi::guard::enter;
use crate::ffi::types::{INTERNAL_ERROR, NcclResult, SYSTEM_ERROR};
use crate::host::tell;
use crate::net::{self, CONNS, Call, Found, SCOPES, address};
use ringfence_guest::abi::net_op;
use std::ffi::c_int;
use std::ptr::null_mut;

/// The plugin's context, the configuration for a v10, and the key of the scope that a call belongs to.
struct Place {
    ctx: Ptr,
    config: *mut CommConfig,
    scope: u64,
}

/// Of a call of v11 or later; `None` if the context is closed.
fn place(ctx: Ptr) -> Option<Place> {
    static DEFAULT: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
    match SCOPES.find(address(ctx)) {
        Found::Ours(scope) => Some(Place {
            ctx: scope.inner(),
            config: scope.traffic_class.as_ptr().cast(),
            scope: address(ctx),
        }),
        Found::Foreign => Some(Place { ctx, config: DEFAULT.as_ptr().cast(), scope: 0 }),
        Found::Stale => None,
    }
}

/// Of a call of v10 or before.
fn shared_place(config: *mut CommConfig) -> Place {
    let mut scope = 0;
    enter(|| scope = scopes::shared());
    Place { ctx: null_mut(), config, scope }
}

unsafe fn listen<const N: usize>(place: Option<Place>, dev: c_int, handle: Ptr, comm: Out) -> NcclResult {
    let (Some(down), Some(place)) = (down::<N>(), place) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.listen(place.ctx, dev, handle, comm) };
    let call = Call { op: net_op::LISTEN, dev: unsigned(dev), result: unsigned(rc), ..Call::default() };
    // SAFETY: as above.
    unsafe { adopt::<N>(place.scope, comm, call) };
    rc
}

pub(super) unsafe extern "C" fn listen_v6<const N: usize>(dev: c_int, handle: Ptr, comm: Out) -> NcclResult {
    let place = down::<N>().map(|_| shared_place(null_mut()));
    // SAFETY: see the head of `front`.
    unsafe { listen::<N>(place, dev, handle, comm) }
}

pub(super) unsafe extern "C" fn listen_v11<const N: usize>(
    ctx: Ptr,
    dev: c_int,
    handle: Ptr,
    comm: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { listen::<N>(place(ctx), dev, handle, comm) }
}

/// Asks the policies first. A denied connection is `ncclSystemError`, as when the network itself refuses: NCCL passes it on to
/// whoever waits for the connection, and the job ends with it (and with our line as the last error).
unsafe fn connect<const N: usize>(
    place: Option<Place>,
    dev: c_int,
    handle: Ptr,
    comm: Out,
    device: OutDevice,
) -> NcclResult {
    let (Some(down), Some(place)) = (down::<N>(), place) else { return INTERNAL_ERROR };
    let call = Call { op: net_op::CONNECT, dev: unsigned(dev), ..Call::default() };
    let mut denied = false;
    enter(|| {
        if let Found::Ours(scope) = SCOPES.find(place.scope) {
            denied = net::asked(scope, &call);
        }
    });
    if denied {
        enter(|| tell!(Warn, "a net policy denied a connection on device {dev}"));
        return SYSTEM_ERROR;
    }
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.connect(place.ctx, place.config, dev, handle, comm, device) };
    // SAFETY: as above.
    unsafe { adopt::<N>(place.scope, comm, Call { result: unsigned(rc), ..call }) };
    rc
}

pub(super) unsafe extern "C" fn connect_v6(dev: c_int, handle: Ptr, comm: Out) -> NcclResult {
    let place = down::<6>().map(|_| shared_place(null_mut()));
    // SAFETY: see the head of `front`; a plugin of v6 takes no device handle.
    unsafe { connect::<6>(place, dev, handle, comm, null_mut()) }
}

pub(super) unsafe extern "C" fn connect_v7<const N: usize>(
    dev: c_int,
    handle: Ptr,
    comm: Out,
    device: OutDevice,
) -> NcclResult {
    let place = down::<N>().map(|_| shared_place(null_mut()));
    // SAFETY: see the head of `front`.
    unsafe { connect::<N>(place, dev, handle, comm, device) }
}

pub(super) unsafe extern "C" fn connect_v10(
    dev: c_int,
    config: *mut CommConfig,
    handle: Ptr,
    comm: Out,
    device: OutDevice,
) -> NcclResult {
    let place = down::<10>().map(|_| shared_place(config));
    // SAFETY: see the head of `front`.
    unsafe { connect::<10>(place, dev, handle, comm, device) }
}

pub(super) unsafe extern "C" fn connect_v11<const N: usize>(
    ctx: Ptr,
    dev: c_int,
    handle: Ptr,
    comm: Out,
    device: OutDevice,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { connect::<N>(place(ctx), dev, handle, comm, device) }
}

pub(super) unsafe extern "C" fn accept_v7<const N: usize>(
    listen: Ptr,
    comm: Out,
    device: OutDevice,
) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(listen)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.accept(inner, comm, device) };
    let (scope, dev) = conn.map_or((0, 0), |conn| (conn.scope(), conn.dev()));
    let call = Call { op: net_op::ACCEPT, dev, result: unsigned(rc), ..Call::default() };
    // SAFETY: as above.
    unsafe { adopt::<N>(scope, comm, call) };
    rc
}

pub(super) unsafe extern "C" fn accept_v6(listen: Ptr, comm: Out) -> NcclResult {
    // SAFETY: see the head of `front`; a plugin of v6 takes no device handle.
    unsafe { accept_v7::<6>(listen, comm, null_mut()) }
}

unsafe fn close<const N: usize>(held: Ptr, op: u32, f: fn(&Down) -> Close) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(held)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { f(down)(inner) };
    tell_conn(conn, Call { op, result: unsigned(rc), ..Call::default() });
    enter(|| {
        let ours = CONNS.remove(address(held), |conn| conn.requests.clear()).is_some();
        if N < 11 && ours {
            scopes::release();
        }
    });
    rc
}

pub(super) unsafe extern "C" fn close_send<const N: usize>(comm: Ptr) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { close::<N>(comm, net_op::CLOSE_SEND, |down| down.close_send) }
}

pub(super) unsafe extern "C" fn close_recv<const N: usize>(comm: Ptr) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { close::<N>(comm, net_op::CLOSE_RECV, |down| down.close_recv) }
}

pub(super) unsafe extern "C" fn close_listen<const N: usize>(comm: Ptr) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { close::<N>(comm, net_op::CLOSE_LISTEN, |down| down.close_listen) }
}

pub(super) unsafe extern "C" fn reg_mr_v8<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: usize,
    kind: c_int,
    mhandle: Out,
) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(comm)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.reg_mr(inner, data, size, kind, mhandle) };
    tell_conn(conn, Call { op: net_op::REG_MR, size: size as u64, result: unsigned(rc), ..Call::default() });
    rc
}

pub(super) unsafe extern "C" fn reg_mr_v6<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: c_int,
    kind: c_int,
    mhandle: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`. A negative size, which NCCL never passes, becomes one that no plugin of an `int` gets.
    unsafe { reg_mr_v8::<N>(comm, data, size as usize, kind, mhandle) }
}

#[allow(clippy::too_many_arguments)]
pub(super) unsafe extern "C" fn reg_mr_dma_buf<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: Out,
) -> NcclResult {
    let Some(f) = down::<N>().and_then(|down| down.reg_mr_dma_buf) else { return INTERNAL_ERROR };
    let Some((inner, conn)) = resolve(comm) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { f(inner, data, size, kind, offset, fd, mhandle) };
    tell_conn(conn, Call { op: net_op::REG_MR, size: size as u64, result: unsigned(rc), ..Call::default() });
    rc
}

pub(super) unsafe extern "C" fn dereg_mr<const N: usize>(comm: Ptr, mhandle: Ptr) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(comm)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { (down.dereg_mr)(inner, mhandle) };
    tell_conn(conn, Call { op: net_op::DEREG_MR, result: unsigned(rc), ..Call::default() });
    rc
}

pub(super) unsafe extern "C" fn get_device_mr<const N: usize>(
    comm: Ptr,
    mhandle: Ptr,
    out: Out,
) -> NcclResult {
    let Some(f) = down::<N>().and_then(|down| down.get_device_mr) else { return INTERNAL_ERROR };
    let Some((inner, _)) = resolve(comm) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    unsafe { f(inner, mhandle, out) }
}
