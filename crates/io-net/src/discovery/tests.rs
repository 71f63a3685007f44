//! Announcements on a port of each test's own, and what strangers send there.

use std::net::{Ipv4Addr, UdpSocket};

use super::*;
use crate::fuzzing::{Input, fuzz};

const LONG: Duration = Duration::from_secs(20);

fn announcement(kind: AnnouncedProtocol, port: u16) -> HostAnnouncement {
    let fingerprint = (kind == AnnouncedProtocol::Secure).then(|| "ab:cd".to_owned());
    HostAnnouncement { kind, port, addresses: vec![[127, 0, 0, 1].into()], version: "1.2.3".into(), fingerprint }
}

#[test]
fn announced_host_is_found_until_it_withdraws() {
    let port = free_port();
    let mut announcer = MdnsAnnouncer::new("lab3.example.org", port).unwrap();
    announcer
        .announce(&[announcement(AnnouncedProtocol::Plain, 3240), announcement(AnnouncedProtocol::Secure, 3241)])
        .unwrap();
    let plain = find(AnnouncedProtocol::Plain, "LAB3.local", LONG, port).unwrap().expect("it is announced");
    assert_eq!(
        (plain.name.as_str(), plain.version.as_deref(), plain.fingerprint.as_deref()),
        ("lab3", Some("1.2.3"), None)
    );
    assert_eq!(plain.addresses, ["127.0.0.1:3240".parse().unwrap()]);
    let secure = find(AnnouncedProtocol::Secure, "lab3", LONG, port).unwrap().expect("it is announced");
    assert_eq!((secure.addresses[0].port(), secure.fingerprint.as_deref()), (3241, Some("ab:cd")));
    assert_eq!(find(AnnouncedProtocol::Plain, "not a name", LONG, port), Ok(None), "and no time is lost on it");
    let by_key = find_key("ab:cd", LONG, port).unwrap().expect("it is announced");
    assert_eq!(by_key.addresses, secure.addresses);

    announcer.announce(&[announcement(AnnouncedProtocol::Secure, 3241)]).unwrap();
    // A host gives no answer twice within a second (RFC 6762 §6): allow time for the next.
    let left = browse(&[AnnouncedProtocol::Plain, AnnouncedProtocol::Secure], Duration::from_secs(5), port).unwrap();
    let kinds: Vec<_> = left.iter().map(|host| (host.name.as_str(), host.kind)).collect();
    assert_eq!(kinds, [("lab3", AnnouncedProtocol::Secure)]);
}

#[test]
fn a_name_is_one_label() {
    for name in ["lab3", "a", "my-host_2"] {
        assert!(is_name(name), "{name}");
    }
    for name in ["", "a.b", "a b", "é", "a/b", "\u{1b}[31m", &"a".repeat(64)] {
        assert!(!is_name(name), "{name}");
    }
    assert!(MdnsAnnouncer::new("", PORT).is_err());
}

/// A port that is in use nowhere, so that concurrent tests do not hear each other.
fn free_port() -> u16 {
    UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// A host that sends packets of its own making to all hosts of the network.
struct Stranger {
    socket: UdpSocket,
    port: u16,
}

/// mDNS's group (RFC 6762 §3).
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);

impl Stranger {
    fn at(port: u16) -> Self {
        Self { socket: UdpSocket::bind("0.0.0.0:0").unwrap(), port }
    }

    fn send(&self, packet: &[u8]) {
        // A packet that the system does not send is none.
        let _ = self.socket.send_to(packet, (GROUP, self.port));
    }
}

const ADDRESS: u16 = 1;
const POINTER: u16 = 12;
const TEXT: u16 = 16;
const SERVICE: u16 = 33;

/// A response (RFC 1035 §4.1.1) without its records.
fn response(records: u16) -> Vec<u8> {
    let [high, low] = records.to_be_bytes();
    vec![0, 0, 0x84, 0, 0, 0, high, low, 0, 0, 0, 0]
}

fn push_name(packet: &mut Vec<u8>, labels: &[&[u8]]) {
    for label in labels {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label);
    }
    packet.push(0);
}

/// Everything of a record behind its name (RFC 1035 §3.2.1).
fn push_data(packet: &mut Vec<u8>, kind: u16, ttl: u32, data: &[u8]) {
    packet.extend(kind.to_be_bytes());
    packet.extend(1u16.to_be_bytes());
    packet.extend(ttl.to_be_bytes());
    packet.extend((data.len() as u16).to_be_bytes());
    packet.extend_from_slice(data);
}

#[test]
fn records_that_a_stranger_sends_without_end_are_not_kept_without_end() {
    let port = free_port();
    let mut announcer = MdnsAnnouncer::new("lab3", port).unwrap();
    announcer.announce(&[announcement(AnnouncedProtocol::Secure, 3241)]).unwrap();
    assert_eq!(announcer.tend(), Ok(false), "its own network is no flood");
    let stranger = Stranger::at(port);
    let until = Instant::now() + LONG;
    let mut sent = 0u32;
    let mut began_anew = false;
    while !began_anew {
        assert!(Instant::now() < until, "{sent} records, {:?} kept", records(&announcer.daemon));
        for _ in 0..100 {
            let mut packet = response(40);
            for _ in 0..40 {
                sent += 1;
                push_name(&mut packet, &[format!("h{sent}").as_bytes(), b"local"]);
                // Valid for 136 years.
                push_data(&mut packet, ADDRESS, u32::MAX, &[10, 0, 0, 1]);
            }
            stranger.send(&packet);
        }
        began_anew = announcer.tend().unwrap();
    }
    let kept = records(&announcer.daemon).expect("it goes on");
    assert!(kept <= RECORDS_MAX, "{kept}");
    let found = find(AnnouncedProtocol::Secure, "lab3", LONG, port).unwrap().expect("it is announced again");
    assert_eq!(found.addresses, ["127.0.0.1:3241".parse().unwrap()]);
}

/// Makes a packet: a header, and records that are nearly right, or anything.
fn packet(input: &mut Input<'_>) -> Vec<u8> {
    if input.once_in(8) {
        return input.rest().to_vec();
    }
    let records = input.below(6) as u16 + 1;
    let mut packet = response(if input.once_in(8) { input.word() as u16 } else { records });
    if input.once_in(8) {
        packet[2] = input.byte();
    }
    for _ in 0..records {
        name(input, &mut packet);
        let kind = input.pick(&[ADDRESS, POINTER, TEXT, SERVICE, 28, 47, 255]);
        let data = match kind {
            ADDRESS => input.bytes(4),
            TEXT => {
                let words: [&[u8]; 6] = [b"v=1.2.3", b"fp=ab:cd", b"fp=\x1b[31m", b"v", b"=", b"fp=\xff\xfe"];
                let word = input.pick(&words);
                let mut data = vec![word.len() as u8];
                data.extend_from_slice(word);
                data
            }
            POINTER | SERVICE => {
                let mut data = if kind == SERVICE { input.bytes(6) } else { Vec::new() };
                // Names in data may point back into the packet, forwards, or at themselves.
                name(input, &mut data);
                data
            }
            _ => {
                let count = input.below(40) as usize;
                input.bytes(count)
            }
        };
        let ttl = input.pick(&[0, 1, 120, 4500, u32::MAX]);
        push_data(&mut packet, kind, ttl, &data);
        if input.once_in(16) {
            let at = packet.len() - data.len() - 1;
            packet[at] = input.byte();
        }
    }
    if input.once_in(8) {
        packet.truncate(input.below(packet.len() as u32) as usize);
    }
    packet
}

fn name(input: &mut Input<'_>, to: &mut Vec<u8>) {
    let labels: [&[u8]; 8] = [b"_farbus", b"_tcp", b"local", b"lab3", b"lab3-farbus", b"\xff\xc0", b"a.b", b"\x1b[31m"];
    match input.below(4) {
        0 => to.extend([0xc0 | (input.below(4) as u8), input.byte()]),
        1 => push_name(to, &[b"lab3-farbus", b"local"]),
        2 => push_name(to, &[b"lab3", b"_farbus", b"_tcp", b"local"]),
        _ => {
            for _ in 0..input.below(5) {
                let label = input.pick(&labels);
                to.push(if input.once_in(16) { input.byte() } else { label.len() as u8 });
                to.extend_from_slice(label);
            }
            to.push(input.pick(&[0, 0, 0, 0xc0]));
        }
    }
}

#[test]
fn fuzz_mdns_packets() {
    let port = free_port();
    let mut announcer = MdnsAnnouncer::new("lab3", port).unwrap();
    announcer.announce(&[announcement(AnnouncedProtocol::Secure, 3241)]).unwrap();
    let searcher = ServiceDaemon::new_with_port(port).unwrap();
    let events = searcher.browse(AnnouncedProtocol::Secure.service()).unwrap();
    let stranger = Stranger::at(port);
    let announcer = std::cell::RefCell::new(announcer);
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_mdns_packets", |input| {
        for _ in 0..8 {
            stranger.send(&packet(input));
        }
        while let Ok(event) = events.try_recv() {
            let ServiceEvent::ServiceResolved(service) = event else { continue };
            let Some(host) = host_of(AnnouncedProtocol::Secure, &service) else { continue };
            assert!(is_name(&host.name) || host.name.parse::<IpAddr>().is_ok(), "{host:?}");
            assert!(!host.addresses.is_empty());
            for word in host.version.iter().chain(&host.fingerprint) {
                assert!(word.len() <= WORD_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_graphic()), "{host:?}");
            }
        }
        announcer.borrow_mut().tend().unwrap();
        assert!(records(&searcher).is_some(), "the searcher's thread has ended");
    });
    let mut announcer = announcer.into_inner();
    announcer.begin_anew().unwrap();
    announcer.announce(&[announcement(AnnouncedProtocol::Secure, 3241)]).unwrap();
    let is_it = |host: &DiscoveredHost| host.addresses.contains(&"127.0.0.1:3241".parse().unwrap());
    let found = search(&[AnnouncedProtocol::Secure], LONG, port, is_it).unwrap();
    assert!(found.iter().any(is_it), "{found:?}");
}
