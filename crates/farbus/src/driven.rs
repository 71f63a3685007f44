//! A USB disk that its exporter drives itself, for whoever asks for it as a block device: one round trip a request, however the disk is
//! spoken to (requirement U9).

use std::sync::Arc;

use farbus_host::driven_disk::{DrivenDisk, fits};
use farbus_io::store::boot_number;
use farbus_model::Device;
use farbus_session::native::control::{Cause, Class, End, Mode};
use farbus_session::{Ending, Offers};

use crate::sessions::Face;
use crate::shared::{Offer, Session, Shared};

impl Shared {
    /// Whether there is a disk at this place that could be driven here for one user.
    ///
    /// # Errors
    /// Somebody else has it.
    pub(crate) fn may_drive(&self, bus_id: &str, mode: Mode) -> Result<bool, End> {
        // Its user may change it, so he is the only one.
        if mode != Mode::Exclusive {
            return Ok(false);
        }
        if let Some(device) = self.registry().idle_device(bus_id) {
            return Ok(fits(&*device));
        }
        let is_disk = self.registry().entries().any(|entry| {
            entry.record.bus_id == bus_id && entry.record.interfaces.contains(&farbus_host::storage::BULK_ONLY)
        });
        if is_disk { Err(self.busy(bus_id)) } else { Ok(false) }
    }

    /// Takes it as a driver would: alone.
    pub(crate) fn open_driven(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
    ) -> Result<Face, End> {
        let carrier = self.carrier(bus_id, Some(Class::USB));
        let claimed = Offer { shared: self, session }.claim(bus_id);
        let (_, device) = claimed.map_err(|status| self.why_not_claimed(bus_id, status))?;
        let disk = match DrivenDisk::new(device) {
            Ok(disk) => disk,
            Err(device) => {
                let now = self.clock.now();
                self.registry().release(bus_id, &session.peer, Some(device), Ending::Detached, now);
                let message = "it has no disk that is driven here".to_owned();
                return Err(End { cause: Cause::Class, message });
            }
        };
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let give_back = move |device: Box<dyn Device>, now| {
            let is_gone = device.is_gone();
            shared.take_in(number, &tenant, (!is_gone).then_some(device), is_gone, now);
        };
        // What a disk holds in its cache is as durable as the power that it has from this host.
        self.cover(session, bus_id, carrier.as_ref());
        let (gate, give_back) = (self.gate_of(session, bus_id), Box::new(give_back));
        Ok(Face::Disk { disk: Box::new(disk), durability: boot_number(), give_back, gate })
    }
}
