//! ep_mode: the mode of NCCL EP by tokens, nodes and the weight of a token. Decides as `hooks/ep_mode.bpf.c`.
#![no_std]

/// The context, made by `ringfence schema header --rust policies/hooks/ep_mode.toml`.
#[allow(dead_code)] // A header has more than one policy uses.
mod context;

use context::{EpModeContext, MODE_HIGH_THROUGHPUT, MODE_LOW_LATENCY};
use ringfence_guest::{Array, Verdict, hook, license, load, maps, store};

/// A token of 8 experts of 14336 bytes, for which the turning points are.
const REFERENCE: u64 = 8 * 14336;

maps! {
    /// Turning points in tokens for 1, 2, 4, 8 and 16 or more nodes; 0: the default.
    static TURN: Array<u32, 5> = "ep_turn";
}

fn turn_of(nodes: u32) -> u64 {
    let (class, default) = match nodes {
        0..2 => (0, 384),
        2..4 => (1, 112),
        4..8 => (2, 128),
        8..16 => (3, 208),
        _ => (4, 208),
    };
    let set = TURN.get(class).unwrap_or(0);
    u64::from(if set == 0 { default } else { set })
}

hook! {
    "ep/mode";
    fn ep_mode(ctx: EpModeContext) {
        let weight = u64::from(load(&ctx.top_k)) * u64::from(load(&ctx.token_bytes));
        let turn = turn_of(load(&ctx.n_nodes));
        if weight == 0 {
            return Verdict::Keep;
        }
        let heavy = u64::from(load(&ctx.max_tokens)).wrapping_mul(weight) > turn * REFERENCE;
        store(&mut ctx.mode, if heavy { MODE_HIGH_THROUGHPUT } else { MODE_LOW_LATENCY });
        Verdict::Submit
    }
}

license!("Dual MIT/GPL");
