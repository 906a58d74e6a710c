//! [`Function`], [`Global`] and [`Inst`]: handles into a module, which they borrow.

use super::api::*;
use super::{Llvm, Module};
use std::ffi::{c_char, c_uint};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// Collects a linked list of LLVM.
///
/// # Safety
/// `first` is null or an element of a list that `next` walks, and the list does not change meanwhile.
pub(super) unsafe fn chain(first: Ref, next: unsafe extern "C" fn(Ref) -> Ref) -> Vec<Ref> {
    std::iter::successors((!first.is_null()).then_some(first), |&raw| {
        // SAFETY: this function's contract.
        let raw = unsafe { next(raw) };
        (!raw.is_null()).then_some(raw)
    })
    .collect()
}

/// A value of a module: the part that functions, globals and instructions have in common.
#[derive(Clone, Copy)]
pub(super) struct Value<'m> {
    pub(super) llvm: &'m Llvm,
    pub(super) raw: Ref,
    pub(super) module: PhantomData<&'m Module<'m>>,
}

impl<'m> Value<'m> {
    fn api(self) -> &'m Api {
        &self.llvm.api
    }

    fn name(self) -> String {
        let mut len = 0;
        // SAFETY: the value is alive as its module is borrowed; the name comes with its length.
        unsafe { lossy((self.api().LLVMGetValueName2)(self.raw, &mut len), len) }
    }

    fn has_section(self) -> bool {
        // SAFETY: functions and globals, which alone call this, have a section string or null.
        unsafe {
            let section = (self.api().LLVMGetSection)(self.raw);
            !section.is_null() && *section != 0
        }
    }

    fn is_declaration(self) -> bool {
        // SAFETY: the value is a living function or global.
        unsafe { (self.api().LLVMIsDeclaration)(self.raw) != 0 }
    }

    fn set_linkage(self, linkage: c_uint) {
        // SAFETY: as above; 0 is default visibility, the only one that internal symbols may have.
        unsafe {
            (self.api().LLVMSetLinkage)(self.raw, linkage);
            (self.api().LLVMSetVisibility)(self.raw, 0);
        }
    }

    /// The instructions that use this value; `None` for a user that is no instruction.
    fn users(self) -> Vec<Option<Inst<'m>>> {
        let api = self.api();
        // SAFETY: walks the uses of a living value, without changing them; each user is alive too.
        unsafe {
            let uses = chain((api.LLVMGetFirstUse)(self.raw), api.LLVMGetNextUse);
            let users = uses.into_iter().map(|u| (api.LLVMGetUser)(u));
            users
                .map(|raw| (!(api.LLVMIsAInstruction)(raw).is_null()).then(|| Inst(self.sibling(raw))))
                .collect()
        }
    }

    fn sibling(self, raw: Ref) -> Value<'m> {
        Value { raw, ..self }
    }
}

/// A global variable.
pub(crate) struct Global<'m>(pub(super) Value<'m>);

impl Global<'_> {
    /// Is it placed in a section by name (a map, the license)?
    pub(crate) fn has_section(&self) -> bool {
        self.0.has_section()
    }
    /// Is it declared only?
    pub(crate) fn is_declaration(&self) -> bool {
        self.0.is_declaration()
    }
    /// Makes it visible to this object alone.
    pub(crate) fn make_internal(&self) {
        self.0.set_linkage(LINKAGE_INTERNAL);
    }
    /// Keeps it as a symbol of its own, so that relocations name it.
    pub(crate) fn make_external(&self) {
        self.0.set_linkage(LINKAGE_EXTERNAL);
        // SAFETY: a living global; 0 says that its address matters.
        unsafe { (self.0.api().LLVMSetUnnamedAddress)(self.0.raw, 0) }
    }
}

/// Where an attribute stands.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// On the function.
    Function,
    /// On parameter `n`, from 1.
    Param(u32),
}

impl Place {
    fn index(self) -> c_uint {
        match self {
            Place::Function => ATTRIBUTE_FUNCTION,
            Place::Param(n) => n,
        }
    }
}

/// A function.
pub(crate) struct Function<'m>(pub(super) Value<'m>);

impl<'m> Function<'m> {
    /// Its symbol.
    pub(crate) fn name(&self) -> String {
        self.0.name()
    }
    /// Is it placed in a section by name (an entry point)?
    pub(crate) fn has_section(&self) -> bool {
        self.0.has_section()
    }
    /// Is it declared only?
    pub(crate) fn is_declaration(&self) -> bool {
        self.0.is_declaration()
    }
    /// Makes it visible to this object alone.
    pub(crate) fn make_internal(&self) {
        self.0.set_linkage(LINKAGE_INTERNAL);
    }
    /// Is it used at all?
    pub(crate) fn is_used(&self) -> bool {
        // SAFETY: a living function.
        unsafe { !(self.0.api().LLVMGetFirstUse)(self.0.raw).is_null() }
    }
    /// Number of parameters.
    pub(crate) fn params(&self) -> u32 {
        // SAFETY: a living function.
        unsafe { (self.0.api().LLVMCountParams)(self.0.raw) }
    }
    /// Does it return a struct or an array, that is, more than one register?
    pub(crate) fn returns_aggregate(&self) -> bool {
        let api = self.0.api();
        // SAFETY: a living function has a function type, and that a return type.
        let kind = unsafe {
            let ty = (api.LLVMGlobalGetValueType)(self.0.raw);
            (api.LLVMGetTypeKind)((api.LLVMGetReturnType)(ty))
        };
        kind == TYPE_STRUCT || kind == TYPE_ARRAY
    }
    /// Removes an attribute that is a string.
    pub(crate) fn remove_string_attribute(&self, name: &str) {
        // SAFETY: a living function; the name comes with its length; removing what is not there does nothing.
        unsafe {
            let remove = self.0.api().LLVMRemoveStringAttributeAtIndex;
            remove(self.0.raw, ATTRIBUTE_FUNCTION, name.as_ptr().cast(), name.len() as c_uint);
        }
    }
    /// Removes an attribute. A parameter that does not exist is ignored.
    pub(crate) fn remove_attribute(&self, place: Place, name: &str) {
        // SAFETY: as above.
        unsafe {
            let kind = self.0.llvm.attribute(name);
            (self.0.api().LLVMRemoveEnumAttributeAtIndex)(self.0.raw, place.index(), kind);
        }
    }
    /// Adds an attribute without a value to the function.
    pub(crate) fn add_attribute(&self, name: &str) {
        let (api, kind) = (self.0.api(), self.0.llvm.attribute(name));
        // SAFETY: a living function; the attribute is made in its context and owned by that.
        unsafe {
            let attribute = (api.LLVMCreateEnumAttribute)(self.0.llvm.context, kind, 0);
            (api.LLVMAddAttributeAtIndex)(self.0.raw, ATTRIBUTE_FUNCTION, attribute);
        }
    }
    /// Removes the reference to the unwinder's routine, if there is one.
    pub(crate) fn remove_personality(&self) {
        // SAFETY: a living function; a null personality means none.
        unsafe {
            if (self.0.api().LLVMHasPersonalityFn)(self.0.raw) != 0 {
                (self.0.api().LLVMSetPersonalityFn)(self.0.raw, null_mut());
            }
        }
    }
    /// What uses it; `None` for a user that is no instruction (a table, say).
    pub(crate) fn users(&self) -> Vec<Option<Inst<'m>>> {
        self.0.users()
    }
    /// All its instructions.
    pub(crate) fn instructions(&self) -> Vec<Inst<'m>> {
        let (api, mut all) = (self.0.api(), Vec::new());
        // SAFETY: walks blocks and instructions of a living function without changing them.
        unsafe {
            for block in chain((api.LLVMGetFirstBasicBlock)(self.0.raw), api.LLVMGetNextBasicBlock) {
                all.extend(chain((api.LLVMGetFirstInstruction)(block), api.LLVMGetNextInstruction));
            }
        }
        all.into_iter().map(|raw| Inst(self.0.sibling(raw))).collect()
    }
}

/// An instruction.
pub(crate) struct Inst<'m>(Value<'m>);

impl Inst<'_> {
    /// Removes an attribute from a call; other instructions have none.
    pub(crate) fn remove_call_attribute(&self, place: Place, name: &str) {
        let api = self.0.api();
        // SAFETY: a living instruction, which is a call.
        unsafe {
            if !(api.LLVMIsACallInst)(self.0.raw).is_null() {
                let kind = self.0.llvm.attribute(name);
                (api.LLVMRemoveCallSiteEnumAttribute)(self.0.raw, place.index(), kind);
            }
        }
    }

    /// Raises a relaxed atomic read-modify-write whose result is used to acquire-release; true if it was one.
    pub(crate) fn raise_relaxed_fetch(&self) -> bool {
        let api = self.0.api();
        // SAFETY: a living instruction; only atomic ones are asked for their ordering.
        unsafe {
            let relaxed = (api.LLVMGetInstructionOpcode)(self.0.raw) == OPCODE_ATOMIC_RMW
                && (api.LLVMGetOrdering)(self.0.raw) == ORDERING_MONOTONIC
                && !(api.LLVMGetFirstUse)(self.0.raw).is_null();
            if relaxed {
                (api.LLVMSetOrdering)(self.0.raw, ORDERING_ACQUIRE_RELEASE);
            }
            relaxed
        }
    }

    /// Makes a volatile load or store of a relaxed atomic one, for which LLVM's eBPF backend has no instruction: an aligned access of
    /// at most eight bytes is whole anyway, and volatile keeps it from being split or repeated. True if it was one.
    pub(crate) fn lower_relaxed_access(&self) -> bool {
        let api = self.0.api();
        // SAFETY: a living instruction; only loads and stores are asked for their ordering.
        unsafe {
            let relaxed = matches!((api.LLVMGetInstructionOpcode)(self.0.raw), OPCODE_LOAD | OPCODE_STORE)
                && (api.LLVMGetOrdering)(self.0.raw) == ORDERING_MONOTONIC;
            if relaxed {
                (api.LLVMSetOrdering)(self.0.raw, ORDERING_NOT_ATOMIC);
                (api.LLVMSetVolatile)(self.0.raw, 1);
            }
            relaxed
        }
    }

    /// Moves its source location out of inlined functions until `own` accepts the file; leaves it if none is.
    pub(crate) fn relocate(&self, own: &dyn Fn(&Path) -> bool) {
        let found = self.locations().into_iter().find(|l| l.file().is_some_and(|file| own(&file)));
        if let Some(Location(loc)) = found {
            // SAFETY: a living instruction; the location is one that it was inlined at, so it lies in the same function.
            unsafe { (self.0.api().LLVMInstructionSetDebugLoc)(self.0.raw, loc.raw) }
        }
    }

    /// Its source location, then the calls that it was inlined through, outermost last.
    fn locations(&self) -> Vec<Location<'_>> {
        let api = self.0.api();
        // SAFETY: a living instruction; the location, if there is one, and what it was inlined at live in the context.
        let raws =
            unsafe { chain((api.LLVMInstructionGetDebugLoc)(self.0.raw), api.LLVMDILocationGetInlinedAt) };
        raws.into_iter().map(|raw| Location(self.0.sibling(raw))).collect()
    }

    /// The function that holds it, and its source line: `policy (src/lib.rs:9)`.
    pub(crate) fn place(&self) -> String {
        let api = self.0.api();
        // SAFETY: a living instruction in a block of a function.
        let function = unsafe { (api.LLVMGetBasicBlockParent)((api.LLVMGetInstructionParent)(self.0.raw)) };
        let function = self.0.sibling(function).name();
        match self.locations().first().and_then(|l| Some((l.file()?, l.line()))) {
            Some((file, line)) => format!("{function} ({}:{line})", file.display()),
            None => function,
        }
    }
}

/// A source location.
struct Location<'m>(Value<'m>);

impl Location<'_> {
    fn line(&self) -> u32 {
        // SAFETY: a living location.
        unsafe { (self.0.api().LLVMDILocationGetLine)(self.0.raw) }
    }

    /// The file, as recorded: relative to the folder that the compiler ran in if it is not absolute.
    fn file(&self) -> Option<PathBuf> {
        let api = self.0.api();
        // SAFETY: a living location has a scope, and that a file or null.
        let file = unsafe { (api.LLVMDIScopeGetFile)((api.LLVMDILocationGetScope)(self.0.raw)) };
        let file = (!file.is_null()).then_some(file)?;
        // SAFETY: a living file; both functions give the start and set the length.
        unsafe {
            let text = |get: unsafe extern "C" fn(Ref, *mut c_uint) -> *const c_char| {
                let mut len = 0;
                let start = get(file, &mut len);
                if start.is_null() { PathBuf::new() } else { lossy(start, len as usize).into() }
            };
            Some(text(api.LLVMDIFileGetDirectory).join(text(api.LLVMDIFileGetFilename)))
        }
    }
}

/// Copies text of LLVM that comes with its length.
///
/// # Safety
/// `start` points to `len` bytes.
pub(super) unsafe fn lossy(start: *const c_char, len: usize) -> String {
    // SAFETY: this function's contract.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(start.cast(), len) }).into_owned()
}
