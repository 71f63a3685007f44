//! The status of a session's links, for other threads. The session's thread owns the links and counts the bytes.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use farbus_control::session::{LinkStatus, LinksStatus};
use farbus_io_net::link::Link;

/// All links of one end of a session, by lane.
#[derive(Clone, Debug, Default)]
pub struct SessionLinks(Arc<SessionLinksInner>);

#[derive(Debug, Default)]
struct SessionLinksInner {
    all: Mutex<Vec<LaneLinkRecord>>,
    /// The limit of the segments of links that are made from now on; 0: none.
    segment_bytes_max: AtomicU16,
}

#[derive(Debug)]
struct LaneLinkRecord {
    lane: u16,
    /// The peer of the latest link; empty before the first.
    peer: String,
    since: Instant,
    link: Weak<Link>,
    /// How many links there have been before this one.
    replaced: u64,
    counts: Arc<LaneByteCounts>,
}

/// Bytes of one lane, over all its links.
#[derive(Debug, Default)]
pub(crate) struct LaneByteCounts {
    received: AtomicU64,
    sent: AtomicU64,
}

impl LaneByteCounts {
    pub fn note_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn note_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl SessionLinks {
    fn with<T>(&self, lane: u16, change: impl FnOnce(&mut LaneLinkRecord) -> T) -> T {
        let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|entry| entry.lane == lane).unwrap_or_else(|| {
            let at = all.partition_point(|entry| entry.lane < lane);
            let (peer, counts) = (String::new(), Arc::default());
            all.insert(
                at,
                LaneLinkRecord { lane, peer, since: Instant::now(), link: Weak::new(), replaced: 0, counts },
            );
            at
        });
        change(&mut all[at])
    }

    /// Notes that the lane has a link. It counts as up until its owner drops it.
    pub(crate) fn note_up(&self, lane: u16, link: &Arc<Link>) -> Arc<LaneByteCounts> {
        self.with(lane, |entry| {
            // The first has a peer, which stays when it is gone.
            entry.replaced += u64::from(!entry.peer.is_empty());
            (entry.peer, entry.since, entry.link) = (link.peer().to_owned(), Instant::now(), Arc::downgrade(link));
            Arc::clone(&entry.counts)
        })
    }

    /// Notes that the lane has no link.
    pub(crate) fn note_down(&self, lane: u16) {
        self.with(lane, |entry| {
            if std::mem::take(&mut entry.link).strong_count() > 0 {
                entry.since = Instant::now();
            }
        });
    }

    /// Notes that links have segments of so many bytes at most from now on.
    pub(crate) fn note_segments(&self, bytes_max: u16) {
        self.0.segment_bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// The status of the links; `None` for a session that never had one.
    pub fn status(&self) -> Option<LinksStatus> {
        let all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let each: Vec<LinkStatus> = all.iter().map(LaneLinkRecord::status).collect();
        let up = each.iter().filter(|link| link.is_up).count();
        let segment_bytes_max = self.0.segment_bytes_max.load(Ordering::Relaxed);
        let segment_bytes_max = (segment_bytes_max > 0).then_some(segment_bytes_max);
        (!each.is_empty()).then_some(LinksStatus { up, each, segment_bytes_max })
    }
}

impl LaneLinkRecord {
    fn status(&self) -> LinkStatus {
        let link = self.link.upgrade();
        LinkStatus {
            lane: self.lane,
            is_up: link.is_some(),
            since_s: self.since.elapsed().as_secs_f64(),
            peer: self.peer.clone(),
            bytes_in: self.counts.received.load(Ordering::Relaxed),
            bytes_out: self.counts.sent.load(Ordering::Relaxed),
            replaced: self.replaced,
            round_trip_ms: link.and_then(|link| link.round_trip()).map(|span| span.as_secs_f64() * 1000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_up_until_dropped_and_its_lane_keeps_its_counts() {
        let links = SessionLinks::default();
        assert_eq!(links.status(), None);
        let (link, _other) = Link::pair("lab3").unwrap();
        let link = Arc::new(link);
        links.note_down(1);
        let counts = links.note_up(0, &link);
        counts.note_received(5);
        counts.note_sent(7);
        let status = links.status().unwrap();
        assert_eq!((status.up, status.each.len()), (1, 2));
        let [first, second] = &status.each[..] else { panic!("{status:?}") };
        assert_eq!((first.lane, first.is_up, first.peer.as_str(), first.round_trip_ms), (0, true, "lab3", None));
        assert_eq!((first.bytes_in, first.bytes_out), (5, 7));
        assert_eq!((second.lane, second.is_up, second.bytes_in), (1, false, 0));
        links.note_down(0);
        drop(link);
        assert_eq!(links.status().unwrap().up, 0);
        let (next, _other) = Link::pair("lab3, again").unwrap();
        let next = Arc::new(next);
        links.note_up(0, &next).note_sent(1);
        let again = &links.status().unwrap().each[0];
        assert_eq!((again.bytes_out, again.peer.as_str(), again.is_up), (8, "lab3, again", true));
    }
}
