//! [`text`]: `include/ringfence_host.h`, made from [`crate::table`] and [`crate::border`]. A test compares the file; `BLESS=1` writes it.

use crate::border::functions;
use crate::table::{CODES, structs};

const HEAD: &str = r#"/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ringfence_host.h: asking policies for decisions of your own. Made from host/capi/src; do not edit.
 *
 *     rf_host *host; rf_hook *hook; rf_error err;
 *     const char *schema = "ep_mode.toml";
 *     rf_options options = { sizeof options, NULL, &schema, 1 };
 *     if (rf_open(&options, &host, &err) < 0) give_up(err.text);
 *     if (rf_hook_open(host, "ep/mode", sizeof(struct EpModeContext), NULL, &hook, &err) < 0) give_up(err.text);
 *
 *     struct EpModeContext ctx = { .n_tokens = 128, .mode = my_own_choice };
 *     rf_decide(hook, &ctx, sizeof ctx, NULL);
 *     use(ctx.mode);                             // a policy's choice, or still your own
 *
 * The struct comes from the schema: `ringfence schema header ep_mode.toml > ep_mode.h`.
 *
 * Rules for every function. A pointer is NULL, or points to what its type says for as long as the call lasts: strings end in a NUL,
 * and memory that is written is used by nobody else meanwhile. NULL where it is not allowed is an error, not a crash.
 * rf_host and rf_hook are no pointers to memory: a handle that was closed is refused, never followed.
 * Nothing throws, nothing ends the process, and no signal handler is installed. After a fork, the child opens hosts and hooks anew.
 * Log lines go to standard error as far as RINGFENCE_LOG says (error, warn, info, debug, trace; warn unless it is set).
 */
#ifndef RINGFENCE_HOST_H
#define RINGFENCE_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles, see above. */
typedef struct rf_host rf_host;
typedef struct rf_hook rf_hook;

"#;

const VISIT: &str = "/*
 * Is called for each entry of a map: arg as given, then key and value, which are copies and gone when it returns. 0 goes on,
 * anything else ends the walk. It may call anything of this API, and must not throw or longjmp.
 */
typedef int32_t (*rf_visit)(void *arg, const void *key, size_t key_size, const void *value, size_t value_size);

";

/// The whole file.
pub(crate) fn text() -> String {
    let mut out = HEAD.to_owned();
    for (name, value, doc) in CODES {
        out += &comment(doc, "");
        out += &match value {
            0.. => format!("#define {name} {value}\n"),
            _ => format!("#define {name} ({value})\n"),
        };
    }
    for s in structs() {
        out += "\n";
        out += &comment(s.doc, "");
        out += &format!("typedef struct {} {{\n", s.name);
        for member in &s.members {
            out += &comment(member.doc, "\t");
            out += &format!("\t{};\n", member.declaration);
        }
        out += &format!("}} {};\n", s.name);
    }
    out += "\n";
    out += VISIT;
    for f in functions() {
        out += &comment(f.doc, "");
        let arguments = if f.arguments.is_empty() { "void".to_owned() } else { f.arguments.join(", ") };
        let space = if f.result.ends_with('*') { "" } else { " " };
        out += &format!("{}{space}{}({arguments});\n\n", f.result, f.name);
    }
    out += "#ifdef __cplusplus\n}\n#define RF_ASSERT(what) static_assert(what, \"the layout of libringfence\")\n\
            #else\n#define RF_ASSERT(what) _Static_assert(what, \"the layout of libringfence\")\n#endif\n";
    for s in structs() {
        out += &format!("RF_ASSERT(sizeof({}) == {});\n", s.name, s.size);
        for m in &s.members {
            out += &format!("RF_ASSERT(offsetof({}, {}) == {});\n", s.name, m.name, m.offset);
        }
    }
    out + "#undef RF_ASSERT\n#endif\n"
}

/// Lines of a doc comment as one of C.
fn comment(doc: &[&str], indent: &str) -> String {
    let lines: Vec<&str> = doc.iter().map(|l| l.trim()).collect();
    match lines.as_slice() {
        [] => String::new(),
        [line] => format!("{indent}/* {line} */\n"),
        lines => {
            let body: String = lines.iter().map(|l| format!("{indent} * {l}\n")).collect();
            format!("{indent}/*\n{body}{indent} */\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn path() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("include/ringfence_host.h")
    }

    #[test]
    fn the_header_is_what_the_code_says() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path(), text()).unwrap();
        }
        let file = std::fs::read_to_string(path()).unwrap_or_default();
        assert!(file == text(), "include/ringfence_host.h is not up to date: BLESS=1 writes it");
    }

    #[test]
    fn it_compiles_as_c_and_as_cpp_and_its_layouts_are_ours() {
        for (language, standard) in [("c", "-std=c11"), ("c++", "-std=c++17")] {
            let compiler = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
            let mut command = Command::new(compiler);
            command.args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                "-fsyntax-only",
                "-x",
                language,
                standard,
            ]);
            let output = command.arg(path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn declarations_read_as_c() {
        let f = |name: &str| functions().into_iter().find(|f| f.name == name).unwrap();
        assert_eq!(f("rf_open").arguments, ["const rf_options *options", "rf_host **out", "rf_error *err"]);
        assert_eq!(f("rf_version").result, "const char *");
        assert_eq!(f("rf_decide").result, "int32_t");
        let schemas = &structs()[1].members[2];
        assert_eq!(schemas.declaration, "const char *const *schemas");
        assert_eq!(structs()[0].members[2].declaration, "char text[504]");
    }
}
