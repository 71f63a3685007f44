//! A priority-inheriting bandwidth-preserving server (PIBS): the bottom half of an interrupt runs at the priority of
//! the task it works for, within a share of the processor, with a single replenishment.

use super::reserve::BudgetOverrun;

const PPM: u64 = 1_000_000;

/// An I/O VCPU. In any window of the period that it serves it runs for at most `(2 - U) U` of it, as Equation 1
/// assumes: after each activation it rests for as long as its share requires, not counting time in which others ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InheritingServer {
    utilization_ppm: u32,
    eligible_ns: u64,
    active: Option<ServerActivation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerActivation {
    period_ns: u64,
    budget_ns: u64,
    used_ns: u64,
}

impl InheritingServer {
    /// A server with `utilization_ppm` millionths of the processor (1 to 1,000,000, which [`admit`](crate::vcpu::admit)
    /// checks), eligible at once.
    pub fn new(utilization_ppm: u32) -> Self {
        Self { utilization_ppm: utilization_ppm.clamp(1, PPM as u32), eligible_ns: 0, active: None }
    }

    /// When it may begin next.
    pub fn eligible_ns(&self) -> u64 {
        self.eligible_ns
    }

    /// The inherited period, and so the rate-monotonic priority; `None` while it rests.
    pub fn inherited_period_ns(&self) -> Option<u64> {
        self.active.map(|active| active.period_ns)
    }

    /// The rest of its budget.
    pub fn available_ns(&self) -> u64 {
        self.active.map_or(0, |active| active.budget_ns - active.used_ns)
    }

    /// An interrupt came for a task with this period: returns whether the server may run. Its budget is `U T`. While it
    /// already runs, a task with a shorter period lends it its priority, and no more budget than its own: the budget of
    /// a long period would otherwise run before tasks for which Equation 1 does not account for it.
    pub fn begin(&mut self, now_ns: u64, period_ns: u64) -> bool {
        let share = u128::from(self.utilization_ppm);
        let budget_ns = (u128::from(period_ns) * share / u128::from(PPM)) as u64;
        if let Some(active) = &mut self.active {
            if period_ns < active.period_ns {
                let left_ns = (active.budget_ns - active.used_ns).min(budget_ns.max(1));
                *active = ServerActivation { period_ns, budget_ns: active.used_ns + left_ns, ..*active };
            }
            return true;
        }
        if now_ns < self.eligible_ns || budget_ns == 0 {
            return false;
        }
        self.active = Some(ServerActivation { period_ns, budget_ns, used_ns: 0 });
        true
    }

    /// It ran for `ran_ns` until `now_ns`; it rests when its budget is used up. An overrun lengthens the rest.
    pub fn run(&mut self, now_ns: u64, ran_ns: u64) -> Result<(), BudgetOverrun> {
        let by_ns = ran_ns.saturating_sub(self.available_ns());
        let Some(active) = &mut self.active else {
            self.rest(now_ns, ran_ns);
            return if by_ns > 0 { Err(BudgetOverrun { by_ns }) } else { Ok(()) };
        };
        active.used_ns += ran_ns - by_ns;
        if active.used_ns == active.budget_ns {
            let used_ns = active.used_ns.saturating_add(by_ns);
            self.rest(now_ns, used_ns);
        }
        if by_ns > 0 { Err(BudgetOverrun { by_ns }) } else { Ok(()) }
    }

    /// It has nothing more to do.
    pub fn block(&mut self, now_ns: u64) {
        if let Some(active) = self.active {
            self.rest(now_ns, active.used_ns);
        }
    }

    /// It may begin again `used / U` after its beginning, without the time in which it was preempted: that is `used (1
    /// / U - 1)` after its end.
    fn rest(&mut self, now_ns: u64, used_ns: u64) {
        let share = u64::from(self.utilization_ppm);
        let rest_ns = (u128::from(used_ns) * u128::from(PPM - share)).div_ceil(u128::from(share));
        let rest_ns = u64::try_from(rest_ns).unwrap_or(u64::MAX);
        self.eligible_ns = self.eligible_ns.max(now_ns.saturating_add(rest_ns));
        self.active = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_and_priority_are_those_of_the_task_it_works_for() {
        let mut server = InheritingServer::new(250_000);
        assert!(server.begin(0, 100));
        assert_eq!((server.available_ns(), server.inherited_period_ns()), (25, Some(100)));
        assert!(server.begin(1, 40), "a more urgent task lends its priority, with its budget");
        assert_eq!((server.available_ns(), server.inherited_period_ns()), (10, Some(40)));
        assert!(server.begin(2, 100));
        assert_eq!((server.available_ns(), server.inherited_period_ns()), (10, Some(40)));
        server.run(10, 10).unwrap();
        assert_eq!((server.eligible_ns(), server.inherited_period_ns()), (40, None));
        assert!(!server.begin(39, 100) && server.begin(40, 100));
        assert_eq!(server.run(70, 30), Err(BudgetOverrun { by_ns: 5 }));
        assert_eq!(server.eligible_ns(), 160, "a burst that overruns is paid for by rest");
        assert_eq!(server.run(71, 4), Err(BudgetOverrun { by_ns: 4 }), "it had no budget at all");
    }

    /// Every pattern of interrupts, preemptions and ends over eight instants with three choices each, for shares from
    /// 1/4 to 3/4: the (2 - U) U of Equation 1.
    #[test]
    fn no_window_of_its_period_holds_more_than_equation_1_takes_for_granted() {
        const PERIOD: usize = 8;
        for utilization_ppm in [250_000, 500_000, 750_000] {
            let u = f64::from(utilization_ppm) / 1e6;
            let most = ((2.0 - u) * u * PERIOD as f64 + 1e-9) as usize;
            for pattern in 0..3u32.pow(11) {
                let (mut server, mut ran, mut rest) = (InheritingServer::new(utilization_ppm), [0; 11], pattern);
                for (now, ran) in (0u64..).zip(&mut ran) {
                    match rest % 3 {
                        0 => server.block(now),
                        1 => {} // Others run.
                        _ if server.begin(now, PERIOD as u64) => {
                            server.run(now + 1, 1).unwrap();
                            *ran = 1;
                        }
                        _ => {}
                    }
                    rest /= 3;
                }
                assert!(ran.windows(PERIOD).all(|window| window.iter().sum::<usize>() <= most), "{u} {ran:?}");
            }
        }
    }
}
