//! Properties of a device between versions: [`Properties`] reads every version as the newest one, and writes the newest as any.

use super::types::{
    ID_UNDEF, MAX_COLLNET_SIZE, MAX_DEVS_V9, MAX_NET_SIZE, PropertiesV6, PropertiesV7, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12, VDevicePropsV9, VDevicePropsV12,
};
use std::ffi::c_int;
use std::ptr::null_mut;

/// A version's properties. What an older version does not have takes the value that NCCL's own shims give it
/// (`src/plugin/net/net_v*.cc`).
pub(crate) trait Properties: Sized {
    /// The first version that has this structure.
    const VERSION: u32;
    /// All zero, to be filled by a plugin.
    fn empty() -> Self;
    /// As version 12; `dev` is the device that they belong to.
    fn widen(&self, dev: c_int) -> PropertiesV12;
    /// What this version has of version 12.
    fn narrow(from: &PropertiesV12) -> Self;
}

/// The newest version, all zero.
const ZERO: PropertiesV12 = PropertiesV12 {
    name: null_mut(),
    pci_path: null_mut(),
    guid: 0,
    ptr_support: 0,
    reg_is_global: 0,
    force_flush: 0,
    speed: 0,
    port: 0,
    latency: 0.0,
    max_comms: 0,
    max_recvs: 0,
    net_device_type: 0,
    net_device_version: 0,
    v_props: VDevicePropsV12 { ndevs: 0, devs: [0; 8] },
    max_p2p_bytes: 0,
    max_coll_bytes: 0,
    max_multi_request_size: 0,
    rail_id: 0,
    plane_id: 0,
};

/// What NCCL assumes of a plugin that cannot say it: a device of the host, alone in itself, with sizes that fit an `int`.
fn assumed(dev: c_int) -> PropertiesV12 {
    let mut alone = VDevicePropsV12 { ndevs: 1, ..VDevicePropsV12::default() };
    alone.devs[0] = dev;
    PropertiesV12 {
        v_props: alone,
        max_p2p_bytes: MAX_NET_SIZE,
        max_coll_bytes: MAX_COLLNET_SIZE,
        max_multi_request_size: 1,
        rail_id: ID_UNDEF,
        plane_id: ID_UNDEF,
        ..ZERO
    }
}

/// A structure, its first version, the fields that it shares with version 12, and one to convert: to version 12, from it.
macro_rules! properties {
    ($ty:ident $version:literal { $($field:ident),* $(,)? } $($special:ident: $widen:expr, $narrow:expr)?) => {
        impl Properties for $ty {
            const VERSION: u32 = $version;

            fn empty() -> $ty {
                $ty::narrow(&ZERO)
            }

            fn widen(&self, dev: c_int) -> PropertiesV12 {
                PropertiesV12 { $($field: self.$field,)* $($special: $widen(&self.$special),)? ..assumed(dev) }
            }

            fn narrow(from: &PropertiesV12) -> $ty {
                $ty { $($field: from.$field,)* $($special: $narrow(&from.$special),)? }
            }
        }
    };
}

properties!(PropertiesV6 6 {
    name, pci_path, guid, ptr_support, speed, port, latency, max_comms, max_recvs
});
properties!(PropertiesV7 7 {
    name, pci_path, guid, ptr_support, speed, port, latency, max_comms, max_recvs, net_device_type, net_device_version
});
properties!(PropertiesV8 8 {
    name, pci_path, guid, ptr_support, reg_is_global, speed, port, latency, max_comms, max_recvs, net_device_type,
    net_device_version
});
properties!(PropertiesV9 9 {
    name, pci_path, guid, ptr_support, reg_is_global, force_flush, speed, port, latency, max_comms, max_recvs,
    net_device_type, net_device_version, max_p2p_bytes, max_coll_bytes
} v_props: widen_devices, narrow_devices);
properties!(PropertiesV11 11 {
    name, pci_path, guid, ptr_support, reg_is_global, force_flush, speed, port, latency, max_comms, max_recvs,
    net_device_type, net_device_version, max_p2p_bytes, max_coll_bytes, max_multi_request_size
} v_props: widen_devices, narrow_devices);

impl Properties for PropertiesV12 {
    const VERSION: u32 = 12;

    fn empty() -> PropertiesV12 {
        ZERO
    }

    fn widen(&self, _dev: c_int) -> PropertiesV12 {
        *self
    }

    fn narrow(from: &PropertiesV12) -> PropertiesV12 {
        *from
    }
}

fn widen_devices(from: &VDevicePropsV9) -> VDevicePropsV12 {
    let mut wide = VDevicePropsV12 { ndevs: from.ndevs.min(MAX_DEVS_V9 as c_int), devs: [0; 8] };
    wide.devs[..MAX_DEVS_V9].copy_from_slice(&from.devs);
    wide
}

fn narrow_devices(from: &VDevicePropsV12) -> VDevicePropsV9 {
    let mut narrow = VDevicePropsV9 { ndevs: from.ndevs.min(MAX_DEVS_V9 as c_int), devs: [0; MAX_DEVS_V9] };
    narrow.devs.copy_from_slice(&from.devs[..MAX_DEVS_V9]);
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn six() -> PropertiesV6 {
        PropertiesV6 {
            guid: 9,
            ptr_support: 1,
            speed: 100,
            port: 2,
            latency: 1.5,
            max_comms: 7,
            max_recvs: 8,
            ..PropertiesV6::empty()
        }
    }

    #[test]
    fn what_version_6_does_not_say_is_what_nccl_assumes() {
        let wide = six().widen(3);
        assert_eq!((wide.guid, wide.ptr_support, wide.speed, wide.port), (9, 1, 100, 2));
        assert_eq!((wide.latency, wide.max_comms, wide.max_recvs), (1.5, 7, 8));
        assert_eq!(
            (wide.reg_is_global, wide.force_flush, wide.net_device_type, wide.net_device_version),
            (0, 0, 0, 0)
        );
        assert_eq!(wide.v_props, VDevicePropsV12 { ndevs: 1, devs: [3, 0, 0, 0, 0, 0, 0, 0] });
        assert_eq!((wide.max_p2p_bytes, wide.max_coll_bytes), (1 << 30, 1 << 29));
        assert_eq!((wide.max_multi_request_size, wide.rail_id, wide.plane_id), (1, -1, -1));
    }

    #[test]
    fn versions_keep_what_they_share() {
        let nine = PropertiesV9 {
            force_flush: 1,
            v_props: VDevicePropsV9 { ndevs: 2, devs: [4, 5, 0, 0] },
            max_p2p_bytes: 77,
            ..PropertiesV9::narrow(&six().widen(0))
        };
        let wide = nine.widen(1);
        assert_eq!(
            (wide.force_flush, wide.max_p2p_bytes, wide.v_props.ndevs, wide.v_props.devs[1]),
            (1, 77, 2, 5)
        );
        let eleven = PropertiesV11::narrow(&wide);
        assert_eq!((eleven.v_props, eleven.max_multi_request_size), (nine.v_props, 1));
        assert_eq!(PropertiesV6::narrow(&eleven.widen(1)).speed, 100);
    }

    #[test]
    fn more_devices_than_fit_are_cut() {
        let many = VDevicePropsV12 { ndevs: 8, devs: [1, 2, 3, 4, 5, 6, 7, 8] };
        assert_eq!(narrow_devices(&many), VDevicePropsV9 { ndevs: 4, devs: [1, 2, 3, 4] });
        assert_eq!(widen_devices(&VDevicePropsV9 { ndevs: 9, devs: [1, 2, 3, 4] }).ndevs, 4);
    }
}
