//! A running attachment, as the status shows it.

use std::time::Instant;

use crate::devices::reservation::reservation_told;
use farbus_control::attachment::AttachmentStatus;
use farbus_modules::ModuleSpec;

use super::drivers::PortDriverLookup;
use super::{Attachment, AttachmentFacts, AttachmentHandle};
use crate::frontend::usb_swap::UsbSwap;
use crate::importer::client::DeviceTarget;
use crate::importer::disk_swap::DiskSwap;
use crate::importer::session::status::SessionStatus;

/// The state of an attachment that finds another device where its own was: it waits for its own.
pub const ANOTHER_DEVICE: &str = "another device";

/// An attachment that runs on another thread, or is about to.
#[derive(Clone)]
pub struct RunningAttachment {
    since: Instant,
    /// The facts about it that do not change.
    pub status: AttachmentFacts,
    /// Steers the attachment from other threads: detaches, holds or migrates it.
    pub handle: AttachmentHandle,
}

impl RunningAttachment {
    /// The record of an attachment that begins to run now.
    pub fn of(attachment: &dyn Attachment) -> Self {
        Self { since: Instant::now(), status: attachment.status(), handle: attachment.handle() }
    }
}

/// Adds the modules that its data passes through.
pub fn through(status: AttachmentStatus, modules: &[ModuleSpec]) -> AttachmentStatus {
    AttachmentStatus { modules: modules.iter().map(ToString::to_string).collect(), ..status }
}

/// The status of the attachment of `target`, which is in `state`, and of `running` if it runs.
pub fn attachment_status(
    target: &DeviceTarget,
    state: &'static str,
    reason: Option<&String>,
    running: Option<&RunningAttachment>,
) -> AttachmentStatus {
    let named = AttachmentStatus::named(&target.device, &target.to_string(), state);
    let (user, reason) = (target.address.clone(), reason.cloned());
    let Some(RunningAttachment { since, status, handle }) = running else {
        return AttachmentStatus { user, reason, ..named };
    };
    let user = handle.swap().and_then(DiskSwap::host).or(handle.usb_swap().map(UsbSwap::host)).unwrap_or(user);
    let running = AttachmentStatus {
        user,
        reason,
        at: status.at.clone(),
        used_s: since.elapsed().as_secs_f64(),
        mode: status.mode.map(|mode| mode.as_str().into()),
        meters: handle.readings(),
        medium: handle.swap().map(DiskSwap::medium),
        replaced_by: handle.replaced_by(),
        swap: handle.swap_status(),
        migration: handle.migration(),
        interfaces: handle.usb_swap().map(UsbSwap::interfaces).unwrap_or_default(),
        open: handle.open_count(),
        processes: handle.processes(),
        drivers: handle.drivers().and_then(PortDriverLookup::names),
        ..named
    };
    let running = match handle.session() {
        Some(session) => in_session(running, &session),
        None => running,
    };
    match handle.move_state() {
        Some(state) if running.state == "attached" => AttachmentStatus { state: state.into(), ..running },
        _ => running,
    }
}

/// The status of a device that a program has at `at`, since when, and what exchanges it; `None` while it is looked
/// for.
pub fn program_status(target: &DeviceTarget, at: String, now: Option<(Instant, UsbSwap)>) -> AttachmentStatus {
    let state = if now.is_some() { "attached" } else { "waiting" };
    let named = AttachmentStatus::named(&target.device, &target.to_string(), state);
    let known = AttachmentStatus { user: target.address.clone(), at, ..named };
    let Some((since, swap)) = now else { return known };
    let (used_s, replaced_by) = (since.elapsed().as_secs_f64(), swap.replaced_by());
    let (user, interfaces) = (swap.host(), swap.interfaces());
    let known = AttachmentStatus { user, used_s, replaced_by, interfaces, swap: swap.status(), ..known };
    swap.session().map_or_else(|| known.clone(), |session| in_session(known.clone(), &session))
}

/// Adds the facts of a session: a device without a link is attached, and waits for one.
fn in_session(status: AttachmentStatus, session: &SessionStatus) -> AttachmentStatus {
    let distance = session.distance();
    let known = AttachmentStatus {
        hold_ms: Some(session.hold().as_millis() as u64),
        latency: session.latency(),
        links: session.links(),
        reservation: session.reserved().map(|reserved| reservation_told(&reserved)),
        counts: distance.counts().into_iter().map(|(name, count)| (name.into(), count)).collect(),
        drift_us: distance.drift_us(),
        ..status
    };
    match session.unlinked() {
        Some(span) if known.state == "attached" => {
            AttachmentStatus { state: "link lost".into(), link_lost_s: Some(span.as_secs_f64()), ..known }
        }
        _ => known,
    }
}
