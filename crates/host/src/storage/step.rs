//! The interface between a disk and its running operation.

use farbus_model::SetupPacket;

use super::command::DiskCommand;
use super::data::ReadData;
use super::error::DiskError;

/// The next step of an operation.
#[derive(Debug)]
pub(super) enum OperationStep {
    /// Run this command.
    Run(DiskCommand),
    /// Make this control request.
    Ask(SetupPacket),
    /// The operation has ended.
    Finish(Result<OperationResult, DiskError>),
}

/// The result of an operation.
#[derive(Debug)]
pub enum OperationResult {
    /// The disk is brought up; `Disk::info` has its properties.
    Ready,
    /// The data read.
    Data(ReadData),
    /// The operation is complete.
    Done,
}
