//! Files that are neither state nor a device's blocks: sources of frames, and what a user wants written; and the run of
//! this machine, which says whether what was written may be lost. Stores for blocks are in `io-linux`.

pub mod frames;
mod output;

use std::fs;
use std::sync::OnceLock;

pub use frames::FrameFile;
pub use output::create_output;

/// A number that changes when this machine restarts: data that was written to a file and not flushed may be lost then.
/// It is read once, so a process must call this before it confines itself: afterwards it cannot read the file.
pub fn boot_number() -> u64 {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    *KNOWN.get_or_init(read_boot_number)
}

fn read_boot_number() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or_else(|_| {
        // Unknown: as if the machine had restarted with every process.
        let mut bytes = [0; 8];
        crate::trust::fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::boot_number;

    #[test]
    fn boot_number_stays_the_same_until_a_restart() {
        assert_eq!(boot_number(), boot_number());
    }
}
