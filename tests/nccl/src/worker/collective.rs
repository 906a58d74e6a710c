//! Collectives on the communicators of [`Sets`].

use super::sets::{Member, Sets, on_device};
use crate::nccl::{Code, Nccl, Operands};
use crate::script::{Collective, Func};

impl Sets {
    /// Calls all of them: without a group if it is one call on one communicator, so that the implicit group of NCCL is used.
    pub(crate) fn launch(&mut self, nccl: &Nccl, body: &[Collective]) -> Code {
        if let [one] = body
            && self.members(&one.set).len() == 1
            && one.func != Func::SendRecv
        {
            return self.enqueue(nccl, one);
        }
        self.group(nccl, body)
    }

    /// All of them in one group.
    pub(crate) fn group(&mut self, nccl: &Nccl, body: &[Collective]) -> Code {
        let inside = self.started(nccl, body);
        let end = nccl.group_end();
        inside.and(|| end)
    }

    /// All of them in one group that is only planned. The time that NCCL estimates, in microseconds.
    pub(crate) fn simulate(&mut self, nccl: &Nccl, body: &[Collective]) -> (Code, f32) {
        let inside = self.started(nccl, body);
        let (end, estimate) = nccl.group_simulate_end();
        (inside.and(|| end), estimate)
    }

    fn started(&mut self, nccl: &Nccl, body: &[Collective]) -> Code {
        // Buffers first: NCCL allocates none inside a group.
        let reserved = body.iter().try_for_each(|one| self.reserve(nccl, one)).err().unwrap_or(Code::SUCCESS);
        let start = reserved.and(|| nccl.group_start());
        body.iter().fold(start, |code, one| code.and(|| self.enqueue(nccl, one)))
    }

    fn reserve(&mut self, nccl: &Nccl, one: &Collective) -> Result<(), Code> {
        self.members(&one.set).iter_mut().try_for_each(|m| m.reserve(nccl, bytes(one, m.ranks)).map(|_| ()))
    }

    fn enqueue(&mut self, nccl: &Nccl, one: &Collective) -> Code {
        self.members(&one.set).iter_mut().fold(Code::SUCCESS, |code, m| code.and(|| call(nccl, one, m)))
    }
}

/// Bytes of a buffer that serves as either side: the larger one holds `count` elements of each rank.
fn bytes(one: &Collective, ranks: u32) -> u64 {
    let of_each_rank = matches!(one.func, Func::AllGather | Func::ReduceScatter | Func::AlltoAll);
    one.count * one.data_type.size() * if of_each_rank { u64::from(ranks) } else { 1 }
}

fn call(nccl: &Nccl, one: &Collective, member: &mut Member) -> Code {
    let [send, recv] = match member.reserve(nccl, bytes(one, member.ranks)) {
        Ok(buffers) => buffers,
        Err(code) => return code,
    };
    let operands = Operands { send, recv, count: one.count, data_type: one.data_type, root: one.root };
    on_device(nccl, member.device);
    match one.func {
        Func::Broadcast => nccl.broadcast(member.comm, &operands),
        Func::Reduce => nccl.reduce(member.comm, &operands),
        Func::AllGather => nccl.all_gather(member.comm, &operands),
        Func::ReduceScatter => nccl.reduce_scatter(member.comm, &operands),
        Func::AllReduce => nccl.all_reduce(member.comm, &operands),
        Func::AlltoAll => nccl.all_to_all(member.comm, &operands),
        Func::SendRecv => {
            let (rank, ranks) = (member.rank.cast_signed(), member.ranks.cast_signed());
            nccl.send_recv(member.comm, &operands, (rank + 1) % ranks, (rank + ranks - 1) % ranks)
        }
    }
}
