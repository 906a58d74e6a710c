//! What the build tool for Rust policies defends against: code that LLVM's BPF back end cannot make, or makes wrong. A
//! crate with one function for each is built, verified and run, and compared with the same code run natively.

use crate::harness::repo;
use ringfence_host::maps::{DEFAULT_MAP_BYTES, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_tests::random::Rng;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, Object, Translator};
use std::path::Path;
use std::process::{Command, Output};

/// The functions under test, as source for both sides.
macro_rules! both_sides {
    ($($item:item)*) => {
        const SOURCE: &str = concat!($(stringify!($item), "\n"),*);
        #[allow(unreachable_pub)]
        mod native { $($item)* }
    };
}

both_sides! {
    /// `u64` multiplication with overflow has no instruction.
    pub fn checked_mul(mem: &mut [u64; 32]) -> u64 {
        mem[0].checked_mul(mem[1]).map_or(u64::MAX, |product| product ^ 1)
    }
    /// Larger than what LLVM expands: a call of `bcmp`.
    pub fn compare(mem: &mut [u64; 32]) -> u64 {
        let (a, b) = mem.split_at(16);
        (a == b) as u64
    }
    /// Comparison with order: a call of `memcmp`.
    pub fn order(mem: &mut [u64; 32]) -> u64 {
        let (mut a, mut b) = ([0u8; 16], [0u8; 16]);
        for i in 0..16 {
            a[i] = mem[i] as u8;
            b[i] = mem[16 + i] as u8;
        }
        a.cmp(&b) as u64
    }
    /// Two registers come back: inlined, whatever the author says.
    #[inline(never)]
    fn pair(a: u64, b: u64) -> (u64, u64) {
        (a.wrapping_add(b), a ^ b)
    }
    pub fn returns_pair(mem: &mut [u64; 32]) -> u64 {
        let (sum, xor) = pair(mem[0], mem[1]);
        sum.rotate_left(7) ^ xor
    }
    /// Six arguments: inlined too.
    #[inline(never)]
    fn six(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
        a ^ b.rotate_left(1) ^ c.rotate_left(2) ^ d.rotate_left(3) ^ e.rotate_left(4) ^ f.rotate_left(5)
    }
    pub fn six_arguments(mem: &mut [u64; 32]) -> u64 {
        six(mem[0], mem[1], mem[2], mem[3], mem[4], mem[5])
    }
    /// A table with a dynamic index, in `.rodata`.
    static TABLE: [u64; 8] = [3, 1, 4, 1, 5, 9, 2, 6];
    pub fn table(mem: &mut [u64; 32]) -> u64 {
        TABLE[(mem[0] & 7) as usize]
    }
    /// A loop that a host's compiler would vectorise.
    pub fn sum(mem: &mut [u64; 32]) -> u64 {
        let mut sum = 0u64;
        for word in mem.iter_mut() {
            *word = word.wrapping_mul(3);
            sum = sum.wrapping_add(*word);
        }
        sum
    }
}

/// Name, and the native version.
type Pure = (&'static str, fn(&mut [u64; 32]) -> u64);
const PURE: [Pure; 7] = [
    ("checked_mul", native::checked_mul),
    ("compare", native::compare),
    ("order", native::order),
    ("returns_pair", native::returns_pair),
    ("six_arguments", native::six_arguments),
    ("table", native::table),
    ("sum", native::sum),
];

/// Builds a crate of this source; its object is `dir/out.bpf.o`.
pub(crate) fn build(dir: &Path, source: &str) -> Output {
    let manifest = format!(
        "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\nringfence-guest = {{ path = {:?} }}\n[workspace]\n",
        repo().join("guest-sdk")
    );
    std::fs::create_dir_all(dir.join("src")).unwrap();
    std::fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(dir.join("src/lib.rs"), source).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["run", "--quiet", "--profile", "dev", "--manifest-path"]);
    cargo.arg(repo().join("policies/build/Cargo.toml")).arg("--");
    cargo.arg("--manifest-path").arg(dir.join("Cargo.toml")).args(["-p", "sample"]);
    cargo.arg("-o").arg(dir.join("out.bpf.o"));
    cargo.output().unwrap()
}

/// An entry point of the `generic` hook for `name`.
fn entry(name: &str) -> String {
    format!(
        "#[unsafe(no_mangle)]\n#[unsafe(link_section = \"generic\")]\npub extern \"C\" fn entry_{name}(mem: &mut [u64; 32]) -> u64 {{ {name}(mem) }}\n"
    )
}

struct Runner(Instance);

impl Runner {
    fn new(object: &Object, name: &str) -> Runner {
        let program = object.program(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let env = std::sync::Arc::new(Env::generic(256));
        let verified = Verifier::new(env).verify(program).unwrap_or_else(|r| panic!("{name}: {r}"));
        let module = Translator::new().translate(&verified).unwrap();
        let engine = Engine::global().unwrap();
        let policy = PolicyModule::compile(engine, module).unwrap();
        let owner = Owner { policy: "sample".into(), communicator: 0 };
        let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
        let maps = registry.resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap();
        Runner(Instance::new(&policy, &maps, Limits::default()).unwrap())
    }

    fn run(&mut self, words: &mut [u64; 32]) -> u64 {
        let mut memory: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let r0 = self.0.run_generic(&mut memory).unwrap();
        for (word, bytes) in words.iter_mut().zip(memory.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        r0
    }
}

/// Words that are large, small, and often equal in both halves.
fn random_words(rng: &mut Rng) -> [u64; 32] {
    let mut words = std::array::from_fn(|_| rng.bits() >> rng.below(64));
    if rng.below(2) == 0 {
        words.copy_within(..16, 16);
        words[rng.below(32) as usize] ^= rng.below(2);
    }
    words
}

#[test]
fn hard_code_gives_the_native_result() {
    const ATOMIC: &str = "
        use core::sync::atomic::{AtomicU64, Ordering};
        ringfence_guest::maps! { static COUNTS: ringfence_guest::Array<AtomicU64, 2> = \"counts\"; }
        use ringfence_guest::Array;
        fn fetch(mem: &mut [u64; 32]) -> u64 {
            COUNTS.get_ref(1).map_or(0, |count| count.fetch_add(mem[0], Ordering::Relaxed))
        }";
    let dir = tempfile::tempdir().unwrap();
    let entries: String = PURE.iter().map(|(name, _)| entry(name)).chain([entry("fetch")]).collect();
    let atomic = ATOMIC.replace("ringfence_guest::Array<", "Array<");
    let output = build(dir.path(), &format!("#![no_std]\n{atomic}\n{SOURCE}\n{entries}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(dir.path().join("out.bpf.o")).unwrap();
    let object = Object::parse(&bytes).unwrap();

    let mut rng = Rng::new(7);
    for (name, native) in PURE {
        let mut runner = Runner::new(&object, &format!("entry_{name}"));
        for _ in 0..500 {
            let input = random_words(&mut rng);
            let (mut here, mut there) = (input, input);
            assert_eq!(runner.run(&mut there), native(&mut here), "{name}: {input:x?}");
            assert_eq!(there, here, "{name}: {input:x?}");
        }
    }
    // The old value, not the operand.
    let mut fetch = Runner::new(&object, "entry_fetch");
    let got: Vec<u64> = [5, 7, 1, 0].iter().map(|n| fetch.run(&mut [*n; 32])).collect();
    assert_eq!(got, [0, 5, 12, 13]);
}

/// What eBPF cannot express is an error that names the author's line, and no object is left.
#[test]
fn what_cannot_be_expressed_is_named() {
    let table = [
        ("mem[mem[0] as usize]", "core::panicking::panic_bounds_check", "it can panic"),
        ("1000 / mem[0]", "core::panicking::panic_const::panic_const_div_by_zero", "it can panic"),
        ("(mem[0] as u128 * mem[1] as u128 / 10) as u64", "__multi3", "128-bit"),
        ("(mem[0] as f64 * 1.5) as u64", "__", "floating point"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (expr, symbol, advice) in table {
        let source =
            format!("#![no_std]\nfn bad(mem: &mut [u64; 32]) -> u64 {{\n    {expr}\n}}\n{}", entry("bad"));
        std::fs::write(dir.path().join("out.bpf.o"), "old").unwrap();
        let output = build(dir.path(), &source);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{expr}: {stderr}");
        let line =
            stderr.lines().find(|l| l.contains("src/lib.rs:3")).unwrap_or_else(|| panic!("{expr}: {stderr}"));
        assert!(line.contains(symbol) && line.contains(advice), "{expr}: {line}");
        assert!(!dir.path().join("out.bpf.o").exists(), "{expr}: an object is left");
    }
    let output = build(dir.path(), "#![no_std]\npub fn f() {}\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no entry point"));
    assert_eq!(output.status.code(), Some(1));
}
