//! [`parse`]: numbers as people write them on a command line or in a trace.

use anyhow::{Context, bail};

/// Reads `4096`, `0x1000`, `64K`, `4M`, `1GiB` or `1_000_000`. Suffixes are powers of 1024, in either case,
/// with or without `B` or `iB`.
pub(crate) fn parse(text: &str) -> anyhow::Result<u64> {
    let plain: String = text.trim().chars().filter(|c| *c != '_').collect();
    if let Some(hex) = plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).with_context(|| format!("\"{text}\" is no hexadecimal number"));
    }
    let split = plain.find(|c: char| !c.is_ascii_digit()).unwrap_or(plain.len());
    let (digits, suffix) = plain.split_at(split);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => bail!("\"{text}\" is no number (try 4096, 0x1000, 64K or 4M)"),
    };
    let n: u64 = digits.parse().with_context(|| format!("\"{text}\" is no number"))?;
    n.checked_mul(1 << shift).with_context(|| format!("\"{text}\" does not fit into 64 bits"))
}

/// Writes a number of bytes briefly, exact or with one decimal: `4M`, `1.5K`, `100`.
pub(crate) fn bytes(n: u64) -> String {
    for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        let one = 1u64 << shift;
        if n >= one {
            let text = format!("{:.1}", n as f64 / one as f64);
            return format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text));
        }
    }
    n.to_string()
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(n: impl Into<u64>, noun: &str) -> String {
    let n = n.into();
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_suffixes_and_bases() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("0x10", 16),
            ("64K", 65536),
            ("4m", 4 << 20),
            ("1GiB", 1 << 30),
            ("1_000", 1000),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text).ok(), Some(want), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_number() {
        for text in ["", "K", "-1", "4X", "0x", "1.5M", "18446744073709551616", "99999999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn writes_bytes_briefly() {
        for (n, want) in [(100, "100"), (1024, "1K"), (1536, "1.5K"), (4 << 20, "4M"), (1 << 40, "1T")] {
            assert_eq!(bytes(n), want);
        }
    }
}
