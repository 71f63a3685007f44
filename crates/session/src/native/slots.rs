//! Requests in flight, by their tag.

/// A collection with numbered slots. A free slot is used again, the last freed first, because its memory is in the
/// cache.
#[derive(Debug)]
pub struct TagSlots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u16>,
}

impl<T> Default for TagSlots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> TagSlots<T> {
    /// A collection with these items in these slots; returns the items if two of them have the same slot.
    pub fn of(things: Vec<(u16, T)>) -> Result<Self, Vec<(u16, T)>> {
        let mut numbers: Vec<u16> = things.iter().map(|(at, _)| *at).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(things);
        }
        let mut slots: Vec<Option<T>> = Vec::new();
        slots.resize_with(numbers.last().map_or(0, |&last| usize::from(last) + 1), || None);
        for (at, thing) in things {
            slots[usize::from(at)] = Some(thing);
        }
        let free = (0..slots.len()).filter(|&at| slots[at].is_none()).map(|at| at as u16).collect();
        Ok(Self { slots, free })
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `thing` into a free slot; returns the slot's number.
    ///
    /// # Panics
    /// If 65,536 slots are in use; a credit allows fewer.
    pub fn put(&mut self, thing: T) -> u16 {
        if let Some(at) = self.free.pop() {
            self.slots[usize::from(at)] = Some(thing);
            return at;
        }
        let at = u16::try_from(self.slots.len()).expect("a credit is less than all tags");
        self.slots.push(Some(thing));
        at
    }

    pub fn get_mut(&mut self, at: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(at))?.as_mut()
    }

    pub fn remove(&mut self, at: u16) -> Option<T> {
        let thing = self.slots.get_mut(usize::from(at))?.take()?;
        self.free.push(at);
        Some(thing)
    }

    /// Drops the item of a slot without moving it.
    pub fn forget(&mut self, at: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(at)).filter(|slot| slot.is_some()) {
            *slot = None;
            self.free.push(at);
        }
    }

    /// Takes all items, with their slots.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u16, T)> {
        self.free.clear();
        let slots = std::mem::take(&mut self.slots);
        slots.into_iter().enumerate().filter_map(|(at, thing)| Some((at as u16, thing?)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        self.slots.iter().enumerate().filter_map(|(at, thing)| Some((at as u16, thing.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(at, thing)| Some((at as u16, thing.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slot_is_used_again_and_holds_one_item() {
        let mut slots = TagSlots::default();
        assert_eq!([slots.put('a'), slots.put('b'), slots.put('c')], [0, 1, 2]);
        assert_eq!((slots.remove(1), slots.remove(1), slots.remove(9)), (Some('b'), None, None));
        assert_eq!(slots.len(), 2);
        assert_eq!((slots.put('d'), slots.get_mut(1).copied()), (1, Some('d')));
        [1, 1, 9].into_iter().for_each(|at| slots.forget(at));
        assert_eq!((slots.len(), slots.put('d'), slots.len()), (2, 1, 3));
        assert_eq!(slots.take_all().collect::<Vec<_>>(), [(0, 'a'), (1, 'd'), (2, 'c')]);
        assert!(slots.is_empty());
    }

    #[test]
    fn items_are_restored_to_their_slots_and_two_in_one_slot_are_refused() {
        let mut slots = TagSlots::of(vec![(3, 'd'), (1, 'b')]).unwrap();
        assert_eq!(slots.iter().map(|(at, thing)| (at, *thing)).collect::<Vec<_>>(), [(1, 'b'), (3, 'd')]);
        let mut taken = [slots.put('x'), slots.put('y'), slots.put('z')];
        taken.sort_unstable();
        assert_eq!((taken, slots.len()), ([0, 2, 4], 5));
        assert_eq!(TagSlots::of(vec![(3, 'd'), (3, 'b')]).unwrap_err().len(), 2);
    }
}
