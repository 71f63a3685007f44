//! Migration on the exporter: who waits for a device, what a successor may see before it gets the device, and what
//! happens if the successor does not come.

use farbus_model::Instant;
use farbus_model::budget::ASKED_MAX;
use farbus_wire::native::control::{
    AttachmentEndCause, AttachmentEndNotice, HANDED_OVER, OpenReply, SuccessorOpenRequest,
};
use farbus_wire::native::{FrameKind, ReceivedFrame};

use super::handovers::SuccessorAttachment;
use super::session::{
    ExporterAttachment, ExporterServices, ExporterSession, InheritedDevice, RecalledDevice, ServedExport,
};
use crate::ProtocolViolation;

/// The lease shown to a successor that sees the device before it gets it.
const NOT_YET: u64 = 0;
impl ExporterSession {
    pub(super) fn open_for_successor(
        &mut self,
        now: Instant,
        number: u16,
        arrived: &ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let inherit = SuccessorOpenRequest::decode(&arrived.body.contiguous())?;
        if !self.may_begin(number)? {
            return Ok(());
        }
        if let Err(end) = self.compare_for_successor(number, &inherit.open, services) {
            self.say_end(FrameKind::Refused, number, &end);
            return Ok(());
        }
        if self.handovers.successors.len() >= ASKED_MAX {
            let message = format!("a session waits for {ASKED_MAX} devices at most");
            self.say_end(
                FrameKind::Refused,
                number,
                &AttachmentEndNotice { cause: AttachmentEndCause::Refused, message },
            );
            return Ok(());
        }
        self.handovers.successors.insert(number, SuccessorAttachment { inherit, shown: None, left: None });
        self.look_for_handed_over(now, services);
        // A device that uses modules is shown only once the successor has it.
        let has_modules = self.offers.contains_key(&number);
        let Some(successor) = self.handovers.successors.get_mut(&number).filter(|_| !has_modules) else {
            return Ok(());
        };
        match services.show(now, number, &successor.inherit) {
            None => {}
            Some(Ok(served)) => {
                let opened = OpenReply { epoch: NOT_YET, credit: served.credit(), info: served.description() };
                self.identities.note(number, services.identity(&successor.inherit.open));
                successor.shown = Some(served);
                self.say_identity(number);
                self.say_at_length(FrameKind::Opened, number, opened.encode());
            }
            Some(Err(end)) => {
                self.handovers.successors.remove(&number);
                self.say_end(FrameKind::Refused, number, &end);
            }
        }
        Ok(())
    }

    /// Ends the attachment of a waiting successor and what it was shown. Returns whether there was one.
    pub(super) fn disinherit(&mut self, now: Instant, number: u16) -> bool {
        let Some(successor) = self.handovers.successors.remove(&number) else { return false };
        if let Some(shown) = successor.shown {
            shown.finish(now);
        }
        true
    }

    /// Gives devices that were handed over to the successors that wait for them.
    pub fn look_for_handed_over(&mut self, now: Instant, services: &mut impl ExporterServices) {
        let waiting = std::mem::take(&mut self.handovers.successors);
        for (number, successor) in waiting {
            // The successor's requests to the shown device are answered first, and a view from a snapshot is restored
            // first.
            let is_busy = successor.left.is_some() || successor.shown.as_ref().is_some_and(|shown| !shown.is_at_rest());
            let inherited = match self.compare_for_successor(number, &successor.inherit.open, services) {
                Err(end) => Some(Err(end)),
                Ok(is_here) if is_busy || !is_here => None,
                Ok(_) => services.inherit(now, number, &successor.inherit),
            };
            let Some(inherited) = inherited else {
                self.handovers.successors.insert(number, successor);
                continue;
            };
            if let Some(shown) = successor.shown {
                shown.finish(now);
            }
            match inherited {
                Ok(InheritedDevice { lease, served, migration_state }) => {
                    if !migration_state.is_empty() {
                        self.say_at_length(FrameKind::MigrationState, number, migration_state);
                    }
                    let open = successor.inherit.open;
                    self.identities.note(number, services.identity(&open));
                    self.agree_and_say_opened(now, number, ExporterAttachment::new(open, lease, served));
                }
                Err(end) => self.say_end(FrameKind::Refused, number, &end),
            }
        }
    }

    /// The device was handed over: the attachment of its former importer ends.
    pub fn let_go(&mut self, number: u16, end: &AttachmentEndNotice) {
        if self.handovers.moving.remove(&number).is_some() {
            self.say_end(FrameKind::Closed, number, end);
        }
    }

    /// The successor did not come: gives the device back to its former importer, if that still waits.
    pub fn take_back(&mut self, now: Instant, number: u16, lease: u64, served: Box<dyn ServedExport>) {
        match self.handovers.moving.remove(&number) {
            Some(open) => self.agree_and_say_opened(now, number, ExporterAttachment::new(open, lease, served)),
            None => served.finish(now),
        }
    }

    /// Takes back devices whose successor has not come yet, for a handover to the replacement. They wait again there,
    /// or here if the handover fails.
    pub fn recall(&mut self, now: Instant, services: &mut impl ExporterServices) {
        let moving = std::mem::take(&mut self.handovers.moving);
        for (number, open) in moving {
            match services.recall(now, number, &open) {
                Some(RecalledDevice { lease, served, migration }) => {
                    self.attachments.insert(
                        number,
                        ExporterAttachment {
                            migration: Some(migration),
                            ..ExporterAttachment::new(open, lease, served)
                        },
                    );
                }
                None => drop(self.handovers.moving.insert(number, open)),
            }
        }
    }

    /// Hands recalled devices over again: they wait for their successors.
    pub(super) fn hand_over_again(&mut self, now: Instant) {
        let is_recalled = |(_, attached): &(&u16, &mut ExporterAttachment)| attached.migration.is_some();
        let recalled: Vec<u16> = self.attachments.iter_mut().filter(is_recalled).map(|(&number, _)| number).collect();
        for number in recalled {
            let Some(ExporterAttachment { open, served, migration: Some(migration), .. }) =
                self.attachments.remove(&number)
            else {
                continue;
            };
            if served.hand_over(now, migration) {
                self.handovers.moving.insert(number, open);
            } else {
                let message = HANDED_OVER.to_owned();
                self.say_end(
                    FrameKind::Closed,
                    number,
                    &AttachmentEndNotice { cause: AttachmentEndCause::Requested, message },
                );
            }
        }
    }

    /// Shows devices to waiting successors again, from a snapshot. Returns whether that is done for all of them; a
    /// device that is *gone* may come back and is tried again.
    pub fn show_again(&mut self, now: Instant, services: &mut impl ExporterServices) -> bool {
        let mut refused = Vec::new();
        for (&number, successor) in &mut self.handovers.successors {
            let Some(state) = &successor.left else { continue };
            let actual = services.identity(&successor.inherit.open);
            if self.identities.compare(number, &successor.inherit.open, actual).is_err() {
                // The device that the successor was shown may still come back.
                continue;
            }
            let wrong = |reject| AttachmentEndNotice {
                cause: AttachmentEndCause::Device,
                message: format!("it cannot go on: {reject}"),
            };
            match services.show(now, number, &successor.inherit) {
                Some(Ok(mut served)) => match served.restore(now, &mut state.reader()) {
                    Ok(()) => (successor.shown, successor.left) = (Some(served), None),
                    Err(reject) => {
                        served.finish(now);
                        refused.push((number, wrong(reject)));
                    }
                },
                Some(Err(end)) if end.cause == AttachmentEndCause::Gone => {}
                Some(Err(end)) => refused.push((number, end)),
                None => {
                    let message = "it is not shown before it is handed over any more".to_owned();
                    refused.push((number, AttachmentEndNotice { cause: AttachmentEndCause::Refused, message }));
                }
            }
        }
        for (number, end) in refused {
            self.close(now, number, &end);
        }
        self.handovers.successors.values().all(|successor| successor.left.is_none())
    }

    /// Ends the attachments of successors whose device has not come back in the replacement, with this reason.
    pub fn give_up_successors(&mut self, now: Instant, end: &AttachmentEndNotice) {
        let late: Vec<u16> = self
            .handovers
            .successors
            .iter()
            .filter(|(_, successor)| successor.left.is_some())
            .map(|(&number, _)| number)
            .collect();
        late.into_iter().for_each(|number| self.close(now, number, end));
    }

    /// Whether an attachment waits for a device as its successor.
    pub fn has_successors(&self) -> bool {
        !self.handovers.successors.is_empty()
    }
}
