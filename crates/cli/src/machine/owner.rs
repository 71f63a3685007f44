//! The devices that are attached here, and the processes that have them.

use std::thread;

use farbus_control::failure::{CommandFailure, FailureKind};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all, ask_one};
use farbus_io_net::trust::Fingerprint;
use serde::Serialize;
use serde_json::Value;

/// Devices that are told at once that their machine has left.
const ASKED_AT_ONCE: usize = 16;

/// A device that is attached here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnedAttachment {
    /// The process that has it attached.
    #[serde(skip)]
    pub pid: u32,
    /// Its name at its exporter.
    #[serde(skip)]
    pub name: String,
    /// The device as a target, `HOST:PORT/DEVICE`.
    #[serde(rename = "device")]
    pub title: String,
    /// Where it is on this machine.
    pub at: String,
    /// As in the status.
    #[serde(skip)]
    pub state: String,
    /// The processes that are connected to its socket.
    #[serde(skip)]
    pub processes: Vec<u32>,
}

/// Commands the devices that are attached here.
pub trait AttachmentOwner {
    /// All of them.
    fn attached(&self) -> Result<Vec<OwnedAttachment>, CommandFailure>;
    /// Lets a device follow its machine.
    fn follow(&self, device: &OwnedAttachment) -> Result<(), CommandFailure>;
    /// Lets devices that follow the machine of this process go, all at once: the machine has stopped for good. Returns
    /// how many do.
    fn depart(&self, devices: &[OwnedAttachment], process: u32) -> usize;
    /// Lets a device stay.
    fn resume(&self, device: &OwnedAttachment) -> Result<(), CommandFailure>;
}

/// The processes of this user that have devices attached, and the host to which these go.
pub struct UserAttachments {
    /// The key of that host.
    pub successor: Fingerprint,
}

impl AttachmentOwner for UserAttachments {
    fn attached(&self) -> Result<Vec<OwnedAttachment>, CommandFailure> {
        let mut found = Vec::new();
        for (pid, answer) in ask_all(&Question::Status).map_err(CommandFailure::local)? {
            let Answer::Ok(process) = answer else { continue };
            let is_attachment = |device: &&Value| device["bus_id"].is_null() && process["role"] != "nbd";
            for device in process["devices"].as_array().into_iter().flatten().filter(is_attachment) {
                let text = |name: &str| device[name].as_str().unwrap_or_default().to_owned();
                let numbers = device["processes"].as_array().into_iter().flatten().filter_map(Value::as_u64);
                found.push(OwnedAttachment {
                    pid,
                    name: text("name"),
                    title: text("title"),
                    at: text("at"),
                    state: text("state"),
                    processes: numbers.filter_map(|number| u32::try_from(number).ok()).collect(),
                });
            }
        }
        Ok(found)
    }

    fn follow(&self, device: &OwnedAttachment) -> Result<(), CommandFailure> {
        let (successor, to) = (self.successor.to_string(), None);
        ask(device, Question::Follow { device: device.title.clone(), successor, to })
    }

    fn depart(&self, devices: &[OwnedAttachment], process: u32) -> usize {
        let goes =
            |device: &OwnedAttachment| ask(device, Question::Depart { device: device.title.clone(), process }).is_ok();
        // Each waits for its own process, and all of them for the machine that runs already.
        let ask_some = |some: &[OwnedAttachment]| {
            thread::scope(|scope| {
                let asking: Vec<_> = some.iter().map(|device| scope.spawn(move || goes(device))).collect();
                asking.into_iter().filter_map(|asking| asking.join().ok()).filter(|has_gone| *has_gone).count()
            })
        };
        devices.chunks(ASKED_AT_ONCE).map(ask_some).sum()
    }

    fn resume(&self, device: &OwnedAttachment) -> Result<(), CommandFailure> {
        ask(device, Question::Resume { device: device.title.clone() })
    }
}

fn ask(device: &OwnedAttachment, question: Question) -> Result<(), CommandFailure> {
    let failed = |attribute, why: &str| CommandFailure::new(attribute, format!("{}: {why}", device.title));
    match ask_one(device.pid, &question, &[]).map_err(|error| failed(FailureKind::Gone, &error.to_string()))? {
        Answer::Ok(_) => Ok(()),
        Answer::Unknown => Err(failed(FailureKind::Gone, "it is not attached any more")),
        Answer::Refused(why) => Err(failed(FailureKind::Refused, &why)),
        Answer::Failed(failure) => Err(failed(failure.attribute, &failure.message)),
    }
}
