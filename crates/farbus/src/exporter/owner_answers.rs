//! Answers the owner's questions about shared devices, in a `farbus share` or a daemon.

use std::time::Duration;

use farbus_control::device::DeviceStatus;
use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_io_net::local::control_socket::{Answer, Question};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_model::{ExportIdentity, OwnerCommand};

use super::share::{Share, ShareError};
use super::swap_answers;

/// Where devices are served.
#[derive(Debug, Default)]
pub struct ServedAt {
    /// Address or socket.
    pub address: String,
    /// Whether only paired hosts are served there.
    pub is_for_paired_hosts: bool,
}

/// Answers a question about the devices of `share`; `files` came along with it.
pub fn answer(share: &Share, served: &ServedAt, question: Question, files: &PassedFiles) -> Answer {
    let (device, command) = match question {
        Question::Status => {
            let devices = share.status().into_iter().map(ProcessDevice::from).collect();
            let (buses, is_for_paired_hosts) = (share.buses(), served.is_for_paired_hosts);
            let status = ProcessStatus::new(std::process::id(), "share", served.address.clone(), devices);
            return Answer::of(&ProcessStatus { buses, is_for_paired_hosts, ..status });
        }
        Question::Version
        | Question::Events { .. }
        | Question::Detach { .. }
        | Question::Hold { .. }
        | Question::Pause { .. }
        | Question::Resume { .. }
        | Question::Migrate { .. }
        | Question::MayMigrate { .. }
        | Question::Latency { .. }
        | Question::Follow { .. }
        | Question::Depart { .. }
        | Question::Reload { .. }
        | Question::Restart { .. }
        | Question::Sleep { .. }
        | Question::Share { .. }
        | Question::Topology { .. }
        | Question::Directory { .. }
        | Question::DirectoryLimit { .. }
        | Question::Wake => return Answer::Unknown,
        Question::Unshare { device, .. } => {
            let is_it = |status: &DeviceStatus| status.name == device || status.bus_id == device;
            if !share.status().iter().any(is_it) {
                return Answer::Unknown;
            }
            let pid = std::process::id();
            return Answer::Refused(format!(
                "'{device}' is shared by a 'farbus share' of its own and ends with it\n  Ctrl-C there, or: kill {pid}"
            ));
        }
        Question::Release { device, reason, keep_out_s, force } => {
            let is_it = |status: &&DeviceStatus| status.name == device || status.bus_id == device;
            if !force && let Some(status) = share.status().iter().find(is_it).filter(|status| may_lose(status)) {
                return Answer::Refused(format!(
                    "{} uses '{device}' and may write it: programs there would lose what they have not written out\n  \
                     there: farbus detach {device}\n  \
                     or here: farbus release {device} --force",
                    status.user.as_deref().unwrap_or("another host"),
                ));
            }
            let taken = share.take_back(&device, reason.as_deref(), Duration::from_secs(keep_out_s));
            return answer_to(taken.map(|user| serde_json::json!({ "user": user })));
        }
        Question::Explain { user, reason } => {
            return if share.explain(&user, &reason) { Answer::Ok(serde_json::Value::Null) } else { Answer::Unknown };
        }
        question @ (Question::Swap { .. } | Question::SwapStatus { .. } | Question::SwapCancel { .. }) => {
            return swap_answers::answer(share, question, files);
        }
        Question::Adopt { device, id, generation } => {
            let adopted = share.adopt(&device, ExportIdentity { id: id.number(), generation });
            return answer_to(adopted.map(|()| serde_json::Value::Null));
        }
        Question::Descriptors { device } => {
            return answer_to(share.descriptors(&device).map(|tree| serde_json::json!(tree)));
        }
        Question::Label { device, notes } => {
            return match notes.check() {
                Ok(()) => answer_to(share.label(&device, notes).map(|shown| serde_json::json!(shown))),
                Err(why) => Answer::Refused(why),
            };
        }
        Question::Promise { owner, reserves } => {
            return match files.take() {
                Ok([lease]) => share.promises().keep(&owner, &reserves, lease),
                Err(error) => Answer::Refused(error.to_string()),
            };
        }
        Question::Type { device, text } => (device, OwnerCommand::Type(text)),
        Question::Eject { device } => (device, OwnerCommand::Eject),
        Question::Insert { device } => (device, OwnerCommand::Insert),
    };
    answer_to(share.command(&device, command).map(|()| serde_json::Value::Null))
}

/// Whether the user may have data that it has not written yet: the device has a medium, and its user may write.
fn may_lose(status: &DeviceStatus) -> bool {
    status.user.is_some() && status.medium.is_some() && status.mode.as_deref() == Some("exclusive")
}

fn answer_to(result: Result<serde_json::Value, ShareError>) -> Answer {
    let failed = |attribute, error: ShareError| Answer::Failed(FailureReport::new(attribute, error.to_string()));
    match result {
        Ok(value) => Answer::Ok(value),
        Err(ShareError::NoDevice(_)) => Answer::Unknown,
        Err(error @ ShareError::NotInUse(_)) => failed(FailureKind::Gone, error),
        Err(error @ ShareError::Silent) => failed(FailureKind::Device, error),
        Err(error) => Answer::Refused(error.to_string()),
    }
}
