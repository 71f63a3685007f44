//! Why a program did not run.

use std::fmt;
use std::io;

use farbus_control::failure::FailureKind;

use super::bus::FarDeviceSource;
use crate::importer::client::ClientError;

/// Why a program did not run.
#[derive(Debug)]
pub enum RunError {
    /// A device could not be taken.
    Device(Box<ClientError>),
    /// This machine cannot show it to a program.
    Local(String),
    /// A run of this name is there, or is not.
    Named {
        /// Refused or gone.
        attribute: FailureKind,
        /// What to type.
        why: String,
    },
    /// The program cannot be run.
    Program {
        /// As a shell says it: 127 if there is none, 126 if it is none.
        code: u8,
        /// The reason, for people.
        why: String,
    },
}

impl RunError {
    /// A device of another host that could not be had ready; one of this machine without a source.
    pub(super) fn of_device(source: Option<&FarDeviceSource>, error: &io::Error) -> Self {
        match source {
            Some(source) => {
                let (target, what) = (source.target().clone(), error.to_string());
                RunError::Device(Box::new(ClientError::Device { target, what }))
            }
            None => Self::local(error),
        }
    }

    /// Something of this machine.
    pub fn local(error: impl fmt::Display) -> Self {
        RunError::Local(error.to_string())
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Device(error) => error.fmt(f),
            RunError::Local(why) | RunError::Named { why, .. } | RunError::Program { why, .. } => f.write_str(why),
        }
    }
}

impl std::error::Error for RunError {}
