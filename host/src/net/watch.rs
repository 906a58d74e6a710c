//! What policies hear of NCCL's calls: [`asked`] before a connect, [`told`] after calls that make, close or register something,
//! [`began`] and [`finished`] around a transfer.
//!
//! A call that only says "try again" is not told. Whatever a policy does, the plugin's answer goes to NCCL unchanged; only a
//! connect can be denied.

use super::conn::{CONNS, Conn};
use super::requests::{Request, RequestKey};
use super::scope::{Patience, SCOPES, Scope};
use super::table::{Found, Table, address, pointer};
use crate::memory::monotonic_ns;
use ringfence_guest::abi::{NetContext, UNSET, net_op, net_verdict};
use std::ffi::c_void;

/// One call of NCCL's, as far as policies are told. What does not apply is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    /// As in `net_op`.
    pub(crate) op: u32,
    /// Number of the connection.
    pub(crate) conn: u64,
    /// Device of the plugin below.
    pub(crate) dev: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Of the first transfer of a group.
    pub(crate) tag: u32,
    /// Transfers of the group.
    pub(crate) count: u32,
    /// What the plugin below returned.
    pub(crate) result: u32,
    /// NCCL is going to call `irecvConsumed` with the request.
    pub(crate) consumed: bool,
}

impl Call {
    fn context(&self) -> NetContext {
        NetContext {
            comm_id: 0,
            conn: self.conn,
            size: self.size,
            time_ns: monotonic_ns(),
            latency_ns: 0,
            op: self.op,
            dev: self.dev,
            tag: self.tag,
            count: self.count,
            in_flight: 0,
            result: self.result,
            attr_op: UNSET,
            attr_algo: UNSET,
            attr_proto: UNSET,
            verdict: net_verdict::ALLOW,
        }
    }
}

/// Asks whether a connection may be made: true if not. Asked at every call of NCCL's, which repeats it until the connection stands.
pub(crate) fn asked(scope: &Scope, call: &Call) -> bool {
    scope.wants(call.op) && scope.run(call.context(), Patience::Ample) == net_verdict::DENY
}

/// Tells of a call that is not a transfer.
pub(crate) fn told(scope: &Scope, call: &Call) {
    if scope.wants(call.op) {
        scope.run(call.context(), Patience::Ample);
    }
}

/// Notes a connection that the plugin below has made, tells of it, and returns what NCCL gets for it: the plugin's own
/// pointer if there is no room, and then nobody hears of its transfers.
pub(crate) fn established(scope_key: u64, inner: *mut c_void, call: &Call) -> *mut c_void {
    let Some(key) = CONNS.insert(|conn| conn.open(inner, scope_key, call.dev)) else { return inner };
    if let (Found::Ours(scope), Found::Ours(conn)) = (SCOPES.find(scope_key), CONNS.find(key)) {
        told(scope, &Call { conn: conn.number(), ..*call });
    }
    pointer(key)
}

/// After the plugin below took a transfer on (or refused it: `raw` is null and `call.result` says why). Returns what NCCL gets instead of
/// `raw`, if the request is to be followed.
pub(crate) fn began(key: u64, conn: &Conn, call: &Call, raw: *mut c_void) -> Option<*mut c_void> {
    let offers = crate::reload::offers();
    let Found::Ours(scope) = SCOPES.find(conn.scope()) else {
        conn.hush(offers);
        return None;
    };
    if !scope.wants_transfers() {
        if scope.is_settled(offers) {
            conn.hush(offers);
        }
        return None;
    }
    if raw.is_null() && call.result == 0 {
        return None;
    }
    let mut context = Call { conn: conn.number(), dev: conn.dev(), ..*call }.context();
    let followed = (call.result == 0).then(|| note(key, conn, call, raw, context.time_ns)).flatten();
    context.in_flight = conn.requests.in_flight();
    if scope.wants(call.op) {
        scope.run(context, Patience::Little);
    }
    followed
}

fn note(key: u64, conn: &Conn, call: &Call, raw: *mut c_void, started: u64) -> Option<*mut c_void> {
    let Call { size, tag, count, op, .. } = *call;
    let index = Table::<Conn>::index(key);
    let noted = conn.requests.begin(index, &Request { raw, started, size, tag, count, op }, call.consumed)?;
    Some(pointer(noted.key()))
}

/// A followed request that NCCL asks about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    key: RequestKey,
    /// As it was noted.
    pub(crate) request: Request,
}

/// Looks up a request of NCCL's: a followed one, or what else it is.
#[inline]
pub(crate) fn request(held: *mut c_void) -> Result<Option<Done>, ()> {
    let Some(key) = RequestKey::parse(address(held)) else { return Ok(None) };
    let noted = CONNS.at(key.conn).and_then(|conn| conn.requests.find(key));
    noted.map(|request| Some(Done { key, request })).ok_or(())
}

/// What the plugin below calls a receive of NCCL's that was consumed; the error if it is none that is still owed.
pub(crate) fn consumed(held: *mut c_void) -> Result<*mut c_void, ()> {
    let Some(key) = RequestKey::parse(address(held)) else { return Ok(held) };
    CONNS.at(key.conn).and_then(|conn| conn.requests.consume(key)).ok_or(())
}

/// After the plugin below said that a request is done (`result` 0; `size` is what it says it transferred), or failed.
pub(crate) fn finished(done: &Done, result: u32, size: u64) {
    let Some(conn) = CONNS.at(done.key.conn) else { return };
    if result == 0 {
        conn.requests.end(done.key);
    }
    let Found::Ours(scope) = SCOPES.find(conn.scope()) else { return };
    if !scope.wants(net_op::TEST_DONE) {
        return;
    }
    let Request { started, tag, count, .. } = done.request;
    let (op, conn_number, dev) = (net_op::TEST_DONE, conn.number(), conn.dev());
    let call = Call { op, conn: conn_number, dev, size, tag, count, result, consumed: false };
    let mut context = call.context();
    context.latency_ns = context.time_ns.saturating_sub(started);
    context.in_flight = conn.requests.in_flight();
    scope.run(context, Patience::Little);
}
