//! [`Chain`]: the downstream profiler that `RINGFENCE_CHAIN_PROFILER` names. NCCL takes one profiler per process (nccl #1981); this one is
//! called with everything that it asks for by a mask of its own, as if NCCL had opened it.
//!
//! Its version is the highest that it has and that is not above the one NCCL speaks with us: events are laid out again for it, and
//! what an older version does not know is left out, as NCCL's own shims do. A plugin that has only higher versions is refused: what they
//! tell cannot be made up.
//!
//! NCCL holds a handle of ours that stands for both (a *pair*, see [`Pairs`]). The downstream profiler gets what NCCL's
//! contract promises and NCCL does not always keep: no second stop of an event, no state after its stop, no handle of a communicator that
//! has ended, no parent from another process.

use super::super::library::Library;
use super::calls::{Calls, Found, PROFILER_VERSIONS, probe};
use super::decode;
use super::raw::{InitFacts, Raw};
use crate::host::tell;
use crate::profiler::event::Event;
use crate::profiler::handle::{Handle, MAX_COMMS};
use crate::profiler::pairs::{Pair, Pairs};
use crate::profiler::{Count, PROFILERS};
use std::ffi::{OsStr, c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Environment variable that names the downstream profiler, as `NCCL_PROFILER_PLUGIN` would.
pub const CHAIN_VAR: &str = "RINGFENCE_CHAIN_PROFILER";

/// The mask that the downstream profiler writes.
static THEIR_MASK: AtomicI32 = AtomicI32::new(0);

/// The chain of this process, decided by its first communicator.
static CHAIN: OnceLock<Option<Chain>> = OnceLock::new();

/// See the module.
pub(super) struct Chain {
    calls: Box<dyn Calls>,
    name: String,
    pairs: Pairs,
    /// Its contexts, by the number of our communicator; 0 for none.
    contexts: [AtomicUsize; MAX_COMMS],
}

/// The chain, once a communicator has opened it.
#[inline]
pub(super) fn chain() -> Option<&'static Chain> {
    CHAIN.get()?.as_ref()
}

/// Opens what the environment names, at the first communicator of the process; NCCL speaks `version`.
pub(super) fn open(version: u32) -> Option<&'static Chain> {
    let chain = CHAIN.get_or_init(|| {
        let value = std::env::var_os(CHAIN_VAR).filter(|v| !v.is_empty())?;
        match Chain::load(&value, version) {
            Ok(chain) => Some(chain),
            Err(why) => {
                tell!(Warn, "{CHAIN_VAR}={}: {why}; going on without it", value.display());
                None
            }
        }
    });
    if chain.is_some() {
        PROFILERS.set_downstream(&THEIR_MASK);
    }
    chain.as_ref()
}

impl Chain {
    fn load(value: &OsStr, version: u32) -> Result<Chain, String> {
        let library = Library::open(value, "libnccl-profiler")?;
        let lookup = |name: &std::ffi::CStr| library.symbol(name);
        // SAFETY: the library is never closed; the operator says that it is a profiler of NCCL's.
        let find = |v: &u32| -> Option<Found> { unsafe { probe(&lookup, *v) } };
        if lookup(c"ncclProfiler_v6").is_some_and(is_ours) {
            return Err("that is Ringfence itself".to_owned());
        }
        let fitting = PROFILER_VERSIONS.iter().filter(|v| **v <= version).find_map(find);
        let (calls, name) =
            fitting.ok_or_else(|| match PROFILER_VERSIONS.iter().rev().find(|v| find(v).is_some()) {
                Some(lowest) => format!(
                    "it has no profiler below version {lowest}, and this NCCL speaks version {version}"
                ),
                None => "it exports no profiler (ncclProfiler_v1 to v7)".to_owned(),
            })?;
        tell!(Info, "chains profiler {name} (v{}) behind ours (v{version})", calls.version());
        let contexts = [const { AtomicUsize::new(0) }; MAX_COMMS];
        Ok(Chain { calls, name, pairs: Pairs::new(), contexts })
    }

    /// A communicator begins. If the downstream `init` fails, it is without the downstream profiler, as NCCL would go on.
    pub(super) fn init(&self, context: u64, facts: &InitFacts) {
        let Some(place) = self.place(context) else { return };
        let mut theirs = null_mut();
        let code = self.calls.init(&mut theirs, &THEIR_MASK, facts);
        if code != 0 {
            PROFILERS.count(Count::DownstreamErrors);
            tell!(
                Warn,
                "the chained profiler {} failed to start ({code}); this communicator goes on without it",
                self.name
            );
            theirs = null_mut();
        }
        place.store(theirs.expose_provenance(), Ordering::Release);
        // It has written its mask.
        PROFILERS.set_downstream(&THEIR_MASK);
    }

    /// A communicator ends; its handle is stale already.
    pub(super) fn finalize(&self, context: u64) {
        let theirs = self.place(context).map_or(0, |place| place.swap(0, Ordering::AcqRel));
        if theirs != 0 {
            self.check(self.calls.finalize(with_exposed_provenance_mut(theirs)));
        }
    }

    fn place(&self, context: u64) -> Option<&AtomicUsize> {
        match Handle::of_bits(context)? {
            Handle::Comm { comm, .. } => self.contexts.get(comm),
            _ => None,
        }
    }

    /// Would NCCL start this event for the downstream profiler alone?
    #[inline]
    pub(super) fn asks(&self, raw: &Raw) -> bool {
        THEIR_MASK.load(Ordering::Relaxed) as u32 & raw.kind.started_by() != 0
    }

    /// `startEvent` for both; the handle for NCCL.
    pub(super) fn start(&self, context: u64, raw: &Raw, version: u32) -> u64 {
        let (parent, their_parent) = self.translate(raw.parent);
        let event = Event { parent, ..decode::event(raw, version) };
        if let Some(foreign) = PROFILERS.foreign(&event) {
            return foreign;
        }
        let ours = PROFILERS.start(context, &event);
        if !self.asks(raw) {
            return ours;
        }
        let mut theirs = *raw;
        theirs.parent = their_parent;
        if let Some(group) = decode::parent_group(&mut theirs) {
            *group = self.translate(*group).1;
        }
        let Some(handle) = self.start_theirs(context, &theirs) else { return ours };
        let pair = Pair { ours, theirs: handle, context };
        match self.pairs.insert(raw.kind, &pair) {
            Some(paired) => {
                if paired.lost {
                    PROFILERS.count(Count::PairsLost);
                }
                paired.handle.bits()
            }
            None => {
                PROFILERS.count(Count::PairsLost);
                ours
            }
        }
    }

    /// The downstream handle; `None` if it left it null, or was not called.
    fn start_theirs(&self, context: u64, raw: &Raw) -> Option<usize> {
        PROFILERS.comm(context)?;
        let their_context = self.place(context)?.load(Ordering::Acquire);
        if their_context == 0 {
            return None;
        }
        let mut handle: *mut c_void = null_mut();
        match self.calls.start(with_exposed_provenance_mut(their_context), &mut handle, raw) {
            Some(code) => {
                PROFILERS.count(Count::Forwarded);
                self.check(code);
            }
            None => PROFILERS.count(Count::NotForwarded),
        }
        (!handle.is_null()).then(|| handle.expose_provenance())
    }

    /// `stopEvent` of a pair.
    pub(super) fn stop(&self, slot: usize, generation: u64) {
        let Some((pair, _)) = self.pairs.get(slot, generation) else {
            return PROFILERS.count(Count::StaleHandle);
        };
        if self.pairs.stop(slot, generation) {
            self.forward(&pair, |theirs| Some(self.calls.stop(theirs)));
        }
        PROFILERS.stop(pair.ours);
    }

    /// `recordEventState` of a pair.
    pub(super) fn state(&self, slot: usize, generation: u64, number: c_int, value: Option<u64>) {
        let Some((pair, stopped)) = self.pairs.get(slot, generation) else {
            return PROFILERS.count(Count::StaleHandle);
        };
        if !stopped {
            self.forward(&pair, |theirs| self.calls.state(theirs, number, value));
        }
        PROFILERS.state(pair.ours, number, value);
    }

    fn forward(&self, pair: &Pair, call: impl FnOnce(*mut c_void) -> Option<c_int>) {
        if PROFILERS.comm(pair.context).is_none() {
            // Its communicator has ended: so have its events, downstream.
            return PROFILERS.count(Count::NotForwarded);
        }
        match call(with_exposed_provenance_mut(pair.theirs)) {
            Some(code) => {
                PROFILERS.count(Count::Forwarded);
                self.check(code);
            }
            None => PROFILERS.count(Count::NotForwarded),
        }
    }

    /// A parent's handle as each side knows it: ours, theirs.
    fn translate(&self, parent: usize) -> (u64, usize) {
        match Handle::of_bits(parent as u64) {
            Some(Handle::Pair { slot, generation }) => match self.pairs.get(slot, generation) {
                Some((pair, _)) => (pair.ours, pair.theirs),
                // Not there any more: stale on our side too.
                None => (parent as u64, 0),
            },
            _ => (parent as u64, 0),
        }
    }

    fn check(&self, code: c_int) {
        if code != 0 {
            PROFILERS.count(Count::DownstreamErrors);
        }
    }
}

/// A library that names itself would call itself.
fn is_ours(symbol: std::ptr::NonNull<c_void>) -> bool {
    std::ptr::eq(symbol.as_ptr().cast_const(), std::ptr::from_ref(&super::ncclProfiler_v6).cast())
}
