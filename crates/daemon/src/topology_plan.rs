//! The links between hosts in a configuration: a plan, this host's name in it, and what this host has to share and
//! attach.
//!
//! | a link of the plan | this host | shares | attaches |
//! |---|---|---|---|
//! | debug port | is the target | a bridge, which stands for its port, once it may be enabled | its own end |
//! | debug port | is the host | nothing | the other end, when it may enumerate |
//! | bridge | is the first of the two | the bridge, at once | its own end |
//! | bridge | is the second | nothing | the other end |
//!
//! Each end may be used only by its host. A host reaches its own end through a plain listener of its own, the other
//! host over an encrypted link.
//! encrypted link.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use farbus::common::socket_place::SocketLocation;
use farbus::frontend::redir::PROTOCOL;
use farbus::frontend::{AttachRequest, FrontEndChoice};
use farbus::importer::client::{DeviceTarget, GRACE};
use farbus_io_net::link::host_address::DEFAULT_PORT;
use farbus_io_net::trust::host_name;
use farbus_realtime::topology::TopologyLink;
use serde::Deserialize;
use toml::Spanned;

use super::planned::TopologyPlan;
use super::spec::{DaemonShare, SpannedError};

/// The longest name of a device.
const NAME_BYTES_MAX: usize = 64;
/// The reason that is given for using such a device.
const REASON: &str = "a link between hosts";

/// The table `[topology]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyTable {
    plan: Spanned<PathBuf>,
    host: Option<Spanned<String>>,
    via: Option<Spanned<String>>,
    speed: Option<Spanned<String>>,
    #[serde(default)]
    at: BTreeMap<String, Spanned<String>>,
}

impl TopologyTable {
    /// The file with the plan.
    pub fn plan(&self) -> &Path {
        self.plan.get_ref()
    }
}

/// The table `[topology]`, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyConfig {
    /// The path of the plan, as the configuration names it.
    pub plan: PathBuf,
    /// This host's name in the plan.
    pub host: String,
    /// This host's part; `None` while the plan's file does not exist.
    pub part: Option<HostPlan>,
}

/// This host's part of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// The whole plan.
    pub planned: TopologyPlan,
    /// This host's number in the plan.
    pub me: u32,
    /// The links of this host.
    pub links: Vec<PlannedLink>,
}

/// One link of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLink {
    /// The other host's number in the plan.
    pub to: u32,
    /// The name under which the other host is paired here.
    pub peer: String,
    /// The other host's address for questions, as [`DeviceTarget::address`].
    pub address: String,
    /// This host's role in the link.
    pub role: LinkRole,
    /// The name of the link's device, without the letter of an end.
    pub device: String,
    /// What this host shares for the link, if anything.
    pub shared: Option<DaemonShare>,
    /// What this host attaches for the link.
    pub attach: AttachRequest,
}

/// The role of a host in a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRole {
    /// It lends its debug port.
    Target,
    /// It uses the other host's debug port.
    Host,
    /// The hosts are joined by a bridge that is shared here.
    Bridge,
    /// The hosts are joined by a bridge that the other host shares.
    BridgeThere,
}

impl LinkRole {
    pub const fn as_str(self) -> &'static str {
        match self {
            LinkRole::Target => "debug target",
            LinkRole::Host => "debug host",
            LinkRole::Bridge | LinkRole::BridgeThere => "bridge",
        }
    }

    const fn shares(self) -> bool {
        matches!(self, LinkRole::Target | LinkRole::Bridge)
    }
}

/// The path of the plan, relative to the configuration's folder.
pub fn plan_path(config: &Path, plan: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(plan)
}

/// Checks `table`, for a daemon that serves plain USB/IP at `listen`, with the `text` of the plan.
pub fn joined_from(
    table: TopologyTable,
    listen: &[SocketLocation],
    text: Option<&str>,
) -> Result<TopologyConfig, SpannedError> {
    let via = match table.via.as_ref().map(|word| (word.get_ref().as_str(), word.span())) {
        None | Some(("auto", _)) => FrontEndChoice::AUTO,
        Some(("kernel", _)) => FrontEndChoice::KERNEL,
        Some(("redir", _)) => FrontEndChoice::REDIR,
        Some((other, span)) => {
            return Err((
                Some(span),
                format!("'{other}' is no way for a link to appear: there are kernel, redir and auto"),
            ));
        }
    };
    let speed = table.speed.as_ref().map_or("super", |word| word.get_ref().as_str());
    let what = format!("bridge,speed={speed}");
    if let Some(word) = &table.speed {
        what.parse::<farbus::exporter::sources::what::DeviceSpec>().map_err(|message| (Some(word.span()), message))?;
    }
    let is_own = |location: &&SocketLocation| {
        location.is_local() && !matches!(location, SocketLocation::Address(address) if address.port() == 0)
    };
    let own = listen.iter().find(is_own).ok_or_else(|| {
        let message = "a link's own end comes through a plain listener of this machine: say a port of the loopback or a socket, \
                       such as plain.listen = [\"127.0.0.1:3240\"]";
        (Some(table.plan.span()), message.to_owned())
    })?;
    let host = table.host.as_ref().map_or_else(host_name, |host| host.get_ref().clone());
    let plan = table.plan.get_ref().clone();
    let Some(text) = text else { return Ok(TopologyConfig { plan, host, part: None }) };
    let wrong = |message: String| (Some(table.plan.span()), message);
    let planned = TopologyPlan::parse(text).map_err(|why| wrong(format!("{}: {why}", plan.display())))?;
    let me = planned.host(&host).ok_or_else(|| {
        let all = planned.names.join(", ");
        let message =
            format!("no host of {} is called '{host}', as this one is: say host = one of {all}", plan.display());
        (table.host.as_ref().map_or(table.plan.span(), Spanned::span).into(), message)
    })?;
    for (name, word) in &table.at {
        if planned.host(name).is_none() {
            return Err((Some(word.span()), format!("no host of {} is called '{name}'", plan.display())));
        }
    }
    let sides = planned.topology.links().iter().filter_map(|link| match *link {
        TopologyLink::Debug { target, host } if target == me => Some((LinkRole::Target, me, host)),
        TopologyLink::Debug { target, host } if host == me => Some((LinkRole::Host, target, me)),
        TopologyLink::Bridge { a, b } if a == me => Some((LinkRole::Bridge, me, b)),
        TopologyLink::Bridge { a, b } if b == me => Some((LinkRole::BridgeThere, a, me)),
        _ => None,
    });
    let links = sides.map(|(role, sharer, other)| {
        let to = if role.shares() { other } else { sharer };
        let device = format!("link-{}-{}", planned.name(sharer), planned.name(other));
        let is_word = device.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_word || device.len() + 2 > NAME_BYTES_MAX {
            let what = "hosts that are linked have names of letters, digits, '.', '_' and '-', 57 of them together";
            return Err(wrong(format!("'{device}' is no name for a device: {what}")));
        }
        let peer = table.at.get(planned.name(to)).map_or(planned.name(to), |word| word.get_ref().as_str());
        let paired = format!("{peer}:{DEFAULT_PORT}");
        let address = if role.shares() { own.as_host() } else { paired.clone() };
        let end = if role.shares() { "a" } else { "b" };
        let target = DeviceTarget { address, device: format!("{device}-{end}") };
        let shared = role.shares().then(|| {
            let what = what.parse().map_err(wrong)?;
            Ok(DaemonShare { name: device.clone(), is_named: true, what, reservation: None })
        });
        let attach = attach(target, via);
        Ok(PlannedLink {
            to,
            peer: peer.to_owned(),
            address: paired,
            role,
            device,
            shared: shared.transpose()?,
            attach,
        })
    });
    let links = links.collect::<Result<Vec<_>, SpannedError>>()?;
    Ok(TopologyConfig { plan, host, part: Some(HostPlan { planned, me, links }) })
}

/// Attaches to the kernel if it has vhci-hcd, and otherwise offers the device to programs at a socket.
fn attach(target: DeviceTarget, via: FrontEndChoice) -> AttachRequest {
    let location = (via != FrontEndChoice::KERNEL).then(|| PROTOCOL.default_place(&target.device));
    AttachRequest {
        location,
        // The grace period is set explicitly: a host's own end would get no session otherwise, and a restart could not
        // hand it over.
        grace: Some(GRACE),
        reason: Some(REASON.to_owned()),
        ..AttachRequest::new(target, via)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DaemonConfig;

    /// Parses a configuration as a daemon does that has read the plan.
    fn read(table: &str, plan: Option<&str>) -> Result<DaemonConfig, String> {
        let text = format!("[topology]\nplan = 'plan.toml'\n{table}\n");
        let text = plan.map_or(text.clone(), |plan| DaemonConfig::with_plan(&text, plan));
        DaemonConfig::parse(&text).map_err(|wrong| wrong.1)
    }

    fn part(host: &str, plan: &str) -> HostPlan {
        read(&format!("host = '{host}'"), Some(plan)).unwrap().joined.unwrap().part.unwrap()
    }

    const STAR: &str =
        "hosts = [\"a\", \"b\", \"c\"]\ncables = [[\"a\", \"b\"], [\"a\", \"c\"]]\nwithout_debug = [\"c\", \"a\"]";

    #[test]
    fn each_host_attaches_its_own_end_of_each_of_its_links() {
        let seen = |part: &HostPlan| -> Vec<_> {
            let links = part.links.iter();
            links
                .map(|link| (link.role, link.peer.clone(), link.attach.target.to_string(), link.shared.is_some()))
                .collect()
        };
        let own = |device: &str| {
            format!("{}/{device}", farbus::importer::discovery::local_shares::place_of_daemon().as_host())
        };
        let a = seen(&part("a", STAR));
        assert_eq!(
            a,
            [
                (LinkRole::Host, "b".to_owned(), "b:3240/link-b-a-b".to_owned(), false),
                (LinkRole::Bridge, "c".to_owned(), own("link-a-c-a"), true)
            ]
        );
        assert_eq!(seen(&part("b", STAR)), [(LinkRole::Target, "a".to_owned(), own("link-b-a-a"), true)]);
        let c = seen(&part("c", STAR));
        assert_eq!(c, [(LinkRole::BridgeThere, "a".to_owned(), "a:3240/link-a-c-b".to_owned(), false)]);
        let broker_policy = read("host = 'b'", Some(STAR)).unwrap().broker_policy();
        let own_end = farbus::importer::discovery::local_shares::place_of_daemon().as_host();
        assert_eq!(broker_policy.hosts, [own_end.as_str(), "a:3240"], "its own end, and whom it talks to");
        assert!(broker_policy.plugs && broker_policy.mounts.is_empty() && broker_policy.places.len() == 1);
        let named = read("host = 'b'\nvia = 'kernel'\nat = {a = 'lab3'}", Some(STAR)).unwrap();
        let [link] = &named.joined.as_ref().unwrap().part.as_ref().unwrap().links[..] else { panic!("one link") };
        assert_eq!(
            (link.peer.as_str(), link.address.as_str(), named.broker_policy().places.len()),
            ("lab3", "lab3:3240", 0)
        );
    }

    #[test]
    fn missing_plan_is_no_error_and_a_wrong_one_says_what_is_wrong() {
        let none = read("host = 'a'", None).unwrap().joined.unwrap();
        assert_eq!((none.part, none.host.as_str(), none.plan.as_path()), (None, "a", Path::new("plan.toml")));
        assert_eq!(plan_path(Path::new("/etc/farbus/farbus.toml"), &none.plan), Path::new("/etc/farbus/plan.toml"));
        let why = |table: &str, plan: &str| read(table, Some(plan)).unwrap_err();
        assert!(why("host = 'x'", STAR).contains("say host = one of a, b, c"));
        assert!(why("host = 'a'\nat = {x = 'lab3'}", STAR).contains("called 'x'"));
        assert!(why("host = 'a'\nvia = 'fuse'", STAR).contains("kernel, redir and auto"));
        assert!(why("host = 'a'\nspeed = 'low'", STAR).contains("speed=full, high or super"));
        assert!(why("host = 'a'", "hosts = 2\n").contains("plan.toml: say either"));
        assert!(why("host = 'a b'", "hosts = ['a b', 'c']\nnetwork = 'line'").contains("letters, digits"));
        let hidden = "[plain]\nlisten = ['127.0.0.1:0']\n[topology]\nplan = 'p'";
        assert!(DaemonConfig::parse(hidden).unwrap_err().1.contains("plain.listen = [\"127.0.0.1:3240\"]"));
    }
}
