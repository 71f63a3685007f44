//! A link that is lost during a transfer: each side notices, says so, and is ready for the next.

use super::case::{RigCase, expect};
use super::storage;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError, disk, wire};
use std::time::{Duration, Instant};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "lost-server-stock",
        purpose: "the exporter dies in mid-transfer: the device leaves the kernel of a stock client",
        run: |lab| server(lab, AttachClient::Stock),
    },
    RigCase {
        name: "lost-server-farbus",
        purpose: "the exporter dies in mid-transfer: `farbus attach` says so and ends with an error, the device leaves",
        run: |lab| server(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "lost-client-stock",
        purpose: "a stock client loses power in mid-transfer: the exporter offers the device again within a second, whole",
        run: |lab| client(lab, AttachClient::Stock),
    },
    RigCase {
        name: "lost-client-farbus",
        purpose: "the same for `farbus attach`",
        run: |lab| client(lab, AttachClient::Farbus),
    },
];

const DISK_BYTES: usize = 32 << 20;

/// The limit within which the exporter offers a lost client's device again.
const OFFERED_AGAIN_WITHIN: Duration = Duration::from_secs(1);

fn server(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, DISK_BYTES)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/lost-server.sh"),
        modules: storage::MODULES,
        client,
        port: Some(share.port()),
        ..MachineBoot::default()
    })?;
    guest.await_word("reading")?;
    std::thread::sleep(Duration::from_millis(200));
    share.cut();
    let cut = Instant::now();
    guest.await_word("gone")?;
    let gone = cut.elapsed();
    let report = guest.finish()?;
    if client == AttachClient::Farbus {
        let is_stated = report.output.lines().any(|line| line.starts_with("farbus: "));
        expect(is_stated, || format!("farbus attach ended without a word:\n{}", report.output))?;
    }
    Ok(format!("gone from the guest after {} ms", gone.as_millis()))
}

fn client(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, DISK_BYTES)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let boot = |script| {
        lab.boot(&MachineBoot {
            script,
            modules: storage::MODULES,
            client,
            port: Some(share.port()),
            variables: &[("SUM", disk::sha256(&image)?)],
            ..MachineBoot::default()
        })
    };
    let mut guest = boot(include_str!("../../guest/lost-client.sh"))?;
    guest.await_word("reading")?;
    std::thread::sleep(Duration::from_millis(200));
    expect(!wire::grants(share.port(), "1-1")?, || "the device was granted to a second client".into())?;
    guest.cut_power();

    let cut = Instant::now();
    while !wire::grants(share.port(), "1-1")? {
        if cut.elapsed() > OFFERED_AGAIN_WITHIN {
            return Err(RigError::Expectation(format!(
                "not offered again {:.1} s after the cut",
                cut.elapsed().as_secs_f64()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let offered_again = cut.elapsed();

    // A granted import is not enough: the device must be reset, not in the middle of the old command.
    boot(include_str!("../../guest/lost-client-after.sh"))?.finish()?;
    share.still_runs()?;
    Ok(format!("offered again after {} ms", offered_again.as_millis()))
}
