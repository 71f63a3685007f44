//! The checks of `farbus doctor`. Each looks at one thing and says what to type if it is missing.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus::frontend::ANOTHER_DEVICE;
use farbus::hosts::trust::TrustStore;
use farbus_control::units::format_bytes;
use farbus_io_linux::sys::descriptors;
use farbus_io_linux::sys::vhci::Vhci;
use farbus_io_linux::usb::{SharingObstacle, UsbInventory};
use farbus_io_net::link::host_address::{DEFAULT_PORT, PAIRING_PORT, SECURE_PORT};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use farbus_io_net::trust::{HostFolder, damaged_files};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::finding::{CheckFinding, DoctorCheck};

/// All checks, in the order in which they are shown.
pub const CHECKS: &[DoctorCheck] = &[
    DoctorCheck { name: "usbfs", needed_for: "sharing USB devices that are plugged in here", look: usbfs },
    DoctorCheck { name: "vhci", needed_for: "attaching any USB device to this machine's kernel", look: vhci },
    DoctorCheck { name: "fuse", needed_for: "attaching a disk as a file", look: fuse },
    DoctorCheck { name: "namespaces", needed_for: "mounting and testing without root", look: namespaces },
    DoctorCheck { name: "memory", needed_for: "disks that keep working when memory is short", look: memory },
    DoctorCheck { name: "descriptors", needed_for: "using or sharing hundreds of devices at a time", look: open_files },
    DoctorCheck { name: "realtime", needed_for: "pipes and reservations with promised times", look: realtime },
    DoctorCheck { name: "clock", needed_for: "audit lines with the right time; short waits", look: clock },
    DoctorCheck { name: "ports", needed_for: "sharing with other hosts", look: ports },
    DoctorCheck { name: "firewall", needed_for: "letting other hosts in", look: firewall },
    DoctorCheck { name: "state", needed_for: "keeping pairings, names and leases", look: state },
    DoctorCheck { name: "pairing", needed_for: "encrypted use by and of other hosts", look: pairing },
    DoctorCheck { name: "daemon", needed_for: "shares and attachments that outlive a terminal", look: daemon },
    DoctorCheck { name: "page", needed_for: "a browser, Prometheus and programs that ask by HTTP", look: page },
    DoctorCheck { name: "directory", needed_for: "lists and leases of all sites", look: directory },
];

/// Whether the kernel has a module, by the names under which its files list it.
fn has_module_file(name: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = Path::new("/lib/modules").join(release.trim());
    let is_listed = |file: &str| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| {
            text.lines().any(|line| line.split(':').next().is_some_and(|path| path.contains(&format!("/{name}.ko"))))
        })
    };
    is_listed("modules.dep") || is_listed("modules.builtin")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sudo(command: &str) -> String {
    format!("type: {}{command}", if is_root() { "" } else { "sudo " })
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn usbfs() -> CheckFinding {
    let found = match UsbInventory::default().devices() {
        Ok(found) => found,
        Err(error) => {
            return CheckFinding::missing(
                format!("USB devices cannot be listed: {error}"),
                "a kernel with USB, and sysfs",
            );
        }
    };
    let devices: Vec<_> = found.iter().filter(|found| !matches!(found.obstacle, Some(SharingObstacle::Hub))).collect();
    let forbidden =
        devices.iter().filter(|found| matches!(found.obstacle, Some(SharingObstacle::NoPermission { .. }))).count();
    match (devices.len(), forbidden) {
        (0, _) => CheckFinding::ok("no USB device is plugged in"),
        (all, 0) => CheckFinding::ok(format!("{all} USB devices, all may be opened")),
        (all, forbidden) => CheckFinding::limited(
            format!("{forbidden} of {all} USB devices may not be opened by this user"),
            "run 'farbus share' as root, or give your user the device's node with a udev rule:\n  \
             SUBSYSTEM==\"usb\", ATTR{idVendor}==\"VVVV\", ATTR{idProduct}==\"PPPP\", TAG+=\"uaccess\"",
        ),
    }
}

fn vhci() -> CheckFinding {
    match Vhci::open().and_then(|vhci| vhci.ports()) {
        Ok(ports) if is_root() => CheckFinding::ok(format!("vhci-hcd is loaded, with {} ports", ports.len())),
        Ok(ports) => CheckFinding::limited(
            format!("vhci-hcd is loaded, with {} ports; only root may use it", ports.len()),
            "attach as root (sudo farbus attach …); or '--via fuse', '--via nbd', '--via redir' or 'farbus run' without root",
        ),
        Err(_) if has_module_file("vhci-hcd") => {
            CheckFinding::missing("the module vhci-hcd is not loaded", sudo("modprobe vhci-hcd"))
        }
        Err(_) => CheckFinding::missing(
            "this kernel has no module vhci-hcd",
            "on Ubuntu: apt install linux-modules-extra-$(uname -r); on Debian: the package linux-image-amd64 \
             (not the cloud kernel).\n  Without it: '--via fuse' or '--via nbd' for disks, \
             '--via redir' for virtual machines, 'farbus run' for programs that speak USB themselves",
        ),
    }
}

fn fuse() -> CheckFinding {
    match OpenOptions::new().read(true).write(true).custom_flags(0).open("/dev/fuse") {
        Ok(_) if is_root() || is_in_path("fusermount3") => CheckFinding::ok("/dev/fuse can be opened"),
        Ok(_) => CheckFinding::missing(
            "/dev/fuse can be opened, but fusermount3 is not installed, which mounts for users other than root",
            "type: sudo apt install fuse3",
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => CheckFinding::missing(
            "there is no /dev/fuse",
            format!("{}; in a container give it the device /dev/fuse, or use '--via nbd'", sudo("modprobe fuse")),
        ),
        Err(error) => CheckFinding::missing(
            format!("/dev/fuse cannot be opened: {error}"),
            "use '--via nbd', which needs no device node; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
    }
}

fn namespaces() -> CheckFinding {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let next = |key: &str, value: u64| sudo(&format!("sysctl {key}={value}"));
    if number("/proc/sys/user/max_user_namespaces") == Some(0) {
        return CheckFinding::missing("user namespaces are switched off", next("user.max_user_namespaces", 10_000));
    }
    if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) && !is_root() {
        let next = next("kernel.unprivileged_userns_clone", 1);
        return CheckFinding::missing("only root may make user namespaces", next);
    }
    if number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) && !is_root() {
        let next = next("kernel.apparmor_restrict_unprivileged_userns", 0);
        return CheckFinding::limited("AppArmor takes the rights in new user namespaces away", next);
    }
    CheckFinding::ok("user namespaces can be made")
}

/// What farbus keeps in memory at the most for one user of a device, besides its program.
const LOCKED_BYTES_MIN: u64 = 64 << 20;

fn memory() -> CheckFinding {
    let can_lock = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current;
    let cgroup =
        cgroup_limit().map(|limit| format!("; at most {} for this group", format_bytes(limit))).unwrap_or_default();
    match limit {
        _ if can_lock => CheckFinding::ok(format!("memory can be locked{cgroup}")),
        None => CheckFinding::ok(format!("memory can be locked{cgroup}")),
        Some(limit) if limit >= LOCKED_BYTES_MIN => {
            CheckFinding::ok(format!("{} can be locked{cgroup}", format_bytes(limit)))
        }
        Some(limit) => CheckFinding::limited(
            format!("only {} can be locked{cgroup}", format_bytes(limit)),
            "type 'ulimit -l unlimited' as root before, or set LimitMEMLOCK=infinity in the unit. It matters only for\n  \
             disks that this machine writes to while it is short of memory",
        ),
    }
}

/// Descriptors of a daemon for each device that it shares or has attached, in use by another host: its link, what wakes
/// and is waited on, and the sockets of two programs.
const DESCRIPTORS_OF_DEVICE: u64 = 10;
/// Descriptors of a daemon beside those.
const DESCRIPTORS_BESIDE: u64 = 200;
/// Devices for which the limit should be enough: as many as one host may use without its owner saying so.
const DEVICES_WANTED: u64 = farbus_model::budget::DEVICES_MAX_DEFAULT as u64;

fn open_files() -> CheckFinding {
    enough_for(descriptors::limit().hard)
}

fn enough_for(hard: Option<u64>) -> CheckFinding {
    let Some(hard) = hard else { return CheckFinding::ok("a process may have any number of descriptors") };
    let devices = hard.saturating_sub(DESCRIPTORS_BESIDE) / DESCRIPTORS_OF_DEVICE;
    let found = format!("a process may have {hard} descriptors: about {devices} devices in use at a time");
    if devices >= DEVICES_WANTED {
        return CheckFinding::ok(found);
    }
    let wanted = DEVICES_WANTED * DESCRIPTORS_OF_DEVICE + DESCRIPTORS_BESIDE;
    let next =
        format!("for {DEVICES_WANTED}: LimitNOFILE={wanted} in the unit, or as root 'ulimit -Hn {wanted}' before");
    CheckFinding::limited(found, next)
}

/// The least memory.max of this process's cgroups (cgroup v2), bytes.
fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let folder = Path::new("/sys/fs/cgroup").join(path);
    let limit = |folder: &Path| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    folder.ancestors().take_while(|folder| folder.starts_with("/sys/fs/cgroup")).filter_map(limit).min()
}

fn realtime() -> CheckFinding {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    let priority = getrlimit(Resource::Rtprio).current;
    match priority {
        _ if may => CheckFinding::ok("SCHED_DEADLINE may be used"),
        Some(0) => CheckFinding::missing(
            "neither SCHED_DEADLINE nor SCHED_FIFO may be used by this user",
            "run 'farbus pipe' as root (it gives its other rights away), or set LimitRTPRIO=50 or\n  \
             AmbientCapabilities=CAP_SYS_NICE in the unit",
        ),
        _ => CheckFinding::limited(
            "SCHED_FIFO may be used, SCHED_DEADLINE may not",
            "run 'farbus pipe' as root for reserved processor time (it gives its other rights away)",
        ),
    }
}

/// 2026-01-01: no release of farbus is older than that.
const RELEASED: Duration = Duration::from_secs(1_767_225_600);

fn clock() -> CheckFinding {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if now < RELEASED {
        return CheckFinding::missing("the clock is before 2026", sudo("timedatectl set-ntp true"));
    }
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref().map(str::trim) {
        Ok(slow @ ("hpet" | "acpi_pm" | "jiffies")) => CheckFinding::limited(
            format!("the kernel reads the time from {slow}, which takes microseconds"),
            "see 'dmesg | grep -i tsc' for why the processor's counter was given up",
        ),
        Ok(source) => CheckFinding::ok(format!("the time is plausible; the kernel reads it from {source}")),
        Err(_) => CheckFinding::ok("the time is plausible"),
    }
}

fn ports() -> CheckFinding {
    let is_taken = |port: u16| {
        let at = |address: SocketAddr| {
            TcpListener::bind(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        };
        at((Ipv6Addr::UNSPECIFIED, port).into()) || at((Ipv4Addr::UNSPECIFIED, port).into())
    };
    let taken: Vec<u16> =
        [DEFAULT_PORT, SECURE_PORT, PAIRING_PORT].into_iter().filter(|port| is_taken(*port)).collect();
    let is_ours = ask_all(&Question::Version).is_ok_and(|answers| !answers.is_empty());
    let words = taken.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (taken.is_empty(), is_ours) {
        (true, _) => CheckFinding::ok(format!("TCP ports {DEFAULT_PORT}, {SECURE_PORT} and {PAIRING_PORT} are free")),
        (false, true) => CheckFinding::ok(format!("in use: {words}; a farbus of this user runs ('farbus status')")),
        (false, false) => CheckFinding::limited(
            format!("in use by another program: {words}"),
            "see whose it is: ss -ltnp; or choose others: 'farbus share --listen ADDR:PORT --secure ADDR:PORT'",
        ),
    }
}

fn firewall() -> CheckFinding {
    let has = |path: &str, text: &str| fs::read_to_string(path).is_ok_and(|content| content.contains(text));
    if has("/etc/ufw/ufw.conf", "ENABLED=yes") {
        return CheckFinding::limited(
            "ufw is active",
            format!("{}; while you pair, {PAIRING_PORT}, too", sudo(&format!("ufw allow {SECURE_PORT}"))),
        );
    }
    if Path::new("/run/firewalld").exists() || Path::new("/run/firewalld.pid").exists() {
        let ports = format!("firewall-cmd --permanent --add-port={SECURE_PORT}/tcp --add-port={SECURE_PORT}/udp");
        return CheckFinding::limited(
            "firewalld is active",
            format!("{} && {}; while you pair, {PAIRING_PORT}/tcp, too", sudo(&ports), "firewall-cmd --reload"),
        );
    }
    let tables = fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    if tables.lines().any(|table| table == "filter") {
        return CheckFinding::limited(
            "the kernel filters packets (iptables)",
            format!(
                "see that TCP and UDP {SECURE_PORT}, and TCP {PAIRING_PORT} while you pair, are let in: iptables -S INPUT"
            ),
        );
    }
    CheckFinding::ok("neither ufw, firewalld nor iptables is active; nftables' own rules are not looked at")
}

fn state() -> CheckFinding {
    let folder = match HostFolder::of_user() {
        Ok(folder) => folder,
        Err(error) => return CheckFinding::missing("this user has no folder to keep them in", error.to_string()),
    };
    let damaged: Vec<String> = damaged_files(&folder).iter().map(ToString::to_string).collect();
    let at = folder.path().display();
    match damaged.len() {
        0 => CheckFinding::ok(format!("what is in {at} can be read")),
        count => CheckFinding::limited(
            format!("{count} of the files in {at} cannot be used: what they allowed is refused"),
            damaged.join("\n"),
        ),
    }
}

fn pairing() -> CheckFinding {
    if !TrustStore::is_there() {
        return CheckFinding::missing(
            "this host has no key yet",
            "type: farbus pair, which makes one and lets another host in",
        );
    }
    match TrustStore::open().and_then(|trust| trust.peers()) {
        Ok(peers) if peers.iter().next().is_none() => {
            CheckFinding::missing("no host is paired with this one", "type: farbus pair")
        }
        Ok(peers) => {
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            CheckFinding::ok(format!("paired with {}", names.join(", ")))
        }
        Err(error) => CheckFinding::missing("the list of paired hosts cannot be read", error.to_string()),
    }
}

fn daemon() -> CheckFinding {
    let answers = ask_all(&Question::Status).unwrap_or_default();
    let role = |answer: &Answer| match answer {
        Answer::Ok(status) => status["role"].as_str().map(str::to_owned),
        _ => None,
    };
    let roles: Vec<String> = answers.iter().filter_map(|(_, answer)| role(answer)).collect();
    let devices = answers.iter().filter_map(|(_, answer)| match answer {
        Answer::Ok(status) if status["role"] == "daemon" => status["devices"].as_array(),
        _ => None,
    });
    let other = devices.flatten().filter(|device| device["state"] == ANOTHER_DEVICE);
    let other: Vec<&str> = other.filter_map(|device| device["title"].as_str()).collect();
    if let Some(first) = other.first() {
        return CheckFinding::limited(
            format!("the daemon waits, because another device is where its own was: {}", other.join(", ")),
            format!(
                "'farbus status' says which; to attach what is there now, type: farbus daemon reload --adopt {first}"
            ),
        );
    }
    let shared = answers.iter().filter_map(|(_, answer)| match answer {
        Answer::Ok(status) => status["devices"].as_array(),
        _ => None,
    });
    if let Some(other) = shared.flatten().find(|device| device["another_in_port"].is_object()) {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let [was, is, next] = ["was", "is", "next"].map(|key| text(&other["another_in_port"][key]));
        let name = text(&other["name"]);
        return CheckFinding::limited(
            format!("another device is in the port of '{name}': it was {was}, and is {is}"),
            next,
        );
    }
    match roles.iter().any(|role| role == "daemon") {
        true => CheckFinding::ok("a daemon of this user runs"),
        false => CheckFinding::missing(
            "no daemon of this user runs",
            "type: farbus daemon --help; a package's unit: systemctl enable --now farbus",
        ),
    }
}

fn page() -> CheckFinding {
    let answers = ask_all(&Question::Status).unwrap_or_default();
    let status = answers.into_iter().find_map(|(_, answer)| match answer {
        Answer::Ok(status) if status["page"].is_object() => Some(status["page"].clone()),
        _ => None,
    });
    let Some(status) = status else { return CheckFinding::ok("the daemon has none; 'farbus page' shows one") };
    match (status["at"].as_str(), status["failure"].as_str()) {
        (Some(at), _) => CheckFinding::ok(format!("the daemon's is at {at}")),
        (None, why) => CheckFinding::limited(
            format!("the daemon's is not there: {}", why.unwrap_or("it is being started")),
            "choose another 'listen' in [page] of the configuration, then: farbus daemon reload",
        ),
    }
}

fn directory() -> CheckFinding {
    let answers = ask_all(&Question::Status).unwrap_or_default();
    let status = answers.into_iter().find_map(|(_, answer)| match answer {
        Answer::Ok(status) if status["directory"].is_object() => Some(status["directory"].clone()),
        _ => None,
    });
    let Some(status) = status else { return CheckFinding::ok("none is configured: paired hosts ask each other") };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let at = text(&status["at"]);
    match &status["trouble"] {
        serde_json::Value::Null => {
            let found = format!("{at} has {} devices of {} hosts", status["devices"], status["hosts"]);
            CheckFinding::ok(found)
        }
        trouble => CheckFinding::limited(format!("{at}: {}", text(&trouble["message"])), text(&trouble["next"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::CapabilityState;

    #[test]
    fn limit_of_descriptors_is_enough_or_says_for_how_many_devices_it_is() {
        assert_eq!(enough_for(None).state, CapabilityState::Ok);
        assert_eq!(enough_for(Some(524_288)).state, CapabilityState::Ok);
        let few = enough_for(Some(4096));
        assert_eq!(few.state, CapabilityState::Limited);
        assert!(few.found.contains("about 389 devices"), "{}", few.found);
        assert!(few.next.is_some_and(|next| next.contains("LimitNOFILE=10440")));
    }

    #[test]
    fn every_check_finds_something_and_says_what_to_do_if_it_is_missing() {
        for check in CHECKS {
            let finding = (check.look)();
            assert!(!finding.found.is_empty(), "{}", check.name);
            assert_eq!(
                finding.next.is_some(),
                finding.state != super::super::finding::CapabilityState::Ok,
                "{}: {finding:?}",
                check.name
            );
        }
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn port_of_another_program_is_named() {
        let Ok(_taken) = TcpListener::bind((Ipv4Addr::LOCALHOST, PAIRING_PORT)) else { return };
        let finding = ports();
        assert!(finding.found.contains(&PAIRING_PORT.to_string()), "{finding:?}");
    }
}
