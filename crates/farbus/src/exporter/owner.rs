//! What the owner of this process asks for: the devices' status, commands, taking a device back, removing one, and the
//! end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farbus_control::device::DeviceStatus;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_model::{BufferPool, CompletionQueue, OwnerCommand, OwnerCommandError};
use farbus_session::UseEnding;
use farbus_session::claims::shortened;
use farbus_session::leases::DeviceKey;
use farbus_session::native::control as native;
use farbus_session::registry::ExportEntry;
use tracing::warn;

use crate::devices::status::ConnectionCounters;
use crate::devices::status::device_status;
use crate::exporter::error::ShareError;
use crate::exporter::opening::device_use::offer_again;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::state::shared::ExporterState;

/// How long the owner waits for a device's answer to a command, or for a device to be released.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a command looks for the next user of a device that is between two.
const BETWEEN_USERS: Duration = Duration::from_millis(2);

/// The status of every shared device, with its user.
pub fn status(shared: &ExporterState) -> Vec<DeviceStatus> {
    let ExporterState { registry: devices, reservations, .. } = shared;
    let sessions = shared.sessions.lock();
    let mut holders: BTreeMap<String, &Arc<SessionEntry>> = BTreeMap::new();
    for session in sessions.values() {
        if let Some(bus_id) = session.device() {
            holders.entry(bus_id).or_insert(session);
        }
    }
    let counted_of = |bus_id: &str| {
        holders.get(bus_id).map_or_else(ConnectionCounters::default, |session| ConnectionCounters {
            meters: Some(session.meters.read()),
            links: session.links.status(),
        })
    };
    let now = shared.serving.clock.now();
    let registry = devices.lock();
    let entries = registry.entries();
    let mut keys = Vec::new();
    let status = |entry: ExportEntry<'_>| {
        let mut status = device_status(&entry, counted_of(&entry.record.bus_id), now);
        status.reservation = reservations.ledger().status(entry.name);
        status.swap = shared.swaps.status(&entry.record.bus_id);
        status.is_observable = entry.has_observable && shared.permissions.is_observable();
        status.has_console = entry.has_console && shared.permissions.is_observable();
        devices.label(&entry, &mut status);
        keys.push(DeviceKey::of(&entry.record.bus_id, entry.identity));
        status
    };
    let mut all: Vec<DeviceStatus> = entries.map(status).collect();
    // The leases are never locked together with the registry.
    drop(registry);
    drop(holders);
    drop(sessions);
    for (status, key) in all.iter_mut().zip(&keys) {
        let successor = devices.leases().successor(key);
        status.successor_left_ms = successor.map(|(_, until)| (until - now).as_millis() as u64);
        status.successor = successor.map(|(key, _)| shared.permissions.name_of(key));
    }
    devices.show_retirements(&mut all);
    all
}

/// Stops offering a device. A session that uses it ends first.
///
/// # Errors
/// [`ShareError::NoDevice`].
pub fn remove(shared: &ExporterState, device: &str) -> Result<(), ShareError> {
    let bus_id = shared.registry.bus_id_of(device)?;
    shared.reservations.disown(&bus_id);
    publish(Event::of(EventKind::Unshared, shared.registry.device_name(&bus_id).unwrap_or_else(|| bus_id.clone())));
    let is_idle = shared.registry.lock().retire(&bus_id);
    if is_idle == Some(false)
        && let Err(error) = end_users_of(shared, &bus_id, None, UseEnding::TakenBack, None)
    {
        warn!(device = bus_id, %error, "that its use has ended is not stored");
    }
    // A successor that waits for the device learns that it is gone.
    shared.sessions.wake_all();
    Ok(())
}

/// Takes a device back from its user, and keeps the user's host away for `keep_out`. Returns the user.
///
/// # Errors
/// [`ShareError::NoDevice`], [`ShareError::NotInUse`]; [`ShareError::NotStored`]: the device is taken back all the
/// same.
pub fn take_back(
    shared: &ExporterState,
    device: &str,
    remark: Option<&str>,
    keep_out: Duration,
) -> Result<String, ShareError> {
    let bus_id = shared.registry.bus_id_of(device)?;
    let now = shared.serving.clock.now();
    let until = (!keep_out.is_zero()).then(|| now + keep_out);
    let who = {
        let mut registry = shared.registry.lock();
        let claims = registry.claims_mut(&bus_id).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        let lessee = claims.lease(now).map(|lease| lease.who.name().to_owned());
        let who = claims.holder().map(|holder| holder.who.clone()).or(lessee);
        claims.take_back(remark, until);
        claims.end_lease(UseEnding::TakenBack, now);
        who.ok_or_else(|| ShareError::NotInUse(device.to_owned()))?
    };
    shared.permissions.record_lease_end(&bus_id, UseEnding::TakenBack);
    let fenced = end_users_of(shared, &bus_id, remark, UseEnding::TakenBack, None);
    let stored = fenced.and(shared.registry.keep_lease(&bus_id, None, now));
    stored.map(|()| who.clone()).map_err(|error| {
        warn!(device = bus_id, %error, "that it was taken back is not stored");
        ShareError::NotStored { device: device.to_owned(), user: who, error: error.to_string() }
    })
}

/// Ends the sessions that use a device and waits until they have released it, for [`COMMAND_TIME_MAX`] at most. Their
/// numbers are refused from now on, so that none of them gets the device back when its link does. `whose`: only those
/// that were there when a lease ended, as its claims name them, for another host may have the device since.
///
/// # Errors
/// they have ended, and that their numbers are refused is not stored.
pub fn end_users_of(
    shared: &ExporterState,
    bus_id: &str,
    remark: Option<&str>,
    ending: UseEnding,
    whose: Option<&[String]>,
) -> io::Result<()> {
    let is_meant = |who: &String| whose.is_none_or(|whose| whose.contains(who));
    let is_next_there = {
        let mut registry = shared.registry.lock();
        let claims = registry.claims_mut(bus_id);
        claims.is_some_and(|claims| claims.holders().iter().any(|holder| !is_meant(&holder.who)))
    };
    // The next user has a later number already.
    let fenced = if is_next_there { Ok(()) } else { shared.registry.fence_off(bus_id) };
    let key = shared.registry.key_of(bus_id);
    let handed_over = shared.registry.leases().take_back(&key);
    if let Some(handed_over) = handed_over {
        let why = remark.map(|remark| format!(": {}", shortened(remark))).unwrap_or_default();
        handed_over.settle(native::AttachmentEndCause::Refused, &format!("released by its owner{why}"));
        offer_again(shared, handed_over, ending);
    }
    let mut users: Vec<Arc<SessionEntry>> = shared.sessions.holders_of(bus_id);
    users.retain(|session| is_meant(&session.peer));
    for session in &users {
        if let Some(remark) = remark {
            // The first remark counts.
            let _ = session.remark.set(shortened(remark));
        }
        if ending != UseEnding::TakenBack {
            // So does the first end.
            let _ = session.lease_end.set(ending);
        }
        session.is_taken_back.store(true, Ordering::Release);
        session.end();
    }
    shared.sessions.wait_for(&users, COMMAND_TIME_MAX);
    fenced
}

/// Sends a command to a device, named by its name or bus id, whether it is in use or not. If it is between two users,
/// as while it is handed over, the command waits for the next, for [`COMMAND_TIME_MAX`] at most.
///
/// # Errors
/// [`ShareError`].
pub fn command(shared: &ExporterState, device: &str, command: OwnerCommand) -> Result<(), ShareError> {
    let begun = Instant::now();
    loop {
        let left = COMMAND_TIME_MAX.saturating_sub(begun.elapsed());
        if let Some(answer) = command_now(shared, device, &command, left)? {
            return answer.map_err(ShareError::Command);
        }
        if left <= BETWEEN_USERS {
            return Err(ShareError::Silent);
        }
        thread::sleep(BETWEEN_USERS);
    }
}

/// The device's answer; `None` if it did not take the command, and never will: nobody has it at this moment, or who had
/// it has released it, or did not answer for `time_max`.
fn command_now(
    shared: &ExporterState,
    device: &str,
    command: &OwnerCommand,
    time_max: Duration,
) -> Result<Option<Result<(), OwnerCommandError>>, ShareError> {
    let bus_id = shared.registry.bus_id_of(device)?;
    if shared.registry.device_name(&bus_id).is_some_and(|name| shared.predecessor.uses(&name)) {
        // Its session in the process before this one is about to continue here.
        return Ok(None);
    }
    if let Some(idle) = shared.registry.lock().idle_device(&bus_id) {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        return Ok(Some(idle.command(shared.serving.clock.now(), command, &mut done)));
    }
    let holder = shared.sessions.holders_of(&bus_id).pop();
    Ok(holder.and_then(|holder| holder.mailbox.ask(command.clone(), time_max)))
}

/// Ends all sessions and makes their devices durable. `is_replaced`: another process continues with them. Returns
/// whether all sessions ended in time.
pub fn stop(shared: &ExporterState, is_replaced: bool) -> bool {
    if shared.sessions.begin_stopping() {
        return true;
    }
    shared.listeners.close_all();
    shared.swaps.stop();
    if !shared.sessions.end_all(is_replaced) {
        return false;
    }
    let left = shared.registry.leases().clear();
    for handed_over in left {
        offer_again(shared, handed_over, UseEnding::Detached);
    }
    // Real devices return to this machine's drivers now, even if other parts of the process still hold the share.
    let devices = shared.registry.lock().close();
    drop(devices);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{BrokerClient, SystemAccess};
    use crate::devices::identities::labels::OfferTraits;
    use farbus_gadgets::keyboard::KeyboardGadget;
    use farbus_io_net::sys::passing::MessageSocket;
    use farbus_io_net::trust::DeviceId;
    use farbus_model::{ExportIdentity, SessionLimits};
    use serde_json::{Value, json};
    use std::thread::JoinHandle;

    const DEVICES: u32 = 1000;

    /// A broker that knows of one moved disk, and returns the questions that it was asked. An earlier release knows one
    /// question less.
    fn broker(moved: DeviceId, is_earlier: bool) -> (SystemAccess, JoinHandle<Vec<String>>) {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let retirement = json!({ "by": "key 1", "host": "desk", "since": "2026-11-30T07:00:00Z", "is_done": true });
        let moved = json!(moved);
        let answer = move |question: &Value| match question["ask"].as_str().unwrap() {
            "retirement" if question["device"] == moved => json!({ "done": retirement }),
            "retirement" => json!({ "done": null }),
            "retirements" if !is_earlier => {
                let devices = question["devices"].as_array().unwrap();
                let found = devices.iter().filter(|device| **device == moved);
                let found: Vec<Value> = found.map(|it| json!({ "device": it, "retirement": retirement })).collect();
                json!({ "done": { "count": devices.len(), "found": found } })
            }
            _ => json!({ "refused": { "why": "not a question", "kind": "other" } }),
        };
        let serve = move || {
            let passage = MessageSocket::over(theirs);
            let mut questions = Vec::new();
            while let Some(parcel) = passage.receive().unwrap() {
                let question: Value = serde_json::from_slice(&parcel.bytes).unwrap();
                passage.send(&serde_json::to_vec(&answer(&question)).unwrap(), None).unwrap();
                questions.push(question["ask"].as_str().unwrap().to_owned());
            }
            questions
        };
        let system = SystemAccess::Through(Arc::new(BrokerClient::passed(ours.into_descriptor())));
        (system, thread::spawn(serve))
    }

    /// The status of all devices, of which the seventh was moved away, and what a broker was asked for it.
    fn status_and_questions(is_earlier: bool) -> (Vec<DeviceStatus>, Vec<String>) {
        let shared = ExporterState::new(SessionLimits::DEFAULT);
        let identity_of = |number: u32| ExportIdentity { id: u128::from(number) + 1, generation: 0 };
        for number in 0..DEVICES {
            let record = shared.registry.lock().add("d", Box::new(KeyboardGadget::device())).cloned().unwrap();
            shared.registry.identify(&record.bus_id, identity_of(number));
            shared.registry.labels.put(&record.bus_id, OfferTraits { is_lasting: true, ..OfferTraits::default() });
        }
        let (system, broker) = broker(DeviceId::of(identity_of(6)), is_earlier);
        shared.registry.retirements.ask_through(system);
        let all = status(&shared);
        drop(shared);
        (all, broker.join().unwrap())
    }

    #[test]
    fn list_of_a_thousand_devices_asks_the_broker_a_few_questions() {
        let (all, questions) = status_and_questions(false);
        assert_eq!(all.len(), DEVICES as usize);
        let moved: Vec<usize> = (0..all.len()).filter(|&at| all[at].moved.is_some()).collect();
        assert_eq!((moved, all[6].state.as_str(), all[7].state.as_str()), (vec![6], "moved away", "available"));
        assert!(questions.len() <= 4, "{} questions about {DEVICES} devices", questions.len());
    }

    #[test]
    fn broker_of_an_earlier_release_is_asked_about_each_device() {
        let (all, questions) = status_and_questions(true);
        assert_eq!((all[6].state.as_str(), all[7].state.as_str()), ("moved away", "available"));
        assert_eq!(questions.iter().filter(|ask| *ask == "retirement").count(), DEVICES as usize);
    }
}
