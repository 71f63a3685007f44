//! Reservations of devices: which are admitted, which are suspended for others, what is missing; and a thousand
//! simulated hosts with random events.

use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{Device, UsbSpeed};
use farbus_realtime::schedule::EndpointRequestError;
use farbus_realtime::transfer::interval_ps;
use farbus_realtime::vcpu::VcpuReserve;
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{
    DeviceBusProfile, EndpointBandwidth, HostReservationLedger, LedgerRequest, ReservationChange,
    ReservationCriticality, ReservationDenial, ReservationReport, ReservationState, ReservationTerms, ScarceResource,
    ServingCost,
};
use farbus_session::snapshot::{self, SnapshotWriter};

#[path = "recorded/mod.rs"]
mod recorded;

const COST: ServingCost = ServingCost { turn_ns: 20_000, kib_ns: 1000 };
const ISO_IN: u8 = 0x83;

fn carrier(bus: &str, speed: UsbSpeed) -> DeviceBusProfile {
    let device = SourceSink::device(speed, SourcePattern::Zeros, false);
    DeviceBusProfile::new(bus, device.descriptors(), speed)
}

fn stream(criticality: ReservationCriticality, bytes: u32, period: u32) -> ReservationTerms {
    ReservationTerms {
        criticality,
        latency_ns: 0,
        claims: vec![EndpointBandwidth { endpoint: ISO_IN, bytes, period }],
        ..ReservationTerms::default()
    }
}

fn ask(
    ledger: &mut HostReservationLedger,
    device: &str,
    carrier: &DeviceBusProfile,
    reservation: ReservationTerms,
) -> Result<Vec<ReservationChange>, ReservationDenial> {
    ledger.admit(LedgerRequest { device, carrier, reservation, path: Some("desk") })
}

fn state(ledger: &HostReservationLedger, device: &str) -> ReservationState {
    ledger.report(device).expect("it has a reservation").state
}

fn states(ledger: &HostReservationLedger) -> Vec<(&str, ReservationState)> {
    ledger.lines().map(|line| (line.device, line.report.state)).collect()
}

#[test]
fn claim_that_a_device_cannot_carry_is_refused_with_its_kind_of_lack() {
    let (mut ledger, carrier) = (HostReservationLedger::new(2, COST), carrier("bus", UsbSpeed::High));
    let mut refused = |endpoint, bytes, period, criticality| {
        let claims = vec![EndpointBandwidth { endpoint, bytes, period }];
        ask(
            &mut ledger,
            "zero",
            &carrier,
            ReservationTerms { criticality, latency_ns: 0, claims, ..ReservationTerms::default() },
        )
        .unwrap_err()
    };
    assert_eq!(refused(0x85, 1, 1, ReservationCriticality::High), ReservationDenial::NoEndpoint { endpoint: 0x85 });
    let odd = refused(ISO_IN, 64, 3, ReservationCriticality::High);
    let why = EndpointRequestError::PeriodNotPowerOfTwo { wanted: 3, shorter: 2 };
    assert_eq!((odd.lack(), odd), ((ScarceResource::Period, 2), ReservationDenial::Invalid { endpoint: ISO_IN, why }));
    let large = refused(ISO_IN, 1025, 1, ReservationCriticality::Low);
    assert_eq!(large.lack(), (ScarceResource::Budget, 1));
    assert!(large.to_string().contains("the wire carries 1024 a period"), "{large}");
    assert_eq!(refused(ISO_IN, 0, 1, ReservationCriticality::High).lack(), (ScarceResource::Budget, 0));
    assert_eq!(ledger.lines().count(), 0);
}

#[test]
fn claim_without_endpoint_means_the_endpoint_of_the_devices_data() {
    let carrier = carrier("bus", UsbSpeed::High);
    let claim = EndpointBandwidth { endpoint: 0, bytes: 1024, period: 1 };
    assert_eq!(carrier.address(&claim).as_byte(), ISO_IN);
    let slow = EndpointBandwidth { endpoint: 0x81, ..claim };
    assert!(carrier.request(1, &slow, ReservationCriticality::High).is_ok(), "it has bulk endpoints, too");
}

#[test]
fn low_bulk_reservation_gives_way_to_high_and_comes_back() {
    let (mut ledger, carrier) = (HostReservationLedger::new(4, COST), carrier("bus", UsbSpeed::Full));
    let bulk = |criticality, bytes| ReservationTerms {
        criticality,
        latency_ns: 0,
        claims: vec![EndpointBandwidth { endpoint: 0x81, bytes, period: 1 }],
        ..ReservationTerms::default()
    };
    ask(&mut ledger, "disk", &carrier, bulk(ReservationCriticality::Low, 512)).unwrap();
    assert_eq!(state(&ledger, "disk"), ReservationState::Admitted);
    let bound_ns = ledger.report("disk").unwrap().bound_ns;
    ask(&mut ledger, "camera", &carrier, stream(ReservationCriticality::High, 256, 1)).unwrap();
    assert_eq!(state(&ledger, "disk"), ReservationState::Admitted, "there is room for both");
    let placements = ledger.plan("bus").unwrap().placements().to_vec();
    ask(&mut ledger, "can", &carrier, bulk(ReservationCriticality::High, 512)).unwrap();
    assert_eq!(state(&ledger, "disk"), ReservationState::Suspended, "in turns with it the disk would have half");
    assert_eq!(ledger.report("disk").unwrap().lack, ScarceResource::Bus);
    assert_eq!(ledger.plan("bus").unwrap().placements(), placements, "the camera keeps its place");
    let refused = ask(&mut ledger, "stick", &carrier, bulk(ReservationCriticality::Low, 512)).unwrap_err();
    assert!(matches!(refused.lack(), (ScarceResource::Bus, 1..)), "{refused}");
    let news = ledger.release("can");
    assert_eq!(news.iter().map(|news| news.device.as_str()).collect::<Vec<_>>(), ["disk"]);
    assert_eq!(ledger.report("disk").unwrap().bound_ns, bound_ns);
}

#[test]
fn low_criticality_gives_way_to_high_in_order_of_arrival_and_comes_back() {
    let (mut ledger, carrier) = (HostReservationLedger::new(4, COST), carrier("bus", UsbSpeed::Full));
    for device in ["a", "b", "c", "d"] {
        let news = ask(&mut ledger, device, &carrier, stream(ReservationCriticality::Low, 256, 1)).unwrap();
        assert_eq!((news.len(), news[0].report.state), (1, ReservationState::Admitted));
    }
    let placements = ledger.plan("bus").unwrap().placements().to_vec();
    let refused = ask(&mut ledger, "e", &carrier, stream(ReservationCriticality::Low, 256, 1)).unwrap_err();
    let (lack, missing_ps) = refused.lack();
    assert!(lack == ScarceResource::Bus && missing_ps > 0, "{refused}");
    let news = ask(&mut ledger, "high", &carrier, stream(ReservationCriticality::High, 256, 1)).unwrap();
    let by_name = |name: &str| news.iter().find(|news| news.device == name).map(|news| news.report);
    assert_eq!(by_name("high").map(|report| report.state), Some(ReservationState::Admitted));
    let Some(ReservationReport { state: ReservationState::Suspended, lack: ScarceResource::Bus, missing, .. }) =
        by_name("d")
    else {
        panic!("the last to come gives way: {news:?}")
    };
    assert_eq!(missing, missing_ps);
    let now = ledger.plan("bus").unwrap();
    assert!(
        placements.iter().take(3).all(|placement| now.placement(placement.id) == Some(*placement)),
        "who stays is not moved"
    );
    // Further ones of high criticality, until one has no room left: none of high criticality is displaced.
    for name in ["high2", "high3", "high4"] {
        ask(&mut ledger, name, &carrier, stream(ReservationCriticality::High, 256, 1)).unwrap();
    }
    let refused = ask(&mut ledger, "high5", &carrier, stream(ReservationCriticality::High, 256, 1)).unwrap_err();
    assert_eq!(refused.lack().0, ScarceResource::Bus);
    let running = states(&ledger).into_iter().filter(|(_, state)| *state == ReservationState::Admitted);
    assert_eq!(running.map(|(name, _)| name).collect::<Vec<_>>(), ["high", "high2", "high3", "high4"]);
    let resumed = ledger.release("high2");
    assert_eq!(resumed.iter().map(|news| news.device.as_str()).collect::<Vec<_>>(), ["a"], "the first to come");
    ["high", "high3", "high4"].iter().for_each(|name| drop(ledger.release(name)));
    assert!(states(&ledger).iter().all(|(_, state)| *state == ReservationState::Admitted));
}

#[test]
fn slower_path_suspends_low_criticality_only() {
    let (mut ledger, carrier) = (HostReservationLedger::new(4, COST), carrier("bus", UsbSpeed::High));
    let wide = MeasuredPath { bits_per_s: 100_000_000, round_trip_ns: 400_000, wake_up_ns: 0 };
    ledger.note_path("desk", wide);
    ask(&mut ledger, "high", &carrier, stream(ReservationCriticality::High, 1024, 8)).unwrap();
    for device in ["a", "b", "c"] {
        ask(&mut ledger, device, &carrier, stream(ReservationCriticality::Low, 1024, 8)).unwrap();
    }
    let one = ledger.report("high").unwrap().path_bits_per_s;
    assert!((8_192_000..9_000_000).contains(&one), "{one}");
    let narrow = |streams: u64| MeasuredPath { bits_per_s: one * streams * 100 / 90 + 100, ..wide };
    let news = ledger.note_path("desk", narrow(2));
    let gone: Vec<_> = news.iter().map(|news| (news.device.as_str(), news.report.lack)).collect();
    assert_eq!(gone, [("b", ScarceResource::Rate), ("c", ScarceResource::Rate)]);
    ledger.note_path("desk", MeasuredPath { bits_per_s: one / 2, ..wide });
    assert_eq!(state(&ledger, "high"), ReservationState::Admitted, "never displaced");
    assert_eq!(state(&ledger, "a"), ReservationState::Suspended);
    let refused = ask(&mut ledger, "high2", &carrier, stream(ReservationCriticality::High, 1024, 8)).unwrap_err();
    assert_eq!(refused.lack().0, ScarceResource::Rate, "{refused}");
    let back = ledger.note_path("desk", narrow(3));
    assert_eq!(back.iter().map(|news| news.device.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(ledger.note_path("desk", wide).len(), 1);
}

#[test]
fn latency_that_cannot_be_met_is_refused_with_the_missing_time() {
    let (mut ledger, carrier) = (HostReservationLedger::new(4, COST), carrier("bus", UsbSpeed::High));
    ledger.note_path("desk", MeasuredPath { bits_per_s: 1_000_000_000, round_trip_ns: 10_000_000, wake_up_ns: 0 });
    let within = |ns| ReservationTerms { latency_ns: ns, ..stream(ReservationCriticality::High, 1024, 8) };
    let Err(ReservationDenial::Delay { missing_ns, bound_ns }) = ask(&mut ledger, "zero", &carrier, within(6_000_000))
    else {
        panic!("half a round trip, a thread's period and the transfer are more")
    };
    assert_eq!(bound_ns - missing_ns, 6_000_000);
    ask(&mut ledger, "zero", &carrier, within(bound_ns)).unwrap();
    assert_eq!(ledger.report("zero").unwrap().bound_ns, bound_ns);
    assert!(ask(&mut ledger, "zero", &carrier, within(bound_ns - 1)).is_err());
    assert_eq!(state(&ledger, "zero"), ReservationState::Admitted, "who asks for more than there is keeps what he had");
}

#[test]
fn device_without_bus_reserves_its_path_and_a_processor() {
    let (mut ledger, disk) = (HostReservationLedger::new(4, COST), DeviceBusProfile::without_bus());
    ledger.note_path("desk", MeasuredPath { bits_per_s: 40_000_000, round_trip_ns: 400_000, wake_up_ns: 0 });
    let terms = |endpoint, bytes, period, criticality| ReservationTerms {
        criticality,
        latency_ns: 0,
        claims: vec![EndpointBandwidth { endpoint, bytes, period }],
        ..ReservationTerms::default()
    };
    let why = |ledger: &mut HostReservationLedger, endpoint, bytes, period| {
        ask(ledger, "disk", &disk, terms(endpoint, bytes, period, ReservationCriticality::Low)).unwrap_err().lack()
    };
    assert_eq!(why(&mut ledger, 0x81, 512, 8), (ScarceResource::Endpoint, 0x81));
    assert_eq!(why(&mut ledger, 0, 0, 8), (ScarceResource::Budget, 0));
    assert_eq!([why(&mut ledger, 0, 512, 0).0, why(&mut ledger, 0, 512, 40_000).0], [ScarceResource::Period; 2]);
    // 16 MB/s exceed a path of 36 Mb/s; 2 MB/s fit, with any period, and no bus is involved.
    assert_eq!(why(&mut ledger, 0, 2000, 1).0, ScarceResource::Rate);
    ask(&mut ledger, "disk", &disk, terms(0, 6000, 24, ReservationCriticality::Low)).unwrap();
    let report = ledger.report("disk").unwrap();
    assert_eq!((report.state, report.bus_ppm, report.path_bits_per_s), (ReservationState::Admitted, 0, 16_574_333));
    assert!(report.bound_ns > 1_200_000, "{}: 6000 bytes take 1.2 ms of the path", report.bound_ns);
    ask(&mut ledger, "frames", &disk, terms(0, 2000, 8, ReservationCriticality::Low)).unwrap();
    ask(&mut ledger, "zero", &carrier("bus", UsbSpeed::High), stream(ReservationCriticality::High, 1024, 8)).unwrap();
    assert_eq!(
        [state(&ledger, "disk"), state(&ledger, "frames")],
        [ReservationState::Admitted, ReservationState::Suspended]
    );
}

#[test]
fn reservation_moves_to_a_path_with_room() {
    let (mut ledger, carrier) = (HostReservationLedger::new(4, COST), carrier("bus", UsbSpeed::High));
    let narrow = MeasuredPath { bits_per_s: 12_000_000, round_trip_ns: 400_000, wake_up_ns: 0 };
    ledger.note_path("rack", narrow);
    for (device, criticality) in [("high", ReservationCriticality::High), ("low", ReservationCriticality::Low)] {
        ask(&mut ledger, device, &carrier, stream(criticality, 1024, 8)).unwrap();
    }
    ledger.move_to("high", "rack").unwrap();
    let ReservationDenial::Rate { missing_bits_per_s, .. } = ledger.move_to("low", "rack").unwrap_err() else {
        panic!("the way to the rack carries one of them")
    };
    assert!(missing_bits_per_s > 5_000_000, "{missing_bits_per_s}");
    let paths: Vec<_> = ledger.lines().map(|line| (line.path, line.report.state)).collect();
    assert_eq!(
        paths,
        [(Some("rack"), ReservationState::Admitted), (Some("desk"), ReservationState::Admitted)],
        "it stays"
    );
    // A reservation of high criticality that moves has no precedence over those on the new path.
    ask(&mut ledger, "other", &carrier, stream(ReservationCriticality::High, 1024, 8)).unwrap();
    assert_eq!(ledger.move_to("other", "rack").unwrap_err().lack().0, ScarceResource::Rate);
    ledger.release("high");
    assert!(ledger.move_to("low", "rack").unwrap().is_empty(), "it runs on there");
    let news = ledger.move_to("other", "rack").unwrap();
    assert_eq!(
        news.iter().map(|news| (news.device.as_str(), news.report.lack)).collect::<Vec<_>>(),
        [("low", ScarceResource::Rate)]
    );
    assert!(ledger.move_to("low", "desk").unwrap().iter().all(|news| news.report.state == ReservationState::Admitted));
    assert_eq!(ledger.move_to("nothing", "desk"), Ok(Vec::new()));
}

#[test]
fn processor_taken_by_pipes_carries_no_more() {
    let (mut ledger, carrier) = (HostReservationLedger::new(1, COST), carrier("bus", UsbSpeed::High));
    ask(&mut ledger, "low", &carrier, stream(ReservationCriticality::Low, 1024, 8)).unwrap();
    let reserve = VcpuReserve { budget_ns: 80, period_ns: 100 };
    ledger.processors_mut().leave("session of low");
    ledger.processors_mut().enter("pipe", reserve).unwrap();
    let news = ledger.settle_again();
    assert_eq!(news.iter().map(|news| news.report.lack).collect::<Vec<_>>(), [ScarceResource::Processor]);
    let refused = ask(&mut ledger, "high", &carrier, stream(ReservationCriticality::High, 1024, 8)).unwrap_err();
    assert!(matches!(refused, ReservationDenial::Processor { missing_ppb: 1.. }), "{refused}");
    ledger.processors_mut().leave("pipe");
    assert_eq!(ledger.settle_again().len(), 1);
    assert_eq!(state(&ledger, "low"), ReservationState::Admitted);
}

/// What a device's thread takes, once that was seen, is what is reserved for it: others give way, and if that is not
/// enough it is suspended with what is missing.
#[test]
fn thread_that_takes_more_than_was_assumed_has_more_or_is_suspended_with_what_is_missing() {
    let (mut ledger, carrier) = (HostReservationLedger::new(1, COST), carrier("bus", UsbSpeed::High));
    ask(&mut ledger, "low", &carrier, stream(ReservationCriticality::Low, 1024, 8)).unwrap();
    ask(&mut ledger, "can", &carrier, stream(ReservationCriticality::High, 64, 8)).unwrap();
    let budget_ns = |ledger: &HostReservationLedger, device: &str| {
        let line = ledger.lines().find(|line| line.device == device).and_then(|line| line.processor);
        line.map(|(_, reserve)| reserve.budget_ns)
    };
    assert_eq!(budget_ns(&ledger, "can"), Some(100_000), "a tenth of its period, which is more than four turns");
    // A measured path says what a wake-up costs there, with its link.
    let measured = MeasuredPath { bits_per_s: 0, round_trip_ns: 0, wake_up_ns: 30_000 };
    ledger.note_path("desk", measured);
    assert_eq!(budget_ns(&ledger, "can"), Some(4 * 30_000 + COST.kib_ns));
    assert_eq!(ledger.note_need("can", 300_000), []);
    assert_eq!(budget_ns(&ledger, "can"), Some(300_000));
    let news = ledger.note_need("can", 800_000);
    assert_eq!(
        news.iter().map(|news| (news.device.as_str(), news.report.lack)).collect::<Vec<_>>(),
        [("low", ScarceResource::Processor)]
    );
    // 1.2 processors: two tenths are missing, and the thread's time is free for others.
    let news = ledger.note_need("can", 1_200_000);
    let report = |device: &str| news.iter().find(|news| news.device == device).map(|news| news.report);
    let can = report("can").expect("it is suspended");
    assert_eq!(
        (can.state, can.lack, can.missing),
        (ReservationState::Suspended, ScarceResource::Processor, 200_000_000)
    );
    assert_eq!(report("low").map(|report| report.state), Some(ReservationState::Admitted));
    assert_eq!(ledger.note_need("can", 300_000).len(), 1);
    assert_eq!(
        (state(&ledger, "can"), state(&ledger, "low")),
        (ReservationState::Admitted, ReservationState::Admitted)
    );
}

#[test]
fn released_device_leaves_its_processor_time_to_those_that_gave_way() {
    let mut ledger = HostReservationLedger::new(1, COST);
    ask(&mut ledger, "low", &carrier("1", UsbSpeed::High), stream(ReservationCriticality::Low, 64, 8)).unwrap();
    ask(&mut ledger, "can", &carrier("2", UsbSpeed::High), stream(ReservationCriticality::High, 64, 8)).unwrap();
    ledger.note_need("can", 990_000);
    assert_eq!(state(&ledger, "low"), ReservationState::Suspended);
    let news = ledger.release("can");
    assert_eq!(news.iter().map(|news| news.report.state).collect::<Vec<_>>(), [ReservationState::Admitted]);
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What must hold for every ledger at any time.
fn check(ledger: &mut HostReservationLedger, buses: &[&str], paths: &[&str]) {
    for bus in buses {
        let Some(plan) = ledger.plan(bus) else { continue };
        for interval in 0..plan.cycle() {
            let is_there = |placement: &&farbus_realtime::schedule::EndpointPlacement| {
                interval % placement.every == placement.start % placement.every
            };
            let used: u64 = plan.placements().iter().filter(is_there).map(|placement| placement.time_ps).sum();
            assert!(used + plan.reservation_ps() <= interval_ps(plan.speed()), "more than an interval has");
        }
    }
    for path in paths {
        let low = |line: &farbus_session::reserve::ledger::ListedReservation<'_>| {
            line.path == Some(path)
                && line.report.state == ReservationState::Admitted
                && line.reservation.criticality == ReservationCriticality::Low
        };
        if let Some(measured) = ledger.path(path).filter(|measured| measured.bits_per_s > 0)
            && ledger.lines().any(|line| low(&line))
        {
            assert!(ledger.path_bits_per_s(path) <= measured.bits_per_s / 100 * 90);
        }
    }
    assert!(ledger.settle_again().is_empty(), "nothing is left to be settled: everything that can be resumed was");
    for line in ledger.lines() {
        let is_high = line.reservation.criticality == ReservationCriticality::High;
        assert!(!is_high || line.report.state == ReservationState::Admitted, "high criticality is never displaced");
        assert_ne!(line.report.state, ReservationState::Refused);
    }
}

fn again(
    ledger: &HostReservationLedger,
    carriers: &[(String, DeviceBusProfile, &'static str)],
) -> HostReservationLedger {
    let mut to = SnapshotWriter::new(7);
    ledger.save(&mut to);
    let bytes = to.into_bytes();
    recorded::note("reservations", &[&bytes]);
    let mut from = snapshot::open(&bytes, 7).unwrap();
    let mut next = HostReservationLedger::new(2, COST);
    next.restore(&mut from).unwrap();
    from.end("snapshot").unwrap();
    for line in ledger.lines() {
        let (device, carrier, path) = carriers.iter().find(|(device, ..)| device == line.device).unwrap();
        let reservation = next.expected(device).expect("it was written down").clone();
        next.admit(LedgerRequest { device, carrier, reservation, path: Some(path) })
            .expect("what was there is there again");
    }
    next
}

#[test]
fn reservations_of_earlier_releases_are_restored() {
    for (title, parts) in recorded::all("reservations") {
        let mut from = snapshot::open(&parts[0], 7).unwrap();
        let mut ledger = HostReservationLedger::new(2, COST);
        ledger.restore(&mut from).unwrap_or_else(|reject| panic!("{title}: {reject}"));
        from.end("snapshot").unwrap_or_else(|reject| panic!("{title}: {reject}"));
        assert!((0..12).any(|at| ledger.expected(&format!("zero{at}")).is_some()), "{title}: somebody had reserved");
    }
}

#[test]
fn thousand_hosts_keep_what_they_promised() {
    let (mut admitted, mut refused, mut suspended, mut resumed) = (0, 0, 0, 0);
    for seed in 0..1000 {
        let mut random = Random(seed);
        let mut ledger = HostReservationLedger::new(2, COST);
        let buses = ["slow", "quick"];
        let paths = ["desk", "lab"];
        let carriers: Vec<(String, DeviceBusProfile, &'static str)> = (0..12)
            .map(|at| {
                let (bus, speed) = if at % 3 == 0 { (buses[0], UsbSpeed::Full) } else { (buses[1], UsbSpeed::High) };
                (format!("zero{at}"), carrier(bus, speed), paths[at % 2])
            })
            .collect();
        for _ in 0..30 {
            let (device, carrier, path) = &carriers[random.below(12) as usize];
            let before: Vec<String> = ledger
                .lines()
                .filter(|line| line.reservation.criticality == ReservationCriticality::High)
                .map(|line| line.device.to_owned())
                .collect();
            let news = match random.below(8) {
                0..=3 => {
                    let criticality = random.pick(&[
                        ReservationCriticality::Low,
                        ReservationCriticality::Low,
                        ReservationCriticality::High,
                    ]);
                    let endpoint = random.pick(&[0, ISO_IN, 0x82, 0x81]);
                    let claims = vec![EndpointBandwidth {
                        endpoint,
                        bytes: random.pick(&[64, 200, 256, 512, 1024]),
                        period: 1 << random.below(5),
                    }];
                    let reservation =
                        ReservationTerms { criticality, latency_ns: 0, claims, ..ReservationTerms::default() };
                    match ledger.admit(LedgerRequest { device, carrier, reservation, path: Some(path) }) {
                        Ok(news) => {
                            admitted += 1;
                            news
                        }
                        Err(refusal) => {
                            refused += 1;
                            assert_ne!(refusal.lack().0, ScarceResource::None);
                            Vec::new()
                        }
                    }
                }
                4 | 5 => ledger.release(device),
                6 => {
                    let bits_per_s = random.pick(&[0, 2_000_000, 20_000_000, 200_000_000]);
                    ledger.note_path(path, MeasuredPath { bits_per_s, round_trip_ns: 1_000_000, wake_up_ns: 0 })
                }
                _ => {
                    let next = again(&ledger, &carriers);
                    assert_eq!(next.lines().count(), ledger.lines().count());
                    assert!(next.lines().zip(ledger.lines()).all(|(next, before)| next.device == before.device));
                    ledger = next;
                    Vec::new()
                }
            };
            for news in &news {
                match news.report.state {
                    ReservationState::Suspended => {
                        suspended += 1;
                        assert!(!before.contains(&news.device) || news.device == *device, "high gives way to nobody");
                    }
                    _ if news.device != *device => resumed += 1,
                    _ => {}
                }
            }
            check(&mut ledger, &buses, &paths);
        }
    }
    println!("{admitted} admitted, {refused} refused, {suspended} suspended, {resumed} resumed");
    assert!([admitted, refused, suspended, resumed].iter().all(|&count| count > 100));
}
