//! When policies come and go: with the contexts of net v11 and later; for older versions, which have no `finalize`, with the first
//! connection and the last.

use crate::decision::CommInfo;
use crate::endpoint::{Endpoint, Role};
use crate::ffi::logger::NcclLogger;
use crate::ffi::types::{Logger, NcclResult};
use crate::host::tell;
use crate::net::{self, Call, Found, SCOPES, Scope, pointer};
use ringfence_guest::abi::net_op;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The scope of all connections that NCCL makes without a context.
struct Shared {
    /// 0 while there is none.
    key: u64,
    connections: usize,
    logger: Option<NcclLogger>,
}

impl Shared {
    fn key(&mut self) -> u64 {
        if self.key == 0 {
            self.key = join(0, std::ptr::null_mut(), -1, self.logger).unwrap_or(0);
        }
        self.key
    }
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { key: 0, connections: 0, logger: None });

fn lock() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the context of a communicator: what NCCL gets. If there is no room, that is the plugin's own.
///
/// # Safety
/// `logger` is NCCL's, which stays loaded while it has communicators.
pub(super) unsafe fn open(
    comm_id: u64,
    inner: *mut c_void,
    traffic_class: i32,
    logger: Option<Logger>,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let logger = unsafe { NcclLogger::new(logger) };
    join(comm_id, inner, traffic_class, logger).map_or(inner, pointer)
}

fn join(comm_id: u64, inner: *mut c_void, traffic_class: i32, logger: Option<NcclLogger>) -> Option<u64> {
    let info = CommInfo { comm_id, ..CommInfo::default() };
    let mut endpoint = Some(Endpoint::join(Role::Net, info, logger));
    let key = SCOPES.insert(|scope| {
        endpoint = endpoint.take().and_then(|endpoint| scope.open(endpoint, inner, traffic_class));
    });
    if let Some(rest) = endpoint {
        rest.leave();
    }
    if let Some(Found::Ours(scope)) = key.map(|key| SCOPES.find(key)) {
        net::told(scope, &Call { op: net_op::INIT, ..Call::default() });
    }
    key
}

/// Ends a context; `rc` is what the plugin's `finalize` said.
pub(super) fn close(key: u64, rc: NcclResult) {
    if let Found::Ours(scope) = SCOPES.find(key) {
        let result = u32::try_from(rc).unwrap_or(0);
        net::told(scope, &Call { op: net_op::FINALIZE, result, ..Call::default() });
    }
    let Some((endpoint, missed)) = SCOPES.remove(key, Scope::close) else { return };
    if missed > 0 {
        tell!(
            Info,
            "net policies missed {missed} events, because two threads were busy with one communicator"
        );
    }
    if let Some(endpoint) = endpoint {
        endpoint.leave();
    }
}

/// The logger that `init` of v10 and before was given, for later.
///
/// # Safety
/// As [`open`].
pub(super) unsafe fn remember_logger(logger: Option<Logger>) {
    // SAFETY: as the caller promises.
    lock().logger = unsafe { NcclLogger::new(logger) };
}

/// The scope for connections without a context; made with the first of them.
pub(super) fn shared() -> u64 {
    lock().key()
}

/// One more connection without a context; returns the scope that it belongs to.
pub(super) fn hold() -> u64 {
    let mut shared = lock();
    shared.connections += 1;
    shared.key()
}

/// One less; with the last the policies go, and with them the reload thread.
pub(super) fn release() {
    let mut shared = lock();
    shared.connections = shared.connections.saturating_sub(1);
    if shared.connections > 0 {
        return;
    }
    let key = std::mem::take(&mut shared.key);
    drop(shared);
    close(key, 0);
}
