//! What was found of farbus beside its peers, and the floor of each of its paths.

use super::{
    page::{PageRow, PageTable},
    roofline::{MachineLimits, PathNeeds},
};
use crate::{report::figure, stats::SampleSpread};

/// The rows of the table of peers and of the table of floors.
#[derive(Default)]
pub struct PeerFindings {
    pub rows: Vec<PageRow>,
    pub paths: Vec<MeasuredPath>,
    /// What other processes used of a processor, row by row.
    pub foreign: Vec<f64>,
}

/// A path of farbus and the time that a request on it takes.
pub struct MeasuredPath {
    pub what: String,
    pub needs: PathNeeds,
    pub bytes: usize,
    pub micros: f64,
}

impl PeerFindings {
    pub fn tables(&self, limits: &MachineLimits) -> Vec<PageTable> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let owned = |headings: &[&str]| headings.iter().map(|&heading| heading.to_owned()).collect();
        let foreign = 100.0 * SampleSpread::new(self.foreign.clone()).median();
        let beside = PageTable {
            title: "farbus beside its peers",
            note: format!(
                "× 1: one request at a time; × 32: so many under way. The ratio is farbus's rate by the peer's: the median of rounds in \
                 turns, and the least and the most. Other processes used {foreign:.0} % of a processor; a star marks rows with more than \
                 15 %."
            ),
            headings: owned(&["what", "farbus", "peer", "the peer's", "ratio (min..max)"]),
            rows: self.rows.clone(),
        };
        let floors = PageTable {
            title: "What limits each path",
            note: format!(
                "The floor is the least that this machine takes for what a request cannot do without, with all processors \
                 busy where requests overlap. What is above it is farbus, the kernel, and waiting for each other: a wake-up \
                 counts as one on the same processor, and takes {:.0} µs more on another one.",
                limits.wake_far - limits.wake_near
            ),
            headings: owned(&["path", "a request needs", "floor", "measured", "times", "most of the floor"]),
            rows: self.paths.iter().map(|path| path.row(limits)).collect(),
        };
        vec![beside, floors]
    }
}

impl MeasuredPath {
    fn row(&self, limits: &MachineLimits) -> PageRow {
        let floor = self.needs.floor(limits, self.bytes);
        PageRow::new(vec![
            self.what.clone(),
            self.needs.named(),
            format!("{} µs", figure(floor.micros)),
            format!("{} µs", figure(self.micros)),
            figure(self.micros / floor.micros),
            format!("{} ({:.0} %)", floor.limit, 100.0 * floor.limit_share),
        ])
    }
}
