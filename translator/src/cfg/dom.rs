//! [`Order`] (reverse postorder) and [`Tree`] (dominators), without recursion.
//!
//! Dominators are found by the semi-NCA method (Georgiadis, "Linear-Time Algorithms for Dominators and Related
//! Problems", 2005): unlike the iterative method it stays fast on long chains of branches to one common exit,
//! which is what error handling compiles to.

use super::{Block, BlockId};

const NONE: u32 = u32::MAX;

/// Reverse postorder of all blocks.
pub(super) struct Order {
    pub(super) sequence: Vec<BlockId>,
    /// Inverse of `sequence`.
    pub(super) position: Vec<u32>,
    /// Blocks in the order of the depth-first walk.
    preorder: Vec<BlockId>,
    /// Parent of each block in that walk.
    parent: Vec<BlockId>,
}

/// Immediate dominators; the entry is its own.
pub(super) struct Tree {
    pub(super) idom: Vec<BlockId>,
}

/// Depth-first walk from block 0. All blocks must be reachable.
pub(super) fn order(blocks: &[Block]) -> Order {
    let n = blocks.len();
    let (mut preorder, mut parent) = (vec![0], vec![NONE; n]);
    let mut postorder = Vec::with_capacity(n);
    let mut seen = vec![false; n];
    seen[0] = true;
    let mut stack = vec![(0 as BlockId, blocks[0].succs())];
    while let Some((block, succs)) = stack.last_mut() {
        let block = *block;
        match succs.next() {
            None => {
                postorder.push(block);
                stack.pop();
            }
            Some(next) if seen[next as usize] => {}
            Some(next) => {
                seen[next as usize] = true;
                parent[next as usize] = block;
                preorder.push(next);
                stack.push((next, blocks[next as usize].succs()));
            }
        }
    }
    postorder.reverse();
    let position = inverse(&postorder, n);
    Order { sequence: postorder, position, preorder, parent }
}

fn inverse(sequence: &[BlockId], n: usize) -> Vec<u32> {
    let mut position = vec![NONE; n];
    for (i, &b) in sequence.iter().enumerate() {
        position[b as usize] = i as u32;
    }
    position
}

/// Predecessors of each block.
pub(super) fn preds(blocks: &[Block]) -> Vec<Vec<BlockId>> {
    let mut preds = vec![Vec::new(); blocks.len()];
    for (from, block) in blocks.iter().enumerate() {
        for to in block.succs() {
            preds[to as usize].push(from as BlockId);
        }
    }
    preds
}

/// Dominator tree. Works on preorder numbers: `semi`, `label`, `ancestor` and `idom` are indexed by and hold them.
pub(super) fn tree(blocks: &[Block], order: &Order) -> Tree {
    let n = blocks.len();
    let number = inverse(&order.preorder, n);
    let parent: Vec<u32> = order
        .preorder
        .iter()
        .map(|&b| match order.parent[b as usize] {
            NONE => 0,
            p => number[p as usize],
        })
        .collect();
    let preds = preds(blocks);
    let mut forest =
        Forest { semi: (0..n as u32).collect(), label: (0..n as u32).collect(), ancestor: vec![NONE; n] };
    for w in (1..n).rev() {
        let block = order.preorder[w] as usize;
        for &p in &preds[block] {
            let u = forest.eval(number[p as usize]);
            forest.semi[w] = forest.semi[w].min(forest.semi[u as usize]);
        }
        forest.ancestor[w] = parent[w];
    }
    let mut idom = vec![0u32; n];
    for w in 1..n {
        let mut d = parent[w];
        while d > forest.semi[w] {
            d = idom[d as usize];
        }
        idom[w] = d;
    }
    let mut by_block = vec![0; n];
    for w in 0..n {
        by_block[order.preorder[w] as usize] = order.preorder[idom[w] as usize];
    }
    Tree { idom: by_block }
}

struct Forest {
    semi: Vec<u32>,
    label: Vec<u32>,
    ancestor: Vec<u32>,
}

impl Forest {
    /// The number with the least semidominator on the path from `v` to its root, the root excluded.
    fn eval(&mut self, v: u32) -> u32 {
        if self.ancestor[v as usize] == NONE {
            return v;
        }
        let mut path = vec![v];
        let mut x = self.ancestor[v as usize];
        while self.ancestor[x as usize] != NONE {
            path.push(x);
            x = self.ancestor[x as usize];
        }
        let (root, mut best) = (x, NONE);
        while let Some(x) = path.pop() {
            let own = self.label[x as usize];
            let better = best == NONE || self.semi[own as usize] <= self.semi[best as usize];
            best = if better { own } else { best };
            self.label[x as usize] = best;
            self.ancestor[x as usize] = root;
        }
        best
    }
}

/// Is the target of each retreating edge a dominator of its source?
pub(super) fn reducible(blocks: &[Block], order: &Order, tree: &Tree) -> bool {
    let span = spans(order, tree);
    blocks.iter().enumerate().all(|(from, block)| {
        block.succs().map(|to| to as usize).all(|to| {
            order.position[to] > order.position[from]
                || (span[to].0 <= span[from].0 && span[from].0 < span[to].0 + span[to].1)
        })
    })
}

/// (first number, count) of each block's subtree in a preorder of the dominator tree.
fn spans(order: &Order, tree: &Tree) -> Vec<(u32, u32)> {
    let mut span = vec![(0u32, 1u32); order.sequence.len()];
    for &b in order.sequence[1..].iter().rev() {
        span[tree.idom[b as usize] as usize].1 += span[b as usize].1;
    }
    // Parents come before children in reverse postorder: hand each child the next free part of its parent's span.
    let mut next: Vec<u32> = vec![1; span.len()];
    for &b in &order.sequence[1..] {
        let p = tree.idom[b as usize] as usize;
        span[b as usize].0 = next[p];
        next[p] += span[b as usize].1;
        next[b as usize] = span[b as usize].0 + 1;
    }
    span
}
