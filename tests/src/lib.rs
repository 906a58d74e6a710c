//! Shared helpers of the integration tests.
pub mod random;
pub mod run;
