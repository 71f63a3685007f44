//! `farbus conform session`: our own exporter passes, and one that breaks a promise fails the check of it. Exporters
//! that are wrong are our own behind a proxy that changes greetings and frames.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use super::conform::expect_program;
use super::harness::{Harness, Outcome};

const GREETING_BYTES: usize = 56;
const HEAD_BYTES: usize = 8;

/// What a wrong exporter does; each part sees whole greetings and whole frames.
#[derive(Clone, Copy)]
struct Wrong {
    /// Changes a hello; emptied, the link ends.
    hello: fn(&mut Vec<u8>, &State),
    welcome: fn(&mut Vec<u8>),
    /// Changes a frame of the importer, or swallows it.
    up: fn(&mut Vec<u8>, &State) -> After,
    /// Changes a frame of the exporter.
    down: fn(&mut Vec<u8>, &State),
    /// Links that the exporter ends stay open.
    keeps_links: bool,
    /// Says goodbye for an importer that leaves without a word.
    says_goodbye: bool,
    /// Greets one importer at a time, and waits for ever for one that left within its hello.
    is_single: bool,
}

/// Whether the link goes on behind a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    GoOn,
    End,
}

const RIGHT: Wrong = Wrong {
    hello: |_, _| {},
    welcome: |_| {},
    up: |_, _| After::GoOn,
    down: |_, _| {},
    keeps_links: false,
    says_goodbye: false,
    is_single: false,
};

/// What a link, or the proxy, remembers.
#[derive(Default)]
struct State {
    /// Links of this proxy so far, this one included.
    links: u64,
    opens: AtomicU64,
    requests: AtomicU64,
    tags: Mutex<BTreeSet<u16>>,
    held: Mutex<Option<Vec<u8>>>,
}

struct Proxy {
    address: SocketAddr,
}

impl Proxy {
    fn before(to: SocketAddr, wrong: Wrong) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut is_stuck = false;
            for (number, one) in listener.incoming().map_while(Result::ok).enumerate() {
                let Ok(two) = TcpStream::connect(to) else { continue };
                let state = Arc::new(State { links: number as u64 + 1, ..State::default() });
                if wrong.is_single {
                    // In the order in which they came: one that leaves within its hello is waited for without end.
                    let greeted = if is_stuck { None } else { greet(&one, &two, wrong, &state).ok() };
                    is_stuck |= greeted.is_none();
                    if let Some(is_session) = greeted {
                        thread::spawn(move || carry(one, two, wrong, &state, is_session));
                    }
                } else {
                    thread::spawn(move || {
                        if let Ok(is_session) = greet(&one, &two, wrong, &state) {
                            carry(one, two, wrong, &state, is_session);
                        }
                    });
                }
            }
        });
        Self { address }
    }
}

fn exactly(mut from: &TcpStream, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Passes the hello on, and the welcome back; returns whether it is a session at all.
fn greet(mut one: &TcpStream, mut two: &TcpStream, wrong: Wrong, state: &State) -> io::Result<bool> {
    one.set_nodelay(true)?;
    two.set_nodelay(true)?;
    let first = exactly(one, 1)?;
    if first != b"f" {
        two.write_all(&first)?;
        return Ok(false);
    }
    let mut hello = [first, exactly(one, GREETING_BYTES - 1)?].concat();
    let options = u32::from_le_bytes(hello[12..16].try_into().unwrap()) as usize;
    if options <= 1024 {
        hello.extend(exactly(one, options)?);
    }
    (wrong.hello)(&mut hello, state);
    if hello.is_empty() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    two.write_all(&hello)?;
    let mut welcome = exactly(two, GREETING_BYTES)?;
    let options = u32::from_le_bytes(welcome[12..16].try_into().unwrap()) as usize;
    welcome.extend(exactly(two, options)?);
    (wrong.welcome)(&mut welcome);
    one.write_all(&welcome)?;
    Ok(true)
}

fn carry(one: TcpStream, two: TcpStream, wrong: Wrong, state: &Arc<State>, is_session: bool) {
    let (back, there) = (one.try_clone().unwrap(), two.try_clone().unwrap());
    let of_state = Arc::clone(state);
    thread::spawn(move || {
        let _ = pass(&there, &back, is_session, |frame| {
            (wrong.down)(frame, &of_state);
            After::GoOn
        });
        if !wrong.keeps_links {
            let _ = back.shutdown(Shutdown::Both);
        }
    });
    let _ = pass(&one, &two, is_session, |frame| (wrong.up)(frame, state));
    if wrong.says_goodbye && is_session {
        let _ = (&two).write_all(&[8, 0, 0, 0, 0, 0, 0, 0]);
    }
    let _ = two.shutdown(if wrong.keeps_links { Shutdown::Write } else { Shutdown::Both });
    if !wrong.keeps_links {
        let _ = one.shutdown(Shutdown::Both);
    }
}

fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    is_session: bool,
    change: impl Fn(&mut Vec<u8>) -> After,
) -> io::Result<()> {
    if !is_session {
        return io::copy(&mut from, &mut to).map(drop);
    }
    loop {
        let mut frame = exactly(from, HEAD_BYTES)?;
        let length = usize::from(u16::from_le_bytes([frame[6], frame[7]]));
        // A longer one has no body: the head alone is wrong.
        if length <= (64 << 10) - HEAD_BYTES {
            frame.extend(exactly(from, length)?);
        }
        if change(&mut frame) == After::End {
            return Ok(());
        }
        // A frame that was shortened says so, unless there are several.
        to.write_all(&frame)?;
    }
}

/// Gives a frame the length that it has.
fn resized(frame: &mut [u8]) {
    let length = (frame.len() - HEAD_BYTES) as u16;
    frame[6..8].copy_from_slice(&length.to_le_bytes());
}

fn tag(frame: &[u8]) -> u16 {
    u16::from_le_bytes([frame[4], frame[5]])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Where the value of an option is.
fn option(greeting: &[u8], kind: u8) -> Option<usize> {
    let mut at = GREETING_BYTES;
    while at + 4 <= greeting.len() {
        if greeting[at..at + 2] == [kind, 0] {
            return Some(at + 4);
        }
        at += 4 + usize::from(u16::from_le_bytes([greeting[at + 2], greeting[at + 3]]));
    }
    None
}

fn is_of(frame: &[u8], kinds: &[u8]) -> bool {
    kinds.contains(&frame[0])
}

const OPEN: u8 = 16;
const OPENED: u8 = 17;
const REFUSED: u8 = 18;
const CLOSED: u8 = 20;
const GRANT: u8 = 21;
const REQUEST: u8 = 32;
const REPLY: u8 = 33;
const DATA: u8 = 34;
const CANCEL: u8 = 35;

const ZERO: &str = "1-1";
const KEYBOARD: &str = "1-2";

/// A name for the fault, the device, the checks that have to fail, and the fault.
type Row = (&'static str, &'static str, &'static [&'static str], Wrong);

fn hello(change: fn(&mut Vec<u8>, &State)) -> Wrong {
    Wrong { hello: change, ..RIGHT }
}

fn welcome(change: fn(&mut Vec<u8>)) -> Wrong {
    Wrong { welcome: change, ..RIGHT }
}

fn down(change: fn(&mut Vec<u8>, &State)) -> Wrong {
    Wrong { down: change, ..RIGHT }
}

fn up(change: fn(&mut Vec<u8>, &State) -> After) -> Wrong {
    Wrong { up: change, ..RIGHT }
}

/// Swallows frames of the importer.
macro_rules! deaf {
    (|$frame:ident, $state:ident| $is_one:expr) => {
        up(|$frame, $state| {
            let _ = $state;
            if $is_one {
                $frame.clear();
            }
            After::GoOn
        })
    };
}

/// Ends the link at frames of the importer.
macro_rules! touchy {
    (|$frame:ident, $state:ident| $is_one:expr) => {
        up(|$frame, $state| {
            let _ = $state;
            if $is_one { After::End } else { After::GoOn }
        })
    };
}

fn greetings() -> Vec<Row> {
    vec![
        ("the wrong link", ZERO, &["hello"], welcome(|bytes| put(bytes, 32, 9))),
        ("one name for all", ZERO, &["session-names"], welcome(|bytes| bytes[16..32].fill(7))),
        ("any version", ZERO, &["version-later"], welcome(|bytes| bytes[8] = 9)),
        ("versions are not compared", ZERO, &["version-none"], hello(|bytes, _| bytes[8..10].fill(1))),
        (
            "a later option ends the link",
            ZERO,
            &["option-unknown"],
            hello(|bytes, _| {
                if bytes.len() > GREETING_BYTES && bytes[GREETING_BYTES] == 0xfe {
                    bytes.clear();
                }
            }),
        ),
        (
            "options are not read",
            ZERO,
            &["option-outside", "options-long", "option-unknown", "grace"],
            hello(|bytes, _| {
                bytes.truncate(GREETING_BYTES);
                bytes[12..16].fill(0);
            }),
        ),
        ("any line's end", ZERO, &["magic"], hello(|bytes, _| bytes[..8].copy_from_slice(b"farbus\r\n"))),
        (
            "an unknown session is a new one",
            ZERO,
            &["session-unknown"],
            hello(|bytes, _| {
                if bytes[16..32] == [0xc5; 16] {
                    bytes[16..32].fill(0);
                }
            }),
        ),
        (
            "a grace period without end",
            ZERO,
            &["grace"],
            welcome(|bytes| {
                if let Some(at) = option(bytes, 1) {
                    bytes[at..at + 4].fill(0x7f);
                }
            }),
        ),
        (
            "nine lanes",
            ZERO,
            &["lanes"],
            welcome(|bytes| {
                if let Some(at) = option(bytes, 3) {
                    bytes[at] = 9;
                }
            }),
        ),
        (
            "any lane is a new session",
            ZERO,
            &["lanes", "lanes-none"],
            hello(|bytes, _| {
                if bytes[10] != 0 {
                    bytes[10] = 0;
                    bytes[16..32].fill(0);
                }
            }),
        ),
        ("greets one importer at a time", ZERO, &["hello-half", "hello-silent"], Wrong { is_single: true, ..RIGHT }),
        (
            "a hold that nobody asked for",
            ZERO,
            &["option-again"],
            welcome(|bytes| {
                if option(bytes, 4).is_none() {
                    bytes.extend([4, 0, 4, 0, 0, 1, 0, 0]);
                    bytes[12] += 8;
                }
            }),
        ),
    ]
}

fn frames() -> Vec<Row> {
    vec![
        (
            "another pong",
            ZERO,
            &["ping", "ping-pieces", "ping-many"],
            down(|frame, _| {
                if frame[0] == 1 {
                    frame[8] ^= 0x80;
                }
            }),
        ),
        ("later kinds are not counted", ZERO, &["kind-later"], deaf!(|frame, _state| frame[0] == 200)),
        ("later words end the link", ZERO, &["words-later"], touchy!(|frame, _state| frame.get(8) == Some(&0x77))),
        (
            "nothing is acknowledged",
            ZERO,
            &["acknowledges"],
            down(|frame, _| {
                if frame[0] == 2 {
                    frame.clear();
                }
            }),
        ),
        (
            "unknown kinds are skipped",
            ZERO,
            &["kind-unknown", "kind-of-exporter"],
            deaf!(|frame, _state| is_of(frame, &[3, 64, 127, OPENED, REPLY, 36])),
        ),
        (
            "unknown flags are skipped",
            ZERO,
            &["flags-unknown"],
            up(|frame, _| {
                frame[1] &= 7;
                After::GoOn
            }),
        ),
        ("long frames are skipped", ZERO, &["frame-long"], deaf!(|frame, _state| frame[7] == 0xff && frame[6] == 0xf9)),
        ("short pings are skipped", ZERO, &["ping-short"], deaf!(|frame, _state| frame[0] == 0 && frame.len() != 16)),
        (
            "acknowledgements are not heard",
            ZERO,
            &["acknowledge-unsent", "acknowledge-back", "resume-back"],
            deaf!(|frame, _state| frame[0] == 2),
        ),
        (
            "ended links stay open",
            ZERO,
            &["take-over", "kind-unknown", "goodbye", "open-short"],
            Wrong { keeps_links: true, ..RIGHT },
        ),
    ]
}

fn attaching() -> Vec<Row> {
    vec![
        (
            "no lease",
            ZERO,
            &["open", "lease-higher"],
            down(|frame, _| {
                if frame[0] == OPENED {
                    put(frame, 8, 0);
                }
            }),
        ),
        (
            "later fields end the link",
            ZERO,
            &["open-later"],
            touchy!(|frame, _state| frame.ends_with(b"later version")),
        ),
        (
            "unknown names end the link",
            ZERO,
            &["open-unknown", "open-unknown-cause"],
            touchy!(|frame, _state| frame.windows(14).any(|bytes| bytes == b"no-such-device")),
        ),
        (
            "one cause for all",
            ZERO,
            &["open-unknown-cause", "open-busy", "lease-stale", "modules-unknown", "kept-busy"],
            down(|frame, _| {
                if frame[0] == REFUSED {
                    frame[8] = 3;
                }
            }),
        ),
        (
            "any class is USB",
            ZERO,
            &["open-class"],
            up(|frame, _| {
                if frame[0] == OPEN {
                    frame[8] = 1;
                }
                After::GoOn
            }),
        ),
        ("short opens are skipped", ZERO, &["open-short"], deaf!(|frame, _state| frame[0] == OPEN && frame.len() < 20)),
        (
            "one open a session",
            ZERO,
            &["open-again", "open-used", "lease-higher", "lease-latest"],
            deaf!(|frame, state| frame[0] == OPEN && (frame[2] == 0 || state.opens.fetch_add(1, Ordering::AcqRel) > 0)),
        ),
        (
            "closed as if it were gone",
            ZERO,
            &["close"],
            down(|frame, _| {
                if frame[0] == CLOSED {
                    frame[8] = 4;
                }
            }),
        ),
        (
            "leases are not compared",
            ZERO,
            &["lease-stale"],
            up(|frame, _| {
                if frame[0] == OPEN && frame.len() > 20 {
                    put(frame, 10, 0);
                }
                After::GoOn
            }),
        ),
        (
            "every lease is stale",
            ZERO,
            &["lease-latest"],
            up(|frame, _| {
                if frame[0] == OPEN && frame.len() > 20 && word(frame, 10) != 0 {
                    put(frame, 10, 1);
                }
                After::GoOn
            }),
        ),
        ("modules are not heard", ZERO, &["modules-unknown"], deaf!(|frame, _state| frame[0] == 24)),
        ("goodbyes are not heard", ZERO, &["goodbye"], deaf!(|frame, _state| frame[0] == 8)),
    ]
}

fn requests() -> Vec<Row> {
    vec![
        (
            "replies come twice",
            ZERO,
            &["request", "request-many", "cancel-answered", "reset"],
            down(|frame, _| {
                if frame[0] == REPLY && tag(frame) < 0x1f00 {
                    frame.extend_from_within(..);
                }
            }),
        ),
        (
            "a reply overtakes another",
            ZERO,
            &["request-many", "resume"],
            down(|frame, state| {
                let mut held = state.held.lock().unwrap();
                match held.take() {
                    Some(earlier) if frame[0] == REPLY => frame.extend(earlier),
                    Some(earlier) => *held = Some(earlier),
                    None if frame[0] == REPLY && tag(frame) == 3 => *held = Some(std::mem::take(frame)),
                    None => {}
                }
            }),
        ),
        (
            "every status is 0",
            KEYBOARD,
            &["request-stall", "endpoint-missing", "cancel-pending"],
            down(|frame, _| {
                if frame[0] == REPLY && frame[1] & 2 == 0 {
                    frame[8] = 0;
                }
            }),
        ),
        (
            "no times",
            ZERO,
            &["request-timed"],
            down(|frame, _| {
                if frame[0] == REPLY && frame[1] & 4 != 0 {
                    frame[1] &= 3;
                    frame.drain(8..20);
                    resized(frame);
                }
            }),
        ),
        ("data frames are not heard", ZERO, &["request-long", "data-stray"], deaf!(|frame, _state| frame[0] == DATA)),
        (
            "the rest of a reply is lost",
            ZERO,
            &["reply-long", "unacknowledged"],
            down(|frame, _| {
                if frame[0] == DATA {
                    frame.clear();
                }
            }),
        ),
        (
            "resets are answered and not carried out",
            ZERO,
            &["reset"],
            up(|frame, _| {
                if frame[0] == REQUEST && frame[9] == 1 << 5 {
                    // SET_CONFIGURATION to what it was.
                    frame.splice(8.., [0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 3, 0, 0, 0, 0, 0]);
                    resized(frame);
                }
                After::GoOn
            }),
        ),
        (
            "broken requests are skipped",
            ZERO,
            &["request-broken", "request-broken-beside", "cut-off-message"],
            deaf!(|frame, _state| frame[0] == REQUEST && frame[12] == 99),
        ),
        (
            "huge requests are skipped",
            ZERO,
            &["length-huge"],
            deaf!(|frame, _state| frame[0] == REQUEST && frame[15] > 0),
        ),
        (
            "excess data are skipped",
            ZERO,
            &["data-excess"],
            up(|frame, _| {
                if frame[0] == REQUEST && frame[12..16] == [5, 0, 0, 0] && frame.len() == 22 {
                    frame.pop();
                    resized(frame);
                }
                After::GoOn
            }),
        ),
        (
            "a second request of a tag is skipped",
            KEYBOARD,
            &["tag-twice"],
            deaf!(|frame, state| frame[0] == REQUEST && !state.tags.lock().unwrap().insert(tag(frame))),
        ),
        (
            "another message for what is cut off",
            ZERO,
            &["cut-off-message"],
            down(|frame, _| {
                if frame[0] == CLOSED && frame.len() > 11 {
                    frame[11] = b'C';
                }
            }),
        ),
        (
            "cancels are not heard",
            KEYBOARD,
            &["cancel-pending", "cancel-answered", "cancel-unknown", "cancel-race", "cancel-reused"],
            deaf!(|frame, _state| frame[0] == CANCEL),
        ),
        (
            "requests beyond the credit are skipped",
            KEYBOARD,
            &["credit-requests", "credit-bytes"],
            deaf!(|frame, _state| frame[0] == REQUEST
                && tag(frame) < 0x1f00
                && (tag(frame) >= 0x1000 || frame[13..16] != [0; 3])),
        ),
        (
            "credit does not come back",
            ZERO,
            &["credit-back"],
            touchy!(|frame, state| frame[0] == REQUEST && state.requests.fetch_add(1, Ordering::AcqRel) > 4096),
        ),
        (
            "what the importer accepts is not read",
            ZERO,
            &["unacknowledged"],
            hello(|bytes, _| {
                if let Some(at) = option(bytes, 2) {
                    bytes[at - 4] = 0xfe;
                }
            }),
        ),
        (
            "a grant is for ever",
            ZERO,
            &["grant"],
            up(|frame, _| {
                if frame[0] == GRANT {
                    frame[9] = 1;
                }
                After::GoOn
            }),
        ),
    ]
}

fn resuming() -> Vec<Row> {
    vec![
        (
            "a frame is lost with its link",
            ZERO,
            &["resume", "resume-again", "resume-twice"],
            hello(|bytes, _| {
                if bytes[16..32] != [0; 16] {
                    let had = word(bytes, 40);
                    put(bytes, 40, had + 1);
                }
            }),
        ),
        (
            // All of them: how many of the requests have arrived is the network's affair.
            "frames arrive twice with the next link",
            ZERO,
            &["resume-request"],
            welcome(|bytes| {
                if bytes[9] == 1 {
                    put(bytes, 40, 0);
                }
            }),
        ),
        (
            "links are not counted",
            ZERO,
            &["link-replayed", "link-earlier"],
            hello(|bytes, state| {
                if bytes[16..32] != [0; 16] {
                    put(bytes, 32, 1000 + state.links);
                }
            }),
        ),
        (
            "any number of frames is good",
            ZERO,
            &["resume-ahead"],
            hello(|bytes, _| {
                let had = word(bytes, 40);
                if had >= 1000 {
                    put(bytes, 40, had - 1000);
                }
            }),
        ),
        ("any importer is the same", ZERO, &["resume-forgetful"], hello(|bytes, _| put(bytes, 48, 1))),
        ("nobody is waited for", ZERO, &["kept", "kept-busy"], Wrong { says_goodbye: true, ..RIGHT }),
        (
            "another grace than was granted",
            ZERO,
            &["grace-over"],
            Wrong {
                hello: |bytes, _| {
                    if let Some(at) = option(bytes, 1) {
                        bytes[at..at + 4].copy_from_slice(&60_000u32.to_le_bytes());
                    }
                },
                ..RIGHT
            },
        ),
    ]
}

fn with_result<'a>(report: &'a Value, result: &str) -> BTreeSet<&'a str> {
    let checks = report["checks"].as_array().into_iter().flatten();
    checks.filter(|check| check["result"] == result).filter_map(|check| check["id"].as_str()).collect()
}

fn conform(harness: &Harness, words: &[&str]) -> (Outcome, Value) {
    expect_program();
    let outcome = harness.run(&[&["conform", "session"], words, &["--json"]].concat());
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome, report)
}

/// Each wrong exporter fails the checks of its fault, and no other of them; the right one fails none behind the same
/// proxy.
/// How many wrong exporters are held against the kit at a time: it mostly waits for answers that do not come.
const SIDE_BY_SIDE: usize = 4;

fn are_found(rows: Vec<Row>) {
    let rows = Mutex::new(rows.into_iter());
    let surprises: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(|| surprises(&rows))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

/// Holds wrong exporters of a list against the kit, until there are no more, before a share of their own. Returns those
/// that fail other checks than expected.
fn surprises(rows: &Mutex<std::vec::IntoIter<Row>>) -> Vec<String> {
    let harness = Harness::new();
    let share = harness.share(&["--observable", "zero", "keyboard"]);
    let to: SocketAddr = share.address.parse().unwrap();
    let run = |wrong: Wrong, device: &str, checks: &[&str], timeout: &str| {
        let proxy = Proxy::before(to, wrong).address.to_string();
        let only = checks.iter().flat_map(|check| ["--only", check]);
        let words: Vec<&str> = [&proxy, "--device", device, "--timeout", timeout].into_iter().chain(only).collect();
        conform(&harness, &words)
    };
    let checks = ["hello", "request", "cancel-race", "resume", "link-replayed"];
    let (outcome, report) = run(RIGHT, ZERO, &checks, "30");
    assert_eq!(with_result(&report, "pass"), BTreeSet::from(checks), "{outcome:?}");
    let mut surprises = Vec::new();
    loop {
        let row = rows.lock().unwrap().next();
        let Some((name, device, checks, wrong)) = row else { return surprises };
        let (outcome, report) = run(wrong, device, checks, "1");
        let failed = with_result(&report, "fail");
        let expected: BTreeSet<&str> = checks.iter().copied().collect();
        if failed != expected {
            surprises
                .push(format!("{name}: {failed:?} failed, not {expected:?}: {} {}", outcome.stdout, outcome.stderr));
        }
    }
}

#[test]
fn exporter_with_wrong_greetings_fails_the_check_of_its_fault() {
    are_found(greetings());
}

#[test]
fn exporter_with_wrong_frames_fails_the_check_of_its_fault() {
    are_found(frames());
}

#[test]
fn exporter_that_opens_and_closes_wrongly_fails_the_check_of_its_fault() {
    are_found(attaching());
}

#[test]
fn exporter_with_wrong_requests_fails_the_check_of_its_fault() {
    are_found(requests());
}

#[test]
fn exporter_that_resumes_wrongly_fails_the_check_of_its_fault() {
    are_found(resuming());
}

#[test]
fn each_check_of_a_session_is_failed_by_a_wrong_exporter() {
    let harness = Harness::new();
    let (_, list) = conform(&harness, &["--list"]);
    let all: BTreeSet<&str> = list.as_array().unwrap().iter().filter_map(|check| check["id"].as_str()).collect();
    let rows = [greetings(), frames(), attaching(), requests(), resuming()].concat();
    let found: BTreeSet<&str> = rows.iter().flat_map(|(_, _, checks, _)| *checks).copied().collect();
    // TCP may join pieces before the proxy sees them: `crates/conform/tests/session.rs` has the exporter for it.
    let never: Vec<&&str> = all.difference(&found).filter(|id| **id != "hello-pieces").collect();
    assert_eq!(never, [] as [&&str; 0], "no wrong exporter fails them");
    let unknown: Vec<&&str> = found.difference(&all).collect();
    assert_eq!(unknown, [] as [&&str; 0], "there are no such checks");
}

#[test]
fn shared_source_sink_disk_and_keyboard_pass_each_check_of_a_session() {
    let harness = Harness::new();
    let devices = ["1-1", "1-2", "1-3"];
    // An exporter each: some checks use another device beside the one they are for.
    let of = |device: &str| {
        let image = harness.image(&format!("disk-{device}.img"), 8 << 20);
        let share = harness.share(&["--observable", "zero", &format!("disk:{}", image.display()), "keyboard"]);
        conform(&harness, &[&share.address, "--device", device, "--timeout", "30"])
    };
    // The kit mostly waits.
    let reports = thread::scope(|scope| {
        let runs = devices.map(|device| scope.spawn(move || of(device)));
        runs.map(|run| run.join().unwrap())
    });
    let mut passed = BTreeSet::new();
    for (device, (outcome, report)) in devices.iter().zip(&reports) {
        let checks = report["checks"].as_array().into_iter().flatten();
        let ill: Vec<String> = checks
            .filter(|check| check["result"] == "fail" || check["result"] == "skipped")
            .map(|check| format!("{device} {}: {}", check["id"], check["seen"]))
            .collect();
        assert_eq!(ill, [] as [String; 0]);
        assert_eq!(outcome.code, Some(0), "{device}: {outcome:?}");
        passed.extend(with_result(report, "pass").into_iter().map(str::to_owned));
    }
    let (_, list) = conform(&harness, &["--list"]);
    let all = list.as_array().unwrap().iter().filter_map(|check| check["id"].as_str());
    let open: Vec<&str> = all.filter(|id| !passed.contains(*id)).collect();
    assert_eq!(open, [] as [&str; 0], "each check passes with one of the devices");
}
