//! What a configuration says of the links between hosts: a plan, which of its hosts this one is, and what that comes to
//! here.
//!
//! | a link of the plan | this host | shares | attaches |
//! |---|---|---|---|
//! | debug port | is the target | a bridge, which stands for its port, once it may be enabled | its own end |
//! | debug port | is the host | nothing | the other end, when it may enumerate |
//! | bridge | is the first of the two | the bridge, at once | its own end |
//! | bridge | is the second | nothing | the other end |
//!
//! Each end is its host's alone. A host's own end comes through a plain listener of its own, the other one over an
//! encrypted link.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use farbus_io::trust::host_name;
use farbus_realtime::topology::Link;
use serde::Deserialize;
use toml::Spanned;

use super::planned::Planned;
use super::spec::{Shared, Wrong};
use crate::common::host_address::DEFAULT_PORT;
use crate::common::socket_place::Place;
use crate::frontend::redir::PROTOCOL;
use crate::frontend::{Request, Via};
use crate::importer::client::{GRACE, Target};

/// The longest name of a device, as everywhere.
const NAME_BYTES_MAX: usize = 64;
/// What a user of such a device is told to have it for.
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

/// What it says, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The file with the plan, as the configuration names it.
    pub plan: PathBuf,
    /// Which of the plan's hosts this one is.
    pub host: String,
    /// Its part; none while there is no such file.
    pub part: Option<Part>,
}

/// What a plan comes to here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// It.
    pub planned: Planned,
    /// Which of its hosts this one is.
    pub me: u32,
    /// This host's.
    pub links: Vec<JoinedLink>,
}

/// One link, as this host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedLink {
    /// To whom, in the plan.
    pub to: u32,
    /// The name under which that host is paired here.
    pub peer: String,
    /// Where it is asked things, as [`Target::address`].
    pub address: String,
    /// What it is here.
    pub role: Role,
    /// The device that it is, without the letter of an end.
    pub device: String,
    /// What is shared for it here, if anything is.
    pub shared: Option<Shared>,
    /// What is attached for it here.
    pub attach: Request,
}

/// What a host is to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It lends its debug port.
    Target,
    /// It has the other's.
    Host,
    /// A bridge is between them, and shared here.
    Bridge,
    /// A bridge is between them, and shared there.
    BridgeThere,
}

impl Role {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Target => "debug target",
            Role::Host => "debug host",
            Role::Bridge | Role::BridgeThere => "bridge",
        }
    }

    const fn shares(self) -> bool {
        matches!(self, Role::Target | Role::Bridge)
    }
}

/// Where the file with the plan is: beside the configuration, unless that says an absolute path.
pub fn plan_path(config: &Path, plan: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(plan)
}

/// What `table` says, where plain USB/IP is served at `listen`, and this is the `text` of the plan.
pub fn joined_from(table: TopologyTable, listen: &[Place], text: Option<&str>) -> Result<Joined, Wrong> {
    let via = match table.via.as_ref().map(|word| (word.get_ref().as_str(), word.span())) {
        None | Some(("auto", _)) => Via::AUTO,
        Some(("kernel", _)) => Via::KERNEL,
        Some(("redir", _)) => Via::REDIR,
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
        what.parse::<crate::exporter::sources::what::What>().map_err(|message| (Some(word.span()), message))?;
    }
    let is_own = |place: &&Place| place.is_local() && !matches!(place, Place::Address(address) if address.port() == 0);
    let own = listen.iter().find(is_own).ok_or_else(|| {
        let message = "a link's own end comes through a plain listener of this machine: say a port of the loopback or a socket, \
                       such as plain.listen = [\"127.0.0.1:3240\"]";
        (Some(table.plan.span()), message.to_owned())
    })?;
    let host = table.host.as_ref().map_or_else(host_name, |host| host.get_ref().clone());
    let plan = table.plan.get_ref().clone();
    let Some(text) = text else { return Ok(Joined { plan, host, part: None }) };
    let wrong = |message: String| (Some(table.plan.span()), message);
    let planned = Planned::parse(text).map_err(|why| wrong(format!("{}: {why}", plan.display())))?;
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
        Link::Debug { target, host } if target == me => Some((Role::Target, me, host)),
        Link::Debug { target, host } if host == me => Some((Role::Host, target, me)),
        Link::Bridge { a, b } if a == me => Some((Role::Bridge, me, b)),
        Link::Bridge { a, b } if b == me => Some((Role::BridgeThere, a, me)),
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
        let target = Target { address, device: format!("{device}-{end}") };
        let shared = role.shares().then(|| {
            let what = what.parse().map_err(wrong)?;
            Ok(Shared { name: device.clone(), is_named: true, what, reservation: None })
        });
        let attach = attach(target, via);
        Ok(JoinedLink { to, peer: peer.to_owned(), address: paired, role, device, shared: shared.transpose()?, attach })
    });
    let links = links.collect::<Result<Vec<_>, Wrong>>()?;
    Ok(Joined { plan, host, part: Some(Part { planned, me, links }) })
}

/// The kernel has it, where there is one that can; programs find it at a socket otherwise.
fn attach(target: Target, via: Via) -> Request {
    let place = (via != Via::KERNEL).then(|| PROTOCOL.default_place(&target.device));
    Request {
        place,
        // Said, because a host's own end would come without a session otherwise, and not be passed on by a restart.
        grace: Some(GRACE),
        reason: Some(REASON.to_owned()),
        ..Request::new(target, via)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::Config;

    /// A configuration, as a daemon reads it that has read the plan.
    fn read(table: &str, plan: Option<&str>) -> Result<Config, String> {
        let text = format!("[topology]\nplan = 'plan.toml'\n{table}\n");
        let text = plan.map_or(text.clone(), |plan| Config::with_plan(&text, plan));
        Config::parse(&text).map_err(|wrong| wrong.1)
    }

    fn part(host: &str, plan: &str) -> Part {
        read(&format!("host = '{host}'"), Some(plan)).unwrap().joined.unwrap().part.unwrap()
    }

    const STAR: &str =
        "hosts = [\"a\", \"b\", \"c\"]\ncables = [[\"a\", \"b\"], [\"a\", \"c\"]]\nwithout_debug = [\"c\", \"a\"]";

    #[test]
    fn each_host_has_its_end_of_each_of_its_links() {
        let seen = |part: &Part| -> Vec<_> {
            let links = part.links.iter();
            links
                .map(|link| (link.role, link.peer.clone(), link.attach.target.to_string(), link.shared.is_some()))
                .collect()
        };
        let own = |device: &str| {
            format!("{}/{device}", crate::importer::discovery::local_shares::place_of_daemon().as_host())
        };
        let a = seen(&part("a", STAR));
        assert_eq!(
            a,
            [
                (Role::Host, "b".to_owned(), "b:3240/link-b-a-b".to_owned(), false),
                (Role::Bridge, "c".to_owned(), own("link-a-c-a"), true)
            ]
        );
        assert_eq!(seen(&part("b", STAR)), [(Role::Target, "a".to_owned(), own("link-b-a-a"), true)]);
        let c = seen(&part("c", STAR));
        assert_eq!(c, [(Role::BridgeThere, "a".to_owned(), "a:3240/link-a-c-b".to_owned(), false)]);
        let broker_policy = read("host = 'b'", Some(STAR)).unwrap().broker_policy();
        let own_end = crate::importer::discovery::local_shares::place_of_daemon().as_host();
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
    fn without_a_plan_there_is_nothing_to_do_and_a_wrong_one_is_told_what_is_wrong() {
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
        assert!(Config::parse(hidden).unwrap_err().1.contains("plain.listen = [\"127.0.0.1:3240\"]"));
    }
}
