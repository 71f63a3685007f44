//! A store whose entries are named by small numbers that are reused.

/// A list with holes.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slab<T> {
    pub const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    /// Stores `thing` and returns its name.
    pub fn insert(&mut self, thing: T) -> usize {
        match self.free.pop() {
            Some(name) => {
                self.entries[name] = Some(thing);
                name
            }
            None => {
                self.entries.push(Some(thing));
                self.entries.len() - 1
            }
        }
    }

    pub fn get_mut(&mut self, name: usize) -> Option<&mut T> {
        self.entries.get_mut(name)?.as_mut()
    }

    pub fn remove(&mut self, name: usize) -> Option<T> {
        let thing = self.entries.get_mut(name)?.take()?;
        self.free.push(name);
        Some(thing)
    }

    /// All entries with their names, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.entries.iter().enumerate().filter_map(|(name, entry)| Some((name, entry.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(name, entry)| Some((name, entry.as_mut()?)))
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all entries out.
    pub fn drain(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_again_once_it_is_free() {
        let mut slab = Slab::new();
        assert_eq!((slab.insert('a'), slab.insert('b')), (0, 1));
        assert_eq!((slab.remove(0), slab.remove(0), slab.remove(9)), (Some('a'), None, None));
        assert_eq!((slab.len(), slab.insert('c')), (1, 0));
        assert_eq!(slab.iter().map(|(name, thing)| (name, *thing)).collect::<Vec<_>>(), [(0, 'c'), (1, 'b')]);
        assert_eq!((slab.drain(), slab.is_empty()), (vec!['c', 'b'], true));
    }
}
