//! [`Outcome`]: what one call of `getCollInfo` did, and [`Breach`], how it broke NCCL's rules.

use crate::cli::cost;

/// Most channels that any NCCL has (`MAXCHANNELS` since 2.26).
const MAX_CHANNELS: i32 = 64;

/// What one call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The pair that NCCL takes now.
    pub(super) pick: Option<(u32, u32)>,
    /// Channels, 0 if NCCL decides.
    pub(super) channels: i32,
    /// Did the plugin change the table or the channels?
    pub(super) touched: bool,
}

/// A broken rule. Each of these fails a collective, crashes NCCL or picks what the policy did not mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Breach {
    /// The call returned an error; NCCL fails the collective.
    Error,
    /// An entry that NCCL does not offer was given a cost.
    Revived,
    /// An offered entry became negative or no number: it wins in NCCL 2.32 and later, and is gone before.
    Negative,
    /// Several entries were set to zero: the choice names no single pair.
    Ambiguous,
    /// No entry is left to take.
    NothingLeft,
    /// Channels outside 0..=64.
    Channels,
    /// Ranks of one communicator decided differently.
    Disagree,
}

impl Breach {
    /// Name, in kebab case.
    pub(super) fn name(self) -> &'static str {
        match self {
            Breach::Error => "error-returned",
            Breach::Revived => "entry-revived",
            Breach::Negative => "negative-cost",
            Breach::Ambiguous => "ambiguous-choice",
            Breach::NothingLeft => "nothing-left",
            Breach::Channels => "channels-out-of-bounds",
            Breach::Disagree => "ranks-disagree",
        }
    }
}

/// Compares the table that went in with what came out.
pub(super) fn judge(before: &[f32], after: &[f32], code: i32, channels: i32) -> (Outcome, Option<Breach>) {
    let changed = before.iter().zip(after).any(|(b, a)| b.to_bits() != a.to_bits());
    let outcome = Outcome { pick: cost::pick(after), channels, touched: changed || channels != 0 };
    (outcome, breach(before, after, code, channels, outcome.pick.is_some()))
}

fn breach(before: &[f32], after: &[f32], code: i32, channels: i32, left: bool) -> Option<Breach> {
    let pairs = || before.iter().zip(after);
    if code != 0 {
        return Some(Breach::Error);
    }
    if pairs().any(|(b, a)| *b == cost::IGNORE && *a != cost::IGNORE) {
        return Some(Breach::Revived);
    }
    if pairs().any(|(b, a)| *b != cost::IGNORE && (a.is_nan() || *a < 0.0)) {
        return Some(if left { Breach::Negative } else { Breach::NothingLeft });
    }
    if pairs().filter(|(b, a)| **b != 0.0 && **a == 0.0).count() > 1 {
        return Some(Breach::Ambiguous);
    }
    (!(0..=MAX_CHANNELS).contains(&channels)).then_some(Breach::Channels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::cost::{CostModel, Costs, IGNORE};

    fn check(edit: impl Fn(&mut Costs), code: i32, channels: i32) -> (Outcome, Option<Breach>) {
        let before =
            CostModel { n_ranks: 8, n_nodes: 1 }.costs(ringfence_guest::abi::func::ALL_REDUCE, 1 << 20);
        let mut after = before;
        edit(&mut after);
        judge(&before, &after, code, channels)
    }

    #[test]
    fn a_clean_decision_is_no_breach() {
        let (outcome, breach) = check(|t| t[5] = 0.0, 0, 8);
        assert_eq!(outcome, Outcome { pick: Some((1, 2)), channels: 8, touched: true });
        assert_eq!(breach, None);
        assert!(!check(|_| (), 0, 0).0.touched);
    }

    #[test]
    fn each_breach_is_told_apart() {
        assert_eq!(check(|_| (), 3, 0).1, Some(Breach::Error));
        assert_eq!(check(|t| t[14] = 0.0, 0, 0).1, Some(Breach::Revived));
        assert_eq!(check(|t| t[5] = IGNORE, 0, 0).1, Some(Breach::Negative));
        assert_eq!(check(|t| t[5] = f32::NAN, 0, 0).1, Some(Breach::Negative));
        assert_eq!(check(|t| *t = [IGNORE; 21], 0, 0).1, Some(Breach::NothingLeft));
        assert_eq!(check(|t| t[3..6].fill(0.0), 0, 0).1, Some(Breach::Ambiguous));
        assert_eq!(check(|_| (), 0, 65).1, Some(Breach::Channels));
        assert_eq!(check(|_| (), 0, -1).1, Some(Breach::Channels));
    }
}
