//! The API as data: [`CODES`], [`STRUCTS`], and the functions of [`crate::border`]. Layouts are those of this file; the header is made
//! from it.

use std::ffi::{c_char, c_void};

/// A member or an argument: its name, its declaration, what it is.
pub struct Item {
    /// Declaration in C.
    pub declaration: String,
    /// Name.
    pub name: &'static str,
    /// Byte offset of a member.
    pub offset: usize,
    /// What it is, line by line.
    pub doc: &'static [&'static str],
}

/// A struct of the API.
pub struct Struct {
    /// Name in C.
    pub name: &'static str,
    /// What it is, line by line.
    pub doc: &'static [&'static str],
    /// Members in order.
    pub members: Vec<Item>,
    /// Bytes.
    pub size: usize,
}

/// A function of the API.
pub struct Function {
    /// Name.
    pub name: &'static str,
    /// What it does, line by line.
    pub doc: &'static [&'static str],
    /// Type of the result in C.
    pub result: String,
    /// Arguments in order.
    pub arguments: Vec<String>,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal,)*) => {
        $($(#[doc = $doc])* pub const $name: i32 = $value;)*
        /// Results, with what they mean.
        pub const CODES: &[(&str, i32, &[&str])] = &[$((stringify!($name), $value, &[$($doc),*])),*];
    };
}

codes! {
    /// Done.
    RF_OK = 0,
    /// Done, but the policies were refused and none is in force from them; the text says why. The host takes a
    /// corrected set when it appears.
    RF_REFUSED = 1,
    /// A null or misaligned pointer, text that is no UTF-8, a struct that does not begin with its size.
    RF_ERR_ARGUMENT = -1,
    /// No such host or hook: never opened, closed, or in use by another thread at this moment.
    RF_ERR_HANDLE = -2,
    /// No schema for the hook, or one that cannot be read; the text says which.
    RF_ERR_SCHEMA = -3,
    /// The context, key or value does not have the size that the schema or the map says.
    RF_ERR_SIZE = -4,
    /// No map of that name, or no such key in it.
    RF_ERR_NOT_FOUND = -5,
    /// The map does not take this: it is full, the key is there already, or its kind has no such operation.
    RF_ERR_MAP = -6,
    /// Too many hosts, hooks or schemas in this process.
    RF_ERR_LIMIT = -7,
    /// A defect of Ringfence was stopped at the border. What it was inside of stays closed.
    RF_ERR_INTERNAL = -8,
}

/// Bytes of an error's text, its NUL included.
pub const RF_ERROR_TEXT: usize = 504;

macro_rules! structs {
    ($($(#[doc = $doc:literal])* $name:ident = $c:literal { $($(#[doc = $fdoc:literal])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $($(#[doc = $fdoc])* pub $field: $ty,)* }
        )*

        /// All structs, in the order of the header.
        pub fn structs() -> Vec<Struct> {
            vec![$(Struct {
                name: $c,
                doc: &[$($doc),*],
                members: vec![$(Item {
                    declaration: <$ty as crate::ctype::CType>::declare(stringify!($field)),
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    doc: &[$($fdoc),*],
                }),*],
                size: size_of::<$name>(),
            }),*]
        }
    };
}

structs! {
    /// Why a call did not do what was asked. Every function that takes one takes NULL as well.
    RfError = "rf_error" {
        /// The result of the call, RF_OK included.
        code: i32,
        /// 0.
        reserved: u32,
        /// One line, with what to do; empty if all is well. NUL-terminated UTF-8, cut to fit.
        text: [c_char; RF_ERROR_TEXT],
    }

    /// What rf_open reads. Members that a newer header adds come behind these, and count if struct_size says that they are there.
    RfOptions = "rf_options" {
        /// sizeof(rf_options).
        struct_size: usize,
        /// A policy object or directory; NULL: what RINGFENCE_POLICY names, and none if that is unset.
        policy: *const c_char,
        /// Files of schemas, beside those that the policy directory's manifest names. May be NULL if n_schemas is 0.
        schemas: *const *const c_char,
        /// How many.
        n_schemas: usize,
    }

    /// Who decides alike: a communicator of the library's own, or a group of ranks.
    RfGroup = "rf_group" {
        /// sizeof(rf_group).
        struct_size: usize,
        /// A number that all ranks of the group share; 0 if there is none. For logs.
        id: u64,
        /// Ranks; 0 and 1 mean this caller alone. In a group of several, whose schema says that the ranks decide alike
        /// (a decided field with rank = "uniform"), new policies are taken by new hooks only.
        n_ranks: u32,
        /// Nodes; 0 if nobody knows.
        n_nodes: u32,
    }

    /// What came of one decision.
    RfOutcome = "rf_outcome" {
        /// Policies on the hook.
        policies: u32,
        /// Those that submitted a decision.
        submitted: u32,
        /// Those that faulted and were skipped, or whose decision the schema does not allow, which was put back.
        faults: u32,
        /// 0.
        reserved: u32,
    }

    /// State of a host.
    RfStats = "rf_host_stats" {
        /// sizeof(rf_host_stats), set by the caller.
        struct_size: usize,
        /// Counts up with every set that is put in force.
        generation: u64,
        /// Policies of the set in force, on all hooks.
        policies: u32,
        /// Hooks that are open, and communicators of NCCL that use this host.
        endpoints: u32,
        /// Attempts to load a set so far.
        loads: u64,
        /// 1 if the latest attempt was refused.
        refused: u32,
        /// 0.
        reserved: u32,
        /// Bytes of all maps.
        map_bytes: u64,
        /// Defects of Ringfence that were stopped at the border, in this process.
        panics: u64,
    }

    /// What came of all decisions of a hook.
    RfHookStats = "rf_totals" {
        /// sizeof(rf_totals), set by the caller.
        struct_size: usize,
        /// Generation of the set that the hook uses.
        generation: u64,
        /// Decisions.
        decisions: u64,
        /// Decisions that policies submitted.
        submitted: u64,
        /// Faults, and decisions that were put back.
        faults: u64,
    }

    /// Shape of a map.
    RfMapInfo = "rf_map_shape" {
        /// sizeof(rf_map_shape), set by the caller.
        struct_size: usize,
        /// Bytes of a key; 0 for a ring buffer.
        key_size: u32,
        /// Bytes of a value; 0 for a ring buffer.
        value_size: u32,
        /// Most entries.
        max_entries: u32,
        /// Entries in use.
        entries: u32,
    }
}

/// Is called for each entry of a map: `arg` as given, then key and value, which are copies and gone when it returns. 0 goes
/// on, anything else ends the walk. It may call anything of this API, and must not throw or longjmp.
pub type RfVisit = unsafe extern "C" fn(
    arg: *mut c_void,
    key: *const c_void,
    key_size: usize,
    value: *const c_void,
    value_size: usize,
) -> i32;
