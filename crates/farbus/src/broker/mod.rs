//! The broker keeps its rights, so that the process that talks to the network needs none.
//!
//! | question | what the broker does, if its policy allows it |
//! |---|---|
//! | `line` | opens a further line, so that a question there does not wait for one here; all attachments share such lines, which are opened as they are needed |
//! | `config` | reads the configuration again; what it grants is the policy from then on |
//! | `listen` | binds a listening socket and passes it |
//! | `listen_at` | binds a socket at which programs find a device and passes it; removes its path at the end |
//! | `open_image` | opens and locks a disk image and passes it |
//! | `identify_image`, `identify_usb`, `identify_made` | identifies a device: looks only at its evidence, and notes that in the host's state |
//! | `expect_images` | stores at once which of the images that are going to be shared are new devices |
//! | `note_name` | stores the name of a device beside its identity |
//! | `notes_of` | tells what the owner says of a shared device by `farbus label` |
//! | `shared` | takes the devices that the process identified before it gave its rights away; once |
//! | `retirement` | notes and tells what a host said of a disk that it moves to its own machine; only of devices that are shared here |
//! | `retirements` | tells the same of many disks at once, as a list of all devices needs it |
//! | `attached_device`, `keep_attached_device` | tells and stores which device an attachment of the configuration has, or a share by port; of the configuration only |
//! | `open_frames` | opens a FIFO, device or file to read a stream's frames from, and passes it |
//! | `open_usb` | opens a node below `/dev/bus/usb` and passes it |
//! | `given_back` | forgets a device that was returned to its drivers |
//! | `connect` | finds a host, connects to it and passes the connection |
//! | `proved` | writes down the address at which that host proved its key, if the broker connected there and a different address is remembered |
//! | `explain` | tells a share on this machine what one of its devices is needed for |
//! | `record` | writes the use of a device, or a connection that failed, to the audit log |
//! | `reserve_lease`, `keep_lease`, `keep_bookings` | stores numbers of leases, leases and bookings of a device that is shared here, if a paired host can have them |
//! | `pass_image`, `forget_images` | checks, locks and identifies a disk that the owner opened and passed to the confined process; the next `open_image` of that path returns it |
//! | `pass_usb` | checks that the node that the owner opened and passed is that of the device; the next `open_usb` of the device returns it |
//! | `schedule` | gives a thread of the confined process processor time in each period, within a part of all processors |
//! | `may_plug`, `plug`, `unplug` | gives this machine's kernel a socket that speaks USB/IP, or takes it away |
//! | `drivers` | says which drivers of this machine took a device that it plugged in |
//! | `mount`, `read_ahead`, `leave`, `abort`, `forget` | mounts a file system at a folder, and unmounts it |
//! | `replacement` | starts the program that is on disk now to replace the confined process |
//! | the confined process has ended | returns devices to their drivers, removes mounts and sockets, and ends |
//!
//! So the confined process writes nothing that outlives it but devices' data: who may do what, who has what, and what
//! was done is stored by the broker, or by the owner's commands.
//!
//! The policy is given before the confined process reads from the network. From then on an attacker may control that
//! process, so the broker checks every question against the policy and believes nothing else.

mod addresses;
mod broker_policy;
pub mod confined;
mod identifying;
mod lease_checks;
mod line;
mod protocol;
mod recording;
mod replacement;
mod rights;
mod schedules;
mod system_access;
mod taken;

pub use broker_policy::BrokerPolicy;
pub use line::{BrokerClient, end_started};
pub use protocol::HandoverState;
pub use replacement::{ReplacementProcess, ReplacementStart, handover_state};
pub use rights::run;
pub use system_access::SystemAccess;
