//! Why the directory does not do what was asked.

use std::fmt;

/// The kind of a [`DirectoryFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryFailureKind {
    /// No member answers: not reached, no majority, or too slow.
    Unreachable,
    /// The server's certificate is not one of the authority that was named, or the server refused ours.
    Certificate,
    /// The user or the password is wrong, or is missing.
    Password,
    /// The user may not read or write the keys.
    Permission,
    /// The database is full.
    Full,
    /// The keys are those of another release.
    OtherFormat,
    /// What answers is no etcd with a JSON gateway.
    NotEtcd,
    /// There are more hosts and devices than farbus keeps in memory.
    TooMuch,
    /// Another process with this host's key writes there, too.
    Contended,
}

impl DirectoryFailureKind {
    /// The kind as a word, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            DirectoryFailureKind::Unreachable => "unreachable",
            DirectoryFailureKind::Certificate => "certificate",
            DirectoryFailureKind::Password => "password",
            DirectoryFailureKind::Permission => "permission",
            DirectoryFailureKind::Full => "full",
            DirectoryFailureKind::OtherFormat => "other-format",
            DirectoryFailureKind::NotEtcd => "not-etcd",
            DirectoryFailureKind::TooMuch => "too-much",
            DirectoryFailureKind::Contended => "contended",
        }
    }
}

/// Why the directory does not do what was asked: a kind, and a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryFailure {
    /// What kind of trouble, from which follows what to do about it.
    pub kind: DirectoryFailureKind,
    /// What happened, for a person.
    pub message: String,
}

impl DirectoryFailure {
    /// A trouble of this kind, with a sentence about it.
    pub fn new(kind: DirectoryFailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self.kind {
            DirectoryFailureKind::Unreachable => "it is tried again; see: etcdctl endpoint status --cluster",
            DirectoryFailureKind::Certificate => "name the authority of its certificate: ca = \"FILE\" in [directory]",
            DirectoryFailureKind::Password => {
                "see at = \"etcds://USER@…\" and password_file in [directory], and: etcdctl user list"
            }
            DirectoryFailureKind::Permission => {
                "as root of etcd: etcdctl role grant-permission ROLE --prefix=true readwrite /farbus/"
            }
            DirectoryFailureKind::Full => "make room: etcdctl compaction, etcdctl defrag, etcdctl alarm disarm",
            DirectoryFailureKind::OtherFormat => "use one release of farbus with one directory, or another etcd",
            DirectoryFailureKind::NotEtcd => {
                "see the address of the directory: it is that of clients (2379), not of peers"
            }
            DirectoryFailureKind::TooMuch => "name a host: farbus list HOST",
            DirectoryFailureKind::Contended => "two daemons have one key: give this host its own, with 'farbus id'",
        }
    }
}

impl fmt::Display for DirectoryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DirectoryFailure {}
