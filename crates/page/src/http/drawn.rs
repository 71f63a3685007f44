//! What clients of events look at, drawn once for all of them.
//!
//! A client remembers one number: the version of what it shows. What that version looks like is kept here, once for all
//! clients of a view, and so is the event that makes the present version out of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hyper::body::Bytes;
use tokio::sync::Semaphore;

use crate::http::room::within;
use crate::known::status::CombinedStatus;
use crate::view::{ElementDigest, PageView, VIEW_EVENT_BYTES_MAX, ViewDigest};

/// Versions of a view that are kept besides the present one. A client that shows an older one loads the view again: it
/// did not read for two seconds at least.
const PAST_MAX: usize = 4;
/// Parts of a version that is kept. A longer one is not: its clients load the view again.
const PARTS_MAX: usize = 160;
/// The most that is kept of one view, bytes; the events come on top, where answers are counted.
pub const VIEW_BYTES_MAX: usize = (1 + PAST_MAX) * PARTS_MAX * size_of::<ElementDigest>() + 4096;

const RELOAD: &[u8] = b"event: reload\ndata:\n\n";

/// What all clients look at.
#[derive(Debug)]
pub struct ViewCache {
    views: Mutex<Vec<(PageView, Weak<CachedView>)>>,
    table: Mutex<CachedStatusEvent>,
    /// Room for events that are not sent yet, KiB.
    room: Arc<Semaphore>,
}

/// Whether there is anything new, for the clients that ask for no more.
#[derive(Debug, Default)]
struct CachedStatusEvent {
    status: Option<u64>,
    fingerprint: u64,
    event: Bytes,
}

/// A view that somebody looks at.
#[derive(Debug)]
pub struct CachedView {
    view: PageView,
    room: Arc<Semaphore>,
    has: Mutex<ViewVersions>,
}

#[derive(Debug, Default)]
struct ViewVersions {
    /// The status that was drawn last.
    status: Option<u64>,
    /// The versions, the present one last.
    versions: VecDeque<(u64, ViewDigest)>,
    /// The events that make the present version out of others; `None`: there was no room for it.
    events: Vec<(u64, Option<Bytes>)>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ViewCache {
    /// Nothing yet. `room` is what answers take that are not read yet, in KiB.
    pub fn new(room: Arc<Semaphore>) -> Self {
        Self { views: Mutex::default(), table: Mutex::default(), room }
    }

    /// The view, for one more client; all have the same. `status` is what was known when the client began: most likely
    /// it shows that.
    pub fn watch(&self, view: PageView, status: &CombinedStatus) -> Arc<CachedView> {
        let watched = self.watched(view);
        drop(watched.drawn(status));
        watched
    }

    fn watched(&self, view: PageView) -> Arc<CachedView> {
        let mut views = locked(&self.views);
        views.retain(|(_, watched)| watched.strong_count() > 0);
        let found = views.iter().find(|(known, _)| *known == view).and_then(|(_, watched)| watched.upgrade());
        found.unwrap_or_else(|| {
            let has = Mutex::default();
            let watched = Arc::new(CachedView { view: view.clone(), room: Arc::clone(&self.room), has });
            views.push((view, Arc::downgrade(&watched)));
            watched
        })
    }

    /// The event that says that something is new; `None` if the client shows that already. `shown` is the fingerprint
    /// that it was told last, and is changed.
    pub fn table_event(&self, shown: &mut u64, status: &CombinedStatus) -> Option<Bytes> {
        let mut table = locked(&self.table);
        if table.status != Some(status.version) {
            let fingerprint = PageView::fingerprint(status);
            let event = format!("event: status\ndata: {fingerprint:016x}\n\n").into();
            *table = CachedStatusEvent { status: Some(status.version), fingerprint, event };
        }
        (std::mem::replace(shown, table.fingerprint) != table.fingerprint).then(|| table.event.clone())
    }
}

impl CachedView {
    /// The event for a client that shows the version `shown`, which is changed to the one that the event makes; `None`:
    /// there is nothing new, or no room for an event at present.
    pub fn event(&self, shown: &mut u64, status: &CombinedStatus) -> Option<Bytes> {
        let mut has = self.drawn(status);
        let now = has.versions.back().map(|(version, _)| *version)?;
        if now == *shown {
            return None;
        }
        let event = match has.events.iter().find(|(from, _)| from == shown) {
            Some((_, event)) => event.clone(),
            None => {
                let before = has.versions.iter().find(|(version, _)| version == shown).map(|(_, before)| before);
                let drawing = before.map(|before| (before, self.view.draw(status)));
                let changes = drawing.and_then(|(before, drawing)| before.changes_to(&drawing));
                let event = self.written(changes);
                // Only versions that are kept have an event of their own.
                if has.versions.iter().any(|(version, _)| version == shown) {
                    has.events.push((*shown, event.clone()));
                }
                event
            }
        }?;
        *shown = now;
        Some(event)
    }

    /// What is kept, once this status was drawn.
    fn drawn(&self, status: &CombinedStatus) -> MutexGuard<'_, ViewVersions> {
        let mut has = locked(&self.has);
        if has.status != Some(status.version) {
            self.draw(&mut has, status);
        }
        has
    }

    /// Draws the view, and the event for the clients that show what it was before: all that read.
    fn draw(&self, has: &mut ViewVersions, status: &CombinedStatus) {
        has.status = Some(status.version);
        has.events.clear();
        let drawing = self.view.draw(status);
        let shown = ViewDigest::of(&drawing);
        let now = shown.version();
        if let Some((before, known)) = has.versions.back() {
            if *before == now {
                return;
            }
            let event = self.written(known.changes_to(&drawing));
            has.events.push((*before, event));
        }
        has.versions.retain(|(version, known)| *version != now && known.parts() <= PARTS_MAX);
        if has.versions.len() > PAST_MAX {
            has.versions.pop_front();
        }
        // One that is too long counts as another view: its event is to load it again.
        has.versions.push_back((now, if shown.parts() <= PARTS_MAX { shown } else { ViewDigest::default() }));
    }

    fn written(&self, changes: Option<String>) -> Option<Bytes> {
        match changes {
            Some(changes) => {
                debug_assert!(changes.len() <= VIEW_EVENT_BYTES_MAX, "the view limits it");
                within(format!("event: parts\ndata: {changes}\n\n").into(), &self.room)
            }
            None => Some(Bytes::from_static(RELOAD)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::known::status::tests::status;

    /// The status of this version with devices of these names.
    fn of(version: u64, names: &[&str]) -> CombinedStatus {
        let devices: Vec<_> = names.iter().map(|name| json!({ "name": name, "state": "available" })).collect();
        let process = json!({ "pid": 7, "role": "share", "devices": devices });
        let mut status = status(json!([process]));
        status.version = version;
        status
    }

    fn version_of(status: &CombinedStatus) -> u64 {
        ViewDigest::of(&PageView::devices().draw(status)).version()
    }

    #[test]
    fn all_clients_of_a_view_get_the_same_bytes_also_those_that_missed_one() {
        let drawn = ViewCache::new(Arc::new(Semaphore::new(1 << 10)));
        let clients: Vec<Arc<CachedView>> =
            (0..100).map(|_| drawn.watch(PageView::devices(), &of(1, &["a"]))).collect();
        let (first, second, third) = (of(1, &["a"]), of(2, &["a", "b"]), of(3, &["a", "b", "c"]));
        let mut shown = vec![version_of(&first); clients.len()];
        let events = |status: &CombinedStatus, shown: &mut [u64]| -> Vec<Option<Bytes>> {
            clients.iter().zip(shown).map(|(client, shown)| client.event(shown, status)).collect()
        };
        assert_eq!(shown[0], version_of(&first));
        // All but one read the second.
        let got = events(&second, &mut shown[1..]);
        assert!(got.iter().all(|event| event == &got[0] && event.is_some()));
        let got: Vec<Bytes> = events(&third, &mut shown).into_iter().flatten().collect();
        assert_eq!(got.len(), clients.len());
        assert!(got[2..].iter().all(|event| event.as_ptr() == got[1].as_ptr()), "one serialisation");
        let text = String::from_utf8(got[0].to_vec()).unwrap();
        assert!(text.contains("event: parts") && text.matches("<tr").count() == 2, "both that are new to it: {text}");
        assert!(shown.iter().all(|shown| *shown == version_of(&third)));
    }

    #[test]
    fn a_client_that_shows_what_is_not_kept_any_more_loads_the_view_again() {
        let drawn = ViewCache::new(Arc::new(Semaphore::new(1 << 10)));
        let watched = drawn.watch(PageView::devices(), &of(1, &["0"]));
        let mut shown = version_of(&of(1, &["0"]));
        for version in 1..=2 + PAST_MAX as u64 {
            let name = version.to_string();
            watched.event(&mut u64::MAX.clone(), &of(version, &[&name]));
        }
        let name = (2 + PAST_MAX).to_string();
        let event = watched.event(&mut shown, &of(2 + PAST_MAX as u64, &[&name])).unwrap();
        assert_eq!(&event[..], RELOAD);
        assert!(locked(&watched.has).versions.len() <= 1 + PAST_MAX);
    }

    #[test]
    fn events_that_are_not_sent_yet_have_room_for_so_many_and_then_wait() {
        let room = Arc::new(Semaphore::new(20));
        let drawn = ViewCache::new(Arc::clone(&room));
        let first = of(1, &[]);
        let watched = drawn.watch(PageView::devices(), &first);
        let many: Vec<String> = (0..60).map(|n| format!("device-{n}")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut shown = version_of(&first);
        assert_eq!(watched.event(&mut shown, &first), None);
        let before = shown;
        assert_eq!(watched.event(&mut shown, &of(2, &names)), None, "it is longer than the room");
        assert_eq!(shown, before, "and comes with a later status");
        room.add_permits(100);
        assert!(watched.event(&mut shown, &of(3, &names)).is_some() && shown != before);
        drop(watched);
        drawn.watch(PageView::Buses, &first);
        assert_eq!(locked(&drawn.views).len(), 1, "nobody looks at the first any more");
    }
}
