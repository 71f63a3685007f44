//! What a virtual machine has of other hosts, and whether it could be moved: nothing is changed here.

use std::path::{Path, PathBuf};

use farbus::importer::client::DeviceTarget;
use farbus_control::failure::{CommandFailure, FailureKind};
use serde_json::{Value, json};

use super::monitor::{MonitorError, QmpMonitor, plain};
use super::owner::{AttachmentOwner, OwnedAttachment};

/// A machine that can be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMachine {
    /// Its QEMU's process, if it is visible from here.
    pub process: Option<u32>,
    /// The devices of other hosts that it has.
    pub devices: Vec<OwnedAttachment>,
    /// Whether it runs; otherwise it is paused.
    pub is_running: bool,
}

/// Where QEMU keeps the devices that a person has added: with a name, and without.
const PERIPHERALS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// Finds what the machine has of other hosts. `named` are the devices that a person names, or none for all.
///
/// # Errors
/// Why the machine could not be moved with all its devices.
pub fn take(
    monitor: &mut QmpMonitor,
    owner: &dyn AttachmentOwner,
    named: &[String],
) -> Result<VirtualMachine, CommandFailure> {
    let is_running = is_running(monitor)?;
    refuse_busy(monitor)?;
    let process = monitor.process();
    let attached = owner.attached()?;
    let devices = chosen(&attached, process, named)?;
    let has_usb = refuse_usb(monitor, &attached, &devices)?;
    refuse_disks(monitor, &attached, &devices)?;
    if !is_running && has_usb {
        return Err(refused("it is paused, and reads nothing of its USB devices: let it run first ('cont')"));
    }
    if let Some(device) = devices.iter().find(|device| device.state != "attached") {
        let hint = if device.state == "following" { "\n  farbus resume ends that" } else { "" };
        return Err(refused(format!("{} is {}, not attached{hint}", device.title, device.state)));
    }
    Ok(VirtualMachine { process, devices, is_running })
}

fn refused(why: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureKind::Refused, format!("the machine cannot be moved: {why}"))
}

fn ask(monitor: &mut QmpMonitor, command: &'static str, arguments: Value) -> Result<Value, CommandFailure> {
    monitor.execute(command, arguments).map_err(CommandFailure::local)
}

/// An answer that is not what the command answers.
pub fn strange(command: &'static str, answer: &Value) -> MonitorError {
    MonitorError::NotQmp(command, plain(&answer.to_string()))
}

/// Whether it runs; it may be paused, too.
fn is_running(monitor: &mut QmpMonitor) -> Result<bool, CommandFailure> {
    let answer = ask(monitor, "query-status", json!({}))?;
    match answer["status"].as_str() {
        Some("running") => Ok(true),
        Some("paused" | "prelaunch") => Ok(false),
        Some(other) => Err(refused(format!("its status is '{}'", plain(other)))),
        None => Err(CommandFailure::local(strange("query-status", &answer))),
    }
}

/// Refuses a machine that migrates already, and one that says why it cannot.
fn refuse_busy(monitor: &mut QmpMonitor) -> Result<(), CommandFailure> {
    let answer = ask(monitor, "query-migrate", json!({}))?;
    match answer["status"].as_str() {
        // One that has arrived here says 'completed' of its arrival.
        None | Some("none" | "failed" | "cancelled" | "completed") => {}
        Some(status) => {
            let hint = "'migrate_cancel' in its monitor ends a migration";
            return Err(refused(format!("it migrates already: QEMU says '{}'\n  {hint}", plain(status))));
        }
    }
    let reasons: Vec<&str> =
        answer["blocked-reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if reasons.is_empty() { Ok(()) } else { Err(refused(format!("QEMU says: {}", plain(&reasons.join("; "))))) }
}

/// The devices of other hosts that the process has: all that are its, and these have to be those that a person names.
fn chosen(
    attached: &[OwnedAttachment],
    process: Option<u32>,
    named: &[String],
) -> Result<Vec<OwnedAttachment>, CommandFailure> {
    let is_its = |device: &&OwnedAttachment| process.is_some_and(|process| device.processes.contains(&process));
    let its: Vec<OwnedAttachment> = attached.iter().filter(is_its).cloned().collect();
    let who = process.map_or_else(|| "its process is not visible here".to_owned(), |pid| format!("process {pid}"));
    if named.is_empty() {
        return match its.is_empty() {
            false => Ok(its),
            true => Err(CommandFailure::new(
                FailureKind::Gone,
                format!(
                    "the machine ({who}) has no device that you have attached here with --via redir or nbd at a Unix \
                     socket\n  see: farbus status; --device names one that it has all the same"
                ),
            )),
        };
    }
    let mut devices: Vec<OwnedAttachment> = Vec::new();
    for name in named {
        let found = attached.iter().find(|device| device.is_called(name));
        let found = found.ok_or_else(|| {
            CommandFailure::new(
                FailureKind::Gone,
                format!("no device called '{name}' is attached here\n  see: farbus status"),
            )
        })?;
        if !devices.contains(found) {
            devices.push(found.clone());
        }
    }
    match its.iter().find(|device| !devices.contains(device)) {
        None => Ok(devices),
        Some(left) => Err(refused(format!(
            "it has {}, too, which is not named\n  --device {}, or no --device at all for everything that it has",
            left.title, left.title
        ))),
    }
}

impl OwnedAttachment {
    /// Whether a person means it by `name`.
    fn is_called(&self, name: &str) -> bool {
        let target = name.parse::<DeviceTarget>().ok().map(|target| target.to_string());
        self.name == name || self.title == name || target.is_some_and(|target| self.title == target)
    }

    /// The Unix socket at which it is served.
    fn socket(&self) -> Option<PathBuf> {
        match self.at.starts_with('/') {
            true => Some(PathBuf::from(&self.at)),
            false => nbd_socket(&self.at),
        }
    }

    fn is_at(&self, socket: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.socket().is_some_and(|own| real(&own) == real(socket))
    }
}

/// The socket of an NBD URI, `nbd+unix:///NAME?socket=PATH`, whose special characters may be escaped (`%20`).
fn nbd_socket(uri: &str) -> Option<PathBuf> {
    let (_, query) = uri.strip_prefix("nbd+unix:")?.split_once('?')?;
    let path = query.split('&').find_map(|pair| pair.strip_prefix("socket="))?;
    Some(PathBuf::from(unescaped(path)))
}

fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a connection to `socket` is one that moves; otherwise why not.
fn moves(
    socket: &Path,
    what: &str,
    attached: &[OwnedAttachment],
    devices: &[OwnedAttachment],
) -> Result<(), CommandFailure> {
    if devices.iter().any(|device| device.is_at(socket)) {
        return Ok(());
    }
    Err(match attached.iter().find(|device| device.is_at(socket)) {
        Some(device) => refused(format!("{what} is {}: name it, too (--device {})", device.title, device.title)),
        None => refused(format!(
            "{what} is connected to {}, where nothing is that you have attached here\n  \
             unplug it in the machine, or attach it as this user",
            plain(&socket.display().to_string())
        )),
    })
}

/// Refuses USB devices that would not move: other usb-redir devices, and real ones of this host. Returns whether the
/// machine has usb-redir devices that move.
fn refuse_usb(
    monitor: &mut QmpMonitor,
    attached: &[OwnedAttachment],
    devices: &[OwnedAttachment],
) -> Result<bool, CommandFailure> {
    let mut labels = Vec::new();
    for folder in PERIPHERALS {
        let listed = ask(monitor, "qom-list", json!({ "path": folder }))?;
        let listed = listed.as_array().ok_or_else(|| CommandFailure::local(strange("qom-list", &listed)))?.clone();
        for item in &listed {
            let name = item["name"].as_str().unwrap_or_default();
            match item["type"].as_str() {
                Some("child<usb-redir>") => {
                    let path = format!("{folder}/{name}");
                    let label = ask(monitor, "qom-get", json!({ "path": path, "property": "chardev" }))?;
                    labels.push((plain(name), label.as_str().unwrap_or_default().to_owned()));
                }
                Some("child<usb-host>") => {
                    let why = "is a real device of this host: unplug it there, and share it with farbus to keep it";
                    return Err(refused(format!("its usb-host '{}' {why}", plain(name))));
                }
                _ => {}
            }
        }
    }
    if labels.is_empty() {
        return Ok(false);
    }
    let chardevs = ask(monitor, "query-chardev", json!({}))?;
    let chardevs = chardevs.as_array().ok_or_else(|| CommandFailure::local(strange("query-chardev", &chardevs)))?;
    let mut connected = Vec::new();
    for (name, label) in &labels {
        let chardev = chardevs.iter().find(|chardev| chardev["label"] == **label);
        let filename = chardev.and_then(|chardev| chardev["filename"].as_str()).unwrap_or_default();
        if filename.starts_with("disconnected:") {
            continue;
        }
        let what = format!("its usb-redir '{name}'");
        let Some(socket) = filename.strip_prefix("unix:") else {
            let why = "not at a Unix socket, which alone tells what the machine has read";
            let hint = "farbus attach … --via redir --socket PATH";
            return Err(refused(format!("{what} is connected to '{}', {why}\n  {hint}", plain(filename))));
        };
        // QEMU names the near end of the socket, which has no path where QEMU has connected.
        if socket.is_empty() {
            connected.push(name.as_str());
            continue;
        }
        // "unix:PATH,server=on" has the machine wait for connections.
        let socket = socket.split_once(",server").map_or(socket, |(path, _)| path);
        moves(Path::new(socket), &what, attached, devices)?;
    }
    // Each attachment serves one machine's device at a time.
    let ours = devices.iter().filter(|device| device.at.starts_with('/')).count();
    if connected.len() > ours {
        return Err(refused(format!(
            "{} of its usb-redir devices are connected to a socket ({}), and {ours} to what you have attached here\n  \
             unplug the others in the machine, or attach them as this user",
            connected.len(),
            connected.join(", ")
        )));
    }
    Ok(true)
}

/// Refuses block disks of other hosts that would not move.
fn refuse_disks(
    monitor: &mut QmpMonitor,
    attached: &[OwnedAttachment],
    devices: &[OwnedAttachment],
) -> Result<(), CommandFailure> {
    let nodes = ask(monitor, "query-named-block-nodes", json!({ "flat": true }))?;
    let nodes = nodes.as_array().ok_or_else(|| CommandFailure::local(strange("query-named-block-nodes", &nodes)))?;
    for node in nodes {
        let file = node["file"].as_str().unwrap_or_default();
        let name = plain(node["node-name"].as_str().unwrap_or_default());
        if node["drv"] == "nbd" {
            let what = format!("its NBD disk '{name}'");
            let Some(socket) = nbd_socket(file) else {
                return Err(refused(format!(
                    "{what} is connected to '{}', not at a Unix socket\n  farbus attach … --via nbd --socket PATH",
                    plain(file)
                )));
            };
            moves(&socket, &what, attached, devices)?;
        } else if let Some(disk) = attached.iter().find(|disk| disk.at.starts_with('/') && disk.at == file) {
            return Err(refused(format!(
                "its disk '{name}' is {} as a file, which does not move\n  attach it with --via nbd",
                disk.title
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(title: &str, at: &str, processes: &[u32]) -> OwnedAttachment {
        OwnedAttachment {
            pid: 1,
            name: title.rsplit('/').next().unwrap().to_owned(),
            title: title.to_owned(),
            at: at.to_owned(),
            state: "attached".to_owned(),
            processes: processes.to_vec(),
        }
    }

    #[test]
    fn socket_of_an_nbd_uri_is_found_however_it_is_written() {
        for uri in ["nbd+unix:///?socket=/run/a%20b.sock", "nbd+unix://?socket=/run/a b.sock"] {
            assert_eq!(nbd_socket(uri), Some(PathBuf::from("/run/a b.sock")), "{uri}");
        }
        assert_eq!(nbd_socket("nbd+unix:///x?tls=1&socket=/50%&y"), Some(PathBuf::from("/50%")));
        for uri in ["nbd://127.0.0.1:10809/disk", "json:{\"driver\": \"nbd\"}", "nbd+unix:///x", ""] {
            assert_eq!(nbd_socket(uri), None, "{uri}");
        }
    }

    #[test]
    fn machine_moves_with_everything_that_it_has_or_not_at_all() {
        let all =
            [device("lab3:1/disk", "/a", &[7]), device("lab3:1/key", "/b", &[8, 7]), device("lab3:1/x", "/c", &[9])];
        assert_eq!(chosen(&all, Some(7), &[]).unwrap(), all[..2]);
        let named =
            |names: &[&str], process| chosen(&all, process, &names.iter().map(|&name| name.into()).collect::<Vec<_>>());
        assert_eq!(named(&["key", "lab3:1/disk", "key"], Some(7)).unwrap(), [all[1].clone(), all[0].clone()]);
        let left = named(&["disk"], Some(7)).unwrap_err();
        assert!(left.attribute() == FailureKind::Refused && left.to_string().contains("--device lab3:1/key"), "{left}");
        assert_eq!(named(&["x"], None).unwrap(), [all[2].clone()], "its process is in a container");
        for (nobody, process) in [(named(&["printer"], Some(7)), "printer"), (named(&[], Some(5)), "process 5")] {
            let nobody = nobody.unwrap_err();
            assert!(nobody.attribute() == FailureKind::Gone && nobody.to_string().contains(process), "{nobody}");
        }
        assert!(named(&[], None).is_err());
    }
}
