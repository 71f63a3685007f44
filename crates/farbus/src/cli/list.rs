//! `farbus list`.

use farbus_session::DeviceRecord;
use farbus_session::registry::{PATH_PREFIX, in_use};
use serde::Serialize;
use serde_json::Value;

use super::Failure;
use super::output::{print_json, print_table, say, table};
use crate::client::{FailureReport, address_of, list, name_of, remember_address, states};
use crate::device_status::DeviceStatus;
use crate::neighbours;
use crate::session_record::classes;

/// Show what a host offers, or everybody who is there.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without a host: this machine's own shares, and hosts nearby that announce themselves (mDNS).\n\n\
    Examples:\n  farbus list                     everybody\n  \
    farbus list lab3                one host: a name, announced or not, or an address\n  \
    farbus list 10.0.0.7:3241 --json\n  \
    farbus list --json | jq -r '.[] | select(.state == \"available\") | .target'"
)]
pub struct Args {
    /// HOST[:PORT] of a farbus or usbipd, or the name of a paired host.
    host: Option<String>,
    /// Where the paired host is now; remembered.
    #[arg(long, value_name = "HOST[:PORT]", requires = "host")]
    address: Option<String>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Line {
    name: String,
    bus_id: String,
    vendor: String,
    product: String,
    speed: String,
    interfaces: Vec<String>,
    path: String,
    /// `available` or `in use`; absent where an exporter does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_s: Option<u64>,
    /// As `farbus attach` takes it, where no host was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Line {
    fn new(record: &DeviceRecord) -> Self {
        let user = in_use(record);
        let state = match user {
            Some(_) => Some("in use"),
            None => record.path.starts_with(PATH_PREFIX).then_some("available"),
        };
        Self {
            name: name_of(record).to_owned(),
            bus_id: record.bus_id.clone(),
            vendor: format!("{:04x}", record.vendor),
            product: format!("{:04x}", record.product),
            speed: record.speed.to_string(),
            interfaces: classes(record),
            path: record.path.clone(),
            state: state.map(str::to_owned),
            used_s: user.as_ref().map(|user| user.used_s),
            user: user.map(|user| user.user),
            target: None,
        }
    }

    /// With what a paired host says over its encrypted link, which is more than a record can.
    fn told(mut self, status: Option<&DeviceStatus>) -> Self {
        if let Some(status) = status {
            self.state = Some(status.state.clone());
            self.user = status.user.clone().or(self.user);
        }
        self
    }
}

/// A host whose devices are not known.
#[derive(Serialize)]
struct Silent {
    host: String,
    failure: FailureReport,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let Some(host) = &args.host else { return everybody(args.json) };
    let address = address_of(host);
    if let Some(moved) = &args.address {
        remember_address(&address, moved)?;
    }
    let states = states(&address)?.unwrap_or_default();
    let state_of = |record: &DeviceRecord| states.iter().find(|status| status.bus_id == record.bus_id);
    let lines: Vec<Line> = list(&address)?.iter().map(|record| Line::new(record).told(state_of(record))).collect();
    if args.json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        println!("{address} offers nothing to this host.");
        return Ok(());
    }
    print_lines(lines);
    Ok(())
}

fn everybody(as_json: bool) -> Result<(), Failure> {
    let (mut lines, mut silent) = (Vec::new(), Vec::new());
    for host in neighbours::all() {
        match host.devices {
            Ok(records) => lines.extend(records.iter().map(|record| {
                let target = Some(format!("{}/{}", host.name, name_of(record)));
                Line { target, ..Line::new(record) }
            })),
            Err(failure) => silent.push(Silent { host: host.name, failure }),
        }
    }
    if as_json {
        let json = |value: serde_json::Result<Value>| value.map_err(Failure::local);
        let lines = lines.iter().map(|line| json(serde_json::to_value(line)));
        let silent = silent.iter().map(|silent| json(serde_json::to_value(silent)));
        return print_json(&lines.chain(silent).collect::<Result<Vec<Value>, Failure>>()?);
    }
    if lines.is_empty() {
        say("Nothing is offered here, and nobody nearby announces anything. Name a host: farbus list HOST");
    } else {
        print_lines(lines);
    }
    for Silent { host, failure } in silent {
        eprintln!("farbus: {}: {host}: {}", failure.attribute.as_str(), failure.message);
    }
    Ok(())
}

fn print_lines(lines: Vec<Line>) {
    let mut table = table(&["NAME", "BUS ID", "ID", "SPEED", "STATE", "USER", "WHAT"]);
    for line in lines {
        let ids = format!("{}:{}", line.vendor, line.product);
        let (state, user) = (line.state.unwrap_or_default(), line.user.unwrap_or_default());
        let name = line.target.unwrap_or(line.name);
        table.add_row([name, line.bus_id, ids, line.speed, state, user, line.interfaces.join(", ")]);
    }
    print_table(&table);
}
