//! Equation 1 compared with a processor: admitted tasks keep their budgets, whatever the bottom halves do. R4.
//! `FARBUS_SEEDS` says how many sets (default 500), `FARBUS_SEED` repeats one.

use farbus_realtime::vcpu::{VcpuReserve, admit};
use farbus_sim::SimulationRng;
use farbus_sim::processor::{LinuxSchedulerSettings, SimulatedProcessor, TaskRole};

const MS: u64 = 1_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    match number("FARBUS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("FARBUS_SEEDS").unwrap_or(500),
    }
}

/// Tasks and shares of bottom halves that Equation 1 admits, and would refuse with a thousandth more of each budget.
fn set_at_the_edge(random: &mut SimulationRng) -> (Vec<VcpuReserve>, Vec<u32>) {
    let periods: Vec<_> = (0..1 + random.below(6)).map(|_| random.between(100, 2000) * 1000).collect();
    let weights: Vec<_> = periods.iter().map(|_| random.between(1, 100)).collect();
    let io_ppm: Vec<_> = (0..random.below(3)).map(|_| random.between(5_000, 150_000) as u32).collect();
    let mains = |share_permyriad: u64| -> Vec<_> {
        let sum: u64 = weights.iter().sum();
        let budget = |(&period_ns, weight): (&u64, &u64)| period_ns * weight * share_permyriad / (10_000 * sum);
        let budgets = periods.iter().zip(&weights).map(budget);
        let reserve = |(&period_ns, budget_ns): (&u64, u64)| VcpuReserve { period_ns, budget_ns: budget_ns.max(1) };
        periods.iter().zip(budgets).map(reserve).collect()
    };
    let most = (1..=10_000).rev().find(|&share| admit(&mains(share), &io_ppm).is_ok());
    (mains(most.unwrap_or(1)), io_ppm)
}

/// Every task has a job of its whole budget each period, from a random start; the bottom halves have more work than
/// their share, or a burst now and then, for any of the tasks. Returns how many jobs ended, and how many of them late.
fn run(mains: &[VcpuReserve], io_ppm: &[u32], random: &mut SimulationRng) -> (u64, u64) {
    let mut roles: Vec<_> = mains.iter().map(|&reserve| TaskRole::Reserved(reserve)).collect();
    for &utilization_ppm in io_ppm {
        let period_ns = mains[random.below(mains.len() as u64) as usize].period_ns;
        roles.push(TaskRole::BottomHalf { utilization_ppm, period_ns });
    }
    let mut processor = SimulatedProcessor::quest(&roles);
    let is_busy = random.once_in(2);
    let first_ns =
        |random: &mut SimulationRng, reserve: &VcpuReserve| if is_busy { 0 } else { random.below(reserve.period_ns) };
    let mut releases: Vec<_> = mains.iter().map(|reserve| first_ns(random, reserve)).collect();
    let mut bursts: Vec<_> = io_ppm.iter().map(|_| random.below(MS)).collect();
    let end_ns = 12 * mains.iter().map(|reserve| reserve.period_ns).max().unwrap_or(0);
    let (mut jobs, mut late) = (0, 0);
    while processor.now_ns() < end_ns {
        let now_ns = processor.now_ns();
        for (task, reserve) in mains.iter().enumerate() {
            if releases[task] <= now_ns {
                // A job released a period ago has ended by now, or is late.
                late += u64::from(processor.jobs(task) > 0);
                processor.give(task, reserve.budget_ns);
                releases[task] += reserve.period_ns;
                jobs += 1;
            }
        }
        for (io, burst_ns) in bursts.iter_mut().enumerate().filter(|(_, at_ns)| **at_ns <= now_ns) {
            let work_ns = if is_busy { 100 * MS } else { 1 + random.below(MS / 5) };
            let period_ns = mains[random.below(mains.len() as u64) as usize].period_ns;
            processor.give_for(mains.len() + io, work_ns, Some(period_ns));
            *burst_ns += if is_busy { 100 * MS } else { 1 + random.below(MS) };
        }
        let next_ns = releases.iter().chain(&bursts).copied().min().unwrap_or(end_ns);
        while processor.run(next_ns).is_some() {}
    }
    (jobs, late)
}

#[test]
fn set_admitted_by_equation_1_keeps_its_budgets() {
    let mut all = 0;
    for seed in seeds() {
        let mut random = SimulationRng::new(seed);
        let (mains, io_ppm) = set_at_the_edge(&mut random);
        let (jobs, late) = run(&mains, &io_ppm, &mut random);
        assert_eq!(late, 0, "FARBUS_SEED={seed}: {mains:?} {io_ppm:?}");
        all += jobs;
    }
    println!("{all} jobs of {} sets at the edge of Equation 1, none late", seeds().count());
}

#[test]
fn single_task_may_fill_the_processor_and_two_may_not_exceed_it() {
    let whole = VcpuReserve { budget_ns: MS, period_ns: MS };
    assert!(admit(&[whole], &[]).is_ok());
    assert_eq!(run(&[whole], &[], &mut SimulationRng::new(1)).1, 0);
    // Past the edge, where the bound says nothing: harmonic periods fill the processor, others do not.
    let main =
        |budget_us: u64, period_us: u64| VcpuReserve { budget_ns: budget_us * 1000, period_ns: period_us * 1000 };
    let harmonic = [main(500, 1000), main(1000, 2000)];
    assert!(admit(&harmonic, &[]).is_err());
    let late =
        |mains: &[VcpuReserve]| (1..20).map(|seed| run(mains, &[], &mut SimulationRng::new(seed)).1).sum::<u64>();
    assert_eq!(late(&harmonic), 0);
    let others = [main(500, 1000), main(700, 1400)];
    assert!(admit(&others, &[]).is_err());
    assert!(late(&others) > 0);
}

/// A bottom half of Quest has its share and no more; one of Linux takes the whole processor until its limit, and then
/// nothing.
#[test]
fn a_storm_of_interrupts_stops_tasks_on_linux_and_bottom_halves_on_quest() {
    let roles = [
        TaskRole::Reserved(VcpuReserve { budget_ns: 3 * MS, period_ns: 7 * MS }),
        TaskRole::BottomHalf { utilization_ppm: 100_000, period_ns: 10 * MS },
        TaskRole::Ordinary,
    ];
    let run = |mut processor: SimulatedProcessor| {
        processor.give(0, u64::MAX / 2);
        processor.give(1, 20 * MS);
        processor.give(2, u64::MAX / 2);
        while processor.run(70 * MS).is_some() {}
        [0, 1, 2].map(|task| processor.ran_ns(task) / 1000)
    };
    // 3 ms in 7 for the task; a tenth for the bottom half, 1 ms in 10.
    assert_eq!(run(SimulatedProcessor::quest(&roles)), [30_000, 7_000, 33_000]);
    // 2 ms at once; then it takes turns with the ordinary task for the 4 ms in 7 that the other leaves.
    let settings = LinuxSchedulerSettings { reclaims: false, ..LinuxSchedulerSettings::default() };
    let [task, bottom_half, ordinary] = run(SimulatedProcessor::linux(&roles, settings));
    assert!(task > 29_000 && bottom_half == 20_000, "{task} {bottom_half}");
    assert_eq!(task + bottom_half + ordinary, 70_000);
}

/// Budget that a blocked task leaves is shared, as the paper assumes.
#[test]
fn reclaimed_budget_is_that_of_blocked_tasks() {
    let reserved = TaskRole::Reserved(VcpuReserve { budget_ns: MS, period_ns: 10 * MS });
    let ran = |reclaims| {
        let mut processor = SimulatedProcessor::linux(
            &[reserved, reserved],
            LinuxSchedulerSettings { reclaims, ..LinuxSchedulerSettings::default() },
        );
        processor.give(0, u64::MAX / 2);
        while processor.run(100 * MS).is_some() {}
        processor.ran_ns(0)
    };
    assert_eq!(ran(false), 10 * MS);
    let more = ran(true);
    assert!(more > 11 * MS && more < 112 * MS / 10, "a tenth is idle, so budget lasts for a ninth longer: {more}");
}
