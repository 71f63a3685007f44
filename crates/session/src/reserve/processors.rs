//! Who has which part of which processor.
//!
//! Equation 1 is a test of one processor, so each server gets a part of one processor: the first that can carry it in
//! addition to its other servers. Threads that reserve time themselves (a tuned pipe) are entered here as well, under
//! any name, with [`HostProcessors::enter_all`] and [`HostProcessors::leave`].

use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve, admit};

/// The processors of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostProcessors {
    count: usize,
    mains: Vec<AdmittedServer>,
}

/// An admitted server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AdmittedServer {
    owner: String,
    reserve: VcpuReserve,
    processor: usize,
}

/// Most servers: as many as a host has streams.
const MAINS_MAX: usize = 1024;

impl HostProcessors {
    /// This many processors, without servers.
    pub fn new(count: usize) -> Self {
        Self { count: count.max(1), mains: Vec::new() }
    }

    /// Gives `owner` a part of a processor and returns which; it replaces the part that `owner` had.
    ///
    /// # Errors
    /// [`VcpuOverload`] of the processor with the most time left; `owner` keeps its previous part.
    pub fn enter(&mut self, owner: &str, reserve: VcpuReserve) -> Result<usize, VcpuOverload> {
        let before = self.mains.iter().position(|main| main.owner == owner).map(|at| self.mains.remove(at));
        let entered = self.place(owner, reserve);
        if entered.is_err() {
            self.mains.extend(before);
        }
        entered
    }

    /// Gives several threads of one owner a part each and returns the processors; they replace all that `owner` had.
    ///
    /// # Errors
    /// [`VcpuOverload`] for the first thread that does not fit; `owner` keeps its previous parts.
    pub fn enter_all(&mut self, owner: &str, reserves: &[VcpuReserve]) -> Result<Vec<usize>, VcpuOverload> {
        let before = self.clone();
        self.leave(owner);
        let entered: Result<Vec<usize>, VcpuOverload> =
            reserves.iter().map(|&reserve| self.place(owner, reserve)).collect();
        if entered.is_err() {
            *self = before;
        }
        entered
    }

    fn place(&mut self, owner: &str, reserve: VcpuReserve) -> Result<usize, VcpuOverload> {
        let mut least: Option<VcpuOverload> = None;
        for processor in 0..self.count.max(1) {
            let there = self.mains.iter().filter(|main| main.processor == processor);
            let all: Vec<VcpuReserve> = there.map(|main| main.reserve).chain([reserve]).collect();
            match admit(&all, &[]) {
                Ok(_) if self.mains.len() < MAINS_MAX => {
                    self.mains.push(AdmittedServer { owner: owner.to_owned(), reserve, processor });
                    return Ok(processor);
                }
                Ok(load) => return Err(VcpuOverload::Demand(load)),
                Err(overload) => {
                    let is_less = least.as_ref().is_none_or(|least| missing_ppb(&overload) < missing_ppb(least));
                    least = if is_less { Some(overload) } else { least };
                }
            }
        }
        Err(least.expect("there is one processor at least"))
    }

    /// Removes all parts of `owner`.
    pub fn leave(&mut self, owner: &str) {
        self.mains.retain(|main| main.owner != owner);
    }

    /// All parts: owner, reserve and processor.
    pub fn entries(&self) -> impl Iterator<Item = (&str, VcpuReserve, usize)> {
        self.mains.iter().map(|main| (main.owner.as_str(), main.reserve, main.processor))
    }
}

/// What an overload lacks, in billionths of a processor.
pub fn missing_ppb(overload: &VcpuOverload) -> u64 {
    match overload {
        VcpuOverload::Demand(load) => load.missing_ppb(),
        // It asks for more than a whole processor.
        VcpuOverload::Reserve(VcpuReserve { budget_ns, period_ns }) => {
            let over = u128::from(budget_ns.saturating_sub(*period_ns)) * 1_000_000_000;
            u64::try_from(over / u128::from((*period_ns).max(1))).unwrap_or(u64::MAX).max(1)
        }
        VcpuOverload::Utilization { .. } => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(budget_ns: u64, period_ns: u64) -> VcpuReserve {
        VcpuReserve { budget_ns, period_ns }
    }

    #[test]
    fn second_processor_carries_what_the_first_cannot() {
        let mut both = HostProcessors::new(2);
        assert_eq!(both.enter("a", reserve(60, 100)), Ok(0));
        assert_eq!(both.enter("b", reserve(60, 100)), Ok(1));
        let refused = both.enter("c", reserve(30, 100)).unwrap_err();
        // 0.6 + 0.3 beside 2 (sqrt 2 - 1).
        assert_eq!(missing_ppb(&refused), 900_000_000 - 828_427_124);
        assert_eq!(both.enter("a", reserve(10, 100)), Ok(0), "who comes again has another part");
        assert_eq!(both.enter("c", reserve(30, 100)), Ok(0));
        assert!(both.enter("c", reserve(101, 100)).is_err());
        assert_eq!(both.entries().count(), 3, "and who is refused keeps what he had");
        assert_eq!(
            both.enter_all("e", &[reserve(1, 100), reserve(90, 100)]).map_err(|it| missing_ppb(&it) > 0),
            Err(true)
        );
        assert_eq!(both.entries().count(), 3, "all of them or none");
        both.leave("b");
        assert_eq!(both.enter("d", reserve(100, 100)), Ok(1));
        both.leave("d");
        assert_eq!(both.enter_all("f", &[reserve(60, 100), reserve(20, 100)]), Ok(vec![1, 0]));
        assert_eq!(both.enter_all("f", &[]), Ok(vec![]));
        assert_eq!(both.enter("d", reserve(100, 100)), Ok(1));
    }
}
