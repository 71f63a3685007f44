//! A device on another machine, as a [`Device`] on this one.

use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, Instant, SessionLimits, UrbCompletion,
    UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_wire::SendSlices;
use farbus_wire::usbip::client::UsbipReply;
use farbus_wire::usbip::{DeviceRecord, OpStatus, ProtocolViolation, UsbipClientConn};

/// The requests of a plain USB/IP connection before a device is imported.
#[derive(Debug)]
pub struct ImportHandshake {
    conn: UsbipClientConn,
    /// Empty: payloads exist only for URBs. The transmit functions need a pool all the same.
    pool: BufferPool,
    limits: SessionLimits,
}

/// The answer to a handshake.
#[derive(Debug)]
pub enum HandshakeAnswer {
    /// The exporter's devices.
    Devices(Vec<DeviceRecord>),
    /// The device was imported; the connection continues as a [`RemoteDevice`].
    Imported(DeviceRecord),
    /// The exporter refused the device.
    Refused(OpStatus),
}

impl ImportHandshake {
    /// Asks for the list of devices.
    pub fn list(limits: SessionLimits) -> Self {
        let mut handshake = Self::over(limits);
        handshake.conn.device_list();
        handshake
    }

    /// Asks for a device.
    pub fn import(limits: SessionLimits, bus_id: &str) -> Self {
        let mut handshake = Self::over(limits);
        handshake.conn.import(bus_id);
        handshake
    }

    fn over(limits: SessionLimits) -> Self {
        Self { conn: UsbipClientConn::new(&limits), pool: BufferPool::new(0), limits }
    }

    /// The buffer for received bytes.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.receive_space()
    }

    /// `count` bytes arrived.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol.
    pub fn handle_received(&mut self, count: usize) -> Result<Option<HandshakeAnswer>, ProtocolViolation> {
        self.conn.handle_received(count);
        Ok(match self.conn.poll_answer()? {
            None => None,
            Some(UsbipReply::DeviceList(devices)) => Some(HandshakeAnswer::Devices(devices)),
            Some(UsbipReply::Imported(Ok(record))) => Some(HandshakeAnswer::Imported(record)),
            Some(UsbipReply::Imported(Err(status))) => Some(HandshakeAnswer::Refused(status)),
            Some(UsbipReply::Done(done)) => {
                return Err(ProtocolViolation::new("seqnum", done.id.0, "nothing was submitted yet"));
            }
        })
    }

    /// Whether anything waits to be sent.
    pub fn has_transmit(&self) -> bool {
        self.conn.backlog_bytes() > 0
    }

    /// What to send next.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.conn.poll_transmit()
    }

    /// `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.conn.handle_transmitted(count, &mut self.pool);
    }

    /// The device that [`HandshakeAnswer::Imported`] named.
    pub fn into_device(self, record: DeviceRecord) -> RemoteDevice {
        RemoteDevice {
            conn: self.conn,
            descriptors: DescriptorSet::default(),
            selection: ConfigurationSelection::default(),
            record,
            limits: self.limits,
            is_lost: false,
        }
    }
}

/// A device on another machine. The owner of the link moves its bytes.
#[derive(Debug)]
pub struct RemoteDevice {
    conn: UsbipClientConn,
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    record: DeviceRecord,
    limits: SessionLimits,
    is_lost: bool,
}

impl RemoteDevice {
    /// The exporter's record of the device.
    pub fn record(&self) -> &DeviceRecord {
        &self.record
    }

    /// The session's limits.
    pub fn limits(&self) -> SessionLimits {
        self.limits
    }

    /// Sets the descriptors that enumeration has read. Without them only the control pipe can be used.
    pub fn set_descriptors(&mut self, descriptors: DescriptorSet) {
        self.descriptors = descriptors;
    }

    /// The buffer for received bytes.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.receive_space()
    }

    /// `count` bytes arrived: adds what they complete to `done`.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol; treat the link as lost.
    pub fn handle_received(&mut self, count: usize, done: &mut CompletionQueue) -> Result<(), ProtocolViolation> {
        self.conn.handle_received(count);
        while let Some(answer) = self.conn.poll_answer()? {
            match answer {
                UsbipReply::Done(finished) => {
                    note_selection(&mut self.selection, &self.descriptors, &finished);
                    done.push(finished);
                }
                UsbipReply::DeviceList(_) | UsbipReply::Imported(_) => unreachable!("nothing of the kind was asked"),
            }
        }
        Ok(())
    }

    /// The link is lost: everything in flight, and every later request, ends with [`UrbStatus::Gone`].
    pub fn handle_lost(&mut self, done: &mut CompletionQueue) {
        self.is_lost = true;
        for finished in self.conn.abandon(UrbStatus::Gone) {
            done.push(finished);
        }
    }

    /// Requests that the exporter has not answered yet.
    pub fn in_flight(&self) -> usize {
        self.conn.in_flight()
    }

    /// Whether anything waits to be sent.
    pub fn has_transmit(&self) -> bool {
        self.conn.backlog_bytes() > 0
    }

    /// What to send next.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.conn.poll_transmit()
    }

    /// `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize, done: &mut CompletionQueue) {
        self.conn.handle_transmitted(count, &mut done.pool);
    }
}

impl Device for RemoteDevice {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        self.record.speed
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.is_lost {
            return done.push(urb.fail(UrbStatus::Gone));
        }
        let endpoint = self.selection.endpoint(urb.endpoint).filter(|_| !urb.endpoint.is_control());
        if endpoint.is_none() && !urb.endpoint.is_control() {
            return done.push(urb.fail(UrbStatus::Invalid));
        }
        self.conn.submit(urb, endpoint, &mut done.pool);
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, _done: &mut CompletionQueue) {
        self.conn.unlink(id);
    }

    /// The protocol has no reset: the exporter detects one by the client's first descriptor read. Requests in flight
    /// are unlinked there, and the link continues.
    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        for finished in self.conn.withdraw_all(UrbStatus::Shutdown) {
            done.push(finished);
        }
        self.selection.clear();
    }
}

/// Updates the selection after a request that changes which endpoints are active.
pub(crate) fn note_selection(
    selection: &mut ConfigurationSelection,
    descriptors: &DescriptorSet,
    done: &UrbCompletion,
) {
    if !done.endpoint.is_control() || done.status != UrbStatus::Ok {
        return;
    }
    let setup = done.setup;
    if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
        selection.select_configuration(descriptors, setup.value as u8);
    } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
        selection.select_interface(descriptors, setup.index as u8, setup.value as u8);
    }
}
