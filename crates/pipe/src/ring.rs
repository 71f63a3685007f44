//! The buffer between the receiving thread and a pipe's: whole messages, in memory that is allocated when the pipe is
//! opened.

use std::collections::VecDeque;

/// The most moments that a ring remembers. Messages beyond that count as put in with those before them: no delay is
/// reported shorter than it is.
const TIMES_MAX: usize = 1024;

/// A bounded queue of messages of one size.
#[derive(Debug)]
pub struct MessageRing {
    bytes: VecDeque<u8>,
    message_bytes: usize,
    bytes_max: usize,
    /// When messages were put in, and how many: oldest first.
    times: VecDeque<(u64, usize)>,
    /// Messages for which there was no room.
    lost: u64,
    /// Messages that were put in.
    put: u64,
}

impl MessageRing {
    /// Allocates room for `messages` of `message_bytes` each.
    pub fn new(message_bytes: usize, messages: usize) -> Self {
        let bytes_max = message_bytes * messages.max(1);
        let (bytes, times) =
            (VecDeque::with_capacity(bytes_max), VecDeque::with_capacity(messages.clamp(1, TIMES_MAX)));
        Self { bytes, message_bytes, bytes_max, times, lost: 0, put: 0 }
    }

    /// Puts a message in, if there is room.
    pub fn put(&mut self, message: &[u8], now_ns: u64) -> bool {
        debug_assert_eq!(message.len(), self.message_bytes);
        if self.bytes.len() + message.len() > self.bytes_max {
            self.lost += 1;
            return false;
        }
        let is_full = self.times.len() == self.times.capacity();
        match self.times.back_mut() {
            Some((at_ns, count)) if is_full || *at_ns == now_ns => *count += 1,
            _ => self.times.push_back((now_ns, 1)),
        }
        self.bytes.extend(message);
        self.put += 1;
        true
    }

    /// Moves up to `messages` to the end of `to`. Returns since when the oldest of them waited, or 0 if there is none.
    pub fn take(&mut self, messages: usize, to: &mut Vec<u8>) -> u64 {
        let since_ns = self.since_ns().unwrap_or(0);
        let count = self.bytes.len().min(messages.saturating_mul(self.message_bytes));
        let (front, back) = self.bytes.as_slices();
        let of_front = count.min(front.len());
        to.extend_from_slice(&front[..of_front]);
        to.extend_from_slice(&back[..count - of_front]);
        self.bytes.drain(..count);
        let mut taken = count / self.message_bytes;
        while let Some((_, waiting)) = self.times.front_mut().filter(|_| taken > 0) {
            let of_these = taken.min(*waiting);
            (*waiting, taken) = (*waiting - of_these, taken - of_these);
            if *waiting == 0 {
                self.times.pop_front();
            }
        }
        since_ns
    }

    /// Since when the oldest message waits.
    pub fn since_ns(&self) -> Option<u64> {
        self.times.front().map(|(at_ns, _)| *at_ns)
    }

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.message_bytes
    }

    /// Messages for which there is room.
    pub fn room(&self) -> usize {
        (self.bytes_max - self.bytes.len()) / self.message_bytes
    }

    /// Messages for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Messages that were put in.
    pub fn count(&self) -> u64 {
        self.put
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_never_empty_tells_the_delay_of_its_oldest_message() {
        let (mut ring, mut taken) = (MessageRing::new(1, 4), Vec::new());
        ring.put(&[0], 0);
        for now_ns in 1..10 {
            ring.put(&[0], now_ns);
            assert_eq!(ring.take(1, &mut taken), now_ns - 1, "it came one step ago");
            assert_eq!(ring.since_ns(), Some(now_ns));
        }
        // More moments than a ring of four remembers are those of older messages.
        let mut ring = MessageRing::new(1, TIMES_MAX + 100);
        (0..TIMES_MAX as u64 + 100).for_each(|at| assert!(ring.put(&[0], at)));
        ring.take(TIMES_MAX, &mut taken);
        assert_eq!((ring.len(), ring.since_ns().is_some_and(|at| at < TIMES_MAX as u64 + 1)), (100, true));
    }

    #[test]
    fn messages_stay_whole_and_in_order_and_lost_ones_are_counted() {
        let (mut ring, mut taken) = (MessageRing::new(3, 4), Vec::new());
        for round in 0..10u8 {
            for at in 0..5 {
                assert_eq!(ring.put(&[round, at, 7], 100 + u64::from(at)), at < 4);
            }
            assert_eq!((ring.len(), ring.room()), (4, 0));
            taken.clear();
            assert_eq!(ring.take(3, &mut taken), 100);
            assert_eq!(taken, [round, 0, 7, round, 1, 7, round, 2, 7]);
            ring.take(usize::MAX, &mut taken);
            assert_eq!(taken.len(), 12);
        }
        assert_eq!((ring.lost(), ring.count(), ring.room()), (10, 40, 4));
    }
}
