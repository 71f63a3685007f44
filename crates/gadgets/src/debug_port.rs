//! The debug capability of a USB 3 host controller (xHCI 1.2 §7.6), by which a host is a device of another: a link
//! without a bridge. R3.
//!
//! | rule | here |
//! |---|---|
//! | a controller has one | [`DebugPort::enable`] a second time is refused |
//! | neighbours see it once it is enabled, not before | [`DebugPortPeer::is_attached`], [`DebugPortPeer::enumerate`] |
//! | the first neighbour that enumerates has it, wanted or not | all others find nothing |
//! | it offers a bulk endpoint each way and no periodic one | what the target writes the host reads, and the other way round |
//! | it disappears when its host resets it, and can be enabled again | [`DebugPort::disable`] |
//!
//! Cables are passive and know no names: what is attached says by its serial number whose port it is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_model::definition::InterfaceDefinition;
use farbus_model::{DeviceDefinition, EpAddr, Payload, ReadinessSource, UsbSpeed};

use crate::emulated::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer};
use crate::lane::{GadgetWaker, TransferQueueReader, TransferQueueWriter, lane};

/// Bytes under way to one end, beyond which no more are taken; a transfer that was begun is taken as a whole.
const BYTES_MAX: usize = 256 << 10;
/// The only endpoint number, IN and OUT.
pub const DATA: u8 = 1;

/// Why a port was not enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugPortEnabledError;

impl fmt::Display for DebugPortEnabledError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a controller has one debug capability, and this one's is enabled")
    }
}

impl std::error::Error for DebugPortEnabledError {}

/// A host's debug port, as the host itself has it: the debug target.
#[derive(Debug)]
pub struct DebugPort {
    socket: Arc<DebugConnector>,
    target: Option<DebugTargetPipes>,
}

/// The target's ends of an enabled port.
#[derive(Debug)]
struct DebugTargetPipes {
    out: TransferQueueWriter,
    back: TransferQueueReader,
    near: Arc<GadgetWaker>,
    far: Arc<GadgetWaker>,
    is_on: Arc<AtomicBool>,
}

/// The port as its neighbours see it.
#[derive(Debug)]
struct DebugConnector {
    serial: String,
    /// The device, until a neighbour has enumerated it.
    waiting: Mutex<Option<EmulatedDevice<DebugDevice>>>,
}

/// The other end of a cable to a debug port.
#[derive(Clone, Debug)]
pub struct DebugPortPeer(Arc<DebugConnector>);

impl DebugPort {
    /// A disabled port; `serial` is its serial number.
    pub fn new(serial: &str) -> Self {
        Self { socket: Arc::new(DebugConnector { serial: serial.to_owned(), waiting: Mutex::new(None) }), target: None }
    }

    /// A cable to the port. There may be as many as the controller has ports; one neighbour will get the device.
    pub fn cable(&self) -> DebugPortPeer {
        DebugPortPeer(Arc::clone(&self.socket))
    }

    /// Enables the port, so that neighbours can enumerate it. `near` wakes the thread that reads and writes here, `far`
    /// the thread that serves the device at the other end.
    ///
    /// # Errors
    /// [`DebugPortEnabledError`].
    pub fn enable(&mut self, near: GadgetWaker, far: GadgetWaker) -> Result<(), DebugPortEnabledError> {
        if self.target.is_some() {
            return Err(DebugPortEnabledError);
        }
        let (near, far) = (Arc::new(near), Arc::new(far));
        let (out, to_host) = lane(BYTES_MAX);
        let (of_host, back) = lane(BYTES_MAX);
        let is_on = Arc::new(AtomicBool::new(true));
        let function = DebugDevice {
            to_host,
            of_host,
            rest: Payload::Empty,
            near: Arc::clone(&far),
            target: Arc::clone(&near),
            is_on: Arc::clone(&is_on),
        };
        self.target = Some(DebugTargetPipes { out, back, near, far, is_on });
        *self.socket.waiting() = Some(EmulatedDevice::new(&definition(&self.socket.serial), function));
        Ok(())
    }

    /// Disables the port: a neighbour that has it sees it go. It may be enabled again.
    pub fn disable(&mut self) {
        *self.socket.waiting() = None;
        if let Some(target) = self.target.take() {
            target.is_on.store(false, Ordering::SeqCst);
            (target.far.ring)();
        }
    }

    /// Whether the port is enabled and a neighbour has enumerated it.
    pub fn is_taken(&self) -> bool {
        self.target.is_some() && self.socket.waiting().is_none()
    }

    /// Sends a transfer to the neighbour; `None` if there is no space, or the port is disabled.
    pub fn write(&mut self, transfer: Vec<u8>) -> Option<()> {
        let target = self.target.as_ref().filter(|target| !target.out.is_full())?;
        target.out.put(transfer, &target.far).ok()
    }

    /// The next transfer that the neighbour sent.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let target = self.target.as_ref()?;
        (target.near.hush)();
        target.back.take(&target.far)
    }
}

impl Drop for DebugPort {
    fn drop(&mut self) {
        self.disable();
    }
}

impl DebugConnector {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<EmulatedDevice<DebugDevice>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DebugPortPeer {
    /// Whether a device is at the other end: enabled, and not enumerated by another neighbour.
    pub fn is_attached(&self) -> bool {
        self.0.waiting().is_some()
    }

    /// Takes the device: the first neighbour that asks has it.
    pub fn enumerate(&self) -> Option<EmulatedDevice<DebugDevice>> {
        self.0.waiting().take()
    }
}

/// The device that the neighbour drives.
#[derive(Debug)]
pub struct DebugDevice {
    to_host: TransferQueueReader,
    of_host: TransferQueueWriter,
    rest: Payload,
    near: Arc<GadgetWaker>,
    target: Arc<GadgetWaker>,
    is_on: Arc<AtomicBool>,
}

impl GadgetFunction for DebugDevice {
    fn send(&mut self, _endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        if self.rest.is_empty() {
            match self.to_host.take(&self.target) {
                Some(transfer) => self.rest = transfer.into(),
                None => return InTransferAnswer::Nak,
            }
        }
        InTransferAnswer::Data(self.rest.split_front(room))
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if self.of_host.is_full() {
            return OutTransferAnswer::Nak;
        }
        match self.of_host.put(payload.contiguous().into_owned(), &self.target) {
            Ok(()) => OutTransferAnswer::Accepted,
            Err(_) => OutTransferAnswer::Nak,
        }
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.near.readiness)
    }

    fn handle_ready(&mut self, _cx: &mut FunctionContext<'_>) {
        (self.near.hush)();
    }

    fn is_gone(&self) -> bool {
        !self.is_on.load(Ordering::SeqCst)
    }
}

/// As Linux's own debug capability shows itself (1d6b:0010, class "diagnostic"), at SuperSpeed, which it always has.
fn definition(serial: &str) -> DeviceDefinition {
    DeviceDefinition::new(0x1d6b, 0x0010)
        .speed(UsbSpeed::Super)
        .class(0, 0, 0)
        .names("farbus", "debug port", serial)
        .interface(InterfaceDefinition::new(0xdc, 2, 0).bulk_pair(DATA))
}

#[cfg(test)]
mod tests {
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, SetupPacket, Urb, UrbId, UrbStatus};

    use super::*;

    fn bell() -> GadgetWaker {
        GadgetWaker { readiness: ReadinessSource::new(()), ring: Box::new(|| {}), hush: Box::new(|| {}) }
    }

    #[test]
    fn first_neighbour_to_enumerate_an_enabled_port_has_it() {
        let mut port = DebugPort::new("host2");
        let (one, other) = (port.cable(), port.cable());
        assert!(!one.is_attached() && one.enumerate().is_none(), "enable before enumerate");
        port.enable(bell(), bell()).unwrap();
        assert_eq!(port.enable(bell(), bell()), Err(DebugPortEnabledError), "one a host");
        assert!(one.is_attached() && other.is_attached() && !port.is_taken());
        let device = other.enumerate().unwrap();
        assert!(port.is_taken() && !one.is_attached() && one.enumerate().is_none());
        assert_eq!(device.descriptors().string(3), Some("host2"));
        assert_eq!(device.descriptors().configurations[0].settings[0].endpoints.len(), 2);
    }

    #[test]
    fn a_link_carries_both_ways_until_it_is_disabled() {
        let mut port = DebugPort::new("host1");
        port.enable(bell(), bell()).unwrap();
        let mut device = port.cable().enumerate().unwrap();
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let now = Instant::ZERO;
        device.submit(
            now,
            Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty).launch(),
            &mut done,
        );
        port.write(vec![7; 2000]).unwrap();
        for (id, room) in [(1, 1024), (2, 1024)] {
            device.submit(now, Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), room).launch(), &mut done);
        }
        device.submit(now, Urb::data_out(UrbId(3), EpAddr::from_byte(1), vec![8; 3].into()).launch(), &mut done);
        let lengths: Vec<_> = std::iter::from_fn(|| done.pop()).map(|done| done.actual).collect();
        assert_eq!(lengths, [0, 1024, 976, 3]);
        assert_eq!((port.read(), port.read()), (Some(vec![8; 3]), None));

        while port.write(vec![0; 100_000]).is_some() {}
        device.submit(now, Urb::data_in(UrbId(4), EpAddr::from_byte(0x81), 1 << 20).launch(), &mut done);
        assert!(port.write(vec![]).is_some(), "there is room again");
        done.pop().unwrap();
        port.disable();
        device.handle_ready(now, &mut done);
        device.submit(now, Urb::data_in(UrbId(5), EpAddr::from_byte(0x81), 8).launch(), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Gone);
        assert!(device.is_gone() && port.write(vec![1]).is_none());
        port.enable(bell(), bell()).unwrap();
        assert!(port.cable().is_attached(), "it began anew");
    }
}
