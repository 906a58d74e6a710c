//! Shared helpers of the integration tests.
pub mod built;
pub mod exposition;
pub mod kernel;
pub mod random;
pub mod run;
