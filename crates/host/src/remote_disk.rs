//! A disk behind a port, as a block store: for front ends and benchmarks.

use std::sync::Arc;

use farbus_model::{BlockStore, Payload, StoreError};

use crate::driver::IdSource;
use crate::port::{HostPort, run};
use crate::storage::{BulkOnlyInterface, DiskError, DiskInfo, OperationResult, ReadData, ScsiDisk, ScsiDiskOptions};

/// A disk and the port to it, used one call at a time.
///
/// Reading copies each byte once, from the buffer it arrived in to the caller's; writing once, into a buffer that is
/// reused as soon as the port returns it. Once the port has failed, every call fails.
#[derive(Debug)]
pub struct RemoteDisk<P> {
    port: P,
    disk: ScsiDisk,
    /// The staging buffer for writes, as large as a command may be.
    staging: Arc<[u8]>,
    last_error: Option<DiskError>,
}

impl<P: HostPort> RemoteDisk<P> {
    /// Brings up the disk at `target` of a configured device; `ids` are the device's.
    ///
    /// # Errors
    /// [`DiskError`] when it cannot be brought up.
    pub fn new(
        mut port: P,
        ids: IdSource,
        target: BulkOnlyInterface,
        options: ScsiDiskOptions,
    ) -> Result<Self, DiskError> {
        let mut disk = ScsiDisk::new(port.now(), ids, target, options);
        run(&mut disk, &mut port)??;
        Ok(Self { port, disk, staging: Arc::new([]), last_error: None })
    }

    /// The disk's properties.
    pub fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    /// Why the last failed call failed, in more detail than a [`StoreError`].
    pub fn last_error(&self) -> Option<&DiskError> {
        self.last_error.as_ref()
    }

    /// The port, for its owner.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Returns the port. The device stays configured.
    pub fn into_port(self) -> P {
        self.port
    }

    /// Reads bytes, without copying them from where they arrived.
    ///
    /// # Errors
    /// [`DiskError`] when it does not succeed.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<ReadData, DiskError> {
        match self.operate(|disk, now| disk.read(now, offset, len))? {
            OperationResult::Data(data) => Ok(data),
            OperationResult::Ready | OperationResult::Done => unreachable!("a read brings data"),
        }
    }

    /// Writes bytes. A payload that is a window or a pattern is not copied.
    ///
    /// # Errors
    /// [`DiskError`] when it does not succeed; part of the bytes may have been written.
    pub fn write(&mut self, offset: u64, payload: Payload) -> Result<(), DiskError> {
        self.operate(|disk, now| disk.write(now, offset, payload)).map(|_| ())
    }

    /// Declares a range unneeded, see [`ScsiDisk::discard`]. Its content is undefined afterwards, whereas
    /// [`BlockStore::discard`] guarantees zeros. This is [`BlockStore::trim`].
    ///
    /// # Errors
    /// [`DiskError`] when it does not succeed.
    pub fn release(&mut self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.operate(|disk, now| disk.discard(now, offset, len)).map(|_| ())
    }

    /// Flushes and ejects the medium.
    ///
    /// # Errors
    /// [`DiskError`] when it does not succeed.
    pub fn eject(&mut self) -> Result<(), DiskError> {
        self.operate(|disk, now| disk.eject(now)).map(|_| ())
    }

    /// Brings the disk up again, after its medium was exchanged.
    ///
    /// # Errors
    /// [`DiskError`] when it cannot be brought up.
    pub fn bring_up(&mut self) -> Result<(), DiskError> {
        self.operate(|disk, now| disk.bring_up(now)).map(|_| ())
    }

    fn operate(
        &mut self,
        begin: impl FnOnce(&mut ScsiDisk, farbus_model::Instant),
    ) -> Result<OperationResult, DiskError> {
        if let Some(error @ DiskError::Port(_)) = &self.last_error {
            // An operation on the disk was interrupted.
            return Err(error.clone());
        }
        begin(&mut self.disk, self.port.now());
        let result = run(&mut self.disk, &mut self.port).map_err(DiskError::from).flatten();
        if let Err(error) = &result {
            self.last_error = Some(error.clone());
        }
        result
    }

    /// Bytes from `offset` for one command, so that the next command begins at a sector.
    fn piece_bytes(&self, offset: u64, left: usize) -> usize {
        let info = self.disk.info();
        let into_sector = (offset % u64::from(info.block_bytes)) as usize;
        left.min(info.transfer_bytes_max as usize - into_sector)
    }

    /// Copies the bytes into the staging buffer, or into a new one if the port still holds that.
    fn stage(&mut self, from: &[u8]) -> Payload {
        if Arc::get_mut(&mut self.staging).is_none_or(|staging| staging.len() < from.len()) {
            self.staging = vec![0; from.len().max(self.staging.len())].into();
        }
        let staging = Arc::get_mut(&mut self.staging).expect("it is ours alone now");
        staging[..from.len()].copy_from_slice(from);
        Payload::shared(&self.staging, 0..from.len())
    }
}

impl<P: HostPort + Send> BlockStore for RemoteDisk<P> {
    fn size_bytes(&self) -> u64 {
        self.disk.info().size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.disk.info().read_only
    }

    fn read_at(&mut self, mut offset: u64, mut to: &mut [u8]) -> Result<(), StoreError> {
        while !to.is_empty() {
            let (piece, rest) = to.split_at_mut(self.piece_bytes(offset, to.len()));
            let data = self.read(offset, piece.len()).map_err(|error| StoreError::from(&error))?;
            data.copy_to(piece);
            data.into_pieces().for_each(|payload| self.port.recycle(payload));
            offset += piece.len() as u64;
            to = rest;
        }
        Ok(())
    }

    fn write_at(&mut self, mut offset: u64, mut from: &[u8]) -> Result<(), StoreError> {
        while !from.is_empty() {
            let (piece, rest) = from.split_at(self.piece_bytes(offset, from.len()));
            let payload = self.stage(piece);
            self.write(offset, payload).map_err(|error| StoreError::from(&error))?;
            offset += piece.len() as u64;
            from = rest;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.operate(|disk, now| disk.flush(now)).map(|_| ()).map_err(|error| StoreError::from(&error))
    }

    /// Makes the range read as zeros; its space is given back where the device guarantees zeros for that.
    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        let result = self.operate(|disk, now| disk.write_zeroes(now, offset, len, true));
        result.map(|_| ()).map_err(|error| StoreError::from(&error))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        let result = self.operate(|disk, now| disk.write_zeroes(now, offset, len, false));
        result.map(|_| ()).map_err(|error| StoreError::from(&error))
    }

    fn trims(&self) -> bool {
        self.disk.info().gives_back()
    }

    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.release(offset, len).map_err(|error| StoreError::from(&error))
    }
}
