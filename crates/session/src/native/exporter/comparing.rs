//! Comparing device identities with the importer's expectation, and telling the importer. What the importer says of the
//! disk that it moves.

use farbus_model::ExportIdentity;
use farbus_wire::native::control::{AttachmentClass, AttachmentEndNotice, OpenRequest};
use farbus_wire::native::identity::IdentityStatement;
use farbus_wire::native::retire::{DiskMoveMessage, DiskMoveStep};
use farbus_wire::native::{FrameKind, OutboundMessage, ReceivedFrame};

use super::session::{ATTACHMENTS_MAX, ExporterServices, ExporterSession, in_turn};
use crate::ProtocolViolation;
use crate::native::known_device::compare;

/// How often the importer of a disk may say what becomes of it, while it has the disk: a swap says three steps, and
/// each may be written to the exporter's own disk.
const STEPS_MAX: u32 = 64;

impl ExporterSession {
    /// The importer names the identity of the device that it expects to open.
    pub(super) fn hear_identity(&mut self, number: u16, arrived: &ReceivedFrame) -> Result<(), ProtocolViolation> {
        let expected = match IdentityStatement::decode(&arrived.body.contiguous())? {
            None => return Ok(()),
            Some(IdentityStatement::Expected(expected)) => expected,
            Some(IdentityStatement::Is(_) | IdentityStatement::Lasting(_)) => {
                return Err(ProtocolViolation::new(
                    "identity",
                    0,
                    "an importer expects a device, and does not say which it is",
                ));
            }
        };
        let is_used = number == 0 || self.is_attached(number) || self.handovers.successors.contains_key(&number);
        if is_used || self.identities.expected.len() >= ATTACHMENTS_MAX {
            return Err(ProtocolViolation::new(
                "attachment",
                number.into(),
                "an expectation is for a device that is opened next",
            ));
        }
        self.identities.expected.insert(number, expected);
        Ok(())
    }

    /// The importer says what becomes of the disk that it moves.
    pub(super) fn hear_step(
        &mut self,
        number: u16,
        arrived: &ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let step = match DiskMoveMessage::decode(&arrived.body.contiguous())? {
            None => return Ok(()),
            Some(DiskMoveMessage::Says(step)) => step,
            Some(_) => {
                return Err(ProtocolViolation::new("step", 0, "an importer says steps, and an exporter answers them"));
            }
        };
        if step == DiskMoveStep::Overwrites && number != 0 && !self.is_attached(number) {
            if self.identities.overwritten.len() >= ATTACHMENTS_MAX {
                return Err(ProtocolViolation::new(
                    "attachment",
                    number.into(),
                    "devices that are overwritten are opened next",
                ));
            }
            self.identities.overwritten.insert(number);
            return Ok(());
        }
        // It was on its way when this end closed the attachment.
        let Some(attached) = self.attachments.get_mut(&number) else { return Ok(()) };
        let is_owner =
            attached.open.class == AttachmentClass::BLOCK && attached.lease != 0 && attached.migration.is_none();
        attached.steps = attached.steps.saturating_add(1);
        let noted = match is_owner {
            true if attached.steps > STEPS_MAX => Err("it was said too often: attach the disk again".to_owned()),
            true => services.note_step(&attached.open, attached.lease, step),
            false => Err("only the host that has a disk alone, to write to it, can move it".to_owned()),
        };
        let answer = noted.map_or_else(|why| DiskMoveMessage::Unable(step, why), |()| DiskMoveMessage::Noted(step));
        self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Retire, number, 0, answer.encode().into())));
        Ok(())
    }

    /// Compares the device that a successor is to get with the one that it was shown, if any. Returns whether that
    /// device is here.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: another device is here under its name.
    pub(super) fn compare_for_successor(
        &self,
        number: u16,
        open: &OpenRequest,
        services: &mut impl ExporterServices,
    ) -> Result<bool, AttachmentEndNotice> {
        match (self.identities.expected(number), services.identity(open)) {
            (None, _) => Ok(true),
            (Some(_), None) => Ok(false),
            (Some(expected), actual) => compare(&open.name, expected, actual).map(|()| true),
        }
    }

    /// Tells the importer which device this attachment uses, if that is known.
    pub(super) fn say_identity(&mut self, number: u16) {
        if let Some(identity) = self.identities.of(number) {
            let part = IdentityStatement::Is(identity).encode().into();
            self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Identity, number, 0, part)));
            if self.identities.lasting.contains(&number) {
                let part = IdentityStatement::Lasting(identity).encode().into();
                self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Identity, number, 0, part)));
            }
        }
    }

    /// Tells an importer that waits for a device in use which one that is, so that it does not get another one later.
    pub(super) fn say_identity_of_busy(
        &mut self,
        number: u16,
        open: &OpenRequest,
        services: &mut impl ExporterServices,
    ) {
        self.identities.note_of(number, open, services);
        self.say_identity(number);
        self.identities.forget(number);
    }

    /// The identity of the device that this attachment uses; `None` if there is no such attachment, or its device has
    /// no identity.
    pub fn identity(&self, number: u16) -> Option<ExportIdentity> {
        self.identities.of(number)
    }

    /// Tells importers of changed identities: a swap raised the generation of their device, or its identity became
    /// known.
    pub fn tell_identities(&mut self, services: &mut impl ExporterServices) {
        let attached = self.attachments.iter().filter(|(_, attached)| attached.unsaid.is_none());
        let shown = self.handovers.successors.iter().filter(|(_, successor)| successor.shown.is_some());
        let attached = attached.map(|(&number, attached)| (number, &attached.open));
        let all = attached.chain(shown.map(|(&number, successor)| (number, &successor.inherit.open)));
        let news = all.filter_map(|(number, open)| {
            let now = services.identity(open)?;
            let is_news = match self.identities.of(number) {
                None => true,
                // Another id means another device, or that the owner assigned a new id: the importer hears of it when
                // it opens the device again.
                Some(known) => now.id == known.id && now.generation > known.generation,
            };
            is_news.then_some((number, now))
        });
        for (number, now) in news.collect::<Vec<_>>() {
            self.identities.note(number, Some(now));
            self.say_identity(number);
        }
    }
}
