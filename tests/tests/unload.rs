//! NCCL closes a plugin after the last communicator and may open it again. A binary of its own: what leaks here, a thread or
//! a mapping, is counted for the whole process.

mod plugin;

use plugin::{isolated, policy, so, threads, wait_for};
use ringfence_host::ffi::driver::{Plugin, Table, take_log};

fn mappings_of_the_plugin() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| l.ends_with("libnccl_ringfence.so") || l.ends_with(so().to_str().unwrap()))
        .count()
}

#[test]
fn ten_rounds_of_open_and_close_leave_nothing_behind() {
    isolated("ten_rounds_of_open_and_close_leave_nothing_behind", |dir| {
        dir.put("p.bpf.o", policy("count", &["ALGO=1"]));
        let before = threads(None);
        let mut mapped = Vec::new();
        for round in 0..10 {
            let plugin = Plugin::open(so()).unwrap();
            let mut comms = Vec::new();
            for ranks in [1, 2, 8] {
                let (comm, code) = plugin.init(ranks, 1, 7);
                assert_eq!(code, 0);
                comms.push(comm);
            }
            // A thread gives itself its name, a moment after it was started.
            wait_for("the reload thread", || threads(Some("ringfence")) == 1);
            assert_eq!(threads(None), before + 1, "round {round}: one for all communicators");
            for comm in &mut comms {
                let mut table = Table::new(7, 3, vec![9.0; 21]);
                let (code, channels) = comm.get_coll_info(4, 1 << 20, 1, &mut table, false);
                assert_eq!((code, table.choice()), (0, Some((1, 2))), "round {round}");
                assert!(channels >= 1);
            }
            for comm in comms {
                assert_eq!(comm.finalize(), 0);
            }
            drop(plugin);
            // A joined thread may be listed for a moment longer.
            wait_for("the end of the reload thread", || threads(None) == before);
            mapped.push(mappings_of_the_plugin());
        }
        assert!(mapped[0] > 0, "nodelete: the code stays for thread-local destructors and the engine");
        assert!(mapped.iter().all(|n| *n == mapped[0]), "{mapped:?}");
        let faults = take_log().into_iter().filter(|l| l.level == 2).collect::<Vec<_>>();
        assert!(faults.is_empty(), "{faults:?}");
        // Threads that ran policies end after the library was closed.
        let plugin = Plugin::open(so()).unwrap();
        let (mut comm, _) = plugin.init(1, 1, 7);
        let (ended, finalized) = std::sync::mpsc::channel();
        let (close, closed) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut table = Table::new(7, 3, vec![9.0; 21]);
            assert_eq!(comm.get_coll_info(4, 1 << 20, 1, &mut table, false).0, 0);
            comm.finalize();
            ended.send(()).unwrap();
            closed.recv().unwrap();
        });
        finalized.recv().unwrap();
        drop(plugin);
        close.send(()).unwrap();
        thread.join().unwrap();
    });
}
