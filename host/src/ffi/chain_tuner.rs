//! [`ChainTuner`]: the tuner plugin that `RINGFENCE_CHAIN_TUNER` names (AWS's, a vendor's), which is asked before our policies.
//!
//! What it chooses is the decision so far: our policies see it, may keep it and may change it. It is native code and not confined. Its
//! table is passed on only where NCCL offers something, and an entry that it makes negative or NaN ("disabled") becomes very expensive instead:
//! NCCL 2.32 would take a negative one for the best. Its errors are counted and not passed on, for they would fail the collective.

use super::library::Library;
use super::logger::NcclLogger;
use super::tuner_calls::{Beginning, Calls, Context, Question, VERSIONS};
use super::types::{Logger, NvlDomainInfo, SUCCESS, TunerConstants};
use crate::chunk::ChunkRequest;
use crate::comm::Request;
use crate::decision::{Algo, CommInfo, CostTable, Costs, Decision, MAX_CHANNELS, PAIRS, Proto};
use crate::host::tell;
use std::ffi::{OsStr, OsString, c_int};
use std::num::NonZeroU32;

/// Environment variable that names the plugin, as `NCCL_TUNER_PLUGIN` would.
pub(crate) const CHAIN_VAR: &str = "RINGFENCE_CHAIN_TUNER";

/// Cost of an entry that is not to be chosen, in microseconds.
const DISABLED: f32 = 1e30;

/// The plugin's side of one communicator.
pub(crate) struct ChainTuner {
    calls: Calls,
    context: Context,
    errors: u64,
    table: [f32; PAIRS],
}

/// What the plugin chose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Opinion {
    /// Its route, if it changed the table, and its channels.
    pub(crate) decision: Decision,
    /// It changed the table.
    pub(crate) changed: bool,
}

impl ChainTuner {
    /// Opens the plugin, if the environment names one, and begins a communicator with it. `None`, with a line in the log, if that fails: then
    /// our policies decide alone.
    ///
    /// `newest` is the highest version that can be called with what NCCL told us: 6, or 4 where it told neither constants nor communicator.
    pub(crate) fn begin(
        info: &CommInfo,
        newest: u32,
        logger: Option<Logger>,
        nvl: NvlDomainInfo,
        constants: &mut TunerConstants,
    ) -> Option<Box<ChainTuner>> {
        let value = std::env::var_os(CHAIN_VAR).filter(|v| !v.is_empty())?;
        let (calls, name) = match open(&value, newest) {
            Ok(found) => found,
            Err(why) => {
                tell!(Warn, "{CHAIN_VAR}={}: {why}; policies decide without it", value.display());
                return None;
            }
        };
        let (n_ranks, n_nodes) = (info.n_ranks as usize, info.n_nodes as usize);
        let comm_id = info.comm_id;
        let (context, rc) = calls.init(&mut Beginning { comm_id, n_ranks, n_nodes, logger, nvl, constants });
        if rc != SUCCESS {
            tell!(Warn, "{CHAIN_VAR}: {name} failed to begin (code {rc}); policies decide without it");
            return None;
        }
        tell!(Info, "chained tuner {name} (version {}), comm {comm_id:#x}", calls.version());
        Some(Box::new(ChainTuner { calls, context, errors: 0, table: [0.0; PAIRS] }))
    }

    /// Asks the plugin about a collective. Its table is kept for [`ChainTuner::adopt`]. A table larger than NCCL's is not shown to it.
    pub(crate) fn ask(&mut self, request: &Request, costs: &Costs<'_>) -> Opinion {
        let (algos, protos) = (costs.num_algo() as usize, costs.num_proto() as usize);
        let before = costs.values();
        let Some(table) = self.table.get_mut(..before.len()) else { return Opinion::default() };
        table.copy_from_slice(before);
        let Ok(func) = c_int::try_from(request.func) else { return Opinion::default() };
        let question = Question {
            func,
            n_bytes: request.n_bytes as usize,
            num_pipe_ops: request.num_pipe_ops as c_int,
            algos,
            protos,
            reg_buff: request.reg_buff,
        };
        let (rc, channels) = self.calls.get_coll_info(self.context, question, table);
        if rc != SUCCESS {
            self.errors += 1;
            table.copy_from_slice(before);
            return Opinion::default();
        }
        let changed = settle(table, before);
        let route = if changed { cheapest(table, before, protos) } else { None };
        let channels = u32::try_from(channels).ok().filter(|n| *n <= MAX_CHANNELS).and_then(NonZeroU32::new);
        Opinion { decision: Decision { route, channels }, changed }
    }

    /// Puts the table that the plugin left in the place of NCCL's.
    pub(crate) fn adopt(&self, table: &mut CostTable<'_>) {
        let len = table.costs().values().len();
        if let Some(values) = self.table.get(..len) {
            table.replace_offered(values);
        }
    }

    /// The chunk size in bytes that the plugin makes of the decision so far.
    pub(crate) fn chunk_size(&self, request: &ChunkRequest) -> u64 {
        self.calls.chunk_size(self.context, request)
    }

    /// Ends the communicator with the plugin.
    pub(crate) fn finish(&self) {
        let rc = self.calls.finalize(self.context);
        if rc != SUCCESS || self.errors > 0 {
            tell!(
                Warn,
                "{CHAIN_VAR}: {} calls returned errors, which were left to NCCL; finalize gave {rc}",
                self.errors
            );
        }
    }
}

impl std::fmt::Debug for ChainTuner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChainTuner(version {}, {} errors)", self.calls.version(), self.errors)
    }
}

/// The highest version of the plugin that can be called.
fn open(value: &OsString, newest: u32) -> Result<(Calls, String), String> {
    let library = Library::open(OsStr::new(value), "libnccl-tuner")?;
    let versions = VERSIONS.into_iter().filter(|v| *v <= newest);
    let found = versions.filter_map(|v| Calls::probe(v, |name| library.symbol(name))).next();
    let (calls, name) = found.ok_or_else(|| format!("it exports no tuner of version 2 to {newest}"))?;
    // Ourselves under another path would ask itself for ever.
    if name == "Ringfence" {
        return Err("it is Ringfence itself".to_owned());
    }
    Ok((calls, name))
}

/// Makes a plugin's table safe to pass on: entries that NCCL does not offer are NCCL's; those that the plugin disabled are very
/// expensive, unless nothing would be left. True if anything that NCCL offers has another cost now.
fn settle(table: &mut [f32], before: &[f32]) -> bool {
    let left = |after: f32| (0.0..DISABLED).contains(&after);
    if !table.iter().zip(before).any(|(after, before)| *before >= 0.0 && left(*after)) {
        table.copy_from_slice(before);
        return false;
    }
    let mut changed = false;
    for (after, before) in table.iter_mut().zip(before) {
        // False for NaN too.
        let offered = *before >= 0.0;
        if !offered {
            *after = *before;
        } else if !left(*after) {
            *after = DISABLED;
        }
        changed |= offered && after.to_bits() != before.to_bits();
    }
    changed
}

/// The pair that NCCL would pick: the cheapest of what it offers, the first of equals.
fn cheapest(table: &[f32], before: &[f32], protos: usize) -> Option<(Algo, Proto)> {
    let offered = table.iter().zip(before).enumerate().filter(|(_, (_, before))| **before >= 0.0);
    let (place, _) = offered.min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b))?;
    Algo::new((place / protos) as u32).zip(Proto::new((place % protos) as u32))
}

/// NCCL's logger as it was given to us, for the plugin that is chained.
pub(crate) fn raw_logger(logger: Option<NcclLogger>) -> Option<Logger> {
    logger.map(NcclLogger::function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_passed_on_only_where_it_does_no_harm() {
        let before = [5.0, -1.0, 3.0, 4.0];
        let settled = |after: [f32; 4]| {
            let mut table = after;
            let changed = settle(&mut table, &before);
            (table, changed)
        };
        assert_eq!(settled(before), (before, false));
        assert_eq!(settled([0.0, -1.0, 3.0, 4.0]), ([0.0, -1.0, 3.0, 4.0], true));
        assert_eq!(settled([5.0, 0.0, 3.0, 4.0]), (before, false), "nothing is revived");
        assert_eq!(settled([-1.0, -1.0, f32::NAN, 4.0]), ([DISABLED, -1.0, DISABLED, 4.0], true));
        assert_eq!(settled([-1.0, 0.0, -1.0, f32::INFINITY]), (before, false), "something must be left");
    }

    #[test]
    fn the_cheapest_of_what_is_offered_is_the_route() {
        let before = [5.0, -1.0, 3.0, 3.0, 3.0, 3.0];
        assert_eq!(cheapest(&before, &before, 3), Some((Algo::Tree, Proto::Simple)));
        assert_eq!(cheapest(&[5.0, -1.0, 3.0, 3.0, 0.0, 0.0], &before, 3), Some((Algo::Ring, Proto::Ll128)));
        assert_eq!(cheapest(&[-1.0; 3], &[-1.0; 3], 3), None);
    }
}
