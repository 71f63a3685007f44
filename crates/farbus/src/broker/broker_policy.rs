//! What one half may have done by the other.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use farbus_io::evidence::ProcessSecret;
use farbus_io::frontend::fuse::MountMark;
use farbus_io::usb::Selector;
use serde::{Deserialize, Serialize};

use crate::common::socket_place::{Place, SocketMode};
use crate::devices::identities::KnownUsb;
use crate::devices::selection::Wanted;

/// What the confined half may have done for it. Everything else is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerPolicy {
    /// Sockets to remove when the other half is gone, however it went.
    pub remove: Vec<PathBuf>,
    /// Which USB devices may be opened, in the words of `farbus share` (`usb:1-1.4`).
    pub usb: Vec<String>,
    /// Which disk images may be opened, and whether only to be read.
    pub images: Vec<(PathBuf, bool)>,
    /// What frames may be read from.
    pub frames: Vec<PathBuf>,
    /// Which hosts (`HOST:PORT`) may be connected to.
    pub hosts: Vec<String>,
    /// Where some of these are now, as a person said.
    pub moved: BTreeMap<String, String>,
    /// In whose name this host's processors may be promised.
    pub promises: Option<String>,
    /// Which processors may be taken from everybody else.
    pub processors: Vec<usize>,
    /// Programs that the other half has started, to be ended when it is gone.
    pub programs: Vec<u32>,
    /// Whether a device may be plugged into this machine's kernel.
    pub plugs: bool,
    /// Where programs that use a device may be listened for.
    pub places: Vec<Place>,
    /// Where disks may be mounted as files.
    pub mounts: Vec<PathBuf>,
    /// Ports that are in use already, by what went on here from another process.
    pub ports: Vec<u32>,
    /// Mounts of the process before.
    pub mounted: Vec<MountMark>,
    /// From which the process before derived identities.
    pub identity_secret: Option<ProcessSecret>,
    /// By what the process before knew USB devices that are plugged in.
    pub known_usb: Vec<KnownUsb>,
    /// With which arguments this program goes on in place of the other half, should it ask for that. None: it may not.
    pub replacement: Vec<String>,
    /// The file that says the rest, and may be read again.
    pub config: Option<PathBuf>,
    /// Where may be listened. Only a file says this, and what follows.
    #[serde(skip)]
    pub listen: Vec<Place>,
    /// Who may connect at sockets among these, as a file's mode says it.
    #[serde(skip)]
    pub socket_mode: SocketMode,
    /// Whose numbers may be asked for, by name.
    #[serde(skip)]
    pub local_users: Vec<String>,
    /// Which USB devices may be opened besides.
    #[serde(skip)]
    pub wanted: Wanted,
}

/// Reads a configuration: its text, for the other half to read itself, and what it asks for.
pub type ReadConfig = fn(&Path) -> io::Result<(String, BrokerPolicy)>;

impl BrokerPolicy {
    /// The devices that are meant, all of them.
    pub(super) fn devices(&self) -> Wanted {
        let selectors = self.usb.iter().filter_map(|words| words.strip_prefix("usb:")?.parse::<Selector>().ok());
        let mut wanted = self.wanted.clone();
        selectors.for_each(|selector| wanted.add(selector, None));
        wanted
    }

    /// The same with what a configuration grants instead of what another granted before.
    pub(super) fn with_config(&self, granted: Self) -> Self {
        Self {
            remove: self.remove.clone(),
            mounted: self.mounted.clone(),
            replacement: self.replacement.clone(),
            config: self.config.clone(),
            ..granted
        }
    }
}
