//! A trial for each NCCL of `RINGFENCE_NCCL_LIBS` and each scenario: `v2_30_7::ranks::one_process`. Without that variable there are
//! none, and one line says so. `make test-nccl` sets it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};
use ringfence_nccl::record::{self, Record};
use ringfence_nccl::versions::{LIBRARIES, Version, libraries};
use ringfence_nccl::{Findings, Lab, Scenario, scenarios};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn trials() -> Result<Vec<Trial>> {
    let value = std::env::var(LIBRARIES).unwrap_or_default();
    let libraries = libraries(&value)?;
    if libraries.is_empty() {
        eprintln!(
            "ringfence-nccl: SKIPPED all scenarios with real NCCL: {LIBRARIES} is not set (make test-nccl sets it)"
        );
    }
    let mut trials = Vec::new();
    for (version, library) in libraries {
        for scenario in scenarios::all() {
            let (name, library) = (format!("{}::{}", version.module(), scenario.name), library.clone());
            trials.push(Trial::test(name, move || {
                trial(version, library, scenario).map_err(|error| format!("{error:#}").into())
            }));
        }
    }
    Ok(trials)
}

fn trial(version: Version, library: PathBuf, scenario: Scenario) -> Result<()> {
    let out = ringfence_nccl::native::repository().join("target/nccl");
    let file = scenario.name.replace("::", ".");
    let scratch = out.join("scratch").join(version.to_string()).join(&file);
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_ringfence-nccl"));
    let lab = Lab::new(version, library, worker, scratch)?;
    let findings = (scenario.run)(&lab)?;
    write(&out.join("findings").join(version.to_string()).join(format!("{file}.json")), &findings)?;
    if std::env::var_os("BLESS").is_some() {
        return record::bless(version, scenario.name, &findings);
    }
    Record::read(&record::path())?.check(version, scenario.name, &findings)
}

fn write(path: &Path, findings: &Findings) -> Result<()> {
    let pairs: serde_json::Map<String, serde_json::Value> =
        findings.0.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let dir = path.parent().context("a file lies in a directory")?;
    std::fs::create_dir_all(dir)?;
    Ok(std::fs::write(path, serde_json::to_string_pretty(&pairs)?)?)
}
