//! Tail calls of [`Lower`]: to the programs in the slots of a program array. A call and a return, with a
//! global that counts them; where the slot is empty or beyond, or the count used up, the helper comes back.

use super::layout::MAP_OBJECT_TAG;
use super::lower::{CALL_PARAMS, Lower, pointer};
use crate::isa::{MapIdx, Pc, Reg};
use crate::limits::MAX_TAIL_CALLS;
use wasm_encoder::BlockType;

/// What r0 holds if no program was found: `-ENOENT`. (A verified program does not read it.)
const ENOENT: i64 = -2;

impl Lower<'_> {
    pub(super) fn tail_call(&mut self, pc: Pc) {
        let known = self.input.fact(pc).call.and_then(|c| c.map);
        let program = self.input.program;
        let maps: Vec<MapIdx> = program.tails.iter().map(|t| t.map).collect();
        match known {
            Some(map) => self.tail_call_of(map),
            None => {
                for map in maps {
                    self.get(Reg::R2);
                    self.ops().i64_const(pointer(MAP_OBJECT_TAG + u32::from(map.0), 0)).i64_eq();
                    self.ops().if_(BlockType::Empty);
                    self.tail_call_of(map);
                    self.ops().end();
                }
            }
        }
        self.ops().i64_const(ENOENT);
        self.set(Reg::R0);
    }

    /// Leaves the function if a program of that map is to go on.
    fn tail_call_of(&mut self, map: MapIdx) {
        let funcs = self.input.program.funcs();
        let index = |pc: Pc| funcs.binary_search_by_key(&pc, |f| f.start).ok();
        let slots = self.input.program.tail_targets(map);
        let targets: Vec<(u32, usize)> = slots.filter_map(|(slot, pc)| Some((slot, index(pc)?))).collect();
        if targets.is_empty() {
            return;
        }
        let count = self.imports.tail_count();
        self.ops().global_get(count).i32_const(MAX_TAIL_CALLS as i32).i32_lt_u();
        self.ops().if_(BlockType::Empty);
        for (slot, func) in targets {
            self.get32(Reg::R3);
            self.ops().i32_const(slot as i32).i32_eq().if_(BlockType::Empty);
            self.ops().global_get(count).i32_const(1).i32_add().global_set(count);
            self.get(Reg::R1);
            let size = self.input.ctx_size;
            self.ops().i64_const(size.into()).i64_const(0).i64_const(0).i64_const(0);
            self.get(Reg::FP);
            let index = self.imports.func(func);
            self.ops().call(index).return_().end();
        }
        self.ops().end();
    }
}

const _: () = assert!(CALL_PARAMS.len() == 6);
