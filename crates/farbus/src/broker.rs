//! The half that keeps its rights, so that the half that listens to strangers needs none.
//!
//! | asked | done, where the mandate allows it |
//! |---|---|
//! | `open_usb` | a node below `/dev/bus/usb` is opened, and passed |
//! | the other half is gone | what was to be removed is removed, and this half ends |
//!
//! The mandate is given before the other half hears a stranger. From then on it may be somebody else's: whatever it asks is
//! held against the mandate, and nothing else is believed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farbus_io::sys::passing::Passage;
use farbus_io::usb::{Found, Inventory, Selector};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::warn;

/// What the confined half may have done for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mandate {
    /// Sockets to remove when the other half is gone, however it went.
    pub remove: Vec<PathBuf>,
    /// Which USB devices may be opened, in the words of `farbus share` (`usb:1-1.4`).
    pub usb: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Question {
    OpenUsb { bus: u32, device: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done,
    Refused(String),
}

/// The confined half's way to the other.
#[derive(Debug)]
pub struct Broker {
    passage: Passage,
}

impl Broker {
    /// Starts the other half: this program once more, as it was called, with all its rights.
    ///
    /// # Errors
    /// If there is no room for another process.
    pub fn start(mandate: &Mandate) -> io::Result<Self> {
        let (passage, theirs) = Passage::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("broker").stdin(theirs).stdout(Stdio::null()).current_dir("/");
        // Nobody waits for it: it ends after us.
        command.spawn()?;
        passage.send(&to_json(mandate)?, None)?;
        Ok(Self { passage })
    }

    /// Opens a USB device's node.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn open_usb(&self, bus: u32, device: u32) -> io::Result<OwnedFd> {
        self.passage.send(&to_json(&Question::OpenUsb { bus, device })?, None)?;
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the process that opens devices has ended");
        let parcel = self.passage.receive()?.ok_or_else(ended)?;
        match serde_json::from_slice(&parcel.bytes)? {
            Answer::Done => parcel.fd.ok_or_else(|| io::Error::other("no descriptor came along")),
            Answer::Refused(why) => Err(io::Error::other(why)),
        }
    }
}

fn to_json(message: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(message)?)
}

/// The other half's life: `farbus broker`, with the passage as its standard input.
///
/// # Errors
/// What the system says of the passage.
pub fn run() -> io::Result<()> {
    // Ctrl-C goes to both halves; this one ends when the other has.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let passage = Passage::over(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(parcel) = passage.receive()? else { return Ok(()) };
    let mandate: Mandate = serde_json::from_slice(&parcel.bytes)?;
    let end = serve(&passage, &mandate);
    for path in &mandate.remove {
        // Where the other half could, it has removed them.
        let _ = fs::remove_file(path);
    }
    end
}

fn serve(passage: &Passage, mandate: &Mandate) -> io::Result<()> {
    while let Some(parcel) = passage.receive()? {
        let result = match serde_json::from_slice(&parcel.bytes) {
            Ok(question) => carry_out(question, mandate),
            Err(error) => Err(io::Error::other(format!("not a question: {error}"))),
        };
        let (answer, fd) = match result {
            Ok(fd) => (Answer::Done, Some(fd)),
            Err(error) => {
                warn!(%error, "refused to the confined half");
                (Answer::Refused(error.to_string()), None)
            }
        };
        match passage.send(&to_json(&answer)?, fd.as_ref().map(AsFd::as_fd)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent?,
        }
    }
    Ok(())
}

fn carry_out(question: Question, mandate: &Mandate) -> io::Result<OwnedFd> {
    match question {
        Question::OpenUsb { .. } if mandate.usb.is_empty() => Err(io::Error::other("no USB device is shared here")),
        Question::OpenUsb { bus, device } => {
            let all = Inventory::default().devices()?;
            let found = all.iter().find(|found| (found.bus, found.number) == (bus, device));
            let found = found.ok_or_else(|| io::Error::other("there is no such device"))?;
            if !mandate.usb.iter().any(|meant| is_meant(meant, found)) {
                return Err(io::Error::other(format!("usb:{} is not to be shared", found.bus_id)));
            }
            open_node(&usb_node(bus, device))
        }
    }
}

fn is_meant(meant: &str, found: &Found) -> bool {
    let selector = meant.strip_prefix("usb:").and_then(|words| words.parse::<Selector>().ok());
    selector.is_some_and(|selector| selector.matches(found))
}

fn usb_node(bus: u32, device: u32) -> PathBuf {
    format!("/dev/bus/usb/{bus:03}/{device:03}").into()
}

fn open_node(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| io::Error::other(format!("cannot open {}: {errno}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(mandate: &Mandate, bytes: &[u8]) -> (Answer, bool) {
        let (ours, theirs) = Passage::pair().unwrap();
        ours.send(bytes, None).unwrap();
        let mandate = mandate.clone();
        let server = std::thread::spawn(move || serve(&Passage::over(theirs), &mandate));
        let parcel = ours.receive().unwrap().unwrap();
        drop(ours);
        server.join().unwrap().unwrap();
        (serde_json::from_slice(&parcel.bytes).unwrap(), parcel.fd.is_some())
    }

    #[test]
    fn what_is_not_in_the_mandate_is_refused() {
        let question = to_json(&Question::OpenUsb { bus: 1, device: 2 }).unwrap();
        let refused = (Answer::Refused("no USB device is shared here".into()), false);
        assert_eq!(asked(&Mandate::default(), &question), refused);
        let mandate = Mandate { usb: vec!["usb:1-1".into()], ..Mandate::default() };
        let (answer, has_fd) = asked(&mandate, b"{\"ask\":\"open\",\"path\":\"/etc/shadow\"}");
        assert!(matches!(answer, Answer::Refused(why) if why.starts_with("not a question")) && !has_fd);
    }

    #[test]
    fn a_node_is_named_by_numbers_alone() {
        assert_eq!(usb_node(1, 2), Path::new("/dev/bus/usb/001/002"));
        assert_eq!(usb_node(255, 127), Path::new("/dev/bus/usb/255/127"));
    }
}
