//! Helpers that call back, of [`Lower`]: a Wasm loop in the caller, with a direct call of the callback in it.
//!
//! The key that a callback of `for_each_map_elem` reads lies in the private memory, at [`KEY_DISTANCE`] from its caller's
//! r10, where no access of the program is proved to write. The entries of a hash are the host's to find: the import
//! ([`WALK_MODULE`](super::layout::WALK_MODULE)`, k)` of map `k` copies the next key there.

use super::layout::{KEY_DISTANCE, MAP_OBJECT_TAG, PRIVATE_TAG, STACK_TOP};
use super::locals::Slot;
use super::lower::{CALL_PARAMS, Lower, pointer};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Imm64, Insn, MapIdx, Pc, Reg};
use crate::limits::{MAX_LOOPS, STACK_BYTES};
use crate::verify::helpers::LOOP;
use wasm_encoder::{BlockType, MemArg, ValType};

const EINVAL: i64 = -22;
const E2BIG: i64 = -7;

/// An argument of a callback.
#[derive(Clone, Copy)]
enum Arg {
    Reg(Reg),
    /// Laps made.
    Lap,
    Zero,
    Key,
    /// The value of an entry of that map, of which this slot holds the number, plus so much.
    Value(MapIdx, Slot, i64),
}

impl Lower<'_> {
    /// `loop` or `for_each_map_elem`.
    ///
    /// # Errors
    /// `Unsupported` for a program that nobody verified: nothing bounds what it would call.
    pub(super) fn call_back(&mut self, pc: Pc, id: u32) -> Result<(), Error> {
        if self.input.facts.is_none() {
            let at = At::Insn { func: self.input.program.func_at(pc).name.clone(), pc };
            let text = "helpers that call back are for verified programs alone";
            return Err(Error::new(Stage::Translate, ErrorKind::Unsupported, at, text));
        }
        let targets = self.targets(pc);
        self.ops().block(BlockType::Empty);
        self.leave_if_flags();
        if id == LOOP {
            self.laps_of_loop(&targets);
        } else {
            self.laps_of_maps(pc, &targets);
        }
        self.ops().end();
        Ok(())
    }

    /// Functions that may be called back here, by index; where it is not known which, r2 tells at run time.
    fn targets(&self, pc: Pc) -> Vec<usize> {
        let program = self.input.program;
        let index = |start: Pc| program.funcs().binary_search_by_key(&start, |f| f.start).ok();
        // The entry function has another type, and is no callback.
        if let Some(one) = self.input.fact(pc).call.and_then(|c| c.callback) {
            return index(one).into_iter().filter(|i| *i != 0).collect();
        }
        let taken = program.iter().filter_map(|(_, insn)| match insn {
            Insn::LoadImm64 { imm: Imm64::Func(start), .. } => index(*start),
            _ => None,
        });
        let mut all: Vec<usize> = taken.filter(|i| *i != 0).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Leaves the block around with an error.
    fn give(&mut self, code: i64) {
        self.ops().if_(BlockType::Empty).i64_const(code);
        self.set(Reg::R0);
        self.ops().br(1).end();
    }

    fn leave_if_flags(&mut self) {
        self.get(Reg::R4);
        self.ops().i64_const(0).i64_ne();
        self.give(EINVAL);
    }

    fn laps_of_loop(&mut self, targets: &[usize]) {
        self.get32(Reg::R1);
        self.ops().i32_const(MAX_LOOPS as i32).i32_gt_u();
        self.give(E2BIG);
        self.start(Slot::Lap);
        self.ops().loop_(BlockType::Empty);
        self.get_slot(Slot::Lap);
        self.get(Reg::R1);
        self.ops().i64_const(0xffff_ffff).i64_and().i64_ge_u().if_(BlockType::Empty);
        self.get_slot(Slot::Lap);
        self.set(Reg::R0);
        self.ops().br(2).end();
        self.lap(targets, [Arg::Lap, Arg::Reg(Reg::R3), Arg::Zero, Arg::Zero, Arg::Zero]);
        self.step();
        self.ops().i64_eqz().br_if(0).end();
        self.get_slot(Slot::Lap);
        self.set(Reg::R0);
    }

    /// The map where it is known, else whichever r1 is.
    fn laps_of_maps(&mut self, pc: Pc, targets: &[usize]) {
        if let Some(map) = self.input.fact(pc).call.and_then(|c| c.map) {
            return self.laps_of_map(map, targets);
        }
        for map in self.input.walked_maps(pc) {
            self.get(Reg::R1);
            self.ops().i64_const(pointer(MAP_OBJECT_TAG + u32::from(map.0), 0)).i64_eq();
            self.ops().if_(BlockType::Empty);
            self.laps_of_map(map, targets);
            self.ops().br(1).end();
        }
        self.ops().unreachable();
    }

    fn laps_of_map(&mut self, map: MapIdx, targets: &[usize]) {
        let Some(decl) = self.input.program.maps().get(usize::from(map.0)) else {
            self.ops().unreachable();
            return;
        };
        self.start(Slot::Lap);
        if decl.kind.is_hash() {
            self.laps_of_hash(map, decl.max_entries, targets);
        } else {
            self.laps_of_array(map, decl.max_entries, targets);
        }
        self.get_slot(Slot::Lap);
        self.set(Reg::R0);
    }

    fn laps_of_array(&mut self, map: MapIdx, entries: u32, targets: &[usize]) {
        let memory_index = self.imports.private();
        self.ops().loop_(BlockType::Empty);
        self.key();
        self.ops().i32_wrap_i64();
        self.get_slot(Slot::Lap);
        self.ops().i64_store32(MemArg { offset: 0, align: 2, memory_index });
        self.lap(targets, entry_args(map, Slot::Lap, 0));
        self.step();
        self.ops().i64_eqz();
        self.get_slot(Slot::Lap);
        self.ops().i64_const(entries.into()).i64_lt_u().i32_and().br_if(0).end();
    }

    /// As many laps as there are entries at most, which is what was proved: a walk during which others delete and insert could meet
    /// more.
    fn laps_of_hash(&mut self, map: MapIdx, entries: u32, targets: &[usize]) {
        self.start(Slot::Cursor);
        self.ops().block(BlockType::Empty).loop_(BlockType::Empty);
        self.get_slot(Slot::Cursor);
        self.key();
        match self.imports.walk(map) {
            Some(index) => self.ops().call(index),
            None => self.ops().unreachable(),
        };
        self.tee_slot(Slot::Cursor);
        self.ops().i64_eqz().br_if(1);
        self.lap(targets, entry_args(map, Slot::Cursor, -1));
        self.step();
        self.ops().i64_eqz();
        self.get_slot(Slot::Lap);
        self.ops().i64_const(entries.into()).i64_lt_u().i32_and().br_if(0).end().end();
    }

    fn start(&mut self, slot: Slot) {
        self.ops().i64_const(0);
        self.set_slot(slot);
    }

    /// Counts a lap.
    fn step(&mut self) {
        self.get_slot(Slot::Lap);
        self.ops().i64_const(1).i64_add();
        self.set_slot(Slot::Lap);
    }

    /// Pushes the address of the key.
    fn key(&mut self) {
        if self.entry {
            self.ops().i64_const(pointer(PRIVATE_TAG, STACK_TOP + KEY_DISTANCE));
        } else {
            self.get(Reg::FP);
            self.ops().i64_const(KEY_DISTANCE.into()).i64_add();
        }
    }

    /// Calls the callback; its result stays on the stack.
    fn lap(&mut self, targets: &[usize], args: [Arg; 5]) {
        if let [one] = targets {
            return self.call_with(*one, args);
        }
        for &target in targets {
            let start = self.input.program.funcs()[target].start;
            self.get(Reg::R2);
            self.ops().i64_const(start.0.into()).i64_eq().if_(BlockType::Result(ValType::I64));
            self.call_with(target, args);
            self.ops().else_();
        }
        self.ops().unreachable();
        for _ in targets {
            self.ops().end();
        }
    }

    fn call_with(&mut self, target: usize, args: [Arg; 5]) {
        for arg in args {
            self.argument(arg);
        }
        if self.entry {
            self.ops().i64_const(pointer(PRIVATE_TAG, STACK_TOP - STACK_BYTES));
        } else {
            self.get(Reg::FP);
            self.ops().i64_const(STACK_BYTES.into()).i64_sub();
        }
        let index = self.imports.func(target);
        self.ops().call(index);
    }

    fn argument(&mut self, arg: Arg) {
        match arg {
            Arg::Reg(r) => self.get(r),
            Arg::Lap => self.get_slot(Slot::Lap),
            Arg::Zero => {
                self.ops().i64_const(0);
            }
            Arg::Key => self.key(),
            Arg::Value(map, slot, plus) => {
                let stride = self.imports.maps[usize::from(map.0)].stride;
                self.get_slot(slot);
                if plus != 0 {
                    self.ops().i64_const(plus).i64_add();
                }
                self.ops().i64_const(stride.into()).i64_mul();
                self.first_value(map);
            }
        }
    }
}

/// What a callback of `for_each_map_elem` gets.
fn entry_args(map: MapIdx, slot: Slot, plus: i64) -> [Arg; 5] {
    [Arg::Reg(Reg::R1), Arg::Key, Arg::Value(map, slot, plus), Arg::Reg(Reg::R3), Arg::Zero]
}

const _: () = assert!(CALL_PARAMS.len() == 6);
