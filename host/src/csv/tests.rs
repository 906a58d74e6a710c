//! What an import says and makes; that it decides as NCCL's example tuner does is tested in tests/tests/import_csv.rs.

use super::*;
use proptest::prelude::*;

fn run(text: &[u8]) -> Import {
    let options = Options { file: "nccl_tuner.conf".to_owned(), bug_compatible: false };
    import(text, &options).unwrap()
}

/// Lines and codes of the warnings.
fn codes(text: &str) -> Vec<(u32, &'static str)> {
    let text = format!("{text}\nallreduce,0,99,ring,simple,4,-1,-1\n");
    run(text.as_bytes()).warnings.iter().map(|w| (w.line, w.code)).collect()
}

#[test]
fn a_clean_file_gives_no_warning() {
    assert_eq!(codes("# x\n\nallreduce,100,200,tree,ll128,8,2,16,1,-1\r"), []);
    assert_eq!(codes("   \n\t\n\r\n"), [], "blank lines are skipped as meant");
}

#[test]
fn each_quirk_has_its_warning() {
    let row = |fields: &str| codes(fields);
    for (text, code) in [
        ("all_reduce,0,1,ring,ll,4,-1,-1", "unknown-collective"),
        ("allreduce,0,1,NVLSTree,simple,4,-1,-1", "unknown-algorithm"),
        ("allreduce,0,1,ring,LL,4,-1,-1", "unknown-protocol"),
        ("allreduce,0,,1,ring,ll,4,-1,-1", "empty-field"),
        ("allreduce,0,1,ring,ll,4,-1", "too-few-fields"),
        ("allreduce,0,1,ring,ll,4,-1,-1,-1,-1,7", "too-many-fields"),
        ("  # a comment", "indented-comment"),
        ("allreduce,0,4M,ring,ll,4,-1,-1", "trailing-text"),
        ("allreduce,0,max,ring,ll,4,-1,-1", "not-a-number"),
        ("allreduce,0,-1,ring,ll,4,-1,-1", "negative-size"),
        ("allreduce,0,99999999999999999999,ring,ll,4,-1,-1", "overflow"),
        ("allreduce,0,1,ring,ll,4,-1,4294967295", "overflow"),
        ("allreduce,9,1,ring,ll,4,-1,-1", "never-matches"),
        ("allreduce,0,1,ring,ll,4,0,-1", "never-matches"),
        ("reducescatter,0,1,tree,simple,4,-1,-1", "never-offered"),
        ("allreduce,0,1,nvls,ll,4,-1,-1", "never-offered"),
        ("allreduce,100,4294967295,ring,ll,4,-1,-1", "four-gib"),
        ("allreduce,0,1,ring,ll,0,-1,-1", "channels"),
        ("allreduce,0,1,ring,ll,65,-1,-1", "channels"),
        ("allreduce,0,1,ring,ll,-2,-1,-1", "channels"),
        ("allreduce,0,1,ring,ll,4,-1,-1,-1,1", "rank-local"),
        ("allreduce,0,1,ring,ll,4,-1,-1\0", "nul-byte"),
        ("\u{feff}# head", "byte-order-mark"),
        ("collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks", "header"),
        ("collective,size_bytes,algorithm,protocol,channels", "header"),
    ] {
        assert!(row(text).contains(&(1, code)), "{text}: {:?}", row(text));
    }
    assert_eq!(row("allreduce,0,1,ring,ll,-1,-1,-1"), [(0, "keeps-channels")]);
    assert_eq!(row("allreduce,0,999,ring,simple,2,-1,-1"), [(2, "hidden")]);
    let long = format!("#{}\n", "x".repeat(300));
    assert_eq!(codes(&long), [(1, "long-line"), (1, "too-few-fields")]);
}

#[test]
fn a_header_is_told_once() {
    let header =
        "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff";
    assert_eq!(codes(header), [(1, "header")]);
}

#[test]
fn files_that_hold_no_row_or_too_much_are_refused() {
    let of = |bytes: &[u8]| import(bytes, &Options::default()).unwrap_err();
    assert!(matches!(of(b""), ImportError::NoRows(w) if w.is_empty()));
    assert!(matches!(of(b"allreduce,1\n"), ImportError::NoRows(w) if w[0].code == "too-few-fields"));
    assert!(matches!(of(&vec![0; 100_000]), ImportError::NoRows(_)));
    assert_eq!(of(&vec![b'\n'; MAX_BYTES + 1]), ImportError::TooLarge);
    let rows = "allreduce,0,1,ring,ll,4,-1,-1\n".repeat(MAX_ROWS + 1);
    assert_eq!(of(rows.as_bytes()), ImportError::TooManyRows(MAX_ROWS as u32 + 1));
}

/// Rows that no size matches leave an empty table.
#[test]
fn a_file_of_rows_that_never_match_decides_nothing() {
    for bug_compatible in [false, true] {
        let options = Options { bug_compatible, ..Options::default() };
        let import = import(b"allreduce,9,1,ring,ll,4,-1,-1\n", &options).unwrap();
        assert_eq!((import.rows, import.longest_list), (1, 0));
        assert!(import.stats.max_insns <= 4);
    }
}

/// The largest configurations are verified without running out of budget.
#[test]
fn as_many_rows_as_are_allowed_are_verified() {
    let disjoint: String = (0..MAX_ROWS)
        .map(|i| format!("{},{},{},ring,ll128,8,-1,-1,{}\n", row::FUNCS[i % 5], i * 64, i * 64 + 63, i % 3))
        .collect();
    let import = run(disjoint.as_bytes());
    assert_eq!(import.rows, MAX_ROWS);
    assert!(import.longest_list <= 2, "{}", import.longest_list);
    let nested: String =
        (0..MAX_ROWS).map(|i| format!("allreduce,0,{},tree,ll,4,{},-1\n", 1_u64 << 40, i + 1)).collect();
    let import = run(nested.as_bytes());
    assert_eq!(import.longest_list, MAX_ROWS);
    assert!(import.stats.max_insns > 100_000);
}

#[test]
fn lines_of_the_object_are_those_of_the_file() {
    let import = run(b"# head\n\nallgather,0,99,ring,simple,4,-1,-1\n");
    let object = Object::parse(&import.object).unwrap();
    assert!(object.has_btf());
    assert_eq!(object.license(), Some("Dual MIT/GPL"));
    let program = object.program(elf::PROGRAM).unwrap();
    let line = program.line_at(ringfence_translator::isa::Pc(0)).unwrap();
    assert_eq!((line.file.as_str(), line.line), ("nccl_tuner.conf", 3));
    // BTF names what is in the table, so that a dump can.
    let table = program.maps()[0].value_type.clone().expect("described by BTF");
    let described = format!("{table:?}");
    for name in ["allgather_sizes", "rows", "min_bytes", "n_ranks", "line", "start_less_one"] {
        assert!(described.contains(name), "{name}: {described}");
    }
    let shown = program.disassemble().to_string();
    assert!(shown.contains("allgather: 1 rows"), "{shown}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the bytes: a verified policy, or an error.
    #[test]
    fn any_bytes_are_imported_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = import(&bytes, &Options::default());
    }

    /// Bytes that look like a configuration.
    #[test]
    fn any_fields_are_imported_or_refused(
        text in "(((allreduce|allgather|#|X)?,|[-+0-9a-zM \t,]{0,30},|ring,|\\x00|\\r|[^\n]{0,300},){0,12}\n){0,30}"
    ) {
        match import(text.as_bytes(), &Options::default()) {
            Ok(import) => prop_assert!(import.rows > 0),
            Err(ImportError::Internal(why)) => prop_assert!(false, "{}", why),
            Err(_) => {}
        }
    }
}
