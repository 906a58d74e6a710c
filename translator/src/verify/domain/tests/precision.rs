//! Precision: soundness alone would allow "unknown" everywhere. How much the results hold is counted and committed, so that
//! a change which loosens an operation shows in the diff, and one which tightens it too.

use super::*;
use std::fmt::Write;
use std::path::Path;

/// Pairs of one in so many; fixed, so that the counts are.
const EVERY: usize = 1499;

/// Numbers in the exact results, and in what the domain makes of them.
#[derive(Clone, Copy, Default)]
struct Count {
    exact: u64,
    held: u64,
}

impl Count {
    fn add(&mut self, exact: Set, held: Set) {
        self.exact += u64::from(exact.count_ones());
        self.held += u64::from(held.count_ones());
    }

    fn line(self, text: &mut String, what: impl std::fmt::Display) {
        let Count { exact, held } = self;
        let over = (held - exact) * 1000 / exact.max(1);
        writeln!(text, "{what:<16} {exact:>9} {held:>9} {:>5}.{}%", over / 10, over % 10).unwrap();
    }
}

fn pairs() -> impl Iterator<Item = (ScalarN<4>, Set, ScalarN<4>, Set)> {
    let all = elements();
    let of = move |(i, (a, xs)): (usize, &'static (ScalarN<4>, Set))| {
        part(all, i, EVERY).map(move |(b, ys)| (*a, *xs, *b, *ys))
    };
    all.iter().enumerate().flat_map(of)
}

fn bits(width: Width) -> u32 {
    if width == Width::W64 { 64 } else { 32 }
}

fn arithmetic(text: &mut String) {
    for (op, width) in OPS.into_iter().flat_map(|op| WIDTHS.map(|w| (op, w))) {
        let mut count = Count::default();
        for (a, xs, b, ys) in pairs() {
            count.add(results(op, xs, ys, bits_of(width, 4)), meaning(a.alu(op, b, width)));
        }
        count.line(text, format!("{op:?}{}", bits(width)));
    }
}

fn conditional(text: &mut String) {
    for cond in conditions() {
        let mut count = Count::default();
        for (a, xs, b, ys) in pairs() {
            let (x, y) = kept(cond, xs, ys, 4);
            let (p, q) = assume(a, b, cond).map_or((0, 0), |(p, q)| (meaning(p), meaning(q)));
            count.add(x, p);
            count.add(y, q);
        }
        count.line(text, format!("{:?}{} {}", cond.0, bits(cond.2), cond.1));
    }
}

fn lattice(text: &mut String) {
    let (mut join, mut order) = (Count::default(), Count::default());
    for (a, xs, b, ys) in pairs() {
        join.add(xs | ys, meaning(a.join(b)));
        // Inclusion that holds but is not seen: counted as if it were held by fewer.
        order.add(u64::from(a.is_subset(b)), u64::from(xs & !ys == 0));
    }
    join.line(text, "join");
    order.line(text, "inclusion");
}

fn conversions(text: &mut String) {
    let mut convert = |what: &str, to: &dyn Fn(ScalarN<4>) -> ScalarN<4>, f: &dyn Fn(u64) -> u64| {
        let mut count = Count::default();
        for (a, xs) in elements() {
            count.add(members(*xs).fold(0, |s, x| s | 1 << f(x)), meaning(to(*a)));
        }
        count.line(text, what);
    };
    for width in WIDTHS {
        let w = bits_of(width, 4);
        convert(&format!("neg{}", bits(width)), &|a| a.neg(width), &|x| 0u64.wrapping_sub(x) & ones(w));
    }
    for n in 1..=3 {
        convert(&format!("low {n} of 4"), &|a| a.zero_extend(n), &|x| x & ones(n));
        let wide = |x: u64| sext(x & ones(n), n) as u64 & 15;
        convert(&format!("sign {n} of 4"), &|a| a.sign_extend(n, Width::W64), &wide);
    }
}

#[test]
fn precision_is_what_it_was() {
    let mut text = String::from("# operation: numbers in the exact results, numbers held, excess\n");
    arithmetic(&mut text);
    conditional(&mut text);
    lattice(&mut text);
    conversions(&mut text);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verify/domain/tests/precision.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &text).expect("the golden file");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    let moved = text.lines().zip(golden.lines()).filter(|(new, old)| new != old);
    let moved: String = moved.map(|(new, old)| format!("was {old}\nnow {new}\n")).collect();
    assert!(text == golden, "precision has moved (BLESS=1 rewrites {}):\n{moved}", file.display());
}

/// Precision that clang's and rustc's idioms rely on.
#[test]
fn idioms_give_tight_bounds() {
    let c = Scalar::constant;
    let any = Scalar::unknown();
    let alu = |a: Scalar, op, b| a.alu(op, c(b), Width::W64);
    assert_eq!(alu(any, AluOp::And, 7).umax(), 7);
    assert_eq!(alu(any, AluOp::Mod, 10).umax(), 9);
    assert_eq!(alu(any, AluOp::Rsh, 60).umax(), 15);
    assert_eq!(alu(alu(any, AluOp::Lsh, 32), AluOp::Arsh, 32).smin(), i64::from(i32::MIN));
    assert_eq!(any.alu(AluOp::Mov, any, Width::W32).umax(), u64::from(u32::MAX));
    let (lo, _) = Scalar::assume(any, c(100), Rel::Slt, Width::W64).unwrap();
    let (both, _) = Scalar::assume(c(0), lo, Rel::Sle, Width::W64).map(|(p, q)| (q, p)).unwrap();
    assert_eq!((both.umin(), both.umax(), both.smin(), both.smax()), (0, 99, 0, 99));
    // A 32-bit compare bounds the whole register once the upper half is known to be zero.
    let word = any.zero_extend(32);
    let (small, _) = Scalar::assume(word, c(16), Rel::Ult, Width::W32).unwrap();
    assert_eq!(small.umax(), 15);
    // Compared in 32 bits, then extended by two shifts.
    let (low, _) = Scalar::assume(any, c(9), Rel::Ule, Width::W32).unwrap();
    assert_eq!(alu(alu(low, AluOp::Lsh, 32), AluOp::Rsh, 32).umax(), 9);
    assert_eq!(alu(alu(low, AluOp::Lsh, 32), AluOp::Arsh, 32).smax(), 9);
    let (nonzero, _) = Scalar::assume(word, c(0), Rel::Ne, Width::W64).unwrap();
    assert_eq!(nonzero.umin(), 1);
    let (bit, _) = Scalar::assume(any, c(8), Rel::Set, Width::W64).unwrap();
    assert_eq!(bit.tnum().value, 8);
    assert!(Scalar::assume(alu(any, AluOp::And, 4), c(3), Rel::Set, Width::W64).is_none());
}
