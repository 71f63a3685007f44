//! The same transfers to the same device by our own protocol and by USB/IP, each through this library's importer and exporter.

use anyhow::{Result, anyhow, bail};
use farbus::{client::Client, port::RemotePort};

use super::naming::{latencies, size};
use crate::{
    contest::{Contest, Share, Side},
    lab::{Lab, Subject},
    peers::{
        Kind,
        session::{UsbLoad, source_sink},
    },
    report::{Finding, Quantity},
    stats::Target,
    usbip::Direction,
};

pub const NAME: &str = "native";

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus speaks its own protocol");
    }
    let (server, usbip) = (lab.peer(Kind::Session)?, lab.farbus("zero")?);
    let mut ours = source_sink(server.address)?;
    let target = format!("{}/1-1", usbip.address).parse().map_err(|error: String| anyhow!(error))?;
    let (link, device) = Client::default().enumerate(&target)?;
    let mut theirs = UsbLoad::over(RemotePort::new(link, device)?)?;
    let mut findings = Vec::new();
    for (bytes, depth) in [(64, 1), (4096, 32), (128 * 1024, 32)] {
        for direction in Direction::BOTH {
            let rules = if bytes > 4096 { lab.rules.with_long_slices() } else { lab.rules };
            let contest = Contest::hold(
                &rules,
                &mut [
                    Side::new(server.pid(), |slice| ours.run(direction, bytes, depth, slice)),
                    Side::new(usbip.pid(), |slice| theirs.run(direction, bytes, depth, slice)),
                ],
            )?;
            let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.urbs_per_second() / 1e3));
            let cpu = [0, 1].map(|side| contest.figures(side, Share::cpu_seconds_per_gb).median());
            findings.push(
                Finding::ratio(
                    NAME,
                    format!("{} {} × {depth}", direction.name(), size(bytes)),
                    Quantity::new(ours, "k/s"),
                    ("USB/IP", Quantity::new(theirs, "k/s")),
                    Target::AtLeast(1.0),
                )
                .with_detail(format!(
                    "{}, server CPU {:.2} s/GB against {:.2} s/GB",
                    latencies(&contest, 0),
                    cpu[0],
                    cpu[1]
                ))
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
