//! The identities of a session's devices: what importers expect, and what they were told.

use std::collections::{BTreeMap, BTreeSet};

use farbus_model::ExportIdentity;
use farbus_wire::native::control::{AttachmentEndNotice, OpenRequest};

use super::session::ExporterServices;
use crate::ProtocolViolation;
use crate::native::known_device::{compare, put_identity, take_identity};
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The identities of a session's devices, by attachment.
#[derive(Debug, Default)]
pub(super) struct SessionIdentities {
    /// Identities that the importer named before it opened the device.
    pub(super) expected: BTreeMap<u16, ExportIdentity>,
    /// Devices that the importer opens next to overwrite them.
    pub(super) overwritten: BTreeSet<u16>,
    /// Identities of devices that are open, handed over, or shown to a successor.
    known: BTreeMap<u16, ExportIdentity>,
    /// Attachments whose identity is found again after this process was started anew. The importer was told; a snapshot
    /// does not have them.
    pub(super) lasting: BTreeSet<u16>,
}

impl SessionIdentities {
    /// The attachment has ended.
    pub fn forget(&mut self, number: u16) {
        self.expected.remove(&number);
        self.overwritten.remove(&number);
        self.known.remove(&number);
        self.lasting.remove(&number);
    }

    /// The identity of the attachment's device.
    pub fn of(&self, number: u16) -> Option<ExportIdentity> {
        self.known.get(&number).copied()
    }

    /// The device that the importer expects: as it said, or as it was told before.
    pub fn expected(&self, number: u16) -> Option<ExportIdentity> {
        self.expected.get(&number).or(self.known.get(&number)).copied()
    }

    /// Records the identity of the attachment's device.
    pub fn note(&mut self, number: u16, identity: Option<ExportIdentity>) {
        self.expected.remove(&number);
        match identity {
            Some(identity) => drop(self.known.insert(number, identity)),
            None => drop(self.known.remove(&number)),
        }
    }

    /// Records the identity of the device that `open` names now, and whether it lasts.
    pub fn note_of(&mut self, number: u16, open: &OpenRequest, services: &mut impl ExporterServices) {
        let identity = services.identity(open);
        self.note(number, identity);
        match identity.is_some() && services.is_lasting(open) {
            true => self.lasting.insert(number),
            false => self.lasting.remove(&number),
        };
    }

    /// Compares the device that `open` names with the one that the importer expects, if it expects one.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: it is another device.
    pub fn compare(
        &self,
        number: u16,
        open: &OpenRequest,
        actual: Option<ExportIdentity>,
    ) -> Result<(), AttachmentEndNotice> {
        self.expected(number).map_or(Ok(()), |expected| compare(&open.name, expected, actual))
    }

    /// Writes it to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        for all in [&self.expected, &self.known] {
            to.count(all.len());
            for (&number, &identity) in all {
                to.u16(number);
                put_identity(Some(identity), to);
            }
        }
    }

    /// Restores it from a snapshot; a snapshot of version 12 has none.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: an entry has no identity.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut identities = Self::default();
        if from.version() < 13 {
            return Ok(identities);
        }
        for all in [&mut identities.expected, &mut identities.known] {
            for _ in 0..from.count("identities", 26)? {
                let (number, identity) = (from.u16("attachment")?, take_identity(from)?);
                let missing =
                    || ProtocolViolation::new("identity", number.into(), "an attachment that is listed has one");
                all.insert(number, identity.ok_or_else(missing)?);
            }
        }
        Ok(identities)
    }
}
