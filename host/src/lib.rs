//! The Ringfence host.
