//! [`pieces`]: a file in the portions in which C's `fgets` hands it to NCCL's example tuner, [`Piece::fields`]: one
//! portion as its `strtok` loop takes it apart, and [`size`] and [`int`]: C's `strtoull` and `atoi`.

/// `MAX_LINE_LENGTH` of the example tuner: `fgets` takes one byte less.
const BUFFER: usize = 256;
/// Most fields that it looks at (`CONFIG_FIELDS_MAX`).
pub(super) const MAX_FIELDS: usize = 10;

/// What one call of `fgets` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// Line of the file, from 1.
    pub(super) line: u32,
    /// Continues a line that did not fit into the buffer.
    pub(super) tail: bool,
    /// With the newline, if the buffer had room for it.
    raw: &'a [u8],
}

/// The portions of a file, in order.
pub(super) fn pieces(bytes: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    let (mut rest, mut line, mut tail) = (bytes, 1, false);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let window = &rest[..rest.len().min(BUFFER - 1)];
        let len = window.iter().position(|b| *b == b'\n').map_or(window.len(), |at| at + 1);
        let (raw, after) = rest.split_at(len);
        rest = after;
        let piece = Piece { line, tail, raw };
        tail = !raw.ends_with(b"\n");
        line += u32::from(!tail);
        Some(piece)
    })
}

impl<'a> Piece<'a> {
    /// Skipped before anything is parsed: `#` or a newline in column one.
    pub(super) fn skipped(&self) -> bool {
        matches!(self.raw, [b'#' | b'\n', ..])
    }

    /// There is a zero byte, behind which C sees nothing.
    pub(super) fn has_nul(&self) -> bool {
        self.raw.contains(&0)
    }

    /// The C string, without the newline.
    pub(super) fn text(&self) -> &'a [u8] {
        let end = self.raw.iter().position(|b| matches!(b, 0 | b'\n'));
        &self.raw[..end.unwrap_or(self.raw.len())]
    }

    /// The fields as `strtok` with a comma gives them: empty ones are not there. Blanks and tabs around each are gone.
    pub(super) fn fields(&self) -> Vec<&'a [u8]> {
        let parts = self.text().split(|b| *b == b',').filter(|part| !part.is_empty());
        parts.take(MAX_FIELDS).map(trim).collect()
    }

    /// Fields beyond those that are looked at.
    pub(super) fn surplus(&self) -> usize {
        let all = self.text().split(|b| *b == b',').filter(|part| !part.is_empty()).count();
        all.saturating_sub(MAX_FIELDS)
    }

    /// Place (from 1) of the first empty field that has a field behind it, which therefore moves.
    pub(super) fn vanished(&self) -> Option<usize> {
        let parts: Vec<_> = self.text().split(|b| *b == b',').collect();
        let last = parts.iter().rposition(|part| !part.is_empty())?;
        let first = parts.iter().position(|part| part.is_empty())?;
        (first < last).then_some(first + 1)
    }
}

/// Without blanks and tabs at both ends; other white space stays.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let inner = |b: &u8| !matches!(b, b' ' | b'\t');
    let start = text.iter().position(inner).unwrap_or(text.len());
    let end = text.iter().rposition(inner).map_or(start, |at| at + 1);
    &text[start..end]
}

/// A number as C read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number<T> {
    pub(super) value: T,
    /// What is odd about its text.
    pub(super) oddity: Option<Oddity>,
}

/// Why the value of a number may not be what its text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// No digit at the start: C reads 0.
    NoDigits,
    /// Something follows the digits, and is ignored.
    Trailing,
    /// Too large for the type.
    Overflow,
    /// A minus before a number without sign: C wraps round.
    Negative,
}

/// Sign and digits at the start of `text`, and what follows them. White space as `isspace` has it is skipped.
fn split(text: &[u8]) -> (bool, &[u8], &[u8]) {
    let space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().position(|b| !space(b)).unwrap_or(text.len())..];
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let digits = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(digits);
    // A carriage return or blanks behind a number are no matter.
    (negative, digits, &rest[rest.iter().position(|b| !space(b)).unwrap_or(rest.len())..])
}

/// The digits as a number, `None` beyond 64 bits.
fn value(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |n, digit| n.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// `strtoull(text, NULL, 10)`.
pub(super) fn size(text: &[u8]) -> Number<u64> {
    let (negative, digits, rest) = split(text);
    let (value, oddity) = match value(digits) {
        _ if digits.is_empty() => (0, Some(Oddity::NoDigits)),
        None => (u64::MAX, Some(Oddity::Overflow)),
        Some(n) if negative && n != 0 => (n.wrapping_neg(), Some(Oddity::Negative)),
        Some(n) => (n, None),
    };
    Number { value, oddity: oddity.or((!rest.is_empty()).then_some(Oddity::Trailing)) }
}

/// `atoi(text)` as glibc has it: `strtol`, which stops at the bounds of 64 bits, cut to 32.
pub(super) fn int(text: &[u8]) -> Number<i32> {
    let (negative, digits, rest) = split(text);
    let bound = if negative { i64::MIN } else { i64::MAX };
    let magnitude = value(digits).and_then(|n| i64::try_from(n).ok());
    let wide = magnitude.map_or(bound, |n| if negative { -n } else { n });
    let oddity = match i32::try_from(wide) {
        _ if digits.is_empty() => Some(Oddity::NoDigits),
        Err(_) => Some(Oddity::Overflow),
        Ok(_) => (!rest.is_empty()).then_some(Oddity::Trailing),
    };
    Number { value: if digits.is_empty() { 0 } else { wide as i32 }, oddity }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Vec<(u32, bool, usize)> {
        pieces(bytes).map(|p| (p.line, p.tail, p.raw.len())).collect()
    }

    #[test]
    fn lines_come_in_portions_of_255_bytes() {
        assert_eq!(texts(b""), []);
        assert_eq!(texts(b"a\n\nb"), [(1, false, 2), (2, false, 1), (3, false, 1)]);
        let long = [vec![b'x'; 254], b"\n".to_vec(), vec![b'y'; 255], b"\nz\n".to_vec()].concat();
        assert_eq!(texts(&long), [(1, false, 255), (2, false, 255), (2, true, 1), (3, false, 2)]);
        let third = pieces(&long).nth(2).unwrap();
        assert!(third.skipped(), "the newline that did not fit is an empty line of its own");
    }

    #[test]
    fn empty_fields_are_not_there_and_blank_ones_are() {
        let piece = pieces(b" a ,, \t,b\tc,\n").next().unwrap();
        assert_eq!(piece.fields(), [&b"a"[..], b"", b"b\tc"]);
        assert_eq!(piece.vanished(), Some(2));
        assert_eq!(pieces(b"a,b,,\n").next().unwrap().vanished(), None, "nothing moves");
        assert_eq!(pieces(b"1,2,3,4,5,6,7,8,9,10,11,,12").next().unwrap().surplus(), 2);
        assert_eq!(pieces(b"a,b\0,c").next().unwrap().fields(), [b"a", b"b"]);
        assert_eq!(pieces(b"\0\0\n").next().unwrap().fields(), [] as [&[u8]; 0]);
    }

    #[test]
    fn sizes_are_those_of_strtoull() {
        let read = |text: &str| size(text.as_bytes());
        for (text, value, oddity) in [
            ("4096", 4096, None),
            (" +7\r", 7, None),
            ("4M", 4, Some(Oddity::Trailing)),
            ("0x10", 0, Some(Oddity::Trailing)),
            ("M", 0, Some(Oddity::NoDigits)),
            ("-", 0, Some(Oddity::NoDigits)),
            ("- 1", 0, Some(Oddity::NoDigits)),
            ("-1", u64::MAX, Some(Oddity::Negative)),
            ("-0", 0, None),
            ("18446744073709551615", u64::MAX, None),
            ("18446744073709551616", u64::MAX, Some(Oddity::Overflow)),
            ("-99999999999999999999", u64::MAX, Some(Oddity::Overflow)),
        ] {
            assert_eq!(read(text), Number { value, oddity }, "{text}");
        }
    }

    #[test]
    fn integers_are_those_of_atoi() {
        for (text, value, oddity) in [
            ("-1\r", -1, None),
            ("8 # x", 8, Some(Oddity::Trailing)),
            ("any", 0, Some(Oddity::NoDigits)),
            ("2147483648", i32::MIN, Some(Oddity::Overflow)),
            ("4294967295", -1, Some(Oddity::Overflow)),
            ("99999999999999999999", -1, Some(Oddity::Overflow)),
            ("-99999999999999999999", 0, Some(Oddity::Overflow)),
            ("-9223372036854775808", 0, Some(Oddity::Overflow)),
        ] {
            assert_eq!(int(text.as_bytes()), Number { value, oddity }, "{text}");
        }
    }
}
