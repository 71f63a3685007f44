//! Which users are told that written data was lost: Linux's errseq rule (`lib/errseq.c`) for the users of one block
//! device.
//!
//! A *loss* is written data that was acknowledged and will not become durable: a flush failed. A device reports it
//! once, to the first flush. Several users may rely on that data: programs with an open file, clients with a
//! connection. So the owner of the device keeps one [`LossCounter`], and a [`LossCursor`] for each user:
//!
//! | what happens | what follows |
//! |---|---|
//! | any flush fails, a background flush too | the loss is [recorded](LossCounter::record) |
//! | a user flushes (`fsync`, NBD flush) | it [is told](LossCounter::tell) of every loss since its last flush, once |
//! | no user waits for the result (a background flush, FUSE's RELEASE) | no user counts as told |
//! | a user may look at the result, but need not (FUSE's FLUSH: `close`) | it gets it ([`LossCounter::untold`]) and does not count as told |
//! | a user comes while no user was told of the last loss | it is told of that, too: the user that wrote may have left |

use crate::block::StoreError;

/// The losses of one block device, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossCounter {
    count: u64,
    /// The reason of the last loss.
    last: Option<StoreError>,
    /// Whether any user was told of the last loss.
    is_told: bool,
}

/// How many losses one user of a device was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossCursor(u64);

impl LossCounter {
    /// Restores a snapshot: the number of losses, the reason of the last one, and whether any user was told of it.
    pub fn restore(count: u64, last: Option<StoreError>, is_told: bool) -> Self {
        Self { count, last, is_told }
    }

    /// Records that a flush failed for this reason.
    pub fn record(&mut self, error: StoreError) {
        self.count += 1;
        (self.last, self.is_told) = (Some(error), false);
    }

    /// The cursor of a new user.
    pub fn cursor(&self) -> LossCursor {
        LossCursor(if self.is_told { self.count } else { self.count.saturating_sub(1) })
    }

    /// The loss that the user with this cursor was not told of yet. The user does not count as told.
    pub fn untold(&self, cursor: LossCursor) -> Option<StoreError> {
        self.last.filter(|_| cursor.0 < self.count)
    }

    /// Tells the user with this cursor of its losses, each once.
    ///
    /// # Errors
    /// The reason of the last loss since the user was told last.
    pub fn tell(&mut self, cursor: &mut LossCursor) -> Result<(), StoreError> {
        let untold = self.untold(*cursor);
        self.is_told |= untold.is_some();
        cursor.0 = self.count;
        untold.map_or(Ok(()), Err)
    }

    /// The last loss, if no user was told of it.
    pub fn told_to_nobody(&self) -> Option<StoreError> {
        self.last.filter(|_| !self.is_told)
    }

    /// The number of losses.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The reason of the last loss.
    pub fn last(&self) -> Option<StoreError> {
        self.last
    }
}

impl LossCursor {
    /// Restores a cursor from a snapshot.
    pub const fn restore(told_count: u64) -> Self {
        Self(told_count)
    }

    /// The number of losses that its user was told of.
    pub const fn told_count(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to two users of a device; a third user comes late.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Loss,
        Flush(usize),
        /// A flush that no user asked for, and that finds the loss first.
        Background,
        Close(usize),
        Comes,
    }

    const EVENTS: [Event; 7] = [
        Event::Loss,
        Event::Flush(0),
        Event::Flush(1),
        Event::Flush(2),
        Event::Background,
        Event::Close(0),
        Event::Comes,
    ];

    /// A device that reports a loss to the first flush after it, its users, and what each has to be told.
    #[derive(Default)]
    struct World {
        device_lost: bool,
        losses: LossCounter,
        cursors: [Option<LossCursor>; 3],
        /// Whether each user relies on lost data and was not told.
        owed: [bool; 3],
        /// A loss that was reported to no user yet.
        unheard: bool,
    }

    impl World {
        fn new() -> Self {
            let mut world = Self::default();
            world.cursors[..2].fill(Some(world.losses.cursor()));
            world
        }

        /// Flushes the device, and records the result.
        fn flush_device(&mut self) {
            if std::mem::take(&mut self.device_lost) {
                self.losses.record(StoreError::Lost);
            }
        }

        fn happens(&mut self, event: Event, story: &[Event]) {
            match event {
                Event::Loss => {
                    self.device_lost = true;
                    (0..3).filter(|&at| self.cursors[at].is_some()).for_each(|at| self.owed[at] = true);
                    self.unheard = true;
                }
                Event::Background => self.flush_device(),
                Event::Comes => {
                    if self.cursors[2].is_none() {
                        // A new user is shown a loss that no user was told of, including one that no flush has found
                        // yet.
                        self.cursors[2] = Some(self.losses.cursor());
                        self.owed[2] = self.unheard;
                    }
                }
                Event::Close(at) => {
                    self.flush_device();
                    let Some(cursor) = self.cursors[at] else { return };
                    assert_eq!(self.losses.untold(cursor).is_some(), self.owed[at], "close of {at} in {story:?}");
                }
                Event::Flush(at) => {
                    self.flush_device();
                    let Some(cursor) = &mut self.cursors[at] else { return };
                    let heard = self.losses.tell(cursor);
                    assert_eq!(heard.is_err(), self.owed[at], "flush of {at} in {story:?}");
                    self.unheard &= !std::mem::take(&mut self.owed[at]);
                }
            }
        }
    }

    #[test]
    fn each_user_hears_of_each_loss_once_in_every_order_of_six_events() {
        let mut stories = 0;
        for number in 0..EVENTS.len().pow(6) {
            let digits = (0..6).scan(number, |rest, _| {
                let digit = *rest % EVENTS.len();
                *rest /= EVENTS.len();
                Some(EVENTS[digit])
            });
            let story: Vec<Event> = digits.collect();
            let mut world = World::new();
            story.iter().for_each(|&event| world.happens(event, &story));
            stories += 1;
        }
        assert_eq!(stories, 117_649);
    }

    #[test]
    fn saved_losses_and_cursors_tell_what_was_not_told_before() {
        let mut losses = LossCounter::default();
        let (mut cursor, untold) = (losses.cursor(), losses.cursor());
        losses.record(StoreError::Medium);
        assert_eq!(losses.tell(&mut cursor), Err(StoreError::Medium));
        let mut losses = LossCounter::restore(losses.count(), losses.last(), losses.told_to_nobody().is_none());
        let [mut cursor, mut untold] = [cursor, untold].map(|cursor| LossCursor::restore(cursor.told_count()));
        assert_eq!((losses.tell(&mut cursor), losses.tell(&mut untold)), (Ok(()), Err(StoreError::Medium)));
        assert_eq!(losses.tell(&mut untold), Ok(()));
        assert_eq!(losses.told_to_nobody(), None);
    }
}
