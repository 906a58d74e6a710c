//! [`ask`]: the chunk size of a collective, as policies of the `tuner/chunk` hook decide it (NCCL 2.30 and later).
//!
//! NCCL casts what it gets to an int, clamps it to its buffer and rounds it *down* to the protocol's grain; a value below
//! the grain becomes 0, and NCCL then divides by zero (`calcCollChunking`, enqueue.cc 2308). All ranks must agree, as the number of
//! steps follows from it.

use crate::endpoint::Endpoint;
use crate::hooks::Hook;
use ringfence_guest::abi::{ChunkContext, proto};
use std::mem::{offset_of, size_of};

/// What NCCL asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRequest {
    pub(crate) func: u32,
    pub(crate) n_bytes: u64,
    pub(crate) algo: u32,
    pub(crate) proto: u32,
    pub(crate) channels: u32,
    /// What NCCL's own rules came to, in bytes.
    pub(crate) nccl: u64,
    /// The decision so far.
    pub(crate) so_far: u64,
}

/// Bytes that a chunk of the protocol is made of (src/include/device.h:328 of NCCL 2.30.7).
pub(crate) const fn grain(protocol: u32) -> Option<u32> {
    match protocol {
        proto::LL => Some(16),
        proto::LL128 => Some(1920),
        proto::SIMPLE => Some(512),
        _ => None,
    }
}

/// The chunk size that the policies want; `None` leaves NCCL's. `most` is the operator's opt-in to more than NCCL's own.
pub(crate) fn ask(endpoint: &mut Endpoint, request: &ChunkRequest, most: Option<u64>) -> Option<u64> {
    let grain = grain(request.proto)?;
    let mut ctx = context(endpoint, request, grain);
    endpoint.run(Hook::TunerChunk, &mut ctx);
    let at = offset_of!(ChunkContext, chunk_size);
    let wanted = ctx[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    guarded(wanted, request.nccl, grain, most)
}

fn context(endpoint: &Endpoint, r: &ChunkRequest, grain: u32) -> [u8; size_of::<ChunkContext>()] {
    let mut ctx = [0; size_of::<ChunkContext>()];
    let info = endpoint.info();
    let longs = [info.comm_id, r.n_bytes, r.nccl, r.so_far];
    let words = [grain, r.func, r.algo, r.proto, r.channels, info.n_ranks, info.n_nodes];
    ctx.chunks_exact_mut(8).zip(longs).for_each(|(b, n)| b.copy_from_slice(&n.to_le_bytes()));
    ctx[32..].chunks_exact_mut(4).zip(words).for_each(|(b, n)| b.copy_from_slice(&n.to_le_bytes()));
    ctx
}

/// A multiple of the grain, at least one grain, at most what NCCL came to or the operator allows. `None` if that is
/// what NCCL has anyway, or NCCL's own value leaves no room.
fn guarded(wanted: u64, nccl: u64, grain: u32, most: Option<u64>) -> Option<u64> {
    let grain = u64::from(grain);
    // NCCL keeps chunk sizes in an int.
    let most = nccl.max(most.unwrap_or(0)).min(i32::MAX as u64);
    let least_and_most = grain <= most;
    let whole = wanted.clamp(grain, most.max(grain)) / grain * grain;
    (least_and_most && wanted != nccl).then_some(whole)
}

const _: () = {
    assert!(offset_of!(ChunkContext, n_bytes) == 8 && offset_of!(ChunkContext, nccl_chunk_size) == 16);
    assert!(offset_of!(ChunkContext, chunk_size) == 24 && offset_of!(ChunkContext, grain) == 32);
    assert!(offset_of!(ChunkContext, func) == 36 && offset_of!(ChunkContext, algo) == 40);
    assert!(offset_of!(ChunkContext, proto) == 44 && offset_of!(ChunkContext, channels) == 48);
    assert!(offset_of!(ChunkContext, n_ranks) == 52 && offset_of!(ChunkContext, n_nodes) == 56);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_whole_grains_between_one_and_nccl_s() {
        let cases = [
            (131_072, 131_072, None, None),
            (65_536, 131_072, None, Some(65_536)),
            (65_537, 131_072, None, Some(65_536)),
            (0, 131_072, None, Some(512)),
            (1, 131_072, None, Some(512)),
            (u64::MAX, 131_072, None, Some(131_072)),
            (262_144, 131_072, Some(1 << 20), Some(262_144)),
            (u64::MAX, 131_072, Some(u64::MAX), Some(i32::MAX as u64 / 512 * 512)),
            (4096, 100, None, None),
        ];
        for (wanted, nccl, most, want) in cases {
            assert_eq!(guarded(wanted, nccl, 512, most), want, "{wanted} {nccl} {most:?}");
        }
        assert_eq!(guarded(10_000, 131_072, 1920, None), Some(9600));
        assert_eq!([0, 1, 2, 3].map(grain), [Some(16), Some(1920), Some(512), None]);
    }
}
