//! The helpers that a policy may call. Each finds everything it needs in the store's data: no look-up by name, no
//! lock that can block, no allocation. A pointer that points to no memory of the policy gives `-EFAULT` (null from a
//! lookup); a verified program never passes one.

use super::Data;
use crate::maps::{Errno, MAX_KEY_WORDS, Map, UpdateMode, word_at};
use crate::memory::{SharedBytes, current_cpu, monotonic_ns};
use ringfence_guest::abi::helper;
use ringfence_translator::wasm::layout::{MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG};
use wasmtime::{Caller, Extern, Func, Store};

/// Words of key and value up to which a map helper costs no more than the call itself.
const FREE_WORDS: u64 = 16;

/// What a helper gets: the caller and its arguments.
type Ctx<'a> = Caller<'a, Data>;

/// The helper of that number, bound to a store. Verified programs import it with its own arguments, unverified ones with all
/// five registers.
pub(super) fn import(store: &mut Store<Data>, id: u32, params: usize) -> Option<Extern> {
    let func = match (id, params) {
        (helper::MAP_LOOKUP_ELEM, 2) => {
            Func::wrap(store, |c: Ctx<'_>, map: i64, key: i64| lookup(c.data(), map, key))
        }
        (helper::MAP_UPDATE_ELEM, 4) => Func::wrap(store, update),
        (helper::MAP_DELETE_ELEM, 2) => {
            Func::wrap(store, |c: Ctx<'_>, map: i64, key: i64| delete(c.data(), map, key))
        }
        (helper::KTIME_GET_NS, 0) => Func::wrap(store, || monotonic_ns() as i64),
        (helper::GET_PRANDOM_U32, 0) => Func::wrap(store, |mut c: Ctx<'_>| random(c.data_mut())),
        (helper::GET_SMP_PROCESSOR_ID, 0) => Func::wrap(store, || i64::from(current_cpu())),
        (_, 5) => import_wide(store, id)?,
        _ => return None,
    };
    Some(func.into())
}

fn import_wide(store: &mut Store<Data>, id: u32) -> Option<Func> {
    let run: fn(Ctx<'_>, [i64; 4]) -> i64 = match id {
        helper::MAP_LOOKUP_ELEM => |c, [map, key, ..]| lookup(c.data(), map, key),
        helper::MAP_UPDATE_ELEM => |c, [map, key, value, flags]| update(c, map, key, value, flags),
        helper::MAP_DELETE_ELEM => |c, [map, key, ..]| delete(c.data(), map, key),
        helper::KTIME_GET_NS => |_, _| monotonic_ns() as i64,
        helper::GET_PRANDOM_U32 => |mut c, _| random(c.data_mut()),
        helper::GET_SMP_PROCESSOR_ID => |_, _| i64::from(current_cpu()),
        _ => return None,
    };
    Some(Func::wrap(store, move |c: Ctx<'_>, a: i64, b: i64, d: i64, e: i64, _: i64| run(c, [a, b, d, e])))
}

/// `map_lookup_elem`: pointer to the value, or null.
#[inline]
fn lookup(data: &Data, object: i64, key: i64) -> i64 {
    let Some((index, map)) = data.map(object) else { return 0 };
    let slot = data.with_key(map, key, |key| Ok(map.find(key)));
    match slot {
        Ok(Some(slot)) => (u64::from(MAP_TAG + index) << 32 | u64::from(map.value_offset(slot))) as i64,
        _ => 0,
    }
}

/// `map_update_elem`: 0, or a negative error number.
fn update(mut caller: Caller<'_, Data>, object: i64, key: i64, value: i64, flags: i64) -> i64 {
    let data = caller.data();
    let words = data.map(object).map_or(0, |(_, map)| u64::from(map.decl().value_size / 8));
    let result = data.update(object, key, value, flags as u64);
    if words > FREE_WORDS {
        charge(&mut caller, words);
    }
    code(result)
}

/// `map_delete_elem`: 0, or a negative error number.
fn delete(data: &Data, object: i64, key: i64) -> i64 {
    let Some((_, map)) = data.map(object) else { return Errno::INVAL.code() };
    code(writable(map).and_then(|()| data.with_key(map, key, |key| map.remove(key))))
}

/// Makes a policy pay for copying a large value: one unit a word, as if it had copied it itself.
#[cold]
fn charge(caller: &mut Caller<'_, Data>, words: u64) {
    let left = caller.get_fuel().unwrap_or(0).saturating_sub(words);
    // Fails only if the engine counts no fuel, and then no call of a policy is made at all.
    let _ = caller.set_fuel(left);
}

fn code(result: Result<(), Errno>) -> i64 {
    result.map_or_else(Errno::code, |()| 0)
}

fn writable(map: &Map) -> Result<(), Errno> {
    if map.decl().read_only { Err(Errno::PERM) } else { Ok(()) }
}

/// `get_prandom_u32`, by xorshift: not for secrets.
fn random(data: &mut Data) -> i64 {
    let mut x = data.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    data.random = x;
    i64::from((x >> 32) as u32)
}

/// A seed for [`random`]; never 0, which xorshift would keep.
pub(super) fn seed() -> u64 {
    monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Memory that a policy points to.
enum Source<'a> {
    Private(&'a [u8]),
    Shared { bytes: &'a SharedBytes, offset: u32, size: u32 },
}

impl Source<'_> {
    /// Word `i`, zero-padded at the end.
    #[inline]
    fn word(&self, i: usize) -> u64 {
        match self {
            Source::Private(bytes) => word_at(bytes, i),
            Source::Shared { bytes, offset, size } => {
                let at = 8 * i as u32;
                let word = bytes.load_at(offset + at).unwrap_or(0);
                match size.saturating_sub(at) {
                    left @ 0..8 => word & ((1 << (8 * left)) - 1),
                    _ => word,
                }
            }
        }
    }
}

impl Data {
    /// The map that a map object names, with its number.
    #[inline]
    fn map(&self, object: i64) -> Option<(u32, &Map)> {
        let index = ((object as u64 >> 32) as u32).checked_sub(MAP_OBJECT_TAG)?;
        Some((index, self.maps.at(index as usize)?))
    }

    /// `size` bytes that a pointer points to; `None` unless all of them lie in one of the policy's memories.
    #[inline]
    fn source(&self, pointer: i64, size: u32) -> Option<Source<'_>> {
        let (tag, offset) = ((pointer as u64 >> 32) as u32, pointer as u32);
        if tag == PRIVATE_TAG {
            return self.memory.as_ref()?.bytes(offset, size as usize).map(Source::Private);
        }
        let bytes = self.maps.at(tag.checked_sub(MAP_TAG)? as usize)?.bytes();
        let inside = u64::from(offset) + u64::from(size) <= bytes.len() as u64;
        inside.then_some(Source::Shared { bytes, offset, size })
    }

    /// Calls `f` with the key that a pointer points to, as zero-padded words.
    #[inline]
    fn with_key<T>(
        &self,
        map: &Map,
        pointer: i64,
        f: impl FnOnce(&[u64]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let size = map.decl().key_size;
        let key = self.source(pointer, size).ok_or(Errno::FAULT)?;
        match size.div_ceil(8) as usize {
            1 => f(&[key.word(0)]),
            2 => f(&[key.word(0), key.word(1)]),
            n => {
                let mut words = [0; MAX_KEY_WORDS];
                words.iter_mut().take(n).enumerate().for_each(|(i, w)| *w = key.word(i));
                f(words.get(..n).ok_or(Errno::INVAL)?)
            }
        }
    }

    #[inline]
    fn update(&self, object: i64, key: i64, value: i64, flags: u64) -> Result<(), Errno> {
        let (_, map) = self.map(object).ok_or(Errno::INVAL)?;
        writable(map)?;
        let mode = UpdateMode::from_flags(flags)?;
        let value = self.source(value, map.decl().value_size).ok_or(Errno::FAULT)?;
        self.with_key(map, key, |key| map.upsert(key, mode, |i| value.word(i)))
    }
}
