//! The few system calls that the standard library does not offer, behind safe functions.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Flag for opening files that may be FIFOs.
pub(crate) const O_NONBLOCK: i32 = libc::O_NONBLOCK;

/// The effective user.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Is the file on a mount that is read-only here? False if that cannot be told.
pub(crate) fn on_read_only_mount(fd: BorrowedFd<'_>) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open for the length of the call, and `stat` is writable and of the right size.
    let rc = unsafe { libc::fstatvfs(fd.as_raw_fd(), stat.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `statvfs`, and a successful call has filled it.
    rc == 0 && unsafe { stat.assume_init() }.f_flag & libc::ST_RDONLY != 0
}

/// Waits until one of the descriptors is readable (or broken), or the time is over. Tells which are; a place without a
/// descriptor never is.
pub(crate) fn wait_readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Duration,
) -> io::Result<[bool; N]> {
    // poll(2) ignores negative descriptors.
    let number = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd());
    let mut polls = fds.map(|fd| libc::pollfd { fd: number(fd), events: libc::POLLIN, revents: 0 });
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `polls` is an array of N initialised pollfd; the descriptors are borrowed, hence open.
    let rc = unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, millis) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok([false; N]);
    }
    Ok(polls.map(|p| p.revents != 0))
}

/// What the dynamic loader says of the last failure in this thread, in one line.
pub(crate) fn last_dl_error() -> String {
    // SAFETY: dlerror takes nothing and gives null or a C string that lives until this thread's next call of the loader.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            None
        } else {
            Some(std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    text.map_or_else(|| "the loader does not say why".to_owned(), |t| t.replace('\n', " "))
}

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes three numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process for [`barrier_in_all_threads`]. False where the kernel has no such thing or a sandbox forbids it.
pub(crate) fn register_barrier() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Returns after every running thread of this process has passed a full memory barrier. A forked child inherits
/// the registration.
pub(crate) fn barrier_in_all_threads() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// Runs `f` with every signal blocked in this thread, so that a thread that `f` starts is born with all of them
/// blocked and never takes one that is meant for the job.
pub(crate) fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: `self.0` is the mask that pthread_sigmask stored.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are writable; sigfillset initialises the first before pthread_sigmask reads it, and
    // pthread_sigmask (which cannot fail with a valid `how`) the second before it is read back.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        Restore(old.assume_init())
    };
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn waiting_tells_which_is_readable() {
        let (a, _keep) = io::pipe().unwrap();
        let (b, mut write) = io::pipe().unwrap();
        let (first, second) = (Some(a.as_fd()), Some(b.as_fd()));
        let none = wait_readable([first, second], Duration::from_millis(1)).unwrap();
        assert_eq!(none, [false, false]);
        write.write_all(b"x").unwrap();
        let one = wait_readable([first, None, second], Duration::from_secs(5)).unwrap();
        assert_eq!(one, [false, false, true]);
        drop(write);
        assert_eq!(wait_readable([second], Duration::from_secs(5)).unwrap(), [true]);
    }

    #[test]
    fn a_thread_is_born_with_signals_blocked_and_ours_come_back() {
        let blocked = || {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: a null new mask asks only; `set` is writable and initialised by the call.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
                libc::sigismember(set.as_ptr(), libc::SIGUSR1) == 1
            }
        };
        assert!(!blocked());
        let inside = with_signals_blocked(|| std::thread::spawn(blocked)).join().unwrap();
        assert!(inside);
        assert!(!blocked());
    }

    #[test]
    fn a_temporary_file_is_not_on_a_read_only_mount() {
        let file = tempfile::tempfile().unwrap();
        assert!(!on_read_only_mount(file.as_fd()));
    }
}
