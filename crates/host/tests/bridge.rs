//! A bridge between two hosts in user space, each with the end that it attached.

use farbus_gadgets::GadgetWaker;
use farbus_gadgets::bridge::{BridgeEnd, address_of, pair};
use farbus_gadgets::emulated::EmulatedDevice;
use farbus_host::{LocalPort, RemoteDevice};
use farbus_model::{EpAddr, ReadinessSource, SetupPacket, UsbSpeed};

const NOTIFICATIONS: EpAddr = EpAddr::from_byte(0x81);
const FRAMES_OUT: EpAddr = EpAddr::from_byte(0x02);
const FRAMES_IN: EpAddr = EpAddr::from_byte(0x82);
const RAW_OUT: EpAddr = EpAddr::from_byte(0x03);
const RAW_IN: EpAddr = EpAddr::from_byte(0x83);

fn hosts(speed: UsbSpeed) -> [RemoteDevice<LocalPort<EmulatedDevice<BridgeEnd>>>; 2] {
    // No thread sleeps here: each request is answered in its own turn.
    let bell = || GadgetWaker { readiness: ReadinessSource::new(()), ring: Box::new(|| {}), hush: Box::new(|| {}) };
    pair(speed, "desk/bridge", [bell(), bell()]).map(|end| RemoteDevice::open(LocalPort::new(end), speed).unwrap())
}

#[test]
fn two_hosts_enumerate_their_ends_and_reach_each_other() {
    for speed in [UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super] {
        let mut hosts = hosts(speed);
        for (end, host) in (0..).zip(&mut hosts) {
            // The address is where the Ethernet descriptor says: fourth byte, the string's number.
            let bytes = &host.descriptors().configurations[0].bytes;
            let at = bytes.windows(3).position(|head| head == [13, 0x24, 0x0f]).unwrap();
            let address = address_of("desk/bridge", end).map(|byte| format!("{byte:02X}")).concat();
            let value = 0x0300 | u16::from(bytes[at + 3]);
            let text = SetupPacket { request_type: 0x80, request: 6, value, index: 0x0409, length: 255 };
            let text = host.control_in(text).unwrap().into_vec();
            assert_eq!(text[2..].iter().step_by(2).copied().collect::<Vec<_>>(), address.as_bytes());
            let on = SetupPacket { request_type: 1, request: 11, value: 1, index: 1, length: 0 };
            host.control_out(on, Vec::new()).unwrap();
        }
        let [mut a, mut b] = hosts;
        let notifications = [16, 8].map(|_| a.data_in(NOTIFICATIONS, 16).unwrap().into_vec());
        assert_eq!(
            (notifications[0][1], &notifications[1][..]),
            (0x2a, &[0xa1, 0, 1, 0, 0, 0, 0, 0][..]),
            "speed, then connection"
        );

        let frame: Vec<u8> = (0..1514).map(|at| at as u8).collect();
        let head =
            [&b"NCMH\x0c\0\0\0\0\0\x0c\0NCM0\x10\0\0\0\x1c\0"[..], &1514u16.to_le_bytes(), &[0; 4], &frame].concat();
        a.data_out(FRAMES_OUT, head).unwrap();
        let block = b.data_in(FRAMES_IN, 16_384).unwrap().into_vec();
        assert!(block.starts_with(b"NCMH") && block.windows(1514).any(|window| window == frame));

        let raw: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        assert_eq!(b.data_out(RAW_OUT, raw.clone()).unwrap(), 100_000);
        assert_eq!(a.data_in(RAW_IN, 1 << 17).unwrap().into_vec(), raw);
    }
}
