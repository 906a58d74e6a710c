//! [`all`] scenarios, by what they are about.

use crate::scenario::Scenario;

mod collectives;
mod common;
mod groups;
mod lifecycle;
mod ranks;
mod witness;

/// Every scenario, in the order of the table.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [ranks::SCENARIOS, collectives::SCENARIOS, groups::SCENARIOS, lifecycle::SCENARIOS].concat()
}
