//! What paired hosts may use: `allow`, `forbid`.
//!
//! A permission is for a name that the owner gave to a device, or, if farbus gave the name, for the device itself: an
//! automatic name changes when devices are shared in another order.

use std::collections::BTreeSet;

use farbus::devices::identities::naming::looks_automatic;
use farbus::devices::identities::shared_now::{SharedNow, shared_now};
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::FailureKind;
use farbus_io_net::trust::{AuditEvent, AuditOutcome, DeviceId, HostFolder, KnownDeviceList, Peer};
use serde::Serialize;

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};

/// Let a paired host use devices, or show what each may use.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A name that you gave a device (name=NAME) is allowed as a name. A name that farbus gave, such as disk2, stands for the device that has it now, if farbus can recognise that device again ('farbus identity list'). 'farbus forbid' withdraws a permission.\n\n\
    Examples:\n  farbus allow lab3 disk webcam\n  \
    farbus allow lab3 all                      every device, later ones, too\n  \
    farbus allow lab3 webcam --reserve-high    with high criticality\n  \
    farbus allow                               who may use what\n  \
    farbus allow --json | jq -r '.[] | select(.is_automatic) | .device'"
)]
pub struct AllowArgs {
    /// The host's name, as 'farbus peers' shows it.
    name: Option<String>,
    /// Devices by name, or 'all'; without them, show what is allowed.
    devices: Vec<String>,
    /// Let it reserve with high criticality, too.
    ///
    /// Devices of low criticality are then suspended when its devices need what they have.
    #[arg(long, requires = "devices")]
    reserve_high: bool,
    /// Print what is allowed as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Withdraw permissions of a paired host, and cut off what it uses.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus forbid lab3 disk\n  farbus forbid lab3 all          everything\n  farbus forbid lab3 disk --reserve-high"
)]
pub struct ForbidArgs {
    /// The host's name, as 'farbus peers' shows it.
    name: String,
    /// Devices by name; or 'all'.
    #[arg(required = true)]
    devices: Vec<String>,
    /// Only the right to reserve as high.
    ///
    /// The host may continue to use the devices.
    #[arg(long)]
    reserve_high: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// What a host may use after a change, as `farbus allow` and `farbus forbid` show it with `--json`.
#[derive(Serialize)]
struct GrantChange<'a> {
    host: &'a str,
    /// The devices that the command named.
    devices: &'a [String],
    /// What was done to them: `allow` or `forbid`.
    done: &'a str,
    /// Everything that the host may use now.
    may_use: Vec<&'a str>,
    /// What it may reserve with high criticality.
    may_reserve_high: Vec<&'a str>,
}

/// A permission, as `farbus allow --json` shows it.
#[derive(Serialize)]
struct DevicePermission {
    host: String,
    device: String,
    /// How the device is named: `all`, `name` or `identity`.
    by: &'static str,
    /// The identities that the permission is for.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    ids: BTreeSet<DeviceId>,
    /// Whether farbus gave that name: from the device's record, else by its form.
    is_automatic: bool,
    /// The names of the shared devices that it applies to at present.
    now: Vec<String>,
}

pub fn allow(args: &AllowArgs) -> Result<(), CommandFailure> {
    let name = match &args.name {
        Some(name) if !args.devices.is_empty() => name,
        only => return list(only.as_deref(), args.json),
    };
    let now = shared_now();
    change_grant(name, &args.devices, "allow", args.json, |peer, device| {
        if args.reserve_high {
            peer.reserve_high.add(device);
        }
        // 'all' covers it already.
        if !(args.reserve_high && peer.allow.allows(device)) {
            peer.allow.add(device);
        }
        bind_to(peer, device, &now);
        true
    })?;
    if !args.json {
        args.devices.iter().for_each(|device| explain(device, &now));
    }
    warn_of_unknown(&args.devices, &now);
    Ok(())
}

/// Warns of names under which nothing is shared now: one of them may be mistyped.
fn warn_of_unknown(devices: &[String], now: &[SharedNow]) {
    let names: BTreeSet<&str> = now.iter().map(|shared| shared.name.as_str()).collect();
    let unknown = devices.iter().filter(|device| *device != "all" && !names.contains(device.as_str()));
    let shared = match names.is_empty() {
        true => "nothing".to_owned(),
        false => names.iter().copied().collect::<Vec<_>>().join(", "),
    };
    for device in unknown {
        eprintln!(
            "farbus: warning: no device called '{device}' is shared here now; the permission is kept for one that will be.\n  \
             Shared now: {shared}"
        );
    }
}

pub fn forbid(args: &ForbidArgs) -> Result<(), CommandFailure> {
    let now = shared_now();
    change_grant(&args.name, &args.devices, "forbid", args.json, |peer, device| {
        let ids = now.iter().filter(|shared| shared.name == device).filter_map(SharedNow::id).collect();
        let was_high = peer.reserve_high.remove(device);
        let was = if args.reserve_high { was_high } else { peer.allow.remove(device) | peer.unbind(&ids) };
        peer.forget_unused();
        was
    })
}

/// Binds these names, where farbus gave them, to the devices that have them now. `None`: there is no such peer.
///
/// # Errors
/// [`CommandFailure`]: the list of peers cannot be changed.
pub fn bind(trust: &TrustStore, name: &str, devices: &[String]) -> Result<Option<Peer>, CommandFailure> {
    let now = shared_now();
    Ok(trust.change(|peers| {
        let peer = peers.find_mut(name)?;
        devices.iter().for_each(|device| bind_to(peer, device, &now));
        Some(peer.clone())
    })?)
}

fn bind_to(peer: &mut Peer, device: &str, now: &[SharedNow]) {
    let called: Vec<_> = now.iter().filter(|shared| shared.name == device).collect();
    // While no device has the name, the permission stays bound to its former device.
    if !called.is_empty() {
        let ids: Option<BTreeSet<DeviceId>> = called.iter().map(|shared| shared.bound_to()).collect();
        peer.bind(device, &ids.unwrap_or_default());
    }
}

/// Explains what a permission for an automatic name applies to.
fn explain(device: &str, now: &[SharedNow]) {
    let Some(shared) = now.iter().find(|shared| shared.name == device && !shared.is_named) else { return };
    match shared.bound_to() {
        Some(id) => {
            say(format!("  {device} is the device {} here, whatever that and others are called later", id.short()))
        }
        None => say(format!(
            "  {device} cannot be known again after a restart: whatever is called '{device}' here may be used\n  \
             give it a name of its own: name=NAME"
        )),
    }
}

/// What a peer may use, for people.
pub fn words(peer: &Peer) -> impl Iterator<Item = String> {
    peer.allow.words().map(|word| match peer.bound.get(word) {
        Some(ids) => format!("{word} ({})", ids.iter().map(|id| id.short()).collect::<Vec<_>>().join(", ")),
        None => word.to_owned(),
    })
}

fn list(name: Option<&str>, json: bool) -> Result<(), CommandFailure> {
    let peers = TrustStore::open()?.peers()?;
    if let Some(name) = name.filter(|name| peers.find(name).is_none()) {
        return Err(no_such_peer(name));
    }
    let now = shared_now();
    let known = HostFolder::of_user().and_then(|folder| KnownDeviceList::load(&folder)).unwrap_or_default();
    let is_automatic = |word: &str| match now.iter().find(|shared| shared.name == word) {
        Some(shared) => !shared.is_named,
        None => match known.iter().find(|device| device.name == word) {
            Some(device) => !device.is_named,
            None => looks_automatic(word),
        },
    };
    let mut all = Vec::new();
    for peer in peers.iter().filter(|peer| name.is_none_or(|name| peer.name.eq_ignore_ascii_case(name))) {
        for word in peer.allow.words() {
            let ids = peer.bound.get(word).cloned().unwrap_or_default();
            let by = match (word, ids.is_empty()) {
                ("all", _) => "all",
                (_, true) => "name",
                (_, false) => "identity",
            };
            let is_meant = |shared: &&SharedNow| match by {
                "all" => true,
                "name" => shared.name == word,
                _ => shared.id().is_some_and(|id| ids.contains(&id)),
            };
            let now = now.iter().filter(is_meant).map(|shared| shared.name.clone()).collect();
            let is_automatic = by != "all" && is_automatic(word);
            all.push(DevicePermission { host: peer.name.clone(), device: word.to_owned(), by, ids, is_automatic, now });
        }
    }
    if json {
        return print_json(&all);
    }
    if all.is_empty() {
        say("No paired host may use anything here. Try: farbus allow HOST DEVICE");
        return Ok(());
    }
    let mut table = table(&["HOST", "DEVICE", "MEANS", "SHARED NOW"]);
    for permission in &all {
        let means = match permission.by {
            "all" => "every device".to_owned(),
            "identity" => permission.ids.iter().map(|id| id.short()).collect::<Vec<_>>().join(", "),
            _ if permission.is_automatic => "whatever is called so (farbus gave that name)".to_owned(),
            _ => "whatever is called so".to_owned(),
        };
        table.add_row([permission.host.clone(), permission.device.clone(), means, permission.now.join(", ")]);
    }
    print_table(&table);
    let is_loose = |permission: &&DevicePermission| permission.by == "name" && permission.is_automatic;
    for DevicePermission { host, device, .. } in all.iter().filter(is_loose) {
        say(format!(
            "{host} may use whatever is called '{device}', which farbus names by order: while the right one is shared, type"
        ));
        say(format!("  farbus allow {host} {device}      or give it a name of its own: name=NAME"));
    }
    Ok(())
}

fn change_grant(
    name: &str,
    devices: &[String],
    verb: &str,
    json: bool,
    change: impl Fn(&mut Peer, &str) -> bool,
) -> Result<(), CommandFailure> {
    let trust = TrustStore::open()?;
    let changed = trust.change(|peers| {
        let peer = peers.find_mut(name)?;
        let unchanged: Vec<_> = devices.iter().filter(|device| !change(peer, device)).cloned().collect();
        Some((peer.clone(), unchanged))
    })?;
    let Some((peer, unchanged)) = changed else { return Err(no_such_peer(name)) };
    for device in devices {
        trust.record(&AuditEvent { device: Some(device), ..of(&peer, verb) });
    }
    let words: Vec<_> = peer.allow.words().collect();
    // With --json a failure is the only object.
    if json && unchanged.is_empty() {
        let may_reserve_high = peer.reserve_high.words().collect();
        return print_json(&GrantChange { host: &peer.name, devices, done: verb, may_use: words, may_reserve_high });
    }
    let may = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
    if !json {
        say(format!("{} may use: {may}", peer.name));
    }
    if !json && !peer.reserve_high.is_empty() {
        let high = peer.reserve_high.words().collect::<Vec<_>>().join(", ");
        say(format!("{} may reserve with high criticality: {high}", peer.name));
    }
    if unchanged.is_empty() {
        return Ok(());
    }
    let hint = if words == ["all"] {
        "\n  it may use all; 'farbus forbid NAME all' first, then allow what it shall have"
    } else {
        ""
    };
    Err(CommandFailure::new(
        FailureKind::Gone,
        format!("{} was not allowed {} by name{hint}", peer.name, unchanged.join(", ")),
    ))
}

/// An event of the audit log: what the owner did to a peer.
pub(super) fn of<'a>(peer: &'a Peer, verb: &'a str) -> AuditEvent<'a> {
    AuditEvent {
        peer: Some(&peer.name),
        fingerprint: Some(peer.fingerprint),
        ..AuditEvent::new(verb, AuditOutcome::Ok)
    }
}

/// The failure if there is no such peer.
pub(super) fn no_such_peer(name: &str) -> CommandFailure {
    CommandFailure::new(
        FailureKind::Gone,
        format!("no host called '{name}' is paired with this one\n  see: farbus peers"),
    )
}
