//! [`out_of_scope`]: which tests need a feature that only the kernel has. The rules look at program type, helpers,
//! map kinds and instructions, never at the name of a test.

use super::context::Kind;
use super::corpus::{Reason, Test};
use ringfence_translator::isa::{AluOp, Insn, Operand};
use ringfence_translator::{Env, ErrorKind, Program, Stage};

/// The highest number of a helper in Linux 6.12 (`cgrp_storage_delete`).
const LAST_HELPER: u32 = 211;

/// Why the test is out of scope; `None` if it is in.
pub fn out_of_scope(test: &Test, env: Option<&Env>) -> Option<String> {
    if test.root.is_none() {
        return Some("for unprivileged users only".into());
    }
    if test.strict {
        return Some("load option for strict alignment or register invariants".into());
    }
    if test.argument_tags {
        return Some("BTF tags on arguments of global functions".into());
    }
    match (&test.program, env) {
        (_, None) => Some("program type with kernel-only context".into()),
        (Err(reason), _) => unlinkable(reason),
        (Ok(program), Some(_)) => needs(program, test.kind),
    }
}

/// Why a program that does not link is out of scope; `None` if the loader's error is a verdict on its code.
fn unlinkable(reason: &Reason) -> Option<String> {
    let error = match reason {
        Reason::Kfunc => return Some("kfunc".into()),
        Reason::Map(kind) => return Some(format!("map type {kind}, or with kernel-only fields")),
        Reason::Loader(e) => e,
    };
    let says = |what: &str| error.message().contains(what);
    match (error.stage(), error.kind()) {
        (Stage::Map, _) => Some(format!("map: {}", error.message())),
        (_, ErrorKind::NotFound) => Some("kfunc or extern".into()),
        (_, ErrorKind::Unsupported) if says("CO-RE") => Some("CO-RE relocation".into()),
        (_, ErrorKind::Unsupported) if says("BTF id") => Some("kfunc".into()),
        (_, ErrorKind::Unsupported) if says("BPF_ABS") || says("BPF_IND") => {
            Some("legacy packet load".into())
        }
        (_, ErrorKind::Unsupported) => Some(format!("loader: {}", error.message())),
        // may_goto, and casts between address spaces.
        (_, ErrorKind::BadInsn) if says("opcode 0xe5") => Some("may_goto".into()),
        (_, ErrorKind::BadInsn) if says("opcode 0xbf") && says("offset is 1,") => Some("arena".into()),
        _ => None,
    }
}

fn needs(program: &Program, kind: Kind) -> Option<String> {
    // A helper that we know and this program type has not is refused by both.
    let known = Env::kernel_like_helpers();
    for (_, insn) in program.iter() {
        if let Insn::CallHelper { id } = insn
            && *id <= LAST_HELPER
            && known.iter().all(|h| h.id != *id)
        {
            return Some(format!("helper {id}"));
        }
    }
    let accesses = context_accesses(program);
    if accesses.iter().any(|a| kind.typed_pointers().contains(a)) {
        return Some("packet, socket or flow-key pointer of the context".into());
    }
    let odd = |(off, size): &(i16, u32)| kind.any_width().contains(off) && *size != 4;
    accesses.iter().any(odd).then(|| "context field with writes of several widths".into())
}

/// Offset and width of loads and stores through r1 or a copy of it.
fn context_accesses(program: &Program) -> Vec<(i16, u32)> {
    let mut ctx = [false; 11];
    ctx[1] = true;
    let mut out = Vec::new();
    for (_, insn) in program.iter() {
        match *insn {
            Insn::Alu { op: AluOp::Mov, dst, src: Operand::Reg(src), .. } => {
                ctx[dst.index()] |= ctx[src.index()];
            }
            Insn::Load { size, base, off, .. } | Insn::Store { size, base, off, .. } if ctx[base.index()] => {
                out.push((off, size.bytes()));
            }
            _ => {}
        }
    }
    out
}
