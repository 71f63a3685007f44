//! A USB device of a session, request by request.

use std::time::Duration;

use farbus::importer::session::connection::{DialCallback, LinkedDevice};
use farbus::model::{
    BufferPool, CompletionQueue, Device, EpAddr, Payload, SetupPacket, Urb, UrbCompletion, UrbId, UrbStatus,
};
use farbus::reservation::ReservationRequest;
use farbus_io_net::link::Link;
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::{AttachmentClass, AttachmentMode, OpenRequest};

/// Drives a USB device over a session, request by request.
pub struct Driver {
    pub linked: LinkedDevice<RemoteUsb>,
    done: CompletionQueue,
    next: u64,
}

impl Driver {
    pub fn new(address: &str, device: &str) -> Self {
        Self::asking(address, device, RemoteUsb::new)
    }

    /// A driver of a device for which `reservation` is asked.
    pub fn reserving(address: &str, device: &str, reservation: &str) -> Self {
        let ReservationRequest(reservation) = reservation.parse().unwrap();
        Self::asking(address, device, |number, open| RemoteUsb::reserving(number, open, reservation))
    }

    fn asking(address: &str, device: &str, ask: impl FnOnce(u16, OpenRequest) -> RemoteUsb) -> Self {
        let address = address.to_owned();
        let time_max = Duration::from_secs(10);
        let dial: DialCallback = Box::new(move |_| Link::connect(&address, time_max).map_err(|error| error.source));
        let (class, mode) = (AttachmentClass::USB, AttachmentMode::Exclusive);
        let open = OpenRequest { class, mode, epoch: 0, name: device.into(), reason: String::new() };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked = LinkedDevice::open(dial, ask(1, open), Duration::from_secs(60), &mut done).unwrap();
        let mut driver = Self { linked, done, next: 0 };
        let configured = driver.ask(|id| Urb::control(id, SetupPacket::set_configuration(1), Payload::Empty));
        assert_eq!(configured.status, UrbStatus::Ok);
        driver
    }

    pub fn submit(&mut self, urb: impl FnOnce(UrbId) -> Urb) {
        self.next += 1;
        let now = self.linked.clock().now();
        self.linked.submit(now, urb(UrbId(self.next)).launch(), &mut self.done);
        self.linked.turn(&mut self.done);
    }

    pub fn wait(&mut self) -> UrbCompletion {
        loop {
            self.linked.turn(&mut self.done);
            if let Some(done) = self.done.pop() {
                return done;
            }
            self.linked.wait(None).unwrap();
        }
    }

    pub fn ask(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbCompletion {
        self.submit(urb);
        self.wait()
    }

    pub fn read(&mut self, length: u32) -> UrbCompletion {
        self.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x81), length))
    }
}
