//! Which actions a device's state offers, each with the command line that does the same.

use std::net::SocketAddr;

use farbus_control::device::DeviceStatus;
use farbus_control::process::{ProcessDevice, ProcessStatus, devices_of};
use farbus_io_net::link::host_address::DEFAULT_PORT;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::forms;
use crate::api::table::action;
use crate::known::lab::{LabDevice, LabHost};

/// An action that is offered for a device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Offer {
    /// The name of the action.
    pub action: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The parameters that are known; the body of the request.
    pub parameters: Map<String, Value>,
    /// Parameters that have to be added: those that are required and not known.
    pub missing: Vec<&'static str>,
    /// The command line that does the same; absent while a parameter is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What it does to this device, a few words.
    #[serde(skip)]
    pub what: &'static str,
    /// The command line with words in capitals in place of what is missing.
    #[serde(skip)]
    pub line: String,
}

/// What is offered for a device of a process, the likeliest first.
pub fn of(process: &ProcessStatus, device: &ProcessDevice) -> Vec<Offer> {
    // What a program has ends with the program, and what 'farbus nbd' serves with that.
    if device.name().is_empty() || process.role == "run" || process.role == "nbd" {
        return Vec::new();
    }
    match device {
        ProcessDevice::Shared(shared) => of_shared(process, shared),
        ProcessDevice::Failed(_) => Vec::new(),
        ProcessDevice::Attached(_) | ProcessDevice::Pipe(_) => of_attached(device),
    }
}

fn of_shared(process: &ProcessStatus, device: &DeviceStatus) -> Vec<Offer> {
    let mut offers = Vec::new();
    let mut offer = |name: &str, what: &'static str, given: Value| offers.extend(self::offer(name, what, given));
    let name = device.name.as_str();
    // As the page's status calls it where another process shares one of that name.
    let called = device.called.as_deref().unwrap_or(name);
    let target = || target_of(process, name);
    if device.state == "in use" {
        offer("release", "take it back from its user", json!({ "device": called }));
    }
    if device.state == "available" && device.lease.is_none() {
        offer("attach", "attach it here", json!({ "target": target() }));
    }
    offer("allow", "let a paired host use it", json!({ "device": name }));
    offer("forbid", "take that back from a paired host", json!({ "device": name }));
    match device.stream.as_deref() {
        Some("bytes") => {}
        Some(_) if device.is_observable => offer("picture", "look at its picture", json!({ "target": target() })),
        None if device.is_observable => {
            offer("observe", "record what it sends to its user", json!({ "target": target() }));
        }
        _ => {}
    }
    if device.has_console {
        offer("console", "show its serial console", json!({ "target": target() }));
    }
    match &device.medium {
        Some(medium) if medium.is_swapping => {
            offer("swap-cancel", "cancel the swap: its data stay where they are", json!({ "device": called }));
        }
        Some(_) => offer("swap", "move its data to another medium", json!({ "device": called })),
        None => {}
    }
    // What takes it from everybody is the last that one looks for.
    if process.role == "daemon" {
        offer("unshare", "stop sharing it", json!({ "device": name }));
    }
    offers
}

fn of_attached(device: &ProcessDevice) -> Vec<Offer> {
    let mut offers = Vec::new();
    let mut offer = |name: &str, what: &'static str, given: Value| offers.extend(self::offer(name, what, given));
    // Two hosts may have a device of one name.
    let target = Some(device.title()).filter(|title| title.contains('/')).unwrap_or(device.name());
    match device.state() {
        "held" | "following" => offer("resume", "let it continue here", json!({ "device": target })),
        "failed" => return offers,
        _ => {}
    }
    offer("detach", "detach it", json!({ "device": target }));
    if device.state() == "attached" {
        offer("migrate", "move it to another host", json!({ "device": target }));
        offer("swap", "move its disk to this machine", json!({ "device": target }));
        // Of a disk nothing is recorded; of anything else, if its owner permits it.
        if device.mode().is_none() && target.contains('/') {
            offer("observe", "record what it sends, if its owner permits it", json!({ "target": target }));
            offer("console", "show its serial console, if it has one", json!({ "target": target }));
        }
        let mut modules = device.attached().into_iter().flat_map(|attached| &attached.modules);
        if modules.any(|module| module.split(':').next() == Some("pause")) {
            offer("module-pause", "stop what passes through its modules", json!({ "device": target }));
            offer("module-resume", "let it pass again", json!({ "device": target }));
        }
    }
    offers
}

/// Whether a command with this target observes a device that one of the processes has: shared here, or attached here.
pub fn is_listed(processes: &[ProcessStatus], target: &str) -> bool {
    devices_of(processes).any(|(process, device)| {
        let name = device.name();
        match device.shared().is_some() {
            true => !name.is_empty() && target == target_of(process, name),
            false => target.contains('/') && [device.title(), name].contains(&target),
        }
    })
}

/// What is offered for a device of another host. What a third host has a lease of is refused, and is not offered; what
/// that is, the host says, and may be wrong.
pub fn of_other(host: &LabHost, device: &LabDevice, own_name: &str) -> Vec<Offer> {
    let is_free = device.state == "available" || (device.state == "leased" && device.user.as_deref() == Some(own_name));
    let target = host.target(device).filter(|_| is_free);
    let offer = |target| offer("attach", "attach it here", json!({ "target": target }));
    target.and_then(offer).into_iter().collect()
}

/// A device that a process of this machine shares, as a command finds it: by its name alone only where names are looked
/// for (a share's own socket, the default port).
fn target_of(process: &ProcessStatus, name: &str) -> String {
    let address = process.address.as_str();
    let is_own_socket = |path: &str| path.rsplit('/').next().is_some_and(|file| file.starts_with("share-"));
    match (address.strip_prefix("unix:"), address.parse::<SocketAddr>()) {
        (Some(path), _) if !is_own_socket(path) => format!("{address}/{name}"),
        (None, Ok(at)) if at.ip().is_unspecified() && at.port() != DEFAULT_PORT => {
            format!("localhost:{}/{name}", at.port())
        }
        (None, Ok(at)) if !at.ip().is_unspecified() && (at.port() != DEFAULT_PORT || !at.ip().is_loopback()) => {
            format!("{at}/{name}")
        }
        _ => name.to_owned(),
    }
}

fn offer(name: &str, what: &'static str, given: Value) -> Option<Offer> {
    let action = action(name)?;
    let Value::Object(parameters) = given else { return None };
    let missing: Vec<_> = action.required().into_iter().filter(|name| !parameters.contains_key(*name)).collect();
    let (line, wrong) = forms::line(action, &parameters);
    // Others name devices: one with a name that no command takes is offered nothing.
    if wrong.is_some() {
        return None;
    }
    let command = if missing.is_empty() { Some(action.command(&parameters).ok()?.line()) } else { None };
    Some(Offer { action: action.name, summary: action.summary, parameters, missing, command, what, line })
}

/// The command line that the owner of a device most likely wants next; `None` if nothing is urgent.
pub fn first(process: &ProcessStatus, device: &ProcessDevice) -> Option<String> {
    let state = device.state();
    let is_quiet = state == "moved away" || (process.role == "share" && state == "available");
    of(process, device).into_iter().next().filter(|_| !is_quiet).map(|offer| offer.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::lab;
    use crate::known::status::tests::{device as device_of, process};

    fn offered(role: &str, device: Value) -> Vec<(&'static str, Option<String>)> {
        let offers = of(&process(json!({ "role": role })), &device_of(device));
        offers.into_iter().map(|offer| (offer.action, offer.command)).collect()
    }

    #[test]
    fn a_device_is_offered_what_its_state_permits_with_the_command_line() {
        let used = json!({ "name": "a b", "bus_id": "1-1", "state": "in use" });
        let offers = offered("share", used.clone());
        assert_eq!(offers[0], ("release", Some("farbus release 'a b'".to_owned())));
        assert!(!offers.iter().any(|(name, _)| *name == "unshare"), "its end is the end of the share");
        assert!(offered("daemon", used).iter().any(|(name, _)| *name == "unshare"));
        let attached = json!({ "name": "disk", "title": "lab3:3241/disk", "state": "attached" });
        let offers = offered("attach", attached.clone());
        assert_eq!(offers[0], ("detach", Some("farbus detach lab3:3241/disk".to_owned())));
        assert!(offers.iter().any(|(name, command)| *name == "migrate" && command.is_none()), "where to is missing");
        assert_eq!(offered("run", attached), []);
        let held = json!({ "name": "disk", "title": "lab3:3241/disk", "state": "held" });
        assert_eq!(offered("attach", held)[0].0, "resume");
    }

    #[test]
    fn a_device_of_another_host_is_attached_by_one_word_whatever_its_name_is() {
        let line = |host: &str, name: &str, state: &str| {
            let host = lab::tests::host(host, Vec::new());
            let device = lab::tests::lab_device(json!({ "name": name, "state": state, "user": "desk" }));
            of_other(&host, &device, "desk").into_iter().next().map(|offer| (offer.line, offer.parameters))
        };
        let (plain, given) = line("lab3", "board", "available").unwrap();
        assert_eq!((plain.as_str(), &given["target"]), ("farbus attach lab3/board", &json!("lab3/board")));
        for (host, name) in [("lab 3", "$(reboot)"), ("lab3", "a;b'c`d`"), ("-f", "x"), ("lab3", "a\nb\x1b[2J")] {
            let Some((line, _)) = line(host, name, "available") else { continue };
            assert!(!line.chars().any(char::is_control), "{line:?}");
            let script = format!("farbus() {{ printf '<%s>' \"$@\"; }}; {line}");
            let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            let message = String::from_utf8(output.stdout).unwrap();
            let guard = if host.starts_with('-') { "<--><" } else { "<" };
            assert_eq!(message, format!("<attach>{guard}{host}/{name}>"), "{line}");
        }
        assert!(line("lab3", "a;b'c`d`", "available").is_some(), "one that a command takes is offered");
        assert!(line("lab3", "a/b", "available").is_none(), "another host would be meant");
        assert!(line("lab3", "board", "in use").is_none());
        assert!(line("lab3", "board", "leased").is_some(), "this host has the lease");
    }

    #[test]
    fn a_line_has_words_in_capitals_in_place_of_what_is_missing() {
        let line = |role: &str, device: Value, action: &str| {
            let offers = of(&process(json!({ "role": role })), &device_of(device));
            offers.into_iter().find(|offer| offer.action == action).map(|offer| offer.line)
        };
        let shared = json!({ "name": "a b", "bus_id": "1-1", "state": "available", "medium": {} });
        assert_eq!(line("share", shared.clone(), "allow").as_deref(), Some("farbus allow HOST 'a b'"));
        assert_eq!(line("share", shared.clone(), "swap").as_deref(), Some("farbus swap 'a b' --to=block:/PATH"));
        assert_eq!(line("share", shared, "attach").as_deref(), Some("farbus attach 'a b'"));
        let attached = json!({ "name": "disk", "title": "lab3/disk", "state": "attached" });
        assert_eq!(line("attach", attached, "migrate").as_deref(), Some("farbus migrate lab3/disk --to=HOST"));
        // Every parameter that may be missing has a word that its action takes.
        for action in crate::api::table::all() {
            let offer = offer(action.name, "", json!({})).unwrap_or_else(|| panic!("{}", action.name));
            assert_eq!(offer.command.is_none(), !action.required().is_empty(), "{}", action.name);
            assert_eq!(offer.missing, action.required());
        }
    }

    #[test]
    fn a_shared_device_is_named_as_a_command_finds_it() {
        for (address, target) in [
            ("unix:/run/user/7/farbus/share-5.sock", "keyboard"),
            ("unix:/srv/lab.sock", "unix:/srv/lab.sock/keyboard"),
            ("127.0.0.1:3240", "keyboard"),
            ("0.0.0.0:3240", "keyboard"),
            ("127.0.0.1:4000", "127.0.0.1:4000/keyboard"),
            ("0.0.0.0:4000", "localhost:4000/keyboard"),
            ("10.0.0.7:3240", "10.0.0.7:3240/keyboard"),
            ("[::1]:4000", "[::1]:4000/keyboard"),
            ("", "keyboard"),
        ] {
            assert_eq!(target_of(&process(json!({ "address": address })), "keyboard"), target, "{address}");
        }
    }

    #[test]
    fn what_may_be_observed_is_offered_to_be_recorded_and_a_disk_is_not() {
        let observe = |role: &str, device: Value| {
            let offers = of(&process(json!({ "role": role })), &device_of(device));
            offers.into_iter().find(|offer| offer.action == "observe").map(|offer| (offer.command, offer.line))
        };
        let shared = |is_observable: bool| json!({ "name": "a b", "bus_id": "1-1", "state": "in use", "is_observable": is_observable });
        let line = "farbus observe --pcapng 'a b'".to_owned();
        assert_eq!(observe("share", shared(true)), Some((Some(line.clone()), line + " > FILE.pcapng")));
        assert_eq!(observe("share", shared(false)), None);
        let attached = json!({ "name": "keyboard", "title": "lab3/keyboard", "state": "attached" });
        let (command, _) = observe("attach", attached.clone()).unwrap();
        assert_eq!(command.as_deref(), Some("farbus observe --pcapng lab3/keyboard"));
        let mut disk = attached;
        disk["mode"] = json!("exclusive");
        assert_eq!(observe("attach", disk), None);
    }

    #[test]
    fn a_console_is_offered_where_there_is_one_or_may_be_one() {
        let console = |role: &str, device: Value| {
            let offers = of(&process(json!({ "role": role })), &device_of(device));
            offers.into_iter().find(|offer| offer.action == "console").map(|offer| (offer.command, offer.line))
        };
        let shared = |has_console: bool| json!({ "name": "a b", "bus_id": "1-1", "state": "in use", "has_console": has_console });
        let line = "farbus observe --console 'a b'".to_owned();
        assert_eq!(console("share", shared(true)), Some((Some(line.clone()), line)));
        assert_eq!(console("share", shared(false)), None);
        let mut attached = json!({ "name": "serial", "title": "lab3/serial", "state": "attached" });
        let line = "farbus observe --console lab3/serial".to_owned();
        assert_eq!(console("attach", attached.clone()), Some((Some(line.clone()), line)));
        attached["mode"] = json!("exclusive");
        assert_eq!(console("attach", attached), None, "a disk");
    }

    #[test]
    fn a_stream_is_offered_to_be_looked_at_if_its_owner_permits_it_and_it_has_pictures() {
        let offered = |stream: &str, is_observable: bool| {
            let device = json!({
                "name": "cam", "bus_id": "1-1", "state": "in use", "stream": stream, "is_observable": is_observable,
            });
            let offers = of(&process(json!({ "role": "share", "address": "127.0.0.1:4000" })), &device_of(device));
            let is_shown = |offer: &Offer| offer.action == "picture" || offer.action == "observe";
            offers.into_iter().find(is_shown).map(|offer| offer.line)
        };
        let line = "farbus stream read --observe --pictures --rate 4 127.0.0.1:4000/cam > FILE.png";
        assert_eq!(offered("yuyv 640x480 at 30/s", true).as_deref(), Some(line));
        assert_eq!(offered("yuyv 640x480 at 30/s", false), None);
        assert_eq!(offered("bytes", true), None);
    }

    #[test]
    fn most_likely_action_comes_first() {
        let first = |role: &str, state: &str| {
            let device = json!({ "name": "disk", "title": "lab3/disk", "state": state });
            first(&process(json!({ "role": role })), &device_of(device))
        };
        assert_eq!(first("share", "in use").as_deref(), Some("farbus release disk"));
        let of_two = json!({ "name": "disk", "bus_id": "1-1", "state": "in use", "called": "disk@7" });
        assert_eq!(
            of(&process(json!({ "role": "share" })), &device_of(of_two))[0].command.as_deref(),
            Some("farbus release disk@7")
        );
        assert_eq!(first("share", "available"), None);
        assert_eq!(first("share", "moved away"), None);
        assert_eq!(first("daemon", "available").as_deref(), Some("farbus attach disk"));
        assert_eq!(first("daemon", "attached").as_deref(), Some("farbus detach lab3/disk"));
        assert_eq!(first("attach", "held").as_deref(), Some("farbus resume lab3/disk"));
        assert_eq!(first("run", "attached"), None);
        assert_eq!(first("nbd", "attached"), None);
    }
}
