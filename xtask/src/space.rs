//! Room on the disk, before the steps begin: a build that finds none fails in the midst, with an error that names no
//! disk.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

const GB: u64 = 1_000_000_000;

/// What the steps write, bytes, if nothing is built yet. Only the sum is known, about 12 GB for the whole gate; what
/// each step has of it is an estimate.
const NEEDED: [(&str, u64); 12] = [
    ("format", 0),
    ("clippy", GB),
    ("tidy", 0),
    ("deny", 0),
    ("test", 3 * GB),
    ("examples", GB),
    ("fuzz", GB),
    ("machine", GB),
    ("upgrade", 2 * GB),
    ("rig", 2 * GB),
    ("demo", 0),
    ("package", GB),
];

/// Refuses to begin the named steps where the disk of `root`'s build folder has too little room for them.
pub fn check(steps: &[&str], root: &Path) -> Result<(), String> {
    let target = target(root);
    // Nothing is built yet: the folder that it will be in.
    let there = target.ancestors().find(|folder| folder.exists()).unwrap_or(root);
    let disk = statvfs(there).map_err(|error| format!("cannot see how much room {} has: {error}", there.display()))?;
    judge(&target, disk.f_bavail.saturating_mul(disk.f_frsize), needed(steps))
}

/// The folder that Cargo builds in.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

fn needed(steps: &[&str]) -> u64 {
    NEEDED.iter().filter(|(name, _)| steps.contains(name)).map(|(_, bytes)| bytes).sum()
}

fn judge(target: &Path, free: u64, needed: u64) -> Result<(), String> {
    if free >= needed {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / GB as f64;
    let folder = target.display();
    Err(format!(
        "the disk of {folder} has {:.1} GB free, and these steps need {:.1} GB\n  \
         may be deleted, and is built again: {folder} (cargo clean); \
         what is only slower the next time: {folder}/debug/incremental",
        gb(free),
        gb(needed)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::STEPS;

    #[test]
    fn every_step_says_what_it_needs_and_the_gate_needs_twelve_gigabytes() {
        assert_eq!(NEEDED.map(|(name, _)| name), STEPS);
        assert_eq!(needed(&STEPS), 12 * GB);
        assert_eq!(needed(&["format", "tidy"]), 0, "they build nothing but xtask");
    }

    #[test]
    fn refusal_says_how_much_is_free_how_much_is_needed_and_what_may_be_deleted() {
        let target = Path::new("/somewhere/target");
        assert_eq!(judge(target, 12 * GB, 12 * GB), Ok(()));
        let said = judge(target, 11 * GB, 12 * GB).unwrap_err();
        for part in ["11.0 GB free", "need 12.0 GB", "/somewhere/target (cargo clean)"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn disk_of_a_folder_that_is_not_there_yet_is_that_of_the_folder_above_it() {
        assert_eq!(check(&["format"], Path::new("/nonexistent/farbus")), Ok(()));
    }
}
