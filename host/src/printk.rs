//! [`Lines`]: what a policy says with `bpf_trace_printk`, on its way to the log, and [`format`], the kernel's rules for it.
//!
//! A call of the helper formats into a slot of a ring and returns; the reload thread takes the lines out and writes them, as many as a
//! [`Bucket`] lets through. Nothing waits: a call that finds the ring full or another thread in it leaves its line out, counted.

use crate::maps::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Longest line in bytes; the rest is cut off.
pub(crate) const MAX_LINE: usize = 240;
/// Longest format in bytes, with its NUL.
pub(crate) const MAX_FORMAT: u32 = 256;
/// Longest text behind a `%s`, and where it is cut off.
pub(crate) const MAX_TEXT: u32 = 64;
/// Most values in a line (`MAX_TRACE_PRINTK_VARARGS`, kernel/trace/bpf_trace.c).
const MAX_VALUES: usize = 3;
/// Lines that wait for the reload thread: more than it writes in a second.
const WAITING: usize = 256;
/// Tries to get at the ring; some 2 us.
const TRIES: u32 = 64;

/// A line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    len: u16,
    bytes: [u8; MAX_LINE],
}

impl Line {
    pub(crate) const EMPTY: Line = Line { len: 0, bytes: [0; MAX_LINE] };

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(usize::from(self.len)) {
            *place = byte;
            self.len += 1;
        }
    }

    fn push_all(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.push(*b));
    }

    /// The text, with what is no plain ASCII escaped and no line end in it.
    pub(crate) fn text(&self) -> String {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or(&[]);
        let text: String = bytes.trim_ascii_end().escape_ascii().map(char::from).collect();
        // Quotes need no escape in a log.
        text.replace("\\\"", "\"").replace("\\'", "'")
    }
}

/// Formats `fmt`, up to its NUL, as the kernel does (`bpf_bprintf_prepare`, kernel/bpf/helpers.c): `%d %i %u %x %X %c %p %s %%`,
/// `%ld` and `%lld` and so on for 64 bits, with flags and a width before them. `%s` takes what `text` finds behind a pointer. The
/// number of bytes.
///
/// # Errors
/// [`Errno::INVAL`] for a format without NUL, with other bytes than ASCII text, with other conversions, or with more than three.
pub(crate) fn format(
    fmt: &[u8],
    values: [u64; MAX_VALUES],
    text: impl Fn(u64, &mut Line),
    line: &mut Line,
) -> Result<u16, Errno> {
    let end = fmt.iter().position(|b| *b == 0).ok_or(Errno::INVAL)?;
    let mut rest = fmt.get(..end).unwrap_or(&[]);
    if !rest.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return Err(Errno::INVAL);
    }
    let mut values = values.into_iter();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after.first()) {
            (b'%', Some(b'%')) => {
                line.push(b'%');
                rest = &after[1..];
            }
            (b'%', _) => {
                let (spec, after) = Spec::read(after).ok_or(Errno::INVAL)?;
                let value = values.next().ok_or(Errno::INVAL)?;
                spec.write(value, &text, line);
                rest = after;
            }
            (byte, _) => line.push(*byte),
        }
    }
    Ok(line.len)
}

/// A conversion.
struct Spec {
    zeros: bool,
    left: bool,
    plus: bool,
    width: usize,
    long: bool,
    kind: u8,
}

impl Spec {
    fn read(mut rest: &[u8]) -> Option<(Spec, &[u8])> {
        let mut spec = Spec { zeros: false, left: false, plus: false, width: 0, long: false, kind: 0 };
        while let Some((flag @ (b'0' | b' ' | b'+' | b'-'), after)) = rest.split_first() {
            spec.zeros |= *flag == b'0';
            spec.left |= *flag == b'-';
            spec.plus |= *flag == b'+';
            rest = after;
        }
        while let Some((digit @ b'0'..=b'9', after)) = rest.split_first() {
            spec.width = (spec.width * 10 + usize::from(digit - b'0')).min(MAX_LINE);
            rest = after;
        }
        for _ in 0..2 {
            if let Some((b'l', after)) = rest.split_first() {
                (spec.long, rest) = (true, after);
            }
        }
        let (kind, rest) = rest.split_first()?;
        spec.kind = *kind;
        let plain = matches!(kind, b'd' | b'i' | b'u' | b'x' | b'X');
        (plain || !spec.long && matches!(kind, b'c' | b'p' | b's')).then_some((spec, rest))
    }

    fn write(&self, value: u64, text: &impl Fn(u64, &mut Line), line: &mut Line) {
        let mut field = Line::EMPTY;
        let narrow = if self.long { value } else { u64::from(value as u32) };
        match self.kind {
            b'd' | b'i' => {
                let n = if self.long { value as i64 } else { i64::from(value as i32) };
                if n < 0 || self.plus {
                    field.push(if n < 0 { b'-' } else { b'+' });
                }
                digits(n.unsigned_abs(), 10, false, &mut field);
            }
            b'u' => digits(narrow, 10, false, &mut field),
            b'x' => digits(narrow, 16, false, &mut field),
            b'X' => digits(narrow, 16, true, &mut field),
            b'c' => field.push(value as u8),
            b'p' => {
                field.push_all(b"0x");
                digits(value, 16, false, &mut field);
            }
            _ => text(value, &mut field),
        }
        self.pad(&field, line);
    }

    fn pad(&self, field: &Line, line: &mut Line) {
        let bytes = field.bytes.get(..usize::from(field.len)).unwrap_or(&[]);
        let missing = self.width.saturating_sub(bytes.len());
        let number = !matches!(self.kind, b'c' | b's');
        let sign = usize::from(bytes.first().is_some_and(|b| matches!(b, b'-' | b'+')));
        let fill = |line: &mut Line, with| (0..missing).for_each(|_| line.push(with));
        match (self.left, self.zeros && number) {
            (true, _) => {
                line.push_all(bytes);
                fill(line, b' ');
            }
            (false, true) => {
                line.push_all(bytes.get(..sign).unwrap_or(&[]));
                fill(line, b'0');
                line.push_all(bytes.get(sign..).unwrap_or(&[]));
            }
            (false, false) => {
                fill(line, b' ');
                line.push_all(bytes);
            }
        }
    }
}

fn digits(mut n: u64, base: u64, upper: bool, field: &mut Line) {
    const LOWER: &[u8; 16] = b"0123456789abcdef";
    const UPPER: &[u8; 16] = b"0123456789ABCDEF";
    let (mut digits, mut at) = ([0u8; 20], 20);
    loop {
        at -= 1;
        let set = if upper { UPPER } else { LOWER };
        digits[at] = set[(n % base) as usize & 15];
        n /= base;
        if n == 0 {
            break;
        }
    }
    field.push_all(&digits[at..]);
}

/// What behind a `%s` is text: up to a NUL.
pub(crate) fn push_text(bytes: impl Iterator<Item = u8>, line: &mut Line) {
    bytes.take(MAX_TEXT as usize).take_while(|b| *b != 0).for_each(|b| line.push(b));
}

/// Lines of one policy, from any number of threads, on their way to the reload thread.
pub(crate) struct Lines {
    ring: Mutex<Ring>,
    lost: AtomicU64,
}

struct Ring {
    slots: Box<[Line]>,
    first: usize,
    len: usize,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({} lost)", self.lost())
    }
}

impl Lines {
    /// No lines, and room for those of a second.
    pub(crate) fn new() -> Lines {
        let slots = vec![Line::EMPTY; WAITING].into_boxed_slice();
        Lines { ring: Mutex::new(Ring { slots, first: 0, len: 0 }), lost: AtomicU64::new(0) }
    }

    /// Tries to get in, for a moment. Nobody ever waits in the kernel for this lock, so giving it back wakes nobody.
    fn enter(&self) -> Option<MutexGuard<'_, Ring>> {
        (0..TRIES).find_map(|_| match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::hint::spin_loop();
                None
            }
        })
    }

    /// Leaves a line for the reload thread.
    pub(crate) fn push(&self, line: &Line) {
        let put = self.enter().is_some_and(|mut ring| {
            let at = (ring.first + ring.len) % ring.slots.len().max(1);
            let room = ring.len < ring.slots.len();
            match ring.slots.get_mut(at).filter(|_| room) {
                Some(slot) => {
                    *slot = *line;
                    ring.len += 1;
                    true
                }
                None => false,
            }
        });
        if !put {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Reload thread: takes the oldest line. The lock is held for one copy, so that callers seldom meet it.
    pub(crate) fn pop(&self) -> Option<Line> {
        let mut ring = self.enter()?;
        let line = ring.slots.get(ring.first).copied().filter(|_| ring.len > 0)?;
        ring.first = (ring.first + 1) % ring.slots.len().max(1);
        ring.len -= 1;
        Some(line)
    }

    /// Lines that found no room so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Lines that a policy may write at once.
pub(crate) const BURST: u32 = 20;
/// Lines a second that it may write in the long run.
pub(crate) const RATE: u32 = 5;

/// Lets lines through: [`BURST`] at once, [`RATE`] a second in the long run.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// In parts of `1 / RATE` seconds, since the last look.
    tokens: f64,
    looked: Instant,
    /// Lines that were held back since somebody was told.
    held_back: u64,
}

impl Bucket {
    pub(crate) fn new(now: Instant) -> Bucket {
        Bucket { tokens: BURST.into(), looked: now, held_back: 0 }
    }

    /// May a line pass now?
    pub(crate) fn passes(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.looked);
        self.looked = now;
        let more = since.min(Duration::from_secs(3600)).as_secs_f64() * f64::from(RATE);
        self.tokens = (self.tokens + more).min(BURST.into());
        let passes = self.tokens >= 1.0;
        if passes {
            self.tokens -= 1.0;
        } else {
            self.held_back += 1;
        }
        passes
    }

    /// How many lines were held back since this was asked last.
    pub(crate) fn held_back(&mut self) -> u64 {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(fmt: &str, values: [u64; 3]) -> Result<String, Errno> {
        let mut line = Line::EMPTY;
        let text = |p: u64, line: &mut Line| push_text(format!("<{p}>\0tail").bytes(), line);
        let bytes: Vec<u8> = fmt.bytes().chain([0, b'?']).collect();
        let len = format(&bytes, values, text, &mut line)?;
        assert_eq!(usize::from(len), line.bytes[..usize::from(line.len)].len());
        Ok(line.text())
    }

    #[test]
    fn formats_are_the_kernel_s() {
        let minus = u64::MAX;
        for (fmt, values, want) in [
            ("plain", [0; 3], "plain"),
            ("%d %i %u", [minus, 7, minus], "-1 7 4294967295"),
            ("%ld %lld %llu", [minus, minus, minus], "-1 -1 18446744073709551615"),
            ("%x %lx %llX", [0xab, 0x1_0000_00cd, 0xef], "ab 1000000cd EF"),
            ("100%% of %s", [9, 0, 0], "100% of <9>"),
            ("%p", [0x1_0000_1000, 0, 0], "0x100001000"),
            ("[%5d|%-5d|%05d]", [42, 42, minus], "[   42|42   |-0001]"),
            ("%+d %c %08x", [3, 65, 0xbeef], "+3 A 0000beef"),
            ("tab\there\n", [0; 3], "tab\\there"),
            ("say \"it's\"", [0; 3], "say \"it's\""),
            ("", [0; 3], ""),
        ] {
            assert_eq!(printed(fmt, values).as_deref(), Ok(want), "{fmt}");
        }
    }

    #[test]
    fn other_formats_are_invalid() {
        for fmt in [
            "%",
            "%5",
            "%l",
            "%ls",
            "%lp",
            "%hd",
            "%f",
            "%n",
            "%.3d",
            "%*d",
            "%llld",
            "caf\u{e9}",
            "bell\u{7}",
            "%d %d %d %d",
        ] {
            assert_eq!(printed(fmt, [0; 3]), Err(Errno::INVAL), "{fmt}");
        }
        assert_eq!(format(b"no end", [0; 3], |_, _| {}, &mut Line::EMPTY.clone()), Err(Errno::INVAL));
        assert_eq!(format(b"", [0; 3], |_, _| {}, &mut Line::EMPTY.clone()), Err(Errno::INVAL));
    }

    #[test]
    fn long_lines_are_cut_off() {
        let wide = printed("%240d%240d%9999999999999999999d", [1, 2, 3]).unwrap();
        assert_eq!(wide.len(), MAX_LINE);
        let long = "x".repeat(300);
        assert_eq!(printed(&long, [0; 3]).unwrap().len(), MAX_LINE);
    }

    #[test]
    fn lines_come_out_in_order_and_those_without_room_are_counted() {
        let lines = Lines::new();
        let line = |n: usize| {
            let mut line = Line::EMPTY;
            line.push_all(n.to_string().as_bytes());
            line
        };
        for n in 0..WAITING + 10 {
            lines.push(&line(n));
        }
        assert_eq!(lines.lost(), 10);
        let taken: Vec<_> = std::iter::from_fn(|| lines.pop()).map(|l| l.text()).collect();
        assert_eq!(taken, (0..WAITING).map(|n| n.to_string()).collect::<Vec<_>>());
        lines.push(&line(7));
        assert_eq!(lines.pop().map(|l| l.text()).as_deref(), Some("7"));
        assert!(lines.pop().is_none());
    }

    #[test]
    fn threads_lose_nothing_uncounted() {
        let lines = Lines::new();
        let taken = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..2000).for_each(|_| lines.push(&Line { len: 1, bytes: [b'x'; MAX_LINE] }))
                    })
                })
                .collect();
            let mut taken = 0;
            while writers.iter().any(|w| !w.is_finished()) {
                taken += u64::from(lines.pop().is_some());
            }
            taken + std::iter::from_fn(|| lines.pop()).count() as u64
        });
        assert_eq!(taken + lines.lost(), 8000);
    }

    #[test]
    fn a_bucket_lets_a_burst_and_then_a_rate_through() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let passed = |bucket: &mut Bucket, seconds: u64, lines: u32| {
            let now = start + Duration::from_secs(seconds);
            (0..lines).filter(|_| bucket.passes(now)).count() as u32
        };
        assert_eq!(passed(&mut bucket, 0, 100), BURST);
        assert_eq!((bucket.held_back(), bucket.held_back()), (80, 0));
        assert_eq!(passed(&mut bucket, 2, 100), 2 * RATE);
        assert_eq!(passed(&mut bucket, 1000, 100), BURST);
    }
}
