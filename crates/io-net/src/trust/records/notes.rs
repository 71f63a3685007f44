//! What an owner says of devices: labels, a place and a comment, in `labels.json`.

use std::collections::BTreeMap;

use farbus_control::identity::DeviceId;
use farbus_control::notes::{DeviceNotes, NoteChange};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::trust::limits;
use crate::trust::state::folder::{HostFolder, StateError};

const NOTES_FILE: &str = "labels.json";
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
    fn load(folder: &HostFolder) -> Result<Self, StateError> {
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
    pub fn of(folder: &HostFolder, device: &NotedDevice) -> Result<DeviceNotes, StateError> {
        Ok(Self::load(folder)?.devices.remove(&device.0).unwrap_or_default())
    }

    /// Changes what is said of a device; returns it. The inner error is a sentence for a person; nothing is changed
    /// then.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn change(
        folder: &HostFolder,
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
pub(in crate::trust) fn check_notes(folder: &HostFolder) -> Result<(), StateError> {
    KnownNotes::load(folder).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::random_device_id;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn changes(words: &[&str]) -> Vec<NoteChange> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn notes_are_kept_by_id_or_name_and_a_damaged_file_is_left_as_it_is() {
        let path = std::env::temp_dir().join(format!("farbus-notes-{}", std::process::id()));
        let folder = HostFolder::at(path.clone());
        let (id, name) = (NotedDevice::of(Some(random_device_id()), "disk"), NotedDevice::of(None, "disk"));
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
