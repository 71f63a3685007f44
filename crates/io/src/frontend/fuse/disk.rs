//! The file system of one folder with one file, and the store behind it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use farbus_model::{BlockStore, StoreError};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::event::EventfdFlags;
use rustix::fs::FallocateFlags;

use super::health::Health;
use crate::sys::errno::of_store;

/// The largest request: what the kernel allows (`fs.fuse.max_pages_limit`, 256 pages).
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Requests that the kernel may have on their way without a program waiting for each: read-ahead and
/// asynchronous direct I/O. Its own default of 12 is less than a loop device keeps busy.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

const FOLDER: INodeNo = INodeNo::ROOT;
const FILE: INodeNo = INodeNo(2);

/// Nothing about the file ever changes behind the kernel's back.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The unit in which the kernel learns of space, and in which a loop device discards.
const BLOCK_BYTES: u32 = 4096;

/// One disk: what the kernel's requests and the mount's owner share.
///
/// The thread that runs the session serves every request itself and is alone in taking `serving`;
/// the owner does so only to flush before it unmounts.
pub(super) struct Disk {
    name: OsString,
    file: FileAttr,
    folder: FileAttr,
    serving: Mutex<Serving>,
    /// Set as soon as the store is known to be gone; requests are then refused without asking it.
    lost: AtomicBool,
    health: Mutex<Health>,
    changed: Condvar,
    /// Readable from the first change on.
    event: OwnedFd,
}

struct Serving {
    /// Dropped as soon as it is lost or no longer needed.
    store: Option<Box<dyn BlockStore>>,
    desk: Desk,
}

/// What a request finds beside the store.
struct Desk {
    /// Where reads are put together; made once, touched as far as the largest read.
    buffer: Vec<u8>,
    /// Whether something was written after the last flush that succeeded.
    dirty: bool,
    /// Why the last flush failed.
    undurable: Option<StoreError>,
    /// Whether an error was reported in the log; one is enough.
    complained: bool,
}

impl Disk {
    pub(super) fn new(name: &OsStr, (uid, gid): (u32, u32), store: Box<dyn BlockStore>) -> io::Result<Arc<Self>> {
        let now = SystemTime::now();
        let perm = if store.is_read_only() { 0o400 } else { 0o600 };
        let attributes = |ino, kind, perm, nlink, size: u64| FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        };
        Ok(Arc::new(Self {
            name: name.to_owned(),
            file: attributes(FILE, FileType::RegularFile, perm, 1, store.size_bytes()),
            folder: attributes(FOLDER, FileType::Directory, 0o500, 2, 0),
            serving: Mutex::new(Serving {
                store: Some(store),
                desk: Desk { buffer: vec![0; REQUEST_BYTES_MAX], dirty: false, undurable: None, complained: false },
            }),
            lost: AtomicBool::new(false),
            health: Mutex::new(Health::Serving),
            changed: Condvar::new(),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn health(&self) -> Health {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the disk's health is `least` or worse, or patience ends; what it is then.
    pub(super) fn wait_for(&self, least: Health, patience: Option<Duration>) -> Health {
        let deadline = patience.map(|p| Instant::now() + p);
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        while *health < least {
            health = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => self.changed.wait_timeout(health, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(health).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *health
    }

    /// The store is gone, or is to be treated so: requests are refused from now on.
    pub(super) fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.worsen(Health::Lost);
        }
        // Else a request holds it, and lets go of the store at its end, or the next one does.
        if let Ok(mut serving) = self.serving.try_lock() {
            serving.store = None;
        }
    }

    /// The session is over: makes durable what is not, and lets go of the store.
    pub(super) fn end(&self) {
        if let Err(error) = self.flush() {
            tracing::error!(file = ?self.name, %error, "the last writes may be lost");
        }
        self.serving().store = None;
        self.worsen(Health::Ended);
    }

    /// Makes durable what was written.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut serving = self.serving();
        if !serving.desk.dirty {
            return Ok(());
        }
        if serving.store.is_none() {
            return Err(serving.desk.undurable.unwrap_or(StoreError::Gone));
        }
        self.ask(&mut serving, |store, desk| desk.flush(store))
    }

    fn serving(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(|poisoned| {
            // The store panicked in the middle of a request: nothing more is asked of it.
            self.lost.store(true, Ordering::Release);
            poisoned.into_inner()
        })
    }

    /// Lets a request use the store, unless it is lost; sees to what an error means for the disk.
    fn ask<T>(
        &self,
        serving: &mut Serving,
        request: impl FnOnce(&mut dyn BlockStore, &mut Desk) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let store = serving.store.as_mut().filter(|_| !self.lost.load(Ordering::Acquire));
        let result = match store {
            Some(store) => request(store.as_mut(), &mut serving.desk),
            None => Err(StoreError::Gone),
        };
        if let Err(error) = result {
            self.note(&mut serving.desk, error);
        }
        if self.lost.load(Ordering::Acquire) {
            serving.store = None;
        }
        result
    }

    fn note(&self, desk: &mut Desk, error: StoreError) {
        if error == StoreError::Gone {
            if !self.lost.swap(true, Ordering::AcqRel) {
                tracing::error!(file = ?self.name, "the disk is gone: every further request fails");
                self.worsen(Health::Lost);
            }
        } else if !desk.complained {
            desk.complained = true;
            tracing::warn!(file = ?self.name, %error, "the disk reported an error; further ones are not logged");
        }
    }

    /// One request that answers with nothing but success.
    fn serve(&self, reply: ReplyEmpty, request: impl FnOnce(&mut dyn BlockStore, &mut Desk) -> Result<(), StoreError>) {
        match self.ask(&mut self.serving(), request) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn worsen(&self, health: Health) {
        let mut now = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if *now < health {
            *now = health;
            self.changed.notify_all();
            // Can fail only when nobody has read it 2^64 times.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The part of `offset..offset + len` that lies on the disk, as its length.
    fn clip(&self, offset: u64, len: u64) -> u64 {
        len.min(self.file.size.saturating_sub(offset))
    }
}

impl Desk {
    fn flush(&mut self, store: &mut dyn BlockStore) -> Result<(), StoreError> {
        let result = store.flush();
        self.undurable = result.err();
        self.dirty &= result.is_err();
        result
    }
}

fn errno(error: StoreError) -> Errno {
    Errno::from_i32(of_store(error).raw_os_error())
}

/// [`Disk`] in fuser's words.
pub(super) struct FileSystem(pub(super) Arc<Disk>);

impl FileSystem {
    fn attributes(&self, ino: INodeNo) -> Option<&FileAttr> {
        match ino {
            FOLDER => Some(&self.0.folder),
            FILE => Some(&self.0.file),
            _ => None,
        }
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Refused only by a kernel that cannot; it then keeps to what it can. Not asked for:
        // FUSE_WRITEBACK_CACHE. Writes go through the kernel's cache to the store at once, so their
        // errors reach the writer and no dirty page ever waits for us to free memory.
        let _ = config.set_max_write(REQUEST_BYTES_MAX as u32);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX as u32).or_else(|most| config.set_max_readahead(most));
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.0.clip(offset, size.into()) as usize;
        let mut serving = self.0.serving();
        if serving.desk.buffer.len() < len {
            serving.desk.buffer.resize(len, 0);
        }
        match self.0.ask(&mut serving, |store, desk| store.read_at(offset, &mut desk.buffer[..len])) {
            Ok(()) => reply.data(&serving.desk.buffer[..len]),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // As a block device does: what fits is written, and the rest finds no space.
        let len = self.0.clip(offset, data.len() as u64) as usize;
        if len == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let result = self.0.ask(&mut self.0.serving(), |store, desk| {
            desk.dirty = true;
            store.write_at(offset, &data[..len])
        });
        match result {
            Ok(()) => reply.written(len as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Every close of a descriptor: the last moment at which its user hears of an error.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.serve(reply, |store, desk| if desk.dirty { desk.flush(store) } else { Ok(()) });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.serve(reply, |store, desk| desk.flush(store));
    }

    /// After the last close, and after the last page of a memory mapping was written.
    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.serve(reply, |store, desk| if desk.dirty { desk.flush(store) } else { Ok(()) });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let len = self.0.clip(offset, length);
        if len < length && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return reply.error(Errno::ENOSPC);
        }
        // Beside these there is nothing to allocate on a disk, and nothing to move.
        let zero: fn(&mut dyn BlockStore, u64, u64) -> Result<(), StoreError> = match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE => |store, offset, len| store.discard(offset, len),
            FallocateFlags::ZERO_RANGE => |store, offset, len| store.write_zeroes(offset, len),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        self.0.serve(reply, |store, desk| {
            desk.dirty = true;
            zero(store, offset, len)
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match ino {
            FILE if self.0.lost.load(Ordering::Acquire) => reply.error(Errno::ENODEV),
            FILE => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            FOLDER => reply.error(Errno::EISDIR),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == FOLDER && name == self.0.name {
            reply.entry(&FOR_EVER, &self.0.file, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&FOR_EVER, attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// The size is the disk's and the owner is whoever attached it: what asks for no change succeeds.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(now) = self.attributes(ino) else { return reply.error(Errno::ENOENT) };
        let same = size.is_none_or(|size| size == now.size)
            && mode.is_none_or(|mode| mode & 0o7777 == u32::from(now.perm))
            && uid.is_none_or(|uid| uid == now.uid)
            && gid.is_none_or(|gid| gid == now.gid);
        if same { reply.attr(&FOR_EVER, now) } else { reply.error(Errno::EPERM) }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != FOLDER {
            return reply.error(Errno::ENOTDIR);
        }
        let dot = OsStr::new(".");
        let dots = OsStr::new("..");
        let entries = [
            (FOLDER, FileType::Directory, dot),
            (FOLDER, FileType::Directory, dots),
            (FILE, FileType::RegularFile, self.0.name.as_os_str()),
        ];
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    /// A full file system: the disk is all there is. A loop device takes its discard unit from here.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.0.file.size.div_ceil(BLOCK_BYTES.into());
        reply.statfs(blocks, 0, 0, 2, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    // Nothing can be put into or taken out of the folder.

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    // ENOSYS once, and the kernel does these itself or asks no more: without it every write would be
    // preceded by a question for the file's capabilities.

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
