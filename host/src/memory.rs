//! `GuestMemory`, `SharedBytes` and [`prepare_thread`]: the only `unsafe` code of the runtime.
//!
//! # Why it exists
//! Three things cannot be done in safe Rust at the price that the decision path can pay.
//!
//! 1. **The private memory of an instance** holds the policy's stack and context. Wasmtime's safe `Memory::data_mut`
//!    finds the base and the length again through the store at every call, twice. The private memory has
//!    minimum = maximum, so neither ever changes: `GuestMemory` reads them once. It is made only by
//!    `GuestMemory::attach`, which puts it *into* the store's own data, cannot be cloned, and is reached only by
//!    borrowing the store; hence it is never used after the store, nor while Wasm code runs (which borrows the
//!    store mutably), except by a host function that this very code called, on the same thread.
//! 2. **The memory of a map** is shared by all communicators, each with a store of its own and perhaps a thread of its
//!    own. Wasmtime gives its bytes as `&[UnsafeCell<u8>]`. `SharedBytes` touches them by 64-bit atomics
//!    alone (relaxed but for spin locks), one width for all host accesses, so an aligned word is never torn and no access is a data race in
//!    Rust's sense. The other party is machine code made from Wasm, whose plain loads and stores are
//!    defined to be non-tearing relaxed accesses by the Wasm threads proposal.
//! 3. **The signal stack.** Wasmtime gives each thread that runs Wasm a 256 KiB alternate signal stack, if the thread
//!    has none of that size, in place of the one that the host program installed. We raise no signals, so
//!    [`prepare_thread`] shows it a large one for a moment and then puts the host's back. (Four more things live here
//!    for the same reason: the clock, the number of the processor, the thread pointer, and a fence for all threads.)
//!
//! Nothing here trusts the policy: every offset that comes from a policy is checked against the length.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use wasmtime::{Memory, SharedMemory, Store};

/// The private memory of an instance: base and length, read once.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointed-to memory is owned by the store in whose data this value lives (see `attach`), and a `Store` is
// itself `Send`; the value has no thread affinity.
unsafe impl Send for GuestMemory {}
// SAFETY: `&GuestMemory` only reads; every write takes `&mut`, and Wasm code runs only under `&mut Store`.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Puts the view of `memory` into the data of the store that owns it, at `slot`.
    ///
    /// `memory` must have minimum = maximum (checked by the caller when the module was compiled), so that it is
    /// never moved. Crate rule: nobody takes the value out of the store's data (`Store::into_data` is never called).
    pub(crate) fn attach<T: 'static>(
        store: &mut Store<T>,
        memory: &Memory,
        slot: impl FnOnce(&mut T) -> &mut Option<GuestMemory>,
    ) {
        let (base, len) = (memory.data_ptr(&*store), memory.data_size(&*store));
        *slot(store.data_mut()) = NonNull::new(base).map(|base| GuestMemory { base, len });
    }

    /// Is `offset..offset + size` inside?
    #[inline]
    fn holds(&self, offset: u32, size: usize) -> bool {
        (offset as usize).checked_add(size).is_some_and(|end| end <= self.len)
    }

    /// The bytes `offset..offset + size`; `None` outside the memory.
    #[inline]
    pub(crate) fn bytes(&self, offset: u32, size: usize) -> Option<&[u8]> {
        if !self.holds(offset, size) {
            return None;
        }
        // SAFETY: range checked; the slice borrows `self`, hence the store, so Wasm cannot run and write while it lives.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(offset as usize).as_ptr(), size) })
    }

    /// The bytes `offset..offset + size` for writing; `None` outside the memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, offset: u32, size: usize) -> Option<&mut [u8]> {
        if !self.holds(offset, size) {
            return None;
        }
        // SAFETY: range checked; the slice borrows `self` mutably, hence the store, so it is the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.add(offset as usize).as_ptr(), size) })
    }
}

/// The bytes of a map's shared memory, as 64-bit words.
pub(crate) struct SharedBytes {
    words: NonNull<AtomicU64>,
    len: usize,
    /// Owns the memory; a shared memory is neither moved nor freed while a handle is left.
    memory: SharedMemory,
}

// SAFETY: all access is by atomics on memory that `memory` keeps alive; `SharedMemory` itself is `Send + Sync`.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// A view of a whole shared memory; `None` if its base is not aligned to 8 (it is aligned to a page).
    pub(crate) fn new(memory: SharedMemory) -> Option<SharedBytes> {
        let bytes = memory.data();
        let words = NonNull::new(bytes.as_ptr() as *mut AtomicU64)?;
        let len = bytes.len() / 8;
        words.as_ptr().is_aligned().then_some(SharedBytes { words, len, memory })
    }

    /// The memory, for importing it into a module.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    #[inline]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.len {
            return None;
        }
        // SAFETY: `index < len`, so the word lies in the memory, which `self.memory` keeps alive; the base is aligned
        // (checked in `new`). Shared access through `AtomicU64` is what `UnsafeCell<u8>` of `data()` permits. All host accesses have
        // this one width, so Rust never sees atomics of two sizes on one byte.
        Some(unsafe { self.words.add(index).as_ref() })
    }

    /// Word `index` (bytes `8 * index ..`), little-endian; `None` outside the memory.
    #[inline]
    pub(crate) fn load(&self, index: usize) -> Option<u64> {
        self.word(index).map(|w| u64::from_le(w.load(Relaxed)))
    }

    /// Stores word `index`; outside the memory nothing happens.
    #[inline]
    pub(crate) fn store(&self, index: usize, value: u64) {
        if let Some(w) = self.word(index) {
            w.store(value.to_le(), Relaxed);
        }
    }

    /// Stores word `index`, but for the bits of `keep`, which stay as they are.
    #[inline]
    pub(crate) fn merge(&self, index: usize, keep: u64, value: u64) {
        if let Some(w) = self.word(index) {
            let mix = |old: u64| Some((u64::from_le(old) & keep | value & !keep).to_le());
            // Never refused: the closure always has a new value.
            let _ = w.fetch_update(Relaxed, Relaxed, mix);
        }
    }

    /// Takes the spin lock of 4 bytes at byte `offset`; true if it was free.
    #[inline]
    pub(crate) fn try_lock(&self, offset: u32) -> bool {
        let (index, shift) = (offset as usize / 8, offset % 8 * 8);
        let free = |old: u64| (u64::from_le(old) >> shift) as u32 == 0;
        self.word(index)
            .is_some_and(|w| free(w.load(Relaxed)) && free(w.fetch_or((1u64 << shift).to_le(), Acquire)))
    }

    /// Gives back the spin lock of 4 bytes at byte `offset`.
    #[inline]
    pub(crate) fn unlock(&self, offset: u32) {
        let (index, shift) = (offset as usize / 8, offset % 8 * 8);
        if let Some(w) = self.word(index) {
            w.fetch_and((!(u64::from(u32::MAX) << shift)).to_le(), Release);
        }
    }

    /// The eight bytes from byte `offset`, which need not be aligned (two words are read then). Bytes past the end of
    /// the memory read as zero; `None` if the first byte is outside.
    #[inline]
    pub(crate) fn load_at(&self, offset: u32) -> Option<u64> {
        let (index, shift) = (offset as usize / 8, offset % 8 * 8);
        let low = self.load(index)? >> shift;
        if shift == 0 {
            return Some(low);
        }
        Some(low | self.load(index + 1).unwrap_or(0) << (64 - shift))
    }

    /// Bytes of the memory.
    pub(crate) fn len(&self) -> usize {
        self.len * 8
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

/// What tells this thread from the others that are alive: the thread pointer, never 0. One instruction, where a
/// thread-local of a library that was opened at run time costs a call.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: the x86-64 psABI (TLS, variant II) keeps the thread pointer itself at %fs:0; reading it changes nothing.
        unsafe {
            std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

/// Wasmtime's own idea of a large enough alternate signal stack.
const SIGNAL_STACK: usize = 256 << 10;

thread_local! {
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread ready to run policies: once per thread 8 to 23 us, then about 1 ns. Without it, the first call on a
/// thread would replace the host's alternate signal stack, and hold 260 KiB for the thread's life.
#[inline]
pub fn prepare_thread() {
    if !PREPARED.get() {
        prepare_slowly();
        PREPARED.set(true);
    }
}

#[cold]
fn prepare_slowly() {
    let lent = LentStack::install();
    wasmtime::Engine::tls_eager_initialize();
    drop(lent);
}

/// A large alternate signal stack in place of the thread's own, until dropped.
struct LentStack {
    own: libc::stack_t,
    lent: NonNull<libc::c_void>,
}

impl LentStack {
    /// `None` when the thread's stack is large enough, is in use just now, or memory is short: wasmtime then does what it
    /// always does, which works too.
    fn install() -> Option<LentStack> {
        let mut own = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: the first argument may be null, the second points to a live `stack_t`.
        if unsafe { libc::sigaltstack(ptr::null(), &mut own) } != 0 {
            return None;
        }
        let large = own.ss_flags & libc::SS_DISABLE == 0 && own.ss_size >= SIGNAL_STACK;
        if large || own.ss_flags & libc::SS_ONSTACK != 0 {
            return None;
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
        let map = unsafe { libc::mmap(ptr::null_mut(), SIGNAL_STACK, prot, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        let stack = LentStack { own, lent: NonNull::new(map)? };
        let new = libc::stack_t { ss_sp: map, ss_flags: 0, ss_size: SIGNAL_STACK };
        // SAFETY: `new` describes the mapping above, which lives until `drop` has put the old stack back. On failure the
        // old stack is still in place, and `drop` installs the same one again.
        let rc = unsafe { libc::sigaltstack(&new, ptr::null_mut()) };
        (rc == 0).then_some(stack)
    }
}

impl Drop for LentStack {
    fn drop(&mut self) {
        // SAFETY: `own` was reported by the kernel for this thread. A handler cannot be running on the lent stack here, since
        // this very thread is running this code. If restoring fails the mapping must stay, so it is leaked then.
        unsafe {
            if libc::sigaltstack(&self.own, ptr::null_mut()) == 0 {
                libc::munmap(self.lent.as_ptr(), SIGNAL_STACK);
            }
        }
    }
}

/// Nanoseconds of the monotonic clock, as the kernel's `bpf_ktime_get_ns`. No system call: the vDSO answers.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the second argument points to a live `timespec`. The call cannot fail for this clock; if it did, `now` stays 0.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Commands of membarrier(2) (include/uapi/linux/membarrier.h).
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: three integers, which is what the call takes; it touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Can this system force a fence upon the threads of a process? The first time it may take some milliseconds.
pub(crate) fn can_fence_all_threads() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Makes every running thread of this process pass a full fence before it returns; false if it could not. Some microseconds, and
/// an interrupt on each processor that runs one: not for the decision path.
pub(crate) fn fence_all_threads() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// Number of the processor that this thread runs on; 0 where the system does not tell.
#[inline]
pub(crate) fn current_cpu() -> u32 {
    // SAFETY: takes and touches no memory of ours.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use wasmtime::MemoryType;

    fn stack_now() -> (usize, usize, i32) {
        let mut s = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: the second argument points to a live `stack_t`.
        assert_eq!(unsafe { libc::sigaltstack(ptr::null(), &mut s) }, 0);
        (s.ss_sp as usize, s.ss_size, s.ss_flags)
    }

    #[test]
    fn host_signal_stack_survives() {
        std::thread::spawn(|| {
            let before = stack_now();
            prepare_thread();
            assert_eq!(stack_now(), before);
            prepare_thread();
            assert_eq!(stack_now(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn shared_words_and_bytes() {
        let engine = Engine::global().unwrap();
        let memory = SharedMemory::new(engine.wasmtime(), MemoryType::shared(1, 1)).unwrap();
        let bytes = SharedBytes::new(memory).unwrap();
        let last = bytes.len() / 8 - 1;
        bytes.store(0, 0x0807_0605_0403_0201);
        bytes.store(1, 0x100f_0e0d_0c0b_0a09);
        bytes.store(last, u64::MAX);
        bytes.store(last + 1, 7);
        assert_eq!(bytes.load_at(0), Some(0x0807_0605_0403_0201));
        assert_eq!(bytes.load_at(3), Some(0x0b0a_0908_0706_0504));
        assert_eq!(bytes.load_at(65535), Some(0xff));
        assert_eq!(bytes.load_at(65536), None);
        assert_eq!(bytes.load(last + 1), None);
    }

    #[test]
    fn guest_memory_is_bounded() {
        let engine = Engine::global().unwrap();
        let mut store = Store::new(engine.wasmtime(), None);
        let memory = Memory::new(&mut store, MemoryType::new(1, Some(1))).unwrap();
        GuestMemory::attach(&mut store, &memory, |slot| slot);
        let m = store.data_mut().as_mut().unwrap();
        m.bytes_mut(65528, 8).unwrap().copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        for outside in [65529, 65535, 65536, u32::MAX] {
            assert!(m.bytes_mut(outside, 8).is_none());
            assert!(m.bytes(outside, 8).is_none());
        }
        assert_eq!(m.bytes(65534, 2), Some(&[2u8, 1][..]));
        assert_eq!(m.bytes(65534, 3), None);
        assert_eq!(m.bytes(0, usize::MAX), None);
        assert!(m.bytes_mut(65536, 0).is_some_and(|b| b.is_empty()));
    }
}
