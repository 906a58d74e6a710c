//! The functions as a C program calls them, good and bad.

use super::*;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// Calls C's side of the border.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: what these tests hand over are pointers to locals that outlive the call, or what the callee is to refuse
        // without following it; what they zero are structs of numbers and pointers.
        unsafe { $call }
    };
}

const SCHEMA: &str = "
name = 'border/test'
size = 24
[[field]]
name = 'input'
offset = 0
width = 8
rights = 'read'
rank = 'uniform'
[[field]]
name = 'choice'
offset = 8
width = 4
rights = 'decide'
rank = 'RANK'
min = 1
max = 9
default = 5
[[field]]
name = 'free'
offset = 12
width = 4
rights = 'decide'
rank = 'RANK'
";

/// What a policy begins with.
const PRELUDE: &str = r#"
#include "ringfence.h"
struct ctx { const volatile __u64 input; volatile __u32 choice; volatile __u32 free; __u8 pad[8]; };
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} table SEC(".maps");
RF_LICENSE("Dual MIT/GPL");
"#;

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ctx {
    input: u64,
    choice: u32,
    free: u32,
    pad: [u8; 8],
}

const OURS: Ctx = Ctx { input: 7, choice: 5, free: 3, pad: [0xa5; 8] };

/// A policy directory with the schema of a hook.
struct Place {
    dir: TempDir,
    name: String,
}

impl Place {
    fn new(name: &str, rank: &str) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let schema = SCHEMA.replace("border/test", name).replace("RANK", rank);
        fs::write(dir.path().join("hook.toml"), schema).unwrap();
        let place = Place { dir, name: name.to_owned() };
        place.manifest("");
        place
    }

    /// Writes the manifest: the schema, and the policies of these names, as far as they are there.
    fn manifest(&self, rest: &str) {
        let policies: Vec<_> = ["a", "b"].iter().filter(|n| self.object(n).exists()).collect();
        let mut text = String::from("schemas = ['hook.toml']\n");
        text += if policies.is_empty() { "policy = []\n" } else { "" };
        for name in policies {
            text += &format!("[[policy]]\nfile = '{name}.bpf.o'\n");
        }
        self.put("ringfence.toml", &(text + rest).into_bytes());
    }

    fn put(&self, file: &str, bytes: &[u8]) {
        let part = self.dir.path().join(format!(".{file}.part"));
        fs::write(&part, bytes).unwrap();
        fs::rename(part, self.dir.path().join(file)).unwrap();
    }

    fn object(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.bpf.o"))
    }

    /// Compiles `int NAME(struct ctx *ctx) { BODY }` on the hook, and lists it.
    fn policy(&self, name: &str, body: &str) {
        let hook = &self.name;
        let source = format!("{PRELUDE}\nSEC(\"{hook}\") int {name}(struct ctx *ctx) {{ {body} }}\n");
        self.put(&format!("{name}.bpf.o"), &compile(&source));
        self.manifest("");
    }

    fn path(&self) -> CString {
        CString::new(self.dir.path().to_str().unwrap()).unwrap()
    }

    fn open(&self) -> *mut RfHost {
        let (host, code, text) = open_at(&self.path());
        assert_eq!(code, RF_OK, "{text}");
        host
    }

    fn hook(&self, host: *mut RfHost, n_ranks: u32) -> *mut RfHook {
        let group = RfGroup { struct_size: size_of::<RfGroup>(), id: 1, n_ranks, n_nodes: 1 };
        let name = CString::new(self.name.as_str()).unwrap();
        let (mut hook, mut err) = (null_mut(), no_error());
        let code = c!(rf_hook_open(host, name.as_ptr(), size_of::<Ctx>(), &group, &mut hook, &mut err));
        assert_eq!(code, RF_OK, "{}", said(&err));
        hook
    }
}

fn compile(source: &str) -> Vec<u8> {
    use std::io::Write;
    let compiler = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/include");
    let mut command = Command::new(compiler);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-x", "c", "-I", include, "-c", "-", "-o", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{source}");
    output.stdout
}

fn no_error() -> RfError {
    RfError { code: 77, reserved: 77, text: [b'x' as c_char; RF_ERROR_TEXT] }
}

fn said(err: &RfError) -> String {
    let bytes: Vec<u8> = err.text.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).unwrap()
}

fn options(policy: &CStr) -> RfOptions {
    RfOptions { struct_size: size_of::<RfOptions>(), policy: policy.as_ptr(), schemas: null(), n_schemas: 0 }
}

fn open_at(policy: &CStr) -> (*mut RfHost, i32, String) {
    let (mut host, mut err) = (null_mut(), no_error());
    let code = c!(rf_open(&options(policy), &mut host, &mut err));
    assert_eq!((err.code, err.reserved), (code, 0));
    (host, code, said(&err))
}

/// One decision on our own choice: the result, the context, and what came of it.
fn ask(hook: *mut RfHook) -> (i32, Ctx, RfOutcome) {
    let (mut ctx, mut outcome) = (OURS, RfOutcome { policies: 77, submitted: 77, faults: 77, reserved: 77 });
    let code = c!(rf_decide(hook, (&raw mut ctx).cast(), size_of::<Ctx>(), &mut outcome));
    (code, ctx, outcome)
}

fn counts(outcome: &RfOutcome) -> (u32, u32, u32) {
    (outcome.policies, outcome.submitted, outcome.faults)
}

fn totals(hook: *mut RfHook) -> RfHookStats {
    let mut stats = RfHookStats {
        struct_size: size_of::<RfHookStats>(),
        generation: 0,
        decisions: 0,
        submitted: 0,
        faults: 0,
    };
    assert_eq!(c!(rf_hook_stats(hook, &mut stats)), RF_OK);
    stats
}

fn stats(host: *mut RfHost) -> RfStats {
    let mut stats: RfStats = c!(std::mem::zeroed());
    stats.struct_size = size_of::<RfStats>();
    assert_eq!(c!(rf_stats(host, &mut stats)), RF_OK);
    stats
}

fn close_all(host: *mut RfHost, hooks: &[*mut RfHook]) {
    for hook in hooks {
        assert_eq!(c!(rf_hook_close(*hook)), RF_OK);
    }
    assert_eq!(c!(rf_close(host)), RF_OK);
}

#[test]
fn the_version_is_the_crate_s() {
    let version = c!(CStr::from_ptr(rf_version()));
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn without_policies_the_caller_s_choice_stands() {
    let place = Place::new("border/none", "local");
    let host = place.open();
    let hook = place.hook(host, 1);
    let (code, ctx, outcome) = ask(hook);
    assert_eq!((code, ctx, counts(&outcome), outcome.reserved), (RF_OK, OURS, (0, 0, 0), 0));
    let mut blank = OURS;
    assert_eq!(c!(rf_context_init(hook, (&raw mut blank).cast(), size_of::<Ctx>())), RF_OK);
    assert_eq!(blank, Ctx { input: 0, choice: 5, free: 0, pad: [0; 8] });
    close_all(host, &[hook]);
}

#[test]
fn a_chain_decides_in_the_order_of_the_manifest() {
    let place = Place::new("border/chain", "local");
    place.policy("b", "ctx->free = ctx->choice * 100 + ctx->input; return RF_SUBMIT;");
    place.policy("a", "ctx->choice = 8; ctx->free = 1; return RF_SUBMIT;");
    let host = place.open();
    let hook = place.hook(host, 1);
    let (code, ctx, outcome) = ask(hook);
    // b saw what a decided; padding and inputs are as they were.
    assert_eq!((code, ctx, counts(&outcome)), (RF_OK, Ctx { choice: 8, free: 807, ..OURS }, (2, 2, 0)));
    let t = totals(hook);
    assert_eq!((t.decisions, t.submitted, t.faults), (1, 2, 0));
    assert_eq!((stats(host).policies, stats(host).endpoints, stats(host).refused), (2, 1, 0));
    close_all(host, &[hook]);
}

#[test]
fn a_policy_that_keeps_changes_nothing() {
    let place = Place::new("border/keep", "local");
    place.policy("a", "ctx->choice = 8; return RF_KEEP;");
    let host = place.open();
    let hook = place.hook(host, 1);
    let (code, ctx, outcome) = ask(hook);
    assert_eq!((code, ctx, counts(&outcome)), (RF_OK, OURS, (1, 0, 0)));
    close_all(host, &[hook]);
}

#[test]
fn what_the_schema_does_not_allow_is_put_back_and_counted() {
    let place = Place::new("border/range", "local");
    place.policy("a", "ctx->choice = 10; ctx->free = 42; return RF_SUBMIT;");
    let host = place.open();
    let hook = place.hook(host, 1);
    let (code, ctx, outcome) = ask(hook);
    assert_eq!((code, ctx, counts(&outcome)), (RF_OK, Ctx { free: 42, ..OURS }, (1, 1, 1)));
    assert_eq!(totals(hook).faults, 1);
    close_all(host, &[hook]);
}

#[test]
fn a_policy_that_runs_out_of_fuel_is_skipped() {
    let place = Place::new("border/fuel", "local");
    place.policy("b", "ctx->free = 9; return RF_SUBMIT;");
    place.policy("a", "ctx->choice = 8; for (int i = 0; i < 1000; i++) ctx->free += i; return RF_SUBMIT;");
    place.manifest("[limits]\nfuel = 100\n");
    let host = place.open();
    let hook = place.hook(host, 1);
    let (code, ctx, outcome) = ask(hook);
    assert_eq!((code, ctx, counts(&outcome)), (RF_OK, Ctx { free: 9, ..OURS }, (2, 1, 1)));
    close_all(host, &[hook]);
}

#[test]
fn maps_are_read_written_and_walked() {
    let place = Place::new("border/maps", "local");
    place.policy(
        "a",
        "__u32 key = 1; __u64 *v = bpf_map_lookup_elem(&table, &key); if (!v) return RF_KEEP; ctx->free = *v; *v += 1; return RF_SUBMIT;",
    );
    let host = place.open();
    let hook = place.hook(host, 1);
    let (map, key, other, third) = (c"table", 1u32, 2u32, 3u32);
    let set = |key: &u32, value: u64, flags| {
        c!(rf_map_set(
            hook,
            map.as_ptr(),
            (&raw const *key).cast(),
            4,
            (&raw const value).cast(),
            8,
            flags,
            null_mut(),
        ))
    };
    let get = |key: &u32| {
        let mut value = 0u64;
        let code = c!(rf_map_get(
            hook,
            map.as_ptr(),
            (&raw const *key).cast(),
            4,
            (&raw mut value).cast(),
            8,
            null_mut(),
        ));
        (code, value)
    };
    assert_eq!(get(&key), (RF_ERR_NOT_FOUND, 0));
    assert_eq!(set(&key, 40, 2), RF_ERR_NOT_FOUND, "replace only");
    assert_eq!(set(&key, 40, 0), RF_OK);
    assert_eq!(set(&key, 41, 1), RF_ERR_MAP, "create only");
    assert_eq!(ask(hook).1.free, 40);
    assert_eq!(get(&key), (RF_OK, 41), "the policy wrote");
    assert_eq!((set(&other, 1, 0), set(&third, 1, 0)), (RF_OK, RF_ERR_MAP), "two entries at most");
    assert_eq!(set(&other, 1, 9), RF_ERR_MAP, "no such flag");
    let mut shape: RfMapInfo = c!(std::mem::zeroed());
    shape.struct_size = size_of::<RfMapInfo>();
    assert_eq!(c!(rf_map_info(hook, map.as_ptr(), &mut shape, null_mut())), RF_OK);
    assert_eq!((shape.key_size, shape.value_size, shape.max_entries, shape.entries), (4, 8, 2, 2));
    let mut seen: Vec<(u32, u64)> = Vec::new();
    let walk = |visit, arg: *mut c_void| c!(rf_map_iterate(hook, map.as_ptr(), visit, arg, null_mut()));
    assert_eq!(walk(Some(collect), (&raw mut seen).cast()), RF_OK);
    seen.sort();
    assert_eq!(seen, [(1, 41), (2, 1)]);
    seen.clear();
    assert_eq!(walk(Some(stop_at_once), (&raw mut seen).cast()), RF_OK);
    assert_eq!(seen.len(), 1);
    assert_eq!(walk(None, null_mut()), RF_ERR_ARGUMENT);
    let delete = |key: &u32| c!(rf_map_delete(hook, map.as_ptr(), (&raw const *key).cast(), 4, null_mut()));
    assert_eq!((delete(&other), delete(&other)), (RF_OK, RF_ERR_NOT_FOUND));
    sizes_and_names_of_maps_are_checked(hook);
    close_all(host, &[hook]);
}

unsafe extern "C" fn collect(
    arg: *mut c_void,
    key: *const c_void,
    ks: usize,
    value: *const c_void,
    vs: usize,
) -> i32 {
    assert_eq!((ks, vs), (4, 8));
    let entry = c!((key.cast::<u32>().read_unaligned(), value.cast::<u64>().read_unaligned()));
    c!((*arg.cast::<Vec<(u32, u64)>>()).push(entry));
    0
}

unsafe extern "C" fn stop_at_once(
    arg: *mut c_void,
    key: *const c_void,
    ks: usize,
    value: *const c_void,
    vs: usize,
) -> i32 {
    c!(collect(arg, key, ks, value, vs));
    1
}

fn sizes_and_names_of_maps_are_checked(hook: *mut RfHook) {
    let (key, mut value, mut err) = (1u32, [0u8; 16], no_error());
    let mut get = |map: *const c_char, key_size: usize, value_size: usize| {
        let value = value.as_mut_ptr().cast();
        let code = c!(rf_map_get(hook, map, (&raw const key).cast(), key_size, value, value_size, &mut err));
        (code, said(&err))
    };
    let sizes =
        (RF_ERR_SIZE, "hash(key 4, value 8, 2 entries) has keys of 4 bytes and values of 8".to_owned());
    assert_eq!(get(c"table".as_ptr(), 8, 8), sizes);
    assert_eq!(get(c"table".as_ptr(), 4, 16), sizes);
    assert_eq!(get(null(), 4, 8), (RF_ERR_ARGUMENT, "map is NULL".to_owned()));
    assert_eq!(get(c"\xff".as_ptr(), 4, 8), (RF_ERR_ARGUMENT, "map is not UTF-8".to_owned()));
    let (code, text) = get(c"tables".as_ptr(), 4, 8);
    assert_eq!((code, text.as_str()), (RF_ERR_NOT_FOUND, "no policy on this hook uses a map \"tables\""));
}

#[test]
fn a_reload_reaches_hooks_that_decide_alone_and_keeps_maps() {
    let place = Place::new("border/reload", "local");
    let count = "__u32 key = 1; __u64 one = 1; __u64 *v = bpf_map_lookup_elem(&table, &key); if (v) *v += 1; else bpf_map_update_elem(&table, &key, &one, 0); ctx->free = v ? *v : 1;";
    place.policy("a", &format!("{count} ctx->choice = 1; return RF_SUBMIT;"));
    let host = place.open();
    let hook = place.hook(host, 8);
    assert_eq!((ask(hook).1.choice, ask(hook).1.free), (1, 2));
    place.policy("a", &format!("{count} ctx->choice = 2; return RF_SUBMIT;"));
    assert_eq!(c!(rf_reload(host, null_mut())), RF_OK);
    let (_, ctx, _) = ask(hook);
    assert_eq!((ctx.choice, ctx.free), (2, 3), "the new policy, and the old map");
    // A bad one is refused with its reason; what was in force stays.
    let before = totals(hook).generation;
    place.policy("a", "return *(volatile int *)0;");
    let mut err = no_error();
    assert_eq!(c!(rf_reload(host, &mut err)), RF_REFUSED);
    assert!(said(&err).contains("a.bpf.o: reject["), "{}", said(&err));
    assert_eq!((ask(hook).1.choice, totals(hook).generation, stats(host).refused), (2, before, 1));
    close_all(host, &[hook]);
}

#[test]
fn ranks_that_must_agree_keep_their_policies_and_new_hooks_take_new_ones() {
    let place = Place::new("border/agree", "uniform");
    place.policy("a", "ctx->choice = 1; return RF_SUBMIT;");
    let host = place.open();
    let (alone, group) = (place.hook(host, 1), place.hook(host, 4));
    place.policy("a", "ctx->choice = 2; return RF_SUBMIT;");
    assert_eq!(c!(rf_reload(host, null_mut())), RF_OK);
    let later = place.hook(host, 4);
    assert_eq!([alone, group, later].map(|h| ask(h).1.choice), [2, 1, 2]);
    close_all(host, &[alone, group, later]);
}

#[test]
fn a_refused_policy_still_opens_and_a_good_one_is_taken_later() {
    let place = Place::new("border/refused", "local");
    place.policy("a", "return *(volatile int *)0;");
    let (host, code, text) = open_at(&place.path());
    assert_eq!(code, RF_REFUSED);
    assert!(!host.is_null() && text.contains("a.bpf.o: reject["), "{text}");
    // Its schema was read before the policies were, so the hook is there, and passes everything through.
    let hook = place.hook(host, 1);
    assert_eq!((ask(hook).0, ask(hook).1), (RF_OK, OURS));
    place.policy("a", "ctx->choice = 3; return RF_SUBMIT;");
    assert_eq!(c!(rf_reload(host, null_mut())), RF_OK);
    assert_eq!(ask(hook).1.choice, 3);
    close_all(host, &[hook]);
}

#[test]
fn two_that_name_the_same_policies_share_a_host_and_hooks_outlive_it() {
    let place = Place::new("border/share", "local");
    place.policy(
        "a",
        "__u32 key = 1; __u64 v = ctx->input; bpf_map_update_elem(&table, &key, &v, 0); return RF_KEEP;",
    );
    let (first, second) = (place.open(), place.open());
    let (a, b) = (place.hook(first, 1), place.hook(second, 1));
    assert_eq!(c!(rf_close(first)), RF_OK);
    ask(a);
    let (key, mut value) = (1u32, 0u64);
    let code = c!(rf_map_get(
        b,
        c"table".as_ptr(),
        (&raw const key).cast(),
        4,
        (&raw mut value).cast(),
        8,
        null_mut()
    ));
    assert_eq!((code, value), (RF_OK, 7), "one map for both");
    close_all(second, &[a, b]);
}

#[test]
fn handles_that_are_closed_invented_or_null_are_refused() {
    let place = Place::new("border/handles", "local");
    let host = place.open();
    let hook = place.hook(host, 1);
    close_all(host, &[hook]);
    assert_eq!(c!((rf_hook_close(hook), rf_close(host))), (RF_ERR_HANDLE, RF_ERR_HANDLE));
    assert_eq!(c!((rf_hook_close(null_mut()), rf_close(null_mut()))), (RF_OK, RF_OK));
    for hook in
        [hook, null_mut(), without_provenance_mut(usize::MAX), without_provenance_mut(0xdead_beef_0000)]
    {
        let (code, ctx, outcome) = ask(hook);
        assert_eq!((code, ctx, outcome.policies), (RF_ERR_HANDLE, OURS, 77));
        assert_eq!(
            c!(rf_map_get(hook, c"table".as_ptr(), null(), 4, null_mut(), 8, null_mut())),
            RF_ERR_HANDLE
        );
    }
    for host in [host, null_mut(), without_provenance_mut(1)] {
        let (mut out, mut err) = (without_provenance_mut(77), no_error());
        let code = c!(rf_hook_open(host, c"border/handles".as_ptr(), 24, null(), &mut out, &mut err));
        assert_eq!((code, out.is_null(), said(&err).as_str()), (RF_ERR_HANDLE, true, "no such host is open"));
        assert_eq!(c!(rf_reload(host, null_mut())), RF_ERR_HANDLE);
    }
}

#[test]
fn bad_arguments_of_a_decision_leave_the_context_alone() {
    let place = Place::new("border/arguments", "local");
    place.policy("a", "ctx->choice = 8; return RF_SUBMIT;");
    let host = place.open();
    let hook = place.hook(host, 1);
    let mut ctx = OURS;
    let decide = |ctx: *mut c_void, size| c!(rf_decide(hook, ctx, size, null_mut()));
    for size in [0, 16, 23, usize::MAX] {
        let want = if size == usize::MAX { RF_ERR_ARGUMENT } else { RF_ERR_SIZE };
        assert_eq!(decide((&raw mut ctx).cast(), size), want, "{size}");
    }
    assert_eq!(decide(null_mut(), 24), RF_ERR_ARGUMENT);
    assert_eq!(ctx, OURS);
    // A context at an odd address is served: it is bytes.
    let mut room = [0u8; 25];
    assert_eq!(decide(room[1..].as_mut_ptr().cast(), 24), RF_OK);
    assert_eq!(room[1 + 8], 8);
    close_all(host, &[hook]);
}

#[test]
fn options_may_be_older_and_newer_but_not_nonsense() {
    let place = Place::new("border/options", "local");
    let path = place.path();
    let open = |options: *const RfOptions| {
        let (mut host, mut err) = (without_provenance_mut(77), no_error());
        let code = c!(rf_open(options, &mut host, &mut err));
        c!(rf_close(host));
        (code, said(&err))
    };
    // Older: ends behind `policy`.
    assert_eq!(open(&RfOptions { struct_size: 16, ..options(&path) }).0, RF_OK);
    // Newer: members that we do not know, unset and set.
    #[repr(C)]
    struct Newer(RfOptions, u64);
    let newer = |more| Newer(RfOptions { struct_size: size_of::<Newer>(), ..options(&path) }, more);
    let (unset, set) = (newer(0), newer(1));
    assert_eq!(open((&raw const unset).cast()).0, RF_OK);
    let (code, text) = open((&raw const set).cast());
    assert_eq!(
        (code, text.as_str()),
        (RF_ERR_ARGUMENT, "options sets members that this library does not know; it is too old")
    );
    for size in [0, 7, usize::MAX] {
        assert_eq!(open(&RfOptions { struct_size: size, ..options(&path) }).0, RF_ERR_ARGUMENT, "{size}");
    }
    assert_eq!(open(&RfOptions { n_schemas: 1, ..options(&path) }).0, RF_ERR_ARGUMENT);
    assert_eq!(c!(rf_open(&options(&path), null_mut(), null_mut())), RF_ERR_ARGUMENT);
    let misaligned = without_provenance_mut::<RfOptions>((&raw const path).addr() | 1);
    assert_eq!(open(misaligned).0, RF_ERR_ARGUMENT);
}

#[test]
fn schemas_that_are_missing_wrong_or_of_another_size_are_named() {
    let place = Place::new("border/schemas", "local");
    let (path, file) = (place.path(), place.dir.path().join("x.toml"));
    let name = CString::new(file.to_str().unwrap()).unwrap();
    let files = [name.as_ptr()];
    let with = RfOptions { schemas: files.as_ptr(), n_schemas: 1, ..options(&path) };
    let open = || {
        let (mut host, mut err) = (null_mut(), no_error());
        let code = c!(rf_open(&with, &mut host, &mut err));
        (code, host, said(&err))
    };
    let (code, host, text) = open();
    assert!(code == RF_ERR_SCHEMA && host.is_null() && text.contains("x.toml: cannot read"), "{text}");
    fs::write(&file, "name = 'tuner/mine'\nsize = 8\n").unwrap();
    assert!(open().2.contains("x.toml: line 1, column 8: name: \"tuner/mine\" belongs"));
    fs::write(&file, "name = 'border-schemas-x'\nsize = 8\n").unwrap();
    let (code, host, text) = open();
    assert_eq!(code, RF_OK, "{text}");
    let hook = |name: &CStr, size| {
        let (mut hook, mut err) = (null_mut(), no_error());
        let code = c!(rf_hook_open(host, name.as_ptr(), size, null(), &mut hook, &mut err));
        c!(rf_hook_close(hook));
        (code, said(&err))
    };
    assert_eq!(hook(c"border-schemas-x", 8).0, RF_OK);
    assert_eq!(hook(c"border/schemas", 24).0, RF_OK, "the manifest's");
    let (code, text) = hook(c"border-schemas-x", 16);
    assert!(
        code == RF_ERR_SIZE && text.contains("has 8 bytes by its schema, and 16 by the caller"),
        "{text}"
    );
    for name in [c"border-schemas-y", c"tuner", c""] {
        assert_eq!(hook(name, 8).0, RF_ERR_SCHEMA, "{name:?}");
    }
    // A second layout for a name that is taken.
    fs::write(&file, "name = 'border-schemas-x'\nsize = 16\n").unwrap();
    assert!(open().2.contains("has another layout in"), "one name, one layout");
    assert_eq!(c!(rf_close(host)), RF_OK);
}

#[test]
fn results_are_written_as_far_as_the_caller_s_struct_goes() {
    let place = Place::new("border/results", "local");
    let host = place.open();
    let mut small = RfStats { generation: 77, policies: 77, loads: 77, ..c!(std::mem::zeroed()) };
    small.struct_size = 16;
    assert_eq!(c!(rf_stats(host, &mut small)), RF_OK);
    assert_eq!((small.struct_size, small.policies, small.loads), (16, 77, 77));
    assert_ne!(small.generation, 77);
    small.struct_size = 0;
    assert_eq!(c!(rf_stats(host, &mut small)), RF_ERR_ARGUMENT);
    assert_eq!(c!(rf_stats(host, null_mut())), RF_ERR_ARGUMENT);
    close_all(host, &[]);
}

/// A second thread on a hook is turned away or gets a whole decision, never half of one.
#[test]
fn threads_never_meet_inside_a_hook() {
    let place = Place::new("border/threads", "local");
    place.policy("a", "ctx->choice = 8; ctx->free = ctx->input; return RF_SUBMIT;");
    let host = place.open();
    let hook = place.hook(host, 1).addr();
    let failed = AtomicBool::new(false);
    let done: u64 = std::thread::scope(|scope| {
        let run = || {
            let mut done = 0;
            for _ in 0..5000 {
                match ask(without_provenance_mut(hook)) {
                    (RF_OK, Ctx { choice: 8, free: 7, .. }, _) => done += 1,
                    (RF_ERR_HANDLE, OURS, _) => {}
                    _ => failed.store(true, Ordering::Relaxed),
                }
            }
            done
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(!failed.load(Ordering::Relaxed));
    assert_eq!(totals(without_provenance_mut(hook)).decisions, done);
    close_all(host, &[without_provenance_mut(hook)]);
}

#[test]
fn a_panic_stops_at_the_border() {
    let before = PANICS.load(Ordering::Relaxed);
    let mut err = no_error();
    assert_eq!(c!(entry(&mut err, || panic!("on purpose"))), RF_ERR_INTERNAL);
    assert_eq!((err.code, said(&err).contains("defect")), (RF_ERR_INTERNAL, true));
    assert_eq!(quick(|| panic!("on purpose")), RF_ERR_INTERNAL);
    assert_eq!(PANICS.load(Ordering::Relaxed), before + 2);
}

/// Counts what this thread allocates. The decision path promises nothing.
struct Counting;

thread_local! {
    static ALLOCATIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it is; counting touches no memory of its own but a
// thread-local without destructor.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as for the trait.
        unsafe { std::alloc::System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: as for the trait.
        unsafe { std::alloc::System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_decision_allocates_nothing() {
    let place = Place::new("border/alloc", "local");
    place.policy("a", "ctx->choice = 10; ctx->free = ctx->input; return RF_SUBMIT;");
    let host = place.open();
    let hook = place.hook(host, 1);
    ask(hook);
    let before = ALLOCATIONS.get();
    assert!((0..1000).all(|_| ask(hook).0 == RF_OK));
    // Closed and wrong-sized calls neither: their failures carry no text.
    assert_eq!(ask(null_mut()).0, RF_ERR_HANDLE);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop(vec![1u8; 100]);
    assert_ne!(ALLOCATIONS.get(), before, "the counter counts");
    close_all(host, &[hook]);
}
