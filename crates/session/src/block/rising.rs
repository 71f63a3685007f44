//! What is under way, by numbers that rise.

use std::collections::VecDeque;

/// Entries by number. Each has a higher number than those before it, and most are removed in about that order, so that
/// a queue that is searched by halves finds them, without a tree's allocations.
#[derive(Debug)]
pub(super) struct RisingMap<T>(VecDeque<(u64, T)>);

impl<T> Default for RisingMap<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> RisingMap<T> {
    /// Adds an entry behind all others.
    ///
    /// # Panics
    /// In a test: another one has this number, or a higher one.
    pub fn insert(&mut self, number: u64, value: T) {
        debug_assert!(self.0.back().is_none_or(|(last, _)| *last < number), "numbers rise");
        self.0.push_back((number, value));
    }

    fn at(&self, number: u64) -> Option<usize> {
        match self.0.front()? {
            (first, _) if *first == number => Some(0),
            _ => self.0.binary_search_by_key(&number, |(number, _)| *number).ok(),
        }
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.at(number).map(|at| &self.0[at].1)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.at(number).map(|at| &mut self.0[at].1)
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.at(number)?;
        self.0.remove(at).map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.0.iter().map(|(number, value)| (*number, value))
    }

    /// Those with smaller numbers, the newest first.
    pub fn before(&self, number: u64) -> impl Iterator<Item = &T> {
        let end = self.0.partition_point(|(other, _)| *other < number);
        self.0.range(..end).rev().map(|(_, value)| value)
    }

    /// Those with this number or a greater one, the oldest first.
    pub fn since_mut(&mut self, number: u64) -> impl Iterator<Item = (u64, &mut T)> {
        let begin = self.0.partition_point(|(other, _)| *other < number);
        self.0.range_mut(begin..).map(|(number, value)| (*number, value))
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_number_whatever_was_removed_between_them() {
        let mut map = RisingMap::default();
        (0..100).for_each(|number| map.insert(number * 3, number));
        for gone in [0, 99, 150, 297] {
            assert_eq!(map.remove(gone), Some(gone / 3));
            assert_eq!((map.remove(gone), map.get(gone)), (None, None));
        }
        assert_eq!((map.get(3), map.get(4), map.get(294), map.len()), (Some(&1), None, Some(&98), 96));
        assert_eq!(map.before(13).copied().collect::<Vec<_>>(), [4, 3, 2, 1]);
        assert_eq!(map.since_mut(286).map(|(number, _)| number).collect::<Vec<_>>(), [288, 291, 294]);
        *map.get_mut(12).unwrap() = 7;
        assert_eq!(map.iter().nth(3), Some((12, &7)));
        assert_eq!(map.into_values().count(), 96);
    }
}
