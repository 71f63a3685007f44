//! A disk as a file, without USB support in the kernel: a FUSE file system of one folder with one file, ready for
//! `losetup`, `mkfs`, `mount`, `qemu`.
//!
//! One thread serves it, which owns the kernel's descriptor and the device ([`BlockDevice`]). It passes the kernel's
//! requests to the device as they come, up to [`FUSE_REQUESTS_MAX`] at a time, and answers them as the device completes
//! them, in any order: read-ahead and asynchronous direct I/O reach as deep as the link. If the device answers at once,
//! so does the thread; a request is not passed to another thread, and written data is used where the kernel put it. The
//! kernel may keep the disk's pages in its cache, because the disk is used exclusively. The file's size is the disk's
//! and cannot change: a program that truncates it before writing is refused (`dd` needs `conv=notrunc`). Put a loop
//! device on it with `losetup --direct-io=on`: otherwise the disk is cached twice, and kernels such as 6.1 write page
//! by page (160 MiB through ext4 took 41,000 requests; with it, 282).
//!
//! | what happens | what the owner sees | what programs see |
//! |---|---|---|
//! | [`DiskMount::unmount`] while the file is not in use | [`MountHealth::Ended`] | the file is gone |
//! | the same while it is in use | `in_use`; later [`MountHealth::Ended`] | gone from the tree; works on until closed |
//! | `umount` by a user | [`MountHealth::Ended`] | the file is gone |
//! | the device reports that it is gone | [`MountHealth::Lost`] | `ENODEV` at once, from everything |
//! | [`MountCutter::cut`] | [`MountHealth::Lost`], soon [`MountHealth::Ended`] | an error at once, gone from the tree |
//! | [`DiskMount`] dropped | | unmounted; programs that still use it get `ENODEV` |
//! | a replacement process continues ([`DiskMount::save_requester`]) | [`MountHealth::Ended`], handed over | nothing |
//! | the process is killed | | `ENOTCONN` until a user types `umount` |

mod disk;
mod engine;
mod error;
mod handles;
mod health;
mod mark;
mod mounter;
mod mounting;
mod mountpoint;
mod protocol;
mod state;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farbus_io_net::link::BoottimeClock;
use farbus_io_net::saving::{SaveRequester, SavedAttachment};
#[cfg(doc)]
use farbus_model::limits::FUSE_REQUESTS_MAX;
use farbus_model::{BlockDevice, PendingBlockRequests, StoreError};

use self::disk::FuseDiskState;
use self::engine::{FuseEngine, READ_AHEAD_BYTES};
pub use self::error::{MountError, UnmountError};
pub use self::health::MountHealth;
pub use self::mark::MountMark;
pub use self::mounter::{FuseMount, FuseMounter, MountKeeper, MountRemoval};
pub use self::mountpoint::OwnMounter;
use self::state::FuseDiskSnapshot;
use crate::sys::writeback;

/// How long the kernel may take to end the session of a mount that is not in use. It takes microseconds; but a mount
/// can live on in another mount namespace, and then it does not end.
const END_WAIT: Duration = Duration::from_secs(2);

/// How long to wait for the session of a mount in use to end before its user is believed to stay: another program may
/// only be looking at every new file, or a child process may not yet have closed its descriptors.
const USER_WAIT: Duration = Duration::from_millis(200);

/// A block device mounted as a file.
pub struct DiskMount {
    file: PathBuf,
    disk: Arc<FuseDiskState>,
    session: Option<JoinHandle<()>>,
    at: PathBuf,
    // Last: the folder can be removed only when nothing is mounted there.
    keeper: Arc<dyn MountKeeper>,
}

/// Cuts a mounted disk off from its users.
#[derive(Clone)]
pub struct MountCutter {
    disk: Arc<FuseDiskState>,
    keeper: Arc<dyn MountKeeper>,
}

/// Counts the open handles of a mounted disk's file, from any thread.
#[derive(Clone)]
pub struct OpenFiles(Arc<FuseDiskState>);

impl OpenFiles {
    /// The number that [`DiskMount::open_count`] returns.
    pub fn count(&self) -> usize {
        self.0.open_count()
    }
}

/// What [`DiskMount::unmount`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "somebody may still use the disk, and the last writes may be lost"]
pub struct UnmountOutcome {
    /// Whether programs still have the file open. They are served until they close it, as long as
    /// the [`DiskMount`] is kept: wait for [`MountHealth::Ended`].
    pub in_use: bool,
    /// Whether all written data is durable.
    pub flushed: Result<(), StoreError>,
}

impl DiskMount {
    /// Mounts `device` as the file `file_name` in the folder `at`, which is created if it is missing. The mount starts
    /// a clock of its own for the device.
    ///
    /// # Errors
    /// [`MountError`], which says what to type next.
    pub fn mount(at: &Path, file_name: &str, device: impl BlockDevice + 'static) -> Result<DiskMount, MountError> {
        Self::mount_by(&OwnMounter, at, file_name, Box::new(device), BoottimeClock::start())
    }

    /// Mounts `device` by `mounter`, with `clock` as the device's clock. Programs may access any byte: with a device of
    /// larger blocks, accesses that do not keep to blocks fail.
    ///
    /// # Errors
    /// [`MountError`], which says what to type next.
    pub fn mount_by(
        mounter: &dyn FuseMounter,
        at: &Path,
        file_name: &str,
        device: Box<dyn BlockDevice>,
        clock: BoottimeClock,
    ) -> Result<DiskMount, MountError> {
        if matches!(file_name, "" | "." | "..") || file_name.contains(['/', '\0']) || file_name.len() > 255 {
            return Err(MountError::BadName { name: file_name.to_owned() });
        }
        let refused = |error| MountError::Refused { at: at.to_owned(), error };
        let disk = FuseDiskState::new().map_err(refused)?;
        let FuseMount { at: path, device: kernel, keeper } = mounter.mount(at, device.info().is_read_only)?;
        // From here on, an error drops the mount, which removes the folder.
        let mut mount =
            DiskMount { file: path.join(file_name), disk: Arc::clone(&disk), session: None, at: path.clone(), keeper };
        let engine = FuseEngine::new(kernel, disk, (&path, file_name), mounter.owner(), device, clock);
        let engine = engine.inspect_err(|_| mount.disk.end(Ok(()))).map_err(refused)?;
        // After the handshake, in which the kernel takes the smaller of two values.
        mount.keeper.set_read_ahead(READ_AHEAD_BYTES as usize);
        mount.serve(engine).map_err(refused)?;
        Ok(mount)
    }

    fn serve(&mut self, engine: FuseEngine) -> io::Result<()> {
        let thread = thread::Builder::new().name("farbus-fuse".into()).spawn(move || {
            // Refused without privilege; the owner has been told so by `protect_writeback_path`.
            let _ = writeback::mark_io_flusher();
            engine.run();
        });
        self.session = Some(thread?);
        Ok(())
    }

    /// Asks for a snapshot for a replacement process. Once that continues, this mount is [`MountHealth::Ended`] and
    /// [`DiskMount::is_handed_over`]: dropping it leaves the mount as it is.
    pub fn save_requester(&self) -> SaveRequester<SavedAttachment> {
        self.disk.save_requester().clone()
    }

    /// Whether a replacement process serves it.
    pub fn is_handed_over(&self) -> bool {
        self.disk.is_handed_over()
    }

    /// The path of the disk's file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The folder that contains the file.
    pub fn mountpoint(&self) -> &Path {
        &self.at
    }

    /// How many programs have the file open, as the kernel counts: each `open` until its last descriptor and mapping is
    /// gone. A loop device counts as one.
    pub fn open_count(&self) -> usize {
        self.disk.open_count()
    }

    /// A handle by which any thread can read [`DiskMount::open_count`].
    pub fn open_files(&self) -> OpenFiles {
        OpenFiles(Arc::clone(&self.disk))
    }

    /// The disk's health.
    pub fn health(&self) -> MountHealth {
        self.disk.health()
    }

    /// A descriptor that is readable once the disk is no longer [`MountHealth::Serving`], for `poll`.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.disk.event()
    }

    /// Waits until the disk's health is `least` or worse, or `patience` has passed; returns its health.
    pub fn wait_for(&self, least: MountHealth, patience: Option<Duration>) -> MountHealth {
        self.disk.wait_for(least, patience)
    }

    /// A cutter, for an owner who learns of a lost link before the store does. It may be used while another thread
    /// waits in [`DiskMount::unmount`].
    pub fn cutter(&self) -> MountCutter {
        MountCutter { disk: self.disk.clone(), keeper: Arc::clone(&self.keeper) }
    }

    /// Makes written data durable and takes the disk out of the file tree, even if it is in use. Takes as long as the
    /// store takes to flush.
    ///
    /// # Errors
    /// [`UnmountError`] when it is still mounted.
    pub fn unmount(&mut self) -> Result<UnmountOutcome, UnmountError> {
        self.unmount_by(None)
    }

    /// Does what [`DiskMount::unmount`] does, but cuts off a store that has not flushed within `time_max`: data that
    /// was not flushed is lost.
    ///
    /// # Errors
    /// [`UnmountError`] when it is still mounted.
    pub fn unmount_within(&mut self, time_max: Duration) -> Result<UnmountOutcome, UnmountError> {
        self.unmount_by(Some(time_max))
    }

    fn unmount_by(&mut self, time_max: Option<Duration>) -> Result<UnmountOutcome, UnmountError> {
        let flushed = match self.disk.flush_within(time_max) {
            Some(flushed) => flushed,
            None => {
                self.cutter().cut();
                Err(StoreError::Lost)
            }
        };
        // The serving thread has answered: it is known whether a replacement has taken over.
        if self.is_handed_over() {
            return Ok(UnmountOutcome { in_use: false, flushed });
        }
        let left = self.keeper.leave().map_err(|error| UnmountError { at: self.at.clone(), error })?;
        let patience = if left == MountRemoval::Busy { USER_WAIT } else { END_WAIT };
        let in_use = self.session.is_some() && self.wait_for(MountHealth::Ended, Some(patience)) < MountHealth::Ended;
        if in_use {
            tracing::warn!(at = %self.at.display(), "the disk is still in use and was taken out of the tree");
            return Ok(UnmountOutcome { in_use, flushed });
        }
        self.join();
        // The data that was written between this flush and the last close.
        Ok(UnmountOutcome {
            in_use,
            flushed: flushed.and_then(|()| self.disk.flush_within(time_max).unwrap_or(Err(StoreError::Lost))),
        })
    }

    fn join(&mut self) {
        if let Some(session) = self.session.take() {
            // A panic of the thread has been reported; its health was set when it ended.
            let _ = session.join();
        }
    }
}

/// A mounted disk that another process served, and that is not served at present.
pub struct UnservedMount {
    engine: FuseEngine,
    disk: Arc<FuseDiskState>,
    at: PathBuf,
    name: String,
}

impl UnservedMount {
    /// Restores a mount that another process saved; `restore` makes a device of the saved bytes, and returns its open
    /// requests and its clock.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more descriptors.
    pub fn restore(
        saved: SavedAttachment,
        restore: impl FnOnce(&[u8]) -> io::Result<RestoredBlockDevice>,
    ) -> io::Result<Self> {
        let (state, device) = FuseDiskSnapshot::from_bytes(&saved.snapshot)?;
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "a mount has one descriptor");
        let [kernel] = <[OwnedFd; 1]>::try_from(saved.descriptors).map_err(wrong)?;
        let disk = FuseDiskState::new()?;
        let (device, pending, clock) = restore(device)?;
        let engine = FuseEngine::restore(kernel, Arc::clone(&disk), &state, (device, &pending), clock)?;
        Ok(Self { engine, disk, at: state.at, name: state.name })
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Continues to serve the mount, which `keeper` keeps: the other process has stopped.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn go_on(self, keeper: Arc<dyn MountKeeper>) -> io::Result<DiskMount> {
        let Self { engine, disk, at, name } = self;
        let mut mount = DiskMount { file: at.join(name), disk, session: None, at, keeper };
        mount.serve(engine)?;
        Ok(mount)
    }

    /// Leaves the mount to the process that had it.
    pub fn leave(self) {
        self.engine.leave();
    }
}

/// A device of another process, its open requests and its clock.
pub type RestoredBlockDevice = (Box<dyn BlockDevice>, PendingBlockRequests, BoottimeClock);

impl MountCutter {
    /// Ends every request, even one that the store does not answer, and refuses all that follow. Data that was not
    /// flushed is lost.
    ///
    /// Without privilege, and if `fusectl` is not mounted, a request that is inside the store ends only when the store
    /// completes it.
    pub fn cut(&self) {
        self.disk.lose();
        self.keeper.abort();
    }
}

impl Drop for DiskMount {
    fn drop(&mut self) {
        if self.health() < MountHealth::Ended {
            match self.unmount() {
                Ok(UnmountOutcome { flushed: Ok(()), .. }) => {}
                Ok(UnmountOutcome { flushed: Err(error), .. }) => {
                    tracing::error!(%error, "the last writes may be lost")
                }
                Err(error) => tracing::error!(%error, "left mounted"),
            }
            // The remaining users have no owner any more.
            self.disk.lose();
        }
        if self.health() == MountHealth::Ended {
            self.join();
        }
    }
}

impl fmt::Debug for MountCutter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountCutter").finish_non_exhaustive()
    }
}

impl fmt::Debug for DiskMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskMount").field("file", &self.file).field("health", &self.health()).finish_non_exhaustive()
    }
}
