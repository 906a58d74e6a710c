//! Known bits: all elements of 4, 5 and 6 bits. A tnum's best result is known, so optimality is tested as well.

use super::*;

fn meaning_of(t: Tnum, w: u32) -> Set {
    collect(w, |x| t.contains(x))
}

/// The smallest tnum that holds a set.
fn best(set: Set) -> Tnum {
    let (ones, zeros) = members(set).fold((u64::MAX, 0), |(a, o), x| (a & x, o | x));
    Tnum { value: ones & zeros, mask: zeros & !ones }
}

type Binary = (&'static str, fn(Tnum, Tnum, u32) -> Tnum, fn(u64, u64) -> u64);

#[test]
fn operations_are_sound_and_optimal() {
    let optimal: [Binary; 5] = [
        ("+", |a, b, w| a.add(b, w), u64::wrapping_add),
        ("-", |a, b, w| a.sub(b, w), u64::wrapping_sub),
        ("&", |a, b, _| a.and(b), |x, y| x & y),
        ("|", |a, b, _| a.or(b), |x, y| x | y),
        ("^", |a, b, _| a.xor(b), |x, y| x ^ y),
    ];
    for w in [4, 5, 6] {
        let all: Vec<(Tnum, Set)> = tnums(w).into_iter().map(|t| (t, meaning_of(t, w))).collect();
        let mut looser_products = 0;
        for (a, xs) in &all {
            for (b, ys) in &all {
                let image = |f: fn(u64, u64) -> u64| {
                    let pairs = members(*xs).flat_map(|x| members(*ys).map(move |y| f(x, y) & ones(w)));
                    best(pairs.fold(0, |s, z| s | 1 << z))
                };
                for (name, of, concrete) in optimal {
                    assert_eq!(of(*a, *b, w), image(concrete), "{a:?} {name} {b:?}");
                }
                let (product, tight) = (a.mul(*b, w), image(u64::wrapping_mul));
                assert!(tight.is_subset(product), "{a:?} * {b:?}");
                looser_products += u32::from(tight != product);
                assert_eq!(a.join(*b), best(xs | ys));
                assert_eq!(a.is_subset(*b), xs & !ys == 0);
                assert_eq!(a.intersect(*b), (xs & ys != 0).then(|| best(xs & ys)));
            }
        }
        // Long multiplication loses something where partial products have unknown bits in common.
        let golden = [0, 0, 0, 0, 299, 3931, 43623][w as usize];
        assert_eq!(looser_products, golden, "products of {w} bits that are not the best");
    }
}

#[test]
fn shifts_and_extensions_are_sound_and_optimal() {
    let w = 6;
    for a in tnums(w) {
        let xs = meaning_of(a, w);
        assert_eq!(best(xs), a);
        let image = |f: &dyn Fn(u64) -> u64| best(members(xs).fold(0, |s, x| s | 1 << (f(x) & ones(w))));
        for k in 0..w {
            assert_eq!(a.lsh(k, w), image(&|x| x << k));
            assert_eq!(a.rsh(k), image(&|x| x >> k));
            assert_eq!(a.arsh(k, w), image(&|x| (sext(x, w) >> k) as u64));
            let n = k + 1;
            assert_eq!(a.truncate(n), image(&|x| x & ones(n)));
            assert_eq!(a.truncate(n).sign_extend(n, w), image(&|x| sext(x & ones(n), n) as u64));
            assert_eq!(a.is_aligned(1 << k), members(xs).all(|x| x.is_multiple_of(1 << k)));
        }
        assert_eq!(a.is_const(), xs.count_ones() == 1);
        assert_eq!(a.possible(), members(xs).fold(0, |all, x| all | x));
    }
    for lo in 0..=ones(w) {
        for hi in lo..=ones(w) {
            assert_eq!(Tnum::range(lo, hi), best(collect(w, |x| lo <= x && x <= hi)), "{lo} {hi}");
        }
    }
}

/// Two bits of each byte stand for all eight: a swap moves whole bytes.
#[test]
fn byte_swaps_move_known_bits() {
    for t in tnums(4) {
        let spread = |x: u64| (x & 3) << 3 | (x >> 2 & 3) << 11;
        let wide = Tnum { value: spread(t.value), mask: spread(t.mask) };
        let swapped = wide.swap_bytes(16);
        assert_eq!(swapped.mask.count_ones(), wide.mask.count_ones());
        for x in (0..16).filter(|&x| t.contains(x)).map(spread) {
            assert!(swapped.contains(u64::from((x as u16).swap_bytes())), "{wide:?} {x:#x}");
            assert!(wide.swap_bytes(32).contains(u64::from((x as u32).swap_bytes())));
            assert!(wide.swap_bytes(64).contains(x.swap_bytes()));
        }
    }
}
