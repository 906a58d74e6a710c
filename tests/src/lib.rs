//! Shared helpers of the integration tests.
pub mod built;
pub mod kernel;
pub mod random;
pub mod run;
