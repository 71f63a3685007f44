//! A debug probe with a target: programs such as OpenOCD and pyOCD find a Cortex-M behind it (CMSIS-DAP 2.1).
//!
//! The probe has both interfaces of CMSIS-DAP: bulk endpoints (version 2), and HID reports (version 1) for programs
//! that know nothing else. Packets of one are answered there; both lead to the same target.
//!
//! | file | what it does |
//! |---|---|
//! | `command` | the commands, and what a probe does by itself |
//! | `swd` | the target's debug port and its access port to memory |
//! | `cortex_m` | memory and debug registers of a core that executes no instruction |
//!
//! The target keeps its memory when the bus is reset, as one that is powered by itself.

mod command;
mod cortex_m;
mod swd;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{DeviceDefinition, EpAddr, Payload, SetupPacket, TransferDirection};

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};
use command::{PACKETS_MAX, PRODUCT, SERIAL, SwdProbe, VENDOR};
pub use cortex_m::{MEMORY_BYTES, SRAM};

/// The longest packet of the bulk endpoints, bytes.
const BULK_BYTES_MAX: usize = 512;
/// The length of a HID report, and so the longest packet there, bytes.
const REPORT_BYTES: usize = 64;
/// Endpoint numbers: version 2, version 1.
const BULK: u8 = 1;
const REPORTS: u8 = 2;
/// The interface of version 1.
const HID: u16 = 1;
/// HID descriptors and requests (HID 1.11 §7.1, §7.2).
const DESCRIPTOR_HID: u8 = 0x21;
const DESCRIPTOR_REPORT: u8 = 0x22;
const SET_IDLE: u8 = 10;
/// A report of 64 bytes in each direction, on a page of the vendor's own: usage page 0xff00, usage 1, application
/// collection, values of 8 bits, 64 of them; input and output.
const REPORT_DESCRIPTOR: [u8; 27] = [
    0x06, 0x00, 0xff, 0x09, 0x01, 0xa1, 0x01, 0x15, 0x00, 0x26, 0xff, 0x00, 0x75, 0x08, 0x95, 0x40, 0x09, 0x01, 0x81,
    0x02, 0x95, 0x40, 0x09, 0x01, 0x91, 0x02, 0xc0,
];

/// A debug probe with its target.
#[derive(Debug)]
pub struct CmsisDap {
    probe: SwdProbe,
    bulk: DapChannel,
    reports: DapChannel,
}

/// One of the interfaces: what waits there.
#[derive(Debug, Default)]
struct DapChannel {
    /// Packets that wait for others to be executed with.
    queued: Vec<Vec<u8>>,
    answers: VecDeque<Payload>,
}

impl DapChannel {
    /// Whether another packet can be taken.
    fn has_room(&self) -> bool {
        self.queued.len() + self.answers.len() < PACKETS_MAX
    }

    /// Takes a packet: carries it out, after those that were queued.
    fn take(&mut self, packet: Vec<u8>, probe: &mut SwdProbe, bytes_max: usize, answer_bytes_min: usize) {
        let waits = SwdProbe::is_queued(&packet);
        self.queued.push(packet);
        if waits && self.has_room() {
            return;
        }
        for packet in std::mem::take(&mut self.queued) {
            if let Some(mut answer) = probe.execute(&packet, bytes_max) {
                answer.resize(answer.len().max(answer_bytes_min), 0);
                self.answers.push_back(answer.into());
            }
        }
    }

    fn save(&self, to: &mut SavedStateWriter) {
        to.u8(self.queued.len() as u8);
        self.queued.iter().for_each(|packet| to.bytes(packet));
        to.u8(self.answers.len() as u8);
        self.answers.iter().for_each(|answer| to.bytes(&answer.contiguous()));
    }

    fn restore(from: &mut SavedStateReader<'_>, bytes_max: usize) -> Option<Self> {
        let mut channel = Self::default();
        let within = |bytes: &&[u8]| (1..=bytes_max).contains(&bytes.len());
        for _ in 0..from.u8()? {
            let packet = from.bytes().filter(within).filter(|packet| SwdProbe::is_queued(packet))?;
            channel.queued.push(packet.to_vec());
        }
        for _ in 0..from.u8()? {
            channel.answers.push_back(from.bytes().filter(within)?.into());
        }
        (channel.queued.len() + channel.answers.len() <= PACKETS_MAX).then_some(channel)
    }
}

impl CmsisDap {
    /// The device, ready to be shared. Its ids are of those that pid.codes keeps for tests; programs know it by its
    /// strings.
    pub fn device() -> EmulatedDevice<Self> {
        let [low, high] = (REPORT_DESCRIPTOR.len() as u16).to_le_bytes();
        let hid = [9, DESCRIPTOR_HID, 0x11, 0x01, 0, 1, DESCRIPTOR_REPORT, low, high];
        let interval = Duration::from_millis(1);
        let definition = DeviceDefinition::new(0x1209, 0x0004)
            .names(VENDOR, PRODUCT, SERIAL)
            .interface(
                // The order of the endpoints is specified: OUT, then IN.
                InterfaceDefinition::vendor()
                    .name("CMSIS-DAP v2")
                    .bulk(BULK, TransferDirection::Out)
                    .bulk(BULK, TransferDirection::In),
            )
            .interface(
                InterfaceDefinition::new(3, 0, 0)
                    .name("CMSIS-DAP v1")
                    .class_descriptors(&hid)
                    .interrupt(REPORTS, TransferDirection::In, REPORT_BYTES as u16, interval)
                    .interrupt(REPORTS, TransferDirection::Out, REPORT_BYTES as u16, interval),
            );
        EmulatedDevice::new(&definition, Self::new())
    }

    fn new() -> Self {
        Self { probe: SwdProbe::new(), bulk: DapChannel::default(), reports: DapChannel::default() }
    }

    /// Whether a debugger has halted the target.
    pub fn is_halted(&self) -> bool {
        self.probe.target.core.is_halted()
    }

    fn channel(&mut self, endpoint: EpAddr) -> &mut DapChannel {
        if endpoint.number() == BULK { &mut self.bulk } else { &mut self.reports }
    }

    /// Forgets packets and settings of a host.
    fn begin_again(&mut self) {
        (self.bulk, self.reports) = (DapChannel::default(), DapChannel::default());
        self.probe.disconnect();
    }
}

impl GadgetFunction for CmsisDap {
    fn send(&mut self, endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let answers = &mut self.channel(endpoint).answers;
        let Some(answer) = answers.front_mut() else { return InTransferAnswer::Nak };
        let bytes = answer.split_front(room);
        if answer.is_empty() {
            answers.pop_front();
        }
        InTransferAnswer::Data(bytes)
    }

    fn receive(&mut self, endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let is_bulk = endpoint.number() == BULK;
        let (bytes_max, answer_bytes_min) = if is_bulk { (BULK_BYTES_MAX, 0) } else { (REPORT_BYTES, REPORT_BYTES) };
        if payload.len() > bytes_max {
            return OutTransferAnswer::Stall;
        }
        let channel = if is_bulk { &mut self.bulk } else { &mut self.reports };
        if !channel.has_room() {
            return OutTransferAnswer::Nak;
        }
        if !payload.is_empty() {
            channel.take(payload.contiguous().into_owned(), &mut self.probe, bytes_max, answer_bytes_min);
        }
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, _data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if setup.recipient() != RequestRecipient::Interface || setup.index != HID {
            return ControlTransferAnswer::Stall;
        }
        let [_, high] = setup.value.to_le_bytes();
        match (setup.kind(), setup.request) {
            (RequestKind::Standard, request::GET_DESCRIPTOR) if high == DESCRIPTOR_REPORT => {
                ControlTransferAnswer::Data(REPORT_DESCRIPTOR.as_slice().into())
            }
            (RequestKind::Class, SET_IDLE) => ControlTransferAnswer::Ack,
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn selected(&mut self, _selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        self.begin_again();
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.begin_again();
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        self.probe.save(&mut to);
        self.bulk.save(&mut to);
        self.reports.save(&mut to);
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let probe = SwdProbe::restore(&mut from)?;
        let bulk = DapChannel::restore(&mut from, BULK_BYTES_MAX)?;
        let reports = DapChannel::restore(&mut from, REPORT_BYTES)?;
        from.end()?;
        *self = Self { probe, bulk, reports };
        Some(())
    }
}
