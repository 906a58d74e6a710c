//! [`Cfg`]: the basic blocks of one function, made reducible, with reverse postorder and dominator tree.
//!
//! The graph holds what can happen, as the caller's [`Flow`] says: blocks that a fact proves unreachable and
//! ways that a jump cannot go are absent. An irreducible region (a cycle with several entries) gets a dispatch
//! block: every edge into one of the entries leaves a number in a variable and goes to the dispatch block,
//! which branches on it. Only that region pays for it.

use crate::error::{At, Error, ErrorKind, Stage};
use crate::isa::{Insn, Pc};
use crate::program::{Func, Program};
use crate::verify::Ways;

mod dom;
mod irreducible;
mod loops;

/// Index of a block in [`Cfg::blocks`].
pub(crate) type BlockId = u32;

/// Most levels of irreducible regions nested in each other; each costs one more pass over the region.
const MAX_IRREDUCIBLE_DEPTH: u32 = 256;

/// What is known of the flow: everything is possible unless a fact says otherwise.
pub(crate) trait Flow {
    /// Can `pc` be reached?
    fn reachable(&self, pc: Pc) -> bool;
    /// Which ways the conditional jump at `pc` can go.
    fn ways(&self, pc: Pc) -> Ways;
}

/// An edge between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) to: BlockId,
    /// Number to leave for the dispatch block that the edge leads to.
    pub(crate) select: Option<u32>,
}

/// How a block ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// `exit`.
    Exit,
    /// Goes on in another block.
    Goto(Edge),
    /// The conditional jump at `pc`.
    If { pc: Pc, taken: Edge, fallthrough: Edge },
    /// To the block of the number that the edge into this one left.
    Dispatch(Vec<BlockId>),
    /// Execution cannot come here (proved), or runs past the function's end.
    Stop,
}

/// A basic block: the instructions from `start` to `end`, without the jump or `exit` that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: Pc,
    pub(crate) end: Pc,
    pub(crate) term: Term,
}

impl Block {
    /// Successors, in the order taken, fallthrough.
    pub(crate) fn succs(&self) -> impl Iterator<Item = BlockId> {
        let (a, b, list): (Option<BlockId>, Option<BlockId>, &[BlockId]) = match &self.term {
            Term::Exit | Term::Stop => (None, None, &[]),
            Term::Goto(e) => (Some(e.to), None, &[]),
            Term::If { taken, fallthrough, .. } => (Some(taken.to), Some(fallthrough.to), &[]),
            Term::Dispatch(list) => (None, None, list),
        };
        a.into_iter().chain(b).chain(list.iter().copied())
    }
}

/// Control flow of one function. Block 0 is the entry; every block is reachable from it, and the graph is reducible.
#[derive(Clone, Debug)]
pub(crate) struct Cfg {
    pub(crate) blocks: Vec<Block>,
    /// Position of each block in reverse postorder.
    pub(crate) rpo: Vec<u32>,
    /// Blocks that stand inside each block's code: its children in the dominator tree, but for those that leave a
    /// loop. Ascending in reverse postorder.
    pub(crate) children: Vec<Vec<BlockId>>,
    /// Blocks that stand behind each loop: where control leaves it to. Ascending in reverse postorder.
    pub(crate) exits: Vec<Vec<BlockId>>,
    /// Number of blocks that stand with each block, itself included.
    pub(crate) weight: Vec<u32>,
    /// Heads of loops.
    pub(crate) loop_head: Vec<bool>,
    /// Blocks that need a label of their own: several forward edges, or one from a dispatch block, or behind a loop.
    pub(crate) merge: Vec<bool>,
}

impl Cfg {
    /// The graph of `func`.
    ///
    /// # Errors
    /// `TooLarge` if irreducible regions nest deeper than 256 levels.
    pub(crate) fn new(program: &Program, func: &Func, flow: &dyn Flow) -> Result<Cfg, Error> {
        let mut blocks = build(program, func, flow);
        let mut order = dom::order(&blocks);
        let mut tree = dom::tree(&blocks, &order);
        if !dom::reducible(&blocks, &order, &tree) {
            irreducible::fix(&mut blocks).map_err(|()| too_deep(func))?;
            order = dom::order(&blocks);
            tree = dom::tree(&blocks, &order);
            debug_assert!(dom::reducible(&blocks, &order, &tree));
        }
        Ok(Cfg::finish(blocks, &order, tree))
    }

    fn finish(blocks: Vec<Block>, order: &dom::Order, tree: dom::Tree) -> Cfg {
        let n = blocks.len();
        let (mut loop_head, mut merge, mut forward) = (vec![false; n], vec![false; n], vec![0u32; n]);
        for (from, block) in blocks.iter().enumerate() {
            for to in block.succs().map(|b| b as usize) {
                if order.position[to] <= order.position[from] {
                    loop_head[to] = true;
                } else {
                    forward[to] += 1;
                    merge[to] |= forward[to] > 1 || matches!(block.term, Term::Dispatch(_));
                }
            }
        }
        let loops = loops::Loops::new(&blocks, order, &loop_head);
        let (mut children, mut exits) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        let mut parent: Vec<BlockId> = tree.idom.clone();
        for &b in &order.sequence[1..] {
            match loops.left_at(b, &tree, &loop_head) {
                Some(head) => {
                    exits[head as usize].push(b);
                    merge[b as usize] = true;
                    parent[b as usize] = head;
                }
                None => children[parent[b as usize] as usize].push(b),
            }
        }
        let mut weight = vec![1u32; n];
        for &b in order.sequence[1..].iter().rev() {
            weight[parent[b as usize] as usize] += weight[b as usize];
        }
        Cfg { blocks, rpo: order.position.clone(), children, exits, weight, loop_head, merge }
    }

    /// Does the edge go back to the head of a loop?
    pub(crate) fn backward(&self, from: BlockId, to: BlockId) -> bool {
        self.rpo[to as usize] <= self.rpo[from as usize]
    }
}

fn too_deep(func: &Func) -> Error {
    let at = At::Insn { func: func.name.clone(), pc: func.start };
    let text =
        format!("irreducible loops nest deeper than {MAX_IRREDUCIBLE_DEPTH} levels; remove jumps into loops");
    Error::new(Stage::Translate, ErrorKind::TooLarge, at, text)
}

/// Cuts the function into blocks and keeps those that the entry reaches.
fn build(program: &Program, func: &Func, flow: &dyn Flow) -> Vec<Block> {
    let leaders = leaders(program, func);
    let base = func.start.0;
    let mut id_of = vec![None; (func.end.0 - base) as usize + 1];
    let mut starts = vec![func.start];
    id_of[0] = Some(0);
    let mut blocks: Vec<Block> = Vec::new();
    while let Some(&start) = starts.get(blocks.len()) {
        let mut goto = |to: Pc| {
            let slot = &mut id_of[(to.0 - base) as usize];
            let to = *slot.get_or_insert_with(|| {
                starts.push(to);
                starts.len() as BlockId - 1
            });
            Edge { to, select: None }
        };
        let (end, term) = scan(program, func, flow, &leaders, start, &mut goto);
        blocks.push(Block { start, end, term });
    }
    blocks
}

/// Marks, relative to the function's start, the slots where a block must begin.
fn leaders(program: &Program, func: &Func) -> Vec<bool> {
    let base = func.start.0;
    let mut leader = vec![false; (func.end.0 - base) as usize + 1];
    for slot in base..func.end.0 {
        match program.insn(Pc(slot)) {
            Some(Insn::Jump { target }) => leader[(target.0 - base) as usize] = true,
            Some(Insn::JumpIf { target, .. }) => leader[(target.0 - base) as usize] = true,
            _ => {}
        }
    }
    leader
}

/// Walks from `start` to where the block ends.
fn scan(
    program: &Program,
    func: &Func,
    flow: &dyn Flow,
    leaders: &[bool],
    start: Pc,
    goto: &mut dyn FnMut(Pc) -> Edge,
) -> (Pc, Term) {
    let mut pc = start;
    loop {
        if pc != start && leaders[(pc.0 - func.start.0) as usize] {
            return (pc, Term::Goto(goto(pc)));
        }
        let insn = if pc < func.end && flow.reachable(pc) { program.insn(pc) } else { None };
        match insn {
            None => return (pc, Term::Stop),
            Some(Insn::Exit) => return (pc, Term::Exit),
            Some(Insn::Jump { target }) => return (pc, Term::Goto(goto(*target))),
            Some(Insn::JumpIf { target, .. }) => {
                return (pc, jump_if(pc, *target, flow.ways(pc), goto));
            }
            Some(insn) => pc = pc.plus(insn.slots()),
        }
    }
}

fn jump_if(pc: Pc, target: Pc, ways: Ways, goto: &mut dyn FnMut(Pc) -> Edge) -> Term {
    let next = pc.plus(1);
    match (ways.taken, ways.fallthrough) {
        (false, false) => Term::Stop,
        (true, false) => Term::Goto(goto(target)),
        (false, true) => Term::Goto(goto(next)),
        (true, true) if target == next => Term::Goto(goto(next)),
        // The fallthrough first: its block then follows in the order of the source.
        (true, true) => {
            let fallthrough = goto(next);
            Term::If { pc, taken: goto(target), fallthrough }
        }
    }
}

#[cfg(test)]
mod tests;
