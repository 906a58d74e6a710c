//! [`Kernel`]: this machine's own verifier and its `BPF_PROG_TEST_RUN`, through `tests/kernel/bpf-run.c`.

use ringfence_translator::interp::MapMemory;
use ringfence_translator::isa::{Imm64, Insn, Pc};
use ringfence_translator::{MapDecl, MapKind, Program};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Bytes of the context.
pub const CTX_BYTES: usize = 64;

/// Keys and values of a map; a hash in the order of its keys.
pub type Content = Vec<(Vec<u8>, Vec<u8>)>;

/// Context and maps, before or after a run. Read-only maps are left empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// The context.
    pub ctx: Vec<u8>,
    /// By map.
    pub maps: Vec<Content>,
}

impl World {
    /// As an interpreter has it.
    pub fn new(ctx: &[u8], maps: &[MapMemory]) -> World {
        World { ctx: ctx.to_vec(), maps: maps.iter().map(content).collect() }
    }
}

fn content(map: &MapMemory) -> Content {
    let decl = map.decl();
    if !has_content(decl) {
        return Content::new();
    }
    let keys: Vec<Vec<u8>> = match decl.kind {
        MapKind::Hash => map.keys().iter().flatten().cloned().collect(),
        _ => (0..decl.max_entries).map(|i| i.to_le_bytes().to_vec()).collect(),
    };
    let value = |k: &[u8]| {
        let mut value = map.value(k)?.to_vec();
        // What is in a lock is the helpers' business.
        let lock = decl.spin_lock.map(|at| at as usize).and_then(|at| value.get_mut(at..at + 4));
        lock.into_iter().flatten().for_each(|b| *b = 0);
        Some(value)
    };
    let mut content: Content = keys.into_iter().filter_map(|k| value(&k).map(|v| (k, v))).collect();
    content.sort();
    content
}

/// Read-only maps do not change, and ring buffers have no keys.
fn has_content(decl: &MapDecl) -> bool {
    !decl.read_only && decl.kind.has_values()
}

/// `enum bpf_map_type`.
fn kernel_kind(kind: MapKind) -> u32 {
    match kind {
        MapKind::Hash => 1,
        MapKind::Array | MapKind::Global => 2,
        MapKind::ProgArray => 3,
        MapKind::PercpuHash => 5,
        MapKind::PercpuArray => 6,
        MapKind::LruHash => 9,
        MapKind::RingBuf => 27,
    }
}

/// What the kernel says of a program.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Accepted. For each run what it left, r0's lower half first, or the error number of the run.
    Accepted(Vec<Result<(u32, World), u32>>),
    /// Refused.
    Refused(Refusal),
}

/// Why the kernel refuses, from the end of its log.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// The line that gives the reason.
    pub reason: String,
    /// Slots on the kernel's last path, from its last fork on; the last one is to blame.
    pub path: Vec<Pc>,
}

impl Refusal {
    fn new(log: &str, errno: u32) -> Refusal {
        let mut path = Vec::new();
        for line in log.lines() {
            match step(line) {
                Some(Step::Fork(from, to)) => path = vec![from, to],
                // A fork is followed by the instruction that it leads to.
                Some(Step::Insn(pc)) if path.last() != Some(&pc) => path.push(pc),
                _ => {}
            }
        }
        Refusal { reason: reason(log, errno), path }
    }
}

enum Step {
    Fork(Pc, Pc),
    Insn(Pc),
}

/// `12: (07) ...`, or `from 3 to 9: ...`.
fn step(line: &str) -> Option<Step> {
    let (head, rest) = line.split_once(": ")?;
    match head.strip_prefix("from ").and_then(|h| h.split_once(" to ")) {
        Some((from, to)) => {
            let to = to.split(' ').next()?;
            Some(Step::Fork(Pc(from.parse().ok()?), Pc(to.parse().ok()?)))
        }
        None if rest.starts_with('(') => Some(Step::Insn(Pc(head.parse().ok()?))),
        None => None,
    }
}

/// The process that talks to the kernel. It serves many programs.
pub struct Kernel {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
    maps: Vec<MapDecl>,
}

impl Kernel {
    /// Builds `source` into `out` and starts it with these maps.
    ///
    /// # Errors
    /// Why this machine cannot do it, in words: no compiler, no `bpf(2)`, not root.
    pub fn start(source: &Path, out: &Path, maps: &[MapDecl]) -> Result<Kernel, String> {
        let binary = build(source, out)?;
        let spawned = Command::new(&binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| format!("{}: {e}", binary.display()))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        let (to, from) = (BufWriter::new(to), BufReader::new(from));
        let mut kernel = Kernel { child, to, from, maps: maps.to_vec() };
        match kernel.declare().map_err(|e| e.to_string())? {
            0 => Ok(kernel),
            errno => Err(format!("bpf(2) gives {}", std::io::Error::from_raw_os_error(errno as i32))),
        }
    }

    fn declare(&mut self) -> std::io::Result<u32> {
        self.put(self.maps.len() as u32)?;
        for m in &self.maps {
            let flags = u32::from(m.read_only) | u32::from(m.spin_lock.is_some()) << 1;
            for n in [kernel_kind(m.kind), m.key_size, m.value_size, m.max_entries, flags] {
                self.to.write_all(&u32::to_ne_bytes(n))?;
            }
            if m.read_only {
                let mut init = m.init.clone();
                init.resize(m.value_size as usize, 0);
                self.to.write_all(&init)?;
            }
        }
        self.to.flush()?;
        self.get()
    }

    /// Loads a program and runs it on each of these worlds.
    ///
    /// # Errors
    /// The process has ended.
    pub fn judge(&mut self, program: &Program, worlds: &[World]) -> std::io::Result<Verdict> {
        let code = program.encode();
        self.put((code.len() / 8) as u32)?;
        self.to.write_all(&code)?;
        let callback = |i: &Insn| matches!(i, Insn::LoadImm64 { imm: Imm64::Func(_), .. });
        let funcs = if program.iter().any(|(_, i)| callback(i)) { program.funcs() } else { &[] };
        self.put(funcs.len() as u32)?;
        for f in funcs {
            self.put(f.start.0)?;
        }
        self.put(worlds.len() as u32)?;
        for w in worlds {
            self.put_world(w)?;
        }
        self.to.flush()?;
        let errno = self.get()?;
        let len = self.get()?;
        let log = self.bytes(len as usize)?;
        if errno != 0 {
            return Ok(Verdict::Refused(Refusal::new(&String::from_utf8_lossy(&log), errno)));
        }
        let mut runs = Vec::new();
        for _ in worlds {
            let (errno, r0) = (self.get()?, self.get()?);
            let world = self.get_world()?;
            runs.push(if errno == 0 { Ok((r0, world)) } else { Err(errno) });
        }
        Ok(Verdict::Accepted(runs))
    }

    fn put_world(&mut self, w: &World) -> std::io::Result<()> {
        self.to.write_all(&w.ctx)?;
        for (content, decl) in w.maps.iter().zip(&self.maps) {
            if !has_content(decl) {
                continue;
            }
            self.to.write_all(&u32::to_ne_bytes(content.len() as u32))?;
            for (key, value) in content {
                self.to.write_all(key)?;
                self.to.write_all(value)?;
            }
        }
        Ok(())
    }

    fn get_world(&mut self) -> std::io::Result<World> {
        let ctx = self.bytes(CTX_BYTES)?;
        let mut maps = Vec::new();
        for i in 0..self.maps.len() {
            let (key, value) = (self.maps[i].key_size as usize, self.maps[i].value_size as usize);
            let mut content = Content::new();
            let entries = if has_content(&self.maps[i]) { self.get()? } else { 0 };
            for _ in 0..entries {
                content.push((self.bytes(key)?, self.bytes(value)?));
            }
            content.sort();
            maps.push(content);
        }
        Ok(World { ctx, maps })
    }

    fn put(&mut self, n: u32) -> std::io::Result<()> {
        self.to.write_all(&n.to_ne_bytes())
    }

    fn get(&mut self) -> std::io::Result<u32> {
        let mut bytes = [0; 4];
        self.from.read_exact(&mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn bytes(&mut self, n: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn build(source: &Path, out: &Path) -> Result<PathBuf, String> {
    let binary = out.join("bpf-run");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(&cc)
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&binary)
        .arg(source)
        .output();
    match built {
        Ok(o) if o.status.success() => Ok(binary),
        Ok(o) => Err(format!("{cc}: {}", String::from_utf8_lossy(&o.stderr))),
        Err(e) => Err(format!("{cc}: {e}")),
    }
}

/// The last line that is no statistics.
fn reason(log: &str, errno: u32) -> String {
    const IDLE: [&str; 5] = ["processed ", "verification time", "stack depth", "cur state:", "old state:"];
    let idle = |l: &&str| !(l.is_empty() || IDLE.iter().any(|i| l.starts_with(i)));
    let line = log.lines().map(str::trim).rfind(idle);
    match line {
        Some(line) => line.to_owned(),
        // E2BIG: a million instructions, or too many branches.
        None if errno == 7 => "BPF program is too large".to_owned(),
        None => format!("errno {errno}, no log"),
    }
}
