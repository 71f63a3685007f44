//! Requests of a peer, by the tag that it chose.

use std::collections::BTreeMap;

/// Items by tag. The last inserted item is found at once: a device that answers before its call returns never has more
/// than that one. Tags may be sparse, so no slot is kept for unused ones.
#[derive(Debug)]
pub(super) struct TagMap<T> {
    last: Option<(u16, T)>,
    others: BTreeMap<u16, T>,
}

impl<T> Default for TagMap<T> {
    fn default() -> Self {
        Self { last: None, others: BTreeMap::new() }
    }
}

impl<T> TagMap<T> {
    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.last.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_last(&self, tag: u16) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| *last == tag)
    }

    pub fn contains(&self, tag: u16) -> bool {
        self.is_last(tag) || (!self.others.is_empty() && self.others.contains_key(&tag))
    }

    /// Inserts an item under a tag that no other item has.
    pub fn insert(&mut self, tag: u16, thing: T) {
        debug_assert!(!self.contains(tag), "a tag names one thing");
        if let Some((before, thing)) = self.last.replace((tag, thing)) {
            self.others.insert(before, thing);
        }
    }

    pub fn get_mut(&mut self, tag: u16) -> Option<&mut T> {
        match &mut self.last {
            Some((last, thing)) if *last == tag => Some(thing),
            _ => self.others.get_mut(&tag),
        }
    }

    pub fn remove(&mut self, tag: u16) -> Option<T> {
        match self.is_last(tag) {
            true => self.last.take().map(|(_, thing)| thing),
            false => self.others.remove(&tag),
        }
    }

    /// All items, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let others = self.others.iter().map(|(&tag, thing)| (tag, thing));
        others.chain(self.last.iter().map(|(tag, thing)| (*tag, thing)))
    }

    /// All items, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        let others = self.others.iter_mut().map(|(&tag, thing)| (tag, thing));
        others.chain(self.last.iter_mut().map(|(tag, thing)| (*tag, thing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_found_under_its_tag_in_any_order_of_insertion_and_removal() {
        let mut tagged = TagMap::default();
        for tag in [7, u16::MAX, 0, 3] {
            tagged.insert(tag, u32::from(tag) + 1);
        }
        assert_eq!((tagged.len(), tagged.contains(3), tagged.contains(7), tagged.contains(4)), (4, true, true, false));
        assert_eq!((tagged.remove(3), tagged.remove(3), tagged.remove(u16::MAX)), (Some(4), None, Some(1 << 16)));
        tagged.insert(3, 9);
        *tagged.get_mut(0).unwrap() += 10;
        tagged.iter_mut().for_each(|(_, thing)| *thing *= 2);
        assert_eq!(tagged.iter().collect::<Vec<_>>(), [(0, &22), (7, &16), (3, &18)]);
        assert_eq!((tagged.remove(0), tagged.remove(7), tagged.remove(3)), (Some(22), Some(16), Some(18)));
        assert!(tagged.is_empty());
    }
}
