//! `ringfence run`: one decision with a policy, through verifier, translator and wasmtime.

use super::check::Refusal;
use super::cost::{COLS, CostModel, ROWS, pick};
use super::fields::Inputs;
use super::names::{algo_name, func_name, proto_name};
use super::{Exit, Out, hook, input, number, translate};
use crate::decision::{Applied, CostTable, Decision, TunerInput};
use crate::engine::Engine;
use crate::fault::Fault;
use crate::hooks::Hook;
use crate::instance::{Instance, Limits};
use crate::maps::{MapRegistry, Owner, ScopeRules};
use crate::policy::PolicyModule;
use crate::schema::Schema;
use anyhow::{Context, ensure};
use ringfence_translator::verify::{Env, Verifier};
use ringfence_translator::wasm::Translator;
use ringfence_translator::wasm::layout::CTX_MAX;
use ringfence_translator::{Program, Rejection};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

mod context;

/// Arguments of `ringfence run`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// eBPF object.
    file: PathBuf,
    #[command(flatten)]
    hook: hook::HookArgs,
    /// The program, where the object holds several.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Set a field of the context by its name, as n_bytes=4M or func=allreduce; name[3]=7 for an element. May be repeated.
    #[arg(long, visible_alias = "ctx", value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Memory of a generic program, as hexadecimal digits.
    #[arg(long, value_name = "HEX")]
    mem: Option<String>,
    /// Fuel of the call, if less than the bound that is proved for the program.
    #[arg(long, value_name = "UNITS")]
    fuel: Option<u64>,
    /// One JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command: exit code 1 if the policy is refused or the call ends in a fault.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let object = input::load_object(&args.file)?;
    let program = input::choose_program(&object, args.program.as_deref())?;
    let hook = translate::hook_of(&program, args.hook.resolve()?)?;
    if hook == Hook::Generic {
        ensure!(args.set.is_empty(), "--set is for hooks with fields; a generic program takes --mem");
        return run_generic(args, program, out);
    }
    ensure!(args.mem.is_none(), "--mem is for the generic hook; {hook} takes --set FIELD=VALUE");
    match hook.schema() {
        Some(schema) if !hook.decides() => run_fields(args, program, hook, schema, out),
        _ => run_tuner(args, program, hook, out),
    }
}

/// Most bytes of all maps of the policy.
const MAP_MEMORY: u64 = 1 << 30;

/// What came of making an instance.
type Made = Result<Instance, Box<Rejection>>;

fn instance(program: Program, env: Arc<Env>, fuel: Option<u64>) -> anyhow::Result<Made> {
    let verified = match Verifier::new(env).verify(program) {
        Ok(verified) => verified,
        Err(rejection) => return Ok(Err(Box::new(rejection))),
    };
    let module = Translator::new().translate(&verified).context("cannot translate")?;
    let engine = Engine::global()?;
    let policy = PolicyModule::compile(engine, module)?;
    let owner = Owner { policy: policy.name().to_owned(), communicator: 1 };
    let maps = MapRegistry::new(engine, MAP_MEMORY).resolve(policy.maps(), &ScopeRules::default(), &owner)?;
    Ok(Ok(Instance::new(&policy, &maps, Limits { fuel })?))
}

fn refused(rejection: &Rejection, json: bool, out: Out<'_>) -> anyhow::Result<Exit> {
    let refusal = Refusal::of_rejection(rejection);
    if json {
        let line = json!({"verdict": "rejected", "kind": refusal.kind, "pc": refusal.pc, "message": refusal.message});
        writeln!(out, "{line}")?;
    } else {
        refusal.print(&mut io::stderr())?;
    }
    Ok(Exit::Refused)
}

fn faulted(fault: &Fault, name: &str, hook: Hook, json: bool, out: Out<'_>) -> anyhow::Result<Exit> {
    if json {
        let line = json!({"program": name, "hook": hook.name(), "fault": fault.name(), "message": fault.to_string()});
        writeln!(out, "{line}")?;
    } else {
        writeln!(io::stderr(), "{name}: {fault}; the decision so far stands")?;
    }
    Ok(Exit::Refused)
}

fn run_generic(args: &Args, program: Program, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut mem = parse_hex(args.mem.as_deref().unwrap_or(""))?;
    ensure!(mem.len() <= CTX_MAX as usize, "--mem holds more than {CTX_MAX} bytes");
    let name = program.name().to_owned();
    let mut instance = match instance(program, Arc::new(Env::generic(mem.len() as u32)), args.fuel)? {
        Ok(instance) => instance,
        Err(rejection) => return refused(&rejection, args.json, out),
    };
    let r0 = match instance.run_generic(&mut mem) {
        Ok(r0) => r0,
        Err(fault) => return faulted(&fault, &name, Hook::Generic, args.json, out),
    };
    let hex: String = mem.iter().map(|b| format!("{b:02x}")).collect();
    let fuel = instance.fuel_used();
    if args.json {
        let r0 = format!("{r0:#x}");
        writeln!(out, "{}", json!({"program": name, "hook": "generic", "r0": r0, "mem": hex, "fuel": fuel}))?;
    } else {
        writeln!(out, "r0    {r0:#x}")?;
        if !hex.is_empty() {
            writeln!(out, "mem   {hex}")?;
        }
        writeln!(out, "fuel  {fuel} of {}", instance.fuel_limit())?;
    }
    Ok(Exit::Ok)
}

/// A program over the fields of any hook but the tuner's.
fn run_fields(
    args: &Args,
    program: Program,
    hook: Hook,
    schema: &Schema,
    out: Out<'_>,
) -> anyhow::Result<Exit> {
    let before = context::fill(schema, &args.set)?;
    let name = program.name().to_owned();
    let mut instance = match instance(program, hook.env(), args.fuel)? {
        Ok(instance) => instance,
        Err(rejection) => return refused(&rejection, args.json, out),
    };
    let mut ctx = before.clone();
    let submitted = match instance.run_context(&mut ctx) {
        Ok(submitted) => submitted,
        Err(fault) => return faulted(&fault, &name, hook, args.json, out),
    };
    let wrong = schema.check_decision(&mut ctx, &before).map(|f| f.name.as_str());
    let fuel = instance.fuel_used();
    if args.json {
        let decided = context::json(schema, &ctx);
        let line = json!({"program": name, "hook": hook.name(), "submitted": submitted, "decided": decided, "put_back": wrong, "fuel": fuel, "fault": null});
        writeln!(out, "{line}")?;
    } else {
        let word = if submitted { "submits" } else { "leaves the decision so far" };
        writeln!(out, "{name} ({hook}): {word}")?;
        write!(out, "{}", context::text(schema, &before, &ctx))?;
        if let Some(field) = wrong {
            writeln!(out, "  {field} was put back: the schema does not allow what the policy decided")?;
        }
        writeln!(out, "  fuel {fuel} of {}", instance.fuel_limit())?;
    }
    Ok(if wrong.is_some() { Exit::Refused } else { Exit::Ok })
}

/// Pairs of hexadecimal digits; white space is skipped.
fn parse_hex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    ensure!(digits.len().is_multiple_of(2), "--mem has an odd number of digits");
    let digit = |b: u8| {
        (b as char).to_digit(16).with_context(|| format!("--mem: '{}' is no hexadecimal digit", b as char))
    };
    digits.chunks_exact(2).map(|d| Ok((digit(d[0])? << 4 | digit(d[1])?) as u8)).collect()
}

/// A decision and what it was taken on.
struct Taken {
    name: String,
    hook: Hook,
    inputs: Inputs,
    decision: Decision,
    applied: Applied,
    /// What NCCL takes alone, and with the policy.
    alone: Option<(u32, u32)>,
    with: Option<(u32, u32)>,
    fuel: u64,
}

fn run_tuner(args: &Args, program: Program, hook: Hook, out: Out<'_>) -> anyhow::Result<Exit> {
    let inputs = Inputs::parse(hook, &args.set)?;
    let name = program.name().to_owned();
    let mut instance = match instance(program, hook.env(), args.fuel)? {
        Ok(instance) => instance,
        Err(rejection) => return refused(&rejection, args.json, out),
    };
    let model = CostModel { n_ranks: inputs.comm.n_ranks.max(1), n_nodes: inputs.comm.n_nodes.max(1) };
    let mut costs = model.costs(inputs.func, inputs.n_bytes);
    let alone = pick(&costs);
    let mut table = CostTable::new(&mut costs, ROWS as u32, COLS as u32).context("no cost table")?;
    let input = TunerInput {
        comm: &inputs.comm,
        func: inputs.func,
        n_bytes: inputs.n_bytes,
        num_pipe_ops: inputs.num_pipe_ops,
        reg_buff: inputs.reg_buff,
        call_seq: inputs.call_seq,
        costs: table.costs(),
    };
    let decision = match instance.decide(&input, inputs.so_far()) {
        Ok(decision) => decision,
        Err(fault) => return faulted(&fault, &name, hook, args.json, out),
    };
    let applied = table.apply(decision, inputs.comm.max_channels);
    let fuel = instance.fuel_used();
    let taken = Taken { name, hook, inputs, decision, applied, alone, with: pick(&costs), fuel };
    if args.json {
        writeln!(out, "{}", taken.json())?
    } else {
        taken.text(instance.fuel_limit(), out)?
    }
    Ok(Exit::Ok)
}

fn pair_json(pair: Option<(u32, u32)>) -> Value {
    pair.map_or(Value::Null, |(a, p)| json!({"algo": algo_name(a), "proto": proto_name(p)}))
}

fn pair_text(pair: Option<(u32, u32)>) -> String {
    pair.map_or_else(|| "nothing".into(), |(a, p)| format!("{}/{}", algo_name(a), proto_name(p)))
}

impl Taken {
    fn json(&self) -> Value {
        let route = self.decision.route;
        json!({
            "program": self.name,
            "hook": self.hook.name(),
            "func": func_name(self.inputs.func),
            "n_bytes": self.inputs.n_bytes,
            "n_ranks": self.inputs.comm.n_ranks,
            "n_nodes": self.inputs.comm.n_nodes,
            "algo": route.map(|(a, _)| a.name()),
            "proto": route.map(|(_, p)| p.name()),
            "channels": self.decision.channels.map_or(0, |n| n.get()),
            "applied_channels": self.applied.channels.map_or(0, |n| n.get()),
            "available": route.is_none() || self.applied.route.is_some(),
            "nccl_alone": pair_json(self.alone),
            "nccl_with_policy": pair_json(self.with),
            "fuel": self.fuel,
            "fault": null,
        })
    }

    fn text(&self, limit: u64, out: Out<'_>) -> io::Result<()> {
        let (i, c) = (&self.inputs, &self.inputs.comm);
        let (func, bytes) = (func_name(i.func), number::bytes(i.n_bytes));
        writeln!(
            out,
            "{} ({}): {func} of {bytes} on {}, {}",
            self.name,
            self.hook,
            number::count(c.n_ranks, "rank"),
            number::count(c.n_nodes, "node")
        )?;
        let route = match self.decision.route {
            None => "leaves algorithm and protocol to NCCL".to_owned(),
            Some((a, p)) if self.applied.route.is_some() => format!("algorithm {a}, protocol {p}"),
            Some((a, p)) => format!("algorithm {a}, protocol {p}, which NCCL does not offer here"),
        };
        let channels = match (self.decision.channels, self.applied.channels) {
            (None, _) => "channels left to NCCL".to_owned(),
            (Some(want), Some(got)) if want != got => format!("{want} channels, bounded to {got}"),
            (Some(want), _) => format!("{want} channels"),
        };
        writeln!(out, "  policy  {route}; {channels}")?;
        writeln!(out, "  NCCL    {} alone, {} with the policy", pair_text(self.alone), pair_text(self.with))?;
        writeln!(out, "  fuel    {} of {limit}", self.fuel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_pairs_of_digits() {
        assert_eq!(parse_hex("00 fF\n10").unwrap(), [0, 255, 16]);
        assert!(parse_hex("").unwrap().is_empty());
        assert!(parse_hex("0").is_err() && parse_hex("0g").is_err() && parse_hex("é0").is_err());
    }
}
