//! The bytes of usbredir 0.7: checked parsing of untrusted bytes, and encoders that cannot fail.
//!
//! A packet is a header (type, length, id), a part of fixed size that belongs to the type, and data.
//! [`RedirPacketSizes`] knows the sizes, so that a length is checked against its limit before memory is reserved for
//! it. [`RedirMessage::decode`] reads the fixed part; the connection keeps the data.

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::{EpAddr, Payload, SetupPacket, TransferDirection};

use super::info::{DeviceConnect, EpInfo, InterfaceInfo};
use super::words::{RedirCapability, RedirCapabilitySet, RedirHeaderReader, RedirRole, RedirStatus};
use crate::usbip::ProtocolViolation;

/// The packet types.
pub mod kind {
    #![allow(missing_docs, reason = "the names are the protocol's own")]
    pub const HELLO: u32 = 0;
    pub const DEVICE_CONNECT: u32 = 1;
    pub const DEVICE_DISCONNECT: u32 = 2;
    pub const RESET: u32 = 3;
    pub const INTERFACE_INFO: u32 = 4;
    pub const EP_INFO: u32 = 5;
    pub const SET_CONFIGURATION: u32 = 6;
    pub const GET_CONFIGURATION: u32 = 7;
    pub const CONFIGURATION_STATUS: u32 = 8;
    pub const SET_ALT_SETTING: u32 = 9;
    pub const GET_ALT_SETTING: u32 = 10;
    pub const ALT_SETTING_STATUS: u32 = 11;
    pub const START_ISO_STREAM: u32 = 12;
    pub const STOP_ISO_STREAM: u32 = 13;
    pub const ISO_STREAM_STATUS: u32 = 14;
    pub const START_INTERRUPT_RECEIVING: u32 = 15;
    pub const STOP_INTERRUPT_RECEIVING: u32 = 16;
    pub const INTERRUPT_RECEIVING_STATUS: u32 = 17;
    pub const ALLOC_BULK_STREAMS: u32 = 18;
    pub const FREE_BULK_STREAMS: u32 = 19;
    pub const BULK_STREAMS_STATUS: u32 = 20;
    pub const CANCEL_DATA_PACKET: u32 = 21;
    pub const FILTER_REJECT: u32 = 22;
    pub const FILTER_FILTER: u32 = 23;
    pub const DEVICE_DISCONNECT_ACK: u32 = 24;
    pub const START_BULK_RECEIVING: u32 = 25;
    pub const STOP_BULK_RECEIVING: u32 = 26;
    pub const BULK_RECEIVING_STATUS: u32 = 27;
    pub const CONTROL_PACKET: u32 = 100;
    pub const BULK_PACKET: u32 = 101;
    pub const ISO_PACKET: u32 = 102;
    pub const INTERRUPT_PACKET: u32 = 103;
    pub const BUFFERED_BULK_PACKET: u32 = 104;
}

/// Bytes of the text in a hello, NUL padded.
pub const VERSION_BYTES: usize = 64;
/// Bytes of capabilities in a hello: eight words, where one is used today.
const CAPABILITY_BYTES_MAX: usize = 32;
/// Bytes of a filter's text: a thousand rules of QEMU's.
const FILTER_BYTES_MAX: usize = 32 << 10;

/// A packet: a message and the id that pairs requests with answers.
#[derive(Clone, Debug, PartialEq)]
pub struct RedirPacket {
    /// Chosen by the usb-guest, echoed in the answer; 0 in unrequested packets. A stream's packets are counted.
    pub id: u64,
    /// The message's type and body.
    pub message: RedirMessage,
}

/// A control transfer, or its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlPacket {
    /// The endpoint's number: 0 for nearly every device.
    pub number: u8,
    /// The setup packet; in an answer its length is the number of bytes moved.
    pub setup: SetupPacket,
    /// In an answer: the outcome.
    pub outcome: RedirStatus,
    /// The data stage, in the direction of the transfer.
    pub payload: Payload,
}

/// A transfer of bulk, interrupt or isochronous data, or its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPacket {
    /// The endpoint, never the control pipe.
    pub endpoint: EpAddr,
    /// In an answer: the outcome.
    pub outcome: RedirStatus,
    /// Bytes that are sent, asked for, or in an answer moved.
    pub length: u32,
    /// Bulk: the stream, from 1; 0 elsewhere.
    pub stream: u32,
    /// The bytes, in the direction of the transfer.
    pub payload: Payload,
}

/// A message of either end.
#[derive(Clone, Debug, PartialEq)]
pub enum RedirMessage {
    /// Both, first: version and capabilities.
    Hello {
        /// A text for people.
        version: String,
        /// What the sender supports; a capability is used only where both ends have it.
        caps: RedirCapabilitySet,
    },
    /// Host: a device is there.
    DeviceConnect(DeviceConnect),
    /// Host: the device is gone.
    DeviceDisconnect,
    /// Guest: reset the device.
    Reset,
    /// Host: the device's interfaces.
    InterfaceInfo(Box<InterfaceInfo>),
    /// Host: the device's endpoints.
    EpInfo(Box<EpInfo>),
    /// Guest: select this configuration.
    SetConfiguration(u8),
    /// Guest: report the selected configuration.
    GetConfiguration,
    /// Host: the selected configuration.
    ConfigurationStatus {
        /// The outcome of the request.
        outcome: RedirStatus,
        /// The active configuration's value.
        configuration: u8,
    },
    /// Guest: select this alternate setting.
    SetAltSetting {
        /// `bInterfaceNumber` of the interface that changes.
        interface: u8,
        /// `bAlternateSetting` of the setting to select.
        alternate: u8,
    },
    /// Guest: report the selected alternate setting.
    GetAltSetting {
        /// `bInterfaceNumber` of the interface in question.
        interface: u8,
    },
    /// Host: the selected alternate setting.
    AltSettingStatus {
        /// The outcome of the request.
        outcome: RedirStatus,
        /// `bInterfaceNumber` of the interface in question.
        interface: u8,
        /// The active setting.
        alternate: u8,
    },
    /// Guest: start an isochronous stream.
    StartIsoStream {
        /// The isochronous endpoint, IN or OUT.
        endpoint: EpAddr,
        /// Packets per URB.
        packets_per_urb: u8,
        /// URBs in flight.
        urbs: u8,
    },
    /// Guest: stop the isochronous stream.
    StopIsoStream(EpAddr),
    /// Host: the stream started, stopped or failed.
    IsoStreamStatus {
        /// Stall: it was stopped, and not by the guest.
        outcome: RedirStatus,
        /// The isochronous endpoint that the stream is for.
        endpoint: EpAddr,
    },
    /// Guest: start to receive on this interrupt endpoint.
    StartInterruptReceiving(EpAddr),
    /// Guest: stop receiving.
    StopInterruptReceiving(EpAddr),
    /// Host: receiving started, stopped or failed.
    InterruptReceivingStatus {
        /// Stall: it was stopped, and not by the guest.
        outcome: RedirStatus,
        /// The interrupt IN endpoint that is received from.
        endpoint: EpAddr,
    },
    /// Guest: allocate bulk streams for these endpoints.
    AllocBulkStreams {
        /// A bit for each [place](super::info::place_of).
        endpoints: u32,
        /// How many streams.
        streams: u32,
    },
    /// Guest: free the bulk streams.
    FreeBulkStreams {
        /// A bit for each [place](super::info::place_of).
        endpoints: u32,
    },
    /// Host: the outcome of an allocation.
    BulkStreamsStatus {
        /// A bit for each [place](super::info::place_of).
        endpoints: u32,
        /// How many streams there are now; 0 for none.
        streams: u32,
        /// Success, or why the streams could not be allocated or freed.
        outcome: RedirStatus,
    },
    /// Guest: cancel the packet with this id. It is still answered.
    CancelDataPacket,
    /// Guest: this device is refused.
    FilterReject,
    /// Either: the filter rules of this end.
    FilterFilter(String),
    /// Guest: acknowledges that the device is gone, and sends it nothing more.
    DeviceDisconnectAck,
    /// Guest: start to receive bulk data ahead.
    StartBulkReceiving {
        /// The stream, or 0.
        stream: u32,
        /// Bytes of each transfer.
        bytes_per_transfer: u32,
        /// The bulk IN endpoint to receive from.
        endpoint: EpAddr,
        /// Transfers in flight.
        transfers: u8,
    },
    /// Guest: stop receiving ahead.
    StopBulkReceiving {
        /// The stream, or 0.
        stream: u32,
        /// The bulk IN endpoint that is received from.
        endpoint: EpAddr,
    },
    /// Host: receiving ahead started, stopped or failed.
    BulkReceivingStatus {
        /// The stream, or 0.
        stream: u32,
        /// The bulk IN endpoint that is received from.
        endpoint: EpAddr,
        /// Stall: it was stopped, and not by the guest.
        outcome: RedirStatus,
    },
    /// A control transfer.
    Control(ControlPacket),
    /// A bulk transfer.
    Bulk(DataPacket),
    /// One packet of an isochronous stream.
    Iso(DataPacket),
    /// An interrupt transfer.
    Interrupt(DataPacket),
    /// Host: bulk data received ahead.
    BufferedBulk(DataPacket),
}

/// The sizes of a type of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirPacketSizes {
    /// Bytes of the part that belongs to the type.
    pub fixed: usize,
    /// Most bytes of data behind it.
    pub data_max: usize,
}

impl RedirPacketSizes {
    /// The sizes of packets of this type, sent to `to`, with the common capabilities `common`.
    ///
    /// # Errors
    /// If there is no such packet, or not in this direction, or not without a missing capability.
    pub fn of(kind: u32, to: RedirRole, common: RedirCapabilitySet) -> Result<Self, ProtocolViolation> {
        let needs = match kind {
            kind::FILTER_FILTER | kind::FILTER_REJECT => Some(RedirCapability::Filter),
            kind::DEVICE_DISCONNECT_ACK => Some(RedirCapability::DeviceDisconnectAck),
            kind::ALLOC_BULK_STREAMS | kind::FREE_BULK_STREAMS | kind::BULK_STREAMS_STATUS => {
                Some(RedirCapability::BulkStreams)
            }
            kind::START_BULK_RECEIVING..=kind::BULK_RECEIVING_STATUS | kind::BUFFERED_BULK_PACKET => {
                Some(RedirCapability::BulkReceiving)
            }
            _ => None,
        };
        if needs.is_some_and(|capability| !common.has(capability)) {
            return Err(ProtocolViolation::new(
                "type",
                u64::from(kind),
                "both ends have the capability that it belongs to",
            ));
        }
        let from_either = |fixed, data_max| Some(Self { fixed, data_max });
        let from_guest = |fixed| (to == RedirRole::Host).then_some(Self { fixed, data_max: 0 });
        let from_host = |fixed| (to == RedirRole::Guest).then_some(Self { fixed, data_max: 0 });
        let word = usize::from(u16::MAX);
        let shape = match kind {
            kind::HELLO => from_either(VERSION_BYTES, CAPABILITY_BYTES_MAX),
            kind::DEVICE_CONNECT => from_host(DeviceConnect::bytes(common)),
            kind::DEVICE_DISCONNECT => from_host(0),
            kind::INTERFACE_INFO => from_host(InterfaceInfo::BYTES),
            kind::EP_INFO => from_host(EpInfo::bytes(common)),
            kind::RESET | kind::GET_CONFIGURATION => from_guest(0),
            kind::SET_CONFIGURATION | kind::GET_ALT_SETTING => from_guest(1),
            kind::CONFIGURATION_STATUS => from_host(2),
            kind::SET_ALT_SETTING => from_guest(2),
            kind::ALT_SETTING_STATUS => from_host(3),
            kind::START_ISO_STREAM => from_guest(3),
            kind::STOP_ISO_STREAM | kind::START_INTERRUPT_RECEIVING | kind::STOP_INTERRUPT_RECEIVING => from_guest(1),
            kind::ISO_STREAM_STATUS | kind::INTERRUPT_RECEIVING_STATUS => from_host(2),
            kind::ALLOC_BULK_STREAMS => from_guest(8),
            kind::FREE_BULK_STREAMS => from_guest(4),
            kind::BULK_STREAMS_STATUS => from_host(9),
            kind::CANCEL_DATA_PACKET | kind::FILTER_REJECT | kind::DEVICE_DISCONNECT_ACK => from_guest(0),
            kind::FILTER_FILTER => from_either(0, FILTER_BYTES_MAX),
            kind::START_BULK_RECEIVING => from_guest(10),
            kind::STOP_BULK_RECEIVING => from_guest(5),
            kind::BULK_RECEIVING_STATUS => from_host(6),
            kind::CONTROL_PACKET => from_either(10, word),
            kind::BULK_PACKET if common.has(RedirCapability::BulkLength32) => from_either(10, URB_BYTES_MAX as usize),
            kind::BULK_PACKET => from_either(8, word),
            kind::ISO_PACKET | kind::INTERRUPT_PACKET => from_either(4, word),
            kind::BUFFERED_BULK_PACKET => from_host(10).map(|shape| Self { data_max: URB_BYTES_MAX as usize, ..shape }),
            _ => return Err(ProtocolViolation::new("type", u64::from(kind), "there is such a packet in usbredir 0.7")),
        };
        shape.ok_or(ProtocolViolation::new("type", u64::from(kind), "a packet is sent by the end that may"))
    }
}

impl RedirMessage {
    /// The wire's type.
    pub const fn kind(&self) -> u32 {
        match self {
            RedirMessage::Hello { .. } => kind::HELLO,
            RedirMessage::DeviceConnect(_) => kind::DEVICE_CONNECT,
            RedirMessage::DeviceDisconnect => kind::DEVICE_DISCONNECT,
            RedirMessage::Reset => kind::RESET,
            RedirMessage::InterfaceInfo(_) => kind::INTERFACE_INFO,
            RedirMessage::EpInfo(_) => kind::EP_INFO,
            RedirMessage::SetConfiguration(_) => kind::SET_CONFIGURATION,
            RedirMessage::GetConfiguration => kind::GET_CONFIGURATION,
            RedirMessage::ConfigurationStatus { .. } => kind::CONFIGURATION_STATUS,
            RedirMessage::SetAltSetting { .. } => kind::SET_ALT_SETTING,
            RedirMessage::GetAltSetting { .. } => kind::GET_ALT_SETTING,
            RedirMessage::AltSettingStatus { .. } => kind::ALT_SETTING_STATUS,
            RedirMessage::StartIsoStream { .. } => kind::START_ISO_STREAM,
            RedirMessage::StopIsoStream(_) => kind::STOP_ISO_STREAM,
            RedirMessage::IsoStreamStatus { .. } => kind::ISO_STREAM_STATUS,
            RedirMessage::StartInterruptReceiving(_) => kind::START_INTERRUPT_RECEIVING,
            RedirMessage::StopInterruptReceiving(_) => kind::STOP_INTERRUPT_RECEIVING,
            RedirMessage::InterruptReceivingStatus { .. } => kind::INTERRUPT_RECEIVING_STATUS,
            RedirMessage::AllocBulkStreams { .. } => kind::ALLOC_BULK_STREAMS,
            RedirMessage::FreeBulkStreams { .. } => kind::FREE_BULK_STREAMS,
            RedirMessage::BulkStreamsStatus { .. } => kind::BULK_STREAMS_STATUS,
            RedirMessage::CancelDataPacket => kind::CANCEL_DATA_PACKET,
            RedirMessage::FilterReject => kind::FILTER_REJECT,
            RedirMessage::FilterFilter(_) => kind::FILTER_FILTER,
            RedirMessage::DeviceDisconnectAck => kind::DEVICE_DISCONNECT_ACK,
            RedirMessage::StartBulkReceiving { .. } => kind::START_BULK_RECEIVING,
            RedirMessage::StopBulkReceiving { .. } => kind::STOP_BULK_RECEIVING,
            RedirMessage::BulkReceivingStatus { .. } => kind::BULK_RECEIVING_STATUS,
            RedirMessage::Control(_) => kind::CONTROL_PACKET,
            RedirMessage::Bulk(_) => kind::BULK_PACKET,
            RedirMessage::Iso(_) => kind::ISO_PACKET,
            RedirMessage::Interrupt(_) => kind::INTERRUPT_PACKET,
            RedirMessage::BufferedBulk(_) => kind::BUFFERED_BULK_PACKET,
        }
    }

    /// Appends everything but the header and a transfer's data, which [`RedirMessage::take_payload`] has.
    pub fn encode(&self, common: RedirCapabilitySet, to: &mut Vec<u8>) {
        match self {
            RedirMessage::Hello { version, caps } => {
                put_version(to, version);
                to.extend(caps.bits().to_le_bytes());
            }
            RedirMessage::DeviceConnect(connect) => connect.encode(common, to),
            RedirMessage::InterfaceInfo(info) => info.encode(to),
            RedirMessage::EpInfo(info) => info.encode(common, to),
            RedirMessage::DeviceDisconnect
            | RedirMessage::Reset
            | RedirMessage::GetConfiguration
            | RedirMessage::CancelDataPacket
            | RedirMessage::FilterReject
            | RedirMessage::DeviceDisconnectAck => {}
            RedirMessage::SetConfiguration(configuration) => to.push(*configuration),
            RedirMessage::ConfigurationStatus { outcome, configuration } => to.extend([outcome.code(), *configuration]),
            RedirMessage::SetAltSetting { interface, alternate } => to.extend([*interface, *alternate]),
            RedirMessage::GetAltSetting { interface } => to.push(*interface),
            RedirMessage::AltSettingStatus { outcome, interface, alternate } => {
                to.extend([outcome.code(), *interface, *alternate]);
            }
            RedirMessage::StartIsoStream { endpoint, packets_per_urb, urbs } => {
                to.extend([endpoint.as_byte(), *packets_per_urb, *urbs]);
            }
            RedirMessage::StopIsoStream(endpoint)
            | RedirMessage::StartInterruptReceiving(endpoint)
            | RedirMessage::StopInterruptReceiving(endpoint) => to.push(endpoint.as_byte()),
            RedirMessage::IsoStreamStatus { outcome, endpoint }
            | RedirMessage::InterruptReceivingStatus { outcome, endpoint } => {
                to.extend([outcome.code(), endpoint.as_byte()]);
            }
            RedirMessage::AllocBulkStreams { endpoints, streams } => put_words(to, &[*endpoints, *streams]),
            RedirMessage::FreeBulkStreams { endpoints } => put_words(to, &[*endpoints]),
            RedirMessage::BulkStreamsStatus { endpoints, streams, outcome } => {
                put_words(to, &[*endpoints, *streams]);
                to.push(outcome.code());
            }
            RedirMessage::FilterFilter(rules) => {
                let bytes = &rules.as_bytes()[..rules.floor_char_boundary(FILTER_BYTES_MAX - 1)];
                to.extend(bytes);
                to.push(0);
            }
            RedirMessage::StartBulkReceiving { stream, bytes_per_transfer, endpoint, transfers } => {
                put_words(to, &[*stream, *bytes_per_transfer]);
                to.extend([endpoint.as_byte(), *transfers]);
            }
            RedirMessage::StopBulkReceiving { stream, endpoint } => {
                put_words(to, &[*stream]);
                to.push(endpoint.as_byte());
            }
            RedirMessage::BulkReceivingStatus { stream, endpoint, outcome } => {
                put_words(to, &[*stream]);
                to.extend([endpoint.as_byte(), outcome.code()]);
            }
            RedirMessage::Control(packet) => packet.encode(to),
            RedirMessage::Bulk(packet) => packet.encode_bulk(common, to),
            RedirMessage::Iso(packet) | RedirMessage::Interrupt(packet) => {
                to.extend([packet.endpoint.as_byte(), packet.outcome.code()]);
                to.extend((packet.length as u16).to_le_bytes());
            }
            RedirMessage::BufferedBulk(packet) => {
                put_words(to, &[packet.stream, packet.length]);
                to.extend([packet.endpoint.as_byte(), packet.outcome.code()]);
            }
        }
    }

    /// Takes the data of a transfer, leaving none.
    pub fn take_payload(&mut self) -> Payload {
        match self {
            RedirMessage::Control(packet) => std::mem::take(&mut packet.payload),
            RedirMessage::Bulk(packet)
            | RedirMessage::Iso(packet)
            | RedirMessage::Interrupt(packet)
            | RedirMessage::BufferedBulk(packet) => std::mem::take(&mut packet.payload),
            _ => Payload::Empty,
        }
    }

    /// Gives a transfer its data; other messages have theirs already.
    pub fn set_payload(&mut self, payload: Payload) {
        match self {
            RedirMessage::Control(packet) => packet.payload = payload,
            RedirMessage::Bulk(packet)
            | RedirMessage::Iso(packet)
            | RedirMessage::Interrupt(packet)
            | RedirMessage::BufferedBulk(packet) => packet.payload = payload,
            _ => {}
        }
    }

    /// Decodes a message of this type that was sent to `to`: `fixed` has the bytes that [`RedirPacketSizes::of`] names,
    /// `data` the rest. Checks the length of a transfer's data, and leaves the data where it is.
    ///
    /// # Errors
    /// A field outside its rule.
    pub fn decode(
        kind: u32,
        fixed: &[u8],
        data: &[u8],
        to: RedirRole,
        common: RedirCapabilitySet,
    ) -> Result<Self, ProtocolViolation> {
        let fields = &mut RedirHeaderReader(fixed);
        Ok(match kind {
            kind::HELLO => decode_hello(fixed, data)?,
            kind::DEVICE_CONNECT => RedirMessage::DeviceConnect(DeviceConnect::decode(fields, common)?),
            kind::DEVICE_DISCONNECT => RedirMessage::DeviceDisconnect,
            kind::RESET => RedirMessage::Reset,
            kind::INTERFACE_INFO => RedirMessage::InterfaceInfo(Box::new(InterfaceInfo::decode(fields)?)),
            kind::EP_INFO => RedirMessage::EpInfo(Box::new(EpInfo::decode(fields, common)?)),
            kind::SET_CONFIGURATION => RedirMessage::SetConfiguration(fields.u8()),
            kind::GET_CONFIGURATION => RedirMessage::GetConfiguration,
            kind::CONFIGURATION_STATUS => {
                RedirMessage::ConfigurationStatus { outcome: outcome(fields), configuration: fields.u8() }
            }
            kind::SET_ALT_SETTING => RedirMessage::SetAltSetting { interface: fields.u8(), alternate: fields.u8() },
            kind::GET_ALT_SETTING => RedirMessage::GetAltSetting { interface: fields.u8() },
            kind::ALT_SETTING_STATUS => RedirMessage::AltSettingStatus {
                outcome: outcome(fields),
                interface: fields.u8(),
                alternate: fields.u8(),
            },
            kind::START_ISO_STREAM => RedirMessage::StartIsoStream {
                endpoint: endpoint(fields)?,
                packets_per_urb: fields.u8(),
                urbs: fields.u8(),
            },
            kind::STOP_ISO_STREAM => RedirMessage::StopIsoStream(endpoint(fields)?),
            kind::ISO_STREAM_STATUS => {
                RedirMessage::IsoStreamStatus { outcome: outcome(fields), endpoint: endpoint(fields)? }
            }
            kind::START_INTERRUPT_RECEIVING => RedirMessage::StartInterruptReceiving(endpoint_in(fields)?),
            kind::STOP_INTERRUPT_RECEIVING => RedirMessage::StopInterruptReceiving(endpoint_in(fields)?),
            kind::INTERRUPT_RECEIVING_STATUS => {
                RedirMessage::InterruptReceivingStatus { outcome: outcome(fields), endpoint: endpoint_in(fields)? }
            }
            kind::ALLOC_BULK_STREAMS => {
                RedirMessage::AllocBulkStreams { endpoints: fields.u32(), streams: fields.u32() }
            }
            kind::FREE_BULK_STREAMS => RedirMessage::FreeBulkStreams { endpoints: fields.u32() },
            kind::BULK_STREAMS_STATUS => RedirMessage::BulkStreamsStatus {
                endpoints: fields.u32(),
                streams: fields.u32(),
                outcome: outcome(fields),
            },
            kind::CANCEL_DATA_PACKET => RedirMessage::CancelDataPacket,
            kind::FILTER_REJECT => RedirMessage::FilterReject,
            kind::FILTER_FILTER => decode_filter(data)?,
            kind::DEVICE_DISCONNECT_ACK => RedirMessage::DeviceDisconnectAck,
            kind::START_BULK_RECEIVING => decode_start_bulk(fields)?,
            kind::STOP_BULK_RECEIVING => {
                RedirMessage::StopBulkReceiving { stream: fields.u32(), endpoint: endpoint_in(fields)? }
            }
            kind::BULK_RECEIVING_STATUS => RedirMessage::BulkReceivingStatus {
                stream: fields.u32(),
                endpoint: endpoint_in(fields)?,
                outcome: outcome(fields),
            },
            kind::CONTROL_PACKET => RedirMessage::Control(ControlPacket::decode(fields, data, to)?),
            kind::BULK_PACKET => RedirMessage::Bulk(DataPacket::decode_bulk(fields, data, to, common)?),
            kind::ISO_PACKET => {
                RedirMessage::Iso(DataPacket::decode_small(fields, data, to, PacketDirections::DataOnly)?)
            }
            kind::INTERRUPT_PACKET => {
                RedirMessage::Interrupt(DataPacket::decode_small(fields, data, to, PacketDirections::Answers)?)
            }
            kind::BUFFERED_BULK_PACKET => RedirMessage::BufferedBulk(DataPacket::decode_buffered(fields, data, to)?),
            _ => return Err(ProtocolViolation::new("type", u64::from(kind), "there is such a packet in usbredir 0.7")),
        })
    }
}

/// The directions in which a kind of data packet is sent, besides that of its data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacketDirections {
    /// No other direction.
    DataOnly,
    /// To the guest, as an answer to OUT.
    Answers,
}

/// Whether a packet in this direction carries the data of a transfer in that one.
fn carries(to: RedirRole, direction: TransferDirection) -> bool {
    (to == RedirRole::Host) == (direction == TransferDirection::Out)
}

/// Checks the data against the length that the packet itself states.
fn check_data(length: u32, data: &[u8], to: RedirRole, direction: TransferDirection) -> Result<(), ProtocolViolation> {
    let expected = if carries(to, direction) { length as usize } else { 0 };
    if data.len() != expected {
        return Err(ProtocolViolation::new(
            "length",
            data.len() as u64,
            "a packet has the data of its own length, in its direction",
        ));
    }
    Ok(())
}

impl ControlPacket {
    fn encode(&self, to: &mut Vec<u8>) {
        let SetupPacket { request_type, request, value, index, length } = self.setup;
        to.extend([self.number | request_type & 0x80, request, request_type, self.outcome.code()]);
        for half in [value, index, length] {
            to.extend(half.to_le_bytes());
        }
    }

    fn decode(fields: &mut RedirHeaderReader<'_>, data: &[u8], to: RedirRole) -> Result<Self, ProtocolViolation> {
        let address = fields.u8();
        let (request, request_type) = (fields.u8(), fields.u8());
        let outcome = outcome(fields);
        let setup =
            SetupPacket { request_type, request, value: fields.u16(), index: fields.u16(), length: fields.u16() };
        if address & 0x70 != 0 || (address ^ request_type) & 0x80 != 0 {
            let rule = "a control packet's endpoint has its setup packet's direction";
            return Err(ProtocolViolation::new("endpoint", u64::from(address), rule));
        }
        check_data(u32::from(setup.length), data, to, setup.direction())?;
        Ok(Self { number: address & 0x0f, setup, outcome, payload: Payload::Empty })
    }
}

impl DataPacket {
    fn encode_bulk(&self, common: RedirCapabilitySet, to: &mut Vec<u8>) {
        to.extend([self.endpoint.as_byte(), self.outcome.code()]);
        to.extend((self.length as u16).to_le_bytes());
        to.extend(self.stream.to_le_bytes());
        if common.has(RedirCapability::BulkLength32) {
            to.extend(((self.length >> 16) as u16).to_le_bytes());
        }
    }

    fn decode_bulk(
        fields: &mut RedirHeaderReader<'_>,
        data: &[u8],
        to: RedirRole,
        common: RedirCapabilitySet,
    ) -> Result<Self, ProtocolViolation> {
        let (endpoint, outcome) = (endpoint(fields)?, outcome(fields));
        let low = u32::from(fields.u16());
        let stream = fields.u32();
        let high = if common.has(RedirCapability::BulkLength32) { u32::from(fields.u16()) } else { 0 };
        Self::checked(Self { endpoint, outcome, length: high << 16 | low, stream, payload: Payload::Empty }, data, to)
    }

    fn decode_small(
        fields: &mut RedirHeaderReader<'_>,
        data: &[u8],
        to: RedirRole,
        moves: PacketDirections,
    ) -> Result<Self, ProtocolViolation> {
        let (endpoint, outcome) = (endpoint(fields)?, outcome(fields));
        let length = u32::from(fields.u16());
        if !carries(to, endpoint.direction()) && (moves == PacketDirections::DataOnly || to == RedirRole::Host) {
            let rule = "interrupt and isochronous data is pushed, never asked for";
            return Err(ProtocolViolation::new("endpoint", u64::from(endpoint.as_byte()), rule));
        }
        Self::checked(Self { endpoint, outcome, length, stream: 0, payload: Payload::Empty }, data, to)
    }

    fn decode_buffered(
        fields: &mut RedirHeaderReader<'_>,
        data: &[u8],
        to: RedirRole,
    ) -> Result<Self, ProtocolViolation> {
        let (stream, length) = (fields.u32(), fields.u32());
        let (endpoint, outcome) = (endpoint_in(fields)?, outcome(fields));
        Self::checked(Self { endpoint, outcome, length, stream, payload: Payload::Empty }, data, to)
    }

    fn checked(packet: Self, data: &[u8], to: RedirRole) -> Result<Self, ProtocolViolation> {
        if packet.length > URB_BYTES_MAX {
            return Err(ProtocolViolation::new("length", u64::from(packet.length), "a transfer has at most 16 MiB"));
        }
        check_data(packet.length, data, to, packet.endpoint.direction())?;
        Ok(packet)
    }
}

fn outcome(fields: &mut RedirHeaderReader<'_>) -> RedirStatus {
    RedirStatus::from_code(fields.u8())
}

fn endpoint(fields: &mut RedirHeaderReader<'_>) -> Result<EpAddr, ProtocolViolation> {
    let byte = fields.u8();
    if byte & 0x70 != 0 || byte & 0x0f == 0 {
        return Err(ProtocolViolation::new("endpoint", u64::from(byte), "it is 1 to 15, and its direction"));
    }
    Ok(EpAddr::from_byte(byte))
}

fn endpoint_in(fields: &mut RedirHeaderReader<'_>) -> Result<EpAddr, ProtocolViolation> {
    let endpoint = endpoint(fields)?;
    match endpoint.direction() {
        TransferDirection::In => Ok(endpoint),
        TransferDirection::Out => {
            Err(ProtocolViolation::new("endpoint", u64::from(endpoint.as_byte()), "only IN is received ahead"))
        }
    }
}

fn decode_start_bulk(fields: &mut RedirHeaderReader<'_>) -> Result<RedirMessage, ProtocolViolation> {
    let (stream, bytes_per_transfer) = (fields.u32(), fields.u32());
    if bytes_per_transfer > URB_BYTES_MAX {
        return Err(ProtocolViolation::new(
            "bytes_per_transfer",
            u64::from(bytes_per_transfer),
            "a transfer has at most 16 MiB",
        ));
    }
    Ok(RedirMessage::StartBulkReceiving {
        stream,
        bytes_per_transfer,
        endpoint: endpoint_in(fields)?,
        transfers: fields.u8(),
    })
}

fn decode_hello(fixed: &[u8], data: &[u8]) -> Result<RedirMessage, ProtocolViolation> {
    if !data.len().is_multiple_of(4) {
        return Err(ProtocolViolation::new("length", data.len() as u64, "capabilities are whole words"));
    }
    let end = fixed.iter().position(|&byte| byte == 0).unwrap_or(fixed.len());
    let text = String::from_utf8_lossy(&fixed[..end]);
    let version = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    let bits = data.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    Ok(RedirMessage::Hello { version, caps: RedirCapabilitySet::from_bits(bits) })
}

fn decode_filter(data: &[u8]) -> Result<RedirMessage, ProtocolViolation> {
    let Some((0, text)) = data.split_last() else {
        return Err(ProtocolViolation::new("filter", data.len() as u64, "a text ends with NUL"));
    };
    let text = std::str::from_utf8(text).ok().filter(|text| !text.chars().any(char::is_control));
    let text = text.ok_or(ProtocolViolation::new("filter", data.len() as u64, "a text is printable UTF-8"))?;
    Ok(RedirMessage::FilterFilter(text.to_owned()))
}

fn put_version(to: &mut Vec<u8>, version: &str) {
    let bytes = &version.as_bytes()[..version.floor_char_boundary(VERSION_BYTES - 1)];
    to.extend(bytes);
    to.resize(to.len() + VERSION_BYTES - bytes.len(), 0);
}

fn put_words(to: &mut Vec<u8>, words: &[u32]) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}
