//! A USB disk that the exporter drives itself for an importer that asks for a block device: one round trip a request,
//! whatever protocol the disk speaks (requirement U9).

use farbus_host::driven_disk::fits;
use farbus_model::Instant;
use farbus_session::native::control::{AttachmentEndNotice, AttachmentMode};

use crate::exporter::state::registry::DeviceRegistry;

/// Whether the device with this bus id is a disk that the exporter could drive for one user.
///
/// # Errors
/// Another importer uses the disk.
pub fn may_drive(
    devices: &DeviceRegistry,
    bus_id: &str,
    mode: AttachmentMode,
    now: Instant,
) -> Result<bool, AttachmentEndNotice> {
    // The disk has one user, who may write.
    if mode != AttachmentMode::Exclusive {
        return Ok(false);
    }
    if let Some(device) = devices.lock().idle_device(bus_id) {
        return Ok(fits(&*device));
    }
    let is_disk = devices.lock().entries().any(|entry| {
        entry.record.bus_id == bus_id && entry.record.interfaces.contains(&farbus_host::storage::BULK_ONLY)
    });
    if is_disk { Err(devices.busy(bus_id, now)) } else { Ok(false) }
}
