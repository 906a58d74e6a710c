//! NCCL's net interface as its headers lay it out: the tables [`NetV6`] to [`NetV12`], the properties of a device [`PropertiesV6`] to
//! [`PropertiesV12`], [`CommConfig`], [`NetAttr`], [`DeviceHandle`]. Every size and offset is asserted at compile time
//! (sources: `src/include/plugin/net/net_v*.h` and `nccl_device/net_device.h` of NCCL 2.30.7, x86-64, LP64).

use crate::ffi::types::{Logger, NcclResult};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// Most physical devices in a virtual one, versions 9 to 11.
pub const MAX_DEVS_V9: usize = 4;
/// Most physical devices in a virtual one, version 12.
pub const MAX_DEVS_V12: usize = 8;
/// Most receives that NCCL groups into one `irecv` (`NCCL_PROXY_MAX_SUBS`).
pub const MAX_RECVS: usize = 64;
/// Largest transfer that NCCL gives to a plugin whose sizes are `int` (`MAX_NET_SIZE`).
pub const MAX_NET_SIZE: usize = 1 << 30;
/// The same for collective networks (`MAX_COLLNET_SIZE`).
pub const MAX_COLLNET_SIZE: usize = 1 << 29;
/// `NCCL_NET_ID_UNDEF`.
pub const ID_UNDEF: i16 = -1;
/// What `irecv` may find in `*request`: NCCL does not need this receive's completion (2.26 and later).
pub const OPTIONAL_RECV_COMPLETION: usize = 1;

/// `ncclNetVDeviceProps` of versions 9 to 11.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct VDevicePropsV9 {
    pub ndevs: c_int,
    pub devs: [c_int; MAX_DEVS_V9],
}

/// `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct VDevicePropsV12 {
    pub ndevs: c_int,
    pub devs: [c_int; MAX_DEVS_V12],
}

/// `ncclNetCommConfig` of versions 10 to 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CommConfig {
    /// The plugin's own meaning; -1 = undefined.
    pub traffic_class: c_int,
}

/// `ncclNetCommAttr` of versions 11 and 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CommAttr {
    pub max_concurrent_peers: i32,
    pub min_concurrent_peers: i32,
    pub max_flows_per_peer: i32,
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr` of versions 11 and 12. The last three are bit masks; all ones = undefined.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NetAttr {
    pub send_comm_attr: CommAttr,
    pub recv_comm_attr: CommAttr,
    pub op: u32,
    pub algo: u32,
    pub proto: u32,
}

/// `ncclNetDeviceHandle` of versions 7 to 12: it belongs to the plugin and is only passed on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct DeviceHandle {
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub handle: *mut c_void,
    pub size: usize,
    pub needs_proxy_progress: c_int,
}

macro_rules! properties {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name {
            pub name: *mut c_char,
            pub pci_path: *mut c_char,
            pub guid: u64,
            pub ptr_support: c_int,
            $(pub $field: $ty,)*
        }
    };
}

properties!(
    /// `ncclNetProperties_v6_t`.
    PropertiesV6 { speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int }
);
properties!(
    /// `ncclNetProperties_v7_t`.
    PropertiesV7 {
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int,
    }
);
properties!(
    /// `ncclNetProperties_v8_t`.
    PropertiesV8 {
        reg_is_global: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int,
    }
);
properties!(
    /// `ncclNetProperties` of versions 9 and 10.
    PropertiesV9 {
        reg_is_global: c_int, force_flush: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int,
        v_props: VDevicePropsV9, max_p2p_bytes: usize, max_coll_bytes: usize,
    }
);
properties!(
    /// `ncclNetProperties_v11_t`.
    PropertiesV11 {
        reg_is_global: c_int, force_flush: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int,
        v_props: VDevicePropsV9, max_p2p_bytes: usize, max_coll_bytes: usize,
        max_multi_request_size: c_int,
    }
);
properties!(
    /// `ncclNetProperties_v12_t`.
    PropertiesV12 {
        reg_is_global: c_int, force_flush: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int,
        v_props: VDevicePropsV12, max_p2p_bytes: usize, max_coll_bytes: usize,
        max_multi_request_size: c_int, rail_id: i16, plane_id: i16,
    }
);

/// `ncclProfilerCallback_t`: `(&eHandle, type, pHandle, pluginId, extData)`.
pub type ProfilerCallback =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NcclResult;

/// Pointer to a pointer that the callee writes.
pub type Out = *mut *mut c_void;
/// Opaque pointer of the plugin or of NCCL.
pub type Ptr = *mut c_void;
/// Pointer to the device handle that the callee may write.
pub type OutDevice = *mut *mut DeviceHandle;

/// `init` of versions 6 to 9.
pub type InitV6 = unsafe extern "C" fn(Option<Logger>) -> NcclResult;
/// `init` of version 10.
pub type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<ProfilerCallback>) -> NcclResult;
/// `init` of versions 11 and 12: `(&ctx, commId, config, logger, profilerCallback)`.
pub type InitV11 =
    unsafe extern "C" fn(Out, u64, *mut CommConfig, Option<Logger>, Option<ProfilerCallback>) -> NcclResult;
/// `devices`.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> NcclResult;
/// `getProperties`.
pub type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> NcclResult;
/// `listen` of versions 6 to 10: `(dev, handle, &listenComm)`.
pub type ListenV6 = unsafe extern "C" fn(c_int, Ptr, Out) -> NcclResult;
/// `listen` of versions 11 and 12: with the context.
pub type ListenV11 = unsafe extern "C" fn(Ptr, c_int, Ptr, Out) -> NcclResult;
/// `connect` of version 6: `(dev, handle, &sendComm)`.
pub type ConnectV6 = unsafe extern "C" fn(c_int, Ptr, Out) -> NcclResult;
/// `connect` of versions 7 to 9: with the device handle.
pub type ConnectV7 = unsafe extern "C" fn(c_int, Ptr, Out, OutDevice) -> NcclResult;
/// `connect` of version 10: with the configuration.
pub type ConnectV10 = unsafe extern "C" fn(c_int, *mut CommConfig, Ptr, Out, OutDevice) -> NcclResult;
/// `connect` of versions 11 and 12: with the context.
pub type ConnectV11 = unsafe extern "C" fn(Ptr, c_int, Ptr, Out, OutDevice) -> NcclResult;
/// `accept` of version 6: `(listenComm, &recvComm)`.
pub type AcceptV6 = unsafe extern "C" fn(Ptr, Out) -> NcclResult;
/// `accept` of versions 7 to 12: with the device handle.
pub type AcceptV7 = unsafe extern "C" fn(Ptr, Out, OutDevice) -> NcclResult;
/// `regMr` of versions 6 and 7: `(comm, data, size, type, &mhandle)`.
pub type RegMrV6 = unsafe extern "C" fn(Ptr, Ptr, c_int, c_int, Out) -> NcclResult;
/// `regMr` of versions 8 to 12.
pub type RegMrV8 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Out) -> NcclResult;
/// `regMrDmaBuf`: `(comm, data, size, type, offset, fd, &mhandle)`.
pub type RegMrDmaBuf = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, c_int, Out) -> NcclResult;
/// `deregMr`: `(comm, mhandle)`.
pub type DeregMr = unsafe extern "C" fn(Ptr, Ptr) -> NcclResult;
/// `isend` of versions 6 to 8: `(sendComm, data, size, tag, mhandle, &request)`.
pub type IsendV6 = unsafe extern "C" fn(Ptr, Ptr, c_int, c_int, Ptr, Out) -> NcclResult;
/// `isend` of version 9.
pub type IsendV9 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Ptr, Out) -> NcclResult;
/// `isend` of versions 10 to 12: with the profiler's handle.
pub type IsendV10 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Ptr, Ptr, Out) -> NcclResult;
/// `irecv` of versions 6 to 8: `(recvComm, n, data[], sizes[], tags[], mhandles[], &request)`.
pub type IrecvV6 = unsafe extern "C" fn(Ptr, c_int, Out, *mut c_int, *mut c_int, Out, Out) -> NcclResult;
/// `irecv` of version 9.
pub type IrecvV9 = unsafe extern "C" fn(Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out) -> NcclResult;
/// `irecv` of versions 10 to 12: with the profiler's handles.
pub type IrecvV10 =
    unsafe extern "C" fn(Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out, Out) -> NcclResult;
/// `iflush`: `(recvComm, n, data[], sizes[], mhandles[], &request)`.
pub type Iflush = unsafe extern "C" fn(Ptr, c_int, Out, *mut c_int, Out, Out) -> NcclResult;
/// `test`: `(request, &done, sizes[])`.
pub type Test = unsafe extern "C" fn(Ptr, *mut c_int, *mut c_int) -> NcclResult;
/// `closeSend`, `closeRecv`, `closeListen`, and `finalize` (with the context).
pub type Close = unsafe extern "C" fn(Ptr) -> NcclResult;
/// `getDeviceMr`: `(comm, mhandle, &devMhandle)`.
pub type GetDeviceMr = unsafe extern "C" fn(Ptr, Ptr, Out) -> NcclResult;
/// `irecvConsumed`: `(recvComm, n, request)`.
pub type IrecvConsumed = unsafe extern "C" fn(Ptr, c_int, Ptr) -> NcclResult;
/// `makeVDevice`.
pub type MakeVDevice<V> = unsafe extern "C" fn(*mut c_int, *mut V) -> NcclResult;
/// `setNetAttr`: `(ctx, attr)`.
pub type SetNetAttr = unsafe extern "C" fn(Ptr, *mut NetAttr) -> NcclResult;

macro_rules! vtable {
    ($(#[$doc:meta])* $name:ident($init:ty, $properties:ty, $listen:ty, $connect:ty, $accept:ty, $reg_mr:ty, $isend:ty, $irecv:ty)
        { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name {
            pub name: *const c_char,
            pub init: Option<$init>,
            pub devices: Option<Devices>,
            pub get_properties: Option<GetProperties<$properties>>,
            pub listen: Option<$listen>,
            pub connect: Option<$connect>,
            pub accept: Option<$accept>,
            pub reg_mr: Option<$reg_mr>,
            pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
            pub dereg_mr: Option<DeregMr>,
            pub isend: Option<$isend>,
            pub irecv: Option<$irecv>,
            pub iflush: Option<Iflush>,
            pub test: Option<Test>,
            pub close_send: Option<Close>,
            pub close_recv: Option<Close>,
            pub close_listen: Option<Close>,
            $(pub $field: Option<$ty>,)*
        }

        const _: () = {
            assert!(offset_of!($name, name) == 0 && offset_of!($name, init) == 8);
            assert!(offset_of!($name, devices) == 16 && offset_of!($name, get_properties) == 24);
            assert!(offset_of!($name, listen) == 32 && offset_of!($name, connect) == 40);
            assert!(offset_of!($name, accept) == 48 && offset_of!($name, reg_mr) == 56);
            assert!(offset_of!($name, reg_mr_dma_buf) == 64 && offset_of!($name, dereg_mr) == 72);
            assert!(offset_of!($name, isend) == 80 && offset_of!($name, irecv) == 88);
            assert!(offset_of!($name, iflush) == 96 && offset_of!($name, test) == 104);
            assert!(offset_of!($name, close_send) == 112 && offset_of!($name, close_recv) == 120);
            assert!(offset_of!($name, close_listen) == 128);
        };
    };
}

vtable!(
    /// `ncclNet_v6_t`. Members that are null in the plugin are `None`, here and below.
    NetV6(InitV6, PropertiesV6, ListenV6, ConnectV6, AcceptV6, RegMrV6, IsendV6, IrecvV6) {}
);
vtable!(
    /// `ncclNet_v7_t`.
    NetV7(InitV6, PropertiesV7, ListenV6, ConnectV7, AcceptV7, RegMrV6, IsendV6, IrecvV6) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed,
    }
);
vtable!(
    /// `ncclNet_v8_t`.
    NetV8(InitV6, PropertiesV8, ListenV6, ConnectV7, AcceptV7, RegMrV8, IsendV6, IrecvV6) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed,
    }
);
vtable!(
    /// `ncclNet_v9_t`.
    NetV9(InitV6, PropertiesV9, ListenV6, ConnectV7, AcceptV7, RegMrV8, IsendV9, IrecvV9) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice<VDevicePropsV9>,
    }
);
vtable!(
    /// `ncclNet_v10_t`.
    NetV10(InitV10, PropertiesV9, ListenV6, ConnectV10, AcceptV7, RegMrV8, IsendV10, IrecvV10) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice<VDevicePropsV9>,
    }
);
vtable!(
    /// `ncclNet_v11_t`.
    NetV11(InitV11, PropertiesV11, ListenV11, ConnectV11, AcceptV7, RegMrV8, IsendV10, IrecvV10) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice<VDevicePropsV9>,
        finalize: Close, set_net_attr: SetNetAttr,
    }
);
vtable!(
    /// `ncclNet_v12_t`.
    NetV12(InitV11, PropertiesV12, ListenV11, ConnectV11, AcceptV7, RegMrV8, IsendV10, IrecvV10) {
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice<VDevicePropsV12>,
        finalize: Close, set_net_attr: SetNetAttr,
    }
);

const _: () = {
    assert!(size_of::<NetV6>() == 136);
    assert!(size_of::<NetV7>() == 152 && size_of::<NetV8>() == 152);
    assert!(size_of::<NetV9>() == 160 && size_of::<NetV10>() == 160);
    assert!(size_of::<NetV11>() == 176 && size_of::<NetV12>() == 176);
    assert!(offset_of!(NetV7, get_device_mr) == 136 && offset_of!(NetV7, irecv_consumed) == 144);
    assert!(offset_of!(NetV8, get_device_mr) == 136 && offset_of!(NetV8, irecv_consumed) == 144);
    assert!(offset_of!(NetV9, irecv_consumed) == 144 && offset_of!(NetV9, make_v_device) == 152);
    assert!(offset_of!(NetV10, irecv_consumed) == 144 && offset_of!(NetV10, make_v_device) == 152);
    assert!(offset_of!(NetV11, make_v_device) == 152 && offset_of!(NetV11, finalize) == 160);
    assert!(offset_of!(NetV12, make_v_device) == 152 && offset_of!(NetV12, finalize) == 160);
    assert!(offset_of!(NetV11, set_net_attr) == 168 && offset_of!(NetV12, set_net_attr) == 168);

    assert!(size_of::<PropertiesV6>() == 48 && size_of::<PropertiesV7>() == 56);
    assert!(size_of::<PropertiesV8>() == 64 && size_of::<PropertiesV9>() == 104);
    assert!(size_of::<PropertiesV11>() == 112 && size_of::<PropertiesV12>() == 128);
    assert!(offset_of!(PropertiesV6, guid) == 16 && offset_of!(PropertiesV6, ptr_support) == 24);
    assert!(offset_of!(PropertiesV6, speed) == 28 && offset_of!(PropertiesV6, latency) == 36);
    assert!(offset_of!(PropertiesV6, max_recvs) == 44);
    assert!(offset_of!(PropertiesV7, speed) == 28 && offset_of!(PropertiesV7, net_device_type) == 48);
    assert!(offset_of!(PropertiesV7, net_device_version) == 52);
    assert!(offset_of!(PropertiesV8, reg_is_global) == 28 && offset_of!(PropertiesV8, speed) == 32);
    assert!(offset_of!(PropertiesV8, net_device_version) == 56);
    assert!(offset_of!(PropertiesV9, force_flush) == 32 && offset_of!(PropertiesV9, speed) == 36);
    assert!(offset_of!(PropertiesV9, max_recvs) == 52 && offset_of!(PropertiesV9, v_props) == 64);
    assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88 && offset_of!(PropertiesV9, max_coll_bytes) == 96);
    assert!(offset_of!(PropertiesV11, v_props) == 64 && offset_of!(PropertiesV11, max_p2p_bytes) == 88);
    assert!(offset_of!(PropertiesV11, max_multi_request_size) == 104);
    assert!(offset_of!(PropertiesV12, v_props) == 64 && offset_of!(PropertiesV12, max_p2p_bytes) == 104);
    assert!(offset_of!(PropertiesV12, max_coll_bytes) == 112);
    assert!(offset_of!(PropertiesV12, max_multi_request_size) == 120);
    assert!(offset_of!(PropertiesV12, rail_id) == 124 && offset_of!(PropertiesV12, plane_id) == 126);

    assert!(size_of::<VDevicePropsV9>() == 20 && size_of::<VDevicePropsV12>() == 36);
    assert!(size_of::<CommConfig>() == 4 && size_of::<CommAttr>() == 16);
    assert!(size_of::<NetAttr>() == 44 && offset_of!(NetAttr, recv_comm_attr) == 16);
    assert!(
        offset_of!(NetAttr, op) == 32 && offset_of!(NetAttr, algo) == 36 && offset_of!(NetAttr, proto) == 40
    );
    assert!(size_of::<DeviceHandle>() == 32 && offset_of!(DeviceHandle, needs_proxy_progress) == 24);
};
