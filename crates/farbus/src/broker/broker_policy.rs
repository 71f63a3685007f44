//! What the confined process may ask of the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use farbus_io_linux::evidence::ProcessSecret;
use farbus_io_linux::frontend::fuse::MountMark;
use farbus_io_linux::usb::UsbDeviceSelector;
use farbus_io_net::trust::DeviceId;
use serde::{Deserialize, Serialize};

use crate::common::socket_access::{SocketAccess, SocketMode};
use crate::common::socket_place::SocketLocation;
use crate::devices::follow::FollowPolicy;
use crate::devices::identities::KnownUsb;
use crate::devices::selection::ShareSelection;

/// What the broker may do for the confined process. It refuses everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerPolicy {
    /// Sockets to remove when the confined process has ended, for whatever reason.
    pub remove: Vec<PathBuf>,
    /// USB devices that may be opened, in the words of `farbus share` (`usb:1-1.4`).
    pub usb: Vec<String>,
    /// Disk images that may be opened, and whether read-only.
    pub images: Vec<(PathBuf, bool)>,
    /// Those of them that its owner wants to be opened also while something else on this machine uses them.
    #[serde(default)]
    pub forced_images: Vec<PathBuf>,
    /// Paths that frames may be read from.
    pub frames: Vec<PathBuf>,
    /// Hosts (`HOST:PORT`) that may be connected to.
    pub hosts: Vec<String>,
    /// Current addresses of some of these hosts, as a person gave them.
    pub moved: BTreeMap<String, String>,
    /// The owner under whose name processor time of this host may be reserved.
    pub promises: Option<String>,
    /// Whether threads that serve devices may have processor time of the kernel's.
    pub schedules: bool,
    /// Processors that may be isolated from all other programs.
    pub processors: Vec<usize>,
    /// Programs (by process id) that the confined process has started. The broker kills them when that process has
    /// ended.
    pub programs: Vec<u32>,
    /// Whether a device may be plugged into this machine's kernel.
    pub plugs: bool,
    /// Addresses and sockets at which programs may find a device, and who may connect there.
    pub places: Vec<(SocketLocation, SocketAccess)>,
    /// Folders at which disks may be mounted, to show them as files.
    pub mounts: Vec<PathBuf>,
    /// Ports of the kernel that are in use, by attachments that another process began.
    pub ports: Vec<u32>,
    /// Mounts of the process before this one.
    pub mounted: Vec<MountMark>,
    /// The secret from which the process before this one derived identities.
    pub identity_secret: Option<ProcessSecret>,
    /// The evidence by which the process before this one knew the USB devices that are plugged in.
    pub known_usb: Vec<KnownUsb>,
    /// The USB devices that the process before this one had identified.
    pub identified_usb: Vec<DeviceId>,
    /// The arguments of the replacement process. Empty: the confined process may not ask for one.
    pub replacement: Vec<String>,
    /// The configuration, which has the rest of the policy and may be read again.
    pub config: Option<PathBuf>,
    /// Addresses and sockets that may be listened at. This field and those below are set by the configuration only.
    #[serde(skip)]
    pub listen: Vec<SocketLocation>,
    /// The file mode of the Unix sockets among these.
    #[serde(skip)]
    pub socket_mode: SocketMode,
    /// Names of users whose numbers (uid) may be asked for.
    #[serde(skip)]
    pub local_users: Vec<String>,
    /// Members of the directory (`HOST:PORT`), which may be connected to.
    #[serde(skip)]
    pub directory: Vec<String>,
    /// The attachments of the configuration (`HOST:PORT/DEVICE`), whose devices are remembered.
    #[serde(skip)]
    pub attached: BTreeSet<String>,
    /// USB devices that may be opened in addition to `usb`.
    #[serde(skip)]
    pub wanted: ShareSelection,
    /// The arguments of the page's process. Empty: there is none.
    #[serde(skip)]
    pub page: Vec<String>,
}

/// Reads a configuration. Returns its text, which the confined process parses itself, and the policy that it grants.
pub type ReadConfig = fn(&Path) -> io::Result<(String, BrokerPolicy)>;

impl BrokerPolicy {
    /// Who may connect at `place`; `None` if nobody may listen there.
    pub(super) fn access_to(&self, place: &SocketLocation) -> Option<SocketAccess> {
        self.places.iter().find(|(allowed, _)| allowed == place).map(|(_, access)| access.clone())
    }

    /// All USB devices that may be opened.
    pub(super) fn devices(&self) -> ShareSelection {
        let selectors =
            self.usb.iter().filter_map(|words| words.strip_prefix("usb:")?.parse::<UsbDeviceSelector>().ok());
        let mut wanted = self.wanted.clone();
        selectors.for_each(|selector| wanted.add(selector, None, FollowPolicy::default()));
        wanted
    }

    /// This policy with the grants of a configuration in place of those of the former one.
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
