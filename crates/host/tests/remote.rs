//! A device and a disk as clients use them: one call, one result.

mod common;

use std::time::Duration;

use common::fake::{Fake, Wrong};
use common::port::TestPort;
use common::rng::Rng;
use common::target;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_host::{
    DiskError, HostPort, HostPortError, IdSource, LocalPort, RemoteDevice, RemoteDisk, RemoteError, ScsiDiskOptions,
    TransferTracker, run,
};
use farbus_model::usb::request;
use farbus_model::{
    BlockStore, Device, EpAddr, Instant, SetupPacket, StoreError, TransferDirection, TransferType, Urb, UrbCompletion,
    UrbId, UrbStatus, UsbSpeed,
};

const SOURCE: EpAddr = EpAddr::from_byte(0x81);
const SINK: EpAddr = EpAddr::from_byte(0x01);

fn source_sink(speed: UsbSpeed) -> RemoteDevice<LocalPort<impl Device>> {
    let port = LocalPort::new(SourceSink::device(speed, SourcePattern::Mod63, true));
    RemoteDevice::open(port, speed).unwrap()
}

#[test]
fn a_client_opens_a_device_and_moves_data() {
    for speed in [UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super] {
        let mut device = source_sink(speed);
        assert_eq!((device.descriptors().title().as_str(), device.configuration()), ("farbus source/sink", 1));
        let data = device.data_in(SOURCE, 100_000).unwrap();
        assert_eq!(device.data_out(SINK, data).unwrap(), 100_000);
        let write = SetupPacket { request_type: 0x40, request: 0x5b, ..SetupPacket::default() };
        device.control_out(write, vec![7, 8, 9]).unwrap();
        let read = SetupPacket { request_type: 0xc0, request: 0x5c, length: 64, ..SetupPacket::default() };
        assert_eq!(device.control_in(read).unwrap().into_vec(), [7, 8, 9]);
    }
}

#[test]
fn a_refusal_is_a_result_and_a_halt_can_be_cleared() {
    let mut device = source_sink(UsbSpeed::High);
    let stall = RemoteError::Transfer(UrbStatus::Stall);
    assert_eq!(device.data_out(SINK, vec![9; 64]).unwrap_err(), stall);
    assert_eq!(device.data_out(SINK, vec![0; 1]).unwrap_err(), stall, "it is halted");
    device.clear_halt(SINK).unwrap();
    assert_eq!(device.data_out(SINK, vec![0; 1]).unwrap(), 1);
    let nonsense = SetupPacket { request_type: 0xc0, request: 0x77, length: 1, ..SetupPacket::default() };
    assert_eq!(device.control_in(nonsense).unwrap_err(), stall);
}

#[test]
fn a_transfer_that_takes_too_long_is_taken_back() {
    let mut device = RemoteDevice::open(LocalPort::new(KeyboardGadget::device()), UsbSpeed::Full).unwrap();
    let setting = &device.descriptors().configurations[0].settings[0];
    let keys = setting.find(TransferType::Interrupt, TransferDirection::In).unwrap().address;
    device.set_timeout(Some(Duration::from_millis(100)));
    assert_eq!(device.data_in(keys, 8).unwrap_err(), RemoteError::Transfer(UrbStatus::TimedOut));
    device.set_timeout(None);
    assert_eq!(device.data_in(keys, 8).unwrap_err(), RemoteError::Port(HostPortError::Idle), "nobody types");
}

#[test]
fn many_transfers_are_in_flight_together_and_drivers_share_a_device() {
    let mut port = LocalPort::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, true));
    run(&mut farbus_host::ConfigurationSetter::new(port.now(), IdSource::new(), 1), &mut port).unwrap().unwrap();
    let ids = IdSource::new();
    let (mut first, mut second) = (TransferTracker::new(ids.clone()), TransferTracker::new(ids));
    let mut wanted: Vec<_> = (0..32).map(|_| first.data_in(port.now(), SOURCE, 512, None)).collect();
    let other = second.data_in(port.now(), SOURCE, 64, None);
    assert!(!wanted.contains(&other));
    while !first.is_idle() {
        let done = run(&mut first, &mut port).unwrap();
        assert_eq!((done.id, done.actual), (wanted.remove(0), 512));
    }
    assert_eq!(run(&mut second, &mut port).unwrap().id, other);
}

fn disk(fake: Fake) -> RemoteDisk<TestPort<Fake>> {
    let target = target(&fake);
    RemoteDisk::new(TestPort::new(fake), IdSource::new(), target, ScsiDiskOptions::default()).unwrap()
}

#[test]
fn a_disk_is_a_block_store() {
    let mut disk = disk(Fake::new(UsbSpeed::High, 4096, 100));
    assert_eq!((disk.size_bytes(), disk.is_read_only()), (409_600, false));
    let mut rng = Rng(1);
    let mut model = vec![0; 409_600];
    for _ in 0..100 {
        let offset = rng.below(409_600) as usize;
        let len = rng.below((409_600 - offset as u64).min(300_000) + 1) as usize;
        let range = offset..offset + len;
        match rng.below(5) {
            0 => {
                disk.write_zeroes(offset as u64, len as u64).unwrap();
                model[range].fill(0);
            }
            1 => {
                disk.discard(offset as u64, len as u64).unwrap();
                model[range].fill(0);
            }
            2 => {
                let bytes = rng.bytes(len);
                disk.write_at(offset as u64, &bytes).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            3 => disk.flush().unwrap(),
            _ => {
                let mut bytes = vec![0xee; len];
                disk.read_at(offset as u64, &mut bytes).unwrap();
                assert!(bytes == model[range]);
            }
        }
    }
    assert!(disk.last_error().is_none());
    disk.eject().unwrap();
}

#[test]
fn store_errors_say_little_and_the_last_error_says_the_rest() {
    let mut disk = disk(Fake::small().removable());
    let mut fail = |wrong: Wrong| {
        disk.port_mut().device.wrong(wrong);
        (disk.read_at(0, &mut [0; 512]).unwrap_err(), disk.last_error().unwrap().clone())
    };
    let (store, DiskError::MediumError(sense)) = fail(Wrong::Fail(3, 0x11, 0)) else { panic!("it has a sense") };
    assert_eq!((store, sense.code), (StoreError::Medium, 0x11));
    assert_eq!(fail(Wrong::Fail(2, 0x3a, 0)), (StoreError::Gone, DiskError::NoMedium));
    assert_eq!(fail(Wrong::Fail(6, 0x28, 0)), (StoreError::Gone, DiskError::MediumChanged));
    disk.bring_up().unwrap();
    disk.port_mut().device.wrong(Wrong::Fail(7, 0x27, 0));
    assert_eq!(disk.write_at(0, &[0; 512]), Err(StoreError::ReadOnly));
    disk.port_mut().device.wrong(Wrong::Fail(7, 0x27, 7));
    assert_eq!(disk.write_at(0, &[0; 512]), Err(StoreError::NoSpace));
    disk.read_at(0, &mut [0; 512]).unwrap();
}

/// A port that breaks when it is told to.
struct Fragile(TestPort<Fake>, bool);

impl HostPort for Fragile {
    fn submit(&mut self, urb: Urb) {
        self.0.submit(urb);
    }
    fn cancel(&mut self, id: UrbId) {
        self.0.cancel(id);
    }
    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        if self.1 { Err(HostPortError::Gone) } else { self.0.wait(until) }
    }
    fn now(&self) -> Instant {
        self.0.now()
    }
}

#[test]
fn a_port_that_failed_is_not_used_again() {
    let fake = Fake::small();
    let target = target(&fake);
    let port = Fragile(TestPort::new(fake), false);
    let mut disk = RemoteDisk::new(port, IdSource::new(), target, ScsiDiskOptions::default()).unwrap();
    disk.read_at(0, &mut [0; 512]).unwrap();
    disk.port_mut().1 = true;
    for _ in 0..2 {
        assert_eq!(disk.read_at(0, &mut [0; 512]), Err(StoreError::Gone));
        assert_eq!(disk.last_error(), Some(&DiskError::Port(HostPortError::Gone)));
    }
}

#[test]
fn standard_requests_of_a_client_go_through() {
    let mut device = source_sink(UsbSpeed::High);
    let get_status = SetupPacket { request_type: 0x82, request: request::GET_STATUS, value: 0, index: 0x81, length: 2 };
    assert_eq!(device.control_in(get_status).unwrap().into_vec(), [0, 0]);
    assert!(
        device.into_disk(ScsiDiskOptions::default()).is_err_and(|error| matches!(error, DiskError::Unsupported(_)))
    );
}
