//! C. Taylor and J. Pasquale, "Performance Aspects of Data Transfer in a New Networked I/O Architecture" (2013).

use crate::item::{ItemEvidence, ItemSource, PaperItem, part, value};

pub const ITEMS: &[PaperItem] = &[PaperItem {
    paper: 2013,
    number: "Figure 2",
    title: "Time from frame to frame through module pairs, pipes and shared memory",
    evidence: ItemEvidence::MeasuredFar,
    says: "no module: 2.92 ms (pipes) and 2.58 ms (shared memory) at 100 x 100, 166 and 148 ms at 700 x 700; first \
           pair +8.9 and +5.6 %, each further one +2.3 and +0.36 %",
    why: "While the link is busy a pair runs beside it, so the time from frame to frame hides its cost. A frame that \
          travels alone hides nothing: held against the same 2.3 and 0.36 %, small frames miss by the fixed cost of \
          two wake-ups, which the paper's larger time per frame contains.",
    source: ItemSource::Benchmarks(&[part(
        "modules",
        &[
            value("no pair, 100² at 100 Mb/s", "2.92 ms (pipes), 2.58 ms (shared memory)"),
            value("no pair, 700² at 100 Mb/s", "166 ms (pipes), 148 ms (shared memory)"),
            value("pipes, 100² at 100 Mb/s: a pair", "2.3 %"),
            value("pipes, 400² at 100 Mb/s: a pair", "2.3 %"),
            value("pipes, 700² at 100 Mb/s: a pair", "2.3 %"),
            value("ring, 100² at 100 Mb/s: a pair", "0.36 %"),
            value("ring, 400² at 100 Mb/s: a pair", "0.36 %"),
            value("ring, 700² at 100 Mb/s: a pair", "0.36 %"),
            value("pipes, a frame alone", "2.3 %"),
            value("ring, a frame alone", "0.36 %"),
        ],
        &["modules", "modules-pairs"],
    )]),
}];
