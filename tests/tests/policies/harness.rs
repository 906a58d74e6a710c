//! [`objects`]: the built policies; [`load`]: one of them, ready to decide.

use ringfence_guest::telemetry::{SloConfig, Telemetry, TelemetryKey};
use ringfence_host::maps::{DEFAULT_MAP_BYTES, Owner};
use ringfence_host::{
    CommInfo, CostTable, Decision, Engine, Hook, Instance, Limits, MapRegistry, PolicyModule, ScopeRules,
    TunerInput,
};
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Object, Rejection, Translator, Verified};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The repository.
pub(crate) fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The folder of the built objects; the first call builds what is not up to date.
pub(crate) fn objects() -> &'static Path {
    static OBJECTS: OnceLock<PathBuf> = OnceLock::new();
    OBJECTS.get_or_init(|| match std::env::var_os("RINGFENCE_POLICIES") {
        // Tests run in the folder of their package.
        Some(dir) => repo().join(dir),
        None => build(),
    })
}

fn build() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("policies");
    let mut make = Command::new("make");
    make.arg("-C").arg(repo().join("policies")).arg(format!("OUT={}", out.display()));
    // Of the cargo that runs this test; the inner one has its own.
    make.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("MAKEFLAGS");
    let output = make.output().unwrap_or_else(|e| panic!("cannot run make: {e}"));
    assert!(output.status.success(), "make failed:\n{}", String::from_utf8_lossy(&output.stderr));
    out
}

/// Verifies the only program of an object, as its section says or as `hook`.
pub(crate) fn verify(path: &Path, hook: Option<Hook>) -> Result<Verified, Rejection> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let object = Object::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let specs: Vec<_> = object.programs().collect();
    let [spec] = specs.as_slice() else { panic!("{}: {} programs", path.display(), specs.len()) };
    let hook = hook.or_else(|| Hook::from_section(spec.section())).expect("a section that names a hook");
    let program = object.program(spec.name()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Verifier::new(hook.env()).verify(program)
}

/// A decision to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) n_bytes: u64,
    pub(crate) func: u32,
    pub(crate) n_ranks: u32,
    pub(crate) n_nodes: u32,
    pub(crate) so_far: Decision,
}

/// A policy with maps of its own.
pub(crate) struct Loaded(Instance);

/// Loads an object.
pub(crate) fn load(path: &Path, hook: Option<Hook>) -> Loaded {
    let verified = verify(path, hook).unwrap_or_else(|r| panic!("{}: {r}", path.display()));
    let module = Translator::new().translate(&verified).unwrap();
    let engine = Engine::global().unwrap();
    let policy = PolicyModule::compile(engine, module).unwrap();
    let owner = Owner { policy: policy.name().to_owned(), communicator: 0 };
    let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
    let maps = registry.resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap();
    Loaded(Instance::new(&policy, &maps, Limits::default()).unwrap())
}

impl Loaded {
    /// One decision, with every pair on offer.
    pub(crate) fn decide(&mut self, case: &Case) -> Decision {
        let comm = CommInfo {
            n_ranks: case.n_ranks,
            n_nodes: case.n_nodes,
            max_channels: 64,
            ..CommInfo::default()
        };
        let mut costs = [1.0; 21];
        let table = CostTable::new(&mut costs, 7, 3).unwrap();
        let input = TunerInput {
            comm: &comm,
            func: case.func,
            n_bytes: case.n_bytes,
            num_pipe_ops: 1,
            reg_buff: false,
            call_seq: 0,
            costs: table.costs(),
        };
        self.0.decide(&input, case.so_far).unwrap_or_else(|fault| panic!("{case:?}: {fault}"))
    }

    /// Runs an observer over its hook's context; true if it submitted.
    pub(crate) fn observe(&mut self, context: &mut [u8]) -> bool {
        self.0.run_context(context).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// A copy of a value of a map.
    pub(crate) fn value(&self, map: &str, key: &[u8]) -> Option<Vec<u8>> {
        self.0.maps().get(map).unwrap().lookup(key)
    }

    /// Does the policy declare a map of that name?
    pub(crate) fn has_map(&self, name: &str) -> bool {
        self.0.maps().get(name).is_some()
    }

    /// Sets an entry of the telemetry map; false if it has no room.
    pub(crate) fn set_telemetry(&self, key: TelemetryKey, value: &Telemetry) -> bool {
        let map = self.0.maps().get("telemetry_map").unwrap();
        map.update(&key_bytes(key), &telemetry_bytes(value), 0).is_ok()
    }

    /// An entry of the telemetry map.
    pub(crate) fn telemetry(&self, key: TelemetryKey) -> Option<Telemetry> {
        let bytes = self.0.maps().get("telemetry_map").unwrap().lookup(&key_bytes(key))?;
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let narrow = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        Some(Telemetry {
            last_latency_ns: wide(0),
            avg_latency_ns: wide(8),
            p99_latency_ns: wide(16),
            last_n_bytes: wide(24),
            samples: narrow(32),
            recommended_channels: narrow(36),
            applied_samples: narrow(40),
            reserved: narrow(44),
        })
    }

    /// Sets an entry of slo_enforcer's configuration.
    pub(crate) fn set_config(&self, func: u32, config: &SloConfig) {
        let mut bytes = config.target_p99_ns.to_le_bytes().to_vec();
        for field in [config.min_channels, config.max_channels, config.step, config.reserved] {
            bytes.extend(field.to_le_bytes());
        }
        self.0.maps().get("config_map").unwrap().update(&func.to_le_bytes(), &bytes, 0).unwrap();
    }
}

fn key_bytes(key: TelemetryKey) -> Vec<u8> {
    [key.func.to_le_bytes(), key.n_nodes.to_le_bytes()].concat()
}

fn telemetry_bytes(t: &Telemetry) -> Vec<u8> {
    let mut bytes = Vec::new();
    for wide in [t.last_latency_ns, t.avg_latency_ns, t.p99_latency_ns, t.last_n_bytes] {
        bytes.extend(wide.to_le_bytes());
    }
    for narrow in [t.samples, t.recommended_channels, t.applied_samples, t.reserved] {
        bytes.extend(narrow.to_le_bytes());
    }
    bytes
}
