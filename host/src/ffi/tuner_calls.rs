//! [`Calls`]: a tuner plugin of any version, called as NCCL calls it. For the driver, and for the plugin at the end of our chain.
//!
//! Safety rests on the plugin keeping NCCL's contract, as NCCL's own does.

use super::types::{
    Finalize, GetChunkSize, GetCollInfoV2, GetCollInfoV3, GetCollInfoV4, InitV2, InitV5, Logger, NcclResult,
    NvlDomainInfo, SUCCESS, TunerConstants, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6,
};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};

/// The tuner versions, as NCCL probes them.
pub const VERSIONS: [u32; 5] = [6, 5, 4, 3, 2];

#[derive(Clone, Copy)]
enum Init {
    V2(InitV2),
    V5(InitV5),
}

#[derive(Clone, Copy)]
enum GetCollInfo {
    V2(GetCollInfoV2),
    V3(GetCollInfoV3),
    V4(GetCollInfoV4),
}

/// The functions of a tuner plugin.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    version: u32,
    init: Init,
    get: GetCollInfo,
    chunk: Option<GetChunkSize>,
    finalize: Finalize,
}

/// What NCCL tells a tuner of a new communicator.
pub(crate) struct Beginning<'a> {
    pub(crate) comm_id: u64,
    pub(crate) n_ranks: usize,
    pub(crate) n_nodes: usize,
    pub(crate) logger: Option<Logger>,
    pub(crate) nvl: NvlDomainInfo,
    pub(crate) constants: &'a mut TunerConstants,
}

/// One collective, as NCCL asks about it.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) func: c_int,
    pub(crate) n_bytes: usize,
    pub(crate) num_pipe_ops: c_int,
    pub(crate) algos: usize,
    pub(crate) protos: usize,
    pub(crate) reg_buff: bool,
}

/// A plugin's context for one communicator, as an address, so that it may move between threads like NCCL's communicators do.
#[derive(Clone, Copy)]
pub(crate) struct Context(usize);

impl Calls {
    /// Reads the table of a version; `symbol` finds the address of a symbol in the plugin, which stays loaded as long as the calls are
    /// used. The second value is the plugin's name, as it tells NCCL.
    pub(crate) fn probe(
        version: u32,
        symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>,
    ) -> Option<(Calls, String)> {
        let table = symbol(&CString::new(format!("ncclTunerPlugin_v{version}")).ok()?)?;
        macro_rules! read {
            ($ty:ty, $init:ident, $get:ident, $finalize:ident, $chunk:expr) => {{
                // SAFETY: NCCL defines this symbol as a structure of this type; a plugin's symbol is one.
                let table: &$ty = unsafe { table.cast().as_ref() };
                let chunk: fn(&$ty) -> Option<GetChunkSize> = $chunk;
                let calls = Calls {
                    version,
                    init: Init::$init(table.init),
                    get: GetCollInfo::$get(table.get_coll_info),
                    chunk: chunk(table),
                    finalize: table.$finalize,
                };
                (calls, table.name)
            }};
        }
        let (calls, name) = match version {
            2 => read!(TunerV2, V2, V2, destroy, |_| None),
            3 => read!(TunerV3, V2, V3, destroy, |_| None),
            4 => read!(TunerV4, V2, V4, destroy, |_| None),
            5 => read!(TunerV5, V5, V4, finalize, |_| None),
            6 => read!(TunerV6, V5, V4, finalize, |table| table.get_chunk_size),
            _ => return None,
        };
        let name = match name.is_null() {
            true => String::new(),
            // SAFETY: NCCL prints it with %s, so it is a C string.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        Some((calls, name))
    }

    /// Version of the interface.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Calls `init`. The result code comes with the context that the plugin left.
    pub(crate) fn init(&self, with: &mut Beginning<'_>) -> (Context, NcclResult) {
        let mut context = null_mut();
        let rc = match self.init {
            // SAFETY: the plugin's own function with NCCL's arguments; all pointers live across the call.
            Init::V2(f) => unsafe { f(with.n_ranks, with.n_nodes, with.logger, &mut context) },
            // SAFETY: as above.
            Init::V5(f) => unsafe {
                f(
                    &mut context,
                    with.comm_id,
                    with.n_ranks,
                    with.n_nodes,
                    with.logger,
                    &mut with.nvl,
                    with.constants,
                )
            },
        };
        (Context(context.expose_provenance()), rc)
    }

    /// Calls `getCollInfo` over a table of `algos * protos` costs: the result code, and `nChannels`, which comes in as 0. Version 2
    /// knows no table: as in NCCL's own shim, what it returns sets that entry to 0 unless the entry is negative.
    ///
    /// # Panics
    /// If `costs` does not have that many entries.
    #[inline]
    pub(crate) fn get_coll_info(
        &self,
        context: Context,
        q: Question,
        costs: &mut [f32],
    ) -> (NcclResult, c_int) {
        assert_eq!(costs.len(), q.algos * q.protos);
        let context = with_exposed_provenance_mut::<c_void>(context.0);
        let (algos, protos) = (q.algos as c_int, q.protos as c_int);
        let table = costs.as_mut_ptr().cast::<*mut f32>();
        let mut channels = 0;
        let rc = match self.get {
            // SAFETY: the context is the plugin's own, `table` points to algos * protos floats that nothing else
            // uses during the call, `channels` is a local.
            GetCollInfo::V4(f) => unsafe {
                f(
                    context,
                    q.func,
                    q.n_bytes,
                    q.num_pipe_ops,
                    table,
                    algos,
                    protos,
                    q.reg_buff.into(),
                    &mut channels,
                )
            },
            // SAFETY: as above.
            GetCollInfo::V3(f) => unsafe {
                f(context, q.func, q.n_bytes, q.num_pipe_ops, table, algos, protos, &mut channels)
            },
            GetCollInfo::V2(f) => return call_v2(f, context, q, costs),
        };
        (rc, channels)
    }

    /// Calls `getChunkSize`, if the plugin has it: the chunk size that it leaves of `size`, or `size` where it reports an error.
    pub(crate) fn chunk_size(&self, context: Context, r: &crate::chunk::ChunkRequest) -> u64 {
        let Some(f) = self.chunk else { return r.so_far };
        let context = with_exposed_provenance_mut::<c_void>(context.0);
        let mut size = r.so_far as usize;
        let numbers = [r.func, r.algo, r.proto, r.channels].map(|n| n as c_int);
        let [func, algo, proto, channels] = numbers;
        // SAFETY: the plugin's own function and context; `size` is a local.
        let rc = unsafe { f(context, func, r.n_bytes as usize, algo, proto, channels, &mut size) };
        if rc == SUCCESS { size as u64 } else { r.so_far }
    }

    /// Calls `finalize` (or `destroy`). The context may not be used any more.
    pub(crate) fn finalize(&self, context: Context) -> NcclResult {
        // SAFETY: the plugin's own context, given back once.
        unsafe { (self.finalize)(with_exposed_provenance_mut(context.0)) }
    }
}

fn call_v2(f: GetCollInfoV2, context: *mut c_void, q: Question, costs: &mut [f32]) -> (NcclResult, c_int) {
    let offers = |rows: [usize; 2]| {
        let row =
            |r: usize| costs.chunks_exact(q.protos).nth(r).is_some_and(|row| row.iter().any(|c| *c >= 0.0));
        c_int::from(rows.into_iter().any(row))
    };
    let (collnet, nvls) = (offers([2, 3]), offers([4, 5]));
    let (mut algo, mut proto, mut channels) = (-1, -1, 0);
    // SAFETY: the plugin's own function and context; the rest are locals.
    let rc = unsafe {
        f(context, q.func, q.n_bytes, collnet, nvls, q.num_pipe_ops, &mut algo, &mut proto, &mut channels)
    };
    let place = usize::try_from(algo).ok().zip(usize::try_from(proto).ok());
    if let Some((algo, proto)) = place.filter(|(a, p)| *a < q.algos && *p < q.protos)
        && let Some(entry) = costs.get_mut(algo * q.protos + proto).filter(|entry| **entry >= 0.0)
    {
        *entry = 0.0;
    }
    (rc, channels)
}
