//! Schedules compared with brute force and with a bus that counts whole packets, over thousands of random sets. R2.

use farbus_realtime::schedule::{
    BusSchedule, EndpointCriticality, EndpointRequest, EndpointRequestError, PERIOD_MAX, ScheduleOptions,
    ScheduleRefusal, SchedulingMode, WORK_MAX, plan, replan,
};
use farbus_realtime::transfer::{BusDirection, PacketShape, interval_ps};
use farbus_realtime::{BusSpeed, TransferKind};

/// SplitMix64: a seed reproduces a set.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

fn isochronous(
    id: u32,
    packet_bytes: u32,
    n: u32,
    m: u32,
    period: u32,
    criticality: EndpointCriticality,
) -> EndpointRequest {
    let shape =
        PacketShape::new(BusSpeed::Super, TransferKind::Isochronous, BusDirection::In, packet_bytes, n, m).unwrap();
    EndpointRequest { id, shape, budget_bytes: shape.quantum_bytes(), period, criticality }
}

fn bulk(id: u32, packet_bytes: u32, n: u32, budget_bytes: u32, period: u32) -> EndpointRequest {
    let shape = PacketShape::new(BusSpeed::Super, TransferKind::Bulk, BusDirection::Out, packet_bytes, n, 0).unwrap();
    EndpointRequest { id, shape, budget_bytes, period, criticality: EndpointCriticality::High }
}

fn options(mode: SchedulingMode, work_max: u64) -> ScheduleOptions {
    ScheduleOptions { mode, work_max }
}

/// Whether any arrangement fits: tries every start of every endpoint.
fn brute_force(items: &[(u32, u64)], free: &mut [u64]) -> bool {
    let Some((&(period, time_ps), rest)) = items.split_first() else { return true };
    (0..period as usize).any(|start| {
        let class = || (start..free.len()).step_by(period as usize);
        if class().any(|f| free[f] < time_ps) {
            return false;
        }
        let class: Vec<_> = class().collect();
        class.iter().for_each(|&f| free[f] -= time_ps);
        let fits = brute_force(rest, free);
        class.iter().for_each(|&f| free[f] += time_ps);
        fits
    })
}

#[test]
fn the_search_is_right_where_first_fit_is_wrong() {
    let (mut random, mut feasible, mut missed) = (Random(1), 0, 0);
    for case in 0..4000 {
        let count = 5 + random.below(4) as u32;
        let requests: Vec<_> = (0..count)
            .map(|id| {
                let period = random.one_of(&[2, 2, 2, 4]);
                isochronous(
                    id,
                    1024,
                    random.below(16) as u32,
                    random.below(3) as u32,
                    period,
                    EndpointCriticality::High,
                )
            })
            .collect();
        let mode = SchedulingMode::Printed { step_ps: 0 };
        let items: Vec<_> = requests.iter().map(|r| (r.period, r.shape.quantum_ps())).collect();
        let cycle = items.iter().map(|item| item.0).max().unwrap();
        let mut free = vec![interval_ps(BusSpeed::Super) * 9 / 10; cycle as usize];
        let is_feasible = brute_force(&items, &mut free);
        let first_fit = plan(&requests, options(mode, 0));
        let searched = plan(&requests, options(mode, WORK_MAX));
        assert_eq!(searched.is_ok(), is_feasible, "case {case}: {requests:?}");
        if let Ok(plan) = &searched {
            assert_eq!(plan.is_searched(), first_fit.is_err());
            assert_adds_up(plan);
        } else {
            assert!(matches!(searched, Err(ScheduleRefusal::High { is_proven: true, .. })));
        }
        assert!(is_feasible || first_fit.is_err(), "first-fit finds nothing that is not there");
        feasible += u32::from(is_feasible);
        missed += u32::from(is_feasible && first_fit.is_err());
    }
    println!("first-fit misses {missed} of {feasible} feasible sets; the search finds all of them");
    assert!(feasible > 1000 && missed > 0 && missed * 20 < feasible, "{missed} of {feasible}");
}

/// Checks that every place is within the interval, and that free and taken time add up.
fn assert_adds_up(plan: &BusSchedule) {
    for interval in 0..plan.cycle() {
        let here = plan.placements().iter().filter(|p| interval % p.every == p.start);
        let busy_ps: u64 = here.map(|p| p.time_ps).sum();
        assert_eq!(busy_ps + plan.free_ps(interval) + plan.reservation_ps(), interval_ps(plan.speed()));
    }
    for placement in plan.placements() {
        assert!(placement.start < placement.every && placement.every <= plan.cycle());
    }
}

/// A random set of one speed, with or without asynchronous endpoints of mixed packets.
fn random_set(random: &mut Random) -> Vec<EndpointRequest> {
    let mut requests = Vec::new();
    let periodic = random.below(5) as u32;
    for id in 0..periodic {
        let criticality = random.one_of(&[EndpointCriticality::High, EndpointCriticality::Low]);
        let period = random.one_of(&[1, 2, 4, 8]);
        let (n, m) = (random.below(12) as u32, random.below(3) as u32);
        let mut request = isochronous(id, random.one_of(&[256, 700, 1024]), n, m, period, criticality);
        request.budget_bytes -= random.below(u64::from(request.budget_bytes)) as u32;
        requests.push(request);
    }
    let packet_bytes = random.one_of(&[512, 1024]);
    for id in 0..1 + random.below(4) as u32 {
        let packet_bytes = if random.below(3) == 0 { 1024 } else { packet_bytes };
        let period = 1 + random.below(40) as u32;
        let budget_bytes = 1 + random.below(u64::from(period) * 20_000) as u32;
        let mut request = bulk(100 + id, packet_bytes, random.below(4) as u32, budget_bytes, period);
        request.criticality =
            random.one_of(&[EndpointCriticality::High, EndpointCriticality::High, EndpointCriticality::Low]);
        requests.push(request);
    }
    requests
}

/// The worst run of a bus for asynchronous endpoint `victim`: all others always have something to send, the periodic
/// endpoints use all their time, no packet crosses the end of an interval, and the victim comes last. Returns the
/// intervals until its budget is transferred.
fn worst_intervals(plan: &BusSchedule, victim: usize, phase: u32) -> u64 {
    let request = |id: u32| plan.requests().iter().find(|request| request.id == id).unwrap();
    let pool: Vec<_> = plan.asynchronous().iter().map(|bound| request(bound.id)).collect();
    let mut order: Vec<_> = (0..pool.len()).filter(|&i| i != victim).collect();
    order.push(victim);
    let mut left = pool[victim].shape.packets(pool[victim].budget_bytes);
    let (mut turn, mut in_burst) = (0, 0);
    for interval in 0..u64::from(pool[victim].period) + 1 {
        let now = (interval as u32 + phase) % plan.cycle();
        let mut free_ps = plan.free_ps(now) + plan.reservation_ps();
        loop {
            let shape = &pool[order[turn]].shape;
            if shape.packet_ps() > free_ps {
                break;
            }
            free_ps -= shape.packet_ps();
            in_burst += 1;
            if order[turn] == victim {
                left -= 1;
                if left == 0 {
                    return interval + 1;
                }
            }
            if in_burst == shape.burst_packets() {
                (turn, in_burst) = ((turn + 1) % order.len(), 0);
            }
        }
    }
    u64::MAX
}

#[test]
fn set_admitted_as_sound_never_misses() {
    let (mut random, mut admitted) = (Random(2), 0);
    for case in 0..10_000 {
        let requests = random_set(&mut random);
        let Ok(plan) = plan(&requests, ScheduleOptions::SOUND) else { continue };
        assert_adds_up(&plan);
        admitted += 1;
        for (victim, bound) in plan.asynchronous().iter().enumerate() {
            let request = requests.iter().find(|r| r.id == bound.id).unwrap();
            assert!(bound.intervals <= u64::from(request.period));
            for phase in 0..plan.cycle() {
                let took = worst_intervals(&plan, victim, phase);
                assert!(took <= bound.intervals, "case {case}: {took} > {}: {requests:?}", bound.intervals);
            }
        }
        for placement in plan.placements() {
            let request = requests.iter().find(|r| r.id == placement.id).unwrap();
            let packets = placement.packets * (request.period / placement.every);
            assert!(packets >= request.shape.packets(request.budget_bytes), "its whole budget each period");
        }
        let highs = requests.iter().filter(|r| r.shape.is_periodic() && r.criticality == EndpointCriticality::High);
        assert!(highs.into_iter().all(|r| plan.placement(r.id).is_some()));
        assert_low_asynchronous_takes_nothing(&plan, &requests);
    }
    assert!(admitted > 1000, "{admitted}");
}

/// Without the asynchronous endpoints of low criticality all others have the same places and bounds, and one that is
/// not admitted has no room.
fn assert_low_asynchronous_takes_nothing(with: &BusSchedule, requests: &[EndpointRequest]) {
    let is_low = |r: &EndpointRequest| !r.shape.is_periodic() && r.criticality == EndpointCriticality::Low;
    let others: Vec<_> = requests.iter().filter(|r| !is_low(r)).copied().collect();
    if others.is_empty() {
        return;
    }
    let without = plan(&others, ScheduleOptions::SOUND).unwrap();
    assert_eq!(with.placements(), without.placements());
    for bound in without.asynchronous() {
        let now = with.asynchronous().iter().find(|now| now.id == bound.id).expect("high stays");
        assert!(now.intervals <= bound.intervals, "{now:?} {bound:?}");
    }
    let count = |plan: &BusSchedule| plan.placements().len() + plan.asynchronous().len() + plan.rejected().len();
    assert_eq!(count(with), requests.len(), "everyone is admitted or refused");
    assert!(with.rejected().iter().all(|rejected| rejected.missing_ps > 0));
}

#[test]
fn low_bulk_endpoint_runs_where_room_remains_and_gives_way() {
    let low = |id, budget_bytes| EndpointRequest {
        criticality: EndpointCriticality::Low,
        ..bulk(id, 1024, 0, budget_bytes, 1)
    };
    // Half of each microframe is a camera's.
    let camera = isochronous(1, 1024, 10, 2, 1, EndpointCriticality::High);
    let before = plan(&[camera, low(2, 16 << 10), low(3, 20 << 10)], ScheduleOptions::SOUND).unwrap();
    let admitted = |plan: &BusSchedule| plan.asynchronous().iter().map(|bound| bound.id).collect::<Vec<_>>();
    assert_eq!(admitted(&before), [2], "38 packets fit beside it: 16 do, but not 20 in turns with them");
    // High criticality needs 20 of them, and with the other in turns 40.
    let requests = [camera, bulk(4, 1024, 0, 20 << 10, 1), low(2, 16 << 10)];
    let (after, change) = replan(&before, &requests, ScheduleOptions::SOUND).unwrap();
    assert_eq!((admitted(&after), change.suspended.as_slice(), change.kept.as_slice()), (vec![4], &[2][..], &[1][..]));
    let room_ps = interval_ps(BusSpeed::Super) - 33 * camera.shape.packet_ps();
    let missing_ps = 40 * requests[1].shape.packet_ps() - room_ps;
    assert_eq!(after.rejected().iter().map(|lack| (lack.id, lack.missing_ps)).collect::<Vec<_>>(), [(2, missing_ps)]);
    let (again, _) = replan(&after, &[camera, low(2, 16 << 10)], ScheduleOptions::SOUND).unwrap();
    assert_eq!((admitted(&again), again.placements()), (vec![2], before.placements()));
}

#[test]
fn as_printed_admits_a_set_that_misses() {
    // 723 packets in 103 microframes. For Equation 6 12.5 us of each are 7.03 packets' time: 724 in all. The periodic
    // endpoints leave no more than that, so seven whole packets go through each time: 721.
    let mut requests = vec![bulk(1, 1024, 0, 1024 * 723, 103)];
    requests.push(isochronous(2, 1024, 12, 4 - 2, 1, EndpointCriticality::High));
    requests.push(isochronous(3, 1024, 12, 1, 1, EndpointCriticality::High));
    let printed = plan(&requests, options(SchedulingMode::Printed { step_ps: 1 }, 0)).unwrap();
    assert!(printed.asynchronous()[0].intervals <= 103);
    assert_eq!(worst_intervals(&printed, 0, 0), 104, "it misses its period");
    let refusal = plan(&requests, ScheduleOptions::SOUND);
    assert!(refusal.is_err() || worst_intervals(&refusal.unwrap(), 0, 0) <= 103);
}

#[test]
fn new_plan_moves_no_endpoint_without_need() {
    let mut random = Random(3);
    let mut moved = 0;
    for _ in 0..2000 {
        let mut requests = random_set(&mut random);
        let Ok(before) = plan(&requests, ScheduleOptions::SOUND) else { continue };
        requests.push(isochronous(50, 1024, random.below(12) as u32, 0, 4, EndpointCriticality::High));
        let Ok((after, change)) = replan(&before, &requests, ScheduleOptions::SOUND) else { continue };
        assert_adds_up(&after);
        assert!(after.placement(50).is_some());
        for &id in &change.kept {
            assert_eq!(before.placement(id), after.placement(id));
        }
        let suspended: Vec<_> = change.suspended.iter().copied().filter(|id| before.placement(*id).is_some()).collect();
        let all = [&change.kept, &change.moved, &suspended].map(Vec::len).iter().sum::<usize>();
        assert_eq!(all, before.placements().len(), "nobody is forgotten");
        moved += change.moved.len();
        // The same requests: no place changes.
        let (same, change) = replan(&after, &requests, ScheduleOptions::SOUND).unwrap();
        assert_eq!((same.placements(), same.asynchronous()), (after.placements(), after.asynchronous()));
        assert!(change.moved.is_empty() && change.suspended.is_empty() && change.placed.is_empty());
    }
    println!("{moved} moved");
}

#[test]
fn refusals_have_their_types() {
    let refused = |request: EndpointRequest| plan(&[request], ScheduleOptions::SOUND).unwrap_err();
    let ok = isochronous(7, 1024, 0, 0, 4, EndpointCriticality::High);
    let why = |request| match refused(request) {
        ScheduleRefusal::Invalid { id: 7, why } => why,
        other => panic!("{other}"),
    };
    assert_eq!(
        why(EndpointRequest { period: 6, ..ok }),
        EndpointRequestError::PeriodNotPowerOfTwo { wanted: 6, shorter: 4 }
    );
    assert_eq!(why(EndpointRequest { period: 0, ..ok }), EndpointRequestError::Period { wanted: 0, max: PERIOD_MAX });
    assert_eq!(
        why(EndpointRequest { period: u32::MAX, ..ok }),
        EndpointRequestError::Period { wanted: u32::MAX, max: PERIOD_MAX }
    );
    assert_eq!(why(EndpointRequest { budget_bytes: 0, ..ok }), EndpointRequestError::NoBudget);
    assert_eq!(
        why(EndpointRequest { budget_bytes: 1025, ..ok }),
        EndpointRequestError::BudgetOverWire { asked_bytes: 1025, max_bytes: 1024 }
    );
    assert!(matches!(
        plan(&[ok, ok], ScheduleOptions::SOUND),
        Err(ScheduleRefusal::Invalid { id: 7, why: EndpointRequestError::Twice })
    ));
    let other = PacketShape::new(BusSpeed::High, TransferKind::Bulk, BusDirection::In, 512, 0, 0).unwrap();
    let other =
        EndpointRequest { id: 8, shape: other, budget_bytes: 1, period: 1, criticality: EndpointCriticality::High };
    let Err(ScheduleRefusal::Invalid { id: 8, why: EndpointRequestError::OtherSpeed { .. } }) =
        plan(&[ok, other], ScheduleOptions::SOUND)
    else {
        panic!("another bus instance");
    };
    assert!(matches!(plan(&[], ScheduleOptions::SOUND), Err(ScheduleRefusal::Count { wanted: 0 })));
    // More than there is, however much is asked for: the missing amount is said and nothing overflows.
    let greedy = bulk(1, 1024, 15, u32::MAX, 1);
    let Err(ScheduleRefusal::Asynchronous { id: 1, needed_ps, available_ps }) = plan(&[greedy], ScheduleOptions::SOUND)
    else {
        panic!("it fits no bus");
    };
    assert!(needed_ps > available_ps && available_ps == 125_000_000);
    let longest = plan(&[EndpointRequest { period: PERIOD_MAX, ..ok }], ScheduleOptions::SOUND).unwrap();
    assert_eq!(longest.cycle(), PERIOD_MAX);
}

#[test]
fn every_speed_and_type_has_a_plan() {
    for speed in BusSpeed::ALL {
        for kind in TransferKind::ALL {
            let Ok(shape) = PacketShape::new(speed, kind, BusDirection::In, 8, 0, 0) else { continue };
            let request =
                EndpointRequest { id: 0, shape, budget_bytes: 8, period: 8, criticality: EndpointCriticality::High };
            for mode in [SchedulingMode::Printed { step_ps: 0 }, SchedulingMode::Spread, SchedulingMode::Sound] {
                let plan = plan(&[request], options(mode, WORK_MAX)).unwrap();
                assert_eq!(plan.placements().len() + plan.asynchronous().len(), 1, "{speed:?} {kind:?}");
            }
        }
    }
}
