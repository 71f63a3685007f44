//! Gives root's state folder to the user that talks to the network.
//!
//! In earlier releases that user was root without capabilities, if root owned the folder. It is never root any more, so
//! the folder has to change its owner once: the process that is still root does this before it confines itself. All
//! changes are made by descriptor. An earlier release can use the folder afterwards, as it can use one of the user
//! `farbus`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, fchown, statat};

use super::folder::{HostFolder, StateError};
use super::state_folder::{FileAccessMode, StateFolder};
use crate::sys::accounts::{UserAccount, confined_user};

/// Subfolders that farbus's own state folder may have: its journals, and the folder that a file system begins with.
const SUBFOLDERS: [&str; 2] = ["swaps", "lost+found"];

impl HostFolder {
    /// Keeps the folder open for a process that is about to confine itself, and gives a folder of root's to the user
    /// that the process becomes. The descriptor's owner says which user that is.
    ///
    /// # Errors
    /// [`StateError`]: root's folder contains files that are not farbus's, or the system refuses.
    pub fn hand_over(&self) -> Result<Arc<OwnedFd>, StateError> {
        let folder = self.opened_or_made()?;
        let is_roots = rustix::process::geteuid().is_root() && folder.owner().0.is_root();
        let folder = if is_roots { self.give(&folder, confined_user())? } else { folder };
        Ok(self.keep(folder).descriptor())
    }

    fn give(&self, folder: &StateFolder, (name, account): (String, UserAccount)) -> Result<StateFolder, StateError> {
        // Other processes of root's must not create files here meanwhile.
        let lock = self.lock()?;
        let names = folder.names()?;
        let is_foreign = |entry: &&String| {
            let about = statat(folder.descriptor(), entry.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            let is_folder = about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Directory);
            entry.starts_with('.') || (is_folder && !SUBFOLDERS.contains(&entry.as_str()))
        };
        if let Some(foreign) = names.iter().find(is_foreign) {
            let what = format!(
                "the folder is root's and holds {foreign}, which is not farbus's: farbus hears strangers as {name} and not as root, and \
                 would have to give the folder to that user\n  set FARBUS_STATE to a folder of farbus's own, or type: chown -R {}:{} FOLDER",
                account.0.as_raw(),
                account.1.as_raw()
            );
            return Err(self.trouble("", &what));
        }
        let hand = |file: &File, entry: &str| {
            fchown(file, Some(account.0), Some(account.1)).map_err(|errno| {
                let (user, group, path) = (account.0.as_raw(), account.1.as_raw(), self.path().display());
                let what = format!(
                    "it cannot be given to {name}, who hears strangers: {errno}\n  type: chown -R {user}:{group} {path}"
                );
                self.trouble(entry, &what)
            })
        };
        for entry in names.iter().filter(|entry| !SUBFOLDERS.contains(&entry.as_str())) {
            // A file that is not exclusively root's keeps its owner; it is refused whenever it is used.
            if let Ok(Some(file)) = folder.file(entry, FileAccessMode::Read) {
                hand(&file, entry)?;
            }
        }
        hand(&lock, "lock")?;
        fchown(folder.descriptor(), Some(account.0), Some(account.1)).map_err(|errno| self.trouble("", &errno))?;
        Ok(folder.given_to(account))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::{AuditEvent, AuditLog, AuditOutcome, HostIdentity, PairedHostList};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farbus-hand-over-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn folder_of_root_is_given_to_another_user_and_still_works() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = scratch("whole");
        let (state, victim) = (path.join("state"), path.join("victim"));
        fs::write(&victim, "root's own").unwrap();
        let before = HostFolder::at(&state);
        fs::create_dir(&state).unwrap();
        let key = HostIdentity::load_or_create(&before).unwrap().fingerprint();
        AuditLog::new(before).record(&AuditEvent::new("attach", AuditOutcome::Ok));
        fs::create_dir(state.join("swaps")).unwrap();
        fs::write(state.join("swaps/00000001.journal"), "{}").unwrap();
        fs::hard_link(&victim, state.join("hard.json")).unwrap();
        symlink(&victim, state.join("soft.json")).unwrap();

        let folder = HostFolder::at(&state);
        let owner = rustix::fs::fstat(folder.hand_over().unwrap()).unwrap().st_uid;
        assert_ne!(owner, 0);
        for name in ["", "key.pem", "audit.log", "lock"] {
            let about = fs::metadata(state.join(name)).unwrap();
            assert_eq!(about.uid(), owner, "{name}");
            assert!(about.is_dir() || about.mode() & 0o077 == 0, "{name}");
        }
        // Journals stay root's, which writes them.
        assert_eq!(fs::metadata(state.join("swaps")).unwrap().uid(), 0);
        assert_eq!(fs::metadata(&victim).unwrap().uid(), 0, "what only a link of it was there stays root's");
        for folder in [&folder, &HostFolder::at(&state)] {
            assert_eq!(HostIdentity::load(folder).unwrap().unwrap().fingerprint(), key);
            PairedHostList::change(folder, |_| ()).unwrap();
            let swaps = folder.opened().unwrap().unwrap().subfolder("swaps").unwrap().unwrap();
            assert!(swaps.file("00000001.journal", FileAccessMode::ReadWrite).unwrap().is_some());
        }
        // The second time there is nothing to do.
        assert_eq!(rustix::fs::fstat(HostFolder::at(&state).hand_over().unwrap()).unwrap().st_uid, owner);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn folder_with_other_files_of_root_is_not_given_away() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = scratch("foreign");
        for foreign in [".bashrc", "etc"] {
            fs::create_dir(path.join(foreign)).unwrap();
            let why = HostFolder::at(&path).hand_over().unwrap_err().to_string();
            assert!(why.contains(foreign) && why.contains("FARBUS_STATE"), "{why}");
            assert!(fs::read_dir(&path).unwrap().flatten().all(|entry| entry.metadata().unwrap().uid() == 0));
            assert_eq!(fs::metadata(&path).unwrap().uid(), 0);
            fs::remove_dir(path.join(foreign)).unwrap();
        }
        fs::remove_dir_all(path).unwrap();
    }
}
