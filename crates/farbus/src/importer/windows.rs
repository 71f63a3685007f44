//! The memory that the windows of all far disks of this process may take together.

use std::sync::{Arc, LazyLock};

use farbus_model::budget::{MemoryAccount, MemoryBudget};

/// What all windows together may take beyond what each may always use, bytes: as much as a paired host that uses
/// devices.
const WINDOWS_BYTES_MAX: usize = MemoryBudget::DEFAULT.peer_bytes;

static ACCOUNT: LazyLock<Arc<MemoryAccount>> = LazyLock::new(|| {
    MemoryAccount::of_process(MemoryBudget { process_bytes: WINDOWS_BYTES_MAX, ..MemoryBudget::DEFAULT })
});

/// The account of this process's windows.
pub(super) fn windows_account() -> Arc<MemoryAccount> {
    Arc::clone(&ACCOUNT)
}
