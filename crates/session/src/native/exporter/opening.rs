//! Opening a device: reserve first, compare its identity, then tell the importer.

use std::time::Duration;

use farbus_model::Instant;
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice, OpenRequest};
use farbus_wire::native::lease::LeaseEndNotice;
use farbus_wire::native::reserve::{self, ReservationMessage, ReservationState, ScarceResource};
use farbus_wire::native::{FrameKind, OutboundMessage, ReceivedFrame};

use super::session::{ExporterAttachment, ExporterServices, ExporterSession, ServedExport, in_turn};
use crate::ProtocolViolation;

impl ExporterSession {
    pub(super) fn open(
        &mut self,
        now: Instant,
        number: u16,
        arrived: &ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let open = OpenRequest::decode(&arrived.body.contiguous())?;
        // A reservation depends on the path, which is measured first.
        if self.may_begin(number)? && !self.reserving.keep(number, &open)? {
            self.open_now(now, number, open, services);
        }
        Ok(())
    }

    fn open_now(&mut self, now: Instant, number: u16, open: OpenRequest, services: &mut impl ExporterServices) {
        // If it is another device than the importer expects, it is not touched.
        if let Err(end) = self.identities.compare(number, &open, services.identity(&open)) {
            self.reserving.forget(number);
            return self.say_end(FrameKind::Refused, number, &end);
        }
        let mut had = Ok(None);
        if let Some(asking) = self.reserving.take(number) {
            let reserved = services.reserve(&open, &asking.reservation, asking.path);
            let report = reserved.as_ref().map_or_else(|(report, _)| *report, |report| *report);
            let is_too_slow = report.state == ReservationState::Refused
                && matches!(report.lack, ScarceResource::Rate | ScarceResource::Delay);
            if is_too_slow && self.reserving.measure_again(now, number, asking, &open, &mut self.lanes) {
                return;
            }
            self.say_report(number, report);
            had = reserved.map(Some).map_err(|(_, end)| end);
        }
        // Modules are agreed on before the device is claimed, so that a refusal takes it from no other host.
        let is_reserved = matches!(had, Ok(Some(_)));
        let agreed = had.and_then(|_| self.agree(number, &open));
        let opened = agreed.and_then(|agreed| Ok((agreed, self.open_compared(now, number, &open, services)?)));
        match opened {
            Ok((agreed, (lease, served))) => {
                self.say_opened(number, ExporterAttachment::new(open, lease, served), agreed)
            }
            Err(end) => {
                if is_reserved {
                    services.unreserve(&open);
                }
                if end.cause == AttachmentEndCause::Busy {
                    self.say_identity_of_busy(number, &open, services);
                }
                self.say_end(FrameKind::Refused, number, &end);
            }
        }
    }

    /// Opens a device and compares its identity again, because the name may have passed to another device meanwhile.
    fn open_compared(
        &mut self,
        now: Instant,
        number: u16,
        open: &OpenRequest,
        services: &mut impl ExporterServices,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        if self.identities.overwritten.remove(&number) {
            services.note_overwriting(open);
        }
        let (lease, served) = match self.identities.expected(number) {
            Some(expected) => services.open_again(now, number, open, expected)?,
            None => services.open(now, number, open)?,
        };
        let actual = services.identity(open);
        if let Err(end) = self.identities.compare(number, open, actual) {
            served.finish(now);
            return Err(end);
        }
        self.identities.note_of(number, open, services);
        Ok((lease, served))
    }

    pub(super) fn hear_reservation(
        &mut self,
        now: Instant,
        number: u16,
        arrived: &ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let is_used = self.is_attached(number) || self.handovers.successors.contains_key(&number);
        let heard = self.reserving.hear(now, number, is_used, &arrived.body.contiguous(), &mut self.lanes)?;
        if let Some(open) = heard {
            self.open_now(now, number, open, services);
        }
        Ok(())
    }

    /// Tells the importer that the lease of an attachment ends in so long.
    pub fn say_lease_ends(&mut self, number: u16, left: Duration) {
        let part = LeaseEndNotice(left).encode().into();
        self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Lease, number, 0, part)));
    }

    /// Sends the importer a reservation report for its device.
    pub fn say_report(&mut self, number: u16, report: reserve::ReservationReport) {
        let part = ReservationMessage::Report(report).encode().into();
        self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Reserve, number, 0, part)));
    }
}
