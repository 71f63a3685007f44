//! Hosts, each a thread that knows its plan, its own debug port and its cables, bring a network up over real sockets,
//! with random delays. R3. `FARBUS_BRING_UPS` says how often each network is brought up (default 25).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use farbus_gadgets::debug_port::{DATA, DebugDevice, DebugPort, DebugPortPeer};
use farbus_gadgets::{EmulatedDevice, GadgetWaker};
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Payload, ReadinessSource, SetupPacket, Urb, UrbId, UrbStatus,
};
use farbus_realtime::topology::bring_up::BringUpAction;
use farbus_realtime::topology::party::{BringUpProtocol, MESSAGE_BYTES};
use farbus_realtime::topology::{HostTopology, NetworkPattern, plan};
use farbus_sim::SimulationRng;

const PATIENCE: Duration = Duration::from_secs(60);
/// The longest delay of any action: to start, to send, to enable, to enumerate.
const SLOWEST_US: u64 = 3000;

type Heard = (u32, [u8; MESSAGE_BYTES]);

/// The state of one host.
struct Host {
    number: u32,
    party: BringUpProtocol,
    port: DebugPort,
    cables: BTreeMap<u32, DebugPortPeer>,
    links: BTreeMap<u32, TcpStream>,
    heard: Receiver<Heard>,
    devices: BTreeMap<u32, EmulatedDevice<DebugDevice>>,
    random: SimulationRng,
}

fn bell() -> GadgetWaker {
    GadgetWaker { readiness: ReadinessSource::new(()), ring: Box::new(|| {}), hush: Box::new(|| {}) }
}

impl Host {
    fn dawdle(&mut self) {
        thread::sleep(Duration::from_micros(self.random.between(0, SLOWEST_US)));
    }

    /// Takes part, and stays until all hosts are done.
    fn run(mut self, done: &AtomicU32, hosts: u32) -> Self {
        let end = Instant::now() + PATIENCE;
        self.dawdle();
        let neighbours: Vec<_> = self.links.keys().copied().collect();
        neighbours.iter().for_each(|&other| self.party.handle_linked(other));
        let mut is_counted = false;
        while done.load(Ordering::SeqCst) < hosts && Instant::now() < end {
            while let Some((to, message)) = self.party.poll_transmit() {
                self.dawdle();
                // A host that is done may have gone.
                let _ = (&self.links[&to]).write_all(&message);
            }
            if let Some(act) = self.party.poll() {
                self.dawdle();
                let found = self.act(act);
                self.party.handle_done(act, found);
                // A repeated message does no harm.
                if self.random.once_in(4) {
                    neighbours.iter().for_each(|&other| self.party.handle_linked(other));
                }
                continue;
            }
            if self.party.is_complete() && !is_counted {
                is_counted = true;
                done.fetch_add(1, Ordering::SeqCst);
            }
            if let Ok((from, message)) = self.heard.recv_timeout(Duration::from_millis(2)) {
                self.party.handle_received(from, &message).unwrap();
            }
        }
        self.links.values().for_each(|link| drop(link.shutdown(Shutdown::Both)));
        self
    }

    /// An enumeration takes every attached port, wanted or not.
    fn act(&mut self, act: BringUpAction) -> Vec<u32> {
        match act {
            BringUpAction::Enable => {
                self.port.enable(bell(), bell()).unwrap();
                Vec::new()
            }
            BringUpAction::Enumerate => {
                let taken = self.cables.iter().filter_map(|(&other, cable)| Some((other, cable.enumerate()?)));
                self.devices.extend(taken);
                self.devices.keys().copied().collect()
            }
        }
    }
}

/// The hosts of `topology`, wired and linked.
fn hosts(topology: &HostTopology, seed: u64) -> Vec<Host> {
    let count = topology.hosts();
    let ports: Vec<_> = (0..count).map(|host| DebugPort::new(&format!("host{host}"))).collect();
    let cables: Vec<_> = ports.iter().map(DebugPort::cable).collect();
    let (mut links, heard): (Vec<BTreeMap<u32, TcpStream>>, Vec<_>) =
        (0..count).map(|_| (BTreeMap::new(), channel())).unzip();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (a, b) in topology.debug_links() {
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        for (me, from, link) in [(a, b, one), (b, a, other)] {
            link.set_nodelay(true).unwrap();
            let (mut ear, tell) = (link.try_clone().unwrap(), heard[me as usize].0.clone());
            thread::spawn(move || {
                let mut message = [0; MESSAGE_BYTES];
                while ear.read_exact(&mut message).is_ok() && tell.send((from, message)).is_ok() {}
            });
            links[me as usize].insert(from, link);
        }
    }
    let mut random = SimulationRng::new(seed);
    let mut all = Vec::new();
    for (number, ((port, links), (_, heard))) in (0..).zip(ports.into_iter().zip(links).zip(heard)) {
        all.push(Host {
            number,
            party: BringUpProtocol::new(topology, number),
            port,
            cables: links.keys().map(|&other| (other, cables[other as usize].clone())).collect(),
            links,
            heard,
            devices: BTreeMap::new(),
            random: SimulationRng::new(random.bits()),
        });
    }
    all
}

/// Brings the network up, and sends bytes over each link, both ways.
fn bring_up(topology: &HostTopology, seed: u64) {
    let done = Arc::new(AtomicU32::new(0));
    let started: Vec<_> = hosts(topology, seed)
        .into_iter()
        .map(|host| {
            let (done, count) = (Arc::clone(&done), topology.hosts());
            thread::spawn(move || host.run(&done, count))
        })
        .collect();
    let mut hosts: Vec<_> = started.into_iter().map(|host| host.join().unwrap()).collect();
    for host in &hosts {
        let (waits_for, stray) = (host.party.waits_for(), host.party.stray());
        assert!(host.party.is_complete(), "seed {seed}: host {} waits for {waits_for:?}, stray {stray:?}", host.number);
        let taken: BTreeSet<_> = host.devices.keys().copied().collect();
        assert_eq!(taken, topology.debug_targets(host.number).collect(), "seed {seed}: host {}", host.number);
    }
    for (target, host) in topology.debug_links() {
        let mut device = hosts[host as usize].devices.remove(&target).unwrap();
        let port = &mut hosts[target as usize].port;
        assert_eq!(device.descriptors().string(3), Some(format!("host{target}").as_str()), "who it says it is");
        let (mut answers, now) = (CompletionQueue::new(BufferPool::new(0)), farbus_model::Instant::ZERO);
        let [to_host, to_target] = [target, host].map(|host| vec![host as u8; 1500]);
        port.write(to_host.clone()).unwrap();
        let urbs = [
            Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty),
            Urb::data_in(UrbId(1), EpAddr::from_byte(0x80 | DATA), 2048),
            Urb::data_out(UrbId(2), EpAddr::from_byte(DATA), to_target.clone().into()),
        ];
        urbs.into_iter().for_each(|urb| device.submit(now, urb.launch(), &mut answers));
        let answers: Vec<_> = std::iter::from_fn(|| answers.pop()).collect();
        assert!(answers.len() == 3 && answers.iter().all(|answer| answer.status == UrbStatus::Ok));
        assert_eq!((answers[1].payload.clone().into_vec(), port.read()), (to_host, Some(to_target)));
    }
}

fn bring_up_often(network: NetworkPattern, hosts: u32, debug_links: usize) {
    let topology = plan(hosts, &network.cables(hosts).unwrap(), &BTreeSet::new()).unwrap();
    assert_eq!(topology.debug_links().count(), debug_links);
    let times = std::env::var("FARBUS_BRING_UPS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    (0..times).for_each(|seed| bring_up(&topology, seed));
    println!("{network:?} of {hosts} hosts: brought up {times} times, {debug_links} debug links each");
}

#[test]
fn a_ring_of_four_comes_up_every_time() {
    bring_up_often(NetworkPattern::Ring, 4, 4);
}

#[test]
fn a_cube_of_eight_comes_up_every_time() {
    bring_up_often(NetworkPattern::Hypercube, 8, 8);
}
