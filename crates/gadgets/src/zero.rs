//! Source and sink: the device of the kernel's `usbtest` driver, used for all throughput measurements (U7).
//!
//! One interface with a bulk, an interrupt and an isochronous endpoint in each direction. IN endpoints always have
//! data, OUT endpoints accept any data. The ids are those of the kernel's own gadget, so that `usbtest` binds to it
//! automatically.

use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::{DeviceDefinition, EpAddr, Payload, SetupPacket, TransferDirection, TransferType, UsbSpeed};

use farbus_model::descriptor::ConfigurationSelection;

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};

/// Vendor request of `usbtest`: store these bytes.
const REQUEST_WRITE: u8 = 0x5b;
/// Vendor request of `usbtest`: return the stored bytes.
const REQUEST_READ: u8 = 0x5c;

/// What the source sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePattern {
    /// Zeros (`usbtest pattern=0`).
    #[default]
    Zeros,
    /// Each packet counts 0 to 62 over and over (`usbtest pattern=1`).
    Mod63,
}

/// A source/sink device.
#[derive(Debug)]
pub struct SourceSink {
    fill: SourcePattern,
    /// Whether OUT data is compared with `fill`; a difference halts the endpoint.
    verify: bool,
    packet_bytes: [u16; 32],
    remembered: Vec<u8>,
}

impl SourceSink {
    /// The device, ready to be shared.
    pub fn device(speed: UsbSpeed, fill: SourcePattern, verify: bool) -> EmulatedDevice<Self> {
        let function = Self { fill, verify, packet_bytes: [0; 32], remembered: Vec::new() };
        EmulatedDevice::new(&definition(speed), function)
    }
}

fn definition(speed: UsbSpeed) -> DeviceDefinition {
    // The shortest interval of each kind of frame, so that the host's pace is measured and not the device's.
    let (interval, isochronous_bytes) = match speed.has_microframes() {
        true => (Duration::from_micros(125), 1024),
        // Full speed allows 1023 (USB 2.0 §5.6.3) but 1023-byte packets leave no time for bulk.
        false => (Duration::from_millis(1), 256),
    };
    let (endpoint_in, endpoint_out) = (TransferDirection::In, TransferDirection::Out);
    DeviceDefinition::new(0x0525, 0xa4a0).speed(speed).names("farbus", "source/sink", "0").interface(
        InterfaceDefinition::vendor()
            .bulk_pair(1)
            .interrupt(2, endpoint_in, 64, interval)
            .interrupt(2, endpoint_out, 64, interval)
            .isochronous(3, endpoint_in, isochronous_bytes, interval)
            .isochronous(3, endpoint_out, isochronous_bytes, interval),
    )
}

impl SourceSink {
    fn unit(&self, endpoint: EpAddr) -> &'static [u8] {
        match (self.fill, self.packet_bytes[endpoint.index()]) {
            (SourcePattern::Zeros, _) => &ZEROS,
            (SourcePattern::Mod63, 1024) => &MOD63_1024,
            (SourcePattern::Mod63, 512) => &MOD63_512,
            (SourcePattern::Mod63, 256) => &MOD63_256,
            (SourcePattern::Mod63, _) => &MOD63_64,
        }
    }
}

impl GadgetFunction for SourceSink {
    fn send(&mut self, endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        InTransferAnswer::Data(Payload::pattern(self.unit(endpoint), room))
    }

    fn receive(&mut self, endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if self.verify && *payload != Payload::pattern(self.unit(endpoint), payload.len()) {
            return OutTransferAnswer::Stall;
        }
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        match setup.request {
            REQUEST_WRITE => {
                self.remembered.clear();
                self.remembered.extend_from_slice(data);
                ControlTransferAnswer::Ack
            }
            REQUEST_READ => ControlTransferAnswer::Data(self.remembered.as_slice().into()),
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn selected(&mut self, selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        self.packet_bytes = [0; 32];
        for endpoint in selection.endpoints().filter(|e| e.kind != TransferType::Control) {
            self.packet_bytes[endpoint.address.index()] = endpoint.packet_bytes_max;
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.remembered.clear();
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.remembered.clone())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        self.remembered = state.to_vec();
        Some(())
    }
}

/// Long enough that a large transfer has few pieces, short enough to stay in the first-level cache during a send.
const UNIT_BYTES: usize = 32 << 10;

static ZEROS: [u8; UNIT_BYTES] = [0; UNIT_BYTES];
static MOD63_64: [u8; UNIT_BYTES] = mod63(64);
static MOD63_256: [u8; UNIT_BYTES] = mod63(256);
static MOD63_512: [u8; UNIT_BYTES] = mod63(512);
static MOD63_1024: [u8; UNIT_BYTES] = mod63(1024);

const fn mod63(packet_bytes: usize) -> [u8; UNIT_BYTES] {
    let mut unit = [0; UNIT_BYTES];
    let mut at = 0;
    while at < UNIT_BYTES {
        unit[at] = (at % packet_bytes % 63) as u8;
        at += 1;
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, IsoPacket, Urb, UrbId, UrbStatus};

    fn ready(fill: SourcePattern) -> (EmulatedDevice<SourceSink>, CompletionQueue) {
        let mut device = SourceSink::device(UsbSpeed::High, fill, true);
        let mut done = CompletionQueue::new(BufferPool::new(1 << 20));
        let setup = SetupPacket::set_configuration(1);
        device.submit(Instant::ZERO, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Ok);
        (device, done)
    }

    #[test]
    fn bulk_moves_at_once_and_is_verified() {
        let (mut device, mut done) = ready(SourcePattern::Mod63);
        let (source, sink) = (EpAddr::from_byte(0x81), EpAddr::from_byte(0x01));
        device.submit(Instant::ZERO, Urb::data_in(UrbId(1), source, 100_000).launch(), &mut done);
        let sent = done.pop().unwrap();
        assert_eq!(sent.payload.len(), 100_000);
        device.submit(Instant::ZERO, Urb::data_out(UrbId(2), sink, sent.payload).launch(), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Ok);
        device.submit(Instant::ZERO, Urb::data_out(UrbId(3), sink, vec![9; 64].into()).launch(), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Stall);
    }

    #[test]
    fn isochronous_keeps_the_bus_pace() {
        let (mut device, mut done) = ready(SourcePattern::Zeros);
        for id in 1..=3 {
            let mut urb = Urb::data_in(UrbId(id), EpAddr::from_byte(0x83), 8 * 1024);
            urb.iso = (0..8).map(|n| IsoPacket { offset: n * 1024, length: 1024, ..IsoPacket::default() }).collect();
            device.submit(Instant::ZERO, urb.launch(), &mut done);
        }
        let mut times = Vec::new();
        while let Some(at) = device.poll_timeout() {
            device.handle_timeout(at, &mut done);
            let urb = done.pop().expect("a due packet is delivered");
            assert_eq!((urb.actual, urb.iso.len(), urb.error_count), (8 * 1024, 8, 0));
            times.push(at.as_nanos());
        }
        assert_eq!(times, [1_000_000, 2_000_000, 3_000_000], "8 packets of 125 us are 1 ms (U8)");
    }

    #[test]
    fn interrupt_is_polled_at_its_interval_and_cancelled_in_between() {
        let (mut device, mut done) = ready(SourcePattern::Zeros);
        let endpoint = EpAddr::from_byte(0x82);
        let now = Instant::from_nanos(1000);
        for id in 1..=3 {
            device.submit(now, Urb::data_in(UrbId(id), endpoint, 64).launch(), &mut done);
        }
        assert_eq!(done.pop().unwrap().id, UrbId(1));
        assert!(done.is_empty());
        device.cancel(now, UrbId(2), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Cancelled);
        assert_eq!(device.poll_timeout(), Some(now + Duration::from_micros(125)));
        device.handle_timeout(now + Duration::from_micros(125), &mut done);
        assert_eq!(done.pop().unwrap().id, UrbId(3));
        assert_eq!(device.poll_timeout(), None);
    }

    #[test]
    fn usbtest_reads_back_the_bytes_it_wrote_by_control_request() {
        let (mut device, mut done) = ready(SourcePattern::Zeros);
        let mut setup = SetupPacket { request_type: 0x40, request: REQUEST_WRITE, value: 0, index: 0, length: 3 };
        device.submit(Instant::ZERO, Urb::control(UrbId(1), setup, vec![7, 8, 9].into()).launch(), &mut done);
        assert_eq!(done.pop().unwrap().actual, 3);
        setup = SetupPacket { request_type: 0xc0, request: REQUEST_READ, ..setup };
        device.submit(Instant::ZERO, Urb::control(UrbId(2), setup, Payload::Empty).launch(), &mut done);
        assert_eq!(done.pop().unwrap().payload.into_vec(), [7, 8, 9]);
    }

    #[test]
    fn a_halt_is_set_reported_and_cleared() {
        let (mut device, mut done) = ready(SourcePattern::Zeros);
        let endpoint = EpAddr::from_byte(0x81);
        let halt =
            SetupPacket { request: farbus_model::usb::request::SET_FEATURE, ..SetupPacket::clear_halt(endpoint) };
        let mut ask = |setup: SetupPacket, done: &mut CompletionQueue| {
            device.submit(Instant::ZERO, Urb::control(UrbId(1), setup, Payload::Empty).launch(), done);
            device.submit(Instant::ZERO, Urb::data_in(UrbId(2), endpoint, 8).launch(), done);
            (done.pop().unwrap().status, done.pop().unwrap().status)
        };
        assert_eq!(ask(halt, &mut done), (UrbStatus::Ok, UrbStatus::Stall));
        assert_eq!(ask(SetupPacket::clear_halt(endpoint), &mut done), (UrbStatus::Ok, UrbStatus::Ok));
    }
}
