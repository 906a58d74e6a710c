//! The functions of the API, [`FUNCTIONS`](functions), and the only `unsafe` of this crate.
//!
//! What C hands in is believed as far as the header says, and no further: pointers to memory must be null or point to what the
//! signature says; they are checked for null and alignment before use. Handles are no pointers at all but numbers with a
//! generation ([`Handles`]), so one that is stale, closed twice or invented is refused. A panic stops at the
//! border and becomes [`RF_ERR_INTERNAL`].

use crate::ctype::{CType, RfHook, RfHost};
use crate::error::{Failure, Outcome, c_text};
use crate::table::*;
use ringfence_host::client::{self, Client, ClientHook, Group};
use ringfence_host::ffi::handles::Handles;
use ringfence_host::schema::Schema;
use ringfence_host::{Host, Map, Source};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static HOSTS: Handles<Client> = Handles::new();
static HOOKS: Handles<ClientHook> = Handles::new();
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Most bytes of a context, key or value that is believed: above every size that a schema or a map can have.
const MOST_BYTES: usize = 1 << 24;

/// Declares the functions, and the same as data for the header. Each is a shell around a function of this module.
macro_rules! api {
    ($($(#[doc = $doc:literal])* fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ty = $body:expr;)*) => {
        $(
            $(#[doc = $doc])*
            #[allow(clippy::missing_safety_doc)] // The header's first comment is the safety section of all of them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $result {
                #[allow(unused_unsafe)] // Some bodies need none.
                // SAFETY: the caller keeps what the header says of the arguments, which is what the body needs.
                unsafe { $body }
            }
        )*

        /// All functions, in the order of the header.
        pub fn functions() -> Vec<Function> {
            vec![$(Function {
                name: stringify!($name),
                doc: &[$($doc),*],
                result: <$result as CType>::declare(""),
                arguments: vec![$(<$ty as CType>::declare(stringify!($arg))),*],
            }),*]
        }
    };
}

api! {
    /// Version of the library, as "0.1.0". Never NULL.
    fn rf_version() -> *const c_char = VERSION.as_ptr();

    /// Opens a host: reads schemas and policies, and watches the policies from then on, on a thread of its own, until the last
    /// host and hook are closed. Callers in one process that name the same policies share them, and their maps.
    /// RF_OK; RF_REFUSED (the host is open, see there); or an error, and *out is NULL. Any thread. May take a second: policies
    /// are verified and compiled here. options may be NULL: all defaults.
    fn rf_open(options: *const RfOptions, out: *mut *mut RfHost, err: *mut RfError) -> i32 =
        entry(err, || open(options, out));

    /// Opens a place where policies are asked. hook is the schema's name, as "ep/mode"; context_size is sizeof the caller's
    /// struct, and must be the schema's. A hook without policies is no error: rf_decide then leaves everything as it is, until policies appear.
    /// group may be NULL: this caller alone. Any thread.
    fn rf_hook_open(host: *mut RfHost, hook: *const c_char, context_size: usize, group: *const RfGroup, out: *mut *mut RfHook, err: *mut RfError) -> i32 =
        entry(err, || hook_open(host, hook, context_size, group, out));

    /// Fills a context with zeros and each decided field with the schema's default. ctx has size bytes.
    fn rf_context_init(hook: *mut RfHook, ctx: *mut c_void, size: usize) -> i32 =
        quick(|| context_init(hook, ctx, size));

    /// Asks the policies on a hook, in the order of the manifest. ctx is the context, of size bytes; its decided fields come in with
    /// the caller's own choice, and are left as the policies decided, within what the schema allows. On any result but RF_OK,
    /// ctx is as it was: the caller goes on with its own choice. outcome may be NULL.
    /// One thread at a time for a hook; another one is turned away with RF_ERR_HANDLE. Allocates nothing and makes no system
    /// call; what a policy may use is bounded by its fuel.
    fn rf_decide(hook: *mut RfHook, ctx: *mut c_void, size: usize, outcome: *mut RfOutcome) -> i32 =
        quick(|| decide(hook, ctx, size, outcome));

    /// Shape of a map that policies on the hook use, by its name. Any thread; so are all functions of maps.
    fn rf_map_info(hook: *mut RfHook, map: *const c_char, info: *mut RfMapInfo, err: *mut RfError) -> i32 =
        entry(err, || map_info(hook, map, info));

    /// Copies the value of a key. RF_ERR_NOT_FOUND if there is none.
    fn rf_map_get(hook: *mut RfHook, map: *const c_char, key: *const c_void, key_size: usize, value: *mut c_void, value_size: usize, err: *mut RfError) -> i32 =
        entry(err, || map_get(hook, map, (key, key_size), (value, value_size)));

    /// Sets the value of a key. flags: 0 create or replace, 1 create only, 2 replace only, as bpf_map_update_elem.
    /// Aligned 8-byte words of the value are never torn; two words may be of two updates.
    fn rf_map_set(hook: *mut RfHook, map: *const c_char, key: *const c_void, key_size: usize, value: *const c_void, value_size: usize, flags: u64, err: *mut RfError) -> i32 =
        entry(err, || map_set(hook, map, (key, key_size), (value, value_size), flags));

    /// Removes a key.
    fn rf_map_delete(hook: *mut RfHook, map: *const c_char, key: *const c_void, key_size: usize, err: *mut RfError) -> i32 =
        entry(err, || map_delete(hook, map, (key, key_size)));

    /// Calls visit for each entry, in no order that means anything. Entries that come or go meanwhile may be missing.
    fn rf_map_iterate(hook: *mut RfHook, map: *const c_char, visit: Option<RfVisit>, arg: *mut c_void, err: *mut RfError) -> i32 =
        entry(err, || map_iterate(hook, map, visit, arg));

    /// Reads the policies again now, on this thread, rather than when the directory changes. RF_OK if what is there is in force;
    /// RF_REFUSED with the reason if it is refused, and what was in force stays. Any thread.
    fn rf_reload(host: *mut RfHost, err: *mut RfError) -> i32 = entry(err, || reload(host));

    /// State of a host. Any thread.
    fn rf_stats(host: *mut RfHost, stats: *mut RfStats) -> i32 = quick(|| stats_of(host, stats));

    /// What came of all decisions of a hook. Any thread.
    fn rf_hook_stats(hook: *mut RfHook, stats: *mut RfHookStats) -> i32 =
        quick(|| hook_stats(hook, stats));

    /// Closes a hook; NULL is fine. Any thread, once no other is inside.
    fn rf_hook_close(hook: *mut RfHook) -> i32 = quick(|| Ok(hook_close(hook)));

    /// Closes a host; NULL is fine. Hooks that are still open keep working until they are closed. Any thread.
    fn rf_close(host: *mut RfHost) -> i32 = quick(|| Ok(close(host)));
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};

/// Runs a body that never panics past this point; its failure, or success, is told to `err`.
///
/// # Safety
/// `err` is null or points to an `rf_error` that may be written.
unsafe fn entry(err: *mut RfError, body: impl FnOnce() -> Outcome) -> i32 {
    let (code, text) = match caught(body) {
        Ok(code) => (code, String::new()),
        Err(failure) => (failure.code, failure.text),
    };
    if !err.is_null() && err.is_aligned() {
        // SAFETY: by this function's contract; null and misaligned pointers were sorted out.
        unsafe { err.write(RfError { code, reserved: 0, text: c_text(&text) }) };
    }
    code
}

/// As [`entry`], where there is nobody to tell.
fn quick(body: impl FnOnce() -> Outcome) -> i32 {
    caught(body).unwrap_or_else(|failure| failure.code)
}

/// `AssertUnwindSafe`: what a panic was inside of is a hook or a host whose try-lock then stays closed, so nobody sees it half-changed.
fn caught(body: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        Err(Failure::new(RF_ERR_INTERNAL, "a defect of Ringfence was stopped at the border"))
    })
}

/// # Safety
/// As the header says of `rf_open`.
unsafe fn open(options: *const RfOptions, out: *mut *mut RfHost) -> Outcome {
    // SAFETY: passed on.
    let out = unsafe { place(out, "out") }?;
    *out = std::ptr::null_mut();
    // SAFETY: passed on. Zeros are a value of RfOptions: null pointers and numbers.
    let options = unsafe { sized(options, "options") }?;
    if let Some(options) = &options {
        // SAFETY: the header demands n_schemas pointers to strings behind `schemas`.
        unsafe { intern_schemas(options) }?;
    }
    let source = match &options {
        Some(options) if !options.policy.is_null() => {
            // SAFETY: not null, and the header demands a string.
            let path = Path::new(unsafe { text(options.policy, "policy") }?);
            // From the working directory of this moment, whatever the process does with it later.
            Some(Source::at(std::path::absolute(path).unwrap_or(path.to_owned())))
        }
        _ => None,
    };
    let client = Client::open(source)?;
    let refusal = client.refusal();
    let handle = HOSTS.insert(client).map_err(|_| Failure::new(RF_ERR_LIMIT, "too many hosts are open"))?;
    *out = handle.cast();
    refusal.map_or(Ok(RF_OK), |e| Err(Failure::refused(&e)))
}

/// # Safety
/// `schemas` points to `n_schemas` pointers to NUL-terminated strings, or that is 0.
unsafe fn intern_schemas(options: &RfOptions) -> Result<(), Failure> {
    for i in 0..options.n_schemas {
        if options.schemas.is_null() || !options.schemas.is_aligned() {
            return Err(Failure::argument("schemas is NULL, and n_schemas is not 0"));
        }
        // SAFETY: element i of n_schemas, by this function's contract.
        let file = unsafe { text(*options.schemas.add(i), "schemas") }?;
        Schema::read(Path::new(file))?.intern()?;
    }
    Ok(())
}

/// # Safety
/// As the header says of `rf_hook_open`.
unsafe fn hook_open(
    host: *mut RfHost,
    name: *const c_char,
    context_size: usize,
    group: *const RfGroup,
    out: *mut *mut RfHook,
) -> Outcome {
    // SAFETY: passed on.
    let out = unsafe { place(out, "out") }?;
    *out = std::ptr::null_mut();
    // SAFETY: passed on.
    let name = unsafe { text(name, "hook") }?;
    // SAFETY: passed on. Zeros are a value of RfGroup.
    let group = unsafe { sized(group, "group") }?.map_or(Group::default(), |g| Group {
        id: g.id,
        n_ranks: g.n_ranks,
        n_nodes: g.n_nodes,
    });
    let hook = client::open_hook(host_of(host)?, name, context_size, &group)?;
    let handle = HOOKS.insert(hook).map_err(|hook| {
        hook.close();
        Failure::new(RF_ERR_LIMIT, "too many hooks are open")
    })?;
    *out = handle.cast();
    Ok(RF_OK)
}

/// # Safety
/// `ctx` points to `size` bytes that may be written.
unsafe fn context_init(hook: *mut RfHook, ctx: *mut c_void, size: usize) -> Outcome {
    let schema = patiently(hook, |hook| hook.schema())?;
    if size != schema.size() as usize {
        return Err(Failure::new(RF_ERR_SIZE, ""));
    }
    // SAFETY: passed on.
    let ctx = unsafe { bytes_mut(ctx, size) }?;
    ctx.copy_from_slice(&schema.blank());
    Ok(RF_OK)
}

/// # Safety
/// `ctx` points to `size` bytes that may be read and written; `outcome` is null or points to an `rf_outcome`.
unsafe fn decide(hook: *mut RfHook, ctx: *mut c_void, size: usize, outcome: *mut RfOutcome) -> Outcome {
    // SAFETY: passed on.
    let ctx = unsafe { bytes_mut(ctx, size) }?;
    let ran = HOOKS.with(hook.cast(), |hook| hook.decide(ctx)).ok_or(GONE)?;
    let ran = ran.ok_or(WRONG_SIZE)?;
    if !outcome.is_null() && outcome.is_aligned() {
        let (policies, submitted, faults) = (ran.policies, ran.submitted, ran.faults);
        // SAFETY: by this function's contract; null and misaligned pointers were sorted out.
        unsafe { outcome.write(RfOutcome { policies, submitted, faults, reserved: 0 }) };
    }
    Ok(RF_OK)
}

/// Without text, so that the decision path does not allocate.
const GONE: Failure = Failure { code: RF_ERR_HANDLE, text: String::new() };
const WRONG_SIZE: Failure = Failure { code: RF_ERR_SIZE, text: String::new() };

/// # Safety
/// As the header says of `rf_map_info`.
unsafe fn map_info(hook: *mut RfHook, map: *const c_char, info: *mut RfMapInfo) -> Outcome {
    // SAFETY: passed on.
    let map = unsafe { map_of(hook, map) }?;
    let decl = map.decl();
    let (key_size, value_size, max_entries) = (decl.key_size, decl.value_size, decl.max_entries);
    let value = RfMapInfo { struct_size: 0, key_size, value_size, max_entries, entries: map.len() };
    // SAFETY: passed on.
    unsafe { give(info, value) }
}

/// # Safety
/// As the header says of `rf_map_get`: each pair is a pointer to that many bytes.
unsafe fn map_get(
    hook: *mut RfHook,
    map: *const c_char,
    (key, key_size): (*const c_void, usize),
    (value, value_size): (*mut c_void, usize),
) -> Outcome {
    // SAFETY: passed on.
    let map = unsafe { map_of(hook, map) }?;
    check_sizes(&map, key_size, Some(value_size))?;
    // SAFETY: passed on.
    let key = unsafe { bytes(key, key_size) }?;
    let found = map.lookup(key).ok_or_else(|| Failure::new(RF_ERR_NOT_FOUND, "no such key"))?;
    // SAFETY: passed on.
    let value = unsafe { bytes_mut(value, value_size) }?;
    value.copy_from_slice(&found);
    Ok(RF_OK)
}

/// # Safety
/// As the header says of `rf_map_set`.
unsafe fn map_set(
    hook: *mut RfHook,
    map: *const c_char,
    (key, key_size): (*const c_void, usize),
    (value, value_size): (*const c_void, usize),
    flags: u64,
) -> Outcome {
    // SAFETY: passed on.
    let map = unsafe { map_of(hook, map) }?;
    check_sizes(&map, key_size, Some(value_size))?;
    // SAFETY: passed on, both.
    let (key, value) = unsafe { (bytes(key, key_size)?, bytes(value, value_size)?) };
    map.update(key, value, flags)?;
    Ok(RF_OK)
}

/// # Safety
/// As the header says of `rf_map_delete`.
unsafe fn map_delete(
    hook: *mut RfHook,
    map: *const c_char,
    (key, key_size): (*const c_void, usize),
) -> Outcome {
    // SAFETY: passed on.
    let map = unsafe { map_of(hook, map) }?;
    check_sizes(&map, key_size, None)?;
    // SAFETY: passed on.
    let key = unsafe { bytes(key, key_size) }?;
    map.delete(key)?;
    Ok(RF_OK)
}

/// # Safety
/// As the header says of `rf_map_iterate`: `visit` may be called with `arg`.
unsafe fn map_iterate(
    hook: *mut RfHook,
    map: *const c_char,
    visit: Option<RfVisit>,
    arg: *mut c_void,
) -> Outcome {
    let visit = visit.ok_or_else(|| Failure::argument("visit is NULL"))?;
    // SAFETY: passed on.
    let map = unsafe { map_of(hook, map) }?;
    for (key, value) in map.entries() {
        // SAFETY: the header demands a function of this type; the pointers are to copies that live through the call.
        let more = unsafe { visit(arg, key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len()) };
        if more != 0 {
            break;
        }
    }
    Ok(RF_OK)
}

fn check_sizes(map: &Map, key: usize, value: Option<usize>) -> Result<(), Failure> {
    let decl = map.decl();
    let (want_key, want_value) = (decl.key_size as usize, decl.value_size as usize);
    if key == want_key && value.is_none_or(|value| value == want_value) {
        return Ok(());
    }
    let text = format!("{} has keys of {want_key} bytes and values of {want_value}", map.shape());
    Err(Failure::new(RF_ERR_SIZE, text))
}

fn reload(host: *mut RfHost) -> Outcome {
    match client::reload(host_of(host)?).and_then(|report| report.outcome.err()) {
        None => Ok(RF_OK),
        Some(error) => Err(Failure::refused(&error)),
    }
}

/// # Safety
/// As the header says of `rf_stats`.
unsafe fn stats_of(host: *mut RfHost, stats: *mut RfStats) -> Outcome {
    let host = host_of(host)?;
    let (plan, last) = (host.plan(), host.last_reload());
    let value = RfStats {
        struct_size: 0,
        generation: plan.generation(),
        policies: plan.set().policies().len() as u32,
        endpoints: host.endpoints().len() as u32,
        loads: last.as_ref().map_or(0, |r| r.attempt),
        refused: last.is_some_and(|r| r.outcome.is_err()).into(),
        reserved: 0,
        map_bytes: host.maps().map_or(0, |maps| maps.memory_bytes()),
        panics: PANICS.load(Ordering::Relaxed),
    };
    // SAFETY: passed on.
    unsafe { give(stats, value) }
}

/// # Safety
/// As the header says of `rf_hook_stats`.
unsafe fn hook_stats(hook: *mut RfHook, stats: *mut RfHookStats) -> Outcome {
    let (generation, totals) = patiently(hook, |hook| (hook.generation(), hook.totals()))?;
    let client::Totals { decisions, submitted, faults } = totals;
    // SAFETY: passed on.
    unsafe { give(stats, RfHookStats { struct_size: 0, generation, decisions, submitted, faults }) }
}

fn hook_close(hook: *mut RfHook) -> i32 {
    match HOOKS.remove(hook.cast()) {
        Some(hook) => hook.close(),
        None if hook.is_null() => {}
        None => return RF_ERR_HANDLE,
    }
    RF_OK
}

fn close(host: *mut RfHost) -> i32 {
    match HOSTS.remove(host.cast()) {
        Some(client) => drop(client),
        None if host.is_null() => {}
        None => return RF_ERR_HANDLE,
    }
    RF_OK
}

/// How often a call that may wait a little comes back to a handle that another thread is inside of.
const TRIES: usize = 10_000;

/// The host of a handle. It is only copied out, so threads that meet here wait for each other.
fn host_of(host: *mut RfHost) -> Result<&'static Host, Failure> {
    let found = (0..TRIES).find_map(|_| {
        let host = HOSTS.with(host.cast(), |client| client.host());
        if host.is_none() {
            std::thread::yield_now();
        }
        host
    });
    let found = found.ok_or_else(|| Failure::new(RF_ERR_HANDLE, "no such host is open"))?;
    if !found.is_of_this_process() {
        return Err(Failure::new(RF_ERR_HANDLE, "the host is that of the parent process; open one here"));
    }
    Ok(found)
}

/// Looks into a hook, and waits a while for a decision that is under way.
fn patiently<R>(hook: *mut RfHook, look: impl Fn(&ClientHook) -> R) -> Result<R, Failure> {
    let found = (0..TRIES).find_map(|_| {
        let found = HOOKS.with(hook.cast(), |hook| look(hook));
        if found.is_none() {
            std::thread::yield_now();
        }
        found
    });
    found.ok_or_else(|| Failure::new(RF_ERR_HANDLE, "no such hook is open, or another thread stays inside"))
}

/// The map that policies of a hook use. The hook itself is let go, so that maps can be read while it decides.
///
/// # Safety
/// `name` is null or a NUL-terminated string.
unsafe fn map_of(hook: *mut RfHook, name: *const c_char) -> Result<Arc<Map>, Failure> {
    // SAFETY: passed on.
    let name = unsafe { text(name, "map") }?;
    let map = patiently(hook, |hook| hook.map(name))?;
    map.ok_or_else(|| Failure::new(RF_ERR_NOT_FOUND, format!("no policy on this hook uses a map {name:?}")))
}

/// A place for a result.
///
/// # Safety
/// `pointer` is null or points to a `T` that may be written, and that nobody else uses during the call.
unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(&format!("{what} is NULL or misaligned")));
    }
    // SAFETY: by this function's contract; null and misaligned pointers were sorted out.
    Ok(unsafe { &mut *pointer })
}

/// A string of the caller's.
///
/// # Safety
/// `pointer` is null or a NUL-terminated string that stays as it is during the call.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(&format!("{what} is NULL")));
    }
    // SAFETY: by this function's contract; null was sorted out.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(&format!("{what} is not UTF-8")))
}

/// Bytes of the caller's.
///
/// # Safety
/// `pointer` is null or points to `size` bytes that nobody writes during the call.
unsafe fn bytes<'a>(pointer: *const c_void, size: usize) -> Result<&'a [u8], Failure> {
    if pointer.is_null() || size > MOST_BYTES {
        return Err(Failure { code: RF_ERR_ARGUMENT, text: String::new() });
    }
    // SAFETY: by this function's contract; null was sorted out, bytes need no alignment, and the size is far below isize::MAX.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), size) })
}

/// Bytes of the caller's, to be written.
///
/// # Safety
/// `pointer` is null or points to `size` initialised bytes that nobody else uses during the call.
unsafe fn bytes_mut<'a>(pointer: *mut c_void, size: usize) -> Result<&'a mut [u8], Failure> {
    if pointer.is_null() || size > MOST_BYTES {
        return Err(Failure { code: RF_ERR_ARGUMENT, text: String::new() });
    }
    // SAFETY: as in `bytes`, and nobody else uses them.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), size) })
}

/// A struct that begins with its size in bytes, as `size_t`, and that is a value of its type when it is all zeros.
///
/// # Safety
/// Both of these hold, and the type has no padding that must be something.
unsafe trait Sized_: Copy {}
// SAFETY: repr(C), `struct_size: usize` first, and numbers and raw pointers after it.
unsafe impl Sized_ for RfOptions {}
// SAFETY: as above.
unsafe impl Sized_ for RfGroup {}
// SAFETY: as above.
unsafe impl Sized_ for RfStats {}
// SAFETY: as above.
unsafe impl Sized_ for RfHookStats {}
// SAFETY: as above.
unsafe impl Sized_ for RfMapInfo {}

/// A copy of a struct whose caller may be older (members that it lacks are 0) or newer (members that we lack must be 0, or
/// something would be left undone). `None` for null.
///
/// # Safety
/// `pointer` is null or points to as many bytes as the `size_t` there says.
unsafe fn sized<T: Sized_>(pointer: *const T, what: &str) -> Result<Option<T>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    let wrong = |why: &str| Failure::argument(&format!("{what} {why}"));
    if !pointer.is_aligned() {
        return Err(wrong("is misaligned"));
    }
    // SAFETY: the struct begins with its size (Sized_); not null, aligned.
    let said = unsafe { pointer.cast::<usize>().read() };
    if !(size_of::<usize>()..=MOST_BYTES).contains(&said) {
        return Err(wrong("does not begin with its size (struct_size)"));
    }
    // SAFETY: as many bytes are there as it says, by this function's contract.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), said) };
    let ours = said.min(size_of::<T>());
    if given[ours..].iter().any(|b| *b != 0) {
        return Err(wrong("sets members that this library does not know; it is too old"));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `ours` bytes are in both; zeros and what the caller set are a value of T (Sized_).
    Ok(Some(unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(given.as_ptr(), ours);
        value.assume_init()
    }))
}

/// Writes a struct as far as the caller's has room, but for its size.
///
/// # Safety
/// `pointer` is null or points to as many bytes as the `size_t` there says, which may be written.
unsafe fn give<T: Sized_>(pointer: *mut T, value: T) -> Outcome {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument("the place for the result is NULL or misaligned"));
    }
    const HEAD: usize = size_of::<usize>();
    // SAFETY: the struct begins with its size (Sized_); not null, aligned.
    let said = unsafe { pointer.cast::<usize>().read() };
    if !(HEAD..=MOST_BYTES).contains(&said) {
        return Err(Failure::argument("the place for the result does not begin with its size (struct_size)"));
    }
    let n = said.min(size_of::<T>()) - HEAD;
    let from = (&raw const value).cast::<u8>();
    // SAFETY: `n` bytes behind the size are in both structs, which do not overlap: one is a local of ours. The structs have no
    // padding (asserted below), so what is copied is initialised.
    unsafe { pointer.cast::<u8>().add(HEAD).copy_from_nonoverlapping(from.add(HEAD), n) };
    Ok(RF_OK)
}

/// The structs that are copied as bytes have no padding: their members fill them.
const _: () = {
    assert!(size_of::<RfOptions>() == 4 * 8 && size_of::<RfGroup>() == 2 * 8 + 2 * 4);
    assert!(size_of::<RfStats>() == 5 * 8 + 4 * 4 && size_of::<RfHookStats>() == 5 * 8);
    assert!(size_of::<RfMapInfo>() == 8 + 4 * 4 && size_of::<RfOutcome>() == 4 * 4);
    assert!(size_of::<RfError>() == 512);
};

#[cfg(test)]
mod tests;
