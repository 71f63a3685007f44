//! A device that is reset during a transfer continues to work.

use super::case::{RigCase, expect};
use super::storage;
use crate::disk;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "reset-stock",
        purpose: "USB resets during a big read: the exporter sees them, the read ends with the right data",
        run: |lab| during_read(lab, AttachClient::Stock),
    },
    RigCase {
        name: "reset-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| during_read(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "reset-midway-stock",
        purpose: "a silent exporter makes the kernel abort a command in its data phase and recover: the data is right",
        run: |lab| midway(lab, AttachClient::Stock),
    },
    RigCase {
        name: "reset-midway-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| midway(lab, AttachClient::Farbus),
    },
];

/// Large enough for a read that lasts over several resets, small enough to checksum under emulation.
const DISK_BYTES: usize = 24 << 20;

fn during_read(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, DISK_BYTES)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/reset.sh"),
            modules: storage::MODULES,
            client,
            port: Some(share.port()),
            variables: &[("SUM", disk::sha256(&image)?)],
            ..MachineBoot::default()
        })?
        .finish()?;
    share.still_runs()?;
    let resets = report
        .output
        .lines()
        .filter(|line| line.contains("reset high-speed") || line.contains("reset SuperSpeed"))
        .count();
    expect(resets >= 3, || format!("the kernel logged {resets} resets:\n{}", report.output))?;
    Ok(format!("{resets} resets"))
}

fn midway(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, DISK_BYTES)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/reset-midway.sh"),
        modules: storage::MODULES,
        client,
        port: Some(share.port()),
        variables: &[("SUM", disk::sha256(&image)?)],
        ..MachineBoot::default()
    })?;
    for _ in 0..3 {
        guest.await_word("reading")?;
        // During a transfer, for longer than the kernel's timeout of a command (1 s).
        std::thread::sleep(Duration::from_millis(70));
        share.freeze()?;
        std::thread::sleep(Duration::from_millis(2500));
        share.thaw()?;
    }
    let report = guest.finish()?;
    share.still_runs()?;
    let aborts = report
        .output
        .lines()
        .find_map(|line| line.strip_prefix("timeouts: ")?.parse::<u32>().ok())
        .ok_or_else(|| RigError::Expectation(format!("no count of timeouts in:\n{}", report.output)))?;
    expect(aborts >= 1, || format!("no command was aborted, so nothing was proved:\n{}", report.output))?;
    Ok(format!("{aborts} commands aborted"))
}
