//! [`Job`]: worker processes with the environment that NCCL and our plugin see; [`Run`]: what one of them left.
//!
//! A worker that does not end in time is killed and its [`End`] says so: a hang is a result like a crash, and never hangs a test. Workers
//! start no processes, and stay in the process group of the test, which its runner kills as a whole.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::log::NcclLog;
use crate::native;
use crate::scenario::Lab;
use crate::script::{Report, Script, Step};
use crate::shm;

/// How long a worker may take unless a scenario says otherwise. The longest takes a few seconds on two idle cores.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Processes to be started together.
pub struct Job<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    env: BTreeMap<OsString, OsString>,
    processes: Vec<Process>,
    timeout: Duration,
}

struct Process {
    steps: Vec<Step>,
    env: BTreeMap<OsString, OsString>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was killed because it took too long.
    Timeout,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit {code}"),
            End::Signal(libc::SIGSEGV) => f.write_str("SIGSEGV"),
            End::Signal(libc::SIGFPE) => f.write_str("SIGFPE"),
            End::Signal(libc::SIGABRT) => f.write_str("SIGABRT"),
            End::Signal(libc::SIGBUS) => f.write_str("SIGBUS"),
            End::Signal(number) => write!(f, "signal {number}"),
            End::Timeout => f.write_str("hang"),
        }
    }
}

/// What a worker left.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub end: End,
    /// A result for each step that it came to.
    pub reports: Vec<Report>,
    /// NCCL's log.
    pub log: NcclLog,
    /// Its standard error.
    pub stderr: String,
    /// Where all of it lies.
    pub dir: PathBuf,
}

impl Run {
    /// Fails unless the worker ended well, every step succeeded, and NCCL asked nothing of the fake GPU that it does not have.
    ///
    /// # Errors
    /// The first thing that was not so.
    pub fn expect_clean(&self) -> Result<&Self> {
        self.expect_end(End::Exit(0))?;
        match self.reports.iter().find(|report| report.code != 0 && report.code != 7) {
            Some(bad) => bail!("step {} {}: code {} {}\n{self}", bad.at, bad.step, bad.code, bad.text),
            None => Ok(self),
        }
    }

    /// Fails unless the worker ended so, and NCCL asked nothing of the fake GPU that it does not have.
    ///
    /// # Errors
    /// The first thing that was not so.
    pub fn expect_end(&self, end: End) -> Result<&Self> {
        if self.end != end {
            bail!("the worker should have ended with {end}, but: {}\n{self}", self.end);
        }
        match self.stderr.lines().find(|line| line.contains("[fakegpu]") && line.contains("not implemented"))
        {
            Some(line) => bail!("NCCL asked for what the fake GPU has not: {line}\n{self}"),
            None => Ok(self),
        }
    }

    /// The results of all steps of a kind.
    pub fn of<'a>(&'a self, step: &'a str) -> impl Iterator<Item = &'a Report> {
        self.reports.iter().filter(move |report| report.step == step)
    }

    /// The result of the first step of a kind.
    ///
    /// # Errors
    /// The worker did not come to one.
    pub fn first(&self, step: &str) -> Result<&Report> {
        let found = self.reports.iter().find(|report| report.step == step);
        found.with_context(|| format!("the worker came to no {step}\n{self}"))
    }

    /// The sum of a metric's series whose labels contain `label`, from the file that our plugin writes when the first communicator begins
    /// and when the last one ends.
    ///
    /// # Errors
    /// There is no such file, or no such metric.
    pub fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let path = self.dir.join("metrics.prom");
        let text = fs::read_to_string(&path).with_context(|| format!("{}\n{self}", path.display()))?;
        ensure!(text.contains(&format!("# TYPE {name} ")), "{}: there is no {name}", path.display());
        let series =
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let wanted =
            series.filter(|(series, _)| series.split('{').next() == Some(name) && series.contains(label));
        wanted.map(|(_, value)| value.parse::<f64>()).try_fold(0.0, |sum, value| Ok(sum + value?))
    }
}

/// What helps to see why: for the text of errors.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} after {} steps, in {}", self.end, self.reports.len(), self.dir.display())?;
        if let Some(last) = self.reports.last() {
            writeln!(f, "last step: {} {} code {} {}", last.at, last.step, last.code, last.text)?;
        }
        let from = self.log.lines.len().saturating_sub(12);
        for line in &self.log.lines[from..] {
            writeln!(f, "  nccl: {}", line.text)?;
        }
        let errors: Vec<_> = self.stderr.lines().collect();
        for line in &errors[errors.len().saturating_sub(8)..] {
            writeln!(f, "  stderr: {line}")?;
        }
        Ok(())
    }
}

impl<'a> Job<'a> {
    /// A job whose files go into a new directory `name` of the scenario's own.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(lab: &'a Lab, name: &str) -> Result<Self> {
        let dir = lab.scratch.join(name);
        fs::create_dir(&dir).with_context(|| format!("{}: one job, one name", dir.display()))?;
        let job = Self { lab, dir, env: BTreeMap::new(), processes: Vec::new(), timeout: TIMEOUT };
        Ok(job.quiet())
    }

    /// What keeps the machine and its settings out of a run, and makes it quick.
    fn quiet(self) -> Self {
        self.env("NCCL_CONF_FILE", "/dev/null")
            // Channels and transports follow from the topology, so it must not be the machine's.
            .topology("pci8")
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,COLL")
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_DISABLE", "1")
            // Its port belongs to the machine, and several jobs run at once.
            .env("NCCL_RAS_ENABLE", "0")
            .env("NCCL_TUNER_PLUGIN", "none")
            .env("NCCL_PROFILER_PLUGIN", "none")
            .env("NCCL_NET_PLUGIN", "none")
            .env("NCCL_ENV_PLUGIN", "none")
            .env("NCCL_GIN_PLUGIN", "none")
            .env("NCCL_RMA_PLUGIN", "none")
    }

    /// Sets a variable in all processes.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Another machine: a file of `tests/nccl/topology`. `pci8`, where nothing else is said, has eight GPUs on two sockets, each on a PCI
    /// link of its own; `nvlink8` connects them by four NVLink switches as well.
    #[must_use]
    pub fn topology(self, name: &str) -> Self {
        let file = native::repository().join("tests/nccl/topology").join(format!("{name}.xml"));
        self.env("NCCL_TOPO_FILE", file)
    }

    /// Our plugin as the tuner, with a policy: an object or a directory.
    #[must_use]
    pub fn policy(self, source: &Path) -> Self {
        let so = self.lab.so.clone();
        self.env("NCCL_TUNER_PLUGIN", so).env("RINGFENCE_POLICY", source)
    }

    /// Another time limit for each process.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// One more process.
    #[must_use]
    pub fn process(self, steps: Vec<Step>) -> Self {
        self.process_with(steps, [])
    }

    /// One more process, with variables of its own.
    #[must_use]
    pub fn process_with<const N: usize>(mut self, steps: Vec<Step>, env: [(&str, &str); N]) -> Self {
        let env = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self.processes.push(Process { steps, env });
        self
    }

    /// How many processes there are so far; the next one has this number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// A file of this job, for [`Step::Touch`], [`Step::WaitFile`] and unique ids.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts all and waits for all.
    ///
    /// # Errors
    /// One cannot be started, or what it left cannot be read.
    pub fn run(self) -> Result<Vec<Run>> {
        self.start()?.wait()
    }

    /// Runs the only process.
    ///
    /// # Errors
    /// As for [`Job::run`].
    pub fn run_one(self, steps: Vec<Step>) -> Result<Run> {
        let mut runs = self.process(steps).run()?;
        runs.pop().context("a job of one process")
    }

    /// Starts all. The caller may do things beside them, then has to wait.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn start(self) -> Result<Running> {
        let mut running = Running {
            workers: Vec::new(),
            started: SystemTime::now(),
            deadline: Instant::now() + self.timeout,
        };
        for (number, process) in self.processes.iter().enumerate() {
            running.workers.push(self.spawn(number, process)?);
        }
        Ok(running)
    }

    fn spawn(&self, number: usize, process: &Process) -> Result<Worker> {
        let dir = self.dir.join(format!("process{number}"));
        fs::create_dir(&dir)?;
        let script = Script {
            library: self.lab.library.clone(),
            fakegpu: self.lab.fakegpu.clone(),
            steps: process.steps.clone(),
        };
        fs::write(dir.join("script.json"), serde_json::to_string_pretty(&script)?)?;
        let mut command = Command::new(&self.lab.worker);
        command.arg("worker").current_dir(&dir);
        command.stdin(File::open(dir.join("script.json"))?);
        command.stdout(File::create(dir.join("reports.jsonl"))?);
        command.stderr(File::create(dir.join("stderr.txt"))?);
        for (name, _) in std::env::vars_os() {
            if ["NCCL_", "RINGFENCE_", "FAKEGPU_"].iter().any(|p| name.to_string_lossy().starts_with(p)) {
                command.env_remove(name);
            }
        }
        command.env("LD_PRELOAD", &self.lab.patience).env("NCCL_DEBUG_FILE", dir.join("nccl.log"));
        command.env("RINGFENCE_RUN_DIR", &dir).env("RINGFENCE_METRICS_FILE", dir.join("metrics.prom"));
        command.envs(&self.env).envs(&process.env);
        let child = command.spawn().with_context(|| format!("{}", self.lab.worker.display()))?;
        write_command(&dir, &command)?;
        Ok(Worker { child, dir })
    }
}

/// Leaves a shell script beside the logs that runs this worker again.
fn write_command(dir: &Path, command: &Command) -> Result<()> {
    let mut file = File::create(dir.join("again.sh"))?;
    writeln!(file, "#!/bin/sh\ncd {dir:?} || exit 1")?;
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => writeln!(file, "export {}={value:?}", name.display())?,
            None => writeln!(file, "unset {}", name.display())?,
        }
    }
    Ok(writeln!(file, "exec {:?} worker < script.json", command.get_program())?)
}

struct Worker {
    child: Child,
    dir: PathBuf,
}

/// Started processes.
pub struct Running {
    workers: Vec<Worker>,
    started: SystemTime,
    deadline: Instant,
}

impl Running {
    /// The process number of a worker.
    #[must_use]
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.workers.get(number).map(|worker| worker.child.id())
    }

    /// Where a worker's files are.
    #[must_use]
    pub fn dir(&self, number: usize) -> Option<&Path> {
        self.workers.get(number).map(|worker| worker.dir.as_path())
    }

    /// Waits for a file that a worker touches.
    ///
    /// # Errors
    /// It did not come before the job's time was over, or all workers ended.
    pub fn wait_for(&mut self, path: &Path) -> Result<()> {
        self.wait_until(&format!("a worker touched {}", path.display()), || path.exists())
    }

    /// Waits until the status file of a worker's process, which our plugin writes once a second, contains `part`.
    ///
    /// # Errors
    /// It did not before the job's time was over, or all workers ended.
    pub fn wait_for_status(&mut self, number: usize, part: &str) -> Result<()> {
        let worker = self.workers.get(number).context("there is no such worker")?;
        let file = worker.dir.join(format!("{}.status.json", worker.child.id()));
        self.wait_until(&format!("{} tells of {part}", file.display()), || {
            fs::read_to_string(&file).is_ok_and(|text| text.contains(part))
        })
    }

    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
        while !is_so() {
            let ended = self.workers.iter_mut().all(|worker| !matches!(worker.child.try_wait(), Ok(None)));
            if ended || Instant::now() > self.deadline {
                let workers = std::mem::take(&mut self.workers);
                let runs = Running { workers, started: self.started, deadline: Instant::now() }.wait()?;
                let runs: Vec<String> = runs.iter().map(Run::to_string).collect();
                bail!("waited in vain until {what}\n{}", runs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits for all, kills those that take too long, and reads what they left.
    ///
    /// # Errors
    /// A worker cannot be waited for, or what it left cannot be read.
    pub fn wait(mut self) -> Result<Vec<Run>> {
        let mut workers = std::mem::take(&mut self.workers);
        let ends: Vec<_> = workers.iter_mut().map(|worker| worker.end(self.deadline)).collect();
        shm::sweep(self.started);
        workers.iter().zip(ends).map(|(worker, end)| read(&worker.dir, end?)).collect()
    }
}

/// No worker outlives its job, also after an error.
impl Drop for Running {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        if !self.workers.is_empty() {
            shm::sweep(self.started);
        }
    }
}

impl Worker {
    fn end(&mut self, deadline: Instant) -> Result<End> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(end_of(status));
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                return Ok(End::Timeout);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

fn read(dir: &Path, end: End) -> Result<Run> {
    let text = |name: &str| -> Result<String> {
        match fs::read(dir.join(name)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            // NCCL makes its log when it has something to say.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("{}/{name}", dir.display())),
        }
    };
    // The last line is cut short if the worker died while it wrote.
    let reports = text("reports.jsonl")?.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    Ok(Run {
        end,
        reports,
        log: NcclLog::parse(&text("nccl.log")?),
        stderr: text("stderr.txt")?,
        dir: dir.into(),
    })
}
