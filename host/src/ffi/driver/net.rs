//! [`Net`] and [`Pair`]: NCCL's side of the net interface: a plugin at one version, and a connection of which both ends are here.

use crate::ffi::library::Library;
use crate::ffi::net::chain::Below;
use crate::ffi::net::down::{Down, Sizes};
use crate::ffi::net::types::CommConfig;
use crate::ffi::types::SUCCESS;
use std::ffi::{CString, c_int, c_void};
use std::path::Path;
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// What NCCL would see: a result code that is not 0.
pub type Code = i32;

/// Polls until something is given up that never comes.
const PATIENCE: usize = 1_000_000;
/// `NCCL_PTR_HOST`.
const HOST: c_int = 1;

/// A net plugin, called as NCCL calls one of its version. It is never closed.
pub struct Net {
    below: Below,
}

/// The context of a communicator.
#[derive(Clone, Copy, Debug)]
pub struct NetComm(usize);

fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

fn pointer(address: usize) -> *mut c_void {
    with_exposed_provenance_mut(address)
}

impl Net {
    /// Opens a library at a version (6 to 12); `None` if it does not open or does not export that version.
    pub fn open(path: impl AsRef<Path>, version: usize) -> Option<Net> {
        let library = Library::open(path.as_ref().as_os_str(), "libnccl-net").ok()?;
        let symbol = CString::new(format!("ncclNetPlugin_v{version}")).ok()?;
        library.symbol(&symbol).map(|table| Net { below: Below::new(version, table) })
    }

    /// The tables of this very process, without a library: for tests that look into the host's maps.
    pub fn linked(version: usize) -> Option<Net> {
        Below::own(version).map(|below| Net { below })
    }

    fn down(&self) -> Result<&Down, Code> {
        self.below.down().ok_or(-1)
    }

    /// Calls `init`.
    ///
    /// # Errors
    /// What it returns.
    pub fn init(&self, comm_id: u64) -> Result<NetComm, Code> {
        let mut context = null_mut();
        let mut config = CommConfig { traffic_class: -1 };
        let logger = Some(super::logger());
        // SAFETY: NCCL's arguments; the pointers are to locals.
        check(unsafe { self.below.init(true, &mut context, comm_id, &mut config, logger, None) })?;
        Ok(NetComm(context.expose_provenance()))
    }

    /// Calls `devices`.
    ///
    /// # Errors
    /// What it returns.
    pub fn devices(&self) -> Result<i32, Code> {
        let mut count = -1;
        // SAFETY: as above.
        check(unsafe { (self.down()?.devices)(&mut count) })?;
        Ok(count)
    }

    /// Calls `finalize`, where the version has it.
    ///
    /// # Errors
    /// What it returns.
    pub fn finalize(&self, context: NetComm) -> Result<(), Code> {
        // SAFETY: the plugin's own context, given back once (the type is `Copy` so that tests can do worse).
        check(unsafe { self.below.finalize(pointer(context.0)) })
    }

    /// Connects two ends: `listen`, then `connect` and `accept` in turns, as two proxies would.
    ///
    /// # Errors
    /// What one of them returns; what was made until then is closed.
    pub fn pair(&self, context: NetComm, dev: i32) -> Result<Pair<'_>, Code> {
        let down = self.down()?;
        let (mut handle, context) = ([0u64; 16], pointer(context.0));
        let handle = handle.as_mut_ptr().cast();
        let mut pair = Pair { down, listen: null_mut(), send: null_mut(), recv: null_mut() };
        let mut config = CommConfig { traffic_class: -1 };
        let (mut a, mut b) = (null_mut(), null_mut());
        // SAFETY: NCCL's arguments; the handle has 128 bytes, the other pointers are to locals.
        check(unsafe { down.listen(context, dev, handle, &mut pair.listen) })?;
        for _ in 0..PATIENCE {
            if pair.send.is_null() {
                // SAFETY: as above.
                check(unsafe { down.connect(context, &mut config, dev, handle, &mut pair.send, &mut a) })?;
            }
            if pair.recv.is_null() {
                // SAFETY: as above; the listening end is the plugin's.
                check(unsafe { down.accept(pair.listen, &mut pair.recv, &mut b) })?;
            }
            if !pair.send.is_null() && !pair.recv.is_null() {
                return Ok(pair);
            }
        }
        Err(-1)
    }
}

/// A connection with both of its ends. Dropped, it is closed.
pub struct Pair<'a> {
    down: &'a Down,
    listen: *mut c_void,
    send: *mut c_void,
    recv: *mut c_void,
}

impl Pair<'_> {
    /// Sends `data` and receives it: registers memory, posts both ends, and tests them in turns until both are done.
    ///
    /// # Errors
    /// What a call returns; -1 if it never ends, -2 if other bytes came out.
    pub fn transfer(&mut self, data: &mut [u8], tag: i32) -> Result<(), Code> {
        let mut out = vec![0u8; data.len()];
        let (from, to) = (data.as_mut_ptr().cast::<c_void>(), out.as_mut_ptr().cast::<c_void>());
        let (mut ms, mut mr) = (null_mut(), null_mut());
        // SAFETY: the plugin's own ends; the memory lives until it is taken back below.
        unsafe {
            check(self.down.reg_mr(self.send, from, data.len(), HOST, &mut ms))?;
            check(self.down.reg_mr(self.recv, to, out.len(), HOST, &mut mr))?;
        }
        let (s, r) = (self.isend(from, data.len(), tag, ms)?, self.irecv(to, out.len(), tag, mr)?);
        let (mut sent, mut received) = (false, None);
        for _ in 0..PATIENCE {
            sent = sent || self.test(s)?.is_some();
            received = received.or(self.test(r)?.filter(|_| received.is_none()));
            if sent && received.is_some() {
                break;
            }
        }
        // SAFETY: as above.
        unsafe {
            check((self.down.dereg_mr)(self.send, ms))?;
            check((self.down.dereg_mr)(self.recv, mr))?;
        }
        match received {
            Some(n) if sent && n == data.len() as i32 && out == data => Ok(()),
            Some(_) if sent => Err(-2),
            _ => Err(-1),
        }
    }

    /// Calls `isend` and `test` once each, `n` times, for plugins that finish at once: what the interface itself costs.
    ///
    /// # Errors
    /// What a call returns; -1 if one is not done at once.
    #[inline]
    pub fn send_and_test(&mut self, n: u64, bytes: usize) -> Result<(), Code> {
        let mut byte = 0u8;
        for _ in 0..n {
            let mut request = null_mut();
            let data = (&raw mut byte).cast();
            // SAFETY: such a plugin does not touch the data.
            check(unsafe {
                self.down.isend(self.send, data, bytes, 1, null_mut(), null_mut(), &mut request)
            })?;
            if self.test(request)?.is_none() {
                return Err(-1);
            }
        }
        Ok(())
    }

    fn isend(
        &self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mr: *mut c_void,
    ) -> Result<*mut c_void, Code> {
        let mut request = null_mut();
        for _ in 0..PATIENCE {
            // SAFETY: the plugin's own end and registration, memory that the caller keeps.
            check(unsafe { self.down.isend(self.send, data, size, tag, mr, null_mut(), &mut request) })?;
            if !request.is_null() {
                return Ok(request);
            }
        }
        Err(-1)
    }

    fn irecv(
        &self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mr: *mut c_void,
    ) -> Result<*mut c_void, Code> {
        let (mut data, mut size, mut tag, mut mr) = (data, size, tag, mr);
        let (mut request, mut phandle) = (null_mut(), null_mut());
        for _ in 0..PATIENCE {
            let sizes = Sizes::Size(&mut size);
            // SAFETY: as above, with arrays of one.
            check(unsafe {
                self.down.irecv(self.recv, 1, &mut data, sizes, &mut tag, &mut mr, &mut phandle, &mut request)
            })?;
            if !request.is_null() {
                return Ok(request);
            }
        }
        Err(-1)
    }

    /// Bytes, if the request is done.
    #[inline]
    fn test(&self, request: *mut c_void) -> Result<Option<i32>, Code> {
        let (mut done, mut size) = (0, 0);
        // SAFETY: the plugin's own request, of one transfer.
        check(unsafe { (self.down.test)(request, &mut done, &mut size) })?;
        Ok((done != 0).then_some(size))
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        // SAFETY: the plugin's own ends, closed once.
        unsafe {
            if !self.send.is_null() {
                (self.down.close_send)(self.send);
            }
            if !self.recv.is_null() {
                (self.down.close_recv)(self.recv);
            }
            if !self.listen.is_null() {
                (self.down.close_listen)(self.listen);
            }
        }
    }
}
