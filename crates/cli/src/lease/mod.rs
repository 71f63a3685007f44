//! `farbus lease`.

mod answers;
mod holding;
mod several;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use farbus::common::child_program::MEANT_SIGNALS;
use farbus::devices::offer::{ListedDevice, ListedLease, ListedWaiting};
use farbus::devices::query::DeviceQuery;
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::{ANSWER_TIME_MAX, DeviceTarget, FailureKind, ImporterClient, address_of};
use farbus::importer::discovery::everywhere;
use farbus_control::lease::{BookedStatus, LeaseAct, LeaseAnswer};
use farbus_io_net::link::host_address::check_host;
use farbus_io_net::local::time_words::{parse_span, parse_time};
use farbus_io_net::trust::timestamp;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::CommandFailure;
use super::directory::{paired, sites};
use super::migrate::key_of;
use super::output::{format_span, print_json, print_table, say, table};
use super::waiting::DeviceAbsence;
use answers::{ask, json_of, until};
use holding::GrantedLease;

/// How often a request that waits is repeated: often enough to keep its place, and to see its turn soon.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Have a device for a time, or wait for it.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        farbus lease lab3/board --for 2h          mine for two hours, or wait for it\n  \
        farbus lease lab3/board --for 10m --no-wait\n  \
        farbus lease lab3/board -- ./flash.sh     while that runs\n  \
        farbus lease lab3/board --from +90m       from then on, for an hour\n  \
        farbus lease lab3/board lab4/probe        both, or none\n  \
        farbus lease label:board=imx8 --count 2   two of those\n  \
        farbus lease extend lab3/board --for 1h   until an hour from now\n  \
        farbus lease release lab3/board\n  \
        farbus lease list",
    after_long_help = "While this host has the lease, no other host can attach the device, and this one may as often as it likes. If the device is in use or leased, the command waits in the queue and says its place; Ctrl-C leaves the queue, and is no success (130). The time begins when the lease is granted.\n\n\
        A lease ends at its time, whatever happens to links and programs. A device that is still attached then is taken away: it is written out as far as its exporter has the data, and the number under which this host used it is refused from then on. Detach it before, or extend the lease; that is possible while nobody waits.\n\n\
        Several devices are leased together or not at all: the command asks one host after the other, keeps what it got for 10 s at most while it lacks another, and tries again after a pause. It never waits in a queue for one while it has another.\n\n\
        'farbus attach' needs no lease: the device is this host's as long as it is attached.\n\n\
        With a program behind '--' the leases last as long as it runs: farbus extends them as long as nobody waits, passes signals on to the program, gives the leases back when it has ended, and ends with its exit code; with 3 if that is 0 and a lease had ended before. A lease that this host had before stays.\n\n\
        Examples:\n  \
        farbus lease lab3/board --for 2h          mine for two hours, or wait for it\n  \
        farbus lease lab3/board --for 10m --no-wait\n  \
        farbus lease lab3/board -- ./flash.sh     while that runs\n  \
        farbus lease lab3/board --from +90m       from then on, for an hour\n  \
        farbus lease lab3/board lab4/probe        both, or none\n  \
        farbus lease label:board=imx8 --count 2   two of those\n  \
        farbus lease extend lab3/board --for 1h   until an hour from now\n  \
        farbus lease release lab3/board\n  \
        farbus lease list"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<LeaseVerb>,
    /// The device: HOST[:PORT]/DEVICE. Several: all or none; or a query.
    ///
    /// Of several devices all are leased, or none. Words of a query (class=serial, label:board=imx8, free, as for
    /// 'farbus list') mean whatever device of the paired hosts they are true for.
    #[arg(required = true, value_name = "DEVICE|WORD", value_parser = checked_word)]
    words: Vec<String>,
    /// How many of the devices: all that are named, or one that is meant.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=64))]
    count: Option<u8>,
    /// For how long: 90s, 15m, 2h, 3d, 1h30m.
    #[arg(long = "for", value_name = "SPAN", default_value = "1h", value_parser = parse_span)]
    span: Duration,
    /// From when: +90m, or 2026-11-27T08:00Z.
    ///
    /// The lease begins then by the clock of the device's exporter, whether or not this host runs. Without it, it
    /// begins now.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["no_wait", "priority"])]
    from: Option<SystemTime>,
    /// Fail if the device is not free.
    #[arg(long)]
    no_wait: bool,
    /// What for: others see it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// 0 to 9: a higher one comes first, and ends a lease of a lower one early.
    ///
    /// Above 0 it needs the permission of the device's owner: farbus allow HOST DEVICE --reserve-high.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=9))]
    priority: u8,
    /// Print the result as JSON, for programs.
    #[arg(long, conflicts_with = "program")]
    json: bool,
    /// A program, and its arguments: lease the devices while it runs.
    ///
    /// The leases are extended as long as nobody waits, and given back when the program has ended, whatever ended it.
    /// Its exit code is that of this command. FARBUS_LEASED names the devices to it.
    #[arg(value_name = "PROGRAM", last = true, conflicts_with = "from")]
    program: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum LeaseVerb {
    List(ListArgs),
    Extend(ExtendArgs),
    Release(ReleaseArgs),
    Give(GiveArgs),
}

/// Show who has which device until when.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus lease list\n  farbus lease list lab3 --json")]
struct ListArgs {
    /// Only the devices of this host.
    #[arg(value_parser = check_host)]
    host: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Let a lease end later.
///
/// It then ends so long from now, or when it was to end if that is later. Only while nobody waits for the device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus lease extend lab3/board --for 1h")]
struct ExtendArgs {
    /// The device: HOST[:PORT]/DEVICE.
    target: DeviceTarget,
    /// For how long from now: 90s, 15m, 2h, 3d, 1h30m.
    #[arg(long = "for", value_name = "SPAN", default_value = "1h", value_parser = parse_span)]
    span: Duration,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// End a lease: the next in the queue gets the device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus lease release lab3/board")]
struct ReleaseArgs {
    /// The device: HOST[:PORT]/DEVICE.
    target: DeviceTarget,
    /// End it even while the device is attached here: what is not written out is lost.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Give the rest of a lease to another host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus lease give lab3/board --to desk2")]
struct GiveArgs {
    /// The device: HOST[:PORT]/DEVICE.
    target: DeviceTarget,
    /// The other host, which may use the device: the name of a paired one, or its key.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn as_asked(&self) -> several::LeaseTerms<'_> {
        let Self { count, span, priority, no_wait, json, .. } = *self;
        let output = match (json, self.program.is_empty()) {
            (true, _) => several::LeaseOutput::Json,
            (false, true) => several::LeaseOutput::Lines,
            (false, false) => several::LeaseOutput::Program,
        };
        several::LeaseTerms { count, span, priority, no_wait, output, reason: self.reason.as_deref() }
    }

    /// Whether the output is for a program.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            None => self.json,
            Some(LeaseVerb::List(args)) => args.json,
            Some(LeaseVerb::Extend(args)) => args.json,
            Some(LeaseVerb::Release(args)) => args.json,
            Some(LeaseVerb::Give(args)) => args.json,
        }
    }
}

pub fn run(args: Args) -> Result<(), CommandFailure> {
    match args.verb {
        Some(LeaseVerb::List(args)) => list(&args),
        Some(LeaseVerb::Extend(ExtendArgs { target, span, json })) => {
            let answer = ask(&target, LeaseAct::Extend { for_s: span.as_secs() })?;
            print_outcome(json, &target, &answer, &format!("leased{}", until(&answer)))
        }
        Some(LeaseVerb::Release(ReleaseArgs { target, force, json })) => {
            let answer = ask(&target, LeaseAct::Release { force })?;
            print_outcome(json, &target, &answer, "released")
        }
        Some(LeaseVerb::Give(GiveArgs { target, to, json })) => {
            let peers = TrustStore::open()?.peers().map_err(CommandFailure::local)?;
            let act = LeaseAct::Give { to: key_of(&peers, &to)?.to_string() };
            let answer = ask(&target, act)?;
            print_outcome(json, &target, &answer, &format!("leased to {to}{}", until(&answer)))
        }
        None => {
            let (query, targets): (Vec<&str>, Vec<&str>) =
                args.words.iter().map(String::as_str).partition(|word| DeviceQuery::is_word(word));
            let query = DeviceQuery::parse(query).map_err(CommandFailure::local)?;
            let targets: Result<Vec<DeviceTarget>, String> = targets.into_iter().map(str::parse).collect();
            match &targets.map_err(CommandFailure::local)?[..] {
                [_, ..] if !query.is_empty() => {
                    Err(CommandFailure::local("devices or the words of a query, not both: which are to be leased?"))
                }
                targets if args.count.is_some_and(|count| usize::from(count) > targets.len() && query.is_empty()) => {
                    Err(CommandFailure::local(format!("--count: only {} are named", targets.len())))
                }
                [target] if args.from.is_some() => book(&args, target),
                _ if args.from.is_some() => {
                    Err(CommandFailure::local("one device at a time is booked: name it, with --from and --for"))
                }
                targets => have(&args.as_asked(), targets, &query, &args.program),
            }
        }
    }
}

/// Leases the devices, and runs the program if there is one.
fn have(
    terms: &several::LeaseTerms<'_>,
    targets: &[DeviceTarget],
    query: &DeviceQuery,
    program: &[OsString],
) -> Result<(), CommandFailure> {
    let signals = if program.is_empty() { &[SIGINT, SIGTERM][..] } else { &MEANT_SIGNALS };
    let mut signals = Signals::new(signals).map_err(CommandFailure::local)?;
    let granted = match targets {
        // One device is waited for in its queue.
        [target] => vec![request(terms, target, &mut signals)?],
        targets => several::request(terms, targets, query, &mut signals)?,
    };
    let as_json = terms.output == several::LeaseOutput::Json;
    match &granted[..] {
        _ if !program.is_empty() => holding::run(program, granted, terms.span, signals),
        [one] if targets.len() == 1 => {
            print_outcome(as_json, &one.target, &one.answer, &format!("leased{}", until(&one.answer)))
        }
        _ => several::tell(as_json, &granted),
    }
}

/// Leases the devices for `span`, or waits for them, and runs the program while the leases last.
///
/// # Errors
/// They are not leased; see [`holding::run`].
pub fn hold(targets: &[DeviceTarget], span: Duration, program: &[OsString]) -> Result<(), CommandFailure> {
    let output = several::LeaseOutput::Program;
    let terms = several::LeaseTerms { count: None, span, priority: 0, reason: None, no_wait: false, output };
    have(&terms, targets, &DeviceQuery::default(), program)
}

/// A device, or a word of a query.
fn checked_word(text: &str) -> Result<String, String> {
    match DeviceQuery::is_word(text) {
        true => DeviceQuery::parse([text]).map(|_| text.to_owned()),
        false => text.parse::<DeviceTarget>().map(|_| text.to_owned()),
    }
}

fn print_outcome(as_json: bool, target: &DeviceTarget, answer: &LeaseAnswer, done: &str) -> Result<(), CommandFailure> {
    if as_json {
        return print_json(&json_of(target, answer)?);
    }
    say(format!("{} is {done}", target.shown()));
    Ok(())
}

/// Books a device ahead of time.
fn book(args: &Args, target: &DeviceTarget) -> Result<(), CommandFailure> {
    let from = args.from.unwrap_or_else(SystemTime::now);
    let from_ms = from.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let from_unix_ms = u64::try_from(from_ms).map_err(CommandFailure::local)?;
    let act = LeaseAct::Book { from_unix_ms, for_s: args.span.as_secs(), reason: args.reason.clone() };
    let answer = ask(target, act)?;
    print_outcome(
        args.json,
        target,
        &answer,
        &format!("booked from {} until {}", timestamp(from), timestamp(from + args.span)),
    )
}

/// Requests a lease, and waits in the queue if that is wanted.
fn request(
    args: &several::LeaseTerms<'_>,
    target: &DeviceTarget,
    signals: &mut Signals,
) -> Result<GrantedLease, CommandFailure> {
    let (mut shown_position, mut has_waited, mut absence) = (None, false, DeviceAbsence::default());
    loop {
        let answer = ask(
            target,
            LeaseAct::Request {
                for_s: args.span.as_secs(),
                priority: args.priority,
                reason: args.reason.map(str::to_owned),
                waits: !args.no_wait,
                provisional: false,
            },
        );
        let answer = match answer {
            Err(failure)
                if failure.attribute() == FailureKind::Gone && has_waited && absence.may_end_by(Instant::now()) =>
            {
                pause(target, signals)?;
                continue;
            }
            answer => answer?,
        };
        absence.end();
        // Another command of this host may have it for a moment, and give it back.
        let is_provisional = answer.lease.as_ref().is_some_and(|lease| lease.state == "provisional");
        if answer.state == "held" && !is_provisional {
            let is_new = has_waited || answer.is_new != Some(false);
            return Ok(GrantedLease { target: target.clone(), answer, is_new });
        }
        let position = answer.place.unwrap_or_default();
        if is_provisional && args.no_wait {
            let message = format!("{}: another command of this host asks for it, with others", target.shown());
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
        has_waited = true;
        if shown_position != Some(position) {
            args.say_wait(format!(
                "waiting for {}, place {position}{}   (Ctrl-C ends)",
                target.shown(),
                who_has_it(&answer)
            ));
            shown_position = Some(position);
        }
        pause(target, signals)?;
    }
}

/// Waits until it is time to ask again; a signal withdraws the request.
fn pause(target: &DeviceTarget, signals: &mut Signals) -> Result<(), CommandFailure> {
    let again = Instant::now() + ASK_EVERY;
    while Instant::now() < again {
        if let Some(signal) = signals.pending().next() {
            // If the host is not reached, the request ends by itself.
            let _ = ask(target, LeaseAct::Withdraw);
            return Err(CommandFailure::interrupted(signal, format!("{} is not leased to this host", target.shown())));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn who_has_it(answer: &LeaseAnswer) -> String {
    match (&answer.lease, &answer.user) {
        (Some(lease), _) => format!(": leased to {} for another {}", lease.host, format_span(lease.left())),
        (None, Some(user)) => format!(": in use by {user}"),
        (None, None) => String::new(),
    }
}

/// Who waits for a device.
struct LeaseQueue {
    count: usize,
    words: String,
    first: Vec<ListedWaiting>,
}

impl LeaseQueue {
    fn in_words(self) -> String {
        if self.first.is_empty() { self.count.to_string() } else { format!("{}: {}", self.count, self.words) }
    }
}

fn list(args: &ListArgs) -> Result<(), CommandFailure> {
    let mut leases: Vec<(String, ListedLease, LeaseQueue)> = Vec::new();
    let mut booked: Vec<(String, BookedStatus)> = Vec::new();
    let mut add = |host: &str, devices: Vec<ListedDevice>| {
        for ListedDevice { name, booked: ahead, .. } in &devices {
            booked.extend(ahead.iter().map(|one| (format!("{host}/{name}"), one.clone())));
        }
        let leased = devices.into_iter().filter_map(|device| {
            let queue = LeaseQueue { count: device.waiting, words: device.queue_in_words(), first: device.queue };
            Some((device.name, device.lease?, queue))
        });
        leases.extend(leased.map(|(name, lease, waiting)| (format!("{host}/{name}"), lease, waiting)));
    };
    match &args.host {
        Some(host) => add(host, ImporterClient::default().offers(&address_of(host), ANSWER_TIME_MAX)?),
        None => {
            let paired = paired();
            let mut answered = BTreeSet::new();
            for host in everywhere::all().hosts {
                match host.devices {
                    Ok(devices) => {
                        answered.extend(paired.iter().filter(|(_, name)| **name == host.name).map(|(key, _)| key));
                        add(&host.name, devices);
                    }
                    Err(failure) => {
                        eprintln!("farbus: {}: {}: {}", failure.attribute.as_str(), host.name, failure.message);
                    }
                }
            }
            // What the directory says of the others.
            for site in sites(&DeviceQuery::default(), &paired).map(|sites| sites.devices).unwrap_or_default() {
                if !answered.contains(&site.host_key) {
                    add(&site.host, vec![site.device]);
                }
            }
        }
    }
    if args.json {
        let one = |(target, lease, queue): &(String, ListedLease, LeaseQueue)| {
            let mut value = serde_json::to_value(lease).map_err(CommandFailure::local)?;
            (value["target"], value["waiting"]) = (json!(target), json!(queue.count));
            value["queue"] = json!(queue.first);
            Ok(value)
        };
        let mut all = leases.iter().map(one).collect::<Result<Vec<Value>, CommandFailure>>()?;
        for (target, one) in &booked {
            let mut value = serde_json::to_value(one).map_err(CommandFailure::local)?;
            (value["target"], value["state"]) = (json!(target), json!("booked"));
            all.push(value);
        }
        return print_json(&all);
    }
    if leases.is_empty() && booked.is_empty() {
        say("No device is leased. Try: farbus lease HOST/DEVICE --for 2h");
        return Ok(());
    }
    let mut table = table(&["DEVICE", "LEASED TO", "LEFT", "UNTIL", "WAIT", "REASON"]);
    for (target, lease, queue) in leases {
        let who = if lease.is_yours { format!("{} (this host)", lease.host) } else { lease.host };
        let left = format_span(Duration::from_secs(lease.left_s));
        table.add_row([target, who, left, lease.until, queue.in_words(), lease.reason.unwrap_or_default()]);
    }
    for (target, BookedStatus { host, from, until, reason }) in booked {
        table.add_row([target, host, format!("from {from}"), until, String::new(), reason.unwrap_or_default()]);
    }
    print_table(&table);
    Ok(())
}
