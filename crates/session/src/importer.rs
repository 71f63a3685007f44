//! A device on another machine, as a [`Device`] on this one.

use farbus_model::usb::{Recipient, request};
use farbus_model::{
    BufferPool, Completions, Descriptors, Device, Done, InFlight, Instant, Limits, Selection, Speed, Status,
    TransferType, UrbId,
};
use farbus_wire::Runs;
use farbus_wire::usbip::client::Answer;
use farbus_wire::usbip::{ClientConn, DeviceRecord, OpStatus, Reject};

/// The requests of a plain USB/IP connection before a device is imported.
#[derive(Debug)]
pub struct Handshake {
    conn: ClientConn,
    /// Empty: payloads exist only for URBs. The transmit functions need a pool all the same.
    pool: BufferPool,
    limits: Limits,
}

/// The answer to a handshake.
#[derive(Debug)]
pub enum Greeting {
    /// The exporter's devices.
    Devices(Vec<DeviceRecord>),
    /// The device was imported; the connection continues as a [`RemoteDevice`].
    Imported(DeviceRecord),
    /// The exporter refused the device.
    Refused(OpStatus),
}

impl Handshake {
    /// Asks for the list of devices.
    pub fn list(limits: Limits) -> Self {
        let mut handshake = Self::over(limits);
        handshake.conn.device_list();
        handshake
    }

    /// Asks for a device.
    pub fn import(limits: Limits, bus_id: &str) -> Self {
        let mut handshake = Self::over(limits);
        handshake.conn.import(bus_id);
        handshake
    }

    fn over(limits: Limits) -> Self {
        Self { conn: ClientConn::new(&limits), pool: BufferPool::new(0), limits }
    }

    /// The buffer for received bytes.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.receive_space()
    }

    /// `count` bytes arrived.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol.
    pub fn handle_received(&mut self, count: usize) -> Result<Option<Greeting>, Reject> {
        self.conn.handle_received(count);
        Ok(match self.conn.poll_answer()? {
            None => None,
            Some(Answer::DeviceList(devices)) => Some(Greeting::Devices(devices)),
            Some(Answer::Imported(Ok(record))) => Some(Greeting::Imported(record)),
            Some(Answer::Imported(Err(status))) => Some(Greeting::Refused(status)),
            Some(Answer::Done(done)) => {
                return Err(Reject::new("seqnum", done.id.0, "nothing was submitted yet"));
            }
        })
    }

    /// Whether anything waits to be sent.
    pub fn has_transmit(&self) -> bool {
        self.conn.backlog_bytes() > 0
    }

    /// What to send next.
    pub fn poll_transmit(&self) -> Runs<'_> {
        self.conn.poll_transmit()
    }

    /// `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.conn.handle_transmitted(count, &mut self.pool);
    }

    /// The device that [`Greeting::Imported`] named.
    pub fn into_device(self, record: DeviceRecord) -> RemoteDevice {
        RemoteDevice {
            conn: self.conn,
            descriptors: Descriptors::default(),
            selection: Selection::default(),
            record,
            limits: self.limits,
            is_lost: false,
        }
    }
}

/// A device on another machine. The owner of the link moves its bytes.
#[derive(Debug)]
pub struct RemoteDevice {
    conn: ClientConn,
    descriptors: Descriptors,
    selection: Selection,
    record: DeviceRecord,
    limits: Limits,
    is_lost: bool,
}

impl RemoteDevice {
    /// The exporter's record of the device.
    pub fn record(&self) -> &DeviceRecord {
        &self.record
    }

    /// The session's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the descriptors that enumeration has read. Without them only the control pipe can be used.
    pub fn set_descriptors(&mut self, descriptors: Descriptors) {
        self.descriptors = descriptors;
    }

    /// The buffer for received bytes.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.receive_space()
    }

    /// `count` bytes arrived: adds what they complete to `done`.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; treat the link as lost.
    pub fn handle_received(&mut self, count: usize, done: &mut Completions) -> Result<(), Reject> {
        self.conn.handle_received(count);
        while let Some(answer) = self.conn.poll_answer()? {
            match answer {
                Answer::Done(finished) => {
                    note_selection(&mut self.selection, &self.descriptors, &finished);
                    done.push(finished);
                }
                Answer::DeviceList(_) | Answer::Imported(_) => unreachable!("nothing of the kind was asked"),
            }
        }
        Ok(())
    }

    /// The link is lost: everything in flight, and every later request, ends with [`Status::Gone`].
    pub fn handle_lost(&mut self, done: &mut Completions) {
        self.is_lost = true;
        for finished in self.conn.abandon(Status::Gone) {
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
    pub fn poll_transmit(&self) -> Runs<'_> {
        self.conn.poll_transmit()
    }

    /// `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize, done: &mut Completions) {
        self.conn.handle_transmitted(count, &mut done.pool);
    }
}

impl Device for RemoteDevice {
    fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    fn speed(&self) -> Speed {
        self.record.speed
    }

    fn selection(&self) -> &Selection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, urb: InFlight, done: &mut Completions) {
        if self.is_lost {
            return done.push(urb.fail(Status::Gone));
        }
        let kind = match self.selection.endpoint(urb.endpoint) {
            _ if urb.endpoint.is_control() => TransferType::Control,
            Some(endpoint) => endpoint.kind,
            None => return done.push(urb.fail(Status::Invalid)),
        };
        self.conn.submit(urb, kind, &mut done.pool);
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, _done: &mut Completions) {
        self.conn.unlink(id);
    }

    /// The protocol has no reset: the exporter detects one by the client's first descriptor read. Requests in flight
    /// are unlinked there, and the link continues.
    fn reset(&mut self, _now: Instant, done: &mut Completions) {
        for finished in self.conn.withdraw_all(Status::Shutdown) {
            done.push(finished);
        }
        self.selection.clear();
    }
}

/// Updates the selection after a request that changes which endpoints are active.
pub(crate) fn note_selection(selection: &mut Selection, descriptors: &Descriptors, done: &Done) {
    if !done.endpoint.is_control() || done.status != Status::Ok {
        return;
    }
    let setup = done.setup;
    if setup.is_standard(request::SET_CONFIGURATION, Recipient::Device) {
        selection.select_configuration(descriptors, setup.value as u8);
    } else if setup.is_standard(request::SET_INTERFACE, Recipient::Interface) {
        selection.select_interface(descriptors, setup.index as u8, setup.value as u8);
    }
}
