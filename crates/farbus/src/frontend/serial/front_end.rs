//! `--via rfc2217` and `--via tcp`: a serial port for programs that connect; and the attachment of every serial port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farbus_host::serial::SerialError;
use farbus_io_net::saving::{SaveRequester, SavedAttachment};
use farbus_io_net::trust::LinkTraffic;
use farbus_session::snapshot;

use super::program_link::SerialListener;
use super::relay::{SNAPSHOT_KIND, SerialRelay};
use crate::broker::SystemAccess;
use crate::common::socket_place::{SocketListener, SocketLocation, SocketProtocol};
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FrontEnd,
    FrontEndPreparation, FrontEndRequirement, RestoredAttachment, StopSignal,
};
use crate::importer::client::{ClientError, DeviceTarget, GRACE, ImporterClient, local};
use crate::importer::session::connection::LinkedDevice;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::EngineMeters;

/// What pyserial, esptool and ser2net speak.
const RFC2217: SocketProtocol = SocketProtocol { name: "RFC 2217", word: "rfc2217", port: 2217, is_tcp: true };
/// Bare bytes; the port is that of Zigbee coordinators on a network.
const BARE: SocketProtocol = SocketProtocol { name: "TCP", word: "tcp", port: 6638, is_tcp: true };

/// `--via rfc2217`: rate, format, control lines and breaks go by the protocol.
pub struct Rfc2217FrontEnd;

/// `--via tcp`: the bytes alone.
pub struct BareSerialFrontEnd;

/// What the two front ends have in common.
trait SerialFrontEnd {
    const WORD: &'static str = Self::PROTOCOL.word;
    const PROTOCOL: SocketProtocol;
    const SPEAKS_TELNET: bool;
}

impl SerialFrontEnd for Rfc2217FrontEnd {
    const PROTOCOL: SocketProtocol = RFC2217;
    const SPEAKS_TELNET: bool = true;
}

impl SerialFrontEnd for BareSerialFrontEnd {
    const PROTOCOL: SocketProtocol = BARE;
    const SPEAKS_TELNET: bool = false;
}

impl<T: SerialFrontEnd + Send + Sync> FrontEnd for T {
    fn name(&self) -> &'static str {
        T::WORD
    }

    fn summary(&self) -> &'static str {
        if T::SPEAKS_TELNET { "A serial port, at an rfc2217:// address" } else { "A serial port's bytes, over TCP" }
    }

    fn protocol(&self) -> Option<SocketProtocol> {
        Some(T::PROTOCOL)
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        request.needs_of(T::PROTOCOL)
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        prepared: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let listener = prepared.listener(client, request, T::PROTOCOL)?;
        let device = match FarDevice::open(client, &request.target, GRACE) {
            Ok(device) => device,
            Err(error) => {
                prepared.keep(listener);
                return Err(error);
            }
        };
        let system = client.system().clone();
        let listener = SerialListener::Socket(listener);
        match SerialRelay::new(device, listener, T::SPEAKS_TELNET, request.allowed.clone(), system) {
            Ok(relay) => Ok(Box::new(SerialAttachment::over(relay, request)?)),
            Err((error, listener)) => {
                listener.into_socket().into_iter().for_each(|listener| prepared.keep(listener));
                Err(no_port(&error, request))
            }
        }
    }

    fn manner(&self, request: &AttachRequest) -> String {
        let allowed: String = request.allowed.iter().map(|network| format!(", {network}")).collect();
        format!("{} at {}{}{allowed}", T::PROTOCOL.word, request.place_of(T::PROTOCOL).as_host(), request.access)
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        let location = request.place_of(T::PROTOCOL);
        restored(client, request, saved, T::SPEAKS_TELNET, |descriptors, _| {
            let socket =
                descriptors.next().ok_or_else(|| io::Error::other("its listening socket did not come along"))?;
            Ok(SerialListener::Socket(SocketListener::passed(socket, &location)))
        })
    }
}

/// The error for a device that has no serial port.
pub fn no_port(error: &SerialError, request: &AttachRequest) -> ClientError {
    let next = format!("for one program: farbus run {} -- PROGRAM", request.target.shown());
    ClientError::Device { target: request.target.clone(), what: format!("{error}\n  {next}") }
}

/// The attachment that another process saved. `listener` makes what programs find of the first descriptors.
///
/// # Errors
/// [`ClientError::Local`]: the snapshot is invalid.
pub fn restored(
    client: &ImporterClient,
    request: &AttachRequest,
    saved: SavedAttachment,
    speaks_telnet: bool,
    listener: impl for<'a> FnOnce(
        &mut dyn Iterator<Item = OwnedFd>,
        &mut snapshot::FieldReader<'a>,
    ) -> io::Result<SerialListener>,
) -> Result<Box<dyn RestoredAttachment>, ClientError> {
    let wrong = |reject: farbus_session::ProtocolViolation| ClientError::Local(reject.to_string());
    let SavedAttachment { snapshot, descriptors, .. } = saved;
    let mut from = snapshot::open(&snapshot, SNAPSHOT_KIND).map_err(wrong)?;
    let linked = LinkedDevice::restore(client.redial(&request.target, LinkTraffic::Prompt)?, &mut from);
    let device = FarDevice::Session(Box::new(linked.map_err(local)?));
    let options = (speaks_telnet, request.allowed.clone(), client.system().clone());
    let relay = SerialRelay::restore(device, descriptors.into_iter(), listener, options, &mut from)?;
    Ok(Box::new(SerialAttachment::over(relay, request)?))
}

/// A serial port that waits for a program, serves it, and waits for the next.
pub struct SerialAttachment {
    relay: SerialRelay,
    location: SocketLocation,
    target: DeviceTarget,
    stop: StopSignal,
    local_address: Option<SocketAddr>,
    session: Option<SessionStatus>,
    meters: Arc<EngineMeters>,
    save_requester: SaveRequester<SavedAttachment>,
}

impl SerialAttachment {
    /// The attachment of `relay`'s device.
    ///
    /// # Errors
    /// The error of the system.
    pub fn over(relay: SerialRelay, request: &AttachRequest) -> Result<Self, ClientError> {
        let stop = StopSignal::new().map_err(local)?;
        Ok(Self {
            location: relay.listener.location().map_err(local)?,
            target: request.target.clone(),
            local_address: relay.device.local_address(),
            session: relay.device.status(),
            meters: Arc::default(),
            save_requester: SaveRequester::new(stop.shared_wake()),
            stop,
            relay,
        })
    }

    fn is_terminal(&self) -> bool {
        matches!(self.relay.listener, SerialListener::Terminal(_))
    }

    /// What a program is given to connect.
    fn url(&self) -> String {
        match (&self.location, self.relay.speaks_telnet) {
            (SocketLocation::Address(address), true) => format!("rfc2217://{address}"),
            (SocketLocation::Address(address), false) => format!("tcp://{address}"),
            (SocketLocation::Socket(path), _) if self.is_terminal() => path.display().to_string(),
            (SocketLocation::Socket(_), _) => self.location.as_host(),
        }
    }

    /// What to type next.
    fn next(&self) -> String {
        let url = self.url();
        match (&self.location, self.relay.speaks_telnet) {
            (SocketLocation::Address(address), true) => format!(
                "python3 -m serial.tools.miniterm {url} 115200\n  or esptool --port {url}, or: telnet {} {}",
                address.ip(),
                address.port()
            ),
            (SocketLocation::Address(address), false) => {
                format!("nc {} {}, or {url} where a program wants a port", address.ip(), address.port())
            }
            (SocketLocation::Socket(path), _) if self.is_terminal() => {
                format!("picocom -b 115200 {}, or any program that opens a serial port", path.display())
            }
            (SocketLocation::Socket(path), _) => format!("socat - UNIX-CONNECT:{}", path.display()),
        }
    }

    /// Drops the attachment without ending anything: a replacement process continues it.
    fn leave(mut self) {
        self.relay.device.leave();
        // The replacement removes the path.
        self.relay.listener.pass_on();
    }
}

impl Attachment for SerialAttachment {
    fn status(&self) -> AttachmentFacts {
        let at = self.url();
        AttachmentFacts {
            introduction: AttachmentIntroduction {
                line: format!("{} attached at {at}", self.target.shown()),
                next: Some(self.next()),
                export: None,
            },
            at,
            how: "over a plain connection",
            mode: None,
            port: None,
            local_address: self.local_address,
        }
    }

    fn handle(&self) -> AttachmentHandle {
        let is_movable = self.relay.device.is_movable();
        AttachmentHandle::new(self.stop.clone())
            .connected_to(self.relay.connected.clone())
            .in_session(self.session.clone())
            .saving_by(is_movable.then(|| self.save_requester.clone()))
            .metered_by(Arc::clone(&self.meters))
    }

    fn run(mut self: Box<Self>) -> AttachmentEnd {
        let ended = self.relay.run(&self.stop, &self.save_requester, &self.meters);
        if matches!(ended, AttachmentEnd::HandedOver) {
            self.relay.system.leave_place(&self.location);
            (*self).leave();
        }
        ended
    }
}

impl RestoredAttachment for SerialAttachment {
    fn go_on(mut self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError> {
        match system.take_place(&self.location) {
            Ok(()) => {
                self.relay.listener.take_over();
                Ok(self)
            }
            Err(error) => {
                (*self).leave();
                Err(local(error))
            }
        }
    }

    fn leave(self: Box<Self>) {
        (*self).leave();
    }
}
