//! [`Profiler`] and [`ProfilerComm`]: NCCL's side of the profiler interface, in every version, for the CLI, tests and benchmarks.
//!
//! Two levels. [`ProfilerComm::collective`] and its halves [`ProfilerComm::enqueue`] and [`ProfilerComm::kernels`] behave like NCCL:
//! they look at the mask, start the ancestors of what was asked for, stop the collective at once, and tell of kernels afterwards. The raw
//! calls [`ProfilerComm::start`], [`ProfilerComm::stop`] and [`ProfilerComm::state`] pass on whatever they are given, for tests of what goes
//! wrong.
//!
//! A communicator may be used from several threads at once, as NCCL does.

use super::{OpenError, logger};
use crate::ffi::profiler::names;
use crate::ffi::profiler::raw::{self, InitFacts, Raw};
use crate::ffi::profiler::types::{self, CeCollV6};
use crate::ffi::profiler::{Calls, PROFILER_VERSIONS, probe};
use crate::ffi::types::NcclResult;
use crate::profiler::event::{Kind, state};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// An open profiler plugin, with an event mask of its own, as each loaded NCCL has one.
#[derive(Clone)]
pub struct Profiler {
    calls: Arc<dyn Calls>,
    name: String,
    /// Never freed: a plugin may keep the pointer, as NCCL's is good for as long as NCCL is loaded.
    mask: &'static AtomicI32,
    /// `None` for the one that is linked into this program.
    library: Option<Arc<Library>>,
}

impl Profiler {
    /// Opens `path` and takes the highest profiler version, as NCCL does.
    ///
    /// # Errors
    /// The library does not open (text of dlopen), or exports no profiler.
    pub fn open(path: impl AsRef<Path>) -> Result<Profiler, OpenError> {
        Profiler::open_among(path.as_ref(), &PROFILER_VERSIONS)
    }

    /// Opens `path` at the given profiler version (1 to 7).
    ///
    /// # Errors
    /// As [`Profiler::open`].
    pub fn open_version(path: impl AsRef<Path>, version: u32) -> Result<Profiler, OpenError> {
        Profiler::open_among(path.as_ref(), &[version])
    }

    fn open_among(path: &Path, versions: &[u32]) -> Result<Profiler, OpenError> {
        // SAFETY: runs the library's initialisers, as documented in the parent module.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| OpenError::Open(e.to_string()))?;
        let found = versions.iter().find_map(|v| entries(&library, *v));
        let (calls, name) = found.ok_or(OpenError::NoProfiler)?;
        let mask = Box::leak(Box::new(AtomicI32::new(0)));
        Ok(Profiler { calls, name, mask, library: Some(Arc::new(library)) })
    }

    /// The profiler that is linked into this very program, at a version (1 to 7): for tools that look at its memory.
    pub fn built_in(version: u32) -> Option<Profiler> {
        let lookup = |name: &CStr| NonNull::new(crate::ffi::profiler::symbol(name)?.cast_mut());
        // SAFETY: these are our own symbols, which are NCCL's structures.
        let (calls, name) = unsafe { probe(&lookup, version) }?;
        let mask = Box::leak(Box::new(AtomicI32::new(0)));
        Some(Profiler { calls: calls.into(), name, mask, library: None })
    }

    /// Profiler version in use.
    pub fn version(&self) -> u32 {
        self.calls.version()
    }

    /// The plugin's name, as it tells NCCL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The versions that the library at hand exports, highest first.
    pub fn exported(&self) -> Vec<u32> {
        let exports = |v: u32| self.library.as_ref().is_none_or(|library| entries(library, v).is_some());
        PROFILER_VERSIONS.into_iter().filter(|v| exports(*v)).collect()
    }

    /// The event mask now, as NCCL reads it.
    pub fn mask(&self) -> u32 {
        self.mask.load(Ordering::Relaxed) as u32
    }

    /// Overwrites the event mask, as some other party of the process might.
    pub fn set_mask(&self, mask: u32) {
        self.mask.store(mask as i32, Ordering::Relaxed);
    }

    /// Calls `init` as NCCL does for a new communicator; an empty name is passed as null.
    pub fn init(&self, comm_id: u64, rank: i32, n_ranks: i32, n_nodes: i32, name: &str) -> ProfilerComm {
        let name = CString::new(name).unwrap_or_default();
        let passed = if name.is_empty() { null() } else { name.as_ptr() };
        let facts = InitFacts { comm_id, name: passed, n_nodes, n_ranks, rank, logger: Some(logger()) };
        let mut context = null_mut();
        let result = self.calls.init(&mut context, self.mask, &facts);
        ProfilerComm {
            plugin: self.clone(),
            context: context.expose_provenance(),
            result,
            rank,
            live: true,
            _name: name,
        }
    }
}

/// The entries of a version out of an open library.
fn entries(library: &Library, version: u32) -> Option<(Arc<dyn Calls>, String)> {
    let lookup = |name: &CStr| {
        // SAFETY: only the address is taken here.
        let symbol = unsafe { library.get::<*mut u8>(name.to_bytes()) }.ok()?;
        NonNull::new(symbol.into_raw().cast())
    };
    // SAFETY: the library stays open as long as the entries; a plugin's symbol is NCCL's structure.
    let (calls, name) = unsafe { probe(&lookup, version) }?;
    Some((calls.into(), name))
}

/// Handle of an event, as the plugin gave it; 0 for null.
pub type Handle = usize;

/// One collective, or one send or receive, as NCCL would run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollEvent {
    /// `ncclFunc_t`.
    pub func: u32,
    /// Elements, as the caller of NCCL counts them (per rank for AllGather and ReduceScatter).
    pub count: usize,
    /// `ncclDataType_t`: 7 is `float`.
    pub datatype: u32,
    /// Algorithm.
    pub algo: u32,
    /// Protocol.
    pub proto: u32,
    /// Kernel channels.
    pub channels: u8,
    /// Sequence number.
    pub seq: u64,
    /// GPU timer when the first channel starts, in nanoseconds.
    pub start_ns: u64,
    /// GPU timer when the last channel ends.
    pub stop_ns: u64,
}

/// An event to start, for the raw calls. What is left out is zero or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Start {
    Group,
    Coll(CollEvent),
    P2p { coll: CollEvent, peer: i32 },
    ProxyOp { pid: u32, channel: u8, peer: i32, steps: i32, chunk: i32, send: bool },
    ProxyStep(i32),
    ProxyCtrl,
    KernelCh { channel: u8, timer: u64 },
    NetPlugin(i64),
    GroupApi { depth: i32 },
    CollApi { func: u32, count: usize, datatype: u32 },
    P2pApi { func: u32, count: usize, datatype: u32 },
    KernelLaunch,
    CeColl { func: u32, count: usize, datatype: u32, seq: u64 },
    CeSync,
    CeBatch { bytes: usize },
    KernelPhase { channel: u8, phase: u8, timer: u64 },
}

impl Start {
    fn raw(&self, rank: i32, parent: Handle, group: Handle) -> Raw {
        let (kind, body) = self.parts(group);
        Raw { kind, parent, rank, body }
    }

    fn parts(&self, group: Handle) -> (Kind, raw::Body) {
        let api = |func, count, datatype| {
            raw::Body::Api(raw::Api {
                func: names::func_text(func),
                count,
                datatype: names::datatype_text(datatype),
                root: 0,
                stream: null_mut(),
                graph_captured: 0,
                user_tag: 0,
            })
        };
        match *self {
            Start::Group => (Kind::Group, raw::Body::Nothing),
            Start::Coll(c) => (Kind::Coll, raw::Body::Coll(coll(&c, group))),
            Start::P2p { coll, peer } => (Kind::P2p, raw::Body::P2p(p2p(&coll, peer, group))),
            Start::ProxyOp { pid, channel, peer, steps, chunk, send } => {
                let op = types::ProxyOp {
                    pid: pid as i32,
                    channel,
                    peer,
                    n_steps: steps,
                    chunk_size: chunk,
                    is_send: send.into(),
                };
                (Kind::ProxyOp, raw::Body::ProxyOp(op))
            }
            Start::ProxyStep(step) => (Kind::ProxyStep, raw::Body::ProxyStep { step }),
            Start::ProxyCtrl => (Kind::ProxyCtrl, raw::Body::Nothing),
            Start::KernelCh { channel, timer } => (Kind::KernelCh, raw::Body::KernelCh { channel, timer }),
            Start::NetPlugin(id) => (Kind::NetPlugin, raw::Body::NetPlugin { id, data: null_mut() }),
            Start::GroupApi { depth } => (Kind::GroupApi, raw::Body::GroupApi { graph_captured: 0, depth }),
            Start::CollApi { func, count, datatype } => (Kind::CollApi, api(func, count, datatype)),
            Start::P2pApi { func, count, datatype } => (Kind::P2pApi, api(func, count, datatype)),
            Start::KernelLaunch => (Kind::KernelLaunch, raw::Body::KernelLaunch { stream: null_mut() }),
            Start::CeColl { func, count, datatype, seq } => {
                (Kind::CeColl, raw::Body::CeColl(ce_coll(func, count, datatype, seq)))
            }
            Start::CeSync => (Kind::CeSync, raw::Body::CeSync { is_complete: 0, n_ranks: 0 }),
            Start::CeBatch { bytes } => {
                (Kind::CeBatch, raw::Body::CeBatch { num_ops: 1, total_bytes: bytes, use_intra_sync: 0 })
            }
            Start::KernelPhase { channel, phase, timer } => {
                (Kind::KernelPhase, raw::Body::KernelPhase { channel, phase, name: null(), timer })
            }
        }
    }
}

fn coll(c: &CollEvent, group: Handle) -> raw::Coll {
    raw::Coll {
        seq: c.seq,
        func: names::func_text(c.func),
        count: c.count,
        datatype: names::datatype_text(c.datatype),
        channels: c.channels,
        warps: 16,
        algo: names::algo_text(c.algo),
        proto: names::proto_text(c.proto),
        parent_group: group,
        ..raw::Coll::default()
    }
}

fn p2p(c: &CollEvent, peer: i32, group: Handle) -> raw::P2p {
    raw::P2p {
        func: names::func_text(c.func),
        datatype: names::datatype_text(c.datatype),
        count: c.count,
        peer,
        channels: c.channels,
        parent_group: group,
        ..raw::P2p::default()
    }
}

fn ce_coll(func: u32, count: usize, datatype: u32, seq: u64) -> raw::CeColl {
    let base = CeCollV6 {
        seq,
        func: names::func_text(func),
        send: null(),
        recv: null_mut(),
        count,
        root: 0,
        datatype: names::datatype_text(datatype),
        sync_strategy: null(),
        intra_batch_sync: 0,
        batch_size: 0,
        num_batches: 0,
        ce_seq: 0,
        stream: null_mut(),
    };
    raw::CeColl { base, user_tag: 0 }
}

/// Channels that NCCL has at most.
const MAX_KERNELS: usize = 64;

/// A communicator of a plugin. Dropped without [`ProfilerComm::finalize`], it is finalized then.
pub struct ProfilerComm {
    plugin: Profiler,
    /// As an address, so that NCCL's threads may share it.
    context: usize,
    result: NcclResult,
    rank: i32,
    live: bool,
    _name: CString,
}

/// A collective between its enqueueing and its kernels: what NCCL keeps of it.
#[derive(Clone, Copy, Debug)]
pub struct Enqueued {
    event: CollEvent,
    handle: Handle,
    mask: u32,
}

impl Enqueued {
    /// The collective's handle; 0 if it was not asked for.
    pub fn handle(&self) -> Handle {
        self.handle
    }
}

impl ProfilerComm {
    /// `init`'s result code; NCCL goes on without a profiler unless it is 0.
    pub fn init_result(&self) -> NcclResult {
        self.result
    }

    /// Did `init` leave a context?
    pub fn has_context(&self) -> bool {
        self.context != 0
    }

    /// Runs a collective as NCCL would: enqueues it, and tells of its kernels at once.
    pub fn collective(&self, event: &CollEvent) {
        let enqueued = self.enqueue(event);
        self.kernels(&enqueued);
    }

    /// The launching thread's half: API calls and group (as the version has them), the collective's start and stop. Does what
    /// the mask asks for, and nothing if it is 0.
    pub fn enqueue(&self, event: &CollEvent) -> Enqueued {
        self.launch(event, None)
    }

    /// As [`enqueue`](ProfilerComm::enqueue), for a send (6) or receive (7) with a peer.
    pub fn enqueue_p2p(&self, event: &CollEvent, peer: i32) -> Enqueued {
        self.launch(event, Some(peer))
    }

    fn launch(&self, event: &CollEvent, peer: Option<i32>) -> Enqueued {
        let mask = self.plugin.mask();
        let asked = |kind: Kind| mask & kind.started_by() != 0;
        let start = |kind: Kind, start: Start, parent, group| {
            if asked(kind) { self.start_in(start, parent, group) } else { 0 }
        };
        let (func, count, datatype) = (event.func, event.count, event.datatype);
        let (mut group_api, mut api) = (0, 0);
        if self.plugin.version() >= 5 {
            group_api = start(Kind::GroupApi, Start::GroupApi { depth: 1 }, 0, 0);
            self.state_unless_null(group_api, state::GROUP_START_API_STOP);
            let (kind, call) = match peer {
                None => (Kind::CollApi, Start::CollApi { func, count, datatype }),
                Some(_) => (Kind::P2pApi, Start::P2pApi { func, count, datatype }),
            };
            api = start(kind, call, group_api, 0);
            self.stop_unless_null(api);
            self.state_unless_null(group_api, state::GROUP_END_API_START);
        }
        let group = start(Kind::Group, Start::Group, 0, 0);
        let parent = if self.plugin.version() >= 5 { api } else { group };
        let (kind, task) = match peer {
            None => (Kind::Coll, Start::Coll(*event)),
            Some(peer) => (Kind::P2p, Start::P2p { coll: *event, peer }),
        };
        let handle = start(kind, task, parent, group);
        let launch = match self.plugin.version() >= 5 {
            true => start(Kind::KernelLaunch, Start::KernelLaunch, group_api, 0),
            false => 0,
        };
        for event in [launch, handle, group, group_api] {
            self.stop_unless_null(event);
        }
        Enqueued { event: *event, handle, mask }
    }

    /// The proxy thread's half: each channel's kernel, with timers that begin at `start_ns` and end at `stop_ns`. Nothing if
    /// kernels were not asked for when the collective was enqueued.
    pub fn kernels(&self, enqueued: &Enqueued) {
        let Enqueued { event, handle, mask } = enqueued;
        if self.plugin.version() < 3 || mask & Kind::KernelCh.bit() == 0 || *handle == 0 {
            return;
        }
        // Channels neither start nor end together; the first and the last one mark the ends.
        let spread = event.stop_ns.saturating_sub(event.start_ns) / 4;
        let channels = event.channels.min(MAX_KERNELS as u8);
        // In an array: nothing here is to allocate, so that a caller can tell what the plugin does.
        let mut kernels = [0; MAX_KERNELS];
        for (channel, kernel) in (0..channels).zip(&mut kernels) {
            let timer = event.start_ns + u64::from(channel).min(spread);
            *kernel = self.start(Start::KernelCh { channel, timer }, *handle);
        }
        for (channel, kernel) in (0..channels).zip(kernels) {
            if kernel != 0 {
                let timer = event.stop_ns - u64::from(channels - 1 - channel).min(spread);
                self.state(kernel, state::KERNEL_CH_STOP, Some(timer));
                self.stop(kernel);
            }
        }
    }

    fn stop_unless_null(&self, handle: Handle) {
        if handle != 0 {
            self.stop(handle);
        }
    }

    fn state_unless_null(&self, handle: Handle, number: i32) {
        if handle != 0 {
            self.state(handle, number, None);
        }
    }

    /// `startEvent`, whatever the mask says. Returns the handle; 0 if it was left null, or if this version has no such event.
    pub fn start(&self, event: Start, parent: Handle) -> Handle {
        self.start_in(event, parent, 0)
    }

    /// As [`start`](ProfilerComm::start), with the legacy group that a collective names beside its parent.
    pub fn start_in(&self, event: Start, parent: Handle, group: Handle) -> Handle {
        self.start_at(self.context, event, parent, group)
    }

    /// As [`start_in`](ProfilerComm::start_in), with a context of the caller's, 0 for null.
    pub fn start_at(&self, context: usize, event: Start, parent: Handle, group: Handle) -> Handle {
        let mut handle = null_mut();
        let raw = event.raw(self.rank, parent, group);
        let result = self.plugin.calls.start(with_exposed_provenance_mut(context), &mut handle, &raw);
        debug_assert!(result.is_none_or(|code| code == 0), "startEvent returned {result:?}");
        handle.expose_provenance()
    }

    /// `startEvent` with a null event, and with a null place for the handle. Returns the result codes.
    pub fn start_null(&self) -> [NcclResult; 2] {
        let (mut handle, context) = (null_mut(), with_exposed_provenance_mut(self.context));
        let calls = &self.plugin.calls;
        let raw = Start::Group.raw(self.rank, 0, 0);
        [calls.start_null(context, &mut handle), calls.start(context, null_mut(), &raw).unwrap_or(0)]
    }

    /// `stopEvent`. Returns the result code.
    pub fn stop(&self, handle: Handle) -> NcclResult {
        self.plugin.calls.stop(with_exposed_provenance_mut(handle))
    }

    /// `recordEventState`, with null arguments for `None`. Returns the result code; `None` if this version has no such state.
    pub fn state(&self, handle: Handle, number: i32, value: Option<u64>) -> Option<NcclResult> {
        self.plugin.calls.state(with_exposed_provenance_mut(handle), number, value)
    }

    /// The plugin that made it.
    pub fn plugin(&self) -> &Profiler {
        &self.plugin
    }

    /// The context, 0 for null.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Calls `finalize` and returns its result code; as NCCL, not for a null context.
    pub fn finalize(mut self) -> NcclResult {
        self.end()
    }

    fn end(&mut self) -> NcclResult {
        self.live = false;
        if self.context == 0 {
            return 0;
        }
        self.plugin.calls.finalize(with_exposed_provenance_mut(self.context))
    }
}

impl Drop for ProfilerComm {
    fn drop(&mut self) {
        if self.live {
            self.end();
        }
    }
}

/// NCCL's threads share a communicator.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<ProfilerComm>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::profiler::raw::{V1, V2, V3, V4, V5, V6, V7, Version};

    const EVENT: CollEvent = CollEvent {
        func: 4,
        count: 1000,
        datatype: 7,
        algo: 1,
        proto: 2,
        channels: 8,
        seq: 42,
        start_ns: 100,
        stop_ns: 900,
    };

    fn through<V: Version>(start: Start) -> Option<Raw> {
        let descr = V::encode(&start.raw(3, 0x1230, 0x4560))?;
        // SAFETY: `encode` filled the member that the type names.
        unsafe { V::decode(&descr) }
    }

    /// What is written is read back, at each version's layout.
    #[test]
    fn events_go_through_each_version() {
        fn check<V: Version>() {
            let raw = through::<V>(Start::Coll(EVENT)).unwrap();
            let raw::Body::Coll(c) = raw.body else { panic!("{raw:?}") };
            let parent = if V::NUMBER >= 5 { 0x1230 } else { 0x4560 };
            assert_eq!((raw.kind, raw.parent, raw.rank), (Kind::Coll, parent, 3), "v{}", V::NUMBER);
            assert_eq!((c.seq, c.count, c.channels), (42, 1000, 8));
            assert_eq!((names::func_id(c.func), names::algo_id(c.algo)), (4, 1));
            assert_eq!((names::proto_id(c.proto), names::datatype_id(c.datatype)), (2, 7));
            let p2p = through::<V>(Start::P2p { coll: CollEvent { func: 6, ..EVENT }, peer: 5 }).unwrap();
            let raw::Body::P2p(p) = p2p.body else { panic!("{p2p:?}") };
            assert_eq!((names::func_id(p.func), p.peer, p.count), (6, 5, 1000));
            let op = Start::ProxyOp { pid: 77, channel: 9, peer: 4, steps: 3, chunk: 512, send: true };
            let raw::Body::ProxyOp(o) = through::<V>(op).unwrap().body else { panic!("v{}", V::NUMBER) };
            assert_eq!((o.pid, o.channel, o.peer, o.n_steps, o.chunk_size, o.is_send), (77, 9, 4, 3, 512, 1));
            let kernel = through::<V>(Start::KernelCh { channel: 9, timer: 1 << 40 });
            let timer = kernel.map(|k| match k.body {
                raw::Body::KernelCh { channel: 9, timer } => timer,
                _ => panic!("{k:?}"),
            });
            assert_eq!(timer, [None, None, Some(0), Some(1 << 40)][(V::NUMBER as usize).min(4) - 1]);
            assert_eq!(through::<V>(Start::GroupApi { depth: 1 }).is_some(), V::NUMBER >= 5);
            assert_eq!(through::<V>(Start::CeSync).is_some(), V::NUMBER >= 6);
            let phase = Start::KernelPhase { channel: 1, phase: 2, timer: 3 };
            assert_eq!(through::<V>(phase).is_some(), V::NUMBER >= 7);
        }
        check::<V1>();
        check::<V2>();
        check::<V3>();
        check::<V4>();
        check::<V5>();
        check::<V6>();
        check::<V7>();
    }

    #[test]
    fn state_arguments_go_through() {
        // SAFETY: `encode_args` filled the member that the state names.
        let trip4 = |n, v| V4::encode_args(n, v).map(|a| unsafe { V4::decode_args(n, &a) });
        // SAFETY: as above.
        let trip1 = |n, v| V1::encode_args(n, v).map(|a| unsafe { V1::decode_args(n, &a) });
        assert_eq!(trip4(state::KERNEL_CH_STOP, 1 << 50), Some(1 << 50));
        assert_eq!(trip4(state::STEP_SEND_PEER_WAIT, 4096), Some(4096));
        assert_eq!(trip4(state::CTRL_LAST, 12), Some(12));
        assert_eq!(trip4(0, 12), None, "version 4 has no states of proxy operations");
        assert_eq!(trip4(state::KERNEL_PHASE_STOP, 1), None);
        assert_eq!((trip1(3, 4096), trip1(state::CTRL_FIRST, 2)), (Some(4096), Some(2)));
        assert_eq!(trip1(state::KERNEL_CH_STOP, 2), None);
    }
}
