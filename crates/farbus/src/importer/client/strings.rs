//! The strings of a device in a session whose exporter does not tell them: one of release 0.1.0.

use farbus_host::{DescriptorEnumerator, HostPort, IdSource, run};
use farbus_model::{BufferPool, CompletionQueue, Device};
use farbus_session::native::RemoteUsb;
use tracing::debug;

use super::error::{ClientError, unreachable};
use super::target::DeviceTarget;
use crate::importer::port::session::SessionPort;
use crate::importer::session::connection::LinkedDevice;

/// The device with its strings. If its exporter did not tell them, it is asked itself, for 5 s at most; it is used
/// without those that it does not say.
///
/// # Errors
/// [`ClientError`]: the session ended meanwhile.
pub fn with_strings(
    linked: LinkedDevice<RemoteUsb>,
    target: &DeviceTarget,
) -> Result<LinkedDevice<RemoteUsb>, ClientError> {
    if linked.remote().has_strings() || linked.descriptors().string_indexes().next().is_none() {
        return Ok(linked);
    }
    let (speed, descriptors) = (linked.speed(), linked.descriptors().clone());
    let mut port = SessionPort::new(linked);
    let mut driver = DescriptorEnumerator::strings(port.now(), IdSource::new(), speed, &descriptors);
    let found = run(&mut driver, &mut port).map_err(|error| unreachable(target, error))?;
    let mut linked = port.into_linked();
    let strings = found.map(|found| found.strings).unwrap_or_default();
    debug!(device = %target, count = strings.len(), "its exporter tells no strings: the device was asked");
    linked.remote_mut().set_strings(strings);
    if linked.remote().in_flight() > 0 {
        // It does not even give back what it does not answer: the next user's requests begin with a reset device.
        let mut done = CompletionQueue::new(BufferPool::new(0));
        linked.reset(linked.clock().now(), &mut done);
        linked.turn(&mut done);
    }
    Ok(linked)
}
