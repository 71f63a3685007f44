//! Devices that are not what their user takes them for.

use std::fmt;

use farbus_host::RemoteError;

/// Why an adapter was not set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetUpError {
    /// It is not what was asked for; a sentence for a person.
    Unfit(String),
    /// It did not do what it was told.
    Device(RemoteError),
}

impl From<RemoteError> for SetUpError {
    fn from(error: RemoteError) -> Self {
        SetUpError::Device(error)
    }
}

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetUpError::Unfit(what) => f.write_str(what),
            SetUpError::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SetUpError {}
