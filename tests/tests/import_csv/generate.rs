//! [`file`] and [`call`]: random configurations with every oddity of the format, and calls that hit their bounds.

use crate::oracle::{Call, Config};
use ringfence_tests::random::Rng;

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

fn chance(rng: &mut Rng, percent: u64) -> bool {
    rng.below(100) < percent
}

const FUNCS: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
const ALGOS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
const PROTOS: [&str; 3] = ["ll", "ll128", "simple"];
const ODD_NAMES: [&str; 6] = ["AllReduce", "RING", "x", " ", "\r", "LL\t1"];
const ODD_NUMBERS: [&str; 14] = [
    "-1",
    "4M",
    "",
    " ",
    "abc",
    "0x40",
    "-5",
    "18446744073709551615",
    "99999999999999999999999",
    "4294967295",
    "+7",
    "\x0b12",
    "8\r",
    "9223372036854775808",
];

fn name(rng: &mut Rng, odd: u64, names: &[&str]) -> String {
    if chance(rng, odd) { pick(rng, &ODD_NAMES).into() } else { pick(rng, names).into() }
}

fn small(rng: &mut Rng, odd: u64, values: &[&str]) -> String {
    if chance(rng, odd) { pick(rng, &ODD_NUMBERS).into() } else { pick(rng, values).into() }
}

fn size(rng: &mut Rng, odd: u64) -> u64 {
    let _ = odd;
    match rng.below(4) {
        0 => rng.below(64),
        1 => 1 << rng.below(40),
        2 => rng.bits() >> rng.below(64),
        _ => rng.below(1 << 24),
    }
}

fn row(rng: &mut Rng, odd: u64) -> String {
    let (a, b) = (size(rng, odd), size(rng, odd));
    let (min, max) = if chance(rng, 95) { (a.min(b), a.max(b)) } else { (a, b) };
    let number = |rng: &mut Rng, n: u64| match chance(rng, odd) {
        true => pick(rng, &ODD_NUMBERS).to_owned(),
        false => n.to_string(),
    };
    let min = if chance(rng, 30) { "0".to_owned() } else { number(rng, min) };
    let mut fields = vec![
        name(rng, odd, &FUNCS),
        min,
        number(rng, max),
        name(rng, odd, &ALGOS),
        name(rng, odd, &PROTOS),
        small(rng, odd, &["-1", "1", "4", "16", "64", "200", "0", "-3"]),
        small(rng, odd, &["-1", "-1", "1", "2", "4"]),
        small(rng, odd, &["-1", "-1", "2", "8", "16"]),
    ];
    if chance(rng, 40) {
        fields.push(small(rng, odd, &["-1", "1", "2"]));
        if chance(rng, 50) {
            fields.push(small(rng, odd, &["-1", "0", "1"]));
        }
    }
    if chance(rng, odd) {
        let at = rng.below(fields.len() as u64) as usize;
        match rng.below(4) {
            0 => drop(fields.remove(at)),
            1 => fields.insert(at, String::new()),
            2 => fields.extend(["1".to_owned(), "2".to_owned(), "3".to_owned()]),
            _ => fields[at] = format!("\t {} ", fields[at]),
        }
    }
    fields.join(",")
}

/// A configuration. Some are as they should be, some are not.
pub(crate) fn file(rng: &mut Rng) -> Vec<u8> {
    let odd = [0, 0, 3, 10, 30][rng.below(5) as usize];
    let rows = [1, 5, 20, 60, 300][rng.below(5) as usize];
    let mut out = Vec::new();
    for _ in 0..rng.below(rows) + 1 {
        let mut line = row(rng, odd).into_bytes();
        if chance(rng, odd) {
            match rng.below(8) {
                0 => line.insert(0, b'#'),
                1 => drop(line.splice(0..0, *b"  # ")),
                2 => line.insert(rng.below(line.len() as u64 + 1) as usize, 0),
                3 => line.insert(rng.below(line.len() as u64 + 1) as usize, 0xff),
                // Cut in two by the buffer, somewhere.
                4 => drop(line.splice(0..0, vec![b' '; 150 + rng.below(120) as usize])),
                5 => line.extend([vec![b','; rng.below(300) as usize], row(rng, 0).into_bytes()].concat()),
                6 => line.push(b'\r'),
                _ => line.clear(),
            }
        }
        out.extend(line);
        if !chance(rng, odd / 10) {
            out.push(b'\n');
        }
    }
    if chance(rng, 20) {
        out.pop();
    }
    out
}

/// A call whose size is often at a bound of a row.
pub(crate) fn call(rng: &mut Rng, config: &Config) -> Call {
    let bytes = match rng.below(5) {
        0 => size(rng, 0),
        _ if config.rows.is_empty() => 0,
        _ => {
            let row = config.rows[rng.below(config.rows.len() as u64) as usize];
            let bound = if chance(rng, 50) { row.min } else { row.max };
            bound.wrapping_add(rng.below(3)).wrapping_sub(1)
        }
    };
    Call {
        func: rng.below(5) as i32,
        bytes,
        nodes: [1, 2, 4, 8][rng.below(4) as usize],
        ranks: [2, 8, 16, 64][rng.below(4) as usize],
        pipe_ops: 1 + rng.below(3) as i32,
        reg_buff: chance(rng, 50),
    }
}

/// A cost table of six or seven algorithms, without zeros.
pub(crate) fn costs(rng: &mut Rng) -> Vec<f32> {
    let rows = 6 + rng.below(2);
    (0..rows * 3).map(|_| if chance(rng, 40) { -1.0 } else { 1.0 + rng.below(1000) as f32 }).collect()
}
