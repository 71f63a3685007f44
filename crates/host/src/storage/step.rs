//! The interface between a disk and its running operation.

use farbus_model::Setup;

use super::command::Command;
use super::data::ReadData;
use super::error::DiskError;

/// The next step of an operation.
#[derive(Debug)]
pub(super) enum Step {
    /// Run this command.
    Run(Command),
    /// Make this control request.
    Ask(Setup),
    /// The operation has ended.
    Finish(Result<Answer, DiskError>),
}

/// The result of an operation.
#[derive(Debug)]
pub enum Answer {
    /// The disk is brought up; `Disk::info` has its properties.
    Ready,
    /// The data read.
    Data(ReadData),
    /// The operation is complete.
    Done,
}
