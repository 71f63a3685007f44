//! A bridge between two hosts: a device with two ends, each a USB device of its own, attached by a different host. R3.
//!
//! An end has two functions. One is a network adapter: frames that one host sends reach the other, and its connection
//! is up while the other host has its adapter on. It follows the Network Control Model (NCM 1.0) and not the older
//! Ethernet one, which Linux supports as well: Windows has a driver for NCM only, and many frames travel in one
//! transfer, which matters when each transfer costs a round trip. The other function is a pair of bulk endpoints
//! without a class, for tuned pipes and programs that need no network stack: a transfer that one host sends is one that
//! the other receives, in as many pieces as it asks for.
//!
//! | the other host | a frame | a raw transfer |
//! |---|---|---|
//! | reads | passes | passes |
//! | does not read, and the lane is full | waits | waits |
//! | has the function off | is lost and counted, as on an unplugged cable | waits |
//! | turns the function off, or leaves | waiting frames are lost | waiting transfers are lost |

mod ntb;
mod side;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{
    DeviceDefinition, EpAddr, NamedCounters, Payload, ReadinessSource, SetupPacket, TransferDirection, UsbSpeed,
};

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::lane::{GadgetWaker, TransferQueueReader, TransferQueueWriter, lane};
use crate::saved::{SavedStateReader, SavedStateWriter};
pub use ntb::{FRAME_BYTES_MAX, FRAMES_MAX, NTB_BYTES_MAX, NTB_BYTES_MIN};
use side::BridgeEndState;

/// Frames under way to one end: 16 of the longest blocks. A host that takes 100 MB/s is then 3 ms behind.
const FRAMES_BYTES_MAX: usize = 16 * NTB_BYTES_MAX;
/// Raw bytes under way to one end, beyond which no more are taken; a transfer that was begun is taken as a whole.
const RAW_BYTES_MAX: usize = 256 << 10;

/// Interfaces: the network's control and data, and the raw pair.
const CONTROL: u8 = 0;
const DATA: u8 = 1;
/// The raw pair's interface, and the number of its endpoints.
pub const RAW_INTERFACE: u8 = 2;
/// Endpoint numbers of the network: interrupt IN for notifications, bulk IN and OUT for frames.
const NOTIFICATION: u8 = 1;
const FRAMES: u8 = 2;
/// The raw pair: IN and OUT of this number.
pub const RAW: u8 = 3;

/// The index of the string with the host's MAC address, after manufacturer, product and serial number.
const ADDRESS_STRING: u8 = 4;

/// NCM 1.0 table 6-2, CDC 1.2 table 19.
const SET_PACKET_FILTER: u8 = 0x43;
const GET_NTB_PARAMETERS: u8 = 0x80;
const GET_NTB_INPUT_SIZE: u8 = 0x85;
const SET_NTB_INPUT_SIZE: u8 = 0x86;
/// Notifications (CDC 1.2 table 20).
const NETWORK_CONNECTION: u8 = 0x00;
const SPEED_CHANGE: u8 = 0x2a;

/// The counters of an end, for what its host sent.
const COUNTED: [&str; 6] = ["frames", "frames_lost", "blocks_refused", "raw_transfers", "raw_bytes", "link_changes"];
const SENT: usize = 0;
const LOST: usize = 1;
const REFUSED: usize = 2;
const RAW_TRANSFERS: usize = 3;
const RAW_BYTES: usize = 4;
const LINK_CHANGES: usize = 5;

/// The settings of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The speed of both ends.
    pub speed: UsbSpeed,
    /// The text from which addresses and serial numbers are derived; without it, the share that offers the bridge
    /// chooses one.
    pub identity: Option<String>,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self { speed: UsbSpeed::High, identity: None }
    }
}

/// Reads settings separated by commas: `speed=full`, `speed=high`, `speed=super` and `id=TEXT`.
impl FromStr for BridgeSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("speed", "full")) => settings.speed = UsbSpeed::Full,
                Some(("speed", "high")) => settings.speed = UsbSpeed::High,
                Some(("speed", "super")) => settings.speed = UsbSpeed::Super,
                Some(("id", id)) if !id.is_empty() => settings.identity = Some(id.to_owned()),
                _ => {
                    return Err(format!(
                        "bridge has no option '{word}': there are speed=full, high or super, and id=TEXT"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

/// The MAC address of the adapter at an end, 0 or 1: locally administered (IEEE 802 §8.4: bit 1 of the first byte),
/// unicast (bit 0 is not set), and the same for the same identity.
pub fn address_of(identity: &str, end: u8) -> [u8; 6] {
    let [_, first, rest @ .., last] = digest(identity).to_be_bytes();
    let [b, c, d, e, _] = [rest[0], rest[1], rest[2], rest[3], rest[4]];
    [first & !0b11 | 0b10, b, c, d, e, last & !1 | end & 1]
}

/// FNV-1a, 64 bits: not secure, which does not matter, as the identity's author chooses the address anyway.
fn digest(identity: &str) -> u64 {
    identity.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Both ends of a bridge of this `identity`, each with the bell of the thread that will serve it.
pub fn pair(speed: UsbSpeed, identity: &str, bells: [GadgetWaker; 2]) -> [EmulatedDevice<BridgeEnd>; 2] {
    let [a, b] = bells.map(|bell| Arc::new(BridgeEndState::new(bell, NTB_BYTES_MAX as u32)));
    let (frames_to_b, frames_of_a) = lane(FRAMES_BYTES_MAX);
    let (frames_to_a, frames_of_b) = lane(FRAMES_BYTES_MAX);
    let (raw_to_b, raw_of_a) = lane(RAW_BYTES_MAX);
    let (raw_to_a, raw_of_b) = lane(RAW_BYTES_MAX);
    let ways_of_a = BridgeQueues { frames: frames_to_b, frames_in: frames_of_b, raw: raw_to_b, raw_in: raw_of_b };
    let ways_of_b = BridgeQueues { frames: frames_to_a, frames_in: frames_of_a, raw: raw_to_a, raw_in: raw_of_a };
    [
        EmulatedDevice::new(
            &definition(speed, identity, 0),
            BridgeEnd::new(speed, Arc::clone(&a), Arc::clone(&b), ways_of_a),
        ),
        EmulatedDevice::new(&definition(speed, identity, 1), BridgeEnd::new(speed, b, a, ways_of_b)),
    ]
}

fn definition(speed: UsbSpeed, identity: &str, end: u8) -> DeviceDefinition {
    let address = address_of(identity, end).map(|byte| format!("{byte:02X}")).concat();
    let (product, letter) = if end == 0 { ("bridge, end A", 'A') } else { ("bridge, end B", 'B') };
    let [low, high] = (FRAME_BYTES_MAX as u16).to_le_bytes();
    // CDC 1.2 §5.2.3: header, union of interfaces 0 and 1, Ethernet (no statistics, filters or wake-up), NCM 1.0
    // (packet filter).
    let functional = [
        &[5, 0x24, 0, 0x20, 1][..],
        &[5, 0x24, 6, CONTROL, DATA],
        &[13, 0x24, 0x0f, ADDRESS_STRING, 0, 0, 0, 0, low, high, 0, 0, 0],
        &[6, 0x24, 0x1a, 0, 1, 1],
    ];
    let control = InterfaceDefinition::new(2, 0x0d, 0).associated(2).class_descriptors(&functional.concat()).interrupt(
        NOTIFICATION,
        TransferDirection::In,
        NOTIFICATION_BYTES_MAX as u16,
        Duration::from_millis(32),
    );
    DeviceDefinition::new(0x0525, 0xa4a1)
        .speed(speed)
        // Several functions, associated (interface association, USB 2.0 ECN).
        .class(0xef, 2, 1)
        .names("farbus", product, &format!("{:016X}{letter}", digest(identity)))
        .text(&address)
        .interface(control)
        // Data flows in the second setting (NCM 1.0 §5.3).
        .interface(InterfaceDefinition::new(10, 0, 1))
        .interface(InterfaceDefinition::new(10, 0, 1).alternate_of_previous().bulk_pair(FRAMES))
        .interface(InterfaceDefinition::vendor().bulk_pair(RAW))
}

/// The lanes, from one end's point of view.
#[derive(Debug)]
struct BridgeQueues {
    frames: TransferQueueWriter,
    frames_in: TransferQueueReader,
    raw: TransferQueueWriter,
    raw_in: TransferQueueReader,
}

/// One end of a bridge.
#[derive(Debug)]
pub struct BridgeEnd {
    speed: UsbSpeed,
    near: Arc<BridgeEndState>,
    far: Arc<BridgeEndState>,
    ways: BridgeQueues,
    /// The rest of a block or a raw transfer that its host fetches in pieces.
    rest: Payload,
    raw_rest: Payload,
    /// What the host was told about its network connection, and what it is told next.
    progress: NotificationProgress,
    /// The next block's number.
    sequence: u16,
    pointers: Vec<ntb::DatagramPointer>,
    tally: NamedCounters,
}

/// How much the host was told about its network connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotificationProgress {
    Unplugged,
    /// The speed, which comes before the connection (as Linux's own gadget has it).
    Speed,
    Plugged,
}

const NOTIFICATION_BYTES_MAX: usize = 16;

impl BridgeEnd {
    fn new(speed: UsbSpeed, near: Arc<BridgeEndState>, far: Arc<BridgeEndState>, ways: BridgeQueues) -> Self {
        Self {
            speed,
            near,
            far,
            ways,
            rest: Payload::Empty,
            raw_rest: Payload::Empty,
            progress: NotificationProgress::Unplugged,
            sequence: 0,
            pointers: Vec::with_capacity(FRAMES_MAX),
            tally: NamedCounters::new(&COUNTED),
        }
    }

    /// The next notification about the network connection, if the host does not know its state.
    fn news(&mut self) -> Option<[u8; NOTIFICATION_BYTES_MAX]> {
        let is_plugged = self.far.has_network();
        let head = |code, value, length| [0xa1, code, value, 0, CONTROL, 0, length, 0];
        let (head, body) = match (self.progress, is_plugged) {
            (NotificationProgress::Unplugged, true) => {
                self.progress = NotificationProgress::Speed;
                let [a, b, c, d] = bits_per_s(self.speed).to_le_bytes();
                (head(SPEED_CHANGE, 0, 8), [a, b, c, d, a, b, c, d])
            }
            (NotificationProgress::Speed, true) => {
                self.progress = NotificationProgress::Plugged;
                self.tally.count(LINK_CHANGES, 1);
                (head(NETWORK_CONNECTION, 1, 0), [0; 8])
            }
            (NotificationProgress::Speed | NotificationProgress::Plugged, false) => {
                self.progress = NotificationProgress::Unplugged;
                self.tally.count(LINK_CHANGES, 1);
                (head(NETWORK_CONNECTION, 0, 0), [0; 8])
            }
            (NotificationProgress::Unplugged, false) | (NotificationProgress::Plugged, true) => return None,
        };
        let mut notification = [0; NOTIFICATION_BYTES_MAX];
        notification[..8].copy_from_slice(&head);
        notification[8..].copy_from_slice(&body);
        Some(notification)
    }

    /// Passes the frames of a block on, in blocks that the other host accepts.
    fn send_frames(&mut self, block: &[u8]) {
        if ntb::read(block, &mut self.pointers).is_err() {
            self.tally.count(REFUSED, 1);
            return;
        }
        if !self.far.has_network() {
            self.tally.count(LOST, self.pointers.len() as u64);
            return;
        }
        let bytes_max = self.far.block_bytes_max() as usize;
        let mut writer = ntb::NtbWriter::new(bytes_max);
        for at in 0..self.pointers.len() {
            let frame = self.pointers[at].of(block);
            if !writer.push(frame) {
                let full = std::mem::replace(&mut writer, ntb::NtbWriter::new(bytes_max));
                self.put(full);
                assert!(writer.push(frame), "the shortest block has room for the longest frame");
            }
        }
        if !writer.is_empty() {
            self.put(writer);
        }
    }

    fn put(&mut self, writer: ntb::NtbWriter) {
        let count = writer.len() as u64;
        let is_put = self.ways.frames.put(writer.finish(self.sequence), self.far.bell()).is_ok();
        self.sequence = self.sequence.wrapping_add(1);
        self.tally.count(if is_put { SENT } else { LOST }, count);
    }

    fn forget_frames(&mut self) {
        self.rest = Payload::Empty;
        self.ways.frames_in.clear(self.far.bell());
    }

    fn forget_raw(&mut self) {
        self.raw_rest = Payload::Empty;
        self.ways.raw_in.clear(self.far.bell());
    }

    /// Updates the state that the other end sees.
    fn show(&mut self, has_network: bool, is_configured: bool) {
        if self.near.set(has_network, is_configured) {
            (self.far.bell().ring)();
        }
    }
}

/// As many bytes of `rest`, or of the next data, as there is space for.
fn piece(rest: &mut Payload, room: usize, next: impl FnOnce() -> Option<Vec<u8>>) -> InTransferAnswer {
    if rest.is_empty() {
        match next() {
            Some(transfer) => *rest = transfer.into(),
            None => return InTransferAnswer::Nak,
        }
    }
    InTransferAnswer::Data(rest.split_front(room))
}

impl GadgetFunction for BridgeEnd {
    fn send(&mut self, endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let (ways, far) = (&self.ways, self.far.bell());
        match endpoint.number() {
            FRAMES => piece(&mut self.rest, room, || ways.frames_in.take(far)),
            RAW => piece(&mut self.raw_rest, room, || ways.raw_in.take(far)),
            _ => match self.news() {
                // Only the notification of a speed change has a body; the eight bytes of the head give its length.
                Some(news) => InTransferAnswer::Data(news[..room.min(8 + usize::from(news[6]))].into()),
                None => InTransferAnswer::Nak,
            },
        }
    }

    fn receive(&mut self, endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if endpoint.number() == FRAMES {
            // Without a host at the other end the lane does not empty, and frames are dropped there anyway.
            if self.far.has_network() && self.ways.frames.is_full() {
                return OutTransferAnswer::Nak;
            }
            self.send_frames(&payload.contiguous());
            return OutTransferAnswer::Accepted;
        }
        if !self.far.is_configured() || self.ways.raw.is_full() {
            return OutTransferAnswer::Nak;
        }
        let bytes = payload.contiguous().into_owned();
        let count = bytes.len() as u64;
        if self.ways.raw.put(bytes, self.far.bell()).is_err() {
            return OutTransferAnswer::Nak;
        }
        self.tally.count(RAW_TRANSFERS, 1);
        self.tally.count(RAW_BYTES, count);
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let to = (setup.kind(), setup.recipient(), setup.index);
        if to != (RequestKind::Class, RequestRecipient::Interface, u16::from(CONTROL)) {
            return ControlTransferAnswer::Stall;
        }
        match (setup.request, setup.direction()) {
            (GET_NTB_PARAMETERS, TransferDirection::In) => ControlTransferAnswer::Data(parameters().into()),
            (GET_NTB_INPUT_SIZE, TransferDirection::In) => {
                ControlTransferAnswer::Data(self.near.block_bytes_max().to_le_bytes().as_slice().into())
            }
            (SET_NTB_INPUT_SIZE, TransferDirection::Out) => {
                // A host that read these parameters sends four bytes; eight are for hosts that may limit the number of
                // frames, too (§6.2.7).
                let Some(bytes) = data.try_into().ok().map(u32::from_le_bytes) else {
                    return ControlTransferAnswer::Stall;
                };
                if !(NTB_BYTES_MIN as u32..=NTB_BYTES_MAX as u32).contains(&bytes) {
                    return ControlTransferAnswer::Stall;
                }
                self.near.set_block_bytes_max(bytes);
                ControlTransferAnswer::Ack
            }
            // The host filters frames itself: the connection only carries frames for the host at this end.
            (SET_PACKET_FILTER, TransferDirection::Out) => ControlTransferAnswer::Ack,
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn selected(&mut self, selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        let is_configured = selection.configuration() != 0;
        let has_network = is_configured && selection.alternate(DATA) == 1;
        // A driver starts with its adapter's data off, and is told about the connection again (NCM 1.0 §7.2).
        if has_network != self.near.has_network() || !has_network {
            self.progress = NotificationProgress::Unplugged;
            self.sequence = 0;
            self.forget_frames();
        }
        if !has_network {
            self.near.set_block_bytes_max(NTB_BYTES_MAX as u32);
        }
        if is_configured != self.near.is_configured() {
            self.forget_raw();
        }
        self.show(has_network, is_configured);
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.show(false, false);
        self.progress = NotificationProgress::Unplugged;
        self.sequence = 0;
        self.near.set_block_bytes_max(NTB_BYTES_MAX as u32);
        self.forget_frames();
        self.forget_raw();
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.near.bell().readiness)
    }

    fn handle_ready(&mut self, _cx: &mut FunctionContext<'_>) {
        (self.near.bell().hush)();
    }

    fn tally(&self) -> Option<NamedCounters> {
        Some(self.tally.clone())
    }

    /// Data that waits for this end is saved; what the other end sends from now on waits there. The state of the other
    /// end is saved too: if this end continues first, its connection must not go down for that moment.
    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        to.u8(u8::from(self.far.has_network()) | u8::from(self.far.is_configured()) << 1);
        to.u32(self.far.block_bytes_max());
        to.u8(self.progress as u8);
        to.u32(self.sequence.into());
        to.u32(self.near.block_bytes_max());
        for (rest, held) in [(&self.rest, self.ways.frames_in.hold()), (&self.raw_rest, self.ways.raw_in.hold())] {
            to.bytes(&rest.contiguous());
            to.u32(held.len() as u32);
            held.iter().for_each(|transfer| to.bytes(transfer));
        }
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let (far_is, far_block_bytes_max) = (from.u8()?, from.u32()?);
        let progress = *[NotificationProgress::Unplugged, NotificationProgress::Speed, NotificationProgress::Plugged]
            .get(usize::from(from.u8()?))?;
        let sequence = u16::try_from(from.u32()?).ok()?;
        let block_bytes_max = from.u32()?;
        let allowed = NTB_BYTES_MIN as u32..=NTB_BYTES_MAX as u32;
        let is_allowed = allowed.contains(&block_bytes_max) && allowed.contains(&far_block_bytes_max) && far_is <= 3;
        let mut ways = [(); 2].map(|()| {
            let rest = from.bytes()?.to_vec();
            // Each takes at least the four bytes of its length.
            let held = (0..from.u32()?).map(|_| from.bytes().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()?;
            Some((rest, held))
        });
        let [frames, raw] = [ways[0].take()?, ways[1].take()?];
        from.end()?;
        if !is_allowed {
            return None;
        }
        (self.progress, self.sequence) = (progress, sequence);
        self.near.set_block_bytes_max(block_bytes_max);
        (self.rest, self.raw_rest) = (frames.0.into(), raw.0.into());
        self.ways.frames_in.restore(frames.1);
        self.ways.raw_in.restore(raw.1);
        if !self.far.is_configured() {
            self.far.set(far_is & 1 != 0, far_is & 2 != 0);
            self.far.set_block_bytes_max(far_block_bytes_max);
        }
        Some(())
    }
}

/// NCM 1.0 table 6-3.
fn parameters() -> Vec<u8> {
    let align = ntb::ALIGNMENT as u16;
    let longest = (NTB_BYTES_MAX as u32).to_le_bytes();
    let words = |words: &[u16]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    [
        // Its own length; blocks of 16 bits.
        words(&[28, 1]),
        longest.to_vec(),
        // Received data: the payload after an Ethernet header of 14 bytes is at 2 above a multiple of 4; tables are
        // aligned to 4. Reserved.
        words(&[align, 2, align, 0]),
        longest.to_vec(),
        // The same alignment is asked for sent data, and at most this many frames in a block.
        words(&[align, 2, align, FRAMES_MAX as u16]),
    ]
    .concat()
}

/// What a bus of that speed carries in bulk packets (USB 2.0 tables 5-9 and 5-10; USB 3.2: 5 GT/s less its line code):
/// not a guarantee, but hosts like to show a number.
fn bits_per_s(speed: UsbSpeed) -> u32 {
    match speed {
        UsbSpeed::Low | UsbSpeed::Full => 19 * 64 * 8 * 1000,
        UsbSpeed::High => 13 * 512 * 8 * 8000,
        UsbSpeed::Super | UsbSpeed::SuperPlus => 4_000_000_000,
    }
}

#[cfg(test)]
mod tests;
