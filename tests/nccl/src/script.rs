//! What a worker is told and what it tells: [`Script`], [`Step`], [`Report`]. Both are JSON, so that a failed run can be repeated by
//! hand: `ringfence-nccl worker < script.json`.
//!
//! Communicators belong to named *sets*: the communicators of this process's ranks in one group of ranks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// All that one worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// `libnccl.so.2`.
    pub library: PathBuf,
    /// The fake GPU, built.
    pub fakegpu: PathBuf,
    /// In order. A step that fails does not stop those behind it.
    pub steps: Vec<Step>,
}

/// One thing to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// `ncclGetVersion`.
    Version,
    /// `ncclCommInitAll`: all ranks in this process, on devices 0, 1, ...
    InitAll {
        /// The new set.
        set: String,
        /// How many.
        ranks: u32,
    },
    /// `ncclCommInitRankConfig` for some ranks, in one group if they are several; rank r is on device r modulo the devices.
    InitRank {
        /// The new set.
        set: String,
        /// How many ranks there are in all.
        ranks: u32,
        /// Those of this process.
        local: Vec<u32>,
        /// Where rank 0 leaves the unique id and the others wait for it; none if all ranks are here.
        id_file: Option<PathBuf>,
        /// Settings of the communicators.
        #[serde(default)]
        config: Config,
    },
    /// Collectives, one for each communicator of the set. Several communicators are put into one group.
    Collective(Collective),
    /// Several collectives between `ncclGroupStart` and `ncclGroupEnd`.
    Group {
        /// What is in it.
        body: Vec<Collective>,
    },
    /// The same, ended by `ncclGroupSimulateEnd`: planned, not launched.
    Simulate {
        /// What is in it.
        body: Vec<Collective>,
    },
    /// `ncclCommSplit` of every communicator of a set, in one group.
    Split {
        /// The parents.
        set: String,
        /// The new set.
        into: String,
        /// The color of each rank of the parent; -1 for none.
        colors: Vec<i32>,
        /// Settings of the children.
        #[serde(default)]
        config: Config,
    },
    /// `ncclCommRegister` of the buffers of every communicator of the set, which are made for collectives of up to `bytes`.
    Register {
        /// Which.
        set: String,
        /// Size of each buffer.
        bytes: u64,
    },
    /// `ncclCommDeregister` of all that was registered.
    Deregister {
        /// Which.
        set: String,
    },
    /// Waits until `ncclCommGetAsyncError` says something other than "in progress".
    Settle {
        /// Which.
        set: String,
        /// At most so long.
        timeout_ms: u64,
    },
    /// `ncclCommCount`, `ncclCommUserRank`, `ncclCommCuDevice` and `ncclCommGetAsyncError`.
    Query {
        /// Which.
        set: String,
    },
    /// `ncclCommFinalize`, in one group if there are several.
    Finalize {
        /// Which.
        set: String,
    },
    /// `ncclCommDestroy`, one after the other. The set is gone then.
    Destroy {
        /// Which.
        set: String,
    },
    /// `ncclCommAbort`, in one group. The set is gone then.
    Abort {
        /// Which.
        set: String,
    },
    /// What the process uses: `rss_kib`, `threads`, `fds`.
    Usage,
    /// Waits.
    Sleep {
        /// So long.
        ms: u64,
    },
    /// Makes an empty file, to tell the parent or another worker something.
    Touch {
        /// Which.
        path: PathBuf,
    },
    /// Waits for a file.
    WaitFile {
        /// Which.
        path: PathBuf,
        /// At most so long.
        timeout_ms: u64,
    },
    /// Several lists of steps, each in a thread of its own with communicators of its own. Only the first failure is reported.
    Threads {
        /// A list a thread.
        bodies: Vec<Vec<Step>>,
    },
    /// The body again and again, until something fails. Only failures and `usage` are reported of it, then the laps done.
    Repeat {
        /// How often.
        times: u32,
        /// What.
        body: Vec<Step>,
    },
}

/// A call of a collective on each communicator of a set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Collective {
    /// Which communicators.
    pub set: String,
    /// Which collective.
    pub func: Func,
    /// Elements, as the call's argument counts them.
    pub count: u64,
    /// The element.
    #[serde(default)]
    pub data_type: DataType,
    /// For those that have a root.
    #[serde(default)]
    pub root: i32,
}

impl Collective {
    /// Of 32-bit floats, root 0.
    #[must_use]
    pub fn new(set: &str, func: Func, count: u64) -> Self {
        Self { set: set.to_owned(), func, count, data_type: DataType::default(), root: 0 }
    }
}

/// The collectives, as in the calls of nccl.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Func {
    /// `ncclBroadcast`.
    Broadcast,
    /// `ncclReduce`.
    Reduce,
    /// `ncclAllGather`.
    AllGather,
    /// `ncclReduceScatter`.
    ReduceScatter,
    /// `ncclAllReduce`.
    AllReduce,
    /// `ncclAlltoAll`, since 2.28.
    AlltoAll,
    /// `ncclSend` to the next rank and `ncclRecv` from the one before.
    SendRecv,
}

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// `ncclInt8`.
    Int8,
    /// `ncclFloat16`.
    Float16,
    /// `ncclFloat32`.
    #[default]
    Float32,
    /// `ncclFloat64`.
    Float64,
    /// `ncclFloat8e4m3`.
    Float8e4m3,
}

impl DataType {
    /// Its number in nccl.h.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            DataType::Int8 => 0,
            DataType::Float16 => 6,
            DataType::Float32 => 7,
            DataType::Float64 => 8,
            DataType::Float8e4m3 => 10,
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            DataType::Int8 | DataType::Float8e4m3 => 1,
            DataType::Float16 => 2,
            DataType::Float32 => 4,
            DataType::Float64 => 8,
        }
    }
}

/// The settings of `ncclConfig_t` that scenarios use; what is left out is undefined, so NCCL's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `blocking`: false makes a nonblocking communicator.
    pub blocking: Option<bool>,
    /// `minCTAs`.
    pub min_ctas: Option<i32>,
    /// `maxCTAs`.
    pub max_ctas: Option<i32>,
    /// `splitShare`.
    pub split_share: Option<bool>,
    /// `commName`.
    pub name: Option<String>,
}

/// What came of a step: one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The place of the step: `3`, or `4.1` in a repetition.
    pub at: String,
    /// Its kind, as in the script.
    pub step: String,
    /// `ncclResult_t`; for steps that are not NCCL's, 0, or -1 if it failed.
    pub code: i32,
    /// What NCCL says about an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// What was measured or asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
}
