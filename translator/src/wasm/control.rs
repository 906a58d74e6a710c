//! [`emit`]: blocks to structured control flow, from the dominator tree (Ramsey, "Beyond Relooper", ICFP 2022).
//!
//! The code of a block is followed by what it dominates. A block with several forward edges is placed behind
//! the `end` of a Wasm block, which the edges branch to; the head of a loop opens a Wasm loop, which the edges
//! back branch to; any other block stands where its only edge leaves. Beyond the paper, what follows a loop is
//! placed behind its `end`, so that one loop after the other does not nest (for readers, and for engines that bound
//! the depth; wasmtime compiles both layouts in the same time). The walk keeps its own stack.

use super::lower::Lower;
use crate::cfg::{BlockId, Cfg, Edge, Term};
use crate::error::Error;
use crate::isa::Pc;
use wasm_encoder::BlockType;

/// What is still to be emitted, the next on top.
#[derive(Clone, Copy)]
enum Step {
    /// A block and all that it dominates.
    Tree(BlockId),
    /// The end of the block `from`: go on at `edge`.
    Follow { from: BlockId, edge: Edge },
    /// `end` of the innermost frame.
    End,
}

/// An open Wasm frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frame {
    Block,
    Loop,
    If,
}

struct Control<'c, 'l, 'a> {
    cfg: &'c Cfg,
    lower: &'l mut Lower<'a>,
    steps: Vec<Step>,
    frames: Vec<Frame>,
    /// Position in `frames` of the Wasm block that ends before each merge block.
    block_level: Vec<u32>,
    /// Position in `frames` of the Wasm loop of each loop head.
    loop_level: Vec<u32>,
    /// The code emitted last can be left at its end.
    falls: bool,
}

/// Emits the body of a function of which `cfg` is the control flow.
///
/// # Errors
/// What [`Lower`] cannot translate.
pub(super) fn emit(cfg: &Cfg, lower: &mut Lower<'_>) -> Result<(), Error> {
    let n = cfg.blocks.len();
    let (steps, frames) = (vec![Step::Tree(0)], Vec::new());
    let mut c =
        Control { cfg, lower, steps, frames, block_level: vec![0; n], loop_level: vec![0; n], falls: false };
    while let Some(step) = c.steps.pop() {
        match step {
            Step::Tree(block) => c.tree(block)?,
            Step::Follow { from, edge } => c.follow(from, edge),
            Step::End => c.end(),
        }
    }
    if c.falls {
        // Every path has left by now; Wasm's types want to be told.
        c.lower.ops().unreachable();
    }
    c.lower.ops().end();
    Ok(())
}

impl Control<'_, '_, '_> {
    fn tree(&mut self, block: BlockId) -> Result<(), Error> {
        let b = block as usize;
        if self.cfg.loop_head[b] {
            self.open_blocks(&self.cfg.exits[b]);
            self.loop_level[b] = self.frames.len() as u32;
            self.frames.push(Frame::Loop);
            self.lower.ops().loop_(BlockType::Empty);
            self.steps.push(Step::End);
        }
        self.open_blocks(&self.cfg.children[b]);
        let content = &self.cfg.blocks[b];
        self.lower.insns(content.start, content.end)?;
        self.leave(block, content.end)
    }

    /// Opens a Wasm block before each of `targets` that needs a label. The last is outermost, and so comes last.
    fn open_blocks(&mut self, targets: &[BlockId]) {
        for &target in targets.iter().rev().filter(|&&t| self.cfg.merge[t as usize]) {
            self.block_level[target as usize] = self.frames.len() as u32;
            self.frames.push(Frame::Block);
            self.lower.ops().block(BlockType::Empty);
            self.steps.extend([Step::Tree(target), Step::End]);
        }
    }

    /// Emits how the block ends.
    fn leave(&mut self, block: BlockId, end: Pc) -> Result<(), Error> {
        let cfg = self.cfg;
        match &cfg.blocks[block as usize].term {
            Term::Exit => {
                let last = self.frames.is_empty() && self.steps.is_empty();
                self.lower.exit(end, last);
                self.falls = false;
            }
            Term::Stop => {
                self.lower.stop(end);
                self.falls = false;
            }
            Term::Goto(edge) => self.steps.push(Step::Follow { from: block, edge: *edge }),
            Term::If { pc, taken, fallthrough } => self.branch(block, *pc, *taken, *fallthrough)?,
            Term::Dispatch(targets) => {
                let labels: Vec<u32> = targets.iter().map(|&t| self.label(block, t)).collect();
                self.lower.dispatch(&labels);
                self.falls = false;
            }
        }
        Ok(())
    }

    /// A conditional jump: `br_if` where one side is a mere branch, else the lighter side inside an `if`, so that
    /// a chain of them does not nest.
    fn branch(&mut self, from: BlockId, pc: Pc, taken: Edge, fallthrough: Edge) -> Result<(), Error> {
        let (plain_taken, plain_fall) = (self.is_plain(from, taken), self.is_plain(from, fallthrough));
        let invert =
            !plain_taken && (plain_fall || self.weight(from, fallthrough) < self.weight(from, taken));
        let (inner, outer) = if invert { (fallthrough, taken) } else { (taken, fallthrough) };
        self.lower.condition(pc, invert)?;
        self.steps.push(Step::Follow { from, edge: outer });
        if plain_taken || plain_fall {
            let label = self.label(from, inner.to);
            self.lower.ops().br_if(label);
        } else {
            self.frames.push(Frame::If);
            self.lower.ops().if_(BlockType::Empty);
            self.steps.extend([Step::End, Step::Follow { from, edge: inner }]);
        }
        Ok(())
    }

    fn follow(&mut self, from: BlockId, edge: Edge) {
        if let Some(number) = edge.select {
            self.lower.select(number);
        }
        if !self.has_label(from, edge.to) {
            self.steps.push(Step::Tree(edge.to));
            return;
        }
        let label = self.label(from, edge.to);
        if self.ends_here(label) {
            self.falls = true;
        } else {
            self.lower.ops().br(label);
            self.falls = false;
        }
    }

    /// Does nothing but `end`s stand between here and the end of the Wasm block of that label? Then no branch is
    /// needed to get behind it.
    fn ends_here(&self, label: u32) -> bool {
        let ends = label as usize + 1;
        let block = self.frames[self.frames.len() - ends] == Frame::Block;
        block
            && self.steps.len() >= ends
            && self.steps.iter().rev().take(ends).all(|s| matches!(s, Step::End))
    }

    fn end(&mut self) {
        self.frames.pop();
        self.lower.ops().end();
        self.falls = true;
    }

    /// Does the edge branch to a label, rather than to code that stands in its place?
    fn has_label(&self, from: BlockId, to: BlockId) -> bool {
        self.cfg.backward(from, to) || self.cfg.merge[to as usize]
    }

    /// Is the edge a branch and no more?
    fn is_plain(&self, from: BlockId, edge: Edge) -> bool {
        edge.select.is_none() && self.has_label(from, edge.to)
    }

    /// Blocks that stand in the edge's place.
    fn weight(&self, from: BlockId, edge: Edge) -> u32 {
        if self.has_label(from, edge.to) { 0 } else { self.cfg.weight[edge.to as usize] }
    }

    /// Label of a block, counted from the innermost frame.
    fn label(&self, from: BlockId, to: BlockId) -> u32 {
        let level = if self.cfg.backward(from, to) {
            self.loop_level[to as usize]
        } else {
            self.block_level[to as usize]
        };
        self.frames.len() as u32 - 1 - level
    }
}
