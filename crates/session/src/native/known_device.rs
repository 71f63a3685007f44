//! Checks that a device that is opened again is the one that was used before.
//!
//! After an exporter is restarted, a name can stand for another device, so both ends compare identities: the exporter
//! before it opens the device ([`exporter`](super::exporter)), the importer before it sends a request
//! ([`KnownDevice`]).
//!
//! | the importer had | the exporter says, after it forgot the session | the importer |
//! |---|---|---|
//! | id *a*, generation *n* | id *a*, generation *n* or a later one by swaps alone | continues |
//! | id *a*, generation *n* | id *a*, a later one: its owner adopted another medium | ends: *gone* |
//! | id *a*, generation *n* | id *a*, an earlier generation | ends: *stale*, that medium was retired by a swap |
//! | id *a* | another id | ends: *gone* |
//! | id *a* | nothing | ends: *gone* |
//! | no identity: the exporter was of an older version | anything, from the same process | continues |
//! | no identity | anything, from another process | ends: *gone*, because nothing proves which device it is |
//!
//! A session that continues (outcome *resumed*) opens nothing again. An identity is then only told when it is news: a
//! higher generation is remembered, another id ends the attachment.

use farbus_model::ExportIdentity;
use farbus_model::identity::IDENTITY_BYTES;
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::identity::IdentityStatement;

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Compares the device that `name` stands for with the one that is expected.
///
/// # Errors
/// [`AttachmentEndNotice`]: it is another device (*gone*), or an earlier medium of the same one (*stale*). Its message names both.
pub fn compare(
    name: &str,
    expected: ExportIdentity,
    actual: Option<ExportIdentity>,
) -> Result<(), AttachmentEndNotice> {
    let end = |cause, message| Err(AttachmentEndNotice { cause, message });
    match actual {
        None => end(
            AttachmentEndCause::Gone,
            format!("nothing proves that '{name}' is still device {expected}: attach it anew"),
        ),
        Some(actual) if actual.id != expected.id => {
            end(AttachmentEndCause::Gone, format!("'{name}' is another device now: it was {expected} and is {actual}"))
        }
        Some(actual) if actual.generation < expected.generation => {
            let what = "is an earlier medium of its device, which a swap has retired";
            end(AttachmentEndCause::Stale, format!("'{name}' {what}: it was {expected} and is {actual}"))
        }
        Some(actual) if !actual.continues(expected) => {
            let what = "is on another medium now, as its owner said";
            end(AttachmentEndCause::Gone, format!("'{name}' {what}: it was {expected} and is {actual}: attach it anew"))
        }
        Some(_) => Ok(()),
    }
}

/// What an importer's attachment knows of its device.
#[derive(Clone, Debug, Default)]
pub struct KnownDevice {
    /// The device that was opened; `None`: never opened, or its exporter told no identity.
    identity: Option<ExportIdentity>,
    /// The exporter forgot the session, and the device has not been opened again yet.
    is_asked_again: bool,
    /// The identity told since the device was last opened again.
    stated_identity: Option<ExportIdentity>,
    /// The incarnation of the exporter that is linked now.
    exporter: Option<u64>,
    /// The incarnation of the last exporter that knew the device.
    known_at: Option<u64>,
    /// The exporter said that it finds the identity again after it was started anew.
    is_lasting: bool,
}

impl KnownDevice {
    /// What an attachment knows that had this device before, in another session: it has to be there again.
    pub fn expecting(identity: ExportIdentity) -> Self {
        Self { identity: Some(identity), is_asked_again: true, ..Self::default() }
    }

    /// The identity of the device; `None` if its exporter told none.
    pub fn identity(&self) -> Option<ExportIdentity> {
        self.identity
    }

    /// Whether the exporter said that it finds the identity again after it was started anew. A snapshot does not say
    /// it.
    pub fn is_lasting(&self) -> bool {
        self.is_lasting
    }

    /// A link was made to an exporter with this incarnation. If the exporter forgot the session, call
    /// [`KnownDevice::forgotten`] first.
    pub fn note_exporter(&mut self, incarnation: u64) {
        self.exporter = Some(incarnation);
        if !self.is_asked_again {
            self.known_at = self.exporter;
        }
    }

    /// The exporter forgot the session. `was_open`: the device had been opened before.
    pub fn forgotten(&mut self, was_open: bool) {
        self.is_asked_again |= was_open;
        self.exporter = None;
    }

    /// The statement to send before the device is opened.
    pub fn expectation(&mut self) -> Option<IdentityStatement> {
        self.stated_identity = None;
        self.identity.map(IdentityStatement::Expected)
    }

    /// The exporter told the identity of device `name`. Returns why the attachment ends, if it is another device than
    /// before.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol.
    pub fn hear(&mut self, name: &str, bytes: &[u8]) -> Result<Option<AttachmentEndNotice>, ProtocolViolation> {
        let identity = match IdentityStatement::decode(bytes)? {
            None => return Ok(None),
            Some(IdentityStatement::Is(identity)) => identity,
            Some(IdentityStatement::Lasting(_)) => {
                self.is_lasting = true;
                return Ok(None);
            }
            Some(IdentityStatement::Expected(_)) => {
                return Err(ProtocolViolation::new(
                    "identity",
                    1,
                    "an exporter says which device it is, and expects none",
                ));
            }
        };
        if let Some(known) = self.identity
            && let Err(end) = compare(name, known, Some(identity))
        {
            return Ok(Some(end));
        }
        match self.is_asked_again {
            true => self.stated_identity = Some(identity),
            false => self.identity = Some(identity),
        }
        Ok(None)
    }

    /// The device was opened, for the first time or again.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: nothing proves that it is the device it was before.
    pub fn opened(&mut self, name: &str) -> Result<(), AttachmentEndNotice> {
        if std::mem::take(&mut self.is_asked_again) {
            let is_same_process = self.known_at.is_some() && self.known_at == self.exporter;
            match self.identity {
                Some(known) => compare(name, known, self.stated_identity)?,
                None if is_same_process => {}
                None => {
                    let message = format!(
                        "nothing proves that '{name}' is the device it was: its exporter was started anew, and was of a \
                         version that does not tell devices apart: attach it anew"
                    );
                    return Err(AttachmentEndNotice { cause: AttachmentEndCause::Gone, message });
                }
            }
            self.identity = self.stated_identity.or(self.identity);
        }
        self.known_at = self.exporter;
        Ok(())
    }

    /// Writes it to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.flag(self.is_asked_again);
        put_identity(self.identity, to);
        put_identity(self.stated_identity, to);
        to.flag(self.known_at.is_some());
        if let Some(incarnation) = self.known_at {
            to.u64(incarnation);
        }
    }

    /// Restores it from a snapshot. A snapshot of version 12 has no identities, so nothing is known.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the identity is invalid.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        if from.version() < 13 {
            return Ok(Self::default());
        }
        let is_asked_again = from.flag("asked again")?;
        let (identity, stated_identity) = (take_identity(from)?, take_identity(from)?);
        let known_at = if from.flag("exporter known")? { Some(from.u64("exporter's incarnation")?) } else { None };
        Ok(Self { identity, is_asked_again, stated_identity, exporter: None, known_at, is_lasting: false })
    }
}

/// Writes an identity, or that there is none.
pub(super) fn put_identity(identity: Option<ExportIdentity>, to: &mut SnapshotWriter) {
    to.raw(&identity.map_or([0; IDENTITY_BYTES], ExportIdentity::to_bytes));
}

/// Reads what [`put_identity`] wrote.
///
/// # Errors
/// [`ProtocolViolation`]: the identity is invalid.
pub(super) fn take_identity(from: &mut FieldReader<'_>) -> Result<Option<ExportIdentity>, ProtocolViolation> {
    let bytes: [u8; IDENTITY_BYTES] = from.take(IDENTITY_BYTES, "identity")?.try_into().expect("as many");
    match ExportIdentity::from_bytes(bytes) {
        None if bytes != [0; IDENTITY_BYTES] => Err(ProtocolViolation::new("identity", 0, "an id is not zero")),
        identity => Ok(identity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ExportIdentity = ExportIdentity { id: 1, generation: 3 };
    const B: ExportIdentity = ExportIdentity { id: 2, generation: 3 };

    fn known(identity: Option<ExportIdentity>) -> KnownDevice {
        let mut device = KnownDevice::default();
        assert_eq!(device.expectation(), None);
        device.note_exporter(7);
        if let Some(identity) = identity {
            assert_eq!(device.hear("disk", &IdentityStatement::Is(identity).encode()), Ok(None));
        }
        assert_eq!(device.opened("disk"), Ok(()));
        device
    }

    /// The exporter forgot the session, has this incarnation and tells this identity. Returns what becomes of the
    /// attachment.
    fn again(
        mut device: KnownDevice,
        exporter: u64,
        stated_identity: Option<ExportIdentity>,
    ) -> Result<Option<ExportIdentity>, AttachmentEndCause> {
        device.forgotten(true);
        device.note_exporter(exporter);
        assert_eq!(device.expectation(), device.identity().map(IdentityStatement::Expected));
        if let Some(identity) = stated_identity
            && let Some(end) = device.hear("disk", &IdentityStatement::Is(identity).encode()).unwrap()
        {
            return Err(end.cause);
        }
        device.opened("disk").map(|()| device.identity()).map_err(|end| end.cause)
    }

    #[test]
    fn identities_are_compared_as_the_table_says() {
        let later = ExportIdentity { generation: 4, ..A };
        let earlier = ExportIdentity { generation: 2, ..A };
        for exporter in [7, 8] {
            assert_eq!(again(known(Some(A)), exporter, Some(A)), Ok(Some(A)));
            assert_eq!(again(known(Some(A)), exporter, Some(later)), Ok(Some(later)));
            assert_eq!(again(known(Some(A)), exporter, Some(earlier)), Err(AttachmentEndCause::Stale));
            assert_eq!(again(known(Some(A)), exporter, Some(A.adopted())), Err(AttachmentEndCause::Gone));
            assert_eq!(again(known(Some(A)), exporter, Some(B)), Err(AttachmentEndCause::Gone));
            assert_eq!(again(known(Some(A)), exporter, None), Err(AttachmentEndCause::Gone));
        }
        assert_eq!(again(known(None), 7, None), Ok(None));
        assert_eq!(again(known(None), 7, Some(A)), Ok(Some(A)));
        assert_eq!(again(known(None), 8, None), Err(AttachmentEndCause::Gone));
        assert_eq!(again(known(None), 8, Some(A)), Err(AttachmentEndCause::Gone));
    }

    #[test]
    fn device_that_was_never_open_may_have_any_identity() {
        let mut device = KnownDevice::default();
        device.note_exporter(7);
        device.forgotten(false);
        device.note_exporter(8);
        assert_eq!(device.hear("disk", &IdentityStatement::Is(B).encode()), Ok(None));
        assert_eq!((device.opened("disk"), device.identity()), (Ok(()), Some(B)));
    }

    #[test]
    fn device_of_another_session_has_to_be_there_again() {
        let open = |stated_identity: Option<ExportIdentity>| {
            let mut device = KnownDevice::expecting(A);
            assert_eq!(device.expectation(), Some(IdentityStatement::Expected(A)));
            device.note_exporter(7);
            let heard = stated_identity.and_then(|stated_identity| {
                device.hear("disk", &IdentityStatement::Is(stated_identity).encode()).unwrap()
            });
            heard.map_or(Ok(()), Err).and_then(|()| device.opened("disk")).map_err(|end| end.cause)
        };
        assert_eq!(open(Some(A)), Ok(()));
        assert_eq!(open(Some(ExportIdentity { generation: 9, ..A })), Ok(()), "swaps have copied it");
        assert_eq!(open(Some(B)), Err(AttachmentEndCause::Gone));
        assert_eq!(open(Some(A.adopted())), Err(AttachmentEndCause::Gone));
        assert_eq!(open(Some(ExportIdentity { generation: 0, ..A })), Err(AttachmentEndCause::Stale));
        assert_eq!(open(None), Err(AttachmentEndCause::Gone), "nothing proves which device it is");
    }

    #[test]
    fn exporter_that_forgets_twice_is_compared_with_the_one_that_knew_the_device() {
        let mut device = known(None);
        for exporter in [8, 7] {
            device.forgotten(true);
            device.note_exporter(exporter);
        }
        assert_eq!(device.opened("disk"), Ok(()), "the process that knew it is there again");
        let mut device = known(None);
        for exporter in [8, 8] {
            device.forgotten(true);
            device.note_exporter(exporter);
        }
        assert_eq!(device.opened("disk").unwrap_err().cause, AttachmentEndCause::Gone);
    }

    #[test]
    fn generation_told_while_the_device_is_open_is_remembered() {
        let mut device = known(Some(A));
        let later = ExportIdentity { generation: 9, ..A };
        assert_eq!(device.hear("disk", &IdentityStatement::Is(later).encode()), Ok(None));
        assert_eq!(device.identity(), Some(later));
        assert_eq!(
            again(device.clone(), 8, Some(A)),
            Err(AttachmentEndCause::Stale),
            "the medium from before the swap"
        );
        let end = device.hear("disk", &IdentityStatement::Is(B).encode()).unwrap().unwrap();
        assert!(end.message.contains(&later.to_string()) && end.message.contains(&B.to_string()), "{end:?}");
        assert!(device.hear("disk", &IdentityStatement::Expected(A).encode()).is_err());
    }

    #[test]
    fn known_device_survives_a_snapshot() {
        let saved = |device: &KnownDevice, version: u16| {
            let mut to = SnapshotWriter::new(5);
            device.save(&mut to);
            let mut bytes = to.into_bytes();
            bytes[8..10].copy_from_slice(&version.to_le_bytes());
            let mut from = crate::snapshot::open(&bytes, 5).unwrap();
            let mut device = KnownDevice::restore(&mut from).unwrap();
            device.note_exporter(7);
            device
        };
        let mut half_way = known(Some(A));
        half_way.forgotten(true);
        assert_eq!(half_way.hear("disk", &IdentityStatement::Is(A).encode()), Ok(None));
        assert_eq!(saved(&half_way, 13).opened("disk"), Ok(()), "it was told, and not opened yet");
        assert_eq!(again(saved(&known(Some(A)), 13), 8, Some(B)), Err(AttachmentEndCause::Gone));
        assert_eq!(again(saved(&known(Some(A)), 13), 8, Some(A)), Ok(Some(A)));
        assert_eq!(again(saved(&known(None), 13), 8, Some(A)), Err(AttachmentEndCause::Gone));
        assert_eq!(again(saved(&known(None), 13), 7, None), Ok(None));
        assert_eq!(
            again(saved(&known(Some(A)), 12), 8, Some(A)),
            Err(AttachmentEndCause::Gone),
            "version 12 has no identities"
        );
    }
}
