//! [`Frame`]: a message in a control file, and the file's layout.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `RFCTRL\0\1`: magic and version of the layout |
//! | 8..16, 16..24, 24..32 | process number, its start time in clock ticks since boot, inode of its process namespace |
//! | 32..40 | a number that tells the hosts of one process apart |
//! | 64..88 | request: sequence number, length, checksum |
//! | 128..152 | response: the same |
//! | 4096.. | body of the request, at most [`MAX_BODY`] bytes |
//! | 4096 + `MAX_BODY`.. | body of the response |
//!
//! All numbers are 64-bit little-endian. A message counts once its checksum (over number, length and body) is right: whoever reads while
//! somebody writes sees an unfinished message and looks again. The sequence number of a response is that of its request;
//! 0 is none. The checksum is no secret: whoever may open the file may call for anything anyway.
//!
//! The file lies in shared memory (`/dev/shm`, or the tmpfs of `XDG_RUNTIME_DIR`), but neither side maps it. In a mapping, a word
//! could change between two looks at it, and a file that somebody truncates would kill a training job with SIGBUS. Reads and
//! writes copy, fail with an error value, and wake the reader's inotify, which stores into a mapping do not.

use super::super::dir::Identity;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 8] = *b"RFCTRL\0\x01";
/// Largest body of a message: a value of 1 MiB in hexadecimal, and some.
pub(crate) const MAX_BODY: usize = 4 << 20;
const BODIES: u64 = 4096;

/// Which of the two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Request,
    Response,
}

/// Number, length, checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head([u64; 3]);

impl Frame {
    fn head_at(self) -> u64 {
        match self {
            Frame::Request => 64,
            Frame::Response => 128,
        }
    }

    fn body_at(self) -> u64 {
        match self {
            Frame::Request => BODIES,
            Frame::Response => BODIES + MAX_BODY as u64,
        }
    }

    /// Writes a message: the body first, so that the write which completes it is the last one.
    ///
    /// # Errors
    /// Of the system; a body that is too large.
    pub(crate) fn write(self, file: &File, number: u64, body: &[u8]) -> io::Result<()> {
        if body.len() > MAX_BODY {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        file.write_all_at(body, self.body_at())?;
        let len = body.len() as u64;
        let mut head = [0; 24];
        for (to, word) in head.chunks_exact_mut(8).zip([number, len, checksum(number, body)]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        file.write_all_at(&head, self.head_at())
    }

    /// The number of the message at hand, finished or not; 0 if there is none.
    pub(crate) fn number(self, file: &File) -> u64 {
        self.head(file).map_or(0, |Head([number, ..])| number)
    }

    /// The message; `None` while it is unfinished, or if it is none.
    pub(crate) fn read(self, file: &File) -> Option<(u64, Vec<u8>)> {
        let Head([number, len, sum]) = self.head(file)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_BODY && number != 0)?;
        let mut body = vec![0; len];
        file.read_exact_at(&mut body, self.body_at()).ok()?;
        (checksum(number, &body) == sum).then_some((number, body))
    }

    fn head(self, file: &File) -> Option<Head> {
        read_words(file, self.head_at()).map(Head)
    }
}

fn read_words<const N: usize>(file: &File, at: u64) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at + 8 * i as u64).ok()?;
        *word = u64::from_le_bytes(bytes);
    }
    Some(words)
}

/// FNV-1a, over eight bytes at a time.
fn checksum(number: u64, body: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(23);
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    let start = step(step(0xcbf2_9ce4_8422_2325, number), body.len() as u64);
    body.chunks(8).fold(start, |sum, chunk| step(sum, word(chunk)))
}

/// Writes the head of a new file. `host` is a number that no other host of the process has.
pub(crate) fn initialise(file: &File, owner: Identity, host: u64) -> io::Result<()> {
    let words = [u64::from_le_bytes(MAGIC), owner.pid.into(), owner.started, owner.namespace, host];
    let head: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    // Its full length at once, which takes no memory: a reader finds zeros, not the end of the file.
    file.set_len(BODIES + 2 * MAX_BODY as u64)?;
    file.write_all_at(&head, 0)
}

/// The process whose control file this is, and which of its hosts; `None` if it is none, or of another version.
pub(crate) fn owner_in(file: &File) -> Option<(Identity, u64)> {
    let [magic, pid, started, namespace, host] = read_words(file, 0)?;
    let pid = u32::try_from(pid).ok().filter(|_| magic == u64::from_le_bytes(MAGIC))?;
    Some((Identity { pid, started, namespace }, host))
}

/// The process whose control file this is.
pub(crate) fn identity_in(file: &File) -> Option<Identity> {
    owner_in(file).map(|(process, _)| process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        initialise(&file, Identity { pid: 7, started: 9, namespace: 11 }, 13).unwrap();
        file
    }

    #[test]
    fn messages_go_both_ways() {
        let file = file();
        assert_eq!(owner_in(&file), Some((Identity { pid: 7, started: 9, namespace: 11 }, 13)));
        assert_eq!((Frame::Request.number(&file), Frame::Request.read(&file)), (0, None));
        let large = vec![3; MAX_BODY];
        Frame::Request.write(&file, 5, b"hello").unwrap();
        Frame::Response.write(&file, 5, &large).unwrap();
        assert_eq!(Frame::Request.read(&file), Some((5, b"hello".to_vec())));
        assert_eq!(Frame::Response.read(&file), Some((5, large)));
        assert!(Frame::Request.write(&file, 6, &vec![0; MAX_BODY + 1]).is_err());
    }

    #[test]
    fn an_unfinished_message_is_none() {
        let file = file();
        Frame::Request.write(&file, 5, b"hello, here I am").unwrap();
        file.write_all_at(b"x", 4096).unwrap();
        assert_eq!((Frame::Request.number(&file), Frame::Request.read(&file)), (5, None));
        Frame::Request.write(&file, 6, b"").unwrap();
        assert_eq!(Frame::Request.read(&file), Some((6, Vec::new())));
    }

    #[test]
    fn lies_are_none() {
        let file = file();
        for words in [[0, 0, 0], [1, u64::MAX, 0], [1, MAX_BODY as u64 + 1, 0], [u64::MAX, 8, 8]] {
            let bytes: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
            file.write_all_at(&bytes, 64).unwrap();
            assert_eq!(Frame::Request.read(&file), None, "{words:?}");
        }
        for len in [0, 3, 64, 70, 4100] {
            Frame::Request.write(&file, 5, b"hello").unwrap();
            file.set_len(len).unwrap();
            assert_eq!(Frame::Request.read(&file), None, "truncated to {len}");
        }
        file.set_len(8).unwrap();
        assert_eq!(identity_in(&file), None);
    }
}
