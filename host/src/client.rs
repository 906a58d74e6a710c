//! [`Client`]: how a library that is no part of NCCL asks policies for decisions of its own; [`ClientHook`]: one place where it
//! asks, with the chain of policies there. The C API (`host/capi`) is these two behind checked handles.

use crate::config::Source;
use crate::decision::CommInfo;
use crate::endpoint::{Endpoint, Ran, Role};
use crate::hooks::Hook;
use crate::host::{Host, ReloadReport};
use crate::maps::Map;
use crate::policy_set::LoadError;
use crate::schema::Schema;
use ringfence_translator::verify::RankLabel;
use std::fmt;
use std::sync::Arc;

/// A user of a host. While one is alive, the host watches its policies; the last one to go stops that.
#[derive(Debug)]
pub struct Client {
    host: &'static Host,
}

/// Who decides alike: what the library's communicator, or group of ranks, is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// A number that all ranks of the group share; 0 if there is none.
    pub id: u64,
    /// Ranks; 0 and 1 both mean this caller alone.
    pub n_ranks: u32,
    /// Nodes; 0 if nobody knows.
    pub n_nodes: u32,
}

/// Why a client or a hook could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// There are [`MAX_SOURCES`](crate::host::MAX_SOURCES) policy sources in this process already, or it is the child of a child of a
    /// child of a process that uses Ringfence.
    Full,
    /// No schema of that name was read, by [`Schema::intern`] or with a policy directory.
    UnknownHook(String),
    /// The library's context does not have the schema's size: they are of different versions.
    Size {
        /// The hook, and where its schema is from.
        hook: String,
        /// Bytes by the schema.
        schema: u32,
        /// Bytes by the library.
        library: usize,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Full => {
                f.write_str("too many policy sources in this process, or too many nested forks")
            }
            ClientError::UnknownHook(name) => {
                write!(
                    f,
                    "no schema for the hook {name:?}; name its file when opening, or in the policy directory's manifest"
                )
            }
            ClientError::Size { hook, schema, library } => write!(
                f,
                "the context of {hook} has {schema} bytes by its schema, and {library} by the caller; they are of different versions"
            ),
        }
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// A user of the host for `source`, or of the one that NCCL's plugin shares in this library (`RINGFENCE_POLICY`).
    /// A set that is refused does not fail it: hooks pass everything through until there is a good one, and
    /// [`Client::refusal`] says why.
    ///
    /// # Errors
    /// [`ClientError::Full`].
    pub fn open(source: Option<Source>) -> Result<Client, ClientError> {
        let host = match source {
            Some(source) => Host::open(source),
            None => Host::current(),
        };
        let host = host.ok_or(ClientError::Full)?;
        host.attach();
        Ok(Client { host })
    }

    /// The host.
    pub fn host(&self) -> &'static Host {
        self.host
    }

    /// Why the latest set was refused, if it was.
    pub fn refusal(&self) -> Option<LoadError> {
        self.host.last_reload().and_then(|r| r.outcome.err())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.host.detach();
    }
}

/// Opens a place where policies are asked, on the newest plan of `host`. `context_bytes` is what the library believes the context
/// to have; the schema must agree.
///
/// # Errors
/// [`ClientError::UnknownHook`], [`ClientError::Size`].
pub fn open_hook(
    host: &'static Host,
    name: &str,
    context_bytes: usize,
    group: &Group,
) -> Result<ClientHook, ClientError> {
    let schema = Schema::custom(name).ok_or_else(|| ClientError::UnknownHook(name.to_owned()))?;
    if context_bytes != schema.size() as usize {
        let hook = format!("{name} ({})", schema.file());
        return Err(ClientError::Size { hook, schema: schema.size(), library: context_bytes });
    }
    // A group must switch plans together, or not at all, where its ranks must agree on what is decided.
    let agreed = schema.decided().any(|f| f.rank == RankLabel::Uniform);
    let info = CommInfo {
        comm_id: group.id,
        n_ranks: if agreed { group.n_ranks.max(1) } else { 1 },
        n_nodes: group.n_nodes,
        ..CommInfo::default()
    };
    let mut end = host.join(Role::Library, info, None);
    end.reserve(context_bytes);
    Ok(ClientHook { schema, end, totals: Totals::default() })
}

/// What came of all decisions of a hook so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls of [`ClientHook::decide`].
    pub decisions: u64,
    /// Policies that submitted a decision.
    pub submitted: u64,
    /// Policies that were skipped: faults, and decisions that the schema does not allow.
    pub faults: u64,
}

/// One place where a library asks. Used by one thread at a time.
#[derive(Debug)]
pub struct ClientHook {
    schema: &'static Schema,
    end: Endpoint,
    totals: Totals,
}

impl ClientHook {
    /// The hook as data.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Asks the policies, in the order of the manifest. `ctx` is the context; its decided fields come in with the caller's own
    /// choice and are left as the chain decided. `None`, and `ctx` untouched, if it has not the context's size. Allocates nothing
    /// and takes no lock that others hold for long.
    pub fn decide(&mut self, ctx: &mut [u8]) -> Option<Ran> {
        if ctx.len() != self.schema.size() as usize {
            return None;
        }
        self.end.refresh();
        let ran = self.end.run(Hook::Custom(self.schema), ctx);
        self.totals.decisions += 1;
        self.totals.submitted += u64::from(ran.submitted);
        self.totals.faults += u64::from(ran.faults);
        Some(ran)
    }

    /// What came of all decisions so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Generation of the plan in use.
    pub fn generation(&self) -> u64 {
        self.end.plan().generation()
    }

    /// The map of that name which the policies here use.
    pub fn map(&self, name: &str) -> Option<Arc<Map>> {
        self.end.map(Hook::Custom(self.schema), name)
    }

    /// Takes the hook back. Not on a path that is in a hurry.
    pub fn close(self) {
        self.end.leave();
    }
}

/// Reads the host's source now, on this thread, instead of when its directory changes. The outcome of the newest attempt; `None`
/// if the host has no source or was never loaded.
pub fn reload(host: &'static Host) -> Option<ReloadReport> {
    host.reload_now();
    host.last_reload()
}
