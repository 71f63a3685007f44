//! S. Kumar and K. Schwan, "Netbus: A Transparent Mechanism for Remote Device Access in Virtualized Systems" (2007).

use crate::item::{ItemEvidence, ItemSource, PaperItem, part, share, value};

/// A disk or camera here: our devices are files, memory and gadgets, theirs were disks and a webcam.
const FASTER_NETWORK: &str = "The paper's disks write at tens of MB/s over Gigabit Ethernet between Xen guests; here \
    both ends share one machine, so the local disk is a file and the share depends on how fast its file system makes \
    data durable.";

pub const ITEMS: &[PaperItem] = &[
    PaperItem {
        paper: 2007,
        number: "Figure 3",
        title: "Write throughput of block devices, with the guest's cache",
        evidence: ItemEvidence::Measured,
        says: "remote like local below 64 MB; 0.60 of local at 512 MB",
        why: FASTER_NETWORK,
        source: ItemSource::Benchmarks(&[part(
            "files",
            &[share("block disk, with a cache, ", "1.00 below 64 MB, 0.60 at 512 MB")],
            &["files-figure-3"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 4",
        title: "Write throughput of block devices, without a cache",
        evidence: ItemEvidence::Measured,
        says: "0.65 of local at every size; NBD alike",
        why: FASTER_NETWORK,
        source: ItemSource::Benchmarks(&[part(
            "files",
            &[share("block disk, without a cache, ", "0.65")],
            &["files-figure-4"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 5",
        title: "Several files written at once, without a cache",
        evidence: ItemEvidence::Measured,
        says: "0.65 of local alone, at most 0.75",
        why: FASTER_NETWORK,
        source: ItemSource::Benchmarks(&[part(
            "files",
            &[share("block disk, files of 32 MiB, without a cache, ", "0.65 alone, 0.75 at most")],
            &["files-figure-5"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 6",
        title: "Write throughput of USB disks, with a cache",
        evidence: ItemEvidence::Measured,
        says: "remote like local for small files; 0.48 of local at 256 MB",
        why: "Both disks are emulated at high speed, so the bus limits both and the network adds little; the paper's \
              remote disk waited for a round trip a request.",
        source: ItemSource::Benchmarks(&[part(
            "files",
            &[share("USB disk, with a cache, ", "1.00 for small files, 0.48 at 256 MB")],
            &["files-figure-6"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 7",
        title: "Throughput of a remote USB camera",
        evidence: ItemEvidence::Measured,
        says: "0.83 of local at 320 x 240, 0.90 at 640 x 480",
        why: "The camera is a gadget that sends as a high-speed bus lets it; five requests in flight cover the round \
              trip of one machine, so no frame is late. The paper's guest shared its processor with the other guests.",
        source: ItemSource::Benchmarks(&[part(
            "camera",
            &[share("camera 320", "0.83"), share("camera 640", "0.90")],
            &["camera"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 8",
        title: "Network congestion and a remote disk",
        evidence: ItemEvidence::MeasuredFar,
        says: "less in proportion to the UDP load, to 500 of 1000 Mb/s; nothing failed",
        why: "The link is 100 Mb/s in namespaces, and the flood goes to 95 % of it; TCP leaves a flow without \
              congestion control what it takes, so the disk has the rest, as in the paper.",
        source: ItemSource::Benchmarks(&[part(
            "congestion",
            &[value("read 64 KiB", "falls in proportion"), value("write 64 KiB", "falls in proportion")],
            &["congestion"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 10",
        title: "A machine with a database moves, and its disk with it",
        evidence: ItemEvidence::Measured,
        says: "disk quiet for 7 ms of 115 ms; 28 % less throughput for 6 s",
        why: "The machine is a process and has no memory to copy, so the 115 ms and the 28 % have no counterpart; the \
              pause is the disk's part alone. farbus-rig run redir-migrate-hosts moves a virtual machine.",
        source: ItemSource::Benchmarks(&[part(
            "journey",
            &[
                value("to desk: the longest pause", "7 ms"),
                value("to rack: the longest pause", "7 ms"),
                value("home: the longest pause", "7 ms"),
                value("transactions lost", "0"),
                value("bytes lost", "0"),
            ],
            &["journey"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Figure 11",
        title: "A disk is swapped while it is written",
        evidence: ItemEvidence::Measured,
        says: "15 ms with 30 requests pending",
        why: "The paper drains its queue before the swap; farbus copies first and holds requests only for the last \
              blocks.",
        source: ItemSource::Benchmarks(&[part(
            "timeline",
            &[value("requests held by a swap", "15 ms")],
            &["timeline"],
        )]),
    },
    PaperItem {
        paper: 2007,
        number: "Table 1",
        title: "Latency of a block request by stage",
        evidence: ItemEvidence::Measured,
        says: "digits are missing in our copy; remote and NBD alike, device and network take most",
        why: "The disk is memory and the network a loopback, so the stages that dominate the paper's table are short.",
        source: ItemSource::Benchmarks(&[part("stages", &[value("Table 1, ", "")], &[])]),
    },
    PaperItem {
        paper: 2007,
        number: "Table 2",
        title: "Latency of a USB request by stage",
        evidence: ItemEvidence::Measured,
        says: "digits are missing in our copy; device and network take most",
        why: "The device is emulated and the network a loopback, so the stages that dominate the paper's table are \
              short.",
        source: ItemSource::Benchmarks(&[part("stages", &[value("Table 2, ", "")], &[])]),
    },
];
