//! What an NBD server has to offer.

use farbus_model::BlockInfo;

/// A device that is offered.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its name; the empty one is the default.
    pub name: String,
    /// A sentence for a person.
    pub description: String,
    /// What it is.
    pub info: BlockInfo,
    /// Whether zeros are made faster than they are written. Where not, who asks for fast zeros is told so.
    pub zeroes_fast: bool,
}
