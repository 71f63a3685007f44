//! What an owner says of devices: labels, a place and a comment, in `labels.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::devices::DeviceId;
use super::folder::{Folder, StateError};
use super::limits;

const NOTES_FILE: &str = "labels.json";
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

/// What an owner says of a device. As it comes from another host it may be anything: see [`DeviceNotes::readable`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNotes {
    /// The labels: each a name, as [`check_label_name`] permits it, and a value.
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
            let said = Some(value.clone()).filter(|value| !value.is_empty());
            match (name.as_str(), said) {
                ("place", said) => self.place = said,
                ("comment", said) => self.comment = said,
                (name, Some(value)) => drop(self.labels.insert(name.to_owned(), value)),
                (name, None) => drop(self.labels.remove(name)),
            }
        }
        self.check_number()
    }

    /// The same, with what `other` says in place of what this one says of the same. What is beyond [`LABELS_MAX`] then
    /// is left out, and `other`'s labels come first.
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

    /// The same within its limits, and without what a terminal would obey: another host wrote these texts.
    #[must_use]
    pub fn readable(&self) -> Self {
        let is_label = |(name, _): &(&String, &String)| check_label_name(name).is_ok();
        let labels = self.labels.iter().filter(is_label).take(LABELS_MAX);
        let said = |text: &Option<String>, bytes_max| text.as_deref().map(|text| plain(text, bytes_max));
        Self {
            labels: labels.map(|(name, value)| (name.clone(), plain(value, LABEL_VALUE_BYTES_MAX))).collect(),
            place: said(&self.place, LABEL_VALUE_BYTES_MAX),
            comment: said(&self.comment, COMMENT_BYTES_MAX),
        }
    }

    /// Labels and place in a line; empty if there are none.
    pub fn in_a_line(&self) -> String {
        let labels = self.labels.iter().map(|(name, value)| format!("{name}={value}"));
        labels.chain(self.place.iter().map(|place| format!("place={place}"))).collect::<Vec<_>>().join(" ")
    }
}

/// The device that something is said of: by its id, or by its name if its id does not last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedDevice(String);

impl NotedDevice {
    /// `id` is that of a device with a lasting identity.
    pub fn of(id: Option<DeviceId>, name: &str) -> Self {
        Self(id.map_or_else(|| format!("name:{name}"), |id| id.to_string()))
    }
}

/// All that is said of devices by `farbus label`. Fields that a later version has added are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNotes {
    #[serde(default)]
    devices: BTreeMap<String, DeviceNotes>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl KnownNotes {
    fn load(folder: &Folder) -> Result<Self, StateError> {
        let Some(bytes) = folder.read(NOTES_FILE, limits::NOTES_BYTES_MAX, true)? else { return Ok(Self::default()) };
        let damaged = |what: &dyn std::fmt::Display| {
            let next = "mend it, or move it away and label the devices again (farbus label)";
            folder.trouble(NOTES_FILE, &format!("it is damaged: {what}\n  {next}"))
        };
        let known: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        match known.devices.values().try_for_each(DeviceNotes::check) {
            Ok(()) => Ok(known),
            Err(what) => Err(damaged(&what)),
        }
    }

    /// What is said of a device.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, or is damaged.
    pub fn of(folder: &Folder, device: &NotedDevice) -> Result<DeviceNotes, StateError> {
        Ok(Self::load(folder)?.devices.remove(&device.0).unwrap_or_default())
    }

    /// Changes what is said of a device; returns it. The inner error is a sentence for a person; nothing is changed
    /// then.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn change(
        folder: &Folder,
        device: &NotedDevice,
        changes: &[NoteChange],
    ) -> Result<Result<DeviceNotes, String>, StateError> {
        let _lock = folder.lock()?;
        let mut known = Self::load(folder)?;
        let mut notes = known.devices.remove(&device.0).unwrap_or_default();
        if let Err(why) = notes.change(changes) {
            return Ok(Err(why));
        }
        if !notes.is_empty() {
            if known.devices.len() >= limits::NOTES_MAX {
                let most = limits::NOTES_MAX;
                return Ok(Err(format!("{most} devices have labels already: take some away (NAME=)")));
            }
            known.devices.insert(device.0.clone(), notes.clone());
        }
        let mut text = serde_json::to_vec_pretty(&known).map_err(|error| folder.trouble(NOTES_FILE, &error))?;
        text.push(b'\n');
        folder.write(NOTES_FILE, &text)?;
        Ok(Ok(notes))
    }
}

/// Whether what the owner says of devices can be read.
pub(super) fn check_notes(folder: &Folder) -> Result<(), StateError> {
    KnownNotes::load(folder).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn notes_are_kept_by_id_or_name_and_a_damaged_file_is_left_as_it_is() {
        let path = std::env::temp_dir().join(format!("farbus-notes-{}", std::process::id()));
        let folder = Folder::at(path.clone());
        let (id, name) = (NotedDevice::of(Some(DeviceId::random()), "disk"), NotedDevice::of(None, "disk"));
        KnownNotes::change(&folder, &id, &changes(&["board=imx8"])).unwrap().unwrap();
        KnownNotes::change(&folder, &name, &changes(&["place=here"])).unwrap().unwrap();
        let line = |device| KnownNotes::of(&folder, device).unwrap().in_a_line();
        assert_eq!((line(&id), line(&name)), ("board=imx8".to_owned(), "place=here".to_owned()));
        let nine: Vec<String> = (0..9).map(|n| format!("label{n}=x")).collect();
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        assert!(KnownNotes::change(&folder, &name, &changes(&nine)).unwrap().is_err());
        assert_eq!(line(&name), "place=here", "a change that is refused changes nothing");
        KnownNotes::change(&folder, &name, &changes(&["place="])).unwrap().unwrap();
        let text = fs::read_to_string(folder.file(NOTES_FILE)).unwrap();
        assert!(!text.contains("name:disk"), "nothing is kept of a device of which nothing is said: {text}");
        let later = text.replacen('{', r#"{"of_later":[1],"#, 1);
        fs::write(folder.file(NOTES_FILE), later).unwrap();
        KnownNotes::change(&folder, &name, &changes(&["place=there"])).unwrap().unwrap();
        assert!(fs::read_to_string(folder.file(NOTES_FILE)).unwrap().contains("of_later"));
        for damaged in ["{", r#"{"devices":{"name:disk":{"place":"\u001b"}}}"#] {
            fs::write(folder.file(NOTES_FILE), damaged).unwrap();
            fs::set_permissions(folder.file(NOTES_FILE), fs::Permissions::from_mode(0o600)).unwrap();
            let refused = KnownNotes::change(&folder, &name, &changes(&["a=b"])).unwrap_err();
            assert!(refused.to_string().contains("farbus label"), "{refused}");
            assert_eq!(fs::read_to_string(folder.file(NOTES_FILE)).unwrap(), damaged);
        }
        let _ = fs::remove_dir_all(path);
    }
}
