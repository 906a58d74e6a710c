//! [`complaint`]: what an undefined symbol tells the author.

/// Substrings of symbols, and what to do about the code that calls them.
const ADVICE: [(&str, &str); 6] = [
    ("panic", "it can panic: use `.get()`, a mask or `min`; avoid `unwrap`, `assert!` and unguarded `/`"),
    ("unwrap_failed", "it can panic: avoid `unwrap` and `expect`"),
    ("expect_failed", "it can panic: avoid `unwrap` and `expect`"),
    ("ti3", "BPF has no 128-bit arithmetic"),
    ("df", "BPF has no floating point"),
    ("sf", "BPF has no floating point"),
];

/// One line: what is called, where, and what to do.
pub(crate) fn complaint(symbol: &str, place: &str) -> String {
    let name = demangle(symbol);
    let runtime = symbol.starts_with("__");
    let advice = ADVICE.iter().find(|(part, _)| match *part {
        // Short names of the compiler's runtime library would turn up anywhere.
        "ti3" | "df" | "sf" => runtime && symbol.contains(part),
        part => symbol.contains(part),
    });
    let advice = advice.map_or("it is in another crate: make it `#[inline]` or generic", |(_, text)| text);
    format!("{place} still calls `{name}`: {advice}")
}

/// `_ZN4core9panicking5panic17h0123456789abcdefE` as `core::panicking::panic`; anything else as it is.
fn demangle(symbol: &str) -> String {
    legacy_path(symbol).unwrap_or_else(|| symbol.to_owned())
}

fn legacy_path(symbol: &str) -> Option<String> {
    let mut rest = symbol.strip_prefix("_ZN")?.strip_suffix('E')?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (len, tail) = rest.split_at(digits);
        let (part, tail) = tail.split_at_checked(len.parse().ok()?)?;
        parts.push(part);
        rest = tail;
    }
    // The last part is a hash.
    parts.pop_if(|part| part.len() == 17 && part.starts_with('h'));
    Some(parts.join("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_symbol() {
        let table = [
            (
                "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE",
                "f (a.rs:9) still calls `core::panicking::panic_bounds_check`: it can panic",
            ),
            ("__udivti3", "f (a.rs:9) still calls `__udivti3`: BPF has no 128-bit arithmetic"),
            ("__adddf3", "f (a.rs:9) still calls `__adddf3`: BPF has no floating point"),
            (
                "_ZN5other6plaidf17h0123456789abcdefE",
                "f (a.rs:9) still calls `other::plaidf`: it is in another crate",
            ),
        ];
        for (symbol, start) in table {
            let got = complaint(symbol, "f (a.rs:9)");
            assert!(got.starts_with(start), "{got}");
        }
    }

    #[test]
    fn what_is_not_mangled_stays() {
        for symbol in ["memcpy", "_ZN", "_ZN99aE", "_RNvC1a1b", "_ZN3fooE"] {
            let want = if symbol == "_ZN3fooE" { "foo" } else { symbol };
            assert_eq!(demangle(symbol), want);
        }
    }
}
