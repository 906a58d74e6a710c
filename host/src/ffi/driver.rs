//! [`Plugin`] and [`Comm`]: NCCL's side of the tuner interface, for the CLI, tests and benchmarks. A plugin is
//! opened and called exactly as NCCL does: dlopen with RTLD_NOW and RTLD_LOCAL, data symbols probed from the
//! highest version down, one contiguous cost table, a logger that is a C variadic.
//!
//! Safety rests on the plugin keeping NCCL's contract; opening a library runs its code, so open only what you
//! would give to NCCL.

pub use super::tuner_calls::VERSIONS;
use super::tuner_calls::{Beginning, Calls, Context, Question};
use super::types::{Logger, NcclResult, NvlDomainInfo, TunerConstants};
use crate::chunk::ChunkRequest;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::mem::transmute;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

mod net;
mod profiler;

pub use crate::ffi::profiler::PROFILER_VERSIONS;
pub use net::{Code, Net, NetComm, Pair};
pub use profiler::{CollEvent, Enqueued, Handle, Profiler, ProfilerComm, Start};

/// A line that a plugin wrote through NCCL's logger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// `ncclDebugLogLevel`: 2 WARN, 3 INFO, 5 TRACE.
    pub level: i32,
    /// Subsystem flags: 1 INIT, 0x40 TUNING.
    pub flags: u64,
    /// The text.
    pub text: String,
}

static LINES: Mutex<Vec<LogLine>> = Mutex::new(Vec::new());
/// Lines kept until somebody takes them; later ones are dropped.
const MAX_LINES: usize = 100_000;

/// Takes all lines that plugins have logged so far, from any thread. The logger has no user pointer, so there
/// is one list in the process.
pub fn take_log() -> Vec<LogLine> {
    std::mem::take(&mut LINES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The logger handed to plugins. A function with `...` cannot be defined in stable Rust; on x86-64 System V and
/// AArch64 Linux the first variadic pointer argument travels exactly like a sixth named one, so this signature
/// takes the one call that Ringfence makes: `"%s"` and one string.
extern "C" fn capture(
    level: c_int,
    flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    if format.is_null() {
        return;
    }
    // SAFETY: a logger is called with a C string as format.
    let format = unsafe { CStr::from_ptr(format) };
    let shown = match format.to_bytes() {
        // SAFETY: the format says that the next argument is a C string.
        b"%s" if !text.is_null() => unsafe { CStr::from_ptr(text) },
        _ => format,
    };
    let text = shown.to_string_lossy().into_owned();
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    if lines.len() < MAX_LINES {
        lines.push(LogLine { level, flags, text });
    }
}

fn logger() -> Logger {
    type Fixed = extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    // SAFETY: both are plain code pointers; the call is compatible on the two supported ABIs, see `capture`.
    unsafe { transmute::<Fixed, Logger>(capture) }
}

/// Why a plugin cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// dlopen failed.
    Open(String),
    /// The library has no `ncclTunerPlugin_vN` of a version that was asked for.
    NoTuner,
    /// The library has no `ncclProfiler_vN` of a version that was asked for.
    NoProfiler,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Open(text) => write!(f, "cannot open the plugin: {text}"),
            OpenError::NoTuner => f.write_str("the plugin exports no tuner (ncclTunerPlugin_v2 to v6)"),
            OpenError::NoProfiler => f.write_str("the plugin exports no profiler (ncclProfiler_v1 to v7)"),
        }
    }
}

impl std::error::Error for OpenError {}

/// An open plugin. It is closed (dlclose) when this and all its communicators are gone.
#[derive(Clone)]
pub struct Plugin {
    calls: Calls,
    name: String,
    library: Arc<Library>,
}

impl Plugin {
    /// Opens `path` and takes the highest tuner version, as NCCL does.
    ///
    /// # Errors
    /// The library does not open (text of dlopen), or exports no tuner.
    pub fn open(path: impl AsRef<Path>) -> Result<Plugin, OpenError> {
        Plugin::open_among(path.as_ref(), &VERSIONS)
    }

    /// Opens `path` at the given tuner version (2 to 6).
    ///
    /// # Errors
    /// As [`Plugin::open`].
    pub fn open_version(path: impl AsRef<Path>, version: u32) -> Result<Plugin, OpenError> {
        Plugin::open_among(path.as_ref(), &[version])
    }

    fn open_among(path: &Path, versions: &[u32]) -> Result<Plugin, OpenError> {
        // SAFETY: runs the library's initialisers, as documented at the top of this module.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| OpenError::Open(e.to_string()))?;
        let (calls, name) = versions.iter().find_map(|v| probe(&library, *v)).ok_or(OpenError::NoTuner)?;
        Ok(Plugin { calls, name, library: Arc::new(library) })
    }

    /// Tuner version in use.
    pub fn version(&self) -> u32 {
        self.calls.version()
    }

    /// The plugin's name, as it tells NCCL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The versions that the library at hand exports, highest first.
    pub fn exported(&self) -> Vec<u32> {
        VERSIONS.into_iter().filter(|v| probe(&self.library, *v).is_some()).collect()
    }

    /// Calls `init` as NCCL does for a new communicator (constants zero, one NVLink domain per node).
    /// The second value is `init`'s result code; NCCL would fail the communicator unless it is 0.
    pub fn init(&self, n_ranks: usize, n_nodes: usize, comm_id: u64) -> (Comm, NcclResult) {
        let per_node = (n_ranks / n_nodes.max(1)) as c_int;
        let nvl = NvlDomainInfo {
            n_nvl_domains: n_nodes as c_int,
            min_ranks_per_nvl_domain: per_node,
            max_ranks_per_nvl_domain: per_node,
        };
        let mut constants = TunerConstants::ZERO;
        self.init_with(n_ranks, n_nodes, comm_id, nvl, &mut constants)
    }

    /// Calls `init` with these NVLink domains and constants, which a plugin of version 5 or 6 may rewrite.
    pub fn init_with(
        &self,
        n_ranks: usize,
        n_nodes: usize,
        comm_id: u64,
        nvl: NvlDomainInfo,
        constants: &mut TunerConstants,
    ) -> (Comm, NcclResult) {
        let mut with = Beginning { comm_id, n_ranks, n_nodes, logger: Some(logger()), nvl, constants };
        let (context, rc) = self.calls.init(&mut with);
        (Comm { calls: self.calls, context, live: true, _library: self.library.clone() }, rc)
    }
}

/// Reads the table of a version out of an open library.
fn probe(library: &Library, version: u32) -> Option<(Calls, String)> {
    // SAFETY: the address of a data symbol, whatever its type; nothing is read through it here.
    let symbol = |name: &CStr| unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok();
    Calls::probe(version, |name| NonNull::new(*symbol(name)?))
}

/// A cost table as NCCL allocates it: `float[algos][protos]`, microseconds, -1 = not available.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    algos: usize,
    protos: usize,
    costs: Vec<f32>,
}

impl Table {
    /// `costs` row by row.
    ///
    /// # Panics
    /// If `costs` does not have `algos * protos` entries.
    pub fn new(algos: usize, protos: usize, costs: Vec<f32>) -> Table {
        assert_eq!(costs.len(), algos * protos, "a cost table is rectangular");
        Table { algos, protos, costs }
    }

    /// The entries, row by row.
    pub fn costs(&self) -> &[f32] {
        &self.costs
    }
    /// The entries, row by row, to be refilled between calls.
    pub fn costs_mut(&mut self) -> &mut [f32] {
        &mut self.costs
    }
    /// Rows: algorithms.
    pub fn algos(&self) -> usize {
        self.algos
    }
    /// Columns: protocols.
    pub fn protos(&self) -> usize {
        self.protos
    }

    /// What NCCL up to 2.30 would choose: the smallest entry that is not negative, the first of equals.
    pub fn choice(&self) -> Option<(usize, usize)> {
        let mut best = None;
        for (i, cost) in self.costs.iter().enumerate() {
            if *cost >= 0.0 && best.is_none_or(|(_, b)| *cost < b) {
                best = Some((i, *cost));
            }
        }
        best.map(|(i, _)| (i / self.protos, i % self.protos))
    }
}

/// A communicator of a plugin. Dropped without [`Comm::finalize`], it is finalized then.
pub struct Comm {
    calls: Calls,
    context: Context,
    live: bool,
    _library: Arc<Library>,
}

impl Comm {
    /// Calls `getCollInfo` as NCCL does: `nChannels` comes in as 0 and is the second value returned; the first
    /// is the result code, which would fail the collective unless it is 0. Version 2 knows no table: as in
    /// NCCL's own shim, what it returns sets that entry to 0 unless the entry is negative.
    #[inline]
    pub fn get_coll_info(
        &mut self,
        func: i32,
        n_bytes: usize,
        num_pipe_ops: i32,
        table: &mut Table,
        reg_buff: bool,
    ) -> (NcclResult, i32) {
        let (algos, protos) = (table.algos, table.protos);
        let question = Question { func, n_bytes, num_pipe_ops, algos, protos, reg_buff };
        self.calls.get_coll_info(self.context, question, &mut table.costs)
    }

    /// Calls `getChunkSize` as NCCL does with a chunk size of its own: the size that is left. Plugins below version 6 leave it.
    pub fn get_chunk_size(
        &mut self,
        func: u32,
        n_bytes: u64,
        algo: u32,
        proto: u32,
        channels: u32,
        chunk_size: u64,
    ) -> u64 {
        let (nccl, so_far) = (chunk_size, chunk_size);
        self.calls
            .chunk_size(self.context, &ChunkRequest { func, n_bytes, algo, proto, channels, nccl, so_far })
    }

    /// Calls `finalize` (or `destroy`) and returns its result code.
    pub fn finalize(mut self) -> NcclResult {
        self.end()
    }

    fn end(&mut self) -> NcclResult {
        self.live = false;
        self.calls.finalize(self.context)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.live {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logger_takes_the_one_call_that_is_made() {
        // SAFETY: a C string follows "%s".
        unsafe { logger()(3, 0x41, c"f".as_ptr(), 1, c"%s".as_ptr(), c"100% of it".as_ptr()) };
        let line = LogLine { level: 3, flags: 0x41, text: "100% of it".into() };
        assert!(take_log().contains(&line));
    }

    #[test]
    fn the_choice_is_nccl_s() {
        let mut table = Table::new(7, 3, vec![-1.0; 21]);
        assert_eq!(table.choice(), None);
        table.costs_mut()[5] = 3.0;
        table.costs_mut()[2] = 3.0;
        assert_eq!(table.choice(), Some((0, 2)), "the first of equals");
        table.costs_mut()[5] = 0.0;
        table.costs_mut()[4] = f32::NAN;
        assert_eq!(table.choice(), Some((1, 2)));
    }
}
