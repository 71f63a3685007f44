//! An exporter over a device, and its client, connected directly.

use std::time::Duration;

use farbus_model::{CompletionQueue, Device, Instant, SessionLimits};
use farbus_session::{ConnectionFault, DeviceRecord, ExportOffers, Exporter, OpStatus, PortResetPolicy};

use super::peer::{self, BUS_ID, Checker, DEVID, Reply, Submit};

/// The record of a test's only device.
pub fn record(device: &impl Device) -> DeviceRecord {
    let all = device.descriptors();
    let interfaces: Vec<[u8; 3]> = all.configurations[0].interfaces().map(|setting| setting.class).collect();
    DeviceRecord {
        path: "/test".into(),
        bus_id: BUS_ID.into(),
        bus: DEVID >> 16,
        device: DEVID & 0xffff,
        speed: device.speed(),
        vendor: all.device.vendor,
        product: all.device.product,
        device_bcd: all.device.device_bcd,
        class: all.device.class,
        configuration: 1,
        configurations: 1,
        interface_count: interfaces.len() as u8,
        interfaces,
    }
}

/// Offers one device, once.
pub struct Shelf<D> {
    record: DeviceRecord,
    device: Option<D>,
}

impl<D: Device> Shelf<D> {
    pub fn new(device: D) -> Self {
        Self { record: record(&device), device: Some(device) }
    }
}

impl<D> ExportOffers<D> for Shelf<D> {
    fn list(&mut self) -> Vec<DeviceRecord> {
        vec![self.record.clone()]
    }

    fn claim(&mut self, bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        if bus_id != self.record.bus_id {
            return Err(OpStatus::NoDevice);
        }
        let device = self.device.take().ok_or(OpStatus::Busy)?;
        Ok((self.record.clone(), device))
    }
}

/// Offers nothing, because the device is imported already.
pub struct Nothing;

impl<D> ExportOffers<D> for Nothing {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NoDevice)
    }
}

/// The exporter and its client. Requests in flight at the end of a test end as if the client disconnected.
pub struct Loopback<D: Device + 'static> {
    pub exporter: Exporter<D>,
    pub checker: Checker,
    pub now: Instant,
    offers: Box<dyn ExportOffers<D>>,
}

impl<D: Device + 'static> Loopback<D> {
    /// A client that has just connected to an exporter of `device`.
    pub fn connected(device: D, limits: SessionLimits) -> Self {
        let now = Instant::from_nanos(1);
        Self {
            exporter: Exporter::new(now, limits),
            checker: Checker::default(),
            now,
            offers: Box::new(Shelf::new(device)),
        }
    }

    /// A client that has imported `device`.
    pub fn imported(device: D, limits: SessionLimits) -> Self {
        Self::imported_by(device, limits, PortResetPolicy::ResetDevice)
    }

    pub fn imported_by(device: D, limits: SessionLimits, on_reset: PortResetPolicy) -> Self {
        let now = Instant::from_nanos(1);
        Self {
            exporter: Exporter::imported(now, limits, DEVID, device, on_reset),
            checker: Checker::default(),
            now,
            offers: Box::new(Nothing),
        }
    }

    /// A client that has imported and configured `device`.
    pub fn configured(device: D, limits: SessionLimits) -> Self {
        let mut loopback = Self::imported(device, limits);
        loopback.ask(&Submit::control(u32::MAX, peer::setup::set_configuration(1)));
        assert_eq!(loopback.checker.ret_submit(u32::MAX).status, 0);
        loopback
    }

    /// Delivers bytes to the exporter, as many at a time as there is room for.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionFault> {
        while !bytes.is_empty() {
            let space = self.exporter.receive_space();
            let count = space.len().min(bytes.len());
            assert!(count > 0, "there is always room");
            space[..count].copy_from_slice(&bytes[..count]);
            self.exporter.handle_received(count);
            bytes = &bytes[count..];
            self.advance()?;
        }
        Ok(())
    }

    pub fn advance(&mut self) -> Result<(), ConnectionFault> {
        self.exporter.advance(self.now, &mut *self.offers)
    }

    /// Sends a submit; its answer waits for [`Loopback::read`].
    pub fn submit(&mut self, submit: &Submit) {
        self.try_submit(submit).expect("a submit that no rule forbids");
    }

    pub fn try_submit(&mut self, submit: &Submit) -> Result<(), ConnectionFault> {
        self.checker.requested(submit, submit.ep == 3);
        self.receive(&submit.bytes())
    }

    pub fn unlink(&mut self, seqnum: u32, victim: u32) {
        self.try_unlink(seqnum, victim).expect("an unlink that no rule forbids");
    }

    pub fn try_unlink(&mut self, seqnum: u32, victim: u32) -> Result<(), ConnectionFault> {
        self.checker.unlink_asked(seqnum, victim);
        self.receive(&peer::unlink(seqnum, victim))
    }

    /// The client reads everything that waits, and what follows from reading.
    pub fn read(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        while self.exporter.has_transmit() {
            replies.extend(self.read_some(usize::MAX));
            self.advance().expect("reading breaks no rule");
        }
        replies
    }

    /// The client reads at most `most` bytes.
    pub fn read_some(&mut self, most: usize) -> Vec<Reply> {
        let bytes: Vec<u8> = self.waiting_bytes(most);
        self.exporter.handle_transmitted(bytes.len());
        self.checker.read(&bytes)
    }

    /// The client reads at most `most` raw bytes.
    pub fn read_bytes(&mut self, most: usize) -> Vec<u8> {
        let bytes = self.waiting_bytes(most);
        self.exporter.handle_transmitted(bytes.len());
        bytes
    }

    fn waiting_bytes(&self, most: usize) -> Vec<u8> {
        self.exporter.poll_transmit().iter().flat_map(|run| run.iter().copied()).take(most).collect()
    }

    /// Submits and reads.
    pub fn ask(&mut self, submit: &Submit) -> Vec<Reply> {
        self.submit(submit);
        self.read()
    }

    /// Runs `act` with the device, and lets the exporter handle what it completes.
    pub fn device<T>(&mut self, act: impl FnOnce(&mut D, &mut CompletionQueue) -> T) -> T {
        let result = self.exporter.with_device(self.now, act).expect("the device was claimed");
        self.advance().expect("a device breaks no rule");
        result
    }

    /// Lets time pass, with all timeouts in between.
    pub fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = self.exporter.poll_timeout().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.exporter.handle_timeout(self.now);
            self.advance().expect("time breaks no rule");
        }
        self.now = until;
    }

    /// The client disconnects; returns the device.
    pub fn end(mut self) -> (D, Checker) {
        let device = self.hang_up().expect("the device was claimed");
        (device, std::mem::take(&mut self.checker))
    }

    /// The client disconnects; returns the device if it had one.
    pub fn hang_up(&mut self) -> Option<D> {
        let spent = Exporter::new(self.now, SessionLimits { receive_bytes: 0, ..SessionLimits::DEFAULT });
        std::mem::replace(&mut self.exporter, spent).finish(self.now)
    }
}

impl<D: Device + 'static> Drop for Loopback<D> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.hang_up();
        }
    }
}
