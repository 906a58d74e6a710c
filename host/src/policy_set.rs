//! [`PolicySet`]: everything that a source holds, verified and compiled, all or nothing; [`Plan`]: a set in force,
//! with its maps; [`LoadError`]: why a set was refused.

use crate::config::{ConfigError, Manifest, PolicyEntry, ScopeName, Source, SourceSet};
use crate::endpoint::{Chain, Seat};
use crate::engine::Engine;
use crate::error::Error;
use crate::hooks::Hook;
use crate::instance::{Instance, Limits};
use crate::maps::{DataOf, MapRegistry, MapSet, Owner, Scope, ScopeRules};
use crate::policy::{ContentHash, PolicyModule};
use ringfence_translator::verify::Verifier;
use ringfence_translator::{MapDecl, MapKind, Object, Rejection, Translator};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

mod link;

pub use link::TailSlot;
use link::{Linked, Members};

/// Most bytes of all maps of a set, unless its manifest says otherwise.
pub const DEFAULT_MAP_MEMORY: u64 = 256 << 20;

/// A policy of a set, as machine code, the targets of its tail calls included.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name in logs: the manifest's, or the file's.
    pub name: String,
    /// Its object, below the directory.
    pub file: String,
    /// The code.
    pub module: PolicyModule,
    /// Events that the manifest asks NCCL's profiler for, as its bits; 0 if it names none.
    pub events: u32,
    /// Operations that it hears of on the hook `net`, as bits.
    pub ops: u32,
    /// Where its tail calls lead, by map and slot.
    pub tails: Vec<TailSlot>,
    /// Whose the global data is that came with the targets of its tail calls, by map name.
    data: BTreeMap<String, DataOf>,
}

/// All policies of a source that are asked on their own, in the order of the chain.
#[derive(Clone, Debug)]
pub struct PolicySet {
    policies: Vec<Policy>,
    manifest: Manifest,
    hash: ContentHash,
}

impl PolicySet {
    /// No policies: NCCL decides alone.
    pub fn empty() -> PolicySet {
        let set = SourceSet { manifest: Manifest::default(), files: Vec::new(), schemas: Vec::new() };
        PolicySet { policies: Vec::new(), hash: set.hash(), manifest: set.manifest }
    }

    /// Reads a source as one version, then verifies, translates and compiles all of it.
    ///
    /// # Errors
    /// The first thing that is wrong with any part of it.
    pub fn load(source: &Source) -> Result<PolicySet, LoadError> {
        PolicySet::build(source.read()?)
    }

    /// Verifies, translates and compiles what was read.
    ///
    /// # Errors
    /// As [`PolicySet::load`].
    pub fn build(read: SourceSet) -> Result<PolicySet, LoadError> {
        let hash = read.hash();
        let engine = Engine::global().map_err(LoadError::engine)?;
        read.intern_schemas()?;
        let policies = Members::read(&read)?
            .linked()?
            .into_iter()
            .map(|linked| compile(engine, linked))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let set = PolicySet { policies, manifest: read.manifest, hash };
        set.check_map_memory()?;
        set.check_logged_maps()?;
        Ok(set)
    }

    /// The policies, in the order of the chain.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }
    /// What the manifest says, or stands for.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
    /// SHA-256 over everything that decides: order, names, hooks, programs, objects, limits, map rules, where tail calls lead. Comments
    /// and layout of the manifest do not count, so ranks that read equal policies have equal hashes.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// One line for logs: `size-aware+1 sha256:0123456789ab, hook tuner`.
    pub fn describe(&self) -> String {
        let Some(first) = self.policies.first() else { return "none (NCCL decides)".into() };
        let more = match self.policies.len() {
            1 => String::new(),
            n => format!("+{}", n - 1),
        };
        let mut hooks: Vec<&str> = Vec::new();
        for policy in &self.policies {
            if !hooks.contains(&policy.module.hook().name()) {
                hooks.push(policy.module.hook().name());
            }
        }
        let hash = self.hash.to_string();
        format!("{}{more} sha256:{}, hook {}", first.name, &hash[..12], hooks.join("+"))
    }

    /// Before any memory is taken: do all maps fit the limit, counting one of each name once?
    fn check_map_memory(&self) -> Result<(), LoadError> {
        let limit = self.manifest.limits.map_memory.unwrap_or(DEFAULT_MAP_MEMORY);
        let maps: BTreeMap<&str, u64> = self
            .policies
            .iter()
            .flat_map(|p| p.module.maps())
            .map(|decl| (decl.name.as_str(), bytes(decl)))
            .collect();
        let need: u64 = maps.values().sum();
        if need <= limit {
            return Ok(());
        }
        let largest = maps.iter().max_by_key(|(_, n)| **n).map_or("", |(name, _)| name);
        let message = format!(
            "the maps take {need} bytes (most of them {largest}), limits.map_memory is {limit}; raise it or shrink them"
        );
        Err(LoadError::new(LoadErrorKind::Maps, "", message))
    }

    /// Only ring buffers have something to say.
    fn check_logged_maps(&self) -> Result<(), LoadError> {
        for (name, _) in self.manifest.maps.iter().filter(|(_, m)| m.log) {
            let maps = self.policies.iter().flat_map(|p| p.module.maps()).filter(|m| m.name == *name);
            if let Some(other) = maps.into_iter().find(|m| m.kind != MapKind::RingBuf) {
                let kind = other.kind.name();
                let message =
                    format!("maps.{name}.log: the map is of kind {kind}; only ring buffers are logged");
                return Err(LoadError::new(LoadErrorKind::Maps, "", message));
            }
        }
        Ok(())
    }

    fn scope_rules(&self) -> ScopeRules {
        let scope = |s| match s {
            ScopeName::Policy => Scope::Policy,
            ScopeName::Communicator => Scope::Communicator,
            ScopeName::Process => Scope::Process,
        };
        let maps = &self.manifest.maps;
        ScopeRules {
            default: Scope::Process,
            by_name: maps.iter().map(|(name, m)| (name.clone(), scope(m.scope))).collect::<BTreeMap<_, _>>(),
            reset: maps
                .iter()
                .filter(|(_, m)| m.reset)
                .map(|(name, _)| name.clone())
                .collect::<BTreeSet<_>>(),
        }
    }
}

impl SourceSet {
    /// See [`PolicySet::hash`].
    pub fn hash(&self) -> ContentHash {
        let mut canonical = Vec::new();
        let mut part = |bytes: &[u8]| {
            // Lengths keep adjacent parts apart.
            canonical.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            canonical.extend_from_slice(bytes);
        };
        part(b"ringfence policy set 1");
        for (entry, file) in self.manifest.policies.iter().zip(&self.files) {
            part(entry.display_name().as_bytes());
            part(entry.hook.as_deref().unwrap_or("").as_bytes());
            part(entry.program.as_deref().unwrap_or("").as_bytes());
            part(entry.events.as_deref().unwrap_or(&[]).join(" ").as_bytes());
            part(&entry.op_mask().to_le_bytes());
            part(ContentHash::of(&file.bytes).bytes());
        }
        let limits = &self.manifest.limits;
        part(format!("{:?} {:?} {:?}", limits.fuel, limits.max_channels, limits.map_memory).as_bytes());
        part(format!("{:?}", limits.max_chunk_size).as_bytes());
        for (name, map) in &self.manifest.maps {
            part(name.as_bytes());
            part(format!("{} {}", map.scope.as_str(), map.reset).as_bytes());
            if map.log {
                part(b"log");
            }
        }
        for schema in &self.schemas {
            part(schema.hash().bytes());
        }
        part(self.manifest.env.canonical().as_bytes());
        if let Some(links) = self.manifest.canonical_links() {
            part(links.as_bytes());
        }
        ContentHash::of(&canonical)
    }

    /// Makes the set's schemas hooks of this process.
    ///
    /// # Errors
    /// A schema whose name has another layout here.
    pub(crate) fn intern_schemas(&self) -> Result<(), LoadError> {
        for schema in &self.schemas {
            let interned = schema.clone().intern();
            interned.map_err(|e| LoadError::new(LoadErrorKind::Config, e.file(), e.message()))?;
        }
        Ok(())
    }
}

/// Verifies, translates and compiles a program of the chain.
fn compile(engine: &Engine, linked: Linked<'_>) -> Result<Policy, LoadError> {
    let entry = linked.member.entry;
    let file = entry.file.as_str();
    let events = entry.event_bits().map_err(|why| LoadError::new(LoadErrorKind::Config, file, why))?;
    let (name, tails) = (linked.name(), linked.tails());
    let verifier = Verifier::new(linked.hook.env());
    let verified = verifier.verify(linked.program).map_err(|r| LoadError::rejected(file, r))?;
    let wasm = Translator::new().translate(&verified).map_err(|e| LoadError::translator(file, e))?;
    let module = PolicyModule::compile(engine, wasm).map_err(|e| LoadError::host(file, e))?;
    Ok(Policy { name, file: file.to_owned(), module, events, ops: entry.op_mask(), tails, data: linked.data })
}

/// The programs that the entry means, each with its hook: the one that it names, or one for each hook that the object has
/// programs for.
fn choose(object: &Object, entry: &PolicyEntry) -> Result<Vec<(String, Hook)>, LoadError> {
    let fail = |kind, message| Err(LoadError::new(kind, &entry.file, message));
    let forced = match &entry.hook {
        None => None,
        Some(name) => match Hook::parse(name).filter(|h| *h != Hook::Generic) {
            None => {
                let hooks = Hook::offered().map(Hook::name).collect::<Vec<_>>().join(", ");
                let message =
                    format!("no hook is called {name:?} (the manifest's `hook`); there are {hooks}");
                return fail(LoadErrorKind::Config, message);
            }
            hook => hook,
        },
    };
    let hook_of =
        |section: &str| forced.or_else(|| Hook::from_section(section).filter(|h| *h != Hook::Generic));
    let named = |name: &str| entry.program.as_deref().is_none_or(|want| want == name);
    let known: Vec<_> = object.programs().map(|p| (p.name(), p.section())).collect();
    let found: Vec<(&str, Hook)> = known
        .iter()
        .filter(|(name, _)| named(name))
        .filter_map(|(name, section)| Some((*name, hook_of(section)?)))
        .collect();
    let twice = found.iter().enumerate().find_map(|(i, p)| found[..i].iter().find(|q| q.1 == p.1));
    match (twice, &entry.program) {
        (None, Some(program)) if found.is_empty() => fail(
            LoadErrorKind::NoProgram,
            format!("no program {program:?} for a hook of NCCL; the object has {}", list(&known)),
        ),
        (None, None) if found.is_empty() => fail(
            LoadErrorKind::NoProgram,
            format!(
                "no program in a section that names a hook (tuner, profiler, ...); the object has {}; name the hook in the \
                 manifest, or list there the schema of a library's hook",
                list(&known)
            ),
        ),
        (Some((_, hook)), _) => {
            let all = known.iter().filter(|(_, s)| hook_of(s) == Some(*hook)).copied().collect::<Vec<_>>();
            let message = format!(
                "several programs for the hook {hook}: {}; say which one: program = \"NAME\"",
                list(&all)
            );
            fail(LoadErrorKind::NoProgram, message)
        }
        (None, _) => Ok(found.into_iter().map(|(name, hook)| (name.to_owned(), hook)).collect()),
    }
}

/// Programs with their sections, for messages.
fn list(programs: &[(&str, &str)]) -> String {
    let shown: Vec<_> =
        programs.iter().map(|(name, section)| format!("{name} (section {section})")).collect();
    if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
}

fn bytes(decl: &MapDecl) -> u64 {
    decl.layout().map_or(u64::MAX >> 8, |layout| u64::from(layout.pages) << 16)
}

/// A set in force, with its maps. As long as a plan lives, so do its maps: they outlive a moment without communicators.
#[derive(Debug)]
pub struct Plan {
    generation: u64,
    set: PolicySet,
    /// Maps of each policy.
    maps: Vec<PlanMaps>,
    rules: ScopeRules,
}

impl Plan {
    /// Puts a set in force: finds or makes its maps. Existing contents stay where name, scope and shape agree.
    ///
    /// # Errors
    /// A map whose shape changed while it is in use and that the manifest does not reset, or not enough memory.
    pub(crate) fn new(generation: u64, set: PolicySet, registry: &MapRegistry) -> Result<Plan, LoadError> {
        let rules = set.scope_rules();
        let maps = set.policies.iter().map(|p| PlanMaps::resolve(registry, p, &rules));
        let maps = maps.collect::<Result<Vec<_>, LoadError>>()?;
        Ok(Plan { generation, set, maps, rules })
    }

    /// The plan of a process without policies.
    pub(crate) fn empty(generation: u64) -> Plan {
        Plan { generation, set: PolicySet::empty(), maps: Vec::new(), rules: ScopeRules::default() }
    }

    /// Counts up with every plan of the process.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// The policies.
    pub fn set(&self) -> &PolicySet {
        &self.set
    }
    /// Policies that may need more fuel than the operator allows: each as a line for the log.
    pub(crate) fn short_of_fuel(&self) -> Vec<String> {
        let Some(limit) = self.set.manifest.limits.fuel else { return Vec::new() };
        let line = |p: &Policy| {
            let most = p.module.max_fuel().filter(|most| *most > limit)?;
            let name = p.module.name();
            Some(format!(
                "policy {name} may need up to {most} fuel, and limits.fuel allows {limit}: a call that needs more is cut \
                 short and left to NCCL; raise the limit, or leave it out"
            ))
        };
        self.set.policies.iter().filter_map(line).collect()
    }
    /// Lets the counters of each policy go on from those of the policy of the same name and hook in the plan before.
    pub(crate) fn succeed(&self, before: &Plan) {
        let same = |a: &Policy, b: &Policy| a.name == b.name && a.module.hook() == b.module.hook();
        for (i, policy) in self.set.policies.iter().enumerate() {
            // A name may stand in the chain several times.
            let nth = self.set.policies.iter().take(i).filter(|p| same(p, policy)).count();
            if let Some(old) = before.set.policies.iter().filter(|p| same(p, policy)).nth(nth) {
                policy.module.metrics().succeed(old.module.metrics());
            }
        }
    }
    /// Bound on channels.
    pub(crate) fn max_channels(&self) -> u32 {
        crate::comm::max_channels(self.set.manifest.limits.max_channels)
    }
    /// The operator's opt-in to chunk sizes above NCCL's own, in bytes.
    pub(crate) fn max_chunk_size(&self) -> Option<u64> {
        self.set.manifest.limits.max_chunk_size
    }
    /// Did the operator set the bound, and thereby promise that communicators have that many?
    pub(crate) fn channel_promise(&self) -> bool {
        self.set.manifest.limits.max_channels.is_some()
    }

    /// The instances of the policies on the hooks that are wanted, for one communicator.
    ///
    /// # Errors
    /// As [`Plan::new`]; no memory.
    pub(crate) fn chain(
        self: &Arc<Plan>,
        registry: &MapRegistry,
        communicator: u64,
        wanted: impl Fn(Hook) -> bool,
    ) -> Result<Chain, LoadError> {
        let limits = Limits { fuel: self.set.manifest.limits.fuel };
        let mut chain = Chain::empty(self.clone());
        let here = self.set.policies.iter().zip(&self.maps).enumerate();
        for (policy, (code, maps)) in here.filter(|(_, (p, _))| wanted(p.module.hook())) {
            let maps = match maps {
                PlanMaps::All(maps) => maps.for_communicator(communicator),
                PlanMaps::Some(_) => resolve(registry, code, code.module.maps(), &self.rules, communicator)?,
            };
            let mut instance =
                Instance::new(&code.module, &maps, limits).map_err(|e| LoadError::host(&code.file, e))?;
            instance.warm();
            chain.push(Seat { policy, instance, ops: code.ops });
        }
        chain.fuse();
        Ok(chain)
    }
}

/// The maps that a policy's instances share on all communicators.
#[derive(Debug)]
enum PlanMaps {
    /// All of its maps.
    All(MapSet),
    /// Those that do not belong to a communicator; kept, so that they outlive the communicators.
    Some(#[expect(dead_code, reason = "keeps the maps alive")] MapSet),
}

impl PlanMaps {
    fn resolve(registry: &MapRegistry, policy: &Policy, rules: &ScopeRules) -> Result<PlanMaps, LoadError> {
        let own = |m: &MapDecl| rules.by_name.get(&m.name) == Some(&Scope::Communicator);
        let all = policy.module.maps();
        let shared: Vec<MapDecl> = all.iter().filter(|m| !own(m)).cloned().collect();
        let maps = resolve(registry, policy, &shared, rules, 0)?;
        Ok(if shared.len() == all.len() { PlanMaps::All(maps) } else { PlanMaps::Some(maps) })
    }
}

fn resolve(
    registry: &MapRegistry,
    policy: &Policy,
    decls: &[MapDecl],
    rules: &ScopeRules,
    communicator: u64,
) -> Result<MapSet, LoadError> {
    // The file, not the name: maps of scope `policy` and global data stay with the object when it is renamed in logs.
    let owner = Owner { policy: policy.file.clone(), communicator };
    let maps = registry.resolve_linked(decls, rules, &owner, &policy.data);
    maps.map_err(|e| LoadError::host(&policy.file, e))
}

/// Stage that refused a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The directory, a file or the manifest.
    Config,
    /// An object that is no eBPF object, or cannot be linked or translated.
    Object,
    /// No program for a hook, or several.
    NoProgram,
    /// The verifier refused a program.
    Rejected,
    /// The engine: compiling or instantiating.
    Engine,
    /// Maps: shape or size.
    Maps,
}

/// Why a set was refused. One line: the file, the reason with its source line, and what to do.
#[derive(Clone, Debug)]
pub struct LoadError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: LoadErrorKind,
    file: String,
    message: String,
    rejection: Option<Rejection>,
}

impl LoadError {
    #[cold]
    fn new(kind: LoadErrorKind, file: &str, message: impl Into<String>) -> LoadError {
        LoadError(Box::new(Inner { kind, file: file.to_owned(), message: message.into(), rejection: None }))
    }

    fn translator(file: &str, error: ringfence_translator::Error) -> LoadError {
        LoadError::new(LoadErrorKind::Object, file, error.to_string())
    }

    fn host(file: &str, error: Error) -> LoadError {
        use crate::error::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::MapShape | ErrorKind::MapLimit | ErrorKind::BadMap => LoadErrorKind::Maps,
            _ => LoadErrorKind::Engine,
        };
        LoadError::new(kind, file, error.to_string())
    }

    /// The engine itself cannot be made.
    pub(crate) fn engine(error: Error) -> LoadError {
        LoadError::new(LoadErrorKind::Engine, "", error.to_string())
    }

    fn rejected(file: &str, rejection: Rejection) -> LoadError {
        let mut message = rejection.to_string();
        if let Some(line) = rejection.source().map(|s| s.text.trim()).filter(|text| !text.is_empty()) {
            message += &format!("; source: {line}");
        }
        if let Some(hint) = rejection.hint() {
            message += &format!("; {hint}");
        }
        let mut error = LoadError::new(LoadErrorKind::Rejected, file, message);
        error.0.rejection = Some(rejection);
        error
    }

    /// The stage.
    pub fn kind(&self) -> LoadErrorKind {
        self.0.kind
    }
    /// The file at fault; empty if it is the set as a whole.
    pub fn file(&self) -> &str {
        &self.0.file
    }
    /// The reason, without the file.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The verifier's refusal, if it was one.
    pub fn rejection(&self) -> Option<&Rejection> {
        self.0.rejection.as_ref()
    }
}

impl From<ConfigError> for LoadError {
    fn from(error: ConfigError) -> LoadError {
        LoadError::new(LoadErrorKind::Config, error.file(), error.message())
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.file.is_empty() {
            write!(f, "{}: ", self.0.file)?;
        }
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for LoadError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyFile;

    fn read(manifest: &str, objects: &[&[u8]]) -> SourceSet {
        let manifest = Manifest::parse(manifest).unwrap();
        let files = manifest.policies.iter().zip(objects);
        let files = files.map(|(e, b)| PolicyFile { path: e.file.clone(), bytes: b.to_vec() }).collect();
        SourceSet { manifest, files, schemas: Vec::new() }
    }

    #[test]
    fn the_hash_follows_what_decides_and_nothing_else() {
        let base = "[[policy]]\nfile = 'a.o'\n[[policy]]\nfile = 'b.o'\n";
        let of = |text: &str, objects: &[&[u8]]| read(text, objects).hash();
        let hash = of(base, &[b"A", b"B"]);
        assert_eq!(hash, of(&format!("# a comment\n{base}"), &[b"A", b"B"]));
        let others = [
            of(base, &[b"A", b"C"]),
            of(base, &[b"B", b"A"]),
            of(&format!("{base}[limits]\nmax_channels = 8\n"), &[b"A", b"B"]),
            of(&format!("{base}[limits]\nfuel = 8\n"), &[b"A", b"B"]),
            of(&format!("{base}[limits]\nmax_chunk_size = 8192\n"), &[b"A", b"B"]),
            of(&format!("{base}[maps.m]\nreset = true\n"), &[b"A", b"B"]),
            of(&format!("{base}hook = 'tuner'\n"), &[b"A", b"B"]),
            of(&format!("{base}program = 'p'\n"), &[b"A", b"B"]),
            of("[[policy]]\nfile = 'a.o'\n", &[b"A"]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(hash, *other, "{i}");
        }
    }

    #[test]
    fn the_hash_follows_where_tail_calls_lead() {
        let with = |b: &str, maps: &str| {
            read(
                &format!("[[policy]]\nfile = 'a.o'\n[[policy]]\nfile = 'b.o'\n{b}\n[maps.m]\n{maps}"),
                &[b"A", b"B"],
            )
            .hash()
        };
        let hashes = [
            with("", ""),
            with("", "programs = { 0 = 'b' }"),
            with("", "programs = { 1 = 'b' }"),
            with("", "programs = { 0 = 'a' }"),
            with("", "programs = { 0 = 'b', 1 = 'b' }"),
            with("", "[maps.n]\nprograms = { 0 = 'b' }"),
            with("chain = false", "programs = { 0 = 'b' }"),
        ];
        let different: BTreeSet<_> = hashes.iter().collect();
        assert_eq!(different.len(), hashes.len());
        assert_eq!(hashes[0], with("chain = true", "programs = {}"), "what is said anyway");
    }

    #[test]
    fn what_is_no_object_is_refused_by_name() {
        let e = PolicySet::build(read("[[policy]]\nfile = 'a.o'\n", &[b"not an object"])).unwrap_err();
        assert_eq!((e.kind(), e.file()), (LoadErrorKind::Object, "a.o"));
        assert!(e.to_string().starts_with("a.o: "));
    }

    #[test]
    fn an_empty_set_is_a_set() {
        let set = PolicySet::build(read("policy = []", &[])).unwrap();
        assert_eq!(set.hash(), PolicySet::empty().hash());
        assert_eq!(set.describe(), "none (NCCL decides)");
    }
}
