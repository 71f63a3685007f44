//! A block device that is offered: a medium, and the view that its users have of it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_model::{BlockDevice, BlockInfo, BlockMedium, BlockStore, StoreError};
use farbus_wire::native::control;

use super::{CopyOnWriteView, ImmediateDeviceStore, MediumSwitch, RangeView, ReadOnlyView, SparseMemory, StoreDevice};
use crate::claims::UseMode;

/// The view that users have of a medium (requirement N14): a part of it, read-only, or with private changes.
#[derive(Clone, Default)]
pub struct MediumView {
    /// Offset of the view in the medium, bytes.
    pub offset: u64,
    /// Size of the view, bytes; `None`: to the end of the medium.
    pub size_bytes: Option<u64>,
    /// Whether every change is refused.
    pub is_read_only: bool,
    /// Where private changes are stored, if users have them.
    pub changes: Option<ChangeStorage>,
}

/// Where the private changes of a view are stored.
#[derive(Clone)]
pub enum ChangeStorage {
    /// In this many bytes of memory for each user.
    Memory(u64),
    /// On another medium; the export then has one user at a time.
    Medium(Arc<dyn BlockMedium>),
}

/// A block device on offer. Each user opens it and gets a device of its own over the same medium.
pub struct BlockExport {
    medium: MediumSwitch,
    /// Where the medium is, as people write it: a path or an address.
    location: Mutex<Option<String>>,
    /// Whether it was elsewhere before.
    has_moved: AtomicBool,
    view: MediumView,
    durability: u64,
    info: BlockInfo,
    /// Whether its medium is this process's memory.
    is_in_memory: bool,
}

impl fmt::Debug for BlockExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockExport").field("info", &self.info).finish_non_exhaustive()
    }
}

impl BlockExport {
    /// Offers `view` of `medium`. `durability` is as
    /// [`Description::durability`](farbus_wire::native::block::BlockDescription::durability) says.
    ///
    /// # Errors
    /// A sentence for a person: the view does not fit into the medium.
    pub fn new(medium: Arc<dyn BlockMedium>, view: MediumView, durability: u64) -> Result<Self, String> {
        let medium = MediumSwitch::new(medium)?;
        let device = open(&medium, &view)?;
        let info = *device.info();
        if info.size_bytes == 0 {
            return Err("nothing of it is left to use".into());
        }
        Ok(Self {
            medium,
            location: Mutex::default(),
            has_moved: AtomicBool::new(false),
            view,
            durability,
            info,
            is_in_memory: false,
        })
    }

    /// Marks the medium as this process's memory.
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        self.is_in_memory = true;
        self
    }

    /// Whether this process's end would lose data: its medium is memory, or (if `is_used`) its users have private
    /// changes.
    pub fn is_lost_with_process(&self, is_used: bool) -> bool {
        // Only this process knows which parts of the change store hold which sectors.
        self.is_in_memory || (is_used && self.view.changes.is_some())
    }

    /// Its medium, which can be exchanged while it is in use.
    pub fn switch(&self) -> &MediumSwitch {
        &self.medium
    }

    /// Where its medium is, as people write it, if that is known.
    pub fn location(&self) -> Option<String> {
        self.location.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records where its medium is.
    pub fn is_at(&self, location: String) {
        let mut known = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        let has_moved = known.as_ref().is_some_and(|known| *known != location);
        self.has_moved.fetch_or(has_moved, Ordering::AcqRel);
        *known = Some(location);
    }

    /// Whether its medium was elsewhere before: it was exchanged.
    pub fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Acquire)
    }

    /// Its size, block size and limits.
    pub fn info(&self) -> &BlockInfo {
        &self.info
    }

    /// The durability given to [`BlockExport::new`].
    pub fn durability(&self) -> u64 {
        self.durability
    }

    /// The mode that a user gets who attaches with `mode`: a read-only view is read, and private changes in memory are
    /// [`SwitchMode::Scratch`].
    pub fn mode(&self, mode: control::AttachmentMode) -> UseMode {
        match (mode, &self.view.changes) {
            (control::AttachmentMode::Read | control::AttachmentMode::Observe, _) => UseMode::Read,
            (control::AttachmentMode::Exclusive, Some(ChangeStorage::Memory(_))) => UseMode::Scratch,
            (control::AttachmentMode::Exclusive, _) if self.info.is_read_only => UseMode::Read,
            (control::AttachmentMode::Exclusive, _) => UseMode::Exclusive,
        }
    }

    /// Whether its user may hand it over to a successor: it must be exclusive, without private changes.
    pub fn may_be_inherited(&self) -> bool {
        self.mode(control::AttachmentMode::Exclusive) == UseMode::Exclusive && self.view.changes.is_none()
    }

    /// Opens it for one more user.
    ///
    /// # Errors
    /// A sentence for a person: the medium or the change store does not open.
    pub fn open(&self, mode: UseMode) -> Result<Box<dyn BlockDevice>, String> {
        let device = open(&self.medium, &self.view)?;
        match mode {
            UseMode::Read if !self.info.is_read_only => Ok(Box::new(ReadOnlyView::new(device))),
            _ => Ok(device),
        }
    }

    /// Opens it as a [`BlockStore`], which the USB disk gadget needs.
    ///
    /// # Errors
    /// A sentence for a person: the medium or the change store does not open.
    pub fn open_store(&self, mode: UseMode) -> Result<Box<dyn BlockStore>, String> {
        let is_bare = self.view.offset == 0 && self.view.size_bytes.is_none() && self.view.changes.is_none();
        if is_bare && !(self.view.is_read_only || mode == UseMode::Read) {
            return self.medium.open();
        }
        Ok(Box::new(ImmediateDeviceStore::new(self.open(mode)?)))
    }

    /// Whether zeroing a range is faster than writing zeros.
    pub fn zeroes_fast(&self) -> bool {
        self.view.changes.is_some()
    }
}

/// The view's layers over a new handle on the medium.
fn open(medium: &dyn BlockMedium, view: &MediumView) -> Result<Box<dyn BlockDevice>, String> {
    let store = medium.open()?;
    let mut device: Box<dyn BlockDevice> = Box::new(StoreDevice::new(store).preferring(medium.preferred_bytes()));
    if view.offset > 0 || view.size_bytes.is_some() {
        let whole = device.info().size_bytes;
        let size = view.size_bytes.unwrap_or(whole.saturating_sub(view.offset));
        let part = RangeView::new(device, view.offset, size)
            .map_err(|_: StoreError| format!("{size} bytes from {} on do not lie in its {whole}", view.offset))?;
        device = Box::new(part);
    }
    match &view.changes {
        Some(ChangeStorage::Memory(bytes)) => {
            device = Box::new(CopyOnWriteView::new(device, SparseMemory::new(*bytes, *bytes)))
        }
        Some(ChangeStorage::Medium(changes)) => device = Box::new(CopyOnWriteView::new(device, changes.open()?)),
        None if view.is_read_only => device = Box::new(ReadOnlyView::new(device)),
        None => {}
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryMedium;

    fn medium() -> Arc<dyn BlockMedium> {
        Arc::new(MemoryMedium::new(SparseMemory::new(1 << 20, 1 << 20)))
    }

    fn export(view: MediumView) -> BlockExport {
        BlockExport::new(medium(), view, 7).unwrap()
    }

    #[test]
    fn read_only_view_is_read_in_every_mode() {
        let modes = |view: MediumView| {
            let export = export(view);
            [control::AttachmentMode::Exclusive, control::AttachmentMode::Read]
                .map(|attachment_mode| export.mode(attachment_mode))
        };
        let changes = |changes| MediumView { changes: Some(changes), ..MediumView::default() };
        let inherited = |view: MediumView| self::export(view).may_be_inherited();
        assert!(
            inherited(MediumView::default()) && !inherited(MediumView { is_read_only: true, ..MediumView::default() })
        );
        assert!(
            !inherited(changes(ChangeStorage::Memory(1 << 20))) && !inherited(changes(ChangeStorage::Medium(medium())))
        );
        assert_eq!(modes(MediumView::default()), [UseMode::Exclusive, UseMode::Read]);
        assert_eq!(modes(MediumView { is_read_only: true, ..MediumView::default() }), [UseMode::Read; 2]);
        assert_eq!(modes(changes(ChangeStorage::Memory(1 << 20))), [UseMode::Scratch, UseMode::Read]);
        assert_eq!(modes(changes(ChangeStorage::Medium(medium()))), [UseMode::Exclusive, UseMode::Read]);
    }

    #[test]
    fn reader_cannot_write_and_sees_what_the_writer_wrote() {
        let export = export(MediumView { offset: 4096, size_bytes: Some(8192), ..MediumView::default() });
        let mut writer = export.open_store(UseMode::Exclusive).unwrap();
        let mut reader = export.open_store(UseMode::Read).unwrap();
        writer.write_at(10, b"seen").unwrap();
        let mut bytes = [0; 4];
        reader.read_at(10, &mut bytes).unwrap();
        assert_eq!((&bytes, reader.size_bytes(), reader.is_read_only()), (b"seen", 8192, true));
        assert_eq!(reader.write_at(0, b"x"), Err(StoreError::ReadOnly));
        assert!(export.open(UseMode::Read).unwrap().info().is_read_only);
    }

    #[test]
    fn memory_medium_is_always_lost_with_its_process_and_changes_once_in_use() {
        let in_memory = |changes| export(MediumView { changes, ..MediumView::default() });
        let lost = |export: &BlockExport| [false, true].map(|is_used| export.is_lost_with_process(is_used));
        assert_eq!(lost(&in_memory(None)), [false; 2]);
        assert_eq!(lost(&in_memory(Some(ChangeStorage::Memory(1 << 20)))), [false, true]);
        assert_eq!(lost(&in_memory(Some(ChangeStorage::Medium(medium())))), [false, true]);
        assert_eq!(lost(&in_memory(None).in_memory()), [true; 2]);
    }

    #[test]
    fn each_scratch_user_has_private_changes() {
        let export = export(MediumView { changes: Some(ChangeStorage::Memory(1 << 20)), ..MediumView::default() });
        let [mut one, mut other] = [(); 2].map(|()| export.open_store(UseMode::Scratch).unwrap());
        one.write_at(512, &[7; 512]).unwrap();
        let mut bytes = [9; 512];
        other.read_at(512, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 512]);
        one.read_at(512, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
    }

    #[test]
    fn view_beyond_the_medium_is_refused_with_its_size() {
        let wrong = |offset, size_bytes| {
            let view = MediumView { offset, size_bytes, ..MediumView::default() };
            BlockExport::new(medium(), view, 0).unwrap_err()
        };
        assert!(wrong(1 << 19, Some(1 << 20)).contains("1048576"));
        assert!(wrong(1 << 20, None).contains("nothing of it is left"));
    }
}
