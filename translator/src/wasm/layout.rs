//! The ABI of a translated module, defined once for the translator and for whoever instantiates it.
//!
//! - The module imports one **shared memory** per map, in order, as `("map", "0")`, `("map", "1")`, ... with
//!   minimum = maximum = [`MapLayout::pages`](crate::map::MapLayout). It defines one private memory, exported as `"memory"`,
//!   of [`PRIVATE_PAGES`] pages; its index is the number of maps.
//! - It imports the helpers that it calls as `("helper", "<id>")`: one `i64` per argument, one `i64` result. Helpers that call
//!   back are code of the module; for a `for_each_map_elem` over a hash, map `k`, it imports `("walk", "<k>")`: `(place, key
//!   address) -> place`, both `i64`, which finds the first entry at a place not below the first argument, copies its key to the
//!   address, and gives the place plus 1; 0 if there is none.
//! - For each per-CPU map, map `k`, it imports the constant `("slot", "<k>")`, an `i64`: the pointer to the first value of the slot
//!   that the policy sees.
//! - It exports `"entry"`: `(r1: i64, r2: i64) -> i64` (r0).
//! - A pointer is `tag << 32 | offset` (null is 0): tag [`PRIVATE_TAG`] for the private memory, [`MAP_TAG`]` + k` for
//!   the memory of map `k`. A map *object* (first argument of map helpers) is
//!   `(`[`MAP_OBJECT_TAG`]` + k) << 32`, which is no address.

/// Pages of the private memory (64 KiB).
pub const PRIVATE_PAGES: u32 = 1;
/// Offset of the lowest stack byte in the private memory. Below it nothing lives.
pub const STACK_BASE: u32 = 4096;
/// r10 of the entry function, as an offset: eight frames of 512 bytes lie below it.
pub const STACK_TOP: u32 = STACK_BASE + crate::limits::MAX_FRAMES * crate::limits::STACK_BYTES;
/// Distance from r10 of a function to the key that a callback of its `for_each_map_elem` gets: the keys of eight frames, of at
/// most 512 bytes each, lie between stack and context.
pub const KEY_DISTANCE: u32 = crate::limits::MAX_FRAMES * crate::limits::STACK_BYTES;
/// Offset of the context in the private memory.
pub const CTX_BASE: u32 = 16384;
/// Most bytes of a context.
pub const CTX_MAX: u32 = PRIVATE_PAGES * 65536 - CTX_BASE;

/// Tag of the private memory.
pub const PRIVATE_TAG: u32 = 1;
/// Tag of map 0's memory.
pub const MAP_TAG: u32 = 2;
/// Tag of map object 0.
pub const MAP_OBJECT_TAG: u32 = 0x4000_0000;

const _: () = assert!(crate::limits::MAX_KEY_BYTES <= crate::limits::STACK_BYTES);
const _: () = assert!(STACK_TOP + KEY_DISTANCE + crate::limits::STACK_BYTES <= CTX_BASE);

/// r1 of the entry function for a hook with a context.
pub const CTX_PTR: u64 = (PRIVATE_TAG as u64) << 32 | CTX_BASE as u64;

/// Import module of map memories.
pub const MAP_MODULE: &str = "map";
/// Import module of helpers.
pub const HELPER_MODULE: &str = "helper";
/// Import module of walks over hashes.
pub const WALK_MODULE: &str = "walk";
/// Import module of the slots of per-CPU maps.
pub const SLOT_MODULE: &str = "slot";
/// Export name of the private memory.
pub const MEMORY_EXPORT: &str = "memory";
/// Export name of the entry function.
pub const ENTRY_EXPORT: &str = "entry";
