//! Accesses of [`Lower`]. **Sandbox-critical: two reviewers.**
//!
//! Where a fact tells the region, the memory's index is static; where it tells the address, so is that, and
//! the engine needs no bounds check. Otherwise the tag in the upper half of the pointer picks the memory among
//! the private one and the program's own maps; any other tag traps. The offset is added modulo 2^32: a pointer
//! may lie before its region as long as the access does not. It moves into the instruction, which does not
//! wrap, only where the fact says that the base is not before its region.

use super::layout::{CTX_BASE, CTX_MAX, STACK_TOP};
use super::locals::Slot;
use super::lower::{Lower, map_tag, pointer};
use crate::isa::{AtomicOp, MapIdx, Operand, Pc, Reg, Size, Width};
use crate::limits::STACK_BYTES;
use crate::map::MapKind;
use crate::verify::{Access, Region};
use wasm_encoder::{BlockType, MemArg};

/// Base register and offset of an access.
pub(super) type Place = (Reg, i16);

impl Lower<'_> {
    pub(super) fn load(&mut self, pc: Pc, size: Size, sign: bool, dst: Reg, place: Place) {
        let access = self.input.access(pc);
        self.at(access, place, size.bytes(), &mut |l, m| {
            let mut ops = l.ops();
            match (size, sign) {
                (Size::B, false) => ops.i64_load8_u(m),
                (Size::B, true) => ops.i64_load8_s(m),
                (Size::H, false) => ops.i64_load16_u(m),
                (Size::H, true) => ops.i64_load16_s(m),
                (Size::W, false) => ops.i64_load32_u(m),
                (Size::W, true) => ops.i64_load32_s(m),
                (Size::Dw, _) => ops.i64_load(m),
            };
            l.set(dst);
        });
    }

    pub(super) fn store(&mut self, pc: Pc, size: Size, place: Place, src: Operand) {
        self.at(self.input.access(pc), place, size.bytes(), &mut |l, m| {
            l.operand64(src);
            let mut ops = l.ops();
            match size {
                Size::B => ops.i64_store8(m),
                Size::H => ops.i64_store16(m),
                Size::W => ops.i64_store32(m),
                Size::Dw => ops.i64_store(m),
            };
        });
    }

    pub(super) fn atomic(&mut self, pc: Pc, width: Width, op: AtomicOp, fetch: bool, place: Place, src: Reg) {
        let access = self.input.access(pc);
        let (bytes, align) = match width {
            Width::W32 => (4, 2),
            Width::W64 => (8, 3),
        };
        self.at(access, place, bytes, &mut |l, m| {
            let m = MemArg { align, ..m };
            match (op, width) {
                (AtomicOp::Cmpxchg, Width::W64) => {
                    l.get(Reg::R0);
                    l.get(src);
                    l.ops().i64_atomic_rmw_cmpxchg(m);
                    l.set(Reg::R0);
                }
                // In 32 bits, so that the upper half of r0 takes no part in the comparison.
                (AtomicOp::Cmpxchg, Width::W32) => {
                    l.get32(Reg::R0);
                    l.get32(src);
                    l.ops().i32_atomic_rmw_cmpxchg(m);
                    l.set32(Reg::R0);
                }
                _ => l.fetch_op(op, width, fetch, src, m),
            }
        });
    }

    /// An atomic operation with one operand. The 32-bit forms wrap it and extend the old value with zeros.
    fn fetch_op(&mut self, op: AtomicOp, width: Width, fetch: bool, src: Reg, m: MemArg) {
        self.get(src);
        let mut ops = self.ops();
        match (op, width) {
            (AtomicOp::Add, Width::W64) => ops.i64_atomic_rmw_add(m),
            (AtomicOp::Add, Width::W32) => ops.i64_atomic_rmw32_add_u(m),
            (AtomicOp::Or, Width::W64) => ops.i64_atomic_rmw_or(m),
            (AtomicOp::Or, Width::W32) => ops.i64_atomic_rmw32_or_u(m),
            (AtomicOp::And, Width::W64) => ops.i64_atomic_rmw_and(m),
            (AtomicOp::And, Width::W32) => ops.i64_atomic_rmw32_and_u(m),
            (AtomicOp::Xor, Width::W64) => ops.i64_atomic_rmw_xor(m),
            (AtomicOp::Xor, Width::W32) => ops.i64_atomic_rmw32_xor_u(m),
            (AtomicOp::Xchg | AtomicOp::Cmpxchg, Width::W64) => ops.i64_atomic_rmw_xchg(m),
            (AtomicOp::Xchg | AtomicOp::Cmpxchg, Width::W32) => ops.i64_atomic_rmw32_xchg_u(m),
        };
        if fetch {
            self.set(src);
        } else {
            self.ops().drop();
        }
    }

    /// `map_lookup_elem` of an array: the value's pointer if the key is in bounds, else null.
    pub(super) fn array_lookup(&mut self, pc: Pc, map: MapIdx) {
        let unknown = Access { region: Region::Mixed, offset: None };
        let access = self.input.fact(pc).call.and_then(|c| c.key).unwrap_or(unknown);
        let (decl, layout) =
            (&self.input.program.maps()[usize::from(map.0)], self.imports.maps[usize::from(map.0)]);
        self.at(access, (Reg::R2, 0), 4, &mut |l, m| {
            l.ops().i64_load32_u(m);
            l.set_slot(Slot::Key);
        });
        self.get_slot(Slot::Key);
        if layout.stride.is_power_of_two() {
            self.ops().i64_const(i64::from(layout.stride.trailing_zeros())).i64_shl();
        } else {
            self.ops().i64_const(i64::from(layout.stride)).i64_mul();
        }
        self.first_value(map);
        self.ops().i64_const(0);
        self.get_slot(Slot::Key);
        self.ops().i64_const(i64::from(decl.max_entries)).i64_lt_u().select();
        self.set(Reg::R0);
    }

    /// Makes a pointer of the offset on the stack, from the map's first value that the policy sees.
    pub(super) fn first_value(&mut self, map: MapIdx) {
        match self.imports.slot(map) {
            Some(slot) => self.ops().global_get(slot).i64_add(),
            None => self.ops().i64_const(pointer(map_tag(map), 0)).i64_or(),
        };
    }

    /// Emits an access of `size` bytes: the address, then what `op` emits, which must leave the stack as it was
    /// before the address.
    fn at(&mut self, access: Access, place: Place, size: u32, op: &mut dyn FnMut(&mut Self, MemArg)) {
        let private = self.imports.private();
        let known = match (access.region, access.offset) {
            (Region::Ctx, Some(o)) => ctx_address(o, size),
            (Region::Stack, Some(o)) if self.entry => stack_address(o),
            (Region::Map(map), Some(o)) if self.has_one_value(map) => u32::try_from(o).ok(),
            _ => None,
        };
        let memory = match access.region {
            Region::Ctx | Region::Stack | Region::Key => private,
            Region::Map(map) if u32::from(map.0) < private => u32::from(map.0),
            Region::Map(_) | Region::Mixed => return self.at_tag(place, size, op),
        };
        let mut arg = MemArg { offset: 0, align: 0, memory_index: memory };
        match (known, access.region, access.offset) {
            (Some(address), ..) => {
                self.ops().i32_const(address as i32);
            }
            (None, Region::Stack, Some(o)) => {
                // Relative to r10, which lies at least 512 bytes above address 0.
                self.get32(Reg::FP);
                self.ops().i32_const(o).i32_add();
            }
            (None, _, offset) => {
                let (base, off) = place;
                self.get32(base);
                match (u64::try_from(off), offset) {
                    (Ok(off_up), Some(o)) if o >= i32::from(off) => arg.offset = off_up,
                    _ if off == 0 => {}
                    _ => {
                        self.ops().i32_const(i32::from(off)).i32_add();
                    }
                }
            }
        }
        self.check_region(access.region, arg, size);
        op(self, arg);
    }

    /// Is the map's only value at offset 0, so that an offset into the value is an address?
    fn has_one_value(&self, map: MapIdx) -> bool {
        self.input.program.maps().get(usize::from(map.0)).is_some_and(|m| match m.kind {
            MapKind::Global => true,
            MapKind::Array => m.max_entries == 1,
            MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash => false,
            MapKind::PercpuArray | MapKind::RingBuf | MapKind::ProgArray => false,
        })
    }

    /// An access whose memory the pointer's tag decides.
    fn at_tag(&mut self, (base, off): Place, size: u32, op: &mut dyn FnMut(&mut Self, MemArg)) {
        let maps = self.imports.private();
        if maps == 0 {
            return self.at_private(base, off, size, op);
        }
        // Labels from inside out: private, map 0, ..., the last map, trap, done.
        for _ in 0..maps + 3 {
            self.ops().block(BlockType::Empty);
        }
        self.tag(base, off);
        self.ops().i32_const(1).i32_sub().br_table(0..maps + 1, maps + 1);
        for arm in 0..=maps {
            self.ops().end();
            let memory_index = if arm == 0 { maps } else { arm - 1 };
            self.get_slot(Slot::Pointer);
            self.ops().i32_wrap_i64();
            let arg = MemArg { offset: 0, align: 0, memory_index };
            self.check_region(Region::Mixed, arg, size);
            op(self, arg);
            self.ops().br(maps + 1 - arm);
        }
        self.ops().end().unreachable().end();
    }

    fn at_private(&mut self, base: Reg, off: i16, size: u32, op: &mut dyn FnMut(&mut Self, MemArg)) {
        self.tag(base, off);
        self.ops().i32_const(1).i32_ne().if_(BlockType::Empty).unreachable().end();
        self.get_slot(Slot::Pointer);
        self.ops().i32_wrap_i64();
        let arg = MemArg { offset: 0, align: 0, memory_index: 0 };
        self.check_region(Region::Mixed, arg, size);
        op(self, arg);
    }

    /// Keeps `base + off` and pushes its tag.
    fn tag(&mut self, base: Reg, off: i16) {
        self.get(base);
        if off != 0 {
            self.ops().i64_const(i64::from(off)).i64_add();
        }
        self.tee_slot(Slot::Pointer);
        self.ops().i64_const(32).i64_shr_u().i32_wrap_i64();
    }
}

/// Address of a constant offset into the context; `None` outside it, which no sound fact says.
fn ctx_address(offset: i32, size: u32) -> Option<u32> {
    let offset = u32::try_from(offset).ok()?;
    (offset.checked_add(size)? <= CTX_MAX).then_some(CTX_BASE + offset)
}

/// Address of a constant offset from the entry function's r10; `None` outside its frame.
fn stack_address(offset: i32) -> Option<u32> {
    (-(STACK_BYTES as i32)..0).contains(&offset).then(|| STACK_TOP.wrapping_add_signed(offset))
}
