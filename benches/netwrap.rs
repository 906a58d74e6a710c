//! CPU time of an `isend` and the `test` that finds it done, through the net wrapper and without it, in one run: the plugin below
//! does nothing at all (`tests/netplug`, built INSTANT), so what is measured is the way to it. Each case runs in a process of its own.

use anyhow::{Context, Result, bail};
use ringfence_benches::{Subject, built, cpu_per_call, header, root};
use ringfence_host::ffi::driver::Net;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 31;
const BATCH: u64 = 200_000;
const VERSION: usize = 12;

/// Case, and manifest (with `net_count`).
const CASES: [(&str, &str); 4] = [
    ("no policies", "policy = []\n"),
    ("other calls", "[[policy]]\nfile = 'net_count.bpf.o'\nops = ['connect']\n"),
    ("isend counted", "[[policy]]\nfile = 'net_count.bpf.o'\nops = ['isend']\n"),
    ("all counted", "[[policy]]\nfile = 'net_count.bpf.o'\n"),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, case] = args.as_slice()
        && child == "child"
    {
        return measure(case);
    }
    header("isend and test, CPU ns (median of 31 x 200000), net v12");
    println!("{:<16} {:>8} {:>10} {:>7} {:>9}", "policies", "direct", "wrapped", "ratio", "above");
    let below = instant_plugin()?;
    for (case, manifest) in CASES {
        let dir = tempfile::tempdir()?;
        std::fs::copy(policy()?, dir.path().join("net_count.bpf.o"))?;
        std::fs::write(dir.path().join("ringfence.toml"), manifest)?;
        let status = Command::new(std::env::current_exe()?)
            .args(["child", case])
            .env("RINGFENCE_POLICY", dir.path())
            .env("RINGFENCE_CHAIN_NET", &below)
            .env("RINGFENCE_LOG", "error")
            .status()?;
        if !status.success() {
            bail!("the run of {case:?} failed");
        }
    }
    Ok(())
}

fn policy() -> Result<PathBuf> {
    std::env::var_os("NET_COUNT").map_or_else(|| built("policies/net_count.bpf.o"), |p| Ok(p.into()))
}

fn library() -> Result<PathBuf> {
    std::env::var_os("RINGFENCE_SO").map_or_else(|| built("release/libnccl_ringfence.so"), |p| Ok(p.into()))
}

fn instant_plugin() -> Result<PathBuf> {
    let out = root().join("target/netplug_instant.so");
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-DINSTANT", "-DV12", "-o"])
        .arg(&out)
        .arg(root().join("tests/netplug/netplug.c"))
        .status()
        .context("cc is needed to build the plugin below")?;
    if !status.success() {
        bail!("cc failed on tests/netplug/netplug.c");
    }
    Ok(out)
}

fn measure(case: &str) -> Result<()> {
    let below = std::env::var_os("RINGFENCE_CHAIN_NET").context("RINGFENCE_CHAIN_NET")?;
    let open =
        |path: &Path| Net::open(path, VERSION).with_context(|| format!("{} does not open", path.display()));
    let (direct, wrapped) = (open(Path::new(&below))?, open(&library()?)?);
    let fails = |code| anyhow::anyhow!("the plugin returned {code}");
    let (a, b) = (direct.init(1).map_err(fails)?, wrapped.init(1).map_err(fails)?);
    let (mut a, mut b) = (direct.pair(a, 0).map_err(fails)?, wrapped.pair(b, 0).map_err(fails)?);
    let mut subjects = [("direct", &mut a), ("wrapped", &mut b)].map(|(name, pair)| Subject {
        name: name.to_owned(),
        calls: Box::new(move |n| {
            if let Err(code) = pair.send_and_test(n, 4096) {
                eprintln!("a transfer returned {code}");
            }
        }),
    });
    let ns = cpu_per_call(&mut subjects, ROUNDS, BATCH);
    println!("{case:<16} {:>8.1} {:>10.1} {:>6.1}x {:>9.1}", ns[0], ns[1], ns[1] / ns[0], ns[1] - ns[0]);
    Ok(())
}
