//! TLS 1.3 between hosts that know each other's keys: mutual, without resumption, without early data, without names.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use farbus_control::fingerprint::Fingerprint;
use farbus_model::Instant;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, PeerMisbehaved, ServerConfig, ServerConnection, SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::link::{BoottimeClock, HandshakeFailure, HandshakeLimits, Link, PollInterest, wait};
use crate::trust::keys::fingerprint::fingerprint_of_key;
use crate::trust::keys::identity::HostIdentity;
use crate::trust::keys::provider::provider;
use crate::trust::limits;

/// The protocol inside TLS, named in the handshake (ALPN, RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkProtocol {
    /// USB/IP 0x0111, as on a plain link.
    UsbIp,
    /// Questions about what is shared, each a line of JSON.
    Control,
    /// Pairing: two hosts that do not know each other yet, and a code.
    Pairing,
    /// A session of farbus's own protocol, or a further link of it.
    Session,
}

/// The server name for TLS, which needs one; it is not sent.
pub(in crate::trust) const NO_NAME: &str = "farbus";

impl LinkProtocol {
    const ALL: [LinkProtocol; 4] =
        [LinkProtocol::UsbIp, LinkProtocol::Control, LinkProtocol::Pairing, LinkProtocol::Session];

    /// The protocol that was agreed.
    pub(in crate::trust) fn named(agreed: Option<&[u8]>) -> Result<Self, HandshakeError> {
        let is_it = |protocol: &LinkProtocol| agreed == Some(protocol.name().as_bytes());
        LinkProtocol::ALL.into_iter().find(is_it).ok_or(HandshakeError::NoProtocol)
    }

    /// Its name in the handshake.
    pub const fn name(self) -> &'static str {
        match self {
            LinkProtocol::UsbIp => "farbus-usbip/1",
            LinkProtocol::Control => "farbus-control/1",
            LinkProtocol::Pairing => "farbus-pair/1",
            LinkProtocol::Session => "farbus/1",
        }
    }
}

/// Which keys are accepted.
#[derive(Clone)]
pub enum AcceptedKeys {
    /// Any key: the protocol inside finds out whose it is. Only for [`LinkProtocol::Pairing`].
    Anybody,
    /// Only this one.
    One(Fingerprint),
    /// Those for which it returns true; called once for each handshake.
    Known(Arc<dyn Fn(&Fingerprint) -> bool + Send + Sync>),
}

impl AcceptedKeys {
    fn accepts(&self, fingerprint: &Fingerprint) -> bool {
        match self {
            AcceptedKeys::Anybody => true,
            AcceptedKeys::One(known) => known == fingerprint,
            AcceptedKeys::Known(is_known) => is_known(fingerprint),
        }
    }
}

impl fmt::Debug for AcceptedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptedKeys::Anybody => f.write_str("Anybody"),
            AcceptedKeys::One(known) => f.debug_tuple("One").field(known).finish(),
            AcceptedKeys::Known(_) => f.write_str("Known"),
        }
    }
}

/// The terms of a handshake.
#[derive(Clone, Debug)]
pub struct HandshakeTerms {
    /// This host's key.
    pub identity: Arc<HostIdentity>,
    /// Which peers are accepted.
    pub accepts: AcceptedKeys,
    /// The possible protocols, best first.
    pub protocols: Vec<LinkProtocol>,
    /// The limits of the handshake.
    pub limits: HandshakeLimits,
}

/// An encrypted link whose peer has proved its key.
#[derive(Debug)]
pub struct SecureLink {
    /// The link, whose bytes are encrypted from now on.
    pub link: Link,
    /// The peer's key.
    pub peer: Fingerprint,
    /// The protocol that was agreed.
    pub protocol: LinkProtocol,
}

/// Why there is no encrypted link.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer proved a key that is not accepted, or showed none.
    Stranger(Option<Fingerprint>),
    /// The peer's certificate is out of date: expired, or a clock is wrong.
    OutOfDate(Fingerprint),
    /// The peer does not accept this host.
    Refused,
    /// The peer considers this host's certificate out of date.
    OursOutOfDate,
    /// There is no common protocol.
    NoProtocol,
    /// The peer broke the rules of TLS 1.3.
    Rules(Error),
    /// The link was closed or lost.
    Lost(io::Error),
    /// It took longer than a handshake may.
    TooSlow,
    /// It sent more than a handshake may.
    TooMuch,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Stranger(Some(key)) => write!(f, "its key {key} is not paired with this host"),
            HandshakeError::Stranger(None) => f.write_str("it shows no key that a farbus could have"),
            HandshakeError::OutOfDate(key) => {
                write!(f, "the certificate of {key} is out of date: is the clock of one of the two hosts wrong?")
            }
            HandshakeError::Refused => f.write_str("it does not know this host's key"),
            HandshakeError::OursOutOfDate => {
                f.write_str("it finds this host's certificate out of date: is the clock of one of the two hosts wrong?")
            }
            HandshakeError::NoProtocol => f.write_str("it speaks nothing that this farbus speaks"),
            HandshakeError::Rules(error) => write!(f, "it does not speak TLS 1.3 as a farbus does: {error}"),
            HandshakeError::Lost(error) => write!(f, "the link was lost in the handshake: {error}"),
            HandshakeError::TooSlow => f.write_str("the handshake took too long"),
            HandshakeError::TooMuch => f.write_str("it sent more than a handshake takes"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl HandshakeError {
    /// What an error of an encrypted link says about trust: in TLS 1.3 a client finishes its handshake before its key
    /// was checked, and learns of a refusal when it first receives.
    pub fn of_link(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?.downcast_ref::<Error>()?;
        Some(Self::of_tls(inner.clone()))
    }

    pub(in crate::trust) fn of_tls(error: Error) -> Self {
        match error {
            Error::AlertReceived(AlertDescription::AccessDenied | AlertDescription::CertificateRequired) => {
                Self::Refused
            }
            Error::AlertReceived(AlertDescription::CertificateExpired) => Self::OursOutOfDate,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
                Self::NoProtocol
            }
            Error::NoCertificatesPresented => Self::Stranger(None),
            error => Self::Rules(error),
        }
    }
}

impl HandshakeTerms {
    /// Runs the handshake with a peer that has connected. A refused peer is told why and given a moment to read it.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(&self, link: Link) -> Result<SecureLink, HandshakeError> {
        let verifier = Arc::new(KeyVerifier::new(self.accepts.clone()));
        let config = self.server_config(&verifier);
        let connection = ServerConnection::new(Arc::new(config)).map_err(HandshakeError::Rules)?;
        self.meet(link, connection.into(), &verifier)
    }

    /// The configuration of one handshake, which `verifier` judges.
    pub(in crate::trust) fn server_config(&self, verifier: &Arc<KeyVerifier>) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.expect("ring has TLS 1.3").with_client_cert_verifier(Arc::<KeyVerifier>::clone(verifier));
        let mut config = builder.with_cert_resolver(Arc::new(FixedCertificate(self.identity.certified())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = self.names();
        config
    }

    /// Runs the handshake with the peer that this host has connected to.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect(&self, link: Link) -> Result<SecureLink, HandshakeError> {
        self.connect_showing(link, self.identity.certified())
    }

    fn connect_showing(&self, link: Link, shown: Arc<CertifiedKey>) -> Result<SecureLink, HandshakeError> {
        let verifier = Arc::new(KeyVerifier::new(self.accepts.clone()));
        let config = self.client_config(&verifier, shown);
        let name = ServerName::try_from(NO_NAME).expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).map_err(HandshakeError::Rules)?;
        self.meet(link, connection.into(), &verifier)
    }

    /// The configuration of one handshake, which `verifier` judges.
    pub(in crate::trust) fn client_config(
        &self,
        verifier: &Arc<KeyVerifier>,
        shown: Arc<CertifiedKey>,
    ) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.expect("ring has TLS 1.3").dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::<KeyVerifier>::clone(verifier));
        let mut config = builder.with_client_cert_resolver(Arc::new(FixedCertificate(shown)));
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        // No name is sent or checked: only the key identifies the peer.
        config.enable_sni = false;
        config.alpn_protocols = self.names();
        config
    }

    fn names(&self) -> Vec<Vec<u8>> {
        self.protocols.iter().map(|protocol| protocol.name().as_bytes().to_owned()).collect()
    }

    fn meet(&self, link: Link, connection: Connection, verifier: &KeyVerifier) -> Result<SecureLink, HandshakeError> {
        let link = link.encrypt(connection, self.limits).map_err(|(failure, link)| {
            let error = verifier.explain(failure);
            hear_out(&link);
            error
        })?;
        let agreed = link.ask_tls(|tls| tls.alpn_protocol().map(<[u8]>::to_owned)).flatten();
        let protocol = LinkProtocol::named(agreed.as_deref())?;
        let peer = verifier.seen().ok_or(HandshakeError::Stranger(None))?;
        Ok(SecureLink { link, peer, protocol })
    }
}

/// Reads and discards for a moment, so that the peer can read the alert: closing a socket with unread bytes resets it.
fn hear_out(link: &Link) {
    link.finish_sending();
    let clock = BoottimeClock::start();
    let until = clock.now() + limits::LAST_WORDS_TIME_MAX;
    let (mut forgotten, mut left) = ([0; 4096], limits::LAST_WORDS_BYTES_MAX);
    while left > 0 {
        let now: Instant = clock.now();
        let mut interests = [PollInterest::new(std::os::fd::AsFd::as_fd(link), false)];
        if now >= until || wait(&mut interests, Some(until - now)).is_err() {
            return;
        }
        match link.try_receive(&mut forgotten) {
            Ok(Some(count)) if count > 0 => left = left.saturating_sub(count),
            Ok(None) => {}
            _ => return,
        }
    }
}

/// The only signature algorithm.
static ED25519: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

/// The DER of an Ed25519 SubjectPublicKeyInfo before the key's 32 bytes (RFC 8410 §4).
const ED25519_KEY_INFO: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Accepts peers with an accepted key: for one handshake, of either side.
#[derive(Debug)]
pub(in crate::trust) struct KeyVerifier {
    accepts: AcceptedKeys,
    verdict: Mutex<Option<KeyVerdict>>,
}

#[derive(Clone, Copy, Debug)]
struct KeyVerdict {
    fingerprint: Fingerprint,
    is_known: bool,
    is_in_date: bool,
}

impl KeyVerifier {
    pub fn new(accepts: AcceptedKeys) -> Self {
        Self { accepts, verdict: Mutex::default() }
    }

    fn verify(&self, shown: &CertificateDer<'_>, more: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        if !more.is_empty() {
            // A farbus sends one certificate: no authority has signed it.
            return Err(CertificateError::BadEncoding.into());
        }
        let bad = |_| Error::from(CertificateError::BadEncoding);
        let certificate = EndEntityCert::try_from(shown).map_err(bad)?;
        let key_info = certificate.subject_public_key_info();
        if key_info.len() != ED25519_KEY_INFO.len() + 32 || !key_info.starts_with(&ED25519_KEY_INFO) {
            return Err(CertificateError::BadEncoding.into());
        }
        let fingerprint = fingerprint_of_key(&key_info);
        let is_known = self.accepts.accepts(&fingerprint);
        // The key is what is trusted; the certificate is its own anchor, so date and signature remain to be checked.
        let anchor = [anchor_from_trusted_cert(shown).map_err(bad)?];
        let checked =
            certificate.verify_for_usage(ED25519.all, &anchor, &[], now, KeyUsage::client_auth(), None, None).map(drop);
        let verdict = KeyVerdict { fingerprint, is_known, is_in_date: checked.is_ok() };
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
        if !is_known {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        checked.map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateError::Expired.into(),
            webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet.into(),
            _ => CertificateError::BadEncoding.into(),
        })
    }

    pub fn seen(&self) -> Option<Fingerprint> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).map(|verdict| verdict.fingerprint)
    }

    /// What was wrong with the peer's certificate itself.
    pub fn objection(&self) -> Option<HandshakeError> {
        let verdict = *self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        match verdict {
            Some(KeyVerdict { fingerprint, is_known: false, .. }) => Some(HandshakeError::Stranger(Some(fingerprint))),
            Some(KeyVerdict { fingerprint, is_in_date: false, .. }) => Some(HandshakeError::OutOfDate(fingerprint)),
            _ => None,
        }
    }

    fn explain(&self, failure: HandshakeFailure) -> HandshakeError {
        let verdict = *self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        match (failure, verdict) {
            (HandshakeFailure::Lost(error), _) => HandshakeError::Lost(error),
            (HandshakeFailure::TooSlow, _) => HandshakeError::TooSlow,
            (HandshakeFailure::TooMuch, _) => HandshakeError::TooMuch,
            (
                HandshakeFailure::Tls(Error::InvalidCertificate(_)),
                Some(KeyVerdict { fingerprint, is_known: false, .. }),
            ) => HandshakeError::Stranger(Some(fingerprint)),
            (
                HandshakeFailure::Tls(Error::InvalidCertificate(
                    CertificateError::Expired | CertificateError::NotValidYet,
                )),
                Some(KeyVerdict { fingerprint, is_in_date: false, .. }),
            ) => HandshakeError::OutOfDate(fingerprint),
            (HandshakeFailure::Tls(Error::InvalidCertificate(CertificateError::BadEncoding)), _) => {
                HandshakeError::Stranger(None)
            }
            (HandshakeFailure::Tls(error), _) => HandshakeError::of_tls(error),
        }
    }

    /// TLS 1.2 is not built in; a peer that uses it breaks the rules.
    fn no_tls12() -> Error {
        PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
    }
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(shown, more, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Self::no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signature, &ED25519)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(shown, more, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Self::no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signature, &ED25519)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Always shows this certificate.
#[derive(Debug)]
struct FixedCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for FixedCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl ResolvesClientCert for FixedCertificate {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
