//! A USB-CAN adapter of the `gs_usb` kind: set up, and its channels told apart (R7).
//!
//! The numbers are those of Linux's `drivers/net/can/usb/gs_usb.c`.

use farbus_host::{HostPort, RemoteDevice, RemoteError};
use farbus_model::{SetupPacket, TransferDirection, TransferType, UrbStatus};
use farbus_realtime::pipe::EndpointAttributes;

use super::bus::ChannelBus;
use super::codec::{ChannelCodec, MessageClass};
use super::endpoint::EndpointLayout;
use super::unfit::SetUpError;

const HOST_FORMAT: u8 = 0;
const BIT_TIMING: u8 = 1;
const MODE: u8 = 2;
const TIMING_LIMITS: u8 = 4;
const DEVICE_CONFIG: u8 = 5;
const LITTLE_ENDIAN: u32 = 0xbeef;
/// Request types: to and from an interface, vendor-specific.
const OUT: u8 = 0x41;
const IN: u8 = 0xc1;
/// The echo number of a message that is not an echo of ours.
const NOT_OURS: u32 = u32::MAX;
const OVERFLOW: u8 = 1;
/// Bytes of a message: echo number, identifier, length, channel, flags, one reserved, data.
pub const MESSAGE_BYTES: usize = 20;
/// Bits of the shortest frame on a bus, with stuffed bits: they give the highest message rate of a channel.
const FRAME_BITS_MIN: u64 = 51;
/// The highest rate of a classic CAN bus.
const BITS_PER_S_MAX: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Frames that an adapter has room for, each way, by default: 4 KiB of 64 bytes, as in the paper (section 6.2).
pub const ROOM: usize = 64;

/// A frame, as `gs_usb` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsCanFrame {
    /// Identifier and flags, as SocketCAN has them.
    pub id: u32,
    /// Bytes of data, at most 8.
    pub length: u8,
    /// The data, padded with zeros.
    pub data: [u8; 8],
}

impl GsCanFrame {
    /// The message for [`Turn::put`](super::PipeJobContext::put).
    pub fn to_message(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8] = self.length.min(8);
        bytes[12..].copy_from_slice(&self.data);
        bytes
    }

    /// Decodes a message; `None` if it has another size.
    pub fn of_message(message: &[u8]) -> Option<Self> {
        let message: &[u8; MESSAGE_BYTES] = message.try_into().ok()?;
        let id = u32::from_le_bytes([message[4], message[5], message[6], message[7]]);
        let mut data = [0; 8];
        data.copy_from_slice(&message[12..]);
        Some(Self { id, length: message[8].min(8), data })
    }
}

/// Asks `device` what it is. Channels with a rate (bits a second) are turned on with their first pipe.
///
/// # Errors
/// [`SetUpError`].
pub fn set_up<P: HostPort>(
    device: &mut RemoteDevice<P>,
    rates: &[Option<u32>],
    room: usize,
) -> Result<EndpointLayout, SetUpError> {
    let no_adapter = || SetUpError::Unfit("it is no USB-CAN adapter of the gs_usb kind".to_owned());
    let configuration = device.descriptors().configuration(device.configuration()).ok_or_else(no_adapter)?;
    let setting = configuration.settings.iter().find(|setting| {
        let has = |direction| setting.find(TransferType::Bulk, direction).is_some();
        has(TransferDirection::In) && has(TransferDirection::Out)
    });
    let setting = setting.ok_or_else(no_adapter)?;
    let of = |direction| setting.find(TransferType::Bulk, direction).map(|endpoint| endpoint.address);
    let (input, output) = (of(TransferDirection::In), of(TransferDirection::Out));
    let packet_bytes =
        setting.find(TransferType::Bulk, TransferDirection::In).map_or(512, |e| u32::from(e.packet_bytes_max));
    let (setup, data) = vendor_request(HOST_FORMAT, 1, &[LITTLE_ENDIAN]);
    device.control_out(setup, data).map_err(|error| match error {
        RemoteError::Transfer(UrbStatus::Stall) => no_adapter(),
        error => error.into(),
    })?;
    let config = ask(device, DEVICE_CONFIG, 1, 12)?;
    let channels = usize::from(*config.get(3).ok_or_else(no_adapter)?) + 1;
    if rates.len() > channels {
        return Err(SetUpError::Unfit(format!("it has {channels} channels, and {} were asked for", rates.len())));
    }
    let mut begin = vec![Vec::new(); channels];
    for (channel, rate) in rates.iter().enumerate() {
        let Some(rate) = *rate else { continue };
        let limits = ask(device, TIMING_LIMITS, channel as u16, 40)?;
        let clock = limits.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let timing = timing_of(clock.ok_or_else(no_adapter)?, rate).ok_or_else(|| {
            SetUpError::Unfit(format!("its clock divides to no bus of {rate} bit/s: 10000 to 1000000, such as 500000"))
        })?;
        begin[channel] =
            vec![vendor_request(BIT_TIMING, channel as u16, &timing), vendor_request(MODE, channel as u16, &[1, 0])];
    }
    // The device's room as whole packets: one read takes all that the device can hold.
    let read_bytes = ((room * MESSAGE_BYTES) as u32).next_multiple_of(packet_bytes.max(1));
    let messages_per_s = BITS_PER_S_MAX / FRAME_BITS_MIN * channels as u64;
    Ok(EndpointLayout {
        input,
        output,
        read_bytes,
        channels,
        codec: Box::new(GsUsb { next: 0, channels }),
        begin,
        attributes: EndpointAttributes {
            channels_max: channels as u32,
            throughput_bits_max: messages_per_s * 8 * MESSAGE_BYTES as u64 / (NS_PER_S / NS_PER_MS),
            latency_min_ns: NS_PER_MS,
            buffer_bytes_min: MESSAGE_BYTES as u64,
            buffer_bytes_max: 1 << 20,
        },
        room_in: Some(room),
        room_out: Some((room / channels).max(1)),
        buses: (0..channels).map(|channel| bus_of(rates.get(channel).copied().flatten().unwrap_or(0))).collect(),
    })
}

fn bus_of(bits_per_s: u32) -> ChannelBus {
    ChannelBus { bits_per_s, messages_per_s_max: u64::from(bits_per_s) / FRAME_BITS_MIN }
}

fn vendor_request(request: u8, channel: u16, words: &[u32]) -> (SetupPacket, Vec<u8>) {
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    (SetupPacket { request_type: OUT, request, value: channel, index: 0, length: data.len() as u16 }, data)
}

fn ask<P: HostPort>(
    device: &mut RemoteDevice<P>,
    request: u8,
    value: u16,
    length: u16,
) -> Result<Vec<u8>, RemoteError> {
    let setup = SetupPacket { request_type: IN, request, value, index: 0, length };
    device.control_in(setup).map(|payload| payload.into_vec())
}

/// Propagation, both segments, jump width and prescaler: the nearest rate that is at most 1 % off, with the sampling
/// point near 7/8.
fn timing_of(clock: u32, rate: u32) -> Option<[u32; 5]> {
    if !(10_000..=1_000_000).contains(&rate) {
        return None;
    }
    let candidates = (8..=25u32).rev().flat_map(|quanta| {
        let prescaler = (f64::from(clock) / f64::from(rate) / f64::from(quanta)).round() as u32;
        (1..=1024).contains(&prescaler).then_some((quanta, prescaler))
    });
    let error = |&(quanta, prescaler): &(u32, u32)| (clock / (quanta * prescaler)).abs_diff(rate);
    let (quanta, prescaler) = candidates.min_by_key(error).filter(|best| error(best) <= rate / 100)?;
    let after = (quanta / 8).max(1);
    let before = quanta - 1 - after;
    Some([before / 2, before - before / 2, after, 1, prescaler])
}

/// Several channels over one endpoint each way.
#[derive(Debug)]
struct GsUsb {
    next: u32,
    channels: usize,
}

impl ChannelCodec for GsUsb {
    fn message_bytes(&self) -> usize {
        MESSAGE_BYTES
    }

    fn sort(&mut self, message: &[u8]) -> MessageClass {
        let Some(number) = message.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
            return MessageClass::Unknown;
        };
        match (message.get(9), message.get(10)) {
            (Some(&channel), Some(flags)) if usize::from(channel) < self.channels => {
                let channel = usize::from(channel);
                match number {
                    NOT_OURS => MessageClass::Came { channel, has_lost: flags & OVERFLOW != 0 },
                    _ => MessageClass::WentOut { channel },
                }
            }
            _ => MessageClass::Unknown,
        }
    }

    fn address(&mut self, channel: usize, message: &mut [u8]) {
        message[..4].copy_from_slice(&self.next.to_le_bytes());
        self.next = if self.next + 1 == NOT_OURS { 0 } else { self.next + 1 };
        message[9] = channel as u8;
        message[10] = 0;
    }

    fn is_told(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_number_and_channel() {
        let mut codec = GsUsb { next: NOT_OURS - 1, channels: 5 };
        let frame = GsCanFrame { id: 0x123, length: 3, data: [1, 2, 3, 0, 0, 0, 0, 0] };
        let mut message = frame.to_message();
        codec.address(4, &mut message);
        assert_eq!((codec.sort(&message), codec.next), (MessageClass::WentOut { channel: 4 }, 0));
        assert_eq!(GsCanFrame::of_message(&message), Some(frame));
        message[..4].copy_from_slice(&NOT_OURS.to_le_bytes());
        message[10] = OVERFLOW;
        assert_eq!(codec.sort(&message), MessageClass::Came { channel: 4, has_lost: true });
        message[9] = 5;
        assert_eq!((codec.sort(&message), codec.sort(&message[..3])), (MessageClass::Unknown, MessageClass::Unknown));
    }

    #[test]
    fn a_clock_is_divided_to_the_rate_that_was_asked_for() {
        for rate in [10_000, 125_000, 250_000, 500_000, 533_333, 1_000_000] {
            let [propagation, before, after, _, prescaler] = timing_of(48_000_000, rate).unwrap();
            let quanta = 1 + propagation + before + after;
            assert!((48_000_000 / (quanta * prescaler)).abs_diff(rate) <= rate / 100, "{rate}: {quanta} {prescaler}");
        }
        assert_eq!(timing_of(48_000_000, 9_999), None);
        assert_eq!(timing_of(1_000_000, 900_000), None, "the clock is too slow");
    }
}
