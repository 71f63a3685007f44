//! A device on the command line of `farbus share`, and what is printed of it once it is shared.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use farbus::devices::follow::FollowPolicy;
use farbus::devices::identities::naming::split_name;
use farbus::exporter::sources::what::DeviceSpec;
use farbus::hosts::trust::TrustStore;
use farbus_control::share::ListeningPlace;
use farbus_io_net::trust::{DeviceId, Peer};

use super::super::output::say;

/// A device to be shared, and the name that its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareSpec {
    /// What is to be shared, parsed.
    pub what: DeviceSpec,
    /// The name that its owner gave it.
    pub name: Option<String>,
    /// What was typed.
    pub text: String,
    /// What was typed, without the name.
    pub words: String,
}

impl ShareSpec {
    /// This device; a disk is shared even if something else on this machine uses it.
    pub fn forced(self) -> Self {
        if self.what.is_forced() || self.what.images().next().is_none() {
            return self;
        }
        Self { words: format!("{},force", self.words), what: self.what.forced(), ..self }
    }
}

impl ShareSpec {
    /// This device, whose share also follows these other devices in its port.
    ///
    /// # Errors
    /// It names no port.
    pub fn following(self, follow: &FollowPolicy) -> Result<Self, String> {
        let what = self.what.clone().following(follow).map_err(|why| format!("{}: {why}", self.text))?;
        let words = match &what {
            DeviceSpec::Usb(spec) if !follow.is_nothing() => spec.to_string(),
            _ => self.words.clone(),
        };
        Ok(Self { what, words, ..self })
    }
}

impl FromStr for ShareSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, name) = split_name(text)?;
        Ok(Self { what: what.parse()?, name, text: text.to_owned(), words: what })
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// What was typed, as a shell reads it.
pub(super) fn quoted_all(what: &[ShareSpec]) -> String {
    what.iter().map(|called| quoted(&called.text)).collect::<Vec<_>>().join(" ")
}

/// Prints the line of a device that is shared now.
pub(super) fn say_device(name: &str, bus_id: &str, ids: &str, speed: impl fmt::Display) {
    say(format!("{name:<10} {bus_id}  {ids}  {speed} speed"));
}

/// Prints where a process listens, and who ends that.
pub(super) fn say_place(ListeningPlace { at, is_secure }: &ListeningPlace, by: &str) {
    let to_whom = if *is_secure { " for paired hosts, encrypted" } else { "" };
    say(format!("listening on {at}{to_whom}   ({by})"));
}

/// What another machine needs in order to use what is shared here.
pub(super) enum ShareReach {
    /// Nothing lets another machine in.
    ThisMachine,
    /// The configuration of the daemon that shares lets no other machine in.
    DaemonAlone(PathBuf),
    /// Paired hosts may come, but none is paired.
    NobodyPaired,
    /// These hosts are paired, and none may use the device.
    NobodyAllowed(Vec<String>),
    /// These hosts may use it.
    Hosts(Vec<String>),
}

impl ShareReach {
    /// `id` is the device's; `config` is the configuration of the daemon that shares it, if one does.
    pub(super) fn of(trust: Option<&TrustStore>, device: &str, id: Option<DeviceId>, config: Option<&Path>) -> Self {
        let Some(trust) = trust else {
            return config.map_or(ShareReach::ThisMachine, |config| ShareReach::DaemonAlone(config.to_owned()));
        };
        // A list that cannot be read is reported when somebody comes.
        let Ok(peers) = trust.peers() else { return ShareReach::NobodyPaired };
        let (may, may_not): (Vec<_>, Vec<_>) = peers.iter().partition(|peer| peer.may_use(device, id));
        let names = |peers: Vec<&Peer>| peers.into_iter().map(|peer| peer.name.clone()).collect::<Vec<_>>();
        match (may.is_empty(), may_not.is_empty()) {
            (false, _) => ShareReach::Hosts(names(may)),
            (true, false) => ShareReach::NobodyAllowed(names(may_not)),
            (true, true) => ShareReach::NobodyPaired,
        }
    }
}

/// Prints how to use a device: here, as `local`, and on another machine. `here` is this host's name.
pub(super) fn say_what_to_type(local: &str, device: &str, what: &str, here: &str, reach: &ShareReach) {
    say(format!("  on this machine:    farbus attach {local}"));
    match reach {
        ShareReach::ThisMachine => {
            say("  on another machine: not yet, this machine alone can use it. To let another in, end this and type");
            say(format!("    here:   farbus share {what} --secure"));
        }
        ShareReach::DaemonAlone(config) => {
            say("  on another machine: only where the daemon listens for it. To serve paired hosts, add to");
            say(format!("    {}:   [secure]", config.display()));
            say("    and type:   farbus daemon restart");
        }
        ShareReach::NobodyPaired => {
            say("  on another machine: not yet, no host is paired with this one. Type");
            say("    here:   farbus pair                        which shows a code");
            say(format!("    there:  farbus pair {here} CODE            and says what that host is called"));
            say(format!("    here:   farbus allow NAME {device}"));
            say(format!("    there:  farbus attach {here}/{device}"));
        }
        ShareReach::NobodyAllowed(hosts) => {
            say(format!("  on another machine: not yet, no paired host may use it ({}). Type", hosts.join(", ")));
            say(format!("    here:   farbus allow {} {device}", hosts[0]));
            say(format!("    there:  farbus attach {here}/{device}"));
        }
        ShareReach::Hosts(hosts) => say(format!("  on {}: farbus attach {here}/{device}", hosts.join(", "))),
    }
}

/// Prints how a serial port is used: with a driver of the kernel, and without.
pub(super) fn say_of_serial_port(device: &str) {
    say(format!("  {device} is a serial port. The machine that uses it needs root and 'modprobe vhci-hcd';"));
    say("    without: farbus attach … --via rfc2217 (pyserial, esptool), pty, tcp, or redir for a virtual machine");
}

#[cfg(test)]
mod tests {
    use farbus_io_linux::usb::UsbDeviceSelector;

    use super::*;

    #[test]
    fn a_device_is_called_what_its_owner_says_behind_it() {
        let called: ShareSpec = "usb:046d:c52b,name=mouse".parse().unwrap();
        assert_eq!(
            (called.what.usb(), called.name.as_deref()),
            (Some(&UsbDeviceSelector::Ids(0x46d, 0xc52b)), Some("mouse"))
        );
        assert!("disk:x,name=1-1".parse::<ShareSpec>().unwrap_err().contains("no name"));
    }
}
