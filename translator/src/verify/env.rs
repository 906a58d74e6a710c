//! [`Env`]: what a program is verified against: the context's layout, the helpers, the limits.
//! The translator knows hooks only through this; the host defines one per hook.

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
    /// Any number; a pointer is refused.
    Scalar,
    /// A map object, statically known (`LoadImm64` of a map).
    MapObject,
    /// Pointer to `key_size` initialised bytes for the map of the `MapObject` argument.
    MapKey,
    /// Pointer to `value_size` initialised bytes for that map.
    MapValue,
}

/// What a helper leaves in r0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetKind {
    /// A number.
    Scalar,
    /// Pointer to a value of the `MapObject` argument, or null.
    MapValueOrNull,
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

    /// The map helpers and the generic ones: 1 map_lookup_elem, 2 map_update_elem, 3 map_delete_elem,
    /// 5 ktime_get_ns, 7 get_prandom_u32, 8 get_smp_processor_id.
    pub fn base_helpers() -> Vec<HelperSig> {
        use ArgKind::*;
        let sig =
            |id, name, args: &[ArgKind], ret, label| HelperSig { id, name, args: args.to_vec(), ret, label };
        let (u, l) = (RankLabel::Uniform, RankLabel::RankLocal);
        vec![
            sig(1, "map_lookup_elem", &[MapObject, MapKey], RetKind::MapValueOrNull, u),
            sig(2, "map_update_elem", &[MapObject, MapKey, MapValue, Scalar], RetKind::Scalar, u),
            sig(3, "map_delete_elem", &[MapObject, MapKey], RetKind::Scalar, u),
            sig(5, "ktime_get_ns", &[], RetKind::Scalar, l),
            sig(7, "get_prandom_u32", &[], RetKind::Scalar, l),
            sig(8, "get_smp_processor_id", &[], RetKind::Scalar, l),
        ]
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
