//! [`Chain`]: the plugin that `RINGFENCE_CHAIN_NET` names, its tables by version, and [`Below`]: the one that stands behind a
//! version of ours.

use super::down::Down;
use super::types::{CommConfig, InitV6, InitV10, InitV11, NetV6, NetV10, NetV12, Out, ProfilerCallback};
use crate::ffi::library::Library;
use crate::ffi::logger::{NcclLogger, Severity};
use crate::ffi::types::{INTERNAL_ERROR, Logger, NcclResult, SUCCESS};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Environment variable that names the net plugin to wrap, as `NCCL_NET_PLUGIN` would: a path, a library's name, or NAME for
/// `libnccl-net-NAME.so`. Unset, empty or "none": the net half of Ringfence has no devices.
pub const CHAIN_NET_VAR: &str = "RINGFENCE_CHAIN_NET";

/// The versions of the interface, lowest first.
pub(super) const VERSIONS: [usize; 7] = [6, 7, 8, 9, 10, 11, 12];

const SYMBOLS: [&CStr; 7] = [
    c"ncclNetPlugin_v6",
    c"ncclNetPlugin_v7",
    c"ncclNetPlugin_v8",
    c"ncclNetPlugin_v9",
    c"ncclNetPlugin_v10",
    c"ncclNetPlugin_v11",
    c"ncclNetPlugin_v12",
];

/// The open plugin.
pub(super) struct Chain {
    /// As the operator wrote it.
    value: String,
    tables: [Option<NonNull<c_void>>; 7],
    /// Why there is none.
    error: Option<String>,
    reported: AtomicBool,
    hollow: AtomicBool,
}

// SAFETY: the pointers are to tables of a library that is never closed; what is read through them is described at `Below`.
unsafe impl Send for Chain {}
// SAFETY: as above.
unsafe impl Sync for Chain {}

impl Chain {
    /// The chain of this process; `None` if the operator named none. The first call reads the environment and opens the plugin.
    pub(super) fn get() -> Option<&'static Chain> {
        static CHAIN: OnceLock<Option<Chain>> = OnceLock::new();
        CHAIN.get_or_init(Chain::open).as_ref()
    }

    fn open() -> Option<Chain> {
        let value = std::env::var_os(CHAIN_NET_VAR)?;
        if value.is_empty() || value.eq_ignore_ascii_case("none") {
            return None;
        }
        let mut chain = Chain {
            value: value.to_string_lossy().into_owned(),
            tables: [None; 7],
            error: None,
            reported: AtomicBool::new(false),
            hollow: AtomicBool::new(false),
        };
        match Library::open(&value, "libnccl-net") {
            Err(text) => chain.error = Some(text),
            Ok(library) => chain.tables = SYMBOLS.map(|symbol| library.symbol(symbol)),
        }
        let ours = super::exported();
        if chain.tables.iter().flatten().any(|table| ours.contains(&table.as_ptr().cast_const())) {
            chain.tables = [None; 7];
            chain.error = Some("that is Ringfence itself".to_owned());
        }
        Some(chain)
    }

    /// What stands behind our `version`: the highest that the plugin has up to there, which is what NCCL would take of it.
    fn below(&self, version: usize) -> Option<Below> {
        let (at, table) = (0..=version - 6).rev().find_map(|at| self.tables[at].map(|table| (at, table)))?;
        Some(Below::new(VERSIONS[at], table))
    }

    /// Says once that the plugin below is of no use, although its `init` succeeded.
    pub(super) fn report_hollow(&self, below: &Below, logger: Option<Logger>) {
        // SAFETY: NCCL's own logger, used during NCCL's call.
        let Some(logger) = (unsafe { NcclLogger::new(logger) }) else { return };
        if !self.hollow.swap(true, Ordering::Relaxed) {
            let (value, name, version) = (&self.value, below.name(), below.version);
            let text = format!(
                "Ringfence: no net plugin, {CHAIN_NET_VAR}={value}: {name} (v{version}) lacks a member that NCCL calls"
            );
            logger.line(Severity::Warn, &text);
        }
    }

    /// Says once in NCCL's log what is wrapped, or why nothing is.
    pub(super) fn report(&self, version: usize, below: Option<&Below>, logger: Option<Logger>) {
        // SAFETY: NCCL's own logger, used during NCCL's call.
        let Some(logger) = (unsafe { NcclLogger::new(logger) }) else { return };
        if self.reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let value = &self.value;
        match (below, &self.error) {
            (Some(below), _) => logger.line(
                Severity::Info,
                &format!(
                    "Ringfence: net plugin {} (v{} of {value}) wrapped as v{version}",
                    below.name(),
                    below.version
                ),
            ),
            (None, Some(error)) => {
                logger.line(
                    Severity::Warn,
                    &format!("Ringfence: no net plugin, {CHAIN_NET_VAR}={value}: {error}"),
                );
            }
            (None, None) => logger.line(
                Severity::Warn,
                &format!(
                    "Ringfence: no net plugin, {CHAIN_NET_VAR}={value} has no ncclNetPlugin_v6 to _v{version}"
                ),
            ),
        }
    }
}

/// The plugin below, at the version that stands behind one of ours.
pub(crate) struct Below {
    pub(crate) version: usize,
    table: NonNull<c_void>,
    /// How often it is initialised: up to v10 a plugin expects that once, and v11 and later are initialised per communicator.
    inits: Mutex<usize>,
    down: OnceLock<Option<Down>>,
}

// SAFETY: `table` points to a static of a library that is never closed. Its members are read when NCCL calls, under NCCL's own lock, as
// NCCL itself would.
unsafe impl Send for Below {}
// SAFETY: as above.
unsafe impl Sync for Below {}

impl Below {
    /// `table` is a table of that version, of a library that is never closed.
    pub(crate) fn new(version: usize, table: NonNull<c_void>) -> Below {
        Below { version, table, inits: Mutex::new(0), down: OnceLock::new() }
    }

    /// Our own table of that version, for those who play NCCL.
    #[cfg(feature = "cli")]
    pub(crate) fn own(version: usize) -> Option<Below> {
        let table = *super::exported().get(version.checked_sub(6)?)?;
        NonNull::new(table.cast_mut()).map(|table| Below::new(version, table))
    }

    /// What stands behind our `version` in this process.
    pub(crate) fn get(version: usize) -> Option<&'static Below> {
        static BELOW: [OnceLock<Option<Below>>; 7] = [const { OnceLock::new() }; 7];
        BELOW.get(version - 6)?.get_or_init(|| Chain::get()?.below(version)).as_ref()
    }

    /// The members, once an `init` has succeeded.
    #[inline]
    pub(crate) fn down(&self) -> Option<&Down> {
        self.down.get()?.as_ref()
    }

    /// Has an `init` succeeded that left a member null which NCCL calls without looking?
    pub(crate) fn is_hollow(&self) -> bool {
        matches!(self.down.get(), Some(None))
    }

    /// The name as the plugin has it now; it may change in `init`.
    pub(crate) fn name_pointer(&self) -> *const c_char {
        // SAFETY: every version's table begins with its name.
        unsafe { self.table.cast::<*const c_char>().read() }
    }

    fn name(&self) -> String {
        let name = self.name_pointer();
        match name.is_null() {
            true => "without name".to_owned(),
            // SAFETY: NCCL prints it, so it is a C string.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        }
    }

    /// Initialises the plugin, and reads its table when that has succeeded for the first time: some fill it in `init`. A plugin
    /// up to v10 behind a v11 or later is initialised by the first communicator alone, as NCCL does.
    ///
    /// # Safety
    /// NCCL's arguments of `init`; `ctx` and `config` are of v11 and later, `per_comm` tells whether NCCL's call was.
    pub(crate) unsafe fn init(
        &self,
        per_comm: bool,
        ctx: Out,
        comm_id: u64,
        config: *mut CommConfig,
        logger: Option<Logger>,
        profiler: Option<ProfilerCallback>,
    ) -> NcclResult {
        let mut inits = self.inits.lock().unwrap_or_else(PoisonError::into_inner);
        if self.version >= 11 || !per_comm || *inits == 0 {
            // SAFETY: as the caller promises.
            let rc = unsafe { self.call_init(ctx, comm_id, config, logger, profiler) };
            if rc != SUCCESS {
                return rc;
            }
        }
        *inits += 1;
        // SAFETY: the symbol of that version is a table of that version.
        self.down.get_or_init(|| unsafe { Down::read(self.version, self.table.as_ptr().cast()) });
        SUCCESS
    }

    /// # Safety
    /// As [`Below::init`].
    unsafe fn call_init(
        &self,
        ctx: Out,
        comm_id: u64,
        config: *mut CommConfig,
        logger: Option<Logger>,
        profiler: Option<ProfilerCallback>,
    ) -> NcclResult {
        // SAFETY: every table up to v9 has `init` of v6 in the same place, v10 its own, v11 and v12 the same.
        unsafe {
            match self.version {
                ..=9 => {
                    let init: Option<InitV6> = (*self.table.cast::<NetV6>().as_ptr()).init;
                    init.map_or(INTERNAL_ERROR, |f| f(logger))
                }
                10 => {
                    let init: Option<InitV10> = (*self.table.cast::<NetV10>().as_ptr()).init;
                    init.map_or(INTERNAL_ERROR, |f| f(logger, profiler))
                }
                _ => {
                    let init: Option<InitV11> = (*self.table.cast::<NetV12>().as_ptr()).init;
                    init.map_or(INTERNAL_ERROR, |f| f(ctx, comm_id, config, logger, profiler))
                }
            }
        }
    }

    /// A communicator of v11 or later is done with the plugin. `inner` is its context.
    ///
    /// # Safety
    /// `inner` is what the plugin's own `init` gave.
    pub(crate) unsafe fn finalize(&self, inner: *mut c_void) -> NcclResult {
        let mut inits = self.inits.lock().unwrap_or_else(PoisonError::into_inner);
        *inits = inits.saturating_sub(1);
        match self.down().and_then(|down| down.finalize) {
            // SAFETY: as the caller promises.
            Some(f) => unsafe { f(inner) },
            None => SUCCESS,
        }
    }
}
