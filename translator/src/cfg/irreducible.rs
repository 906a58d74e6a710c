//! [`fix`]: gives every cycle with several entries a single one, a dispatch block.

use super::{Block, BlockId, Edge, MAX_IRREDUCIBLE_DEPTH, Term, dom};

const NONE: u32 = u32::MAX;

/// Rewrites the graph until each cycle has one entry. Fails where cycles nest too deep.
///
/// Regions are strongly connected components, outermost first. The single entry of a region is taken out and
/// what remains is looked at again, so that cycles inside a cycle are found.
pub(super) fn fix(blocks: &mut Vec<Block>) -> Result<(), ()> {
    let mut preds = dom::preds(blocks);
    if !preds[0].is_empty() {
        // Then no cycle holds block 0, which must stay the entry of the function.
        split_entry(blocks);
        preds = dom::preds(blocks);
    }
    let mut tarjan = Tarjan::default();
    let mut work = vec![((0..blocks.len() as BlockId).collect::<Vec<_>>(), 0u32)];
    while let Some((nodes, depth)) = work.pop() {
        if depth > MAX_IRREDUCIBLE_DEPTH {
            return Err(());
        }
        for mut region in tarjan.components(blocks, &nodes) {
            let entries = tarjan.entries(&preds, &region);
            match entries[..] {
                [header] => region.retain(|&b| b != header),
                _ => add_dispatch(blocks, &mut preds, &entries),
            }
            work.push((region, depth + 1));
        }
    }
    Ok(())
}

/// Moves block 0's content to a new block, to which block 0 and all edges to it then lead.
fn split_entry(blocks: &mut Vec<Block>) {
    let moved = blocks.len() as BlockId;
    let start = blocks[0].start;
    let goto = Block { start, end: start, term: Term::Goto(Edge { to: moved, select: None }) };
    let old = std::mem::replace(&mut blocks[0], goto);
    blocks.push(old);
    for block in blocks.iter_mut().skip(1) {
        for_each_edge(&mut block.term, |e| {
            if e.to == 0 {
                e.to = moved;
            }
        });
    }
}

/// Leads every edge to one of `entries` (ascending) through a new dispatch block.
fn add_dispatch(blocks: &mut Vec<Block>, preds: &mut Vec<Vec<BlockId>>, entries: &[BlockId]) {
    let start = blocks[entries[0] as usize].start;
    let dispatch = blocks.len() as BlockId;
    blocks.push(Block { start, end: start, term: Term::Dispatch(entries.to_vec()) });
    preds.push(Vec::new());
    let mut sources: Vec<BlockId> = Vec::new();
    for &e in entries {
        sources.append(&mut preds[e as usize]);
        preds[e as usize].push(dispatch);
    }
    sources.sort_unstable();
    sources.dedup();
    for source in sources {
        redirect(blocks, preds, source, entries, dispatch);
    }
}

/// Leads the edges of `source` to `entries` through `dispatch`.
fn redirect(
    blocks: &mut Vec<Block>,
    preds: &mut Vec<Vec<BlockId>>,
    source: BlockId,
    entries: &[BlockId],
    dispatch: BlockId,
) {
    let place = |to: BlockId| entries.binary_search(&to).ok().map(|i| i as u32);
    let mut term = blocks[source as usize].term.clone();
    for_each_edge(&mut term, |e| {
        if let Some(i) = place(e.to) {
            *e = Edge { to: dispatch, select: Some(i) };
            preds[dispatch as usize].push(source);
        }
    });
    // The table of another dispatch block cannot leave a number: it goes through a block that does.
    if let Term::Dispatch(list) = &mut term {
        for to in list.iter_mut() {
            if let Some(i) = place(*to) {
                let start = blocks[*to as usize].start;
                *to = blocks.len() as BlockId;
                let edge = Edge { to: dispatch, select: Some(i) };
                blocks.push(Block { start, end: start, term: Term::Goto(edge) });
                preds.push(vec![source]);
                preds[dispatch as usize].push(*to);
            }
        }
    }
    blocks[source as usize].term = term;
}

fn for_each_edge(term: &mut Term, mut f: impl FnMut(&mut Edge)) {
    match term {
        Term::Goto(e) => f(e),
        Term::If { taken, fallthrough, .. } => {
            f(taken);
            f(fallthrough);
        }
        Term::Exit | Term::Stop | Term::Dispatch(_) => {}
    }
}

/// Strongly connected components (Tarjan, with an explicit stack). The vectors are indexed by block and kept
/// between runs; only what a run touches is reset, so that many small regions cost no more than one large one.
#[derive(Default)]
struct Tarjan {
    index: Vec<u32>,
    low: Vec<u32>,
    member: Vec<bool>,
    on_stack: Vec<bool>,
    stack: Vec<BlockId>,
    count: u32,
    found: Vec<Vec<BlockId>>,
}

impl Tarjan {
    /// Components of the graph on `nodes` that hold a cycle.
    fn components(&mut self, blocks: &[Block], nodes: &[BlockId]) -> Vec<Vec<BlockId>> {
        self.index.resize(blocks.len(), NONE);
        self.low.resize(blocks.len(), 0);
        self.on_stack.resize(blocks.len(), false);
        self.mark(blocks.len(), nodes, true);
        for &b in nodes {
            if self.index[b as usize] == NONE {
                self.walk(blocks, b);
            }
        }
        self.mark(blocks.len(), nodes, false);
        for &b in nodes {
            self.index[b as usize] = NONE;
        }
        std::mem::take(&mut self.found)
    }

    /// Blocks of the region that are reached from outside it, ascending.
    fn entries(&mut self, preds: &[Vec<BlockId>], region: &[BlockId]) -> Vec<BlockId> {
        self.mark(preds.len(), region, true);
        let outside = |p: &BlockId| !self.member[*p as usize];
        let mut entries: Vec<BlockId> =
            region.iter().copied().filter(|&b| preds[b as usize].iter().any(outside)).collect();
        entries.sort_unstable();
        self.mark(preds.len(), region, false);
        entries
    }

    fn mark(&mut self, blocks: usize, nodes: &[BlockId], value: bool) {
        self.member.resize(blocks, false);
        for &b in nodes {
            self.member[b as usize] = value;
        }
    }

    fn walk(&mut self, blocks: &[Block], root: BlockId) {
        let mut calls = vec![(root, blocks[root as usize].succs())];
        self.enter(root);
        while let Some((v, succs)) = calls.last_mut() {
            let v = *v;
            match succs.next() {
                Some(w) if !self.member[w as usize] => {}
                Some(w) if self.index[w as usize] == NONE => {
                    self.enter(w);
                    calls.push((w, blocks[w as usize].succs()));
                }
                Some(w) if self.on_stack[w as usize] => self.lower(v, self.index[w as usize]),
                Some(_) => {}
                None => {
                    calls.pop();
                    if let Some(&(u, _)) = calls.last().as_ref() {
                        self.lower(*u, self.low[v as usize]);
                    }
                    self.leave(blocks, v);
                }
            }
        }
    }

    fn lower(&mut self, v: BlockId, to: u32) {
        self.low[v as usize] = self.low[v as usize].min(to);
    }

    fn enter(&mut self, v: BlockId) {
        self.index[v as usize] = self.count;
        self.low[v as usize] = self.count;
        self.count += 1;
        self.stack.push(v);
        self.on_stack[v as usize] = true;
    }

    /// Takes a finished component off the stack.
    fn leave(&mut self, blocks: &[Block], v: BlockId) {
        if self.low[v as usize] != self.index[v as usize] {
            return;
        }
        let mut component = Vec::new();
        while let Some(w) = self.stack.pop() {
            self.on_stack[w as usize] = false;
            component.push(w);
            if w == v {
                break;
            }
        }
        if component.len() > 1 || blocks[v as usize].succs().any(|s| s == v) {
            self.found.push(component);
        }
    }
}
