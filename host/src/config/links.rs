//! Tail calls between policies, as the manifest says them: `chain` of a [`PolicyEntry`] and `programs` of a [`MapEntry`]. What can be told
//! without the objects is checked here; `policy_set/link.rs` links.

use super::{ConfigError, Manifest, MapEntry, PolicyEntry, field};
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::{BTreeMap, BTreeSet};

/// Reads `programs`: TOML's keys are text.
pub(super) fn slots<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, String>, D::Error> {
    let raw = BTreeMap::<String, String>::deserialize(from)?;
    let slot = |(key, name): (String, String)| match key.parse::<u32>() {
        // No second spelling of a slot.
        Ok(slot) if slot.to_string() == key => Ok((slot, name)),
        _ => Err(D::Error::custom(format!("programs: {key:?} is no slot; slots are numbers from 0 on"))),
    };
    raw.into_iter().map(slot).collect()
}

impl Manifest {
    /// What `chain` and `programs` say, one text for one meaning; `None` if they say nothing.
    pub(crate) fn canonical_links(&self) -> Option<String> {
        let chain: Vec<bool> = self.policies.iter().map(|p| p.chain).collect();
        let programs: Vec<_> = self
            .maps
            .iter()
            .filter(|(_, m)| !m.programs.is_empty())
            .map(|(name, m)| (name, &m.programs))
            .collect();
        let says = !programs.is_empty() || chain.contains(&false);
        says.then(|| format!("chain {chain:?} programs {programs:?}"))
    }
}

/// Every name means one policy, and every policy is either asked or named.
pub(super) fn check(policies: &[PolicyEntry], maps: &BTreeMap<String, MapEntry>) -> Result<(), ConfigError> {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for (map, slot, name) in maps.iter().flat_map(|(map, m)| m.programs.iter().map(move |(s, n)| (map, s, n)))
    {
        let fail = |why: String| Err(field(format!("maps.{map}.programs"), format!("slot {slot}: {why}")));
        match policies.iter().filter(|p| p.display_name() == name).count() {
            0 => {
                let known: Vec<&str> = policies.iter().map(PolicyEntry::display_name).collect();
                return fail(format!("no policy is called {name:?}; there are {}", known.join(", ")));
            }
            1 => named.insert(name),
            n => {
                let why =
                    format!("{n} policies are called {name:?}; give each a name of its own (`name = ...`)");
                return fail(why);
            }
        };
    }
    for (i, entry) in policies.iter().enumerate().filter(|(_, p)| !p.chain) {
        check_target(i, entry, named.contains(entry.display_name()))?;
    }
    if !policies.is_empty() && policies.iter().all(|p| !p.chain) {
        let why = "every policy has chain = false, so none is ever asked; let one be in the chain, or write `policy = []`";
        return Err(field("policy", why));
    }
    Ok(())
}

/// A policy that is not asked on its own.
fn check_target(index: usize, entry: &PolicyEntry, named: bool) -> Result<(), ConfigError> {
    let key = |key: &str| format!("policy[{index}].{key}");
    if !named {
        let name = entry.display_name();
        let why = format!(
            "false, and no map's `programs` names {name:?}, so it would never run; name it there, or leave `chain` out"
        );
        return Err(field(key("chain"), why));
    }
    let set = [("ops", entry.ops.is_some()), ("events", entry.events.is_some())];
    match set.iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((name, _)) => {
            let why = "not with chain = false: the policy that tail-calls this one says what both hear of";
            Err(field(key(name), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MANIFEST, Manifest};

    /// A dispatcher, and targets with what is put behind `file` of the first.
    fn manifest(first: &str, maps: &str) -> String {
        format!(
            "[[policy]]\nfile = 'd.o'\n[[policy]]\nfile = 'small.bpf.o'\n{first}\n[[policy]]\nfile = 'large.o'\n{maps}"
        )
    }

    #[test]
    fn chain_and_programs_are_read() {
        let maps =
            "[maps.jump]\nprograms = { 0 = 'small', 7 = 'large', 4294967295 = 'small' }\nscope = 'policy'";
        let m = Manifest::parse(&manifest("chain = false", maps)).unwrap();
        assert_eq!(m.policies.iter().map(|p| p.chain).collect::<Vec<_>>(), [true, false, true]);
        let slots: Vec<_> = m.maps["jump"].programs.iter().map(|(s, n)| (*s, n.as_str())).collect();
        assert_eq!(slots, [(0, "small"), (7, "large"), (u32::MAX, "small")]);
        // As a table of its own, and empty.
        let m = Manifest::parse(&manifest("", "[maps.jump.programs]\n0 = 'd'\n[maps.other]\nprograms = {}"))
            .unwrap();
        assert_eq!((m.maps["jump"].programs.len(), m.maps["other"].programs.len()), (1, 0));
    }

    #[test]
    fn errors_name_policy_and_slot() {
        let jump = |programs: &str| format!("[maps.jump]\nprograms = {{ {programs} }}");
        let cases = [
            (
                "",
                jump("0 = 'smal'"),
                "maps.jump.programs: slot 0: no policy is called \"smal\"; there are d, small, large",
            ),
            (
                "name = 'large'",
                jump("3 = 'large'"),
                "maps.jump.programs: slot 3: 2 policies are called \"large\"; give each a name",
            ),
            ("", jump("-1 = 'small'"), "line 9, column 12: programs: \"-1\" is no slot"),
            ("", jump("00 = 'small'"), "line 9, column 12: programs: \"00\" is no slot"),
            ("", jump("x = 'small'"), "line 9, column 12: programs: \"x\" is no slot"),
            ("", jump("4294967296 = 'small'"), "line 9, column 12: programs: \"4294967296\" is no slot"),
            ("", jump("0 = 1"), "line 9, column 18: invalid type: integer `1`, expected a string"),
            ("", jump("0 = 'small', 0 = 'large'"), "line 9, column 27: duplicate key"),
            (
                "chain = 'no'",
                jump("0 = 'small'"),
                "line 5, column 9: invalid type: string \"no\", expected a boolean",
            ),
            (
                "chain = false",
                jump("0 = 'large'"),
                "policy[1].chain: false, and no map's `programs` names \"small\", so it would never run",
            ),
            ("chain = false", String::new(), "policy[1].chain: false, and no map's"),
            (
                "chain = false\nops = ['connect']",
                jump("0 = 'small'"),
                "policy[1].ops: not with chain = false: the policy that tail-calls",
            ),
            (
                "chain = false\nevents = ['coll']",
                jump("0 = 'small'"),
                "policy[1].events: not with chain = false",
            ),
        ];
        for (first, maps, want) in cases {
            let text = manifest(first, &maps);
            let e = Manifest::parse(&text).expect_err(&text);
            assert_eq!(e.file(), MANIFEST);
            assert!(e.message().starts_with(want), "{text}\n{e}\nwanted {want}");
        }
    }

    #[test]
    fn a_chain_without_a_beginning_is_refused() {
        let text = "[[policy]]\nfile = 'a.o'\nchain = false\n[maps.m]\nprograms = { 0 = 'a' }";
        let e = Manifest::parse(text).unwrap_err();
        assert!(
            e.message().starts_with("policy: every policy has chain = false, so none is ever asked"),
            "{e}"
        );
    }
}
