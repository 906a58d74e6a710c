//! [`Api`]: the table of LLVM's C functions, and the numbers of its enums.

use anyhow::{Result, anyhow};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Any of LLVM's opaque references.
pub(super) type Ref = *mut c_void;
pub(super) type DiagHandler = unsafe extern "C" fn(Ref, *mut c_void);
pub(super) type FatalHandler = unsafe extern "C" fn(*const c_char);

macro_rules! api {
    ($($name:ident($($ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of LLVM's C API that this tool calls, with the types of `llvm-c/*.h` of LLVM 20 to 22.
        #[allow(non_snake_case)]
        pub(super) struct Api { $(pub(super) $name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)* }

        impl Api {
            /// Looks every function up; the first that is missing is an error.
            pub(super) fn load(lib: &Library) -> Result<Api> {
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
    LLVMSetVolatile(Ref, c_int);
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
pub(super) const ATTRIBUTE_FUNCTION: c_uint = c_uint::MAX;
pub(super) const LINKAGE_EXTERNAL: c_uint = 0;
pub(super) const LINKAGE_INTERNAL: c_uint = 8;
pub(super) const TYPE_STRUCT: c_uint = 10;
pub(super) const TYPE_ARRAY: c_uint = 11;
pub(super) const OPCODE_LOAD: c_uint = 27;
pub(super) const OPCODE_STORE: c_uint = 28;
pub(super) const OPCODE_ATOMIC_RMW: c_uint = 57;
pub(super) const ORDERING_NOT_ATOMIC: c_uint = 0;
pub(super) const ORDERING_MONOTONIC: c_uint = 2;
pub(super) const ORDERING_ACQUIRE_RELEASE: c_uint = 6;
pub(super) const SEVERITY_ERROR: c_uint = 0;
pub(super) const SEVERITY_WARNING: c_uint = 1;
pub(super) const OPT_AGGRESSIVE: c_uint = 3;
pub(super) const RELOC_STATIC: c_uint = 1;
pub(super) const CODE_MODEL_DEFAULT: c_uint = 0;
pub(super) const FILE_OBJECT: c_uint = 1;
pub(super) const VERIFY_RETURN_STATUS: c_uint = 2;
