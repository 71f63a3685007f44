//! A running attachment, as the status shows it.

use std::collections::BTreeMap;
use std::time::Instant;

use farbus_modules::Asked;
use serde::Serialize;

use super::drivers::Drivers;
use super::{Attachment, Handle, MigrationStatus, Status};
use crate::devices::reservation::ReservationStatus;
use crate::devices::status::MediumStatus;
use crate::devices::swap_run::SwapStatus;
use crate::frontend::usb_swap::UsbSwap;
use crate::importer::client::Target;
use crate::importer::disk::DiskMode;
use crate::importer::disk_swap::DiskSwap;
use crate::importer::session::latency::Latency;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::Readings;
use crate::link::status::LinksStatus;

/// The state of an attachment that finds another device where its own was: it waits for its own.
pub const ANOTHER_DEVICE: &str = "another device";

/// An attachment that runs on another thread, or is about to.
#[derive(Clone)]
pub struct Running {
    since: Instant,
    /// The facts about it that do not change.
    pub status: Status,
    /// Steers it.
    pub handle: Handle,
}

impl Running {
    /// The record of an attachment that begins to run now.
    pub fn of(attachment: &dyn Attachment) -> Self {
        Self { since: Instant::now(), status: attachment.status(), handle: attachment.handle() }
    }
}

/// What an attachment reports to `farbus status`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct AttachmentStatus {
    /// The device's name at its exporter.
    pub name: String,
    /// `HOST:PORT/DEVICE`.
    pub title: String,
    /// `attached`; `link lost` while it waits for another; `held` while nothing is asked of it, because its user moves;
    /// `following` while it is in use, and goes to another host as soon as its user leaves;
    /// `handed over` while it is on its way to another host; before it is here, `waiting`; `another device` while
    /// another one is where it was.
    pub state: &'static str,
    /// The address of the exporter that has the device now, as it was named.
    pub user: String,
    /// Where it is on this machine.
    pub at: String,
    /// How long it has been attached, seconds.
    pub used_s: f64,
    /// What the device is needed for, as its exporter was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How a disk is used: `exclusive` or `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// How long it has been waiting for a link, seconds; `None` while it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_lost_s: Option<f64>,
    /// How long it is held at most while it migrates, milliseconds: the shorter limit of both ends of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    /// Where the time of its requests goes, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What was fetched ahead of its user's requests, by name: transfers received ahead, packets that were late.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<&'static str, u64>,
    /// By how much the clock of a running stream was moved to follow the device's, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_us: Option<i64>,
    /// Its session's links, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// What its exporter reserves for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// What has passed through, if it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
    /// The modules that its data passes through, the importer's end first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Where a disk is: at its exporter, at another one that it was moved to, or on this machine (`block:PATH`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumStatus>,
    /// The twin that has the device's place since it was swapped: `usb:BUSID` or `HOST:PORT/DEVICE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// The swap of its disk or device that runs, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStatus>,
    /// Its migration that runs, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationStatus>,
    /// The classes of its interfaces, in words, if it is attached as the USB device that it is; 32 at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// How many programs have it open: a file, or an NBD export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<usize>,
    /// The processes that are connected to its Unix socket: a virtual machine, NBD clients.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<u32>,
    /// The drivers of this machine's kernel that took it, none if no driver did; absent if it is not plugged into the
    /// kernel, or the kernel has not looked at it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drivers: Option<Vec<String>>,
}

impl AttachmentStatus {
    /// An attachment that does not run yet, or no longer.
    pub fn named(name: &str, title: &str, state: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            state,
            user: String::new(),
            at: String::new(),
            used_s: 0.0,
            reason: None,
            mode: None,
            link_lost_s: None,
            hold_ms: None,
            latency: None,
            counts: BTreeMap::new(),
            drift_us: None,
            links: None,
            reservation: None,
            meters: None,
            modules: Vec::new(),
            medium: None,
            replaced_by: None,
            swap: None,
            migration: None,
            interfaces: Vec::new(),
            open: None,
            processes: Vec::new(),
            drivers: None,
        }
    }

    /// Adds the modules that its data passes through.
    #[must_use]
    pub fn through(self, modules: &[Asked]) -> Self {
        Self { modules: modules.iter().map(ToString::to_string).collect(), ..self }
    }

    /// The status of the attachment of `target`, which is in `state`, and of `running` if it runs.
    pub fn of(target: &Target, state: &'static str, reason: Option<&String>, running: Option<&Running>) -> Self {
        let named = Self::named(&target.device, &target.to_string(), state);
        let (user, reason) = (target.address.clone(), reason.cloned());
        let Some(Running { since, status, handle }) = running else { return Self { user, reason, ..named } };
        let user = handle.swap().and_then(DiskSwap::host).or(handle.usb_swap().map(UsbSwap::host)).unwrap_or(user);
        let running = Self {
            user,
            reason,
            at: status.at.clone(),
            used_s: since.elapsed().as_secs_f64(),
            mode: status.mode.map(DiskMode::as_str),
            meters: handle.readings(),
            medium: handle.swap().map(DiskSwap::medium),
            replaced_by: handle.replaced_by(),
            swap: handle.swap_status(),
            migration: handle.migration(),
            interfaces: handle.usb_swap().map(UsbSwap::interfaces).unwrap_or_default(),
            open: handle.open_count(),
            processes: handle.processes(),
            drivers: handle.drivers().and_then(Drivers::names),
            ..named
        };
        let running = match handle.session() {
            Some(session) => running.in_session(&session),
            None => running,
        };
        match handle.move_state() {
            Some(state) if running.state == "attached" => Self { state, ..running },
            _ => running,
        }
    }

    /// The status of a device that a program has at `at`, since when, and what exchanges it; `None` while it is looked
    /// for.
    pub fn of_program(target: &Target, at: String, now: Option<(Instant, UsbSwap)>) -> Self {
        let state = if now.is_some() { "attached" } else { "waiting" };
        let named = Self::named(&target.device, &target.to_string(), state);
        let known = Self { user: target.address.clone(), at, ..named };
        let Some((since, swap)) = now else { return known };
        let (used_s, replaced_by) = (since.elapsed().as_secs_f64(), swap.replaced_by());
        let (user, interfaces) = (swap.host(), swap.interfaces());
        let known = Self { user, used_s, replaced_by, interfaces, swap: swap.status(), ..known };
        swap.session().map_or_else(|| known.clone(), |session| known.clone().in_session(&session))
    }

    /// Adds the facts of a session: a device without a link is attached, and waits for one.
    fn in_session(self, session: &SessionStatus) -> Self {
        let distance = session.distance();
        let known = Self {
            hold_ms: Some(session.hold().as_millis() as u64),
            latency: session.latency(),
            links: session.links(),
            reservation: session.reserved().map(|reserved| ReservationStatus::told(&reserved)),
            counts: distance.counts(),
            drift_us: distance.drift_us(),
            ..self
        };
        match session.unlinked() {
            Some(span) if known.state == "attached" => {
                Self { state: "link lost", link_lost_s: Some(span.as_secs_f64()), ..known }
            }
            _ => known,
        }
    }
}
