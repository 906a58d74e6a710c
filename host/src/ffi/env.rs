//! The env plugin: [`ncclEnvPlugin_v1`] and [`ncclEnvPlugin_v2`], through which NCCL looks up **all** of its settings.
//!
//! NCCL opens it only if `NCCL_ENV_PLUGIN` names this library, and even then everything goes to the process environment but the names that
//! the manifest's `[env]` mentions. `init` never fails, as NCCL would not start; it runs inside NCCL's `call_once`, so nothing here
//! calls NCCL but its logger, which NCCL's own loader of the plugin uses there too.
//!
//! # Loops
//! NCCL's logger may itself look up settings, and holds its lock while it does. So a look-up never logs; and one that comes in while
//! this thread is inside already (or in `init` or `finalize`, which do log) goes straight to the process.

use super::guard::enter;
use super::logger::NcclLogger;
use super::types::{Logger, NcclResult};
use crate::decision::CommInfo;
use crate::endpoint::{Endpoint, Role};
use crate::env::{self, Answer, EnvRules, Interner, NameClass};
use crate::host::tell;
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::{offset_of, size_of};
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// `init` of version 1: `(major, minor, patch, suffix)`.
pub type InitV1 = unsafe extern "C" fn(u8, u8, u8, *const c_char) -> NcclResult;
/// `init` of version 2: with the logger.
pub type InitV2 = unsafe extern "C" fn(u8, u8, u8, *const c_char, Option<Logger>) -> NcclResult;
/// `finalize`.
pub type Finalize = unsafe extern "C" fn() -> NcclResult;
/// `getEnv`: the value, or null if it is not set.
pub type GetEnv = unsafe extern "C" fn(*const c_char) -> *const c_char;

macro_rules! table {
    ($(#[$doc:meta])* $name:ident($init:ty)) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name {
            pub name: *const c_char,
            pub init: $init,
            pub finalize: Finalize,
            pub get_env: GetEnv,
        }

        // SAFETY: never written; the name is a literal, or that of a library that stays loaded as long as the table is used.
        unsafe impl Sync for $name {}

        const _: () = {
            assert!(size_of::<$name>() == 32 && offset_of!($name, name) == 0 && offset_of!($name, init) == 8);
            assert!(offset_of!($name, finalize) == 16 && offset_of!($name, get_env) == 24);
        };
    };
}

table!(
    /// `ncclEnv_v1_t`.
    EnvV1(InitV1)
);
table!(
    /// `ncclEnv_v2_t`.
    EnvV2(InitV2)
);

/// For NCCL 2.28.9 to 2.30.3.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclEnvPlugin_v1: EnvV1 = EnvV1 { name: c"Ringfence".as_ptr(), init: init_v1, finalize, get_env };

/// For NCCL 2.30.7 and later.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclEnvPlugin_v2: EnvV2 = EnvV2 { name: c"Ringfence".as_ptr(), init: init_v2, finalize, get_env };

/// The policies, NCCL's version, and what NCCL was given. `None` before `init` and after `finalize`.
struct State {
    endpoint: Endpoint,
    version: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static ANSWERS: Mutex<Option<Interner>> = Mutex::new(None);

/// Longest wait for another thread's look-up, in rounds of giving up the processor. Only a forked child of a process that was inside
/// waits that long.
const ROUNDS: u32 = 10_000;

fn patiently<T>(lock: &'static Mutex<T>) -> Option<MutexGuard<'static, T>> {
    for _ in 0..ROUNDS {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` unless this thread is inside already.
fn once_inside<R>(f: impl FnOnce() -> R) -> Option<R> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(false);
        }
    }
    if INSIDE.replace(true) {
        return None;
    }
    let _leave = Leave;
    Some(f())
}

unsafe extern "C" fn init_v1(major: u8, minor: u8, patch: u8, suffix: *const c_char) -> NcclResult {
    // SAFETY: NCCL's arguments, passed on; version 1 brings no logger.
    unsafe { init_v2(major, minor, patch, suffix, None) }
}

unsafe extern "C" fn init_v2(
    major: u8,
    minor: u8,
    patch: u8,
    _suffix: *const c_char,
    logger: Option<Logger>,
) -> NcclResult {
    enter(|| {
        once_inside(|| {
            // SAFETY: NCCL's own logger, in a process that has NCCL loaded to its end or to `finalize`.
            let logger = unsafe { NcclLogger::new(logger) };
            let version = u32::from(major) << 16 | u32::from(minor) << 8 | u32::from(patch);
            let endpoint = Endpoint::join(Role::Env, CommInfo::default(), logger);
            announce(&endpoint.plan().set().manifest().env);
            let before = patiently(&STATE).and_then(|mut state| state.replace(State { endpoint, version }));
            if let Some(before) = before {
                before.endpoint.leave();
            }
        });
    })
}

fn announce(rules: &EnvRules) {
    let (set, allowed) = (rules.set.len(), rules.allow.len());
    if set + allowed > 0 {
        tell!(
            Info,
            "env: {set} settings from the manifest, {allowed} that policies may answer; all others from the process"
        );
    }
}

/// At the process' exit.
unsafe extern "C" fn finalize() -> NcclResult {
    enter(|| {
        once_inside(|| {
            let state = patiently(&STATE).and_then(|mut state| state.take());
            let refused = patiently(&ANSWERS).and_then(|a| a.as_ref().map(Interner::refused)).unwrap_or(0);
            if refused > 0 {
                tell!(
                    Warn,
                    "env: {refused} answers were left to the process: policies made up too many different ones"
                );
            }
            if let Some(state) = state {
                state.endpoint.leave();
            }
        });
    })
}

unsafe extern "C" fn get_env(name: *const c_char) -> *const c_char {
    if name.is_null() {
        return null();
    }
    // SAFETY: NCCL's name, a C string. This is what NCCL's built-in plugin does; a value of the process lives as that one's does, until
    // somebody changes the environment, which NCCL rules out.
    let process: *const c_char = unsafe { libc::getenv(name) };
    let mut answer = process;
    enter(|| {
        // SAFETY: as above.
        let Ok(name) = (unsafe { CStr::from_ptr(name) }).to_str() else { return };
        if env::class_of(name) == NameClass::Process {
            return;
        }
        answer = match once_inside(|| look_up(name, !process.is_null())).flatten() {
            None => process,
            Some(found) => found.map_or(null(), CStr::as_ptr),
        };
    });
    answer
}

/// `None`: as the process says. `Some(None)`: not set.
fn look_up(name: &str, in_process: bool) -> Option<Option<&'static CStr>> {
    let answer = {
        let mut state = patiently(&STATE)?;
        let State { endpoint, version } = state.as_mut()?;
        env::ask(endpoint, *version, name, in_process)
    };
    match answer {
        Answer::Pass => None,
        Answer::Hide => Some(None),
        Answer::Value(value) => patiently(&ANSWERS)?.get_or_insert_default().keep(value).map(Some),
    }
}
