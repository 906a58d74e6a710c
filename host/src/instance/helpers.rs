//! The helpers that a policy may call. Each finds everything it needs in the store's data: no look-up by name, no
//! lock that can block, no allocation. A pointer that points to no memory of the policy gives `-EFAULT` (null from a
//! lookup); a verified program never passes one.

use super::{Data, Seats, held};
use crate::maps::{Errno, MAX_KEY_WORDS, Map, MapSet, word_at};
use crate::memory::{SharedBytes, current_cpu, monotonic_ns};
use crate::printk::{self, Line};
use ringfence_guest::abi::helper;
use ringfence_translator::MapKind;
use ringfence_translator::wasm::cost::{MAX_RING_WORDS, PLACES_PER_FUEL};
use ringfence_translator::wasm::layout::{MAP_OBJECT_TAG, MAP_TAG, PRIVATE_TAG};
use wasmtime::{Caller, Extern, Func, Store};

/// Words of key and value up to which a map helper costs no more than the call itself.
const FREE_WORDS: u64 = 16;

/// The helper of that number, bound to the policy at place `at` of a store. Verified programs import it with its own arguments,
/// unverified ones with all five registers.
pub(super) fn import<T: Seats>(store: &mut Store<T>, at: usize, id: u32, params: usize) -> Option<Extern> {
    let func = match (id, params) {
        (helper::MAP_LOOKUP_ELEM, 2) => {
            Func::wrap(store, move |c: Caller<'_, T>, map: i64, key: i64| lookup(c.data().seat(at), map, key))
        }
        (helper::MAP_LOOKUP_PERCPU_ELEM, 3) => {
            Func::wrap(store, move |c: Caller<'_, T>, map: i64, key: i64, slot: i64| {
                lookup_percpu(c.data().seat(at), map, key, slot)
            })
        }
        (helper::MAP_UPDATE_ELEM, 4) => {
            Func::wrap(store, move |c: Caller<'_, T>, map: i64, key: i64, value: i64, flags: i64| {
                update(c, at, map, key, value, flags)
            })
        }
        (helper::MAP_DELETE_ELEM, 2) => {
            Func::wrap(store, move |c: Caller<'_, T>, map: i64, key: i64| delete(c.data().seat(at), map, key))
        }
        (helper::SPIN_LOCK, 1) => Func::wrap(store, move |mut c: Caller<'_, T>, lock: i64| {
            trapping(held::spin_lock(c.data_mut().seat_mut(at), lock))
        }),
        (helper::SPIN_UNLOCK, 1) => Func::wrap(store, move |mut c: Caller<'_, T>, lock: i64| {
            trapping(held::spin_unlock(c.data_mut().seat_mut(at), lock))
        }),
        (helper::RINGBUF_OUTPUT, 4) => {
            Func::wrap(store, move |c: Caller<'_, T>, ring: i64, data: i64, size: i64, flags: i64| {
                output(c, at, ring, data, size, flags)
            })
        }
        (helper::RINGBUF_RESERVE, 3) => {
            Func::wrap(store, move |mut c: Caller<'_, T>, ring: i64, size: i64, flags: i64| {
                held::reserve(c.data_mut().seat_mut(at), ring, size, flags)
            })
        }
        (helper::RINGBUF_SUBMIT, 2) => Func::wrap(store, move |mut c: Caller<'_, T>, record: i64, _: i64| {
            held::commit(c.data_mut().seat_mut(at), record, true)
        }),
        (helper::RINGBUF_DISCARD, 2) => {
            Func::wrap(store, move |mut c: Caller<'_, T>, record: i64, _: i64| {
                held::commit(c.data_mut().seat_mut(at), record, false)
            })
        }
        (helper::RINGBUF_QUERY, 2) => Func::wrap(store, move |c: Caller<'_, T>, ring: i64, what: i64| {
            query(c.data().seat(at), ring, what)
        }),
        (helper::KTIME_GET_NS, 0) => Func::wrap(store, || monotonic_ns() as i64),
        (helper::GET_PRANDOM_U32, 0) => {
            Func::wrap(store, move |mut c: Caller<'_, T>| random(c.data_mut().seat_mut(at)))
        }
        (helper::GET_SMP_PROCESSOR_ID, 0) => Func::wrap(store, || i64::from(current_cpu())),
        // Five registers, verified or not: how many of them count, the format says.
        (helper::TRACE_PRINTK, 5) => {
            Func::wrap(store, move |c: Caller<'_, T>, fmt: i64, size: i64, a: i64, b: i64, d: i64| {
                printk(c, at, fmt, size, [a, b, d])
            })
        }
        (_, 5) => import_wide(store, at, id)?,
        _ => return None,
    };
    Some(func.into())
}

fn import_wide<T: Seats>(store: &mut Store<T>, at: usize, id: u32) -> Option<Func> {
    let run: fn(&mut Data, [i64; 4]) -> wasmtime::Result<i64> = match id {
        helper::SPIN_LOCK => |data, [lock, ..]| trapping(held::spin_lock(data, lock)),
        helper::SPIN_UNLOCK => |data, [lock, ..]| trapping(held::spin_unlock(data, lock)),
        _ => return import_plain(store, at, id),
    };
    Some(Func::wrap(store, move |mut c: Caller<'_, T>, a: i64, b: i64, d: i64, e: i64, _: i64| {
        run(c.data_mut().seat_mut(at), [a, b, d, e])
    }))
}

/// Those that always return.
fn import_plain<T: Seats>(store: &mut Store<T>, at: usize, id: u32) -> Option<Func> {
    type Run<T> = fn(Caller<'_, T>, usize, [i64; 4]) -> i64;
    let run: Run<T> = match id {
        helper::MAP_LOOKUP_ELEM => |c, at, [map, key, ..]| lookup(c.data().seat(at), map, key),
        helper::MAP_LOOKUP_PERCPU_ELEM => {
            |c, at, [map, key, slot, _]| lookup_percpu(c.data().seat(at), map, key, slot)
        }
        helper::MAP_UPDATE_ELEM => |c, at, [map, key, value, flags]| update(c, at, map, key, value, flags),
        helper::MAP_DELETE_ELEM => |c, at, [map, key, ..]| delete(c.data().seat(at), map, key),
        helper::KTIME_GET_NS => |_, _, _| monotonic_ns() as i64,
        helper::GET_PRANDOM_U32 => |mut c, at, _| random(c.data_mut().seat_mut(at)),
        helper::GET_SMP_PROCESSOR_ID => |_, _, _| i64::from(current_cpu()),
        helper::RINGBUF_OUTPUT => |c, at, [ring, data, size, flags]| output(c, at, ring, data, size, flags),
        helper::RINGBUF_RESERVE => {
            |mut c, at, [ring, size, flags, _]| held::reserve(c.data_mut().seat_mut(at), ring, size, flags)
        }
        helper::RINGBUF_SUBMIT => {
            |mut c, at, [record, ..]| held::commit(c.data_mut().seat_mut(at), record, true)
        }
        helper::RINGBUF_DISCARD => {
            |mut c, at, [record, ..]| held::commit(c.data_mut().seat_mut(at), record, false)
        }
        helper::RINGBUF_QUERY => |c, at, [ring, what, ..]| query(c.data().seat(at), ring, what),
        _ => return None,
    };
    Some(Func::wrap(store, move |c: Caller<'_, T>, a: i64, b: i64, d: i64, e: i64, _: i64| {
        run(c, at, [a, b, d, e])
    }))
}

/// `map_lookup_elem`: pointer to the value, or null.
#[inline]
fn lookup(data: &Data, object: i64, key: i64) -> i64 {
    lookup_in(data, object, key, data.slot.number())
}

/// `map_lookup_percpu_elem`: the same of another slot; null beyond those that ranks have.
fn lookup_percpu(data: &Data, object: i64, key: i64, slot: i64) -> i64 {
    // As in the kernel, the number has 32 bits.
    let slot = slot as u32;
    match data.map(object) {
        Some((_, map)) if map.decl().kind.is_percpu() && slot < map.slots() => {
            lookup_in(data, object, key, slot)
        }
        _ => 0,
    }
}

#[inline]
fn lookup_in(data: &Data, object: i64, key: i64, slot: u32) -> i64 {
    let Some((index, map)) = data.map(object) else { return 0 };
    if map.reclaims() {
        data.settle();
    }
    match data.with_key(map, key, |key| Ok(map.find(key))) {
        Ok(Some(place)) => pointer(index, map.value_offset(slot, place)),
        _ => 0,
    }
}

/// `map_update_elem`: 0, or a negative error number.
fn update<T: Seats>(
    mut caller: Caller<'_, T>,
    at: usize,
    object: i64,
    key: i64,
    value: i64,
    flags: i64,
) -> i64 {
    let data = caller.data().seat(at);
    let words = data.map(object).map_or(0, |(_, map)| copied_words(map));
    let result = data.update(object, key, value, flags as u64);
    if words > FREE_WORDS {
        charge(&mut caller, words);
    }
    code(result)
}

/// Words that an update writes: a new entry of a per-CPU hash has a value in each slot.
#[inline]
fn copied_words(map: &Map) -> u64 {
    let slots = if map.decl().kind == MapKind::PercpuHash { map.slots() } else { 1 };
    u64::from(slots) * u64::from(map.decl().value_size / 8)
}

/// `map_delete_elem`: 0, or a negative error number.
fn delete(data: &Data, object: i64, key: i64) -> i64 {
    let Some((_, map)) = data.map(object) else { return Errno::INVAL.code() };
    code(writable(map).and_then(|()| data.with_key(map, key, |key| map.remove(key))))
}

/// The walk over map `number`: finds the first entry from a place on, copies its key to `key`, and gives the place plus 1; 0 at
/// the end.
pub(super) fn walk<T: Seats>(store: &mut Store<T>, at: usize, number: u32) -> Extern {
    Func::wrap(store, move |mut c: Caller<'_, T>, from: i64, key: i64| {
        let (found, looked) = next_entry(c.data_mut().seat_mut(at), number, from, key);
        let fuel = u64::from(looked).div_ceil(PLACES_PER_FUEL);
        if fuel > 1 {
            charge(&mut c, fuel);
        }
        found
    })
    .into()
}

fn next_entry(data: &mut Data, number: u32, from: i64, key: i64) -> (i64, u32) {
    let Data { maps, memory, reader, .. } = data;
    let (Some(map), Some(memory), Ok(from)) =
        (maps.at(number as usize), memory.as_mut(), u32::try_from(from))
    else {
        return (0, 0);
    };
    if let Some(reader) = reader.as_ref().filter(|_| map.reclaims()) {
        reader.settle();
    }
    let mut words = [0; MAX_KEY_WORDS];
    let (found, looked) = map.next_entry(from, &mut words);
    let Some(place) = found else { return (0, looked) };
    let target = match (key as u64 >> 32) as u32 {
        PRIVATE_TAG => memory.bytes_mut(key as u32, map.decl().key_size as usize),
        _ => None,
    };
    let Some(target) = target else { return (0, looked) };
    for (to, word) in target.chunks_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
    }
    (i64::from(place) + 1, looked)
}

/// `ringbuf_output`: 0, or a negative error number.
fn output<T: Seats>(
    mut caller: Caller<'_, T>,
    at: usize,
    object: i64,
    data: i64,
    size: i64,
    flags: i64,
) -> i64 {
    let result = caller.data().seat(at).output(object, data, size, flags as u64);
    let words = size as u64 / 8;
    if words > FREE_WORDS {
        charge(&mut caller, words.min(MAX_RING_WORDS));
    }
    code(result)
}

/// `trace_printk`: the length of the line, or a negative error number.
fn printk<T: Seats>(mut caller: Caller<'_, T>, at: usize, fmt: i64, size: i64, values: [i64; 3]) -> i64 {
    let result = caller.data().seat(at).print(fmt, size, values);
    // Whoever takes the line out has work with it too.
    charge(&mut caller, MAX_RING_WORDS);
    result.map_or_else(Errno::code, i64::from)
}

/// `ringbuf_query`
fn query(data: &Data, object: i64, what: i64) -> i64 {
    data.map(object).and_then(|(_, map)| map.ring()).map_or(0, |ring| ring.query(what as u64) as i64)
}

fn trapping(result: Result<i64, held::LockFault>) -> wasmtime::Result<i64> {
    result.map_err(wasmtime::Error::new)
}

/// The map that a map object names, with its number.
#[inline]
pub(super) fn map_of(maps: &MapSet, object: i64) -> Option<(u32, &Map)> {
    let index = ((object as u64 >> 32) as u32).checked_sub(MAP_OBJECT_TAG)?;
    Some((index, maps.at(index as usize)?))
}

/// A pointer into the memory of map `number`.
#[inline]
pub(super) fn pointer(number: u32, offset: u32) -> i64 {
    (u64::from(MAP_TAG + number) << 32 | u64::from(offset)) as i64
}

/// Makes a policy pay for copying a large value: one unit a word, as if it had copied it itself.
#[cold]
fn charge<T>(caller: &mut Caller<'_, T>, words: u64) {
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
        map_of(&self.maps, object)
    }

    /// Before a look-up in a map from which entries are deleted.
    #[inline]
    fn settle(&self) {
        if let Some(reader) = &self.reader {
            reader.settle();
        }
    }

    /// Number and offset of the map's memory that a pointer points into.
    #[inline]
    pub(super) fn spot(&self, pointer: i64) -> Option<(u32, u32)> {
        let number = ((pointer as u64 >> 32) as u32).checked_sub(MAP_TAG)?;
        Some((number, pointer as u32)).filter(|_| (number as usize) < self.maps.len())
    }

    fn output(&self, object: i64, data: i64, size: i64, flags: u64) -> Result<(), Errno> {
        /// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`: nobody sleeps here, so they mean nothing.
        const FLAGS: u64 = 3;
        let (_, map) = self.map(object).ok_or(Errno::INVAL)?;
        let ring = map.ring().filter(|_| flags & !FLAGS == 0).ok_or(Errno::INVAL)?;
        let size = u32::try_from(size).map_err(|_| Errno::AGAIN)?;
        let words = size.div_ceil(8) as usize;
        let data = if size == 0 { None } else { Some(self.source(data, size).ok_or(Errno::FAULT)?) };
        let offset = ring.reserve(size.into()).ok_or(Errno::AGAIN)?;
        if let Some(data) = data {
            (0..words).for_each(|i| map.bytes().store(offset as usize / 8 + i, data.word(i)));
        }
        ring.commit(offset, true);
        Ok(())
    }

    fn print(&self, fmt: i64, size: i64, values: [i64; 3]) -> Result<u16, Errno> {
        let lines = self.lines.as_ref().ok_or(Errno::INVAL)?;
        let size = u32::try_from(size).ok().filter(|s| *s <= printk::MAX_FORMAT).ok_or(Errno::INVAL)?;
        let source = self.source(fmt, size).ok_or(Errno::FAULT)?;
        let mut bytes = [0; printk::MAX_FORMAT as usize];
        for (i, to) in bytes.chunks_exact_mut(8).take(size.div_ceil(8) as usize).enumerate() {
            to.copy_from_slice(&source.word(i).to_le_bytes());
        }
        let fmt = bytes.get(..size as usize).unwrap_or(&[]);
        let mut line = Line::EMPTY;
        let text = |pointer: u64, line: &mut Line| self.print_text(pointer, line);
        let len = printk::format(fmt, values.map(|v| v as u64), text, &mut line)?;
        lines.push(&line);
        Ok(len)
    }

    /// Text that a pointer points to, as far as it lies in the policy's memory.
    fn print_text(&self, pointer: u64, line: &mut Line) {
        let most = (0..=printk::MAX_TEXT).rev().step_by(8).find_map(|n| self.source(pointer as i64, n));
        match most {
            Some(source) => {
                let words = (0..printk::MAX_TEXT as usize / 8).flat_map(|i| source.word(i).to_le_bytes());
                printk::push_text(words, line);
            }
            None => printk::push_text(b"(fault)".iter().copied(), line),
        }
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
        let value = self.source(value, map.decl().value_size).ok_or(Errno::FAULT)?;
        self.with_key(map, key, |key| map.upsert(key, flags, self.slot.number(), |i| value.word(i)))
    }
}
