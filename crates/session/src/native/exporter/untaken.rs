//! Flow control on the exporter for an importer that does not take its answers.
//!
//! | what arrives | few answers wait for the link | many wait | beyond that |
//! |---|---|---|---|
//! | open, inherit, reserve, modules | handled | waits, in order, until answers are taken | the session is cut off |
//! | a request to a device | handled | handled within its credit; answers not taken count | the session is cut off |
//! | a cancel, a close, a grant, a step of a disk's move, an aside to a module | handled | handled | the session is cut off |
//! | an acknowledgement, a ping | handled | handled | a later answer replaces an earlier one |
//!
//! An importer gets credit back with each reply, so one that keeps to its credit never has more answers waiting than
//! that. Memory beyond the devices' credits is charged to the importer's allowance ([`farbus_model::budget`]).

use farbus_model::budget::{
    ANSWERS_BYTES_MAX, ConnectionAllowance, PROMPT_ANSWERS_BYTES_MAX, SESSION_BYTES, UNACKNOWLEDGED_BYTES_MIN,
    WAITING_REQUESTS_BYTES_MAX, attachment_bytes,
};
use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::{BufferPool, Instant};
use farbus_wire::native::control::{
    AttachmentEndCause, AttachmentEndNotice, CloseRequest, HANDED_OVER, MIGRATION_STATE_BYTES_MAX,
};
use farbus_wire::native::{FrameHeader, FrameKind, ReceivedFrame};

use super::backlog::cost;
use super::session::{ExporterAttachment, ExporterSession};
use crate::ProtocolViolation;
use crate::native::served::{DeviceMigration, ServedExport};
use crate::native::services::ExporterServices;

/// Memory of one device that waits to be opened, bytes: two texts and its reservation.
const ASKED_BYTES: usize = 3 << 10;
/// Receive buffer of a lane, bytes.
const LANE_BYTES: usize = 256 << 10;
/// Most bytes by which a single request may exceed a credit, plus what modules add.
const LONE_BYTES_MAX: usize = URB_BYTES_MAX as usize + (64 << 10);

impl ExporterSession {
    /// From now on, charges memory beyond the devices' credits to `allowance`. Returns whether it covers the session's
    /// minimum.
    #[must_use]
    pub fn draw_on(&mut self, allowance: ConnectionAllowance) -> bool {
        self.backlog.allowance = allowance;
        self.backlog.allowance.covers(SESSION_BYTES)
    }

    /// Memory held beyond what the devices' credits allow, bytes.
    pub fn held_bytes(&self) -> usize {
        let asked_bytes: usize = self.all_served().map(<dyn ServedExport>::asked_bytes).sum();
        let paid_for = attachment_bytes(self.backlog.answers_bytes_max);
        let beyond = (self.lanes.held_bytes() + asked_bytes).saturating_sub(paid_for);
        let lanes = (1 + self.lanes.further().len()) * LANE_BYTES;
        let waited_for = (self.handovers.successors.len() + self.reserving.len()) * ASKED_BYTES;
        lanes + beyond + waited_for + self.module_bytes() + self.backlog.bytes()
    }

    /// Whether the allowance covers this much more.
    pub(super) fn may_hold(&mut self, bytes: usize) -> bool {
        let all = self.held_bytes() + bytes;
        self.backlog.allowance.covers(all.max(SESSION_BYTES))
    }

    /// Adjusts the limits of unanswered and unacknowledged bytes after attachments changed.
    pub(super) fn note_credit(&mut self) {
        let of_each = || self.all_served().map(<dyn ServedExport>::answers_bytes_max);
        let (answers, lone) = (of_each().sum(), of_each().map(|bytes| bytes.max(LONE_BYTES_MAX)).sum());
        (self.backlog.answers_bytes_max, self.backlog.lone_bytes_max) = (answers, lone);
        let most = self.accepted.of(self.limits).unacknowledged_bytes_max;
        let each = answers.min(most) / usize::from(self.lanes_granted);
        self.lanes.set_unacknowledged_bytes_max(each.max(UNACKNOWLEDGED_BYTES_MIN).min(most));
        let held = self.held_bytes();
        self.backlog.allowance.settle(held.max(SESSION_BYTES));
    }

    /// Returns what arrived if it can be handled now; otherwise keeps it in the backlog.
    #[inline]
    pub(super) fn admit(&mut self, arrived: ReceivedFrame) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        let untaken = self.lanes.untaken_bytes();
        match untaken <= ANSWERS_BYTES_MAX && self.backlog.held.is_empty() {
            true => Ok(Some(arrived)),
            false => self.admit_among_many(arrived, untaken),
        }
    }

    fn admit_among_many(
        &mut self,
        arrived: ReceivedFrame,
        untaken: usize,
    ) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        match arrived.head.kind {
            FrameKind::Open | FrameKind::Inherit | FrameKind::Reserve | FrameKind::Modules => {
                let may_go = self.backlog.held.is_empty() && self.has_room_for_more();
                return if may_go { Ok(Some(arrived)) } else { self.hold(arrived).map(|()| None) };
            }
            FrameKind::Request => {
                let asked_bytes: usize = self.all_served().map(<dyn ServedExport>::asked_bytes).sum();
                let most = self.backlog.lone_bytes_max + ANSWERS_BYTES_MAX + PROMPT_ANSWERS_BYTES_MAX;
                if untaken + asked_bytes > most {
                    let rule = "no more is asked than the credit allows, which an answer gives back once it is taken";
                    return Err(ProtocolViolation::new("credit", (untaken + asked_bytes) as u64, rule));
                }
            }
            _ => {}
        }
        if untaken > self.backlog.lone_bytes_max + ANSWERS_BYTES_MAX + 2 * PROMPT_ANSWERS_BYTES_MAX {
            return Err(ProtocolViolation::new(
                "answers",
                untaken as u64,
                "an importer that continues to ask has to take its answers",
            ));
        }
        if !self.may_hold(0) {
            return Err(ProtocolViolation::new(
                "answers",
                untaken as u64,
                "what is not taken fits the memory that a peer has here",
            ));
        }
        Ok(Some(arrived))
    }

    /// Checks the allowance after a request was given to a device: a single request may exceed the credit if the
    /// allowance covers it.
    pub(super) fn note_asked(&mut self, asked_bytes: usize) -> Result<(), ProtocolViolation> {
        if asked_bytes > self.backlog.answers_bytes_max && !self.may_hold(0) {
            return Err(ProtocolViolation::new(
                "credit",
                asked_bytes as u64,
                "what exceeds a credit fits the memory that a peer has here",
            ));
        }
        Ok(())
    }

    fn has_room_for_more(&mut self) -> bool {
        self.has_room() && self.may_hold(0)
    }

    /// Whether few answers wait for the link, besides those that the devices' credits allow.
    fn has_room(&self) -> bool {
        self.lanes.untaken_bytes() <= self.backlog.answers_bytes_max + ANSWERS_BYTES_MAX
    }

    fn hold(&mut self, mut arrived: ReceivedFrame) -> Result<(), ProtocolViolation> {
        let bytes = self.backlog.held_bytes + cost(&arrived);
        if bytes > WAITING_REQUESTS_BYTES_MAX {
            return Err(ProtocolViolation::new(
                "answers",
                bytes as u64,
                "an importer that asks for more has to take the earlier answers",
            ));
        }
        arrived.body.own();
        self.backlog.held_bytes = bytes;
        self.backlog.held.push_back(arrived);
        Ok(())
    }

    /// Whether something that waited until answers are taken can be done now, by [`ExporterSession::advance`].
    pub fn has_waiting_work(&self) -> bool {
        let has_control = self.reserving.has_trains() || (!self.backlog.held.is_empty() && !self.backlog.is_starved);
        (has_control && self.has_room()) || self.has_room_to_show()
    }

    /// Whether a device that sends by itself may continue.
    fn has_room_to_show(&self) -> bool {
        self.all_served().filter_map(<dyn ServedExport>::room_wanted).any(|most| self.lanes.untaken_bytes() <= most)
    }

    /// Does what waited until answers were taken, as far as there is room now.
    pub(super) fn do_what_waited(
        &mut self,
        now: Instant,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        // Other sessions of the peer may have released memory.
        self.backlog.is_starved = false;
        if !self.has_waiting_work() {
            return Ok(());
        }
        if self.has_room_to_show() {
            self.handle_ready(now);
        }
        while !self.backlog.held.is_empty() && self.has_room() {
            if !self.may_hold(0) {
                self.backlog.is_starved = true;
                break;
            }
            let Some(arrived) = self.backlog.held.pop_front() else { break };
            self.backlog.held_bytes -= cost(&arrived);
            self.handle_control(now, arrived, services)?;
        }
        if self.has_room() {
            self.reserving.send_train(&mut self.lanes);
        }
        let held = self.held_bytes();
        self.backlog.allowance.settle(held.max(SESSION_BYTES));
        Ok(())
    }

    /// For a handover: refuses waiting requests instead of saving them.
    pub(super) fn refuse_what_waits(&mut self) {
        while self.reserving.has_trains() {
            self.reserving.send_train(&mut self.lanes);
        }
        self.backlog.held_bytes = 0;
        for ReceivedFrame { head: FrameHeader { kind, attachment, .. }, .. } in std::mem::take(&mut self.backlog.held) {
            if matches!(kind, FrameKind::Open | FrameKind::Inherit) {
                let message = "the exporter goes on as another process: ask again".to_owned();
                self.say_end(
                    FrameKind::Refused,
                    attachment,
                    &AttachmentEndNotice { cause: AttachmentEndCause::Refused, message },
                );
            }
        }
    }

    pub(super) fn hear_close(
        &mut self,
        now: Instant,
        number: u16,
        arrived: ReceivedFrame,
    ) -> Result<(), ProtocolViolation> {
        if !self.attachments.contains_key(&number) {
            // Further parts of this close are dropped.
            let was_asked = self.backlog.forget(number);
            let is_waiting = self.reserving.forget(number) || was_asked;
            if self.disinherit(now, number) || self.handovers.moving.remove(&number).is_some() || is_waiting {
                self.say_end(
                    FrameKind::Closed,
                    number,
                    &AttachmentEndNotice { cause: AttachmentEndCause::Requested, message: String::new() },
                );
            }
            return Ok(());
        }
        let Some(body) = self.take_in_close(number, arrived)? else { return Ok(()) };
        let CloseRequest { successor, migration_state } = CloseRequest::decode(&body)?;
        self.reserving.forget(number);
        let Some(ExporterAttachment { open, served, .. }) = self.attachments.remove(&number) else { return Ok(()) };
        let left = self.hold.both(false);
        let message = match successor {
            None => {
                served.finish(now);
                String::new()
            }
            Some(successor) if served.hand_over(now, DeviceMigration { successor, migration_state, left }) => {
                self.handovers.moving.insert(number, open);
                self.note_credit();
                return Ok(());
            }
            Some(_) => HANDED_OVER.to_owned(),
        };
        self.say_end(FrameKind::Closed, number, &AttachmentEndNotice { cause: AttachmentEndCause::Requested, message });
        Ok(())
    }

    /// Collects the parts of a close; returns the whole once it is complete.
    fn take_in_close(&mut self, number: u16, arrived: ReceivedFrame) -> Result<Option<Vec<u8>>, ProtocolViolation> {
        let mut all = self.backlog.closing.remove(&number).unwrap_or_default();
        let bytes = all.len() + arrived.body.len();
        if bytes > MIGRATION_STATE_BYTES_MAX + 32 {
            return Err(ProtocolViolation::new("migration state", bytes as u64, "migration state has 16 MiB at most"));
        }
        if !self.may_hold(2 * bytes) || all.try_reserve(arrived.body.len()).is_err() {
            return Err(ProtocolViolation::new(
                "migration state",
                bytes as u64,
                "migration state fits the memory that a peer has here",
            ));
        }
        arrived.body.runs().for_each(|run| all.extend_from_slice(run));
        if arrived.head.flags.more {
            self.backlog.closing.insert(number, all);
            return Ok(None);
        }
        Ok(Some(all))
    }

    /// The link of a lane has ended: releases memory that the next link does not need.
    pub(super) fn give_memory_back(&mut self) {
        self.pool = BufferPool::new(self.limits.pool_bytes_max());
        let held = self.held_bytes();
        self.backlog.allowance.settle(held.max(SESSION_BYTES));
    }

    /// Whether the session can end without loss while the importer has no link: nothing is attached, requested or
    /// waited for.
    pub fn is_needed_by_nobody(&self) -> bool {
        let is_empty =
            self.attachments.is_empty() && self.handovers.moving.is_empty() && self.handovers.successors.is_empty();
        is_empty && self.reserving.len() == 0 && self.offers.is_empty() && self.backlog.held.is_empty()
    }
}
