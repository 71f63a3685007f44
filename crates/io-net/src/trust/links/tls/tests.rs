//! Two hosts on the loopback: which peers are accepted, which are refused, and what each is told.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, SystemTime};

use super::*;
use crate::link::TcpLinkListener;

const QUICK: HandshakeLimits = HandshakeLimits { time_max: Duration::from_millis(300), bytes_max: 32 << 10 };

fn terms(identity: &Arc<HostIdentity>, accepts: AcceptedKeys, protocol: LinkProtocol) -> HandshakeTerms {
    HandshakeTerms { identity: Arc::clone(identity), accepts, protocols: vec![protocol], limits: limits::HANDSHAKE }
}

fn hosts() -> [Arc<HostIdentity>; 2] {
    [(); 2].map(|()| Arc::new(HostIdentity::generate()))
}

/// The server's and the client's end of a TCP connection.
fn ends() -> (Link, Link) {
    let listener = TcpLinkListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap().to_string();
    let client = Link::connect(&address, Duration::from_secs(10)).unwrap();
    (listener.accept().unwrap().link, client)
}

type HandshakeOutcomes = (Result<SecureLink, HandshakeError>, Result<SecureLink, HandshakeError>);

/// The results of the server and the client.
fn meet(
    server: HandshakeTerms,
    client: impl FnOnce(Link) -> Result<SecureLink, HandshakeError> + Send + 'static,
) -> HandshakeOutcomes {
    let (server_end, client_end) = ends();
    let client = thread::spawn(move || client(client_end));
    let server = server.accept(server_end);
    (server, client.join().unwrap())
}

/// The error that a client receives after its handshake, when it was refused.
fn hear(client: Result<SecureLink, HandshakeError>) -> HandshakeError {
    match client {
        Err(error) => error,
        Ok(secured) => {
            let error = secured.link.receive(&mut [0; 16]).expect_err("there is nothing to read");
            HandshakeError::of_link(&error).unwrap_or_else(|| panic!("{error}"))
        }
    }
}

#[test]
fn paired_hosts_learn_each_others_keys() {
    let [server, client] = hosts();
    let (server_terms, client_terms) = (
        terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp),
        terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp),
    );
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect(link));
    let (at_server, at_client) = (at_server.unwrap(), at_client.unwrap());
    assert_eq!((at_server.peer, at_server.protocol), (client.fingerprint(), LinkProtocol::UsbIp));
    assert_eq!((at_client.peer, at_client.protocol), (server.fingerprint(), LinkProtocol::UsbIp));
    let version = at_client.link.ask_tls(|tls| tls.protocol_version()).unwrap();
    assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
    let exporter =
        |link: &Link| link.ask_tls(|tls| tls.export_keying_material([0; 32], b"EXPORTER-test", None).unwrap()).unwrap();
    assert_eq!(exporter(&at_server.link), exporter(&at_client.link));
}

#[test]
fn an_encrypted_link_carries_bytes_as_a_bare_one_does() {
    const BYTES: usize = 16 << 20;
    let [server, client] = hosts();
    let (server_terms, client_terms) = (
        terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp),
        terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp),
    );
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect(link));
    let (server, client) = (at_server.unwrap().link, at_client.unwrap().link);
    assert!(client.has_received(), "the last word of a handshake may have brought more");
    assert_eq!(client.try_receive(&mut [0; 8]).unwrap(), None, "nothing is there yet");
    assert!(!client.has_received(), "and now it is known");
    let byte = |at: usize| (at * 7 + at / 256) as u8;
    // Sent in runs of odd sizes by a sender that waits only for room.
    let sender = thread::spawn(move || {
        let all: Vec<u8> = (0..BYTES).map(byte).collect();
        let (mut at, mut waits) = (0, 0);
        while at < BYTES || !server.try_flush().unwrap() {
            let end = |from: usize, size: usize| (from + size).min(BYTES);
            let runs = [&all[at..end(at, 48)], &all[end(at, 48)..end(at, 48 + 70_001)]];
            let sent = if at < BYTES { server.try_send(&runs.map(IoSlice::new)).unwrap() } else { None };
            at += sent.unwrap_or_else(|| {
                waits += 1;
                wait(&mut [PollInterest::new(std::os::fd::AsFd::as_fd(&server), true)], None).unwrap();
                0
            });
        }
        server.finish_sending();
        waits
    });
    // Let the socket fill up first.
    thread::sleep(Duration::from_millis(300));
    let (mut at, mut room, mut held) = (0, vec![0; 1 << 20], 0);
    loop {
        // Small buffers too: then bytes wait inside.
        let size = [1, 100, 5000, 1 << 20][at % 4];
        let count = client.receive(&mut room[..size]).unwrap();
        assert!(room[..count].iter().enumerate().all(|(n, &got)| got == byte(at + n)), "at {at}");
        at += count;
        held += u32::from(client.has_received());
        if count == 0 {
            break;
        }
    }
    assert_eq!(at, BYTES);
    assert!(held > 0, "the room was too small at times");
    assert!(sender.join().unwrap() > 0, "the socket was full at times");
}

#[test]
fn bytes_sent_with_the_last_handshake_message_are_there_at_once() {
    let [server, client] = hosts();
    let server_terms = terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp);
    let client_terms = terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp);
    let (server_end, client_end) = ends();
    let client = thread::spawn(move || {
        let link = client_terms.connect(client_end).unwrap().link;
        link.try_send(&[IoSlice::new(b"first")]).unwrap();
        link
    });
    let server = thread::spawn(move || server_terms.accept(server_end).unwrap().link);
    let server = server.join().unwrap();
    let _client = client.join().unwrap();
    assert!(server.has_received(), "so a caller that waits on the socket asks here first");
    assert_eq!(server.receive(&mut [0; 16]).unwrap(), 5);
}

#[test]
fn an_end_that_was_not_announced_is_an_error() {
    let [server, client] = hosts();
    let accepts = |other: &Arc<HostIdentity>| AcceptedKeys::One(other.fingerprint());
    let link = |server_end: Link, client_end: Link| {
        let server_terms = terms(&server, accepts(&client), LinkProtocol::UsbIp);
        let client_terms = terms(&client, accepts(&server), LinkProtocol::UsbIp);
        let client = thread::spawn(move || client_terms.connect(client_end).unwrap().link);
        (server_terms.accept(server_end).unwrap().link, client.join().unwrap())
    };
    let (server_end, client_end) = ends();
    let (server_link, client_link) = link(server_end, client_end);
    drop(server_link);
    assert_eq!(client_link.receive(&mut [0; 8]).unwrap(), 0, "dropped is announced");

    let (server_end, client_end) = ends();
    let fd = std::os::fd::AsFd::as_fd(&server_end).try_clone_to_owned().unwrap();
    let (_server_link, client_link) = link(server_end, client_end);
    rustix::net::shutdown(fd, rustix::net::Shutdown::Write).unwrap();
    let error = client_link.receive(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn unknown_peer_is_refused_and_told_so() {
    let [server, client] = hosts();
    let [known, _] = hosts();
    let server_terms = terms(&server, AcceptedKeys::One(known.fingerprint()), LinkProtocol::UsbIp);
    let client_terms = terms(&client, AcceptedKeys::Anybody, LinkProtocol::UsbIp);
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect(link));
    match at_server.unwrap_err() {
        HandshakeError::Stranger(Some(key)) => assert_eq!(key, client.fingerprint()),
        other => panic!("{other}"),
    }
    assert!(matches!(hear(at_client), HandshakeError::Refused));
}

#[test]
fn a_server_with_another_key_is_refused_whatever_its_name_and_address() {
    let [server, client] = hosts();
    let [impostor, _] = hosts();
    let server_terms = terms(&impostor, AcceptedKeys::Anybody, LinkProtocol::UsbIp);
    let client_terms = terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp);
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect(link));
    match at_client.unwrap_err() {
        HandshakeError::Stranger(Some(key)) => assert_eq!(key, impostor.fingerprint()),
        other => panic!("{other}"),
    }
    assert!(at_server.is_err());
}

/// A known client that shows another certificate than today's.
fn meet_showing(shown: impl FnOnce(&HostIdentity) -> Arc<CertifiedKey>) -> (HandshakeError, HandshakeError) {
    let [server, client] = hosts();
    let server_terms = terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp);
    let client_terms = terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp);
    let shown = shown(&client);
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect_showing(link, shown));
    (at_server.unwrap_err(), hear(at_client))
}

#[test]
fn a_certificate_out_of_date_is_refused_even_if_its_key_is_paired() {
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    for (from, until) in [(now - 2 * day, now - day), (now + day, now + 2 * day)] {
        let (at_server, at_client) = meet_showing(|client| client.certified_with(client.certificate(from, until)));
        assert!(matches!(at_server, HandshakeError::OutOfDate(_)), "{at_server}");
        assert!(matches!(at_client, HandshakeError::OursOutOfDate), "{at_client}");
    }
}

#[test]
fn a_paired_hosts_certificate_is_worth_nothing_without_its_key() {
    let now = SystemTime::now();
    let stolen = |client: &HostIdentity| {
        let certificate = client.certificate(now - Duration::from_secs(60), now + Duration::from_secs(60));
        HostIdentity::generate().certified_with(certificate)
    };
    let (at_server, _) = meet_showing(stolen);
    assert!(matches!(at_server, HandshakeError::Rules(_)), "{at_server}");
}

#[test]
fn a_certificate_changed_or_of_another_make_is_refused() {
    let damaged = |client: &HostIdentity| {
        let now = SystemTime::now();
        let mut der = client.certificate(now - Duration::from_secs(60), now + Duration::from_secs(60)).to_vec();
        // The last byte of the signature.
        *der.last_mut().unwrap() ^= 1;
        client.certified_with(der.into())
    };
    let (at_server, _) = meet_showing(damaged);
    assert!(matches!(at_server, HandshakeError::Stranger(None)), "{at_server}");

    let other = |_: &HostIdentity| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap().der().clone();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Arc::new(CertifiedKey::new(vec![certificate], provider().key_provider.load_private_key(key).unwrap()))
    };
    let (at_server, _) = meet_showing(other);
    assert!(matches!(at_server, HandshakeError::Stranger(None) | HandshakeError::Rules(_)), "{at_server}");
}

#[test]
fn a_client_without_a_certificate_or_without_a_protocol_is_refused() {
    let [server, client] = hosts();
    let accepts = AcceptedKeys::One(client.fingerprint());
    let quiet = |link: Link, shown: Option<Arc<CertifiedKey>>| {
        let verifier = Arc::new(KeyVerifier::new(AcceptedKeys::Anybody));
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let config = match shown {
            Some(shown) => builder.with_client_cert_resolver(Arc::new(FixedCertificate(shown))),
            None => builder.with_no_client_auth(),
        };
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("farbus").unwrap()).unwrap();
        let link = link.encrypt(connection.into(), limits::HANDSHAKE).map_err(|(failure, _)| failure);
        link.map(|link| link.receive(&mut [0; 8]).is_err())
    };
    let (server_end, client_end) = ends();
    let at_client = thread::spawn(move || quiet(client_end, None));
    let at_server = terms(&server, accepts.clone(), LinkProtocol::UsbIp).accept(server_end).unwrap_err();
    assert!(matches!(at_server, HandshakeError::Stranger(None)), "{at_server}");
    assert!(at_client.join().unwrap().unwrap_or(true));

    let (server_end, client_end) = ends();
    let at_client = thread::spawn(move || quiet(client_end, Some(client.certified())));
    let at_server = terms(&server, accepts, LinkProtocol::UsbIp).accept(server_end).unwrap_err();
    assert!(matches!(at_server, HandshakeError::NoProtocol), "{at_server}");
    drop(at_client.join().unwrap());
}

#[test]
fn hosts_without_a_common_protocol_do_not_connect() {
    let [server, client] = hosts();
    let server_terms = terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp);
    let client_terms = terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::Pairing);
    let (at_server, at_client) = meet(server_terms, move |link| client_terms.connect(link));
    assert!(matches!(at_server.unwrap_err(), HandshakeError::NoProtocol));
    assert!(matches!(at_client.unwrap_err(), HandshakeError::NoProtocol));
}

/// The server's error when an attacker sends it bytes.
fn attack(attacker: impl FnOnce(TcpStream) + Send + 'static, limits: HandshakeLimits) -> HandshakeError {
    let [server, known] = hosts();
    let listener = TcpLinkListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let attacker = thread::spawn(move || attacker(TcpStream::connect(address).unwrap()));
    let terms =
        HandshakeTerms { limits, ..terms(&server, AcceptedKeys::One(known.fingerprint()), LinkProtocol::UsbIp) };
    let error = terms.accept(listener.accept().unwrap().link).unwrap_err();
    attacker.join().unwrap();
    error
}

#[test]
fn silent_peer_is_cut_off_in_time() {
    let silent = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 16]);
    };
    assert!(matches!(attack(silent, QUICK), HandshakeError::TooSlow));
    // A byte now and then does not help.
    let dripping = |mut stream: TcpStream| {
        for byte in [0x16, 0x03, 0x01, 0x02, 0x00].into_iter().cycle() {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    };
    assert!(matches!(attack(dripping, QUICK), HandshakeError::TooSlow));
}

#[test]
fn peer_that_sends_garbage_or_a_gigabyte_is_cut_off_at_once() {
    let usbip = |mut stream: TcpStream| {
        let _ = stream.write_all(&[0x01, 0x11, 0x80, 0x05, 0, 0, 0, 0]);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 16, "an alert and nothing of ours: {answer:?}");
    };
    assert!(matches!(attack(usbip, limits::HANDSHAKE), HandshakeError::Rules(_)));
    // Well-formed records of a handshake message that never ends.
    let flood = |mut stream: TcpStream| {
        let mut record = vec![0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0xff, 0xff];
        record.resize(5 + 0x4000, 0);
        let mut sent = 0;
        while sent < 1 << 30 && stream.write_all(&record).is_ok() {
            sent += record.len();
            record[5..9].fill(0);
        }
        assert!(sent < 64 << 20, "{sent} bytes were taken");
    };
    let error = attack(flood, limits::HANDSHAKE);
    assert!(matches!(error, HandshakeError::TooMuch), "{error}");
}

#[test]
fn a_handshake_that_was_recorded_is_worth_nothing_a_second_time() {
    let [server, client] = hosts();
    // A host in the middle passes everything on, and records what the client sent.
    let listener = TcpLinkListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let front = listener.address().unwrap().to_string();
    let (server_end, middle_to_server) = ends();
    let server_terms = terms(&server, AcceptedKeys::One(client.fingerprint()), LinkProtocol::UsbIp);
    let again = server_terms.clone();
    let at_server = thread::spawn(move || {
        let secured = server_terms.accept(server_end).unwrap();
        let mut received = [0; 5];
        assert_eq!(secured.link.receive(&mut received).unwrap(), 5);
        received
    });
    let client_terms = terms(&client, AcceptedKeys::One(server.fingerprint()), LinkProtocol::UsbIp);
    let at_client = thread::spawn(move || {
        let secured = client_terms.connect(Link::connect(&front, Duration::from_secs(10)).unwrap()).unwrap();
        secured.link.try_send(&[IoSlice::new(b"write")]).unwrap();
    });
    let middle_to_client = listener.accept().unwrap().link;
    let mut record = Vec::new();
    let mut chunk = [0; 4096];
    let clock = BoottimeClock::start();
    while !at_server.is_finished() && clock.now() < Instant::from_nanos(20_000_000_000) {
        if let Ok(Some(count)) = middle_to_client.try_receive(&mut chunk) {
            record.extend_from_slice(&chunk[..count]);
            let _ = middle_to_server.try_send(&[IoSlice::new(&chunk[..count])]);
        }
        if let Ok(Some(count)) = middle_to_server.try_receive(&mut chunk) {
            let _ = middle_to_client.try_send(&[IoSlice::new(&chunk[..count])]);
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(&at_server.join().unwrap(), b"write");
    at_client.join().unwrap();
    assert!(record.len() > 500, "the client's side of a handshake");

    // Replays the same bytes.
    let (server_end, replayer) = ends();
    replayer.try_send(&[IoSlice::new(&record)]).unwrap();
    let error = again.accept(server_end).unwrap_err();
    assert!(matches!(error, HandshakeError::Rules(Error::DecryptError | Error::PeerMisbehaved(_))), "{error}");
}
