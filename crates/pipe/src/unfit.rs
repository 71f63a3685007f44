//! Why a device cannot be set up as its user expects.

use std::fmt;

use farbus_host::RemoteError;

/// Why an adapter was not set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetUpError {
    /// It is not what was asked for; the sentence is for a person.
    Unfit(String),
    /// It failed at a request.
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
