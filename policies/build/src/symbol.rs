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
    let advice = advice(symbol).unwrap_or("it is in another crate: make it `#[inline]` or generic");
    format!("{place} still calls `{}`: {advice}", demangle(symbol))
}

/// LLVM's complaint about a function of the compiler's runtime library that it wants to call, with what to do.
pub(crate) fn explain(error: String) -> String {
    let symbol = error.split_once("built-in function '").and_then(|(_, rest)| Some(rest.split_once('\'')?.0));
    match symbol.and_then(advice) {
        Some(advice) => format!("{error} {advice}"),
        None => error,
    }
}

fn advice(symbol: &str) -> Option<&'static str> {
    let runtime = symbol.starts_with("__");
    let fits = |part: &str| match part {
        // Short names of the runtime library would turn up anywhere.
        "ti3" | "df" | "sf" => runtime && symbol.contains(part),
        part => symbol.contains(part),
    };
    ADVICE.iter().find(|(part, _)| fits(part)).map(|(_, text)| *text)
}

/// `_ZN4core9panicking5panic17h0123456789abcdefE` and `_RNvNtCs1a_4core9panicking5panic` as `core::panicking::panic`;
/// generic arguments are left out; what is neither stays as it is.
fn demangle(symbol: &str) -> String {
    let v0 = || v0_path(&mut symbol.strip_prefix("_R")?);
    legacy_path(symbol).or_else(v0).unwrap_or_else(|| symbol.to_owned())
}

/// A path of the v0 scheme: `C` a crate, `N` a name in a path, `I` a path with generic arguments.
fn v0_path(rest: &mut &str) -> Option<String> {
    let (kind, tail) = rest.split_at_checked(1)?;
    *rest = tail;
    match kind {
        "C" => v0_name(rest),
        "N" => {
            *rest = rest.get(1..)?; // the namespace
            let path = v0_path(rest)?;
            Some(format!("{path}::{}", v0_name(rest)?))
        }
        "I" => v0_path(rest),
        _ => None,
    }
}

/// A name: what tells it from others of the same spelling (`s...._`), its length, and its bytes.
fn v0_name(rest: &mut &str) -> Option<String> {
    if rest.starts_with('s') {
        *rest = rest.split_once('_')?.1;
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (len, tail) = rest.split_at(digits);
    let tail = tail.strip_prefix('_').unwrap_or(tail);
    let (name, tail) = tail.split_at_checked(len.parse().ok()?)?;
    *rest = tail;
    Some(name.to_owned())
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
            (
                "_RNvNtCsgEmfK2I1SDS_4core9panicking18panic_bounds_check",
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
        for symbol in ["memcpy", "_ZN", "_ZN99aE", "_R", "_RNvC1a9b", "_ZN3fooE"] {
            let want = if symbol == "_ZN3fooE" { "foo" } else { symbol };
            assert_eq!(demangle(symbol), want);
        }
    }
}
