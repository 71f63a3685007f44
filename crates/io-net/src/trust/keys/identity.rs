//! This host's key, and its certificate.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_control::fingerprint::Fingerprint;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::fingerprint::fingerprint_of_key;
use super::provider::provider;
use crate::trust::limits;
use crate::trust::state::folder::{HostFolder, StateError};

/// The file with the key: PKCS #8, PEM.
const KEY_FILE: &str = "key.pem";
/// The largest key file that is read; ours has 200 bytes.
const KEY_BYTES_MAX: u64 = 16 << 10;

/// A host's key.
pub struct HostIdentity {
    key: KeyPair,
    fingerprint: Fingerprint,
    current: Mutex<Option<IssuedCertificate>>,
}

struct IssuedCertificate {
    at: SystemTime,
    certified: Arc<CertifiedKey>,
}

impl HostIdentity {
    /// Reads the key in `folder`; creates it if there is none.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read or created, other users may read it, or it contains no Ed25519 key.
    pub fn load_or_create(folder: &HostFolder) -> Result<Self, StateError> {
        if let Some(found) = Self::load(folder)? {
            return Ok(found);
        }
        // Two processes that both need a key create only one.
        let _lock = folder.lock()?;
        if let Some(found) = Self::load(folder)? {
            return Ok(found);
        }
        let made = Self::generate();
        folder.write(KEY_FILE, made.key.serialize_pem().as_bytes())?;
        Ok(made)
    }

    /// Reads the key in `folder`, if there is one.
    ///
    /// # Errors
    /// As [`HostIdentity::load_or_create`].
    pub fn load(folder: &HostFolder) -> Result<Option<Self>, StateError> {
        let Some(pem) = folder.read(KEY_FILE, KEY_BYTES_MAX, true)? else { return Ok(None) };
        let damaged = || {
            let path = folder.file(KEY_FILE);
            let what = format!(
                "it is damaged: it holds no Ed25519 key (PKCS #8, PEM)\n  \
                 bring it back from a backup; or take a new key, and pair all hosts again: mv {0} {0}.damaged",
                path.display()
            );
            StateError { path, what }
        };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| damaged())?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519).map_err(|_| damaged())?;
        Ok(Some(Self::over(key)))
    }

    /// Whether `folder` contains a key file, whatever its content.
    pub fn is_there(folder: &HostFolder) -> bool {
        folder.file(KEY_FILE).exists()
    }

    /// A new key that is not stored.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn generate() -> Self {
        Self::over(KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the system gives random numbers"))
    }

    fn over(key: KeyPair) -> Self {
        let fingerprint = fingerprint_of_key(&key.subject_public_key_info());
        Self { key, fingerprint, current: Mutex::default() }
    }

    /// The fingerprint of this host's key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A self-signed certificate without a name, valid from `from` until `until`.
    ///
    /// # Panics
    /// If the key cannot sign: it was checked when it was read or created.
    pub fn certificate(&self, from: SystemTime, until: SystemTime) -> CertificateDer<'static> {
        let mut wanted = CertificateParams::default();
        wanted.distinguished_name = DistinguishedName::new();
        // The same for every host, because a certificate is shown to unknown peers.
        wanted.distinguished_name.push(DnType::CommonName, "farbus");
        wanted.not_before = date_time_ymd(1970, 1, 1) + since_epoch(from);
        wanted.not_after = date_time_ymd(1970, 1, 1) + since_epoch(until);
        wanted.self_signed(&self.key).expect("a key signs").der().clone()
    }

    /// Key and certificate for TLS; the certificate was created today.
    pub(in crate::trust) fn certified(&self) -> Arc<CertifiedKey> {
        let now = SystemTime::now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(issued) = &*current
            && now.duration_since(issued.at).is_ok_and(|age| age < limits::CERTIFICATE_RENEWED_AFTER)
        {
            return Arc::clone(&issued.certified);
        }
        let from = now.checked_sub(limits::CERTIFICATE_BACKDATED).unwrap_or(UNIX_EPOCH);
        let certificate = self.certificate(from, now + limits::CERTIFICATE_LIFETIME);
        let certified = self.certified_with(certificate);
        *current = Some(IssuedCertificate { at: now, certified: Arc::clone(&certified) });
        certified
    }

    /// Key and another certificate of it, for TLS.
    pub(in crate::trust) fn certified_with(&self, certificate: CertificateDer<'static>) -> Arc<CertifiedKey> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let signing = provider().key_provider.load_private_key(key).expect("rcgen's keys are rustls's keys");
        Arc::new(CertifiedKey::new(vec![certificate], signing))
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl fmt::Debug for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostIdentity").field(&self.fingerprint).finish()
    }
}
