//! Earlier releases against the current one, in both roles: sessions of every release, byte by byte as they were on the
//! wire, in `release/VERSION/*.session`.
//!
//! - **Its client, our exporter**: the recorded client's bytes go to the current exporter, whose answers are compared
//!   with the recorded ones.
//! - **Its exporter, our importer**: the current importer does what the recorded client did and gets the recorded
//!   answers; it must send the same bytes and understand the answers.
//!
//! A new release writes its own folder: set the version in the workspace, run
//! `UPDATE_RELEASE=1 cargo test -p farbus-session --test release`
//! and commit the result. The folders of earlier releases are never rewritten, because they show what is in use.
//! Against a recording of the current version every byte of an answer counts; against an earlier one, descriptors and
//! names may differ, because a device may have changed.

mod world;

use std::path::{Path, PathBuf};

use farbus_model::descriptor::{DescriptorSet, UsbConfiguration};
use farbus_model::urb::UrbFlags;
use farbus_model::{
    CompletionQueue, Device, EpAddr, Instant, IsoPacket, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId,
    UrbStatus,
};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::{ImportHandshake, RemoteDevice};
use world::peer::{ECONNRESET, Packet, word};
use world::talk::{self, LIMITS, flat};
use world::transcript::{Transcript, Turn, Who};
use world::{Loopback, relay};

/// The version that main becomes: until it is released its folder is written anew whenever it has to be.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION").trim_end_matches("-dev")
}

/// A recorded session.
struct Recording {
    version: String,
    name: String,
    transcript: Transcript,
}

impl Recording {
    fn is_current(&self) -> bool {
        self.version == version()
    }

    fn title(&self) -> String {
        format!("release {}, session {}", self.version, self.name)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/release")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths
}

/// Every session of every release.
fn recordings() -> Vec<Recording> {
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let read = |path: &Path| Transcript::from_text(&std::fs::read_to_string(path).unwrap());
    let of_release = |release: PathBuf| {
        let version = release.file_name().unwrap().to_str().unwrap().to_owned();
        let recording =
            move |path: PathBuf| Recording { version: version.clone(), name: name(&path), transcript: read(&path) };
        entries(&release).into_iter().map(recording)
    };
    let all: Vec<Recording> = entries(&folder()).into_iter().flat_map(of_release).collect();
    assert!(!all.is_empty(), "there was a release");
    all
}

/// The sessions that the current version would record.
fn current_sessions() -> [(&'static str, Transcript); 3] {
    [("list", talk::list_session()), ("refused", talk::refused_session()), ("device", talk::device_session())]
}

#[test]
fn current_version_sends_what_was_recorded_for_it() {
    let folder = folder().join(version());
    if std::env::var_os("UPDATE_RELEASE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, transcript) in current_sessions() {
            let head = format!(
                "# farbus {}, a whole session: {name}. Written by its own two ends; see release.rs.\n",
                version()
            );
            std::fs::write(folder.join(name).with_extension("session"), head + &transcript.to_text()).unwrap();
        }
    }
    if !folder.exists() {
        // Between releases there is no recording of this version; the other tests cover earlier ones.
        return;
    }
    for (name, transcript) in current_sessions() {
        let path = folder.join(name).with_extension("session");
        let recorded = Transcript::from_text(&std::fs::read_to_string(&path).unwrap());
        assert_same_turns(&transcript.turns, &recorded.turns, &format!("{}, {name}", version()));
    }
}

fn assert_same_turns(now: &[Turn], then: &[Turn], title: &str) {
    for (at, (now, then)) in now.iter().zip(then).enumerate() {
        assert_eq!(now, then, "{title}, message {at}, {} now and {} then", now.name(), then.name());
    }
    assert_eq!(now.len(), then.len(), "{title}: as many messages");
}

#[test]
fn client_of_each_release_is_served_by_the_current_exporter() {
    for recording in recordings() {
        let answered = against_current_exporter(&recording.transcript);
        if recording.is_current() {
            assert_same_turns(&answered.turns, &recording.transcript.turns, &recording.title());
        }
        assert_eq!(essence(&answered), essence(&recording.transcript), "{}", recording.title());
    }
}

/// Sends the recorded client's bytes to the current exporter, at the recorded times.
fn against_current_exporter(then: &Transcript) -> Transcript {
    let mut loopback = Loopback::connected(talk::zero(), LIMITS);
    let mut now = Transcript::default();
    for turn in &then.turns {
        let at = Instant::from_nanos(turn.at_ns);
        loopback.pass(at - loopback.now);
        if turn.who == Who::Client {
            now.record(Who::Client, turn.at_ns, &turn.bytes);
            loopback.receive(&turn.bytes).expect("a released client breaks no rule");
        } else {
            now.record(Who::Server, turn.at_ns, &loopback.read_bytes(usize::MAX));
        }
    }
    now.record(Who::Server, loopback.now.as_nanos(), &loopback.read_bytes(usize::MAX));
    now
}

/// What a client depends on: how each request is answered, and all data except the device's descriptors.
fn essence(transcript: &Transcript) -> Vec<String> {
    let mut descriptor_reads = Vec::new();
    let mut essence = Vec::new();
    for turn in &transcript.turns {
        let code = word(&turn.bytes, 0);
        if code == 1 && turn.bytes[41] == 6 && word(&turn.bytes, 16) == 0 {
            descriptor_reads.push(word(&turn.bytes, 4));
        }
        if turn.who == Who::Server {
            essence.push(match code {
                3 if descriptor_reads.contains(&word(&turn.bytes, 4)) => {
                    format!("descriptor {} status {}", word(&turn.bytes, 4), word(&turn.bytes, 20))
                }
                3 | 4 => format!("{:02x?}", turn.bytes),
                _ => format!("{} status {}", turn.name(), word(&turn.bytes, 4)),
            });
        }
    }
    essence
}

#[test]
fn exporter_of_each_release_is_understood_by_the_current_importer() {
    for recording in recordings() {
        let title = recording.title();
        let (first, rest) = recording.transcript.turns.split_first().expect("somebody spoke");
        let mut importer = Importer::greeting(first, &title);
        for turn in rest {
            match turn.who {
                Who::Client => importer.speaks(turn, &title),
                Who::Server => importer.hears(turn, &title),
            }
        }
        assert_eq!(importer.open, [], "{title}: everything was answered");
    }
}

/// The current importer, doing what the recorded client did.
struct Importer {
    stage: Stage,
    done: CompletionQueue,
    /// Numbers of open submits.
    open: Vec<u32>,
    descriptors: DescriptorSet,
}

enum Stage {
    Greeting(Box<ImportHandshake>),
    Device(Box<RemoteDevice>),
    Over,
}

impl Importer {
    fn greeting(first: &Turn, title: &str) -> Self {
        let mut handshake = match word(&first.bytes, 0) & 0xffff {
            0x8005 => ImportHandshake::list(LIMITS),
            _ => {
                let bus_id = first.bytes[8..].split(|&byte| byte == 0).next().unwrap();
                ImportHandshake::import(LIMITS, std::str::from_utf8(bus_id).unwrap())
            }
        };
        assert_eq!(talk::said_by(&mut handshake), first.bytes, "{title}: {}", first.name());
        let descriptors = DescriptorSet::default();
        Self { stage: Stage::Greeting(Box::new(handshake)), done: relay::completions(), open: Vec::new(), descriptors }
    }

    /// Does what the client did; must send the same bytes.
    fn speaks(&mut self, turn: &Turn, title: &str) {
        let Stage::Device(remote) = &mut self.stage else { panic!("{title}: {} before an import", turn.name()) };
        match word(&turn.bytes, 0) {
            1 => {
                let urb = urb_of(&turn.bytes);
                self.open.push(urb.id.0 as u32);
                remote.submit(Instant::ZERO, urb.launch(), &mut self.done);
            }
            _ => remote.cancel(Instant::ZERO, UrbId(u64::from(word(&turn.bytes, 20))), &mut self.done),
        }
        let mut bytes = flat(&remote.poll_transmit());
        remote.handle_transmitted(bytes.len(), &mut self.done);
        // The interval of the endpoint, which 0.1.0 left out.
        if word(&bytes, 0) == 1 && word(&turn.bytes, 36) == 0 {
            bytes[36..40].fill(0);
        }
        assert_eq!(bytes, turn.bytes, "{title}: {}", turn.name());
    }

    /// Gets what the client got; must understand it the same way.
    fn hears(&mut self, turn: &Turn, title: &str) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Greeting(mut handshake) => match talk::greet(&mut handshake, &turn.bytes).expect("a whole answer") {
                HandshakeAnswer::Imported(record) => Stage::Device(Box::new(handshake.into_device(record))),
                HandshakeAnswer::Refused(status) => {
                    assert_eq!(status.code(), word(&turn.bytes, 4), "{title}");
                    Stage::Over
                }
                HandshakeAnswer::Devices(devices) => {
                    assert_eq!(devices.len() as u32, word(&turn.bytes, 8), "{title}");
                    Stage::Over
                }
            },
            Stage::Device(mut remote) => {
                relay::receive(&mut remote, &turn.bytes, &mut self.done).expect("a released exporter breaks no rule");
                let done = self.done.pop();
                assert_understood(turn, done.as_ref(), title);
                if let Some(done) = done {
                    self.open.retain(|&seqnum| u64::from(seqnum) != done.id.0);
                    self.learn(&done, &mut remote);
                }
                Stage::Device(remote)
            }
            Stage::Over => panic!("{title}: {} after the end", turn.name()),
        };
    }

    /// Reads the configuration as enumeration does.
    fn learn(&mut self, done: &UrbCompletion, remote: &mut RemoteDevice) {
        if done.setup.request == 6
            && let Ok(configuration) = UsbConfiguration::parse(&done.payload.contiguous())
        {
            self.descriptors.configurations = vec![configuration];
            remote.set_descriptors(self.descriptors.clone());
        }
    }
}

/// The request of a CMD_SUBMIT, under its own number.
fn urb_of(bytes: &[u8]) -> Urb {
    let direction = if word(bytes, 12) == 1 { TransferDirection::In } else { TransferDirection::Out };
    let (flags, length) = (word(bytes, 20), word(bytes, 24));
    let data_bytes = if direction == TransferDirection::Out { length as usize } else { 0 };
    let (data, packets) = bytes[48..].split_at(data_bytes);
    let packet = |b: &[u8]| {
        let packet = Packet::read(b);
        IsoPacket { offset: packet.offset, length: packet.length, ..IsoPacket::default() }
    };
    let endpoint = EpAddr::new(word(bytes, 16) as u8, direction).expect("an endpoint number");
    let mut urb = Urb::data_in(UrbId(u64::from(word(bytes, 4))), endpoint, length);
    urb.direction = direction;
    urb.payload = data.into();
    urb.iso = packets.chunks(16).map(packet).collect();
    urb.start_frame = word(bytes, 28);
    urb.interval = word(bytes, 36);
    urb.setup = SetupPacket::from_bytes(*bytes[40..].first_chunk().unwrap());
    urb.flags = UrbFlags { short_not_ok: flags & 1 != 0, iso_asap: flags & 2 != 0, zero_packet: flags & 0x40 != 0 };
    urb
}

fn assert_understood(turn: &Turn, done: Option<&UrbCompletion>, title: &str) {
    let bytes = &turn.bytes;
    let status = word(bytes, 20).cast_signed();
    match (word(bytes, 0), status) {
        (4, 0) => assert_eq!(done, None, "{title}: {}: its answer came before", turn.name()),
        (4, ECONNRESET) => assert_eq!(done.unwrap().status, UrbStatus::Cancelled, "{title}: {}", turn.name()),
        _ => {
            let done = done.unwrap_or_else(|| panic!("{title}: {} says nothing", turn.name()));
            assert_eq!((done.id.0 as u32, done.actual), (word(bytes, 4), word(bytes, 24)), "{title}: {}", turn.name());
            assert_eq!(done.status == UrbStatus::Ok, status == 0, "{title}: {}", turn.name());
            let size = done.payload.len();
            assert_eq!(*done.payload.contiguous(), bytes[48..48 + size], "{title}: {}", turn.name());
            assert_eq!(bytes.len(), 48 + size + 16 * done.iso.len());
        }
    }
}

#[test]
fn transcript_survives_its_text_form() {
    let transcript = talk::device_session();
    let read = Transcript::from_text(&transcript.to_text());
    assert_eq!(read.turns, transcript.turns);
    assert!(transcript.turns.iter().any(|turn| turn.name().starts_with("RET_UNLINK") && turn.name().ends_with("-104")));
    assert!(transcript.turns.last().unwrap().name().ends_with("status 0"), "and one that came too late");
}
