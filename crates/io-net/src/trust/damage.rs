//! Looks for state files that cannot be used: what they allowed is refused, and their owner has to see why.

use std::time::SystemTime;

use crate::trust::keys::identity::HostIdentity;
use crate::trust::page::invitations::check_invitations;
use crate::trust::page::page_key::PageKey;
use crate::trust::page::remote_page::RemotePage;
use crate::trust::page::tokens::PageTokenList;
use crate::trust::records::devices::KnownDeviceList;
use crate::trust::records::leases::{KnownLease, device_of_file};
use crate::trust::records::notes::check_notes;
use crate::trust::records::peers::PairedHostList;
use crate::trust::state::folder::{HostFolder, StateError};
use farbus_control::identity::DeviceId;

/// The files of a state folder that cannot be read or are damaged: for each what is wrong, and what to type. Nothing is
/// changed. Empty if the folder does not exist.
pub fn damaged_files(folder: &HostFolder) -> Vec<StateError> {
    let names = match folder.opened().and_then(|opened| Ok(opened.map(|opened| opened.names()).transpose()?)) {
        Ok(names) => names.unwrap_or_default(),
        Err(error) => return vec![error],
    };
    let mut leases: Vec<DeviceId> = names.iter().filter_map(|name| device_of_file(name)).collect();
    leases.sort_unstable();
    let checks = [
        HostIdentity::load(folder).map(drop),
        PairedHostList::load(folder).map(drop),
        KnownDeviceList::load(folder).map(drop),
        check_notes(folder),
        PageTokenList::load(folder).map(drop),
        check_invitations(folder, SystemTime::now()),
        PageKey::load(folder).map(drop),
        RemotePage::load(folder).map(drop),
    ];
    let leases = leases.into_iter().map(|device| KnownLease::load(folder, device).map(drop));
    checks.into_iter().chain(leases).filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::random_device_id;
    use crate::trust::records::leases::tests::LeaseScratchFolder;
    use std::fs;

    #[test]
    fn each_damaged_file_is_named_with_what_to_type() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("damage");
        assert!(damaged_files(folder).is_empty(), "there is no folder");
        let device = random_device_id();
        HostIdentity::load_or_create(folder).unwrap();
        KnownLease::reserve(folder, device, 0, 1).unwrap();
        assert!(damaged_files(folder).is_empty());
        let lease = format!("lease-{device}.json");
        let names = ["key.pem", "peers.json", "devices.json", "page-tokens.json", "page-key.pem", &lease];
        for name in names {
            let before = fs::read(folder.file(name)).ok();
            for content in ["{", "", "-----BEGIN PRIVATE KEY-----\nAA"] {
                fs::write(folder.file(name), content).unwrap();
                rustix::fs::chmod(folder.file(name), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
                let found = damaged_files(folder);
                let [found] = &found[..] else { panic!("{name}: {content:?}: {found:?}") };
                let text = found.to_string();
                assert_eq!(found.path, folder.file(name));
                assert!(text.contains("damaged") && text.contains("\n  ") && !text.contains('['), "{text}");
            }
            match before {
                Some(before) => fs::write(folder.file(name), before).unwrap(),
                None => fs::remove_file(folder.file(name)).unwrap(),
            }
        }
        assert!(damaged_files(folder).is_empty());
    }
}
