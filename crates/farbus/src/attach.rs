//! Handing a remote device to this machine.
