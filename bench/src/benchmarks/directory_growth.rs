//! How a directory grows from 5,000 devices to 50,000: what a list takes that means few devices and one that means all,
//! how long a daemon takes to know all of it, and what it needs for that.

use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use farbus_directory::gateway::{EtcdCall, EtcdReply, EtcdTransaction};
use farbus_directory::key::{DirectoryKey, FORMAT, FORMAT_KEY};
use farbus_directory::record::HostRecord;

use super::directory::{DEVICES_OF_HOST, DirectoryDaemon, call, device, id_of, start_etcd, wait};
use crate::{
    lab::BenchmarkEnvironment,
    probe::resident_kib,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "directory-growth";

/// The hosts, each with 25 devices.
const HOSTS: [usize; 5] = [200, 400, 800, 1400, 2000];
/// What a list of few devices may take however large the directory is, milliseconds.
const FEW_MS_MAX: f64 = 400.0;
const RESIDENT_MIB_MAX: f64 = 64.0;

/// What was seen at one size.
struct GrowthSample {
    devices: usize,
    /// A list of the devices of one host, milliseconds.
    few: Vec<f64>,
    /// A list of all devices, milliseconds.
    all: Vec<f64>,
    /// From the start of a daemon until it knows all, seconds.
    known_s: f64,
    /// The daemon's memory once it knows all, and after the lists, MiB.
    resident_mib: f64,
    listed_mib: f64,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let sizes = if lab.quick { &HOSTS[..2] } else { &HOSTS[..] };
    let (etcd, address) = start_etcd()?;
    let (mut seen, mut filled) = (Vec::new(), 0);
    for &hosts in sizes {
        fill(&address, filled..hosts)?;
        filled = hosts;
        seen.push(measure(lab, &address, hosts)?);
    }
    drop(etcd);
    lab.plot(NAME, &chart(&seen).render())?;
    Ok(seen.into_iter().flat_map(findings).collect())
}

/// Puts made-up hosts with their devices, under no lease.
fn fill(address: &str, hosts: std::ops::Range<usize>) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let format = (FORMAT_KEY.to_owned(), FORMAT.into());
    let first = (hosts.start == 0).then_some((FORMAT_KEY.to_owned(), vec![format]));
    let of_host = |host: usize| {
        let key = DirectoryKey::Host(id_of(host)).to_string();
        let record = HostRecord { name: format!("host{host}"), ..HostRecord::default() };
        let devices = (0..DEVICES_OF_HOST).map(|number| {
            (DirectoryKey::Device(id_of(host), format!("uart{number}")).to_string(), device(host, number).to_value())
        });
        let puts = std::iter::once((key.clone(), record.to_value())).chain(devices).collect();
        (key, puts)
    };
    for (guard, puts) in first.into_iter().chain(hosts.map(of_host)) {
        let change = EtcdTransaction { guard, revision: 0, lease: 0, puts, deletes: Vec::new() };
        match call(&mut stream, address, &EtcdCall::Change(change))? {
            Ok(EtcdReply::Changed { is_done: true, .. }) => {}
            other => bail!("a made-up host is not put: {other:?}"),
        }
    }
    Ok(())
}

fn measure(lab: &BenchmarkEnvironment, address: &str, hosts: usize) -> Result<GrowthSample> {
    let devices = hosts * DEVICES_OF_HOST;
    let began = Instant::now();
    let daemon = DirectoryDaemon::start(lab.farbus_program()?, address)?;
    wait("the daemon knows all devices", || {
        daemon.json(&["status", "--json"]).is_ok_and(|status| status[0]["directory"]["devices"] == devices)
    })?;
    let known_s = began.elapsed().as_secs_f64();
    let resident_mib = || Ok::<f64, anyhow::Error>(resident_kib(daemon.id())? as f64 / 1024.0);
    let known_mib = resident_mib()?;
    let rounds = if lab.quick { 3 } else { 15 };
    let (mut few, mut all) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Another host each time, by its place.
        let term = format!("place=rack {},*", round * hosts / rounds);
        for (words, count, times) in [
            (&[term.as_str(), "class=serial", "free"][..], DEVICES_OF_HOST, &mut few),
            (&["class=serial"], devices, &mut all),
        ] {
            let began = Instant::now();
            let listed = daemon.json(&[&["list", "--directory", "--json"], words].concat())?;
            times.push(began.elapsed().as_secs_f64() * 1000.0);
            let found = listed.as_array().map(Vec::len).ok_or_else(|| anyhow!("no list: {listed}"))?;
            if found != count {
                bail!("{found} devices are listed, not {count}: {words:?}");
            }
        }
    }
    Ok(GrowthSample { devices, few, all, known_s, resident_mib: known_mib, listed_mib: resident_mib()? })
}

fn findings(seen: GrowthSample) -> [BenchmarkFinding; 5] {
    let GrowthSample { devices, few, all, known_s, resident_mib, listed_mib } = seen;
    let ms = |times| MeasuredQuantity::new(SampleSpread::new(times), "ms");
    let once = |value, unit| MeasuredQuantity::new(SampleSpread::once(value), unit);
    let of = |what: &str| format!("{devices} devices: {what}");
    // The site for which there is a target has 5,000.
    let small =
        |most| if devices <= HOSTS[0] * DEVICES_OF_HOST { SpeedTarget::AtMost(most) } else { SpeedTarget::Context };
    [
        BenchmarkFinding::absolute(NAME, of("list of the 25 of one host"), ms(few), SpeedTarget::AtMost(FEW_MS_MAX)),
        BenchmarkFinding::absolute(NAME, of("list of all"), ms(all), SpeedTarget::Context),
        BenchmarkFinding::absolute(
            NAME,
            of("a daemon's start until it knows them"),
            once(known_s, "s"),
            SpeedTarget::Context,
        ),
        BenchmarkFinding::absolute(NAME, of("that daemon"), once(resident_mib, "MiB"), small(RESIDENT_MIB_MAX)),
        BenchmarkFinding::absolute(
            NAME,
            of("that daemon after the lists"),
            once(listed_mib, "MiB"),
            small(RESIDENT_MIB_MAX),
        ),
    ]
}

fn chart(seen: &[GrowthSample]) -> LineChart {
    let line = |name: &str, value: &dyn Fn(&GrowthSample) -> f64| ChartLine {
        name: name.to_owned(),
        points: seen.iter().map(|seen| (seen.devices as f64, value(seen))).collect(),
    };
    let panel = |up: &str, lines| ChartPanel { up: up.to_owned(), is_logarithmic: false, lines };
    let median = |times: &[f64]| SampleSpread::new(times.to_vec()).median();
    let few = |seen: &GrowthSample| median(&seen.few);
    let all = |seen: &GrowthSample| median(&seen.all);
    let few_alone = line("list of the 25 of one host", &few);
    let both = vec![line("list of the 25 of one host", &few), line("list of all", &all)];
    let daemon = vec![
        line("memory of a daemon that knows all", &|seen| seen.resident_mib),
        line("after lists of all", &|seen| seen.listed_mib),
    ];
    LineChart {
        title: "A directory on etcd that grows from 5,000 devices to 50,000".into(),
        across: "devices".into(),
        panels: vec![panel("ms", vec![few_alone]), panel("ms", both), panel("MiB", daemon)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_a_point_of_each_line() {
        let seen = |devices: usize| GrowthSample {
            devices,
            few: vec![3.0, 1.0, 2.0],
            all: vec![devices as f64],
            known_s: 1.0,
            resident_mib: 20.0,
            listed_mib: 30.0,
        };
        let all = [seen(5000), seen(50_000)];
        let points: Vec<_> =
            chart(&all).panels.into_iter().flat_map(|panel| panel.lines).map(|line| line.points).collect();
        assert_eq!(points[0], [(5000.0, 2.0), (50_000.0, 2.0)]);
        assert!(points.len() == 5 && points[2][1] == (50_000.0, 50_000.0), "{points:?}");
        let [few, _, _, resident, _] = findings(seen(5000));
        assert!(few.what.starts_with("5000 devices") && !few.missed() && !resident.missed());
    }
}
