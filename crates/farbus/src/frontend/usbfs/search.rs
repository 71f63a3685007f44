//! Looks for a device that is gone until it is there again: it was pulled out, or became another one while it was
//! flashed, or its exporter was started again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::ThreadWaker;
use farbus_session::usbfs::UsbBusLocation;
use tracing::debug;

use super::bus::{BusMember, FarDeviceSource};
use super::served::TreeDevice;

/// The pause after the first try, and after many: a device that is flashed is back in a second or two.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// A search under way. Dropping it ends it, after the try that is under way.
pub struct DeviceSearch {
    found: Receiver<Box<TreeDevice>>,
    _continue: Sender<()>,
}

impl DeviceSearch {
    /// Starts a search; `wake` is rung when the device is found. It will be at this place.
    pub fn start(source: Arc<FarDeviceSource>, location: UsbBusLocation, wake: Arc<ThreadWaker>) -> Self {
        let (to, found) = channel();
        let (going, is_over) = channel();
        thread::spawn(move || {
            let mut pause = PAUSE_MIN;
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(pause) {
                match look(&source, &location, &wake) {
                    Ok(served) => {
                        // If nobody waits any more, it is given back here.
                        let _ = to.send(Box::new(served));
                        return wake.wake();
                    }
                    Err(error) => debug!(%error, device = %source, "not there yet"),
                }
                pause = (2 * pause).min(PAUSE_MAX);
            }
        });
        Self { found, _continue: going }
    }

    /// The device, once it is found.
    pub fn result(&self) -> Option<Box<TreeDevice>> {
        self.found.try_recv().ok()
    }
}

fn look(
    source: &Arc<FarDeviceSource>,
    location: &UsbBusLocation,
    wake: &Arc<ThreadWaker>,
) -> Result<TreeDevice, Box<dyn std::error::Error>> {
    let device = Box::new(source.open(wake)?);
    Ok(TreeDevice::new(location.clone(), BusMember::Far { device, source: Arc::clone(source) })?)
}
