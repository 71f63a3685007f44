//! The body of an answer: all of it at once, or a stream of events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::api::journal::JournalFollower;
use crate::http::drawn::{CachedView, ViewCache};
use crate::http::room::within;
use crate::known::status::CombinedStatus;
use crate::line::asking::StatusFollowGuard;
use crate::view::PageView;

/// A comment is sent after so long without an event: it finds out whether the client is still there.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What an answer of the page consists of, after its head.
pub enum ResponseBody {
    /// Bytes, until they are taken.
    Whole(Option<Bytes>),
    /// Events, each sent as it comes, until the client leaves or the page ends.
    Events(EventStream),
}

/// An event with what it is followed by; `None` after the last.
type NextBodyEvent = Option<(BodyEventSource, Bytes)>;

/// The stream of events of one client. Nothing is queued: an event says what is different from what the client shows at
/// the moment it can be sent.
pub struct EventStream {
    next: Pin<Box<dyn Future<Output = NextBodyEvent> + Send>>,
}

/// Where the events come from.
enum BodyEventSource {
    /// From the status: each says only that the table has changed.
    Table(StatusEventSource),
    /// From the journal.
    Journal(JournalEventSource),
}

/// The journal; the status is followed, too, so that the processes are asked.
struct JournalEventSource {
    follower: JournalFollower,
    _place: EventStreamPermit,
}

/// What a stream has until it ends: its place among the streams, and what the other process sends for it.
type EventStreamPermit = (OwnedSemaphorePermit, StatusFollowGuard);

/// What the processes say, followed for one client.
struct StatusEventSource {
    status: watch::Receiver<Arc<CombinedStatus>>,
    what: StatusSubscription,
    _place: EventStreamPermit,
}

/// What the client wants to know, and what it was told last.
enum StatusSubscription {
    /// Whether there is anything new: a hash of what is seen of all devices.
    Any(Arc<ViewCache>, u64),
    /// What a view consists of, and the version that the client shows.
    View(Arc<CachedView>, u64),
}

impl StatusSubscription {
    /// The event that this status makes, if there is something new in it.
    fn event(&mut self, status: &CombinedStatus) -> Option<Bytes> {
        match self {
            Self::Any(drawn, shown) => drawn.table_event(shown, status),
            Self::View(watched, shown) => watched.event(shown, status),
        }
    }
}

impl EventStream {
    /// A stream that says what changes: of a view, of which the client shows a version, or whether anything does.
    /// `place` is kept until it ends.
    pub fn new(
        status: watch::Receiver<Arc<CombinedStatus>>,
        permit: EventStreamPermit,
        drawn: &Arc<ViewCache>,
        followed: Option<(PageView, u64)>,
    ) -> Self {
        let what = match followed {
            Some((view, version)) => StatusSubscription::View(drawn.watch(view, &status.borrow()), version),
            None => StatusSubscription::Any(Arc::clone(drawn), 0),
        };
        Self { next: Box::pin(next(BodyEventSource::Table(StatusEventSource { status, what, _place: permit }))) }
    }

    /// A stream of the journal's events; `place` is kept until it ends.
    pub fn numbered(follower: JournalFollower, permit: EventStreamPermit) -> Self {
        Self { next: Box::pin(next(BodyEventSource::Journal(JournalEventSource { follower, _place: permit }))) }
    }
}

/// The next event, or a comment if there is none for a while; `None` after the last.
async fn next(source: BodyEventSource) -> NextBodyEvent {
    match source {
        BodyEventSource::Table(followed) => {
            next_of_table(followed).await.map(|(source, bytes)| (BodyEventSource::Table(source), bytes))
        }
        BodyEventSource::Journal(mut numbered) => {
            let bytes = match timeout(SILENCE_MAX, numbered.follower.next()).await {
                Ok(text) => text?,
                Err(_) => Bytes::from_static(b":\n\n"),
            };
            Some((BodyEventSource::Journal(numbered), bytes))
        }
    }
}

async fn next_of_table(mut followed: StatusEventSource) -> Option<(StatusEventSource, Bytes)> {
    let changed = async {
        loop {
            followed.status.changed().await.ok()?;
            let status = Arc::clone(&followed.status.borrow_and_update());
            if let Some(event) = followed.what.event(&status) {
                return Some(event);
            }
        }
    };
    let bytes = match timeout(SILENCE_MAX, changed).await {
        Ok(event) => event?,
        Err(_) => Bytes::from_static(b":\n\n"),
    };
    Some((followed, bytes))
}

/// Shorter answers take no room: each connection has as much anyway.
const SHORT_BYTES_MAX: usize = 16 << 10;

impl ResponseBody {
    /// Takes room for a long answer, in KiB, until it was sent or its connection is lost. Returns whether there was
    /// some.
    pub fn take_room(&mut self, room: &Arc<Semaphore>) -> bool {
        let Self::Whole(Some(bytes)) = self else { return true };
        if bytes.len() <= SHORT_BYTES_MAX {
            return true;
        }
        match within(std::mem::take(bytes), room) {
            Some(held) => {
                *bytes = held;
                true
            }
            None => false,
        }
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(events) => events.next.as_mut().poll(cx).map(|next| {
                let (source, bytes) = next?;
                events.next = Box::pin(self::next(source));
                Some(Ok(Frame::data(bytes)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_that_are_not_read_leave_no_room_for_others_until_they_are() {
        let room = Arc::new(Semaphore::new(100));
        let whole = |bytes: usize| ResponseBody::Whole(Some(Bytes::from(vec![0; bytes])));
        let (mut first, mut second, mut short) = (whole(60 << 10), whole(60 << 10), whole(SHORT_BYTES_MAX));
        assert!(first.take_room(&room) && !whole(60 << 10).take_room(&room) && short.take_room(&room));
        let ResponseBody::Whole(taken) = &mut first else { panic!("it is whole") };
        let being_sent = taken.take();
        assert!(!whole(60 << 10).take_room(&room), "it is being sent");
        drop(being_sent);
        assert!(second.take_room(&room));
    }
}
