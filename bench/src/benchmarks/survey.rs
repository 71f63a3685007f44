//! The whole table, without targets: shows what a change improves and what it costs.

use anyhow::Result;

use super::naming::{latencies, size};
use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::LoadLimit,
    peers::PeerServerKind,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{GET_STATUS, TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "survey";
const SIZES: [usize; 7] = [64, 512, 4096, 16384, 65536, 131_072, 1 << 20];
const DEPTHS: [usize; 3] = [1, 4, 32];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for kind in [PeerServerKind::Ref, PeerServerKind::Crate] {
        let peer = lab.peer(kind)?;
        let mut peer_client = peer.attach()?;
        let mut cell = |what: String, transfer: TransferTemplate, depth: usize| {
            let contest = ContestResult::hold(
                &lab.rules,
                &mut [
                    ContestServer::new(subject.pid(), |slice| client.run(&transfer, depth, LoadLimit::Elapsed(slice))),
                    ContestServer::new(peer.pid(), |slice| {
                        peer_client.run(&transfer, depth, LoadLimit::Elapsed(slice))
                    }),
                ],
            )?;
            let by_count = transfer.bytes <= 64;
            let unit = if by_count { "k/s" } else { "MB/s" };
            let rate = |share: &RoundTally| match by_count {
                true => share.tally.urbs_per_second() / 1e3,
                false => share.tally.bytes_per_second() / 1e6,
            };
            let [ours, theirs] = [0, 1].map(|side| MeasuredQuantity::new(contest.figures(side, rate), unit));
            let finding = BenchmarkFinding::ratio(NAME, what, ours, (peer.name, theirs), SpeedTarget::Context);
            let detail = format!("{}; {}: {}", latencies(&contest, 0), peer.name, latencies(&contest, 1));
            anyhow::Ok(finding.with_detail(detail).seen_in(&contest))
        };
        // The crate does not know GET_STATUS and would stop.
        if kind == PeerServerKind::Ref && lab.subject != BenchmarkSubject::Crate {
            for depth in DEPTHS {
                let transfer = TransferTemplate::control(UsbipDirection::In, GET_STATUS, 2);
                findings.push(cell(format!("control × {depth}"), transfer, depth)?);
            }
        }
        for direction in UsbipDirection::BOTH {
            for depth in DEPTHS {
                for bytes in SIZES {
                    let what = format!("{} {} × {depth}", direction.name(), size(bytes));
                    findings.push(cell(what, TransferTemplate::bulk(direction, bytes), depth)?);
                }
            }
        }
    }
    Ok(findings)
}
