//! [`Group`]: one communicator with a context for each of its ranks, called as NCCL calls it.

use super::rules::{self, Breach, Outcome};
use crate::cli::cost::{COLS, CostModel, Costs, ROWS, pick};
use crate::cli::trace::Step;
use crate::ffi::driver::{CollEvent, Comm, Plugin, Profiler, ProfilerComm, Table};
use std::thread;
use std::time::Instant;

/// Threads that initialise ranks at the same time.
const INIT_THREADS: usize = 64;

/// A collective of the trace with what NCCL computes for it.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) step: Step,
    pub(super) costs: Costs,
    /// What NCCL takes without a plugin.
    pub(super) own: Option<(u32, u32)>,
}

impl Line {
    pub(super) fn new(step: Step, model: CostModel) -> Line {
        let costs = model.costs(step.func, step.bytes);
        Line { step, costs, own: pick(&costs) }
    }
}

/// What one collective came to on all ranks.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    /// The decision of the last rank that was asked, rank 0.
    pub(super) outcome: Outcome,
    /// The first broken rule.
    pub(super) breach: Option<Breach>,
}

/// A rank: NCCL's tuner context and, if events are wanted, its profiler context.
struct Rank {
    tuner: Comm,
    profiler: Option<ProfilerComm>,
}

/// One communicator.
pub(super) struct Group {
    ranks: Vec<Rank>,
    table: Table,
}

/// Shape of a communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) ranks: u32,
    pub(super) nodes: u32,
}

impl Shape {
    /// For cost tables: NCCL does not ask about a lone rank, so the table is that of two.
    pub(super) fn model(self) -> CostModel {
        CostModel { n_ranks: self.ranks.max(2), n_nodes: self.nodes }
    }
}

impl Group {
    /// Initialises all ranks, each in a thread of its own as a job's ranks do. The second value counts the ranks
    /// whose init returned an error, on which NCCL would fail the communicator.
    pub(super) fn create(
        plugin: &Plugin,
        profiler: Option<&Profiler>,
        shape: Shape,
        comm_id: u64,
    ) -> (Group, u64) {
        let mut ranks = Vec::with_capacity(shape.ranks as usize);
        let mut failed = 0;
        let numbers: Vec<u32> = (0..shape.ranks).collect();
        for some in numbers.chunks(INIT_THREADS) {
            thread::scope(|scope| {
                let init = |rank| move || Rank::init(plugin, profiler, shape, comm_id, rank);
                let threads: Vec<_> = some.iter().map(|rank| scope.spawn(init(*rank))).collect();
                for thread in threads {
                    match thread.join() {
                        Ok((rank, code)) => {
                            failed += u64::from(code != 0);
                            ranks.push(rank);
                        }
                        Err(_) => failed += 1,
                    }
                }
            });
        }
        (Group { ranks, table: Table::new(ROWS, COLS, vec![0.0; ROWS * COLS]) }, failed)
    }

    /// As [`Group::create`], all in this thread.
    pub(super) fn create_here(
        plugin: &Plugin,
        profiler: Option<&Profiler>,
        shape: Shape,
        comm_id: u64,
    ) -> (Group, u64) {
        let made: Vec<_> =
            (0..shape.ranks).map(|rank| Rank::init(plugin, profiler, shape, comm_id, rank)).collect();
        let failed = made.iter().filter(|(_, code)| *code != 0).count() as u64;
        let ranks = made.into_iter().map(|(rank, _)| rank).collect();
        (Group { ranks, table: Table::new(ROWS, COLS, vec![0.0; ROWS * COLS]) }, failed)
    }

    /// Tells every rank's profiler of a collective that has run.
    pub(super) fn ran(&self, event: &CollEvent) {
        for profiler in self.ranks.iter().filter_map(|rank| rank.profiler.as_ref()) {
            profiler.collective(event);
        }
    }

    /// Asks every rank, the last one first, and gives the nanoseconds of each call to `timed`.
    pub(super) fn decide(&mut self, line: &Line, mut timed: impl FnMut(u64)) -> Decided {
        let mut decided: Option<Decided> = None;
        for Rank { tuner: comm, .. } in self.ranks.iter_mut().rev() {
            self.table.costs_mut().copy_from_slice(&line.costs);
            let start = Instant::now();
            let (code, channels) = call(comm, line, &mut self.table);
            timed(start.elapsed().as_nanos() as u64);
            let (outcome, breach) = rules::judge(&line.costs, self.table.costs(), code, channels);
            let agreed = decided.as_ref().is_none_or(|d| d.outcome == outcome);
            let earlier = decided.and_then(|d| d.breach);
            let breach = earlier.or(breach).or((!agreed).then_some(Breach::Disagree));
            decided = Some(Decided { outcome, breach });
        }
        decided.unwrap_or(Decided {
            outcome: Outcome { pick: line.own, channels: 0, touched: false },
            breach: Some(Breach::Error),
        })
    }

    /// Calls rank 0 alone, for batches.
    pub(super) fn call_first(&mut self, line: &Line) -> i32 {
        self.table.costs_mut().copy_from_slice(&line.costs);
        self.ranks.first_mut().map_or(0, |rank| call(&mut rank.tuner, line, &mut self.table).1)
    }

    /// What [`Group::call_first`] does besides calling.
    pub(super) fn refill(&mut self, line: &Line) -> f32 {
        self.table.costs_mut().copy_from_slice(&line.costs);
        self.table.costs().first().copied().unwrap_or(0.0)
    }

    /// Finalizes all ranks; the number of those that returned an error.
    pub(super) fn finalize(self) -> u64 {
        self.ranks.into_iter().map(Rank::finalize).sum()
    }
}

impl Rank {
    /// As NCCL does: the profiler first, then the tuner, in one thread. The second value is not 0 if either failed.
    fn init(
        plugin: &Plugin,
        profiler: Option<&Profiler>,
        shape: Shape,
        comm_id: u64,
        rank: u32,
    ) -> (Rank, i32) {
        let (ranks, nodes) = (shape.ranks as i32, shape.nodes as i32);
        let profiler = profiler.map(|p| p.init(comm_id, rank as i32, ranks, nodes, "replay"));
        let told = profiler.as_ref().map_or(0, ProfilerComm::init_result);
        let (tuner, code) = plugin.init(shape.ranks as usize, shape.nodes as usize, comm_id);
        (Rank { tuner, profiler }, if code != 0 { code } else { told })
    }

    /// The number of errors.
    fn finalize(self) -> u64 {
        let profiler = self.profiler.map_or(0, ProfilerComm::finalize);
        u64::from(self.tuner.finalize() != 0) + u64::from(profiler != 0)
    }
}

fn call(comm: &mut Comm, line: &Line, table: &mut Table) -> (i32, i32) {
    let bytes = usize::try_from(line.step.bytes).unwrap_or(usize::MAX);
    comm.get_coll_info(line.step.func as i32, bytes, 1, table, false)
}
