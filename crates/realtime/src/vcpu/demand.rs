//! What a thread takes of its processor, from the kernel's count of its run time. A budget follows from a high quantile
//! of it: the shortest time, or the mean, is exceeded every second period.

use super::reserve::VcpuReserve;

/// Parts of each doubling: a quantile is exact to an eighth.
const PARTS_BITS: u32 = 3;
const BUCKETS: usize = 64 << PARTS_BITS;
/// The quantile of wake-ups that counts, in thousandths: the rest began cold, or were interrupted.
const WAKE_UP_PERMILLE: u64 = 750;
/// Periods that are counted together. A thread that was late has the work of several in one: that is no need of each.
const WINDOW_PERIODS: u64 = 8;
/// The quantile of these windows that a budget has to cover, in thousandths, and the least number that may be beyond
/// it: while few were counted, one in which the machine stood still is no need.
const WINDOW_PERMILLE: u64 = 995;
/// The quantile of windows that is taken most of the time, in thousandths.
const USUAL_PERMILLE: u64 = 500;
const BEYOND_MIN: u64 = 1;
/// Above that quantile a budget has so many hundredths more.
const MARGIN_PERCENT: u64 = 25;
/// So many windows have to be counted before the quantile says something.
const WINDOWS_MIN: u64 = 4;
/// Until so many were counted, a device is being set up, which may take more than what follows: it is given up to half
/// of a processor, and nobody else's time is taken for more.
const WINDOWS_SURE: u64 = 125;
/// After so many windows the older ones count half: a budget follows the last few seconds.
const WINDOWS_MAX: u64 = 512;

/// Counts how long a thread runs each time it wakes, and in each period of its reservation.
#[derive(Clone, Debug)]
pub struct DemandMeter {
    reserve: VcpuReserve,
    wake_ups: TimeHistogram,
    windows: TimeHistogram,
    /// When the present period ends, and what was used of it.
    ends_ns: u64,
    used_ns: u64,
    /// When the present window ends, and what was used of it.
    window_ends_ns: u64,
    window_used_ns: u64,
    overruns: u64,
}

impl DemandMeter {
    /// Counts in periods of this reservation.
    pub fn new(reserve: VcpuReserve) -> Self {
        let (wake_ups, windows) = (TimeHistogram::default(), TimeHistogram::default());
        let (ends_ns, used_ns, window_ends_ns, window_used_ns) = (0, 0, 0, 0);
        Self { reserve, wake_ups, windows, ends_ns, used_ns, window_ends_ns, window_used_ns, overruns: 0 }
    }

    /// Changes the budget that counts as an overrun. Another period makes what was counted meaningless.
    pub fn change(&mut self, reserve: VcpuReserve) {
        if reserve.period_ns != self.reserve.period_ns {
            let overruns = self.overruns;
            *self = Self { wake_ups: std::mem::take(&mut self.wake_ups), overruns, ..Self::new(reserve) };
        }
        self.reserve = reserve;
    }

    /// The thread woke at `woke_ns` and ran for `ran_ns` until it slept again. A period begins with the first wake-up
    /// after the last one ended, as that of a constant bandwidth server does.
    pub fn note(&mut self, woke_ns: u64, ran_ns: u64) {
        self.wake_ups.add(ran_ns);
        if woke_ns >= self.ends_ns {
            self.overruns += u64::from(self.used_ns > self.reserve.budget_ns);
            (self.ends_ns, self.used_ns) = (woke_ns.saturating_add(self.reserve.period_ns), 0);
        }
        if woke_ns >= self.window_ends_ns {
            if self.window_used_ns > 0 {
                self.windows.add(self.window_used_ns);
            }
            let long_ns = self.reserve.period_ns.saturating_mul(WINDOW_PERIODS);
            (self.window_ends_ns, self.window_used_ns) = (woke_ns.saturating_add(long_ns), 0);
        }
        self.used_ns = self.used_ns.saturating_add(ran_ns);
        self.window_used_ns = self.window_used_ns.saturating_add(ran_ns);
        for counted in [&mut self.wake_ups, &mut self.windows] {
            if counted.count > WINDOWS_MAX {
                counted.halve();
            }
        }
    }

    /// What a wake-up takes, in nanoseconds; 0 if none was counted.
    pub fn wake_up_ns(&self) -> u64 {
        self.wake_ups.quantile_ns(WAKE_UP_PERMILLE)
    }

    /// The budget that the thread needs, in nanoseconds each period; `None` as long as that is not known.
    pub fn needed_ns(&self) -> Option<u64> {
        let count = self.windows.count;
        let beyond = BEYOND_MIN * 1000 / count.max(1);
        let window_ns = self.windows.quantile_ns(WINDOW_PERMILLE.min(1000_u64.saturating_sub(beyond)));
        let covered_ns = window_ns / WINDOW_PERIODS;
        let needed_ns = covered_ns.saturating_add(covered_ns / 100 * MARGIN_PERCENT);
        // More than half of a processor is for a thread that takes as much most of the time, not for one that was busy
        // for once.
        let usual_ns = self.windows.quantile_ns(USUAL_PERMILLE) / WINDOW_PERIODS;
        let usual_ns = usual_ns.saturating_add(usual_ns / 100 * MARGIN_PERCENT);
        let most_ns = if count >= WINDOWS_SURE { usual_ns } else { 0 }.max(self.reserve.period_ns / 2);
        (count >= WINDOWS_MIN).then_some(needed_ns.min(most_ns))
    }

    /// The periods in which it ran for longer than its budget.
    pub const fn overruns(&self) -> u64 {
        self.overruns
    }
}

/// How often which time was taken.
#[derive(Clone, Debug)]
struct TimeHistogram {
    buckets: Box<[u32; BUCKETS]>,
    count: u64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl TimeHistogram {
    fn add(&mut self, time_ns: u64) {
        self.buckets[bucket_of(time_ns)] += 1;
        self.count += 1;
    }

    fn halve(&mut self) {
        self.buckets.iter_mut().for_each(|count| *count /= 2);
        self.count = self.buckets.iter().map(|&count| u64::from(count)).sum();
    }

    /// The time that so many thousandths do not exceed, rounded up to the end of its bucket.
    fn quantile_ns(&self, permille: u64) -> u64 {
        let within = (self.count * permille).div_ceil(1000);
        let mut counted = 0;
        let mut reached = self.buckets.iter().position(|&count| {
            counted += u64::from(count);
            count > 0 && counted >= within
        });
        reached.take().map_or(0, end_of)
    }
}

/// Times below 8 ns have a bucket each; above, each doubling has eight.
fn bucket_of(time_ns: u64) -> usize {
    let doubling = time_ns.max(1).ilog2().saturating_sub(PARTS_BITS);
    ((doubling as usize) << PARTS_BITS) + (time_ns >> doubling) as usize
}

/// The longest time of a bucket.
fn end_of(bucket: usize) -> u64 {
    let doubling = (bucket >> PARTS_BITS).saturating_sub(1) as u32;
    let part = (bucket - ((doubling as usize) << PARTS_BITS)) as u64;
    (part << doubling) + ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;
    const MS: u64 = 1_000_000;

    #[test]
    fn bucket_holds_its_time_to_an_eighth() {
        for time_ns in (0..200).chain((8..63).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let end_ns = end_of(bucket_of(time_ns));
            assert!((time_ns..=time_ns + time_ns / 8).contains(&end_ns), "{time_ns} is in a bucket to {end_ns}");
            assert!(end_ns == u64::MAX || bucket_of(end_ns + 1) == bucket_of(end_ns) + 1);
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn budget_covers_all_wake_ups_of_a_period_and_not_the_shortest_one() {
        let mut meter = DemandMeter::new(VcpuReserve { budget_ns: 7 * US, period_ns: MS });
        assert_eq!((meter.wake_up_ns(), meter.needed_ns()), (0, None));
        // Three wake-ups a period, one of them short.
        for at in 0..1000 {
            [(0, 50), (300, 7), (600, 60)].iter().for_each(|(us, ran_us)| meter.note(at * MS + us * US, ran_us * US));
        }
        let needed_ns = meter.needed_ns().expect("a thousand periods are enough");
        assert!((117 * US * 5 / 4..117 * US * 3 / 2).contains(&needed_ns), "{needed_ns}");
        assert!((60 * US..68 * US).contains(&meter.wake_up_ns()), "{}", meter.wake_up_ns());
        assert_eq!(meter.overruns(), 999, "the last period has not ended");
        meter.change(VcpuReserve { budget_ns: needed_ns, period_ns: MS });
        (1000..2000).for_each(|at| meter.note(at * MS, 117 * US));
        assert_eq!(meter.overruns(), 999, "with what it needs it overruns no more");
        // One period in a thousand, of a machine that stood still, is no need.
        meter.note(2000 * MS, 5 * MS);
        meter.note(2010 * MS, US);
        assert_eq!((meter.needed_ns(), meter.overruns()), (Some(needed_ns), 1000));
    }

    #[test]
    fn thread_that_is_busy_for_once_has_half_of_a_processor_at_the_most() {
        let mut meter = DemandMeter::new(VcpuReserve { budget_ns: 100 * US, period_ns: MS });
        // Once in a hundred periods it works for 30 ms.
        for at in 0..20_000_u64 {
            meter.note(at * MS, if at.is_multiple_of(100) { 30 * MS } else { 50 * US });
        }
        assert_eq!(meter.needed_ns(), Some(MS / 2));
        (20_000..60_000).for_each(|at| meter.note(at * MS, 700 * US));
        assert!(meter.needed_ns() > Some(800 * US), "{:?}", meter.needed_ns());
    }

    #[test]
    fn budget_follows_what_the_last_periods_took() {
        let mut meter = DemandMeter::new(VcpuReserve { budget_ns: MS, period_ns: MS });
        (0..20_000).for_each(|at| meter.note(at * MS, 400 * US));
        (20_000..60_000).for_each(|at| meter.note(at * MS, 40 * US));
        assert!(meter.needed_ns() < Some(60 * US), "{:?}", meter.needed_ns());
        meter.change(VcpuReserve { budget_ns: MS, period_ns: 2 * MS });
        assert_eq!(meter.needed_ns(), None);
    }
}
