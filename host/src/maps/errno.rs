//! [`Errno`], and the flags of an update, checked.

use ringfence_guest::abi::update;
use std::fmt;

/// Error number of a map operation, as the kernel's helpers return it (negative).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i64);

impl Errno {
    /// `-EPERM`: the map is read-only for policies.
    pub const PERM: Errno = Errno(-1);
    /// `-ENOENT`: no such key.
    pub const NOENT: Errno = Errno(-2);
    /// `-E2BIG`: the map is full, or the index of an array too large.
    pub const TOO_BIG: Errno = Errno(-7);
    /// `-EAGAIN`: no room in the ring buffer.
    pub const AGAIN: Errno = Errno(-11);
    /// `-EFAULT`: a pointer that points to no memory of the policy.
    pub const FAULT: Errno = Errno(-14);
    /// `-EBUSY`: other writers did not let go within a bounded spin, or the places of deleted entries are all still in use.
    pub const BUSY: Errno = Errno(-16);
    /// `-EEXIST`: the key is there already.
    pub const EXIST: Errno = Errno(-17);
    /// `-EINVAL`: unknown flags, wrong sizes, or an operation that this kind does not have.
    pub const INVAL: Errno = Errno(-22);

    /// The negative number that a helper leaves in r0.
    pub const fn code(self) -> i64 {
        self.0
    }
    /// `ENOENT` and so on.
    pub const fn name(self) -> &'static str {
        match self.0 {
            -1 => "EPERM",
            -2 => "ENOENT",
            -7 => "E2BIG",
            -11 => "EAGAIN",
            -14 => "EFAULT",
            -16 => "EBUSY",
            -17 => "EEXIST",
            _ => "EINVAL",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Errno {}

/// What an update does about a key that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateMode {
    Any,
    NoExist,
    Exist,
}

/// Flags of an update, checked as far as they do not depend on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpdateFlags {
    pub(crate) mode: UpdateMode,
    /// `BPF_F_LOCK`: under the spin lock in the value.
    pub(crate) locked: bool,
}

impl UpdateFlags {
    /// `lockable`: are the map's values such that they may have a lock (whether they do or not)?
    #[inline]
    pub(crate) fn parse(flags: u64, lockable: bool) -> Result<UpdateFlags, Errno> {
        let locked = lockable && flags & update::F_LOCK != 0;
        let mode = match if locked { flags & !update::F_LOCK } else { flags } {
            update::ANY => UpdateMode::Any,
            update::NOEXIST => UpdateMode::NoExist,
            update::EXIST => UpdateMode::Exist,
            _ => return Err(Errno::INVAL),
        };
        Ok(UpdateFlags { mode, locked })
    }
}
