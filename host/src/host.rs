//! [`Host`]: the one cell per process that NCCL's entry points share: the plan in force, the maps, the live communicators and the
//! reload thread.
//!
//! Lock order: the state's mutex first, then a communicator's slot. The reload thread is joined without holding either.
//! None of it is touched on the decision path.

use crate::config::{POLICY_VAR, Source};
use crate::decision::CommInfo;
use crate::endpoint::{Chain, Endpoint, FaultNote, Role, Shared};
use crate::engine::Engine;
use crate::ffi::guard;
use crate::ffi::logger::{NcclLogger, Severity};
use crate::hooks::Hook;
use crate::link;
use crate::log::{self, Level};
use crate::maps::MapRegistry;
use crate::policy::ContentHash;
use crate::policy_set::{LoadError, Plan, PolicySet};
use crate::profiler::{Needs, PROFILERS};
use crate::reload::{Reloader, SwitchPolicy};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Hosts of this process and of its ancestors by fork. A forked child must not use its parent's: a lock may be held by a
/// thread that does not exist here. Deeper nesting of processes that each use NCCL gets no policies.
static HOSTS: [OnceCell<Host>; 4] = [const { OnceCell::new() }; 4];

/// Hosts of libraries that name their own source, see [`Host::open`]. Never taken out: endpoints hold them as `'static`, and
/// nobody tells when the last caller that might come back is gone. Bounded by [`MAX_SOURCES`].
static NAMED: Mutex<Vec<&'static Host>> = Mutex::new(Vec::new());

/// Most sources that libraries may name in one process (and its forked children together).
pub const MAX_SOURCES: usize = 16;

static REPORTED_PANICS: AtomicU64 = AtomicU64::new(0);

/// The registry's own bound; the manifest's `map_memory` is checked per set.
const REGISTRY_BYTES: u64 = 16 << 30;

/// State of the plugin in one process.
pub struct Host {
    pid: u32,
    /// The source, if it is not what the environment says at the start.
    named: Option<Source>,
    state: Mutex<State>,
}

struct State {
    /// Endpoints that have joined and not left.
    users: usize,
    next_id: u64,
    source: Option<Source>,
    registry: Option<Arc<MapRegistry>>,
    plan: Arc<Plan>,
    endpoints: Vec<Arc<Shared>>,
    /// Plans before the one in force, the newest last, as long as somebody uses them.
    older: Vec<Weak<Plan>>,
    reloader: Option<Reloader>,
    last_reload: Option<ReloadReport>,
    attempts: u64,
    refusals: u64,
}

/// Outcome of the latest attempt to load a set, at the start or by reload.
#[derive(Clone, Debug)]
pub struct ReloadReport {
    /// Attempts in this process so far.
    pub attempt: u64,
    /// Wall time from reading to the offer, of which nothing is on the decision path.
    pub took: Duration,
    /// What is in force now, or why nothing changed.
    pub outcome: Result<Switched, LoadError>,
}

/// A successful load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Generation of the new plan.
    pub generation: u64,
    /// Hash of the new set.
    pub hash: ContentHash,
    /// Endpoints (communicators, one for each interface) that take the new plan at their next call.
    pub switched: usize,
    /// Endpoints that keep theirs until they end, see [`SwitchPolicy`].
    pub kept: usize,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host(process {})", self.pid)
    }
}

impl Host {
    /// The host of this process; `None` after more than three nested forks.
    pub fn current() -> Option<&'static Host> {
        let pid = std::process::id();
        HOSTS.iter().map(|cell| cell.get_or_init(|| Host::new(pid, None))).find(|host| host.pid == pid)
    }

    /// The host of this process for a source that its user names; the same one for the same path. `None` if there are
    /// [`MAX_SOURCES`] of them.
    pub fn open(source: Source) -> Option<&'static Host> {
        let pid = std::process::id();
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = named.iter().copied().find(|h| h.pid == pid && h.named.as_ref() == Some(&source));
        if known.is_some() || named.len() >= MAX_SOURCES {
            return known;
        }
        let host: &'static Host = Box::leak(Box::new(Host::new(pid, Some(source))));
        named.push(host);
        Some(host)
    }

    /// Was it made for a source that a library names?
    pub(crate) fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Was this host made by this process, and not by one that forked it? A child must not use its parent's.
    pub fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Counts a user that is no endpoint: the first one loads the set and starts the reload thread.
    pub(crate) fn attach(&'static self) {
        adopt_logger(None);
        let mut state = self.lock();
        if state.users == 0 {
            self.start(&mut state);
        }
        state.users += 1;
    }

    /// Takes back what [`Host::attach`] counted. The last user stops the reload thread.
    pub(crate) fn detach(&'static self) {
        if self.pid != std::process::id() {
            return;
        }
        let mut state = self.lock();
        state.users = state.users.saturating_sub(1);
        let reloader = if state.users == 0 { state.reloader.take() } else { None };
        drop(state);
        if let Some(reloader) = reloader {
            reloader.stop();
            release_logger(self);
        }
    }

    /// Reads the source on the caller's thread, as the reload thread does when the directory changes.
    pub(crate) fn reload_now(&self) {
        let source = self.lock().source.clone();
        if let Some(source) = source {
            self.reload(&source);
        }
    }

    fn new(pid: u32, named: Option<Source>) -> Host {
        let state = State {
            users: 0,
            next_id: 1,
            source: None,
            registry: None,
            plan: Arc::new(Plan::empty(0)),
            endpoints: Vec::new(),
            older: Vec::new(),
            reloader: None,
            last_reload: None,
            attempts: 0,
            refusals: 0,
        };
        Host { pid, named, state: Mutex::new(state) }
    }

    /// A new endpoint, on the newest plan. Never fails: what goes wrong is logged, and the endpoint passes everything through.
    pub(crate) fn join(&'static self, role: Role, info: CommInfo, logger: Option<NcclLogger>) -> Endpoint {
        adopt_logger(logger);
        let mut state = self.lock();
        if state.users == 0 {
            self.start(&mut state);
        }
        state.users += 1;
        let endpoint = state.admit(role, info, self);
        state.tell_profiler();
        let line = state.init_line(&endpoint);
        drop(state);
        line.into_iter().for_each(|line| write_line(Level::Info, &line));
        endpoint
    }

    /// Takes an endpoint back. The last one stops the reload thread, so that no thread of ours runs when NCCL closes
    /// the library.
    pub(crate) fn leave(&'static self, endpoint: Endpoint) {
        if self.pid != std::process::id() {
            // A forked child ends its parent's communicator: our threads and perhaps our lock are not here.
            return;
        }
        let mut state = self.lock();
        state.endpoints.retain(|shared| !Arc::ptr_eq(shared, endpoint.shared()));
        state.users = state.users.saturating_sub(1);
        let reloader = if state.users == 0 { state.reloader.take() } else { None };
        let last = state.users == 0;
        drop(state);
        report_faults(endpoint.shared());
        drop(endpoint);
        if let Some(reloader) = reloader {
            reloader.stop();
        }
        if last {
            release_logger(self);
        }
    }

    /// Outcome of the latest attempt to load a set.
    pub fn last_reload(&self) -> Option<ReloadReport> {
        self.lock().last_reload.clone()
    }

    /// The plan that new endpoints get.
    pub fn plan(&self) -> Arc<Plan> {
        self.lock().plan.clone()
    }

    /// Plans that came before it and that communicators still use, the newest first.
    pub fn older_plans(&self) -> Vec<Arc<Plan>> {
        self.lock().older.iter().rev().filter_map(Weak::upgrade).collect()
    }

    /// Sets that came into force, and sets that were refused, in this process so far.
    pub fn reload_counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.attempts - state.refusals, state.refusals)
    }

    /// Endpoints that are alive: for each communicator one for each interface that NCCL uses of ours.
    pub fn endpoints(&self) -> Vec<Arc<Shared>> {
        self.lock().endpoints.clone()
    }

    /// The maps of this process; `None` before the first set was loaded.
    pub fn maps(&self) -> Option<Arc<MapRegistry>> {
        self.lock().registry.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first communicator: reads the environment, loads the set, starts the reload thread.
    fn start(&'static self, state: &mut State) {
        let before = std::mem::replace(&mut state.source, self.named.clone().or_else(Source::from_env));
        let Some(source) = state.source.clone() else {
            state.plan = Arc::new(Plan::empty(state.plan.generation() + 1));
            return;
        };
        let begun = Instant::now();
        if before.as_ref() != Some(&source) {
            // What was in force came from elsewhere. Its maps go, unless the new set has the same.
            state.forget();
        }
        match state.load(&source) {
            Ok(None) => {}
            Ok(Some(switched)) => state.record(begun, Ok(switched)),
            Err(error) => {
                state.complain(&error);
                state.record(begun, Err(error));
            }
        }
        match Reloader::start(self, source) {
            Ok(reloader) => state.reloader = Some(reloader),
            Err(e) => tell!(Warn, "no reload thread ({e}): policies change only with the process"),
        }
    }

    /// Reload thread: reads the source again, and puts the set in force if it differs.
    pub(crate) fn reload(&self, source: &Source) {
        let begun = Instant::now();
        let built = source.read().map_err(LoadError::from).and_then(|read| {
            if self.lock().in_force(&read.hash()) { Ok(None) } else { PolicySet::build(read).map(Some) }
        });
        let mut state = self.lock();
        let outcome = match built {
            Ok(None) => return,
            Ok(Some(set)) => state.install(set),
            Err(error) => Err(error),
        };
        match outcome {
            Ok((switched, garbage)) => {
                state.announce(&switched, begun.elapsed());
                state.record(begun, Ok(switched));
                state.tell_profiler();
                drop(state);
                drop(garbage);
            }
            Err(error) => {
                state.complain(&error);
                state.record(begun, Err(error));
            }
        }
    }

    /// Reload thread, now and then: drops what communicators gave back, and reports faults.
    pub(crate) fn tick(&self) {
        for shared in self.endpoints() {
            drop(shared.slot().collect());
            report_faults(&shared);
        }
        let panics = guard::panics();
        if REPORTED_PANICS.swap(panics, Ordering::Relaxed) < panics {
            tell!(
                Error,
                "{panics} calls met a defect of Ringfence; their communicators go on with NCCL's own choice"
            );
        }
    }
}

impl State {
    /// NCCL is to tell of what the policies in force need: it calls no profiler whose mask is 0, so the plan cannot wait for a call.
    fn tell_profiler(&self) {
        PROFILERS.set_needs(Needs::of_plan(&self.plan));
    }

    fn in_force(&mut self, hash: &ContentHash) -> bool {
        let same = self.plan.set().hash() == *hash && self.registry.is_some();
        if same && self.last_reload.as_ref().is_some_and(|r| r.outcome.is_err()) {
            tell!(Info, "the policy directory holds the set in force again");
            self.last_reload = None;
        }
        same
    }

    /// All or nothing: makes the maps, and a chain for every communicator that may switch; only then offers them. Returns
    /// what offers pushed out, to be dropped without the lock.
    fn install(&mut self, set: PolicySet) -> Result<(Switched, Vec<Chain>), LoadError> {
        let registry = self.registry()?;
        let generation = self.plan.generation() + 1;
        let plan = Arc::new(Plan::new(generation, set, &registry)?);
        plan.short_of_fuel().iter().for_each(|line| tell!(Warn, "{line}"));
        let may_switch = |s: &&Arc<Shared>| s.switch_policy() == SwitchPolicy::NextCall;
        // What is asked once, when a communicator is made, was asked.
        let wanted = |s: &Shared, hook| s.role().serves(hook) && hook != Hook::TunerInit;
        let chains = self
            .endpoints
            .iter()
            .filter(may_switch)
            .map(|s| Ok((s, plan.chain(&registry, s.communicator(), |hook| wanted(s, hook))?)))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let switched = chains.len();
        let garbage =
            chains.into_iter().filter_map(|(shared, chain)| shared.slot().offer(generation, chain)).collect();
        plan.succeed(&self.plan);
        self.older.retain(|old| old.strong_count() > 0);
        self.older.push(Arc::downgrade(&self.plan));
        self.plan = plan.clone();
        let kept = self.endpoints.len() - switched;
        Ok((Switched { generation, hash: plan.set().hash(), switched, kept }, garbage))
    }

    fn registry(&mut self) -> Result<Arc<MapRegistry>, LoadError> {
        if let Some(registry) = &self.registry {
            return Ok(registry.clone());
        }
        let engine = Engine::global().map_err(LoadError::engine)?;
        let registry = Arc::new(MapRegistry::new(engine, REGISTRY_BYTES));
        self.registry = Some(registry.clone());
        Ok(registry)
    }

    fn admit(&mut self, role: Role, info: CommInfo, host: &'static Host) -> Endpoint {
        let id = self.next_id;
        self.next_id += 1;
        let communicator = link::number(role, info.comm_id, id);
        let made = match &self.registry {
            Some(registry) => self.plan.chain(registry, communicator, |hook| role.serves(hook)),
            None => Ok(Chain::empty(self.plan.clone())),
        };
        let chain = made.unwrap_or_else(|error| {
            tell!(Warn, "{} without policies, NCCL decides: {error}", role.name());
            Chain { incomplete: true, ..Chain::empty(self.plan.clone()) }
        });
        let shared = Arc::new(Shared::new(id, communicator, role, info, self.plan.generation()));
        self.endpoints.push(shared.clone());
        Endpoint::new(shared, chain, Some(host))
    }

    /// At the start: reads and builds the set; `None` if it is in force already, since earlier communicators.
    fn load(&mut self, source: &Source) -> Result<Option<Switched>, LoadError> {
        let read = source.read()?;
        if self.in_force(&read.hash()) {
            return Ok(None);
        }
        let (switched, _) = self.install(PolicySet::build(read)?)?;
        Ok(Some(switched))
    }

    /// Falls back to no policies.
    fn forget(&mut self) {
        self.plan = Arc::new(Plan::empty(self.plan.generation() + 1));
        self.registry = None;
        self.last_reload = None;
    }

    fn record(&mut self, begun: Instant, outcome: Result<Switched, LoadError>) {
        self.attempts += 1;
        self.refusals += u64::from(outcome.is_err());
        self.last_reload = Some(ReloadReport { attempt: self.attempts, took: begun.elapsed(), outcome });
    }

    fn announce(&self, done: &Switched, took: Duration) {
        let set = self.plan.set().describe();
        let (switched, kept) = (done.switched, done.kept);
        tell!(
            Info,
            "policy {set}; loaded in {took:.1?}; {switched} endpoints take it at their next call, {kept} keep theirs"
        );
    }

    fn complain(&self, error: &LoadError) {
        tell!(Warn, "policy refused, still in force: {}: {error}", self.plan.set().describe());
    }

    /// Is nothing in force because the set at hand was refused?
    fn was_refused(&self) -> bool {
        let refused = self.last_reload.as_ref().is_some_and(|r| r.outcome.is_err());
        refused && self.plan.set().policies().is_empty()
    }

    /// What NCCL's log says of a new endpoint. Endpoints other than tuners are worth a line if a policy stands there.
    fn init_line(&self, endpoint: &Endpoint) -> Option<String> {
        let version = env!("CARGO_PKG_VERSION");
        let (info, role) = (endpoint.info(), endpoint.shared().role());
        let chain = endpoint.chain();
        if role != Role::Tuner && chain.others.is_empty() && !chain.incomplete {
            return None;
        }
        let ranks = info.n_ranks;
        let whole = if chain.incomplete { " (not on this communicator)" } else { "" };
        let set = match &self.source {
            Some(_) if self.was_refused() => "none (refused, see the warning; NCCL decides)".to_owned(),
            Some(_) => format!("{}{whole}", self.plan.set().describe()),
            None => format!("none ({POLICY_VAR} is not set; NCCL decides)"),
        };
        let reload = match (endpoint.shared().switch_policy(), &self.reloader) {
            (_, None) => "off".to_owned(),
            (SwitchPolicy::NextCall, Some(_)) => "on".to_owned(),
            (SwitchPolicy::NewCommunicators, Some(_)) => format!("new communicators only ({ranks} ranks)"),
        };
        let role = if role == Role::Tuner { String::new() } else { format!(" {}", role.name()) };
        Some(format!(
            "Ringfence {version}{role}: policy {set}, comm {:#x}, {ranks} ranks; hot reload: {reload}",
            info.comm_id
        ))
    }
}

/// Says what a policy did wrong, once per generation and communicator.
fn report_faults(shared: &Shared) {
    let Some(FaultNote { plan, policy, call_seq, fault }) = shared.take_note() else { return };
    let name = plan.set().policies().get(policy).map_or("?", |p| p.name.as_str());
    let (id, total) = (shared.info().comm_id, shared.faults());
    tell!(
        Warn,
        "policy {name} faulted at call {call_seq} on comm {id:#x} and was skipped: {fault} ({total} faults so far; \
         the next report comes with the next policy)"
    );
}

/// NCCL's logger, of the newest communicator; `None` once the last one is gone, for NCCL may then be unloaded.
static LOGGER: Mutex<Option<NcclLogger>> = Mutex::new(None);

/// Writes a line to NCCL's log, which filters by `NCCL_DEBUG`, and to standard error as far as `RINGFENCE_LOG` says
/// and NCCL would not show it.
pub(crate) fn write_line(level: Level, text: &str) {
    let severity = match level {
        Level::Error | Level::Warn => Severity::Warn,
        Level::Info => Severity::Info,
        Level::Debug | Level::Trace => Severity::Trace,
    };
    // Copied out: NCCL's logger takes a lock of its own.
    let logger = *LOGGER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(logger) = logger {
        logger.line(severity, text);
    }
    if ECHO.load(Ordering::Relaxed) && log::enabled(level) {
        eprintln!("ringfence {}: {}", level.name(), text.strip_prefix("Ringfence: ").unwrap_or(text));
    }
}

/// `tell!(Warn, "...")`: a line that starts with the product's name.
macro_rules! tell {
    ($level:ident, $($arg:tt)+) => {
        $crate::host::write_line($crate::log::Level::$level, &format!("Ringfence: {}", format_args!($($arg)+)))
    };
}
pub(crate) use tell;

/// Do lines also go to standard error? Without `NCCL_DEBUG`, NCCL shows none, and a refused policy must not go unseen.
static ECHO: AtomicBool = AtomicBool::new(false);

/// From now on lines go to this logger, those of the runtime included. The environment is read here, on NCCL's thread,
/// and never on ours: somebody else's setenv at the same moment would be a race in the C library.
fn adopt_logger(logger: Option<NcclLogger>) {
    let echo = std::env::var_os("RINGFENCE_LOG").is_some() || std::env::var_os("NCCL_DEBUG").is_none();
    ECHO.store(echo, Ordering::Relaxed);
    log::enabled(Level::Error);
    if logger.is_some() {
        *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = logger;
        log::set_sink(Some(Arc::new(|level, text: &str| write_line(level, &format!("Ringfence: {text}")))));
    }
}

/// NCCL may be unloaded once its last communicator is gone.
fn release_logger(host: &Host) {
    if host.named.is_some() {
        // A library's host, which never had NCCL's logger.
        return;
    }
    let state = host.lock();
    if state.users == 0 {
        log::set_sink(None);
        *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
