//! Frames a second of a camera, here and remote (Netbus, Figure 7): an isochronous endpoint whose packets make images.
//!
//! The camera is the source/sink device at high speed, 550 bytes each microframe: 4400 bytes a URB of 8 packets, as the
//! paper's camera had on average (section 7.1). An image is YUV 4:2:0, 12 bits a pixel. Its driver keeps five URBs in
//! flight. The local one is in this process, on a real clock; no kernel and no right is needed.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, anyhow, bail, ensure};
use farbus::{
    client::{self, DeviceTarget as FarbusTarget},
    gadgets::zero::{SourcePattern, SourceSink},
    host::HostPort,
    importer::port::usbip::RemotePort,
    model::{Device, UsbSpeed},
};

use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    peers::{
        PeerServerKind,
        local::LocalDevice,
        session::{IsochronousResult, UsbLoad, source_sink},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "camera";
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 550;
const DEPTH: usize = 5;
/// The sizes of an image, and what the paper's remote camera had of the local one's frames (Netbus, Figure 7 and
/// section 7.3).
const IMAGES: [(u64, u64, f64); 2] = [(320, 240, 0.83), (640, 480, 0.90)];

/// What came in each pass, of each way.
struct CameraPasses {
    name: &'static str,
    passes: Vec<IsochronousResult>,
}

impl CameraPasses {
    fn frames(&self, (wide, high, _): (u64, u64, f64)) -> SampleSpread {
        let frame_bytes = (wide * high * 3 / 2) as f64;
        SampleSpread::new(self.passes.iter().map(|pass| pass.bytes as f64 / frame_bytes / pass.seconds).collect())
    }
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has all these ways to a camera");
    }
    let (passes, span) = if lab.quick { (1, Duration::from_secs(1)) } else { (5, Duration::from_secs(2)) };
    let sessions = lab.peer(PeerServerKind::Session)?;
    let seen = measured(lab, sessions.address, passes, span)?;
    lab.plot("camera", &chart(&seen).render())?;
    Ok(findings(&seen))
}

/// At `sessions` the same device is served in sessions.
fn measured(
    lab: &BenchmarkEnvironment,
    sessions: SocketAddr,
    passes: usize,
    span: Duration,
) -> Result<Vec<CameraPasses>> {
    let mut local = UsbLoad::over(LocalDevice::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)))?;
    let plain = lab.farbus("zero")?;
    let target: FarbusTarget = format!("{}/1-1", plain.address).parse().map_err(|error: String| anyhow!(error))?;
    let (link, mut device) = client::import(&target)?;
    // What its host would have read first.
    device.set_descriptors(SourceSink::device(device.speed(), SourcePattern::Zeros, false).descriptors().clone());
    let mut usbip = UsbLoad::over(RemotePort::new(link, device)?)?;
    let mut session = source_sink(sessions)?;
    let mut seen = ["local", "USB/IP", "a session"].map(|name| CameraPasses { name, passes: Vec::new() });
    for _ in 0..passes {
        let streamed = [streamed(&mut local, span)?, streamed(&mut usbip, span)?, streamed(&mut session, span)?];
        for (seen, streamed) in seen.iter_mut().zip(streamed) {
            seen.passes.push(streamed);
        }
    }
    Ok(seen.into())
}

fn streamed<P: HostPort>(load: &mut UsbLoad<P>, span: Duration) -> Result<IsochronousResult> {
    let streamed = load.stream(PACKETS, PACKET_BYTES, DEPTH, span)?;
    ensure!(streamed.bytes > 0, "no image came");
    Ok(streamed)
}

fn findings(seen: &[CameraPasses]) -> Vec<BenchmarkFinding> {
    let mut found = Vec::new();
    for image @ (wide, high, paper) in IMAGES {
        let frames = |seen: &CameraPasses| MeasuredQuantity::new(seen.frames(image), "frames/s");
        for remote in &seen[1..] {
            let what = format!("camera {wide} × {high} by {}", remote.name);
            let sum = |of: fn(&IsochronousResult) -> u64| remote.passes.iter().map(of).sum::<u64>();
            let detail = format!(
                "the paper, Figure 7: {paper:.2}; {} of {} packets lost",
                sum(|pass| pass.packets_lost),
                sum(|pass| pass.packets)
            );
            let finding =
                BenchmarkFinding::ratio(NAME, what, frames(remote), ("local", frames(&seen[0])), SpeedTarget::Context);
            found.push(finding.with_detail(detail));
        }
    }
    found
}

fn chart(seen: &[CameraPasses]) -> LineChart {
    let line = |name: &str, of: &dyn Fn((u64, u64, f64)) -> f64| ChartLine {
        name: name.to_owned(),
        points: IMAGES.map(|image| (image.0 as f64, of(image))).into(),
    };
    let frames = seen.iter().map(|seen| line(seen.name, &|image| seen.frames(image).median())).collect();
    let share = |seen: &CameraPasses, local: &CameraPasses, image| {
        SampleSpread::ratio(&seen.frames(image), &local.frames(image)).median()
    };
    let shares = seen[1..].iter().map(|remote| line(remote.name, &|image| share(remote, &seen[0], image)));
    let paper = line("the paper", &|image| image.2);
    LineChart {
        title: "A camera here and remote (Netbus, Figure 7)".into(),
        across: "width of the image, pixels".into(),
        panels: vec![
            ChartPanel { up: "frames/s".into(), is_logarithmic: false, lines: frames },
            ChartPanel { up: "share of local".into(), is_logarithmic: false, lines: shares.chain([paper]).collect() },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::session;

    #[test]
    fn camera_sends_images_by_every_way_and_the_papers_share_stands_beside() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        let seen = measured(&lab, session::serve_for_test(), 1, Duration::from_millis(100)).expect("images come");
        assert!(seen.iter().all(|seen| seen.passes[0].packets >= 8 && seen.passes[0].bytes > 0));
        assert_eq!(seen[0].passes[0].packets_lost, 0, "the local camera loses nothing");
        let found = findings(&seen);
        assert_eq!(found.len(), 4);
        assert!(found[0].detail.contains("Figure 7: 0.83") && found[3].detail.contains("Figure 7: 0.90"));
        assert_eq!(chart(&seen).render().matches("<polyline").count(), 6);
    }
}
