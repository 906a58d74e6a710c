use super::*;
use serde_json::json;
use std::sync::Arc;

fn ty(size: u32, kind: TypeKind) -> TypeDesc {
    TypeDesc { name: String::new(), size, kind }
}

fn field(name: &str, offset: u32, ty: TypeDesc) -> FieldDesc {
    FieldDesc { name: name.into(), offset, bits: None, ty: Arc::new(ty) }
}

fn bits(name: &str, offset: u32, size: u32, shift: u8, width: u8, kind: TypeKind) -> FieldDesc {
    FieldDesc { bits: Some(BitField { shift, width }), ..field(name, offset, ty(size, kind)) }
}

/// `struct { lock; u64 n; s16 delta; enum mode; char name[6]; union { u32 both; u8 low; }; u32 a:4, b:28; u16 list[2]; float x; }`
fn record() -> TypeDesc {
    let modes = TypeKind::Enum { signed: false, names: vec![("OFF".into(), 0), ("ON".into(), 1)] };
    let array = |element: TypeDesc, len| {
        let size = element.size * len;
        ty(size, TypeKind::Array { element: Arc::new(element), len })
    };
    let views = TypeKind::Union(vec![
        field("both", 0, ty(4, TypeKind::Unsigned)),
        field("low", 0, ty(1, TypeKind::Unsigned)),
    ]);
    let fields = vec![
        field("lock", 0, ty(4, TypeKind::SpinLock)),
        field("n", 8, ty(8, TypeKind::Unsigned)),
        field("delta", 16, ty(2, TypeKind::Signed)),
        field("mode", 20, ty(4, modes)),
        field("name", 24, array(ty(1, TypeKind::Char), 6)),
        field("", 32, ty(4, views)),
        bits("a", 36, 4, 0, 4, TypeKind::Unsigned),
        bits("b", 36, 4, 4, 28, TypeKind::Signed),
        field("list", 40, array(ty(2, TypeKind::Unsigned), 2)),
        field("x", 44, ty(4, TypeKind::Float)),
    ];
    ty(48, TypeKind::Struct(fields))
}

fn full() -> Value {
    json!({"n": u64::MAX, "delta": -2, "mode": "ON", "name": "ring", "both": 513, "a": 5, "b": -3,
           "list": [1, "0xffff"], "x": 1.5})
}

#[test]
fn a_record_goes_there_and_back() {
    let bytes = read(&full(), &record(), None).unwrap();
    let shown = show(&bytes, &record());
    let text = r#"{"n":18446744073709551615,"delta":-2,"mode":"ON","name":"ring","both":513,"low":1,"a":5,"b":-3,"list":[1,65535],"x":1.5}"#;
    assert_eq!(serde_json::to_string(&shown).unwrap(), text, "fields keep their order");
    assert_eq!(read(&serde_json::from_str(text).unwrap(), &record(), None).unwrap(), bytes);
    assert!(shown.to_string().starts_with("{n: 18446744073709551615, delta: -2, mode: ON, name: ring"));
    assert_eq!(bytes[..4], [0; 4], "the lock is nobody's to write");
}

#[test]
fn fields_that_are_not_named_stay_only_if_there_is_something_before() {
    let before = read(&full(), &record(), None).unwrap();
    let after = read(&json!({"delta": 7, "a": 1}), &record(), Some(&before)).unwrap();
    let mut want = full();
    want["delta"] = json!(7);
    want["a"] = json!(1);
    assert_eq!(after, read(&want, &record(), None).unwrap());
    assert_eq!(read(&json!({"n": 1}), &record(), None).unwrap_err(), "field delta is missing");
}

#[test]
fn errors_name_the_field_and_what_is_wanted() {
    let with = |name: &str, value: Value| {
        let mut all = full();
        all[name] = value;
        read(&all, &record(), None).unwrap_err()
    };
    for (name, value, want) in [
        ("delta", json!(65536), "delta: 65536 does not fit into 16 bits"),
        ("n", json!(-1.5), "n: -1.5 is no whole number"),
        ("mode", json!("MAYBE"), "mode: \"MAYBE\" is none of OFF, ON"),
        ("name", json!("toolong"), "name: the text has 7 bytes, there is room for 6"),
        ("list", json!([1]), "list: 1 elements were given, 2 are wanted"),
        ("list", json!([1, "x"]), "list[1]: \"x\" is no whole number"),
        ("a", json!(16), "a: 16 does not fit into 4 bits"),
        ("x", json!("y"), "x: \"y\" is no number"),
        ("nn", json!(1), "there is no field nn; there are n, delta, mode, name, both, low, a, b, list, x"),
    ] {
        assert_eq!(with(name, value), want);
    }
    assert!(
        read(&json!(7), &record(), None).unwrap_err().starts_with("an object of fields is wanted (n, delta")
    );
    let long = read(&json!("hex:00"), &record(), None).unwrap_err();
    assert_eq!(long, "1 bytes were given, 48 are wanted");
}

#[test]
fn numbers_are_written_as_people_write_them() {
    let u32_ = ty(4, TypeKind::Unsigned);
    for (text, want) in
        [("7", 7u32), ("0x10", 16), ("-1", u32::MAX), ("1_000", 1000), ("\"9\"", 9), ("true", 1)]
    {
        assert_eq!(read(&parse(text), &u32_, None), Ok(want.to_le_bytes().to_vec()), "{text}");
    }
    assert_eq!(read(&parse("hex:01020304"), &u32_, None), Ok(vec![1, 2, 3, 4]));
    assert!(read(&parse("hex:0102030"), &u32_, None).unwrap_err().contains("even number"));
    assert!(read(&parse("4294967296"), &u32_, None).is_err());
    assert!(read(&parse("ring"), &u32_, None).is_err());
}

#[test]
fn what_has_no_type_is_bytes() {
    let plain = TypeDesc::bytes(12);
    assert_eq!(show(&[1; 12], &plain), Shown::Text("hex:010101010101010101010101".into()));
    assert_eq!(read(&json!("hex:010101010101010101010101"), &plain, None), Ok(vec![1; 12]));
    assert_eq!(read(&json!(1), &plain, None).unwrap_err(), "12 bytes are wanted, as \"hex:...\"");
    // Eight bytes or fewer may be a number.
    assert_eq!(read(&json!(258), &TypeDesc::bytes(4), None), Ok(vec![2, 1, 0, 0]));
}

#[test]
fn text_that_is_none_is_bytes() {
    let name = ty(4, TypeKind::Array { element: Arc::new(ty(1, TypeKind::Char)), len: 4 });
    for (bytes, want) in [
        (*b"abcd", "abcd"),
        (*b"ab\0\0", "ab"),
        (*b"\0\0\0\0", ""),
        (*b"a\0b\0", "hex:61006200"),
        ([0xff, 0, 0, 0], "hex:ff000000"),
        (*b"a\nb\0", "hex:610a6200"),
        (*b"hex:", "hex:6865783a"),
    ] {
        let shown = show(&bytes, &name);
        assert_eq!(shown, Shown::Text(want.into()));
        let back = read(&serde_json::to_value(&shown).unwrap(), &name, None);
        assert_eq!(back, Ok(bytes.to_vec()));
    }
}

#[test]
fn short_bytes_and_odd_types_are_no_panic() {
    let liar = ty(4, TypeKind::Struct(vec![field("far", 400, ty(8, TypeKind::Unsigned))]));
    assert_eq!(show(&[], &record()), show(&[0; 48], &record()));
    assert_eq!(show(&[1, 2], &liar), Shown::Fields(vec![("far".into(), Shown::Unsigned(0))]));
    assert_eq!(read(&json!({"far": 1}), &liar, None).unwrap_err(), "far: it lies outside its struct");
    let wide = ty(4, TypeKind::Struct(vec![bits("w", 0, 4, 200, 255, TypeKind::Signed)]));
    assert_eq!(show(&[0xff; 4], &wide), Shown::Fields(vec![("w".into(), Shown::Signed(0))]));
}
