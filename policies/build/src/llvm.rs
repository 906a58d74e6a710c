//! [`Llvm`]: the LLVM inside rustc, opened at run time; [`Module`], [`Function`], [`Global`], [`Inst`]: what it
//! works on.
//!
//! **All `unsafe` of the build tool is here.** It runs on the author's machine, never in a training job. The wrapper
//! keeps these invariants:
//! - Every handle borrows what owns it: a [`Function`] its [`Module`], a module its [`Llvm`]. Whatever may free or
//!   replace IR (passes, linking, deletion) takes the module by `&mut`, when no handle can be alive.
//! - `Llvm` is neither `Send` nor `Sync`, as it holds raw pointers: LLVM contexts belong to one thread.
//! - Strings go in with a length or a terminating zero, and are copied on the way out.
//! - LLVM ends the process on fatal errors; the handler prints one line and exits with 1. Nothing is on disk
//!   then, as objects are made in memory.

use anyhow::{Context as _, Result, anyhow, bail};
use libloading::Library;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

/// Any of LLVM's opaque references.
type Ref = *mut c_void;
type DiagHandler = unsafe extern "C" fn(Ref, *mut c_void);
type FatalHandler = unsafe extern "C" fn(*const c_char);

macro_rules! api {
    ($($name:ident($($ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of LLVM's C API that this tool calls, with the types of `llvm-c/*.h` of LLVM 20 to 22.
        #[allow(non_snake_case)]
        struct Api { $($name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)* }

        impl Api {
            /// Looks every function up; the first that is missing is an error.
            fn load(lib: &Library) -> Result<Api> {
                Ok(Api { $($name: {
                    // SAFETY: the signatures are those of LLVM's C API, which is stable across the versions that
                    // rustc 1.85 and later ship; `Llvm` keeps the library open as long as the pointers are used.
                    let symbol = unsafe { lib.get(concat!(stringify!($name), "\0").as_bytes()) };
                    *symbol.map_err(|_| anyhow!("rustc's LLVM lacks {}", stringify!($name)))?
                },)* })
            }
        }
    };
}

api! {
    LLVMInitializeBPFTargetInfo();
    LLVMInitializeBPFTarget();
    LLVMInitializeBPFTargetMC();
    LLVMInitializeBPFAsmPrinter();
    LLVMParseCommandLineOptions(c_int, *const *const c_char, *const c_char);
    LLVMInstallFatalErrorHandler(FatalHandler);
    LLVMDisposeMessage(*mut c_char);
    LLVMGetErrorMessage(Ref) -> *mut c_char;
    LLVMDisposeErrorMessage(*mut c_char);
    LLVMContextCreate() -> Ref;
    LLVMContextDispose(Ref);
    LLVMContextSetDiagnosticHandler(Ref, DiagHandler, *mut c_void);
    LLVMGetDiagInfoDescription(Ref) -> *mut c_char;
    LLVMGetDiagInfoSeverity(Ref) -> c_uint;
    LLVMGetTargetFromTriple(*const c_char, *mut Ref, *mut *mut c_char) -> c_int;
    LLVMCreateTargetMachine(Ref, *const c_char, *const c_char, *const c_char, c_uint, c_uint, c_uint) -> Ref;
    LLVMDisposeTargetMachine(Ref);
    LLVMCreateTargetDataLayout(Ref) -> Ref;
    LLVMDisposeTargetData(Ref);
    LLVMCopyStringRepOfTargetData(Ref) -> *mut c_char;
    LLVMCreateMemoryBufferWithMemoryRangeCopy(*const c_char, usize, *const c_char) -> Ref;
    LLVMGetBufferStart(Ref) -> *const c_char;
    LLVMGetBufferSize(Ref) -> usize;
    LLVMDisposeMemoryBuffer(Ref);
    LLVMParseBitcodeInContext2(Ref, Ref, *mut Ref) -> c_int;
    LLVMParseIRInContext(Ref, Ref, *mut Ref, *mut *mut c_char) -> c_int;
    LLVMLinkModules2(Ref, Ref) -> c_int;
    LLVMCloneModule(Ref) -> Ref;
    LLVMDisposeModule(Ref);
    LLVMSetTarget(Ref, *const c_char);
    LLVMSetDataLayout(Ref, *const c_char);
    LLVMSetModuleInlineAsm2(Ref, *const c_char, usize);
    LLVMPrintModuleToString(Ref) -> *mut c_char;
    LLVMVerifyModule(Ref, c_uint, *mut *mut c_char) -> c_int;
    LLVMCreatePassBuilderOptions() -> Ref;
    LLVMDisposePassBuilderOptions(Ref);
    LLVMRunPasses(Ref, *const c_char, Ref, Ref) -> Ref;
    LLVMTargetMachineEmitToMemoryBuffer(Ref, Ref, c_uint, *mut *mut c_char, *mut Ref) -> c_int;
    LLVMGetFirstFunction(Ref) -> Ref;
    LLVMGetNextFunction(Ref) -> Ref;
    LLVMGetFirstGlobal(Ref) -> Ref;
    LLVMGetNextGlobal(Ref) -> Ref;
    LLVMGetNamedFunction(Ref, *const c_char) -> Ref;
    LLVMGetNamedGlobal(Ref, *const c_char) -> Ref;
    LLVMDeleteGlobal(Ref);
    LLVMGetValueName2(Ref, *mut usize) -> *const c_char;
    LLVMGetSection(Ref) -> *const c_char;
    LLVMIsDeclaration(Ref) -> c_int;
    LLVMSetLinkage(Ref, c_uint);
    LLVMSetVisibility(Ref, c_uint);
    LLVMSetUnnamedAddress(Ref, c_uint);
    LLVMGlobalGetValueType(Ref) -> Ref;
    LLVMGetReturnType(Ref) -> Ref;
    LLVMGetTypeKind(Ref) -> c_uint;
    LLVMCountParams(Ref) -> c_uint;
    LLVMHasPersonalityFn(Ref) -> c_int;
    LLVMSetPersonalityFn(Ref, Ref);
    LLVMGetEnumAttributeKindForName(*const c_char, usize) -> c_uint;
    LLVMCreateEnumAttribute(Ref, c_uint, u64) -> Ref;
    LLVMAddAttributeAtIndex(Ref, c_uint, Ref);
    LLVMRemoveEnumAttributeAtIndex(Ref, c_uint, c_uint);
    LLVMRemoveStringAttributeAtIndex(Ref, c_uint, *const c_char, c_uint);
    LLVMRemoveCallSiteEnumAttribute(Ref, c_uint, c_uint);
    LLVMReplaceAllUsesWith(Ref, Ref);
    LLVMGetFirstUse(Ref) -> Ref;
    LLVMGetNextUse(Ref) -> Ref;
    LLVMGetUser(Ref) -> Ref;
    LLVMIsAInstruction(Ref) -> Ref;
    LLVMIsACallInst(Ref) -> Ref;
    LLVMGetFirstBasicBlock(Ref) -> Ref;
    LLVMGetNextBasicBlock(Ref) -> Ref;
    LLVMGetFirstInstruction(Ref) -> Ref;
    LLVMGetNextInstruction(Ref) -> Ref;
    LLVMGetInstructionOpcode(Ref) -> c_uint;
    LLVMGetInstructionParent(Ref) -> Ref;
    LLVMGetBasicBlockParent(Ref) -> Ref;
    LLVMGetOrdering(Ref) -> c_uint;
    LLVMSetOrdering(Ref, c_uint);
    LLVMInstructionGetDebugLoc(Ref) -> Ref;
    LLVMInstructionSetDebugLoc(Ref, Ref);
    LLVMDILocationGetLine(Ref) -> c_uint;
    LLVMDILocationGetScope(Ref) -> Ref;
    LLVMDILocationGetInlinedAt(Ref) -> Ref;
    LLVMDIScopeGetFile(Ref) -> Ref;
    LLVMDIFileGetFilename(Ref, *mut c_uint) -> *const c_char;
    LLVMDIFileGetDirectory(Ref, *mut c_uint) -> *const c_char;
}

// Numbers of LLVM's C API enums (llvm-c/Core.h, llvm-c/TargetMachine.h).
const ATTRIBUTE_FUNCTION: c_uint = c_uint::MAX;
const LINKAGE_EXTERNAL: c_uint = 0;
const LINKAGE_INTERNAL: c_uint = 8;
const TYPE_STRUCT: c_uint = 10;
const TYPE_ARRAY: c_uint = 11;
const OPCODE_ATOMIC_RMW: c_uint = 57;
const ORDERING_MONOTONIC: c_uint = 2;
const ORDERING_ACQUIRE_RELEASE: c_uint = 6;
const SEVERITY_ERROR: c_uint = 0;
const SEVERITY_WARNING: c_uint = 1;
const OPT_AGGRESSIVE: c_uint = 3;
const RELOC_STATIC: c_uint = 1;
const CODE_MODEL_DEFAULT: c_uint = 0;
const FILE_OBJECT: c_uint = 1;
const VERIFY_RETURN_STATUS: c_uint = 2;

/// The eBPF triple that rustc's `bpfel-unknown-none` targets use.
const TRIPLE: &CStr = c"bpfel";

/// Where diagnostics of LLVM go, with what is needed to read them.
struct Diagnostics {
    describe: unsafe extern "C" fn(Ref) -> *mut c_char,
    severity: unsafe extern "C" fn(Ref) -> c_uint,
    dispose: unsafe extern "C" fn(*mut c_char),
    errors: RefCell<Vec<String>>,
}

/// Called by LLVM for each diagnostic.
///
/// # Safety
/// `sink` is the `Diagnostics` that was registered with this handler, and is alive.
unsafe extern "C" fn on_diagnostic(info: Ref, sink: *mut c_void) {
    // SAFETY: this function's contract; `Llvm` owns the box as long as the context lives.
    let sink = unsafe { &*sink.cast::<Diagnostics>() };
    // SAFETY: `info` is valid during this call; the description is a string that this side has to free.
    let (text, severity) = unsafe {
        let raw = (sink.describe)(info);
        let text = CStr::from_ptr(raw).to_string_lossy().trim().to_owned();
        (sink.dispose)(raw);
        (text, (sink.severity)(info))
    };
    match severity {
        SEVERITY_ERROR => sink.errors.borrow_mut().push(text),
        SEVERITY_WARNING => eprintln!("warning: {text}"),
        _ => {}
    }
}

/// Called by LLVM when it cannot go on.
///
/// # Safety
/// `reason` is a string.
unsafe extern "C" fn on_fatal(reason: *const c_char) {
    // SAFETY: this function's contract.
    let reason = unsafe { CStr::from_ptr(reason) }.to_string_lossy();
    eprintln!("error: LLVM: {}", reason.lines().next().unwrap_or_default());
    std::process::exit(1);
}

/// LLVM with its BPF back end, a context and a target machine.
pub(crate) struct Llvm {
    api: Api,
    context: Ref,
    machine: Ref,
    layout: CString,
    diagnostics: Box<Diagnostics>,
    /// Last, so that it is closed after everything that came from it.
    _lib: Library,
}

impl Drop for Llvm {
    fn drop(&mut self) {
        // SAFETY: both were made by this LLVM, are owned by `self`, and nothing borrows `self` any more.
        unsafe {
            (self.api.LLVMDisposeTargetMachine)(self.machine);
            (self.api.LLVMContextDispose)(self.context);
        }
    }
}

impl Llvm {
    /// Opens the library at `path` and makes a target machine for `cpu` (`v1` to `v4`).
    ///
    /// # Errors
    /// The library cannot be opened, or lacks a function or the BPF back end.
    pub(crate) fn open(path: &Path, cpu: &str) -> Result<Llvm> {
        // SAFETY: rustc's LLVM is a library whose initialisers only set up LLVM's own tables.
        let lib = unsafe { Library::new(path) }.with_context(|| format!("cannot open {}", path.display()))?;
        let api = Api::load(&lib).with_context(|| path.display().to_string())?;
        init_process(&api);
        let (machine, layout) = target_machine(&api, cpu)?;
        let diagnostics = Box::new(Diagnostics {
            describe: api.LLVMGetDiagInfoDescription,
            severity: api.LLVMGetDiagInfoSeverity,
            dispose: api.LLVMDisposeMessage,
            errors: RefCell::default(),
        });
        // SAFETY: the box outlives the context: `drop` disposes of the context before fields are dropped. The
        // handler only ever takes a shared reference to it.
        let context = unsafe {
            let context = (api.LLVMContextCreate)();
            let sink = (&raw const *diagnostics).cast_mut().cast();
            (api.LLVMContextSetDiagnosticHandler)(context, on_diagnostic, sink);
            context
        };
        Ok(Llvm { api, context, machine, layout, diagnostics, _lib: lib })
    }

    /// The errors that LLVM reported since the last call.
    pub(crate) fn take_errors(&self) -> Vec<String> {
        self.diagnostics.errors.take()
    }

    /// Reads a module from bitcode and retargets it to BPF: triple, data layout, no module-level assembly.
    ///
    /// # Errors
    /// Not bitcode, or of another LLVM version.
    pub(crate) fn parse_bitcode(&self, bytes: &[u8]) -> Result<Module<'_>> {
        let mut raw = null_mut();
        // SAFETY: the buffer copies `bytes`; the parser does not take it, so it is freed here.
        let failed = unsafe {
            let start = bytes.as_ptr().cast();
            let buffer =
                (self.api.LLVMCreateMemoryBufferWithMemoryRangeCopy)(start, bytes.len(), c"in".as_ptr());
            let failed = (self.api.LLVMParseBitcodeInContext2)(self.context, buffer, &mut raw);
            (self.api.LLVMDisposeMemoryBuffer)(buffer);
            failed
        };
        match NonNull::new(raw) {
            Some(raw) if failed == 0 => Ok(self.retarget(Module { llvm: self, raw })),
            _ => bail!("bitcode that rustc's LLVM cannot read: {}", self.take_errors().join("; ")),
        }
    }

    /// Reads a module from LLVM's text form.
    fn parse_ir(&self, text: &str) -> Result<Module<'_>> {
        let (mut raw, mut message) = (null_mut(), null_mut());
        // SAFETY: the buffer copies `text`; the parser takes it.
        let failed = unsafe {
            let start = text.as_ptr().cast();
            let buffer =
                (self.api.LLVMCreateMemoryBufferWithMemoryRangeCopy)(start, text.len(), c"ir".as_ptr());
            (self.api.LLVMParseIRInContext)(self.context, buffer, &mut raw, &mut message)
        };
        let message = self.take_message(message);
        match NonNull::new(raw) {
            Some(raw) if failed == 0 => Ok(self.retarget(Module { llvm: self, raw })),
            _ => bail!("built-in IR does not parse: {message}"),
        }
    }

    fn retarget<'l>(&'l self, module: Module<'l>) -> Module<'l> {
        // SAFETY: `module` is alive; the strings end in zero or come with their length, and are copied.
        unsafe {
            (self.api.LLVMSetTarget)(module.raw(), TRIPLE.as_ptr());
            (self.api.LLVMSetDataLayout)(module.raw(), self.layout.as_ptr());
            (self.api.LLVMSetModuleInlineAsm2)(module.raw(), c"".as_ptr(), 0);
        }
        module
    }

    /// Copies and frees a message that LLVM handed out; empty for null.
    fn take_message(&self, message: *mut c_char) -> String {
        take_message(&self.api, message)
    }

    /// Number of an attribute; 0 if LLVM does not know it.
    fn attribute(&self, name: &str) -> c_uint {
        // SAFETY: the name comes with its length.
        unsafe { (self.api.LLVMGetEnumAttributeKindForName)(name.as_ptr().cast(), name.len()) }
    }
}

/// Registers the BPF back end and this process's options and fatal-error handler.
fn init_process(api: &Api) {
    // Without it, calls on paths that LLVM holds for cold stay calls, and BPF functions take five arguments at most.
    let args = [c"ringfence-bpf-build".as_ptr(), c"--cold-callsite-rel-freq=0".as_ptr()];
    // SAFETY: initialisers may run in any order, any number of times; the options are zero-terminated strings that
    // live to the end of the call; the handler is a function of this program, which does not unload.
    unsafe {
        (api.LLVMInitializeBPFTargetInfo)();
        (api.LLVMInitializeBPFTarget)();
        (api.LLVMInitializeBPFTargetMC)();
        (api.LLVMInitializeBPFAsmPrinter)();
        (api.LLVMParseCommandLineOptions)(args.len() as c_int, args.as_ptr(), c"".as_ptr());
        (api.LLVMInstallFatalErrorHandler)(on_fatal);
    }
}

/// A target machine and its data layout. Relocations are static: under PIC, tables of pointers become relative
/// look-up tables, which BPF cannot relocate.
fn target_machine(api: &Api, cpu: &str) -> Result<(Ref, CString)> {
    let (mut target, mut message) = (null_mut(), null_mut());
    // SAFETY: out parameters are valid for writes; the triple ends in zero.
    let failed = unsafe { (api.LLVMGetTargetFromTriple)(TRIPLE.as_ptr(), &mut target, &mut message) };
    if failed != 0 {
        bail!("rustc's LLVM has no BPF back end: {}", take_message(api, message));
    }
    let cpu = CString::new(cpu)?;
    // SAFETY: the target is a static of LLVM; strings end in zero; the data layout is freed after it was copied.
    unsafe {
        let (model, features) = (CODE_MODEL_DEFAULT, c"".as_ptr());
        let machine = (api.LLVMCreateTargetMachine)(
            target,
            TRIPLE.as_ptr(),
            cpu.as_ptr(),
            features,
            OPT_AGGRESSIVE,
            RELOC_STATIC,
            model,
        );
        if machine.is_null() {
            bail!("rustc's LLVM does not make code for BPF {}", cpu.to_string_lossy());
        }
        let data = (api.LLVMCreateTargetDataLayout)(machine);
        let text = (api.LLVMCopyStringRepOfTargetData)(data);
        let layout = CStr::from_ptr(text).to_owned();
        (api.LLVMDisposeMessage)(text);
        (api.LLVMDisposeTargetData)(data);
        Ok((machine, layout))
    }
}

fn take_message(api: &Api, message: *mut c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: LLVM's messages end in zero and are freed with LLVMDisposeMessage, once.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().trim().to_owned();
        (api.LLVMDisposeMessage)(message);
        text
    }
}

/// A module for BPF.
pub(crate) struct Module<'l> {
    llvm: &'l Llvm,
    raw: NonNull<c_void>,
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: this module is alive and owned; handles into it borrow it and are gone.
        unsafe { (self.llvm.api.LLVMDisposeModule)(self.raw()) }
    }
}

impl<'l> Module<'l> {
    fn raw(&self) -> Ref {
        self.raw.as_ptr()
    }

    fn api(&self) -> &'l Api {
        &self.llvm.api
    }

    /// All functions, declared and defined.
    pub(crate) fn functions(&self) -> Vec<Function<'_>> {
        // SAFETY: walks the list of a living module; nothing is removed during the walk.
        let raws =
            unsafe { chain((self.api().LLVMGetFirstFunction)(self.raw()), self.api().LLVMGetNextFunction) };
        raws.into_iter().map(|raw| Function(self.value(raw))).collect()
    }

    /// All global variables, declared and defined.
    pub(crate) fn globals(&self) -> Vec<Global<'_>> {
        // SAFETY: as in `functions`.
        let raws =
            unsafe { chain((self.api().LLVMGetFirstGlobal)(self.raw()), self.api().LLVMGetNextGlobal) };
        raws.into_iter().map(|raw| Global(self.value(raw))).collect()
    }

    /// The function of that name.
    pub(crate) fn function(&self, name: &CStr) -> Option<Function<'_>> {
        // SAFETY: the module is alive and the name ends in zero.
        let raw = unsafe { (self.api().LLVMGetNamedFunction)(self.raw(), name.as_ptr()) };
        (!raw.is_null()).then(|| Function(self.value(raw)))
    }

    fn value(&self, raw: Ref) -> Value<'_> {
        Value { llvm: self.llvm, raw, module: PhantomData }
    }

    /// Deletes the global of that name if nothing uses it.
    pub(crate) fn delete_unused_global(&mut self, name: &CStr) {
        // SAFETY: the module is alive; a global without uses can be deleted, and no handle to it exists, as handles
        // borrow the module.
        unsafe {
            let raw = (self.api().LLVMGetNamedGlobal)(self.raw(), name.as_ptr());
            if !raw.is_null() && (self.api().LLVMGetFirstUse)(raw).is_null() {
                (self.api().LLVMDeleteGlobal)(raw);
            }
        }
    }

    /// Runs a pipeline of the new pass manager.
    ///
    /// # Errors
    /// The pipeline does not parse.
    pub(crate) fn run_passes(&mut self, pipeline: &str) -> Result<()> {
        let api = self.api();
        let pipeline = CString::new(pipeline)?;
        // SAFETY: module and machine are alive; no handle into the module exists (`&mut self`); the options are freed
        // once, and so is the error.
        unsafe {
            let options = (api.LLVMCreatePassBuilderOptions)();
            let error = (api.LLVMRunPasses)(self.raw(), pipeline.as_ptr(), self.llvm.machine, options);
            (api.LLVMDisposePassBuilderOptions)(options);
            if error.is_null() {
                return Ok(());
            }
            let message = (api.LLVMGetErrorMessage)(error);
            let text = CStr::from_ptr(message).to_string_lossy().into_owned();
            (api.LLVMDisposeErrorMessage)(message);
            bail!("LLVM's passes: {text}")
        }
    }

    /// Links definitions in LLVM's text form into this module.
    ///
    /// # Errors
    /// They do not parse, or clash.
    pub(crate) fn link_ir(&mut self, text: &str) -> Result<()> {
        let other = self.llvm.parse_ir(text)?;
        let raw = other.raw();
        std::mem::forget(other);
        // SAFETY: both modules are alive and of one context; linking consumes `other`, which was forgotten.
        let failed = unsafe { (self.api().LLVMLinkModules2)(self.raw(), raw) };
        if failed != 0 {
            bail!("cannot link built-in IR: {}", self.llvm.take_errors().join("; "));
        }
        Ok(())
    }

    /// Lets every use of function `from` use `to` instead. Both have the same type.
    ///
    /// # Errors
    /// One of them does not exist.
    pub(crate) fn replace_function(&mut self, from: &CStr, to: &CStr) -> Result<()> {
        let find = |name: &CStr| {
            self.function(name)
                .map(|f| f.0.raw)
                .ok_or_else(|| anyhow!("no function {}", name.to_string_lossy()))
        };
        let (from, to) = (find(from)?, find(to)?);
        // SAFETY: both are functions of this living module; with opaque pointers every function has the same type.
        unsafe { (self.api().LLVMReplaceAllUsesWith)(from, to) }
        Ok(())
    }

    /// Checks the module's consistency.
    ///
    /// # Errors
    /// LLVM's complaint.
    pub(crate) fn verify(&self) -> Result<()> {
        let mut message = null_mut();
        // SAFETY: the module is alive; the out parameter is valid for writes.
        let failed = unsafe { (self.api().LLVMVerifyModule)(self.raw(), VERIFY_RETURN_STATUS, &mut message) };
        let message = self.llvm.take_message(message);
        if failed != 0 {
            bail!("inconsistent IR: {message}");
        }
        Ok(())
    }

    /// Generates code for a copy, so that the module stays as it is. What LLVM reports is in `take_errors`.
    ///
    /// # Errors
    /// No object came out.
    pub(crate) fn emit(&self) -> Result<Vec<u8>> {
        // SAFETY: the module is alive; the copy is owned from here on.
        let copy = unsafe { (self.api().LLVMCloneModule)(self.raw()) };
        let Some(raw) = NonNull::new(copy) else { bail!("LLVM cannot copy the module") };
        let copy = Module { llvm: self.llvm, raw };
        let (mut message, mut buffer) = (null_mut(), null_mut());
        // SAFETY: machine and copy are alive; out parameters are valid for writes.
        let failed = unsafe {
            let emit = self.api().LLVMTargetMachineEmitToMemoryBuffer;
            emit(self.llvm.machine, copy.raw(), FILE_OBJECT, &mut message, &mut buffer)
        };
        let message = self.llvm.take_message(message);
        if failed != 0 || buffer.is_null() {
            bail!("code generation: {message}");
        }
        // SAFETY: the buffer is alive until it is disposed of, once, after its bytes were copied.
        let object = unsafe {
            let start = (self.api().LLVMGetBufferStart)(buffer).cast();
            let bytes = std::slice::from_raw_parts(start, (self.api().LLVMGetBufferSize)(buffer)).to_vec();
            (self.api().LLVMDisposeMemoryBuffer)(buffer);
            bytes
        };
        Ok(object)
    }

    /// The module in LLVM's text form.
    pub(crate) fn to_text(&self) -> String {
        // SAFETY: the module is alive; the text is a message that this side frees.
        self.llvm.take_message(unsafe { (self.api().LLVMPrintModuleToString)(self.raw()) })
    }
}

/// Collects a linked list of LLVM.
///
/// # Safety
/// `first` is null or an element of a list that `next` walks, and the list does not change meanwhile.
unsafe fn chain(first: Ref, next: unsafe extern "C" fn(Ref) -> Ref) -> Vec<Ref> {
    std::iter::successors((!first.is_null()).then_some(first), |&raw| {
        // SAFETY: this function's contract.
        let raw = unsafe { next(raw) };
        (!raw.is_null()).then_some(raw)
    })
    .collect()
}

/// A value of a module: the part that functions, globals and instructions have in common.
#[derive(Clone, Copy)]
struct Value<'m> {
    llvm: &'m Llvm,
    raw: Ref,
    module: PhantomData<&'m Module<'m>>,
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
pub(crate) struct Global<'m>(Value<'m>);

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
pub(crate) struct Function<'m>(Value<'m>);

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
unsafe fn lossy(start: *const c_char, len: usize) -> String {
    // SAFETY: this function's contract.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(start.cast(), len) }).into_owned()
}
