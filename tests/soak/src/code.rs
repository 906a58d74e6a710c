//! [`Code`]: a program as a list of instructions and labels, so that it can be put together, changed and cut without
//! counting slots. While in a list, the target of a jump or call is the number of a label.

use ringfence_translator::isa::{Imm64, Insn, Pc};
use ringfence_translator::{MapDecl, Program};
use std::collections::HashMap;

/// An instruction, or the place that a label names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An instruction.
    Insn(Insn),
    /// The next instruction is where that label leads.
    Label(u32),
}

/// A program under construction.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// In order; the entry function first.
    pub items: Vec<Item>,
    /// Labels from here on are unused.
    pub labels: u32,
}

/// Where an instruction may lead besides the next one.
pub fn target_mut(insn: &mut Insn) -> Option<&mut Pc> {
    match insn {
        Insn::Jump { target }
        | Insn::JumpIf { target, .. }
        | Insn::CallLocal { target }
        | Insn::LoadImm64 { imm: Imm64::Func(target), .. } => Some(target),
        _ => None,
    }
}

impl Code {
    /// A linked program as a list again.
    pub fn from_program(program: &Program) -> Code {
        let mut labels: HashMap<Pc, u32> = HashMap::new();
        let mut insns: Vec<(Pc, Insn)> = program.iter().map(|(pc, insn)| (pc, *insn)).collect();
        for (_, insn) in &mut insns {
            if let Some(target) = target_mut(insn) {
                let next = labels.len() as u32;
                *target = Pc(*labels.entry(*target).or_insert(next));
            }
        }
        let mut items = Vec::with_capacity(insns.len() + labels.len());
        for (pc, insn) in insns {
            items.extend(labels.get(&pc).map(|l| Item::Label(*l)));
            items.push(Item::Insn(insn));
        }
        Code { items, labels: labels.len() as u32 }
    }

    /// How many instructions.
    pub fn insns(&self) -> usize {
        self.items.iter().filter(|i| matches!(i, Item::Insn(_))).count()
    }

    /// The machine code.
    ///
    /// # Errors
    /// A label that is nowhere, or a jump that is too far, in words.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut places = vec![None; self.labels as usize];
        let mut pc = Pc(0);
        for item in &self.items {
            match item {
                Item::Insn(insn) => pc = pc.plus(insn.slots()),
                Item::Label(l) => {
                    *places.get_mut(*l as usize).ok_or_else(|| format!("label {l} is not counted"))? =
                        Some(pc);
                }
            }
        }
        let mut bytes = Vec::with_capacity(pc.index() * 8);
        for item in &self.items {
            let Item::Insn(mut insn) = *item else { continue };
            if let Some(target) = target_mut(&mut insn) {
                let place = places.get(target.index()).copied().flatten();
                *target = place.ok_or_else(|| format!("label {target} is nowhere"))?;
            }
            let at = Pc((bytes.len() / 8) as u32);
            bytes.extend(insn.encode(at)?);
        }
        Ok(bytes)
    }

    /// The linked program.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), and what the linker refuses.
    pub fn program(&self, maps: &[MapDecl]) -> Result<Program, String> {
        Program::with_maps("main", &self.bytes()?, maps.to_vec()).map_err(|e| e.to_string())
    }
}
