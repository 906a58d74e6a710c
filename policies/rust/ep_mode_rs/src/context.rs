// Hook ep/mode: made by `ringfence schema header --rust` from its schema; do not edit.

/// Name of the hook, and of the section of its policies.
pub const HOOK: &str = "ep/mode";
/// A number of `mode`.
pub const MODE_LOW_LATENCY: u32 = 0;
/// A number of `mode`.
pub const MODE_HIGH_THROUGHPUT: u32 = 1;

/// Low-latency or high-throughput kernels for dispatch and combine of one step.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct EpModeContext {
    /// Most tokens that any rank dispatches in this step: the group's
    /// max_dispatch_tokens_per_rank, or less if agreed. \[tokens\]
    pub max_tokens: u32,
    /// Ranks of the group. \[ranks\]
    pub n_ranks: u32,
    /// Nodes of the group. \[nodes\]
    pub n_nodes: u32,
    /// Experts for each token. \[experts\]
    pub top_k: u32,
    /// Bytes of a token: the hidden size by the size of an element. \[bytes\]
    pub token_bytes: u32,
    /// The mode, numbered as ncclEpAlgorithm_t. Decided.
    pub mode: u32,
    #[doc(hidden)]
    pub _pad0: [u8; 8],
}

const _: () = {
    assert!(size_of::<EpModeContext>() == 32);
    assert!(core::mem::offset_of!(EpModeContext, max_tokens) == 0);
    assert!(core::mem::offset_of!(EpModeContext, n_ranks) == 4);
    assert!(core::mem::offset_of!(EpModeContext, n_nodes) == 8);
    assert!(core::mem::offset_of!(EpModeContext, top_k) == 12);
    assert!(core::mem::offset_of!(EpModeContext, token_bytes) == 16);
    assert!(core::mem::offset_of!(EpModeContext, mode) == 20);
};
