//! The entries of the data path. With no policy on the hook they look up the connection, call the plugin, and compare two words.
//!
//! # Safety
//! As at the head of [`front`](super::front).

use super::down::Sizes;
use super::front::{down, resolve, unsigned};
use super::types::*;
use crate::ffi::guard::enter;
use crate::ffi::types::{INTERNAL_ERROR, NcclResult, SUCCESS};
use crate::net::{self, Call, Conn, address};
use ringfence_guest::abi::net_op;
use std::ffi::c_int;
use std::ptr::null_mut;

/// After a transfer was given to the plugin, on a connection that policies may care for.
#[inline(never)]
unsafe fn follow(held: Ptr, conn: &Conn, call: Call, request: Out) {
    enter(|| {
        // SAFETY: see the head of `front`: NCCL's place for the request.
        let raw = if call.result == 0 && !request.is_null() { unsafe { request.read() } } else { null_mut() };
        // NCCL's hints to the plugin (1, 2) that the plugin left there are no request.
        let raw = if raw.addr() > 2 { raw } else { null_mut() };
        if let Some(ours) = net::began(address(held), conn, &call, raw) {
            // SAFETY: as above; not null, since something was read from there.
            unsafe { request.write(ours) };
        }
    });
}

#[inline]
#[allow(clippy::too_many_arguments)]
unsafe fn isend<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: usize,
    tag: c_int,
    mhandle: Ptr,
    phandle: Ptr,
    request: Out,
) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(comm)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.isend(inner, data, size, tag, mhandle, phandle, request) };
    if let Some(conn) = conn
        && !conn.is_quiet()
    {
        let (size, tag, result) = (size as u64, tag as u32, unsigned(rc));
        // SAFETY: as above.
        unsafe {
            follow(
                comm,
                conn,
                Call { op: net_op::ISEND, size, tag, count: 1, result, ..Call::default() },
                request,
            )
        };
    }
    rc
}

pub(super) unsafe extern "C" fn isend_v6<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: c_int,
    tag: c_int,
    mhandle: Ptr,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`; sizes as in `reg_mr_v6`.
    unsafe { isend::<N>(comm, data, size as usize, tag, mhandle, null_mut(), request) }
}

pub(super) unsafe extern "C" fn isend_v9(
    comm: Ptr,
    data: Ptr,
    size: usize,
    tag: c_int,
    mhandle: Ptr,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { isend::<9>(comm, data, size, tag, mhandle, null_mut(), request) }
}

pub(super) unsafe extern "C" fn isend_v10<const N: usize>(
    comm: Ptr,
    data: Ptr,
    size: usize,
    tag: c_int,
    mhandle: Ptr,
    phandle: Ptr,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { isend::<N>(comm, data, size, tag, mhandle, phandle, request) }
}

/// Bytes that a grouped receive has room for, and the tag of its first.
unsafe fn receives(n: c_int, sizes: Sizes, tags: *const c_int) -> Call {
    let n = usize::try_from(n).unwrap_or(0).min(MAX_RECVS);
    let at = |i: usize| match sizes {
        // SAFETY: see the head of `front`: NCCL's arrays have `n` entries.
        Sizes::Int(p) if !p.is_null() => u64::from(unsigned(unsafe { *p.add(i) })),
        // SAFETY: as above.
        Sizes::Size(p) if !p.is_null() => unsafe { *p.add(i) as u64 },
        Sizes::Int(_) | Sizes::Size(_) => 0,
    };
    // SAFETY: as above.
    let tag = if n > 0 && !tags.is_null() { unsafe { *tags as u32 } } else { 0 };
    let size = (0..n).map(at).fold(0, u64::saturating_add);
    Call { op: net_op::IRECV, size, tag, count: n as u32, ..Call::default() }
}

#[inline]
#[allow(clippy::too_many_arguments)]
unsafe fn irecv<const N: usize>(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: Sizes,
    tags: *mut c_int,
    mhandles: Out,
    phandles: Out,
    request: Out,
) -> NcclResult {
    let (Some(down), Some((inner, conn))) = (down::<N>(), resolve(comm)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { down.irecv(inner, n, data, sizes, tags, mhandles, phandles, request) };
    if let Some(conn) = conn
        && !conn.is_quiet()
    {
        // SAFETY: as above.
        let call = unsafe { receives(n, sizes, tags) };
        // Version 6 has no `irecvConsumed`.
        let (result, consumed) = (unsigned(rc), N >= 7 && down.has_consumed());
        // SAFETY: as above.
        unsafe { follow(comm, conn, Call { result, consumed, ..call }, request) };
    }
    rc
}

pub(super) unsafe extern "C" fn irecv_v6<const N: usize>(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: Out,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { irecv::<N>(comm, n, data, Sizes::Int(sizes), tags, mhandles, null_mut(), request) }
}

pub(super) unsafe extern "C" fn irecv_v9(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: Out,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { irecv::<9>(comm, n, data, Sizes::Size(sizes), tags, mhandles, null_mut(), request) }
}

#[allow(clippy::too_many_arguments)]
pub(super) unsafe extern "C" fn irecv_v10<const N: usize>(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: Out,
    phandles: Out,
    request: Out,
) -> NcclResult {
    // SAFETY: see the head of `front`.
    unsafe { irecv::<N>(comm, n, data, Sizes::Size(sizes), tags, mhandles, phandles, request) }
}

pub(super) unsafe extern "C" fn iflush<const N: usize>(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut c_int,
    mhandles: Out,
    request: Out,
) -> NcclResult {
    let Some(f) = down::<N>().and_then(|down| down.iflush) else { return INTERNAL_ERROR };
    let Some((inner, conn)) = resolve(comm) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    let rc = unsafe { f(inner, n, data, sizes, mhandles, request) };
    if let Some(conn) = conn
        && !conn.is_quiet()
    {
        // SAFETY: as above.
        let call = unsafe { receives(n, Sizes::Int(sizes), std::ptr::null()) };
        // SAFETY: as above.
        unsafe { follow(comm, conn, Call { op: net_op::IFLUSH, result: unsigned(rc), ..call }, request) };
    }
    rc
}

pub(super) unsafe extern "C" fn irecv_consumed<const N: usize>(comm: Ptr, n: c_int, held: Ptr) -> NcclResult {
    let Some(f) = down::<N>().and_then(|down| down.irecv_consumed) else { return INTERNAL_ERROR };
    let (Some((inner, _)), Ok(raw)) = (resolve(comm), net::consumed(held)) else { return INTERNAL_ERROR };
    // SAFETY: see the head of `front`.
    unsafe { f(inner, n, raw) }
}

pub(super) unsafe extern "C" fn test<const N: usize>(
    held: Ptr,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    let Some(down) = down::<N>() else { return INTERNAL_ERROR };
    match net::request(held) {
        // SAFETY: see the head of `front`.
        Ok(None) => unsafe { (down.test)(held, done, sizes) },
        Ok(Some(followed)) => {
            // SAFETY: as above.
            let rc = unsafe { (down.test)(followed.request.raw, done, sizes) };
            // SAFETY: as above; `done` is NCCL's and was written.
            if rc != SUCCESS || (!done.is_null() && unsafe { *done } != 0) {
                enter(|| {
                    // SAFETY: as above; `sizes` has as many entries as the request has receives.
                    let size = unsafe { transferred(&followed.request, sizes) };
                    net::finished(&followed, unsigned(rc), size);
                });
            }
            rc
        }
        Err(()) => INTERNAL_ERROR,
    }
}

/// Bytes of a request that is done: what was sent, or what the plugin says was received. A plugin need not fill in a send's size.
unsafe fn transferred(request: &net::Request, sizes: *const c_int) -> u64 {
    if request.op != net_op::IRECV || sizes.is_null() {
        return request.size;
    }
    // SAFETY: as the caller promises.
    (0..request.count as usize).map(|i| u64::from(unsigned(unsafe { *sizes.add(i) }))).sum()
}
