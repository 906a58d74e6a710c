//! eBPF objects parsed, verified and translated to WebAssembly.
#![forbid(unsafe_code)]

pub(crate) mod cfg;
pub mod elf;
pub mod error;
#[cfg(feature = "interp")]
pub mod interp;
pub mod isa;
pub mod limits;
pub mod map;
pub mod program;
pub mod types;
pub mod verify;
pub mod wasm;

pub use elf::{Object, ProgramSpec};
pub use error::{At, Error, ErrorKind, Stage};
pub use map::{MapDecl, MapKind, MapLayout};
pub use program::{Func, Program, SourceLine};
pub use types::{FieldDesc, TypeDesc, TypeKind};
pub use verify::{Env, Fact, RejectKind, Rejection, Stats, Verified};
pub use wasm::{Translator, UnverifiedModule, WasmModule, translate_unverified};
