//! T. Hirofuchi, E. Kawai, K. Fujikawa and H. Sunahara, "USB/IP – a Peripheral Bus Extension for Device Sharing over IP
//! Network" (USENIX 2005).

use crate::item::{ItemEvidence, ItemSource, PaperItem, part, value, whole};

/// Why the lines of Figures 9 to 11 differ.
const FASTER_MACHINE: &str = "Our directly attached device is code in this process, without a bus and without a copy, so \
    its line is that of a function call (a high-speed bus carries 53 MB/s at most). Far: one machine and a relay that delays: no card and no cable take time, so our line is as \
    steep as memory and loopback are, and at 100 Mb/s as steep as that rate (8.19e-2 ms/KB). The paper's network was \
    faster than 100 Mb/s (its cards are Gigabit ones), its processors slower. The intercept is RTT in both.";

/// Bonnie++ on a remote disk.
const BONNIE: &str = "a guest with a kernel that has vhci-hcd, and Bonnie++ (Debian: bonnie++) on ext4 on the attached \
    disk: a case of farbus-rig that is not written yet";
const DISK_OF_MEMORY: &str = "Not run: the disk would be emulated, so that seeks cost nothing.";

const fn bonnie(number: &'static str, title: &'static str, says: &'static str) -> PaperItem {
    PaperItem {
        paper: 2005,
        number,
        title,
        evidence: ItemEvidence::Rig,
        says,
        why: DISK_OF_MEMORY,
        source: ItemSource::Needs(BONNIE),
    }
}

pub const ITEMS: &[PaperItem] = &[
    PaperItem {
        paper: 2005,
        number: "Figure 9",
        title: "Execution time of a URB over its size and the round trip",
        evidence: ItemEvidence::MeasuredFar,
        says: "remote 6.30e-2 ms/KB from 0.24 ms; direct 3.51e-2 ms/KB from 0.07 ms",
        why: FASTER_MACHINE,
        source: ItemSource::Benchmarks(&[part(
            "line",
            &[
                value("direct: gradient", "3.51e-2 ms/KB"),
                value("direct: URB of no bytes", "0.07 ms"),
                value("0 ms: gradient", "6.30e-2 ms/KB"),
                value("0 ms: URB of no bytes", "0.24 ms"),
                value("1 ms: gradient", "6.30e-2 ms/KB"),
                value("4 ms: gradient", "6.30e-2 ms/KB"),
                value("8 ms: gradient", "6.30e-2 ms/KB"),
                value("10 ms: gradient", "6.30e-2 ms/KB"),
                value("50 ms: gradient", "6.30e-2 ms/KB"),
                value("100 ms: gradient", "6.30e-2 ms/KB"),
                value("0 ms, 100 Mb/s: gradient", "6.30e-2 ms/KB, its network"),
                value("10 ms, 100 Mb/s: gradient", "6.30e-2 ms/KB, its network"),
                value("100 ms, 100 Mb/s: gradient", "6.30e-2 ms/KB, its network"),
            ],
            &["line"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 10",
        title: "Throughput from the model s / (a s + RTT)",
        evidence: ItemEvidence::MeasuredFar,
        says: "Equation 1 with a = 6.30e-2 ms/KB: at 128 KB 15.0 MB/s without distance, 6.92 at 10 ms, 1.16 at 100 ms",
        why: FASTER_MACHINE,
        source: ItemSource::Benchmarks(&[part(
            "line",
            &[
                value("0 ms: model at 128 KiB", "15.0 MB/s"),
                value("1 ms: model at 128 KiB", "13.8 MB/s"),
                value("4 ms: model at 128 KiB", "10.4 MB/s"),
                value("8 ms: model at 128 KiB", "7.78 MB/s"),
                value("10 ms: model at 128 KiB", "6.92 MB/s"),
                value("50 ms: model at 128 KiB", "2.15 MB/s"),
                value("100 ms: model at 128 KiB", "1.16 MB/s"),
                value("0 ms, 100 Mb/s: model at 128 KiB", "15.0 MB/s, its network"),
                value("10 ms, 100 Mb/s: model at 128 KiB", "6.92 MB/s, its network"),
                value("100 ms, 100 Mb/s: model at 128 KiB", "1.16 MB/s, its network"),
            ],
            &["line-model"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 11",
        title: "Throughput from experiments",
        evidence: ItemEvidence::MeasuredFar,
        says: "as the model of Figure 10; direct 28.5 MB/s",
        why: FASTER_MACHINE,
        source: ItemSource::Benchmarks(&[part(
            "line",
            &[
                value("direct: measured at 128 KiB", "28.5 MB/s"),
                value("0 ms: measured at 128 KiB", "15.0 MB/s"),
                value("1 ms: measured at 128 KiB", "13.8 MB/s"),
                value("4 ms: measured at 128 KiB", "10.4 MB/s"),
                value("8 ms: measured at 128 KiB", "7.78 MB/s"),
                value("10 ms: measured at 128 KiB", "6.92 MB/s"),
                value("50 ms: measured at 128 KiB", "2.15 MB/s"),
                value("100 ms: measured at 128 KiB", "1.16 MB/s"),
                value("0 ms, 100 Mb/s: measured at 128 KiB", "15.0 MB/s, its network"),
                value("10 ms, 100 Mb/s: measured at 128 KiB", "6.92 MB/s, its network"),
                value("100 ms, 100 Mb/s: measured at 128 KiB", "1.16 MB/s, its network"),
            ],
            &["line-rates"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 12",
        title: "Driver behaviour: isochronous URBs in flight",
        evidence: ItemEvidence::MeasuredFar,
        says: "several URBs of 8 transactions queued; one completes each 1 ms and is submitted again",
        why: "The paper draws it by hand; ours is drawn from the load generator's own record of submissions and \
              completions, so the first completion is a round trip late.",
        source: ItemSource::Benchmarks(&[part(
            "isochrony",
            &[value("trace: from the first submission to its completion", ""), value("trace: interval", "1 ms")],
            &["isochrony-trace"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 13",
        title: "Mean completion intervals over queue depth and round trip",
        evidence: ItemEvidence::MeasuredFar,
        says: "1 ms from depth 10 on at 8 ms; Equation 2: q > RTT/x + 1",
        why: "Nothing differs: how far the least depth that keeps 1 ms is beyond the rule's.",
        source: ItemSource::Benchmarks(&[part(
            "line",
            &[
                value("queue at 0 ms", "0 beyond the rule"),
                value("queue at 1 ms", "0 beyond the rule"),
                value("queue at 4 ms", "0 beyond the rule"),
                value("queue at 8 ms", "depth 10, 0 beyond the rule"),
                value("queue at 16 ms", "0 beyond the rule"),
                value("queue at 32 ms", "0 beyond the rule"),
            ],
            &["line-depth"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 14",
        title: "Completion intervals over time (RTT 8 ms, depth 10)",
        evidence: ItemEvidence::MeasuredFar,
        says: "wide at first, then 1 ms",
        why: "farbus's device has all requests queued when the first arrives, so there is no start-up in which it \
              starves; what is left is when threads of this machine wake.",
        source: ItemSource::Benchmarks(&[part(
            "isochrony",
            &[value("8 ms, depth 10: interval", "1 ms"), value("8 ms, depth 10: p99.99", "")],
            &["isochrony-series"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 15",
        title: "Standard deviations of completion intervals",
        evidence: ItemEvidence::MeasuredFar,
        says: "less than 10 us; direct 20 ns",
        why: "Each completion passes four threads that wake (device, exporter, relay, driver) where the paper had \
              interrupts; so it is held against 10 us or 1.5 of a bare timer thread here, whichever is larger. Of a \
              busy or virtual processor the bare thread's is larger than 10 us, too.",
        source: ItemSource::Benchmarks(&[part(
            "isochrony",
            &[
                value("bare timer thread: standard deviation", ""),
                whole("direct, depth 2: standard deviation", "0.02 us"),
                whole("0 ms, depth 3: standard deviation", "< 10 us"),
                whole("1 ms, depth 4: standard deviation", "< 10 us"),
                whole("4 ms, depth 7: standard deviation", "< 10 us"),
                whole("8 ms, depth 10: standard deviation", "< 10 us"),
                whole("8 ms, depth 12: standard deviation", "< 10 us"),
            ],
            &["isochrony"],
        )]),
    },
    bonnie(
        "Figure 18",
        "Bonnie++: sequential throughput, USB and USB/IP",
        "remote of USB: write 77 %, rewrite 66 %, character read 79 %, block read 54 %",
    ),
    bonnie("Figure 19", "Bonnie++: CPU of sequential work", "USB/IP takes less CPU than USB"),
    bonnie("Figure 20", "Bonnie++: sequential throughput over round trips", "falls with RTT; no digits"),
    bonnie("Figure 21", "Bonnie++: random seeks", "USB 167 KB/s, USB/IP nearly the same"),
    bonnie("Figure 22", "Bonnie++: creating and deleting files", "USB 682, 719 and 2687 op/s, the same at any RTT"),
    PaperItem {
        paper: 2005,
        number: "Figure 23",
        title: "Throughput of sequential work, encrypted and not",
        evidence: ItemEvidence::Measured,
        says: "AES-CBC by IPsec: less than 0.50 of plain",
        why: "The cipher is TLS 1.3's, with instructions for AES; the paper's processor had none. WireGuard and IPsec \
              take kernels that this machine lacks: guests of the rig will have them.",
        source: ItemSource::Benchmarks(&[part(
            "sealed",
            &[
                value("read, plain: throughput", ""),
                value("read, TLS: throughput", "< 0.50 of plain"),
                value("read, TLS: share", "< 0.50"),
                value("write, plain: throughput", ""),
                value("write, TLS: throughput", "< 0.50 of plain"),
                value("write, TLS: share", "< 0.50"),
            ],
            &["sealed"],
        )]),
    },
    PaperItem {
        paper: 2005,
        number: "Figure 24",
        title: "CPU of sequential work, encrypted and not",
        evidence: ItemEvidence::Measured,
        says: "no digits; encryption takes most",
        why: "CPU of both ends for each GB, because both run here; the paper has the client's share of one processor.",
        source: ItemSource::Benchmarks(&[part(
            "sealed",
            &[
                value("read, plain: CPU", ""),
                value("read, TLS: CPU", "more than plain"),
                value("write, plain: CPU", ""),
                value("write, TLS: CPU", "more than plain"),
            ],
            &["sealed-cpu"],
        )]),
    },
];
