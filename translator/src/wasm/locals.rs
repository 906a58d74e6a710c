//! [`Locals`]: which Wasm local holds which register, given out on first use.

use crate::isa::Reg;
use wasm_encoder::ValType;

/// What a local holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// An eBPF register.
    Reg(Reg),
    /// A pointer whose region is decided at run time.
    Pointer,
    /// The key of an inlined look-up.
    Key,
    /// Laps made by a helper that calls back.
    Lap,
    /// Where its walk over a hash goes on.
    Cursor,
    /// The number for a dispatch block.
    Select,
    /// An address that is held against its region.
    Address,
}

impl Slot {
    fn ty(self) -> ValType {
        match self {
            Slot::Reg(_) | Slot::Pointer | Slot::Key | Slot::Lap | Slot::Cursor => ValType::I64,
            Slot::Select | Slot::Address => ValType::I32,
        }
    }

    fn name(self) -> String {
        match self {
            Slot::Reg(r) => r.to_string(),
            Slot::Pointer => "pointer".into(),
            Slot::Key => "key".into(),
            Slot::Lap => "lap".into(),
            Slot::Cursor => "cursor".into(),
            Slot::Select => "select".into(),
            Slot::Address => "address".into(),
        }
    }
}

/// Locals of one function: its parameters, then what it uses, in order of first use. Wasm zeroes them, so a
/// register that an unverified program reads before it writes it is 0.
pub(super) struct Locals {
    slots: Vec<Slot>,
    params: usize,
}

impl Locals {
    /// With the given registers as parameters.
    pub(super) fn new(params: &[Reg]) -> Locals {
        Locals { slots: params.iter().map(|&r| Slot::Reg(r)).collect(), params: params.len() }
    }

    /// Index of the local for `slot`.
    pub(super) fn index(&mut self, slot: Slot) -> u32 {
        let found = self.slots.iter().position(|&s| s == slot);
        found.unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        }) as u32
    }

    /// Types of the locals that are no parameters.
    pub(super) fn declared(&self) -> impl Iterator<Item = ValType> {
        self.slots[self.params..].iter().map(|s| s.ty())
    }

    /// Name of each local, for the name section.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.slots.iter().map(|s| s.name())
    }
}
