//! What a view is drawn as: pieces of HTML, some of which follow what happens.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a view consists of, in its order.
pub struct ViewDrawing {
    /// The document's title.
    pub title: String,
    /// Whether there is what the view is about.
    pub is_there: bool,
    /// What it consists of, from top to bottom.
    pub pieces: Vec<DrawingPiece>,
}

/// A piece of a document.
pub enum DrawingPiece {
    /// HTML that does not change while it is looked at.
    Fixed(String),
    /// Elements that do.
    List(LiveList),
}

/// Elements that follow what happens.
pub struct LiveList {
    /// The id of the element that has them all, unique in the document.
    pub id: &'static str,
    /// The name of that element.
    pub element: &'static str,
    /// The elements inside, in their order.
    pub parts: Vec<LiveElement>,
}

/// An element of a list.
pub struct LiveElement {
    /// Its id, unique in the document: letters, digits and hyphens.
    pub key: String,
    /// The whole element, id included.
    pub html: String,
}

impl ViewDrawing {
    /// The lists of it.
    pub fn lists(&self) -> impl Iterator<Item = &LiveList> {
        self.pieces.iter().filter_map(|piece| match piece {
            DrawingPiece::List(list) => Some(list),
            DrawingPiece::Fixed(_) => None,
        })
    }
}

/// The id of an element about something of others: it says nothing of it, and has no character of it.
pub fn key_of(kind: &str, of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{kind}-{:016x}", hasher.finish())
}

/// The ids of a document's parts, each there once: two devices may have one name, or names that were chosen to collide.
#[derive(Debug, Default)]
pub struct ElementIds(BTreeSet<String>);

impl ElementIds {
    /// This id, or one that begins with it.
    pub fn take(&mut self, key: String) -> String {
        let numbered = (2_u32..).map(|number| format!("{key}-{number}"));
        let mut keys = std::iter::once(key.clone()).chain(numbered);
        let is_new = |key: &String| !self.0.contains(key);
        let key = keys.find(is_new).unwrap_or_default();
        self.0.insert(key.clone());
        key
    }
}
