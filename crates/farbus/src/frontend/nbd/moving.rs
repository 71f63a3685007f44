//! A disk that can be held, and migrates once the clients that use it here have left.
//!
//! While it is held, the engine reads no requests: they stay in the clients' sockets.

use std::time::Duration;

use crate::frontend::hold::HoldGrant;
use farbus_model::Instant;
use tracing::{info, warn};

use crate::frontend::hold::{
    ArrivalTimer, FOLLOWS_ALREADY, FOLLOWS_NOT, HoldAnswerSender, HoldCommand, HoldHandle, HoldOrder, QUIET_WITHIN,
};
use crate::importer::session::status::SessionStatus;

/// The state of a disk's holds and migrations.
pub(super) struct NbdMigration {
    pub hold_handle: HoldHandle,
    status: SessionStatus,
    stay: NbdMigrationPhase,
    was_expected: bool,
    arrival: ArrivalTimer,
    /// The process whose clients have stopped for good.
    departed: Option<u32>,
}

/// Which host has the disk, and whether it is held.
enum NbdMigrationPhase {
    /// It is here, in use.
    Here,
    /// It is here, and held.
    Held(NbdHold),
    /// It is here, in use, and migrates to the host with this key when its clients have left.
    Following([u8; 32]),
    /// It migrates or has migrated; it is here again when its session says so.
    Leaving,
}

struct NbdHold {
    since: Instant,
    /// Where to report that it is held.
    asker: Option<HoldAnswerSender>,
    /// The key of the host that it migrates to when its clients have left.
    successor: Option<[u8; 32]>,
}

/// The state of its clients.
#[derive(Clone, Copy)]
pub(super) struct NbdClientsSummary {
    /// Whether all have left.
    pub are_gone: bool,
    /// Whether all their requests are answered and the answers sent.
    pub are_answered: bool,
    /// How many of their requests were answered so far.
    pub answered: u64,
}

impl NbdMigration {
    pub fn new(hold_handle: HoldHandle, status: SessionStatus) -> Self {
        let was_expected = status.is_expected();
        Self {
            hold_handle,
            status,
            stay: NbdMigrationPhase::Here,
            was_expected,
            arrival: ArrivalTimer::default(),
            departed: None,
        }
    }

    /// Whether another host has yet to hand it over: then no data was written to it.
    pub fn is_expected(&self) -> bool {
        self.status.is_expected()
    }

    /// Whether no request may be passed to the disk.
    pub fn is_held(&self) -> bool {
        matches!(self.stay, NbdMigrationPhase::Held(_) | NbdMigrationPhase::Leaving)
    }

    /// Whether no client may connect.
    pub fn is_away(&self) -> bool {
        matches!(self.stay, NbdMigrationPhase::Leaving)
    }

    /// When [`NbdMigration::look_after`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.stay {
            NbdMigrationPhase::Held(NbdHold { since, asker: Some(_), .. }) => Some(*since + self.quiet_within()),
            NbdMigrationPhase::Held(NbdHold { since, successor: Some(_), .. }) => Some(*since + self.status.hold()),
            NbdMigrationPhase::Here
            | NbdMigrationPhase::Held(_)
            | NbdMigrationPhase::Following(_)
            | NbdMigrationPhase::Leaving => None,
        }
    }

    /// How long requests under way may take to complete.
    fn quiet_within(&self) -> Duration {
        QUIET_WITHIN.min(self.status.hold())
    }

    /// The server ends: cancels a hold, a migration, or that the disk follows its clients.
    pub fn release(&mut self) {
        self.stay = NbdMigrationPhase::Here;
    }

    /// The process whose clients the server has to hang up on, as they have stopped for good; once for an order.
    pub fn take_departed(&mut self) -> Option<u32> {
        self.departed.take()
    }

    /// Carries out orders, and continues a hold or a migration.
    pub fn look_after(&mut self, now: Instant, clients: NbdClientsSummary) {
        if std::mem::replace(&mut self.was_expected, self.status.is_expected()) && !self.was_expected {
            self.arrival.note(now, clients.answered, !clients.are_answered);
        }
        self.arrival.see(now, clients.answered);
        self.see_what_comes_next(now, clients);
        self.hold_handle.shut(!matches!(self.stay, NbdMigrationPhase::Here));
        self.hold_handle.note_following(matches!(self.stay, NbdMigrationPhase::Following(_)));
    }

    fn see_what_comes_next(&mut self, now: Instant, clients: NbdClientsSummary) {
        for order in self.hold_handle.take() {
            self.carry_out(now, order, clients);
        }
        let quiet_within = self.quiet_within();
        match &mut self.stay {
            NbdMigrationPhase::Here => {}
            NbdMigrationPhase::Leaving if self.status.is_ours() && self.status.end().is_none() => {
                warn!("nobody came for the disk: it is here again");
                self.stay = NbdMigrationPhase::Here;
            }
            NbdMigrationPhase::Leaving => {}
            NbdMigrationPhase::Held(held) if held.asker.is_some() => {
                let result = match clients.are_answered {
                    true => Ok(HoldGrant::ToUser),
                    false if now - held.since < quiet_within => return,
                    false => Err("what is under way does not come to its end"),
                };
                info!(
                    held_us = (now - held.since).as_micros() as u64,
                    is_held = result.is_ok(),
                    "the disk was held still"
                );
                if let Some(asker) = held.asker.take() {
                    asker.give(result);
                }
                if result.is_err() {
                    self.stay = NbdMigrationPhase::Here;
                }
            }
            NbdMigrationPhase::Held(NbdHold { successor: Some(successor), .. })
            | NbdMigrationPhase::Following(successor)
                if clients.are_gone =>
            {
                let successor = *successor;
                if let Err(why) = self.leave(successor) {
                    warn!(why, "the disk stays here");
                }
            }
            NbdMigrationPhase::Held(NbdHold { successor: Some(_), since, .. })
                if now - *since >= self.status.hold() =>
            {
                warn!("the clients of the disk have not left: it stays here");
                self.stay = NbdMigrationPhase::Here;
            }
            NbdMigrationPhase::Held(_) | NbdMigrationPhase::Following(_) => {}
        }
    }

    fn carry_out(&mut self, now: Instant, HoldOrder { command, answer, .. }: HoldOrder, clients: NbdClientsSummary) {
        let result = match (command, &mut self.stay) {
            (HoldCommand::Hold | HoldCommand::Move(_) | HoldCommand::Follow(_), _) if self.status.is_expected() => {
                Err("it is yet to be handed over to this host")
            }
            (HoldCommand::Hold | HoldCommand::Move(_) | HoldCommand::Follow(_), NbdMigrationPhase::Leaving)
            | (
                HoldCommand::Move(_) | HoldCommand::Follow(_),
                NbdMigrationPhase::Held(NbdHold { successor: Some(_), .. }),
            ) => Err("it is being handed over already"),
            (HoldCommand::Hold | HoldCommand::Move(_) | HoldCommand::Follow(_), NbdMigrationPhase::Following(_)) => {
                Err(FOLLOWS_ALREADY)
            }
            (HoldCommand::Move(successor), NbdMigrationPhase::Held(held)) if held.asker.is_none() => {
                (held.successor, held.since) = (Some(successor), now);
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::Hold | HoldCommand::Move(_) | HoldCommand::Follow(_), NbdMigrationPhase::Held(_)) => {
                Err("it is held already")
            }
            (HoldCommand::Hold | HoldCommand::Follow(_), NbdMigrationPhase::Here) if clients.are_gone => {
                Err("nobody uses it")
            }
            (HoldCommand::Follow(successor), NbdMigrationPhase::Here) => {
                info!("the disk goes to its successor when its clients leave");
                self.stay = NbdMigrationPhase::Following(successor);
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::Move(successor), NbdMigrationPhase::Here) if clients.are_gone => self.leave(successor),
            (HoldCommand::Hold, NbdMigrationPhase::Here) => {
                self.stay = NbdMigrationPhase::Held(NbdHold { since: now, asker: Some(answer), successor: None });
                return;
            }
            (HoldCommand::Move(successor), NbdMigrationPhase::Here) => {
                self.stay =
                    NbdMigrationPhase::Held(NbdHold { since: now, asker: Some(answer), successor: Some(successor) });
                return;
            }
            (HoldCommand::Depart(process), NbdMigrationPhase::Following(_)) => {
                self.departed = Some(process);
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::Depart(_), _) => Err(FOLLOWS_NOT),
            (HoldCommand::GoOn, NbdMigrationPhase::Held(held)) => {
                if let Some(asker) = held.asker.take() {
                    asker.give(Err("it is to go on"));
                }
                self.stay = NbdMigrationPhase::Here;
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::GoOn, NbdMigrationPhase::Following(_)) => {
                self.stay = NbdMigrationPhase::Here;
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::GoOn, NbdMigrationPhase::Here | NbdMigrationPhase::Leaving) => Err("it is not held"),
        };
        answer.give(result);
    }

    fn leave(&mut self, successor: [u8; 32]) -> Result<HoldGrant, &'static str> {
        let left = self.status.migrate(successor);
        if left.is_ok() {
            info!("the disk goes to its successor");
        }
        self.stay = if left.is_ok() { NbdMigrationPhase::Leaving } else { NbdMigrationPhase::Here };
        left.map(|()| HoldGrant::AtOnce)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use farbus_session::native::{HOLD, HoldLimits};

    use super::*;

    const BUSY: NbdClientsSummary = NbdClientsSummary { are_gone: false, are_answered: false, answered: 0 };
    const ANSWERED: NbdClientsSummary = NbdClientsSummary { are_gone: false, are_answered: true, answered: 0 };
    const GONE: NbdClientsSummary = NbdClientsSummary { are_gone: true, are_answered: true, answered: 0 };

    fn at_s(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    /// The answer to `order` while the clients are in this state, one second after the start.
    fn ordered(
        moving: &mut NbdMigration,
        clients: NbdClientsSummary,
        order: impl FnOnce(&HoldHandle) -> Result<HoldGrant, &'static str> + Send + 'static,
    ) -> Result<HoldGrant, &'static str> {
        let hold_handle = moving.hold_handle.clone();
        let handle = thread::spawn(move || order(&hold_handle));
        while !handle.is_finished() {
            moving.look_after(at_s(1), clients);
            thread::sleep(Duration::from_millis(1));
        }
        handle.join().unwrap()
    }

    fn moving() -> (NbdMigration, SessionStatus) {
        let status = SessionStatus::default();
        (NbdMigration::new(HoldHandle::new().unwrap(), status.clone()), status)
    }

    #[test]
    fn disk_migrates_after_its_clients_left_and_returns_without_a_successor() {
        let (mut moving, status) = moving();
        assert_eq!(ordered(&mut moving, ANSWERED, |hold_handle| hold_handle.hand_over([7; 32])), Ok(HoldGrant::ToUser));
        assert!(moving.is_held() && !moving.is_away() && status.is_ours() && moving.hold_handle.is_shut());
        assert_eq!(
            ordered(&mut moving, ANSWERED, |hold_handle| hold_handle.hand_over([8; 32])),
            Err("it is being handed over already")
        );
        moving.look_after(at_s(2), GONE);
        assert!(moving.is_away() && status.successor() == Some([7; 32]));
        assert_eq!(ordered(&mut moving, GONE, HoldHandle::go_on), Err("it is not held"));
        status.disinherit();
        moving.look_after(at_s(3), GONE);
        assert!(!moving.is_held() && !moving.hold_handle.is_shut());
        assert_eq!(ordered(&mut moving, GONE, |hold_handle| hold_handle.hand_over([7; 32])), Ok(HoldGrant::AtOnce));
    }

    #[test]
    fn disk_stays_if_its_clients_do_not_leave_in_time() {
        let (mut moving, status) = moving();
        assert_eq!(ordered(&mut moving, GONE, HoldHandle::hold), Err("nobody uses it"));
        assert_eq!(ordered(&mut moving, ANSWERED, HoldHandle::hold), Ok(HoldGrant::ToUser));
        assert_eq!(moving.poll_timeout(), None, "it is held until somebody says otherwise");
        assert_eq!(ordered(&mut moving, ANSWERED, |hold_handle| hold_handle.hand_over([7; 32])), Ok(HoldGrant::ToUser));
        assert_eq!(moving.poll_timeout(), Some(at_s(1) + HOLD));
        moving.look_after(at_s(1) + HOLD, ANSWERED);
        assert!(!moving.is_held() && status.is_ours());
        assert_eq!(ordered(&mut moving, ANSWERED, HoldHandle::hold), Ok(HoldGrant::ToUser));
        assert_eq!(ordered(&mut moving, ANSWERED, HoldHandle::go_on), Ok(HoldGrant::ToUser));
        assert!(!moving.is_held());
    }

    #[test]
    fn clients_of_a_disk_have_the_negotiated_time_to_leave() {
        for (own_s, theirs_ms, both_s) in
            [(5, Some(25_000), 5), (25, Some(5_000), 5), (25, None, 20), (120, Some(120_000), 25)]
        {
            let (mut moving, status) = moving();
            let mut limits = HoldLimits::of(Duration::from_secs(own_s));
            limits.hear(theirs_ms);
            status.note_hold(limits);
            status.note_storage(true);
            let moved = ordered(&mut moving, ANSWERED, |hold_handle| hold_handle.hand_over([7; 32]));
            assert_eq!(moved, Ok(HoldGrant::ToUser));
            let both = Duration::from_secs(both_s);
            assert_eq!((status.hold(), moving.poll_timeout()), (both, Some(at_s(1) + both)));
            moving.look_after(at_s(1) + (both - Duration::from_nanos(1)), ANSWERED);
            assert!(moving.is_held(), "{own_s} s and {theirs_ms:?} ms");
            moving.look_after(at_s(1) + both, ANSWERED);
            assert!(!moving.is_held() && status.is_ours(), "{own_s} s and {theirs_ms:?} ms");
        }
    }

    #[test]
    fn disk_that_follows_serves_its_clients_without_a_limit_and_migrates_when_they_leave() {
        let (mut moving, status) = moving();
        let follow = |moving: &mut NbdMigration, clients| ordered(moving, clients, |handle| handle.follow([7; 32]));
        assert_eq!(follow(&mut moving, GONE), Err("nobody uses it"));
        assert_eq!(follow(&mut moving, BUSY), Ok(HoldGrant::ToUser));
        assert!(!moving.is_held() && !moving.is_away() && moving.poll_timeout().is_none());
        assert!(moving.hold_handle.is_following() && moving.hold_handle.is_shut());
        assert_eq!(follow(&mut moving, BUSY), Err(FOLLOWS_ALREADY));
        assert_eq!(ordered(&mut moving, BUSY, HoldHandle::hold), Err(FOLLOWS_ALREADY));
        moving.look_after(at_s(3600), BUSY);
        assert!(!moving.is_held() && status.is_ours(), "it has no limit");
        // The machine stays: the disk may follow it another time.
        assert_eq!(ordered(&mut moving, BUSY, HoldHandle::go_on), Ok(HoldGrant::ToUser));
        assert!(!moving.hold_handle.is_following() && !moving.hold_handle.is_shut());
        moving.look_after(at_s(3601), GONE);
        assert!(status.is_ours(), "it follows nobody");
        assert_eq!(follow(&mut moving, BUSY), Ok(HoldGrant::ToUser));
        assert_eq!(ordered(&mut moving, BUSY, |handle| handle.depart(5)), Ok(HoldGrant::ToUser));
        assert_eq!((moving.take_departed(), moving.take_departed()), (Some(5), None));
        moving.look_after(at_s(3602), GONE);
        assert!(moving.is_away() && status.successor() == Some([7; 32]));
        assert!(!moving.hold_handle.is_following() && moving.hold_handle.is_shut());
        assert_eq!(ordered(&mut moving, GONE, |handle| handle.depart(5)), Err(FOLLOWS_NOT));
        assert_eq!(moving.take_departed(), None);
    }

    #[test]
    fn expected_disk_is_not_held_and_unanswered_requests_end_a_hold() {
        let (mut moving, status) = moving();
        status.note_expected(true);
        let not_yet = Err("it is yet to be handed over to this host");
        assert_eq!(ordered(&mut moving, GONE, |hold_handle| hold_handle.hand_over([7; 32])), not_yet);
        assert_eq!(ordered(&mut moving, BUSY, HoldHandle::hold), not_yet);
        status.note_expected(false);
        let hold_handle = moving.hold_handle.clone();
        let handle = thread::spawn(move || hold_handle.hold());
        while !moving.is_held() {
            moving.look_after(at_s(1), BUSY);
        }
        moving.look_after(at_s(1) + QUIET_WITHIN, BUSY);
        assert_eq!(handle.join().unwrap(), Err("what is under way does not come to its end"));
        assert!(!moving.is_held());
    }
}
