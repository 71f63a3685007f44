//! The confined process's end of the passage to its broker.

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
use super::replacement::ReplacementProcess;
use crate::common::socket_place::{Place, SocketListener};
use crate::devices::identities::Identified;

/// The most characters of a recorded field. A device's name has fewer.
const RECORDED_MAX: usize = 256;

/// A line to the broker, on which the confined process asks one question at a time.
#[derive(Debug)]
pub struct Broker {
    passage: Mutex<Passage>,
    /// The user and group that own the broker's mounts.
    pub(super) owner: (u32, u32),
}

impl Broker {
    /// Starts the broker: this program once more, with the argument `broker` and all its rights.
    ///
    /// # Errors
    /// The system cannot start another process.
    pub fn start(broker_policy: &BrokerPolicy) -> io::Result<Self> {
        let (passage, theirs) = Passage::pair()?;
        let mut command = Command::new("/proc/self/exe");
        // Paths in the policy may be relative to the working directory.
        command.arg("broker").stdin(theirs).stdout(Stdio::null());
        // The child is not waited for: it ends after this process.
        command.spawn()?;
        passage.send(&to_json(broker_policy)?, None)?;
        Ok(Self { passage: Mutex::new(passage), owner: (getuid().as_raw(), getgid().as_raw()) })
    }

    /// The passage to a broker, for another process, which that broker then serves until that process ends.
    pub fn into_descriptor(self) -> OwnedFd {
        self.passage.into_inner().unwrap_or_else(PoisonError::into_inner).into_descriptor()
    }

    /// A duplicate of the passage, for a replacement process, which uses it once this process uses it no more.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner).duplicate()
    }

    /// The broker that another process of this owner started and passed.
    pub fn passed(passage: OwnedFd) -> Self {
        let passage = Mutex::new(Passage::over(passage));
        Self { passage, owner: (getuid().as_raw(), getgid().as_raw()) }
    }

    /// Opens a further line. A question there does not wait for a question here.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn line(&self) -> io::Result<Self> {
        let line = self.ask_for_descriptor(&Question::Line)?;
        Ok(Self { passage: Mutex::new(Passage::over(line)), owner: self.owner })
    }

    /// Asks for the current text of the configuration.
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
    /// The system or the policy refuses.
    pub fn listen(&self, place: &Place) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(self.ask_for_descriptor(&Question::Listen { place: place.clone() })?, place))
    }

    /// Opens a UDP socket at an address that is listened at, on the port that the listener got.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn listen_for_datagrams(&self, place: &Place, port: u16) -> io::Result<UdpSocket> {
        let question = Question::ListenDatagrams { place: place.clone(), port };
        Ok(self.ask_for_descriptor(&question)?.into())
    }

    /// Listens for programs that use a device.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn listen_at(&self, place: &Place) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(self.ask_for_descriptor(&Question::ListenAt { place: place.clone() })?, place))
    }

    /// Opens a disk image.
    ///
    /// # Errors
    /// A sentence of the store, or the policy refuses.
    pub fn open_image(&self, path: &Path, read_only: bool) -> io::Result<FileStore> {
        let file = self.ask_for_descriptor(&Question::OpenImage { path: path.to_owned(), read_only })?;
        FileStore::passed(file, path, read_only).map_err(io::Error::other)
    }

    /// Passes an image that the owner opened, for the next [`Broker::open_image`] with this path.
    ///
    /// # Errors
    /// A sentence of the store: the descriptor is not that of a disk, or was opened in another way.
    pub fn pass_image(&self, path: &Path, read_only: bool, image: BorrowedFd<'_>) -> io::Result<()> {
        let question = Question::PassImage { path: path.to_owned(), read_only };
        self.ask::<Value>(&question, Some(image)).map(|_| ())
    }

    /// Closes the passed images that were not opened.
    pub fn forget_images(&self) {
        if let Err(error) = self.ask::<Value>(&Question::ForgetImages, None) {
            tracing::debug!(%error, "no passed image is kept");
        }
    }

    /// Opens the source of a stream's frames.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn open_frames(&self, path: &Path) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::OpenFrames { path: path.to_owned() })
    }

    /// Opens a USB device's node. If this process ends before it calls [`Broker::given_back`], the broker returns the
    /// device to its drivers.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn open_usb(&self, bus: u32, device: u32) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::OpenUsb { bus, device })
    }

    /// Isolates a processor from all other programs until this process ends. Returns the file of its cpuset.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn processor(&self, cpu: usize) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::Processor { cpu })
    }

    /// Writes a line of the audit log about a user that proved no key.
    ///
    /// # Errors
    /// The broker has ended, or refuses such a line.
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

    /// Passes the open node of a device that another process had. The broker uses it when the device is opened here.
    ///
    /// # Errors
    /// The broker has ended.
    pub fn inherit_usb(&self, bus: u32, device: u32, node: BorrowedFd<'_>) -> io::Result<()> {
        self.ask::<Value>(&Question::InheritUsb { bus, device }, Some(node)).map(|_| ())
    }

    /// Passes the node of a device that the owner opened. [`Broker::open_usb`] returns it, whatever the policy says.
    ///
    /// # Errors
    /// It is not the node of that device, or was not opened for reading and writing.
    pub fn pass_usb(&self, bus: u32, device: u32, node: BorrowedFd<'_>) -> io::Result<()> {
        self.ask::<Value>(&Question::PassUsb { bus, device }, Some(node)).map(|_| ())
    }

    /// Tells the broker that a device was returned to its drivers, or is gone.
    pub fn given_back(&self, bus: u32, device: u32) {
        if let Err(error) = self.ask::<Value>(&Question::GivenBack { bus, device }, None) {
            tracing::debug!(%error, "nobody needs to know that a device was given back");
        }
    }

    /// Starts the replacement of this process.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn replacement(&self) -> io::Result<ReplacementProcess> {
        let (pid, fd) = self.ask(&Question::Replacement, None)?;
        let fd = fd.ok_or_else(|| io::Error::other("no descriptor came along"))?;
        Ok(ReplacementProcess { pid, passage: Passage::over(fd) })
    }

    /// Starts the page of the configuration, which ends when the returned end of a passage is closed, and says there
    /// where it is.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn page(&self) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&Question::Page)
    }

    /// Identifies a USB device.
    pub(crate) fn identify_usb(&self, bus: u32, device: u32) -> Identified {
        self.identified(&Question::IdentifyUsb { bus, device })
    }

    /// Asks for a device's identity. If the broker cannot tell, returns a new one.
    pub(super) fn identified(&self, question: &Question) -> Identified {
        let identified = self.ask(question, None).map(|(identified, _)| identified);
        identified.unwrap_or_else(|error| {
            tracing::warn!(%error, "a device cannot be known again: it has an identity for now");
            Identified::fresh()
        })
    }

    /// Names the devices that this process identified itself. To be called once, before it gives its rights away.
    ///
    /// # Errors
    /// The broker has ended, or was told before.
    pub(crate) fn note_shared(&self, devices: Vec<DeviceId>) -> io::Result<()> {
        self.ask::<Value>(&Question::Shared { devices }, None).map(|_| ())
    }

    /// Stores the name of a device.
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
