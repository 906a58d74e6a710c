//! [`Speaker`]: what policies say, written to the log: lines of `bpf_printk`, and records of ring buffers that the manifest wants logged
//! (`[maps.NAME] log = true`), as JSON by the field names of the policy's source. Each policy and each ring buffer has a rate of its own;
//! what it exceeds is counted and said.

use super::control::message::record_type;
use super::status::LogStatus;
use super::value::show;
use crate::host::{Host, tell};
use crate::maps::Map;
use crate::policy_set::Plan;
use crate::printk::{Bucket, Lines};
use ringfence_translator::MapKind;
use std::sync::Arc;
use std::time::Instant;

/// Most lines and records that are taken from one source at a time: others want their turn, and a policy may go on writing.
const MOST: usize = 256;
/// Most bytes of records that are taken from one ring buffer at a time.
const MOST_BYTES: usize = 64 << 10;
/// Longest record, in bytes of JSON, that is logged whole.
const MAX_TEXT: usize = 1000;

/// See the module's text.
#[derive(Default)]
pub(super) struct Speaker {
    policies: Vec<(Arc<Lines>, Voice)>,
    rings: Vec<(Arc<Map>, Voice)>,
    counts: LogStatus,
}

/// Somebody who says something.
struct Voice {
    bucket: Bucket,
    /// Lines lost at the source when this was looked at last.
    lost: u64,
}

impl Voice {
    fn new() -> Voice {
        Voice { bucket: Bucket::new(Instant::now()), lost: 0 }
    }
}

impl Speaker {
    /// Totals so far.
    pub(super) fn counts(&self) -> LogStatus {
        self.counts
    }

    /// Writes what was said since the last time.
    pub(super) fn speak(&mut self, host: &Host) {
        let (plan, older) = (host.plan(), host.older_plans());
        self.policies.retain(|(lines, _)| Arc::strong_count(lines) > 1);
        self.rings.retain(|(ring, _)| Arc::strong_count(ring) > 1);
        for plan in std::iter::once(&plan).chain(&older) {
            for policy in plan.set().policies() {
                if let Some(lines) = policy.module.lines() {
                    self.policy(&policy.name, lines);
                }
            }
        }
        for ring in logged(&plan, host) {
            self.ring(&ring);
        }
    }

    fn policy(&mut self, name: &str, lines: &Arc<Lines>) {
        let voice = voice_of(&mut self.policies, lines);
        let said = std::iter::from_fn(|| lines.pop()).take(MOST).map(|line| line.text());
        let who = format!("policy {name}");
        say(&who, said, lines.lost(), voice, &mut self.counts);
    }

    fn ring(&mut self, ring: &Arc<Map>) {
        let voice = voice_of(&mut self.rings, ring);
        let mut said = Vec::new();
        ring.drain(MOST_BYTES, |record| said.push(record_text(ring, record)));
        let who = format!("map {}", ring.decl().name);
        say(&who, said.into_iter(), ring.dropped(), voice, &mut self.counts);
    }
}

/// The ring buffers that the manifest wants logged.
fn logged(plan: &Plan, host: &Host) -> Vec<Arc<Map>> {
    let wanted = |map: &Arc<Map>| {
        let entry = plan.set().manifest().maps.get(&map.decl().name);
        map.decl().kind == MapKind::RingBuf && entry.is_some_and(|m| m.log)
    };
    let maps = host.maps().map_or_else(Vec::new, |registry| registry.maps());
    maps.into_iter().filter(wanted).collect()
}

fn voice_of<'a, T>(voices: &'a mut Vec<(Arc<T>, Voice)>, of: &Arc<T>) -> &'a mut Voice {
    let at = voices.iter().position(|(known, _)| Arc::ptr_eq(known, of)).unwrap_or_else(|| {
        voices.push((of.clone(), Voice::new()));
        voices.len() - 1
    });
    &mut voices[at].1
}

fn record_text(ring: &Map, record: &[u8]) -> String {
    let ty = record_type(ring.decl().value_type.as_deref(), record.len());
    let mut text = serde_json::to_string(&show(record, &ty)).unwrap_or_default();
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

fn say(who: &str, said: impl Iterator<Item = String>, lost: u64, voice: &mut Voice, counts: &mut LogStatus) {
    let now = Instant::now();
    for text in said {
        if voice.bucket.passes(now) {
            counts.lines += 1;
            tell!(Info, "{who}: {text}");
        }
    }
    let held_back = voice.bucket.held_back();
    let more_lost = lost.saturating_sub(std::mem::replace(&mut voice.lost, lost));
    counts.suppressed += held_back;
    counts.lost += more_lost;
    if held_back + more_lost > 0 {
        let (burst, rate) = (crate::printk::BURST, crate::printk::RATE);
        tell!(
            Info,
            "{who}: {} more were left out ({burst} at once and {rate} a second are written)",
            held_back + more_lost
        );
    }
}
