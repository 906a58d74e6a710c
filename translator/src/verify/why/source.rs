//! Names from the text of a source line, as far as a glance at it tells: for advice, nothing rests on them.

/// Is it a name of C or Rust?
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The name that a text ends with.
fn last_name(text: &str) -> Option<&str> {
    let text = text.trim_end();
    let start = text.rfind(|c| !is_name(c)).map_or(0, |i| i + 1);
    Some(&text[start..]).filter(|n| n.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

/// The variable that is given what `what` is part of: `n` in `__u32 m = 1, n = ctx->n_nodes;` for `n_nodes`.
pub(super) fn assigned<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    let before = &text[..text.find(what)?];
    let equals = before.rfind('=')?;
    let compares = before[..equals].ends_with(['=', '!', '<', '>']) || before[equals..].starts_with("==");
    if compares || before[equals..].contains([';', ',', '{']) {
        return None;
    }
    last_name(before[..equals].trim_end_matches(['+', '-', '|', '&', '^']))
}

/// What stands in the only brackets of a line: `i + 4` in `return t->x[i + 4];`.
pub(super) fn index(text: &str) -> Option<&str> {
    let (open, close) = (text.find('[')?, text.rfind(']')?);
    let inside = text.get(open + 1..close)?.trim();
    let only = !inside.is_empty() && !inside.contains(['[', ']']);
    only.then_some(inside)
}

/// Is it one name, or a name's member?
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| is_name(c) || matches!(c, '.' | '>' | '-'))
        && !text.contains("--")
}

/// Arguments of the first call of `function` on the line.
pub(super) fn arguments<'a>(text: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let start = text.find(function)? + function.len();
    let inside = text[start..].trim_start().strip_prefix('(')?;
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (i, c) in inside.char_indices() {
        match c {
            ')' if depth == 0 => {
                found.push(inside[from..i].trim());
                return Some(found);
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(inside[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    None
}

/// The variable whose address an argument is: `key` in `&key`.
pub(super) fn address_of(argument: &str) -> Option<&str> {
    let name = argument.rsplit(')').next()?.trim().strip_prefix('&')?.trim();
    is_plain(name).then_some(name)
}

/// Does the line open a loop?
pub(super) fn is_loop(text: &str) -> bool {
    let text = text.trim_start().trim_start_matches('}').trim_start();
    ["for", "while", "do", "loop"]
        .iter()
        .any(|w| text.strip_prefix(w).is_some_and(|rest| !rest.starts_with(is_name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        assert_eq!(assigned("__u32 zero = 0, nodes = ctx->n_nodes;", "n_nodes"), Some("nodes"));
        assert_eq!(assigned("struct t *seen = bpf_map_lookup_elem(&m, &k);", "bpf_map_lookup"), Some("seen"));
        assert_eq!(assigned("if (a == ctx->n_nodes)", "n_nodes"), None);
        assert_eq!(assigned("total += ctx->n_nodes;", "n_nodes"), Some("total"));
        assert_eq!(assigned("f(ctx->n_nodes);", "n_nodes"), None);
        assert_eq!(assigned("x = 1; f(ctx->n_nodes);", "n_nodes"), None);
        assert_eq!(index("return t->x[i + 4];"), Some("i + 4"));
        assert_eq!(index("a[i] = b[j];"), None);
        assert_eq!(index("]["), None);
        assert!(
            is_plain("seen->bytes")
                && is_plain("i")
                && !is_plain("i + 4")
                && !is_plain("i--")
                && !is_plain("")
        );
    }

    #[test]
    fn arguments_are_split_at_their_own_commas() {
        let line = "long r = bpf_map_update_elem(&m, &keys[f(1, 2)], (void *)&value, 0);";
        let args = arguments(line, "map_update_elem").unwrap();
        assert_eq!(args, ["&m", "&keys[f(1, 2)]", "(void *)&value", "0"]);
        assert_eq!(
            (address_of(args[0]), address_of(args[1]), address_of(args[2])),
            (Some("m"), None, Some("value"))
        );
        assert_eq!(arguments("f(1, 2", "f"), None);
        assert_eq!(arguments("g(1)", "f"), None);
    }

    #[test]
    fn loops_are_told_from_names_that_begin_alike() {
        assert!(is_loop("for (;;) {") && is_loop("  } while (n);") && is_loop("do {") && is_loop("loop {"));
        assert!(!is_loop("format(x);") && !is_loop("n *= 2;") && !is_loop("double x;"));
    }
}
