//! Equation 1: which virtual CPUs one processor carries.

use std::fmt;

use super::reserve::VcpuReserve;

/// The result of Equation 1 for one processor, in billionths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuLoad {
    /// The left side, rounded up.
    pub demand_ppb: u64,
    /// The right side, `n (2^(1/n) - 1)`, rounded down.
    pub bound_ppb: u64,
}

/// Why a set of virtual CPUs is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuOverload {
    /// A budget or a period of zero, or a budget longer than its period.
    Reserve(VcpuReserve),
    /// The utilization of an I/O VCPU is not within 1 and 1,000,000 millionths.
    Utilization {
        /// What was asked for.
        ppm: u32,
    },
    /// The processor cannot carry them together.
    Demand(VcpuLoad),
}

/// Equation 1: whether Main VCPUs `mains` and I/O VCPUs of utilizations `io_ppm` keep their budgets on one processor.
///
/// Computed in decimal fixed point and rounded up: a set within 10^-15 of the bound may be refused, and none above it
/// is admitted. Decimal fractions (0.81 + (2 - 0.1) 0.1 = 1) are exact.
pub fn admit(mains: &[VcpuReserve], io_ppm: &[u32]) -> Result<VcpuLoad, VcpuOverload> {
    let mut demand: u128 = 0;
    for main in mains {
        if main.budget_ns == 0 || main.budget_ns > main.period_ns {
            return Err(VcpuOverload::Reserve(*main));
        }
        demand += (u128::from(main.budget_ns) * ONE).div_ceil(u128::from(main.period_ns));
    }
    for &ppm in io_ppm {
        if ppm == 0 || ppm > PPM {
            return Err(VcpuOverload::Utilization { ppm });
        }
        demand += u128::from(2 * PPM - ppm) * u128::from(ppm) * (ONE / u128::from(PPM).pow(2));
    }
    let is_within = |demand: u128| is_within_bound(demand, mains.len());
    let load = VcpuLoad { demand_ppb: demand.div_ceil(ONE_PPB) as u64, bound_ppb: bound_ppb(mains.len()) };
    if is_within(demand) { Ok(load) } else { Err(VcpuOverload::Demand(load)) }
}

const PPM: u32 = 1_000_000;
/// 1 in fixed point: a product of two numbers up to 4 stays below 2^128.
const ONE: u128 = 1_000_000_000_000_000_000;
const ONE_PPB: u128 = ONE / 1_000_000_000;

/// `demand <= n (2^(1/n) - 1)`, that is `(1 + demand/n)^n <= 2`, without a root; products are rounded up.
fn is_within_bound(demand: u128, n: usize) -> bool {
    let n_wide = n as u128;
    if n == 0 || demand > ONE {
        return demand == 0;
    }
    let times = |a: u128, b: u128| -> u128 { (a * b).div_ceil(ONE) };
    let (mut power, mut square, mut exponent): (u128, u128, u128) = (ONE, ONE + demand.div_ceil(n_wide), n_wide);
    loop {
        if exponent % 2 == 1 {
            power = times(power, square);
        }
        exponent /= 2;
        if power > 2 * ONE {
            return false;
        }
        if exponent == 0 {
            return true;
        }
        square = times(square, square);
        // At least one factor is still to come, and the product is more than 2 already.
        if square > 2 * ONE {
            return false;
        }
    }
}

/// The greatest whole number of billionths within the bound.
fn bound_ppb(n: usize) -> u64 {
    let (mut low, mut high): (u64, u64) = (0, 1_000_000_000);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if is_within_bound(u128::from(middle) * ONE_PPB, n) { low = middle } else { high = middle - 1 }
    }
    low
}

impl VcpuLoad {
    /// How far the demand exceeds the bound, in billionths of the processor.
    pub fn missing_ppb(&self) -> u64 {
        self.demand_ppb.saturating_sub(self.bound_ppb)
    }
}

impl fmt::Display for VcpuOverload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppb: u64| format!("{}.{:03} %", ppb / 10_000_000, ppb % 10_000_000 / 10_000);
        match self {
            Self::Reserve(VcpuReserve { budget_ns, period_ns }) => {
                write!(f, "{budget_ns} ns of execution each {period_ns} ns: a budget is 1 ns up to its period")
            }
            Self::Utilization { ppm } => write!(f, "{ppm} millionths of a processor: an I/O VCPU has 1 to {PPM}"),
            Self::Demand(load) => write!(
                f,
                "the processor is asked for {} and carries {} for sure: {} are missing",
                percent(load.demand_ppb),
                percent(load.bound_ppb),
                percent(load.missing_ppb())
            ),
        }
    }
}

impl std::error::Error for VcpuOverload {}

#[cfg(test)]
mod tests {
    use super::*;

    fn main(budget_ns: u64, period_ns: u64) -> VcpuReserve {
        VcpuReserve { budget_ns, period_ns }
    }

    #[test]
    fn single_task_may_use_the_whole_processor_and_no_more() {
        assert!(admit(&[main(7, 7)], &[]).is_ok());
        assert_eq!(admit(&[main(8, 7)], &[]), Err(VcpuOverload::Reserve(main(8, 7))));
        // (2 - 0.1) 0.1 = 0.19.
        assert!(admit(&[main(81, 100)], &[100_000]).is_ok());
        let Err(VcpuOverload::Demand(load)) = admit(&[main(81_000_001, 100_000_000)], &[100_000]) else { panic!() };
        assert_eq!((load.bound_ppb, load.missing_ppb()), (1_000_000_000, 10));
    }

    #[test]
    fn the_bound_is_the_root_of_liu_and_layland() {
        let bounds: Vec<_> = [1, 2, 3, 4, 1000].map(bound_ppb).into();
        // 2 (sqrt 2 - 1), 3 (2^(1/3) - 1), 4 (2^(1/4) - 1), and ln 2 = 0.693147 from above.
        assert_eq!(bounds, [1_000_000_000, 828_427_124, 779_763_149, 756_828_460, 693_387_462]);
        let halves = |budget_ns| admit(&[main(budget_ns, 1_000_000_000), main(budget_ns, 1_000_000_000)], &[]);
        assert!(halves(414_213_562).is_ok());
        assert!(halves(414_213_563).is_err());
    }

    #[test]
    fn the_edges_are_typed() {
        assert_eq!(admit(&[], &[]).unwrap().demand_ppb, 0);
        assert!(matches!(admit(&[], &[1]), Err(VcpuOverload::Demand(_))), "a bottom half works for a task");
        assert_eq!(admit(&[main(1, 2)], &[0]), Err(VcpuOverload::Utilization { ppm: 0 }));
        assert_eq!(admit(&[main(1, 2)], &[1_000_001]), Err(VcpuOverload::Utilization { ppm: 1_000_001 }));
        assert_eq!(admit(&[main(0, 2)], &[]), Err(VcpuOverload::Reserve(main(0, 2))));
        assert!(admit(&[main(u64::MAX, u64::MAX)], &[]).is_ok());
        assert!(admit(&vec![main(u64::MAX - 1, u64::MAX); 1000], &[1_000_000; 1000]).is_err());
    }

    #[test]
    fn the_papers_can_experiment_is_admitted() {
        // 6.2.1: an RX thread of 2 ms in 14, three CPU-bound tasks of 1 ms in 7, a bottom half of 1 %.
        let tasks = [main(2, 14), main(1, 7), main(1, 7), main(1, 7)];
        let load = admit(&tasks, &[10_000]).unwrap();
        assert_eq!((load.demand_ppb, load.bound_ppb), (591_328_572, 756_828_460));
    }
}
