//! [`NcclLog`]: what NCCL wrote into `NCCL_DEBUG_FILE`, and [`Planned`]: the algorithm that it says it took.

/// A line of NCCL's log without what NCCL puts before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether it is a warning.
    pub warning: bool,
    /// The text behind `NCCL INFO` or `NCCL WARN`.
    pub text: String,
}

/// A planned collective: one line of the subsystem TUNING, which NCCL writes on rank 0 alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// `AllReduce`.
    pub func: String,
    /// Bytes of the whole collective.
    pub bytes: u64,
    /// `RING`.
    pub algo: String,
    /// `SIMPLE`.
    pub proto: String,
    /// Channels, from the first to the last.
    pub channels: u32,
}

impl Planned {
    /// `RING/SIMPLE`.
    #[must_use]
    pub fn route(&self) -> String {
        format!("{}/{}", self.algo, self.proto)
    }
}

/// A process's log.
#[derive(Clone, Debug, Default)]
pub struct NcclLog {
    /// In order.
    pub lines: Vec<Line>,
}

impl NcclLog {
    /// Reads the text of a file. What is no line of NCCL's continues the one before.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        for raw in text.lines() {
            let found = [("NCCL INFO ", false), ("NCCL WARN ", true)]
                .into_iter()
                .find_map(|(mark, warning)| raw.split_once(mark).map(|(_, text)| (text, warning)));
            match (found, lines.last_mut()) {
                (Some((text, warning)), _) => lines.push(Line { warning, text: text.trim().to_owned() }),
                (None, Some(last)) if !raw.trim().is_empty() => last.text = format!("{}\n{raw}", last.text),
                (None, _) => (),
            }
        }
        Self { lines }
    }

    /// The texts that contain `part`.
    pub fn containing<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().map(|line| line.text.as_str()).filter(move |text| text.contains(part))
    }

    /// What our plugin says, without its name and version.
    pub fn ours(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| Some(line.text.strip_prefix("Ringfence")?.split_once(": ")?.1))
    }

    /// Our INIT lines, one for each communicator, of an interface: `tuner`, `profiler`, `net`.
    #[must_use]
    pub fn init_lines(&self, role: &str) -> Vec<&str> {
        let of_role = |text: &&str| {
            // `Ringfence 0.1.0: policy` is the tuner's, `Ringfence 0.1.0 profiler: policy` another's.
            let head = text.strip_prefix("Ringfence ").and_then(|rest| rest.split_once(": policy "));
            head.is_some_and(|(head, _)| head.split_once(' ').map_or("tuner", |(_, role)| role) == role)
        };
        self.lines.iter().map(|line| line.text.as_str()).filter(of_role).collect()
    }

    /// What was planned on rank 0, in order.
    #[must_use]
    pub fn planned(&self) -> Vec<Planned> {
        self.lines.iter().filter_map(|line| planned(&line.text)).collect()
    }

    /// The counts of channels that NCCL printed at INIT: `coll channels`, the first of the line, for each communicator.
    #[must_use]
    pub fn coll_channels(&self) -> Vec<u32> {
        self.containing(" coll channels,")
            .filter_map(|text| text.split_whitespace().next()?.parse().ok())
            .collect()
    }

    /// The warnings.
    #[must_use]
    pub fn warnings(&self) -> Vec<&str> {
        self.lines.iter().filter(|line| line.warning).map(|line| line.text.as_str()).collect()
    }
}

/// `AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}`, and more behind it in 2.32.
fn planned(text: &str) -> Option<Planned> {
    let (what, how) = text.split_once(" Bytes -> Algo ")?;
    let (func, bytes) = what.split_once(": ")?;
    let (algo, how) = how.split_once(" proto ")?;
    let (proto, how) = how.split_once(" channel{Lo..Hi}={")?;
    let (low, high) = how.split_once('}')?.0.split_once("..")?;
    let (low, high): (i64, i64) = (low.parse().ok()?, high.parse().ok()?);
    Some(Planned {
        func: func.to_owned(),
        bytes: bytes.parse().ok()?,
        algo: algo.to_owned(),
        proto: proto.to_owned(),
        channels: u32::try_from(high - low + 1).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
host:1:2 [0] NCCL INFO Ringfence 0.1.0: policy a sha256:0, hook tuner, comm 0x1, 2 ranks
host:1:2 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels

[2026-11-30 19:10:07] host:1:2 [1] misc/ibvwrap.cc:185 (wrap_ibv_alloc_pd) NCCL WARN lib wrapper not initialized.
host:1:2 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
host:1:2 [0] NCCL INFO Ringfence 0.1.0: refused
   why
host:1:2 [0] NCCL INFO AllGather: 12 Bytes -> Algo PAT proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4
";

    #[test]
    fn a_log_is_read_by_line_and_by_meaning() {
        let log = NcclLog::parse(TEXT);
        assert_eq!(log.lines.len(), 6);
        assert_eq!(log.ours().collect::<Vec<_>>()[1], "refused\n   why");
        assert_eq!(log.init_lines("tuner").len(), 1);
        assert!(log.init_lines("net").is_empty());
        assert_eq!(log.coll_channels(), [4]);
        assert_eq!(log.warnings(), ["lib wrapper not initialized."]);
        let planned = log.planned();
        assert_eq!(planned.len(), 2);
        assert_eq!(
            (planned[0].route().as_str(), planned[0].channels, planned[0].bytes),
            ("RING/SIMPLE", 2, 65536)
        );
        assert_eq!((planned[1].func.as_str(), planned[1].route().as_str()), ("AllGather", "PAT/LL"));
    }
}
