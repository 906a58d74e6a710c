//! [`MapNumbers`]: a number for each map of the process, by which tools name it. It is never given to another map, so what a tool
//! writes after a reload cannot reach the wrong one.

use crate::maps::{Map, MapRegistry};
use std::sync::{Arc, Weak};

/// Numbers given so far.
#[derive(Debug, Default)]
pub(crate) struct MapNumbers {
    last: u64,
    known: Vec<(u64, Weak<Map>)>,
}

/// A map with its number.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    pub(crate) id: u64,
    pub(crate) map: Arc<Map>,
    /// Who shares it.
    pub(crate) scope: String,
}

impl MapNumbers {
    /// The live maps of a registry in the order of their numbers.
    pub(crate) fn of(&mut self, registry: &MapRegistry) -> Vec<Numbered> {
        self.known.retain(|(_, map)| map.strong_count() > 0);
        let mut maps: Vec<_> = registry
            .scoped_maps()
            .into_iter()
            .map(|(map, scope)| Numbered { id: self.number(&map), map, scope })
            .collect();
        maps.sort_by_key(|m| m.id);
        maps
    }

    fn number(&mut self, map: &Arc<Map>) -> u64 {
        let same = |(_, known): &&(u64, Weak<Map>)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(map));
        if let Some((id, _)) = self.known.iter().find(same) {
            return *id;
        }
        self.last += 1;
        self.known.push((self.last, Arc::downgrade(map)));
        self.last
    }
}
