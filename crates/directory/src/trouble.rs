//! Why the directory does not do what was asked.

use std::fmt;

/// The kind of a [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
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

impl TroubleKind {
    /// The kind as a word, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            TroubleKind::Unreachable => "unreachable",
            TroubleKind::Certificate => "certificate",
            TroubleKind::Password => "password",
            TroubleKind::Permission => "permission",
            TroubleKind::Full => "full",
            TroubleKind::OtherFormat => "other-format",
            TroubleKind::NotEtcd => "not-etcd",
            TroubleKind::TooMuch => "too-much",
            TroubleKind::Contended => "contended",
        }
    }
}

/// Why the directory does not do what was asked: a kind, and a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of trouble, from which follows what to do about it.
    pub kind: TroubleKind,
    /// What happened, for a person.
    pub message: String,
}

impl Trouble {
    /// A trouble of this kind, with a sentence about it.
    pub fn new(kind: TroubleKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self.kind {
            TroubleKind::Unreachable => "it is tried again; see: etcdctl endpoint status --cluster",
            TroubleKind::Certificate => "name the authority of its certificate: ca = \"FILE\" in [directory]",
            TroubleKind::Password => {
                "see at = \"etcds://USER@…\" and password_file in [directory], and: etcdctl user list"
            }
            TroubleKind::Permission => {
                "as root of etcd: etcdctl role grant-permission ROLE --prefix=true readwrite /farbus/"
            }
            TroubleKind::Full => "make room: etcdctl compaction, etcdctl defrag, etcdctl alarm disarm",
            TroubleKind::OtherFormat => "use one release of farbus with one directory, or another etcd",
            TroubleKind::NotEtcd => "see the address of the directory: it is that of clients (2379), not of peers",
            TroubleKind::TooMuch => "name a host: farbus list HOST",
            TroubleKind::Contended => "two daemons have one key: give this host its own, with 'farbus id'",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Trouble {}
