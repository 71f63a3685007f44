//! R. West, A. Golchin and A. Njavro, "Real-Time USB Networking and Device I/O" (ACM TECS 22, 4, 2023).

use crate::item::{BenchmarkPart, ItemEvidence, ItemSource, PaperItem, part, value};
use crate::{misconfigured, plans, result::BenchmarkRows, simulated};

/// Pipes on this machine: six minutes, as root.
const fn tuned_pipes(rows: &'static [BenchmarkRows], charts: &'static [&'static str]) -> BenchmarkPart {
    BenchmarkPart { name: "pipes", rows, charts, is_long: true }
}

const TABLE_2: &[&str] = &[
    "plan schedule --mode spread --reservation most --example table-2-1",
    "plan schedule --mode spread --reservation most --example table-2-2",
    "plan schedule --mode spread --reservation most --example table-2-3",
    "plan schedule --mode spread --reservation most --example table-2-4",
    "plan schedule --mode spread --reservation most --example table-2-5",
];
const TABLE_5: &[&str] =
    &["plan schedule --example table-5-1", "plan schedule --example table-5-2", "plan schedule --example table-5-3"];
const SIMULATED_KERNELS: &str = "A model of both kernels: its costs of interrupts and system calls are assumed, and the \
    storms of another device's interrupts, of which the paper says nothing, were chosen so that Linux loses about as \
    much as in Table 9. The signs follow from the scheduling, the sizes do not.";

pub const ITEMS: &[PaperItem] = &[
    PaperItem {
        paper: 2023,
        number: "Table 2",
        title: "Expected end-to-end latencies of bulk endpoints",
        evidence: ItemEvidence::Computed,
        says: "c = 1, 2, 4, 8, 16; 4000, 4500, 5500, 7500, 11500 us",
        why: "Nothing differs when a budget is spread like a fluid, as Equation 6 does; with whole packets scenario 5 \
              takes 17 intervals and 12000 us.",
        source: ItemSource::Command { runs: TABLE_2, read: plans::table_2 },
    },
    PaperItem {
        paper: 2023,
        number: "Table 3",
        title: "Delay contributors",
        evidence: ItemEvidence::Computed,
        says: "250, 125, 250, 125 c and 250 us; together 3500 + 500 c",
        why: "Nothing differs: what is left of each round trip without 500 c.",
        source: ItemSource::Command { runs: TABLE_2, read: plans::table_3 },
    },
    PaperItem {
        paper: 2023,
        number: "Table 4",
        title: "Observed round trips",
        evidence: ItemEvidence::Simulated,
        says: "means 3549, 3875, 3969, 5186, 7447 us; longest 4037, 4359, 5256, 7553, 11560 us",
        why: "The level differs by what is alike in all scenarios: a thread here looks half a period after a message \
              came, on average, and then takes 25 us, while the paper's twelve servers use nearly all of their periods \
              and it does not say for what. What waiting for the bus adds from scenario to scenario agrees.",
        source: ItemSource::Function(simulated::table_4),
    },
    PaperItem {
        paper: 2023,
        number: "Table 5",
        title: "Bus utilization and throughput that are expected",
        evidence: ItemEvidence::Computed,
        says: "45.4, 22.7, 11.4, 5.7 %; 0.71, 4.27, 11.38 %; 33, 197, 520 Mb/s",
        why: "Digits beyond the paper's: it rounds 32.768 up, 196.608 up and 524.288 down.",
        source: ItemSource::Command { runs: TABLE_5, read: plans::table_5 },
    },
    PaperItem {
        paper: 2023,
        number: "Table 6",
        title: "Observed throughput of bulk endpoints",
        evidence: ItemEvidence::Simulated,
        says: "means 39.49, 234.20, 573.20 Mb/s; least 34.32, 202.83, 525.06",
        why: "The paper's software asked for more than was reserved, by a rule that it does not give: an endpoint that \
              asks for its budget has exactly that here, and one that always asks has all that the bus leaves. The \
              paper's means lie between the two. What is promised, the least of a second, is kept in both.",
        source: ItemSource::Function(simulated::table_6),
    },
    PaperItem {
        paper: 2023,
        number: "Table 7",
        title: "CAN traffic, and the time in which it fills 4 KiB",
        evidence: ItemEvidence::Computed,
        says: "4 buses of 500 kb/s and one of 250 fill 32 Kib in 14 ms",
        why: "14.564 ms; the paper rounds down, which is the safe side.",
        source: ItemSource::Command { runs: &["plan pipe --example table-7"], read: plans::table_7 },
    },
    PaperItem {
        paper: 2023,
        number: "Table 8",
        title: "Experimental scenarios",
        evidence: ItemEvidence::Simulated,
        says: "30 s and 60 s; 0 or 3 tasks that compute, 0 or 5 that read",
        why: "These are the settings of Table 9, run as they stand.",
        source: ItemSource::Function(simulated::table_8),
    },
    PaperItem {
        paper: 2023,
        number: "Table 9",
        title: "Overruns of the USB-CAN buffer",
        evidence: ItemEvidence::Simulated,
        says: "Quest 0; Linux 230 in scenario 3, 405 in scenario 6, else 0",
        why: SIMULATED_KERNELS,
        source: ItemSource::Function(simulated::table_9),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 4",
        title: "A cube of eight hosts",
        evidence: ItemEvidence::Computed,
        says: "8 debug links, 4 bridges",
        why: "Nothing differs.",
        source: ItemSource::Command { runs: &["plan topology --example figure-4"], read: plans::figure_4 },
    },
    PaperItem {
        paper: 2023,
        number: "Figure 5",
        title: "Networks of debug links alone",
        evidence: ItemEvidence::Computed,
        says: "(a) 2 links, (b) 3 links, (c) a ring of 4; no bridge",
        why: "The ring of (c) runs the other way round: farbus orders hosts by number, the paper draws host 1 first.",
        source: ItemSource::Command {
            runs: &[
                "plan topology --example figure-5a",
                "plan topology --example figure-5b",
                "plan topology --example figure-5c",
            ],
            read: plans::figure_5,
        },
    },
    PaperItem {
        paper: 2023,
        number: "Figure 6",
        title: "Networks that came up wrong",
        evidence: ItemEvidence::Computed,
        says: "(a) a host is missing, (b) a port is taken by another host, (c) the ring is open",
        why: "Every order in which the hosts of Figure 5 may act is tried: without waiting, all three come about; with \
              farbus's order none does.",
        source: ItemSource::Function(misconfigured::figure_6),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 10",
        title: "Distribution of the round trips",
        evidence: ItemEvidence::SimulatedAndMeasured,
        says: "the distributions of Table 4; 0.3 % over the bound in scenario 1, 0.1 % in 4 and 5",
        why: "As Table 4; no round trip is over its bound, because a simulated processor has no cache that misses.",
        source: ItemSource::Benchmarks(&[
            part("realtime", &[value("Table 4, scenario ", "")], &["realtime-round-trips"]),
            tuned_pipes(&[value("Table 2, scenario ", "")], &["pipes-round-trips"]),
        ]),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 12",
        title: "How far counters of CPU-bound tasks are off",
        evidence: ItemEvidence::Simulated,
        says: "no digits: Quest close; Linux behind in scenarios 2 and 5, ahead in 3 and 6",
        why: SIMULATED_KERNELS,
        source: ItemSource::Function(simulated::figure_12),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 13",
        title: "Frames a second over two input pipes",
        evidence: ItemEvidence::SimulatedAndMeasured,
        says: "Quest within 2730 to 2752 frames/s, Linux not",
        why: SIMULATED_KERNELS,
        source: ItemSource::Benchmarks(&[
            part("realtime", &[value("Figures 13 and 14, ", "within 2730 to 2752")], &["realtime-input"]),
            tuned_pipes(&[value("Figures 13 and 14, ", "")], &["pipes-in"]),
        ]),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 14",
        title: "Least, most and mean of the input",
        evidence: ItemEvidence::Simulated,
        says: "means: Quest 2745 and 2743, Linux 2703 and 2714 frames/s",
        why: SIMULATED_KERNELS,
        source: ItemSource::Function(simulated::figure_14),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 15",
        title: "Frames a second over two output pipes",
        evidence: ItemEvidence::SimulatedAndMeasured,
        says: "Quest within 3053 to 3073 frames/s, Linux below at times",
        why: SIMULATED_KERNELS,
        source: ItemSource::Benchmarks(&[
            part("realtime", &[value("Figures 15 and 16, ", "within 3053 to 3073")], &["realtime-output"]),
            tuned_pipes(&[value("Figures 15 and 16, ", "3073")], &["pipes-out"]),
        ]),
    },
    PaperItem {
        paper: 2023,
        number: "Figure 16",
        title: "Least, most and mean of the output",
        evidence: ItemEvidence::Simulated,
        says: "Quest's means within 3053 to 3073 frames/s; Linux's nearly, with a wider range",
        why: SIMULATED_KERNELS,
        source: ItemSource::Function(simulated::figure_16),
    },
    PaperItem {
        paper: 2023,
        number: "Algorithm 1",
        title: "Scheduling of the bus",
        evidence: ItemEvidence::Computed,
        says: "scenarios 1 and 2: every endpoint admitted; 3: of the cameras only i1 and i4",
        why: "In scenario 2 farbus refuses i4: bulk packets are whole here, and with them the sum is 102 % of the bus.",
        source: ItemSource::Command { runs: TABLE_5, read: plans::algorithm_1 },
    },
    PaperItem {
        paper: 2023,
        number: "Algorithm 2",
        title: "Reservation for asynchronous endpoints",
        evidence: ItemEvidence::Computed,
        says: "t_A of Table 2: 31.9 % of 125 us, 39.875 us",
        why: "39.820 us: the paper computes with its own 31.9 %, which is rounded.",
        source: ItemSource::Command { runs: TABLE_2, read: plans::algorithm_2 },
    },
    PaperItem {
        paper: 2023,
        number: "Algorithm 3",
        title: "Places of periodic endpoints",
        evidence: ItemEvidence::Computed,
        says: "first-fit in microframes; scenario 2 leaves 20.05 % to bulk",
        why: "farbus tries first-fit and searches if that fails, so it admits no less.",
        source: ItemSource::Command { runs: TABLE_5, read: plans::algorithm_3 },
    },
    PaperItem {
        paper: 2023,
        number: "Algorithm 4",
        title: "Bringing a network of debug links up",
        evidence: ItemEvidence::Computed,
        says: "every network comes up as planned",
        why: "As printed it does not, with a host beside a ring: that host may take the leader's port. farbus's leader \
              waits for it.",
        source: ItemSource::Function(misconfigured::algorithm_4),
    },
];
