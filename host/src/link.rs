//! [`number`]: which endpoints belong to one rank of one communicator.
//!
//! NCCL tells the profiler its communicator and rank, the tuner (from v5 on) only the communicator, and several ranks of a process may
//! share it. Within one rank's initialisation the profiler's init runs before the tuner's, on the same thread (init.cc 1520 and 1640 in
//! NCCL 2.30.7). So the profiler's endpoint leaves its number with the thread, and the tuner's takes it from there if the
//! communicator is the same; and the net plugin's (from v11 on, which tells the communicator), whose init comes before both. Where there
//! is no profiler, or a tuner of version 2 to 4, they stay unlinked.

use crate::endpoint::Role;
use std::cell::Cell;

thread_local! {
    /// Communicator id and number that the net plugin or the profiler of this thread left. No destructor: the library may be closed.
    static LEFT: Cell<Option<(Role, u64, u64)>> = const { Cell::new(None) };
}

/// The number of the communicator that a new endpoint belongs to: `fresh`, or what an earlier interface of the same rank has.
pub(crate) fn number(role: Role, comm_id: u64, fresh: u64) -> u64 {
    // Taken even if it does not match: what is left over from another communicator must not be found later.
    let left = |from: &[Role]| {
        LEFT.take()
            .filter(|(by, id, _)| from.contains(by) && *id == comm_id && comm_id != 0)
            .map_or(fresh, |l| l.2)
    };
    match role {
        // Before v11 there is one for all communicators, made whenever the first connection is.
        Role::Net if comm_id != 0 => LEFT.set(Some((role, comm_id, fresh))),
        Role::Profiler => {
            let number = left(&[Role::Net]);
            LEFT.set(Some((role, comm_id, number)));
            return number;
        }
        Role::Tuner => return left(&[Role::Net, Role::Profiler]),
        Role::Net | Role::Env | Role::Library => {}
    }
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_of_a_rank_find_each_other() {
        assert_eq!(number(Role::Net, 7, 1), 1);
        assert_eq!(number(Role::Profiler, 7, 2), 1);
        assert_eq!(number(Role::Tuner, 7, 3), 1);
        assert_eq!((number(Role::Net, 7, 4), number(Role::Tuner, 7, 5)), (4, 4), "without a profiler");
        assert_eq!(
            (number(Role::Profiler, 7, 6), number(Role::Profiler, 7, 7)),
            (6, 7),
            "two ranks on one thread"
        );
        assert_eq!(
            (number(Role::Net, 0, 8), number(Role::Profiler, 0, 9)),
            (8, 9),
            "0 names no communicator"
        );
        number(Role::Profiler, 7, 10);
        number(Role::Net, 0, 11);
        assert_eq!(number(Role::Tuner, 7, 12), 10, "a net plugin of all communicators is not in the way");
    }

    #[test]
    fn a_tuner_finds_the_profiler_of_its_thread_and_communicator_once() {
        assert_eq!(number(Role::Tuner, 7, 1), 1, "no profiler");
        assert_eq!(number(Role::Profiler, 7, 2), 2);
        assert_eq!(number(Role::Env, 7, 3), 3);
        assert_eq!(number(Role::Tuner, 7, 4), 2);
        assert_eq!(number(Role::Tuner, 7, 5), 5, "it is taken");
        number(Role::Profiler, 8, 6);
        assert_eq!(number(Role::Tuner, 9, 7), 7, "another communicator");
        assert_eq!(number(Role::Tuner, 8, 8), 8, "it was dropped");
        number(Role::Profiler, 0, 9);
        assert_eq!(number(Role::Tuner, 0, 10), 10, "0 names no communicator");
        number(Role::Profiler, 11, 12);
        let other = std::thread::spawn(|| number(Role::Tuner, 11, 13)).join().unwrap();
        assert_eq!(other, 13, "another rank of this process");
    }
}
