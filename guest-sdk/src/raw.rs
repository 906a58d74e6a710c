//! The SDK's only `unsafe`: [`Plain`] and [`Shared`], what may live in a map; single-access loads and stores;
//! calls of helpers by number; and the map operations built from them.
//!
//! Policies do not need this module; the macros do.
// The build tool sets `ringfence_bpf` for every crate that goes into an eBPF object.
#![allow(unexpected_cfgs)]

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Types that can be copied into and out of maps. [`plain!`](crate::plain) implements it for structs.
///
/// # Safety
/// Every bit pattern must be a value of the type, and the type must have no padding (the verifier refuses to
/// copy bytes that were never written) and no pointers.
pub unsafe trait Plain: Copy + 'static {}

/// Types of map values that are used in place, through a shared reference: atomics, and structs of them
/// ([`shared!`](crate::shared)).
///
/// # Safety
/// As for [`Plain`]; in addition all of the type must be safe to touch from several threads (atomics only).
pub unsafe trait Shared: Sync + 'static {}

macro_rules! mark {
    ($trait:ident: $($ty:ty),*) => {
        // SAFETY: integers and atomics of integers: every bit pattern is a value, nothing is padding. Atomics may be
        // used by several threads at once.
        $(unsafe impl $trait for $ty {})*
    };
}
mark!(Plain: u8, u16, u32, u64, i8, i16, i32, i64);
mark!(Shared: AtomicU32, AtomicU64, AtomicI32, AtomicI64);

// SAFETY: an array has no padding between elements, and each is `Plain`.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: as above, with `Shared` elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Makes a struct whose values can be copied into and out of maps: `repr(C)`, [`Plain`], and the usual derives.
/// Padding, and fields that are not [`Plain`] themselves, are errors at compile time.
///
/// ```
/// ringfence_guest::plain! {
///     /// Key of a map.
///     pub struct Key { pub func: u32, pub n_nodes: u32 }
/// }
/// assert_eq!(Key::default(), Key { func: 0, n_nodes: 0 });
/// ```
/// ```compile_fail
/// ringfence_guest::plain! { pub struct Hole { pub a: u64, pub b: u32 } } // four bytes of padding
/// ```
/// ```compile_fail
/// ringfence_guest::plain! { pub struct Flag { pub set: bool } } // 2 is no bool
/// ```
#[macro_export]
macro_rules! plain {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),+ }

        const _: () = {
            const fn is_plain<T: $crate::Plain>() -> usize { ::core::mem::size_of::<T>() }
            assert!(
                ::core::mem::size_of::<$name>() == 0 $(+ is_plain::<$ty>())+,
                "the struct has padding: order the fields by size and name the rest",
            );
        };
        // SAFETY: the assertion above proves that each field is `Plain` and that nothing lies between them.
        unsafe impl $crate::Plain for $name {}
    };
}

/// Makes a struct of atomics for map values that are used in place: `repr(C)` and [`Shared`].
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// ringfence_guest::shared! {
///     /// Counters.
///     pub struct Counts { pub calls: AtomicU64, pub bytes: AtomicU64 }
/// }
/// ```
/// ```compile_fail
/// ringfence_guest::shared! { pub struct Counts { pub calls: u64 } } // not atomic
/// ```
#[macro_export]
macro_rules! shared {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[repr(C)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),+ }

        const _: () = {
            const fn is_shared<T: $crate::Shared>() -> usize { ::core::mem::size_of::<T>() }
            assert!(
                ::core::mem::size_of::<$name>() == 0 $(+ is_shared::<$ty>())+,
                "the struct has padding: order the fields by size and name the rest",
            );
        };
        // SAFETY: the assertion above proves that each field is `Shared` and that nothing lies between them.
        unsafe impl $crate::Shared for $name {}
    };
}

/// One load that is neither joined with a neighbour nor repeated: the verifier wants each access to the
/// context to touch one field exactly. For contexts of your own, see [`hook!`](crate::hook!).
#[inline(always)]
pub fn load<T: Plain>(from: &T) -> T {
    // SAFETY: a reference is valid, aligned and initialised.
    unsafe { core::ptr::read_volatile(from) }
}

/// One store, on the same terms as [`load`].
#[inline(always)]
pub fn store<T: Plain>(to: &mut T, value: T) {
    // SAFETY: a mutable reference is valid and aligned, and `Plain` types have no drop.
    unsafe { core::ptr::write_volatile(to, value) }
}

/// Helpers by number, as an eBPF object calls them.
#[cfg(ringfence_bpf)]
pub(crate) mod call {
    use super::c_void;
    use crate::abi::helper;

    /// A helper's number as a function of that type. The compiler folds the constant into `call imm`.
    macro_rules! helper {
        ($id:expr, fn($($arg:ident: $ty:ty),*) -> $ret:ty) => {{
            // SAFETY: this code is only ever compiled to eBPF, where calling the constant address `n` is the
            // instruction that calls helper `n`; the host checks the number and the arguments before it runs.
            // A function pointer is as wide as a usize and is not null, as numbers start at 1.
            let f: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute($id as usize) };
            // SAFETY: as above; the verifier refuses arguments that the helper could misuse.
            unsafe { f($($arg),*) }
        }};
    }

    #[inline(always)]
    pub(crate) fn map_lookup_elem(map: *const c_void, key: *const c_void) -> *mut c_void {
        helper!(helper::MAP_LOOKUP_ELEM, fn(map: *const c_void, key: *const c_void) -> *mut c_void)
    }
    #[inline(always)]
    pub(crate) fn map_update_elem(
        map: *const c_void,
        key: *const c_void,
        value: *const c_void,
        flags: u64,
    ) -> i64 {
        helper!(
            helper::MAP_UPDATE_ELEM,
            fn(map: *const c_void, key: *const c_void, value: *const c_void, flags: u64) -> i64
        )
    }
    #[inline(always)]
    pub(crate) fn map_delete_elem(map: *const c_void, key: *const c_void) -> i64 {
        helper!(helper::MAP_DELETE_ELEM, fn(map: *const c_void, key: *const c_void) -> i64)
    }
    #[inline(always)]
    pub(crate) fn map_lookup_percpu_elem(map: *const c_void, key: *const c_void, slot: u32) -> *mut c_void {
        helper!(
            helper::MAP_LOOKUP_PERCPU_ELEM,
            fn(map: *const c_void, key: *const c_void, slot: u32) -> *mut c_void
        )
    }
    #[inline(always)]
    pub(crate) fn ringbuf_output(ring: *const c_void, data: *const c_void, size: u64, flags: u64) -> i64 {
        helper!(
            helper::RINGBUF_OUTPUT,
            fn(ring: *const c_void, data: *const c_void, size: u64, flags: u64) -> i64
        )
    }
    #[inline(always)]
    pub(crate) fn ringbuf_reserve(ring: *const c_void, size: u64, flags: u64) -> *mut c_void {
        helper!(helper::RINGBUF_RESERVE, fn(ring: *const c_void, size: u64, flags: u64) -> *mut c_void)
    }
    #[inline(always)]
    pub(crate) fn ringbuf_submit(record: *mut c_void, flags: u64) {
        helper!(helper::RINGBUF_SUBMIT, fn(record: *mut c_void, flags: u64) -> ())
    }
    #[inline(always)]
    pub(crate) fn ringbuf_discard(record: *mut c_void, flags: u64) {
        helper!(helper::RINGBUF_DISCARD, fn(record: *mut c_void, flags: u64) -> ())
    }
    #[inline(always)]
    pub(crate) fn ktime_get_ns() -> u64 {
        helper!(helper::KTIME_GET_NS, fn() -> u64)
    }
    #[inline(always)]
    pub(crate) fn trace_printk(fmt: *const c_void, size: u32, a: u64, b: u64, c: u64) -> i64 {
        helper!(helper::TRACE_PRINTK, fn(fmt: *const c_void, size: u32, a: u64, b: u64, c: u64) -> i64)
    }
    #[inline(always)]
    pub(crate) fn get_prandom_u32() -> u32 {
        helper!(helper::GET_PRANDOM_U32, fn() -> u32)
    }
    #[inline(always)]
    pub(crate) fn get_smp_processor_id() -> u32 {
        helper!(helper::GET_SMP_PROCESSOR_ID, fn() -> u32)
    }
}

/// Stand-ins for native builds, where no host answers.
#[cfg(not(ringfence_bpf))]
pub(crate) mod call {
    use super::c_void;

    /// `ENOSYS`: there is no host.
    const ENOSYS: i64 = 38;

    #[inline(always)]
    pub(crate) fn map_lookup_elem(_map: *const c_void, _key: *const c_void) -> *mut c_void {
        core::ptr::null_mut()
    }
    #[inline(always)]
    pub(crate) fn map_update_elem(
        _map: *const c_void,
        _key: *const c_void,
        _value: *const c_void,
        _flags: u64,
    ) -> i64 {
        -ENOSYS
    }
    #[inline(always)]
    pub(crate) fn map_delete_elem(_map: *const c_void, _key: *const c_void) -> i64 {
        -ENOSYS
    }
    #[inline(always)]
    pub(crate) fn map_lookup_percpu_elem(
        _map: *const c_void,
        _key: *const c_void,
        _slot: u32,
    ) -> *mut c_void {
        core::ptr::null_mut()
    }
    #[inline(always)]
    pub(crate) fn ringbuf_output(_ring: *const c_void, _data: *const c_void, _size: u64, _flags: u64) -> i64 {
        -ENOSYS
    }
    #[inline(always)]
    pub(crate) fn ringbuf_reserve(_ring: *const c_void, _size: u64, _flags: u64) -> *mut c_void {
        core::ptr::null_mut()
    }
    #[inline(always)]
    pub(crate) fn ringbuf_submit(_record: *mut c_void, _flags: u64) {}
    #[inline(always)]
    pub(crate) fn ringbuf_discard(_record: *mut c_void, _flags: u64) {}
    #[inline(always)]
    pub(crate) fn ktime_get_ns() -> u64 {
        0
    }
    #[inline(always)]
    pub(crate) fn trace_printk(_fmt: *const c_void, _size: u32, _a: u64, _b: u64, _c: u64) -> i64 {
        -ENOSYS
    }
    #[inline(always)]
    pub(crate) fn get_prandom_u32() -> u32 {
        0
    }
    #[inline(always)]
    pub(crate) fn get_smp_processor_id() -> u32 {
        0
    }
}

/// A map type of this SDK: its static is a map definition with keys `K` and values `V`.
///
/// # Safety
/// The BTF of the implementing type must declare exactly these key and value types.
pub(crate) unsafe trait Map {
    /// Keys.
    type Key: Plain;
    /// Values.
    type Value: 'static;
}

// SAFETY: the definition's members are `*const K` and `*const V`. The pointers in it are null and never followed,
// so sharing it between threads shares nothing.
unsafe impl<K: Plain, V: 'static, const N: usize> Map for crate::HashMap<K, V, N> {
    type Key = K;
    type Value = V;
}
// SAFETY: as above; it holds null pointers only.
unsafe impl<K, V, const N: usize> Sync for crate::HashMap<K, V, N> {}
// SAFETY: as above.
unsafe impl<K: Plain, V: 'static, const N: usize> Map for crate::LruHashMap<K, V, N> {
    type Key = K;
    type Value = V;
}
// SAFETY: as above; it holds null pointers only.
unsafe impl<K, V, const N: usize> Sync for crate::LruHashMap<K, V, N> {}
// SAFETY: as above.
unsafe impl<K: Plain, V: 'static, const N: usize> Map for crate::PerCpuHashMap<K, V, N> {
    type Key = K;
    type Value = V;
}
// SAFETY: as above; it holds null pointers only.
unsafe impl<K, V, const N: usize> Sync for crate::PerCpuHashMap<K, V, N> {}
// SAFETY: the definition's members are `*const u32` and `*const V`.
unsafe impl<V: 'static, const N: usize> Map for crate::Array<V, N> {
    type Key = u32;
    type Value = V;
}
// SAFETY: it holds null pointers only.
unsafe impl<V, const N: usize> Sync for crate::Array<V, N> {}
// SAFETY: as for `Array`.
unsafe impl<V: 'static, const N: usize> Map for crate::PerCpuArray<V, N> {
    type Key = u32;
    type Value = V;
}
// SAFETY: it holds null pointers only.
unsafe impl<V, const N: usize> Sync for crate::PerCpuArray<V, N> {}
// SAFETY: it holds null pointers only.
unsafe impl<const BYTES: usize> Sync for crate::RingBuf<BYTES> {}

#[inline(always)]
fn address<T>(of: &T) -> *const c_void {
    core::ptr::from_ref(of).cast()
}

#[inline(always)]
fn lookup<M: Map>(map: &'static M, key: &M::Key) -> Option<NonNull<M::Value>> {
    NonNull::new(call::map_lookup_elem(address(map), address(key)).cast())
}

/// A copy of the value under `key`.
#[inline(always)]
pub(crate) fn get<M: Map>(map: &'static M, key: &M::Key) -> Option<M::Value>
where
    M::Value: Plain,
{
    let value = lookup(map, key)?;
    // SAFETY: the host returned the address of a value of this map, aligned to 8, and `Plain` takes any bits. Another
    // thread may write it meanwhile; then the copy may mix two values, as documented on the public method.
    Some(unsafe { value.read() })
}

/// The value under `key` in place.
#[inline(always)]
pub(crate) fn get_ref<M: Map>(map: &'static M, key: &M::Key) -> Option<&'static M::Value>
where
    M::Value: Shared,
{
    let value = lookup(map, key)?;
    // SAFETY: as in `get`; the memory stays mapped as long as the policy runs, even when the entry is deleted, and
    // `Shared` types may be used by several threads at once.
    Some(unsafe { value.as_ref() })
}

/// A copy of the value under `key` in a slot of a per-CPU map.
#[inline(always)]
pub(crate) fn get_slot<M: Map>(map: &'static M, key: &M::Key, slot: u32) -> Option<M::Value>
where
    M::Value: Plain,
{
    let value = NonNull::new(call::map_lookup_percpu_elem(address(map), address(key), slot).cast())?;
    // SAFETY: as in `get`.
    Some(unsafe { value.read() })
}

/// Copies a record into a ring buffer; 0 or a negative errno.
#[inline(always)]
pub(crate) fn ring_output<T: Plain, const BYTES: usize>(
    ring: &'static crate::RingBuf<BYTES>,
    record: &T,
) -> i64 {
    call::ringbuf_output(address(ring), address(record), size_of::<T>() as u64, 0)
}

/// Room for a `T` in a ring buffer.
#[inline(always)]
pub(crate) fn ring_reserve<T: Plain, const BYTES: usize>(
    ring: &'static crate::RingBuf<BYTES>,
) -> Option<crate::Record<T>> {
    let room = NonNull::new(call::ringbuf_reserve(address(ring), size_of::<T>() as u64, 0).cast())?;
    Some(crate::Record(Room(room)))
}

/// Room for a record. It is given back exactly once: by [`Room::submit`], or when it is dropped.
pub(crate) struct Room<T: Plain>(NonNull<T>);

impl<T: Plain> Room<T> {
    #[inline(always)]
    pub(crate) fn submit(self, content: T) {
        let room = core::mem::ManuallyDrop::new(self);
        // SAFETY: the host reserved `size_of::<T>()` bytes there for this policy alone, aligned to 8, which no `Plain` type exceeds
        // (the verifier checks each store); `Plain` types have no drop.
        unsafe { room.0.write(content) };
        call::ringbuf_submit(room.0.as_ptr().cast(), 0);
    }
}

impl<T: Plain> Drop for Room<T> {
    #[inline(always)]
    fn drop(&mut self) {
        call::ringbuf_discard(self.0.as_ptr().cast(), 0);
    }
}

/// Copies a value in; 0 or a negative errno.
#[inline(always)]
pub(crate) fn update<M: Map>(map: &'static M, key: &M::Key, value: &M::Value, flags: u64) -> i64 {
    call::map_update_elem(address(map), address(key), address(value), flags)
}

/// Removes an entry; 0 or a negative errno.
#[inline(always)]
pub(crate) fn delete<M: Map>(map: &'static M, key: &M::Key) -> i64 {
    call::map_delete_elem(address(map), address(key))
}
