//! A device in fastboot mode: programs write its partitions (Android's fastboot protocol, version 0.4).
//!
//! A host sends a command of up to 64 bytes, and the device answers it with INFO as often as it likes, then with OKAY
//! or FAIL; DATA comes before the bytes of a download or an upload. Partitions are held in memory. They remain when the
//! bus is reset or the device is told to reboot: it has no system to start, so it is in fastboot mode again.
//!
//! | command | here |
//! |---|---|
//! | `getvar:NAME`, `getvar:all` | the variables that version 0.4 knows, and what `fastboot flash` asks of a partition |
//! | `download:SIZE` | stages that many bytes, up to [`DOWNLOAD_BYTES_MAX`] |
//! | `flash:PARTITION`, `erase:PARTITION` | [`PARTITIONS`] exist; an Android sparse image is refused |
//! | `oem read PARTITION` | stages what the partition holds |
//! | `upload` | hands out what is staged |
//! | `reboot`, `reboot-bootloader` | forgets what is staged |
//! | any other | FAIL |
//!
//! A host that sends a command does not wait for the answer to the one before: what it did not read is discarded, so
//! that a program can begin where another one was killed.

use std::collections::VecDeque;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::{DeviceDefinition, EpAddr, Payload};

use crate::emulated::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// The most bytes of a download, and so of a partition.
pub const DOWNLOAD_BYTES_MAX: usize = 16 << 20;
/// The names of the partitions, which exist from the start and are empty.
pub const PARTITIONS: [&str; 2] = ["boot", "data"];
/// The longest command and the longest answer, bytes.
const MESSAGE_BYTES_MAX: usize = 64;
/// The number of both endpoints.
const DATA: u8 = 1;
/// What an Android sparse image begins with, little-endian.
const SPARSE_MAGIC: [u8; 4] = 0xed26_ff3a_u32.to_le_bytes();
const PRODUCT: &str = "farbus";
const SERIAL: &str = "0";

/// A device in fastboot mode.
#[derive(Debug, Default)]
pub struct FastbootGadget {
    /// What the host has to read, transfer by transfer.
    answers: VecDeque<Payload>,
    /// What was downloaded, or read from a partition.
    staged: Vec<u8>,
    /// Bytes of a download that are still expected.
    expected: usize,
    partitions: [Vec<u8>; PARTITIONS.len()],
}

impl FastbootGadget {
    /// The device, ready to be shared, with empty partitions. Its ids are of those that pid.codes keeps for tests.
    pub fn device() -> EmulatedDevice<Self> {
        let interface = InterfaceDefinition::new(0xff, 0x42, 3).name("fastboot").bulk_pair(DATA);
        let definition = DeviceDefinition::new(0x1209, 0x0003).names("farbus", "fastboot device", SERIAL);
        EmulatedDevice::new(&definition.interface(interface), Self::default())
    }

    /// What a partition holds; `None` if there is none of this name.
    pub fn partition(&self, name: &str) -> Option<&[u8]> {
        partition_index(name).map(|index| self.partitions[index].as_slice())
    }

    /// Answers with one of the protocol's four words and a text, which is cut to what an answer may have.
    fn say(&mut self, word: &str, text: &str) {
        let mut answer = format!("{word}{text}").into_bytes();
        answer.truncate(MESSAGE_BYTES_MAX);
        self.answers.push_back(answer.into());
    }

    /// Forgets what the host began.
    fn begin_again(&mut self) {
        (self.answers, self.staged, self.expected) = (VecDeque::new(), Vec::new(), 0);
    }

    fn command(&mut self, command: &str) {
        let (verb, argument) = match command.split_once([':', ' ']) {
            Some((verb, argument)) => (verb, Some(argument)),
            None => (command, None),
        };
        let answer = match (verb, argument) {
            ("getvar", Some("all")) => self.say_all_variables(),
            ("getvar", Some(name)) => self.variable(name),
            ("download", Some(size)) => match self.download(size) {
                Ok(size) => return self.say("DATA", &format!("{size:08x}")),
                Err(error) => Err(error),
            },
            ("flash", Some(name)) => self.flash(name),
            ("erase", Some(name)) => self.known(name).map(|index| {
                self.partitions[index] = Vec::new();
                String::new()
            }),
            ("oem", Some(words)) => self.oem(words),
            ("upload", None) => self.upload(),
            ("reboot" | "reboot-bootloader", None) => {
                self.staged = Vec::new();
                Ok(String::new())
            }
            ("boot" | "continue", None) => Err("there is no system to start".to_owned()),
            _ => Err("unknown command".to_owned()),
        };
        match answer {
            Ok(text) => self.say("OKAY", &text),
            Err(text) => self.say("FAIL", &text),
        }
    }

    fn known(&self, partition: &str) -> Result<usize, String> {
        partition_index(partition).ok_or_else(|| format!("no such partition: {partition}"))
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        let about = |name: &str| self.known(name);
        Ok(match name.split_once(':') {
            None => VARIABLES
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
                .or_else(|| (name == "max-download-size").then(|| format!("{DOWNLOAD_BYTES_MAX:#x}")))
                .ok_or("unknown variable")?,
            Some(("partition-size", partition)) => {
                about(partition)?;
                format!("{DOWNLOAD_BYTES_MAX:#x}")
            }
            Some(("partition-type", partition)) => about(partition).map(|_| "raw".to_owned())?,
            Some(("has-slot" | "is-logical", partition)) => about(partition).map(|_| "no".to_owned())?,
            Some(_) => return Err("unknown variable".to_owned()),
        })
    }

    fn say_all_variables(&mut self) -> Result<String, String> {
        let of_device = VARIABLES.iter().map(|(name, _)| (*name).to_owned());
        let of_partitions = ["partition-size", "partition-type"]
            .iter()
            .flat_map(|about| PARTITIONS.map(|name| format!("{about}:{name}")));
        let names: Vec<_> = of_device.chain(["max-download-size".to_owned()]).chain(of_partitions).collect();
        for name in names {
            let value = self.variable(&name)?;
            self.say("INFO", &format!("{name}: {value}"));
        }
        Ok(String::new())
    }

    /// Begins a download of so many bytes, as eight hexadecimal digits say.
    fn download(&mut self, size: &str) -> Result<usize, String> {
        let is_hex = size.len() == 8 && size.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bytes =
            u32::from_str_radix(size, 16).ok().filter(|_| is_hex).ok_or("a size has eight hexadecimal digits")?;
        let bytes = bytes as usize;
        if !(1..=DOWNLOAD_BYTES_MAX).contains(&bytes) {
            return Err(format!("a download has 1 to {DOWNLOAD_BYTES_MAX} bytes"));
        }
        (self.staged, self.expected) = (Vec::new(), bytes);
        Ok(bytes)
    }

    /// Takes bytes of a download.
    fn take(&mut self, payload: &Payload) {
        let Some(left) = self.expected.checked_sub(payload.len()) else {
            self.begin_again();
            return self.say("FAIL", "more bytes than were announced");
        };
        payload.runs().for_each(|run| self.staged.extend_from_slice(run));
        self.expected = left;
        if left == 0 {
            self.say("OKAY", "");
        }
    }

    fn flash(&mut self, name: &str) -> Result<String, String> {
        let index = self.known(name)?;
        if self.staged.is_empty() {
            return Err("nothing was downloaded".to_owned());
        }
        if self.staged.starts_with(&SPARSE_MAGIC) {
            return Err("sparse images are not supported".to_owned());
        }
        self.partitions[index] = std::mem::take(&mut self.staged);
        Ok(String::new())
    }

    fn oem(&mut self, words: &str) -> Result<String, String> {
        let name = words.strip_prefix("read ").ok_or("the only oem command is: read PARTITION")?;
        self.staged.clone_from(&self.partitions[self.known(name)?]);
        Ok(String::new())
    }

    fn upload(&mut self) -> Result<String, String> {
        if self.staged.is_empty() {
            return Err("nothing is staged".to_owned());
        }
        let data = std::mem::take(&mut self.staged);
        self.say("DATA", &format!("{:08x}", data.len()));
        self.answers.push_back(data.into());
        Ok(String::new())
    }
}

/// Variables of the whole device, besides `max-download-size`.
const VARIABLES: [(&str, &str); 6] = [
    ("version", "0.4"),
    ("product", PRODUCT),
    ("serialno", SERIAL),
    ("secure", "no"),
    ("is-userspace", "no"),
    ("slot-count", "0"),
];

fn partition_index(name: &str) -> Option<usize> {
    PARTITIONS.iter().position(|known| *known == name)
}

impl GadgetFunction for FastbootGadget {
    fn send(&mut self, _endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let Some(answer) = self.answers.front_mut() else { return InTransferAnswer::Nak };
        let bytes = answer.split_front(room);
        if answer.is_empty() {
            self.answers.pop_front();
        }
        InTransferAnswer::Data(bytes)
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if self.expected > 0 {
            self.take(payload);
            return OutTransferAnswer::Accepted;
        }
        // Empty packets mean nothing.
        if payload.is_empty() {
            return OutTransferAnswer::Accepted;
        }
        self.answers.clear();
        if payload.len() > MESSAGE_BYTES_MAX {
            self.say("FAIL", "a command has 64 bytes at most");
            return OutTransferAnswer::Accepted;
        }
        match str::from_utf8(&payload.contiguous()) {
            Ok(command) if command.is_ascii() => self.command(command),
            _ => self.say("FAIL", "a command is ASCII"),
        }
        OutTransferAnswer::Accepted
    }

    fn selected(&mut self, _selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        self.begin_again();
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.begin_again();
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        to.u32(u32::try_from(self.answers.len()).ok()?);
        self.answers.iter().for_each(|answer| to.bytes(&answer.contiguous()));
        to.bytes(&self.staged);
        to.u32(u32::try_from(self.expected).ok()?);
        self.partitions.iter().for_each(|partition| to.bytes(partition));
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let mut answers = VecDeque::new();
        for _ in 0..from.u32()? {
            answers.push_back(from.bytes().filter(|bytes| !bytes.is_empty())?.into());
        }
        let within = |bytes: &&[u8]| bytes.len() <= DOWNLOAD_BYTES_MAX;
        let staged = from.bytes().filter(within)?.to_vec();
        let expected = from.u32()? as usize;
        let mut partitions: [Vec<u8>; PARTITIONS.len()] = Default::default();
        for partition in &mut partitions {
            *partition = from.bytes().filter(within)?.to_vec();
        }
        from.end().filter(|()| staged.len() + expected <= DOWNLOAD_BYTES_MAX)?;
        *self = Self { answers, staged, expected, partitions };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::fuzz;
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, SetupPacket, Urb, UrbId, UrbStatus};
    use proptest::prelude::*;

    const IN: EpAddr = EpAddr::from_byte(0x81);
    const OUT: EpAddr = EpAddr::from_byte(0x01);

    /// A host with the device.
    struct Host {
        device: EmulatedDevice<FastbootGadget>,
        done: CompletionQueue,
    }

    impl Host {
        fn new() -> Self {
            let mut host = Self { device: FastbootGadget::device(), done: CompletionQueue::new(BufferPool::new(0)) };
            host.configure();
            host
        }

        fn configure(&mut self) {
            let setup = SetupPacket::set_configuration(1);
            self.device.submit(Instant::ZERO, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut self.done);
            assert_eq!(self.done.pop().unwrap().status, UrbStatus::Ok);
        }

        fn give(&mut self, bytes: &[u8]) {
            let urb = Urb::data_out(UrbId(1), OUT, bytes.to_vec().into());
            self.device.submit(Instant::ZERO, urb.launch(), &mut self.done);
            assert_eq!(self.done.pop().unwrap().status, UrbStatus::Ok);
        }

        /// What the device has for the host; `None` if nothing.
        fn ask(&mut self, room: u32) -> Option<Vec<u8>> {
            self.device.submit(Instant::ZERO, Urb::data_in(UrbId(2), IN, room).launch(), &mut self.done);
            self.device.cancel(Instant::ZERO, UrbId(2), &mut self.done);
            let done = self.done.pop().unwrap();
            (done.status == UrbStatus::Ok).then(|| done.payload.into_vec())
        }

        /// All answers to a command.
        fn command(&mut self, command: &str) -> Vec<String> {
            self.give(command.as_bytes());
            let answers = std::iter::from_fn(|| self.ask(64)).map(|answer| String::from_utf8(answer).unwrap());
            answers.collect()
        }

        fn stage(&mut self, bytes: &[u8]) {
            assert_eq!(self.command(&format!("download:{:08x}", bytes.len())), [format!("DATA{:08x}", bytes.len())]);
            for chunk in bytes.chunks(16 << 10) {
                assert!(self.ask(64).is_none(), "bytes are missing");
                self.give(chunk);
            }
            assert_eq!(self.ask(64).unwrap(), b"OKAY");
        }
    }

    #[test]
    fn interface_is_known_by_its_class() {
        let device = FastbootGadget::device();
        let bytes = &device.descriptors().configurations[0].bytes;
        assert_eq!(bytes[9..18], [9, 4, 0, 0, 2, 0xff, 0x42, 3, 4]);
        assert_eq!(bytes[20..25], [0x81, 2, 0, 2, 0], "bulk, 512 bytes");
    }

    #[test]
    fn variables_are_told_and_unknown_ones_refused() {
        let mut host = Host::new();
        for (name, answer) in [
            ("version", "OKAY0.4"),
            ("product", "OKAYfarbus"),
            ("serialno", "OKAY0"),
            ("max-download-size", "OKAY0x1000000"),
            ("has-slot:data", "OKAYno"),
            ("partition-type:boot", "OKAYraw"),
            ("colour", "FAILunknown variable"),
            ("colour:data", "FAILunknown variable"),
            ("has-slot:tape", "FAILno such partition: tape"),
        ] {
            assert_eq!(host.command(&format!("getvar:{name}")), [answer], "{name}");
        }
        let all = host.command("getvar:all");
        assert!(all.contains(&"INFOmax-download-size: 0x1000000".to_owned()), "{all:?}");
        assert_eq!((all.len(), all.last().unwrap().as_str()), (12, "OKAY"));
    }

    #[test]
    fn a_partition_holds_what_was_flashed() {
        let mut host = Host::new();
        let image: Vec<u8> = (0..100_000_u32).map(|at| (at / 7) as u8).collect();
        host.stage(&image);
        assert_eq!(host.command("flash:data"), ["OKAY"]);
        assert_eq!(host.command("flash:boot"), ["FAILnothing was downloaded"], "it was moved");
        assert_eq!(host.command("reboot"), ["OKAY"]);
        host.device.reset(Instant::ZERO, &mut host.done);
        host.configure();
        assert_eq!(host.device.function().partition("data"), Some(image.as_slice()), "a reset does not erase it");
        assert_eq!(host.command("oem read data"), ["OKAY"]);
        host.give(b"upload");
        assert_eq!(host.ask(64).unwrap(), b"DATA000186a0");
        let mut back = Vec::new();
        while back.len() < image.len() {
            back.extend(host.ask(16 << 10).unwrap());
        }
        assert!(back == image);
        assert_eq!((host.ask(64).unwrap(), host.ask(64)), (b"OKAY".to_vec(), None));
        assert_eq!(host.command("erase:data"), ["OKAY"]);
        assert_eq!(host.device.function().partition("data"), Some(&[][..]));
    }

    #[test]
    fn refused_commands_say_why() {
        let mut host = Host::new();
        let mut sparse = SPARSE_MAGIC.to_vec();
        sparse.resize(100, 0);
        host.stage(&sparse);
        for (command, answer) in [
            ("flash:tape", "FAILno such partition: tape"),
            ("erase:tape", "FAILno such partition: tape"),
            ("flash:data", "FAILsparse images are not supported"),
            ("boot", "FAILthere is no system to start"),
            ("oem unlock", "FAILthe only oem command is: read PARTITION"),
            ("download:01000001", "FAILa download has 1 to 16777216 bytes"),
            ("download:00000000", "FAILa download has 1 to 16777216 bytes"),
            ("download:+0000001", "FAILa size has eight hexadecimal digits"),
            ("download:1", "FAILa size has eight hexadecimal digits"),
            ("powerdown", "FAILunknown command"),
            ("", ""),
        ] {
            let answers = host.command(command);
            assert_eq!(answers.first().map_or("", String::as_str), answer, "{command}");
        }
        host.give(b"upload");
        assert_eq!(host.ask(64).unwrap(), b"DATA00000064", "the refused image is staged still");
        assert_eq!(host.command("upload"), ["FAILnothing is staged"]);
        assert_eq!(host.command(&"x".repeat(65)), ["FAILa command has 64 bytes at most"]);
        assert_eq!(host.command("é"), ["FAILa command is ASCII"]);
        let long = host.command(&format!("flash:{}", "x".repeat(58)));
        assert_eq!(long[0].len(), 64, "an answer is cut: {long:?}");
    }

    #[test]
    fn more_bytes_than_were_announced_end_the_download() {
        let mut host = Host::new();
        host.give(b"download:00000010");
        assert_eq!(host.ask(64).unwrap(), b"DATA00000010");
        host.give(&[1; 15]);
        host.give(&[]);
        assert!(host.ask(64).is_none());
        host.give(&[1; 2]);
        assert_eq!(host.ask(64).unwrap(), b"FAILmore bytes than were announced");
        assert_eq!(host.command("flash:data"), ["FAILnothing was downloaded"]);
    }

    #[test]
    fn answers_that_nobody_read_are_discarded() {
        let mut host = Host::new();
        host.give(b"getvar:all");
        host.ask(64).unwrap();
        assert_eq!(host.command("getvar:product"), ["OKAYfarbus"]);
        // A download that ended in the middle: the next program selects the configuration.
        host.give(b"download:00001000");
        host.configure();
        assert_eq!(host.command("getvar:product"), ["OKAYfarbus"]);
    }

    #[test]
    fn another_process_continues_a_download() {
        let mut host = Host::new();
        host.stage(b"boot image");
        host.command("flash:boot");
        host.give(b"download:00000004");
        host.ask(64).unwrap();
        host.give(b"da");
        let state = host.device.function().save().unwrap();
        let mut next = Host::new();
        next.device.function_mut().restore(&state).unwrap();
        next.give(b"ta");
        assert_eq!(next.ask(64).unwrap(), b"OKAY");
        assert_eq!(next.command("flash:data"), ["OKAY"]);
        let held = PARTITIONS.map(|name| next.device.function().partition(name).unwrap().to_vec());
        assert_eq!(held, [b"boot image".to_vec(), b"data".to_vec()]);
        assert!((0..state.len()).all(|end| FastbootGadget::default().restore(&state[..end]).is_none()));
    }

    /// What a host does.
    #[derive(Clone, Debug)]
    enum Op {
        Command(String),
        Bytes(Vec<u8>),
        Ask(u32),
        Reset,
        Restart,
    }

    fn op() -> impl Strategy<Value = Op> {
        let known = [
            "getvar:all",
            "getvar:product",
            "getvar:has-slot:data",
            "download:00000001",
            "download:00000080",
            "download:ffffffff",
            "flash:data",
            "flash:tape",
            "erase:data",
            "oem read data",
            "upload",
            "reboot",
        ];
        prop_oneof![
            6 => prop::sample::select(known.to_vec()).prop_map(|command| Op::Command(command.to_owned())),
            1 => ".{0,40}".prop_map(Op::Command),
            3 => prop::collection::vec(any::<u8>(), 0..150).prop_map(Op::Bytes),
            4 => prop_oneof![Just(64), 0..200_u32].prop_map(Op::Ask),
            1 => Just(Op::Reset),
            1 => Just(Op::Restart),
        ]
    }

    #[test]
    fn fuzz_fastboot_answers_stay_few_and_downloads_within_their_size() {
        fuzz("fuzz_fastboot_answers_stay_few_and_downloads_within_their_size", |runner| {
            let result = runner.run(&prop::collection::vec(op(), 1..60), |ops| {
                let mut host = Host::new();
                for op in ops {
                    match op {
                        Op::Command(command) => host.give(command.as_bytes()),
                        Op::Bytes(bytes) => host.give(&bytes),
                        Op::Ask(room) => drop(host.ask(room)),
                        Op::Reset => {
                            host.device.reset(Instant::ZERO, &mut host.done);
                            host.configure();
                        }
                        Op::Restart => {
                            let state = host.device.function().save().unwrap();
                            let mut next = FastbootGadget::default();
                            prop_assert!(next.restore(&state).is_some());
                            prop_assert_eq!(next.save().unwrap(), state);
                        }
                    }
                    let fastboot = host.device.function();
                    prop_assert!(fastboot.answers.len() <= 12);
                    prop_assert!(fastboot.staged.len() + fastboot.expected <= 128);
                }
                host.configure();
                prop_assert_eq!(host.command("getvar:version"), ["OKAY0.4"]);
                Ok(())
            });
            result.map_err(|error| error.to_string())
        });
    }
}
