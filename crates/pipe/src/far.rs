//! What the host of a device has reserved for the pipes of this one, and whether that is still so.

use farbus::devices::reservation::in_words;
use farbus_session::reserve::{ReservationReport, ReservationState, ThreadTime};

/// The reservation at the device's host, since the pipes began.
#[derive(Clone, Copy, Debug, Default)]
pub struct FarReservation {
    /// The report that withdrew it, if one did. What comes later does not undo what was not promised.
    withdrawn: Option<ReservationReport>,
    /// The periods in which the thread there ran for longer than its budget.
    overruns: u64,
}

impl FarReservation {
    /// Notes the latest report.
    pub fn note(&mut self, report: &ReservationReport) {
        self.overruns = self.overruns.max(report.budget.map_or(0, |budget| budget.overruns));
        let is_kept = report.state == ReservationState::Admitted && report.thread != Some(ThreadTime::Ordinary);
        if !is_kept {
            self.withdrawn.get_or_insert(*report);
        }
    }

    /// The periods in which the thread there ran for longer than its budget.
    pub const fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Why it holds no longer, for people.
    pub fn withdrawn(&self) -> Option<String> {
        let report = self.withdrawn?;
        Some(match in_words(report.lack, report.missing) {
            Some((lack, missing)) => format!("its host has suspended the reservation: {lack}, {missing} missing"),
            None => "its host has taken the processor time from the thread that serves it".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::reserve::{ReservationCriticality, ScarceResource, ThreadBudget};

    #[test]
    fn reservation_that_was_withdrawn_stays_so_and_says_what_was_missing() {
        let budget = |overruns| Some(ThreadBudget { budget_ns: 300_000, period_ns: 1_000_000, overruns });
        let admitted = ReservationReport {
            state: ReservationState::Admitted,
            lack: ScarceResource::None,
            criticality: ReservationCriticality::High,
            missing: 0,
            bound_ns: 1,
            path_bits_per_s: 1,
            bus_ppm: 1,
            thread: Some(ThreadTime::Reserved),
            budget: budget(3),
        };
        let mut far = FarReservation::default();
        far.note(&admitted);
        assert_eq!((far.overruns(), far.withdrawn()), (3, None));
        let (state, lack, missing) = (ReservationState::Suspended, ScarceResource::Processor, 171_570_000);
        far.note(&ReservationReport { state, lack, missing, thread: Some(ThreadTime::Ordinary), ..admitted });
        far.note(&ReservationReport { budget: budget(1), ..admitted });
        let why = far.withdrawn().expect("it was");
        assert!(why.contains("suspended") && why.contains("171570000 billionths"), "{why}");
        assert_eq!(far.overruns(), 3);
    }
}
