//! What has changed of a view, for a browser that shows an earlier drawing of it.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use crate::view::drawing::{LiveElement, LiveList, ViewDrawing};

/// Bytes of an event. A browser loads the view again instead of receiving more at once.
pub const EVENT_BYTES_MAX: usize = 64 << 10;

/// What a browser shows: which parts, and how they look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ViewDigest(Vec<(&'static str, Vec<ElementDigest>)>);

/// A part that is shown: a hash of its id, and one of what it looks like.
pub type ElementDigest = (u64, u64);

fn look_of(part: &LiveElement) -> ElementDigest {
    (hash(&part.key), hash(&part.html))
}

impl ViewDigest {
    /// What a browser shows that has got this drawing.
    pub fn of(drawing: &ViewDrawing) -> Self {
        let shown = |list: &LiveList| (list.id, list.parts.iter().map(look_of).collect());
        Self(drawing.lists().map(shown).collect())
    }

    /// How many parts that is.
    pub fn parts(&self) -> usize {
        self.0.iter().map(|(_, parts)| parts.len()).sum()
    }

    /// A number that another drawing has only by chance.
    pub fn version(&self) -> u64 {
        hash(self)
    }

    /// What makes this out of what is shown: the lists that are different, with the ids of all their parts and the HTML
    /// of those that are different. `None` if that is more than an event may have.
    pub fn changes_to(&self, drawing: &ViewDrawing) -> Option<String> {
        let mut lists = Map::new();
        for list in drawing.lists() {
            let (_, before) = self.0.iter().find(|(id, _)| *id == list.id)?;
            let is_shown = |part: &LiveElement| before.contains(&look_of(part));
            let parts: Vec<Value> = list
                .parts
                .iter()
                .map(|part| match is_shown(part) {
                    true => json!([part.key]),
                    false => json!([part.key, part.html]),
                })
                .collect();
            let is_same = before.len() == list.parts.len()
                && before.iter().zip(&list.parts).all(|(had, part)| *had == look_of(part));
            if !is_same {
                lists.insert(list.id.to_owned(), Value::Array(parts));
            }
        }
        let event = json!({ "version": format!("{:016x}", Self::of(drawing).version()), "lists": lists }).to_string();
        (event.len() <= EVENT_BYTES_MAX).then_some(event)
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::drawing::DrawingPiece;

    fn drawing(parts: &[(&str, &str)]) -> ViewDrawing {
        let part = |(key, html): &(&str, &str)| LiveElement { key: (*key).to_owned(), html: (*html).to_owned() };
        let list = LiveList { id: "rows", element: "tbody", parts: parts.iter().map(part).collect() };
        ViewDrawing { title: String::new(), is_there: true, pieces: vec![DrawingPiece::List(list)] }
    }

    #[test]
    fn only_what_changed_is_sent() {
        let first = drawing(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let shown = ViewDigest::of(&first);
        let change = |parts| -> Value { serde_json::from_str(&shown.changes_to(&drawing(parts)).unwrap()).unwrap() };
        assert_eq!(change(&[("a", "1"), ("b", "2"), ("c", "3")])["lists"], json!({}));
        assert_eq!(change(&[("a", "1"), ("b", "5"), ("c", "3")])["lists"], json!({"rows": [["a"], ["b", "5"], ["c"]]}));
        assert_eq!(change(&[("b", "2"), ("a", "1")])["lists"], json!({"rows": [["b"], ["a"]]}));
        assert_eq!(change(&[("d", "4")])["lists"], json!({"rows": [["d", "4"]]}));
        assert_ne!(ViewDigest::of(&drawing(&[("a", "1")])).version(), shown.version());
    }

    #[test]
    fn more_than_an_event_has_is_not_sent() {
        let shown = ViewDigest::of(&drawing(&[]));
        let long = "x".repeat(EVENT_BYTES_MAX / 2);
        assert!(shown.changes_to(&drawing(&[("a", &long)])).is_some());
        assert_eq!(shown.changes_to(&drawing(&[("a", &long), ("b", &long)])), None);
        assert_eq!(ViewDigest::default().changes_to(&drawing(&[])), None, "another view");
    }
}
