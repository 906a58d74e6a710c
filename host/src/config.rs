//! [`Source`]: where policies come from, [`Manifest`]: what `ringfence.toml` says, [`SourceSet`]: both read
//! as one version, [`ConfigError`]: why not.
//!
//! `RINGFENCE_POLICY` names an object, or a directory. A directory with `ringfence.toml`:
//!
//! ```toml
//! schemas = ["ep_mode.toml"] # optional: hooks of libraries (crate::schema), below the directory
//!
//! [[policy]]                 # the chain, in this order; `policy = []` = none, NCCL decides alone
//! file = "size_aware.bpf.o"  # below the directory
//! name = "size-aware"        # optional; default: the file's name without .bpf.o
//! program = "tune"           # optional; needed if the object holds several programs for one hook. Without it, all of an object's
//!                            # programs are loaded, one for each hook
//! hook = "tuner"             # optional: a hook's name; default: as the section of each program says
//! chain = true               # optional; false: not asked on its own, only a target of tail calls (`programs` below)
//! ops = ["connect"]          # optional, for the hook net: the calls that the policy hears of (`ringfence hooks`); default: all
//! events = ["coll", "p2p"]   # optional: what to ask NCCL's profiler for. Hook profiler: "coll" (default) and "p2p"; hook
//!                            # profiler/event: any of docs/profiler.md, default "coll" and "p2p"
//!
//! [limits]
//! fuel = 1000000             # optional: per decision and policy, if less than what is proved to be enough
//! max_channels = 24          # optional, 1 to 64: most channels that a policy may ask for. Must not exceed the
//!                            # "coll channels" in NCCL's INIT log. Unset: 64, and for AllGather and CollNet,
//!                            # where NCCL does not clamp, a policy's channels are not passed on
//! map_memory = 67108864      # optional: most bytes of all maps of this set
//! max_chunk_size = 1048576   # optional: chunk sizes (hook tuner/chunk) up to this are passed on even where NCCL's own is less;
//!                            # NCCL clamps them to its buffer. Unset: never more than NCCL's own
//!
//! [maps.latency]             # optional, by map name
//! scope = "communicator"     # "policy", "communicator" or "process" (default)
//! reset = true               # a reload may drop the contents when the shape has changed
//!
//! [maps.jump_table]          # a program array
//! programs = { 0 = "small", 7 = "large" } # which policies its slots lead to, by name, in every policy of the set that declares it
//!
//! [maps.events]              # a ring buffer
//! log = true                 # its records go to the log, as JSON; at most some a second
//!
//! [env]                      # optional; counts where NCCL_ENV_PLUGIN names Ringfence. Other names are never answered
//! allow = ["NCCL_ALGO"]      # names that policies on the hook env may answer
//! override = ["NCCL_ALGO"]   # names for which that wins over what the process has set; default: the process wins
//! set = { NCCL_NTHREADS = "256" }  # values
//! ```
//!
//! A directory without it: every `*.bpf.o` in the order of names. Unknown keys are errors.
//!
//! Changes are noticed in the directory itself. Files in directories below it may be named, but are read again only
//! when something in the policy directory changes too.

mod links;
mod source;

pub(crate) use source::K8S_DATA;
pub use source::{PolicyFile, Source, SourceSet};

use crate::env::EnvRules;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

/// Name of the manifest in a policy directory.
pub const MANIFEST: &str = "ringfence.toml";
/// Ending of policy objects.
pub const OBJECT_SUFFIX: &str = ".bpf.o";
/// Environment variable that names the source.
pub const POLICY_VAR: &str = "RINGFENCE_POLICY";
/// Most channels that NCCL has (`MAXCHANNELS` since 2.26); the absolute cap.
pub const MAX_CHANNELS: u32 = 64;
/// Most policies in a chain: a decision is to stay below a microsecond.
pub const MAX_POLICIES: usize = 32;
/// Largest manifest in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// The contents of `ringfence.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The chain, in order.
    pub policies: Vec<PolicyEntry>,
    /// Limits for every policy of the set.
    pub limits: LimitsEntry,
    /// Maps by name.
    pub maps: BTreeMap<String, MapEntry>,
    /// What NCCL's look-ups of its settings may be answered with.
    pub env: EnvRules,
    /// Files of schemas, below the directory.
    pub schemas: Vec<String>,
}

/// A `[[policy]]` of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyEntry {
    /// Object, relative to the directory.
    pub file: String,
    /// Name in logs and metrics.
    pub name: Option<String>,
    /// Entry function, where the object holds several.
    pub program: Option<String>,
    /// Hook, where the section is not to decide: the name of one of NCCL's hooks or of a schema's.
    pub hook: Option<String>,
    /// For the hooks `profiler` and `profiler/event`: which events to ask NCCL for.
    pub events: Option<Vec<String>>,
    /// Operations of the hook `net`, by name; all if there is none.
    pub ops: Option<Vec<String>>,
    /// Is it asked on its own? If not, it is a target of tail calls alone.
    #[serde(default = "yes")]
    pub chain: bool,
}

fn yes() -> bool {
    true
}

impl PolicyEntry {
    /// An entry that says nothing but the file.
    pub fn of_file(file: impl Into<String>) -> PolicyEntry {
        PolicyEntry {
            file: file.into(),
            name: None,
            program: None,
            hook: None,
            events: None,
            ops: None,
            chain: true,
        }
    }

    /// `events` as NCCL's bits; 0 if it names none.
    pub(crate) fn event_bits(&self) -> Result<u32, String> {
        self.events.as_deref().map_or(Ok(0), crate::profiler::parse_events)
    }

    /// The name, or else the file's name without its ending.
    pub fn display_name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| {
            let base = self.file.rsplit('/').next().unwrap_or(&self.file);
            base.strip_suffix(OBJECT_SUFFIX).or_else(|| base.strip_suffix(".o")).unwrap_or(base)
        })
    }
}

/// `[limits]` of the manifest; unset fields take the host's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsEntry {
    /// Fuel of one decision.
    pub fuel: Option<u64>,
    /// Most channels, 1 to 64.
    pub max_channels: Option<u32>,
    /// Most bytes of all maps together.
    pub map_memory: Option<u64>,
    /// Chunk sizes up to this many bytes are passed on, even above NCCL's own.
    pub max_chunk_size: Option<u64>,
}

/// `[maps.NAME]` of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapEntry {
    /// Who shares the map.
    #[serde(default)]
    pub scope: ScopeName,
    /// May a reload drop the contents when the shape has changed?
    #[serde(default)]
    pub reset: bool,
    /// Are the records of this ring buffer written to the log? Nobody else gets them then.
    #[serde(default)]
    pub log: bool,
    /// Names of the policies to which the slots of this program array lead.
    #[serde(default, deserialize_with = "links::slots")]
    pub programs: BTreeMap<u32, String>,
}

/// The scopes that a manifest may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScopeName {
    /// One policy, on all communicators.
    Policy,
    /// All policies of a communicator.
    Communicator,
    /// All policies and communicators of the process.
    #[default]
    Process,
}

impl ScopeName {
    /// As the manifest spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ScopeName::Policy => "policy",
            ScopeName::Communicator => "communicator",
            ScopeName::Process => "process",
        }
    }
}

impl<'de> Deserialize<'de> for ScopeName {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<ScopeName, D::Error> {
        const NAMES: [ScopeName; 3] = [ScopeName::Policy, ScopeName::Communicator, ScopeName::Process];
        let name = String::deserialize(from)?;
        match NAMES.into_iter().find(|s| s.as_str() == name) {
            Some(scope) => Ok(scope),
            // Both need ranks of several processes to meet.
            None if matches!(name.as_str(), "host" | "agreed") => Err(serde::de::Error::custom(format!(
                "scope {name:?} does not exist yet: maps are shared inside one process; use \"policy\", \"communicator\" or \
                 \"process\""
            ))),
            None => Err(serde::de::Error::unknown_variant(&name, &["policy", "communicator", "process"])),
        }
    }
}

/// What serde reads; [`Manifest`] is what passed the checks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    policy: Option<Vec<PolicyEntry>>,
    #[serde(default)]
    limits: LimitsEntry,
    #[serde(default)]
    maps: BTreeMap<String, MapEntry>,
    #[serde(default)]
    env: EnvRules,
    #[serde(default)]
    schemas: Vec<String>,
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// Syntax (with line and column), unknown keys, values out of range, paths that leave the directory.
    pub fn parse(text: &str) -> Result<Manifest, ConfigError> {
        let raw: Raw = toml::from_str(text).map_err(|e| ConfigError::toml(text, &e))?;
        let policies = raw.policy.ok_or_else(|| {
            ConfigError::new(MANIFEST, "no [[policy]]; name the objects, or write `policy = []` for none")
        })?;
        if policies.len() > MAX_POLICIES {
            return Err(field("policy", format!("{} policies, at most {MAX_POLICIES}", policies.len())));
        }
        for (i, entry) in policies.iter().enumerate() {
            entry.check(i)?;
        }
        check_limits(&raw.limits)?;
        raw.env.check().map_err(|(key, why)| field(key, why))?;
        check_schemas(&raw.schemas)?;
        links::check(&policies, &raw.maps)?;
        Ok(Manifest { policies, limits: raw.limits, maps: raw.maps, env: raw.env, schemas: raw.schemas })
    }

    /// The manifest that a lone object, or a directory without manifest, stands for.
    pub fn of_files(files: impl IntoIterator<Item = String>) -> Manifest {
        Manifest { policies: files.into_iter().map(PolicyEntry::of_file).collect(), ..Manifest::default() }
    }
}

impl PolicyEntry {
    fn check(&self, index: usize) -> Result<(), ConfigError> {
        if !is_below(&self.file) {
            return Err(field(
                format!("policy[{index}].file"),
                format!("{:?} must be a path below the policy directory (no leading /, no ..)", self.file),
            ));
        }
        if self.display_name().is_empty() || self.display_name().chars().any(char::is_control) {
            return Err(field(format!("policy[{index}].name"), "must be printable and not empty"));
        }
        self.event_bits().map_err(|why| field(format!("policy[{index}].events"), why))?;
        match self.ops.iter().flatten().find(|name| op_bit(name).is_none()) {
            Some(name) => Err(field(
                format!("policy[{index}].ops"),
                format!(
                    "no operation is called {name:?}; the names are those of the field op of the hook net"
                ),
            )),
            None => Ok(()),
        }
    }

    /// The operations as bits (`net_op`); all ones if none are named.
    pub fn op_mask(&self) -> u32 {
        let bits =
            |ops: &Vec<String>| ops.iter().filter_map(|name| op_bit(name)).fold(0, |mask, bit| mask | bit);
        self.ops.as_ref().map_or(u32::MAX, bits)
    }
}

/// The bit of an operation of the hook `net`.
fn op_bit(name: &str) -> Option<u32> {
    let field = crate::schema::Schema::builtin("net")?.field("op")?;
    1u32.checked_shl(u32::try_from(*field.values.get(name)?).ok()?)
}

/// Does the path name something below the directory that it is taken from?
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && parts.all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
}

fn check_schemas(files: &[String]) -> Result<(), ConfigError> {
    if files.len() > MAX_POLICIES {
        return Err(field("schemas", format!("{} files, at most {MAX_POLICIES}", files.len())));
    }
    match files.iter().find(|f| !is_below(f)) {
        None => Ok(()),
        Some(bad) => {
            let why = format!("{bad:?} must be a path below the policy directory (no leading /, no ..)");
            Err(field("schemas", why))
        }
    }
}

fn check_limits(limits: &LimitsEntry) -> Result<(), ConfigError> {
    if limits.max_channels.is_some_and(|n| !(1..=MAX_CHANNELS).contains(&n)) {
        return Err(field("limits.max_channels", format!("must lie in 1 to {MAX_CHANNELS}")));
    }
    if limits.fuel == Some(0) {
        return Err(field("limits.fuel", "must be positive"));
    }
    if limits.max_chunk_size.is_some_and(|n| !(1920..=i32::MAX as u64).contains(&n)) {
        return Err(field("limits.max_chunk_size", "must lie in 1920 to 2147483647 (bytes)"));
    }
    if limits.map_memory == Some(0) {
        return Err(field("limits.map_memory", "must be positive (bytes)"));
    }
    Ok(())
}

fn field(name: impl AsRef<str>, message: impl AsRef<str>) -> ConfigError {
    ConfigError::new(MANIFEST, format!("{}: {}", name.as_ref(), message.as_ref()))
}

/// Why a source cannot be read. One line: the file, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    message: String,
}

impl ConfigError {
    pub(crate) fn new(file: impl Into<String>, message: impl Into<String>) -> ConfigError {
        ConfigError { file: file.into(), message: message.into() }
    }

    fn toml(text: &str, error: &toml::de::Error) -> ConfigError {
        let place = error.span().map_or(String::new(), |span| {
            let before = text.get(..span.start).unwrap_or(text);
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            format!("line {}, column {column}: ", before.matches('\n').count() + 1)
        });
        ConfigError::new(MANIFEST, format!("{place}{}", error.message().replace('\n', ", ")))
    }

    /// The file at fault, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// What is wrong and what to do, without the file.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
schemas = ["ep_mode.toml", "sub/x.toml"]
[[policy]]
file = "size_aware.bpf.o"
name = "size-aware"
program = "tune"
hook = "tuner"
[[policy]]
file = "sub/old.bpf.o"
hook = "uprobe"
[limits]
fuel = 1000
max_channels = 24
map_memory = 65536
[maps.latency]
scope = "communicator"
reset = true
[maps.other]
"#;

    #[test]
    fn a_full_manifest_is_read() {
        let m = Manifest::parse(FULL).unwrap();
        assert_eq!(m.policies.len(), 2);
        assert_eq!(m.schemas, ["ep_mode.toml", "sub/x.toml"]);
        assert_eq!(m.policies[0].display_name(), "size-aware");
        assert_eq!(m.policies[0].program.as_deref(), Some("tune"));
        assert_eq!(m.policies[1].display_name(), "old");
        assert_eq!(m.policies[1].hook.as_deref(), Some("uprobe"));
        assert_eq!(
            m.limits,
            LimitsEntry {
                fuel: Some(1000),
                max_channels: Some(24),
                map_memory: Some(65536),
                max_chunk_size: None
            }
        );
        assert_eq!(
            m.maps["latency"],
            MapEntry { scope: ScopeName::Communicator, reset: true, ..MapEntry::default() }
        );
        assert_eq!(m.maps["other"], MapEntry::default());
    }

    #[test]
    fn an_empty_chain_must_be_meant() {
        assert_eq!(Manifest::parse("policy = []").unwrap(), Manifest::default());
        assert!(Manifest::parse("").unwrap_err().message().starts_with("no [[policy]]"));
    }

    #[test]
    fn errors_name_the_line_or_the_field() {
        let policy = |line: &str| format!("[[policy]]\nfile = \"a.bpf.o\"\n{line}");
        let cases = [
            (policy("hok = \"tuner\""), "line 3, column 1: unknown field `hok`"),
            (policy("[limits]\nmax_channels = 65"), "limits.max_channels: must lie in 1 to 64"),
            (policy("[limits]\nmax_channels = 0"), "limits.max_channels: must lie in 1 to 64"),
            (policy("[limits]\nfuel = -1"), "line 4, column 8: "),
            (policy("[limits]\nfuel = 0"), "limits.fuel: must be positive"),
            (policy("[limits]\nmax_chunk_size = 512"), "limits.max_chunk_size: must lie in 1920 to"),
            (policy("[maps.m]\nscope = \"world\""), "line 4, column 9: unknown variant `world`"),
            (
                policy("[maps.m]\nscope = \"host\""),
                "line 4, column 9: scope \"host\" does not exist yet: maps are shared",
            ),
            (policy("[maps.m]\nscope = \"agreed\""), "line 4, column 9: scope \"agreed\" does not exist yet"),
            ("[[policy]]\nfile = \"/etc/x.o\"".into(), "policy[0].file: \"/etc/x.o\" must be a path below"),
            ("[[policy]]\nfile = \"a/../../x.o\"".into(), "policy[0].file: \"a/../../x.o\" must be"),
            ("schemas = ['../x.toml']\npolicy = []".into(), "schemas: \"../x.toml\" must be a path below"),
            ("[[policy]]\nfile = \"\"".into(), "policy[0].file: \"\" must be"),
            ("[[policy]]\nname = \"x\"".into(), "line 1, column 1: missing field `file`"),
            (policy("name = \"a\\nb\""), "policy[0].name: must be printable"),
            (
                policy("events = [\"steps\"]"),
                "policy[0].events: \"steps\" is no event; there are group, coll",
            ),
            (policy("events = [\"kernel_phase\"]"), "policy[0].events: kernel_phase is never asked for"),
            ("x = ".into(), "line 1, column "),
        ];
        for (text, want) in cases {
            let e = Manifest::parse(&text).expect_err(&text);
            assert_eq!(e.file(), MANIFEST);
            assert!(e.message().starts_with(want), "{text:?}: {e}");
            assert!(!e.to_string().contains('\n'), "{e:?}");
        }
    }
}
