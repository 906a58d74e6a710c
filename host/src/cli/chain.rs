//! `ringfence chain show`: which policies a source puts on each hook, in which order they are asked, what they share, and
//! where their tail calls lead.

use super::table::Table;
use super::{Exit, Out};
use crate::config::{ScopeName, Source};
use crate::ffi::{chain_tuner, net, profiler};
use crate::hooks::Hook;
use crate::policy_set::{Policy, PolicySet, TailSlot};
use anyhow::Context;
use ringfence_translator::MapKind;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `ringfence chain`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the chain of each hook as a policy directory, or one object, makes it.
    Show(Show),
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The policy directory or object; default: what RINGFENCE_POLICY names.
    #[arg(value_name = "PATH")]
    source: Option<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn json(&self) -> bool {
        let Command::Show(show) = &self.command;
        show.json
    }
}

/// Runs the command: exit code 1 if the set is refused.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let Command::Show(show) = &args.command;
    let source = match &show.source {
        Some(path) => Source::at(path),
        None => Source::from_env().context("name a policy directory, or set RINGFENCE_POLICY")?,
    };
    let set = match PolicySet::load(&source) {
        Ok(set) => set,
        Err(error) => {
            match show.json {
                true => writeln!(out, "{}", json!({ "error": error.to_string() }))?,
                false => writeln!(out, "refused: {error}")?,
            }
            return Ok(Exit::Refused);
        }
    };
    match show.json {
        true => writeln!(out, "{}", as_json(&set))?,
        false => write!(out, "{}", as_text(&set))?,
    }
    Ok(Exit::Ok)
}

/// The hooks that have a chain, in the order of the hooks, each with its policies and their places in the manifest.
fn chains(set: &PolicySet) -> Vec<(&'static str, Vec<(usize, &Policy)>)> {
    // Both decide for NCCL's tuner, in one chain.
    let name = |hook: Hook| if hook.decides() { Hook::Tuner.name() } else { hook.name() };
    let mut chains: Vec<(&str, Vec<(usize, &Policy)>)> = Vec::new();
    for (place, policy) in set.policies().iter().enumerate() {
        let hook = name(policy.module.hook());
        match chains.iter_mut().find(|(h, _)| *h == hook) {
            Some((_, chain)) => chain.push((place, policy)),
            None => chains.push((hook, vec![(place, policy)])),
        }
    }
    chains.sort_by_key(|(hook, _)| Hook::offered().position(|h| h.name() == *hook));
    chains
}

/// The chained plugin of a hook, where the environment names one.
fn downstream(hook: &str) -> Option<String> {
    let variable = match hook {
        "tuner" => chain_tuner::CHAIN_VAR,
        "profiler" => profiler::CHAIN_VAR,
        "net" => net::CHAIN_NET_VAR,
        _ => return None,
    };
    let value = std::env::var_os(variable).filter(|v| !v.is_empty())?;
    Some(format!("{variable}={}", value.display()))
}

/// Maps of a policy that others can see, with their scope: `latency (communicator)`.
fn maps(set: &PolicySet, policy: &Policy) -> Vec<String> {
    let scope = |name: &str| set.manifest().maps.get(name).map_or(ScopeName::default(), |m| m.scope);
    let shared = policy.module.maps().iter().filter(|m| m.kind != MapKind::Global);
    shared.map(|m| format!("{} ({})", m.name, scope(&m.name).as_str())).collect()
}

fn as_text(set: &PolicySet) -> String {
    let mut text = format!("policy {}\n", set.describe());
    for (hook, chain) in chains(set) {
        text += &format!("\n{hook}\n");
        if let Some(before) = downstream(hook) {
            text += &format!("  first: {before} (native code, not confined)\n");
        }
        let mut table = Table::new(2, &["", "policy", "program", "section", "fuel", "maps"]);
        for (i, (_, policy)) in chain.iter().enumerate() {
            let module = &policy.module;
            table.row([
                (i + 1).to_string(),
                policy.name.clone(),
                module.name().to_owned(),
                module.section().to_owned(),
                module.max_fuel().map_or("-".into(), |n| n.to_string()),
                maps(set, policy).join(", "),
            ]);
        }
        text += &table.to_string();
        for (_, policy) in chain.iter().filter(|(_, p)| !p.tails.is_empty()) {
            text += &format!("  tail calls of {}: {}\n", policy.name, tails(policy));
        }
    }
    text
}

/// Where the tail calls of a policy lead, and those of the programs that they lead to: `jump_table[0] small.decide, ...`.
fn tails(policy: &Policy) -> String {
    let slots = policy.tails.iter().map(|t| format!("{}[{}] {}", t.map, t.slot, t.function));
    slots.collect::<Vec<_>>().join(", ")
}

fn as_json(set: &PolicySet) -> Value {
    let tail = |t: &TailSlot| json!({ "map": t.map, "slot": t.slot, "function": t.function });
    let policy = |(place, policy): &(usize, &Policy)| {
        let module = &policy.module;
        json!({
            "place": place,
            "policy": policy.name,
            "file": policy.file,
            "program": module.name(),
            "section": module.section(),
            "hash": module.hash().to_string(),
            "max_fuel": module.max_fuel(),
            "maps": maps(set, policy),
            "tail_calls": policy.tails.iter().map(tail).collect::<Vec<_>>(),
        })
    };
    let chain = |(hook, chain): &(&str, Vec<(usize, &Policy)>)| {
        json!({
            "hook": hook,
            "first": downstream(hook),
            "policies": chain.iter().map(policy).collect::<Vec<_>>(),
        })
    };
    json!({ "hash": set.hash().to_string(), "hooks": chains(set).iter().map(chain).collect::<Vec<_>>() })
}
