//! A sporadic server (Sprunt 1989), with the corrections of Stanovich, Baker, Wang and Harbour, "Defects of the POSIX
//! Sporadic Server and How to Correct Them" (2010): budget comes back in the pieces in which it was used, each a period
//! after it could first be used.

use std::collections::VecDeque;

use super::reserve::{BudgetOverrun, VcpuReserve};

/// Pieces into which a budget may be divided. Beyond, two are joined and come back at the later of their times.
pub const REPLENISHMENTS_MAX: usize = 32;

/// A Main VCPU. No part of the budget is used twice within a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SporadicServer {
    reserve: VcpuReserve,
    /// Ordered by time; together they are the whole budget.
    pieces: VecDeque<BudgetReplenishment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BudgetReplenishment {
    at_ns: u64,
    amount_ns: u64,
}

impl SporadicServer {
    /// A server with all of its budget from `now_ns` on.
    pub fn new(reserve: VcpuReserve, now_ns: u64) -> Self {
        Self { reserve, pieces: VecDeque::from([BudgetReplenishment { at_ns: now_ns, amount_ns: reserve.budget_ns }]) }
    }

    /// The budget and the period that the server keeps.
    pub fn reserve(&self) -> VcpuReserve {
        self.reserve
    }

    /// The budget available at once.
    pub fn available_ns(&self, now_ns: u64) -> u64 {
        self.pieces.iter().take_while(|piece| piece.at_ns <= now_ns).map(|piece| piece.amount_ns).sum()
    }

    /// When more budget comes back.
    pub fn next_replenishment_ns(&self, now_ns: u64) -> Option<u64> {
        self.pieces.iter().map(|piece| piece.at_ns).find(|&at_ns| at_ns > now_ns)
    }

    /// It was idle and has work now: its unused budget counts as available from now on.
    pub fn wake(&mut self, now_ns: u64) {
        let amount_ns = self.available_ns(now_ns);
        if amount_ns > 0 {
            self.pieces.retain(|piece| piece.at_ns > now_ns);
            self.pieces.push_front(BudgetReplenishment { at_ns: now_ns, amount_ns });
        }
    }

    /// It ran for `ran_ns` until `now_ns`. An overrun is taken from future budget.
    pub fn run(&mut self, now_ns: u64, ran_ns: u64) -> Result<(), BudgetOverrun> {
        let by_ns = ran_ns.saturating_sub(self.available_ns(now_ns));
        let rounds = ran_ns / self.reserve.budget_ns.max(1);
        for piece in &mut self.pieces {
            piece.at_ns = piece.at_ns.saturating_add(self.reserve.period_ns.saturating_mul(rounds));
        }
        let mut left_ns = ran_ns % self.reserve.budget_ns.max(1);
        while left_ns > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let used_ns = piece.amount_ns.min(left_ns);
            left_ns -= used_ns;
            if used_ns < piece.amount_ns {
                self.pieces.push_front(BudgetReplenishment { amount_ns: piece.amount_ns - used_ns, ..piece });
            }
            piece.at_ns = piece.at_ns.saturating_add(self.reserve.period_ns);
            self.bring_back(BudgetReplenishment { amount_ns: used_ns, ..piece });
        }
        if by_ns > 0 { Err(BudgetOverrun { by_ns }) } else { Ok(()) }
    }

    fn bring_back(&mut self, piece: BudgetReplenishment) {
        let after = self.pieces.partition_point(|other| other.at_ns <= piece.at_ns);
        match self.pieces.get_mut(after.wrapping_sub(1)) {
            Some(same) if same.at_ns == piece.at_ns => same.amount_ns += piece.amount_ns,
            _ => self.pieces.insert(after, piece),
        }
        while self.pieces.len() > REPLENISHMENTS_MAX {
            let Some(last) = self.pieces.pop_back() else { break };
            if let Some(before) = self.pieces.back_mut() {
                *before = BudgetReplenishment { at_ns: last.at_ns, amount_ns: before.amount_ns + last.amount_ns };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(budget_ns: u64, period_ns: u64) -> SporadicServer {
        SporadicServer::new(VcpuReserve { budget_ns, period_ns }, 0)
    }

    #[test]
    fn used_budget_returns_a_period_after_it_became_usable() {
        let mut server = server(10, 100);
        server.wake(5);
        server.run(9, 4).unwrap();
        assert_eq!((server.available_ns(9), server.next_replenishment_ns(9)), (6, Some(105)));
        server.wake(50);
        server.run(56, 6).unwrap();
        assert_eq!([56, 104, 105, 149, 150].map(|now| server.available_ns(now)), [0, 0, 4, 4, 10]);
    }

    #[test]
    fn overrun_is_charged_to_the_same_server_only() {
        let mut server = server(10, 100);
        assert_eq!(server.run(25, 25), Err(BudgetOverrun { by_ns: 15 }));
        assert_eq!([25, 199, 200, 299, 300].map(|now| server.available_ns(now)), [0, 0, 5, 5, 10]);
        assert_eq!(server.run(u64::MAX, u64::MAX), Err(BudgetOverrun { by_ns: u64::MAX - 10 }));
    }

    /// Every pattern of requests over 14 instants, alone at the highest priority: no window of a period has more than
    /// the budget, and a task that always has work gets all of it.
    #[test]
    fn no_window_of_a_period_holds_more_than_the_budget() {
        for wishes in 0..1u32 << 14 {
            let (mut server, mut ran) = (server(2, 5), Vec::new());
            for now in 0..14 {
                let wants = |at: u64| wishes >> at & 1 == 1;
                if wants(now) && (now == 0 || !wants(now - 1)) {
                    server.wake(now);
                }
                let runs = wants(now) && server.available_ns(now) > 0;
                if runs {
                    server.run(now + 1, 1).unwrap();
                }
                assert_eq!(server.available_ns(u64::MAX), 2, "budget is neither made nor lost");
                ran.push(usize::from(runs));
            }
            assert!(ran.windows(5).all(|window| window.iter().sum::<usize>() <= 2), "{wishes:b} {ran:?}");
            if wishes == (1 << 14) - 1 {
                assert!(ran.windows(5).all(|window| window.iter().sum::<usize>() == 2), "{ran:?}");
            }
        }
    }

    #[test]
    fn pieces_are_bounded_and_budget_is_conserved() {
        let mut server = server(1000, 100_000);
        for now in 1..=900 {
            server.wake(now * 10);
            server.run(now * 10 + 1, 1).unwrap();
            assert!(server.pieces.len() <= REPLENISHMENTS_MAX && server.available_ns(u64::MAX) == 1000);
            assert!(server.pieces.iter().map(|piece| piece.at_ns).is_sorted());
        }
        assert_eq!(server.available_ns(9001), 100);
        assert_eq!(server.available_ns(109_000), 1000);
    }
}
