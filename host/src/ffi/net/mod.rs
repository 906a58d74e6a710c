//! The net plugin: [`ncclNetPlugin_v6`] to [`ncclNetPlugin_v12`], a wrapper around the one plugin that [`CHAIN_NET_VAR`] names.
//!
//! NCCL takes the highest version that *this* library exports, so each of ours goes on to the highest that the plugin below has up to
//! there, which is the one that NCCL would have taken of it, through conversions with the rules of NCCL's own shims (`down`). Without a
//! plugin below `devices` says 0, and NCCL goes on to InfiniBand and sockets; the library stays open for its other halves.
//!
//! # Tables that are written once
//! NCCL looks at optional members (is `regMrDmaBuf` null?), and chooses by name, so a table must have null where the plugin has it, and
//! the plugin's name. Names are set when the library is opened ([`at_load`]), for NCCL compares them before `init`; optional members
//! after the first `init` that succeeds, for some plugins fill their own table only there. NCCL reads them after its call of
//! `init`, under the same mutex (`netPluginMutex`) or on a thread that passed through it, so nothing reads what is being written; and
//! each table is written at most once more.

pub(crate) mod chain;
mod connections;
pub(crate) mod down;
mod front;
mod properties;
mod scopes;
mod transfers;
pub mod types;

pub use chain::CHAIN_NET_VAR;

use crate::ffi::guard::enter;
use crate::ffi::types::Logger;
use chain::{Below, Chain, VERSIONS};
use connections::*;
use front::*;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::sync::Once;
use transfers::*;
use types::*;

/// The name of the tables while there is no plugin below.
const NAME: &CStr = c"Ringfence";

/// A table that NCCL reads in place.
#[repr(transparent)]
pub struct Exported<T>(UnsafeCell<T>);

// SAFETY: written only as the module's head says: before anybody can look the symbol up, and once in `init`, before NCCL reads on.
unsafe impl<T> Sync for Exported<T> {}

macro_rules! export {
    ($(#[$doc:meta])* $symbol:ident: $ty:ident, $n:literal;
     $init:expr, $props:ty, $listen:expr, $connect:expr, $accept:expr, $reg_mr:expr, $isend:expr, $irecv:expr;
     { $($field:ident: $value:expr),* $(,)? } publish $publish:ident { $($optional:ident: $has:ident => $entry:expr),* $(,)? }) => {
        $(#[$doc])*
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static $symbol: Exported<$ty> = Exported(UnsafeCell::new($ty {
            name: NAME.as_ptr(),
            init: Some($init),
            devices: Some(devices::<$n>),
            get_properties: Some(get_properties::<$n, $props>),
            listen: Some($listen),
            connect: Some($connect),
            accept: Some($accept),
            reg_mr: Some($reg_mr),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr::<$n>),
            isend: Some($isend),
            irecv: Some($irecv),
            iflush: None,
            test: Some(test::<$n>),
            close_send: Some(close_send::<$n>),
            close_recv: Some(close_recv::<$n>),
            close_listen: Some(close_listen::<$n>),
            $($field: $value,)*
        }));

        fn $publish(below: &Below) {
            static ONCE: Once = Once::new();
            let Some(down) = below.down() else { return };
            ONCE.call_once(|| {
                let table = $symbol.0.get();
                // SAFETY: once, in `init`; see the module's head.
                unsafe {
                    (*table).name = name_of(below);
                    (*table).reg_mr_dma_buf = down.reg_mr_dma_buf.map(|_| reg_mr_dma_buf::<$n> as RegMrDmaBuf);
                    (*table).iflush = down.iflush.map(|_| iflush::<$n> as Iflush);
                    $(if down.$has() { (*table).$optional = Some($entry); })*
                }
            });
        }
    };
}

export!(
    /// For NCCL 2.18 to 2.20 and later, where nothing higher is known.
    ncclNetPlugin_v6: NetV6, 6;
    init_v6::<6>, PropertiesV6, listen_v6::<6>, connect_v6, accept_v6, reg_mr_v6::<6>, isend_v6::<6>, irecv_v6::<6>;
    {} publish publish_v6 {}
);
export!(
    /// For NCCL 2.19.
    ncclNetPlugin_v7: NetV7, 7;
    init_v6::<7>, PropertiesV7, listen_v6::<7>, connect_v7::<7>, accept_v7::<7>, reg_mr_v6::<7>, isend_v6::<7>, irecv_v6::<7>;
    { get_device_mr: None, irecv_consumed: None }
    publish publish_v7 { get_device_mr: has_device_mr => get_device_mr::<7>, irecv_consumed: has_consumed => irecv_consumed::<7> }
);
export!(
    /// For NCCL 2.20 to 2.23.
    ncclNetPlugin_v8: NetV8, 8;
    init_v6::<8>, PropertiesV8, listen_v6::<8>, connect_v7::<8>, accept_v7::<8>, reg_mr_v8::<8>, isend_v6::<8>, irecv_v6::<8>;
    { get_device_mr: None, irecv_consumed: None }
    publish publish_v8 { get_device_mr: has_device_mr => get_device_mr::<8>, irecv_consumed: has_consumed => irecv_consumed::<8> }
);
export!(
    /// For NCCL 2.24 and 2.25.
    ncclNetPlugin_v9: NetV9, 9;
    init_v6::<9>, PropertiesV9, listen_v6::<9>, connect_v7::<9>, accept_v7::<9>, reg_mr_v8::<9>, isend_v9, irecv_v9;
    { get_device_mr: None, irecv_consumed: None, make_v_device: None }
    publish publish_v9 {
        get_device_mr: has_device_mr => get_device_mr::<9>, irecv_consumed: has_consumed => irecv_consumed::<9>,
        make_v_device: makes_v_devices => make_v_device::<9, VDevicePropsV9>,
    }
);
export!(
    /// For NCCL 2.26 and 2.27.
    ncclNetPlugin_v10: NetV10, 10;
    init_v10, PropertiesV9, listen_v6::<10>, connect_v10, accept_v7::<10>, reg_mr_v8::<10>, isend_v10::<10>, irecv_v10::<10>;
    { get_device_mr: None, irecv_consumed: None, make_v_device: None }
    publish publish_v10 {
        get_device_mr: has_device_mr => get_device_mr::<10>, irecv_consumed: has_consumed => irecv_consumed::<10>,
        make_v_device: makes_v_devices => make_v_device::<10, VDevicePropsV9>,
    }
);
export!(
    /// For NCCL 2.28 and 2.29.
    ncclNetPlugin_v11: NetV11, 11;
    init_v11::<11>, PropertiesV11, listen_v11::<11>, connect_v11::<11>, accept_v7::<11>, reg_mr_v8::<11>, isend_v10::<11>, irecv_v10::<11>;
    { get_device_mr: None, irecv_consumed: None, make_v_device: None, finalize: Some(finalize::<11>), set_net_attr: None }
    publish publish_v11 {
        get_device_mr: has_device_mr => get_device_mr::<11>, irecv_consumed: has_consumed => irecv_consumed::<11>,
        make_v_device: makes_v_devices => make_v_device::<11, VDevicePropsV9>,
        set_net_attr: has_net_attr => set_net_attr::<11>,
    }
);
export!(
    /// For NCCL 2.30 and later.
    ncclNetPlugin_v12: NetV12, 12;
    init_v11::<12>, PropertiesV12, listen_v11::<12>, connect_v11::<12>, accept_v7::<12>, reg_mr_v8::<12>, isend_v10::<12>, irecv_v10::<12>;
    { get_device_mr: None, irecv_consumed: None, make_v_device: None, finalize: Some(finalize::<12>), set_net_attr: None }
    publish publish_v12 {
        get_device_mr: has_device_mr => get_device_mr::<12>, irecv_consumed: has_consumed => irecv_consumed::<12>,
        make_v_device: makes_v_devices => make_v_device::<12, VDevicePropsV12>,
        set_net_attr: has_net_attr => set_net_attr::<12>,
    }
);

/// The addresses of our tables, lowest version first.
fn exported() -> [*const c_void; 7] {
    [
        (&raw const ncclNetPlugin_v6).cast(),
        (&raw const ncclNetPlugin_v7).cast(),
        (&raw const ncclNetPlugin_v8).cast(),
        (&raw const ncclNetPlugin_v9).cast(),
        (&raw const ncclNetPlugin_v10).cast(),
        (&raw const ncclNetPlugin_v11).cast(),
        (&raw const ncclNetPlugin_v12).cast(),
    ]
}

/// What stands behind our `version`, said in NCCL's log the first time.
fn prepare(version: usize, logger: Option<Logger>) -> Option<&'static Below> {
    let below = Below::get(version);
    if let Some(chain) = Chain::get() {
        chain.report(version, below, logger);
    }
    below
}

/// After an `init`: gives our table the optional members and the name that the plugin's has.
fn publish(version: usize, below: &Below, logger: Option<Logger>) {
    if let (true, Some(chain)) = (below.is_hollow(), Chain::get()) {
        chain.report_hollow(below, logger);
    }
    match version {
        6 => publish_v6(below),
        7 => publish_v7(below),
        8 => publish_v8(below),
        9 => publish_v9(below),
        10 => publish_v10(below),
        11 => publish_v11(below),
        _ => publish_v12(below),
    }
}

/// To be run while the library is being opened, before anybody can look a symbol up: opens the plugin below, if the operator named one,
/// and takes over its name. Nested in the loader's own call, which the loader allows.
pub extern "C" fn at_load() {
    enter(|| {
        if Chain::get().is_none() {
            return;
        }
        for (version, table) in VERSIONS.into_iter().zip(exported()) {
            if let Some(below) = Below::get(version) {
                // SAFETY: every table begins with its name, and nobody reads it yet.
                unsafe { table.cast_mut().cast::<*const std::ffi::c_char>().write(name_of(below)) };
            }
        }
    });
}
