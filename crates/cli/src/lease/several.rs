//! `farbus lease` for several devices, or for whatever a query means.

use std::time::{Duration, Instant};

use farbus::devices::query::DeviceQuery;
use farbus::importer::client::{ANSWER_TIME_MAX, ClientError, DeviceTarget, FailureKind, ImporterClient};
use farbus::importer::discovery::everywhere;
use farbus_control::failure::FailureReport;
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_io_net::trust::fill_random;
use farbus_model::Instant as Moment;
use farbus_session::claims::lease::PROVISIONAL;
use farbus_session::claims::several::{
    ANSWER_TIME, DEVICES_MAX, JointLease, JointLeaseAnswer, JointLeaseStep, JointLeaseVerb,
};
use serde_json::{Value, json};
use signal_hook::iterator::Signals;

use super::answers::{json_of, until};
use super::holding::GrantedLease;
use crate::CommandFailure;
use crate::directory::{SiteDevice, paired, sites};
use crate::output::{print_json, say};

/// How long the command sleeps at a time while it pauses: so soon a signal ends it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often the daemon is asked for what the directory has, while that is waited for.
const LOOK_DIRECTORY_EVERY: Duration = Duration::from_secs(1);
/// How often a query that waits looks for devices that appeared, and for those that went.
const LOOK_FOR_OTHERS_EVERY: Duration = Duration::from_secs(5);

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOutput {
    /// Lines for people.
    Lines,
    /// The result as JSON.
    Json,
    /// Lines on standard error: standard output belongs to a program.
    Program,
}

/// What is asked for, besides the devices.
pub struct LeaseTerms<'a> {
    /// How many of the devices: all that are named, or one that is meant.
    pub count: Option<u8>,
    /// For how long.
    pub span: Duration,
    /// 0 to 9.
    pub priority: u8,
    /// What the devices are needed for, as other hosts read it; `None` if no reason was given.
    pub reason: Option<&'a str>,
    /// Whether to fail if they are not free.
    pub no_wait: bool,
    /// To whom standard output belongs.
    pub output: LeaseOutput,
}

impl LeaseTerms<'_> {
    /// Says for what the command waits.
    pub fn say_wait(&self, line: String) {
        match self.output {
            LeaseOutput::Lines => say(line),
            LeaseOutput::Json => {}
            LeaseOutput::Program => eprintln!("farbus: {line}"),
        }
    }
}

/// A device that may be leased. All hosts order devices by host key and name, so those that want the same meet at the
/// first of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseCandidate {
    host_key: String,
    device: String,
    address: String,
}

impl LeaseCandidate {
    fn target(&self) -> DeviceTarget {
        DeviceTarget { address: self.address.clone(), device: self.device.clone() }
    }
}

/// The devices that the command line names: as targets, or by a query.
///
/// # Errors
/// A target is not offered, is named twice, or is of no paired host; the query means too few or too many devices.
fn candidates(
    client: &ImporterClient,
    targets: &[DeviceTarget],
    query: &DeviceQuery,
    wanted: usize,
) -> Result<Vec<LeaseCandidate>, CommandFailure> {
    let mut all: Vec<LeaseCandidate> = Vec::new();
    for target in targets {
        let key = client.key_of(&target.address)?.ok_or_else(|| {
            let why = "a host leases to paired hosts only, and this one is not paired\n  pair with it: farbus pair";
            CommandFailure::new(FailureKind::Refused, format!("{}: {why}", target.shown()))
        })?;
        let offered = client.offers(&target.address, ANSWER_TIME_MAX)?;
        let found = offered.iter().find(|device| device.name == target.device || device.bus_id == target.device);
        let Some(found) = found else {
            let offered = offered.into_iter().map(|device| device.name).collect();
            return Err(ClientError::NoDevice { target: target.clone(), offered }.into());
        };
        let candidate = LeaseCandidate { host_key: key, device: found.name.clone(), address: target.address.clone() };
        if all.iter().any(|other| (&other.host_key, &other.device) == (&candidate.host_key, &candidate.device)) {
            return Err(CommandFailure::local(format!("{} is named twice", target.shown())));
        }
        all.push(candidate);
    }
    if targets.is_empty() {
        let silent;
        (all, silent) = meant(client, query);
        silent.iter().for_each(|(_, line)| eprintln!("farbus: {line}"));
    }
    let count = all.len();
    if count < wanted {
        let what = match count {
            0 => "no device".to_owned(),
            1 => "one device alone".to_owned(),
            _ => format!("{count} devices alone"),
        };
        let are = if wanted == 1 { "is" } else { "are" };
        let why = format!("{what} of the paired hosts is meant, and {wanted} {are} wanted\n  see: farbus list");
        return Err(CommandFailure::new(FailureKind::Gone, why));
    }
    all.sort();
    // The first in the order are tried first; so many are enough.
    all.truncate(DEVICES_MAX);
    if wanted > all.len() {
        return Err(CommandFailure::local(format!("{DEVICES_MAX} devices at once at most")));
    }
    Ok(all)
}

/// A host that did not answer: its address, and what is to be said of it.
type UnreachableHost = (String, String);

/// The devices of paired hosts that a query means, by what these hosts say, and the hosts that did not answer. If there
/// is a directory, it says which of them need not be asked.
fn meant(client: &ImporterClient, query: &DeviceQuery) -> (Vec<LeaseCandidate>, Vec<UnreachableHost>) {
    let paired = paired();
    // What an unreachable directory said may be old: then all are asked.
    let hosts = match sites(query, &paired).filter(|sites| sites.trouble.is_none()) {
        None => everywhere::all().hosts,
        Some(sites) => {
            let has_meant = |key: &String| {
                sites.devices.iter().any(|site| site.host_key == *key && query.matches(&site.host, &site.device))
            };
            let unlisted = paired.into_iter().filter(|(key, _)| !sites.hosts.contains_key(key) || has_meant(key));
            everywhere::of_paired(unlisted.map(|(_, name)| name))
        }
    };
    let (mut all, mut silent) = (Vec::new(), Vec::new());
    for host in hosts {
        let address = farbus::importer::client::address_of(&host.name);
        // This machine's own shares and unpaired hosts lease nothing.
        let Ok(Some(key)) = client.key_of(&address) else { continue };
        match host.devices {
            Ok(devices) => {
                all.extend(devices.into_iter().filter(|device| query.matches(&host.name, device)).map(|device| {
                    LeaseCandidate { host_key: key.clone(), device: device.name, address: address.clone() }
                }));
            }
            Err(failure) => {
                let line = format!("{}: {}: {}", failure.attribute.as_str(), host.name, failure.message);
                silent.push((address, line));
            }
        }
    }
    (all, silent)
}

/// The devices that a query means now, if they are others than `before` and enough: one whose host does not answer
/// stays meant.
fn others(
    client: &ImporterClient,
    query: &DeviceQuery,
    wanted: usize,
    before: &[LeaseCandidate],
) -> Option<Vec<LeaseCandidate>> {
    let (mut now, silent) = meant(client, query);
    let is_silent = |candidate: &&LeaseCandidate| silent.iter().any(|(address, _)| *address == candidate.address);
    now.extend(before.iter().filter(is_silent).cloned());
    now.sort();
    now.truncate(DEVICES_MAX);
    (now.len() >= wanted && now != before).then_some(now)
}

/// Waits until the directory has so many devices of paired hosts that a query means.
///
/// # Errors
/// A signal came first.
fn wait_for(query: &DeviceQuery, wanted: usize, signals: &mut Signals) -> Result<(), CommandFailure> {
    let count = || {
        sites(query, &paired()).map_or(0, |sites| {
            let is_meant = |site: &&SiteDevice| site.is_paired && query.matches(&site.host, &site.device);
            sites.devices.iter().filter(is_meant).count()
        })
    };
    loop {
        // First a pause: what the directory says may differ from what the hosts have just said.
        let again = Instant::now() + LOOK_DIRECTORY_EVERY;
        while Instant::now() < again {
            if let Some(signal) = signals.pending().next() {
                return Err(nothing_leased(signal));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if count() >= wanted {
            return Ok(());
        }
    }
}

/// A signal came before the devices were leased.
fn nothing_leased(signal: i32) -> CommandFailure {
    CommandFailure::interrupted(signal, "nothing is leased")
}

/// Leases `count` of the devices that are named or meant, or none.
///
/// # Errors
/// What another host has, if it is not waited for; see [`candidates`].
pub fn request(
    args: &LeaseTerms<'_>,
    targets: &[DeviceTarget],
    query: &DeviceQuery,
    signals: &mut Signals,
) -> Result<Vec<GrantedLease>, CommandFailure> {
    let client = ImporterClient::default();
    let wanted = args.count.map_or(targets.len().max(1), usize::from);
    let is_waited_for = targets.is_empty() && !args.no_wait;
    let mut is_said = false;
    let mut all = loop {
        match candidates(&client, targets, query, wanted) {
            Err(failure)
                if is_waited_for && failure.attribute() == FailureKind::Gone && sites(query, &paired()).is_some() =>
            {
                if !std::mem::replace(&mut is_said, true) {
                    args.say_wait(format!(
                        "waiting for {wanted} of the devices that are meant to be there   (Ctrl-C ends)"
                    ));
                }
                wait_for(query, wanted, signals)?;
            }
            found => break found?,
        }
    };
    let mut seed = [0; 8];
    fill_random(&mut seed);
    let mut several = JointLease::new(all.len(), wanted, !args.no_wait, u64::from_le_bytes(seed));
    let began = Instant::now();
    let now = || Moment::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut answers: Vec<Option<LeaseAnswer>> = all.iter().map(|_| None).collect();
    let mut whys: Vec<Option<FailureReport>> = all.iter().map(|_| None).collect();
    let mut shown = None;
    let mut interrupted_by = None;
    let mut looked_at = Instant::now();
    let is_done = loop {
        if let (None, Some(signal)) = (interrupted_by, signals.pending().next()) {
            interrupted_by = Some(signal);
            several.interrupt();
        }
        match several.poll(now()) {
            JointLeaseStep::Ask(at, ask) => {
                let asked_at = now();
                let heard = put(&client, args, &all[at].target(), ask, &mut answers[at], &mut whys[at]);
                several.handle(at, heard, asked_at);
            }
            JointLeaseStep::Pause(until) => {
                let taken: Vec<String> =
                    several.refused().iter().map(|&at| line_of(&all[at], whys[at].as_ref())).collect();
                if shown.as_ref() != Some(&taken) {
                    args.say_wait(format!(
                        "waiting for {wanted} at once; not free: {}   (Ctrl-C ends)",
                        taken.join(", ")
                    ));
                    shown = Some(taken);
                }
                // It holds nothing during a pause, but what it could not release.
                let may_look = is_waited_for && interrupted_by.is_none() && several.stranded().is_empty();
                if may_look && looked_at.elapsed() >= LOOK_FOR_OTHERS_EVERY {
                    let found = others(&client, query, wanted, &all);
                    looked_at = Instant::now();
                    if let Some(found) = found {
                        several = JointLease::new(found.len(), wanted, true, u64::from_le_bytes(seed));
                        (answers, whys) = found.iter().map(|_| (None, None)).unzip();
                        all = found;
                        continue;
                    }
                }
                std::thread::sleep((until - now()).min(LOOK_AGAIN));
            }
            JointLeaseStep::Done => break true,
            JointLeaseStep::Failed => break false,
        }
    };
    for at in several.stranded() {
        let target = all[at].target().shown();
        eprintln!("farbus: warning: {target} may be leased to this host: it was not reached to release it");
        eprintln!("  when it is: farbus lease release {target}");
    }
    if is_done {
        let confirmed = several.confirmed();
        let of = |at: usize| {
            Some(GrantedLease {
                target: all[at].target(),
                answer: answers[at].take()?,
                is_new: confirmed.contains(&at),
            })
        };
        return Ok(several.granted().into_iter().filter_map(of).collect());
    }
    if let Some(signal) = interrupted_by {
        return Err(nothing_leased(signal));
    }
    let taken: Vec<String> = several.refused().iter().map(|&at| line_of(&all[at], whys[at].as_ref())).collect();
    let attribute = whys.iter().flatten().map(|why| why.attribute).find(|attribute| *attribute != FailureKind::Refused);
    let next = if args.no_wait { "\n  wait for them: leave out --no-wait" } else { "" };
    let why = format!("{wanted} at once are not to be had: {}; nothing is leased{next}", taken.join(", "));
    let limit = whys.iter().flatten().find_map(|why| why.limit.clone());
    Err(CommandFailure::new(attribute.unwrap_or(FailureKind::Refused), why).at_limit(limit))
}

/// A device that is not free, and why.
fn line_of(candidate: &LeaseCandidate, why: Option<&FailureReport>) -> String {
    let why = why.and_then(|why| why.message.lines().next()).unwrap_or("not asked");
    format!("{} ({why})", candidate.target().shown())
}

/// Asks one host; notes what it answered.
fn put(
    client: &ImporterClient,
    args: &LeaseTerms<'_>,
    target: &DeviceTarget,
    ask: JointLeaseVerb,
    answer: &mut Option<LeaseAnswer>,
    why: &mut Option<FailureReport>,
) -> JointLeaseAnswer {
    let act = match ask {
        JointLeaseVerb::Provisional => LeaseAct::Request {
            for_s: args.span.as_secs(),
            priority: args.priority,
            reason: args.reason.map(str::to_owned),
            waits: false,
            provisional: true,
        },
        JointLeaseVerb::Confirm => LeaseAct::Confirm,
        JointLeaseVerb::Release => LeaseAct::Release { force: false },
    };
    let refused = |message: &str| FailureReport::new(FailureKind::Refused, message.to_owned());
    let (heard, report) = match client.lease_within(target, act, ANSWER_TIME) {
        Ok(Ok(lease_answer)) => {
            let heard = heard_of(ask, &lease_answer);
            *answer = Some(lease_answer);
            (heard, (heard == JointLeaseAnswer::NotNow).then(|| refused("another command of this host asks for it")))
        }
        Ok(Err(report)) if report.attribute == FailureKind::Gone => (JointLeaseAnswer::Never, Some(report)),
        Ok(Err(report)) => (JointLeaseAnswer::NotNow, Some(report)),
        Err(error @ ClientError::Untrusted { .. }) => {
            (JointLeaseAnswer::Never, Some(FailureReport::new(error.attribute(), error.to_string())))
        }
        Err(error) => (JointLeaseAnswer::Nothing, Some(FailureReport::new(error.attribute(), error.to_string()))),
    };
    // The message of a release says nothing of why it was needed.
    if ask != JointLeaseVerb::Release {
        *why = report;
    }
    heard
}

/// What an answer means.
fn heard_of(ask: JointLeaseVerb, answer: &LeaseAnswer) -> JointLeaseAnswer {
    let is_provisional = answer.lease.as_ref().is_some_and(|lease| lease.state == "provisional");
    match ask {
        // An earlier release knows of no provisional leases, and does not say whether one is new.
        JointLeaseVerb::Provisional if answer.is_new.unwrap_or(true) => JointLeaseAnswer::Done { is_provisional },
        JointLeaseVerb::Provisional if is_provisional => JointLeaseAnswer::NotNow,
        JointLeaseVerb::Provisional => JointLeaseAnswer::HadBefore,
        JointLeaseVerb::Confirm | JointLeaseVerb::Release => JointLeaseAnswer::Done { is_provisional: false },
    }
}

/// Prints what was leased.
///
/// # Errors
/// As [`print_json`].
pub fn tell(as_json: bool, granted: &[GrantedLease]) -> Result<(), CommandFailure> {
    if as_json {
        let leases = granted.iter().map(|one| json_of(&one.target, &one.answer));
        let leases = leases.collect::<Result<Vec<Value>, CommandFailure>>()?;
        return print_json(&json!({ "state": "held", "leases": leases }));
    }
    for GrantedLease { target, answer, .. } in granted {
        say(format!("{} is leased{}", target.shown(), until(answer)));
    }
    Ok(())
}

/// What is granted for [`PROVISIONAL`] is confirmed before that.
const _: () = assert!(ANSWER_TIME.as_secs() < PROVISIONAL.as_secs());
