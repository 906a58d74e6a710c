//! [`Env`]: what a program is verified against: the context's layout, the helpers, the limits.
//! The translator knows hooks only through this; the host defines one per hook.

use super::helpers;
use crate::limits;

/// May a policy write a context field?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Input.
    Read,
    /// In and out.
    ReadWrite,
}

/// Is a value equal on all ranks of a communicator?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankLabel {
    /// Equal on all ranks.
    Uniform,
    /// May differ between ranks.
    RankLocal,
}

/// A field of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CtxField {
    /// Name, as in the C header.
    pub name: &'static str,
    /// Byte offset.
    pub offset: u32,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: u32,
    /// Elements: 1 unless the field is an array.
    pub count: u32,
    /// Read, or read and write.
    pub rights: Rights,
    /// Equal on all ranks?
    pub label: RankLabel,
}

impl CtxField {
    /// Bytes of the whole field.
    pub fn bytes(&self) -> u32 {
        self.width * self.count
    }
}

/// Layout of the memory that r1 points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CtxLayout {
    /// Named fields, ordered by offset, without overlap. Bytes between them are padding, not accessible.
    /// A read must lie inside one element and be naturally aligned (a narrower read is fine, as in Linux's
    /// `bpf_ctx_narrow_access_ok`); a write must cover one element exactly.
    Fields {
        /// Bytes of the whole context.
        size: u32,
        /// The fields.
        fields: Vec<CtxField>,
    },
    /// A plain byte buffer, readable and writable at any width and alignment; r2 holds its size.
    Buffer {
        /// Bytes.
        size: u32,
    },
}

impl CtxLayout {
    /// Bytes of the whole context.
    pub fn size(&self) -> u32 {
        match self {
            CtxLayout::Fields { size, .. } | CtxLayout::Buffer { size } => *size,
        }
    }
    /// The fields; empty for a buffer.
    pub fn fields(&self) -> &[CtxField] {
        match self {
            CtxLayout::Fields { fields, .. } => fields,
            CtxLayout::Buffer { .. } => &[],
        }
    }
}

/// What a helper wants in an argument register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// Anything that has been set.
    Any,
    /// Any number; a pointer is refused.
    Scalar,
    /// The context pointer as the program got it.
    Ctx,
    /// A map object, statically known (`LoadImm64` of a map).
    MapObject,
    /// Pointer to `key_size` initialised bytes for the map of the `MapObject` argument.
    MapKey,
    /// Pointer to `value_size` initialised bytes for that map.
    MapValue,
    /// Pointer to initialised bytes that the helper reads; the next argument, a `Size` or `SizeOrZero`, says how many.
    Mem,
    /// As `Mem`, or null with size 0.
    MemOrNull,
    /// Pointer to bytes that the helper writes, all of them: they need not be initialised if their number is one
    /// constant, and are afterwards.
    UninitMem,
    /// Bytes of the argument before: at least 1.
    Size,
    /// Bytes of the argument before: 0 is fine.
    SizeOrZero,
    /// A known constant: the bytes of a record to reserve.
    ConstSize,
    /// The start of a ring-buffer record, which the helper takes: every copy of the pointer is gone after the call.
    Record,
    /// Pointer to the `struct bpf_spin_lock` in a map's value.
    SpinLock,
    /// Address of a function of the program (`LoadImm64` of a function).
    Callback,
    /// What is handed to a callback: a pointer into a stack of the running calls, or null (Linux
    /// `ARG_PTR_TO_STACK_OR_NULL`).
    StackOrNull,
}

/// What a helper leaves in r0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetKind {
    /// A number.
    Scalar,
    /// How many bytes the helper wrote, at most the `Size` argument, or a negative error (Linux `do_refine_retval_range`).
    Length,
    /// Nothing: r0 is not set.
    Void,
    /// Pointer to a value of the `MapObject` argument, or null.
    MapValueOrNull,
    /// Pointer to a record of `ConstSize` bytes in the ring buffer of the `MapObject` argument, or null. A reference:
    /// it must be handed to a helper that takes a `Record`.
    RecordOrNull,
}

/// Signature of a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperSig {
    /// Number (`enum bpf_func_id`).
    pub id: u32,
    /// Name without the `bpf_` prefix.
    pub name: &'static str,
    /// Arguments in r1.. ; at most five.
    pub args: Vec<ArgKind>,
    /// Result.
    pub ret: RetKind,
    /// Is the result equal on all ranks?
    pub label: RankLabel,
}

/// What the verifier demands of r0 at `exit` of the entry function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnRule {
    /// Any number; a pointer is refused.
    Scalar,
    /// Anything initialised (`generic`).
    Any,
}

/// Environment of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Env {
    /// Hook: `tuner`, `uprobe`, `generic`, ...
    pub hook: &'static str,
    /// Memory behind r1.
    pub ctx: CtxLayout,
    /// Helpers on offer, ordered by id.
    pub helpers: Vec<HelperSig>,
    /// Rule for r0 at exit.
    pub ret: ReturnRule,
    /// Budget in visited instructions.
    pub insn_budget: u64,
    /// Most instructions that a run may execute. Loops with an invariant are not unrolled: what they cost at run time is
    /// not what they cost the verifier.
    pub run_budget: u64,
}

impl Env {
    /// The helper of that number.
    pub fn helper(&self, id: u32) -> Option<&HelperSig> {
        self.helpers.iter().find(|h| h.id == id)
    }

    /// The helpers that every hook of this host offers and its runtime has: map look-up, update and delete, clock, lines for
    /// the log, random numbers, the processor's number, tail calls, spin locks, ring buffers, `for_each_map_elem` and `loop`.
    pub fn base_helpers() -> Vec<HelperSig> {
        const OFFERED: [u32; 18] = [1, 2, 3, 5, 6, 7, 8, 12, 93, 94, 130, 131, 132, 133, 134, 164, 181, 195];
        let mut all = helpers::all();
        all.retain(|h| OFFERED.contains(&h.id));
        all
    }

    /// Every helper whose signature the verifier knows, for tests that verify and do not run: the base helpers, and the
    /// kernel's that are no more than their arguments.
    pub fn kernel_like_helpers() -> Vec<HelperSig> {
        helpers::all()
    }

    /// The `generic` hook: a byte buffer of `size` bytes in r1, its size in r2.
    pub fn generic(size: u32) -> Env {
        Env {
            hook: "generic",
            ctx: CtxLayout::Buffer { size },
            helpers: Env::base_helpers(),
            ret: ReturnRule::Any,
            insn_budget: limits::DEFAULT_INSN_BUDGET,
            run_budget: limits::DEFAULT_RUN_BUDGET,
        }
    }
}
