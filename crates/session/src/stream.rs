//! Where a source shows its frames, and who watches: each reader has a seat, and chose what becomes of frames that he
//! is too slow for.
//!
//! | policy | a reader who is slow |
//! |---|---|
//! | [`Policy::All`] | is waited for: the source's next frame is refused until he has taken one |
//! | [`Policy::Latest`] | finds the newest frame; older ones are dropped and counted |

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::Tally;
use farbus_model::limits::OBSERVERS_MAX;
use farbus_wire::native::stream::{Description, Frame};

/// What becomes of frames that a reader is too slow for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// None is lost: the source waits.
    All,
    /// The newest is what counts.
    Latest,
}

/// What it counts, in the order of [`MADE`], [`TAKEN`], [`DROPPED`].
const COUNTS: &[&str] = &["frames", "frames_taken", "frames_dropped"];
const MADE: usize = 0;
const TAKEN: usize = 1;
const DROPPED: usize = 2;

/// Where frames are shown. Its copies are one.
#[derive(Clone)]
pub struct Stage(Arc<Hall>);

struct Hall {
    description: Description,
    subscribers: Mutex<Vec<Arc<Place>>>,
    is_closed: AtomicBool,
    /// Called when there may be room, or a reader, that there was not before.
    wake_source: Box<dyn Fn() + Send + Sync>,
    tally: Tally,
}

struct Place {
    policy: Policy,
    frames: Mutex<VecDeque<Frame>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A reader's place; it is given up by dropping it.
pub struct Subscriber {
    hall: Arc<Hall>,
    place: Arc<Place>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("description", &self.0.description).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// Nobody watches yet. `wake_source` is called, by any thread, when a reader comes, goes or has room again, and in
    /// the end.
    pub fn new(description: Description, wake_source: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Hall {
            description,
            subscribers: Mutex::default(),
            is_closed: AtomicBool::new(false),
            wake_source: Box::new(wake_source),
            tally: Tally::new(COUNTS),
        }))
    }

    /// What is shown.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Frames made, taken by readers, and dropped because one was slow.
    pub fn tally(&self) -> Tally {
        self.0.tally.clone()
    }

    /// Whether somebody watches.
    pub fn is_watched(&self) -> bool {
        !locked(&self.0.subscribers).is_empty()
    }

    /// Shows everybody the next frame.
    ///
    /// # Errors
    /// The frame, if a reader who wants all has no room yet: to be shown again when the source is woken.
    pub fn show(&self, mut frame: Frame) -> Result<(), Frame> {
        let room = self.0.description.window() as usize;
        let subscribers = locked(&self.0.subscribers);
        let is_full = |place: &Arc<Place>| place.policy == Policy::All && locked(&place.frames).len() >= room;
        if subscribers.iter().any(is_full) {
            return Err(frame);
        }
        // From here on a copy costs nothing but its place.
        frame.data.share();
        self.0.tally.count(MADE, 1);
        for place in subscribers.iter() {
            let mut frames = locked(&place.frames);
            if place.policy == Policy::Latest {
                self.0.tally.count(DROPPED, frames.len() as u64);
                frames.clear();
            }
            frames.push_back(frame.clone());
            drop(frames);
            (place.wake)();
        }
        Ok(())
    }

    /// Takes a seat; `wake` is called, by any thread, when there is something to see. `None`: all are taken, or it is
    /// over.
    pub fn sit(&self, policy: Policy, wake: impl Fn() + Send + Sync + 'static) -> Option<Subscriber> {
        let place = {
            let mut subscribers = locked(&self.0.subscribers);
            if subscribers.len() >= OBSERVERS_MAX || self.is_closed() {
                return None;
            }
            let place = Arc::new(Place { policy, frames: Mutex::default(), wake: Box::new(wake) });
            subscribers.push(Arc::clone(&place));
            place
        };
        (self.0.wake_source)();
        Some(Subscriber { hall: Arc::clone(&self.0), place })
    }

    /// There is no source any more, or it is shared no more: everybody is told.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        for place in locked(&self.0.subscribers).iter() {
            (place.wake)();
        }
        (self.0.wake_source)();
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }
}

impl Subscriber {
    /// The frame that was shown longest ago of those that are here.
    pub fn take(&self) -> Option<Frame> {
        let frame = locked(&self.place.frames).pop_front()?;
        self.hall.tally.count(TAKEN, 1);
        if self.place.policy == Policy::All {
            (self.hall.wake_source)();
        }
        Some(frame)
    }

    /// What is shown.
    pub fn description(&self) -> &Description {
        &self.hall.description
    }

    /// What becomes of frames that its owner is too slow for.
    pub fn policy(&self) -> Policy {
        self.place.policy
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.hall.is_closed.load(Ordering::Acquire) && locked(&self.place.frames).is_empty()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        locked(&self.hall.subscribers).retain(|place| !Arc::ptr_eq(place, &self.place));
        (self.hall.wake_source)();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use farbus_wire::native::stream::Format;

    use super::*;

    fn stage() -> (Stage, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let for_stage = Arc::clone(&wakes);
        let description = Description { format: Format::Bytes, frame_bytes_max: 8 << 20 };
        let wake = move || {
            for_stage.fetch_add(1, Ordering::Relaxed);
        };
        (Stage::new(description, wake), wakes)
    }

    fn frame(sequence: u64) -> Frame {
        Frame { sequence, moment_ns: sequence, data: vec![sequence as u8; 4].into() }
    }

    #[test]
    fn who_wants_all_is_waited_for_and_who_wants_the_latest_is_not() {
        let (stage, wakes) = stage();
        assert!(!stage.is_watched());
        let all = stage.sit(Policy::All, || ()).unwrap();
        let latest = stage.sit(Policy::Latest, || ()).unwrap();
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
    fn what_is_there_is_read_after_the_end_and_seats_are_limited() {
        let (stage, _) = stage();
        let subscribers: Vec<Subscriber> =
            (0..OBSERVERS_MAX).map(|_| stage.sit(Policy::Latest, || ()).unwrap()).collect();
        assert!(stage.sit(Policy::All, || ()).is_none());
        stage.show(frame(1)).unwrap();
        stage.close();
        assert!(
            subscribers
                .iter()
                .all(|subscriber| !subscriber.is_over() && subscriber.take().is_some() && subscriber.is_over())
        );
        drop(subscribers);
        assert!(stage.sit(Policy::All, || ()).is_none() && !stage.is_watched());
    }
}
