use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farbus_model::Instant;
use farbus_model::budget::{CONNECTION_BYTES, MemoryAccount, MemoryBudget};

use super::*;
use crate::fuzzing::{Input, fuzz};
use crate::link::Link;
use crate::trust::limits::{QUIC_EXPORTER_BYTES_MAX, QUIC_LINKS_MAX};
use crate::trust::links::tls::{AcceptedKeys, HandshakeError, HandshakeTerms, LinkProtocol, SecureLink};
use crate::trust::{AdmissionTicket, Fingerprint, HostIdentity, KeyProofOutcome, PeerAdmission, limits};

type HandshakeOutcome = Result<SecureLink, HandshakeError>;

struct Host {
    identity: Arc<HostIdentity>,
    accepts: AcceptedKeys,
    is_closed: AtomicBool,
    admission: PeerAdmission,
    met: Mutex<Sender<HandshakeOutcome>>,
    connections: AtomicUsize,
    account: Arc<MemoryAccount>,
}

impl QuicAcceptor for Host {
    fn terms(&self) -> HandshakeTerms {
        terms(&self.identity, self.accepts.clone())
    }

    fn enter(&self, from: SocketAddr) -> Option<AdmissionTicket> {
        assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
        let now = Instant::from_nanos(1);
        self.connections.fetch_add(1, Ordering::AcqRel);
        (!self.is_closed.load(Ordering::Acquire)).then(|| self.admission.enter(from.ip(), now).unwrap())
    }

    fn account(&self, _peer: &Fingerprint) -> Arc<MemoryAccount> {
        Arc::clone(&self.account)
    }

    fn met(self: Arc<Self>, met: HandshakeOutcome, _from: SocketAddr, ticket: AdmissionTicket) {
        ticket.leave(Instant::from_nanos(2), KeyProofOutcome::Given);
        // A test that has ended does not look any more.
        let _ = self.met.lock().unwrap().send(met);
    }

    fn met_again(self: Arc<Self>, secured: SecureLink, _from: SocketAddr) {
        let _ = self.met.lock().unwrap().send(Ok(secured));
    }
}

fn terms(identity: &Arc<HostIdentity>, accepts: AcceptedKeys) -> HandshakeTerms {
    let identity = Arc::clone(identity);
    HandshakeTerms { identity, accepts, protocols: vec![LinkProtocol::Session], limits: limits::HANDSHAKE }
}

fn identity() -> (Arc<HostIdentity>, Fingerprint) {
    let identity = Arc::new(HostIdentity::generate());
    let fingerprint = identity.fingerprint();
    (identity, fingerprint)
}

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn served_host(
    identity: &Arc<HostIdentity>,
    accepts: AcceptedKeys,
) -> (Arc<Host>, QuicServer, SocketAddr, Receiver<HandshakeOutcome>) {
    served_host_of(identity, accepts, QUIC_LINKS_MAX)
}

fn served_host_of(
    identity: &Arc<HostIdentity>,
    accepts: AcceptedKeys,
    links_max: u32,
) -> (Arc<Host>, QuicServer, SocketAddr, Receiver<HandshakeOutcome>) {
    let (met, to_us) = channel();
    let host = Arc::new(Host {
        identity: Arc::clone(identity),
        accepts,
        is_closed: AtomicBool::new(false),
        admission: PeerAdmission::default(),
        met: Mutex::new(met),
        connections: AtomicUsize::new(0),
        account: MemoryAccount::of_known_peer(&MemoryAccount::of_process(MemoryBudget::DEFAULT)),
    });
    let socket = socket();
    let at = socket.local_addr().unwrap();
    (Arc::clone(&host), QuicServer::start_with(socket, host, links_max).unwrap(), at, to_us)
}

/// A link on a connection of its own.
fn connect(ours: &Arc<HostIdentity>, theirs: Fingerprint, to: SocketAddr) -> HandshakeOutcome {
    connect_by(&QuicPool::default(), ours, theirs, to)
}

fn connect_by(pool: &QuicPool, ours: &Arc<HostIdentity>, theirs: Fingerprint, to: SocketAddr) -> HandshakeOutcome {
    pool.connect(&terms(ours, AcceptedKeys::One(theirs)), LinkTraffic::Prompt, socket(), to)
}

/// A link of a pool, and the other end of it, which is told apart by its first bytes.
fn pair_by(
    pool: &QuicPool,
    ours: &Arc<HostIdentity>,
    theirs: Fingerprint,
    to: SocketAddr,
    met: &Receiver<HandshakeOutcome>,
) -> [Link; 2] {
    let near = connect_by(pool, ours, theirs, to).unwrap().link;
    // A stream is unknown until something is sent on it, and nobody else makes one now.
    near.try_send(&[IoSlice::new(&[7])]).unwrap();
    let far = met.recv().unwrap().unwrap().link;
    assert_eq!(far.receive(&mut [0]).unwrap(), 1);
    [near, far]
}

#[test]
fn many_links_share_few_connections_and_each_ends_for_itself() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let pool = QuicPool::default();
    let mut pairs: Vec<_> = (0..60).map(|_| pair_by(&pool, &ours, their_key, at, &met)).collect();
    assert_eq!(host.connections.load(Ordering::Acquire), 4);
    let bytes: Vec<u8> = (0..20_000u32).map(|at| (at * 13) as u8).collect();
    for [near, far] in pairs.drain(..30) {
        drop(near);
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), 0, "a farewell");
    }
    for [near, far] in pairs.drain(..10) {
        drop(far);
        assert_eq!(near.receive(&mut [0; 8]).unwrap(), 0, "a farewell of the exporter");
    }
    for [near, far] in &pairs {
        pass(near, far, &bytes);
        pass(far, near, &bytes);
    }
    pairs.push(pair_by(&pool, &ours, their_key, at, &met));
    assert_eq!(host.connections.load(Ordering::Acquire), 4, "a further link is on one of them");
    let last: Vec<Link> = pairs.drain(..).map(|[near, far]| (drop(near), far).1).collect();
    last.iter().for_each(|far| assert_eq!(far.receive(&mut [0; 8]).unwrap(), 0));
    drop(last);
    while pool.connections() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let [near, far] = pair_by(&pool, &ours, their_key, at, &met);
    pass(&near, &far, &bytes);
    assert_eq!(host.connections.load(Ordering::Acquire), 5, "those without a link were closed");
}

/// What a peer makes this process keep unread is taken from its account, connection by connection, and there is room
/// for more whatever it does.
#[test]
fn connections_take_what_they_may_keep_from_their_peers_account_and_leave_room_for_others() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let pools: Vec<QuicPool> = (0..40).map(|_| QuicPool::default()).collect();
    let mut pairs = Vec::new();
    let mut taken = Vec::new();
    for pool in &pools {
        let before = host.account.used();
        pairs.push(pair_by(pool, &ours, their_key, at, &met));
        taken.push(host.account.used() - before);
        // What the link takes in the table of sessions.
        assert!(host.account.left() > 4 * CONNECTION_BYTES, "{taken:?}");
    }
    assert_eq!(taken[0], 2 * QUIC_EXPORTER_BYTES_MAX);
    assert!(taken.is_sorted_by(|before, after| before >= after), "{taken:?}");
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 13) as u8).collect();
    for [near, far] in &pairs {
        pass(near, far, &bytes);
        pass(far, near, &bytes);
    }
    drop(pairs);
    let mut rounds = 0..600;
    while host.account.used() > 0 {
        rounds.next().expect("connections that have ended give back what they took");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn links_that_are_made_at_once_share_few_connections() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, _met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let pool = QuicPool::default();
    let near: Vec<SecureLink> = thread::scope(|scope| {
        let connect = || connect_by(&pool, &ours, their_key, at).unwrap();
        let threads: Vec<_> = (0..32).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((near.len(), host.connections.load(Ordering::Acquire)), (32, 4));
}

#[test]
fn link_that_nobody_reads_leaves_the_others_of_its_connection_as_they_are() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let pool = QuicPool::of(1);
    let [stuck, far_stuck] = pair_by(&pool, &ours, their_key, at, &met);
    let [near, far] = pair_by(&pool, &ours, their_key, at, &met);
    assert_eq!(host.connections.load(Ordering::Acquire), 1);
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 31) as u8).collect();
    // Until its flow is full in both directions.
    for link in [&stuck, &far_stuck] {
        let mut since = std::time::Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            match link.try_send(&[IoSlice::new(&bytes)]).unwrap() {
                Some(_) => since = std::time::Instant::now(),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    for _ in 0..4 {
        pass(&near, &far, &bytes);
        pass(&far, &near, &bytes);
    }
}

#[test]
fn peer_that_never_ends_its_links_keeps_none_of_those_that_this_end_has_ended() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (_host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let pool = QuicPool::of(1);
    let held: Vec<Link> = (0..8)
        .map(|_| {
            let [near, far] = pair_by(&pool, &ours, their_key, at, &met);
            drop(far);
            near
        })
        .collect();
    let begun = std::time::Instant::now();
    // A stream that is refused to be read any more is one that sending on fails.
    for link in &held {
        while link.try_send(&[IoSlice::new(&[0; 4096])]).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60), "its other end is gone");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn exporter_of_an_earlier_version_gets_a_connection_for_each_link() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, met) = served_host_of(&theirs, AcceptedKeys::One(our_key), 1);
    let pool = QuicPool::default();
    let pairs: Vec<_> = (0..7).map(|_| pair_by(&pool, &ours, their_key, at, &met)).collect();
    assert_eq!(host.connections.load(Ordering::Acquire), 7);
    for [near, far] in &pairs {
        pass(near, far, b"each");
        pass(far, near, b"each");
    }
}

#[test]
fn disks_share_no_connection_with_what_somebody_waits_for() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, _server, at, _met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let (pool, terms) = (QuicPool::of(1), terms(&ours, AcceptedKeys::One(their_key)));
    let links = [LinkTraffic::Prompt, LinkTraffic::Bulk, LinkTraffic::Prompt, LinkTraffic::Bulk];
    let links = links.map(|traffic| pool.connect(&terms, traffic, socket(), at).unwrap());
    assert_eq!((links.len(), host.connections.load(Ordering::Acquire)), (4, 2));
}

fn pass(from: &Link, to: &Link, bytes: &[u8]) {
    let mut sent = 0;
    let mut arrived = Vec::new();
    let mut space = [0; 4096];
    while arrived.len() < bytes.len() {
        if sent < bytes.len() {
            sent += from.try_send(&[IoSlice::new(&bytes[sent..])]).unwrap().unwrap_or(0);
        }
        if let Some(count) = to.try_receive(&mut space).unwrap() {
            assert!(count > 0, "it is no end");
            arrived.extend_from_slice(&space[..count]);
        } else {
            thread::sleep(Duration::from_micros(100));
        }
    }
    assert!(arrived == bytes);
}

#[test]
fn bytes_pass_both_ways_and_an_end_is_an_end() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (host, server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let near = connect(&ours, their_key, at).unwrap();
    let far = met.recv().unwrap().unwrap();
    assert_eq!((near.peer, far.peer), (their_key, our_key));
    assert_eq!((near.protocol, far.protocol), (LinkProtocol::Session, LinkProtocol::Session));
    assert!(near.link.is_encrypted() && far.link.is_encrypted());
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 31) as u8).collect();
    pass(&near.link, &far.link, &bytes);
    pass(&far.link, &near.link, &bytes);
    // Existing links continue when no more peers are accepted.
    host.is_closed.store(true, Ordering::Release);
    assert!(connect(&ours, their_key, at).is_err());
    server.close();
    pass(&near.link, &far.link, &bytes);
    drop(near);
    assert_eq!(far.link.receive(&mut [0; 8]).unwrap(), 0, "a farewell");
}

#[test]
fn a_stranger_and_an_impostor_are_told_apart() {
    let ((ours, our_key), (theirs, their_key), (_, other_key)) = (identity(), identity(), identity());
    let (_host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(other_key));
    let refused = connect(&ours, their_key, at).unwrap_err();
    assert!(matches!(refused, HandshakeError::Refused), "{refused:?}");
    let stranger = met.recv().unwrap().unwrap_err();
    assert!(matches!(stranger, HandshakeError::Stranger(Some(key)) if key == our_key), "{stranger:?}");
    let impostor = connect(&ours, other_key, at).unwrap_err();
    assert!(matches!(impostor, HandshakeError::Stranger(Some(key)) if key == their_key), "{impostor:?}");
}

/// Forwards datagrams between an importer and `to`, changes its own address when told, and loses one datagram in
/// 20.
fn roaming(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (here, moves, is_down) = (socket(), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let at = here.local_addr().unwrap();
    here.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let (is_told, falls_silent) = (Arc::clone(&moves), Arc::clone(&is_down));
    thread::spawn(move || {
        let (mut there, mut near, mut count, mut space) = (socket(), None, 0u32, [0; 2048]);
        there.set_nonblocking(true).unwrap();
        loop {
            if is_told.swap(false, Ordering::AcqRel) {
                there = socket();
                there.set_nonblocking(true).unwrap();
            }
            let mut passes = || {
                count = count.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (count >> 16) % 20 != 0 && !falls_silent.load(Ordering::Acquire)
            };
            while let Ok((bytes, from)) = here.recv_from(&mut space) {
                near = Some(from);
                if passes() {
                    let _ = there.send_to(&space[..bytes], to);
                }
                if bytes < 600 {
                    break;
                }
            }
            while let (Ok((bytes, _)), Some(near)) = (there.recv_from(&mut space), near) {
                if passes() {
                    let _ = here.send_to(&space[..bytes], near);
                }
            }
        }
    });
    (at, moves, is_down)
}

#[test]
fn link_outlives_an_address_change_with_5_percent_loss_but_not_silence() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (_host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let (through, moves, is_down) = roaming(at);
    let near = connect(&ours, their_key, through).unwrap();
    let far = met.recv().unwrap().unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 17) as u8).collect();
    for _ in 0..4 {
        pass(&near.link, &far.link, &bytes);
        moves.store(true, Ordering::Release);
        pass(&near.link, &far.link, &bytes);
        pass(&far.link, &near.link, &bytes);
    }
    is_down.store(true, Ordering::Release);
    let lost = far.link.receive(&mut [0; 8]).unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::TimedOut, "a network that is away is no farewell");
    assert_eq!(near.link.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// Forwards datagrams between an importer and an exporter, keeps some of them, and sends others in their names.
struct Wiretap {
    at: SocketAddr,
    to: SocketAddr,
    near: Arc<Mutex<Option<SocketAddr>>>,
    heard: Arc<Mutex<VecDeque<Vec<u8>>>>,
    here: UdpSocket,
    there: UdpSocket,
}

impl Wiretap {
    const HEARD_MAX: usize = 32;

    fn before(to: SocketAddr) -> Self {
        let (here, there) = (socket(), socket());
        let near = Arc::<Mutex<Option<SocketAddr>>>::default();
        let heard = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
        for is_out in [true, false] {
            let [from, onward] = [&here, &there].map(|socket| socket.try_clone().unwrap());
            let (from, onward) = if is_out { (from, onward) } else { (onward, from) };
            let (near, heard) = (Arc::clone(&near), Arc::clone(&heard));
            thread::spawn(move || {
                let mut space = [0; 2048];
                while let Ok((bytes, sender)) = from.recv_from(&mut space) {
                    if is_out {
                        *near.lock().unwrap() = Some(sender);
                    }
                    let mut heard = heard.lock().unwrap();
                    heard.push_back(space[..bytes].to_vec());
                    if heard.len() > Self::HEARD_MAX {
                        heard.pop_front();
                    }
                    drop(heard);
                    let to = if is_out { Some(to) } else { *near.lock().unwrap() };
                    let _ = to.map(|to| onward.send_to(&space[..bytes], to));
                }
            });
        }
        Self { at: here.local_addr().unwrap(), to, near, heard, here, there }
    }

    /// A datagram that was heard, mostly changed.
    fn changed(&self, input: &mut Input<'_>) -> Vec<u8> {
        let heard = self.heard.lock().unwrap();
        let mut bytes = heard[input.below(heard.len() as u32) as usize].clone();
        for _ in 0..input.below(4) {
            let at = input.below(bytes.len() as u32) as usize;
            match input.below(6) {
                // Form, version and connection identifiers (RFC 9000 §17).
                0 => bytes[0] ^= 1 << input.below(8),
                1 => (1..bytes.len().min(5)).for_each(|at| bytes[at] = input.pick(&[0, 1, 0x0a, 0xff])),
                2 => (5..bytes.len().min(7)).for_each(|at| bytes[at] = input.byte()),
                3 => bytes[at] = input.byte(),
                4 => bytes.truncate(at + 1),
                _ => {
                    let other = &heard[input.below(heard.len() as u32) as usize];
                    bytes.extend_from_slice(&other[..other.len().min(1400)]);
                }
            }
        }
        bytes
    }

    fn send(&self, bytes: &[u8], to_exporter: bool) {
        let near = *self.near.lock().unwrap();
        let _ = match (to_exporter, near) {
            (true, _) => self.there.send_to(bytes, self.to),
            (false, Some(near)) => self.here.send_to(bytes, near),
            (false, None) => Ok(0),
        };
    }
}

#[test]
fn fuzz_quic_datagrams() {
    let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
    let (_host, _server, at, met) = served_host(&theirs, AcceptedKeys::One(our_key));
    let between = Wiretap::before(at);
    let connect = |to| {
        let near = connect(&ours, their_key, to).unwrap();
        // Others may have been refused meanwhile.
        let far = met.iter().find_map(Result::ok).expect("it serves");
        (near, far)
    };
    let (near, far) = connect(between.at);
    let stranger = socket();
    let count = std::cell::Cell::new(0u32);
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_quic_datagrams", |input| {
        while !input.is_empty() {
            let bytes = if input.once_in(8) {
                let size = input.below(1400) as usize;
                input.bytes(size)
            } else {
                between.changed(input)
            };
            match input.below(3) {
                0 => drop(stranger.send_to(&bytes, at)),
                1 => between.send(&bytes, true),
                _ => between.send(&bytes, false),
            }
        }
        let bytes: Vec<u8> = (0..200u32).map(|at| (at + count.get()) as u8).collect();
        pass(&near.link, &far.link, &bytes);
        pass(&far.link, &near.link, &bytes);
        count.set(count.get() + 1);
        if count.get() % 64 == 1 {
            let (near, far) = connect(at);
            pass(&near.link, &far.link, &bytes);
        }
    });
}
