//! Numbers as the verifier uses them, at 4 bits with halves of 2: every tight element.

use super::*;

#[test]
fn the_elements_are_all_there() {
    let all = elements();
    assert_eq!(all.len(), 9652);
    let sets: HashSet<Set> = all.iter().map(|(_, set)| *set).collect();
    assert_eq!(sets.len(), 3176);
    // Tightening is done when it says so.
    for (s, _) in all {
        let (t, full, half) = s.parts();
        assert_eq!(ScalarN::from_parts(t, full, half), Some(*s));
    }
}

#[test]
fn tightening_keeps_the_meaning() {
    let (full, half) = (raw_ranges(4), raw_ranges(2));
    let every = step(199);
    for (i, t) in tnums(4).into_iter().enumerate() {
        for (j, f) in part(&full, i, every).enumerate() {
            for h in part(&half, i * full.len() + j, 3.min(every)) {
                let is = |x: u64| t.contains(x) && f.contains(x, 4) && h.contains(x & 3, 2);
                let made = ScalarN::<4>::from_parts(t, *f, *h);
                assert_eq!(made.map_or(0, meaning), collect(4, is), "{t:?} {f:?} {h:?} {made:?}");
            }
        }
    }
}

#[test]
fn arithmetic_holds_every_result() {
    let (all, every) = (elements(), step(601));
    for (i, (a, xs)) in all.iter().enumerate() {
        for (b, ys) in part(all, i, every) {
            for (op, width) in OPS.into_iter().flat_map(|op| WIDTHS.map(|w| (op, w))) {
                let r = a.alu(op, *b, width);
                let lost = results(op, *xs, *ys, bits_of(width, 4)) & !meaning(r);
                assert_eq!(lost, 0, "{op:?} {width:?}\n{a:?}\n{b:?}\n{r:?}");
            }
        }
    }
}

#[test]
fn conditions_keep_every_pair_that_satisfies_them() {
    let (all, every) = (elements(), step(1201));
    let (mut dead, mut refined) = (0u64, 0u64);
    for (i, (a, xs)) in all.iter().enumerate() {
        for (b, ys) in part(all, i, every) {
            for cond in conditions() {
                let out = assume(*a, *b, cond);
                let (p, q) = out.map_or((0, 0), |(p, q)| (meaning(p), meaning(q)));
                let (x, y) = kept(cond, *xs, *ys, 4);
                assert_eq!((x & !p, y & !q), (0, 0), "{cond:?}\n{a:?}\n{b:?}\n{out:?}");
                // What is learnt is never less than what was known.
                assert_eq!((p & !xs, q & !ys), (0, 0), "{cond:?}\n{a:?}\n{b:?}\n{out:?}");
                dead += u64::from(out.is_none());
                refined += u64::from((p, q) != (*xs, *ys));
            }
        }
    }
    assert!(dead > 150_000 && refined > dead, "{dead} {refined}");
}

#[test]
fn order_agrees_with_the_meaning_on_all_pairs() {
    let all = elements();
    for (a, xs) in all {
        assert!(a.is_subset(*a) && a.is_subset(ScalarN::unknown()));
        for (b, ys) in all {
            assert!(!a.is_subset(*b) || xs & !ys == 0, "{a:?} is in {b:?}?");
        }
    }
}

#[test]
fn joins_hold_both_sides() {
    let (all, every) = (elements(), step(31));
    for (i, (a, xs)) in all.iter().enumerate() {
        for (b, ys) in part(all, i, every) {
            let j = a.join(*b);
            assert!(a.is_subset(j) && b.is_subset(j), "{a:?}\n{b:?}\n{j:?}");
            assert_eq!((xs | ys) & !meaning(j), 0, "{a:?}\n{b:?}\n{j:?}");
        }
    }
}

#[test]
fn conversions_hold_every_result() {
    for (a, xs) in elements() {
        let image = |f: &dyn Fn(u64) -> u64| members(*xs).fold(0, |s, x| s | 1 << f(x));
        for n in 1..=4 {
            assert_eq!(image(&|x| x & ones(n)) & !meaning(a.zero_extend(n)), 0, "{a:?} {n}");
            for width in WIDTHS.into_iter().filter(|&w| n <= bits_of(w, 4)) {
                let wide = |x: u64| sext(x & ones(n), n) as u64 & ones(bits_of(width, 4));
                let out = a.sign_extend(n, width);
                assert_eq!(image(&wide) & !meaning(out), 0, "{a:?} {n} {width:?}");
                // `Machine::unary` links a register with what it is extended to when nothing seems to change.
                assert!(out != *a || members(*xs).all(|x| wide(x) == x), "{a:?} {n} {width:?}");
            }
        }
        for width in WIDTHS {
            let w = bits_of(width, 4);
            let negated = image(&|x| 0u64.wrapping_sub(x) & ones(w));
            assert_eq!(negated & !meaning(a.neg(width)), 0, "{a:?} {width:?}");
            // `Machine::mov` links a register with its low half when that is all there is.
            assert!(!a.fits_half() || members(*xs).all(|x| x & 3 == x), "{a:?}");
        }
        assert!(a.as_const().is_none_or(|x| xs & !(1 << x) == 0), "{a:?}");
    }
    for t in tnums(4) {
        assert_eq!(meaning(ScalarN::<4>::from_tnum(t)), collect(4, |x| t.contains(x)));
    }
    for x in 0..16 {
        assert_eq!(
            (meaning(ScalarN::<4>::constant(x)), ScalarN::<4>::constant(x).as_const()),
            (1 << x, Some(x))
        );
    }
}

/// At 8 bits the halves are 4, wide enough for several widths to extend from.
#[test]
fn extensions_hold_every_result_at_8_bits() {
    for t in super::tnums(6) {
        for shift in [0, 1, 2] {
            let parts = (t.lsh(shift, 8), Range::full(8), Range::full(4));
            let Some(s) = ScalarN::<8>::from_parts(parts.0, parts.1, parts.2) else { continue };
            for x in (0..256).filter(|&x| s.contains(x)) {
                for n in 1..=8 {
                    assert!(s.zero_extend(n).contains(x & ones(n)), "{s:?} {x} {n}");
                    let wide = sext(x & ones(n), n) as u64 & 0xff;
                    assert!(s.sign_extend(n, Width::W64).contains(wide), "{s:?} {x} {n}");
                    assert!(n > 4 || s.sign_extend(n, Width::W32).contains(wide & 0xf), "{s:?} {x} {n}");
                }
                for width in WIDTHS {
                    let w = bits_of(width, 8);
                    assert!(s.neg(width).contains(0u64.wrapping_sub(x) & ones(w)), "{s:?} {x}");
                }
            }
        }
    }
}
