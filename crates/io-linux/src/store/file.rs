//! Blocks in a regular file or a block device.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use farbus_model::{BlockMedium, BlockStore, StoreError, StoreExtent};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::in_use::{self, ImageUser};
use crate::sys::errno::store_error;

/// What is written where a range cannot be zeroed by a system call. One page of the page cache is far too small (a
/// system call each), a megabyte would sit in the binary.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// How often and how long to wait for a block device's lock: udev takes it for some milliseconds whenever a device was
/// closed after writing.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A file or block device of fixed size, locked for as long as it is open: one writer or several readers, so that no
/// image is shared twice by accident.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    read_only: bool,
    blocks: BlockSizes,
    /// Whether its file system can give space back, and zero a range.
    punches: bool,
    zeroes: bool,
    /// A failed fdatasync leaves lost pages marked clean, and the next one would succeed: once durability could not be
    /// promised, it is never promised again, by any handle.
    undurable: Arc<OnceLock<StoreError>>,
}

/// The block sizes of a medium, bytes. Accesses may begin at any byte all the same, through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// The unit of addressing: ranges are zeroed and given back in multiples of it. 1 for a file.
    pub logical: u32,
    /// The size that it writes best.
    pub physical: u32,
}

impl BlockSizes {
    /// The sizes of a regular file: pages.
    const FILE: BlockSizes = BlockSizes { logical: 1, physical: 4096 };
    /// The sizes of a block device that does not report them.
    const DEVICE: BlockSizes = BlockSizes { logical: 512, physical: 4096 };

    fn of(file: &File) -> Self {
        let is_block_device =
            rustix::fs::fstat(file).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice);
        if !is_block_device {
            return Self::FILE;
        }
        let known = |size: Result<u32, Errno>| size.ok().filter(|size| size.is_power_of_two());
        let logical = known(rustix::fs::ioctl_blksszget(file)).unwrap_or(Self::DEVICE.logical);
        let physical = known(rustix::fs::ioctl_blkpbszget(file)).unwrap_or(Self::DEVICE.physical).max(logical);
        Self { logical, physical }
    }
}

/// Whether a disk is opened that something else on this machine uses: a mount, a loop device, swap, a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherUsers {
    /// Not for writing. For reading with a warning, unless they have locked it against that.
    #[default]
    Refused,
    /// Its owner wants it all the same: with a warning.
    Permitted,
}

impl OtherUsers {
    /// Permitted, if their owner says so.
    pub fn permitted_if(is_permitted: bool) -> Self {
        if is_permitted { Self::Permitted } else { Self::Refused }
    }
}

impl FileStore {
    /// Opens `path` and locks it.
    ///
    /// # Errors
    /// [`FileStoreOpenError`], which says what to type next.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self, FileStoreOpenError> {
        Self::open_beside(path, read_only, OtherUsers::Refused)
    }

    /// As [`FileStore::open`], beside other users if these are permitted.
    ///
    /// # Errors
    /// [`FileStoreOpenError`], which says what to type next.
    pub fn open_beside(
        path: impl AsRef<Path>,
        read_only: bool,
        others: OtherUsers,
    ) -> Result<Self, FileStoreOpenError> {
        let path = path.as_ref();
        Self::try_open(path, read_only, others).map_err(|trouble| FileStoreOpenError { path: path.to_owned(), trouble })
    }

    /// The store behind a descriptor that [`FileStore::open`] opened in another process, together with its lock.
    ///
    /// # Errors
    /// [`FileStoreOpenError`].
    pub fn passed(file: OwnedFd, path: impl Into<PathBuf>, read_only: bool) -> Result<Self, FileStoreOpenError> {
        let path = path.into();
        Self::over(file.into(), &path, read_only).map_err(|trouble| FileStoreOpenError { path, trouble })
    }

    /// The store behind a descriptor that another program opened: checks how it was opened, and locks it. A lock that
    /// came along stays.
    ///
    /// # Errors
    /// [`FileStoreOpenError`].
    pub fn received(
        file: OwnedFd,
        path: impl Into<PathBuf>,
        read_only: bool,
        others: OtherUsers,
    ) -> Result<Self, FileStoreOpenError> {
        let (path, file) = (path.into(), File::from(file));
        let checked = check_received(&file, read_only).and_then(|()| claim(&file, &path, read_only, others));
        match checked.and_then(|()| Self::over(file, &path, read_only)) {
            Ok(store) => Ok(store),
            Err(trouble) => Err(FileStoreOpenError { path, trouble }),
        }
    }

    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The block sizes of its medium.
    pub fn block_sizes(&self) -> BlockSizes {
        self.blocks
    }

    /// The descriptor, to be passed to another process, where [`FileStore::passed`] takes it.
    pub fn into_descriptor(self) -> OwnedFd {
        self.file.into()
    }

    /// Why nothing written to it is promised to be durable any more: a flush has failed.
    pub fn loss(&self) -> Option<StoreError> {
        self.undurable.get().copied()
    }

    /// A duplicate that shares the lock and what is known of durability.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (file, path, undurable) = (self.file.try_clone()?, self.path.clone(), Arc::clone(&self.undurable));
        Ok(Self { file, path, undurable, ..*self })
    }

    fn try_open(path: &Path, read_only: bool, others: OtherUsers) -> Result<Self, FileStoreProblem> {
        let is_block_device = match rustix::fs::stat(path).map(|s| FileType::from_raw_mode(s.st_mode)) {
            Ok(FileType::RegularFile) => false,
            Ok(FileType::BlockDevice) => true,
            Ok(_) => return Err(FileStoreProblem::NotADisk),
            Err(Errno::NOENT) => return Err(FileStoreProblem::Missing),
            Err(errno) => return Err(FileStoreProblem::Other(errno.into())),
        };
        // NONBLOCK: if the path has become a FIFO meanwhile, do not wait for its other end.
        let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags |= if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        if is_block_device && !read_only && others == OtherUsers::Refused {
            // With it the kernel refuses a device that is mounted, and refuses to mount one that is shared.
            flags |= OFlags::EXCL;
        }
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => FileStoreProblem::NotAllowed { writing: !read_only },
            Errno::ROFS => FileStoreProblem::ReadOnlyMedium,
            Errno::BUSY => FileStoreProblem::InUse(in_use::exclusive_user_of(path)),
            Errno::NXIO | Errno::NOMEDIUM => FileStoreProblem::NoMedium,
            errno => FileStoreProblem::Other(errno.into()),
        })?);
        let kind = rustix::fs::fstat(&file).map(|s| FileType::from_raw_mode(s.st_mode));
        if !matches!(kind, Ok(FileType::RegularFile | FileType::BlockDevice)) {
            return Err(FileStoreProblem::NotADisk);
        }
        claim(&file, path, read_only, others)?;
        Self::over(file, path, read_only)
    }

    fn over(file: File, path: &Path, read_only: bool) -> Result<Self, FileStoreProblem> {
        // A block device's metadata says size 0; seeking to the end works for both.
        let size_bytes =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|errno| FileStoreProblem::Other(errno.into()))?;
        if size_bytes == 0 {
            return Err(FileStoreProblem::Empty);
        }
        let blocks = BlockSizes::of(&file);
        let path = path.to_owned();
        Ok(Self { file, path, size_bytes, read_only, blocks, punches: true, zeroes: true, undurable: Arc::default() })
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    fn assert_inside(&self, offset: u64, len: u64) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size_bytes);
        assert!(inside, "{len} bytes at {offset} lie outside a store of {} bytes", self.size_bytes);
    }

    /// Changes the range by `mode`.
    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<RangeCallOutcome, StoreError> {
        let mode = mode | FallocateFlags::KEEP_SIZE;
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, mode, offset, len)) {
            Ok(()) => Ok(RangeCallOutcome::Done),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(RangeCallOutcome::Never),
            // A block device wants whole sectors.
            Err(Errno::INVAL) => Ok(RangeCallOutcome::NotHere),
            Err(errno) => Err(store_error(errno)),
        }
    }

    /// Zeroes a range by a system call where that is possible, on whole blocks; the rest is written. `may_release`
    /// allows the space to be given back. A block device that cannot give space back is still zeroed in the kernel,
    /// without copying.
    fn clear(&mut self, offset: u64, len: u64, may_release: bool) -> Result<(), StoreError> {
        let block = u64::from(self.blocks.logical);
        let (first, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if first >= end {
            return self.overwrite_with_zeroes(offset, len);
        }
        self.overwrite_with_zeroes(offset, first - offset)?;
        if !self.clear_blocks(first, end - first, may_release)? {
            self.overwrite_with_zeroes(first, end - first)?;
        }
        self.overwrite_with_zeroes(end, offset + len - end)
    }

    /// Zeroes whole blocks by a system call; returns whether that was possible.
    fn clear_blocks(&mut self, offset: u64, len: u64, may_release: bool) -> Result<bool, StoreError> {
        if may_release && self.punches {
            match self.fallocate(FallocateFlags::PUNCH_HOLE, offset, len)? {
                RangeCallOutcome::Done => return Ok(true),
                RangeCallOutcome::NotHere => {}
                RangeCallOutcome::Never => self.punches = false,
            }
        }
        if self.zeroes {
            match self.fallocate(FallocateFlags::ZERO_RANGE, offset, len)? {
                RangeCallOutcome::Done => return Ok(true),
                RangeCallOutcome::NotHere => {}
                RangeCallOutcome::Never => self.zeroes = false,
            }
        }
        Ok(false)
    }

    fn overwrite_with_zeroes(&mut self, mut offset: u64, mut len: u64) -> Result<(), StoreError> {
        while len > 0 {
            let chunk = len.min(ZEROES.len() as u64);
            self.write_at(offset, &ZEROES[..chunk as usize])?;
            offset += chunk;
            len -= chunk;
        }
        Ok(())
    }
}

/// How an attempt to change a range by a system call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeCallOutcome {
    Done,
    NotHere,
    Never,
}

/// Checks the kind of a descriptor from another program, and how it was opened.
fn check_received(file: &File, read_only: bool) -> Result<(), FileStoreProblem> {
    let kind = rustix::fs::fstat(file).map(|s| FileType::from_raw_mode(s.st_mode));
    if !matches!(kind, Ok(FileType::RegularFile | FileType::BlockDevice)) {
        return Err(FileStoreProblem::NotADisk);
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|errno| FileStoreProblem::Other(errno.into()))?;
    match flags & OFlags::RWMODE {
        OFlags::RDWR => {}
        OFlags::RDONLY if read_only => {}
        OFlags::RDONLY => return Err(FileStoreProblem::WrongDescriptor("for reading only, and it is to be written")),
        _ => return Err(FileStoreProblem::WrongDescriptor("for writing only")),
    }
    // With O_APPEND Linux ignores the offset of a write; with O_DIRECT it refuses most of them; O_PATH allows none.
    match flags.intersects(OFlags::APPEND | OFlags::DIRECT | OFlags::PATH) {
        true => Err(FileStoreProblem::WrongDescriptor("with O_APPEND, O_DIRECT or O_PATH")),
        false => Ok(()),
    }
}

/// Locks a disk, and looks for others that use it.
fn claim(file: &File, path: &Path, read_only: bool, others: OtherUsers) -> Result<(), FileStoreProblem> {
    let locked = lock(file, path, read_only);
    let user = match locked {
        Err(FileStoreProblem::InUse(user)) if others == OtherUsers::Permitted => user,
        Err(trouble) => return Err(trouble),
        Ok(()) => match in_use::user_of(file) {
            None => return Ok(()),
            Some(user) if read_only || others == OtherUsers::Permitted => Some(user),
            Some(user) => return Err(FileStoreProblem::InUse(Some(user))),
        },
    };
    let by = user.map(|user| user.to_string()).unwrap_or_default();
    match read_only {
        true => tracing::warn!(path = %path.display(), by, "in use on this machine: what is read of it may change"),
        false => {
            tracing::warn!(path = %path.display(), by, "in use on this machine, and written all the same, as its owner said")
        }
    }
    Ok(())
}

fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), FileStoreProblem> {
    let operation =
        if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)) => {
                tracing::warn!(path = %path.display(), %errno, "this file system has no locks: share this image only once");
                return Ok(());
            }
            Err(errno) => return Err(FileStoreProblem::Other(errno.into())),
        }
    }
    Err(FileStoreProblem::InUse(Some(in_use::locked_by(file))))
}

impl AsFd for FileStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl BlockStore for FileStore {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&mut self, mut offset: u64, mut to: &mut [u8]) -> Result<(), StoreError> {
        self.assert_inside(offset, to.len() as u64);
        while !to.is_empty() {
            match rustix::io::pread(&self.file, &mut *to, offset) {
                // Another program has truncated the file.
                Ok(0) => return Err(StoreError::Medium),
                Ok(n) => {
                    to = &mut to[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Ok(())
    }

    fn write_at(&mut self, mut offset: u64, mut from: &[u8]) -> Result<(), StoreError> {
        self.assert_inside(offset, from.len() as u64);
        self.check_writable()?;
        while !from.is_empty() {
            match rustix::io::pwrite(&self.file, from, offset) {
                Ok(0) => return Err(StoreError::Medium),
                Ok(n) => {
                    from = &from[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        if let Some(&error) = self.undurable.get() {
            return Err(error);
        }
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(|errno| {
            // The first error is the one that counts.
            *self.undurable.get_or_init(|| store_error(errno))
        })
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.assert_inside(offset, len);
        self.check_writable()?;
        self.clear(offset, len, true)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.assert_inside(offset, len);
        self.check_writable()?;
        self.clear(offset, len, false)
    }

    fn trims(&self) -> bool {
        self.punches
    }

    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.assert_inside(offset, len);
        self.check_writable()?;
        let block = u64::from(self.blocks.logical);
        let (first, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if first < end && self.punches {
            let outcome = self.fallocate(FallocateFlags::PUNCH_HOLE, first, end - first)?;
            self.punches = outcome != RangeCallOutcome::Never;
        }
        Ok(())
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        self.assert_inside(offset, len);
        let end = offset + len;
        // Every handle has the same file offset, which nobody uses: reads and writes name theirs.
        let (stop, is_hole) = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (data, true),
            Ok(_) => (rustix::fs::seek(&self.file, SeekFrom::Hole(offset)).unwrap_or(end), false),
            // No data up to the end of the file, which another program may have truncated: reads fail there.
            Err(Errno::NXIO) => (rustix::fs::seek(&self.file, SeekFrom::End(0)).unwrap_or(offset), true),
            // A block device, or a file system that does not know.
            Err(_) => (end, false),
        };
        // Another program may have written between the two questions: what is neither is data.
        let length = stop.min(end).saturating_sub(offset);
        Ok(if length > 0 { StoreExtent { length, is_hole } } else { StoreExtent { length: len, is_hole: false } })
    }
}

impl BlockMedium for FileStore {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        let again = self.try_clone().map_err(|error| format!("cannot open {} again: {error}", self.path.display()))?;
        Ok(Box::new(again))
    }

    fn preferred_bytes(&self) -> u32 {
        self.blocks.physical
    }
}

/// Why a disk could not be opened.
#[derive(Debug)]
pub struct FileStoreOpenError {
    /// The path of the file or block device, as it was given.
    pub path: PathBuf,
    /// What is wrong with it.
    pub trouble: FileStoreProblem,
}

/// What can be wrong with a disk.
#[derive(Debug)]
pub enum FileStoreProblem {
    /// There is nothing at the path.
    Missing,
    /// Neither a regular file nor a block device.
    NotADisk,
    /// It holds no bytes.
    Empty,
    /// The drive exists but has no medium.
    NoMedium,
    /// This user may not open it in this way.
    NotAllowed {
        /// Whether it was to be opened for writing.
        writing: bool,
    },
    /// It is on a read-only medium.
    ReadOnlyMedium,
    /// Another program has locked or mounted it: which, as far as is known.
    InUse(Option<ImageUser>),
    /// Another program passed a descriptor that was opened so.
    WrongDescriptor(&'static str),
    /// Any other error.
    Other(io::Error),
}

impl fmt::Display for FileStoreOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "cannot open disk {path}: ")?;
        match &self.trouble {
            FileStoreProblem::Missing => {
                write!(f, "there is no such file; make an empty one with `truncate -s 1G {path}`")
            }
            FileStoreProblem::NotADisk => write!(f, "it is neither a regular file nor a block device"),
            FileStoreProblem::Empty => write!(f, "it has no size; give it one with `truncate -s 1G {path}`"),
            FileStoreProblem::NoMedium => write!(f, "there is no medium in this drive; insert one and try again"),
            FileStoreProblem::NotAllowed { writing: true } => {
                write!(f, "you may not write it; share it read-only with `disk:{path},ro`, or run as its owner")
            }
            FileStoreProblem::NotAllowed { writing: false } => write!(f, "you may not read it; run as its owner"),
            FileStoreProblem::ReadOnlyMedium => {
                write!(f, "it cannot be written; share it read-only with `disk:{path},ro`")
            }
            FileStoreProblem::InUse(user) => {
                let by = user.as_ref().map(|user| format!(": {user}")).unwrap_or_default();
                write!(
                    f,
                    "it is mounted or shared already{by}; see `findmnt {path}` and `farbus status`, \
                     or let every user open it read-only with `disk:{path},ro`\n  \
                     two that write it destroy what is on it; to share it all the same: `disk:{path},force`"
                )
            }
            FileStoreProblem::WrongDescriptor(how) => write!(f, "the descriptor that was passed was opened {how}"),
            FileStoreProblem::Other(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for FileStoreOpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.trouble {
            FileStoreProblem::Other(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn received_descriptor_must_be_a_disk_that_was_opened_as_it_is_used() {
        let scratch = Scratch::of_size(4096);
        let open = |options: &mut std::fs::OpenOptions| OwnedFd::from(options.open(&scratch.0).unwrap());
        let refused = |fd, read_only| {
            FileStore::received(fd, &scratch.0, read_only, OtherUsers::Refused).unwrap_err().to_string()
        };
        let reads = || open(File::options().read(true));
        assert!(refused(reads(), false).contains("for reading only"));
        assert!(refused(open(File::options().write(true)), true).contains("for writing only"));
        assert!(refused(open(File::options().read(true).append(true)), false).contains("O_APPEND"));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(refused(pipe, true).contains("neither a regular file"));
        let first = FileStore::received(reads(), &scratch.0, true, OtherUsers::Refused).unwrap();
        let writes = || open(File::options().read(true).write(true));
        assert!(refused(writes(), false).contains("shared already"), "it is locked");
        drop(first);
        let kept = FileStore::open(&scratch.0, false).unwrap();
        let passed = kept.try_clone().unwrap().into_descriptor();
        assert!(
            !FileStore::received(passed, &scratch.0, false, OtherUsers::Refused).unwrap().is_read_only(),
            "its lock came along"
        );
    }

    #[test]
    fn file_tells_its_holes_and_what_is_written_is_data() {
        let scratch = Scratch::of_size(GIB);
        let mut store = FileStore::open(&scratch.0, false).unwrap();
        let extent = |length: u64, is_hole: bool| StoreExtent { length, is_hole };
        let mib = 1 << 20;
        store.write_at(8 * mib, &[1; 1 << 20]).unwrap();
        assert_eq!(store.extent(0, GIB), Ok(extent(8 * mib, true)));
        assert_eq!(store.extent(8 * mib, GIB - 8 * mib), Ok(extent(mib, false)));
        assert_eq!(store.extent(9 * mib, GIB - 9 * mib), Ok(extent(GIB - 9 * mib, true)));
        assert_eq!(store.extent(mib, mib), Ok(extent(mib, true)), "no more than was asked about");
        assert_eq!(store.extent(8 * mib, 4096), Ok(extent(4096, false)));
        store.write_at(2 * mib, &[0; 4096]).unwrap();
        assert_eq!(store.extent(2 * mib, 4096), Ok(extent(4096, false)), "zeros that were written are data");
        store.discard(8 * mib, mib).unwrap();
        assert_eq!(store.extent(8 * mib, mib), Ok(extent(mib, true)));
        // Reads beyond the end of a file that another program has cut fail, so nothing there passes for zeros.
        File::options().write(true).open(&scratch.0).unwrap().set_len(mib).unwrap();
        assert_eq!(store.extent(0, GIB), Ok(extent(mib, true)));
        assert_eq!(store.extent(mib, mib), Ok(extent(mib, false)));
    }

    /// A file that is removed with its test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn of_size(bytes: u64) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            Self(path)
        }

        fn open(&self) -> FileStore {
            FileStore::open(&self.0, false).unwrap()
        }

        fn allocated_bytes(&self) -> u64 {
            std::fs::metadata(&self.0).unwrap().blocks() * 512
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn round_trip(store: &mut FileStore, offset: u64, len: usize) {
        let written: Vec<u8> = (0..len).map(|i| (i as u64 * 31 + offset) as u8).collect();
        store.write_at(offset, &written).unwrap();
        let mut read = vec![0xee; len];
        store.read_at(offset, &mut read).unwrap();
        assert!(read == written, "{len} bytes at {offset}");
    }

    fn read(store: &mut FileStore, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        store.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_sparse_64_gib_disk_is_used_to_its_last_byte_and_stays_sparse() {
        let scratch = Scratch::of_size(64 * GIB);
        let mut store = scratch.open();
        assert_eq!(store.size_bytes(), 64 * GIB);
        for offset in [0, 4 * GIB - 3, 32 * GIB + 1, 64 * GIB - 70_000] {
            round_trip(&mut store, offset, 70_000);
        }
        store.flush().unwrap();
        assert_eq!(read(&mut store, 10 * GIB, 4096), [0; 4096]);
        assert!(scratch.allocated_bytes() < 2 << 20);
        store.discard(0, 64 * GIB).unwrap();
        assert_eq!(read(&mut store, 64 * GIB - 70_000, 70_000), vec![0; 70_000]);
        assert_eq!(scratch.allocated_bytes(), 0);
        assert_eq!(store.size_bytes(), 64 * GIB);
    }

    #[test]
    fn a_sparse_16_tib_disk_is_used_to_its_last_byte() {
        // ext4 with blocks of 4 KiB ends one block before 16 TiB.
        let size = 16 * 1024 * GIB - 4096;
        let scratch = Scratch::of_size(size);
        let mut store = scratch.open();
        assert_eq!(store.size_bytes(), size);
        round_trip(&mut store, size - 5000, 5000);
        store.write_zeroes(size - 5000, 100).unwrap();
        assert_eq!(read(&mut store, size - 5000, 101)[..100], [0; 100]);
        store.flush().unwrap();
    }

    #[test]
    fn ranges_are_zeroed_at_any_offset_with_and_without_the_file_systems_help() {
        for (punches, zeroes) in [(true, true), (false, false)] {
            let scratch = Scratch::of_size(1 << 20);
            let mut store = scratch.open();
            (store.punches, store.zeroes) = (punches, zeroes);
            store.write_at(0, &vec![0xa5; 1 << 20]).unwrap();
            store.discard(1001, 300_000).unwrap();
            store.write_zeroes(700_001, 4097).unwrap();
            store.discard(5, 0).unwrap();
            let mut expected = vec![0xa5; 1 << 20];
            expected[1001..][..300_000].fill(0);
            expected[700_001..][..4097].fill(0);
            assert!(read(&mut store, 0, 1 << 20) == expected, "punches {punches}, zeroes {zeroes}");
        }
    }

    #[test]
    fn parts_outside_whole_blocks_are_zeroed_too() {
        let scratch = Scratch::of_size(1 << 20);
        let mut store = scratch.open();
        assert_eq!(store.block_sizes(), BlockSizes::FILE);
        store.blocks.logical = 4096;
        for (offset, len) in [(0, 4096), (100, 200), (4000, 5000), (8191, 4098), (10, 300_000), (12288, 0)] {
            for may_release in [true, false] {
                store.write_at(0, &vec![0xa5; 1 << 20]).unwrap();
                store.clear(offset, len, may_release).unwrap();
                let mut expected = vec![0xa5; 1 << 20];
                expected[offset as usize..][..len as usize].fill(0);
                assert!(read(&mut store, 0, 1 << 20) == expected, "{len} at {offset}");
            }
        }
    }

    /// A loop device over a file, until it is dropped. `None` where there are none.
    struct Loop(String);

    impl Loop {
        fn over(file: &Path, sector_bytes: u32) -> Option<Self> {
            let sector = sector_bytes.to_string();
            let output = std::process::Command::new("losetup").args(["-f", "--show", "-b", &sector]).arg(file).output();
            let output = output.ok().filter(|output| output.status.success())?;
            Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
        }
    }

    #[test]
    fn a_real_block_device_is_sized_zeroed_and_given_back() {
        let scratch = Scratch::of_size(4 << 20);
        for sector_bytes in [512, 4096] {
            let Some(device) = Loop::over(&scratch.0, sector_bytes) else {
                eprintln!("skipped: no loop device to be had here");
                return;
            };
            let mut store = FileStore::open(&device.0, false).unwrap();
            assert_eq!((store.size_bytes(), store.block_sizes().logical), (4 << 20, sector_bytes));
            assert!(store.block_sizes().physical >= sector_bytes);
            round_trip(&mut store, 1000, 70_000);
            store.write_at(0, &vec![0xa5; 4 << 20]).unwrap();
            store.discard(5000, 2 << 20).unwrap();
            store.write_zeroes((3 << 20) + 1, 100_000).unwrap();
            store.flush().unwrap();
            let mut expected = vec![0xa5; 4 << 20];
            expected[5000..][..2 << 20].fill(0);
            expected[(3 << 20) + 1..][..100_000].fill(0);
            assert!(read(&mut store, 0, 4 << 20) == expected, "sectors of {sector_bytes}");
            assert!(matches!(
                FileStore::open(&device.0, false),
                Err(FileStoreOpenError { trouble: FileStoreProblem::InUse(_), .. })
            ));
            drop(store);
        }
    }

    #[test]
    fn file_has_either_one_writer_or_several_readers() {
        let scratch = Scratch::of_size(4096);
        let in_use = |read_only| match FileStore::open(&scratch.0, read_only) {
            Err(FileStoreOpenError { trouble: FileStoreProblem::InUse(_), .. }) => true,
            Err(error) => panic!("{error}"),
            Ok(_) => false,
        };
        let writer = scratch.open();
        assert!(in_use(false));
        assert!(in_use(true));
        drop(writer);
        let reader = FileStore::open(&scratch.0, true).unwrap();
        assert!(!in_use(true));
        assert!(in_use(false));
        drop(reader);
        assert!(!in_use(false));
    }

    #[test]
    fn a_read_only_disk_is_read_and_refuses_every_change() {
        let scratch = Scratch::of_size(4096);
        let mut store = FileStore::open(&scratch.0, true).unwrap();
        assert!(store.is_read_only());
        assert_eq!(read(&mut store, 0, 4096), [0; 4096]);
        assert_eq!(store.write_at(0, &[1]), Err(StoreError::ReadOnly));
        assert_eq!(store.discard(0, 512), Err(StoreError::ReadOnly));
        assert_eq!(store.write_zeroes(0, 512), Err(StoreError::ReadOnly));
        assert_eq!(store.flush(), Ok(()));
    }

    #[test]
    fn path_that_is_no_disk_is_refused_with_what_to_type_next() {
        let refused = |path: &Path, read_only: bool| FileStore::open(path, read_only).unwrap_err().to_string();
        assert!(refused(Path::new("/nowhere/disk"), false).contains("truncate -s 1G /nowhere/disk"));
        assert!(refused(Path::new("/tmp"), false).contains("neither a regular file nor a block device"));
        assert!(refused(Path::new("/dev/null"), false).contains("neither a regular file nor a block device"));
        let empty = Scratch::of_size(0);
        assert!(refused(&empty.0, true).contains("truncate -s 1G"));
        if !rustix::process::geteuid().is_root() {
            let locked = Scratch::of_size(512);
            std::fs::set_permissions(&locked.0, PermissionsExt::from_mode(0o400)).unwrap();
            assert!(refused(&locked.0, false).contains(",ro"));
        }
    }

    #[test]
    fn truncated_file_is_a_medium_error() {
        let scratch = Scratch::of_size(8192);
        let mut store = scratch.open();
        File::options().write(true).open(&scratch.0).unwrap().set_len(4096).unwrap();
        assert_eq!(store.read_at(4000, &mut [0; 200]), Err(StoreError::Medium));
    }

    #[test]
    fn a_lost_flush_is_not_forgotten() {
        let scratch = Scratch::of_size(4096);
        let mut store = scratch.open();
        store.undurable.set(StoreError::NoSpace).unwrap();
        assert_eq!(store.flush(), Err(StoreError::NoSpace));
    }

    #[test]
    #[should_panic(expected = "outside a store of 4096 bytes")]
    fn a_caller_that_leaves_the_store_is_stopped_before_the_file_grows() {
        let _ = Scratch::of_size(4096).open().write_at(4095, &[0, 0]);
    }
}
