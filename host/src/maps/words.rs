//! Keys and values as little-endian words of eight bytes.

use super::MAX_KEY_WORDS;

/// Word `i` of little-endian bytes; missing bytes are zero.
#[inline]
pub(crate) fn word_at(bytes: &[u8], i: usize) -> u64 {
    let rest = bytes.get(i * 8..).unwrap_or(&[]);
    if let Some(word) = rest.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    match <[u8; 4]>::try_from(rest) {
        Ok(half) => u64::from(u32::from_le_bytes(half)),
        Err(_) => rest.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)),
    }
}

/// The first `size` bytes of little-endian words.
pub(super) fn bytes_of(words: &[u64], size: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(size as usize);
    bytes
}

/// Calls `f` with a key as zero-padded words; `None` if it has the wrong size.
pub(super) fn with_words<T>(key: &[u8], key_size: u32, f: impl FnOnce(&[u64]) -> T) -> Option<T> {
    let n = key.len().div_ceil(8);
    if key.len() != key_size as usize || n > MAX_KEY_WORDS {
        return None;
    }
    let mut words = [0; MAX_KEY_WORDS];
    words.iter_mut().take(n).enumerate().for_each(|(i, w)| *w = word_at(key, i));
    Some(f(&words[..n]))
}
