//! Maps beside this machine's kernel: random sequences of operations, by a program through helpers and from outside, with all
//! flags, on our maps and on the kernel's own, through `tests/kernel/map-run.c`. Every answer and every dump must be the same.
//!
//! Needs root, `bpf(2)` and a C compiler; says so and passes where they are missing. `RINGFENCE_KERNEL_OPS=N` (for each map) and
//! `RINGFENCE_KERNEL_SEED=N` change the run.

use ringfence_host::maps::{DEFAULT_MAP_BYTES, Map, MapSet, Owner};
use ringfence_host::{Engine, Instance, Limits, MapRegistry, PolicyModule, ScopeRules};
use ringfence_soak::Random;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{Env, MapDecl, MapKind, Program, Translator};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

const CTX: usize = 64;
const VALUE: u32 = 24;

/// One operation: context words 0 (which: 0 look up, 1 update, 2 delete, 3 each, 4 look up and write), 1 (key), 2 and 3 (value), 4 (flags); what
/// was read goes to words 5 and 6. The first word of a value is left alone, as a spin lock may be there.
const PROGRAM: &str = "
    r6 = r1
    r7 = *(u64 *)(r1 + 0)
    r3 = *(u64 *)(r1 + 8)
    *(u64 *)(r10 - 8) = r3
    *(u64 *)(r10 - 32) = 0
    r3 = *(u64 *)(r1 + 16)
    *(u64 *)(r10 - 24) = r3
    r3 = *(u64 *)(r1 + 24)
    *(u64 *)(r10 - 16) = r3
    r4 = *(u64 *)(r1 + 32)
    r2 = r10
    r2 += -8
    if r7 == 1 goto update
    if r7 == 2 goto delete
    if r7 == 3 goto each
    r1 = map[m] ll
    call map_lookup_elem
    if r0 == 0 goto none
    r1 = *(u64 *)(r0 + 8)
    *(u64 *)(r6 + 40) = r1
    r1 = *(u64 *)(r0 + 16)
    *(u64 *)(r6 + 48) = r1
    if r7 != 4 goto found
    r1 = *(u64 *)(r6 + 16)
    *(u64 *)(r0 + 8) = r1
found:
    r0 = 1
    exit
none:
    r0 = 0
    exit
update:
    r1 = map[m] ll
    r3 = r10
    r3 += -32
    call map_update_elem
    exit
delete:
    r1 = map[m] ll
    call map_delete_elem
    exit
each:
    *(u64 *)(r10 - 24) = 0
    *(u64 *)(r10 - 16) = 0
    r1 = map[m] ll
    r2 = fn add ll
    r3 = r10
    r3 += -24
    call for_each_map_elem
    r1 = *(u64 *)(r10 - 24)
    *(u64 *)(r6 + 40) = r1
    r1 = *(u64 *)(r10 - 16)
    *(u64 *)(r6 + 48) = r1
    exit
fn add:
    r1 = *(u64 *)(r3 + 8)
    r5 = *(u64 *)(r4 + 0)
    r5 += r1
    *(u64 *)(r4 + 0) = r5
    r1 = *(u64 *)(r3 + 16)
    r5 = *(u64 *)(r4 + 8)
    r5 += r1
    *(u64 *)(r4 + 8) = r5
    r0 = 0
    exit";

const WHICH: u64 = 5;
const KEYS: u64 = 12;

struct Kernel {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    key_size: usize,
}

impl Kernel {
    fn start(binary: &Path, decl: &MapDecl, program: &Program) -> Result<Kernel, String> {
        let mut child = Command::new(binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut k = Kernel { child, to, from, key_size: decl.key_size as usize };
        let code = program.encode();
        let mut head: Vec<u32> = vec![kernel_kind(decl.kind), decl.key_size, decl.max_entries, decl.flags];
        head.extend([u32::from(decl.spin_lock.is_some()), code.len() as u32 / 8]);
        let funcs = program.funcs().iter().map(|f| f.start.0);
        k.words(&head);
        k.to.write_all(&code).unwrap();
        k.words(&[program.funcs().len() as u32]);
        k.words(&funcs.collect::<Vec<_>>());
        let (error, len) = (k.int(), k.int());
        let log = String::from_utf8_lossy(&k.bytes(len as usize)).into_owned();
        match error {
            0 => Ok(k),
            e => Err(format!("{}: {log}", std::io::Error::from_raw_os_error(-e))),
        }
    }

    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|w| self.to.write_all(&w.to_ne_bytes()).unwrap());
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.from.read_exact(&mut bytes).expect("an answer of the kernel's side");
        bytes
    }

    fn int(&mut self) -> i32 {
        i32::from_ne_bytes(self.bytes(4).try_into().unwrap())
    }

    fn run(&mut self, ctx: &[u8; CTX]) -> (i64, Vec<u8>) {
        self.words(&[0]);
        self.to.write_all(ctx).unwrap();
        assert_eq!(self.int(), 0, "BPF_PROG_TEST_RUN");
        (self.int().into(), self.bytes(CTX))
    }

    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        self.words(&[1]);
        self.to.write_all(&flags.to_ne_bytes()).unwrap();
        self.to.write_all(key).unwrap();
        self.to.write_all(value).unwrap();
        self.int().into()
    }

    fn delete(&mut self, key: &[u8]) -> i64 {
        self.words(&[2]);
        self.to.write_all(key).unwrap();
        self.int().into()
    }

    fn dump(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.words(&[3]);
        let n = self.int();
        let mut all: Vec<_> =
            (0..n).map(|_| (self.bytes(self.key_size), self.bytes(VALUE as usize))).collect();
        all.sort();
        all
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `enum bpf_map_type`.
fn kernel_kind(kind: MapKind) -> u32 {
    (1..40).find(|n| MapKind::from_bpf_type(*n) == Some(kind)).expect("a kind of the kernel's")
}

fn build() -> Result<std::path::PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel/map-run.c");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("map-run");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let args = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let built = Command::new(&cc).args(args).arg(&binary).arg(&source).output();
    match built {
        Ok(o) if o.status.success() => Ok(binary),
        Ok(o) => Err(format!("{cc}: {}", String::from_utf8_lossy(&o.stderr))),
        Err(e) => Err(format!("{cc}: {e}")),
    }
}

/// Our side: the same program as an instance, and the map.
struct Ours {
    instance: Instance,
    maps: MapSet,
}

impl Ours {
    fn new(program: &Program) -> Ours {
        let verified = Verifier::new(Arc::new(Env::generic(CTX as u32))).verify(program.clone());
        let module = Translator::new().translate(&verified.expect("is accepted")).expect("translates");
        let engine = Engine::global().expect("an engine");
        let module = PolicyModule::compile(engine, module).expect("compiles");
        let owner = Owner { policy: "p".into(), communicator: 0 };
        let registry = MapRegistry::new(engine, DEFAULT_MAP_BYTES);
        let maps = registry.resolve(module.maps(), &ScopeRules::default(), &owner).expect("maps");
        Ours { instance: Instance::new(&module, &maps, Limits::default()).expect("an instance"), maps }
    }

    fn map(&self) -> &Map {
        self.maps.get("m").expect("the map")
    }

    fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all: Vec<_> = self.map().entries().collect();
        all.sort();
        all
    }
}

fn code(result: Result<(), ringfence_host::maps::Errno>) -> i64 {
    result.map_or_else(|e| e.code(), |()| 0)
}

fn decls() -> Vec<MapDecl> {
    let map = |kind: MapKind, max_entries: u32, flags: u32, spin_lock: Option<u32>| MapDecl {
        name: "m".into(),
        kind,
        // The types that map-run knows have keys of 4 bytes; it needs them for locks alone.
        key_size: if kind.is_hash() && spin_lock.is_none() { 8 } else { 4 },
        value_size: VALUE,
        max_entries,
        flags,
        spin_lock,
        ..MapDecl::default()
    };
    vec![
        map(MapKind::Array, 8, 0, None),
        map(MapKind::Array, 8, 0, Some(0)),
        map(MapKind::PercpuArray, 8, 0, None),
        map(MapKind::Hash, 8, 0, None),
        map(MapKind::Hash, 8, 1, None),
        map(MapKind::Hash, 8, 64, Some(0)),
        map(MapKind::PercpuHash, 8, 0, None),
        // So large that neither side evicts: which entry goes is for each to choose.
        map(MapKind::LruHash, 4096, 0, None),
    ]
}

/// The same operations on both sides.
fn compare(kernel: &mut Kernel, ours: &mut Ours, decl: &MapDecl, ops: u64, r: &mut Random) {
    let what = format!("{:?}, flags {}, lock {:?}", decl.kind, decl.flags, decl.spin_lock);
    for op in 0..ops {
        let (key, a, b) = (r.below(KEYS), r.below(1000), r.below(1000));
        let flags = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8][r.below(11) as usize];
        let key_bytes = &key.to_le_bytes()[..decl.key_size as usize];
        let value: Vec<u8> = [0, a, b].iter().flat_map(|w| w.to_le_bytes()).collect();
        let (theirs, mine): (i64, i64) = match r.below(10) {
            0 => (kernel.update(key_bytes, &value, flags), code(ours.map().update(key_bytes, &value, flags))),
            1 => (kernel.delete(key_bytes), code(ours.map().delete(key_bytes))),
            _ => {
                let which = r.below(WHICH);
                // A walk takes no flags but 0, or fails.
                let flags = if which == 3 { flags / 4 } else { flags };
                let mut ctx = [0u8; CTX];
                let words = [which, key, a, b, flags];
                for (to, w) in ctx.chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&w.to_le_bytes());
                }
                let (theirs, left) = kernel.run(&ctx);
                let mine = ours.instance.run_generic(&mut ctx).expect("no fault") as i64;
                assert_eq!(left, ctx, "{what}: op {op} {words:?} (kernel left, ours right)");
                (theirs, mine)
            }
        };
        assert_eq!(theirs, mine, "{what}: op {op}, key {key}, flags {flags} (kernel left, ours right)");
        if op % 16 == 0 {
            assert_eq!(kernel.dump(), ours.dump(), "{what}: after op {op} (kernel left, ours right)");
        }
    }
    assert_eq!(kernel.dump(), ours.dump(), "{what}: at the end (kernel left, ours right)");
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn maps_answer_as_the_kernel_s() {
    let (ops, seed) = (setting("RINGFENCE_KERNEL_OPS", 2000), setting("RINGFENCE_KERNEL_SEED", 1));
    let binary = match build() {
        Ok(binary) => binary,
        Err(why) => return println!("SKIPPED: nothing was compared with the kernel: {why}"),
    };
    let mut r = Random::new(seed);
    for decl in decls() {
        let program = assemble(PROGRAM, std::slice::from_ref(&decl)).expect("assembles");
        let mut kernel = match Kernel::start(&binary, &decl, &program) {
            Ok(kernel) => kernel,
            Err(why) if why.contains("permitted") || why.contains("not implemented") => {
                return println!("SKIPPED: nothing was compared with the kernel: {why}");
            }
            Err(why) => panic!("{:?}: the kernel refuses: {why}", decl.kind),
        };
        compare(&mut kernel, &mut Ours::new(&program), &decl, ops, &mut r);
    }
}
