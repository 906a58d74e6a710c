//! [`Group`]: one communicator with a context for each of its ranks, called as NCCL calls it.

use super::rules::{self, Breach, Outcome};
use crate::cli::cost::{COLS, CostModel, Costs, ROWS, pick};
use crate::cli::trace::Step;
use crate::ffi::driver::{Comm, Plugin, Table};
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

/// One communicator.
pub(super) struct Group {
    comms: Vec<Comm>,
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
    pub(super) fn create(plugin: &Plugin, shape: Shape, comm_id: u64) -> (Group, u64) {
        let mut comms = Vec::with_capacity(shape.ranks as usize);
        let mut failed = 0;
        let ranks: Vec<u32> = (0..shape.ranks).collect();
        for some in ranks.chunks(INIT_THREADS) {
            thread::scope(|scope| {
                let init = || plugin.init(shape.ranks as usize, shape.nodes as usize, comm_id);
                let threads: Vec<_> = some.iter().map(|_| scope.spawn(init)).collect();
                for thread in threads {
                    match thread.join() {
                        Ok((comm, code)) => {
                            failed += u64::from(code != 0);
                            comms.push(comm);
                        }
                        Err(_) => failed += 1,
                    }
                }
            });
        }
        (Group { comms, table: Table::new(ROWS, COLS, vec![0.0; ROWS * COLS]) }, failed)
    }

    /// Asks every rank, the last one first, and gives the nanoseconds of each call to `timed`.
    pub(super) fn decide(&mut self, line: &Line, mut timed: impl FnMut(u64)) -> Decided {
        let mut decided: Option<Decided> = None;
        for comm in self.comms.iter_mut().rev() {
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
        self.comms.first_mut().map_or(0, |comm| call(comm, line, &mut self.table).1)
    }

    /// What [`Group::call_first`] does besides calling.
    pub(super) fn refill(&mut self, line: &Line) -> f32 {
        self.table.costs_mut().copy_from_slice(&line.costs);
        self.table.costs().first().copied().unwrap_or(0.0)
    }

    /// Finalizes all ranks; the number of those that returned an error.
    pub(super) fn finalize(self) -> u64 {
        self.comms.into_iter().map(|comm| u64::from(comm.finalize() != 0)).sum()
    }
}

fn call(comm: &mut Comm, line: &Line, table: &mut Table) -> (i32, i32) {
    let bytes = usize::try_from(line.step.bytes).unwrap_or(usize::MAX);
    comm.get_coll_info(line.step.func as i32, bytes, 1, table, false)
}
