//! Where the directory is, as the configuration says it: `directory = "etcd://HOST:PORT"`, or a table with files.

use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use farbus_io_net::trust::CertificateAuthority;
use serde::{Deserialize, Serialize};
use toml::{Spanned, Value};

use super::super::spec::SpannedError;

/// The most members that are named.
const MEMBERS_MAX: usize = 16;
/// The longest file that is named, bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Where members listen for clients.
const CLIENT_PORT: u16 = 2379;

/// An etcd, and how it is talked to.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The members, `HOST:PORT`.
    pub members: Vec<String>,
    /// Whether the links are encrypted.
    pub is_encrypted: bool,
    /// The user in etcd.
    pub user: Option<String>,
    /// What the files say.
    pub files: EtcdCredentials,
}

impl std::fmt::Debug for EtcdSettings {
    // The password stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// The texts of the files that the table names, appended by the process that can read them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdCredentials {
    /// The authority that vouches for the members' certificates, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// This host's certificate, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Its private key, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The password of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DirectoryTable {
    at: String,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    password_file: Option<PathBuf>,
}

impl EtcdSettings {
    /// Reads what the configuration says, with the texts of the files if they were read.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn from_config(value: Spanned<Value>, files: Option<EtcdCredentials>) -> Result<Self, SpannedError> {
        let span = value.span();
        let wrong = |message: String| (Some(span.clone()), message);
        let table = table_of(value.into_inner()).map_err(wrong)?;
        let settings = parse(&table.at).map_err(wrong)?;
        let Self { is_encrypted, user, .. } = &settings;
        let next = match (is_encrypted, user, &table) {
            (true, _, DirectoryTable { ca: None, .. }) => {
                "etcds:// needs the authority of its certificates: ca = \"FILE\""
            }
            (false, _, DirectoryTable { ca: Some(_), .. } | DirectoryTable { certificate: Some(_), .. }) => {
                "certificates go with etcds://"
            }
            (
                _,
                _,
                DirectoryTable { certificate: Some(_), key: None, .. }
                | DirectoryTable { certificate: None, key: Some(_), .. },
            ) => "'certificate' and 'key' go together",
            (_, Some(_), DirectoryTable { password_file: None, .. }) => {
                "the user has a password: password_file = \"FILE\""
            }
            (_, None, DirectoryTable { password_file: Some(_), .. }) => {
                "whose password is it? name the user: at = \"etcds://USER@HOST:PORT\""
            }
            (false, Some(_), _) if !settings.is_local() => {
                "the password would be read on the way: encrypt with etcds:// and ca = \"FILE\""
            }
            _ => "",
        };
        if !next.is_empty() {
            return Err(wrong(next.to_owned()));
        }
        let settings = Self { files: files.unwrap_or_default(), ..settings };
        settings.authority().map_err(wrong)?;
        Ok(settings)
    }

    /// The table of TOML with the texts of the files that `said` names; `None` if it names none.
    ///
    /// # Errors
    /// A file cannot be read, or the password may be read by others.
    pub fn read_files(config: &Path, value: &Value) -> io::Result<Option<Value>> {
        let Ok(DirectoryTable { ca, certificate, key, password_file, .. }) = table_of(value.clone()) else {
            // It is reported by the process that parses all of it.
            return Ok(None);
        };
        let folder = config.parent().unwrap_or(Path::new(""));
        let read = |path: Option<PathBuf>| path.map(|path| read_file(&folder.join(path))).transpose();
        let password = password_file.map(|path| read_password(&folder.join(path))).transpose()?;
        let files = EtcdCredentials { ca: read(ca)?, certificate: read(certificate)?, key: read(key)?, password };
        if files == EtcdCredentials::default() {
            return Ok(None);
        }
        Value::try_from(files).map(Some).map_err(io::Error::other)
    }

    /// The authority of the members' certificates; `None` if links are not encrypted, or its file was not read.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn authority(&self) -> Result<Option<CertificateAuthority>, String> {
        let Some(ca) = self.files.ca.as_ref().filter(|_| self.is_encrypted) else { return Ok(None) };
        let shown = self.files.certificate.as_deref().zip(self.files.key.as_deref());
        CertificateAuthority::new(ca, shown).map(Some)
    }

    /// The address as the configuration has it. It has no password.
    pub fn shown(&self) -> String {
        let scheme = if self.is_encrypted { "etcds" } else { "etcd" };
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        format!("{scheme}://{user}{}", self.members.join(","))
    }

    /// Whether all members are of this machine.
    fn is_local(&self) -> bool {
        self.members.iter().all(|member| {
            let host = member.rsplit_once(':').map_or(member.as_str(), |(host, _)| host).trim_matches(['[', ']']);
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
    }
}

fn table_of(value: Value) -> Result<DirectoryTable, String> {
    match value {
        Value::String(at) => Ok(DirectoryTable { at, ..DirectoryTable::default() }),
        table => table.try_into().map_err(|error: toml::de::Error| {
            format!("directory: {}: at, ca, certificate, key and password_file are its words", error.message())
        }),
    }
}

/// Parses the directory's address, `etcd://[USER@]HOST[:PORT][,HOST[:PORT]…]`; `etcds` asks for TLS.
fn parse(at: &str) -> Result<EtcdSettings, String> {
    let wrong = |why: &str| {
        let shown = at.escape_debug();
        format!("'{shown}' is no directory: {why}; write \"etcd://HOST:PORT\" or \"etcds://USER@HOST:PORT,HOST:PORT\"")
    };
    let (is_encrypted, rest) = match at.split_once("://") {
        Some(("etcd", rest)) => (false, rest),
        Some(("etcds", rest)) => (true, rest),
        _ => return Err(wrong("it begins with etcd:// or etcds://")),
    };
    let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
    if user.is_some_and(|user| user.is_empty() || user.contains([':', '/']) || user.chars().any(char::is_control)) {
        return Err(wrong("a user is a name; its password stands in a file"));
    }
    let members: Vec<String> = hosts
        .trim_end_matches('/')
        .split(',')
        .map(member_of)
        .collect::<Option<_>>()
        .ok_or_else(|| wrong("members are HOST or HOST:PORT, with commas between them"))?;
    if members.len() > MEMBERS_MAX {
        return Err(wrong("it has too many members"));
    }
    Ok(EtcdSettings { members, is_encrypted, user: user.map(str::to_owned), files: EtcdCredentials::default() })
}

fn member_of(word: &str) -> Option<String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let (host, port) = match word.strip_prefix('[') {
        Some(rest) => {
            let (ip, rest) = rest.split_once(']')?;
            (format!("[{ip}]"), rest.strip_prefix(':').or(if rest.is_empty() { None } else { Some("x") }))
        }
        None => word.split_once(':').map_or((word.to_owned(), None), |(host, port)| (host.to_owned(), Some(port))),
    };
    let bare = host.trim_matches(['[', ']']);
    if bare.is_empty() || bare.len() > 255 || !bare.bytes().all(is_letter) {
        return None;
    }
    let port = port.map_or(Some(CLIENT_PORT), |port| port.parse().ok().filter(|port| *port > 0))?;
    Some(format!("{host}:{port}"))
}

fn read_file(path: &Path) -> io::Result<String> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("directory: {}: {error}", path.display()));
    let mut text = String::new();
    let file = fs::File::open(path).map_err(named)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(named)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(named(io::Error::other("it has more than 64 KiB"))),
        false => Ok(text),
    }
}

fn read_password(path: &Path) -> io::Result<String> {
    let text = read_file(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o007 != 0 {
        let path = path.display();
        let message =
            format!("directory: {path}: every user of this machine may read the password\n  chmod 600 {path}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DaemonConfig;

    fn read(text: &str) -> Result<EtcdSettings, String> {
        DaemonConfig::parse(text).map(|config| config.directory.unwrap()).map_err(|(span, message)| {
            assert!(span.is_some(), "{message}");
            message
        })
    }

    #[test]
    fn address_names_scheme_user_and_members() {
        let settings = read("directory = 'etcd://a,b:99,[::1]:7'").unwrap();
        assert_eq!(settings.members, ["a:2379", "b:99", "[::1]:7"]);
        assert_eq!(settings.shown(), "etcd://a:2379,b:99,[::1]:7");
        assert!(!settings.is_encrypted && settings.user.is_none());
        let settings = read("[directory]\nat='etcds://lab@a'\nca='ca.pem'\npassword_file='p'").unwrap();
        assert_eq!((settings.user.as_deref(), settings.is_encrypted), (Some("lab"), true));
        assert!(read("[directory]\nat='etcd://lab@127.0.0.1,localhost:7'\npassword_file='p'").is_ok());
        let grant = DaemonConfig::parse("directory='etcd://a,b:99'").unwrap().broker_policy();
        assert_eq!((grant.directory, grant.hosts.len()), (vec!["a:2379".to_owned(), "b:99".to_owned()], 0));
    }

    #[test]
    fn wrong_directory_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("directory = 'lab3:2379'", "begins with etcd://"),
            ("directory = 'http://a'", "begins with etcd://"),
            ("directory = 'etcd://'", "HOST:PORT"),
            ("directory = 'etcd://a b'", "HOST:PORT"),
            ("directory = 'etcd://a:0'", "HOST:PORT"),
            ("directory = 'etcd://[::1]x'", "HOST:PORT"),
            ("directory = 'etcd://u:secret@a'", "password stands in a file"),
            ("directory = 'etcd://u@a'", "password_file = "),
            ("directory = 'etcds://a'", "ca = "),
            ("directory = 7", "its words"),
            ("[directory]\nat = 'etcd://a'\nuser = 'x'", "its words"),
            ("[directory]\nat = 'etcd://a'\nca = 'x'", "go with etcds"),
            ("[directory]\nat = 'etcds://a'\nca = 'x'\nkey = 'x'", "go together"),
            ("[directory]\nat = 'etcd://a'\npassword_file = 'x'", "name the user"),
            ("[directory]\nat = 'etcd://u@a'\npassword_file = 'x'", "on the way"),
            ("[directory]\nat = 'etcds://a'\nca = 'x'\n[directory_files]\nca = 'nonsense'", "authority's certificate"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn files_beside_the_configuration_are_read_and_a_password_is_the_owners_alone() {
        let folder = std::env::temp_dir().join(format!("farbus-directory-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (config, password) = (folder.join("farbus.toml"), folder.join("p"));
        let text = "[directory]\nat='etcd://lab@127.0.0.1'\npassword_file='p'\n".to_owned();
        assert!(DaemonConfig::complete(&config, text.clone()).unwrap_err().to_string().contains("No such file"));
        fs::write(&password, "x\"y\n").unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(DaemonConfig::complete(&config, text.clone()).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
        let settings = read(&DaemonConfig::complete(&config, text).unwrap()).unwrap();
        assert_eq!(settings.files.password.as_deref(), Some("x\"y"));
        assert!(!format!("{settings:?}").contains("x\"y"));
        fs::remove_dir_all(folder).unwrap();
    }
}
