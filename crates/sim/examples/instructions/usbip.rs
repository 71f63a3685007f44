//! The exporter's end of a USB/IP connection, with a client that is a few bytes.

use farbus_gadgets::emulated::EmulatedDevice;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{Instant, SessionLimits, UsbSpeed};
use farbus_session::{DeviceRecord, ExportOffers, Exporter, OpStatus, PortResetPolicy, SendSlices};

use crate::CountedScenario;

const DEVICE_NUMBER: u32 = 0x0001_0002;
/// Bytes of a USB/IP header (include/uapi/linux/usbip.h).
const HEADER_BYTES: usize = 48;
/// Where a header has the request's number.
const NUMBER_AT: usize = 4;

/// Nothing is offered: the device is imported already.
struct NoOffers;

impl<D> ExportOffers<D> for NoOffers {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NoDevice)
    }
}

struct UsbipScenario {
    exporter: Exporter<EmulatedDevice<SourceSink>>,
    /// The commands of one round.
    commands: Vec<u8>,
    /// Bytes of their answers.
    answer_bytes: usize,
    number: u32,
}

/// Reads of a bulk endpoint, `depth` at a time, each of `length` bytes.
pub fn exporter(length: u32, depth: u32) -> Box<dyn CountedScenario> {
    let device = SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, false);
    let exporter =
        Exporter::imported(Instant::ZERO, SessionLimits::DEFAULT, DEVICE_NUMBER, device, PortResetPolicy::ResetDevice);
    let set_configuration = command([0, 0], 0, [0, 9, 1, 0, 0, 0, 0, 0]);
    let mut scenario =
        UsbipScenario { exporter, commands: set_configuration.into(), answer_bytes: HEADER_BYTES, number: 1 };
    scenario.round();
    scenario.commands = command([1, 1], length, [0; 8]).repeat(depth as usize);
    scenario.answer_bytes = (HEADER_BYTES + length as usize) * depth as usize;
    Box::new(scenario)
}

/// A CMD_SUBMIT for a direction (1: in) and an endpoint.
fn command([direction, endpoint]: [u32; 2], length: u32, setup: [u8; 8]) -> [u8; HEADER_BYTES] {
    let words = [1, 0, DEVICE_NUMBER, direction, endpoint, 0, length, 0, 0, 0];
    let mut bytes = [0; HEADER_BYTES];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&u32::to_be_bytes(word));
    }
    bytes[HEADER_BYTES - setup.len()..].copy_from_slice(&setup);
    bytes
}

impl CountedScenario for UsbipScenario {
    fn round(&mut self) -> u32 {
        let first = self.number;
        for command in self.commands.chunks_exact_mut(HEADER_BYTES) {
            command[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&self.number.to_be_bytes());
            self.number += 1;
        }
        self.exporter.receive_space()[..self.commands.len()].copy_from_slice(&self.commands);
        self.exporter.handle_received(self.commands.len());
        let mut answer_bytes = 0;
        loop {
            self.exporter.advance(Instant::ZERO, &mut NoOffers).expect("a client that keeps the rules");
            if !self.exporter.has_transmit() {
                break;
            }
            let mut runs = SendSlices::new();
            self.exporter.poll_transmit_into(&mut runs);
            let taken = runs.iter().map(|run| run.len()).sum();
            drop(runs);
            self.exporter.handle_transmitted(taken);
            answer_bytes += taken;
        }
        assert_eq!(answer_bytes, self.answer_bytes, "each request is answered in full");
        self.number - first
    }
}
