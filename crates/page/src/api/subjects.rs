//! Which device of which process a command line is about: two processes may have devices of one name.

use farbus_control::process::{ProcessDevice, ProcessStatus, devices_of};

use crate::known::operation::On;

/// The number of the process and the name of the device that `action` does something with, when its command line calls
/// it `subject`: as the command finds it, the first that has the name. `None`: no process has such a device.
///
/// HOST/DEVICE is one that is attached here, or ADDRESS/DEVICE one that a process shares at that address. A name alone
/// is one that is shared here, for every action but `migrate`, which is about what is attached.
pub fn find(processes: &[ProcessStatus], action: &str, subject: &str) -> Option<On> {
    let rank = |process: &ProcessStatus, device: &ProcessDevice| {
        let is = |text: &str| !text.is_empty() && text == subject;
        let is_at_address = subject.rsplit_once('/').is_some_and(|(host, named)| {
            !host.is_empty() && process.address == host && !named.is_empty() && device.name() == named
        });
        let bus_id = device.shared().map_or("", |shared| &shared.bus_id);
        let is_attached = device.shared().is_none() && device.title().contains('/');
        match (is(device.title()) || is_at_address, is(device.name()) || is(bus_id)) {
            (true, _) => Some(0),
            (false, true) if is_attached == (action == "migrate") => Some(1),
            (false, true) => Some(2),
            (false, false) => None,
        }
    };
    let ranked = devices_of(processes).filter_map(|(process, device)| Some((rank(process, device)?, process, device)));
    // The first of several that are as good.
    let (_, process, device) = ranked.min_by_key(|(rank, ..)| *rank)?;
    Some(On { pid: process.pid, name: device.name().to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::known::status::tests::status;

    #[test]
    fn a_device_is_found_once_by_its_process_and_as_a_command_finds_it() {
        let shared = |name: &str| json!({ "name": name, "title": "Example keyboard", "bus_id": "1-1" });
        let processes = json!([
            { "pid": 3, "role": "attach", "devices": [{ "name": "keyboard", "title": "lab3/keyboard" }] },
            { "pid": 7, "role": "daemon", "address": "10.0.0.7:3240", "devices": [shared("disk"), shared("keyboard")] },
            { "pid": 9, "role": "daemon", "address": "unix:/run/b.sock", "devices": [shared("keyboard")] },
        ]);
        let processes = status(processes).processes;
        let found =
            |action: &str, subject: &str| find(&processes, action, subject).map(|found| (found.pid, found.name));
        let keyboard = |pid| Some((pid, "keyboard".to_owned()));
        assert_eq!(found("observe", "keyboard"), keyboard(7));
        assert_eq!(found("observe", "unix:/run/b.sock/keyboard"), keyboard(9));
        assert_eq!(found("observe", "10.0.0.7:3240/keyboard"), keyboard(7));
        assert_eq!(found("observe", "lab3/keyboard"), keyboard(3));
        assert_eq!(found("migrate", "keyboard"), keyboard(3));
        assert_eq!(found("swap", "disk"), Some((7, "disk".to_owned())));
        assert_eq!(found("swap", "1-1"), Some((7, "disk".to_owned())));
        for nothing in ["", "mouse", "lab9/keyboard", "10.0.0.7:3240/mouse", "/keyboard"] {
            assert_eq!(found("observe", nothing), None, "{nothing}");
        }
    }
}
