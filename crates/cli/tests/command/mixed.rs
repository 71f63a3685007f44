//! Mixed criticality, end to end (R2): streams of one bus over one link, of which one is critical. The link is
//! narrowed, and widened again.
//!
//! These checks hold on a machine that stalls, too: which streams are admitted, which give way, and what their readers
//! are told. `farbus bench mixed` measures that the critical stream misses no packet meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbus::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::host::HostPort;
use farbus::importer::port::session::SessionPort;
use farbus::model::{EpAddr, IsoPacket, Payload, SetupPacket, Urb, UrbId, UrbStatus};
use farbus::reservation::ReservationRequest;
use serde_json::Value;

use super::congestion::on_host;
use super::harness::{Harness, PATIENCE, Running, Share, has, wait_until};
use super::network::{FAR, Network, command_in, ip};

/// A full-speed stream: a packet of this many bytes each millisecond, 2 Mb/s.
const PACKET_BYTES: u32 = 256;
const ISO_IN: u8 = 0x83;
/// Packets per request, and requests in flight: together two seconds of the stream, so that a wait in a queue costs no
/// packet.
const PACKETS: u32 = 8;
const DEPTH: u64 = 256;

/// What a stream has delivered.
#[derive(Default)]
struct Brought {
    packets: AtomicU64,
    is_suspended: AtomicBool,
    /// What its reader was told about its reservation, in order.
    reports: Mutex<Vec<String>>,
}

fn reservation(criticality: &str) -> farbus::reservation::ReservationRequest {
    format!("bytes={PACKET_BYTES},period=1,criticality={criticality}").parse::<ReservationRequest>().unwrap()
}

fn client(criticality: &str) -> ImporterClient {
    let ReservationRequest(reservation) = reservation(criticality);
    ImporterClient::new(ClientConfig {
        grace: Some(Duration::from_secs(20)),
        reservation: Some(reservation),
        ..ClientConfig::default()
    })
}

/// Reads a stream until `is_over`.
fn read(target: &DeviceTarget, criticality: &str, brought: &Brought, is_over: &AtomicBool, is_on: impl FnOnce()) {
    let linked = client(criticality).session(target, Duration::ZERO).unwrap().expect("a session was asked for");
    let status = linked.status();
    let mut port = SessionPort::new(linked);
    port.submit(Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty));
    assert_eq!(port.wait(None).unwrap().unwrap().status, UrbStatus::Ok);
    is_on();
    let (mut id, mut ids) = (1, VecDeque::new());
    let mut message = String::new();
    while !is_over.load(Ordering::Acquire) {
        while (ids.len() as u64) < DEPTH {
            let mut urb = Urb::data_in(UrbId(id), EpAddr::from_byte(ISO_IN), PACKETS * PACKET_BYTES);
            let packet = |at| IsoPacket { offset: at * PACKET_BYTES, length: PACKET_BYTES, ..IsoPacket::default() };
            urb.iso = (0..PACKETS).map(packet).collect();
            urb.flags.iso_asap = true;
            urb.interval = 1;
            port.submit(urb);
            ids.push_back(id);
            id += 1;
        }
        if let Some(reserved) = status.reserved() {
            let now = format!("{:?}", reserved.state);
            brought.is_suspended.store(now == "Suspended", Ordering::Release);
            if now != message {
                brought.reports.lock().unwrap().push(now.clone());
                message = now;
            }
        }
        let Some(done) = port.wait(Some(port.now() + Duration::from_millis(50))).unwrap() else { continue };
        assert_eq!((ids.pop_front(), done.status), (Some(done.id.0), UrbStatus::Ok));
        let whole = done.iso.iter().filter(|packet| packet.status == UrbStatus::Ok && packet.actual == PACKET_BYTES);
        brought.packets.fetch_add(whole.count() as u64, Ordering::AcqRel);
    }
    ids.iter().for_each(|&id| port.cancel(UrbId(id)));
    let until = Instant::now() + PATIENCE;
    while !ids.is_empty() {
        assert!(Instant::now() < until, "whatever was asked is answered");
        let done = port.wait(Some(port.now() + Duration::from_millis(50))).unwrap();
        ids.retain(|&id| done.as_ref().is_none_or(|done| done.id.0 != id));
    }
}

/// The reservations that `farbus status` reports, in the order of the devices.
fn reservations(harness: &Harness) -> Vec<Value> {
    let status = harness.json(&["status", "--json"]);
    let share = status.as_array().unwrap().iter().find(|process| process["role"] == "share").unwrap();
    share["devices"].as_array().unwrap().iter().map(|device| device["reservation"].clone()).collect()
}

/// What the exporter reports of the three streams of low criticality at one moment: the first admitted is suspended
/// last, and restored first.
fn assert_in_order(answers: &[Value]) {
    let suspended: Vec<bool> = answers[..3].iter().map(|answer| answer["state"] == "suspended").collect();
    assert!(suspended.is_sorted(), "{answers:?}");
    assert_eq!(answers[3]["state"], "admitted", "{answers:?}");
}

fn narrow(network: &Network, kbit: u64) {
    let router = &network.router;
    let word =
        format!("netns exec {router} tc qdisc replace dev near root tbf rate {kbit}kbit burst 16kb latency 200ms");
    assert!(ip(&word), "{word}");
}

#[test]
fn streams_of_low_criticality_give_way_in_order_and_the_one_that_matters_stays_admitted() {
    let network = Network::lay("mixed");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let shapes = ip(&format!(
        "netns exec {} tc qdisc replace dev near root tbf rate 50mbit burst 64kb latency 50ms",
        network.router
    ));
    if !has("shaper of links", shapes) {
        return;
    }
    let harness = Harness::new();
    let arguments: Vec<String> = ["share", "zero,speed=full", "zero,speed=full", "zero,speed=full", "zero,speed=full"]
        .map(str::to_owned)
        .into_iter()
        .chain(["zero,speed=full".into(), "--listen".into(), format!("{FAR}:0")])
        .chain(["--reserve-high".into(), "10.111.2.0/24".into()])
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let share = Share::follow(Running::start(command_in(&harness, &network.far, &arguments)));
    let names = ["zero", "zero2", "zero3", "zero4"];
    let targets = names.map(|name| share.library_target(name));
    let brought: [Arc<Brought>; 4] = std::array::from_fn(|_| Arc::default());
    let is_over = AtomicBool::new(false);
    let count = |at: usize| brought[at].packets.load(Ordering::Acquire);
    let is_suspended = |at: usize| brought[at].is_suspended.load(Ordering::Acquire);
    thread::scope(|scope| {
        // Three streams of low criticality one after the other, then the critical one; all on one bus.
        for at in [0, 1, 2, 3] {
            let criticality = if at == 3 { "high" } else { "low" };
            let (on, is_on) = std::sync::mpsc::channel();
            let (target, brought, is_over) = (&targets[at], &brought[at], &is_over);
            let near = &network.near;
            scope.spawn(move || {
                on_host(near, || read(target, criticality, brought, is_over, || on.send(()).unwrap()));
            });
            is_on
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("stream {at} is not there\n{}", share.process.log()));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(PATIENCE, "all of them run", || (0..4).all(|at| count(at) > 500));
            // The bus has 900 us of each millisecond, and a fifth stream does not fit: the refusal says how much is
            // missing.
            let fifth = share.library_target("zero5");
            let fifth = on_host(&network.near, || client("low").session(&fifth, Duration::ZERO));
            let refusal = fifth.err().expect("five of them are more than the bus has").to_string();
            assert!(refusal.contains("us of an interval are missing"), "{refusal}");
            println!("a fifth: {}", refusal.lines().last().unwrap_or_default());

            narrow(&network, 6000);
            let began = Instant::now();
            wait_until(PATIENCE, "the last two of low criticality are suspended", || {
                assert_in_order(&reservations(&harness));
                is_suspended(1) && is_suspended(2)
            });
            println!("suspended after {:?}", began.elapsed());
            let suspended: [u64; 4] = std::array::from_fn(count);
            wait_until(PATIENCE, "the one that matters goes on", || count(3) > suspended[3] + 1000);
            let answers = reservations(&harness);
            assert_in_order(&answers);
            assert_eq!(
                (&answers[2]["state"], &answers[2]["lack"]),
                (&"suspended".into(), &"path".into()),
                "{answers:?}"
            );

            narrow(&network, 50_000);
            let widened = Instant::now();
            wait_until(PATIENCE, "all of them are admitted again", || {
                assert_in_order(&reservations(&harness));
                (0..3).all(|at| !is_suspended(at))
            });
            println!("all admitted again after {:?}", widened.elapsed());
            let resumed: [u64; 4] = std::array::from_fn(count);
            wait_until(PATIENCE, "and run", || (0..4).all(|at| count(at) > resumed[at] + 500));
        }));
        is_over.store(true, Ordering::Release);
        for (at, brought) in brought.iter().enumerate() {
            println!("{}: told {:?}", names[at], brought.reports.lock().unwrap());
        }
        if let Err(panic) = outcome {
            println!("{}", share.process.log());
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(*brought[3].reports.lock().unwrap(), ["Admitted"]);
    wait_until(PATIENCE, "what nobody uses is reserved for nobody", || {
        reservations(&harness).iter().all(Value::is_null)
    });
}
