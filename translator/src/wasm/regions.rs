//! Checks of [`Lower`] for tests of the verifier: does an access lie in the region that was proved? Off in products, where
//! the proof stands for them.

use super::layout::{CTX_BASE, STACK_TOP};
use super::locals::Slot;
use super::lower::Lower;
use crate::isa::Reg;
use crate::limits::STACK_BYTES;
use crate::verify::Region;
use wasm_encoder::{BlockType, MemArg};

impl Lower<'_> {
    /// With the address on the stack, which stays there: traps unless `size` bytes at it (and the offset of the
    /// access to come) lie in the region. Emits nothing unless asked to.
    pub(super) fn check_region(&mut self, region: Region, arg: MemArg, size: u32) {
        let Some(ctx_bytes) = self.input.check_regions else { return };
        self.tee_slot(Slot::Address);
        match region {
            _ if arg.memory_index < self.imports.private() => self.push_in_value(arg, size),
            Region::Ctx => self.push_between(arg, CTX_BASE, ctx_bytes, size),
            Region::Stack => self.push_in_stack(arg, size),
            Region::Key => self.push_between(arg, STACK_TOP, CTX_BASE - STACK_TOP, size),
            Region::Map(_) | Region::Mixed => {
                self.push_between(arg, CTX_BASE, ctx_bytes, size);
                self.push_between(arg, STACK_TOP, CTX_BASE - STACK_TOP, size);
                self.push_in_stack(arg, size);
                self.ops().i32_or().i32_or();
            }
        }
        self.ops().i32_eqz().if_(BlockType::Empty).unreachable().end();
    }

    /// Pushes the address as the access sees it.
    fn push_address(&mut self, arg: MemArg) {
        self.get_slot(Slot::Address);
        self.ops().i64_extend_i32_u().i64_const(arg.offset as i64).i64_add();
    }

    /// Pushes: do the bytes lie in the `len` bytes from `start` on?
    fn push_between(&mut self, arg: MemArg, start: u32, len: u32, size: u32) {
        let Some(last) = len.checked_sub(size) else {
            self.ops().i32_const(0);
            return;
        };
        self.push_address(arg);
        self.ops().i64_const(i64::from(start)).i64_sub();
        self.ops().i64_const(i64::from(last)).i64_le_u();
    }

    /// Pushes: do they lie in the frames of the running functions?
    fn push_in_stack(&mut self, arg: MemArg, size: u32) {
        self.push_address(arg);
        self.get32(Reg::FP);
        self.ops().i64_extend_i32_u().i64_const(i64::from(STACK_BYTES)).i64_sub().i64_ge_u();
        self.push_address(arg);
        self.ops().i64_const(i64::from(STACK_TOP - size)).i64_le_u().i32_and();
    }

    /// Pushes: do they lie in one value of the map whose memory is accessed? A ring buffer has none: in its memory.
    fn push_in_value(&mut self, arg: MemArg, size: u32) {
        let map = arg.memory_index as usize;
        let (decl, layout) = (&self.input.program.maps()[map], self.imports.maps[map]);
        if !decl.kind.has_values() {
            return self.push_between(arg, 0, layout.pages * 65536, size);
        }
        let Some(last) = decl.value_size.checked_sub(size) else {
            self.ops().i32_const(0);
            return;
        };
        let bytes = i64::from(layout.stride) * i64::from(layout.places);
        let address = |l: &mut Self| {
            l.push_address(arg);
            if layout.slot_bytes > 0 {
                l.ops().i64_const(layout.slot_bytes.into()).i64_rem_u();
            }
        };
        address(self);
        self.ops().i64_const(i64::from(layout.stride)).i64_rem_u();
        self.ops().i64_const(i64::from(last)).i64_le_u();
        address(self);
        self.ops().i64_const(bytes).i64_lt_u().i32_and();
    }
}
