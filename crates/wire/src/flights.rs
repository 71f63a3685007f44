//! Requests in flight, by number. Both ends of a connection keep such a list.

use std::collections::VecDeque;
use std::fmt;

/// Requests in flight, in ascending order of their numbers. Numbers are assigned in ascending order and mostly answered
/// in order, so that work happens at the ends of the queue. A request needs no allocation once the queue has reached
/// its length.
pub(crate) struct InFlightQueue<T> {
    queue: VecDeque<(u32, T)>,
}

impl<T> InFlightQueue<T> {
    pub const fn new() -> Self {
        Self { queue: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds a request; returns it as the error if its number is in flight already.
    pub fn insert(&mut self, number: u32, flight: T) -> Result<(), T> {
        match self.queue.back() {
            Some(&(last, _)) if last >= number => match self.find(number) {
                Ok(_) => return Err(flight),
                Err(at) => self.queue.insert(at, (number, flight)),
            },
            _ => self.queue.push_back((number, flight)),
        }
        Ok(())
    }

    pub fn contains(&self, number: u32) -> bool {
        self.find(number).is_ok()
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        let at = self.find(number).ok()?;
        Some(&self.queue[at].1)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let at = self.find(number).ok()?;
        Some(&mut self.queue[at].1)
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let at = self.find(number).ok()?;
        Some(self.queue.remove(at)?.1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.queue.iter().map(|(number, flight)| (*number, flight))
    }

    /// Removes all requests.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.queue.drain(..).map(|(_, flight)| flight)
    }

    fn find(&self, number: u32) -> Result<usize, usize> {
        match self.queue.front() {
            Some(&(first, _)) if first == number => Ok(0),
            _ => self.queue.binary_search_by_key(&number, |&(number, _)| number),
        }
    }
}

impl<T> Default for InFlightQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for InFlightQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_found_once_in_any_order() {
        let mut flights = InFlightQueue::new();
        for number in [5, 6, 9, u32::MAX, 0, 7, 1] {
            flights.insert(number, u64::from(number) + 1).unwrap();
        }
        assert_eq!(flights.insert(7, 100), Err(100), "a number in flight is not used again");
        assert_eq!(flights.iter().map(|(number, _)| number).collect::<Vec<_>>(), [0, 1, 5, 6, 7, 9, u32::MAX]);
        assert_eq!((flights.get(6), flights.get(8)), (Some(&7), None));
        assert_eq!((flights.remove(6), flights.remove(6), flights.remove(0)), (Some(7), None, Some(1)));
        *flights.get_mut(9).unwrap() = 42;
        assert_eq!(flights.drain().collect::<Vec<_>>(), [2, 6, 8, 42, 1 << 32]);
        assert_eq!(flights.len(), 0);
    }
}
