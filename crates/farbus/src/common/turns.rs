//! Turns: how many threads do something with the same host at a time. The others wait in the order in which they came.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a thread that waits looks whether it still wants its turn.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Gives turns to threads, by key. A turn that ends wakes the thread that has waited longest, and no other.
#[derive(Debug)]
pub struct KeyedSemaphore<K: Ord + Clone> {
    at_a_time: usize,
    stalled_after: Duration,
    lines: Mutex<BTreeMap<K, KeyedWaitQueue>>,
}

/// The turns with one key, and who waits for one. There is none without turns.
#[derive(Debug)]
struct KeyedWaitQueue {
    /// How many have a turn now.
    count: usize,
    /// When a turn ended last, or was given because none had ended.
    moved: Instant,
    /// Those who wait, in order of their tickets. Each sender gives one of them its turn.
    waiting: VecDeque<(u64, SyncSender<()>)>,
    next_ticket: u64,
}

/// A turn; its end lets the next one begin.
#[derive(Debug)]
pub struct KeyedPermit<'a, K: Ord + Clone> {
    turns: &'a KeyedSemaphore<K>,
    key: K,
}

impl<K: Ord + Clone> KeyedSemaphore<K> {
    /// So many turns with one key at a time, one at least. If none of them ends in `stalled_after`, one more is given:
    /// a few that hang do not keep all others waiting.
    pub fn new(at_a_time: usize, stalled_after: Duration) -> Self {
        Self { at_a_time: at_a_time.max(1), stalled_after, lines: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<K, KeyedWaitQueue>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many threads wait for a turn with this key.
    #[cfg(test)]
    pub(crate) fn waiting(&self, key: &K) -> usize {
        self.lines().get(key).map_or(0, |line| line.waiting.len())
    }

    /// Waits for a turn, `time_max` at most and while `wants` it. Returns `None` if there was none.
    pub fn take(&self, key: K, time_max: Duration, wants: impl Fn() -> bool) -> Option<KeyedPermit<'_, K>> {
        let began = Instant::now();
        let (ticket, given) = {
            let mut lines = self.lines();
            let new = || KeyedWaitQueue { count: 0, moved: began, waiting: VecDeque::new(), next_ticket: 0 };
            let line = lines.entry(key.clone()).or_insert_with(new);
            if line.count < self.at_a_time && line.waiting.is_empty() {
                line.count += 1;
                return Some(KeyedPermit { turns: self, key });
            }
            let (give, given) = sync_channel(1);
            let ticket = line.next_ticket;
            line.next_ticket += 1;
            line.waiting.push_back((ticket, give));
            (ticket, given)
        };
        loop {
            let left = time_max.saturating_sub(began.elapsed());
            match given.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(()) => return Some(KeyedPermit { turns: self, key }),
                // Only a turn that was given takes the ticket out of the line.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let mut lines = self.lines();
            let line = lines.get_mut(&key)?;
            let Some(at) = line.waiting.iter().position(|(other, _)| *other == ticket) else {
                drop(lines);
                // It was given just now.
                return given.try_recv().ok().map(|()| KeyedPermit { turns: self, key });
            };
            if at == 0 && line.moved.elapsed() >= self.stalled_after {
                (line.count, line.moved) = (line.count + 1, Instant::now());
                line.waiting.pop_front();
                return Some(KeyedPermit { turns: self, key });
            }
            if began.elapsed() >= time_max || !wants() {
                line.waiting.remove(at);
                return None;
            }
        }
    }
}

impl<K: Ord + Clone> Drop for KeyedPermit<'_, K> {
    fn drop(&mut self) {
        let mut lines = self.turns.lines();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.count -= 1;
        line.moved = Instant::now();
        // One that waits has taken itself out of the line before it stops receiving.
        while line.count < self.turns.at_a_time
            && let Some((_, give)) = line.waiting.pop_front()
        {
            line.count += usize::from(give.try_send(()).is_ok());
        }
        if line.count == 0 {
            lines.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(3600);

    /// Waits until so many threads wait for a turn with this key.
    fn wait_for(turns: &KeyedSemaphore<u8>, key: u8, count: usize) {
        while turns.waiting(&key) != count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_few_have_a_turn_at_a_time_and_those_with_another_key_do_not_wait() {
        let turns = KeyedSemaphore::new(2, LONG);
        let all: Vec<_> = (0..2).map(|_| turns.take(1, Duration::ZERO, || true)).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(turns.take(1, Duration::ZERO, || true).is_none());
        assert!(turns.take(1, LONG, || false).is_none(), "who does not want it any more does not wait");
        assert!(turns.take(2, Duration::ZERO, || true).is_some());
        drop(all);
        assert!(turns.lines().is_empty());
        assert!(turns.take(1, Duration::ZERO, || true).is_some());
    }

    #[test]
    fn turns_are_given_in_the_order_in_which_they_were_asked_for() {
        let turns = KeyedSemaphore::new(1, LONG);
        let (tell, turns_given) = mpsc::channel();
        let first = turns.take(1, Duration::ZERO, || true);
        thread::scope(|scope| {
            for number in 0..5 {
                let (tell, turns) = (tell.clone(), &turns);
                scope.spawn(move || {
                    let turn = turns.take(1, LONG, || true);
                    tell.send((number, turn.is_some())).unwrap();
                });
                wait_for(turns, 1, number + 1);
            }
            drop(first);
            let order: Vec<_> = turns_given.iter().take(5).collect();
            assert_eq!(order, (0..5).map(|number| (number, true)).collect::<Vec<_>>());
        });
        assert!(turns.lines().is_empty());
    }

    #[test]
    fn turns_that_never_end_do_not_keep_all_others_waiting() {
        let turns = KeyedSemaphore::new(1, Duration::ZERO);
        let hung = turns.take(1, Duration::ZERO, || true);
        let other = turns.take(1, LONG, || true);
        assert!(hung.is_some() && other.is_some());
        drop((hung, other));
        assert!(turns.lines().is_empty());
    }
}
