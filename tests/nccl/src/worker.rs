//! [`run`]: a worker process. It reads a [`Script`] from standard input and writes one [`Report`] a line to standard output.

mod collective;
mod sets;
mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::nccl::{Code, Nccl, die_with_parent};
use crate::script::{Report, Script, Step};
use sets::Sets;

/// What came of a step, before it has a place.
pub(crate) struct Outcome {
    code: Code,
    values: BTreeMap<String, f64>,
}

impl From<Code> for Outcome {
    fn from(code: Code) -> Self {
        Self { code, values: BTreeMap::new() }
    }
}

impl Outcome {
    pub(crate) fn with(mut self, name: impl Into<String>, value: impl Into<f64>) -> Self {
        self.values.insert(name.into(), value.into());
        self
    }
}

/// What a step that is not NCCL's reports if it failed.
const FAILED: Code = Code(-1);

struct Worker<'a, W> {
    nccl: &'a Nccl,
    sets: Sets,
    out: W,
}

/// Carries out the script on standard input.
///
/// # Errors
/// The script cannot be read, NCCL cannot be opened, or standard output is closed. What NCCL answers is never an error here.
pub fn run() -> Result<()> {
    die_with_parent();
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("standard input")?;
    let script: Script = serde_json::from_str(&text).context("the script on standard input")?;
    let nccl = Nccl::open(&script.library, &script.fakegpu)?;
    let mut worker = Worker { nccl: &nccl, sets: Sets::default(), out: std::io::stdout().lock() };
    for (at, step) in script.steps.iter().enumerate() {
        worker.step(&at.to_string(), step)?;
    }
    Ok(())
}

impl<W: Write> Worker<'_, W> {
    fn step(&mut self, at: &str, step: &Step) -> Result<()> {
        if let Step::Repeat { times, body } = step {
            return self.repeat(at, *times, body);
        }
        let outcome = self.carry_out(step);
        self.report(at, step, outcome)
    }

    fn report(&mut self, at: &str, step: &Step, outcome: Outcome) -> Result<()> {
        let text = if outcome.code.0 > 0 { self.nccl.describe(outcome.code) } else { String::new() };
        let report = Report {
            at: at.to_owned(),
            step: kind(step),
            code: outcome.code.0,
            text,
            values: outcome.values,
        };
        // Flushed line by line: after a crash the last line tells how far it came.
        writeln!(self.out, "{}", serde_json::to_string(&report)?)?;
        Ok(self.out.flush()?)
    }

    fn repeat(&mut self, at: &str, times: u32, body: &[Step]) -> Result<()> {
        let (mut laps, mut code) = (0, Code::SUCCESS);
        'laps: while laps < times {
            for (i, step) in body.iter().enumerate() {
                let outcome = self.carry_out(step);
                code = outcome.code;
                let failed = code != Code::SUCCESS && code != Code::IN_PROGRESS;
                if failed || matches!(step, Step::Usage) {
                    self.report(&format!("{at}.{laps}.{i}"), step, outcome)?;
                }
                if failed {
                    break 'laps;
                }
            }
            laps += 1;
        }
        let step = Step::Repeat { times, body: Vec::new() };
        self.report(at, &step, Outcome::from(code).with("laps", laps))
    }

    fn carry_out(&mut self, step: &Step) -> Outcome {
        let Self { nccl, sets, .. } = self;
        match step {
            Step::Version => {
                let (code, version) = nccl.version();
                Outcome::from(code).with("version", version)
            }
            Step::InitAll { set, ranks } => sets.init_all(nccl, set, *ranks).into(),
            Step::InitRank { set, ranks, local, id_file, config } => {
                sets.init_rank(nccl, set, *ranks, local, id_file.as_deref(), config).into()
            }
            Step::Collective(one) => sets.launch(nccl, std::slice::from_ref(one)).into(),
            Step::Group { body } => sets.group(nccl, body).into(),
            Step::Simulate { body } => {
                let (code, microseconds) = sets.simulate(nccl, body);
                Outcome::from(code).with("estimate_us", microseconds)
            }
            Step::Split { set, into, colors, config } => sets.split(nccl, set, into, colors, config).into(),
            Step::Register { set, bytes } => sets.register(nccl, set, *bytes).into(),
            Step::Deregister { set } => sets.deregister(nccl, set).into(),
            Step::Settle { set, timeout_ms } => sets.settle(nccl, set, Duration::from_millis(*timeout_ms)),
            Step::Query { set } => sets.query(nccl, set),
            Step::Finalize { set } => sets.finalize(nccl, set).into(),
            Step::Destroy { set } => sets.destroy(nccl, set).into(),
            Step::Abort { set } => sets.abort(nccl, set).into(),
            Step::Usage => usage::measure(),
            Step::Sleep { ms } => {
                std::thread::sleep(Duration::from_millis(*ms));
                Code::SUCCESS.into()
            }
            Step::Touch { path } => fs::write(path, b"").map_or(FAILED, |()| Code::SUCCESS).into(),
            Step::WaitFile { path, timeout_ms } => {
                wait_for(path, Duration::from_millis(*timeout_ms)).map_or(FAILED, |()| Code::SUCCESS).into()
            }
            Step::Threads { bodies } => in_threads(nccl, bodies).into(),
            // A repetition inside another runs silently: only its last result counts.
            Step::Repeat { times, body } => self.silently(*times, body),
        }
    }

    fn silently(&mut self, times: u32, body: &[Step]) -> Outcome {
        for step in (0..times).flat_map(|_| body) {
            let outcome = self.carry_out(step);
            if outcome.code != Code::SUCCESS && outcome.code != Code::IN_PROGRESS {
                return outcome;
            }
        }
        Code::SUCCESS.into()
    }
}

/// Each body in a thread of its own; the first failure in the order of the bodies.
fn in_threads(nccl: &Nccl, bodies: &[Vec<Step>]) -> Code {
    std::thread::scope(|scope| {
        let work = |body: &[Step]| {
            Worker { nccl, sets: Sets::default(), out: std::io::sink() }.silently(1, body).code
        };
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(move || work(body).0)).collect();
        threads.into_iter().fold(Code::SUCCESS, |code, thread| {
            let this = thread.join().map_or(FAILED, Code);
            code.and(|| this)
        })
    })
}

/// The step's name in the script.
fn kind(step: &Step) -> String {
    let value = serde_json::to_value(step).unwrap_or_default();
    value["step"].as_str().unwrap_or("?").to_owned()
}

/// Waits for a file to appear. `None` if it did not.
pub(crate) fn wait_for(path: &Path, timeout: Duration) -> Option<()> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > timeout {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(())
}
