//! The users and groups of this machine, by name.

use std::fs;
use std::io;

/// The id of the user of this name in `/etc/passwd`; `None` if it is not there. Users of a directory service are not
/// found.
///
/// # Errors
/// The file cannot be read.
pub fn user_number(name: &str) -> io::Result<Option<u32>> {
    Ok(number_in(&fs::read_to_string("/etc/passwd")?, name))
}

/// The id of the group of this name in `/etc/group`; `None` if it is not there. Groups of a directory service are not
/// found.
///
/// # Errors
/// The file cannot be read.
pub fn group_number(name: &str) -> io::Result<Option<u32>> {
    Ok(number_in(&fs::read_to_string("/etc/group")?, name))
}

/// The third field of `name`'s line: its id in passwd(5) and in group(5) alike.
fn number_in(table: &str, name: &str) -> Option<u32> {
    let line = table.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_group_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n+::::\nann:x:1000:1000::/home/ann:/bin/sh\nbad:x:y:1::/:\n";
        assert_eq!(number_in(passwd, "root"), Some(0));
        assert_eq!(number_in(passwd, "ann"), Some(1000));
        for nobody in ["an", "x", "bad", "none"] {
            assert_eq!(number_in(passwd, nobody), None, "{nobody}");
        }
        assert_eq!(number_in("root:x:0:\nkvm:x:108:ann,bob\n", "kvm"), Some(108));
    }
}
