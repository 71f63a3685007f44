//! The paper's experiments in bus time: its bounds hold here, and its observations of Linux are reproduced. R8.

use farbus_sim::experiments::paper::{INPUT_FRAMES_PER_S, OUTPUT_FRAMES_PER_S, OVERRUNS, ROUND_TRIPS, THROUGHPUT};
use farbus_sim::experiments::storms::{overruns, setting, variations};
use farbus_sim::experiments::throughput::BulkLoad;
use farbus_sim::experiments::usb_can::{self, ChannelUsers, STORMS, SimulatedKernel, UsbCanResults, UsbCanScenario};
use farbus_sim::experiments::{round_trips, throughput};

#[test]
fn no_round_trip_is_longer_than_the_bound() {
    let mut means = Vec::new();
    for scenario in &ROUND_TRIPS {
        let seen = round_trips::run(scenario, 6, 1).unwrap();
        let times = &seen.latencies;
        assert_eq!(seen.bound_ns, scenario.bound_us * 1000, "Table 2");
        assert!(times.max_ns() <= seen.bound_ns, "{} of {}", times.max_ns(), seen.bound_ns);
        assert_eq!(seen.missed, 0, "cameras");
        assert!(times.count() > 10_000, "{}", times.count());
        let (least, most) = (times.min_ns() / 1000, times.max_ns() / 1000);
        println!("{scenario:?}: {least} to {most}, mean {:.0}, deviation {:.0}", times.mean_us(), times.deviation_us());
        means.push(times.mean_us());
    }
    assert!(means[0] < means[3] && means[3] < means[4], "what waits for the bus is seen: {means:?}");
}

#[test]
fn bulk_endpoints_have_what_is_reserved_and_cameras_theirs() {
    let cameras = [vec![1, 2, 3, 4], vec![1, 2, 3], vec![1, 4]];
    for (scenario, admitted) in THROUGHPUT.iter().zip(cameras) {
        for load in [BulkLoad::Reserved, BulkLoad::Always] {
            let seen = throughput::run(scenario, load, 2, 50, 1).unwrap();
            let least = seen.mbps.iter().copied().fold(f64::INFINITY, f64::min);
            let most = seen.mbps.iter().copied().fold(0.0, f64::max);
            println!("{scenario:?} {load:?}: {least} to {most} Mb/s");
            assert!(least >= scenario.reserved_mbps.floor() - 1.0, "33 is 32.768");
            assert_eq!((seen.late, seen.missed, &seen.cameras), (0, 0, &admitted));
            assert!(seen.periods > 0);
        }
    }
}

/// The rows owe their size to the storms that were chosen: with half as long ones nothing is lost, with twice as long
/// ones ten times as much. That Quest loses nothing does not depend on them.
#[test]
fn overruns_of_linux_depend_on_the_storms_that_were_chosen() {
    let of = |kernel, storms| {
        let setting = UsbCanScenario { seconds: 10, ..setting(&OVERRUNS[5], kernel, storms) };
        overruns(&setting, 1..=2).mean
    };
    let chosen = of(SimulatedKernel::Linux, STORMS);
    let longest: Vec<_> = variations().into_iter().filter(|(what, _)| what.starts_with("longest")).collect();
    let [halved, doubled] = [0, 1].map(|at: usize| of(SimulatedKernel::Linux, longest[at].1));
    assert!(halved == 0.0 && chosen > 0.0 && doubled > 10.0 * chosen, "{halved} {chosen} {doubled}");
    assert!(longest.iter().all(|(_, storms)| of(SimulatedKernel::Quest, *storms) == 0.0));
}

fn means(seen: &UsbCanResults) -> [f64; 2] {
    [3, 4].map(|channel| seen.frames[channel].iter().sum::<u64>() as f64 / seen.frames[channel].len() as f64)
}

#[test]
fn quest_never_overruns_and_linux_does_where_the_paper_says() {
    for scenario in &OVERRUNS {
        let [quest, linux] = [SimulatedKernel::Quest, SimulatedKernel::Linux]
            .map(|kernel| usb_can::run(&setting(scenario, kernel, STORMS), 1));
        println!(
            "{scenario:?}: Quest {} {:?}, counters {:.0}; Linux {}, counters {:.0}",
            quest.overruns,
            quest.load.map(|load| load.demand_ppb),
            quest.counter_error,
            linux.overruns,
            linux.counter_error
        );
        assert_eq!(quest.overruns, 0);
        assert!(quest.load.is_ok(), "{:?}", quest.load);
        assert_eq!(linux.overruns > 0, scenario.linux > 0, "{scenario:?}");
    }
}

#[test]
fn pipes_keep_their_rate_on_quest_and_not_on_linux() {
    for (traffic, (least, most)) in [(usb_can::input(), INPUT_FRAMES_PER_S), (usb_can::output(), OUTPUT_FRAMES_PER_S)] {
        let [quest, linux] = [SimulatedKernel::Quest, SimulatedKernel::Linux].map(|kernel| {
            usb_can::run(
                &UsbCanScenario {
                    kernel,
                    seconds: 31,
                    cpu_bound: 3,
                    users: ChannelUsers::Pipes,
                    traffic,
                    storms: STORMS,
                },
                1,
            )
        });
        for (name, seen) in [("Quest", &quest), ("Linux", &linux)] {
            let ends = |channel: usize| {
                (seen.frames[channel].iter().min().unwrap(), seen.frames[channel].iter().max().unwrap())
            };
            println!(
                "{name}: {:?} {:?}, means {:.0?}, {} overruns, {:?}",
                ends(3),
                ends(4),
                means(seen),
                seen.overruns,
                seen.load
            );
        }
        let is_within = |frames: &u64| (least..=most).contains(frames);
        assert!(quest.load.is_ok() && quest.overruns == 0);
        assert!(quest.frames[3].iter().chain(&quest.frames[4]).all(is_within), "{:?}", quest.frames);
        for seed in 2..6 {
            let setting = UsbCanScenario {
                kernel: SimulatedKernel::Quest,
                seconds: 11,
                cpu_bound: 3,
                users: ChannelUsers::Pipes,
                traffic,
                storms: STORMS,
            };
            let seen = usb_can::run(&setting, seed);
            assert!(seen.overruns == 0 && seen.frames[3].iter().chain(&seen.frames[4]).all(is_within), "seed {seed}");
        }
        assert!(!linux.frames[3].iter().chain(&linux.frames[4]).all(is_within));
    }
}
