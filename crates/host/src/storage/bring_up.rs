//! Brings a disk up: identifies it, waits until it is ready, and reads its size and capabilities.
//!
//! | step | asked for | if the device refuses |
//! |---|---|---|
//! | alternate setting, if it is not 0 | SET_INTERFACE | error |
//! | logical units | Get Max LUN | one (BOT §3.2) |
//! | identity | INQUIRY | error |
//! | readiness | TEST UNIT READY | error, after the patience of [`command`](super::command) |
//! | size | READ CAPACITY(10), (16) if its field is too small | error |
//! | SPC-3 and later only: thin provisioning | READ CAPACITY(16) | it has none |
//! | write protection, write cache | MODE SENSE(6) of all pages, else of the caching page | neither is known |
//! | SPC-3 and later only: limits | VPD pages 00h, B0h, B2h | the usual ones |
//!
//! Vital product data is asked of devices that claim SPC-3 and only if page 00h names the page: older sticks lock up
//! when asked (Linux skips them all for that reason).

use farbus_model::{Payload, SetupPacket, UsbSpeed};

use crate::limits::{BLOCK_BYTES, RANGE_BYTES_MAX};

use super::bulk_only::CommandReply;
use super::command::DiskCommand;
use super::error::DiskError;
use super::info::{DiskInfo, ScsiDiskOptions};
use super::scsi::{self, BlockLimits, CapacityReply, Cdb, InquiryReply, ModeSenseReply, ProvisioningPage};
use super::step::{OperationResult, OperationStep};
use super::target::BulkOnlyInterface;

/// Get Max LUN (BOT §3.2).
const GET_MAX_LUN: u8 = 0xfe;
/// INQUIRY's version field of SPC-3.
const VERSION_SPC_3: u8 = 5;
/// Peripheral device types: direct access, CD/DVD, optical memory, reduced block commands (SPC-4 table 138).
const KIND_DISK: u8 = 0x00;
const KIND_CD: u8 = 0x05;
const KIND_OPTICAL: u8 = 0x07;
const KIND_REDUCED: u8 = 0x0e;

/// The state of bringing up, with what [`DiskInfo`] has no field for.
#[derive(Debug)]
pub(super) struct BringUp {
    at: BringUpStep,
    target: BulkOnlyInterface,
    options: ScsiDiskOptions,
    is_modern: bool,
    capacity: CapacityReply,
    /// Which of the relevant vital product data pages exist.
    has_limits: bool,
    has_provisioning: bool,
    limits: BlockLimits,
    provisioning: ProvisioningPage,
}

/// The question that was asked last.
#[derive(Clone, Copy, Debug)]
enum BringUpStep {
    Begin,
    Setting,
    Units,
    Inquiry,
    Ready,
    Capacity10,
    Capacity16,
    Mode(u8),
    VpdPages,
    VpdLimits,
    VpdProvisioning,
    Settled,
}

impl BringUp {
    pub fn new(target: BulkOnlyInterface, options: ScsiDiskOptions) -> Self {
        Self {
            at: BringUpStep::Begin,
            target,
            options,
            is_modern: false,
            capacity: CapacityReply::default(),
            has_limits: false,
            has_provisioning: false,
            limits: BlockLimits::default(),
            provisioning: ProvisioningPage::default(),
        }
    }

    /// Processes the answer to the last question, and asks the next one.
    pub fn next(&mut self, info: &mut DiskInfo, reply: Option<Result<CommandReply, DiskError>>) -> OperationStep {
        let reply = match reply {
            // A device that is gone answers nothing else either.
            Some(Err(error @ (DiskError::Gone | DiskError::Port(_)))) => return OperationStep::Finish(Err(error)),
            Some(reply) => reply,
            None => Ok(CommandReply::default()),
        };
        let next = match self.at {
            BringUpStep::Begin if self.target.alternate != 0 => Ok(BringUpStep::Setting),
            BringUpStep::Begin => Ok(BringUpStep::Units),
            BringUpStep::Setting => match reply {
                Ok(reply) if reply.passed => Ok(BringUpStep::Units),
                _ => Err(DiskError::Unsupported("its Bulk-Only setting cannot be selected")),
            },
            BringUpStep::Units => {
                let max = reply.ok().and_then(|reply| first_byte(&reply.payload)).unwrap_or(0);
                info.luns = max.min(15) + 1;
                self.check_unit(info)
            }
            BringUpStep::Inquiry => reply.and_then(|reply| self.inquired(info, &reply.payload)),
            BringUpStep::Ready => reply.map(|_| BringUpStep::Capacity10),
            BringUpStep::Capacity10 => reply.and_then(|reply| self.sized_10(info, &reply.payload)),
            BringUpStep::Capacity16 => self.sized_16(info, reply),
            BringUpStep::Mode(page) => Ok(self.moded(info, page, reply.ok())),
            BringUpStep::VpdPages => Ok(self.paged(reply.ok())),
            BringUpStep::VpdLimits => {
                self.limits = body(reply.ok(), scsi::VPD_BLOCK_LIMITS, BlockLimits::parse);
                Ok(if self.has_provisioning { BringUpStep::VpdProvisioning } else { BringUpStep::Settled })
            }
            BringUpStep::VpdProvisioning => {
                self.provisioning = body(reply.ok(), scsi::VPD_PROVISIONING, ProvisioningPage::parse);
                Ok(BringUpStep::Settled)
            }
            BringUpStep::Settled => Ok(BringUpStep::Settled),
        };
        match next {
            Err(error) => OperationStep::Finish(Err(error)),
            Ok(BringUpStep::Settled) => {
                self.settle(info);
                OperationStep::Finish(Ok(OperationResult::Ready))
            }
            Ok(next) => self.ask(next),
        }
    }

    fn ask(&mut self, next: BringUpStep) -> OperationStep {
        self.at = next;
        let interface = self.target.interface;
        let page = |page| OperationStep::Run(DiskCommand::answer(Cdb::vital_product_data(page), scsi::VPD_BYTES));
        match next {
            BringUpStep::Setting => OperationStep::Ask(SetupPacket::set_interface(interface, self.target.alternate)),
            BringUpStep::Units => {
                let index = interface.into();
                OperationStep::Ask(SetupPacket { request_type: 0xa1, request: GET_MAX_LUN, value: 0, index, length: 1 })
            }
            BringUpStep::Inquiry => OperationStep::Run(DiskCommand::answer(Cdb::inquiry(), scsi::INQUIRY_BYTES)),
            BringUpStep::Begin | BringUpStep::Settled | BringUpStep::Ready => {
                OperationStep::Run(DiskCommand::plain(Cdb::test_unit_ready()))
            }
            BringUpStep::Capacity10 => {
                OperationStep::Run(DiskCommand::answer(Cdb::read_capacity_10(), scsi::CAPACITY_10_BYTES))
            }
            BringUpStep::Capacity16 => {
                OperationStep::Run(DiskCommand::answer(Cdb::read_capacity_16(), scsi::CAPACITY_16_BYTES))
            }
            BringUpStep::Mode(page) => OperationStep::Run(DiskCommand::answer(Cdb::mode_sense(page), scsi::MODE_BYTES)),
            BringUpStep::VpdPages => page(scsi::VPD_SUPPORTED),
            BringUpStep::VpdLimits => page(scsi::VPD_BLOCK_LIMITS),
            BringUpStep::VpdProvisioning => page(scsi::VPD_PROVISIONING),
        }
    }

    fn check_unit(&self, info: &DiskInfo) -> Result<BringUpStep, DiskError> {
        if self.options.lun < info.luns {
            Ok(BringUpStep::Inquiry)
        } else {
            Err(DiskError::Unsupported("no such logical unit"))
        }
    }

    fn inquired(&mut self, info: &mut DiskInfo, payload: &Payload) -> Result<BringUpStep, DiskError> {
        let inquiry = InquiryReply::parse(&payload.contiguous());
        let inquiry = inquiry.ok_or(DiskError::Unsupported("it does not say what it is"))?;
        if inquiry.qualifier != 0 {
            return Err(DiskError::Unsupported("nothing is behind this logical unit"));
        }
        if ![KIND_DISK, KIND_CD, KIND_OPTICAL, KIND_REDUCED].contains(&inquiry.kind) {
            return Err(DiskError::Unsupported("it is no disk"));
        }
        info.read_only = inquiry.kind == KIND_CD;
        info.removable = inquiry.removable;
        [info.vendor, info.product, info.revision] = inquiry.names;
        self.is_modern = inquiry.version >= VERSION_SPC_3;
        Ok(BringUpStep::Ready)
    }

    fn sized_10(&mut self, info: &mut DiskInfo, payload: &Payload) -> Result<BringUpStep, DiskError> {
        let capacity = CapacityReply::parse_10(&payload.contiguous());
        self.capacity = capacity.ok_or(DiskError::Unsupported("it does not say how large it is"))?;
        if self.needs_sixteen() || self.is_modern {
            return Ok(BringUpStep::Capacity16);
        }
        self.size(info)
    }

    /// The answer that ten bytes give when the size does not fit them (SBC-3 §5.15.2).
    fn needs_sixteen(&self) -> bool {
        self.capacity.last_block == u64::from(u32::MAX)
    }

    fn sized_16(
        &mut self,
        info: &mut DiskInfo,
        reply: Result<CommandReply, DiskError>,
    ) -> Result<BringUpStep, DiskError> {
        let capacity = reply.map(|reply| CapacityReply::parse_16(&reply.payload.contiguous()));
        match capacity {
            Ok(Some(capacity)) => self.capacity = capacity,
            Err(error) if self.needs_sixteen() => return Err(error),
            Ok(None) if self.needs_sixteen() => return Err(DiskError::Unsupported("it does not say how large it is")),
            // It was asked for thin provisioning only.
            _ => {}
        }
        self.size(info)
    }

    fn size(&mut self, info: &mut DiskInfo) -> Result<BringUpStep, DiskError> {
        let CapacityReply { last_block, block_bytes, .. } = self.capacity;
        if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
            return Err(DiskError::Unsupported("its sectors have an impossible size"));
        }
        let blocks = last_block.checked_add(1).filter(|blocks| blocks.checked_mul(block_bytes.into()).is_some());
        info.blocks = blocks.ok_or(DiskError::Unsupported("its size is impossible"))?;
        info.block_bytes = block_bytes;
        Ok(BringUpStep::Mode(scsi::PAGE_ALL))
    }

    fn moded(&mut self, info: &mut DiskInfo, page: u8, reply: Option<CommandReply>) -> BringUpStep {
        let mode = reply.and_then(|reply| ModeSenseReply::parse(&reply.payload.contiguous()));
        if mode.is_none() && page == scsi::PAGE_ALL {
            return BringUpStep::Mode(scsi::PAGE_CACHING);
        }
        let mode = mode.unwrap_or_default();
        info.read_only |= mode.write_protected;
        info.write_cache = mode.write_cache;
        info.needs_no_flush = info.read_only || mode.write_cache == Some(false);
        if self.is_modern { BringUpStep::VpdPages } else { BringUpStep::Settled }
    }

    fn paged(&mut self, reply: Option<CommandReply>) -> BringUpStep {
        let has = |page: u8| move |body: &[u8]| body.contains(&page);
        self.has_limits = body(reply.as_ref(), scsi::VPD_SUPPORTED, has(scsi::VPD_BLOCK_LIMITS));
        self.has_provisioning = body(reply.as_ref(), scsi::VPD_SUPPORTED, has(scsi::VPD_PROVISIONING));
        match (self.has_limits, self.has_provisioning) {
            (true, _) => BringUpStep::VpdLimits,
            (false, true) => BringUpStep::VpdProvisioning,
            (false, false) => BringUpStep::Settled,
        }
    }

    /// All answers are there: derives the disk's properties from them.
    fn settle(&self, info: &mut DiskInfo) {
        let Self { limits, provisioning, capacity, .. } = self;
        let speed: UsbSpeed = self.target.speed;
        info.transfer_bytes_max = info.transfer_bytes(&self.options, speed, limits.transfer_max);
        let range_max = (RANGE_BYTES_MAX / u64::from(info.block_bytes)) as u32;
        let may_unmap = provisioning.unmap && limits.unmap_max > 0 && limits.unmap_ranges_max > 0;
        info.unmap_blocks_max = may_unmap.then(|| limits.unmap_max.min(range_max));
        // WRITE SAME has no page that names it; a device that has it limits it, or unmaps with it.
        let has_same = limits.write_same_max > 0 || provisioning.write_same_unmaps;
        let same_max = if limits.write_same_max > 0 { limits.write_same_max } else { u64::MAX };
        info.write_same_blocks_max = has_same.then(|| same_max.min(range_max.into()) as u32);
        let reads_zeros = capacity.thin_reads_zeros || provisioning.reads_zeros;
        info.write_same_unmaps = provisioning.write_same_unmaps && reads_zeros;
    }
}

/// A page's content, or the default if the page is missing.
fn body<T: Default>(reply: Option<impl std::borrow::Borrow<CommandReply>>, page: u8, read: impl Fn(&[u8]) -> T) -> T {
    let Some(reply) = reply else { return T::default() };
    let bytes = reply.borrow().payload.contiguous();
    scsi::vpd_body(&bytes, page).map_or_else(T::default, read)
}

fn first_byte(payload: &Payload) -> Option<u8> {
    payload.runs().next().and_then(|run| run.first().copied())
}
