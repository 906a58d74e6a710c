//! [`c`] and [`rust`]: the context of a hook as source text. One struct for the policy and for whoever asks it, with padding
//! spelt out and every place asserted by the compiler that reads it.

use crate::schema::{Field, FieldRights, Schema};
use ringfence_translator::verify::RankLabel;

/// A member of the struct.
enum Member<'a> {
    Field(&'a Field),
    /// Number and bytes of a gap.
    Pad(usize, u32),
}

/// Fields and gaps in order, the end included.
fn members(schema: &Schema) -> Vec<Member<'_>> {
    let (mut members, mut at, mut pads) = (Vec::new(), 0, 0);
    let mut gap = |members: &mut Vec<_>, from: u32, to: u32| {
        if to > from {
            members.push(Member::Pad(pads, to - from));
            pads += 1;
        }
    };
    for field in schema.fields() {
        gap(&mut members, at, field.offset);
        members.push(Member::Field(field));
        at = field.offset + field.bytes();
    }
    gap(&mut members, at, schema.size());
    members
}

/// The words of a hook's name: `ep/mode`, `tuner/chunk-size` as `ep mode`, `tuner chunk size`.
fn words(schema: &Schema) -> Vec<String> {
    schema.name().split(['/', '-', '_']).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// `EpModeContext`. NCCL's begin with `Nccl`: ringfence.h, which a policy includes, has them under names of its own.
fn struct_name(schema: &Schema) -> String {
    let capital = |w: &String| w[..1].to_ascii_uppercase() + &w[1..];
    let nccl = if Schema::builtin(schema.name()).is_some() { "Nccl" } else { "" };
    nccl.to_owned() + &words(schema).iter().map(capital).collect::<String>() + "Context"
}

/// `EP_MODE`.
fn constant_prefix(schema: &Schema) -> String {
    words(schema).join("_").to_ascii_uppercase()
}

/// What a comment says of a field: what it is, its unit, where ranks may differ, and what may be decided.
fn remark(field: &Field) -> String {
    let mut parts = Vec::new();
    if !field.about.is_empty() {
        parts.push(field.about.clone());
    }
    if !field.unit.is_empty() {
        parts.push(format!("[{}]", field.unit));
    }
    if field.rights == FieldRights::Decide {
        parts.push(match (field.min, field.max) {
            (None, None) => "Decided.".into(),
            (Some(min), None) => format!("Decided: at least {min}."),
            (min, Some(max)) => format!("Decided: {} to {max}.", min.unwrap_or(0)),
        });
    }
    if field.rank == RankLabel::RankLocal {
        parts.push("[rank-local]".into());
    }
    parts.join(" ")
}

/// Breaks a text at white space into lines of at most `width` bytes, where words allow.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn c_comment(text: &str, indent: &str) -> String {
    // No text of a schema may end the comment that it stands in.
    let text = text.replace("*/", "* /").replace("/*", "/ *");
    match wrap(&text, 88).as_slice() {
        [] => String::new(),
        [line] => format!("{indent}/* {line} */\n"),
        lines => {
            let body: String = lines.iter().map(|l| format!("{indent} * {l}\n")).collect();
            format!("{indent}/*\n{body}{indent} */\n")
        }
    }
}

/// The C header: for policies (`__bpf__`) inputs are `const volatile`, as in ringfence.h and for its reasons; for whoever
/// fills the context they are plain.
pub(super) fn c(schema: &Schema) -> String {
    let (name, prefix) = (struct_name(schema), constant_prefix(schema));
    let guard = format!("RINGFENCE_HOOK_{prefix}_H");
    let hook = schema.name();
    let mut text = format!(
        "/*\n * Hook {hook}: made by `ringfence schema header` from its schema; do not edit.\n */\n\
         #ifndef {guard}\n#define {guard}\n\n\
         #ifdef __bpf__\n/* A policy: SEC(\"{hook}\"), and `int f(struct {name} *ctx)`. */\n#include \"ringfence.h\"\n\
         #define RF_READ const volatile\n#define RF_DECIDE volatile\n\
         #else\n/* The library that asks. */\n#include <linux/types.h>\n#define RF_READ\n#define RF_DECIDE\n#endif\n\n"
    );
    text += &c_constants(schema, &prefix);
    text += &c_comment(schema.about(), "");
    text += &format!("struct {name} {{\n");
    for member in members(schema) {
        text += &match member {
            Member::Pad(n, bytes) => format!("\t__u8 _pad{n}[{bytes}]; /* not accessible */\n"),
            Member::Field(field) => c_comment(&remark(field), "\t") + &c_member(field),
        };
    }
    text += "} __attribute__((aligned(8)));\n\n";
    text += &c_asserts(schema, &name);
    text + "\n#undef RF_READ\n#undef RF_DECIDE\n#endif\n"
}

fn c_member(field: &Field) -> String {
    let right = match field.rights {
        FieldRights::Read => "RF_READ",
        FieldRights::Decide => "RF_DECIDE",
    };
    let count = if field.count == 1 { String::new() } else { format!("[{}]", field.count) };
    format!("\t{right} __u{} {}{count};\n", 8 * field.width, field.name)
}

/// The name of the hook, and names of numbers: `EP_MODE_MODE_LOW_LATENCY`.
fn c_constants(schema: &Schema, prefix: &str) -> String {
    let mut text = format!("#define {prefix}_HOOK \"{}\"\n", schema.name());
    for (field, name, number) in named_numbers(schema) {
        let suffix = if field.width == 8 { "ull" } else { "u" };
        text += &format!("#define {prefix}_{name} {number}{suffix}\n");
    }
    text + "\n"
}

/// Every named number, with its constant's name without the hook's: `MODE_LOW_LATENCY`, by value.
fn named_numbers(schema: &Schema) -> Vec<(&Field, String, u64)> {
    let mut all = Vec::new();
    for field in schema.fields() {
        let mut named: Vec<_> = field.values.iter().collect();
        named.sort_by_key(|(_, n)| **n);
        let constant = |value: &str| format!("{}_{value}", field.name).to_ascii_uppercase();
        all.extend(named.into_iter().map(|(value, n)| (field, constant(value), *n)));
    }
    all
}

fn c_asserts(schema: &Schema, name: &str) -> String {
    let mut text = String::from(
        "#ifdef __cplusplus\n#define RF_ASSERT(what) static_assert(what, \"the layout of the schema\")\n\
         #else\n#define RF_ASSERT(what) _Static_assert(what, \"the layout of the schema\")\n#endif\n",
    );
    text += &format!("RF_ASSERT(sizeof(struct {name}) == {});\n", schema.size());
    for field in schema.fields() {
        text +=
            &format!("RF_ASSERT(__builtin_offsetof(struct {name}, {}) == {});\n", field.name, field.offset);
    }
    text + "#undef RF_ASSERT\n"
}

/// The Rust module.
pub(super) fn rust(schema: &Schema) -> String {
    let (name, hook) = (struct_name(schema), schema.name());
    let mut text =
        format!("// Hook {hook}: made by `ringfence schema header --rust` from its schema; do not edit.\n\n");
    text += &format!(
        "/// Name of the hook, and of the section of its policies.\npub const HOOK: &str = {hook:?};\n"
    );
    for (field, constant, number) in named_numbers(schema) {
        text += &format!("/// A number of `{}`.\n", field.name);
        text += &format!("pub const {constant}: u{} = {number};\n", 8 * field.width);
    }
    text += "\n";
    text += &rust_doc(if schema.about().is_empty() { "The context." } else { schema.about() }, "");
    text += &format!("#[repr(C, align(8))]\n#[derive(Clone, Copy, Debug)]\npub struct {name} {{\n");
    for member in members(schema) {
        text += &match member {
            Member::Pad(n, bytes) => format!("    #[doc(hidden)]\n    pub _pad{n}: [u8; {bytes}],\n"),
            Member::Field(f) => {
                let remark = remark(f);
                let doc = rust_doc(if remark.is_empty() { "An input." } else { &remark }, "    ");
                format!("{doc}    pub {}: {},\n", f.name, rust_type(f))
            }
        };
    }
    text += "}\n\nconst _: () = {\n";
    text += &format!("    assert!(size_of::<{name}>() == {});\n", schema.size());
    for field in schema.fields() {
        text += &format!("    assert!(core::mem::offset_of!({name}, {}) == {});\n", field.name, field.offset);
    }
    text + "};\n"
}

fn rust_type(field: &Field) -> String {
    let bits = 8 * field.width;
    if field.count == 1 { format!("u{bits}") } else { format!("[u{bits}; {}]", field.count) }
}

fn rust_doc(text: &str, indent: &str) -> String {
    // Square brackets would be links.
    let text = text.replace('[', "\\[").replace(']', "\\]");
    wrap(&text, 90).iter().map(|line| format!("{indent}/// {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    const ODD: &str = r#"
name = "odd-1/hook_x"
about = "Gaps everywhere, and /* a comment */ that must not end ours."
size = 64
[[field]]
name = "a"
offset = 1
width = 1
rights = "read"
rank = "local"
about = "*/ int main(void) { /* [not a link]"
[[field]]
name = "b"
offset = 16
width = 8
count = 3
rights = "decide"
rank = "uniform"
min = 1
max = 9
default = 2
values = { big = 0x7fffffffffffffff }
[[field]]
name = "c"
offset = 42
width = 2
rights = "read"
rank = "uniform"
"#;

    fn odd() -> Schema {
        Schema::parse(ODD, "odd.toml").unwrap()
    }

    /// Compiles a source as `compiler` does; what it says goes into the panic.
    fn compiles(command: &mut Command, source: &str) {
        use std::io::Write;
        let stdio = std::process::Stdio::piped;
        let mut child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{source}", String::from_utf8_lossy(&output.stderr));
    }

    fn clang(extra: &[&str]) -> Command {
        let compiler = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/include");
        let mut command = Command::new(compiler);
        command
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
            .arg(include)
            .args(extra)
            .arg("-");
        command
    }

    #[test]
    fn headers_compile_for_policies_and_for_libraries_and_their_asserts_hold() {
        let odd = odd();
        for schema in Schema::all_builtin().map(|s| -> &Schema { s }).chain([&odd]) {
            let text = c(schema);
            compiles(&mut clang(&["-target", "bpf", "-x", "c"]), &text);
            compiles(&mut clang(&["-x", "c", "-std=c11"]), &text);
            compiles(&mut clang(&["-x", "c++", "-std=c++17"]), &text);
        }
    }

    /// The asserts are no decoration: with one offset changed, they fail.
    #[test]
    fn a_wrong_offset_does_not_compile() {
        let text = c(&odd()).replace("__u8 _pad0[1];", "__u8 _pad0[2];");
        let output = std::panic::catch_unwind(|| compiles(&mut clang(&["-x", "c"]), &text));
        assert!(output.is_err());
    }

    /// The structs made from the schemas of NCCL's hooks are those of ringfence.h, field by field.
    #[test]
    fn nccl_s_headers_are_ringfence_h() {
        for (hook, ours) in [
            ("tuner", "CollContext"),
            ("tuner/chunk", "ChunkContext"),
            ("tuner/init", "TunerInitContext"),
            ("profiler", "ProfilerContext"),
            ("profiler/event", "ProfilerEventContext"),
            ("net", "NetContext"),
            ("env", "EnvContext"),
        ] {
            let schema = Schema::builtin(hook).unwrap();
            let (made, mut text) = (struct_name(schema), c(schema));
            text += &format!("_Static_assert(sizeof(struct {made}) == sizeof(struct {ours}), \"size\");\n");
            for f in schema.fields() {
                let place = |s: &str| format!("__builtin_offsetof(struct {s}, {})", f.name);
                let size = |s: &str| format!("sizeof(((struct {s} *)0)->{})", f.name);
                text += &format!("_Static_assert({} == {}, \"{}\");\n", place(&made), place(ours), f.name);
                text += &format!("_Static_assert({} == {}, \"{}\");\n", size(&made), size(ours), f.name);
            }
            if hook == "tuner" {
                text += "_Static_assert(TUNER_DECISION_ALGO_NVLS_TREE == RF_ALGO_NVLS_TREE, \"algo\");\n";
                text += "_Static_assert(TUNER_DECISION_PROTO_UNSET == RF_UNSET, \"unset\");\n";
            }
            compiles(&mut clang(&["-target", "bpf", "-x", "c"]), &text);
        }
    }

    /// Writing an input does not compile in a policy; writing a decision does.
    #[test]
    fn inputs_are_const_for_policies() {
        let policy = |field: &str| {
            c(&odd()) + &format!("int f(struct Odd1HookXContext *ctx) {{ ctx->{field} = 1; return 0; }}\n")
        };
        compiles(&mut clang(&["-target", "bpf", "-x", "c"]), &policy("b[2]"));
        let refused =
            std::panic::catch_unwind(|| compiles(&mut clang(&["-target", "bpf", "-x", "c"]), &policy("c")));
        assert!(refused.is_err());
    }

    #[test]
    fn rust_compiles_and_its_asserts_hold() {
        let (dir, odd) = (tempfile::tempdir().unwrap(), odd());
        for schema in Schema::all_builtin().map(|s| -> &Schema { s }).chain([&odd]) {
            let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
            let mut command = Command::new(rustc);
            command.args([
                "--crate-type",
                "lib",
                "--crate-name",
                "header",
                "--edition",
                "2024",
                "--emit",
                "metadata",
            ]);
            command.args(["-D", "warnings", "-D", "missing-docs", "--out-dir"]).arg(dir.path()).arg("-");
            compiles(&mut command, &format!("//! A header.\n{}", rust(schema)));
        }
    }

    /// The headers of the hooks that ship are those of their schemas; `BLESS=1` writes them.
    #[test]
    fn shipped_headers_are_made_from_their_schemas() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/hooks");
        for name in ["ep_mode", "sdr"] {
            let text = c(&Schema::read(&dir.join(format!("{name}.toml"))).unwrap());
            let path = dir.join(format!("{name}.h"));
            if std::env::var_os("BLESS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let file = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(file == text, "{name}.h is not up to date: BLESS=1 writes it");
        }
        let text = rust(&Schema::read(&dir.join("ep_mode.toml")).unwrap());
        let path = dir.join("../rust/ep_mode_rs/src/context.rs");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(&path).unwrap_or_default() == text, "context.rs is not up to date");
    }

    #[test]
    fn comments_are_wrapped_and_cannot_be_ended_from_within() {
        let text = c(&odd());
        assert!(!text.contains("*/ int main"), "{text}");
        assert!(text.contains("#define ODD_1_HOOK_X_B_BIG 9223372036854775807ull\n"), "{text}");
        assert!(text.lines().all(|l| l.len() < 110), "{text}");
    }
}
