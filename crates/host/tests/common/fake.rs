//! A Bulk-Only disk that follows the specification except where its script says otherwise.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{
    CompletionQueue, DescriptorSet, Device, DeviceDefinition, EpAddr, Instant, Payload, SetupPacket, TransferDirection,
    UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};

pub const IN: EpAddr = EpAddr::from_byte(0x81);
pub const OUT: EpAddr = EpAddr::from_byte(0x01);

/// What goes wrong with one command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// STALL instead of taking the command; only a reset helps.
    StallCommand,
    /// The command is lost on the bus.
    LoseCommand(UrbStatus),
    /// STALL after `after` bytes of the data phase; the status then has this value.
    StallData { after: usize, status: u8 },
    /// The data phase ends in this way.
    BreakData(UrbStatus),
    /// IN data ends early, with a residue.
    ShortData(usize),
    /// The residue says this, whatever moved.
    Residue(u32),
    /// IN data is left out and the status comes in its place.
    SkipData,
    /// OUT: the status comes before all data was taken.
    EarlyStatus,
    /// STALL instead of the status, so many times.
    StallStatus(u32),
    /// An empty packet before the status.
    BlankStatus,
    /// A status of another command.
    OtherTag,
    /// A status that begins otherwise.
    OtherSignature,
    /// A status that ends early.
    CutStatus,
    /// An undefined status.
    Status(u8),
    /// Silence from this phase on, until it is reset.
    Silence(Silent),
    /// A CHECK CONDITION with this sense: key, code, qualifier.
    Fail(u8, u8, u8),
    /// Like [`Wrong::Fail`], without the STALL: the data phase is empty or swallowed.
    FailSoftly(u8, u8, u8),
    /// Like [`Wrong::Fail`], about an earlier command.
    Deferred(u8, u8, u8),
    /// The device is gone, with everything in flight.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Silent {
    Command,
    Data,
    Status,
}

pub struct Fake {
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    speed: UsbSpeed,
    pub blocks: u64,
    pub block_bytes: usize,
    pub data: BTreeMap<u64, Vec<u8>>,
    /// What goes wrong next, and with which operation code (`None`: any).
    pub script: VecDeque<(Option<u8>, Wrong)>,
    /// Control requests of this code get this answer.
    pub refuses: Vec<(u8, UrbStatus)>,
    /// Operation codes it does not know.
    pub unknown: Vec<u8>,
    /// Operation codes that it received, one per command.
    pub commands: Vec<u8>,
    /// How many Bulk-Only resets it received.
    pub resets: usize,
    /// How many SET_CONFIGURATION requests it received.
    pub configurations: usize,
    /// Alternate settings that were selected.
    pub settings: Vec<u16>,
    /// Requests behind a halt stay in the queue, as on a real controller, instead of failing.
    pub keeps_behind_halt: bool,
    /// Cancellations are not answered.
    pub ignores_cancel: bool,
    /// If set, a host that announces other data than it sends fails the test. If not, it is refused.
    pub is_strict: bool,
    pub max_lun: Option<u8>,
    pub inquiry: Vec<u8>,
    pub mode: Option<Vec<u8>>,
    pub pages: BTreeMap<u8, Vec<u8>>,
    pub capacity_16_flags: u8,
    sense: [u8; 3],
    sense_is_deferred: bool,
    state: State,
    queues: [VecDeque<UrbInFlight>; 2],
    halts: [bool; 2],
    /// A halt that only a reset clears.
    locked: bool,
    silent: bool,
    gone: bool,
    status_stalls: u32,
}

#[derive(Debug)]
enum State {
    Command,
    DataIn { bytes: Vec<u8>, wrong: Option<Wrong>, status: Vec<u8> },
    DataOut { cdb: [u8; 16], length: usize, wrong: Option<Wrong>, tag: u32 },
    Blank { status: Vec<u8> },
    Status { status: Vec<u8> },
}

impl Fake {
    pub fn new(speed: UsbSpeed, block_bytes: usize, blocks: u64) -> Self {
        let definition = DeviceDefinition::new(0x1209, 0xfa1e)
            .speed(speed)
            .names("test", "fake disk", "1")
            .interface(InterfaceDefinition::new(8, 6, 0x50).bulk_pair(1));
        let mut inquiry = vec![0, 0, 5, 2, 31, 0, 0, 0];
        inquiry.extend(b"test    fake disk       0001");
        let (descriptors, mut selection) = (definition.build(), ConfigurationSelection::default());
        selection.select_configuration(&descriptors, 1);
        Self {
            descriptors,
            selection,
            speed,
            blocks,
            block_bytes,
            data: BTreeMap::new(),
            script: VecDeque::new(),
            refuses: Vec::new(),
            unknown: Vec::new(),
            commands: Vec::new(),
            resets: 0,
            configurations: 0,
            settings: Vec::new(),
            keeps_behind_halt: false,
            ignores_cancel: false,
            is_strict: true,
            max_lun: Some(0),
            inquiry,
            mode: Some(vec![7, 0, 0, 0, 0x08, 2, 0x04, 0]),
            pages: BTreeMap::from([(0, vec![0, 0xb0, 0xb2]), (0xb0, limits_page(0)), (0xb2, vec![0, 0xc4, 2, 0])]),
            capacity_16_flags: 0xc0,
            sense: [0; 3],
            sense_is_deferred: false,
            state: State::Command,
            queues: Default::default(),
            halts: [false; 2],
            locked: false,
            silent: false,
            gone: false,
            status_stalls: 0,
        }
    }

    /// A high-speed disk of 512-byte sectors, 1 MiB.
    pub fn small() -> Self {
        Self::new(UsbSpeed::High, 512, 2048)
    }

    /// This goes wrong with the next command.
    pub fn wrong(&mut self, wrong: Wrong) {
        self.script.push_back((None, wrong));
    }

    /// This goes wrong with the next command of this code.
    pub fn wrong_at(&mut self, code: u8, wrong: Wrong) {
        self.script.push_back((Some(code), wrong));
    }

    pub fn removable(mut self) -> Self {
        self.inquiry[1] = 0x80;
        self
    }

    /// Makes UAS the first setting and Bulk-Only the second.
    pub fn second_setting(mut self) -> Self {
        let uas = InterfaceDefinition::new(8, 6, 0x62).bulk_pair(2);
        let bulk_only = InterfaceDefinition::new(8, 6, 0x50).alternate_of_previous().bulk_pair(1);
        self.descriptors = DeviceDefinition::new(0x1209, 0xfa1e).interface(uas).interface(bulk_only).build();
        self
    }

    /// Claims SCSI-2: the host must not ask for vital product data or thin provisioning.
    pub fn old(mut self) -> Self {
        self.inquiry[2] = 2;
        self
    }

    pub fn read_store(&self, offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64).map(|at| self.byte(at)).collect()
    }

    fn byte(&self, at: u64) -> u8 {
        let block = self.data.get(&(at / self.block_bytes as u64));
        block.map_or(0, |block| block[(at % self.block_bytes as u64) as usize])
    }

    fn command(&mut self, wrapper: &[u8]) -> Option<()> {
        if wrapper.len() != 31 || wrapper[0..4] != *b"USBC" {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(wrapper[at..at + 4].try_into().unwrap());
        let (tag, length, is_in) = (word(4), word(8), wrapper[12] & 0x80 != 0);
        let cdb: [u8; 16] = wrapper[15..31].try_into().unwrap();
        self.commands.push(cdb[0]);
        let wrong = self.take_wrong(cdb[0]);
        if wrong == Some(Wrong::Gone) {
            self.gone = true;
            return Some(());
        }
        if wrong == Some(Wrong::Silence(Silent::Command)) {
            self.silent = true;
            return Some(());
        }
        if let Some(Wrong::StallStatus(times)) = wrong {
            self.status_stalls = times;
        }
        if !is_in && length > 0 {
            if wrong == Some(Wrong::EarlyStatus) {
                self.state = State::Status { status: status(tag, length, 1) };
            } else {
                self.state = State::DataOut { cdb, length: length as usize, wrong, tag };
            }
            return Some(());
        }
        let (mut bytes, mut code) = self.execute(&cdb, &[], wrong);
        bytes.truncate(length as usize);
        match wrong {
            Some(Wrong::ShortData(n)) => bytes.truncate(n),
            Some(Wrong::Status(status)) => code = status,
            _ => {}
        }
        let residue = length - bytes.len() as u32;
        let status = self.wrong_status(wrong, tag, residue, code);
        if length == 0 {
            self.enter_status(wrong, status);
        } else if wrong == Some(Wrong::SkipData) {
            self.state = State::Status { status: self::status(tag, length, code) };
        } else {
            self.state = State::DataIn { bytes, wrong, status };
        }
        Some(())
    }

    fn take_wrong(&mut self, code: u8) -> Option<Wrong> {
        // Reading the reason of a failure is not a command of its own.
        let (wanted, _) = self.script.front()?;
        let matches = wanted.map_or(code != 0x03, |wanted| wanted == code);
        matches.then(|| self.script.pop_front().unwrap().1)
    }

    fn wrong_status(&self, wrong: Option<Wrong>, tag: u32, residue: u32, code: u8) -> Vec<u8> {
        let mut bytes = status(tag, residue, code);
        match wrong {
            Some(Wrong::OtherTag) => bytes[4] ^= 1,
            Some(Wrong::OtherSignature) => bytes[0] = b'X',
            Some(Wrong::CutStatus) => bytes.truncate(12),
            Some(Wrong::Residue(residue)) => bytes[8..12].copy_from_slice(&residue.to_le_bytes()),
            Some(Wrong::StallData { status, .. }) => bytes[12] = status,
            _ => {}
        }
        bytes
    }

    fn enter_status(&mut self, wrong: Option<Wrong>, status: Vec<u8>) {
        self.silent |= wrong == Some(Wrong::Silence(Silent::Status));
        self.state = if wrong == Some(Wrong::BlankStatus) { State::Blank { status } } else { State::Status { status } };
    }

    /// Carries a command out: IN data and status.
    fn execute(&mut self, cdb: &[u8; 16], data: &[u8], wrong: Option<Wrong>) -> (Vec<u8>, u8) {
        if let Some(
            Wrong::Fail(key, code, qualifier)
            | Wrong::FailSoftly(key, code, qualifier)
            | Wrong::Deferred(key, code, qualifier),
        ) = wrong
        {
            self.sense = [key, code, qualifier];
            self.sense_is_deferred = matches!(wrong, Some(Wrong::Deferred(..)));
            return (Vec::new(), 1);
        }
        match self.carry_out(cdb, data) {
            Ok(bytes) => (bytes, 0),
            Err(sense) => {
                self.sense = sense;
                (Vec::new(), 1)
            }
        }
    }

    fn carry_out(&mut self, cdb: &[u8; 16], data: &[u8]) -> Result<Vec<u8>, [u8; 3]> {
        let be = |range: std::ops::Range<usize>| cdb[range].iter().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        const UNKNOWN: [u8; 3] = [5, 0x20, 0];
        if self.unknown.contains(&cdb[0]) {
            return Err(UNKNOWN);
        }
        match cdb[0] {
            0x00 | 0x1b | 0x1e | 0x35 => Ok(Vec::new()),
            0x03 => {
                let [key, code, qualifier] = std::mem::take(&mut self.sense);
                let format = 0x70 + u8::from(std::mem::take(&mut self.sense_is_deferred));
                Ok(vec![format, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0])
            }
            0x12 if cdb[1] & 1 == 0 => Ok(self.inquiry.clone()),
            0x12 => match self.pages.get(&cdb[2]) {
                Some(body) => Ok([&[0, cdb[2], 0, body.len() as u8], &body[..]].concat()),
                None => Err([5, 0x24, 0]),
            },
            0x1a => self.mode.clone().ok_or([5, 0x24, 0]),
            0x25 => {
                let last = u32::try_from(self.blocks - 1).unwrap_or(u32::MAX);
                Ok([last.to_be_bytes(), (self.block_bytes as u32).to_be_bytes()].concat())
            }
            0x9e => {
                let mut answer = vec![0; 32];
                answer[..8].copy_from_slice(&(self.blocks - 1).to_be_bytes());
                answer[8..12].copy_from_slice(&(self.block_bytes as u32).to_be_bytes());
                answer[14] = self.capacity_16_flags;
                Ok(answer)
            }
            0x28 => self.read(be(2..6), be(7..9)),
            0x88 => self.read(be(2..10), be(10..14)),
            0x2a => self.write(be(2..6), be(7..9), data),
            0x8a => self.write(be(2..10), be(10..14), data),
            0x93 => {
                let (first, count) = (be(2..10), be(10..14));
                self.check(first, count)?;
                (first..first + count).for_each(|block| _ = self.data.insert(block, data.to_vec()));
                Ok(Vec::new())
            }
            0x42 => {
                let range = &data[8..24];
                let first = u64::from_be_bytes(range[..8].try_into().unwrap());
                let count = u32::from_be_bytes(range[8..12].try_into().unwrap());
                self.check(first, count.into())?;
                (first..first + u64::from(count)).for_each(|block| _ = self.data.remove(&block));
                Ok(Vec::new())
            }
            _ => Err(UNKNOWN),
        }
    }

    fn check(&self, first: u64, count: u64) -> Result<(), [u8; 3]> {
        if first + count > self.blocks { Err([5, 0x21, 0]) } else { Ok(()) }
    }

    fn read(&self, first: u64, count: u64) -> Result<Vec<u8>, [u8; 3]> {
        self.check(first, count)?;
        let mut all = Vec::new();
        for block in first..first + count {
            let zeros = vec![0; self.block_bytes];
            all.extend(self.data.get(&block).unwrap_or(&zeros));
        }
        Ok(all)
    }

    fn write(&mut self, first: u64, count: u64, data: &[u8]) -> Result<Vec<u8>, [u8; 3]> {
        self.check(first, count)?;
        if data.len() != count as usize * self.block_bytes {
            assert!(!self.is_strict, "{} bytes for {count} sectors", data.len());
            return Err([5, 0x24, 0]);
        }
        for (at, block) in data.chunks(self.block_bytes).enumerate() {
            self.data.insert(first + at as u64, block.to_vec());
        }
        Ok(Vec::new())
    }

    fn serve(&mut self, done: &mut CompletionQueue) {
        while self.serve_out(done) || self.serve_in(done) {}
    }

    /// Answers the first request of a blocked pipe; returns whether it did.
    fn serve_blocked(&mut self, pipe: usize, done: &mut CompletionQueue) -> Option<bool> {
        if self.gone {
            let urb = self.queues[pipe].pop_front();
            let moved = urb.is_some();
            urb.into_iter().for_each(|urb| done.push(urb.fail(UrbStatus::Gone)));
            return Some(moved);
        }
        if self.halts[pipe] {
            if self.keeps_behind_halt {
                return Some(false);
            }
            let urb = self.queues[pipe].pop_front();
            let moved = urb.is_some();
            urb.into_iter().for_each(|urb| done.push(urb.fail(UrbStatus::Stall)));
            return Some(moved);
        }
        if self.silent || self.queues[pipe].is_empty() { Some(false) } else { None }
    }

    fn halt(&mut self, urb: UrbInFlight, moved: Payload, done: &mut CompletionQueue) {
        let pipe = (urb.direction == TransferDirection::In) as usize;
        self.halts[pipe] = true;
        let actual = moved.len() as u32;
        done.push(urb.done(UrbStatus::Stall, actual, moved));
    }

    fn serve_out(&mut self, done: &mut CompletionQueue) -> bool {
        if let Some(moved) = self.serve_blocked(0, done) {
            return moved;
        }
        match &self.state {
            State::Command => {
                let mut urb = self.queues[0].pop_front().unwrap();
                let bytes = urb.take_payload().into_vec();
                let wrong = bytes.get(15).and_then(|code| match self.script.front() {
                    Some((wanted, wrong @ (Wrong::StallCommand | Wrong::LoseCommand(_)))) => {
                        wanted.is_none_or(|wanted| wanted == *code).then_some(*wrong)
                    }
                    _ => None,
                });
                match wrong {
                    Some(Wrong::LoseCommand(status)) => {
                        self.script.pop_front();
                        done.push(urb.fail(status));
                    }
                    Some(_) => {
                        self.script.pop_front();
                        self.refuse(urb, done);
                    }
                    None if self.command(&bytes).is_some() => done.push(urb.accept()),
                    None => self.refuse(urb, done),
                }
                true
            }
            State::DataOut { .. } => {
                let urb = self.queues[0].pop_front().unwrap();
                self.take_data(urb, done);
                true
            }
            _ => false,
        }
    }

    /// BOT §6.6.1: an invalid command halts both pipes until it is reset.
    fn refuse(&mut self, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.halts = [true; 2];
        self.locked = true;
        done.push(urb.fail(UrbStatus::Stall));
    }

    fn take_data(&mut self, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        let State::DataOut { cdb, length, wrong, tag } = std::mem::replace(&mut self.state, State::Command) else {
            unreachable!()
        };
        let data = urb.take_payload().into_vec();
        if data.len() != length {
            assert!(!self.is_strict, "{} bytes of data where the command announced {length}", data.len());
            return self.refuse(urb, done);
        }
        match wrong {
            Some(Wrong::Silence(Silent::Data)) => {
                self.silent = true;
                return self.queues[0].push_front(urb);
            }
            Some(Wrong::BreakData(status)) => {
                self.state = State::DataOut { cdb, length, wrong: None, tag };
                return done.push(urb.fail(status));
            }
            Some(Wrong::StallData { status, .. }) => {
                self.halt(urb, Payload::Empty, done);
                self.sense = [3, 0x0c, 0];
                self.state = State::Status { status: self::status(tag, length as u32, status) };
                return;
            }
            Some(Wrong::Fail(key, code, qualifier)) => {
                self.sense = [key, code, qualifier];
                self.halt(urb, Payload::Empty, done);
                self.state = State::Status { status: status(tag, length as u32, 1) };
                return;
            }
            _ => {}
        }
        let (_, mut code) = self.execute(&cdb, &data, wrong);
        if let Some(Wrong::Status(status)) = wrong {
            code = status;
        }
        let status = self.wrong_status(wrong, tag, 0, code);
        done.push(urb.accept());
        self.enter_status(wrong, status);
    }

    fn serve_in(&mut self, done: &mut CompletionQueue) -> bool {
        if let Some(moved) = self.serve_blocked(1, done) {
            return moved;
        }
        match std::mem::replace(&mut self.state, State::Command) {
            State::DataIn { bytes, wrong, status } => {
                let urb = self.queues[1].pop_front().unwrap();
                self.give_data(urb, bytes, wrong, status, done);
                true
            }
            State::Blank { status } => {
                let urb = self.queues[1].pop_front().unwrap();
                done.push(urb.answer(Payload::Empty));
                self.state = State::Status { status };
                true
            }
            State::Status { status } => {
                let urb = self.queues[1].pop_front().unwrap();
                if self.status_stalls > 0 {
                    self.status_stalls -= 1;
                    self.halt(urb, Payload::Empty, done);
                    self.state = State::Status { status };
                } else if status.len() > urb.length as usize {
                    // Space for less data than a status has.
                    done.push(urb.fail(UrbStatus::Overflow));
                } else {
                    done.push(urb.answer(status.into()));
                }
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }

    fn give_data(
        &mut self,
        urb: UrbInFlight,
        mut bytes: Vec<u8>,
        wrong: Option<Wrong>,
        status: Vec<u8>,
        done: &mut CompletionQueue,
    ) {
        if bytes.len() > urb.length as usize {
            // A request for the status meets data: babble.
            self.state = State::DataIn { bytes, wrong, status };
            return done.push(urb.fail(UrbStatus::Overflow));
        }
        match wrong {
            Some(Wrong::Silence(Silent::Data)) => {
                self.silent = true;
                self.queues[1].push_front(urb);
                self.state = State::DataIn { bytes, wrong, status };
                return;
            }
            Some(Wrong::BreakData(status)) => {
                self.state = State::DataIn { bytes, wrong: None, status: Vec::new() };
                return done.push(urb.fail(status));
            }
            Some(Wrong::StallData { after, .. }) => {
                bytes.truncate(after);
                self.halt(urb, bytes.into(), done);
            }
            Some(Wrong::Fail(..)) => self.halt(urb, Payload::Empty, done),
            _ => done.push(urb.answer(bytes.into())),
        }
        self.enter_status(wrong, status);
    }

    fn begin_again(&mut self) {
        (self.state, self.silent, self.locked, self.status_stalls) = (State::Command, false, false, 0);
    }

    fn control(&mut self, setup: SetupPacket, urb: UrbInFlight, done: &mut CompletionQueue) {
        if let Some((_, status)) = self.refuses.iter().find(|(code, _)| *code == setup.request) {
            return match status {
                // Silence.
                UrbStatus::TimedOut => self.queues[0].push_back(urb),
                status => done.push(urb.fail(*status)),
            };
        }
        match (setup.kind(), setup.recipient(), setup.request) {
            (RequestKind::Class, RequestRecipient::Interface, 0xff) => {
                self.resets += 1;
                self.begin_again();
                done.push(urb.accept());
            }
            (RequestKind::Standard, RequestRecipient::Device, request::SET_CONFIGURATION) => {
                self.configurations += 1;
                self.begin_again();
                self.halts = [false; 2];
                done.push(urb.accept());
            }
            (RequestKind::Standard, RequestRecipient::Interface, request::SET_INTERFACE) => {
                self.settings.push(setup.value);
                done.push(urb.accept());
            }
            (RequestKind::Class, RequestRecipient::Interface, 0xfe) => match self.max_lun {
                Some(max) => done.push(urb.answer(vec![max].into())),
                None => done.push(urb.fail(UrbStatus::Stall)),
            },
            (RequestKind::Standard, RequestRecipient::Endpoint, request::CLEAR_FEATURE) => {
                let pipe = (setup.index & 0x80 != 0) as usize;
                self.halts[pipe] = self.locked;
                done.push(urb.accept());
                self.serve(done);
            }
            _ => done.push(urb.fail(UrbStatus::Stall)),
        }
    }
}

/// A command status wrapper.
fn status(tag: u32, residue: u32, code: u8) -> Vec<u8> {
    [&b"USBS"[..], &tag.to_le_bytes(), &residue.to_le_bytes(), &[code]].concat()
}

/// A block limits page: transfers of at most so many blocks, UNMAP and WRITE SAME of at most 64.
pub fn limits_page(transfer_max: u32) -> Vec<u8> {
    let mut body = vec![0; 60];
    body[4..8].copy_from_slice(&transfer_max.to_be_bytes());
    body[19] = 64;
    body[23] = 1;
    body[39] = 64;
    body
}

impl Device for Fake {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        self.speed
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.gone {
            return done.push(urb.fail(UrbStatus::Gone));
        }
        if urb.endpoint.is_control() {
            let setup = urb.setup;
            return self.control(setup, urb, done);
        }
        self.queues[(urb.endpoint == IN) as usize].push_back(urb);
        self.serve(done);
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if self.ignores_cancel {
            return;
        }
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|urb| urb.id == id) {
                return done.push(queue.remove(at).unwrap().fail(UrbStatus::Cancelled));
            }
        }
    }

    fn reset(&mut self, _now: Instant, _done: &mut CompletionQueue) {}
}

impl Drop for Fake {
    fn drop(&mut self) {
        for urb in self.queues.iter_mut().flat_map(|queue| queue.drain(..)) {
            urb.fail(UrbStatus::Gone);
        }
    }
}
