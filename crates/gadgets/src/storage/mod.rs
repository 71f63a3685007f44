//! A disk: Bulk-Only mass storage over any [`BlockStore`]; USB Attached SCSI over any
//! [`BlockDevice`](farbus_model::BlockDevice).
//!
//! | file | what it knows |
//! |---|---|
//! | `options.rs` | the owner's options |
//! | `bulk_only.rs` | the transport: wrappers, phases, stalls, Reset Recovery |
//! | `scsi/mod.rs` | the logical unit: commands begun, moved, finished; events; the cache |
//! | `scsi/command.rs` | parses untrusted bytes to typed commands |
//! | `sense.rs` | sense data |
//! | `scsi/…` | INQUIRY, mode pages, capacities, UNMAP and WRITE SAME, one each |
//! | `medium.rs` | the store as sectors |
//! | `uas/…` | the other transport, its information units, and the unit over a device that answers later |
//!
//! **The store's size** is rounded down to whole sectors: the rest cannot be reached.
//!
//! **Memory.** Data goes from the store into the buffer that the host's request is answered with,
//! and from the host's request into the store, piece by piece: a command of any size holds 64 KiB.
//!
//! **Durability.** A write is in the store when its status is good, and durable after the next
//! SYNCHRONIZE CACHE, write with FUA, stop, eject, or owner's [`OwnerCommand::Sync`]; at once while
//! the host has the write cache turned off. Where the owner's flush fails the owner is told, and
//! so is the host, by a deferred error on its next command.
//!
//! **Resets.** A port reset lifts the host's locks (prevention, stop) and is no news to the host that
//! did it: no unit attention tells of it. A Bulk-Only Reset is about the transport alone (§3.1): the unit keeps its
//! state.

mod bulk_only;
mod medium;
mod options;
mod scsi;
mod sense;
#[cfg(test)]
mod tests;
mod uas;

use std::fmt;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{
    BlockStore, DeviceDefinition, EpAddr, OwnerCommand, OwnerCommandError, Payload, SetupPacket, TransferDirection,
};

use self::bulk_only::{BULK_OUT, BulkOnlyTarget};
use self::medium::GadgetMedium;
pub use self::options::{StorageOptionError, StorageOptions};
use self::scsi::ScsiLogicalUnit;
use self::sense::SenseReport;
pub use self::uas::{AttachedScsi, InvalidSavedState};
use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Mass storage, SCSI transparent command set, Bulk-Only Transport (§4.3).
const INTERFACE_CLASS: (u8, u8, u8) = (0x08, 0x06, 0x50);
/// The interface, the only one.
const INTERFACE: u16 = 0;
/// The ids of the kernel's own file-backed storage gadget.
const VENDOR: u16 = 0x0525;
const PRODUCT: u16 = 0xa4a5;
/// Class requests (§3.1, §3.2).
const BULK_ONLY_RESET: u8 = 0xff;
const GET_MAX_LUN: u8 = 0xfe;

/// A disk with one logical unit that answers SCSI commands by the Bulk-Only Transport.
pub struct StorageGadget {
    transport: BulkOnlyTarget,
    unit: ScsiLogicalUnit,
}

impl StorageGadget {
    /// The device over `store`, ready to be shared.
    ///
    /// # Errors
    /// [`StorageOptionError`] when the options make no disk, or the store holds less than a sector.
    pub fn device(
        store: Box<dyn BlockStore>,
        options: StorageOptions,
    ) -> Result<EmulatedDevice<Self>, StorageOptionError> {
        let options = options.check(store.size_bytes())?;
        let (class, subclass, protocol) = INTERFACE_CLASS;
        let definition = DeviceDefinition::new(VENDOR, PRODUCT)
            .speed(options.speed)
            .names("farbus", &options.product, &options.serial)
            .interface(InterfaceDefinition::new(class, subclass, protocol).bulk_pair(BULK_OUT.number()));
        let medium = GadgetMedium::new(store, options.sector_bytes, options.read_only);
        let storage = Self { transport: BulkOnlyTarget::new(), unit: ScsiLogicalUnit::new(medium, &options) };
        Ok(EmulatedDevice::new(&definition, storage))
    }

    /// Whether the medium is in.
    pub fn has_medium(&self) -> bool {
        self.unit.has_medium()
    }
}

impl fmt::Debug for StorageGadget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageGadget").field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl GadgetFunction for StorageGadget {
    fn send(&mut self, _endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        self.transport.send(room, &mut self.unit, cx)
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        self.transport.receive(payload, &mut self.unit, cx)
    }

    fn control(&mut self, setup: SetupPacket, _data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let to_us = setup.kind() == RequestKind::Class && setup.recipient() == RequestRecipient::Interface;
        if !to_us || setup.index != INTERFACE || setup.value != 0 {
            return ControlTransferAnswer::Stall;
        }
        match (setup.request, setup.direction(), setup.length) {
            // Halts stay as they are: clearing them is the rest of Reset Recovery (§3.1, §5.3.4).
            (BULK_ONLY_RESET, TransferDirection::Out, 0) => {
                self.transport.restart();
                ControlTransferAnswer::Ack
            }
            (GET_MAX_LUN, TransferDirection::In, 1) => ControlTransferAnswer::Data([0].as_slice().into()),
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn selected(&mut self, _selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        self.transport.restart();
    }

    fn clear_halt(&mut self, _endpoint: EpAddr, _cx: &mut FunctionContext<'_>) -> bool {
        self.transport.may_clear_halt()
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.transport.restart();
        self.unit.reset();
    }

    fn verbs(&self) -> &'static [&'static str] {
        &["eject", "insert"]
    }

    fn command(&mut self, command: &OwnerCommand, _cx: &mut FunctionContext<'_>) -> Result<(), OwnerCommandError> {
        match command {
            OwnerCommand::Sync => self.unit.sync().map_err(|sense| explain("written data is not durable", sense)),
            OwnerCommand::Eject => self.unit.eject().map_err(|sense| explain("the disk stays in", sense)),
            OwnerCommand::Insert => {
                self.unit.insert();
                Ok(())
            }
            other => Err(OwnerCommandError::unknown(other)),
        }
    }

    /// Possible during a command, too.
    fn save(&self) -> Option<Vec<u8>> {
        let mut state = SavedStateWriter::default();
        self.transport.save(&mut state);
        self.unit.save(&mut state);
        Some(state.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        self.transport.restore(&mut from)?;
        self.unit.restore(&mut from)?;
        from.end()?;
        self.unit.has_begun(self.transport.plan()).then_some(())
    }
}

/// An error message for a command of the owner's that failed.
fn explain(what: &str, sense: SenseReport) -> OwnerCommandError {
    let why = match sense {
        SenseReport::REMOVAL_PREVENTED => "the host has locked it in",
        // START STOP UNIT's answer where there is nothing to eject.
        SenseReport::INVALID_FIELD_IN_CDB => "it is not removable",
        SenseReport::SPACE_ALLOCATION_FAILED => "no space left on the medium",
        SenseReport::WRITE_PROTECTED => "the medium is read-only",
        SenseReport::MEDIUM_NOT_PRESENT => "the medium is gone",
        _ => "the medium failed",
    };
    OwnerCommandError(format!("{what}: {why}"))
}
