//! Codes that let a browser of another machine in: `page-invitations.json`.
//!
//! A code is shown once, counts once and lives for a minute. What is kept of it is its hash: 16 random bytes cannot be
//! guessed in that time, however many tries a stranger has. So a right code counts whatever others have tried before.

use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::tokens::{PageScope, PageToken, PageTokenList, is_hex, is_name, why_not};
use crate::trust::keys::random::fill_random;
use crate::trust::limits::{self, PAGE_CODE_TIME_MAX, PAGE_TOKEN_TIME_MAX};
use crate::trust::state::folder::{HostFolder, StateError};

const INVITATIONS_FILE: &str = "page-invitations.json";
/// Random bytes of a code; it has two hexadecimal digits for each.
const CODE_BYTES: usize = 16;
/// How long a code that counts no more is remembered, so that its bearer can be told why.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// What a browser gets that shows a code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInvitation {
    /// What it may do.
    pub scope: PageScope,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For how long it may, seconds.
    pub lasts_s: u64,
    /// Until when the code counts: milliseconds since 1970.
    until_ms: u64,
    /// Whether it was used.
    #[serde(default)]
    is_used: bool,
    /// SHA-256 of the code, hexadecimal.
    sha256: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PageInvitationList {
    invitations: Vec<PageInvitation>,
}

/// Why a code lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCode {
    /// It was never made, or ten minutes ago.
    Unknown,
    /// Somebody was let in with it.
    Used,
    /// Its minute is over.
    Expired,
}

/// Why nobody is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRedeemed {
    /// The code lets nobody in.
    Code(NoCode),
    /// No token can be made for it: a sentence for a person. The code counts as before.
    Token(String),
}

fn millis(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(code: &str) -> String {
    hex(digest(&SHA256, code.as_bytes()).as_ref())
}

impl PageInvitation {
    /// Makes a code, which is kept nowhere, that counts once and from `now` for 60 s. The inner error is a sentence for
    /// a person; nothing is made then.
    ///
    /// # Errors
    /// [`StateError`]; nothing is made then.
    pub fn make(
        folder: &HostFolder,
        scope: PageScope,
        name: Option<&str>,
        lasts: Duration,
        now: SystemTime,
    ) -> Result<Result<String, String>, StateError> {
        let _lock = folder.lock()?;
        if let Some(why) = why_not(folder, scope)? {
            return Ok(Err(why));
        }
        let mut all = PageInvitationList::read(folder, now)?;
        if all.invitations.len() >= limits::PAGE_INVITATIONS_MAX {
            let most = limits::PAGE_INVITATIONS_MAX;
            return Ok(Err(format!("{most} codes were made in the last ten minutes\n  wait a minute, and try again")));
        }
        let mut code = [0; CODE_BYTES];
        fill_random(&mut code);
        let code = hex(&code);
        all.invitations.push(PageInvitation {
            scope,
            name: name.map(str::to_owned),
            lasts_s: lasts.as_secs(),
            until_ms: millis(now + PAGE_CODE_TIME_MAX),
            is_used: false,
            sha256: hash(&code),
        });
        all.store(folder)?;
        Ok(Ok(code))
    }

    /// Whether each part has the form in which it was made: another user may have written it.
    fn is_whole(&self) -> bool {
        let is_lasting = (1..=PAGE_TOKEN_TIME_MAX.as_secs()).contains(&self.lasts_s);
        is_lasting && is_hex(&self.sha256, 32) && self.name.as_deref().is_none_or(is_name)
    }

    /// Makes the token that a code is for, and uses the code up: only one of several processes that show the same code
    /// at a time succeeds. Returns what is kept of the token, the token itself, and for how long it counts, seconds. If
    /// another token has got the name meanwhile, this one has none. A code for which no token can be made stays as it
    /// is.
    ///
    /// # Errors
    /// [`StateError`]; the inner error: no token was made.
    pub fn redeem(
        folder: &HostFolder,
        code: &str,
        now: SystemTime,
    ) -> Result<Result<(PageToken, String, u64), NotRedeemed>, StateError> {
        let hashed = hash(code);
        let _lock = folder.lock()?;
        let mut all = PageInvitationList::read(folder, now)?;
        // Hashes are compared: how long that takes says nothing of the code.
        let Some(found) = all.invitations.iter_mut().find(|one| one.sha256 == hashed) else {
            return Ok(Err(NotRedeemed::Code(NoCode::Unknown)));
        };
        match (found.is_used, found.until_ms > millis(now)) {
            (true, _) => return Ok(Err(NotRedeemed::Code(NoCode::Used))),
            (false, false) => return Ok(Err(NotRedeemed::Code(NoCode::Expired))),
            (false, true) => found.is_used = true,
        }
        let (scope, lasts_s) = (found.scope, found.lasts_s);
        let name = match found.name.take() {
            Some(name) if PageTokenList::has_name(folder, &name, now)? => None,
            name => name,
        };
        let lasts = Some(Duration::from_secs(lasts_s));
        let (token, secret) = match PageTokenList::make_in_locked(folder, scope, name.as_deref(), lasts, now)? {
            Ok(made) => made,
            Err(why) => return Ok(Err(NotRedeemed::Token(why))),
        };
        // A token that is not handed out opens nothing, for nobody knows it: so it is made first.
        all.store(folder)?;
        Ok(Ok((token, secret, lasts_s)))
    }
}

impl PageInvitationList {
    /// Those that are remembered.
    fn read(folder: &HostFolder, now: SystemTime) -> Result<Self, StateError> {
        let bytes = folder.read(INVITATIONS_FILE, limits::PAGE_INVITATIONS_BYTES_MAX, true)?;
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let damaged = |why: &dyn std::fmt::Display| {
            folder.trouble(INVITATIONS_FILE, &format!("it is damaged: {why}\n  remove it, and make another code"))
        };
        let mut all: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        if !all.invitations.iter().all(PageInvitation::is_whole) {
            return Err(damaged(&"a code is not as farbus writes it"));
        }
        // Also those of a clock that was set back: none counts for longer than a minute from now.
        let (now, most) = (millis(now), millis(now + PAGE_CODE_TIME_MAX));
        let remembered_ms = u64::try_from(REMEMBERED_FOR.as_millis()).unwrap_or(u64::MAX);
        all.invitations.retain(|one| one.until_ms <= most && one.until_ms.saturating_add(remembered_ms) > now);
        Ok(all)
    }

    fn store(&self, folder: &HostFolder) -> Result<(), StateError> {
        let mut text = serde_json::to_vec(self).map_err(|error| folder.trouble(INVITATIONS_FILE, &error))?;
        text.push(b'\n');
        folder.write(INVITATIONS_FILE, &text)
    }
}

/// Whether the codes can be read.
pub(in crate::trust) fn check_invitations(folder: &HostFolder, now: SystemTime) -> Result<(), StateError> {
    PageInvitationList::read(folder, now).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::records::leases::tests::LeaseScratchFolder;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    fn made(folder: &HostFolder, now: SystemTime) -> String {
        PageInvitation::make(folder, PageScope::Observe, Some("phone"), HOUR, now).unwrap().unwrap()
    }

    #[test]
    fn a_code_lets_in_once_and_within_a_minute() {
        let scratch = LeaseScratchFolder::new("invitations");
        let (folder, now) = (&scratch.0, SystemTime::now());
        let redeem = |code: &str, at| PageInvitation::redeem(folder, code, at).unwrap();
        let refused = |code: &str, at| match redeem(code, at) {
            Err(NotRedeemed::Code(why)) => why,
            other => panic!("{other:?}"),
        };
        let (first, second) = (made(folder, now), made(folder, now));
        assert_eq!(first.len(), 32);
        let (token, secret, lasts_s) = redeem(&first, now + 59 * SECOND).unwrap();
        assert_eq!((token.scope, token.called(), lasts_s), (PageScope::Observe, "phone", 3600));
        assert_eq!(PageTokenList::load(folder).unwrap().check(&secret, now), Ok(&token));
        assert_eq!(refused(&first, now + 59 * SECOND), NoCode::Used);
        assert_eq!(refused(&second, now + 60 * SECOND), NoCode::Expired);
        for wrong in ["", &second[..31], &format!("{second}0"), &second.to_uppercase()] {
            assert_eq!(refused(wrong, now), NoCode::Unknown, "{wrong}");
        }
        let (token, ..) = redeem(&second, now).unwrap();
        assert_eq!(token.name, None, "what others tried takes nothing from it, and the name is the first one's");
        let third = made(folder, now);
        assert_eq!(refused(&third, now - 10 * SECOND), NoCode::Unknown, "the clock was set back");
    }

    #[test]
    fn a_code_that_can_yield_no_token_is_not_used_up() {
        let scratch = LeaseScratchFolder::new("invitations-full");
        let (folder, now) = (&scratch.0, SystemTime::now());
        let code = made(folder, now);
        for _ in 0..limits::PAGE_TOKENS_MAX {
            PageTokenList::make(folder, PageScope::Read, None, None).unwrap().unwrap();
        }
        for _ in 0..2 {
            let refused = PageInvitation::redeem(folder, &code, now).unwrap();
            assert!(matches!(&refused, Err(NotRedeemed::Token(why)) if why.contains("revoke")), "{refused:?}");
        }
        let one = PageTokenList::load(folder).unwrap().iter().next().unwrap().id.clone();
        PageTokenList::revoke(folder, &one).unwrap().unwrap();
        assert!(PageInvitation::redeem(folder, &code, now).unwrap().is_ok(), "there is a place now");
    }

    #[test]
    fn the_file_has_no_code_and_is_limited() {
        let scratch = LeaseScratchFolder::new("invitations-file");
        let (folder, now) = (&scratch.0, SystemTime::now());
        let code = made(folder, now);
        let text = std::fs::read_to_string(folder.file(INVITATIONS_FILE)).unwrap();
        assert!(!text.contains(&code), "{text}");
        for _ in 1..limits::PAGE_INVITATIONS_MAX {
            made(folder, now);
        }
        let refused = PageInvitation::make(folder, PageScope::Read, None, HOUR, now).unwrap().unwrap_err();
        assert!(refused.contains("wait"), "{refused}");
        made(folder, now + PAGE_CODE_TIME_MAX + REMEMBERED_FOR);
    }
}
