//! Guest SDK for Ringfence policies.
#![no_std]

pub mod abi;
