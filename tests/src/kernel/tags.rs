//! [`Tags`]: the declaration tags of functions in an object's BTF, which is where the kernel's selftests keep what
//! they expect of a program (`comment:test_expect_success` and so on).

use object::{Object as _, ObjectSection as _};
use std::collections::BTreeMap;

const FUNC: u32 = 12;
const DECL_TAG: u32 = 17;

/// Tags by function, in the order of the file.
#[derive(Debug, Default)]
pub struct Tags(BTreeMap<String, Vec<String>>);

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
}

/// Bytes behind the 12 that every record has.
fn tail(kind: u32, vlen: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | DECL_TAG => 4,
        3 => 12,
        4 | 5 | 15 | 19 => 12 * vlen,
        6 | 13 => 8 * vlen,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

impl Tags {
    /// Reads them; `None` if the object has no BTF that makes sense.
    pub fn of(elf: &[u8]) -> Option<Tags> {
        let file = object::File::parse(elf).ok()?;
        let btf = file.section_by_name(".BTF")?.data().ok()?;
        let head = word(btf, 4)? as usize;
        let types = btf.get(head + word(btf, 8)? as usize..)?.get(..word(btf, 12)? as usize)?;
        let strings = btf.get(head + word(btf, 16)? as usize..)?;
        let string = |at: u32| {
            let rest = strings.get(at as usize..)?;
            Some(String::from_utf8_lossy(&rest[..rest.iter().position(|b| *b == 0)?]).into_owned())
        };
        let (mut records, mut at) = (vec![(0, 0, 0)], 0);
        while at < types.len() {
            let (name, info, of) = (word(types, at)?, word(types, at + 4)?, word(types, at + 8)?);
            let kind = info >> 24 & 31;
            records.push((name, kind, of));
            at += 12 + tail(kind, info as usize & 0xffff)?;
        }
        let mut out = Tags::default();
        for (tag, _, of) in records.iter().filter(|r| r.1 == DECL_TAG) {
            let Some((name, FUNC, _)) = records.get(*of as usize) else { continue };
            out.0.entry(string(*name)?).or_default().push(string(*tag)?);
        }
        Some(out)
    }

    /// What follows `comment:test_` in the tags of that function.
    pub fn of_test(&self, function: &str) -> impl Iterator<Item = &str> {
        let tags = self.0.get(function).map_or(&[][..], Vec::as_slice);
        tags.iter().filter_map(|t| t.strip_prefix("comment:test_"))
    }

    /// Does it have tags for its arguments?
    pub fn has_argument_tags(&self, function: &str) -> bool {
        self.0.get(function).is_some_and(|tags| tags.iter().any(|t| t.starts_with("arg:")))
    }
}
