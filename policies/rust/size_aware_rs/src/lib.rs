//! size_aware: algorithm, protocol and channels by size alone, in three bands. Decides as `c/size_aware.bpf.c`.
#![no_std]

use ringfence_guest::{Algo, Proto, Verdict, license, tuner};

tuner! {
    fn size_aware(ctx) {
        let (algo, proto, channels) = match ctx.n_bytes() {
            0..4096 => (Algo::Tree, Proto::Simple, 2),
            4096..0x10_0000 => (Algo::Ring, Proto::Ll, 4),
            _ => (Algo::Ring, Proto::Simple, 8),
        };
        ctx.choose(algo, proto);
        ctx.set_channels(channels);
        Verdict::Submit
    }
}

license!("Dual MIT/GPL");
