//! The confined process's end of the passage to its broker.

use std::io::{self, Read, Seek};
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_linux::store::FileStore;
use farbus_io_net::sys::passing::{MESSAGE_BYTES_MAX, MessageSocket, PassedMessage};
use farbus_io_net::trust::{AuditEvent, AuditRecorder, DeviceId};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{getgid, getuid};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::broker_policy::BrokerPolicy;
use super::protocol::{BrokerAnswer, BrokerRequest, to_json};
use super::replacement::ReplacementProcess;
use crate::common::socket_place::{SocketListener, SocketLocation};
use crate::devices::identities::{DeviceIdentity, ExpectedImage};

/// The most characters of a recorded field. A device's name has fewer.
const RECORDED_MAX: usize = 256;

/// The most bytes of images in one [`BrokerRequest::ExpectImages`], which has room for its own words then.
const EXPECTED_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 256;

/// How many lines that nobody uses are kept open for the next questions.
const IDLE_LINES_MAX: usize = 8;

/// How long a command waits at its end for its broker to clean up. A mount that cannot be removed may keep that longer.
const END_TIME_MAX: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The broker that this process started and uses alone, with a duplicate of the passage.
static STARTED: Mutex<Option<(Child, OwnedFd)>> = Mutex::new(None);

/// Ends the broker that this process started, and waits until it has cleaned up: after a command has ended,
/// processors, sockets and mounts are as they were before it. A broker that was passed on to another process goes on.
pub fn end_started() {
    let Some((mut broker, passage)) = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // Threads that have not ended may use duplicates of the passage: the broker is to see the end all the same.
    if shutdown(&passage, Shutdown::Both).is_err() {
        return;
    }
    let until = Instant::now() + END_TIME_MAX;
    while let Ok(None) = broker.try_wait() {
        if Instant::now() > until {
            tracing::warn!("the process that keeps the rights is still cleaning up");
            return;
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// The confined process's way to its broker: one line, on which it asks one question at a time, or several.
#[derive(Debug)]
pub struct BrokerClient {
    way: BrokerTransport,
    /// The user and group that own the broker's mounts.
    pub(super) owner: (u32, u32),
}

#[derive(Debug)]
enum BrokerTransport {
    /// One line. A question waits for the one before it.
    One(Mutex<MessageSocket>),
    /// A line for each question that is under way: none waits for another.
    Several(BrokerLinePool),
}

/// Lines that are opened as they are needed, and shared by all that ask.
#[derive(Debug)]
struct BrokerLinePool {
    /// Opens the others, and is used for nothing else.
    first: Box<BrokerClient>,
    /// How many questions are asked at once; a further one waits.
    at_once_max: usize,
    state: Mutex<BrokerLinePoolState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct BrokerLinePoolState {
    /// Questions that are being asked.
    under_way: usize,
    /// Lines that nobody uses.
    idle: Vec<MessageSocket>,
}

impl BrokerLinePool {
    /// Asks on a line that nobody else uses meanwhile.
    fn ask(&self, question: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<PassedMessage> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self
            .freed
            .wait_while(state, |state| state.under_way >= self.at_once_max)
            .unwrap_or_else(PoisonError::into_inner);
        state.under_way += 1;
        let taken = state.idle.pop();
        drop(state);
        let answer = self.ask_on(taken, question, fd);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.under_way -= 1;
        self.freed.notify_one();
        // A line on which asking failed is closed.
        let (parcel, passage) = answer?;
        if state.idle.len() < IDLE_LINES_MAX {
            state.idle.push(passage);
        }
        Ok(parcel)
    }

    fn ask_on(
        &self,
        idle: Option<MessageSocket>,
        question: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<(PassedMessage, MessageSocket)> {
        let passage = match idle {
            Some(passage) => passage,
            None => MessageSocket::over(self.first.ask_for_descriptor(&BrokerRequest::Line)?),
        };
        Ok((converse(&passage, question, fd)?, passage))
    }
}

/// From now on the broker ends with another process.
fn pass_on() {
    *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn converse(passage: &MessageSocket, question: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<PassedMessage> {
    passage.send(question, fd)?;
    let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the process that keeps the rights has ended");
    passage.receive()?.ok_or_else(ended)
}

/// Starts a broker that writes its log to `log`. Returns the process and the passage to it.
fn spawn(broker_policy: &BrokerPolicy, log: Stdio) -> io::Result<(Child, MessageSocket)> {
    let (passage, theirs) = MessageSocket::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // Paths in the policy may be relative to the working directory.
    command.arg("broker").stdin(theirs).stdout(Stdio::null()).stderr(log);
    let child = command.spawn()?;
    passage.send(&to_json(broker_policy)?, None)?;
    Ok((child, passage))
}

impl BrokerClient {
    /// Starts the broker: this program once more, with the argument `broker` and all its rights.
    ///
    /// # Errors
    /// The system cannot start another process.
    pub fn start(broker_policy: &BrokerPolicy) -> io::Result<Self> {
        let (child, passage) = spawn(broker_policy, Stdio::inherit())?;
        *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = Some((child, passage.duplicate()?));
        Ok(Self::over(passage, (getuid().as_raw(), getgid().as_raw())))
    }

    /// Starts a broker for another process, which it serves until that process ends. It outlives this process, so it
    /// has none of its descriptors: a shell that reads all that this process prints sees the end of it.
    ///
    /// # Errors
    /// As [`BrokerClient::start`].
    pub fn start_for_another(broker_policy: &BrokerPolicy) -> io::Result<OwnedFd> {
        spawn(broker_policy, Stdio::null()).map(|(_, passage)| passage.into_descriptor())
    }

    fn over(passage: MessageSocket, owner: (u32, u32)) -> Self {
        Self { way: BrokerTransport::One(Mutex::new(passage)), owner }
    }

    /// A duplicate of the passage, for a replacement process, which uses it once this process uses it no more.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        pass_on();
        match &self.way {
            BrokerTransport::One(passage) => passage.lock().unwrap_or_else(PoisonError::into_inner).duplicate(),
            BrokerTransport::Several(lines) => lines.first.duplicate(),
        }
    }

    /// The broker that another process of this owner started and passed.
    pub fn passed(passage: OwnedFd) -> Self {
        Self::over(MessageSocket::over(passage), (getuid().as_raw(), getgid().as_raw()))
    }

    /// Opens a further line. A question there does not wait for a question here.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn line(&self) -> io::Result<Self> {
        let line = self.ask_for_descriptor(&BrokerRequest::Line)?;
        Ok(Self::over(MessageSocket::over(line), self.owner))
    }

    /// Opens lines of its own as they are needed: a question on them waits for no other, and each costs a descriptor
    /// and a thread of the broker only while it is asked. Of several lines it returns `None`: they may be shared.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn lines(&self) -> io::Result<Option<Self>> {
        match &self.way {
            BrokerTransport::Several(_) => Ok(None),
            BrokerTransport::One(_) => self.lines_up_to(usize::MAX).map(Some),
        }
    }

    /// As [`BrokerClient::lines`], for `at_once_max` questions at once: a further one waits.
    ///
    /// # Errors
    /// As [`BrokerClient::lines`].
    pub fn lines_up_to(&self, at_once_max: usize) -> io::Result<Self> {
        let lines = BrokerLinePool {
            first: Box::new(self.line()?),
            at_once_max,
            state: Mutex::default(),
            freed: Condvar::new(),
        };
        Ok(Self { way: BrokerTransport::Several(lines), owner: self.owner })
    }

    /// Asks for the current text of the configuration.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn config(&self) -> io::Result<String> {
        let mut file = std::fs::File::from(self.ask_for_descriptor(&BrokerRequest::Config)?);
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Listens for importers.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn listen(&self, location: &SocketLocation) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(
            self.ask_for_descriptor(&BrokerRequest::Listen { place: location.clone() })?,
            location,
        ))
    }

    /// Opens a UDP socket at an address that is listened at, on the port that the listener got.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn listen_for_datagrams(&self, location: &SocketLocation, port: u16) -> io::Result<UdpSocket> {
        let question = BrokerRequest::ListenDatagrams { place: location.clone(), port };
        Ok(self.ask_for_descriptor(&question)?.into())
    }

    /// Listens for programs that use a device.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn listen_at(&self, location: &SocketLocation) -> io::Result<SocketListener> {
        Ok(SocketListener::passed(
            self.ask_for_descriptor(&BrokerRequest::ListenAt { place: location.clone() })?,
            location,
        ))
    }

    /// Opens a disk image.
    ///
    /// # Errors
    /// A sentence of the store, or the policy refuses.
    pub fn open_image(&self, path: &Path, read_only: bool) -> io::Result<FileStore> {
        let file = self.ask_for_descriptor(&BrokerRequest::OpenImage { path: path.to_owned(), read_only })?;
        FileStore::passed(file, path, read_only).map_err(io::Error::other)
    }

    /// Passes an image that the owner opened, for the next [`BrokerClient::open_image`] with this path.
    ///
    /// # Errors
    /// A sentence of the store: the descriptor is not that of a disk, or was opened in another way.
    pub fn pass_image(&self, path: &Path, read_only: bool, is_forced: bool, image: BorrowedFd<'_>) -> io::Result<()> {
        let question = BrokerRequest::PassImage { path: path.to_owned(), read_only, is_forced };
        self.ask::<Value>(&question, Some(image)).map(|_| ())
    }

    /// Closes the passed images that were not opened.
    pub fn forget_images(&self) {
        if let Err(error) = self.ask::<Value>(&BrokerRequest::ForgetImages, None) {
            tracing::debug!(%error, "no passed image is kept");
        }
    }

    /// Opens the source of a stream's frames.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn open_frames(&self, path: &Path) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&BrokerRequest::OpenFrames { path: path.to_owned() })
    }

    /// Opens a USB device's node. If this process ends before it calls [`BrokerClient::given_back`], the broker returns
    /// the device to its drivers.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn open_usb(&self, bus: u32, device: u32) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&BrokerRequest::OpenUsb { bus, device })
    }

    /// Isolates a processor from all other programs until this process ends. Returns the file of its cpuset.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn processor(&self, cpu: usize) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&BrokerRequest::Processor { cpu })
    }

    /// Writes a line of the audit log about a use of a device, or a connection that failed.
    fn ask_to_record(&self, event: &AuditEvent<'_>) -> io::Result<()> {
        let short = |text: &str| text.chars().take(RECORDED_MAX).collect::<String>();
        let question = BrokerRequest::Record {
            used: event.event.to_owned(),
            outcome: event.outcome,
            key: event.fingerprint,
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
        self.ask::<Value>(&BrokerRequest::InheritUsb { bus, device }, Some(node)).map(|_| ())
    }

    /// Passes the node of a device that the owner opened. [`BrokerClient::open_usb`] returns it, whatever the policy
    /// says.
    ///
    /// # Errors
    /// It is not the node of that device, or was not opened for reading and writing.
    pub fn pass_usb(&self, bus: u32, device: u32, node: BorrowedFd<'_>) -> io::Result<()> {
        self.ask::<Value>(&BrokerRequest::PassUsb { bus, device }, Some(node)).map(|_| ())
    }

    /// Tells the broker that a device was returned to its drivers, or is gone.
    pub fn given_back(&self, bus: u32, device: u32) {
        if let Err(error) = self.ask::<Value>(&BrokerRequest::GivenBack { bus, device }, None) {
            tracing::debug!(%error, "nobody needs to know that a device was given back");
        }
    }

    /// Starts the replacement of this process.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn replacement(&self) -> io::Result<ReplacementProcess> {
        let (pid, fd) = self.ask(&BrokerRequest::Replacement, None)?;
        let fd = fd.ok_or_else(|| io::Error::other("no descriptor came along"))?;
        Ok(ReplacementProcess { pid, passage: MessageSocket::over(fd) })
    }

    /// Starts the page of the configuration, which ends when the returned end of a passage is closed, and says there
    /// where it is.
    ///
    /// # Errors
    /// The system or the policy refuses.
    pub fn page(&self) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(&BrokerRequest::Page)
    }

    /// Identifies a USB device.
    pub(crate) fn identify_usb(&self, bus: u32, device: u32) -> DeviceIdentity {
        self.identified(&BrokerRequest::IdentifyUsb { bus, device })
    }

    /// Asks for a device's identity. If the broker cannot tell, returns a new one.
    pub(super) fn identified(&self, question: &BrokerRequest) -> DeviceIdentity {
        let identified = self.ask(question, None).map(|(identified, _)| identified);
        identified.unwrap_or_else(|error| {
            tracing::warn!(%error, "a device cannot be known again: it has an identity for now");
            DeviceIdentity::fresh()
        })
    }

    /// Names images that are going to be opened and identified: see [`BrokerRequest::ExpectImages`].
    pub(super) fn expect_images(&self, images: Vec<ExpectedImage>) {
        let bytes = |image: &ExpectedImage| to_json(image).map_or(MESSAGE_BYTES_MAX, |text| text.len() + 1);
        let (mut together, mut filled) = (Vec::new(), 0);
        let ask = |images: Vec<ExpectedImage>| {
            if let Err(error) = self.ask::<Value>(&BrokerRequest::ExpectImages { images }, None) {
                tracing::debug!(%error, "devices are identified one by one");
            }
        };
        for image in images {
            let size = bytes(&image);
            if size > EXPECTED_BYTES_MAX {
                continue;
            }
            if filled + size > EXPECTED_BYTES_MAX {
                ask(std::mem::take(&mut together));
                filled = 0;
            }
            filled += size;
            together.push(image);
        }
        if !together.is_empty() {
            ask(together);
        }
    }

    /// Names the devices that this process identified itself. To be called once, before it gives its rights away.
    ///
    /// # Errors
    /// The broker has ended, or was told before.
    pub fn note_shared(&self, devices: Vec<DeviceId>) -> io::Result<()> {
        self.ask::<Value>(&BrokerRequest::Shared { devices }, None).map(|_| ())
    }

    /// Stores the name of a device.
    pub(crate) fn note_name(&self, device: DeviceId, name: &str, is_named: bool) {
        let name = name.to_owned();
        if let Err(error) = self.ask::<Value>(&BrokerRequest::NoteName { device, name, is_named }, None) {
            tracing::debug!(%error, "what a device is called is not noted");
        }
    }

    pub(super) fn ask_for_descriptor(&self, question: &BrokerRequest) -> io::Result<OwnedFd> {
        let (_, fd) = self.ask::<Value>(question, None)?;
        fd.ok_or_else(|| io::Error::other("no descriptor came along"))
    }

    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        question: &BrokerRequest,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<(T, Option<OwnedFd>)> {
        let question = to_json(question)?;
        let parcel = match &self.way {
            BrokerTransport::One(passage) => {
                converse(&passage.lock().unwrap_or_else(PoisonError::into_inner), &question, fd)?
            }
            BrokerTransport::Several(lines) => lines.ask(&question, fd)?,
        };
        match serde_json::from_slice(&parcel.bytes)? {
            BrokerAnswer::Done(value) => Ok((serde_json::from_value(value)?, parcel.fd)),
            BrokerAnswer::Refused { why, kind } => Err(kind.error(why)),
        }
    }
}

impl AuditRecorder for BrokerClient {
    fn record(&self, event: &AuditEvent<'_>) {
        if let Err(error) = self.ask_to_record(event) {
            tracing::warn!(%error, event = event.event, "the audit log has no line about it");
        }
    }
}
