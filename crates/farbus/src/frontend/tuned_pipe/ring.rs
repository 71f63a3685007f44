//! The buffer between the receiving thread and a pipe's: whole messages, in memory that is allocated when the pipe is
//! opened.

use std::collections::VecDeque;

/// A bounded queue of messages of one size.
#[derive(Debug)]
pub struct Ring {
    bytes: VecDeque<u8>,
    message_bytes: usize,
    bytes_max: usize,
    /// Since when the oldest message waits.
    since_ns: u64,
    /// Messages for which there was no room.
    lost: u64,
    /// Messages that were put in.
    put: u64,
}

impl Ring {
    /// Allocates room for `messages` of `message_bytes` each.
    pub fn new(message_bytes: usize, messages: usize) -> Self {
        let bytes_max = message_bytes * messages.max(1);
        Self { bytes: VecDeque::with_capacity(bytes_max), message_bytes, bytes_max, since_ns: 0, lost: 0, put: 0 }
    }

    /// Puts a message in, if there is room.
    pub fn put(&mut self, message: &[u8], now_ns: u64) -> bool {
        debug_assert_eq!(message.len(), self.message_bytes);
        if self.bytes.len() + message.len() > self.bytes_max {
            self.lost += 1;
            return false;
        }
        if self.bytes.is_empty() {
            self.since_ns = now_ns;
        }
        self.bytes.extend(message);
        self.put += 1;
        true
    }

    /// Moves up to `messages` to the end of `to`. Returns since when the oldest of them waited.
    pub fn take(&mut self, messages: usize, to: &mut Vec<u8>) -> u64 {
        let count = self.bytes.len().min(messages.saturating_mul(self.message_bytes));
        let (front, back) = self.bytes.as_slices();
        let of_front = count.min(front.len());
        to.extend_from_slice(&front[..of_front]);
        to.extend_from_slice(&back[..count - of_front]);
        self.bytes.drain(..count);
        self.since_ns
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
    fn messages_stay_whole_and_in_order_and_lost_ones_are_counted() {
        let (mut ring, mut taken) = (Ring::new(3, 4), Vec::new());
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
