//! The confined half's end.

use std::io::{self, Read, Seek};
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use farbus_io::store::FileStore;
use farbus_io::sys::passing::Passage;
use farbus_io::trust::{DeviceId, Event};
use rustix::process::{getgid, getuid};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::broker_policy::BrokerPolicy;
use super::protocol::{Answer, Question, to_json};
use super::replacement::Replacement;
use crate::common::socket_place::{Place, SocketListener};
use crate::devices::identities::Identified;

/// Characters of a word that is noted: a device's name has fewer.
const RECORDED_MAX: usize = 256;

/// The confined half's way to the other: a line on which it asks, one thing at a time.
#[derive(Debug)]
pub struct Broker {
    passage: Mutex<Passage>,
    /// Whose mounts the other half's are.
    pub(super) owner: (u32, u32),
}

impl Broker {
    /// Starts the other half: this program once more, as it was called, with all its rights.
    ///
    /// # Errors
    /// If there is no room for another process.
    pub fn start(broker_policy: &BrokerPolicy) -> io::Result<Self> {
        let (passage, theirs) = Passage::pair()?;
        let mut command = Command::new("/proc/self/exe");
        // Paths in the mandate may be said from where we are.
        command.arg("broker").stdin(theirs).stdout(Stdio::null());
        // Nobody waits for it: it ends after us.
        command.spawn()?;
        passage.send(&to_json(broker_policy)?, None)?;
        Ok(Self { passage: Mutex::new(passage), owner: (getuid().as_raw(), getgid().as_raw()) })
    }

    /// One more line: what is asked there waits for nothing that is asked here.
    ///
    /// # Errors
    /// If the system has no more descriptors or threads.
    pub fn line(&self) -> io::Result<Self> {
        let line = self.ask_for_descriptor(&Question::Line)?;
        Ok(Self { passage: Mutex::new(Passage::over(line)), owner: self.owner })
    }

    /// The text of the configuration as it is now.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn config(&self) -> io::Result<String> {
        let mut file = std::fs::File::from(self.ask_for_descriptor(&Question::Config)?);
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Listens for importers.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn listen(&self, place: &Place) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(self.ask_for_descriptor(&Question::Listen { place: place.clone() })?, place))
    }

    /// A socket for datagrams at an address that is listened at, on the port that became of it.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn listen_for_datagrams(&self, place: &Place, port: u16) -> io::Result<UdpSocket> {
        let question = Question::ListenDatagrams { place: place.clone(), port };
        Ok(self.ask_for_descriptor(&question)?.into())
    }

    /// Listens for programs.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn listen_at(&self, place: &Place) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(self.ask_for_descriptor(&Question::ListenAt { place: place.clone() })?, place))
    }

    /// Opens a disk image.
    ///
    /// # Errors
    /// A sentence of the store's, or of the mandate.
    pub fn open_image(&self, path: &Path, read_only: bool) -> io::Result<FileStore> {
        let file = self.ask_for_descriptor(&Question::OpenImage { path: path.to_owned(), read_only })?;
        FileStore::passed(file, path, read_only).map_err(io::Error::other)
    }

    /// Opens what a stream's frames come from.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn open_frames(&self, path: &Path) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::OpenFrames { path: path.to_owned() })
    }

    /// Opens a USB device's node. Should we end before we say that it was given back, its drivers get it all the same.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn open_usb(&self, bus: u32, device: u32) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::OpenUsb { bus, device })
    }

    /// The way to a processor that is taken from everybody else until we end.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn processor(&self, cpu: usize) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::Processor { cpu })
    }

    /// Writes a line of the audit log about somebody who proved no key.
    ///
    /// # Errors
    /// If the other half has ended, or finds that this is no such line.
    pub fn record(&self, event: &Event<'_>) -> io::Result<()> {
        let short = |text: &str| text.chars().take(RECORDED_MAX).collect::<String>();
        let question = Question::Record {
            used: event.event.to_owned(),
            outcome: event.outcome,
            who: short(event.address.unwrap_or_default()),
            device: short(event.device.unwrap_or_default()),
            why: event.why.map(short),
        };
        self.ask::<Value>(&question, None).map(|_| ())
    }

    /// Another process had this device open: that is what is used of it here.
    ///
    /// # Errors
    /// If the other half has ended.
    pub fn inherit_usb(&self, bus: u32, device: u32, node: BorrowedFd<'_>) -> io::Result<()> {
        self.ask::<Value>(&Question::InheritUsb { bus, device }, Some(node)).map(|_| ())
    }

    /// A device's drivers have it again, or it is gone.
    pub fn given_back(&self, bus: u32, device: u32) {
        if let Err(error) = self.ask::<Value>(&Question::GivenBack { bus, device }, None) {
            tracing::debug!(%error, "nobody needs to know that a device was given back");
        }
    }

    /// Has this program started once more, to go on in place of this process.
    ///
    /// # Errors
    /// What the system or the mandate says against it.
    pub fn replacement(&self) -> io::Result<Replacement> {
        let (pid, fd) = self.ask(&Question::Replacement, None)?;
        let fd = fd.ok_or_else(|| io::Error::other("no descriptor came along"))?;
        Ok(Replacement { pid, passage: Passage::over(fd) })
    }

    /// Which device a USB device is.
    pub(crate) fn identify_usb(&self, bus: u32, device: u32) -> Identified {
        self.identified(&Question::IdentifyUsb { bus, device })
    }

    /// Which device something is; if that cannot be said, one that nobody knew before.
    pub(super) fn identified(&self, question: &Question) -> Identified {
        let identified = self.ask(question, None).map(|(identified, _)| identified);
        identified.unwrap_or_else(|error| {
            tracing::warn!(%error, "a device cannot be known again: it has an identity for now");
            Identified::fresh()
        })
    }

    /// A device is called so.
    pub(crate) fn note_name(&self, device: DeviceId, name: &str, is_named: bool) {
        let name = name.to_owned();
        if let Err(error) = self.ask::<Value>(&Question::NoteName { device, name, is_named }, None) {
            tracing::debug!(%error, "what a device is called is not noted");
        }
    }

    fn ask_for_descriptor(&self, question: &Question) -> io::Result<OwnedFd> {
        let (_, fd) = self.ask::<Value>(question, None)?;
        fd.ok_or_else(|| io::Error::other("no descriptor came along"))
    }

    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        question: &Question,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<(T, Option<OwnedFd>)> {
        let passage = self.passage.lock().unwrap_or_else(PoisonError::into_inner);
        passage.send(&to_json(question)?, fd)?;
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the process that keeps the rights has ended");
        let parcel = passage.receive()?.ok_or_else(ended)?;
        match serde_json::from_slice(&parcel.bytes)? {
            Answer::Done(value) => Ok((serde_json::from_value(value)?, parcel.fd)),
            Answer::Refused { why, kind } => Err(kind.error(why)),
        }
    }
}
