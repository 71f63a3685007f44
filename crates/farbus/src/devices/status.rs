//! The status of a shared device, for people and programs.

use farbus_control::device::{DeviceStatus, MediumStatus, PastStatus, UserStatus, WaitingStatus};
use farbus_control::session::{LinksStatus, Readings};
use farbus_model::{Instant, NamedCounters};
use farbus_session::block::BlockExport;
use farbus_session::claims::{ClaimHolder, DeviceClaims, PastUse, QueuedHost};
use farbus_session::registry::ExportEntry;

use crate::devices::class_words::classes;
use crate::devices::lease::{booking_status, lease_status};
use crate::devices::usb_names::UsbNames;

/// The counters of the connection of a device's user.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounters {
    /// Requests and bytes that the connection carried so far; `None` while nobody uses the device.
    pub meters: Option<Readings>,
    /// The links of its session.
    pub links: Option<LinksStatus>,
}

/// The medium of a block device, if its place is known.
pub fn medium_status(block: &BlockExport) -> Option<MediumStatus> {
    let switch = block.switch();
    let (at, is_swapped) = (block.location()?, block.has_moved());
    let (size_bytes, is_swapping) = (switch.size_bytes(), switch.is_swapping());
    Some(MediumStatus { at, size_bytes, is_swapping, is_swapped, identity: None })
}

/// The status of `entry` at `now`, with the counters of its user's connection.
pub fn device_status(
    entry: &ExportEntry<'_>,
    ConnectionCounters { meters, links }: ConnectionCounters,
    now: Instant,
) -> DeviceStatus {
    let names = UsbNames::of(entry.record.vendor, entry.record.product);
    DeviceStatus {
        vendor_name: names.vendor.map(str::to_owned),
        product_name: names.product.map(str::to_owned),
        name: entry.name.to_owned(),
        bus_id: entry.record.bus_id.clone(),
        title: entry.title.to_owned(),
        speed: entry.record.speed.to_string(),
        ids: format!("{:04x}:{:04x}", entry.record.vendor, entry.record.product),
        interfaces: classes(entry.record),
        size_bytes: entry.block.map(|block| block.info().size_bytes),
        medium: entry.block.and_then(medium_status),
        state: if entry.holder.is_some() { "in use" } else { "available" }.to_owned(),
        mode: entry.holder.map(|holder| holder.mode.as_str().to_owned()),
        users: users_of(entry.claims, now),
        user: entry.holder.map(|holder| holder.who.clone()),
        used_s: entry.holder.map(|holder| (now - holder.since).as_secs_f64()),
        reason: entry.holder.and_then(|holder| holder.reason.clone()),
        lease: entry.claims.lease(now).map(|lease| lease_status(lease, now)),
        booked: entry.claims.bookings().iter().map(booking_status).collect(),
        waiting: waiting_of(entry.claims, now),
        history: history_of(entry.claims, now),
        stream: entry.stream.map(|stage| stage.description().format.to_string()),
        counts: entry.tally.into_iter().flat_map(NamedCounters::read).map(|(name, n)| (name.to_owned(), n)).collect(),
        links,
        meters,
        ..DeviceStatus::default()
    }
}

/// All users, if there are several.
fn users_of(claims: &DeviceClaims, now: Instant) -> Vec<UserStatus> {
    let status = |holder: &ClaimHolder| UserStatus {
        user: holder.who.clone(),
        mode: holder.mode.as_str().to_owned(),
        used_s: (now - holder.since).as_secs_f64(),
        reason: holder.reason.clone(),
    };
    claims.holders().iter().filter(|_| claims.holders().len() > 1).map(status).collect()
}

fn waiting_of(claims: &DeviceClaims, now: Instant) -> Vec<WaitingStatus> {
    let status = |waiting: &QueuedHost| WaitingStatus {
        host: waiting.host.clone(),
        waits_s: (now - waiting.since).as_secs_f64(),
        priority: (waiting.priority > 0).then_some(waiting.priority),
        for_s: waiting.span.map(|span| span.as_secs()),
    };
    claims.queue(now).map(status).collect()
}

fn history_of(claims: &DeviceClaims, now: Instant) -> Vec<PastStatus> {
    let status = |past: &PastUse| PastStatus {
        user: past.holder.who.clone(),
        reason: past.holder.reason.clone(),
        used_s: (past.until - past.holder.since).as_secs_f64(),
        ago_s: (now - past.until).as_secs_f64(),
        ended: past.ending.as_str().to_owned(),
        remark: past.remark.clone(),
    };
    claims.history().rev().map(status).collect()
}
