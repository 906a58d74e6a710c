//! [`ask`] and [`ask_each`]: a run under the policy `witness`, which counts what NCCL asks, and its map, read from outside by `ringfence map dump` while
//! the communicators live.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::job::{Job, Run};
use crate::native;
use crate::scenario::Lab;
use crate::script::Step;

/// What NCCL asked, and how often, on all ranks of the process together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// The collective: `ncclFunc_t`.
    pub(super) func: u32,
    pub(super) bytes: u64,
    pub(super) num_pipe_ops: u32,
    pub(super) reg_buff: u32,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) calls: u64,
    /// A bit for each algorithm and protocol that NCCL offered.
    pub(super) offered: u64,
}

impl Question {
    /// As NCCL's log names it.
    pub(super) fn name(&self) -> &'static str {
        ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"]
            .get(self.func as usize)
            .unwrap_or(&"other")
    }

    /// `AllReduce 4096 B`, then what is not as usual, then the calls.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} {} B", self.name(), self.bytes);
        if self.num_pipe_ops != 1 {
            text += &format!(" numPipeOps {}", self.num_pipe_ops);
        }
        if self.reg_buff != 0 {
            text += " registered";
        }
        format!("{text} x{}", self.calls)
    }
}

/// All of them in one cell of the table.
pub(super) fn describe(questions: &[Question]) -> String {
    if questions.is_empty() {
        return "nothing".to_owned();
    }
    questions.iter().map(Question::describe).collect::<Vec<_>>().join(", ")
}

#[derive(Deserialize)]
struct Entry {
    key: Key,
    value: Value,
}

#[derive(Deserialize)]
struct Key {
    n_bytes: u64,
    func: u32,
    num_pipe_ops: u32,
    reg_buff: u32,
    n_ranks: u32,
    n_nodes: u32,
}

#[derive(Deserialize)]
struct Value {
    calls: u64,
    offered: u64,
}

/// [`ask_each`] with one phase.
pub(super) fn ask(
    lab: &Lab,
    job: Job<'_>,
    phase: Vec<Step>,
    after: Vec<Step>,
) -> Result<(Run, Vec<Question>)> {
    let (run, mut questions) = ask_each(lab, job, vec![phase], after)?;
    Ok((run, questions.pop().unwrap_or_default()))
}

/// One more process of the job goes through the phases, and what each of them asked is read from its map; then it runs `after`. Other
/// processes of the job have the policy too.
pub(super) fn ask_each(
    lab: &Lab,
    job: Job<'_>,
    phases: Vec<Vec<Step>>,
    after: Vec<Step>,
) -> Result<(Run, Vec<Vec<Question>>)> {
    let policy = native::policy("witness", &lab.scratch, &[])?;
    let marks: Vec<_> =
        (0..phases.len()).map(|i| (job.file(&format!("done{i}")), job.file(&format!("go{i}")))).collect();
    let mut steps = Vec::new();
    for (phase, (done, go)) in phases.into_iter().zip(&marks) {
        steps.extend(phase);
        steps.push(Step::Touch { path: done.clone() });
        steps.push(Step::WaitFile { path: go.clone(), timeout_ms: 60_000 });
    }
    steps.extend(after);
    let number = job.count();
    let mut running = job.policy(&policy).process(steps).start()?;
    let (mut asked, mut so_far) = (Vec::new(), Vec::new());
    for (done, go) in &marks {
        running.wait_for(done)?;
        let pid = running.pid(number).context("it was started")?;
        let dir = running.dir(number).context("it was started")?.to_owned();
        let now = dump(lab, pid, &dir)?;
        asked.push(since(&so_far, &now));
        so_far = now;
        fs::write(go, "")?;
    }
    let run = running.wait()?.pop().context("it was the last")?;
    Ok((run, asked))
}

/// What is in `now` and was not in `before`, by the count of calls.
fn since(before: &[Question], now: &[Question]) -> Vec<Question> {
    let calls_before = |q: &Question| {
        let same = |old: &&Question| {
            Question { calls: 0, offered: 0, ..(*old).clone() }
                == Question { calls: 0, offered: 0, ..q.clone() }
        };
        before.iter().find(same).map_or(0, |old| old.calls)
    };
    let rest = now.iter().map(|q| Question { calls: q.calls - calls_before(q), ..q.clone() });
    rest.filter(|q| q.calls > 0).collect()
}

fn dump(lab: &Lab, pid: u32, run_dir: &std::path::Path) -> Result<Vec<Question>> {
    // The status file, by which the command finds the process, is written once a second.
    let mut last = String::new();
    for _ in 0..600 {
        let output = Command::new(&lab.cli)
            .args(["map", "dump", "witness", "--json", "--pid", &pid.to_string()])
            .env("RINGFENCE_RUN_DIR", run_dir)
            .output()
            .with_context(|| format!("{}", lab.cli.display()))?;
        if output.status.success() {
            return parse(&String::from_utf8_lossy(&output.stdout));
        }
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(last.is_empty(), "ringfence map dump: {last}");
    Ok(Vec::new())
}

fn parse(text: &str) -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for line in text.lines() {
        let Entry { key, value } = serde_json::from_str(line).with_context(|| format!("map dump: {line}"))?;
        questions.push(Question {
            func: key.func,
            bytes: key.n_bytes,
            num_pipe_ops: key.num_pipe_ops,
            reg_buff: key.reg_buff,
            ranks: key.n_ranks,
            nodes: key.n_nodes,
            calls: value.calls,
            offered: value.offered,
        });
    }
    questions.sort_unstable();
    Ok(questions)
}
