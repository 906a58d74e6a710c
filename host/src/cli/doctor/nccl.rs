//! [`KINDS`]: which NCCL release reads which version of which plugin interface (from NCCL's tags and wheels).

/// A plugin interface and its versions.
#[derive(Debug)]
pub(super) struct Kind {
    /// Name as in `NCCL_<NAME>_PLUGIN`.
    pub(super) name: &'static str,
    /// Symbol without the version number.
    pub(super) symbol: &'static str,
    /// Version and the releases that take it, if nothing newer is exported.
    pub(super) versions: &'static [(u32, &'static str)],
}

/// The interfaces that Ringfence knows.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "tuner",
        symbol: "ncclTunerPlugin_v",
        versions: &[
            (1, "2.19 to 2.20"),
            (2, "2.21 and later"),
            (3, "2.22 and later"),
            (4, "2.24 and later"),
            (5, "2.28.3 and later"),
            (6, "2.30.3 and later"),
        ],
    },
    Kind {
        name: "profiler",
        symbol: "ncclProfiler_v",
        versions: &[
            (1, "2.23 and later"),
            (2, "2.24 and later"),
            (3, "2.26 and later"),
            (4, "2.27.3 and later"),
            (5, "2.28.3 and later"),
            (6, "2.29.2 and later"),
            (7, "2.31 and later"),
        ],
    },
    Kind {
        name: "net",
        symbol: "ncclNetPlugin_v",
        versions: &[
            (6, "2.18 to 2.30 and later"),
            (7, "2.19 and later"),
            (8, "2.20 and later"),
            (9, "2.24 and later"),
            (10, "2.26 and later"),
            (11, "2.28 and later"),
            (12, "2.30 and later"),
        ],
    },
    Kind {
        name: "env",
        symbol: "ncclEnvPlugin_v",
        versions: &[(1, "2.28.9 and later"), (2, "2.30.7 and later")],
    },
];

/// Which releases use which tuner version when `exported` ones are there: newest first, each release taking the
/// highest version that it knows.
pub(super) fn tuner_coverage(exported: &[u32]) -> Vec<(u32, String)> {
    /// First release of each version, and the next one that no longer takes it as its best.
    const FIRST: [(u32, &str); 5] = [(2, "2.21"), (3, "2.22"), (4, "2.24"), (5, "2.28.3"), (6, "2.30.3")];
    let mut lines = Vec::new();
    let known: Vec<_> = FIRST.iter().filter(|(v, _)| exported.contains(v)).collect();
    for (i, (version, first)) in known.iter().enumerate() {
        let range = match known.get(i + 1) {
            Some((_, next)) => format!("NCCL {first} up to {next}"),
            None => format!("NCCL {first} and later"),
        };
        lines.push((*version, range));
    }
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_takes_the_highest_version_it_knows() {
        let got = tuner_coverage(&[2, 3, 4, 5, 6]);
        assert_eq!(got.first(), Some(&(6, "NCCL 2.30.3 and later".to_string())));
        assert_eq!(got.last(), Some(&(2, "NCCL 2.21 up to 2.22".to_string())));
        assert_eq!(
            tuner_coverage(&[4, 3]),
            [(4, "NCCL 2.24 and later".to_string()), (3, "NCCL 2.22 up to 2.24".to_string())]
        );
        assert!(tuner_coverage(&[]).is_empty());
    }
}
