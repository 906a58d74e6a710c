//! The wrapper without policies: what NCCL gets is what the plugin below says.

use crate::plugin::so;
use crate::side::{Run, VERSIONS, netplug, run, wrapped};
use std::ffi::OsStr;

/// Everything that the driver can do with one connection.
const ALL: &str = "init 0 0xabc123 7\nname\nmembers\ndevices\nprops 0\npair 0 0 0\nxfer 0 70000 3\nxfer 0 0 1\nburst 0 3000 100\ngroup 0 4\n\
                   flush 0\nconsumed 0\ndmabuf 0\ndevmr 0\nvdev 3\nattr 0 16 2 4\nclose 0\nfini 0\nthreads";

fn all(version: u32) -> String {
    format!("open {version}\n{ALL}")
}

/// Without what Ringfence itself says.
fn plain(mut run: Run) -> Run {
    run.log.retain(|l| !l.contains("Ringfence"));
    run
}

#[test]
fn the_wrapper_is_not_noticed_in_any_version() {
    for version in VERSIONS {
        for defines in [&[][..], &["SPARSE"], &["LATE"]] {
            let below = netplug(&[version], defines);
            let direct = run(&below, &[], &all(version));
            let through = wrapped(&below, &[], &all(version));
            let name = if defines == ["LATE"] { "early" } else { "netplug" };
            let said = format!("Ringfence: net plugin {name}{version} (v{version} of ");
            assert!(through.has(&said), "{:?}", through.log);
            assert_eq!(plain(through), direct, "v{version} {defines:?}");
            assert_eq!(direct.results.last().unwrap(), "threads 1");
            assert!(
                direct.results.contains(&"burst 0 sent=100 received=100 peak=32 same".to_owned()),
                "{direct:?}"
            );
        }
    }
}

#[test]
fn trying_again_and_several_communicators_are_not_noticed_either() {
    let again = ("NETPLUG_AGAIN", OsStr::new("3"));
    for version in VERSIONS {
        let below = netplug(&VERSIONS, &[]);
        let commands = format!(
            "open {version}\ninit 0 1 7\ninit 1 2 8\ndevices\npair 0 0 0\npair 1 1 0\nxfer 0 500 20\nxfer 1 500 20\nattr 1 1 1 1\nclose 0\n\
             fini 0\nxfer 1 500 20\nclose 1\nfini 1\ninit 2 3 9\npair 2 2 0\nxfer 2 500 5\nclose 2\nfini 2\nthreads"
        );
        let direct = run(&below, &[again], &commands);
        assert_eq!(plain(wrapped(&below, &[again], &commands)), direct, "v{version}");
    }
}

#[test]
fn what_the_plugin_returns_goes_to_nccl() {
    for version in [6, 8, 9, 10, 12] {
        let below = netplug(&[version], &[]);
        for member in [
            "init",
            "devices",
            "getProperties",
            "listen",
            "connect",
            "accept",
            "regMr",
            "regMrDmaBuf",
            "deregMr",
            "isend",
            "irecv",
            "iflush",
            "test",
            "closeSend",
            "closeRecv",
            "closeListen",
            "getDeviceMr",
            "irecvConsumed",
            "makeVDevice",
            "finalize",
            "setNetAttr",
        ] {
            for code in [1, 6, 7] {
                let fail = format!("{member}:{code}");
                let env = [("NETPLUG_FAIL", OsStr::new(&fail))];
                let commands = match member {
                    "init" => format!("open {version}\ninit 0 1 1\ndevices"),
                    "listen" | "connect" | "accept" => {
                        format!("open {version}\ninit 0 1 1\ndevices\npair 0 0 0\nfini 0")
                    }
                    // After one of these has failed, the two ends are no longer in step.
                    "isend" | "irecv" | "test" | "regMr" => {
                        format!(
                            "open {version}\ninit 0 1 1\ndevices\npair 0 0 0\nxfer 0 10 1\nclose 0\nfini 0"
                        )
                    }
                    _ => all(version),
                };
                let through = plain(wrapped(&below, &env, &commands));
                let direct = run(&below, &env, &commands);
                if member == "init" {
                    // NCCL asks no further: it would find no devices.
                    assert!(direct.results[1].starts_with(&format!("init {code} ")));
                    assert!(through.results[1].starts_with(&format!("init {code} ")), "v{version} {fail}");
                    assert_eq!(through.results[2], "devices 0 0");
                } else {
                    assert_eq!(through, direct, "v{version} {fail}");
                }
            }
        }
    }
}

/// The properties that the driver prints, for a plugin of version `m` seen as version `n`.
fn properties(n: u32, m: u32) -> String {
    let mut text = "props 0 lo0 /sys/devices/none 0x1122334455667788 ptr=1 speed=12345 port=7 latency=2.5 comms=1000 recvs=8".to_owned();
    if n >= 7 {
        text += if m >= 7 { " type=0/3" } else { " type=0/0" };
    }
    if n >= 8 {
        text += if m >= 8 { " global=1" } else { " global=0" };
    }
    if n >= 9 {
        text += if m >= 9 {
            " flush=1 v=2[0,9] p2p=1048576 coll=2097152"
        } else {
            " flush=0 v=1[0,-1] p2p=1073741824 coll=536870912"
        };
    }
    if n >= 11 {
        text += if m >= 11 { " multi=4" } else { " multi=1" };
    }
    if n >= 12 {
        text += if m >= 12 { " rail=5 plane=6" } else { " rail=-1 plane=-1" };
    }
    text
}

#[test]
fn every_version_carries_every_lower_one() {
    for n in VERSIONS {
        for m in VERSIONS.into_iter().filter(|m| *m <= n) {
            let run = wrapped(&netplug(&[m], &[]), &[], &all(n));
            let at = format!("v{m} as v{n}: {run:?}");
            let has = |member: u32| n >= member && m >= member;
            let mut null = String::from("members null:");
            for (since, names) in
                [(7, &["getDeviceMr", "irecvConsumed"][..]), (9, &["makeVDevice"]), (11, &["setNetAttr"])]
            {
                if n >= since && m < since {
                    names.iter().for_each(|name| null += &format!(" {name}"));
                }
            }
            let devices = format!("pair 0 up polls=some device={}", if has(7) { "11" } else { "00" });
            let profiled = |count: u32| if has(10) { count } else { 0 };
            let or_null = |since: u32, good: &str, name: &str| {
                if has(since) { good.to_owned() } else { format!("{name} null") }
            };
            let want = [
                format!("open netplug{m}"),
                format!("init 0 {}", if n >= 11 { "set" } else { "-" }),
                format!("name netplug{m}"),
                null,
                "devices 0 1".to_owned(),
                properties(n, m),
                devices,
                format!("xfer 0 ok=3 profiled={}", profiled(6)),
                format!("xfer 0 ok=1 profiled={}", profiled(8)),
                "burst 0 sent=100 received=100 peak=32 same".to_owned(),
                "group 0 bad=0".to_owned(),
                "flush 0 0".to_owned(),
                or_null(7, "consumed 0 0", "consumed"),
                "dmabuf 0".to_owned(),
                or_null(7, "devmr 0 good", "devmr"),
                or_null(9, "vdev 0 42", "vdev"),
                or_null(11, "attr 0", "attr"),
                "close 0 0 0".to_owned(),
                "fini 0".to_owned(),
                "threads 1".to_owned(),
            ];
            assert_eq!(run.results, want, "{at}");
            below_saw(n, m, &run, &at);
        }
    }
}

/// What reached the plugin of version `m` from NCCL with version `n`.
fn below_saw(n: u32, m: u32, run: &Run, at: &str) {
    let saw = |line: &str| run.below.iter().any(|l| l.contains(line));
    let (init, class) = match m {
        ..=9 => ("init v6-9 comm=0 class=-99 logger=1 profiler=0", "class=-99"),
        // v10 wants the class at each connect: NCCL 2.26 gives 33 there, later NCCL gave 7 at init.
        10 => ("init v10 comm=0 class=-99 logger=1 profiler=1", if n == 10 { "class=33" } else { "class=7" }),
        _ => ("init v11-12 comm=0xabc123 class=7 logger=1 profiler=1", "class=7"),
    };
    assert!(saw(init), "{at}");
    assert!(saw(&format!("connect dev=0 {class} devhandle={}", i32::from(n >= 7 && m >= 7))), "{at}");
    assert!(
        saw("regMr size=70000 type=1")
            && saw("deregMr")
            && saw("regMrDmaBuf size=21474836480 type=4 offset=77 fd=9"),
        "{at}"
    );
    let profiled = i32::from(n >= 10 && m >= 10);
    assert!(saw(&format!("isend size=70000 tag=100 phandle={profiled}")), "{at}");
    // NCCL's hint that a receive needs no completion reaches only those who know it.
    let optional = i32::from(n >= 9 && m >= 9);
    assert!(saw(&format!("irecv n=1 size=70000 tag=100 phandle={profiled} optional={optional}")), "{at}");
    assert!(saw("irecv n=4 size=64 tag=50") && saw("iflush n=1 size=16"), "{at}");
    assert!(saw("closeSend") && saw("closeRecv") && saw("closeListen"), "{at}");
    assert_eq!(saw("irecvConsumed n=1 ours=1"), n >= 7 && m >= 7, "{at}");
    assert_eq!(saw("makeVDevice ndevs=3 last=3"), n >= 9 && m >= 9, "{at}");
    assert_eq!(saw("setNetAttr comm=0xabc123 op=16 algo=2 proto=4"), m >= 11, "{at}");
    assert_eq!(saw("finalize comm=0xabc123"), m >= 11, "{at}");
}

#[test]
fn the_highest_version_that_nccl_knows_is_taken() {
    let below = netplug(&[7, 9, 12], &[]);
    for (n, m) in [(7, 7), (8, 7), (9, 9), (10, 9), (11, 9), (12, 12)] {
        let run = wrapped(&below, &[], &format!("open {n}\ninit 0 1 1\ndevices"));
        assert_eq!(run.results[0], format!("open netplug{m}"));
        assert_eq!(run.results[2], "devices 0 1");
    }
}

#[test]
fn sizes_that_an_older_plugin_cannot_take_are_refused_as_nccl_does() {
    // 4 GiB: `int` has no room for it; nothing is cut short.
    for m in [6, 8] {
        let run = wrapped(
            &netplug(&[m], &[]),
            &[],
            "open 12\ninit 0 1 1\ndevices\npair 0 0 0\nvdev 5\nhuge 0\nclose 0\nfini 0",
        );
        assert_eq!(run.results[5], if m == 6 { "huge 3 3 3" } else { "huge 0 3 3" });
        assert!(
            !run.below.iter().any(|l| l.starts_with("isend") || l.starts_with("irecv")),
            "{:?}",
            run.below
        );
    }
    let run = wrapped(&netplug(&[11], &[]), &[], "open 12\ninit 0 1 1\nvdev 4\nvdev 5\nvdev 8\nfini 0");
    assert_eq!(
        run.results[2..5],
        ["vdev 0 42", "vdev 3 -1", "vdev 3 -1"],
        "more devices than v11 has room for"
    );
    let run = wrapped(&netplug(&[12], &[]), &[], "open 12\ninit 0 1 1\nvdev 8\nfini 0");
    assert_eq!(run.results[2], "vdev 0 42");
}

#[test]
fn without_a_plugin_below_nccl_goes_on_to_its_own() {
    let itself = so();
    let new = netplug(&[12], &[]);
    let cases: [(&str, Option<&OsStr>, &str); 7] = [
        ("unset", None, ""),
        ("empty", Some("".as_ref()), ""),
        ("none", Some("None".as_ref()), ""),
        (
            "missing",
            Some("/nowhere/libx.so".as_ref()),
            "RINGFENCE_CHAIN_NET=/nowhere/libx.so: /nowhere/libx.so: cannot open",
        ),
        (
            "no net plugin",
            Some("libm.so.6".as_ref()),
            "RINGFENCE_CHAIN_NET=libm.so.6 has no ncclNetPlugin_v6 to _v",
        ),
        ("itself", Some(itself.as_os_str()), "that is Ringfence itself"),
        ("too new", Some(new.as_os_str()), "has no ncclNetPlugin_v6 to _v"),
    ];
    for (name, chain, warning) in cases {
        for version in VERSIONS.into_iter().filter(|v| name != "too new" || *v < 12) {
            let env: Vec<_> = chain.iter().map(|c| ("RINGFENCE_CHAIN_NET", *c)).collect();
            let commands = format!(
                "open {version}\ninit 0 1 7\nmembers\ndevices\nprops 0\nfini 0\ninit 0 2 7\nfini 0\nthreads"
            );
            let run = run(&so(), &env, &commands);
            let context = if version >= 11 { "init 0 null" } else { "init 0 -" };
            assert_eq!(run.results[..2], ["open Ringfence", context], "{name} v{version}");
            assert_eq!(
                run.results[3..],
                ["devices 0 0", "props 3", "fini 0", context, "fini 0", "threads 1"],
                "{name} v{version}"
            );
            assert_eq!(run.log.len(), usize::from(!warning.is_empty()), "{name} v{version}: {:?}", run.log);
            assert!(run.has(warning) || warning.is_empty(), "{name} v{version}: {:?}", run.log);
        }
    }
}

#[test]
fn a_plugin_that_lacks_a_member_that_nccl_calls_is_left_alone() {
    // `hollow` exports a table with a name and `init`, and nothing else ever.
    let run = wrapped(&netplug(&[9], &["HOLLOW"]), &[], "open 12\ninit 0 1 1\ndevices\nfini 0");
    assert_eq!(run.results, ["open hollow9", "init 0 set", "devices 0 0", "fini 0"]);
    assert!(run.has("hollow9 (v9) lacks a member that NCCL calls"), "{:?}", run.log);
}

#[test]
fn names_are_resolved_as_nccl_does() {
    let below = netplug(&[9], &[]);
    let dir = below.parent().unwrap();
    let name = below.file_stem().unwrap().to_str().unwrap().strip_prefix("libnccl-net-").unwrap();
    let path = ("LD_LIBRARY_PATH", dir.as_os_str());
    for value in [name, below.file_name().unwrap().to_str().unwrap()] {
        let env = [path, ("RINGFENCE_CHAIN_NET", OsStr::new(value))];
        let run = run(&so(), &env, "open 12\ninit 0 1 1\ndevices\nfini 0");
        assert_eq!(run.results[0], "open netplug9", "{value}");
        assert_eq!(run.results[2], "devices 0 1", "{value}");
    }
}

#[test]
fn closed_and_null_connections_are_answered_not_followed() {
    for version in VERSIONS {
        let below = netplug(&[version], &[]);
        let commands = format!(
            "open {version}\ninit 0 1 7\npair 0 0 0\nclose 0\nstale 0\nnulls\npair 1 0 0\nstale 0\nxfer 1 100 2\nclose 1\nfini 0"
        );
        let run = wrapped(&below, &[], &commands);
        assert_eq!(
            run.results[4], "stale 3 3 3 3 untouched",
            "v{version}: where the plugin alone would use freed memory"
        );
        assert_eq!(
            run.results[5], "nulls 4 4 4 4",
            "v{version}: null goes to the plugin, which says what it thinks"
        );
        assert_eq!(
            run.results[7], "stale 3 3 3 3 untouched",
            "v{version}: also when the place is used again"
        );
        assert!(run.results[8].starts_with("xfer 0 ok=2"), "{:?}", run.results);
    }
}

#[test]
fn a_forked_child_may_go_on() {
    let below = netplug(&[12], &[]);
    let run =
        wrapped(&below, &[], "open 12\ninit 0 1 7\npair 0 0 0\nfork xfer 0 100 1\nclose 0\nfini 0\nthreads");
    assert_eq!(run.results[3..], ["xfer 0 ok=1 profiled=2", "close 0 0 0", "fini 0", "threads 1"]);
}
