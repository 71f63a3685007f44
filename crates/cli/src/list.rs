//! `farbus list`.

use std::collections::BTreeSet;

use farbus::broker::SystemAccess;
use farbus::common::socket_place::SocketLocation;
use farbus::devices::offer::ListedDevice;
use farbus::devices::query::DeviceQuery;
use farbus::importer::client::{ANSWER_TIME_MAX, ClientConfig, FailureReport, ImporterClient, address_of};
use farbus::importer::discovery::everywhere::{self, NetworkListing};
use farbus::importer::discovery::local_shares::{self, repeated};
use farbus_io_net::link::host_address::{check_host, shown};
use serde::Serialize;
use serde_json::Value;

use super::CommandFailure;
use super::directory::{NO_DIRECTORY, SiteCatalogue, paired, sites};
use super::output::{print_json, print_table, say, table};

/// Show the devices of a host, or of all hosts known and found.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without HOST it shows this machine's own shares, the hosts that are paired with it (each asked over its encrypted link), and hosts nearby that announce themselves by mDNS. If the daemon here has a directory, its devices of other hosts are shown, too, marked as its word.\n\n\
    Examples:\n  farbus list                 all of them\n  \
    farbus list lab3            one host: a name, announced or not, or an address\n  \
    farbus list localhost       this machine, as 'farbus share' offers it to you\n  \
    farbus list class=serial vendor=ftdi label:board=imx8 free\n  \
    farbus list --directory     what the directory says of all sites\n  \
    farbus list 10.0.0.7:3241 --json\n  \
    farbus list --json | jq -r '.[] | select(.state == \"available\") | .target'"
)]
pub struct Args {
    /// HOST[:PORT] or a paired host's name, and words of a query.
    ///
    /// Only devices are shown for which all words are true: class=, vendor=, product=, speed=, name=, host=, place=,
    /// label:NAME, label:NAME=VALUE and free. The book's chapter on leases has a table of them.
    #[arg(value_name = "HOST|WORD", value_parser = checked_word)]
    words: Vec<String>,
    /// Where the paired host is now.
    ///
    /// HOST[:PORT]. farbus remembers it after the host has proved its key there.
    #[arg(long, value_name = "HOST", requires = "words", value_parser = check_host)]
    address: Option<String>,
    /// Show what the directory says of all sites; ask no host.
    ///
    /// The daemon here has to have a directory (directory = in its configuration).
    #[arg(long, conflicts_with = "address")]
    directory: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// A device, and its target if no host was named.
#[derive(Serialize)]
struct DeviceListRow {
    #[serde(flatten)]
    device: ListedDevice,
    /// The host that offers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// The target, as `farbus attach` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Who says so, if all hosts are asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<ListingSource>,
    /// The key of the host, if the directory says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_key: Option<String>,
    /// Whether that host is paired with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_paired: Option<bool>,
}

/// Who says what a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ListingSource {
    /// The host of the device.
    Host,
    /// The directory, which may be wrong.
    Directory,
}

impl DeviceListRow {
    /// A device of a host that was named.
    fn of(device: ListedDevice, target: Option<String>) -> Self {
        Self { device, host: None, target, from: None, host_key: None, is_paired: None }
    }

    /// The source in a table.
    fn source(&self) -> &'static str {
        match (self.from, self.is_paired) {
            (Some(ListingSource::Directory), Some(false)) => "directory, not paired",
            (Some(ListingSource::Directory), _) => "directory",
            _ => "host",
        }
    }
}

/// A host that did not answer.
#[derive(Serialize)]
struct SilentHost {
    host: String,
    failure: FailureReport,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let (host, query) = parse_words(&args.words)?;
    if args.directory {
        return match host {
            None => of_directory(&query, args.json),
            Some(host) => Err(CommandFailure::local(format!("all sites are meant: for one, write host={host}"))),
        };
    }
    let Some(host) = host else {
        return match &args.address {
            Some(_) => Err(CommandFailure::local("--address goes with a host: farbus list HOST --address PLACE")),
            None => everybody(&query, args.json),
        };
    };
    let address = address_of(host);
    let mut lines: Vec<DeviceListRow> = match &args.address {
        Some(moved) => {
            let client = ImporterClient::for_host_at(&address, moved, SystemAccess::Own, ClientConfig::default())?;
            lines_at(client.offers(&address, ANSWER_TIME_MAX)?)
        }
        None => {
            let here = local_shares::offers(&address)?;
            if here.is_empty() {
                lines_at(ImporterClient::default().offers(&address, ANSWER_TIME_MAX)?)
            } else {
                lines_of(here)
            }
        }
    };
    let offers_some = !lines.is_empty();
    lines.retain(|line| query.matches(host, &line.device));
    if args.json {
        return print_json(&lines);
    }
    if lines.is_empty() && offers_some {
        println!("No device of {} is meant by that.", shown(&address));
        return Ok(());
    }
    if lines.is_empty() {
        println!("{} offers nothing to this host.", shown(&address));
        return Ok(());
    }
    print_lines(lines);
    Ok(())
}

/// A host, or a word of a query.
fn checked_word(text: &str) -> Result<String, String> {
    match DeviceQuery::is_word(text) {
        true => DeviceQuery::parse([text]).map(|_| text.to_owned()),
        false => check_host(text),
    }
}

/// The host that the words name, if one, and the query that the others are.
fn parse_words(words: &[String]) -> Result<(Option<&str>, DeviceQuery), CommandFailure> {
    let (query, hosts): (Vec<&str>, Vec<&str>) =
        words.iter().map(String::as_str).partition(|word| DeviceQuery::is_word(word));
    let query = DeviceQuery::parse(query).map_err(CommandFailure::local)?;
    match hosts[..] {
        [] => Ok((None, query)),
        [host] => Ok((Some(host), query)),
        [_, other, ..] => Err(CommandFailure::local(format!("one host is named at most: what is '{other}'?"))),
    }
}

/// What this machine's shares offer; if two have a device of one name, with their sockets.
fn lines_at(devices: Vec<ListedDevice>) -> Vec<DeviceListRow> {
    devices.into_iter().map(|device| DeviceListRow::of(device, None)).collect()
}

fn lines_of(shares: Vec<(SocketLocation, Vec<ListedDevice>)>) -> Vec<DeviceListRow> {
    let repeated = repeated(shares.iter().flat_map(|(_, devices)| devices).map(|device| device.name.as_str()));
    let lines =
        shares.into_iter().flat_map(|(place, devices)| devices.into_iter().map(move |it| (place.as_host(), it)));
    let line = |(socket, device): (String, ListedDevice)| {
        let target = repeated.contains(&device.name).then(|| format!("{socket}/{}", device.name));
        DeviceListRow::of(device, target)
    };
    lines.map(line).collect()
}

/// What the directory says, alone.
fn of_directory(query: &DeviceQuery, as_json: bool) -> Result<(), CommandFailure> {
    let sites = sites(query, &paired()).ok_or_else(|| CommandFailure::local(NO_DIRECTORY))?;
    let (mut lines, silent) = (Vec::new(), Vec::new());
    add_sites(&mut lines, sites, &BTreeSet::new(), query);
    show(lines, silent, query, NOTHING, as_json)
}

/// Adds the devices of hosts that did not answer themselves.
fn add_sites(lines: &mut Vec<DeviceListRow>, sites: SiteCatalogue, answered: &BTreeSet<&String>, query: &DeviceQuery) {
    if let Some(trouble) = sites.trouble {
        eprintln!("farbus: warning: what the directory said may be old: {trouble}");
    }
    let others = sites.devices.into_iter().filter(|site| !answered.contains(&site.host_key));
    let meant = others.filter(|site| query.matches(&site.host, &site.device));
    lines.extend(meant.map(|site| {
        let target = Some(format!("{}/{}", site.host, site.device.name));
        DeviceListRow {
            device: site.device,
            host: Some(site.host),
            target,
            from: Some(ListingSource::Directory),
            host_key: Some(site.host_key),
            is_paired: Some(site.is_paired),
        }
    }));
}

/// What is said if there is nothing, and if there is nothing that others may use.
const NOTHING: &str = "Nothing is offered here, and nobody nearby announces anything. Name a host: farbus list HOST";
const NOTHING_ELSE: &str = "Nobody nearby announces anything. Name a host: farbus list HOST";
const NOTHING_FOR_US: &str = "No host offers anything to this one. Name another: farbus list HOST";
const NOTHING_HEARD: &str = "Nothing is offered here, and hosts nearby cannot be heard. Name a host: farbus list HOST";

fn everybody(query: &DeviceQuery, as_json: bool) -> Result<(), CommandFailure> {
    let (mut lines, mut silent) = (Vec::new(), Vec::new());
    let paired = paired();
    let mut answered = BTreeSet::new();
    let NetworkListing { hosts, for_paired_hosts, unpaired, is_alone } = everywhere::all();
    for host in hosts {
        match host.devices {
            Ok(devices) => {
                answered.extend(paired.iter().filter(|(_, name)| **name == host.name).map(|(key, _)| key));
                let meant = devices.into_iter().filter(|device| query.matches(&host.name, device));
                lines.extend(meant.map(|device| {
                    let target = Some(format!("{}/{}", host.name, device.name));
                    DeviceListRow {
                        host: Some(host.name.clone()),
                        from: Some(ListingSource::Host),
                        ..DeviceListRow::of(device, target)
                    }
                }));
            }
            Err(failure) => silent.push(SilentHost { host: host.name, failure }),
        }
    }
    if let Some(sites) = sites(query, &paired) {
        add_sites(&mut lines, sites, &answered, query);
    }
    let nothing = match (is_alone, for_paired_hosts.is_empty()) {
        (Some(true), true) => NOTHING,
        (Some(true), false) => NOTHING_ELSE,
        (Some(false), _) => NOTHING_FOR_US,
        (None, _) => NOTHING_HEARD,
    };
    show(lines, silent, query, nothing, as_json)?;
    for (name, address) in unpaired.iter().filter(|_| query.is_empty() && !as_json) {
        say(format!(
            "{name} ({}) serves paired hosts: 'farbus pair' there, then farbus pair {name} CODE",
            address.ip()
        ));
    }
    if !for_paired_hosts.is_empty() && query.is_empty() && !as_json {
        let names = for_paired_hosts.join(", ");
        say(format!("This machine offers to paired hosts alone: {names}   (farbus status)"));
    }
    Ok(())
}

fn show(
    lines: Vec<DeviceListRow>,
    silent: Vec<SilentHost>,
    query: &DeviceQuery,
    nothing: &str,
    as_json: bool,
) -> Result<(), CommandFailure> {
    if as_json {
        let json = |value: serde_json::Result<Value>| value.map_err(CommandFailure::local);
        let lines = lines.iter().map(|line| json(serde_json::to_value(line)));
        let silent = silent.iter().map(|silent| json(serde_json::to_value(silent)));
        return print_json(&lines.chain(silent).collect::<Result<Vec<Value>, CommandFailure>>()?);
    }
    if lines.is_empty() && !query.is_empty() {
        say("No device is meant by that. See them all: farbus list");
    } else if lines.is_empty() {
        say(nothing);
    } else {
        print_lines(lines);
    }
    for SilentHost { host, failure } in silent {
        eprintln!("farbus: {}: {host}: {}", failure.attribute.as_str(), failure.message);
    }
    Ok(())
}

fn print_lines(lines: Vec<DeviceListRow>) {
    let mut headings = vec!["NAME", "BUS ID", "ID", "SPEED", "STATE", "USER", "WHAT"];
    // Most devices have none.
    let has_labels = lines.iter().any(|line| !line.device.notes.is_empty());
    let has_sources = lines.iter().any(|line| line.from == Some(ListingSource::Directory));
    let has_queues = lines.iter().any(|line| line.device.waiting > 0);
    headings.extend(has_queues.then_some("WAIT"));
    headings.extend(has_labels.then_some("LABELS"));
    headings.extend(has_sources.then_some("FROM"));
    let mut table = table(&headings);
    for line in lines {
        let source = line.source();
        let DeviceListRow { device, target, .. } = line;
        let ids = format!("{}:{}", device.vendor, device.product);
        let lessee = device.lease.as_ref().map(|lease| format!("{} until {}", lease.host, lease.until));
        let user = device.user.clone().or(lessee).unwrap_or_default();
        let state = device.state_in_words();
        let further = device.users.iter().skip(1).map(|user| (format!("in use, {}", user.mode), user.user.clone()));
        let further: Vec<(String, String)> = further.collect();
        let waits = has_queues.then(|| device.queue_in_words());
        let (what, name, labels) = (device.what(), target.unwrap_or(device.name), device.notes.in_a_line());
        let row = [name, device.bus_id, ids, device.speed, state, user, what];
        let labels = has_labels.then_some(labels);
        table.add_row(row.into_iter().chain(waits).chain(labels).chain(has_sources.then(|| source.to_owned())));
        for (state, user) in further {
            let [name, bus_id, ids, speed] = Default::default();
            table.add_row([name, bus_id, ids, speed, state, user]);
        }
    }
    print_table(&table);
}
