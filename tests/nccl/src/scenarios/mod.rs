//! [`all`] scenarios, by what they are about.

use crate::scenario::Scenario;

mod collectives;
mod common;
mod decisions;
mod endurance;
mod env;
mod groups;
mod lifecycle;
mod natives;
mod net;
mod outcome;
mod policies;
mod profiler;
mod ranks;
mod traps;
mod witness;

/// Every scenario, in the order of the table.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [
        ranks::SCENARIOS,
        collectives::SCENARIOS,
        groups::SCENARIOS,
        lifecycle::SCENARIOS,
        decisions::SCENARIOS,
        traps::SCENARIOS,
        profiler::SCENARIOS,
        env::SCENARIOS,
        net::SCENARIOS,
        policies::SCENARIOS,
        endurance::SCENARIOS,
    ]
    .concat()
}
