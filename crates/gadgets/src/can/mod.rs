//! A USB-CAN adapter for the kernel's `gs_usb` driver, with a bus behind each channel. R7.
//!
//! All channels share one bulk endpoint each way. The device has space for received frames (4 KiB, at 64 bytes a frame,
//! as the paper's): a host that fetches too slowly loses the oldest frames, and a flag on the channel's next frame says
//! so. Frames to be sent have as much space, in equal parts; a full channel makes the endpoint wait. A frame that was
//! sent comes back, with the number that its sender gave it.
//!
//! The driver asks for one frame at a time. A host with space for more gets as many as there are.

mod bus;

use std::collections::VecDeque;
use std::str::FromStr;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{
    DeviceDefinition, EpAddr, Instant, NamedCounters, Payload, SetupPacket, TransferDirection, UsbSpeed,
};

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};
pub use bus::CanNode;
use bus::{CanBus, CanBusEvent, CanFrame, DATA_BYTES_MAX};

/// Channels of one device.
pub const CHANNELS_MAX: usize = 8;
/// Bytes of a frame on USB, without a time stamp.
pub const MESSAGE_BYTES: usize = 20;
/// Frames that the device has space for, each way.
const FRAMES_MAX: usize = 4096 / 64;
/// The number of a frame that another unit sent.
const NOT_OURS: u32 = u32::MAX;
/// Flag of a received frame: frames before it were lost.
const OVERFLOW: u8 = 1;
/// The byte order of the device, as the driver sends it.
const LITTLE_ENDIAN: u32 = 0xbeef;
/// Its clock, Hz.
const CLOCK_HZ: u32 = 48_000_000;
/// Loop-back: a channel receives its own frames only.
const LOOP_BACK: u32 = 1 << 1;
/// The bit rate of a channel that was not set, bits a second.
const USUAL_RATE: u32 = 500_000;
const DATA: u8 = 1;

const HOST_FORMAT: u8 = 0;
const BIT_TIMING: u8 = 1;
const MODE: u8 = 2;
const TIMING_LIMITS: u8 = 4;
const DEVICE_CONFIG: u8 = 5;

/// The counters of [`CanAdapter`], for each channel.
const COUNTED: [&str; 3 * CHANNELS_MAX] = [
    "can0_in",
    "can0_out",
    "can0_overruns",
    "can1_in",
    "can1_out",
    "can1_overruns",
    "can2_in",
    "can2_out",
    "can2_overruns",
    "can3_in",
    "can3_out",
    "can3_overruns",
    "can4_in",
    "can4_out",
    "can4_overruns",
    "can5_in",
    "can5_out",
    "can5_overruns",
    "can6_in",
    "can6_out",
    "can6_overruns",
    "can7_in",
    "can7_out",
    "can7_overruns",
];
const IN: usize = 0;
const OUT: usize = 1;
const OVERRUNS: usize = 2;

/// Its channels, and the units on their buses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanSettings {
    /// For each channel, the unit that sends by itself.
    pub units: Vec<Option<CanNode>>,
}

impl CanSettings {
    /// The buses of the paper's Table 7.
    pub fn paper() -> Self {
        let unit = |(percent, is_extended)| Some(CanNode { percent, is_extended });
        Self { units: [(10, false), (20, true), (30, false), (40, true), (69, false)].map(unit).to_vec() }
    }
}

/// `channels=5` and `traffic=10/20x/30/40x/69`: per cent of each bus, `x` for long identifiers, 0 for silence.
impl FromStr for CanSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut channels, mut units) = (None, Vec::new());
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("channels", count)) => {
                    let parsed = count.parse().ok().filter(|count| (1..=CHANNELS_MAX).contains(count));
                    channels = Some(parsed.ok_or(format!("there are 1 to {CHANNELS_MAX} channels, not '{count}'"))?);
                }
                Some(("traffic", "paper")) => units = CanSettings::paper().units,
                Some(("traffic", shares)) => units = shares.split('/').map(unit_from).collect::<Result<_, _>>()?,
                _ => return Err(format!("can has no option '{word}': there are channels= and traffic=")),
            }
        }
        let channels = channels.unwrap_or(units.len().max(1));
        if units.len() > channels || channels > CHANNELS_MAX {
            return Err(format!("traffic for {} buses, of {} at most", units.len(), channels.min(CHANNELS_MAX)));
        }
        units.resize(channels, None);
        Ok(Self { units })
    }
}

fn unit_from(share: &str) -> Result<Option<CanNode>, String> {
    let (percent, is_extended) = share.strip_suffix('x').map_or((share, false), |percent| (percent, true));
    match percent.parse() {
        Ok(0) => Ok(None),
        Ok(percent @ 1..=100) => Ok(Some(CanNode { percent, is_extended })),
        _ => Err(format!("'{share}' is no share of a bus: 0 to 100 per cent, with an x for long identifiers")),
    }
}

/// A CAN adapter that speaks the protocol of the kernel's `gs_usb` driver.
#[derive(Debug)]
pub struct CanAdapter {
    channels: Vec<CanChannel>,
    /// Frames to be fetched: those that were sent, which must not be lost, and those that were received.
    echoes: VecDeque<GsHostFrame>,
    received: VecDeque<GsHostFrame>,
    sending_max: usize,
    tally: NamedCounters,
}

#[derive(Debug)]
struct CanChannel {
    unit: Option<CanNode>,
    bits_per_s: u32,
    loops: bool,
    /// Present while the channel is on.
    bus: Option<CanBus>,
    /// Frames that its unit has sent on earlier buses.
    counted: u64,
    has_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct GsHostFrame {
    number: u32,
    channel: u8,
    flags: u8,
    frame: CanFrame,
}

impl GsHostFrame {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frame.id.to_le_bytes());
        bytes[8..12].copy_from_slice(&[self.frame.length, self.channel, self.flags, 0]);
        bytes[12..].copy_from_slice(&self.frame.data);
        bytes
    }

    /// `None` if it is no frame of classic CAN.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [length, channel, flags, _] = word(8).to_le_bytes();
        let mut data = [0; DATA_BYTES_MAX];
        data.copy_from_slice(&bytes[12..]);
        let is_classic = usize::from(length) <= DATA_BYTES_MAX && flags & !OVERFLOW == 0;
        let frame = CanFrame { id: word(4), length, data };
        is_classic.then_some(Self { number: word(0), channel, flags, frame })
    }
}

impl CanChannel {
    fn new(unit: Option<CanNode>) -> Self {
        Self { unit, bits_per_s: USUAL_RATE, loops: false, bus: None, counted: 0, has_lost: false }
    }

    fn begin(&mut self, now: Instant, loops: bool) {
        self.stop();
        self.loops = loops;
        self.bus = Some(CanBus::new(now, self.bits_per_s, self.unit.filter(|_| !loops), self.counted));
    }

    fn stop(&mut self) {
        if let Some(bus) = self.bus.take() {
            self.counted = bus.counted();
        }
    }
}

impl CanAdapter {
    /// The device, ready to be shared.
    ///
    /// # Panics
    /// If there is no channel, or more than [`CHANNELS_MAX`]; read from text, [`CanSettings`] never have.
    pub fn device(settings: &CanSettings) -> EmulatedDevice<Self> {
        let definition = DeviceDefinition::new(0x1d50, 0x606f)
            .speed(UsbSpeed::High)
            .class(0, 0, 0)
            .names("farbus", "USB-CAN", "0")
            .interface(InterfaceDefinition::new(0xff, 0xff, 0xff).bulk_pair(DATA));
        EmulatedDevice::new(&definition, Self::new(settings))
    }

    fn new(settings: &CanSettings) -> Self {
        let count = settings.units.len();
        assert!((1..=CHANNELS_MAX).contains(&count), "{count} channels");
        Self {
            channels: settings.units.iter().map(|unit| CanChannel::new(*unit)).collect(),
            echoes: VecDeque::new(),
            received: VecDeque::with_capacity(FRAMES_MAX),
            sending_max: FRAMES_MAX / count,
            tally: NamedCounters::new(&COUNTED[..3 * count]),
        }
    }

    /// Moves the events of the buses into the device's memory.
    fn advance(&mut self, now: Instant) {
        for at in 0..self.channels.len() {
            while let Some(event) = self.channels[at].bus.as_mut().and_then(|bus| bus.poll(now)) {
                match event {
                    CanBusEvent::Heard(frame) => self.hear(at, frame),
                    CanBusEvent::Sent(number, frame) => {
                        self.tally.count(3 * at + OUT, 1);
                        self.echoes.push_back(GsHostFrame { number, channel: at as u8, flags: 0, frame });
                        if self.channels[at].loops {
                            self.hear(at, frame);
                        }
                    }
                }
            }
        }
    }

    fn hear(&mut self, at: usize, frame: CanFrame) {
        self.tally.count(3 * at + IN, 1);
        if self.received.len() == FRAMES_MAX
            && let Some(oldest) = self.received.pop_front()
        {
            let whose = usize::from(oldest.channel);
            self.tally.count(3 * whose + OVERRUNS, 1);
            self.channels[whose].has_lost = true;
        }
        self.received.push_back(GsHostFrame { number: NOT_OURS, channel: at as u8, flags: 0, frame });
    }

    fn next_message(&mut self) -> Option<GsHostFrame> {
        if let Some(echo) = self.echoes.pop_front() {
            return Some(echo);
        }
        let mut message = self.received.pop_front()?;
        if std::mem::take(&mut self.channels[usize::from(message.channel)].has_lost) {
            message.flags |= OVERFLOW;
        }
        Some(message)
    }

    /// Carries out the driver's request to a channel; `None` if it is invalid.
    fn channel_request(&mut self, setup: SetupPacket, data: &[u8], now: Instant) -> Option<ControlTransferAnswer> {
        let channel = self.channels.get_mut(usize::from(setup.value))?;
        let words: Vec<u32> =
            data.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect();
        match (setup.request, words.as_slice()) {
            (TIMING_LIMITS, _) => {
                // Features, clock, minimum and maximum of both segments, jump width, minimum, maximum and step of the
                // prescaler.
                let limits = [LOOP_BACK, CLOCK_HZ, 1, 16, 1, 8, 4, 1, 1024, 1];
                Some(ControlTransferAnswer::Data(limits.map(u32::to_le_bytes).concat().into()))
            }
            (BIT_TIMING, &[propagation, before, after, _jump, prescaler]) => {
                let quanta = 1u32.checked_add(propagation)?.checked_add(before)?.checked_add(after)?;
                let clocks = quanta.checked_mul(prescaler).filter(|clocks| (48..=48_000).contains(clocks))?;
                channel.bits_per_s = CLOCK_HZ / clocks;
                Some(ControlTransferAnswer::Ack)
            }
            (MODE, &[0, _]) => {
                channel.stop();
                Some(ControlTransferAnswer::Ack)
            }
            (MODE, &[1, flags]) if flags & !LOOP_BACK == 0 => {
                channel.begin(now, flags & LOOP_BACK != 0);
                Some(ControlTransferAnswer::Ack)
            }
            _ => None,
        }
    }
}

impl GadgetFunction for CanAdapter {
    fn send(&mut self, _endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        self.advance(cx.now);
        let waiting = self.echoes.len() + self.received.len();
        let count = waiting.min(room / MESSAGE_BYTES);
        if count == 0 {
            return if room < MESSAGE_BYTES { InTransferAnswer::Stall } else { InTransferAnswer::Nak };
        }
        let mut bytes = cx.pool.take(count * MESSAGE_BYTES);
        bytes.clear();
        let messages = std::iter::from_fn(|| self.next_message()).take(count);
        messages.for_each(|message| bytes.extend(message.to_bytes()));
        InTransferAnswer::Data(bytes.into())
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        self.advance(cx.now);
        let Some(message) = GsHostFrame::from_bytes(&payload.contiguous()) else { return OutTransferAnswer::Stall };
        let Some(channel) = self.channels.get_mut(usize::from(message.channel)) else {
            return OutTransferAnswer::Stall;
        };
        // A frame that was sent takes its space until it is fetched.
        let unfetched = self.echoes.iter().filter(|echo| echo.channel == message.channel).count();
        match &mut channel.bus {
            Some(bus) if bus.sending().len() + unfetched >= self.sending_max => OutTransferAnswer::Nak,
            Some(bus) => {
                bus.send(cx.now, message.number, message.frame);
                OutTransferAnswer::Accepted
            }
            // The frame was under way when the channel was switched off.
            None => OutTransferAnswer::Accepted,
        }
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if (setup.kind(), setup.recipient()) != (RequestKind::Vendor, RequestRecipient::Interface) {
            return ControlTransferAnswer::Stall;
        }
        self.advance(cx.now);
        match (setup.request, setup.direction()) {
            (HOST_FORMAT, TransferDirection::Out) if *data == LITTLE_ENDIAN.to_le_bytes() => ControlTransferAnswer::Ack,
            (DEVICE_CONFIG, TransferDirection::In) => {
                let last = self.channels.len() as u8 - 1;
                // Three reserved, the index of the last channel, the versions of software and hardware.
                ControlTransferAnswer::Data([0, 0, 0, last, 2, 0, 0, 0, 1, 0, 0, 0].as_slice().into())
            }
            (TIMING_LIMITS, TransferDirection::In) | (BIT_TIMING | MODE, TransferDirection::Out) => {
                self.channel_request(setup, data, cx.now).unwrap_or(ControlTransferAnswer::Stall)
            }
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        for channel in &mut self.channels {
            channel.stop();
            *channel = CanChannel { counted: channel.counted, ..CanChannel::new(channel.unit) };
        }
        self.echoes.clear();
        self.received.clear();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.channels.iter().filter_map(|channel| channel.bus.as_ref()?.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        self.advance(cx.now);
    }

    fn tally(&self) -> Option<NamedCounters> {
        Some(self.tally.clone())
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        for channel in &self.channels {
            to.u32(channel.bits_per_s);
            to.flag(channel.loops);
            to.flag(channel.has_lost);
            to.u64(channel.bus.as_ref().map_or(channel.counted, CanBus::counted));
            to.flag(channel.bus.is_some());
            let sending = channel.bus.iter().flat_map(CanBus::sending);
            let messages =
                sending.map(|(number, frame)| GsHostFrame { number, channel: 0, flags: 0, frame }.to_bytes());
            to.bytes(&messages.collect::<Vec<_>>().concat());
        }
        for waiting in [&self.echoes, &self.received] {
            to.bytes(&waiting.iter().map(|message| message.to_bytes()).collect::<Vec<_>>().concat());
        }
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let units = self.channels.iter().map(|channel| channel.unit).collect();
        let mut again = Self::new(&CanSettings { units });
        for channel in &mut again.channels {
            channel.bits_per_s = from.u32().filter(|rate| (1000..=1_000_000).contains(rate))?;
            (channel.loops, channel.has_lost) = (from.flag()?, from.flag()?);
            channel.counted = from.u64()?;
            let is_on = from.flag()?;
            let sending = messages_from(from.bytes()?, again.sending_max)?;
            if is_on {
                // Begins with the first moment at which this process looks at it.
                channel.begin(Instant::ZERO, channel.loops);
                let bus = channel.bus.as_mut()?;
                sending.iter().for_each(|message| bus.send(Instant::ZERO, message.number, message.frame));
            }
        }
        again.echoes = messages_from(from.bytes()?, FRAMES_MAX)?.into();
        again.received = messages_from(from.bytes()?, FRAMES_MAX)?.into();
        from.end()?;
        let mut all = again.echoes.iter().chain(&again.received);
        if !all.all(|message| usize::from(message.channel) < again.channels.len()) {
            return None;
        }
        again.tally = self.tally.clone();
        *self = again;
        Some(())
    }
}

fn messages_from(bytes: &[u8], count_max: usize) -> Option<Vec<GsHostFrame>> {
    let whole = bytes.len().is_multiple_of(MESSAGE_BYTES) && bytes.len() / MESSAGE_BYTES <= count_max;
    bytes.chunks_exact(MESSAGE_BYTES).map(GsHostFrame::from_bytes).collect::<Option<Vec<_>>>().filter(|_| whole)
}

#[cfg(test)]
mod tests;
