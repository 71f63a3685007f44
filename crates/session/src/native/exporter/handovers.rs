//! The migrations of a session: devices on their way to a successor, and attachments that wait for a device as its
//! successor.

use std::collections::BTreeMap;

use farbus_wire::native::control::{OpenRequest, SuccessorOpenRequest};

use crate::ProtocolViolation;
use crate::native::served::ServedExport;
use crate::snapshot::{FieldReader, SavedPart, SnapshotWriter};

/// The migrations of a session, by attachment.
#[derive(Default)]
pub(super) struct SessionMigrations {
    /// Attachments whose device waits for its successor; it may come back.
    pub moving: BTreeMap<u16, OpenRequest>,
    /// Attachments that wait for a device as its successor.
    pub successors: BTreeMap<u16, SuccessorAttachment>,
}

/// An attachment that waits for a device that another importer will hand over.
pub(super) struct SuccessorAttachment {
    pub inherit: SuccessorOpenRequest,
    /// The view of the device that it has meanwhile.
    pub shown: Option<Box<dyn ServedExport>>,
    /// The view's state from a snapshot, which has not been restored yet.
    pub left: Option<SavedPart>,
}

impl SessionMigrations {
    /// Number of devices on their way plus successors that wait.
    pub fn len(&self) -> usize {
        self.moving.len() + self.successors.len()
    }

    /// Whether the attachment's device is on its way, or shown to it.
    pub fn has(&self, number: u16) -> bool {
        self.moving.contains_key(&number)
            || self.successors.get(&number).is_some_and(|successor| successor.shown.is_some())
    }

    /// Number of attachments whose device is on its way, or shown to them.
    pub fn count(&self) -> usize {
        self.moving.len() + self.shown().count()
    }

    /// The views of waiting successors.
    pub fn shown(&self) -> impl Iterator<Item = &dyn ServedExport> {
        self.successors.values().filter_map(|successor| successor.shown.as_deref())
    }

    /// The views of waiting successors, by attachment.
    pub fn shown_mut(&mut self) -> impl Iterator<Item = (u16, &mut Box<dyn ServedExport>)> {
        self.successors.iter_mut().filter_map(|(&number, successor)| Some((number, successor.shown.as_mut()?)))
    }

    /// The view of this successor.
    pub fn shown_to(&mut self, number: u16) -> Option<&mut Box<dyn ServedExport>> {
        self.successors.get_mut(&number)?.shown.as_mut()
    }

    /// Writes the waiting successors to a snapshot. Devices on their way have been recalled before.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.successors.len());
        for (&number, successor) in &self.successors {
            to.u16(number);
            to.bytes(&successor.inherit.encode());
            let mut state = SnapshotWriter::part();
            let is_shown = successor.shown.as_ref().is_some_and(|shown| shown.save(&mut state).is_ok());
            to.flag(is_shown);
            if is_shown {
                to.bytes(&state.into_bytes());
            }
        }
    }

    /// Restores it from a snapshot; `is_used` says which numbers attachments have.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(from: &mut FieldReader<'_>, is_used: impl Fn(u16) -> bool) -> Result<Self, ProtocolViolation> {
        let mut handovers = Self::default();
        for _ in 0..from.count("successors", 2)? {
            let (number, inherit) = (from.u16("successor")?, SuccessorOpenRequest::decode(from.bytes("inherit")?)?);
            let left = if from.flag("shown")? { Some(from.part("state")?) } else { None };
            let is_new = number > 0 && !is_used(number);
            if !is_new
                || handovers.successors.insert(number, SuccessorAttachment { inherit, shown: None, left }).is_some()
            {
                return Err(ProtocolViolation::new("successor", number.into(), "each has a number of its own, from 1"));
            }
        }
        Ok(handovers)
    }
}
