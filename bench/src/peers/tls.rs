//! The limit for encrypted bytes: one stream of rustls as its documentation shows it, and two farbus hosts for
//! comparison.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection, SignatureScheme,
    StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    version::TLS13,
};

use super::{listen::serve_each, server::PeerServer, stream::serve_bursts};
use crate::{load::UsbipLoadClient, placement::CpuPlacement};

/// A client's end.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// farbus's ALPN name of USB/IP.
const USBIP: &[u8] = b"farbus-usbip/1";

fn server_config() -> Result<Arc<ServerConfig>> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let (certificate, key) = certified(&key)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    Ok(Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key)?))
}

pub fn serve(listener: TcpListener) -> Result<()> {
    let config = server_config()?;
    serve_each(&listener, |socket| {
        serve_bursts(&mut StreamOwned::new(ServerConnection::new(Arc::clone(&config))?, socket))
    })
}

/// A connection to [`serve`], or to any other server of TLS 1.3 that this benchmark has started.
pub fn connect(address: SocketAddr) -> Result<TlsStream> {
    over(address, trusting_config()?)
}

fn trusting_config() -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustingVerifier));
    Ok(builder.with_no_client_auth())
}

fn over(address: SocketAddr, config: ClientConfig) -> Result<TlsStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("bench")?)?;
    Ok(StreamOwned::new(connection, socket))
}

/// Both ends of a connection that has no socket, their handshake done.
pub fn in_memory() -> Result<(ClientConnection, ServerConnection)> {
    let mut client = ClientConnection::new(Arc::new(trusting_config()?), ServerName::try_from("bench")?)?;
    let mut server = ServerConnection::new(server_config()?)?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire)?;
        server.read_tls(&mut wire.as_slice())?;
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire)?;
        client.read_tls(&mut wire.as_slice())?;
        client.process_new_packets()?;
    }
    Ok((client, server))
}

/// Two paired farbus hosts. Their folder is removed when dropped.
pub struct TlsHostPair {
    folder: PathBuf,
    program: PathBuf,
}

impl TlsHostPair {
    pub fn pair(program: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("farbus-bench-{}", std::process::id()));
        let hosts = Self { folder, program: program.to_owned() };
        let mut waiting = hosts
            .command("server")
            .args(["pair", "--listen", "127.0.0.1:0", "--allow", "all", "--json"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(waiting.stdout.take().expect("piped")).lines();
        let line: serde_json::Value = serde_json::from_str(&lines.next().context("'farbus pair' says nothing")??)?;
        let [address, code] = ["address", "code"].map(|key| line[key].as_str().unwrap_or_default());
        let joined = hosts.command("client").args(["pair", address, code]).stdout(Stdio::null()).status()?;
        if !joined.success() {
            let _ = waiting.kill();
            bail!("the hosts did not pair: {joined}");
        }
        // Its further output is read to the end.
        lines.for_each(drop);
        ensure!(waiting.wait()?.success(), "the hosts did not pair");
        Ok(hosts)
    }

    fn command(&self, host: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("FARBUS_STATE", self.folder.join(host)).env("FARBUS_NAME", host).stdin(Stdio::null());
        command
    }

    /// `farbus share WHAT --secure` on one of them.
    pub fn share(&self, what: &str, placement: CpuPlacement) -> Result<PeerServer> {
        PeerServer::farbus_secure(&self.program, what, &self.folder.join("server"), placement)
    }

    /// The load generator with the other host's key.
    pub fn attach(&self, server: &PeerServer) -> Result<UsbipLoadClient<TlsStream>> {
        let pem = fs::read_to_string(self.folder.join("client/key.pem"))?;
        let (certificate, key) = certified(&KeyPair::from_pem(&pem)?)?;
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustingVerifier));
        let mut config = builder.with_client_auth_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![USBIP.to_vec()];
        let stream = over(server.address, config)?;
        let socket = stream.sock.try_clone()?;
        UsbipLoadClient::attach_over(stream, socket, "1-1").context("cannot attach to farbus over TLS")
    }
}

impl Drop for TlsHostPair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn certified(key: &KeyPair) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let mut wanted = CertificateParams::default();
    (wanted.not_before, wanted.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2100, 1, 1));
    let certificate = wanted.self_signed(key)?.der().clone();
    Ok((certificate, PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Writes what a server of another maker has in its folder: a certificate that certifies itself, and its key.
///
/// With certificates GnuTLS takes AES, as farbus does; with a common key it would take ChaCha20, a tenth as fast.
pub fn write_certificate(folder: &Path) -> Result<()> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?.pem();
    fs::write(folder.join("ca-cert.pem"), &certificate)?;
    fs::write(folder.join("server-cert.pem"), &certificate)?;
    Ok(fs::write(folder.join("server-key.pem"), key.serialize_pem())?)
}

/// The benchmark's client trusts the server that it has started.
#[derive(Debug)]
struct TrustingVerifier;

impl ServerCertVerifier for TrustingVerifier {
    fn verify_server_cert(
        &self,
        _shown: &CertificateDer<'_>,
        _more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not built in".into()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
