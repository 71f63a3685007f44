//! What passes between a disk and the job that it has under way.

use farbus_model::Setup;

use super::command::Command;
use super::data::ReadData;
use super::error::DiskError;

/// What a job wants next.
#[derive(Debug)]
pub(super) enum Step {
    /// This command.
    Run(Command),
    /// This control request.
    Ask(Setup),
    /// Nothing more.
    Finish(Result<Answer, DiskError>),
}

/// What an operation brought.
#[derive(Debug)]
pub enum Answer {
    /// The disk is brought up; `Disk::info` says what it is.
    Ready,
    /// What was read.
    Data(ReadData),
    /// It is done.
    Done,
}
