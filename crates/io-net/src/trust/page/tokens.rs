//! Tokens for programs that use the page: `page-tokens.json`.
//!
//! A token is shown once, when it is made. What is kept of it is its hash: 32 random bytes cannot be guessed, so one
//! round of SHA-256 is enough.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use farbus_control::notes::is_shown;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::trust::keys::random::fill_random;
use crate::trust::limits;
use crate::trust::records::audit::timestamp;
use crate::trust::state::folder::{HostFolder, StateError};

const TOKENS_FILE: &str = "page-tokens.json";
/// How a token begins, so that programs that look for secrets in files find it.
const PREFIX: &str = "farbus-page-";
/// Bytes of the secret.
const SECRET_BYTES: usize = 32;
/// Bytes of the id.
const ID_BYTES: usize = 4;
/// Characters of a name.
pub const TOKEN_NAME_CHARS_MAX: usize = 64;

/// What the bearer of a token may do; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageScope {
    /// See what is shared and attached, and the figures.
    Read,
    /// See what devices send, too.
    Observe,
    /// Do everything that the owner does there.
    Own,
}

impl PageScope {
    /// The word for it in commands, in JSON and in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            PageScope::Read => "read",
            PageScope::Observe => "observe",
            PageScope::Own => "own",
        }
    }
}

impl fmt::Display for PageScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PageScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [PageScope::Read, PageScope::Observe, PageScope::Own];
        let found = all.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("'{text}' is no scope: there are read, observe and own"))
    }
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageToken {
    /// The first part of the token, 8 hexadecimal digits: it tells one from another.
    pub id: String,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What its bearer may do.
    pub scope: PageScope,
    /// When it was made: RFC 3339, UTC.
    pub made: String,
    /// When it ends: RFC 3339, UTC. `None`: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// When the token ends, in seconds since 1970. This field counts; `expires` is for readers of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_unix_s: Option<u64>,
    /// SHA-256 of the secret, hexadecimal.
    sha256: String,
}

impl PageToken {
    /// Whether its time is over.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires_unix_s.is_some_and(|end| unix_s(now) >= end)
    }

    /// Whether each part has the form in which it was made.
    fn is_whole(&self) -> bool {
        let is_time =
            |text: &str| text.len() <= 32 && text.bytes().all(|b| b.is_ascii_digit() || b"-:.TZ".contains(&b));
        is_hex(&self.id, ID_BYTES)
            && is_hex(&self.sha256, 32)
            && self.name.as_deref().is_none_or(is_name)
            && is_time(&self.made)
            && self.expires.as_deref().is_none_or(is_time)
            && self.expires.is_some() == self.expires_unix_s.is_some()
    }

    /// The name, or the id if it has none.
    pub fn called(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

/// The tokens of a host's owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTokenList {
    tokens: Vec<PageToken>,
}

/// Why a token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// There is none such: it was never made, or was revoked.
    Unknown,
    /// Its time is over.
    Expired,
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

/// Whether this is [`hex`] of so many bytes.
pub(in crate::trust) fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Compares in a time that depends on the lengths alone.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

impl PageTokenList {
    /// The tokens in `folder`; none if the file does not exist.
    ///
    /// In a folder that belongs to another user, such as the one as whom root's daemon hears strangers, each may only
    /// read: that user could have written the file.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, is damaged, or others may read it.
    pub fn load(folder: &HostFolder) -> Result<Self, StateError> {
        let mut all = Self::read(folder)?;
        if !is_own(folder)? {
            all.tokens.iter_mut().for_each(|token| token.scope = PageScope::Read);
        }
        Ok(all)
    }

    fn read(folder: &HostFolder) -> Result<Self, StateError> {
        let bytes = folder.read(TOKENS_FILE, limits::PAGE_TOKENS_BYTES_MAX, true)?;
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let damaged = |why: &dyn fmt::Display| {
            let next = "remove it, and make the tokens again (farbus page token create)";
            folder.trouble(TOKENS_FILE, &format!("it is damaged: {why}\n  {next}"))
        };
        let all: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        if all.tokens.len() > limits::PAGE_TOKENS_MAX {
            return Err(damaged(&format_args!("{} tokens", all.tokens.len())));
        }
        // Another user may have written it: what a terminal and a log are shown of it is what farbus writes.
        match all.tokens.iter().position(|token| !token.is_whole()) {
            Some(at) => Err(damaged(&format_args!("token {} is not as farbus writes it", at + 1))),
            None => Ok(all),
        }
    }

    /// All tokens, in the order in which they were made; also those whose time is over.
    pub fn iter(&self) -> impl Iterator<Item = &PageToken> {
        self.tokens.iter()
    }

    /// Makes a token. Returns what is kept of it, and the token itself, which is kept nowhere. One whose time is over
    /// loses its place and its name to it. The inner error is a sentence for a person; nothing is made then.
    ///
    /// # Errors
    /// [`StateError`]; nothing is made then.
    pub fn make(
        folder: &HostFolder,
        scope: PageScope,
        name: Option<&str>,
        lasts: Option<Duration>,
    ) -> Result<Result<(PageToken, String), String>, StateError> {
        let _lock = folder.lock()?;
        Self::make_in_locked(folder, scope, name, lasts, SystemTime::now())
    }

    /// Does what [`PageTokenList::make`] does, in a folder that the caller has locked.
    pub(in crate::trust) fn make_in_locked(
        folder: &HostFolder,
        scope: PageScope,
        name: Option<&str>,
        lasts: Option<Duration>,
        now: SystemTime,
    ) -> Result<Result<(PageToken, String), String>, StateError> {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            return Ok(Err(format!(
                "'{}' is no name: 1 to {TOKEN_NAME_CHARS_MAX} characters that are shown",
                shown(name)
            )));
        }
        let end = match lasts.map(|lasts| now.checked_add(lasts).filter(|_| lasts <= limits::PAGE_TOKEN_TIME_MAX)) {
            Some(None) => return Ok(Err("a token lasts 3660 days at most, or until it is revoked".to_owned())),
            end => end.flatten(),
        };
        if let Some(why) = why_not(folder, scope)? {
            return Ok(Err(why));
        }
        let mut all = Self::read(folder)?;
        // As long as nobody needs the place of one that has expired, its bearer is told that it has.
        let is_full = all.tokens.len() >= limits::PAGE_TOKENS_MAX;
        all.tokens
            .retain(|token| !token.has_expired(now) || !(is_full || (name.is_some() && token.name.as_deref() == name)));
        if all.tokens.len() >= limits::PAGE_TOKENS_MAX {
            let most = limits::PAGE_TOKENS_MAX;
            return Ok(Err(format!("there are {most} tokens already\n  revoke one: farbus page token list")));
        }
        if let Some(name) = name.filter(|name| all.find(name).is_some()) {
            let next = "choose another --name, or first: farbus page token revoke";
            return Ok(Err(format!("a token is called '{name}' already\n  {next} {name}")));
        }
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        loop {
            fill_random(&mut id);
            if all.find(&hex(&id)).is_none() {
                break;
            }
        }
        fill_random(&mut secret);
        let (id, secret) = (hex(&id), hex(&secret));
        let token = PageToken {
            id: id.clone(),
            name: name.map(str::to_owned),
            scope,
            made: timestamp(now),
            expires: end.map(timestamp),
            expires_unix_s: end.map(unix_s),
            sha256: hash(&secret),
        };
        all.tokens.push(token.clone());
        all.store(folder)?;
        Ok(Ok((token, format!("{PREFIX}{id}-{secret}"))))
    }

    /// Whether a token has this id or name, in a folder that the caller has locked.
    pub(in crate::trust) fn has_name(folder: &HostFolder, name: &str, now: SystemTime) -> Result<bool, StateError> {
        Ok(Self::read(folder)?.find(name).is_some_and(|token| !token.has_expired(now)))
    }

    /// The token with this id or name.
    pub fn find(&self, named: &str) -> Option<&PageToken> {
        self.tokens.iter().find(|token| token.id == named || token.name.as_deref() == Some(named))
    }

    /// Removes the token with this id or name, and those whose time is over. Returns it.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn revoke(folder: &HostFolder, named: &str) -> Result<Option<PageToken>, StateError> {
        let _lock = folder.lock()?;
        let mut all = Self::read(folder)?;
        let Some(found) = all.find(named).cloned() else { return Ok(None) };
        let now = SystemTime::now();
        all.tokens.retain(|token| token.id != found.id && !token.has_expired(now));
        all.store(folder)?;
        Ok(Some(found))
    }

    /// The token that somebody shows.
    ///
    /// # Errors
    /// [`NoToken`].
    pub fn check(&self, shown: &str, now: SystemTime) -> Result<&PageToken, NoToken> {
        let parts = shown.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        let (id, secret) = parts.ok_or(NoToken::Unknown)?;
        let token = self.tokens.iter().find(|token| token.id == id).ok_or(NoToken::Unknown)?;
        if secret.len() != 2 * SECRET_BYTES || !is_same(&hash(secret), &token.sha256) {
            return Err(NoToken::Unknown);
        }
        if token.has_expired(now) { Err(NoToken::Expired) } else { Ok(token) }
    }

    fn store(&self, folder: &HostFolder) -> Result<(), StateError> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| folder.trouble(TOKENS_FILE, &error))?;
        text.push(b'\n');
        folder.write(TOKENS_FILE, &text)
    }
}

/// Why no token of this scope can be made in `folder`: a sentence for a person.
pub(in crate::trust) fn why_not(folder: &HostFolder, scope: PageScope) -> Result<Option<String>, StateError> {
    if scope == PageScope::Read || is_own(folder)? {
        return Ok(None);
    }
    let what = "the state folder belongs to the user as whom farbus hears strangers, who could make such a token";
    let next = "only --scope read can be made here; change things over the socket: farbus page --socket";
    Ok(Some(format!("{what}\n  {next}")))
}

/// Whether the folder belongs to this process's user, if it exists.
fn is_own(folder: &HostFolder) -> Result<bool, StateError> {
    Ok(folder.opened()?.is_none_or(|opened| opened.owner().0 == rustix::process::geteuid()))
}

/// Whether a token may be called so.
pub(in crate::trust) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= TOKEN_NAME_CHARS_MAX && name.chars().all(is_shown)
}

fn shown(name: &str) -> String {
    name.chars().take(TOKEN_NAME_CHARS_MAX).map(|c| if is_shown(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::trust::records::leases::tests::LeaseScratchFolder;

    const HOUR: Duration = Duration::from_secs(3600);

    fn made(folder: &HostFolder, scope: PageScope, name: Option<&str>, lasts: Option<Duration>) -> (PageToken, String) {
        PageTokenList::make(folder, scope, name, lasts).unwrap().unwrap()
    }

    #[test]
    fn a_token_opens_until_it_ends_or_is_revoked_and_only_as_a_whole() {
        let scratch = LeaseScratchFolder::new("tokens");
        let folder = &scratch.0;
        let (kept, token) = made(folder, PageScope::Read, Some("ci"), Some(HOUR));
        let now = SystemTime::now();
        let all = PageTokenList::load(folder).unwrap();
        assert_eq!(all.check(&token, now), Ok(&kept));
        assert_eq!(all.check(&token, now + 2 * HOUR), Err(NoToken::Expired));
        let other = made(folder, PageScope::Own, None, None).1;
        let mixed = format!("{}{}", &token[..PREFIX.len() + 9], &other[PREFIX.len() + 9..]);
        for wrong in ["", "farbus-page-", "farbus-page--", &token[..token.len() - 1], &format!("{token}0"), &mixed] {
            assert_eq!(all.check(wrong, now), Err(NoToken::Unknown), "{wrong}");
        }
        assert_eq!(PageTokenList::revoke(folder, "nobody").unwrap(), None);
        assert_eq!(PageTokenList::revoke(folder, "ci").unwrap(), Some(kept));
        let all = PageTokenList::load(folder).unwrap();
        assert_eq!(all.check(&token, now), Err(NoToken::Unknown), "revoked");
        assert_eq!(all.check(&other, now).map(|token| token.scope), Ok(PageScope::Own));
    }

    #[test]
    fn a_token_that_has_expired_takes_neither_place_nor_name_from_another() {
        let scratch = LeaseScratchFolder::new("tokens-expired");
        let folder = &scratch.0;
        let before = SystemTime::now() - 2 * HOUR;
        let make = |name: Option<&str>, at| {
            PageTokenList::make_in_locked(folder, PageScope::Read, name, Some(HOUR), at)
                .unwrap()
                .map(|(token, _)| token)
        };
        let stays = made(folder, PageScope::Read, Some("stays"), None).0;
        let old = make(Some("ci"), before).unwrap();
        let new = make(Some("ci"), SystemTime::now()).unwrap();
        assert!(new.id != old.id && PageTokenList::load(folder).unwrap().find(&old.id).is_none());
        assert!(make(Some("ci"), SystemTime::now()).unwrap_err().contains("already"), "this one counts");
        for _ in 2..limits::PAGE_TOKENS_MAX {
            make(None, before).unwrap();
        }
        make(None, SystemTime::now()).unwrap();
        let left = PageTokenList::load(folder).unwrap();
        assert_eq!(left.iter().count(), 3, "those whose time is over are gone");
        assert!(left.find(&stays.id).is_some() && left.find(&new.id).is_some());
    }

    #[test]
    fn the_file_has_no_token_and_is_its_owners_alone() {
        let scratch = LeaseScratchFolder::new("tokens-file");
        let folder = &scratch.0;
        let (_, token) = made(folder, PageScope::Observe, None, None);
        let text = std::fs::read_to_string(folder.file(TOKENS_FILE)).unwrap();
        let secret = token.rsplit_once('-').unwrap().1;
        assert!(!text.contains(secret) && secret.len() == 64, "{text}");
        assert_eq!(std::fs::metadata(folder.file(TOKENS_FILE)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_farbus_did_not_write_lets_nobody_in_and_shows_a_terminal_nothing() {
        let scratch = LeaseScratchFolder::new("tokens-foreign");
        let folder = &scratch.0;
        made(folder, PageScope::Read, Some("ci"), Some(HOUR));
        let path = folder.file(TOKENS_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let ways: [(&str, &str); 4] = [
            ("\"ci\"", "\"\\u001b[2J\""),
            ("\"made\": \"2", "\"made\": \"\\u0007"),
            ("\"sha256\": \"", "\"sha256\": \"0"),
            ("\"expires_unix_s\"", "\"x\""),
        ];
        for (found, instead) in ways {
            let foreign = text.replace(found, instead);
            assert_ne!(foreign, text, "{found}");
            std::fs::write(&path, &foreign).unwrap();
            let why = PageTokenList::load(folder).unwrap_err().to_string();
            assert!(why.contains("token 1 is not as farbus writes it"), "{found}: {why}");
            assert!(
                PageTokenList::make(folder, PageScope::Read, None, None).is_err(),
                "what is damaged is not replaced"
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn a_token_never_lasts_longer_than_was_said_because_the_time_is_too_long() {
        let scratch = LeaseScratchFolder::new("tokens-long");
        for lasts in [limits::PAGE_TOKEN_TIME_MAX + Duration::from_secs(1), Duration::MAX] {
            let refused = PageTokenList::make(&scratch.0, PageScope::Read, None, Some(lasts)).unwrap();
            assert!(refused.is_err_and(|why| why.contains("3660 days")), "{lasts:?}");
        }
    }

    #[test]
    fn names_are_unique_short_and_shown_and_tokens_are_limited() {
        let scratch = LeaseScratchFolder::new("tokens-names");
        let folder = &scratch.0;
        made(folder, PageScope::Read, Some("ci"), None);
        for name in ["ci", "", "a\nb", "\u{202e}", &"x".repeat(65)] {
            assert!(PageTokenList::make(folder, PageScope::Read, Some(name), None).unwrap().is_err(), "{name:?}");
        }
        for _ in 1..limits::PAGE_TOKENS_MAX {
            made(folder, PageScope::Read, None, None);
        }
        let refused = PageTokenList::make(folder, PageScope::Read, None, None).unwrap().unwrap_err();
        assert!(refused.contains("revoke"), "{refused}");
        assert_eq!("own".parse(), Ok(PageScope::Own));
        assert!("root".parse::<PageScope>().unwrap_err().contains("read, observe and own"));
    }
}
