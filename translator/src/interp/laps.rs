//! Helpers that call back: `loop` and `for_each_map_elem`. As in the verifier, the call is one place to which
//! each lap comes back, with the caller's registers as they were.

use super::{FaultKind, Flow, Frame, Interp, Machine, Result};
use crate::isa::{Pc, Reg};
use crate::limits::MAX_LOOPS;

const EINVAL: i64 = -22;
const E2BIG: i64 = -7;

/// How far the helper is that the frame's function is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Laps {
    done: u64,
    /// Where a walk over a map goes on.
    cursor: u32,
    /// The last callback said so.
    pub(super) stop: bool,
}

impl Interp<'_> {
    /// `loop(n, callback, ctx, flags)`
    pub(super) fn lap_of_loop(&mut self, m: &mut Machine) -> Result<Flow> {
        let laps = m.take_laps();
        let count = m.regs[1] & 0xffff_ffff;
        if m.regs[4] != 0 || count > MAX_LOOPS {
            m.regs[0] = if m.regs[4] != 0 { EINVAL } else { E2BIG } as u64;
            return Ok(Flow::Next);
        }
        if laps.stop || laps.done >= count {
            m.regs[0] = laps.done;
            return Ok(Flow::Next);
        }
        let args = [laps.done, m.regs[3], 0, 0, 0];
        self.lap(m, Laps { done: laps.done + 1, ..laps }, args)
    }

    /// `for_each_map_elem(map, callback, ctx, flags)`
    pub(super) fn lap_of_map(&mut self, m: &mut Machine) -> Result<Flow> {
        let laps = m.take_laps();
        let object = m.regs[1];
        let caller = m.frames.len() - 1;
        self.memory.drop_key(caller);
        if m.regs[4] != 0 {
            m.regs[0] = EINVAL as u64;
            return Ok(Flow::Next);
        }
        let found = if laps.stop { None } else { self.memory.next_entry(object, laps.cursor)? };
        let Some(entry) = found else {
            m.regs[0] = laps.done;
            return Ok(Flow::Next);
        };
        let key = self.memory.put_key(caller, entry.key);
        let args = [object, key, entry.value, m.regs[3], 0];
        self.lap(m, Laps { done: laps.done + 1, cursor: entry.next, ..laps }, args)
    }

    /// Enters the callback, whose address is in r2.
    fn lap(&mut self, m: &mut Machine, laps: Laps, args: [u64; 5]) -> Result<Flow> {
        let target = u32::try_from(m.regs[2]).map(Pc).ok();
        let func = target.and_then(|pc| self.program.funcs().iter().find(|f| f.start == pc));
        let Some(func) = func else { return Err(FaultKind::NotFunction(m.regs[2])) };
        let mut saved = [0; Reg::COUNT - 1];
        saved.copy_from_slice(&m.regs[..Reg::COUNT - 1]);
        let (end, start) = (func.end, func.start);
        if let Some(caller) = m.frames.last_mut() {
            caller.laps = laps;
        }
        self.push(m, Frame { end, back: m.pc, saved, callback: true, laps: Laps::default() })?;
        m.regs[1..6].copy_from_slice(&args);
        Ok(Flow::To(start))
    }
}

impl Machine {
    fn take_laps(&mut self) -> Laps {
        self.frames.last_mut().map(|f| std::mem::take(&mut f.laps)).unwrap_or_default()
    }
}
