//! An export of an NBD server.

use farbus_model::BlockInfo;

/// A device on offer to NBD clients.
#[derive(Clone, Debug)]
pub struct NbdExportDescription {
    /// Its name; the empty one is the default.
    pub name: String,
    /// A sentence for a person.
    pub description: String,
    /// Size, block size and limits of the device.
    pub info: BlockInfo,
    /// Whether zeroing is faster than writing. If not, requests for fast zeroes fail.
    pub zeroes_fast: bool,
}
