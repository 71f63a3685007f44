//! `farbus conform exporter`, that is `farbus-conform exporter`.

use farbus_conform::exporter::{self, ConformanceSettings};
use farbus_control::failure::CommandFailure;
use farbus_control::host_address::{address_of, check_host};
use serde_json::json;

use crate::common::{CommonArgs, could_not_run};
use crate::network::NetworkPeer;

/// Hold an exporter against what it owes its importers.
///
/// It must offer a device that nobody uses. The kit imports it many times, sends it wrong requests, and leaves without
/// a word. It writes nothing to a disk. The more the device can do, the more is checked: the kernel's source/sink
/// gadget ('farbus share zero') shows most, a disk shows short transfers.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line of the result has the name of the check, which stays the same in later versions, whether it binds (must, should), and what was seen. 'not applicable': the device cannot show it. 'skipped': something failed that it needs.\n\n\
    Examples:\n  \
    farbus conform exporter lab3         the first device that lab3 offers\n  \
    farbus conform exporter 127.0.0.1:3240 --busid 1-1 --json > result.json\n  \
    farbus conform exporter lab3 --only unlink-storm --only iso-in\n  \
    farbus conform exporter --list\n\n\
    Exit codes: 0 no claim that binds is false, 1 some are, 2 it could not run."
)]
pub struct Args {
    /// The exporter: HOST[:PORT] or unix:PATH.
    #[arg(value_parser = check_host, required_unless_present = "list")]
    host: Option<String>,
    /// Bus id of the device to use. Without it, the first one of the exporter's list.
    #[arg(long, value_name = "BUSID")]
    busid: Option<String>,
    #[command(flatten)]
    pub common: CommonArgs,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Args { host, busid, common } = args;
    let checks = exporter::checks();
    common.known(&checks)?;
    let Some(host) = host.as_ref().filter(|_| !common.list) else {
        common.show_checks(&checks);
        return Ok(());
    };
    let patience = common.patience();
    let settings =
        ConformanceSettings { bus_id: busid.clone(), only: common.only.clone(), ..ConformanceSettings::new(patience) };
    let mut network = NetworkPeer::at(host, patience);
    let report = exporter::run(&mut network, &settings, &mut |_| {}).map_err(could_not_run)?;
    common.show("exporter", &json!({ "address": address_of(host), "bus_id": busid }), &report)
}
