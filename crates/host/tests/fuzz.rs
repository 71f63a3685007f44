//! With any device at all, the host neither panics nor works for ever.
//!
//! Three kinds of devices, each from a seed: one that answers at random; one that changes the completions of a healthy
//! disk; one that is a healthy disk with a script of faults. `FARBUS_FUZZ_SECONDS` says how long; a failure names its
//! seed, and `FARBUS_FUZZ_SEED` begins with it.

mod common;

use std::time::{Duration, Instant as Clock};

use common::fake::{Fake, Silent, Wrong};
use common::port::TestPort;
use common::rng::Rng;
use common::target;
use farbus_host::storage::{BulkOnlyInterface, OperationResult};
use farbus_host::{
    ConfigurationSetter, DescriptorEnumerator, DeviceDriver, DiskError, HostPort, HostPortError, IdSource, ScsiDisk,
    ScsiDiskOptions, limits,
};
use farbus_model::{Instant, Payload, Urb, UrbCompletion, UrbId, UrbStatus, UsbSpeed};

/// The most turns of the pump for one operation: far above what a correct device needs (a read of 64 commands, each
/// repeated a few times with resets, each check of a slow medium).
const TURNS_MAX: usize = 50_000;

#[test]
fn fuzz_host_survives_any_device() {
    let seconds = std::env::var("FARBUS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let first = std::env::var("FARBUS_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let until = Clock::now() + Duration::from_secs(seconds);
    let mut seed: u64 = first.unwrap_or(0);
    let mut tally = Tally::default();
    while Clock::now() < until {
        let name = Named(seed);
        enumerate_noise(seed);
        drive(Noise::new(seed), seed, &mut tally);
        drive(Meddler::new(seed), seed, &mut tally);
        drive(mishaps(seed), seed, &mut tally);
        std::mem::forget(name);
        seed += 1;
    }
    println!("{seed} seeds: {tally:?}");
    assert!(first.is_some() || tally.up > 0 && tally.read > 0, "some of the strangers are sane enough: {tally:?}");
}

/// Prints the seed when something panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        eprintln!("FARBUS_FUZZ_SEED={} finds this again", self.0);
    }
}

#[derive(Debug, Default)]
struct Tally {
    up: usize,
    read: usize,
    failed: usize,
}

fn enumerate_noise(seed: u64) {
    let mut port = Noise::new(seed);
    port.starts = vec![18, 1];
    let ids = IdSource::new();
    let driver = &mut DescriptorEnumerator::new(port.now(), ids.clone(), UsbSpeed::Super);
    let Some(Ok(found)) = pump(driver, &mut port, 4 * limits::ENUMERATION_TRANSFERS_MAX) else { return };
    assert!(port.submitted <= limits::ENUMERATION_TRANSFERS_MAX);
    if let Ok(mut configure) = ConfigurationSetter::first(port.now(), ids, &found) {
        pump(&mut configure, &mut port, 10);
    }
    let _: Vec<_> = found.configurations.iter().map(|c| BulkOnlyInterface::find(c, UsbSpeed::Super)).collect();
}

/// Brings up a disk and makes requests, as long as the port works.
fn drive(mut port: impl HostPort, seed: u64, tally: &mut Tally) {
    let mut rng = Rng(!seed);
    let fake = Fake::small();
    let options = ScsiDiskOptions { transfer_bytes_max: Some(16 << 10), ..ScsiDiskOptions::default() };
    let mut disk = ScsiDisk::new(port.now(), IdSource::new(), target(&fake), options);
    for _ in 0..12 {
        let Some(outcome) = pump(&mut disk, &mut port, TURNS_MAX) else { return };
        assert!(disk.is_idle());
        count(&outcome, tally);
        operate(&mut disk, port.now(), &mut rng);
    }
}

fn count(outcome: &Result<OperationResult, DiskError>, tally: &mut Tally) {
    match outcome {
        Ok(OperationResult::Ready) => tally.up += 1,
        Ok(OperationResult::Data(data)) => {
            tally.read += 1;
            let run_bytes: usize = data.runs().map(<[u8]>::len).sum();
            assert_eq!(run_bytes, data.len(), "a read that succeeds brings what was asked for");
        }
        Ok(OperationResult::Done) => {}
        Err(error) => {
            assert!(!error.to_string().is_empty());
            tally.failed += 1;
        }
    }
}

fn operate(disk: &mut ScsiDisk, now: Instant, rng: &mut Rng) {
    let size = disk.info().size_bytes();
    let offset = rng.below(size.min(1 << 20) + 10);
    let len = rng.below(64 << 10);
    match rng.below(8) {
        0 => disk.write(now, offset, rng.bytes(len as usize).into()),
        1 => disk.write_zeroes(now, offset, len, rng.one_in(2)),
        2 => disk.discard(now, offset, len),
        3 => disk.flush(now),
        4 => disk.eject(now),
        5 => disk.bring_up(now),
        _ => disk.read(now, offset, len as usize),
    }
}

/// Like `run`, with a limit of turns. `None` when the port failed.
fn pump<D: DeviceDriver>(driver: &mut D, port: &mut impl HostPort, turns_max: usize) -> Option<D::Outcome> {
    for _ in 0..turns_max {
        while let Some(id) = driver.poll_cancel() {
            port.cancel(id);
        }
        while let Some(urb) = driver.poll_submit() {
            port.submit(urb);
        }
        if let Some(outcome) = driver.poll_outcome() {
            return Some(outcome);
        }
        match port.wait(driver.poll_timeout()) {
            Ok(Some(done)) => {
                driver.handle_done(port.now(), done);
                port.recycle(driver.poll_spent());
            }
            Ok(None) => driver.handle_timeout(port.now()),
            Err(_) => return None,
        }
    }
    panic!("no end after {turns_max} turns");
}

const STATUSES: [UrbStatus; 15] = [
    UrbStatus::Ok,
    UrbStatus::Stall,
    UrbStatus::Short,
    UrbStatus::Overflow,
    UrbStatus::Protocol,
    UrbStatus::Crc,
    UrbStatus::DataRate,
    UrbStatus::TimedOut,
    UrbStatus::Cancelled,
    UrbStatus::Shutdown,
    UrbStatus::Gone,
    UrbStatus::Invalid,
    UrbStatus::NoCredit,
    UrbStatus::IsoMissed,
    UrbStatus::Other,
];

fn any_status(rng: &mut Rng) -> UrbStatus {
    STATUSES[rng.below(STATUSES.len() as u64) as usize]
}

/// Answers at random, in any order, some requests never.
struct Noise {
    rng: Rng,
    now: Instant,
    flying: Vec<Urb>,
    submitted: usize,
    /// The beginnings of its answers, where they are long enough: with some plausible bytes the host gets further.
    starts: Vec<u8>,
}

impl Noise {
    fn new(seed: u64) -> Self {
        Self { rng: Rng(seed), now: Instant::ZERO, flying: Vec::new(), submitted: 0, starts: Vec::new() }
    }

    fn answer(&mut self, urb: &Urb) -> Payload {
        let mut len =
            if self.rng.one_in(2) { u64::from(urb.length) } else { self.rng.below(u64::from(urb.length) + 1) };
        if self.rng.one_in(20) {
            // More than was asked for: a wire's gate would not let it pass.
            len += self.rng.below(100);
        }
        let mut bytes = self.rng.bytes(len.min(1 << 16) as usize);
        if self.rng.one_in(2) {
            bytes.iter_mut().for_each(|byte| *byte &= 15);
        }
        match urb.setup.value >> 8 {
            1 => copy(&mut bytes, &[18, 1]),
            2 => copy(&mut bytes, &[9, 2, 40, 0]),
            15 => copy(&mut bytes, &[5, 15, 30, 0]),
            _ if urb.length == 13 => copy(&mut bytes, b"USBS"),
            _ => copy(&mut bytes, &self.starts),
        }
        bytes.into()
    }
}

fn copy(to: &mut [u8], from: &[u8]) {
    let n = to.len().min(from.len());
    to[..n].copy_from_slice(&from[..n]);
}

impl HostPort for Noise {
    fn submit(&mut self, urb: Urb) {
        self.submitted += 1;
        self.flying.push(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        assert!(self.flying.iter().any(|urb| urb.id == id), "only what is in flight is withdrawn");
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        let is_late = self.rng.one_in(12) || self.flying.is_empty();
        if let (true, Some(until)) = (is_late, until) {
            self.now = self.now.max(until);
            return Ok(None);
        }
        if self.flying.is_empty() || self.rng.one_in(5000) {
            return Err(HostPortError::Gone);
        }
        let urb = self.flying.swap_remove(self.rng.below(self.flying.len() as u64) as usize);
        let payload = if urb.payload.is_empty() && urb.length > 0 { self.answer(&urb) } else { Payload::Empty };
        let status = if self.rng.one_in(3) { any_status(&mut self.rng) } else { UrbStatus::Ok };
        let is_stray = self.rng.one_in(50);
        if is_stray {
            self.flying.push(urb.clone());
        }
        let mut done = urb.launch().fail(status);
        done.actual = if payload.is_empty() { self.rng.next() as u32 } else { payload.len() as u32 };
        done.payload = payload;
        if is_stray {
            // An answer to nothing.
            done.id = UrbId(self.rng.next());
        }
        Ok(Some(done))
    }

    fn now(&self) -> Instant {
        self.now
    }
}

/// Stands between the host and a healthy disk, and changes what comes back.
struct Meddler {
    port: TestPort<Fake>,
    rng: Rng,
    /// It changes one completion of this many.
    rarely: u64,
}

impl Meddler {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let rarely = 1 + rng.below(60);
        let mut port = mishaps(seed);
        port.device.is_strict = false;
        Self { port, rng, rarely }
    }
}

impl HostPort for Meddler {
    fn submit(&mut self, urb: Urb) {
        self.port.submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.port.cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        let Some(mut done) = self.port.wait(until)? else { return Ok(None) };
        if !self.rng.one_in(self.rarely) {
            return Ok(Some(done));
        }
        let mut bytes = std::mem::take(&mut done.payload).into_vec();
        match self.rng.below(4) {
            0 => done.status = any_status(&mut self.rng),
            1 => bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize),
            2 => bytes.extend(self.rng.bytes(5)),
            _ => {
                for _ in 0..=self.rng.below(3) {
                    let at = self.rng.below(bytes.len() as u64) as usize;
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = self.rng.next() as u8;
                    }
                }
            }
        }
        done.payload = bytes.into();
        Ok(Some(done))
    }

    fn now(&self) -> Instant {
        self.port.now()
    }
}

/// A disk with a script of faults, and completions in any order.
fn mishaps(seed: u64) -> TestPort<Fake> {
    let mut rng = Rng(seed ^ 0x5eed);
    let mut fake = Fake::small().removable();
    fake.keeps_behind_halt = rng.one_in(2);
    fake.ignores_cancel = rng.one_in(20);
    for _ in 0..rng.below(12) {
        let code = rng.one_in(2).then(|| [0x12, 0x00, 0x25, 0x28, 0x2a, 0x03, 0x35, 0x93][rng.below(8) as usize]);
        fake.script.push_back((code, any_wrong(&mut rng)));
    }
    if rng.one_in(4) {
        let code = [0xff, 0xfe, 0x01][rng.below(3) as usize];
        fake.refuses.push((code, failure(&mut rng)));
    }
    let mut port = TestPort::new(fake);
    port.shuffle = Some(rng);
    port
}

fn any_wrong(rng: &mut Rng) -> Wrong {
    let sense = [rng.below(16) as u8, rng.next() as u8, rng.below(4) as u8];
    let [key, code, qualifier] = sense;
    match rng.below(20) {
        0 => Wrong::StallCommand,
        1 => Wrong::LoseCommand(failure(rng)),
        2 => Wrong::StallData { after: rng.below(2048) as usize, status: rng.below(4) as u8 },
        3 => Wrong::BreakData(failure(rng)),
        4 => Wrong::ShortData(rng.below(600) as usize),
        5 => Wrong::Residue(rng.next() as u32),
        6 => Wrong::SkipData,
        7 => Wrong::EarlyStatus,
        8 => Wrong::StallStatus(rng.below(4) as u32),
        9 => Wrong::BlankStatus,
        10 => Wrong::OtherTag,
        11 => Wrong::OtherSignature,
        12 => Wrong::CutStatus,
        13 => Wrong::Status(rng.next() as u8),
        14 => Wrong::Silence([Silent::Command, Silent::Data, Silent::Status][rng.below(3) as usize]),
        15..=16 => Wrong::Fail(key, code, qualifier),
        17 => Wrong::Deferred(key, code, qualifier),
        18 => Wrong::FailSoftly(key, code, qualifier),
        _ => Wrong::Fail(2, 4, 1),
    }
}

fn failure(rng: &mut Rng) -> UrbStatus {
    match any_status(rng) {
        UrbStatus::Ok => UrbStatus::Protocol,
        status => status,
    }
}
