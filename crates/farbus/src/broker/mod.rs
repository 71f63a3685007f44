//! The half that keeps its rights, so that the half that listens to strangers needs none.
//!
//! | asked | done, where the mandate allows it |
//! |---|---|
//! | `line` | one more line to ask on, so that who waits for one thing does not wait for another |
//! | `config` | the configuration is read again, and what it says is the mandate from then on |
//! | `listen` | a listening socket is bound, and passed |
//! | `listen_at` | a socket is bound at which programs find a device, and passed; its path is removed at the end |
//! | `open_image` | a disk image is opened and locked, and passed |
//! | `identify_image`, `identify_usb`, `identify_made` | it is said which device that is: only its evidence is looked at, and noted in the host's state |
//! | `note_name` | what a device is called is noted beside its identity |
//! | `open_frames` | a FIFO, device or file is opened to read a stream's frames from, and passed |
//! | `open_usb` | a node below `/dev/bus/usb` is opened, and passed |
//! | `given_back` | a device's drivers have it again: nothing is left to be done for it |
//! | `connect` | a host is found and connected to, and the connection is passed |
//! | `proved` | where that host has proved its key is written down, if it was connected to there and is remembered elsewhere |
//! | `explain` | a share on this machine is told what one of its devices is needed for |
//! | `record` | the use of a device by somebody who proved no key is noted in the audit log |
//! | `may_plug`, `plug`, `unplug` | this machine's kernel is given a socket that speaks USB/IP, and loses it |
//! | `mount`, `read_ahead`, `leave`, `abort`, `forget` | a folder is made a file system's, and let go of |
//! | `replacement` | this program, as it is on disk now, is started to go on in place of the other half |
//! | the other half is gone | devices go back to their drivers, mounts and sockets are removed, and this half ends |
//!
//! The mandate is given before the other half hears a stranger. From then on it may be somebody else's: whatever it
//! asks is held against the mandate, and nothing else is believed.

mod addresses;
mod broker_policy;
pub mod confined;
mod identifying;
mod line;
mod protocol;
mod replacement;
mod rights;
mod system_access;
mod taken;

pub use broker_policy::BrokerPolicy;
pub use line::Broker;
pub use protocol::HandoverState;
pub use replacement::{Replacement, ReplacementStart, handover_state};
pub use rights::run;
pub use system_access::SystemAccess;
