//! A link that other traffic fills (Netbus, Figure 8, in short): no transfer fails, and small urgent transfers
//! continue.
//!
//! `farbus bench congestion` measures how late they are.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbus::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::host::HostPort;
use farbus::importer::port::session::SessionPort;
use farbus::model::{EpAddr, Payload, SetupPacket, Urb, UrbId, UrbStatus};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::harness::{Harness, Running, Share, has};
use super::network::{FAR, Network, command_in, ip};
use super::restart::SetOnDrop;

const LINK_MBIT: u64 = 20;
/// The part of the link that the other host's traffic takes, in percent.
const TAKEN: u64 = 95;
const SPAN: Duration = Duration::from_secs(3);
/// Transfers of each kind that have to complete meanwhile.
const PULSES_MIN: usize = 20;

/// Runs `act` on a thread in a network namespace.
pub fn on_host<T: Send>(namespace: &str, act: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        act()
    };
    thread::scope(|scope| scope.spawn(enter).join().unwrap())
}

/// A third host at the router. Dropping it removes it.
struct Stranger(String);

impl Drop for Stranger {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// `None` where this machine cannot have such a host or cannot shape a link.
fn stranger(network: &Network) -> Option<Stranger> {
    let (stranger, router) = (Stranger(format!("{}-stranger", network.near)), &network.router);
    let name = &stranger.0;
    let steps = [
        format!("netns add {name}"),
        format!("-n {name} link add cable type veth peer name stranger netns {router}"),
        format!("-n {name} addr add 10.111.4.2/24 dev cable"),
        format!("-n {router} addr add 10.111.4.1/24 dev stranger"),
        format!("-n {router} link set stranger up"),
        format!("-n {name} link set cable up"),
        format!("-n {name} route add default via 10.111.4.1"),
        format!("netns exec {router} tc qdisc add dev near root tbf rate {LINK_MBIT}mbit burst 64kb latency 30ms"),
    ];
    let is_there = steps.iter().all(|step| ip(step));
    is_there.then_some(stranger)
}

/// How long each small transfer of one kind took.
fn pulses(target: &DeviceTarget, urb: impl Fn(UrbId) -> Urb) -> Vec<Duration> {
    let config = ClientConfig { grace: Some(Duration::from_secs(20)), ..ClientConfig::default() };
    let client = ImporterClient::new(config);
    let linked = client.session(target, Duration::ZERO).unwrap().expect("a session was asked for");
    let mut port = SessionPort::new(linked);
    port.submit(Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty));
    assert_eq!(port.wait(None).unwrap().unwrap().status, UrbStatus::Ok);
    let (began, mut took) = (Instant::now(), Vec::new());
    while began.elapsed() < SPAN || took.len() < PULSES_MIN {
        let asked_at = Instant::now();
        port.submit(urb(UrbId(took.len() as u64 + 1)));
        let done = port.wait(None).unwrap().expect("it is answered");
        assert_eq!(done.status, UrbStatus::Ok);
        took.push(asked_at.elapsed());
        // waits: the pace of a load; a slow machine makes less of it
        thread::sleep(Duration::from_millis(5));
    }
    took.sort_unstable();
    took
}

#[test]
fn congested_link_starves_neither_interrupt_nor_control_transfers() {
    let network = Network::lay("taken");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let Some(stranger) = stranger(&network) else {
        has("shaper of links", false);
        return;
    };
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("far.img", 64 << 20).display());
    let arguments = ["share", "zero", "zero", &disk, "--listen", &format!("{FAR}:0")];
    let share = Share::follow(Running::start(command_in(&harness, &network.far, &arguments)));
    let [interrupts, controls, disk] = ["zero", "zero2", "disk"].map(|name| share.library_target(name));
    let is_over = AtomicBool::new(false);
    let (interrupts, controls, read_bytes, flood_bytes) = thread::scope(|scope| {
        // A user that fails ends the load as well.
        let _end = SetOnDrop(&is_over);
        let flood = scope.spawn(|| {
            on_host(&stranger.0, || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let (began, mut sent) = (Instant::now(), 0);
                while !is_over.load(Ordering::Acquire) {
                    let due = began.elapsed().as_micros() as u64 * LINK_MBIT / 8 * TAKEN / 100;
                    while sent < due {
                        // Packets may be lost: that is what congestion does.
                        let _ = socket.send_to(&[0; 1200], "10.111.2.2:9");
                        sent += 1242;
                    }
                    // waits: the pace of a load; a slow machine makes less of it
                    thread::sleep(Duration::from_millis(1));
                }
                sent
            })
        });
        let near = &network.near;
        let interrupts =
            scope.spawn(|| on_host(near, || pulses(&interrupts, |id| Urb::data_in(id, EpAddr::from_byte(0x82), 64))));
        let controls = scope.spawn(|| {
            let descriptor = |id| Urb::control(id, SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
            on_host(near, || pulses(&controls, descriptor))
        });
        let reads = scope.spawn(|| {
            on_host(near, || {
                let config = ClientConfig { grace: Some(Duration::from_secs(20)), ..ClientConfig::default() };
                let client = ImporterClient::new(config);
                let mut disk = client.open_disk(&disk).unwrap();
                let (began, mut read) = (Instant::now(), 0);
                while began.elapsed() < SPAN || read == 0 {
                    read += disk.read(read % (60 << 20), 64 << 10).expect("no read fails").len() as u64;
                }
                read
            })
        });
        let (interrupts, controls) = (interrupts.join().unwrap(), controls.join().unwrap());
        let read = reads.join().unwrap();
        is_over.store(true, Ordering::Release);
        (interrupts, controls, read, flood.join().unwrap())
    });
    for (what, took) in [("interrupts", &interrupts), ("control", &controls)] {
        let p99 = took[took.len() * 99 / 100];
        println!("{what}: {} in {SPAN:?}, median {:?}, p99 {p99:?}", took.len(), took[took.len() / 2]);
    }
    println!("{read_bytes} bytes read beside {flood_bytes} of the stranger's");
    assert!(read_bytes > 0);
}
