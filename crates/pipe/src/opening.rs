//! Opens a device for pipes, in this process or on another host.
//!
//! A device of another host is opened twice: what to reserve for it follows from its descriptors, and a reservation is
//! made before a device is opened.

use farbus::importer::client::{ClientError, DeviceTarget, GRACE_DISK, ImporterClient};
use farbus::importer::session::connection::LinkedDevice;
use farbus_host::{RemoteDevice, RemoteError};
use farbus_io_net::link::BoottimeClock;
use farbus_model::descriptor::{AltSetting, EndpointDescriptor};
use farbus_model::usb::request;
use farbus_model::{DescriptorSet, Device, EpAddr, SetupPacket, TransferDirection, TransferType, UsbSpeed};
use farbus_realtime::bandwidth;
use farbus_realtime::pipe::EndpointAttributes;
use farbus_realtime::{BusSpeed, TransferKind};
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::AttachmentEndCause;
use farbus_session::reserve::{EndpointBandwidth, ReservationTerms, ScarceResource, ThreadTime};

use super::codec::SingleChannelCodec;
use super::endpoint::EndpointLayout;
use super::path::{PathDelay, RoundTrip};
use super::unfit::SetUpError;
use super::way::{BlockingPort, LocalPolledDevice, PolledDevice, SessionPolledDevice, UsbipPolledDevice};

/// GET_STATUS of the device, two bytes (USB 2.0 §9.4.5).
const GET_STATUS: SetupPacket =
    SetupPacket { request_type: 0x80, request: request::GET_STATUS, value: 0, index: 0, length: 2 };

/// Opens a device that no other program drives: enumerates and configures it.
///
/// # Errors
/// [`RemoteError`].
pub fn here(device: impl Device + 'static) -> Result<RemoteDevice<BlockingPort>, RemoteError> {
    let speed = device.speed();
    RemoteDevice::open(BlockingPort::new(Box::new(LocalPolledDevice::new(device))), speed)
}

/// Opens a device of another host, over plain USB/IP or in a session as [`ImporterClient::session`] says; returns its
/// speed, too.
///
/// # Errors
/// [`ClientError`].
pub fn there(
    client: &ImporterClient,
    target: &DeviceTarget,
) -> Result<(RemoteDevice<BlockingPort>, UsbSpeed), ClientError> {
    match client.session(target, GRACE_DISK)? {
        Some(linked) => in_session(target, linked),
        None => {
            let (link, device) = client.enumerate(target)?;
            let (speed, descriptors) = (device.speed(), device.descriptors().clone());
            enumerated(target, Box::new(UsbipPolledDevice::new(link, device)), speed, descriptors)
        }
    }
}

/// What the host of a device has reserved for the pipes of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarTime {
    /// The bus, the path, and processor time that other programs there cannot take.
    Reserved,
    /// Not all of that, for this reason.
    Unreserved(String),
}

/// As [`there`], with a reservation of high criticality for these claims at the device's host and on the way to it, as
/// far as that host makes reservations. `claims` sees the opened device; without claims nothing is reserved.
///
/// # Errors
/// [`ClientError`]; [`ClientError::Untrusted`] if its host, the path or the bus has not enough left.
pub fn there_reserving(
    client: &ImporterClient,
    target: &DeviceTarget,
    claims: impl FnOnce(&RemoteDevice<BlockingPort>, UsbSpeed) -> Vec<EndpointBandwidth>,
) -> Result<(RemoteDevice<BlockingPort>, UsbSpeed, FarTime), ClientError> {
    let unreserved =
        |why: String| there(client, target).map(|(device, speed)| (device, speed, FarTime::Unreserved(why)));
    if !client.is_farbus(target)? {
        return unreserved("its server speaks USB/IP alone, which has no reservations".to_owned());
    }
    let (device, speed) = there(client, target)?;
    let claims = claims(&device, speed);
    if claims.is_empty() {
        return Ok((device, speed, FarTime::Unreserved("its endpoints are not known".to_owned())));
    }
    device.into_port().into_way().close();
    let reservation = ReservationTerms { claims, ..ReservationTerms::default() };
    match client.session_reserving(target, reservation, GRACE_DISK)? {
        Ok(linked) => {
            let time = match linked.status().reserved().and_then(|report| report.thread) {
                Some(ThreadTime::Reserved) => FarTime::Reserved,
                Some(ThreadTime::Ordinary) => {
                    FarTime::Unreserved("its kernel gave that thread no processor time: its log says why".to_owned())
                }
                None => FarTime::Unreserved("its farbus is of a version that gives its threads none".to_owned()),
            };
            in_session(target, linked).map(|(device, speed)| (device, speed, time))
        }
        // What is not to be had is refused; what may not be asked for is said, and nothing is reserved.
        Err((end, report)) => match report.map(|report| report.lack) {
            Some(
                ScarceResource::Bus
                | ScarceResource::Processor
                | ScarceResource::Rate
                | ScarceResource::Delay
                | ScarceResource::Budget,
            ) => Err(client.refusal(target, &end)),
            _ if end.cause == AttachmentEndCause::Reservation => unreserved(end.message),
            _ => Err(client.refusal(target, &end)),
        },
    }
}

fn in_session(
    target: &DeviceTarget,
    linked: LinkedDevice<RemoteUsb>,
) -> Result<(RemoteDevice<BlockingPort>, UsbSpeed), ClientError> {
    let (speed, descriptors) = (linked.speed(), linked.descriptors().clone());
    enumerated(target, Box::new(SessionPolledDevice::new(linked)), speed, descriptors)
}

fn enumerated(
    target: &DeviceTarget,
    way: Box<dyn PolledDevice>,
    speed: UsbSpeed,
    descriptors: DescriptorSet,
) -> Result<(RemoteDevice<BlockingPort>, UsbSpeed), ClientError> {
    RemoteDevice::enumerated(BlockingPort::new(way), speed, descriptors)
        .map(|device| (device, speed))
        .map_err(|error| ClientError::Device { target: target.clone(), what: error.to_string() })
}

/// What messages of this size at this rate take of an endpoint: claims of 1 ms, at least one message.
pub fn claim_of(endpoint: EpAddr, speed: UsbSpeed, message_bytes: usize, messages_per_s: u64) -> EndpointBandwidth {
    // A bus of low or full speed counts in frames of 1 ms, the others in microframes of 125 us.
    let period = if matches!(speed, UsbSpeed::Low | UsbSpeed::Full) { 1 } else { 8 };
    let bytes = messages_per_s.div_ceil(1000).max(1).saturating_mul(message_bytes as u64);
    EndpointBandwidth { endpoint: endpoint.as_byte(), bytes: u32::try_from(bytes).unwrap_or(u32::MAX), period }
}

/// Measures the delay of the path to a device by round trips to it.
///
/// # Errors
/// [`RemoteError`].
pub fn path_delay(device: &mut RemoteDevice<BlockingPort>) -> Result<PathDelay, RemoteError> {
    let clock = BoottimeClock::start();
    PathDelay::measure(|| {
        device.port_mut().take_overslept_ns();
        let from = clock.now();
        device.control_in(GET_STATUS)?;
        let took_ns = (clock.now() - from).as_nanos() as u64;
        Ok(RoundTrip { took_ns, overslept_ns: device.port_mut().take_overslept_ns() })
    })
}

impl EndpointLayout {
    /// The first bulk endpoints of a device, cut into messages of one size. The device makes its source wait until data
    /// is fetched. Only the settings count that an interface has at first (0).
    pub fn bulk(device: &RemoteDevice<BlockingPort>, speed: UsbSpeed, message_bytes: usize) -> Option<Self> {
        let configuration = device.descriptors().configuration(device.configuration())?;
        let find =
            |direction| configuration.interfaces().find_map(|setting| setting.find(TransferType::Bulk, direction));
        Self::of_bulk(find(TransferDirection::In), find(TransferDirection::Out), speed, message_bytes)
    }

    /// The bulk endpoint with this address, and the one of the other direction in the same interface: the one with the
    /// same number if there is one.
    ///
    /// # Errors
    /// [`SetUpError::Unfit`] if there is no such endpoint, or if its interface has it in another setting than 0.
    pub fn bulk_at(
        device: &RemoteDevice<BlockingPort>,
        speed: UsbSpeed,
        message_bytes: usize,
        address: EpAddr,
    ) -> Result<Self, SetUpError> {
        let name = format!("0x{:02x}", address.as_byte());
        let configuration = device.descriptors().configuration(device.configuration());
        let settings = configuration.map_or(&[][..], |configuration| &configuration.settings);
        let bulk = |setting: &AltSetting| {
            let found = setting.endpoints.iter().filter(|endpoint| endpoint.kind == TransferType::Bulk);
            found.copied().collect::<Vec<_>>()
        };
        let with = settings.iter().filter(|setting| bulk(setting).iter().any(|endpoint| endpoint.address == address));
        let Some(setting) = with.min_by_key(|setting| setting.alternate) else {
            let all: Vec<_> = settings.iter().filter(|setting| setting.alternate == 0).flat_map(bulk).collect();
            let all: Vec<_> = all.iter().map(|endpoint| format!("0x{:02x}", endpoint.address.as_byte())).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            return Err(SetUpError::Unfit(format!("it has no bulk endpoint {name}: there are {all}")));
        };
        if setting.alternate != 0 {
            let what = format!(
                "endpoint {name} is in setting {} of its interface, and pipes use setting 0",
                setting.alternate
            );
            return Err(SetUpError::Unfit(what));
        }
        let endpoints = bulk(setting);
        let find = |direction: TransferDirection| {
            let of = || endpoints.iter().filter(|endpoint| endpoint.address.direction() == direction);
            of().find(|endpoint| endpoint.address.number() == address.number()).or_else(|| of().next())
        };
        let shape = Self::of_bulk(find(TransferDirection::In), find(TransferDirection::Out), speed, message_bytes);
        shape.ok_or_else(|| SetUpError::Unfit(format!("{message_bytes} bytes are too many for a transfer")))
    }

    fn of_bulk(
        input: Option<&EndpointDescriptor>,
        output: Option<&EndpointDescriptor>,
        speed: UsbSpeed,
        message_bytes: usize,
    ) -> Option<Self> {
        let packet_bytes = u32::from(input.or(output)?.packet_bytes_max.max(1));
        let bytes_per_s = bulk_bytes_per_s(speed);
        Some(Self {
            input: input.map(|endpoint| endpoint.address),
            output: output.map(|endpoint| endpoint.address),
            read_bytes: u32::try_from(message_bytes).ok()?.next_multiple_of(packet_bytes),
            channels: 1,
            codec: Box::new(SingleChannelCodec { message_bytes }),
            begin: Vec::new(),
            attributes: EndpointAttributes {
                channels_max: 1,
                throughput_bits_max: bytes_per_s * 8 / 1000,
                latency_min_ns: 1_000_000,
                buffer_bytes_min: message_bytes as u64,
                buffer_bytes_max: 1 << 24,
            },
            room_in: None,
            room_out: None,
            buses: Vec::new(),
        })
    }
}

/// The bulk rate from the specification's tables, for the largest packets.
fn bulk_bytes_per_s(speed: UsbSpeed) -> u64 {
    let of = match speed {
        UsbSpeed::Low | UsbSpeed::Full => BusSpeed::Full,
        UsbSpeed::High => BusSpeed::High,
        UsbSpeed::Super | UsbSpeed::SuperPlus => BusSpeed::Super,
    };
    let table = bandwidth::table(of, TransferKind::Bulk).expect("these speeds have bulk transfers");
    table.rows.iter().map(|row| row.bandwidth_bytes_per_s_max).max().unwrap_or(0)
}
