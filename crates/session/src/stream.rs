//! A source's frames and their readers. Each reader has a queue and chose a policy for frames for which it is too slow.
//!
//! | policy | a slow reader |
//! |---|---|
//! | [`SlowReaderPolicy::All`] | is waited for: the source's next frame is refused until the reader has taken one |
//! | [`SlowReaderPolicy::Latest`] | gets the newest frame; older ones are dropped and counted |

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::NamedCounters;
use farbus_model::limits::OBSERVERS_MAX;
use farbus_wire::native::stream::{StreamDescription, StreamFrame};

/// What happens to frames for which a reader is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReaderPolicy {
    /// No frame is lost: the source waits.
    All,
    /// Only the newest frame is kept.
    Latest,
}

/// Names of the counters, in the order of [`MADE`], [`TAKEN`], [`DROPPED`].
const COUNTS: &[&str] = &["frames", "frames_taken", "frames_dropped"];
const MADE: usize = 0;
const TAKEN: usize = 1;
const DROPPED: usize = 2;

/// The place where a source shows its frames. Clones share one state.
#[derive(Clone)]
pub struct FramePublisher(Arc<FramePublisherInner>);

struct FramePublisherInner {
    description: StreamDescription,
    subscribers: Mutex<Vec<Arc<SubscriberQueue>>>,
    is_closed: AtomicBool,
    /// Whether the source has read a part of a frame, or is about to.
    is_within_frame: AtomicBool,
    /// Called when there may be new room or a new reader.
    wake_source: Box<dyn Fn() + Send + Sync>,
    tally: NamedCounters,
}

struct SubscriberQueue {
    policy: SlowReaderPolicy,
    frames: Mutex<VecDeque<StreamFrame>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A reader of a source's frames; dropping it ends the subscription.
pub struct FrameSubscriber {
    inner: Arc<FramePublisherInner>,
    queue: Arc<SubscriberQueue>,
}

impl fmt::Debug for FramePublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramePublisher").field("description", &self.0.description).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FramePublisher {
    /// A stage without readers. `wake_source` is called, by any thread, when a reader comes, goes or has room again,
    /// and when the stage closes.
    pub fn new(description: StreamDescription, wake_source: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(FramePublisherInner {
            description,
            subscribers: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_within_frame: AtomicBool::new(false),
            wake_source: Box::new(wake_source),
            tally: NamedCounters::new(COUNTS),
        }))
    }

    /// The description of the stream.
    pub fn description(&self) -> &StreamDescription {
        &self.0.description
    }

    /// Counters of frames: made, taken by readers, and dropped for slow ones.
    pub fn tally(&self) -> NamedCounters {
        self.0.tally.clone()
    }

    /// Whether there are readers.
    pub fn is_watched(&self) -> bool {
        !locked(&self.0.subscribers).is_empty()
    }

    /// Notes whether the source may have read a part of a frame.
    pub fn set_within_frame(&self, is_within_frame: bool) {
        self.0.is_within_frame.store(is_within_frame, Ordering::Release);
    }

    /// Whether another process could not go on with the source without a loss: it has readers, or is within a frame.
    pub fn is_busy(&self) -> bool {
        self.is_watched() || self.0.is_within_frame.load(Ordering::Acquire)
    }

    /// Shows the next frame to all readers.
    ///
    /// # Errors
    /// The frame, if a reader with [`SlowReaderPolicy::All`] has no room: show it again when the source is woken.
    pub fn show(&self, mut frame: StreamFrame) -> Result<(), StreamFrame> {
        let room = self.0.description.window() as usize;
        let subscribers = locked(&self.0.subscribers);
        let is_full = |subscriber: &Arc<SubscriberQueue>| {
            subscriber.policy == SlowReaderPolicy::All && locked(&subscriber.frames).len() >= room
        };
        if subscribers.iter().any(is_full) {
            return Err(frame);
        }
        // After this, a copy shares the data.
        frame.data.share();
        self.0.tally.count(MADE, 1);
        for subscriber in subscribers.iter() {
            let mut frames = locked(&subscriber.frames);
            if subscriber.policy == SlowReaderPolicy::Latest {
                self.0.tally.count(DROPPED, frames.len() as u64);
                frames.clear();
            }
            frames.push_back(frame.clone());
            drop(frames);
            (subscriber.wake)();
        }
        Ok(())
    }

    /// Adds a reader; `wake` is called, by any thread, when there is a frame. `None`: there are [`OBSERVERS_MAX`]
    /// readers, or the stage is closed.
    pub fn join(&self, policy: SlowReaderPolicy, wake: impl Fn() + Send + Sync + 'static) -> Option<FrameSubscriber> {
        let queue = {
            let mut subscribers = locked(&self.0.subscribers);
            if subscribers.len() >= OBSERVERS_MAX || self.is_closed() {
                return None;
            }
            let queue = Arc::new(SubscriberQueue { policy, frames: Mutex::default(), wake: Box::new(wake) });
            subscribers.push(Arc::clone(&queue));
            queue
        };
        (self.0.wake_source)();
        Some(FrameSubscriber { inner: Arc::clone(&self.0), queue })
    }

    /// Closes the stage, because the source has ended or is no longer shared, and tells all readers.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        for subscriber in locked(&self.0.subscribers).iter() {
            (subscriber.wake)();
        }
        (self.0.wake_source)();
    }

    /// Whether the stage is closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }
}

impl FrameSubscriber {
    /// Takes the oldest frame in the queue.
    pub fn take(&self) -> Option<StreamFrame> {
        let frame = locked(&self.queue.frames).pop_front()?;
        self.inner.tally.count(TAKEN, 1);
        if self.queue.policy == SlowReaderPolicy::All {
            (self.inner.wake_source)();
        }
        Some(frame)
    }

    /// The description of the stream.
    pub fn description(&self) -> &StreamDescription {
        &self.inner.description
    }

    /// What happens to frames that come while this reader is slow.
    pub fn policy(&self) -> SlowReaderPolicy {
        self.queue.policy
    }

    /// Whether the stage is closed and all frames were taken.
    pub fn is_over(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire) && locked(&self.queue.frames).is_empty()
    }
}

impl Drop for FrameSubscriber {
    fn drop(&mut self) {
        locked(&self.inner.subscribers).retain(|subscriber| !Arc::ptr_eq(subscriber, &self.queue));
        (self.inner.wake_source)();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use farbus_wire::native::stream::StreamFormat;

    use super::*;

    fn stage() -> (FramePublisher, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let for_stage = Arc::clone(&wakes);
        let description = StreamDescription { format: StreamFormat::Bytes, frame_bytes_max: 8 << 20 };
        let wake = move || {
            for_stage.fetch_add(1, Ordering::Relaxed);
        };
        (FramePublisher::new(description, wake), wakes)
    }

    fn frame(sequence: u64) -> StreamFrame {
        StreamFrame { sequence, moment_ns: sequence, data: vec![sequence as u8; 4].into() }
    }

    #[test]
    fn source_waits_for_slow_readers_of_all_frames_only() {
        let (stage, wakes) = stage();
        assert!(!stage.is_watched());
        let all = stage.join(SlowReaderPolicy::All, || ()).unwrap();
        let latest = stage.join(SlowReaderPolicy::Latest, || ()).unwrap();
        assert_eq!(wakes.load(Ordering::Relaxed), 2, "the source hears of every reader");
        let room = u64::from(stage.description().window());
        (0..room).for_each(|sequence| stage.show(frame(sequence)).unwrap());
        assert_eq!(stage.show(frame(room)), Err(frame(room)));
        assert_eq!(latest.take().unwrap().sequence, room - 1);
        assert!(latest.take().is_none());
        assert_eq!(all.take().unwrap().sequence, 0);
        assert_eq!(wakes.load(Ordering::Relaxed), 3, "there is room again");
        stage.show(frame(room)).unwrap();
        let rest: Vec<u64> = std::iter::from_fn(|| all.take()).map(|frame| frame.sequence).collect();
        assert_eq!(rest, (1..=room).collect::<Vec<_>>());
        let counts: Vec<u64> = stage.tally().read().map(|(_, count)| count).collect();
        assert_eq!(counts, [room + 1, room + 2, room - 1]);
        drop(all);
        (0..100).for_each(|sequence| stage.show(frame(sequence)).unwrap());
    }

    #[test]
    fn queued_frames_are_read_after_the_end_and_readers_are_limited() {
        let (stage, _) = stage();
        let subscribers: Vec<FrameSubscriber> =
            (0..OBSERVERS_MAX).map(|_| stage.join(SlowReaderPolicy::Latest, || ()).unwrap()).collect();
        assert!(stage.join(SlowReaderPolicy::All, || ()).is_none());
        stage.show(frame(1)).unwrap();
        stage.close();
        assert!(
            subscribers
                .iter()
                .all(|subscriber| !subscriber.is_over() && subscriber.take().is_some() && subscriber.is_over())
        );
        assert!(stage.is_busy());
        drop(subscribers);
        assert!(stage.join(SlowReaderPolicy::All, || ()).is_none() && !stage.is_watched());
        assert!(!stage.is_busy());
        stage.set_within_frame(true);
        assert!(stage.is_busy(), "the rest of the frame would be taken for the next one");
    }
}
