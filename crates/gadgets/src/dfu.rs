//! A device in DFU mode: programs read and write its firmware (USB Device Firmware Upgrade 1.1).
//!
//! Its firmware is held in memory. What is downloaded replaces it when the host ends the download (manifestation);
//! until then, and if the download is aborted, it stays as it was. It remains when the bus is reset: this device has no
//! application to start, so it is in DFU mode again.
//!
//! A request that the state does not allow is answered with a stall; the state is then dfuERROR, and the status says
//! why. Transitions are those of DFU 1.1 appendix A.2, with these choices:
//!
//! | event | here |
//! |---|---|
//! | a block was received | it is written at once: dfuDNBUSY never occurs |
//! | the download ended | manifestation takes no time, and the device tolerates it: dfuMANIFEST never occurs |
//! | the first block of an upload is a short one | the upload has ended: dfuIDLE |
//! | a block's number does not follow that of the block before it | errADDRESS |
//! | a request with a field that DFU 1.1 §3 does not give it | a stall, and the state stays |

use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{DeviceDefinition, SetupPacket, TransferDirection};

use crate::emulated::{ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// The largest firmware, bytes.
pub const FIRMWARE_BYTES_MAX: usize = 1 << 20;
/// The longest block of a download or an upload, bytes: `wTransferSize` (DFU 1.1 table 4.2).
pub const BLOCK_BYTES_MAX: u16 = 4096;

/// DFU functional descriptor (table 4.2).
const DESCRIPTOR_FUNCTIONAL: u8 = 0x21;
/// `bmAttributes`: can download, can upload, tolerates manifestation.
const ATTRIBUTES: u8 = 0b0111;
/// Class requests (table 3.2). 0 is DETACH.
const DNLOAD: u8 = 1;
const UPLOAD: u8 = 2;
const GETSTATUS: u8 = 3;
const CLRSTATUS: u8 = 4;
const GETSTATE: u8 = 5;
const ABORT: u8 = 6;

/// The states that this device can be in (§6.1.2); the value is `bState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DfuState {
    /// dfuIDLE: nothing is under way.
    Idle = 2,
    /// dfuDNLOAD-SYNC: a block was received, and the host has to ask for the status.
    DownloadSync = 3,
    /// dfuDNLOAD-IDLE: the next block is expected.
    DownloadIdle = 5,
    /// dfuMANIFEST-SYNC: the last block was received, and the host has to ask for the status.
    ManifestSync = 6,
    /// dfuUPLOAD-IDLE: the host is expected to ask for the next block.
    UploadIdle = 9,
    /// dfuERROR, until CLRSTATUS.
    Error = 10,
}

/// Why the state is dfuERROR (§6.1.2); the value is `bStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DfuErrorStatus {
    /// errADDRESS: the block lies outside the memory, or is not the next one.
    Address = 0x08,
    /// errSTALLEDPKT: the state does not allow the request.
    Stalled = 0x0f,
}

/// A device in DFU mode.
#[derive(Debug)]
pub struct DfuGadget {
    state: DfuState,
    /// While the state is [`DfuState::Error`].
    fault: Option<DfuErrorStatus>,
    firmware: Vec<u8>,
    /// What was downloaded so far.
    staged: Vec<u8>,
    /// Bytes that were uploaded so far.
    uploaded: usize,
    /// `wValue` of the next block, if a block was moved.
    next_block: Option<u16>,
}

impl DfuGadget {
    /// The device, ready to be shared, without a firmware. Its ids are of those that pid.codes keeps for tests.
    pub fn device() -> EmulatedDevice<Self> {
        let [low, high] = BLOCK_BYTES_MAX.to_le_bytes();
        // wDetachTimeOut 0, bcdDFUVersion 1.1.
        let functional = [9, DESCRIPTOR_FUNCTIONAL, ATTRIBUTES, 0, 0, low, high, 0x10, 0x01];
        // Application specific, device firmware upgrade, DFU mode (table 4.4).
        let interface = InterfaceDefinition::new(0xfe, 1, 2).name("firmware").class_descriptors(&functional);
        let definition = DeviceDefinition::new(0x1209, 0x0002).names("farbus", "DFU device", "0").interface(interface);
        EmulatedDevice::new(&definition, Self::new())
    }

    fn new() -> Self {
        Self {
            state: DfuState::Idle,
            fault: None,
            firmware: Vec::new(),
            staged: Vec::new(),
            uploaded: 0,
            next_block: None,
        }
    }

    /// The state, as GETSTATE reports it.
    pub fn state(&self) -> DfuState {
        self.state
    }

    /// Why the state is [`DfuState::Error`].
    pub fn fault(&self) -> Option<DfuErrorStatus> {
        self.fault
    }

    /// The firmware that was downloaded last, without what its file ends in.
    pub fn firmware(&self) -> &[u8] {
        &self.firmware
    }

    /// Ends what was begun. A download that did not end leaves the firmware as it was.
    fn idle(&mut self) {
        (self.state, self.fault) = (DfuState::Idle, None);
        self.staged = Vec::new();
        (self.uploaded, self.next_block) = (0, None);
    }

    fn fail(&mut self, fault: DfuErrorStatus) -> ControlTransferAnswer {
        self.idle();
        (self.state, self.fault) = (DfuState::Error, Some(fault));
        ControlTransferAnswer::Stall
    }

    /// Checks the number of a block and expects the next one. Numbers wrap (§6.1.1).
    fn follows(&mut self, block: u16) -> bool {
        let is_next = self.next_block.is_none_or(|next| next == block);
        self.next_block = Some(block.wrapping_add(1));
        is_next
    }

    fn download(&mut self, block: u16, data: &[u8]) -> ControlTransferAnswer {
        match (self.state, data.len()) {
            (DfuState::DownloadIdle, 0) => {
                self.state = DfuState::ManifestSync;
                ControlTransferAnswer::Ack
            }
            (DfuState::Idle | DfuState::DownloadIdle, 1..) => {
                let is_next = self.follows(block);
                let has_room = self.staged.len() + data.len() <= FIRMWARE_BYTES_MAX;
                if !is_next || !has_room || data.len() > BLOCK_BYTES_MAX.into() {
                    return self.fail(DfuErrorStatus::Address);
                }
                self.staged.extend_from_slice(data);
                self.state = DfuState::DownloadSync;
                ControlTransferAnswer::Ack
            }
            _ => self.fail(DfuErrorStatus::Stalled),
        }
    }

    fn upload(&mut self, block: u16, room: usize) -> ControlTransferAnswer {
        if !matches!(self.state, DfuState::Idle | DfuState::UploadIdle) {
            return self.fail(DfuErrorStatus::Stalled);
        }
        if !self.follows(block) || !(1..=BLOCK_BYTES_MAX.into()).contains(&room) {
            return self.fail(DfuErrorStatus::Address);
        }
        let left = &self.firmware[self.uploaded..];
        let bytes = &left[..room.min(left.len())];
        let answer = ControlTransferAnswer::Data(bytes.into());
        if bytes.len() < room {
            self.idle();
        } else {
            self.uploaded += room;
            self.state = DfuState::UploadIdle;
        }
        answer
    }

    /// Reports the state that the device is in after the report (§6.1.2).
    fn status(&mut self) -> ControlTransferAnswer {
        match self.state {
            DfuState::DownloadSync => self.state = DfuState::DownloadIdle,
            DfuState::ManifestSync => {
                self.firmware = std::mem::take(&mut self.staged);
                self.idle();
            }
            _ => {}
        }
        let status = self.fault.map_or(0, |fault| fault as u8);
        // bwPollTimeout 0 ms, no string.
        ControlTransferAnswer::Data([status, 0, 0, 0, self.state as u8, 0].as_slice().into())
    }

    /// Ends an error (§6.1.3). In any other state there is nothing to clear.
    fn clear_status(&mut self) -> ControlTransferAnswer {
        if self.state != DfuState::Error {
            return self.fail(DfuErrorStatus::Stalled);
        }
        self.idle();
        ControlTransferAnswer::Ack
    }

    /// Returns to dfuIDLE (§6.1.4), from the states in which something may be aborted.
    fn abort(&mut self) -> ControlTransferAnswer {
        if !matches!(self.state, DfuState::Idle | DfuState::DownloadIdle | DfuState::UploadIdle) {
            return self.fail(DfuErrorStatus::Stalled);
        }
        self.idle();
        ControlTransferAnswer::Ack
    }
}

impl GadgetFunction for DfuGadget {
    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if (setup.kind(), setup.recipient(), setup.index) != (RequestKind::Class, RequestRecipient::Interface, 0) {
            return ControlTransferAnswer::Stall;
        }
        let is_in = setup.direction() == TransferDirection::In;
        match (setup.request, is_in) {
            (DNLOAD, false) => self.download(setup.value, data),
            (UPLOAD, true) => self.upload(setup.value, setup.length.into()),
            (GETSTATUS, true) if (setup.value, setup.length) == (0, 6) => self.status(),
            (GETSTATE, true) if (setup.value, setup.length) == (0, 1) => {
                ControlTransferAnswer::Data([self.state as u8].as_slice().into())
            }
            (CLRSTATUS, false) if (setup.value, setup.length) == (0, 0) => self.clear_status(),
            (ABORT, false) if (setup.value, setup.length) == (0, 0) => self.abort(),
            (GETSTATUS | GETSTATE | CLRSTATUS | ABORT, _) => ControlTransferAnswer::Stall,
            // Among them DETACH, which is for devices that run their application (A.2).
            _ => self.fail(DfuErrorStatus::Stalled),
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.idle();
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        to.u8(self.state as u8);
        to.u8(self.fault.map_or(0, |fault| fault as u8));
        to.bytes(&self.firmware);
        to.bytes(&self.staged);
        to.u32(u32::try_from(self.uploaded).ok()?);
        to.flag(self.next_block.is_some());
        to.u32(self.next_block.unwrap_or_default().into());
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let number = from.u8()?;
        let all = [
            DfuState::Idle,
            DfuState::DownloadSync,
            DfuState::DownloadIdle,
            DfuState::ManifestSync,
            DfuState::UploadIdle,
            DfuState::Error,
        ];
        let state = all.into_iter().find(|state| *state as u8 == number)?;
        let number = from.u8()?;
        let fault = [DfuErrorStatus::Address, DfuErrorStatus::Stalled].into_iter().find(|fault| *fault as u8 == number);
        let is_whole = (state == DfuState::Error) == fault.is_some() && (number == 0) == fault.is_none();
        let within = |bytes: &&[u8]| bytes.len() <= FIRMWARE_BYTES_MAX;
        let firmware = from.bytes().filter(within)?.to_vec();
        let staged = from.bytes().filter(within)?.to_vec();
        let uploaded = usize::try_from(from.u32()?).ok().filter(|uploaded| *uploaded <= firmware.len())?;
        let has_next = from.flag()?;
        let next_block = Some(u16::try_from(from.u32()?).ok()?).filter(|_| has_next);
        from.end().filter(|()| is_whole)?;
        *self = Self { state, fault, firmware, staged, uploaded, next_block };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::fuzz;
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Urb, UrbId, UrbStatus};
    use proptest::prelude::*;

    const DETACH: u8 = 0;

    /// A host with the device.
    struct Host {
        device: EmulatedDevice<DfuGadget>,
        done: CompletionQueue,
    }

    impl Host {
        fn new() -> Self {
            let mut host = Self { device: DfuGadget::device(), done: CompletionQueue::new(BufferPool::new(0)) };
            host.control(SetupPacket::set_configuration(1), &[]);
            host
        }

        fn control(&mut self, setup: SetupPacket, data: &[u8]) -> Option<Vec<u8>> {
            let urb = Urb::control(UrbId(1), setup, data.to_vec().into());
            self.device.submit(Instant::ZERO, urb.launch(), &mut self.done);
            let done = self.done.pop().expect("a control request is answered at once");
            (done.status == UrbStatus::Ok).then(|| done.payload.into_vec())
        }

        fn out(&mut self, request: u8, value: u16, data: &[u8]) -> Option<()> {
            let setup = SetupPacket { request_type: 0x21, request, value, index: 0, length: data.len() as u16 };
            self.control(setup, data).map(|_| ())
        }

        fn ask(&mut self, request: u8, value: u16, length: u16) -> Option<Vec<u8>> {
            self.control(SetupPacket { request_type: 0xa1, request, value, index: 0, length }, &[])
        }

        /// `bStatus` and `bState`.
        fn status(&mut self) -> (u8, u8) {
            let status = self.ask(GETSTATUS, 0, 6).unwrap();
            assert_eq!(status[1..4], [0; 3]);
            (status[0], status[4])
        }

        fn download(&mut self, firmware: &[u8]) {
            for (block, data) in firmware.chunks(BLOCK_BYTES_MAX.into()).enumerate() {
                self.out(DNLOAD, block as u16, data).unwrap();
                assert_eq!(self.status(), (0, DfuState::DownloadIdle as u8));
            }
            self.out(DNLOAD, 0, &[]).unwrap();
            assert_eq!(self.device.function().state(), DfuState::ManifestSync);
            assert_eq!(self.status(), (0, DfuState::Idle as u8));
        }

        fn upload(&mut self) -> Vec<u8> {
            let mut all = Vec::new();
            for block in 0.. {
                let data = self.ask(UPLOAD, block, BLOCK_BYTES_MAX).unwrap();
                all.extend_from_slice(&data);
                if data.len() < BLOCK_BYTES_MAX.into() {
                    break;
                }
            }
            all
        }
    }

    #[test]
    fn descriptors_are_those_of_dfu_mode() {
        let device = DfuGadget::device();
        let bytes = &device.descriptors().configurations[0].bytes;
        assert_eq!(bytes[9..18], [9, 4, 0, 0, 0, 0xfe, 1, 2, 4]);
        assert_eq!(bytes[18..], [9, 0x21, 7, 0, 0, 0, 0x10, 0x10, 1]);
        assert_eq!(device.descriptors().string(4), Some("firmware"));
    }

    #[test]
    fn firmware_is_uploaded_as_it_was_downloaded() {
        let mut host = Host::new();
        assert!(host.upload().is_empty(), "a new device has none");
        for length in [1, 4095, 4096, 4097, FIRMWARE_BYTES_MAX] {
            let firmware: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
            host.download(&firmware);
            assert!(host.upload() == firmware, "{length} bytes");
            assert_eq!(host.device.function().state(), DfuState::Idle);
            host.device.reset(Instant::ZERO, &mut host.done);
            host.control(SetupPacket::set_configuration(1), &[]);
        }
        assert_eq!(host.device.function().firmware().len(), FIRMWARE_BYTES_MAX, "a reset does not erase it");
    }

    #[test]
    fn download_that_does_not_end_leaves_the_firmware() {
        let mut host = Host::new();
        host.download(b"old");
        host.out(DNLOAD, 0, b"new").unwrap();
        host.status();
        host.out(ABORT, 0, &[]).unwrap();
        assert_eq!(host.status(), (0, DfuState::Idle as u8));
        host.out(DNLOAD, 0, b"new").unwrap();
        host.device.reset(Instant::ZERO, &mut host.done);
        assert_eq!((host.device.function().state(), host.device.function().firmware()), (DfuState::Idle, &b"old"[..]));
    }

    #[test]
    fn what_the_state_does_not_allow_stalls_until_the_status_is_cleared() {
        type Reached = fn(&mut Host);
        // Each state, and the requests that it allows besides GETSTATUS and GETSTATE (A.2.3 to A.2.11).
        let states: [(DfuState, Reached, &[u8]); 6] = [
            (DfuState::Idle, |_| {}, &[DNLOAD, UPLOAD, ABORT]),
            (DfuState::DownloadSync, |host| host.out(DNLOAD, 0, &[1]).unwrap(), &[]),
            (
                DfuState::DownloadIdle,
                |host| {
                    host.out(DNLOAD, 0, &[1]).unwrap();
                    host.status();
                },
                &[DNLOAD, ABORT],
            ),
            (
                DfuState::ManifestSync,
                |host| {
                    host.out(DNLOAD, 0, &[1]).unwrap();
                    host.status();
                    host.out(DNLOAD, 1, &[]).unwrap();
                },
                &[],
            ),
            (DfuState::UploadIdle, |host| drop(host.ask(UPLOAD, 0, 1).unwrap()), &[UPLOAD, ABORT]),
            (DfuState::Error, |host| assert!(host.out(DETACH, 0, &[]).is_none()), &[CLRSTATUS]),
        ];
        for (state, reach, allowed) in states {
            for request in [DETACH, DNLOAD, UPLOAD, CLRSTATUS, ABORT, 7, 0xff] {
                let mut host = Host::new();
                host.download(b"firmware");
                reach(&mut host);
                assert_eq!(host.ask(GETSTATE, 0, 1).unwrap(), [state as u8]);
                let answer = match request {
                    UPLOAD => host.ask(UPLOAD, 1, 4).map(|_| ()),
                    DNLOAD => host.out(DNLOAD, 1, &[1]),
                    _ => host.out(request, 0, &[]),
                };
                assert_eq!(answer.is_some(), allowed.contains(&request), "request {request} in {state:?}");
                if answer.is_none() {
                    assert_eq!(
                        host.status(),
                        (DfuErrorStatus::Stalled as u8, DfuState::Error as u8),
                        "{request} in {state:?}"
                    );
                    host.out(CLRSTATUS, 0, &[]).unwrap();
                    assert_eq!(host.upload(), b"firmware");
                }
            }
        }
    }

    #[test]
    fn blocks_out_of_order_or_beyond_the_memory_are_refused() {
        let mut host = Host::new();
        host.download(&vec![7; FIRMWARE_BYTES_MAX]);
        let refused = |host: &mut Host, what: &str| {
            assert_eq!(host.status(), (DfuErrorStatus::Address as u8, DfuState::Error as u8), "{what}");
            host.out(CLRSTATUS, 0, &[]).unwrap();
        };
        host.out(DNLOAD, 0xffff, &[1]).unwrap();
        host.status();
        host.out(DNLOAD, 0, &[1]).expect("numbers wrap");
        host.status();
        assert!(host.out(DNLOAD, 2, &[1]).is_none());
        refused(&mut host, "block 1 is missing");
        assert!(host.ask(UPLOAD, 0, BLOCK_BYTES_MAX + 1).is_none());
        refused(&mut host, "a longer block than announced");
        assert!(host.out(DNLOAD, 0, &vec![0; usize::from(BLOCK_BYTES_MAX) + 1]).is_none());
        refused(&mut host, "a longer block than announced");
        for block in 0..=(FIRMWARE_BYTES_MAX / usize::from(BLOCK_BYTES_MAX)) as u16 {
            let is_taken = host.out(DNLOAD, block, &[0; BLOCK_BYTES_MAX as usize]).is_some();
            assert_eq!(is_taken, block < 256, "block {block}");
            if is_taken {
                host.status();
            }
        }
        refused(&mut host, "the memory is full");
        assert!(host.ask(GETSTATUS, 1, 6).is_none() && host.ask(GETSTATUS, 0, 5).is_none());
        assert_eq!(host.status(), (0, DfuState::Idle as u8), "a malformed request changes nothing");
    }

    #[test]
    fn another_process_continues_a_download() {
        let mut host = Host::new();
        host.download(b"old");
        host.out(DNLOAD, 5, b"ne").unwrap();
        let state = host.device.function().save().unwrap();
        let mut next = Host::new();
        next.device.function_mut().restore(&state).unwrap();
        assert_eq!(next.status(), (0, DfuState::DownloadIdle as u8));
        next.out(DNLOAD, 6, b"w").unwrap();
        next.status();
        next.out(DNLOAD, 7, &[]).unwrap();
        next.status();
        assert_eq!(next.upload(), b"new");
        assert!((0..state.len()).all(|end| DfuGadget::new().restore(&state[..end]).is_none()));
        let impossible = [&[DfuState::Idle as u8, DfuErrorStatus::Address as u8], &state[2..]].concat();
        assert!(DfuGadget::new().restore(&impossible).is_none());
    }

    /// What a host does.
    #[derive(Clone, Debug)]
    enum Op {
        Out(u8, u16, Vec<u8>),
        In(u8, u16, u16),
        Any(SetupPacket),
        Reset,
        Restart,
    }

    fn op() -> impl Strategy<Value = Op> {
        let data = prop::collection::vec(any::<u8>(), 0..40);
        let any_setup = any::<[u8; 8]>().prop_map(SetupPacket::from_bytes);
        prop_oneof![
            6 => (prop::sample::select(vec![DNLOAD, ABORT, CLRSTATUS, DETACH]), 0..4_u16, data)
                .prop_map(|(request, value, data)| Op::Out(request, value, data)),
            8 => (prop::sample::select(vec![UPLOAD, GETSTATUS, GETSTATE]), 0..4_u16, prop_oneof![Just(6), Just(1), 0..9000_u16])
                .prop_map(|(request, value, length)| Op::In(request, value, length)),
            1 => any_setup.prop_map(Op::Any),
            1 => Just(Op::Reset),
            1 => Just(Op::Restart),
        ]
    }

    #[test]
    fn fuzz_dfu_states_and_memory_stay_consistent() {
        fuzz("fuzz_dfu_states_and_memory_stay_consistent", |runner| {
            let result = runner.run(&prop::collection::vec(op(), 1..60), |ops| {
                let mut host = Host::new();
                for op in ops {
                    match op {
                        Op::Out(request, value, data) => drop(host.out(request, value, &data)),
                        Op::In(request, value, length) => drop(host.ask(request, value, length)),
                        Op::Any(setup) => {
                            let length = if setup.direction() == TransferDirection::Out { setup.length } else { 0 };
                            host.control(setup, &vec![0; length.into()]);
                        }
                        Op::Reset => {
                            host.device.reset(Instant::ZERO, &mut host.done);
                            host.control(SetupPacket::set_configuration(1), &[]);
                        }
                        Op::Restart => {
                            let state = host.device.function().save().unwrap();
                            let mut next = DfuGadget::new();
                            prop_assert!(next.restore(&state).is_some());
                            prop_assert_eq!(next.save().unwrap(), state);
                        }
                    }
                    let dfu = host.device.function();
                    prop_assert_eq!(dfu.fault.is_some(), dfu.state == DfuState::Error);
                    prop_assert!(dfu.staged.len() <= FIRMWARE_BYTES_MAX && dfu.uploaded <= dfu.firmware.len());
                    let is_downloading =
                        matches!(dfu.state, DfuState::DownloadSync | DfuState::DownloadIdle | DfuState::ManifestSync);
                    prop_assert_eq!(is_downloading, !dfu.staged.is_empty());
                }
                // Whatever came before, a host can begin again.
                host.device.reset(Instant::ZERO, &mut host.done);
                host.control(SetupPacket::set_configuration(1), &[]);
                host.download(b"again");
                prop_assert_eq!(host.upload(), b"again");
                Ok(())
            });
            result.map_err(|error| error.to_string())
        });
    }
}
