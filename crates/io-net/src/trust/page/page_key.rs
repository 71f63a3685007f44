//! The key with which a page shows itself to browsers of other machines: `page-key.pem`.
//!
//! It is no host's identity. The process that speaks HTTP has it, and that process may be taken over: then this key is
//! lost, and nothing else opens with it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType, date_time_ymd};
use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::TLS13;
use rustls::{ServerConfig, server::NoServerSessionStorage};

use crate::trust::keys::provider::provider;
use crate::trust::limits::{CERTIFICATE_BACKDATED, PAGE_CERTIFICATE_LIFETIME, PAGE_CERTIFICATE_RENEWED_BEFORE};
use crate::trust::state::folder::{HostFolder, StateError};

/// Key (PKCS #8) and certificate, PEM.
const KEY_FILE: &str = "page-key.pem";
/// The largest such file that is read; ours has 1 KiB.
const KEY_BYTES_MAX: u64 = 16 << 10;

/// A page's key and its certificate, as they are handed to the process that uses them.
#[derive(Clone, PartialEq, Eq)]
pub struct PageKey {
    /// The key, PKCS #8, DER.
    pub key: Vec<u8>,
    /// The certificate, X.509, DER. It is signed with the key itself.
    pub certificate: Vec<u8>,
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageKey").field(&self.fingerprint()).finish()
    }
}

impl PageKey {
    /// Reads key and certificate in `folder`. They are made for `names` (host names and addresses) if there are none,
    /// or if the certificate ends within 30 days. A certificate stays as it is when the names change: browsers that
    /// have seen it know it by its fingerprint.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read or written, other users may read it, or it holds something else.
    pub fn load_or_create(folder: &HostFolder, names: &[String]) -> Result<Self, StateError> {
        let _lock = folder.lock()?;
        let now = SystemTime::now();
        if let Some(found) = Self::load(folder)?
            && found.ends_after(now + PAGE_CERTIFICATE_RENEWED_BEFORE)
        {
            return Ok(found);
        }
        let trouble = |error: rcgen::Error| folder.trouble(KEY_FILE, &format_args!("it cannot be made: {error}"));
        // Browsers take no Ed25519.
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(trouble)?;
        let mut wanted = CertificateParams::default();
        wanted.distinguished_name = DistinguishedName::new();
        wanted.distinguished_name.push(DnType::CommonName, "farbus page");
        wanted.subject_alt_names = names.iter().filter_map(|name| alternative(name)).collect();
        let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        wanted.not_before = date_time_ymd(1970, 1, 1) + since(now).saturating_sub(CERTIFICATE_BACKDATED);
        wanted.not_after = date_time_ymd(1970, 1, 1) + since(now) + PAGE_CERTIFICATE_LIFETIME;
        let certificate = wanted.self_signed(&key).map_err(trouble)?;
        let text = format!("{}{}", key.serialize_pem(), certificate.pem());
        folder.write(KEY_FILE, text.as_bytes())?;
        Ok(Self { key: key.serialize_der(), certificate: certificate.der().to_vec() })
    }

    /// Reads key and certificate in `folder`; `None`: there are none.
    ///
    /// # Errors
    /// As [`PageKey::load_or_create`].
    pub fn load(folder: &HostFolder) -> Result<Option<Self>, StateError> {
        let Some(text) = folder.read(KEY_FILE, KEY_BYTES_MAX, true)? else { return Ok(None) };
        let damaged = || {
            let what = "it is damaged: it holds no key with its certificate\n  remove it: the page makes another, which \
                        browsers have to be shown again";
            folder.trouble(KEY_FILE, &what)
        };
        let (mut key, mut certificate) = (None, None);
        for section in <(SectionKind, Vec<u8>) as PemObject>::pem_slice_iter(&text) {
            match section.map_err(|_: pem::Error| damaged())? {
                (SectionKind::PrivateKey, der) => key = Some(der),
                (SectionKind::Certificate, der) => certificate = Some(der),
                _ => {}
            }
        }
        let both = key.zip(certificate).ok_or_else(damaged)?;
        Ok(Some(Self { key: both.0, certificate: both.1 }))
    }

    /// SHA-256 of the certificate as browsers show it: pairs of hexadecimal digits, with colons between them.
    pub fn fingerprint(&self) -> String {
        let hash = digest(&SHA256, &self.certificate);
        hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
    }

    fn ends_after(&self, at: SystemTime) -> bool {
        let der = CertificateDer::from(self.certificate.as_slice());
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        // Another form is of the years after 2049.
        not_after(&der).is_none_or(|end| end > at)
    }

    /// What a TLS 1.3 server does with them: it asks for no certificate, and keeps nothing of a session.
    ///
    /// # Errors
    /// Key and certificate do not fit.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let chain = vec![CertificateDer::from(self.certificate.clone())];
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
        let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// A name or an address in a certificate.
fn alternative(name: &str) -> Option<SanType> {
    match name.trim_matches(['[', ']']).parse() {
        Ok(address) => Some(SanType::IpAddress(address)),
        Err(_) => name.try_into().ok().map(SanType::DnsName),
    }
}

/// When a certificate of ours ends, seconds since 1970: the second of the two times of its `Validity` (RFC 5280, 4.1).
/// Those before 2050 are of the form YYMMDDHHMMSSZ, with the tag 0x17.
fn not_after(certificate: &[u8]) -> Option<u64> {
    const TIME: [u8; 2] = [0x17, 13];
    let mut times = certificate.windows(15).filter(|window| window.starts_with(&TIME) && window[14] == b'Z');
    let text = std::str::from_utf8(&times.nth(1)?[2..14]).ok()?;
    let part = |at: usize| text.get(at..at + 2).and_then(|digits| digits.parse::<u64>().ok());
    let (year, month, day) = (2000 + part(0)?, part(2)?, part(4)?);
    let (hour, minute, second) = (part(6)?, part(8)?, part(10)?);
    // Days since 1970 of the Gregorian calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month.checked_add(9)?) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day;
    Some(days.checked_sub(719_469)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::trust::records::leases::tests::LeaseScratchFolder;

    #[test]
    fn key_of_a_page_is_made_once_kept_secret_and_is_not_the_hosts_identity() {
        let scratch = LeaseScratchFolder::new("page-key");
        let folder = &scratch.0;
        assert_eq!(PageKey::load(folder).unwrap(), None);
        let names = ["lab3.example".to_owned(), "192.0.2.7".to_owned(), "[2001:db8::7]".to_owned(), "a b".to_owned()];
        let made = PageKey::load_or_create(folder, &names).unwrap();
        assert_eq!(PageKey::load_or_create(folder, &[]).unwrap(), made, "the names of later pages change nothing");
        assert_eq!(std::fs::metadata(folder.file(KEY_FILE)).unwrap().mode() & 0o777, 0o600);
        assert!(!crate::trust::keys::identity::HostIdentity::is_there(folder));
        let fingerprint = made.fingerprint();
        assert!(fingerprint.len() == 95 && fingerprint.split(':').count() == 32, "{fingerprint}");
        assert_eq!(made.server_config().unwrap().alpn_protocols, [b"http/1.1"]);
        std::fs::write(folder.file(KEY_FILE), "nothing").unwrap();
        assert!(PageKey::load(folder).unwrap_err().to_string().contains("page-key.pem"));
    }

    #[test]
    fn a_certificate_lasts_ten_years_as_it_says_itself() {
        let scratch = LeaseScratchFolder::new("page-key-end");
        let made = PageKey::load_or_create(&scratch.0, &["lab3".to_owned()]).unwrap();
        let now = SystemTime::now();
        let (day, end) = (std::time::Duration::from_secs(86_400), PAGE_CERTIFICATE_LIFETIME);
        assert!(made.ends_after(now + end - day) && !made.ends_after(now + end + day));
    }
}
