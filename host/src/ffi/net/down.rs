//! [`Down`]: the plugin below, at the version that was chosen of it, callable in one shape for all versions: that of the newest, as
//! in NCCL's own shims (`src/plugin/net/net_v*.cc`), whose rules for what an older version cannot say are kept.
//!
//! # Safety
//! Each call passes NCCL's arguments, and pointers that the plugin itself made, on to the plugin. Whoever calls promises that they
//! are what NCCL's contract says; the functions are the plugin's, which is never closed.

use super::properties::Properties;
use super::types::*;
use crate::ffi::types::{INTERNAL_ERROR, NcclResult, SUCCESS};
use std::ffi::c_int;
use std::ptr::null_mut;

enum GetProps {
    V6(GetProperties<PropertiesV6>),
    V7(GetProperties<PropertiesV7>),
    V8(GetProperties<PropertiesV8>),
    V9(GetProperties<PropertiesV9>),
    V11(GetProperties<PropertiesV11>),
    V12(GetProperties<PropertiesV12>),
}

enum Listen {
    V6(ListenV6),
    V11(ListenV11),
}

enum Connect {
    V6(ConnectV6),
    V7(ConnectV7),
    V10(ConnectV10),
    V11(ConnectV11),
}

enum Accept {
    V6(AcceptV6),
    V7(AcceptV7),
}

enum RegMr {
    V6(RegMrV6),
    V8(RegMrV8),
}

enum Isend {
    V6(IsendV6),
    V9(IsendV9),
    V10(IsendV10),
}

enum Irecv {
    V6(IrecvV6),
    V9(IrecvV9),
    V10(IrecvV10),
}

enum MakeV {
    V9(MakeVDevice<VDevicePropsV9>),
    V12(MakeVDevice<VDevicePropsV12>),
}

/// `sizes` of an `irecv`, as wide as NCCL's version has them.
#[derive(Clone, Copy)]
pub(crate) enum Sizes {
    Int(*mut c_int),
    Size(*mut usize),
}

/// What a plugin's table holds once its `init` has succeeded.
pub(crate) struct Down {
    pub(crate) devices: Devices,
    get_properties: GetProps,
    listen: Listen,
    connect: Connect,
    accept: Accept,
    reg_mr: RegMr,
    pub(crate) reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub(crate) dereg_mr: DeregMr,
    isend: Isend,
    irecv: Irecv,
    pub(crate) iflush: Option<Iflush>,
    pub(crate) test: Test,
    pub(crate) close_send: Close,
    pub(crate) close_recv: Close,
    pub(crate) close_listen: Close,
    pub(crate) get_device_mr: Option<GetDeviceMr>,
    pub(crate) irecv_consumed: Option<IrecvConsumed>,
    make_v_device: Option<MakeV>,
    pub(crate) finalize: Option<Close>,
    pub(crate) set_net_attr: Option<SetNetAttr>,
}

// SAFETY: code pointers of a library that is never closed.
unsafe impl Send for Down {}
// SAFETY: as above; nothing is written.
unsafe impl Sync for Down {}

/// Reads a table; `None` if a member that NCCL calls unasked is null.
macro_rules! read {
    ($t:expr, $props:ident $listen:ident $connect:ident $accept:ident $reg:ident $isend:ident $irecv:ident,
     $mr:expr, $consumed:expr, $v:expr, $finalize:expr, $attr:expr) => {
        Some(Down {
            devices: $t.devices?,
            get_properties: GetProps::$props($t.get_properties?),
            listen: Listen::$listen($t.listen?),
            connect: Connect::$connect($t.connect?),
            accept: Accept::$accept($t.accept?),
            reg_mr: RegMr::$reg($t.reg_mr?),
            reg_mr_dma_buf: $t.reg_mr_dma_buf,
            dereg_mr: $t.dereg_mr?,
            isend: Isend::$isend($t.isend?),
            irecv: Irecv::$irecv($t.irecv?),
            iflush: $t.iflush,
            test: $t.test?,
            close_send: $t.close_send?,
            close_recv: $t.close_recv?,
            close_listen: $t.close_listen?,
            get_device_mr: $mr,
            irecv_consumed: $consumed,
            make_v_device: $v,
            finalize: $finalize,
            set_net_attr: $attr,
        })
    };
}

fn read_v6(t: &NetV6) -> Option<Down> {
    read!(t, V6 V6 V6 V6 V6 V6 V6, None, None, None, None, None)
}

fn read_v7(t: &NetV7) -> Option<Down> {
    read!(t, V7 V6 V7 V7 V6 V6 V6, t.get_device_mr, t.irecv_consumed, None, None, None)
}

fn read_v8(t: &NetV8) -> Option<Down> {
    read!(t, V8 V6 V7 V7 V8 V6 V6, t.get_device_mr, t.irecv_consumed, None, None, None)
}

fn read_v9(t: &NetV9) -> Option<Down> {
    let v = t.make_v_device.map(MakeV::V9);
    read!(t, V9 V6 V7 V7 V8 V9 V9, t.get_device_mr, t.irecv_consumed, v, None, None)
}

fn read_v10(t: &NetV10) -> Option<Down> {
    let v = t.make_v_device.map(MakeV::V9);
    read!(t, V9 V6 V10 V7 V8 V10 V10, t.get_device_mr, t.irecv_consumed, v, None, None)
}

fn read_v11(t: &NetV11) -> Option<Down> {
    let v = t.make_v_device.map(MakeV::V9);
    read!(t, V11 V11 V11 V7 V8 V10 V10, t.get_device_mr, t.irecv_consumed, v, t.finalize, t.set_net_attr)
}

fn read_v12(t: &NetV12) -> Option<Down> {
    let v = t.make_v_device.map(MakeV::V12);
    read!(t, V12 V11 V11 V7 V8 V10 V10, t.get_device_mr, t.irecv_consumed, v, t.finalize, t.set_net_attr)
}

impl Down {
    /// Reads the table of `version` at `table`; `None` if a member is null that NCCL calls without looking.
    ///
    /// # Safety
    /// `table` points to a table of that version, 6 to 12.
    pub(crate) unsafe fn read(version: usize, table: *const ()) -> Option<Down> {
        // SAFETY: as the caller promises, for each version its own type.
        unsafe {
            match version {
                6 => read_v6(&*table.cast()),
                7 => read_v7(&*table.cast()),
                8 => read_v8(&*table.cast()),
                9 => read_v9(&*table.cast()),
                10 => read_v10(&*table.cast()),
                11 => read_v11(&*table.cast()),
                12 => read_v12(&*table.cast()),
                _ => None,
            }
        }
    }

    /// Writes the properties of a device as `P` has them, and NCCL's own memory only if the plugin succeeds.
    pub(crate) unsafe fn get_properties<P: Properties>(&self, dev: c_int, props: *mut P) -> NcclResult {
        // SAFETY: see the head of this file; each function gets the structure of its own version.
        unsafe {
            match self.get_properties {
                GetProps::V6(f) => convert(f, dev, props),
                GetProps::V7(f) => convert(f, dev, props),
                GetProps::V8(f) => convert(f, dev, props),
                GetProps::V9(f) => convert(f, dev, props),
                GetProps::V11(f) => convert(f, dev, props),
                GetProps::V12(f) => convert(f, dev, props),
            }
        }
    }

    pub(crate) unsafe fn listen(&self, ctx: Ptr, dev: c_int, handle: Ptr, comm: Out) -> NcclResult {
        // SAFETY: see the head of this file.
        unsafe {
            match self.listen {
                Listen::V6(f) => f(dev, handle, comm),
                Listen::V11(f) => f(ctx, dev, handle, comm),
            }
        }
    }

    /// `ctx` is for v11 and later, `config` for v10.
    pub(crate) unsafe fn connect(
        &self,
        ctx: Ptr,
        config: *mut CommConfig,
        dev: c_int,
        handle: Ptr,
        comm: Out,
        device: OutDevice,
    ) -> NcclResult {
        // SAFETY: see the head of this file.
        unsafe {
            match self.connect {
                Connect::V6(f) => f(dev, handle, comm),
                Connect::V7(f) => f(dev, handle, comm, device),
                Connect::V10(f) => f(dev, config, handle, comm, device),
                Connect::V11(f) => f(ctx, dev, handle, comm, device),
            }
        }
    }

    pub(crate) unsafe fn accept(&self, listen: Ptr, comm: Out, device: OutDevice) -> NcclResult {
        // SAFETY: see the head of this file.
        unsafe {
            match self.accept {
                Accept::V6(f) => f(listen, comm),
                Accept::V7(f) => f(listen, comm, device),
            }
        }
    }

    pub(crate) unsafe fn reg_mr(
        &self,
        comm: Ptr,
        data: Ptr,
        size: usize,
        kind: c_int,
        handle: Out,
    ) -> NcclResult {
        // SAFETY: see the head of this file.
        unsafe {
            match self.reg_mr {
                RegMr::V6(f) => match c_int::try_from(size) {
                    Ok(size) => f(comm, data, size, kind, handle),
                    Err(_) => INTERNAL_ERROR,
                },
                RegMr::V8(f) => f(comm, data, size, kind, handle),
            }
        }
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn isend(
        &self,
        comm: Ptr,
        data: Ptr,
        size: usize,
        tag: c_int,
        mhandle: Ptr,
        phandle: Ptr,
        request: Out,
    ) -> NcclResult {
        // SAFETY: see the head of this file.
        unsafe {
            match self.isend {
                Isend::V6(f) => match c_int::try_from(size) {
                    Ok(size) => f(comm, data, size, tag, mhandle, request),
                    Err(_) => INTERNAL_ERROR,
                },
                Isend::V9(f) => f(comm, data, size, tag, mhandle, request),
                Isend::V10(f) => f(comm, data, size, tag, mhandle, phandle, request),
            }
        }
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn irecv(
        &self,
        comm: Ptr,
        n: c_int,
        data: Out,
        sizes: Sizes,
        tags: *mut c_int,
        mhandles: Out,
        phandles: Out,
        request: Out,
    ) -> NcclResult {
        // SAFETY: see the head of this file; `sizes` has `n` entries.
        unsafe {
            match (&self.irecv, sizes) {
                (Irecv::V6(f), Sizes::Int(sizes)) => f(comm, n, data, sizes, tags, mhandles, request),
                (Irecv::V6(f), Sizes::Size(sizes)) => {
                    let Some(mut small) = narrow(n, sizes) else { return INTERNAL_ERROR };
                    // Such a plugin knows no receive without completion, and a request that is not null would look made.
                    if (*request).addr() == OPTIONAL_RECV_COMPLETION {
                        *request = null_mut();
                    }
                    f(comm, n, data, small.as_mut_ptr(), tags, mhandles, request)
                }
                (Irecv::V9(f), Sizes::Size(sizes)) => f(comm, n, data, sizes, tags, mhandles, request),
                (Irecv::V10(f), Sizes::Size(sizes)) => {
                    f(comm, n, data, sizes, tags, mhandles, phandles, request)
                }
                // No plugin is newer than the version that NCCL took of ours.
                (_, Sizes::Int(_)) => INTERNAL_ERROR,
            }
        }
    }

    pub(crate) fn has_device_mr(&self) -> bool {
        self.get_device_mr.is_some()
    }

    pub(crate) fn has_consumed(&self) -> bool {
        self.irecv_consumed.is_some()
    }

    pub(crate) fn has_net_attr(&self) -> bool {
        self.set_net_attr.is_some()
    }

    pub(crate) fn makes_v_devices(&self) -> bool {
        self.make_v_device.is_some()
    }

    /// `props` is of any layout: the older is the front of the newer. NCCL offers up to 8 devices to what it takes for v12, and the plugin
    /// below may be older; then it gets the answer that NCCL itself gives for too many.
    pub(crate) unsafe fn make_v_device(&self, dev: *mut c_int, props: Ptr) -> NcclResult {
        // SAFETY: see the head of this file; `ndevs` comes first in both layouts.
        unsafe {
            match self.make_v_device {
                None => INTERNAL_ERROR,
                Some(MakeV::V9(_)) if *props.cast::<c_int>() > MAX_DEVS_V9 as c_int => INTERNAL_ERROR,
                Some(MakeV::V9(f)) => f(dev, props.cast()),
                Some(MakeV::V12(f)) => f(dev, props.cast()),
            }
        }
    }
}

/// Calls `get` and converts; if both are of one type, NCCL's own memory is filled.
///
/// # Safety
/// As the head of this file says.
unsafe fn convert<F: Properties, T: Properties>(get: GetProperties<F>, dev: c_int, to: *mut T) -> NcclResult {
    if F::VERSION == T::VERSION {
        // SAFETY: the same version has the same structure.
        return unsafe { get(dev, to.cast()) };
    }
    let mut from = F::empty();
    // SAFETY: as above.
    let rc = unsafe { get(dev, &mut from) };
    if rc == SUCCESS {
        // SAFETY: NCCL's pointer to properties of its own version.
        unsafe { to.write(T::narrow(&from.widen(dev))) };
    }
    rc
}

/// Sizes as `int`; `None` if one does not fit, or if there are more than NCCL ever groups.
///
/// # Safety
/// `sizes` has `n` entries.
unsafe fn narrow(n: c_int, sizes: *const usize) -> Option<[c_int; MAX_RECVS]> {
    let n = usize::try_from(n).ok().filter(|n| *n <= MAX_RECVS)?;
    let mut small = [0; MAX_RECVS];
    for (i, to) in small.iter_mut().enumerate().take(n) {
        // SAFETY: `i` is less than `n`.
        let size = unsafe { *sizes.add(i) };
        *to = c_int::try_from(size).ok()?;
    }
    Some(small)
}
