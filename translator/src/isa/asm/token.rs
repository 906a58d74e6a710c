//! [`tokens`]: a line of text as [`Tok`]s.

use crate::isa::insn::{Reg, Width};

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tok<'a> {
    /// `r0`..`r10`, `w0`..`w10`.
    Reg(Width, Reg),
    /// A number without sign.
    Num(u64),
    /// A word.
    Id(&'a str),
    /// Punctuation.
    P(&'static str),
    /// `map[NAME]`.
    Map(&'a str),
    /// `map[NAME][0]`.
    MapValue(&'a str),
    /// `fn NAME`.
    Fn(&'a str),
    /// `NAME:` alone on its line.
    Label(&'a str),
    /// `fn NAME:` alone on its line.
    FnLabel(&'a str),
}

/// Longest first.
const PUNCTUATION: [&str; 33] = [
    "s>>=", "<<=", ">>=", "s/=", "s%=", "s>=", "s<=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "==",
    "!=", ">=", "<=", "s>", "s<", "=", ">", "<", "&", "+", "-", "*", "(", ")", ",", ":", "!",
];

/// The tokens of a line without its comment.
pub(super) fn tokens(line: &str) -> Result<Vec<Tok<'_>>, String> {
    if let Some(label) = label(line) {
        return Ok(vec![label]);
    }
    let mut toks = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with([';', '#']) && !rest.starts_with("//") {
        let (tok, len) = token(rest)?;
        toks.push(tok);
        rest = rest[len..].trim_start();
    }
    Ok(toks)
}

/// `NAME:` or `fn NAME:`, if the line holds nothing else. Function names may hold anything but white space and `;`, `#`.
fn label(line: &str) -> Option<Tok<'_>> {
    let end = line.find([';', '#']).unwrap_or(line.len());
    let name = line[..end].trim().strip_suffix(':')?;
    if let Some(func) = name.strip_prefix("fn ") {
        let func = func.trim();
        return (!func.is_empty() && !func.contains(char::is_whitespace)).then_some(Tok::FnLabel(func));
    }
    (word(name) == name.len() && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty())
        .then_some(Tok::Label(name))
}

/// Bytes of the word that `text` starts with.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))).unwrap_or(text.len())
}

/// The first token of `text` and its bytes. `text` is not empty and starts with no white space.
fn token(text: &str) -> Result<(Tok<'_>, usize), String> {
    if let Some(rest) = text.strip_prefix("map[") {
        let len = rest.find(']').ok_or("map[ without ]")?;
        let (name, end) = (&rest[..len], len + 5);
        return Ok(match text[end..].strip_prefix("[0]") {
            Some(_) => (Tok::MapValue(name), end + 3),
            None => (Tok::Map(name), end),
        });
    }
    if let Some(rest) = text.strip_prefix("fn ") {
        let name = rest.trim_start();
        let end = name.find(|c: char| c.is_whitespace() || matches!(c, ';' | '#')).unwrap_or(name.len());
        return Ok((Tok::Fn(&name[..end]), text.len() - name.len() + end));
    }
    if let Some(p) = PUNCTUATION.into_iter().find(|p| text.starts_with(p)) {
        return Ok((Tok::P(p), p.len()));
    }
    let len = word(text);
    let word = &text[..len];
    if len == 0 {
        return Err(format!("unexpected {:?}", text.chars().next().unwrap_or(' ')));
    }
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok((Tok::Num(number(word)?), len));
    }
    Ok((register(word).unwrap_or(Tok::Id(word)), len))
}

fn number(word: &str) -> Result<u64, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed.map_err(|_| format!("{word} is not a number of at most 64 bits"))
}

fn register(word: &str) -> Option<Tok<'_>> {
    let width = match word.as_bytes().first()? {
        b'r' => Width::W64,
        b'w' => Width::W32,
        _ => return None,
    };
    Some(Tok::Reg(width, Reg::new(word.get(1..)?.parse().ok()?)?))
}
