//! One file for each group of targets.

mod block;
mod camera;
mod congestion;
mod cpu;
pub mod database;
mod deep;
mod device;
mod directory;
mod directory_growth;
mod distance;
mod encrypted;
mod files;
pub mod hosts;
mod hot_swap;
mod isochrony;
mod journey;
mod line;
mod links;
mod memory;
mod mixed;
mod modules;
pub mod naming;
mod native;
mod nbd;
mod overhead;
mod page;
mod page_clients;
mod pipes;
mod program;
mod realtime;
mod round_trip;
mod sealed;
mod stages;
pub mod storage;
mod survey;
mod syscalls;
mod thousand;
mod throughput;
mod timeline;

use anyhow::Result;

use crate::{lab::BenchmarkEnvironment, report::BenchmarkFinding};

pub struct Benchmark {
    pub name: &'static str,
    pub target: &'static str,
    /// Benchmarks without a target run only when they are asked for.
    pub by_default: bool,
    pub run: fn(&BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>>,
}

pub const ALL: [Benchmark; 37] = [
    Benchmark {
        name: round_trip::NAME,
        target: "one URB at a time, 64 B to 64 KiB: at least 0.90 of a bare blocking request/reply loop",
        by_default: true,
        run: round_trip::run,
    },
    Benchmark {
        name: syscalls::NAME,
        target: "at most 2.1 system calls a URB one at a time, under 0.5 at 4 KiB x 32",
        by_default: true,
        run: syscalls::run,
    },
    Benchmark {
        name: program::NAME,
        target: "farbus run: 64 B x 1 adds at most 5 bare requests, 1 MiB x 32 at least 0.60 of a client",
        by_default: true,
        run: program::run,
    },
    Benchmark {
        name: deep::NAME,
        target: "4 KiB x 32: at least 5 (IN) and 3 (OUT) times the usbip crate 0.9",
        by_default: true,
        run: deep::run,
    },
    Benchmark {
        name: throughput::NAME,
        target: "128 KiB x 32: at least 0.80 of one bare TCP stream with 128 KiB writes",
        by_default: true,
        run: throughput::run,
    },
    Benchmark {
        name: encrypted::NAME,
        target: "128 KiB x 32 between paired hosts: at least 0.85 of one bare rustls stream",
        by_default: true,
        run: encrypted::run,
    },
    Benchmark {
        name: cpu::NAME,
        target: "server CPU a GB at 64 KiB: at most 1.3 times the bare sender's (IN) and receiver's (OUT)",
        by_default: true,
        run: cpu::run,
    },
    Benchmark {
        name: memory::NAME,
        target: "under 10 MiB resident with one device; no growth over ten million URBs",
        by_default: true,
        run: memory::run,
    },
    Benchmark {
        name: distance::NAME,
        target: "a disk 50 ms away, one request at a time: read in order or written with a write cache at least 0.9 of near or 1 GB/s, 0.7 of that in the first second, 4 KiB here and there in at most 1.2 round trips",
        by_default: false,
        run: distance::run,
    },
    Benchmark {
        name: storage::NAME,
        target: "disk through the user-space host, 128 KiB reads one at a time: at least 0.60 of nbdkit memory",
        by_default: true,
        run: storage::run,
    },
    Benchmark {
        name: nbd::NAME,
        target: "farbus nbd memory:, 128 KiB x 32 and 4 KiB random x 32, one connection: at least nbdkit memory",
        by_default: true,
        run: nbd::run,
    },
    Benchmark {
        name: block::NAME,
        target: "a block device through a session, 128 KiB x 32 and 4 KiB random x 32: at least nbdkit memory; 5 times Bulk-Only",
        by_default: true,
        run: block::run,
    },
    Benchmark {
        name: block::PROXY,
        target: "the importer's NBD server over a session: at least 1.2 times nbdkit's nbd proxy",
        by_default: true,
        run: block::run_proxy,
    },
    Benchmark {
        name: block::PARALLEL,
        target: "none: 1 to 8 streams, 1 to 8 readers of one shared block device (Netbus, Figure 5 and section 7.4)",
        by_default: true,
        run: block::run_parallel,
    },
    Benchmark {
        name: native::NAME,
        target: "the native protocol no slower than USB/IP for the same URBs",
        by_default: true,
        run: native::run,
    },
    Benchmark {
        name: overhead::NAME,
        target: "bytes added to the data: at most Netbus's 1.904 % (block), 4.721 % (bulk), 4.545 % (isochronous), 32 a request",
        by_default: true,
        run: overhead::run,
    },
    Benchmark {
        name: files::NAME,
        target: "none: files written to a block disk and a USB disk, here and remote, with a cache and without, 1 to 8 at once (Netbus, Figures 3 to 6)",
        by_default: false,
        run: files::run,
    },
    Benchmark {
        name: camera::NAME,
        target: "none: frames a second of a camera's isochronous endpoint, here and remote (Netbus, Figure 7)",
        by_default: false,
        run: camera::run,
    },
    Benchmark {
        name: stages::NAME,
        target: "none: where the time of a block and of a USB request goes, local, remote and by NBD (Netbus, Tables 1 and 2)",
        by_default: true,
        run: stages::run,
    },
    Benchmark {
        name: congestion::NAME,
        target: "no error while UDP takes 0 to 95 % of a link, interrupt and control p99 within 250 ms (root; Netbus, Figure 8)",
        by_default: false,
        run: congestion::run,
    },
    Benchmark {
        name: mixed::NAME,
        target: "a stream of high criticality misses no packet while its link is narrowed; three of low give way in order (root; R2)",
        by_default: false,
        run: mixed::run,
    },
    Benchmark {
        name: timeline::NAME,
        target: "no failed transaction while a database's disk moves twice; requests held for less than Netbus's 15 ms (Figure 11)",
        by_default: false,
        run: timeline::run,
    },
    Benchmark {
        name: journey::NAME,
        target: "no transaction and no byte lost while a machine with a database goes to two hosts with its disk, and home; files written before a move, after it and after a swap there (Netbus, Figures 10 and 11)",
        by_default: false,
        run: journey::run,
    },
    Benchmark {
        name: modules::NAME,
        target: "frames at 100 Mb/s, each pair of null modules: at most 0.1 % (in process), 0.36 % (ring), 2.3 % (pipes) (2013 paper)",
        by_default: false,
        run: modules::run,
    },
    Benchmark {
        name: realtime::NAME,
        target: "in simulation, Tables 4, 6, 9 and Figures 10, 12 to 16 of West, Golchin and Njavro (2023): bounds kept, no overrun; an hour of bus time in 120 s",
        by_default: false,
        run: realtime::run,
    },
    Benchmark {
        name: pipes::NAME,
        target: "all processors busy: five CAN channels through tuned pipes in and out, no overrun, every valid second within its bounds; round trips over a router within theirs (root)",
        by_default: false,
        run: pipes::run,
    },
    Benchmark {
        name: pipes::FAR_NAME,
        target: "all processors busy: a CAN channel of another process through a pipe, 60 runs beside 2 spinning threads and 60 beside 4 and a build: no frame lost, at most 10 % of the runs void (root)",
        by_default: false,
        run: pipes::run_far,
    },
    Benchmark {
        name: line::NAME,
        target: "none: a URB over 0 to 100 ms takes a s + RTT; a queue of q > RTT/x + 1 keeps an isochronous endpoint busy (2005 paper, Figures 9 to 11 and 13)",
        by_default: false,
        run: line::run,
    },
    Benchmark {
        name: isochrony::NAME,
        target: "completions of a far isochronous endpoint: deviation at most 10 us, or 1.5 of a bare timer thread's (2005 paper, Figures 12, 14, 15)",
        by_default: false,
        run: isochrony::run,
    },
    Benchmark {
        name: sealed::NAME,
        target: "none: a disk's requests of 128 KiB in order, plain and over TLS: MB/s and CPU a GB (2005 paper, Figures 23 and 24)",
        by_default: false,
        run: sealed::run,
    },
    Benchmark {
        name: device::NAME,
        target: "none: a raw device, 20 MB in 4 KiB requests, over every path, 1 ms and 10 ms among them (2008 paper, Table 2)",
        by_default: false,
        run: device::run,
    },
    Benchmark {
        name: links::NAME,
        target: "none: a disk over 1, 2, 4, 8 links, 50 ms away, at 0, 0.1 and 1 % loss (root and the kernel's netem)",
        by_default: false,
        run: links::run,
    },
    Benchmark {
        name: survey::NAME,
        target: "none: all sizes and depths against ref and the usbip crate, with latencies",
        by_default: false,
        run: survey::run,
    },
    Benchmark {
        name: directory::NAME,
        target: "etcd with 5,000 devices of 200 hosts: a list in 200 ms, a change seen by 200 watchers p99 in 1 s, under 50 writes a second at rest, a daemon in 64 MiB (N8)",
        by_default: false,
        run: directory::run,
    },
    Benchmark {
        name: directory_growth::NAME,
        target: "etcd with 5,000 to 50,000 devices: a list of the few that a query means in 400 ms, a daemon in 64 MiB (N8)",
        by_default: false,
        run: directory_growth::run,
    },
    Benchmark {
        name: thousand::NAME,
        target: "1,000 disks of one host attached to another: under 200 KiB and 1 thread each at either end, idle under 1 % of a processor, restarts in 5 s, 200 busy at 80 % of 8",
        by_default: false,
        run: thousand::run,
    },
    Benchmark {
        name: page::NAME,
        target: "the page of 1,000 devices in Chromium: first paint within 1 s, over TLS, too; 50 ms of script for the event of a change or a second of a plot; 1,000 clients told within 1 s, 48 KiB each, over TLS 80",
        by_default: false,
        run: page::run,
    },
];

/// Names that stand for several benchmarks.
pub const GROUPS: [(&str, &[&str]); 1] = [(
    "netbus",
    &[
        overhead::NAME,
        files::NAME,
        camera::NAME,
        block::PARALLEL,
        stages::NAME,
        congestion::NAME,
        journey::NAME,
        timeline::NAME,
    ],
)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_completes_the_names_that_there_are() {
        assert_eq!(ALL.map(|benchmark| benchmark.name), farbus_cli::bench::NAMES);
        assert_eq!(GROUPS.map(|(name, _)| name), farbus_cli::bench::GROUPS);
    }

    #[test]
    fn each_name_of_a_group_is_a_benchmark_s_and_no_benchmark_has_a_group_s_name() {
        let is_one = |name: &str| ALL.iter().any(|benchmark| benchmark.name == name);
        for (group, names) in GROUPS {
            assert!(!is_one(group) && names.iter().all(|name| is_one(name)), "{group}");
        }
    }
}
