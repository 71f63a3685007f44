//! The tables and figures of the papers, a file for each paper.

mod driver_modules;
mod embedded_host;
mod netbus;
mod realtime_usb;
mod usbip;

use crate::item::PaperItem;

/// A paper: its year, and its title.
pub const PAPERS: [(u16, &str); 5] = [
    (
        2005,
        "Hirofuchi, Kawai, Fujikawa and Sunahara, USB/IP: a peripheral bus extension for device sharing over IP network",
    ),
    (2007, "Kumar and Schwan, Netbus: a transparent mechanism for remote device access in virtualized systems"),
    (2008, "Hu, Real embedded USB host performance"),
    (2013, "Taylor and Pasquale, Performance aspects of data transfer in a new networked I/O architecture"),
    (2023, "West, Golchin and Njavro, Real-time USB networking and device I/O"),
];

/// All items, paper by paper.
pub fn all() -> Vec<&'static PaperItem> {
    [usbip::ITEMS, netbus::ITEMS, embedded_host::ITEMS, driver_modules::ITEMS, realtime_usb::ITEMS]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::item::{ItemEvidence, ItemSource};

    #[test]
    fn every_table_and_figure_with_a_result_is_there_once() {
        let names: BTreeSet<String> = all().iter().map(|item| item.name()).collect();
        assert_eq!(names.len(), all().len());
        let of = |paper: u16, kind: &str| {
            let numbers = all().into_iter().filter(|item| item.paper == paper);
            numbers.filter_map(|item| item.number.strip_prefix(kind)?.trim().parse().ok()).collect::<Vec<u32>>()
        };
        assert_eq!(of(2005, "Figure"), [9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24]);
        assert_eq!((of(2007, "Figure"), of(2007, "Table")), (vec![3, 4, 5, 6, 7, 8, 10, 11], vec![1, 2]));
        assert_eq!((of(2008, "Table"), of(2013, "Figure")), (vec![1, 2], vec![2]));
        assert_eq!(of(2023, "Table"), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(of(2023, "Figure"), [4, 5, 6, 10, 12, 13, 14, 15, 16]);
        assert_eq!(of(2023, "Algorithm"), [1, 2, 3, 4]);
    }

    #[test]
    fn item_is_found_by_the_names_that_people_type() {
        let item = |words: &str| {
            let found = all().into_iter().find(|item| item.paper == 2023 && item.is_called(words));
            found.map(|item| item.number)
        };
        for words in ["figure-10", "fig10", "Figure 10", "fig. 10"] {
            assert_eq!(item(words), Some("Figure 10"), "{words}");
        }
        assert_eq!((item("tab4"), item("algorithm-4"), item("10")), (Some("Table 4"), Some("Algorithm 4"), None));
    }

    #[test]
    fn every_item_says_what_the_paper_has_and_why_ours_differs() {
        for item in all() {
            assert!(PAPERS.iter().any(|(year, _)| *year == item.paper), "{item:?}");
            assert!(!item.title.is_empty() && !item.says.is_empty() && !item.why.is_empty(), "{item:?}");
            let has_rows = match &item.source {
                ItemSource::Benchmarks(parts) => parts.iter().all(|part| !part.rows.is_empty()),
                ItemSource::Command { runs, .. } => !runs.is_empty(),
                ItemSource::Function(_) => true,
                ItemSource::Needs(what) => !what.is_empty() && item.evidence == ItemEvidence::Rig,
            };
            assert!(has_rows, "{item:?}");
        }
    }
}
