//! Access to a remote device, over either protocol.

pub mod session;
pub mod usbip;

use std::io;
use std::sync::Arc;

use farbus_host::{HostPort, HostPortError};
use farbus_model::{Instant, Payload, Urb, UrbCompletion, UrbId};

use crate::importer::port::session::SessionPort;
use crate::importer::port::usbip::RemotePort;
use crate::importer::session::connection::LinkedDevice;

/// A port over plain USB/IP, or over a session.
#[derive(Debug)]
pub enum DevicePort {
    /// Over one link of plain USB/IP, and lost with it.
    Plain(Box<RemotePort>),
    /// Over a session.
    Session(SessionPort),
}

/// Takes a device from its user without waiting.
#[derive(Clone)]
pub struct DeviceCutter(Arc<dyn Fn() + Send + Sync>);

impl DeviceCutter {
    /// A cutter that calls `cut`.
    pub fn new(cut: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(cut))
    }

    /// Cuts the device off: every request to it fails, now and from now on.
    pub fn cut(&self) {
        (self.0)();
    }
}

impl DevicePort {
    /// A cutter for the device, for any thread.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn cutter(&self) -> io::Result<DeviceCutter> {
        Ok(match self {
            DevicePort::Plain(port) => {
                let link = port.link()?;
                DeviceCutter::new(move || link.shut_down())
            }
            DevicePort::Session(port) => {
                let stop_signal = port.ask(LinkedDevice::stop_signal);
                DeviceCutter::new(move || stop_signal.end())
            }
        })
    }

    fn port(&mut self) -> &mut dyn HostPort {
        match self {
            DevicePort::Plain(port) => &mut **port,
            DevicePort::Session(port) => port,
        }
    }
}

impl HostPort for DevicePort {
    fn submit(&mut self, urb: Urb) {
        self.port().submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.port().cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        self.port().wait(until)
    }

    fn now(&self) -> Instant {
        match self {
            DevicePort::Plain(port) => port.now(),
            DevicePort::Session(port) => port.now(),
        }
    }

    fn recycle(&mut self, payload: Payload) {
        self.port().recycle(payload);
    }
}
