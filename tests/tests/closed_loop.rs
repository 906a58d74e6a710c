//! The closed loop, `replay --simulate`: a profiler policy measures, a tuner policy adapts channels, on the built plugin. What is
//! asserted are steps, which the seed fixes; no real time is involved.

mod plugin;

use plugin::{policy, shipped, so};
use ringfence_tests::built;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What one run said.
#[derive(Debug, PartialEq)]
struct Run {
    code: Option<i32>,
    events: Vec<Value>,
}

impl Run {
    fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|e| e["event"] == kind).collect()
    }

    /// Channels of each collective of a phase.
    fn channels(&self, phase: &str) -> Vec<u64> {
        let of = self.of("collective").into_iter().filter(|e| e["phase"] == phase);
        of.map(|e| e["channels"].as_u64().unwrap()).collect()
    }

    fn settled(&self, phase: &str) -> u64 {
        let of = self.of("phase").into_iter().find(|e| e["phase"] == phase);
        of.unwrap_or_else(|| panic!("{self:?}"))["settled_channels"].as_u64().unwrap()
    }

    fn faults(&self) -> Vec<String> {
        let verdict = self.of("verdict");
        let faults =
            verdict.last().unwrap_or_else(|| panic!("{self:?}"))["faults"].as_array().unwrap().clone();
        faults.iter().map(|f| f.as_str().unwrap().to_owned()).collect()
    }
}

/// Runs the loop with a policy object and more arguments.
fn run(object: &[u8], more: &[&str]) -> Run {
    replay(object, &[&["--simulate"], more].concat())
}

/// Replays the loop's trace with a policy object and more arguments.
fn replay(object: &[u8], more: &[&str]) -> Run {
    replay_all(&[object], more)
}

/// Replays the loop's trace with a directory of policies.
fn replay_all(objects: &[&[u8]], more: &[&str]) -> Run {
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    for (i, object) in objects.iter().enumerate() {
        fs::write(dir.path().join(format!("{i}.bpf.o")), object).unwrap();
    }
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/loop.csv");
    let mut command = Command::new(built::dir().join("ringfence"));
    command.arg("replay").arg("--plugin").arg(so()).arg("--policy").arg(dir.path()).arg("--trace").arg(trace);
    let output = command.arg("--json").args(more).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")));
    let run = Run { code: output.status.code(), events: events.collect() };
    assert!(!run.events.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    run
}

/// The scenario that is built in, changed.
fn scenario(dir: &TempDir, from: &str, to: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src/cli/replay/scenario.toml");
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from}");
    let file = dir.path().join("scenario.toml");
    fs::write(&file, text.replace(from, to)).unwrap();
    file.to_string_lossy().into_owned()
}

#[test]
fn channels_step_down_under_contention_and_back_in_recovery() {
    let object = shipped("closed_loop");
    let run = run(&object, &["--ranks", "8"]);
    assert_eq!(run.faults(), [] as [String; 0]);
    assert_eq!(run.code, Some(0));
    assert!(run.settled("baseline") >= 10, "{}", run.settled("baseline"));
    assert!(run.settled("contention") <= 4, "{}", run.settled("contention"));
    assert!(run.settled("recovery") >= 10, "{}", run.settled("recovery"));
    let (baseline, contention, recovery) =
        (run.channels("baseline"), run.channels("contention"), run.channels("recovery"));
    let all: Vec<u64> = [baseline.clone(), contention.clone(), recovery.clone()].concat();
    assert!(all.windows(2).all(|w| w[0].abs_diff(w[1]) <= 1), "one step at a time: {all:?}");
    assert!(baseline.is_sorted(), "a free link: {baseline:?}");
    let half = &contention[..contention.len() / 2];
    assert!(half.iter().any(|n| *n <= 4), "it is down before half of the contention: {contention:?}");
    assert!(recovery[..recovery.len() / 2].iter().any(|n| *n >= 10), "{recovery:?}");
}

#[test]
fn a_run_is_the_seed_s_and_every_seed_s_run_adapts() {
    let object = shipped("closed_loop");
    let dir = tempfile::tempdir().unwrap();
    let of = |seed: &str| {
        let file = scenario(&dir, "seed = 1 ", &format!("seed = {seed} "));
        run(&object, &["--ranks", "4", "--model", &file])
    };
    let first = of("2");
    assert_eq!(first, of("2"));
    for seed in ["3", "4", "5", "6"] {
        let run = of(seed);
        assert_eq!((run.code, run.faults()), (Some(0), vec![]), "seed {seed}");
        assert_ne!(run.of("collective"), first.of("collective"));
    }
}

/// Without contention nothing may step down, and the run says that the scenario was not met.
#[test]
fn without_contention_nothing_steps_down() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "background = 0.75", "background = 0.0");
    let run = run(&shipped("closed_loop"), &["--model", &file]);
    assert_eq!(run.settled("contention"), run.settled("baseline"));
    assert_eq!(run.code, Some(1));
    assert!(run.faults().iter().any(|f| f.contains("less than twice")), "{:?}", run.faults());
}

/// The report judges the loop, not itself: a policy that does not adapt fails it.
#[test]
fn policies_that_close_no_loop_fail() {
    let object = policy("choose", &["ALGO=1", "PROTO=2", "CHANNELS=8"]);
    let run = run(&object, &[]);
    assert_eq!(run.code, Some(1));
    let faults = run.faults();
    assert!(faults.iter().any(|f| f.contains("no profiler events")), "{faults:?}");
    assert!(faults.iter().any(|f| f.contains("less than twice")), "{faults:?}");
}

/// adaptive_channels compares a latency with the average of the last few. Where fewer channels are slower, a step down by chance makes the
/// next one more likely, and so it swings between its bounds. The report says so.
#[test]
fn a_policy_that_compares_with_its_own_average_swings() {
    let (measures, adapts) = (shipped("latency_map"), shipped("adaptive_channels"));
    let run = replay_all(&[&measures, &adapts], &["--simulate", "--ranks", "8"]);
    let baseline = run.channels("baseline");
    assert!(baseline.contains(&1) && baseline.contains(&12), "{baseline:?}");
    assert_eq!(run.code, Some(1), "{:?}", run.faults());
}

/// `--profiler` alone: an ordinary replay whose collectives the profiler half is told of, on an idle machine.
#[test]
fn an_ordinary_replay_can_drive_the_profiler_half() {
    let object = shipped("closed_loop");
    let usual = |more: &[&str]| {
        let run = replay(&object, &[&["--calls", "400"], more].concat());
        assert_eq!(run.code, Some(0), "{run:?}");
        run.of("decision")[0]["channels"].as_u64().unwrap()
    };
    assert_eq!(usual(&[]), 4, "nothing is measured, so nothing changes");
    assert_eq!(usual(&["--profiler"]), 12);
}
