//! [`Calls`]: the entries of a profiler plugin of any version, for NCCL's side of the interface: the downstream end of a chain, and
//! the driver of tests and tools.

use super::super::types::NcclResult;
use super::raw::{InitFacts, Raw, V1, V2, V3, V4, V5, V6, V7, Version};
use super::types;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{NonNull, null_mut};

/// The profiler versions there are, as NCCL probes them.
pub const PROFILER_VERSIONS: [u32; 7] = [7, 6, 5, 4, 3, 2, 1];

/// A plugin's entries, with its structures hidden behind [`Raw`].
///
/// The functions are safe to call in the sense of the driver: a plugin that keeps NCCL's contract survives all of it.
pub(crate) trait Calls: Send + Sync {
    /// `N` of `ncclProfiler_vN`.
    fn version(&self) -> u32;
    /// `init`. The plugin may keep `mask`.
    fn init(
        &self,
        context: &mut *mut c_void,
        mask: &'static std::sync::atomic::AtomicI32,
        facts: &InitFacts,
    ) -> NcclResult;
    /// `startEvent`; `None` if this version has no such event.
    fn start(&self, context: *mut c_void, handle: *mut *mut c_void, raw: &Raw) -> Option<NcclResult>;
    /// `startEvent` without an event.
    fn start_null(&self, context: *mut c_void, handle: *mut *mut c_void) -> NcclResult;
    /// `stopEvent`.
    fn stop(&self, handle: *mut c_void) -> NcclResult;
    /// `recordEventState`, with null arguments for `None`; `None` if this version has no such state.
    fn state(&self, handle: *mut c_void, number: c_int, value: Option<u64>) -> Option<NcclResult>;
    /// `finalize`.
    fn finalize(&self, context: *mut c_void) -> NcclResult;
}

type Table<V> = types::Profiler<<V as Version>::Init, <V as Version>::Descr, <V as Version>::Args>;

struct Entries<V: Version> {
    init: V::Init,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut V::Descr) -> NcclResult,
    stop: unsafe extern "C" fn(*mut c_void) -> NcclResult,
    state: unsafe extern "C" fn(*mut c_void, c_int, *mut V::Args) -> NcclResult,
    finalize: unsafe extern "C" fn(*mut c_void) -> NcclResult,
}

impl<V: Version> Calls for Entries<V> {
    fn version(&self) -> u32 {
        V::NUMBER
    }

    fn init(
        &self,
        context: &mut *mut c_void,
        mask: &'static std::sync::atomic::AtomicI32,
        facts: &InitFacts,
    ) -> NcclResult {
        // SAFETY: the plugin's own function with NCCL's arguments; the mask lives for good.
        unsafe { V::call_init(self.init, context, mask.as_ptr(), facts) }
    }

    fn start(&self, context: *mut c_void, handle: *mut *mut c_void, raw: &Raw) -> Option<NcclResult> {
        let mut descr = V::encode(raw)?;
        // SAFETY: as above; the event lives across the call, as NCCL's does.
        Some(unsafe { (self.start)(context, handle, &mut descr) })
    }

    fn start_null(&self, context: *mut c_void, handle: *mut *mut c_void) -> NcclResult {
        // SAFETY: a null event, which a plugin that is driven so must survive.
        unsafe { (self.start)(context, handle, null_mut()) }
    }

    fn stop(&self, handle: *mut c_void) -> NcclResult {
        // SAFETY: a handle of the plugin's, or one that it must survive.
        unsafe { (self.stop)(handle) }
    }

    fn state(&self, handle: *mut c_void, number: c_int, value: Option<u64>) -> Option<NcclResult> {
        let mut args = match value {
            Some(value) => Some(V::encode_args(number, value)?),
            None => None,
        };
        let args = args.as_mut().map_or(null_mut(), |a| a as *mut V::Args);
        // SAFETY: as above; the arguments live across the call.
        Some(unsafe { (self.state)(handle, number, args) })
    }

    fn finalize(&self, context: *mut c_void) -> NcclResult {
        // SAFETY: the plugin's own context.
        unsafe { (self.finalize)(context) }
    }
}

/// A plugin's entries, and the name that it tells.
pub(crate) type Found = (Box<dyn Calls>, String);

/// The table of a version, among the symbols that `lookup` finds.
///
/// # Safety
/// `lookup` gives the addresses of a library that stays loaded, in which `ncclProfiler_vN` is NCCL's structure of version N.
pub(crate) unsafe fn probe(lookup: &dyn Fn(&CStr) -> Option<NonNull<c_void>>, version: u32) -> Option<Found> {
    unsafe fn read<V: Version>(lookup: &dyn Fn(&CStr) -> Option<NonNull<c_void>>) -> Option<Found> {
        let symbol = CString::new(format!("ncclProfiler_v{}", V::NUMBER)).ok()?;
        // SAFETY: as the caller promises.
        let table: &Table<V> = unsafe { lookup(&symbol)?.cast().as_ref() };
        let entries = Entries::<V> {
            init: table.init?,
            start: table.start_event?,
            stop: table.stop_event?,
            state: table.record_event_state?,
            finalize: table.finalize?,
        };
        let name = match table.name.is_null() {
            true => String::new(),
            // SAFETY: NCCL prints it with %s, so it is a C string.
            false => unsafe { CStr::from_ptr(table.name) }.to_string_lossy().into_owned(),
        };
        Some((Box::new(entries), name))
    }
    // SAFETY: as the caller promises.
    unsafe {
        match version {
            1 => read::<V1>(lookup),
            2 => read::<V2>(lookup),
            3 => read::<V3>(lookup),
            4 => read::<V4>(lookup),
            5 => read::<V5>(lookup),
            6 => read::<V6>(lookup),
            7 => read::<V7>(lookup),
            _ => None,
        }
    }
}
