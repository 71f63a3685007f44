//! What a program asks of a node, and what it is answered.

use farbus_model::Payload;
use farbus_wire::usbfs::{PointerWidth, UsbfsError, UsbfsIoctl};

/// Names an open of a node. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId(pub u64);

/// Names a command while its program waits for the answer. Chosen by what brings the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A command: an ioctl on an open node.
#[derive(Clone, Copy, Debug)]
pub struct UsbfsCommand {
    /// The number by which [`UsbfsAnswer::id`] refers to this command.
    pub id: CallId,
    /// The ioctl, decoded from its number.
    pub call: UsbfsIoctl,
    /// The pointers of the program that asks.
    pub width: PointerWidth,
    /// The ioctl's argument: a number, or an address in the program's memory.
    pub argument: u64,
}

/// The memory of the program whose command is being handled.
pub trait ProgramMemory {
    /// Reads from an address on, as much as fits.
    ///
    /// # Errors
    /// [`UsbfsError::BadAddress`]: the program has no such memory.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), UsbfsError>;
}

/// The answer to a command.
#[derive(Debug)]
pub struct UsbfsAnswer {
    /// The command that is answered, [`UsbfsCommand::id`].
    pub id: CallId,
    /// What the ioctl returns.
    pub result: Result<u32, UsbfsError>,
    /// What is written into the program's memory before that. If the memory is not there, the ioctl returns EFAULT.
    pub writes: Vec<(u64, Payload)>,
}

/// A command that waits for a finished URB.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReapWaiter {
    pub id: CallId,
    /// Where to write the URB's address.
    pub address: u64,
    pub width: PointerWidth,
}
