//! [`Fact`]: what the verifier proved about one instruction, over all paths that reach it. The translator
//! reads it; it may remove work inside the sandbox, never widen it.

use crate::isa::{MapIdx, Pc};

/// Region that an access touches, the same on all paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// The context.
    Ctx,
    /// The stack, of this frame or of a caller's.
    Stack,
    /// A value of that map, or a record of that ring buffer.
    Map(MapIdx),
    /// A key of which a callback got a copy: in the private memory.
    Key,
    /// Different regions on different paths: the pointer's tag decides at run time.
    Mixed,
}

/// A proved memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The region.
    pub region: Region,
    /// Byte offset of the first byte, where it is one constant on all paths: from the context's start, from
    /// the *current* frame's r10 (negative), or from the value's start. `None` otherwise, and for
    /// pointers into a caller's frame.
    pub offset: Option<i32>,
}

/// A proved call of a helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallFact {
    /// The map argument, where the helper has one and it is the same map on all paths.
    pub map: Option<MapIdx>,
    /// Where the key lies.
    pub key: Option<Access>,
    /// Where the value lies, for a helper with an `ArgKind::MapValue`. `None` is always sound: the host then
    /// fills the whole context before a call, as the value might lie there.
    pub value: Option<Access>,
    /// The function that the helper calls back, where it is the same on all paths.
    pub callback: Option<Pc>,
}

/// Which ways a conditional jump can go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// The jump can be taken.
    pub taken: bool,
    /// Execution can fall through.
    pub fallthrough: bool,
}

/// What holds at one reachable instruction. Unreachable instructions have no fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fact {
    /// For loads, stores and atomics.
    pub access: Option<Access>,
    /// For helper calls.
    pub call: Option<CallFact>,
    /// For conditional jumps.
    pub ways: Ways,
}
