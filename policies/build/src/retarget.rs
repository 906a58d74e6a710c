//! [`retarget`]: bitcode that rustc made for the host becomes an eBPF object.
//!
//! The host's bitcode is close to portable: what ties it to the host are attributes, the data layout, and calls that
//! only a linker could resolve. The steps below undo the first two and report the third.

use crate::fallback::{MEM, UMULO, UMULO_INTRINSIC, UMULO_NAME};
use crate::llvm::{Function, Llvm, Module, Place};
use crate::symbol;
use anyhow::{Result, bail};
use std::path::Path;

/// The optimisation pipeline. `globaldce` drops what internalising left without users.
const PASSES: &str = "default<O2>,globaldce";
/// What folds the stand-in of [`UMULO`] into its callers.
const UMULO_PASSES: &str = "always-inline,function(sroa,early-cse,simplifycfg),globaldce";
/// Attributes that speak of the host's processor or of its unwinder.
const HOST_STRINGS: [&str; 5] = ["target-cpu", "target-features", "tune-cpu", "probe-stack", "frame-pointer"];
const HOST_ENUMS: [&str; 2] = ["uwtable", "nonlazybind"];
/// BPF passes this many arguments in registers, and none on the stack.
const MAX_ARGS: u32 = 5;

/// What came out.
pub(crate) struct Output {
    /// The object.
    pub(crate) object: Vec<u8>,
    /// Its entry points.
    pub(crate) entries: Vec<String>,
    /// The optimised module in LLVM's text form, if it was asked for.
    pub(crate) text: Option<String>,
}

/// How to make it.
pub(crate) struct Options<'a> {
    /// Is this source file, a path as recorded, the author's? Instructions are attributed to their lines, not to those of
    /// the SDK or of `core` that were inlined there.
    pub(crate) own: &'a dyn Fn(&Path) -> bool,
    /// Also give the optimised module in LLVM's text form.
    pub(crate) text: bool,
}

/// Makes an object of `bitcode`.
///
/// # Errors
/// There is no entry point, or something cannot be expressed in eBPF: every such place, a line each.
pub(crate) fn retarget(llvm: &Llvm, bitcode: &[u8], options: &Options<'_>) -> Result<Output> {
    let mut module = llvm.parse_bitcode(bitcode)?;
    // It keeps a section for gdb alive, and would keep whatever else it names.
    for name in [c"llvm.used", c"llvm.compiler.used", c"__rustc_debug_gdb_scripts_section__"] {
        module.delete_unused_global(name);
    }
    let entries = adopt_functions(&module);
    if entries.is_empty() {
        bail!("no entry point: a policy needs a `tuner!` function, or one with a `link_section`");
    }
    adopt_globals(&module);
    module.run_passes(PASSES)?;
    expand_umulo(&mut module)?;
    link_called_fallbacks(&mut module)?;
    finish_functions(&module, options.own);
    let undefined = undefined_calls(&module);
    if !undefined.is_empty() {
        bail!("{}", undefined.join("\n"));
    }
    module.verify()?;
    let text = options.text.then(|| module.to_text());
    let object = generate(llvm, &mut module)?;
    Ok(Output { object, entries, text })
}

/// Strips the host from every function, hides all but the entry points, and returns their names.
fn adopt_functions(module: &Module<'_>) -> Vec<String> {
    let mut entries = Vec::new();
    for function in module.functions() {
        HOST_STRINGS.iter().for_each(|name| function.remove_string_attribute(name));
        HOST_ENUMS.iter().for_each(|name| function.remove_attribute(Place::Function, name));
        if function.is_declaration() {
            continue;
        }
        drop_sret(&function);
        if function.has_section() {
            entries.push(function.name());
            continue;
        }
        if function.returns_aggregate() || function.params() > MAX_ARGS {
            force_inline(&function);
        }
        function.make_internal();
    }
    entries
}

/// On BPF a pointer to the place for a result is a plain first argument.
fn drop_sret(function: &Function<'_>) {
    for place in [Place::Param(1), Place::Param(2)] {
        function.remove_attribute(place, "sret");
        for call in function.users().into_iter().flatten() {
            call.remove_call_attribute(place, "sret");
        }
    }
}

/// BPF returns one register and takes five: what needs more can only be inlined.
fn force_inline(function: &Function<'_>) {
    for name in ["noinline", "optnone"] {
        function.remove_attribute(Place::Function, name);
    }
    for call in function.users().into_iter().flatten() {
        call.remove_call_attribute(Place::Function, "noinline");
    }
    function.add_attribute("alwaysinline");
}

/// Maps and the license stay symbols, so that relocations name the map; everything else is this object's own.
fn adopt_globals(module: &Module<'_>) {
    for global in module.globals().into_iter().filter(|g| !g.is_declaration()) {
        if global.has_section() {
            global.make_external();
        } else {
            global.make_internal();
        }
    }
}

/// Replaces `u64` multiplication with overflow, after the last pass that would recognise and restore it.
fn expand_umulo(module: &mut Module<'_>) -> Result<()> {
    if !module.function(UMULO_INTRINSIC).is_some_and(|f| f.is_used()) {
        return Ok(());
    }
    module.link_ir(UMULO)?;
    if let Some(stand_in) = module.function(UMULO_NAME) {
        stand_in.make_internal();
    }
    module.replace_function(UMULO_INTRINSIC, UMULO_NAME)?;
    module.run_passes(UMULO_PASSES)
}

/// Defines the memory functions that are called by name (`core` calls `memcmp`, for one).
fn link_called_fallbacks(module: &mut Module<'_>) -> Result<()> {
    for fallback in &MEM {
        if module.function(fallback.name).is_some_and(|f| f.is_declaration() && f.is_used()) {
            module.link_ir(fallback.ir)?;
        }
    }
    Ok(())
}

/// Last touches on what the passes left.
fn finish_functions(module: &Module<'_>, own: &dyn Fn(&Path) -> bool) {
    for function in module.functions().into_iter().filter(|f| !f.is_declaration()) {
        // Inlined parts of `core` name an unwinder; with panic=abort there is nothing to unwind.
        function.remove_personality();
        for inst in function.instructions() {
            // LLVM 22 gives back the operand instead of the old value for a relaxed fetch whose result is used
            // (llvm/llvm-project#210280). With a stronger ordering it is right.
            inst.raise_relaxed_fetch();
            inst.lower_relaxed_access();
            inst.relocate(own);
        }
    }
}

/// A line for each use of a function that no object will define.
fn undefined_calls(module: &Module<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for function in module.functions().into_iter().filter(|f| f.is_declaration()) {
        let name = function.name();
        if name.starts_with("llvm.") {
            continue;
        }
        for user in function.users() {
            let place = user.map_or_else(|| "a table of functions".to_owned(), |inst| inst.place());
            lines.push(symbol::complaint(&name, &place));
        }
    }
    lines.dedup();
    lines
}

/// Generates code. Instruction selection may still call memory functions: a first run tells which, and these are
/// then defined. (LLVM reports such a call even where the function is defined, so those reports are expected.)
fn generate(llvm: &Llvm, module: &mut Module<'_>) -> Result<Vec<u8>> {
    let is_about = |error: &str, name: &str| error.contains(&format!("built-in function '{name}'"));
    let first = module.emit();
    let reported = llvm.take_errors();
    if reported.is_empty() {
        return first;
    }
    let called: Vec<_> = MEM
        .iter()
        .map(|fallback| (fallback, fallback.name.to_string_lossy()))
        .filter(|(_, name)| reported.iter().any(|e| is_about(e, name)))
        .collect();
    for (fallback, _) in &called {
        if module.function(fallback.name).is_none_or(|f| f.is_declaration()) {
            module.link_ir(fallback.ir)?;
        }
    }
    let object = module.emit();
    let mut errors = llvm.take_errors();
    errors.retain(|e| !called.iter().any(|(_, name)| is_about(e, name)));
    if !errors.is_empty() {
        let errors: Vec<_> = errors.into_iter().map(symbol::explain).collect();
        bail!("{}", errors.join("\n"));
    }
    object
}
