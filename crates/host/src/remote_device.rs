//! A device for clients: one call makes one transfer and returns its result.

use std::fmt;
use std::time::Duration;

use farbus_model::{DescriptorSet, EpAddr, Payload, SetupPacket, UrbId, UrbStatus, UsbSpeed};

use crate::driver::IdSource;
use crate::enumerate::{ConfigurationSetter, DescriptorEnumerator, EnumerationError};
use crate::limits::CONTROL_TIMEOUT;
use crate::port::{HostPort, HostPortError, run};
use crate::remote_disk::RemoteDisk;
use crate::storage::{BulkOnlyInterface, DiskError, ScsiDiskOptions};
use crate::transfers::TransferTracker;

/// A device behind a port: its descriptors are read and its first configuration is selected.
#[derive(Debug)]
pub struct RemoteDevice<P> {
    port: P,
    ids: IdSource,
    transfers: TransferTracker,
    speed: UsbSpeed,
    descriptors: DescriptorSet,
    configuration: u8,
    /// Time of a bulk or interrupt transfer; `None` waits for ever.
    timeout: Option<Duration>,
}

impl<P: HostPort> RemoteDevice<P> {
    /// Reads the descriptors of the device behind `port` and selects its first configuration.
    ///
    /// # Errors
    /// [`RemoteError`] when its descriptors are wrong or it cannot be reached.
    pub fn open(mut port: P, speed: UsbSpeed) -> Result<Self, RemoteError> {
        let descriptors = run(&mut DescriptorEnumerator::new(port.now(), IdSource::new(), speed), &mut port)??;
        Self::enumerated(port, speed, descriptors)
    }

    /// Opens a device whose descriptors were read before, and whose port has no request in flight.
    ///
    /// # Errors
    /// [`RemoteError`] when it cannot be configured or reached.
    pub fn enumerated(mut port: P, speed: UsbSpeed, descriptors: DescriptorSet) -> Result<Self, RemoteError> {
        let ids = IdSource::new();
        let configuration = run(&mut ConfigurationSetter::first(port.now(), ids.clone(), &descriptors)?, &mut port)??;
        let transfers = TransferTracker::new(ids.clone());
        Ok(Self { port, ids, transfers, speed, descriptors, configuration, timeout: None })
    }

    /// The device's descriptors.
    pub fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    /// Its speed at its exporter.
    pub fn speed(&self) -> UsbSpeed {
        self.speed
    }

    /// The value of the configuration that was selected.
    pub fn configuration(&self) -> u8 {
        self.configuration
    }

    /// The port, for its owner.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ids for the requests of other drivers on this device.
    pub fn ids(&self) -> IdSource {
        self.ids.clone()
    }

    /// Limits the time of bulk and interrupt transfers from now on; they wait for ever at first.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// A control request with data coming IN, or with none.
    ///
    /// # Errors
    /// [`RemoteError`] when it does not succeed.
    pub fn control_in(&mut self, setup: SetupPacket) -> Result<Payload, RemoteError> {
        let id = self.transfers.control_in(self.port.now(), setup, Some(CONTROL_TIMEOUT));
        self.finish(id).map(|(payload, _)| payload)
    }

    /// A control request with data going OUT; `setup.length` is set to the data's length.
    ///
    /// # Errors
    /// [`RemoteError`] when it does not succeed.
    ///
    /// # Panics
    /// If there are more bytes than a setup packet can announce.
    pub fn control_out(&mut self, setup: SetupPacket, data: impl Into<Payload>) -> Result<(), RemoteError> {
        let payload = data.into();
        let length = u16::try_from(payload.len()).expect("a control transfer's data is at most 65535 bytes");
        let setup = SetupPacket { length, ..setup };
        let id = self.transfers.control_out(self.port.now(), setup, payload, Some(CONTROL_TIMEOUT));
        self.finish(id).map(|_| ())
    }

    /// Up to `length` bytes from a bulk or interrupt endpoint.
    ///
    /// # Errors
    /// [`RemoteError`] when it does not succeed.
    pub fn data_in(&mut self, endpoint: EpAddr, length: u32) -> Result<Payload, RemoteError> {
        let id = self.transfers.data_in(self.port.now(), endpoint, length, self.timeout);
        self.finish(id).map(|(payload, _)| payload)
    }

    /// Sends bytes to a bulk or interrupt endpoint; returns how many were taken.
    ///
    /// # Errors
    /// [`RemoteError`] when it does not succeed.
    pub fn data_out(&mut self, endpoint: EpAddr, data: impl Into<Payload>) -> Result<u32, RemoteError> {
        let id = self.transfers.data_out(self.port.now(), endpoint, data.into(), self.timeout);
        self.finish(id).map(|(_, actual)| actual)
    }

    /// Clears an endpoint's halt.
    ///
    /// # Errors
    /// [`RemoteError`] when it does not succeed.
    pub fn clear_halt(&mut self, endpoint: EpAddr) -> Result<(), RemoteError> {
        self.control_in(SetupPacket::clear_halt(endpoint)).map(|_| ())
    }

    /// Brings up the device's disk.
    ///
    /// # Errors
    /// [`DiskError`] when it has none, or it cannot be brought up.
    pub fn into_disk(self, options: ScsiDiskOptions) -> Result<RemoteDisk<P>, DiskError> {
        let configuration = self.descriptors.configuration(self.configuration);
        let target = configuration.and_then(|configuration| BulkOnlyInterface::find(configuration, self.speed));
        let target = target.ok_or(DiskError::Unsupported(crate::storage::NO_DISK))?;
        RemoteDisk::new(self.port, self.ids, target, options)
    }

    /// Returns the port, to run another driver on it.
    pub fn into_port(self) -> P {
        self.port
    }

    fn finish(&mut self, id: UrbId) -> Result<(Payload, u32), RemoteError> {
        loop {
            let done = run(&mut self.transfers, &mut self.port)?;
            match done.status {
                // The remainder of an earlier call whose port could not wait.
                _ if done.id != id => {}
                UrbStatus::Ok => return Ok((done.payload, done.actual)),
                status => return Err(RemoteError::Transfer(status)),
            }
        }
    }
}

/// Why a call on a device failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// Its descriptors are wrong, or it cannot be configured.
    Enumerate(EnumerationError),
    /// A transfer ended in this way.
    Transfer(UrbStatus),
    /// It cannot be reached any more.
    Port(HostPortError),
}

impl From<EnumerationError> for RemoteError {
    fn from(error: EnumerationError) -> Self {
        RemoteError::Enumerate(error)
    }
}

impl From<HostPortError> for RemoteError {
    fn from(error: HostPortError) -> Self {
        RemoteError::Port(error)
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Enumerate(error) => error.fmt(f),
            RemoteError::Transfer(status) => write!(f, "the transfer ended with {status:?}"),
            RemoteError::Port(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RemoteError {}
