use super::*;
use crate::hooks::Hook;
use proptest::prelude::*;
use ringfence_translator::wasm::layout::CTX_MAX;

const GOOD: &str = r#"
name = "ep/mode"
about = "Which kernels an expert-parallel group uses."
size = 32
[[field]]
name = "mode"
offset = 8
width = 4
rights = "decide"
rank = "uniform"
values = { low_latency = 1, high_throughput = 2 }
default = 2
[[field]]
name = "n_tokens"
offset = 0
width = 4
rights = "read"
rank = "uniform"
unit = "tokens"
about = "Of this step."
[[field]]
name = "load"
offset = 4
width = 2
count = 2
rights = "read"
rank = "local"
[[field]]
name = "sms"
offset = 12
width = 1
count = 4
rights = "decide"
rank = "uniform"
min = 2
max = 24
values = { all = 255 }
default = 255
"#;

fn good() -> Schema {
    Schema::parse(GOOD, "ep.toml").unwrap()
}

/// `GOOD` with one text replaced, which must be there.
fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[test]
fn a_schema_is_read_and_its_fields_are_sorted() {
    let s = good();
    assert_eq!((s.name(), s.size(), s.file()), ("ep/mode", 32, "ep.toml"));
    assert_eq!(s.about(), "Which kernels an expert-parallel group uses.");
    let names: Vec<_> = s.fields().iter().map(|f| (f.name.as_str(), f.offset, f.bytes())).collect();
    assert_eq!(names, [("n_tokens", 0, 4), ("load", 4, 4), ("mode", 8, 4), ("sms", 12, 4)]);
    assert_eq!(s.decided().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["mode", "sms"]);
    let f = s.field("load").unwrap();
    assert_eq!((f.rank, f.rights, f.count), (RankLabel::RankLocal, FieldRights::Read, 2));
    assert_eq!(s.field("mode").unwrap().value_name(1), Some("low_latency"));
}

#[test]
fn sections_name_the_hook() {
    let s = good();
    for (section, want) in [
        ("ep/mode", true),
        ("ep/mode/fast", true),
        ("ep/mode/a/b", true),
        ("ep/mode/", false),
        ("ep/modes", false),
        ("ep", false),
        ("", false),
    ] {
        assert_eq!(s.names_section(section), want, "{section}");
    }
}

#[test]
fn the_hash_follows_what_decides_and_nothing_else() {
    let of = |text: &str| Schema::parse(text, "x").unwrap().hash();
    let hash = good().hash();
    assert_eq!(hash, of(&with("\"tokens\"", "\"words\"")));
    assert_eq!(hash, of(&with("Of this step.", "Else.")));
    assert_eq!(hash, of(&with("Which kernels", "What")));
    for (old, new) in [
        ("ep/mode", "ep/node"),
        ("size = 32", "size = 40"),
        ("n_tokens", "tokens"),
        ("offset = 8", "offset = 16"),
        ("min = 2", "min = 1"),
        ("max = 24", "max = 25"),
        ("low_latency = 1", "low_latency = 3"),
        ("low_latency", "low"),
        ("default = 2\n", "default = 1\n"),
        ("rank = \"local\"", "rank = \"uniform\""),
        ("rights = \"read\"", "rights = \"decide\""),
    ] {
        assert_ne!(hash, of(&with(old, new)), "{old} to {new}");
    }
}

#[test]
fn errors_name_the_place_and_the_way_out() {
    let cases = [
        (
            with("size = 32", "size = 12"),
            "line 4, column 8: size: 12 must be a multiple of 8 from 8 to 49152",
        ),
        (with("size = 32", "size = 0"), "line 4, column 8: size: 0 must be"),
        (with("size = 32", "size = -8"), "line 4, column 8: size: -8 must be"),
        (with("size = 32", "size = 49160"), "line 4, column 8: size: 49160 must be"),
        (with("size = 32", "siz = 32"), "line 4, column 1: unknown field `siz`"),
        (with("size = 32\n", "\n"), "line 1, column 1: missing field `size`"),
        (with("\"ep/mode\"", "\"tuner\""), "line 2, column 8: name: \"tuner\" belongs to a hook of NCCL's"),
        (with("\"ep/mode\"", "\"net/x\""), "line 2, column 8: name: \"net/x\" belongs to"),
        (with("\"ep/mode\"", "\"maps\""), "line 2, column 8: name: \"maps\" belongs to"),
        (with("\"ep/mode\"", "\"\""), "line 2, column 8: name: \"\" must be words"),
        (with("\"ep/mode\"", "\"ep//x\""), "line 2, column 8: name: \"ep//x\" must be words"),
        (with("\"ep/mode\"", "\".maps\""), "line 2, column 8: name: \".maps\" must be words"),
        (with("\"ep/mode\"", "\"Ep\""), "line 2, column 8: name: \"Ep\" must be words"),
        (with("\"n_tokens\"", "\"mode\""), "line 14, column 8: field \"mode\": there is one of that name"),
        (with("\"n_tokens\"", "\"for\""), "line 14, column 8: field \"for\": the name is a word of C"),
        (with("\"n_tokens\"", "\"_pad0\""), "line 14, column 8: field \"_pad0\": the name must be a letter"),
        (with("\"n_tokens\"", "\"a b\""), "line 14, column 8: field \"a b\": the name must be a letter"),
        (with("offset = 0", "offset = 2"), "line 14, column 8: field \"n_tokens\": offset 2 is no multiple"),
        (
            with("offset = 0", "offset = 4"),
            "line 22, column 8: field \"load\": overlaps \"n_tokens\", which has bytes 4 to 7",
        ),
        (
            with("offset = 0", "offset = 32"),
            "line 14, column 8: field \"n_tokens\": offset 32 with 1 x 4 bytes lies outside",
        ),
        (with("offset = 0", "offset = -4"), "line 14, column 8: field \"n_tokens\": offset -4 with"),
        (with("width = 2", "width = 3"), "line 22, column 8: field \"load\": width 3 must be 1, 2, 4 or 8"),
        (with("count = 2", "count = 0"), "line 22, column 8: field \"load\": count 0 must be at least 1"),
        (
            with("count = 2", "count = 9223372036854775807"),
            "line 22, column 8: field \"load\": offset 4 with 9223372036854775807 x 2 bytes lies outside",
        ),
        (with("rights = \"read\"", "rights = \"write\""), "line 17, column 10: unknown variant `write`"),
        (with("rank = \"local\"", "rank = \"rank\""), "line 27, column 8: unknown variant `rank`"),
        (with("unit = \"tokens\"", "min = 1"), "line 14, column 8: field \"n_tokens\": min is for rights"),
        (with("unit = \"tokens\"", "default = 1"), "line 14, column 8: field \"n_tokens\": default is for"),
        (
            with("max = 24", "max = 256"),
            "line 29, column 8: field \"sms\": max 256 does not fit; fields are unsigned, here 0 to 255",
        ),
        (with("min = 2", "min = -1"), "line 29, column 8: field \"sms\": min -1 does not fit"),
        (with("min = 2", "min = 25"), "line 29, column 8: field \"sms\": min 25 is more than max 24"),
        (with("default = 255", "default = 30"), "line 29, column 8: field \"sms\": default 30 is not among"),
        (with("default = 255", ""), "line 29, column 8: field \"sms\": say a default: 0 is not among"),
        (
            with("low_latency = 1", "low_latency = 2"),
            "line 6, column 8: field \"mode\": values \"high_throughput\" and \"low_latency\" are both 2",
        ),
        (
            with("low_latency = 1", "\"a-b\" = 1"),
            "line 6, column 8: field \"mode\": value \"a-b\": the name must be",
        ),
        (
            with("low_latency = 1", "low_latency = -1"),
            "line 6, column 8: field \"mode\": value -1 does not fit",
        ),
        ("x = ".into(), "line 1, column "),
        ("name = \"a\nb\"".into(), "line 2, column 3"),
    ];
    let mut wrong = Vec::new();
    for (text, want) in cases {
        let e = Schema::parse(&text, "ep.toml").expect_err(&text);
        assert_eq!(e.file(), "ep.toml");
        assert!(!e.to_string().contains('\n'), "{e:?}");
        if !e.message().starts_with(want) {
            wrong.push(format!("want {want}\n got {e}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(""));
}

#[test]
fn sizes_are_bounded() {
    let long = format!("{GOOD}#{}", "x".repeat(MAX_SCHEMA_BYTES));
    assert!(Schema::parse(&long, "x").unwrap_err().message().contains("at most 65536"));
    let fields = |n: usize| {
        let field = |i| format!("[[field]]\nname='f{i}'\noffset={i}\nwidth=1\nrights='read'\nrank='local'\n");
        (0..n).fold("name='many'\nsize=512\n".to_owned(), |text, i| text + &field(i))
    };
    assert_eq!(Schema::parse(&fields(MAX_FIELDS), "x").unwrap().fields().len(), MAX_FIELDS);
    let e = Schema::parse(&fields(MAX_FIELDS + 1), "x").unwrap_err();
    assert!(e.message().contains("257 fields, at most 256"), "{e}");
    Schema::parse(&format!("name = 'big'\nsize = {CTX_MAX}"), "x").unwrap();
}

#[test]
fn elements_are_little_endian() {
    let s = good();
    let mut ctx = s.blank();
    let load = s.field("load").unwrap();
    assert!(load.put(&mut ctx, 1, 0x1234));
    assert_eq!(&ctx[4..8], [0, 0, 0x34, 0x12]);
    assert_eq!((load.get(&ctx, 0), load.get(&ctx, 1), load.get(&ctx, 2)), (Some(0), Some(0x1234), None));
    assert!(!load.put(&mut ctx, 2, 1) && !load.put(&mut ctx, 0, 0x1_0000));
    assert_eq!(&ctx[4..8], [0, 0, 0x34, 0x12]);
    assert_eq!(load.get(&ctx[..7], 1), None);
    assert_eq!(&ctx[8..16], [2, 0, 0, 0, 255, 255, 255, 255], "decided fields begin at their defaults");
}

#[test]
fn what_may_not_be_decided_is_put_back_field_by_field() {
    let s = good();
    let (mode, sms) = (s.field("mode").unwrap(), s.field("sms").unwrap());
    let before = s.blank();
    let mut ctx = before.clone();
    assert!(mode.put(&mut ctx, 0, 1) && sms.put(&mut ctx, 3, 24) && sms.put(&mut ctx, 0, 2));
    let decided = ctx.clone();
    assert_eq!(s.check_decision(&mut ctx, &before), None);
    assert_eq!(ctx, decided);
    // One element of an array spoils the array, and nothing else.
    assert!(sms.put(&mut ctx, 1, 25));
    assert_eq!(s.check_decision(&mut ctx, &before), Some(sms));
    assert_eq!((mode.get(&ctx, 0), &ctx[12..16]), (Some(1), &before[12..16]));
    // Two wrong fields: the first is named, both are put back.
    assert!(mode.put(&mut ctx, 0, 7) && sms.put(&mut ctx, 0, 1));
    assert_eq!(s.check_decision(&mut ctx, &before), Some(mode));
    assert_eq!(ctx, before);
    // A slice that is too short decides nothing.
    assert_eq!(s.check_decision(&mut ctx[..9], &before), Some(mode));
}

#[test]
fn ranges_and_values_add_up() {
    let s = good();
    let allowed: Vec<_> = (0..=255).filter(|n| s.field("sms").unwrap().allows(*n)).collect();
    assert_eq!(allowed, (2..=24).chain([255]).collect::<Vec<_>>());
    assert!(s.field("n_tokens").unwrap().allows(u64::MAX));
}

/// The verifier sees what the files say, and for NCCL's hooks that is what `abi.rs` says.
#[test]
fn builtin_schemas_give_the_environments_of_the_abi() {
    for hook in [Hook::Tuner, Hook::NcclBpf] {
        let schema = Schema::builtin(hook.name()).unwrap();
        assert_eq!(*schema.env(), *hook.env(), "{hook}");
    }
}

/// Text that is nearly a schema: the good one with pieces cut, doubled and swapped, and odd words put in.
fn nearly() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("[[field]]\n".to_owned()),
        Just("width = ".to_owned()),
        Just("values = {".to_owned()),
        Just("\"".to_owned()),
        Just("'''".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("0xffffffffffffffff\n".to_owned()),
        Just("\u{0}\u{7f}é\u{10ffff}".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        ".{0,8}",
    ];
    let edit = (any::<prop::sample::Index>(), 0..40usize, word);
    prop::collection::vec(edit, 0..6).prop_map(|edits| {
        let mut text: Vec<char> = GOOD.chars().collect();
        for (at, cut, word) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + cut).min(text.len());
            text.splice(at..end, word.chars());
        }
        text.into_iter().collect()
    })
}

/// A good file with any numbers in place of those that matter.
fn numbered() -> impl Strategy<Value = String> {
    let n = || prop_oneof![-2..70i64, any::<i64>(), Just(i64::MAX), Just(i64::MIN)];
    (n(), n(), n(), n(), n(), n(), n()).prop_map(|(size, offset, width, count, min, max, default)| {
        format!(
            "name = 'x'\nsize = {size}\n[[field]]\nname = 'a'\nrights = 'decide'\nrank = 'local'\noffset = {offset}\n\
             width = {width}\ncount = {count}\nmin = {min}\nmax = {max}\ndefault = {default}\n"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in prop_oneof![".{0,200}", nearly(), numbered()]) {
        match Schema::parse(&text, "x.toml") {
            Ok(schema) => {
                let before = schema.blank();
                let mut ctx = before.clone();
                prop_assert_eq!(schema.check_decision(&mut ctx, &before), None);
                for f in schema.fields() {
                    prop_assert!(f.offset + f.bytes() <= schema.size());
                    prop_assert!(f.offset.is_multiple_of(f.width));
                }
            }
            Err(e) => prop_assert!(!e.to_string().contains('\n'), "{:?}", e),
        }
    }

    /// Whatever bytes a policy leaves, what comes out of the check may be decided, and inputs are untouched.
    #[test]
    fn what_passes_the_check_may_be_decided(junk in prop::collection::vec(any::<u8>(), 32)) {
        let s = good();
        let before = s.blank();
        let mut ctx = junk.clone();
        let sound = |f: &Field| (0..f.count).all(|i| f.allows(f.get(&junk, i).unwrap()));
        let want = s.decided().find(|f| !sound(f));
        prop_assert_eq!(s.check_decision(&mut ctx, &before), want);
        for f in s.decided() {
            for i in 0..f.count {
                prop_assert!(f.allows(f.get(&ctx, i).unwrap()));
            }
        }
        prop_assert_eq!((&ctx[..8], &ctx[16..]), (&junk[..8], &junk[16..]));
    }
}
