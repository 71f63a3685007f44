//! TLS to a server that is no farbus, and whose certificate an authority vouches for: a directory's.
//!
//! Paired hosts trust keys and no authority (see the other modules). A directory is trusted with nothing but its own
//! password, so the usual rules are enough here: a chain to the authority that the owner named, in date, for the name
//! or address that was asked for.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore};

use crate::link::{HandshakeFailure, Link};
use crate::trust::keys::provider::provider;
use crate::trust::limits;

/// An authority, and the certificate that this host shows, if any.
#[derive(Clone, Debug)]
pub struct CertificateAuthority(Arc<ClientConfig>);

/// Why there is no encrypted link to a server.
#[derive(Debug)]
pub enum AuthorityError {
    /// The server's certificate is not accepted, or it does not accept ours: a sentence for a person.
    Certificate(String),
    /// The link was closed or lost, was too slow, or carries no TLS 1.3.
    Link(String),
}

impl fmt::Display for AuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthorityError::Certificate(message) | AuthorityError::Link(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for AuthorityError {}

impl CertificateAuthority {
    /// The authority whose certificates `ca` has (PEM), and this host's own chain and private key, if it shows one.
    ///
    /// # Errors
    /// A sentence for a person: what is wrong with which of the texts.
    pub fn new(ca: &str, shown: Option<(&str, &str)>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in chain(ca, "the authority's certificate")? {
            roots.add(certificate).map_err(|error| format!("the authority's certificate: {error}"))?;
        }
        let builder =
            ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = chain(certificate, "this host's certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
                let key = key.map_err(|error| format!("the key of this host's certificate: {error}"))?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| format!("this host's certificate and its key: {error}"))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Encrypts a link to the server `host`, a name or an address, without a port.
    ///
    /// # Errors
    /// [`AuthorityError`]: the certificate of one side is not accepted, or the link was lost.
    pub fn connect(&self, link: Link, host: &str) -> Result<Link, AuthorityError> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| AuthorityError::Link(format!("'{host}' is no name or address of a server")))?;
        let connection = ClientConnection::new(Arc::clone(&self.0), name);
        let connection = connection.map_err(|error| AuthorityError::Link(error.to_string()))?;
        link.encrypt(connection.into(), limits::HANDSHAKE).map_err(|(failure, _)| match failure {
            HandshakeFailure::Tls(error) => of_tls(&error),
            HandshakeFailure::Lost(error) => AuthorityError::Link(format!("lost in the handshake: {error}")),
            HandshakeFailure::TooSlow => AuthorityError::Link("the handshake took too long".to_owned()),
            HandshakeFailure::TooMuch => AuthorityError::Link("more was sent than a handshake takes".to_owned()),
        })
    }
}

impl AuthorityError {
    /// What an error of the encrypted link says: in TLS 1.3 a client learns of a refusal when it first receives.
    pub fn of_link(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(of_tls)
    }
}

fn of_tls(error: &Error) -> AuthorityError {
    match error {
        Error::InvalidCertificate(why) => {
            AuthorityError::Certificate(format!("its certificate is not accepted: {why}"))
        }
        Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired),
        ) => AuthorityError::Certificate(format!("it does not accept the certificate of this host: {alert:?}")),
        error => AuthorityError::Link(format!("no TLS 1.3: {error}")),
    }
}

fn chain(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(format!("{what}: there is none in the file (PEM)")),
        chain => chain.map_err(|error| format!("{what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A server with a certificate of `issuer` for `name`. Returns where it accepts one connection.
    fn server(issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
        let chain = vec![certificate.der().clone()];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (stream, peer) = listener.accept().unwrap();
            let link = Link::over_tcp(stream.into(), peer).unwrap();
            let connection = ServerConnection::new(config).unwrap();
            if let Ok(link) = link.encrypt(connection.into(), limits::HANDSHAKE) {
                link.close_in_order(limits::HANDSHAKE_TIME_MAX);
            }
        });
        address
    }

    fn meet(ca: &str, at: SocketAddr, name: &str) -> Result<(), AuthorityError> {
        let link = Link::connect(&at.to_string(), limits::HANDSHAKE_TIME_MAX).unwrap();
        CertificateAuthority::new(ca, None).unwrap().connect(link, name).map(drop)
    }

    #[test]
    fn server_is_accepted_for_its_name_and_from_its_authority_alone() {
        let (ours, other) = (authority(), authority());
        assert!(meet(&ours.pem(), server(&ours, "127.0.0.1"), "127.0.0.1").is_ok());
        assert!(meet(&ours.pem(), server(&ours, "etcd.lab"), "etcd.lab").is_ok());
        for (ca, name) in [(&other, "127.0.0.1"), (&ours, "other.lab")] {
            let refused = meet(&ca.pem(), server(&ours, "127.0.0.1"), name).unwrap_err();
            assert!(matches!(&refused, AuthorityError::Certificate(_)), "{refused:?}");
        }
    }

    #[test]
    fn files_that_are_none_are_told_apart() {
        let ours = authority();
        let refused = |ca: &str, shown| CertificateAuthority::new(ca, shown).unwrap_err();
        assert_eq!(refused("", None), "the authority's certificate: there is none in the file (PEM)");
        let shown = refused(&ours.pem(), Some(("x", "y")));
        assert_eq!(shown, "this host's certificate: there is none in the file (PEM)");
        let pem = ours.pem();
        assert!(refused(&pem, Some((&pem, "y"))).starts_with("the key of this host's certificate: "));
    }
}
