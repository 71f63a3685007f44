//! Which endpoints are received ahead, and how far.

use std::time::Duration;

use farbus_model::limits::AHEAD_URBS_MAX;
use farbus_model::{ConfigurationSelection, DescriptorSet, EpAddr, TransferDirection, TransferType, UsbSpeed};

/// The longest round trip that is bridged without a gap on an interrupt endpoint.
const AHEAD_TIME: Duration = Duration::from_millis(300);
/// Initial number of requests on a bulk endpoint that is known to send by itself.
const BULK_FIRST: usize = 32;

/// How an endpoint is received ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchPlan {
    /// The address of the IN endpoint that is received ahead.
    pub endpoint: EpAddr,
    /// Interrupt or bulk.
    pub kind: TransferType,
    /// Its largest packet, bytes.
    pub packet_bytes: u16,
    /// Requests ahead at the beginning.
    pub window_first: usize,
    /// Requests ahead once the user has shown that it takes the data at once.
    pub window_max: usize,
}

/// Class codes (USB-IF "Defined Class Codes").
mod class {
    pub const COMMUNICATIONS: u8 = 0x02;
    pub const HID: u8 = 0x03;
    pub const MASS_STORAGE: u8 = 0x08;
    pub const HUB: u8 = 0x09;
    pub const CDC_DATA: u8 = 0x0a;
    pub const WIRELESS: u8 = 0xe0;
    pub const VENDOR: u8 = 0xff;
}

/// How an active endpoint is received ahead, if it is:
///
/// | class of its interface | interrupt IN | bulk IN |
/// |---|---|---|
/// | HID, communications | from the beginning | |
/// | CDC data | | from the beginning |
/// | wireless, vendor-specific | once its user asks repeatedly | once its user asks repeatedly |
/// | mass storage, hub | no | no: an answer belongs to the command that asked for it |
/// | any other | once its user asks repeatedly | no |
pub fn way_of(
    all: &DescriptorSet,
    selection: &ConfigurationSelection,
    speed: UsbSpeed,
    endpoint: EpAddr,
) -> Option<PrefetchPlan> {
    let active = selection.endpoint(endpoint).filter(|_| endpoint.direction() == TransferDirection::In)?;
    let settings = &all.configuration(selection.configuration())?.settings;
    let is_active = |s: &&farbus_model::descriptor::AltSetting| s.alternate == selection.alternate(s.interface);
    let setting = settings.iter().filter(is_active).find(|s| s.endpoints.iter().any(|e| e.address == endpoint))?;
    let is_known = match (active.kind, setting.class[0]) {
        (_, class::MASS_STORAGE | class::HUB) => return None,
        (TransferType::Interrupt, class::HID | class::COMMUNICATIONS) | (TransferType::Bulk, class::CDC_DATA) => true,
        (TransferType::Interrupt, _) | (TransferType::Bulk, class::WIRELESS | class::VENDOR) => false,
        _ => return None,
    };
    let window_max = match active.kind {
        TransferType::Interrupt => {
            let interval = active.service_interval(speed).max(Duration::from_micros(125));
            (AHEAD_TIME.as_micros().div_ceil(interval.as_micros()) as usize + 1).min(AHEAD_URBS_MAX)
        }
        _ => AHEAD_URBS_MAX,
    };
    let window_first = match (is_known, active.kind) {
        (false, _) => 0,
        (true, TransferType::Interrupt) => window_max,
        (true, _) => BULK_FIRST,
    };
    Some(PrefetchPlan { endpoint, kind: active.kind, packet_bytes: active.packet_bytes_max, window_first, window_max })
}
