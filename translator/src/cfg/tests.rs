use super::*;

/// A graph whose block `i` leads to `succs[i]`: none is `exit`, two a conditional jump.
fn graph(succs: &[&[BlockId]]) -> Vec<Block> {
    let edge = |to| Edge { to, select: None };
    let block = |(i, s): (usize, &&[BlockId])| {
        let pc = Pc(i as u32);
        let term = match **s {
            [] => Term::Exit,
            [a] => Term::Goto(edge(a)),
            [a, b] => Term::If { pc, taken: edge(a), fallthrough: edge(b) },
            _ => unreachable!("a block has at most two successors"),
        };
        Block { start: pc, end: pc, term }
    };
    succs.iter().enumerate().map(block).collect()
}

/// Blocks reachable from 0 without passing `without`.
fn reach(blocks: &[Block], without: Option<BlockId>) -> Vec<bool> {
    let mut seen = vec![false; blocks.len()];
    let mut stack = vec![0];
    while let Some(b) = stack.pop() {
        if Some(b) != without && !std::mem::replace(&mut seen[b as usize], true) {
            stack.extend(blocks[b as usize].succs());
        }
    }
    seen
}

/// Dominators by their definition: `a` dominates `b` if no path from the entry to `b` avoids `a`.
fn check_tree(blocks: &[Block], tree: &dom::Tree) {
    let n = blocks.len() as u32;
    let dominates: Vec<Vec<bool>> =
        (0..n).map(|a| reach(blocks, Some(a)).iter().map(|s| !s).collect()).collect();
    for b in 1..n {
        let d = tree.idom[b as usize];
        assert!(d != b && dominates[d as usize][b as usize], "{d} must dominate {b}");
        for a in (0..n).filter(|&a| a != b && dominates[a as usize][b as usize]) {
            assert!(dominates[a as usize][d as usize], "{a} dominates {b}, so it must dominate idom {d}");
        }
    }
}

/// Reducible by definition: taking out edges to a dominator leaves no cycle.
fn reducible_by_definition(blocks: &[Block]) -> bool {
    let n = blocks.len() as u32;
    let dominates: Vec<Vec<bool>> =
        (0..n).map(|a| reach(blocks, Some(a)).iter().map(|s| !s).collect()).collect();
    let mut degree = vec![0; blocks.len()];
    let forward = |a: u32, b: u32| !dominates[b as usize][a as usize];
    for a in 0..n {
        blocks[a as usize].succs().filter(|&b| forward(a, b)).for_each(|b| degree[b as usize] += 1);
    }
    let mut ready: Vec<u32> = (0..n).filter(|&b| degree[b as usize] == 0).collect();
    let mut done = 0;
    while let Some(a) = ready.pop() {
        done += 1;
        for b in blocks[a as usize].succs().filter(|&b| forward(a, b)) {
            degree[b as usize] -= 1;
            if degree[b as usize] == 0 {
                ready.push(b);
            }
        }
    }
    done == n
}

fn is_reducible(blocks: &[Block]) -> bool {
    let order = dom::order(blocks);
    dom::reducible(blocks, &order, &dom::tree(blocks, &order))
}

/// Small generator (xorshift), so that a failure is found again.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A random graph, cut down to what is reachable.
fn random_graph(seed: &mut u64) -> Vec<Block> {
    let n = 2 + random(seed) % 12;
    let succs: Vec<Vec<BlockId>> = (0..n)
        .map(|_| (0..(random(seed) % 5).min(2)).map(|_| (random(seed) % n) as BlockId).collect())
        .collect();
    let mut names = vec![0];
    let mut i = 0;
    while i < names.len() {
        for &s in &succs[names[i] as usize] {
            if !names.contains(&s) {
                names.push(s);
            }
        }
        i += 1;
    }
    let rename = |b: &BlockId| names.iter().position(|n| n == b).unwrap_or(0) as BlockId;
    let kept: Vec<Vec<BlockId>> =
        names.iter().map(|&b| succs[b as usize].iter().map(rename).collect()).collect();
    graph(&kept.iter().map(|s| &s[..]).collect::<Vec<_>>())
}

/// Follows the same random choices in two graphs and compares the blocks with a decision that are passed.
fn same_walks(before: &[Block], after: &[Block], seed: &mut u64) {
    for _ in 0..20 {
        let choices: Vec<bool> = (0..40).map(|_| random(seed) & 1 == 1).collect();
        assert_eq!(walk(before, &choices), walk(after, &choices));
    }
}

fn walk(blocks: &[Block], choices: &[bool]) -> (Vec<Pc>, bool) {
    let (mut at, mut selected, mut passed) = (0, None, Vec::new());
    let mut choices = choices.iter();
    // A cycle without a decision is left after some steps.
    for _ in 0..1000 {
        let edge = match &blocks[at as usize].term {
            Term::Exit => return (passed, true),
            Term::Stop => unreachable!("not in these graphs"),
            Term::Goto(e) => *e,
            Term::If { pc, taken, fallthrough } => {
                passed.push(*pc);
                match choices.next() {
                    None => return (passed, false),
                    Some(&c) => *if c { taken } else { fallthrough },
                }
            }
            Term::Dispatch(list) => {
                Edge { to: list[selected.take().expect("a number was left") as usize], select: None }
            }
        };
        selected = edge.select;
        at = edge.to;
    }
    (passed, false)
}

#[test]
fn dominators_and_reducibility_agree_with_their_definitions() {
    let mut seed = 0x5EED;
    let mut irreducible = 0;
    for _ in 0..20_000 {
        let blocks = random_graph(&mut seed);
        let order = dom::order(&blocks);
        check_tree(&blocks, &dom::tree(&blocks, &order));
        assert_eq!(is_reducible(&blocks), reducible_by_definition(&blocks), "{blocks:?}");
        irreducible += u32::from(!is_reducible(&blocks));
    }
    assert!(irreducible > 1000, "the generator must produce irreducible graphs, got {irreducible}");
}

#[test]
fn fixing_makes_reducible_and_keeps_all_walks() {
    let mut seed = 0xF1F0;
    for _ in 0..20_000 {
        let before = random_graph(&mut seed);
        if is_reducible(&before) {
            continue;
        }
        let mut after = before.clone();
        irreducible::fix(&mut after).expect("not nested deep");
        assert!(reducible_by_definition(&after), "{before:?}\n{after:?}");
        assert!(reach(&after, None).iter().all(|&r| r), "every block is reachable");
        same_walks(&before, &after, &mut seed);
    }
}

/// Blocks of the loop of `head` by definition: those that reach an edge back to it without passing it.
fn natural_loop(blocks: &[Block], order: &dom::Order, head: BlockId) -> Vec<bool> {
    let mut inside = vec![false; blocks.len()];
    inside[head as usize] = true;
    let back = |b: usize| order.position[b] >= order.position[head as usize];
    loop {
        let more: Vec<usize> = (0..blocks.len())
            .filter(|&b| !inside[b])
            .filter(|&b| blocks[b].succs().any(|s| if s == head { back(b) } else { inside[s as usize] }))
            .collect();
        if more.is_empty() {
            return inside;
        }
        more.into_iter().for_each(|b| inside[b] = true);
    }
}

#[test]
fn blocks_behind_a_loop_are_those_that_leave_it() {
    let mut seed = 0x100B;
    let mut left = 0;
    for _ in 0..20_000 {
        let blocks = random_graph(&mut seed);
        if !is_reducible(&blocks) {
            continue;
        }
        let order = dom::order(&blocks);
        let tree = dom::tree(&blocks, &order);
        let cfg = Cfg::finish(blocks.clone(), &order, dom::tree(&blocks, &order));
        for b in 1..blocks.len() as BlockId {
            let d = tree.idom[b as usize];
            // Loops that hold the dominator but not the block; the outermost has the most blocks.
            let outermost = (0..blocks.len() as BlockId)
                .filter(|&h| cfg.loop_head[h as usize])
                .map(|h| (h, natural_loop(&blocks, &order, h)))
                .filter(|(_, inside)| inside[d as usize] && !inside[b as usize])
                .max_by_key(|(_, inside)| inside.iter().filter(|i| **i).count())
                .map(|(h, _)| h);
            let at = (0..blocks.len() as BlockId).find(|&h| cfg.exits[h as usize].contains(&b));
            assert_eq!(at, outermost, "block {b} of {blocks:?}");
            assert_eq!(cfg.children[d as usize].contains(&b), at.is_none());
            left += u32::from(at.is_some());
        }
    }
    assert!(left > 1000, "only {left} exits of loops");
}

#[test]
fn a_jump_into_a_loop_gets_one_dispatch_block_of_two_targets() {
    // 0 -> {1, 2}, 1 <-> 2, 2 -> 3: the smallest irreducible graph.
    let mut blocks = graph(&[&[2, 1], &[2], &[1, 3], &[]]);
    assert!(!is_reducible(&blocks));
    irreducible::fix(&mut blocks).expect("not nested deep");
    let dispatch: Vec<_> = blocks.iter().filter(|b| matches!(b.term, Term::Dispatch(_))).collect();
    assert_eq!(dispatch.len(), 1);
    assert_eq!(dispatch[0].term, Term::Dispatch(vec![1, 2]));
    assert_eq!(blocks.len(), 5);
}

#[test]
fn long_chains_need_neither_deep_recursion_nor_quadratic_time() {
    // Each block may leave for one common exit.
    let n = 200_000;
    let succs: Vec<[BlockId; 2]> = (0..n).map(|i| [n, i + 1]).collect();
    let mut lists: Vec<&[BlockId]> = succs.iter().map(|s| &s[..]).collect();
    lists.push(&[]);
    let blocks = graph(&lists);
    let order = dom::order(&blocks);
    let tree = dom::tree(&blocks, &order);
    assert_eq!(tree.idom[n as usize], 0);
    assert!(dom::reducible(&blocks, &order, &tree));
}
