//! What the owner of a running program asks about its devices: their status and latency, and to swap one for its twin.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use farbus_control::attachment::AttachmentStatus;
use farbus_control::process::ProcessStatus;
use farbus_io_net::local::control_socket::{Answer, ControlSocket, ControlSocketError, Question};
use farbus_io_net::local::passed_files::PassedFiles;

use super::bus::FarDeviceSource;
use crate::frontend::ANOTHER_DEVICE;
use crate::frontend::running::program_status;
use crate::frontend::steering::{latency, swap_usb};
use crate::importer::client::DeviceTarget;
use crate::importer::discovery::local_shares::is_same;

/// Answers as long as the socket is kept.
///
/// # Errors
/// [`ControlSocketError`].
pub fn answer_for(sources: Vec<Arc<FarDeviceSource>>, program: &OsString) -> Result<ControlSocket, ControlSocketError> {
    let name = Path::new(program).file_name().unwrap_or(program);
    let program = name.to_string_lossy().into_owned();
    let (control_socket, listener) = ControlSocket::bind()?;
    control_socket.open(listener, move |question, files| answer(&sources, &program, question, files))?;
    Ok(control_socket)
}

fn answer(sources: &[Arc<FarDeviceSource>], program: &str, question: Question, files: &PassedFiles) -> Answer {
    let found = |device: &str| sources.iter().find(|source| is_meant(source.target(), device));
    match &question {
        Question::Status => {
            let devices = sources.iter().map(|source| status(source, program).into()).collect();
            Answer::of(&ProcessStatus::new(std::process::id(), "run", String::new(), devices))
        }
        Question::Swap { device, .. } | Question::SwapStatus { device } | Question::SwapCancel { device } => {
            let Some(source) = found(device) else { return Answer::Unknown };
            match source.now() {
                Some((_, swap)) => swap_usb(&swap, question, files),
                None if source.taken_away().is_some() => Answer::Unknown,
                None => Answer::Refused(format!(
                    "{device} is gone, and is looked for\n  when it is there again, type the same: farbus status"
                )),
            }
        }
        Question::Latency { device } => match found(device) {
            Some(source) => latency(source.now().and_then(|(_, swap)| swap.session()).as_ref()),
            None => Answer::Unknown,
        },
        Question::Detach { device: Some(device), .. }
        | Question::Hold { device }
        | Question::Migrate { device, .. }
        | Question::MayMigrate { device }
            if found(device).is_some() =>
        {
            Answer::Refused(format!(
                "a program has {device}, {program}, and nobody else (farbus run)\n  end the program"
            ))
        }
        _ => Answer::Unknown,
    }
}

/// Whether `word` names the device: by its name, or with its host.
fn is_meant(target: &DeviceTarget, word: &str) -> bool {
    word == target.device || word.parse::<DeviceTarget>().is_ok_and(|device_target| is_same(&device_target, target))
}

fn status(source: &FarDeviceSource, program: &str) -> AttachmentStatus {
    let at = format!("/dev/bus/usb of {program}");
    let status = program_status(source.target(), at, source.now());
    match source.finds_another() {
        true => AttachmentStatus { state: ANOTHER_DEVICE.into(), ..status },
        false => status,
    }
}
