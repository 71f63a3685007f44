//! Shows devices to programs on this machine.

pub mod fuse;
pub mod holders;
pub mod tree;
