//! `farbus conform session`, that is `farbus-conform session`.

use farbus_conform::session::{self, ConformanceSettings};
use farbus_control::failure::CommandFailure;
use farbus_control::host_address::{address_of, check_host};
use serde_json::json;

use crate::common::{CommonArgs, could_not_run};
use crate::network::NetworkPeer;

/// Hold an exporter against farbus's own protocol.
///
/// The kit is an importer that makes sessions (docs/protocol.md), cuts their links, resumes them, and breaks the
/// protocol. The exporter must offer a USB device that nobody uses; a source/sink ('farbus share zero'), a disk and a
/// keyboard together show all. It writes nothing to a disk.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line of the result has the name of the check, which stays the same in later versions, whether it binds (must, should), and what was seen. 'not applicable': the device cannot show it. 'skipped': something failed that it needs.\n\n\
    The kit has no key: run it against an exporter that serves hosts without one, or at a Unix socket.\n\n\
    Examples:\n  \
    farbus conform session 127.0.0.1         the first device that it offers\n  \
    farbus conform session 127.0.0.1:3240 --device 1-2 --json > result.json\n  \
    farbus conform session 127.0.0.1 --only resume --only link-replayed\n  \
    farbus conform session --list\n\n\
    Exit codes: 0 no claim that binds is false, 1 some are, 2 it could not run."
)]
pub struct Args {
    /// The exporter: HOST[:PORT] or unix:PATH.
    #[arg(value_parser = check_host, required_unless_present = "list")]
    host: Option<String>,
    /// Name or bus id of the device to use. Without it, the first one that the exporter lists.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    pub common: CommonArgs,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Args { host, device, common } = args;
    let checks = session::checks();
    common.known(&checks)?;
    let Some(host) = host.as_ref().filter(|_| !common.list) else {
        common.show_checks(&checks);
        return Ok(());
    };
    let patience = common.patience();
    let settings =
        ConformanceSettings { bus_id: device.clone(), only: common.only.clone(), ..ConformanceSettings::new(patience) };
    let mut network = NetworkPeer::at(host, patience);
    let report = session::run(&mut network, &settings, &mut |_| {}).map_err(could_not_run)?;
    common.show("session", &json!({ "address": address_of(host), "device": device }), &report)
}
