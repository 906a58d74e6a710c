//! [`parse`]: the tokens of a line as an [`Insn`].

use super::Source;
use super::token::Tok;
use crate::isa::insn::{AluOp, AtomicOp, Cond, Endian, Imm64, Insn, MapIdx, Operand, Pc, Reg, Size, Width};
use crate::verify::Env;
use Tok::{Fn, Id, Map, MapValue, Num, P};

/// What names on a line refer to.
pub(super) struct Scope<'a> {
    pub(super) pc: Pc,
    pub(super) source: &'a Source<'a>,
}

/// A line.
pub(super) enum Parsed {
    /// An instruction.
    Insn(Insn),
    /// `gotol`, which [`Insn`] does not tell from `ja`.
    LongJump(Pc),
}

type Result<T> = std::result::Result<T, String>;

/// Parses a line that is not empty.
pub(super) fn parse(scope: &Scope<'_>, toks: &[Tok<'_>]) -> Result<Parsed> {
    if let [Id("gotol"), to @ ..] = toks {
        return scope.target(to).map(Parsed::LongJump);
    }
    scope.insn(toks).map(Parsed::Insn)
}

fn unknown<T>(toks: &[Tok<'_>]) -> Result<T> {
    Err(format!("no instruction has this form ({} words)", toks.len()))
}

impl Scope<'_> {
    fn insn(&self, toks: &[Tok<'_>]) -> Result<Insn> {
        match toks {
            [Id("exit")] => Ok(Insn::Exit),
            [Id("goto"), to @ ..] => Ok(Insn::Jump { target: self.target(to)? }),
            [Id("callx"), Tok::Reg(Width::W64, reg)] => Ok(Insn::CallReg { reg: *reg }),
            [Id("call"), Fn(name)] => Ok(Insn::CallLocal { target: self.func(name)? }),
            [Id("call"), what] => Ok(Insn::CallHelper { id: helper(what)? }),
            [Id("if"), Tok::Reg(width, dst), P(cond), rest @ ..] => self.jump_if(*width, *dst, cond, rest),
            [Id("lock"), rest @ ..] => locked(rest),
            [P("*"), ..] => store(toks),
            [Tok::Reg(width, dst), P("="), rest @ ..] => self.assign(*width, *dst, rest),
            [Tok::Reg(width, dst), P(op), rest @ ..] => {
                let op = AluOp::ALL.into_iter().find(|o| o.symbol().0 == *op);
                let op = op.ok_or("no arithmetic operator")?;
                Ok(Insn::Alu { width: *width, op, dst: *dst, src: operand(*width, rest)? })
            }
            _ => unknown(toks),
        }
    }

    /// What follows `goto`.
    fn target(&self, toks: &[Tok<'_>]) -> Result<Pc> {
        match *toks {
            [Id(name)] => self.label(name),
            [P("+"), Num(n)] => self.relative(n.into()),
            [P("-"), Num(n)] => self.relative(-i128::from(n)),
            _ => Err("expected a label or a distance such as +3".to_owned()),
        }
    }

    fn label(&self, name: &str) -> Result<Pc> {
        self.source.labels.get(name).copied().ok_or_else(|| format!("there is no label {name}"))
    }

    fn relative(&self, distance: i128) -> Result<Pc> {
        let target = i128::from(self.pc.0) + 1 + distance;
        u32::try_from(target).map(Pc).map_err(|_| format!("slot {target} is outside the program"))
    }

    /// A function by name, or by distance.
    fn func(&self, name: &str) -> Result<Pc> {
        match name.strip_prefix(['+', '-']) {
            Some(_) => {
                self.relative(name.parse::<i64>().map_err(|_| format!("{name} is no distance"))?.into())
            }
            None => self.label(name),
        }
    }

    fn map(&self, name: &str) -> Result<MapIdx> {
        let index = match name.strip_prefix('#') {
            Some(index) => index.parse().ok(),
            None => self.source.maps.iter().position(|m| m.name == name).and_then(|i| u16::try_from(i).ok()),
        };
        index.map(MapIdx).ok_or_else(|| format!("there is no map {name}"))
    }

    fn jump_if(&self, width: Width, dst: Reg, cond: &str, toks: &[Tok<'_>]) -> Result<Insn> {
        let cond = Cond::ALL.into_iter().find(|c| c.symbol().0 == cond).ok_or("no comparison")?;
        let goto = toks.iter().position(|t| *t == Id("goto")).ok_or("if without goto")?;
        let (src, to) = toks.split_at(goto);
        Ok(Insn::JumpIf { width, cond, dst, src: operand(width, src)?, target: self.target(&to[1..])? })
    }

    /// What follows `REG =`.
    fn assign(&self, width: Width, dst: Reg, toks: &[Tok<'_>]) -> Result<Insn> {
        match toks {
            [value @ .., Id("ll")] if width == Width::W64 => {
                Ok(Insn::LoadImm64 { dst, imm: self.wide(value)? })
            }
            [P("-"), Tok::Reg(w, src)] if (*w, *src) == (width, dst) => Ok(Insn::Neg { width, dst }),
            [P("("), Id(from), P(")"), Tok::Reg(w, src)] if *w == width => {
                let bits = match (*from, width) {
                    ("s8", _) => 8,
                    ("s16", _) => 16,
                    ("s32", Width::W64) => 32,
                    _ => return Err(format!("no sign extension from {from}")),
                };
                Ok(Insn::MovSx { width, bits, dst, src: *src })
            }
            [Id(name), Tok::Reg(Width::W64, src)] if width == Width::W64 && *src == dst => endian(name, dst),
            [P("*"), ..] => load(dst, toks),
            [Id(name), P("("), args @ .., P(")")] => fetch(width, dst, name, args),
            _ => Ok(Insn::Alu { width, op: AluOp::Mov, dst, src: operand(width, toks)? }),
        }
    }

    /// What stands before `ll`.
    fn wide(&self, toks: &[Tok<'_>]) -> Result<Imm64> {
        match toks {
            [Map(name)] => Ok(Imm64::Map(self.map(name)?)),
            [MapValue(name)] => Ok(Imm64::MapValue { map: self.map(name)?, offset: 0 }),
            [MapValue(name), P("+"), Num(n)] => {
                let offset =
                    u32::try_from(*n).map_err(|_| format!("offset {n} does not fit into 32 bits"))?;
                Ok(Imm64::MapValue { map: self.map(name)?, offset })
            }
            [Fn(name)] => Ok(Imm64::Func(self.func(name)?)),
            _ => {
                let n = signed(toks)?;
                let value = u64::try_from(n).or_else(|_| i64::try_from(n).map(|n| n as u64));
                value.map(Imm64::Value).map_err(|_| format!("{n} does not fit into 64 bits"))
            }
        }
    }
}

fn helper(tok: &Tok<'_>) -> Result<u32> {
    match tok {
        Num(n) => u32::try_from(*n).map_err(|_| format!("helper number {n} does not fit into 32 bits")),
        Id(name) => {
            let plain = name.strip_prefix("bpf_").unwrap_or(name);
            let known = Env::kernel_like_helpers();
            known
                .iter()
                .find(|h| h.name == plain)
                .map(|h| h.id)
                .ok_or_else(|| format!("there is no helper {name}"))
        }
        _ => Err("expected a helper's number or name, or fn and a function's name".to_owned()),
    }
}

fn signed(toks: &[Tok<'_>]) -> Result<i128> {
    match *toks {
        [Num(n)] => Ok(n.into()),
        [P("-"), Num(n)] => Ok(-i128::from(n)),
        [P("+"), Num(n)] => Ok(n.into()),
        _ => Err("expected a number".to_owned()),
    }
}

/// A 32-bit immediate. 64-bit operations extend its sign, so there `0xffffffff` would not mean what it says.
fn imm(width: Width, toks: &[Tok<'_>]) -> Result<i32> {
    let n = signed(toks)?;
    if let Ok(n) = i32::try_from(n) {
        return Ok(n);
    }
    match (width, u32::try_from(n)) {
        (Width::W32, Ok(n)) => Ok(n as i32),
        _ => Err(format!("{n} does not fit into a 32-bit immediate; use ll")),
    }
}

fn operand(width: Width, toks: &[Tok<'_>]) -> Result<Operand> {
    match toks {
        [Tok::Reg(w, reg)] if *w == width => Ok(Operand::Reg(*reg)),
        [Tok::Reg(..)] => Err("operands differ in width".to_owned()),
        _ => imm(width, toks).map(Operand::Imm),
    }
}

fn endian(name: &str, dst: Reg) -> Result<Insn> {
    for op in Endian::ALL {
        if let Some(bits) = name.strip_prefix(op.symbol()) {
            let bits = bits.parse().ok().filter(|b| matches!(b, 16 | 32 | 64));
            return Ok(Insn::Endian { op, bits: bits.ok_or_else(|| format!("no byte order {name}"))?, dst });
        }
    }
    Err(format!("no byte order {name}"))
}

/// `u32` and the like: size, and whether signed.
fn cell(name: &str) -> Result<(Size, bool)> {
    let size = match name.get(1..) {
        Some("8") => Size::B,
        Some("16") => Size::H,
        Some("32") => Size::W,
        Some("64") => Size::Dw,
        _ => return Err(format!("no type {name}")),
    };
    match name.as_bytes() {
        [b'u', ..] => Ok((size, false)),
        [b's', ..] => Ok((size, true)),
        _ => Err(format!("no type {name}")),
    }
}

/// `REG + N` or `REG - N`, or `REG` alone.
fn address(toks: &[Tok<'_>]) -> Result<(Reg, i16)> {
    let [Tok::Reg(Width::W64, base), rest @ ..] = toks else {
        return Err("expected an address such as (r1 + 8)".to_owned());
    };
    let n = match rest {
        [] => 0,
        [P("+"), n @ ..] => signed(n)?,
        n => signed(n)?,
    };
    Ok((*base, i16::try_from(n).map_err(|_| format!("offset {n} does not fit into 16 bits"))?))
}

/// A memory operand.
struct Cell {
    size: Size,
    sign: bool,
    base: Reg,
    off: i16,
}

/// `(TYPE *)(ADDRESS)` and what follows.
fn typed<'t, 'a>(toks: &'t [Tok<'a>]) -> Result<(Cell, &'t [Tok<'a>])> {
    let [P("("), Id(name), P("*"), P(")"), P("("), rest @ ..] = toks else {
        return Err("expected a memory operand such as (u32 *)(r1 + 8)".to_owned());
    };
    let close = rest.iter().position(|t| *t == P(")")).ok_or("( without )")?;
    let (size, sign) = cell(name)?;
    let (base, off) = address(&rest[..close])?;
    Ok((Cell { size, sign, base, off }, &rest[close + 1..]))
}

/// `*(TYPE *)(ADDRESS)` and what follows.
fn deref<'t, 'a>(toks: &'t [Tok<'a>]) -> Result<(Cell, &'t [Tok<'a>])> {
    match toks {
        [P("*"), rest @ ..] => typed(rest),
        _ => unknown(toks),
    }
}

fn load(dst: Reg, toks: &[Tok<'_>]) -> Result<Insn> {
    let (cell, rest) = deref(toks)?;
    if !rest.is_empty() || (cell.sign && cell.size == Size::Dw) {
        return unknown(toks);
    }
    Ok(Insn::Load { size: cell.size, sign: cell.sign, dst, base: cell.base, off: cell.off })
}

fn store(toks: &[Tok<'_>]) -> Result<Insn> {
    let (Cell { size, sign: false, base, off }, [P("="), value @ ..]) = deref(toks)? else {
        return unknown(toks);
    };
    let src = match value {
        [Tok::Reg(_, reg)] => Operand::Reg(*reg),
        _ => Operand::Imm(imm(if size == Size::Dw { Width::W64 } else { Width::W32 }, value)?),
    };
    Ok(Insn::Store { size, base, off, src })
}

fn atomic_width(cell: &Cell) -> Result<Width> {
    match (cell.size, cell.sign) {
        (Size::W, false) => Ok(Width::W32),
        (Size::Dw, false) => Ok(Width::W64),
        _ => Err("atomic operations work on u32 and u64 alone".to_owned()),
    }
}

/// What follows `lock`.
fn locked(toks: &[Tok<'_>]) -> Result<Insn> {
    let (cell, [P(op), Tok::Reg(_, src)]) = deref(toks)? else {
        return unknown(toks);
    };
    let op = AtomicOp::ALL.into_iter().find(|o| o.symbol().0 == *op).ok_or("no atomic operator")?;
    let width = atomic_width(&cell)?;
    Ok(Insn::Atomic { width, op, fetch: false, base: cell.base, off: cell.off, src: *src })
}

/// `atomic_fetch_add((u64 *)(r1 + 0), r2)` and its kin.
fn fetch(width: Width, dst: Reg, name: &str, args: &[Tok<'_>]) -> Result<Insn> {
    if let Some(name) = name.strip_prefix("atomic_fetch_") {
        let op = AtomicOp::ALL.into_iter().find(|o| o.symbol().1 == name).ok_or("no atomic operation")?;
        let (cell, [P(","), Tok::Reg(_, src)]) = typed(args)? else { return unknown(args) };
        if *src != dst {
            return Err("the result goes to the register of the operand".to_owned());
        }
        return Ok(Insn::Atomic {
            width: atomic_width(&cell)?,
            op,
            fetch: true,
            base: cell.base,
            off: cell.off,
            src: dst,
        });
    }
    let (op, want) = match name {
        "xchg_64" => (AtomicOp::Xchg, Width::W64),
        "xchg32_32" => (AtomicOp::Xchg, Width::W32),
        "cmpxchg_64" => (AtomicOp::Cmpxchg, Width::W64),
        "cmpxchg32_32" => (AtomicOp::Cmpxchg, Width::W32),
        _ => return Err(format!("no operation {name}")),
    };
    let comma = args.iter().position(|t| *t == P(",")).ok_or("expected a comma")?;
    let (base, off) = address(&args[..comma])?;
    let src = match (op, &args[comma + 1..]) {
        (AtomicOp::Cmpxchg, [Tok::Reg(_, Reg::R0), P(","), Tok::Reg(_, src)]) if dst == Reg::R0 => *src,
        (AtomicOp::Xchg, [Tok::Reg(_, src)]) if *src == dst => *src,
        _ => return Err(format!("{name} wants its operands as its result has them")),
    };
    if width != want {
        return Err("operands differ in width".to_owned());
    }
    Ok(Insn::Atomic { width, op, fetch: true, base, off, src })
}
