//! Which device each attachment of a daemon had: after a restart of the daemon it has to be there again.
//!
//! A file for each attachment, named by a digest of the daemon's configuration and of the target: a thousand
//! attachments do not wait for each other. It is stored before a program can use the device.

use farbus_control::identity::DeviceId;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::trust::state::folder::{HostFolder, StateError};

/// The largest file that is read: two paths, a serial number and some numbers, with room for what later versions add.
const ATTACHED_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the digest in a file's name.
const NAME_BYTES: usize = 16;

/// What is known of a device of another host, as far as its exporter said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDevice {
    /// The id of its identity; `None`: its exporter told none, as over plain USB/IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<DeviceId>,
    /// The generation of its identity.
    #[serde(default)]
    pub generation: u64,
    /// Whether its exporter finds the identity again after it was started anew.
    #[serde(default)]
    pub is_lasting: bool,
    /// Whether it stores data.
    #[serde(default)]
    pub stores_data: bool,
    /// Vendor and product; `None` for a device that is no USB device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usb: Option<(u16, u16)>,
    /// Its serial number; `None` if it told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The name under which this host shares it, if it is a device of this host that is shared by its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its bus id at its exporter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
}

/// An attachment of a daemon, and the device that it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownAttachment {
    /// The path of the daemon's configuration.
    config: String,
    /// `HOST:PORT/DEVICE`, as the configuration names it.
    target: String,
    /// The device that was attached last, by its exporter and identity.
    device: AttachedDevice,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl KnownAttachment {
    /// The device that the attachment of `target` had, which the daemon with this configuration keeps; `None` if it has
    /// never been attached.
    ///
    /// # Errors
    /// [`StateError`]: it is not known which device it was. No device may be attached then.
    pub fn load(folder: &HostFolder, config: &str, target: &str) -> Result<Option<AttachedDevice>, StateError> {
        let name = file_of(config, target);
        let Some(bytes) = folder.read(&name, ATTACHED_BYTES_MAX, false)? else { return Ok(None) };
        let damaged = |what: String| {
            let next = format!("type: rm {}", folder.file(&name).display());
            let what = format!("it is damaged: {what}\n  to attach the device of {target} that is there now, {next}");
            folder.trouble(&name, &what)
        };
        let known: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match (known.config.as_str(), known.target.as_str()) == (config, target) {
            true => Ok(Some(known.device)),
            false => Err(damaged("it is of another attachment".to_owned())),
        }
    }

    /// Stores the device of an attachment, durably.
    ///
    /// # Errors
    /// [`StateError`]; the former one is stored then.
    pub fn keep(folder: &HostFolder, config: &str, target: &str, device: &AttachedDevice) -> Result<(), StateError> {
        let (name, device) = (file_of(config, target), device.clone());
        let known = Self { config: config.to_owned(), target: target.to_owned(), device, rest: Map::new() };
        let mut text = serde_json::to_vec_pretty(&known).map_err(|error| folder.trouble(&name, &error))?;
        text.push(b'\n');
        folder.write(&name, &text)
    }

    /// Forgets the device of an attachment, durably: the next one may be any.
    ///
    /// # Errors
    /// [`StateError`]; it is still known then.
    pub fn forget(folder: &HostFolder, config: &str, target: &str) -> Result<(), StateError> {
        let Some(opened) = folder.opened()? else { return Ok(()) };
        opened.remove(&file_of(config, target))?;
        Ok(opened.sync()?)
    }
}

fn file_of(config: &str, target: &str) -> String {
    let digest = digest(&SHA256, format!("{config}\0{target}").as_bytes());
    let digits: String = digest.as_ref()[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("attached-{digits}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::random_device_id;

    #[test]
    fn device_of_an_attachment_is_read_back_and_a_damaged_file_is_refused() {
        let path = std::env::temp_dir().join(format!("farbus-attached-{}", std::process::id()));
        let folder = HostFolder::at(&path);
        let device = AttachedDevice {
            id: Some(random_device_id()),
            generation: 3,
            usb: Some((0x10c4, 0xea60)),
            serial: Some("zigbee".into()),
            ..AttachedDevice::default()
        };
        let load = |target| KnownAttachment::load(&folder, "/etc/a.toml", target);
        assert_eq!(load("lab3:3240/disk").unwrap(), None);
        KnownAttachment::keep(&folder, "/etc/a.toml", "lab3:3240/disk", &device).unwrap();
        assert_eq!(load("lab3:3240/disk").unwrap(), Some(device));
        assert_eq!(load("lab3:3240/disk2").unwrap(), None);
        assert_eq!(KnownAttachment::load(&folder, "/etc/b.toml", "lab3:3240/disk").unwrap(), None);
        let file = path.join(file_of("/etc/a.toml", "lab3:3240/disk"));
        std::fs::write(&file, "{").unwrap();
        assert!(load("lab3:3240/disk").unwrap_err().to_string().contains("type: rm "));
        KnownAttachment::forget(&folder, "/etc/a.toml", "lab3:3240/disk").unwrap();
        assert_eq!(load("lab3:3240/disk").unwrap(), None);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
