//! [`all`] scenarios, by what they are about.

use crate::scenario::Scenario;

mod ranks;

/// Every scenario, in the order of the table.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [ranks::SCENARIOS].concat()
}
