//! Bounds: all pairs of tight elements at 4 bits, a part of them at 5.

use super::*;

/// The operations that have a rule of their own for bounds, shifts apart.
fn of(op: AluOp, a: Range, b: Range, w: u32) -> Option<Range> {
    Some(match op {
        AluOp::Add => a.add(b, w),
        AluOp::Sub => a.sub(b, w),
        AluOp::Mul => a.mul(b, w),
        AluOp::Div => a.div(b, w),
        AluOp::SDiv => a.sdiv(b, w),
        AluOp::Mod => a.modulo(b, w),
        AluOp::SMod => a.smod(b, w),
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh | AluOp::And | AluOp::Or | AluOp::Xor | AluOp::Mov => {
            return None;
        }
    })
}

fn check_pair(a: &(Range, Set), b: &(Range, Set), w: u32) {
    for op in OPS {
        let Some(r) = of(op, a.0, b.0, w) else { continue };
        let lost = results(op, a.1, b.1, w) & !collect(w, |x| r.contains(x, w));
        assert_eq!(lost, 0, "{:?} {op:?} {:?} is not {r:?}", a.0, b.0);
    }
    let (join, meet) = (a.0.join(b.0), a.0.intersect(b.0));
    assert!(a.0.is_subset(join) && b.0.is_subset(join));
    assert_eq!((a.1 | b.1) & !collect(w, |x| join.contains(x, w)), 0, "{:?} {:?}", a.0, b.0);
    assert_eq!(collect(w, |x| meet.contains(x, w)), a.1 & b.1, "{:?} {:?}", a.0, b.0);
    assert!(!meet.is_empty() || a.1 & b.1 == 0);
    assert!(!a.0.is_subset(b.0) || a.1 & !b.1 == 0);
}

#[test]
fn operations_hold_every_result_at_4_bits() {
    let all = tight_ranges(4);
    assert_eq!(all.len(), 1368);
    for a in &all {
        all.iter().for_each(|b| check_pair(a, b, 4));
    }
}

#[test]
fn operations_hold_every_result_at_5_bits() {
    let all = tight_ranges(5);
    assert_eq!(all.len(), 18768);
    let every = step(3001);
    for (i, a) in all.iter().enumerate() {
        part(&all, i, every).for_each(|b| check_pair(a, b, 5));
    }
}

#[test]
fn shifts_hold_every_result() {
    let w = 5;
    for (a, xs) in tight_ranges(w) {
        for (lo, hi) in (0..w).flat_map(|lo| (lo..w).map(move |hi| (lo, hi))) {
            let amounts = collect(w, |k| u64::from(lo) <= k && k <= u64::from(hi));
            let shifted = [
                (AluOp::Lsh, a.lsh(lo, hi, w)),
                (AluOp::Rsh, a.rsh(lo, hi, w)),
                (AluOp::Arsh, a.arsh(lo, hi, w)),
            ];
            for (op, r) in shifted {
                let shift = |x: u64, k: u64| match op {
                    AluOp::Lsh => x << k,
                    AluOp::Rsh => x >> k,
                    _ => (sext(x, w) >> k) as u64,
                };
                for x in members(xs) {
                    let fits = members(amounts).all(|k| r.contains(shift(x, k) & ones(w), w));
                    assert!(fits, "{a:?} {op:?} [{lo}, {hi}] is not {r:?}: {x}");
                }
            }
        }
    }
}

/// Bounds learn from each other and from known bits only what is so.
#[test]
fn tightening_loses_nothing_and_adds_nothing() {
    let (all, known) = (raw_ranges(4), tnums(4));
    for (i, raw) in all.iter().enumerate() {
        let set = collect(4, |x| raw.contains(x, 4));
        let mut tight = *raw;
        tight.sync(4);
        assert_eq!(collect(4, |x| tight.contains(x, 4)), set, "{raw:?} became {tight:?}");
        assert!(tight.is_subset(*raw) && (!tight.is_empty() || set == 0));
        for t in part(&known, i, step(7)) {
            let mut learnt = *raw;
            learnt.learn_tnum(*t, 4);
            let both = |r: Range| collect(4, |x| r.contains(x, 4) && t.contains(x));
            assert_eq!(both(learnt), both(*raw), "{raw:?} with {t:?} became {learnt:?}");
        }
    }
}
