//! [`Llvm`]: the LLVM inside rustc, opened at run time; [`Module`] and the handles of `value`: what it works on.
//!
//! **All `unsafe` of the build tool is here** and in this module's two parts. It runs on the author's machine, never
//! in a training job. The wrapper keeps these invariants:
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
use std::path::Path;
use std::ptr::{NonNull, null_mut};

mod api;
mod value;

use api::*;
pub(crate) use value::{Function, Global, Place};
use value::{Value, chain};

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
