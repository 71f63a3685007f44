//! The users that root's processes switch to.
//!
//! | user | used for | when |
//! |---|---|---|
//! | `farbus` | the process that talks to the network | if that user exists; the packages create it |
//! | the first spare id | the same process | otherwise |
//! | the second spare id | programs that are modules | always: they must not have what that process owns |
//!
//! A spare id is one that no machine assigns: Debian reserves 65000 to 65533 (policy 9.2.2), systemd leaves 65520 to
//! 65533 unused (`UIDS-GIDS`), and containers with 65,536 ids have them, but not those of dynamic users above. 65532
//! and 65533 are left out, since container images use them. `nobody` is not used: other daemons run as that user, too,
//! and a process may signal all processes of its user.

use std::fs;

use rustix::fs::{Gid, Uid};

/// The user that the packages create.
const SERVICE: &str = "farbus";
/// Ids that no machine assigns: the process that talks to the network gets the first free one, modules the second.
const SPARE: std::ops::RangeInclusive<u32> = 65520..=65531;

/// A user and its group.
pub type UserAccount = (Uid, Gid);

/// The user `farbus`, if it exists.
pub fn service_user() -> Option<UserAccount> {
    find(&passwd(), SERVICE)
}

/// The user of the process that talks to the network, if root starts farbus: a name for people, and the ids. Never
/// root.
pub fn confined_user() -> (String, UserAccount) {
    let passwd = passwd();
    match find(&passwd, SERVICE) {
        Some(account) => (SERVICE.to_owned(), account),
        None => {
            let account = spare(&passwd, &group(), 0);
            (format!("user {}", account.0.as_raw()), account)
        }
    }
}

/// The user of a module's program, if root starts farbus. Never root.
pub fn module_user() -> UserAccount {
    spare(&passwd(), &group(), 1)
}

/// The user database; empty on a machine that has none, such as a small guest.
fn passwd() -> String {
    fs::read_to_string("/etc/passwd").unwrap_or_default()
}

fn group() -> String {
    fs::read_to_string("/etc/group").unwrap_or_default()
}

/// A user's ids, if it exists and is not root under another name.
fn find(passwd: &str, name: &str) -> Option<UserAccount> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse::<u32>());
    let (uid, gid) = (fields.next()?.ok()?, fields.next()?.ok()?);
    (uid != 0 && gid != 0).then(|| (Uid::from_raw(uid), Gid::from_raw(gid)))
}

/// A spare id; if all are taken, one of them all the same.
fn spare(passwd: &str, group: &str, nth: usize) -> UserAccount {
    let has = |table: &str, number: u32| {
        table.lines().any(|line| line.split(':').nth(2).and_then(|field| field.parse().ok()) == Some(number))
    };
    let is_free = |number: &u32| !has(passwd, *number) && !has(group, *number);
    let number = SPARE.filter(is_free).nth(nth).or_else(|| SPARE.clone().nth(nth)).unwrap_or(*SPARE.start());
    (Uid::from_raw(number), Gid::from_raw(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533:nobody:/:/usr/sbin/nologin\ntoor:x:0:0::/:\nbad:x:y:1::/:\n";

    #[test]
    fn the_user_to_become_is_found_and_is_never_root() {
        let numbers = |name| find(PASSWD, name).map(|(uid, gid)| (uid.as_raw(), gid.as_raw()));
        assert_eq!(numbers("nobody"), Some((65534, 65533)));
        assert_eq!([numbers("toor"), numbers("bad"), numbers("farbus"), numbers("nob")], [None; 4]);
    }

    #[test]
    fn spare_number_is_one_that_no_user_and_no_group_has() {
        let number = |passwd: &str, group: &str, nth| spare(passwd, group, nth).0.as_raw();
        assert_eq!([number(PASSWD, "", 0), number(PASSWD, "", 1)], [65520, 65521]);
        assert_eq!(number("a:x:65520:1::/:\n", "b:x:65521:\n", 0), 65522);
        let all: String = SPARE.map(|number| format!("u:x:{number}:1::/:\n")).collect();
        assert_eq!([number(&all, "", 0), number(&all, "", 1)], [65520, 65521]);
    }
}
