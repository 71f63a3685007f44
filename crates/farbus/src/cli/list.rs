//! `farbus list`.

use farbus_session::DeviceRecord;
use serde::Serialize;

use super::Failure;
use super::output::{print_json, print_table, table};
use crate::client::remember_address;
use crate::client::{address_of, list, name_of, states};
use crate::session_record::classes;
use farbus_session::registry::{PATH_PREFIX, in_use};

/// Show what a host offers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus list                     this machine\n  \
    farbus list lab3                another one\n  farbus list 10.0.0.7:3241 --json")]
pub struct Args {
    /// HOST[:PORT] of a farbus or usbipd, or the name of a paired host.
    #[arg(default_value = "127.0.0.1")]
    host: String,
    /// Where the paired host is now; remembered.
    #[arg(long, value_name = "HOST[:PORT]")]
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
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let address = address_of(&args.host);
    if let Some(moved) = &args.address {
        remember_address(&address, moved)?;
    }
    let states = states(&address)?.unwrap_or_default();
    let state_of = |record: &DeviceRecord| states.iter().find(|status| status.bus_id == record.bus_id);
    let lines: Vec<Line> = list(&address)?
        .iter()
        .map(|record| {
            let user = in_use(record);
            let state = match user {
                Some(_) => Some("in use"),
                None => record.path.starts_with(PATH_PREFIX).then_some("available"),
            };
            let known = state_of(record);
            Line {
                name: name_of(record).to_owned(),
                bus_id: record.bus_id.clone(),
                vendor: format!("{:04x}", record.vendor),
                product: format!("{:04x}", record.product),
                speed: record.speed.to_string(),
                interfaces: classes(record),
                path: record.path.clone(),
                state: known.map(|status| status.state.clone()).or(state.map(str::to_owned)),
                used_s: user.as_ref().map(|user| user.used_s),
                user: known.and_then(|status| status.user.clone()).or(user.map(|user| user.user)),
            }
        })
        .collect();
    if args.json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        println!("{address} offers nothing to this host.");
        return Ok(());
    }
    let mut table = table(&["NAME", "BUS ID", "ID", "SPEED", "STATE", "USER", "WHAT"]);
    for line in lines {
        let ids = format!("{}:{}", line.vendor, line.product);
        let (state, user) = (line.state.unwrap_or_default(), line.user.unwrap_or_default());
        table.add_row([line.name, line.bus_id, ids, line.speed, state, user, line.interfaces.join(", ")]);
    }
    print_table(&table);
    Ok(())
}
