//! What an owner says of devices: labels, a place and a comment.

use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most labels of a device.
pub const LABELS_MAX: usize = 8;
/// The longest name of a label, bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 32;
/// The longest value of a label, and the longest place, bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 64;
/// The longest comment, bytes.
pub const COMMENT_BYTES_MAX: usize = 256;
/// What is said beside the labels, and is no name of one.
const RESERVED: [&str; 2] = ["place", "comment"];

/// What an owner says of a device. As it comes from another host it may be any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Notes"))]
pub struct DeviceNotes {
    /// Its labels by name, 8 at most. A name has letters, digits, `.`, `_` and `-`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Where the device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Whatever else a user should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// One change of what is said of a device: `board=imx8`, `place=shelf 3`, `comment=…`. Without a value it takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteChange {
    name: String,
    value: String,
}

impl std::str::FromStr for NoteChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(format!("'{text}' is no label: NAME=VALUE, place=TEXT or comment=TEXT; NAME= takes it away"));
        };
        if !RESERVED.contains(&name) {
            check_label_name(name)?;
        }
        check_value(name, value)?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

/// Whether a character is shown as it is: it is no control character, and changes neither the direction nor the place
/// of what is written beside it (Unicode Bidirectional Algorithm, 2.1 to 2.4).
pub fn is_shown(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    );
    !c.is_control() && !is_format
}

/// Checks whether a label may have this name.
///
/// # Errors
/// A sentence for a person: why not.
pub fn check_label_name(name: &str) -> Result<(), String> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if name.is_empty() || !is_word || name.len() > LABEL_NAME_BYTES_MAX {
        return Err(format!(
            "'{}' is no name of a label: 1 to {LABEL_NAME_BYTES_MAX} letters, digits, '.', '_' and '-'",
            plain(name, LABEL_VALUE_BYTES_MAX)
        ));
    }
    match RESERVED.contains(&name) {
        true => Err(format!("'{name}' is said beside the labels, and is no name of one")),
        false => Ok(()),
    }
}

fn check_value(name: &str, value: &str) -> Result<(), String> {
    let bytes_max = if name == "comment" { COMMENT_BYTES_MAX } else { LABEL_VALUE_BYTES_MAX };
    if value.len() > bytes_max {
        return Err(format!("'{name}' has a value of {} bytes: {bytes_max} at most", value.len()));
    }
    match value.chars().all(is_shown) {
        true => Ok(()),
        false => Err(format!("the value of '{name}' has characters that are not shown as they are")),
    }
}

/// A text of another host in `bytes_max` bytes at most, with a space for each character that is not shown as it is.
fn plain(text: &str, bytes_max: usize) -> String {
    let text = &text[..text.floor_char_boundary(bytes_max)];
    text.chars().map(|c| if is_shown(c) { c } else { ' ' }).collect()
}

impl DeviceNotes {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks names, sizes and number.
    ///
    /// # Errors
    /// A sentence for a person: what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in &self.labels {
            check_label_name(name)?;
            check_value(name, value)?;
        }
        check_value("place", self.place.as_deref().unwrap_or_default())?;
        check_value("comment", self.comment.as_deref().unwrap_or_default())?;
        self.check_number()
    }

    fn check_number(&self) -> Result<(), String> {
        match self.labels.len() {
            0..=LABELS_MAX => Ok(()),
            count => Err(format!("a device has {LABELS_MAX} labels at most, not {count}")),
        }
    }

    /// Carries out changes in their order.
    ///
    /// # Errors
    /// A sentence for a person: there would be too many labels.
    pub fn change(&mut self, changes: &[NoteChange]) -> Result<(), String> {
        for NoteChange { name, value } in changes {
            let text = Some(value.clone()).filter(|value| !value.is_empty());
            match (name.as_str(), text) {
                ("place", text) => self.place = text,
                ("comment", text) => self.comment = text,
                (name, Some(value)) => drop(self.labels.insert(name.to_owned(), value)),
                (name, None) => drop(self.labels.remove(name)),
            }
        }
        self.check_number()
    }

    /// These notes under those of `other`: where both say something of one thing, `other`'s is taken. `other`'s labels
    /// come first, and what is beyond [`LABELS_MAX`] then is left out.
    #[must_use]
    pub fn overlaid_by(&self, other: &Self) -> Self {
        let mut labels = other.labels.clone();
        for (name, value) in &self.labels {
            if labels.len() < LABELS_MAX {
                labels.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        Self {
            labels,
            place: other.place.clone().or_else(|| self.place.clone()),
            comment: other.comment.clone().or_else(|| self.comment.clone()),
        }
    }

    /// These notes cut to their limits, and without what a terminal would obey: another host wrote these texts.
    #[must_use]
    pub fn readable(&self) -> Self {
        let is_label = |(name, _): &(&String, &String)| check_label_name(name).is_ok();
        let labels = self.labels.iter().filter(is_label).take(LABELS_MAX);
        let readable_text = |text: &Option<String>, bytes_max| text.as_deref().map(|text| plain(text, bytes_max));
        Self {
            labels: labels.map(|(name, value)| (name.clone(), plain(value, LABEL_VALUE_BYTES_MAX))).collect(),
            place: readable_text(&self.place, LABEL_VALUE_BYTES_MAX),
            comment: readable_text(&self.comment, COMMENT_BYTES_MAX),
        }
    }

    /// Labels and place in a line; empty if there are none.
    pub fn in_a_line(&self) -> String {
        let labels = self.labels.iter().map(|(name, value)| format!("{name}={value}"));
        labels.chain(self.place.iter().map(|place| format!("place={place}"))).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(words: &[&str]) -> Vec<NoteChange> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn labels_place_and_comment_are_set_and_taken_away() {
        let mut notes = DeviceNotes::default();
        notes.change(&changes(&["board=imx8", "rev=b", "place=shelf 3", "comment=noisy = fan"])).unwrap();
        assert_eq!(notes.in_a_line(), "board=imx8 rev=b place=shelf 3");
        assert_eq!(notes.comment.as_deref(), Some("noisy = fan"));
        notes.change(&changes(&["rev=", "place=", "board=imx8mp"])).unwrap();
        assert_eq!((notes.in_a_line().as_str(), &notes.place), ("board=imx8mp", &None));
        notes.change(&changes(&["board=", "comment="])).unwrap();
        assert!(notes.is_empty());
    }

    #[test]
    fn labels_beyond_the_limits_and_texts_that_deceive_are_refused() {
        for (word, why) in [
            ("board", "is no label"),
            ("=x", "no name of a label"),
            ("a b=x", "no name of a label"),
            ("\u{1b}[2J=x", "no name of a label"),
            (&format!("{}=x", "n".repeat(33)), "no name of a label"),
            (&format!("board={}", "v".repeat(65)), "64 at most"),
            (&format!("place={}", "v".repeat(65)), "64 at most"),
            (&format!("comment={}", "v".repeat(257)), "256 at most"),
            ("board=\u{1b}[2J", "not shown"),
            ("comment=a\nb", "not shown"),
            ("place=\u{202e}3", "not shown"),
        ] {
            let refused = word.parse::<NoteChange>().unwrap_err();
            assert!(refused.contains(why) && !refused.contains('\u{1b}'), "{word:?}: {refused}");
        }
        let mut notes = DeviceNotes::default();
        let nine: Vec<String> = (0..9).map(|n| format!("label{n}=x")).collect();
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        assert!(notes.change(&changes(&nine)).unwrap_err().contains("8 labels at most"));
    }

    #[test]
    fn notes_of_another_host_are_made_plain_and_bounded() {
        let mut labels: BTreeMap<String, String> = (0..50).map(|n| (format!("l{n}"), "v".repeat(1000))).collect();
        labels.insert("\u{1b}[2J".into(), "x".into());
        labels.insert("a".into(), "\u{1b}]0;x\u{7}\u{202e}é".into());
        let hostile =
            DeviceNotes { labels, place: Some("p".repeat(5000)), comment: Some("c\r\n\u{200b}".repeat(5000)) };
        let plain = hostile.readable();
        assert_eq!(plain.check(), Ok(()));
        assert_eq!((plain.labels.len(), plain.labels["a"].as_str()), (8, " ]0;x  é"));
        assert_eq!(plain.readable(), plain);
    }

    #[test]
    fn what_the_owner_says_later_comes_before_the_configuration() {
        let of = |words: &[&str]| {
            let mut notes = DeviceNotes::default();
            notes.change(&changes(words)).unwrap();
            notes
        };
        let both = of(&["board=imx8", "rev=a", "place=shelf 1"]).overlaid_by(&of(&["rev=b", "comment=new"]));
        assert_eq!(both, of(&["board=imx8", "rev=b", "place=shelf 1", "comment=new"]));
        let eight = |stem: &str| {
            let words: Vec<String> = (0..8).map(|n| format!("{stem}{n}=x")).collect();
            of(&words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(eight("a").overlaid_by(&eight("z")), eight("z"), "and both together are within the limits");
    }
}
