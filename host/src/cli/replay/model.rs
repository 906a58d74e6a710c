//! [`Scenario`]: a machine on which collectives take simulated time, and the phases that a replay goes through.
//!
//! The model is small on purpose. A collective takes
//!
//! ```text
//! latency + channels * channel_us + moved / bandwidth
//! bandwidth = min(offered, free) * share / (1 + queueing * max(0, offered / free - 1))
//! offered = channels * channel_gbs        free = link_gbs * (1 - background)
//! ```
//!
//! - *latency* (start-up and hops by algorithm, protocol, ranks and nodes), *share* (what of the wire an algorithm and a protocol
//!   use for data) and *moved* (bytes that each link carries) are those of the cost table, [`CostModel`].
//! - One channel drives no more than `channel_gbs`, so on a free link more channels are quicker, up to the link's bandwidth.
//! - Others use the part `background` of the link. Who offers more than what is left queues, and queues cost more than
//!   the surplus: by `queueing` of the capacity for each capacity that is offered in excess. So on a busy link fewer channels are quicker.
//! - Noise is normal, relative to the whole.

use crate::cli::cost::{CostModel, Parts};
use crate::cli::input;
use crate::cli::trace::Step;
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::Path;

/// Largest scenario file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Most collectives of a scenario.
const MAX_COLLECTIVES: u32 = 1 << 20;
/// Most channels that NCCL has.
const MAX_CHANNELS: u32 = 64;

/// What is used if no file is given.
const BUILT_IN: &str = include_str!("scenario.toml");

/// A machine and what happens on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Seed of the noise: equal seeds give equal runs.
    pub(super) seed: u64,
    pub(super) machine: Machine,
    #[serde(rename = "phase")]
    pub(super) phases: Vec<Phase>,
}

/// See the module's text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    /// Bandwidth of the link, in GB/s (10^9).
    pub(super) link_gbs: f64,
    /// Bandwidth that one channel can drive, in GB/s.
    pub(super) channel_gbs: f64,
    /// What each channel adds to every collective, in microseconds.
    channel_us: f64,
    /// See the module's text.
    queueing: f64,
    /// Standard deviation of the noise, relative.
    noise: f64,
    /// Channels that NCCL takes where the policy leaves them to it.
    pub(super) default_channels: u32,
}

/// A stretch of time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Phase {
    pub(super) name: String,
    /// How many times each collective of the trace runs.
    pub(super) collectives: u32,
    /// Part of the link that others use, 0 to less than 1.
    pub(super) background: f64,
    /// Where a policy that adapts ends up.
    pub(super) expect: Option<Expect>,
}

/// Channels at the end of a phase, relative to the phases of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Expect {
    /// At least twice as many.
    Many,
    /// At most half as many.
    Few,
}

impl Scenario {
    /// The scenario of a file, or the one that is built in.
    pub(super) fn load(path: Option<&Path>) -> anyhow::Result<Scenario> {
        let Some(path) = path else { return Scenario::parse(BUILT_IN) };
        let bytes = input::read_capped(path, MAX_BYTES)?;
        let text = String::from_utf8(bytes).with_context(|| format!("{} is no text", path.display()))?;
        Scenario::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Scenario> {
        let scenario: Scenario = toml::from_str(text)?;
        scenario.machine.check()?;
        ensure!(!scenario.phases.is_empty(), "no [[phase]]");
        let mut all = 0_u32;
        for phase in &scenario.phases {
            let name = &phase.name;
            ensure!(
                (0.0..1.0).contains(&phase.background),
                "phase {name}: background must be at least 0 and below 1"
            );
            ensure!(phase.collectives > 0, "phase {name}: no collectives");
            all = all.saturating_add(phase.collectives);
        }
        ensure!(all <= MAX_COLLECTIVES, "more than {MAX_COLLECTIVES} collectives");
        Ok(scenario)
    }
}

impl Machine {
    fn check(&self) -> anyhow::Result<()> {
        let positive = |name: &str, x: f64| {
            ensure!(x.is_finite() && x > 0.0 && x < 1e9, "machine: {name} must be above 0");
            Ok(())
        };
        positive("link_gbs", self.link_gbs)?;
        positive("channel_gbs", self.channel_gbs)?;
        for (name, x) in [("channel_us", self.channel_us), ("queueing", self.queueing)] {
            ensure!(x.is_finite() && (0.0..1e6).contains(&x), "machine: {name} must not be negative");
        }
        ensure!((0.0..0.5).contains(&self.noise), "machine: noise must be at least 0 and below 0.5");
        ensure!(
            (1..=MAX_CHANNELS).contains(&self.default_channels),
            "machine: default_channels must be 1 to 64"
        );
        Ok(())
    }

    /// Nanoseconds of one collective, without noise. `pick` is the pair that NCCL takes; channels 0 are NCCL's own choice.
    pub(super) fn duration_ns(
        &self,
        model: CostModel,
        step: Step,
        pick: (u32, u32),
        channels: u32,
        background: f64,
    ) -> f64 {
        // NCCL never picks what it does not offer; should a plugin make it, the time is that of a slow ring.
        let parts =
            model.parts(step.func, pick.0, pick.1).unwrap_or(Parts { latency_us: 1000.0, share: 0.1 });
        let channels = f64::from(if channels == 0 { self.default_channels } else { channels });
        let free = self.link_gbs * (1.0 - background);
        let offered = channels * self.channel_gbs;
        let queues = 1.0 + self.queueing * (offered / free - 1.0).max(0.0);
        let gbs = offered.min(free) * f64::from(parts.share) / queues;
        let us = f64::from(parts.latency_us) + channels * self.channel_us;
        // 1 GB/s is a byte per nanosecond.
        us * 1000.0 + f64::from(model.moved(step.func, step.bytes)) / gbs
    }
}

/// The noise of one run.
#[derive(Clone, Debug)]
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A factor around 1: twelve uniform numbers make a good normal one.
    pub(super) fn factor(&mut self, machine: &Machine) -> f64 {
        let normal: f64 = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        (1.0 + machine.noise * normal).max(0.05)
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_guest::abi::func;

    const RING_SIMPLE: (u32, u32) = (1, 2);
    const STEP: Step = Step { func: func::ALL_REDUCE, bytes: 64 << 20 };

    fn times(background: f64) -> Vec<f64> {
        let scenario = Scenario::load(None).unwrap();
        let model = CostModel { n_ranks: 8, n_nodes: 1 };
        let time = |n| scenario.machine.duration_ns(model, STEP, RING_SIMPLE, n, background);
        (1..=16).map(time).collect()
    }

    fn best(times: &[f64]) -> usize {
        (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap() + 1
    }

    #[test]
    fn a_free_link_wants_many_channels_and_a_busy_one_few() {
        let scenario = Scenario::load(None).unwrap();
        let busy = scenario.phases.iter().map(|p| p.background).fold(0.0, f64::max);
        assert!(best(&times(0.0)) >= 10, "{:?}", times(0.0));
        assert!(best(&times(busy)) <= 4, "{:?}", times(busy));
        assert!(times(0.0).iter().zip(times(busy)).all(|(free, busy)| *free <= busy));
    }

    #[test]
    fn the_formula_is_the_documented_one() {
        let machine = Machine {
            link_gbs: 100.0,
            channel_gbs: 10.0,
            channel_us: 2.0,
            queueing: 0.5,
            noise: 0.0,
            default_channels: 8,
        };
        let model = CostModel { n_ranks: 8, n_nodes: 1 };
        let base = f64::from(model.parts(4, 1, 2).unwrap().latency_us) * 1000.0;
        let moved = f64::from(model.moved(4, 64 << 20));
        let time =
            |channels, background| machine.duration_ns(model, STEP, RING_SIMPLE, channels, background) - base;
        assert_eq!(time(4, 0.0), 8000.0 + moved / 40.0);
        assert_eq!(time(20, 0.0), 40000.0 + moved / (100.0 / 1.5), "twice the link: half a capacity lost");
        assert_eq!(time(5, 0.5), 10000.0 + moved / 50.0);
        assert_eq!(time(0, 0.0), time(8, 0.0));
    }

    #[test]
    fn noise_is_seeded_and_centred() {
        let machine = Scenario::load(None).unwrap().machine;
        let run = |seed| {
            let mut noise = Noise::new(seed);
            (0..1000).map(|_| noise.factor(&machine)).collect::<Vec<f64>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let mean = run(7).iter().sum::<f64>() / 1000.0;
        assert!((mean - 1.0).abs() < machine.noise / 5.0, "{mean}");
    }

    #[test]
    fn wrong_scenarios_say_what_is_wrong() {
        for (from, to, part) in [
            ("seed", "sead", "sead"),
            ("background = 0.0", "background = 1.0", "background"),
            ("noise = 0.02", "noise = -1.0", "noise"),
            ("link_gbs = 340.0", "link_gbs = 0.0", "link_gbs"),
            ("collectives = ", "collectives = 0 #", "no collectives"),
        ] {
            assert!(BUILT_IN.contains(from), "{from}");
            let error = format!("{:#}", Scenario::parse(&BUILT_IN.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(part), "{from}: {error}");
        }
    }
}
