//! [`Loops`]: which natural loop each block is in. The graph must be reducible.

use super::dom::{Order, Tree, preds};
use super::{Block, BlockId};

const NONE: u32 = u32::MAX;

/// The nest of loops. A loop is named by its head.
pub(super) struct Loops {
    /// Innermost loop of each block; a head is in its own.
    innermost: Vec<BlockId>,
    /// The loop around each loop.
    parent: Vec<BlockId>,
}

impl Loops {
    /// Finds the loops, inner ones first; a found loop then counts as one block.
    pub(super) fn new(blocks: &[Block], order: &Order, head: &[bool]) -> Loops {
        let n = blocks.len();
        let preds = preds(blocks);
        let mut found = Loops { innermost: vec![NONE; n], parent: vec![NONE; n] };
        let mut whole = Union((0..n as u32).collect());
        for &h in order.sequence.iter().rev().filter(|&&b| head[b as usize]) {
            let back = |p: &BlockId| order.position[*p as usize] >= order.position[h as usize];
            let mut work: Vec<BlockId> = preds[h as usize].iter().copied().filter(back).collect();
            found.innermost[h as usize] = h;
            while let Some(block) = work.pop() {
                let part = whole.find(block);
                if part == h {
                    continue;
                }
                let slot = if head[part as usize] { &mut found.parent } else { &mut found.innermost };
                slot[part as usize] = h;
                whole.0[part as usize] = h;
                work.extend(&preds[part as usize]);
            }
        }
        found
    }

    /// The outermost loop that `block` is not in, though its immediate dominator is: control leaves the loop on
    /// the way to `block`.
    pub(super) fn left_at(&self, block: BlockId, tree: &Tree, head: &[bool]) -> Option<BlockId> {
        let b = block as usize;
        let around = if head[b] { self.parent[b] } else { self.innermost[b] };
        let mut left = None;
        let mut at = self.innermost[tree.idom[b] as usize];
        while at != around && at != NONE {
            left = Some(at);
            at = self.parent[at as usize];
        }
        left
    }
}

/// Union-find with path halving: a block's entry leads towards the loop that holds it.
struct Union(Vec<u32>);

impl Union {
    fn find(&mut self, mut x: u32) -> u32 {
        while self.0[x as usize] != x {
            self.0[x as usize] = self.0[self.0[x as usize] as usize];
            x = self.0[x as usize];
        }
        x
    }
}
