//! A serial port's pseudo terminal, and the symbolic link by which programs find it.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use farbus_io_linux::sys::terminal::{TerminalMaster, discard_unread};
use farbus_io_net::local::runtime_folder;

/// Where terminals are.
const TERMINALS: &str = "/dev/pts";

/// Opens a terminal and makes `link` lead to it. A link that an earlier process of farbus left there is replaced.
///
/// # Errors
/// A sentence that says what to do: another attachment has the link, or it is no link of farbus's; the error of the
/// system.
pub fn open(link: &Path) -> io::Result<TerminalMaster> {
    let failed = |error: io::Error, why: &str| {
        let why = if why.is_empty() { error.to_string() } else { why.to_owned() };
        io::Error::new(error.kind(), format!("cannot link a terminal to {}: {why}", link.display()))
    };
    let terminal = TerminalMaster::open()?;
    let folder = runtime_folder::holding(link)?;
    let path = folder.as_ref().map_or_else(|| link.to_owned(), |(folder, name)| folder.at(name));
    if is_left_behind(&path, terminal.path()) {
        fs::remove_file(&path).map_err(|error| failed(error, ""))?;
    }
    symlink(terminal.path(), &path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists if leads_to(&path).is_some_and(|target| target.starts_with(TERMINALS)) => {
            let error = io::Error::from(io::ErrorKind::AddrInUse);
            failed(error, "it leads to a terminal that is there: 'farbus status' shows yours; or choose another --at")
        }
        io::ErrorKind::AlreadyExists => failed(error, "there is a file that is not farbus's; choose another path"),
        io::ErrorKind::NotFound => failed(error, "its folder does not exist; make it first"),
        _ => failed(error, ""),
    })?;
    Ok(terminal)
}

/// Removes `link` if it still leads to this terminal.
pub fn remove(link: &Path, terminal: &Path) {
    if leads_to(link).is_some_and(|target| target == terminal) {
        // A terminal's number is another terminal's soon; one more try is the next attachment's.
        let _ = fs::remove_file(link);
    }
}

/// Drops what no program has read of the terminal to which `link` leads.
///
/// # Errors
/// It leads to none; the error of the system.
pub fn empty(link: &Path) -> io::Result<()> {
    let target = leads_to(link).filter(|target| target.starts_with(TERMINALS));
    discard_unread(&target.ok_or_else(|| io::Error::other("the link leads to no terminal"))?)
}

fn leads_to(link: &Path) -> Option<PathBuf> {
    fs::read_link(link).ok()
}

/// Whether a process of this user made the link for a terminal that is gone: its number may be that of another terminal
/// by now, which then is younger than the link. A terminal gets its access rights before its link is made.
fn is_left_behind(link: &Path, own: &Path) -> bool {
    let (Some(target), Ok(about)) = (leads_to(link), fs::symlink_metadata(link)) else { return false };
    if !target.starts_with(TERMINALS) || about.uid() != rustix::process::geteuid().as_raw() {
        return false;
    }
    let changed = fs::metadata(&target).map(|terminal| (terminal.ctime(), terminal.ctime_nsec()));
    target == own || changed.is_err() || changed.is_ok_and(|changed| changed > (about.mtime(), about.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_replaced_only_if_farbus_left_it_behind() {
        let folder = std::env::temp_dir().join(format!("farbus-terminal-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let link = folder.join("port");
        let first = open(&link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), first.path());
        let taken = open(&link).unwrap_err();
        assert!(taken.kind() == io::ErrorKind::AddrInUse && taken.to_string().contains("farbus status"), "{taken}");
        drop(first);
        // Its number is given to the next terminal, or to none.
        let between = TerminalMaster::open().unwrap();
        let next = open(&link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), next.path());
        remove(&link, Path::new("/dev/pts/none"));
        assert!(link.exists());
        remove(&link, next.path());
        assert!(fs::symlink_metadata(&link).is_err());
        drop((between, next));
        fs::write(&link, "mine").unwrap();
        let refused = open(&link).unwrap_err().to_string();
        assert!(refused.contains("not farbus's"), "{refused}");
        assert_eq!(fs::read_to_string(&link).unwrap(), "mine");
        let missing = open(&folder.join("none/port")).unwrap_err().to_string();
        assert!(missing.contains("make it first"), "{missing}");
        fs::remove_dir_all(folder).unwrap();
    }
}
