//! The sound card as a host sees it: its descriptors, its pace, its counters.

use super::*;
use farbus_model::descriptor::kind;
use farbus_model::{
    BufferPool, CompletionQueue, Device, Instant, IsoPacket, SetupPacket, Urb, UrbCompletion, UrbId, UrbStatus,
};

/// A host that plays and records.
struct Host {
    device: EmulatedDevice<AudioGadget>,
    done: CompletionQueue,
    now: Instant,
    urbs: u64,
}

impl Host {
    fn new(speed: UsbSpeed) -> Self {
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut host = Self { device: AudioGadget::device(speed), done, now: Instant::ZERO, urbs: 0 };
        for setup in [SetupPacket::set_configuration(1), set_interface(1, 1), set_interface(2, 1)] {
            host.device.submit(host.now, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut host.done);
            assert_eq!(host.done.pop().map(|done| done.status), Some(UrbStatus::Ok));
        }
        host
    }

    fn submit(&mut self, mut urb: Urb, packet_bytes: u32, packets: u32) {
        let all = urb.length;
        let packet = |n| {
            let offset = n * packet_bytes;
            IsoPacket { offset, length: packet_bytes.min(all - offset), ..IsoPacket::default() }
        };
        urb.iso = (0..packets).map(packet).collect();
        self.device.submit(self.now, urb.launch(), &mut self.done);
    }

    fn record(&mut self, packet_bytes: u32, packets: u32) {
        self.urbs += 1;
        self.submit(Urb::data_in(UrbId(self.urbs), MICROPHONE, packet_bytes * packets), packet_bytes, packets);
    }

    fn play(&mut self, data: &[u8], packet_bytes: u32) {
        self.urbs += 1;
        let packets = (data.len() as u32).div_ceil(packet_bytes);
        self.submit(Urb::data_out(UrbId(self.urbs), SPEAKER, data.to_vec().into()), packet_bytes, packets);
    }

    /// Waits for the next completion.
    fn next(&mut self) -> UrbCompletion {
        loop {
            if let Some(done) = self.done.pop() {
                return done;
            }
            self.now = self.device.poll_timeout().expect("something is queued");
            self.device.handle_timeout(self.now, &mut self.done);
        }
    }

    fn counts(&self) -> Vec<u64> {
        self.device.tally().expect("it counts").read().map(|(_, count)| count).collect()
    }
}

fn set_interface(interface: u16, alternate: u16) -> SetupPacket {
    SetupPacket { request_type: 0x01, request: 11, value: alternate, index: interface, length: 0 }
}

#[test]
fn recorded_tone_plays_without_a_break_at_both_speeds() {
    for (speed, packet_bytes, packets, span_us) in [(UsbSpeed::Full, 192, 8, 8000), (UsbSpeed::High, 24, 8, 1000)] {
        let mut host = Host::new(speed);
        // The requests have space for one frame more than the microphone sends, as drivers make them.
        (0..3).for_each(|_| host.record(packet_bytes + 4, packets));
        let recorded: Vec<Vec<u8>> = (0..3).map(|_| host.next().payload.into_vec()).collect();
        assert_eq!(host.now.as_nanos(), 3 * span_us * 1000, "{speed}: the bus's pace");
        let frames = u64::from(packet_bytes * packets) / 4 * 3;
        recorded.iter().for_each(|data| host.play(data, packet_bytes));
        for _ in 0..3 {
            let done = host.next();
            assert_eq!((done.status, done.error_count), (UrbStatus::Ok, 0));
            assert!(done.iso.iter().all(|packet| packet.actual == packet_bytes));
        }
        assert_eq!(host.counts(), [frames, frames, 0, 0, 0, 0, 0, frames, 0, 0], "{speed}");
    }
}

#[test]
fn a_host_that_is_late_and_one_that_drops_or_cuts_are_counted() {
    let mut host = Host::new(UsbSpeed::Full);
    host.now = Instant::from_nanos(50_000_000);
    host.record(192, 10);
    let sound = host.next().payload.into_vec();
    assert_eq!(host.counts()[8], 0, "the first interval is not late");
    host.play(&sound[..960], 192);
    host.next();
    host.now = host.now + Duration::from_micros(2500);
    // A packet is missing, and the last has half a frame.
    host.play(&sound[1152..1918], 192);
    host.next();
    let frames = 240 + 191;
    assert_eq!(host.counts()[..7], [frames, frames, 1, 0, 1, 1, 3]);
    let (setup, now) = (set_interface(1, 0), host.now);
    host.device.submit(now, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut host.done);
    host.done.pop();
    let setup = set_interface(1, 1);
    host.device.submit(now, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut host.done);
    host.done.pop();
    host.now = host.now + Duration::from_secs(1);
    host.play(&[&[0; 192], &sound[..192]].concat(), 192);
    host.next();
    assert_eq!(host.counts()[..7], [frames + 96, frames + 48, 1, 48, 1, 1, 3], "another program's sound is no break");
}

#[test]
fn another_process_goes_on_in_the_middle_of_the_tone() {
    let mut host = Host::new(UsbSpeed::High);
    host.record(24, 8);
    let first = host.next().payload.into_vec();
    host.play(&first, 24);
    host.next();
    let state = Device::save(&host.device).expect("nothing waits");
    let mut other = AudioGadget::device(UsbSpeed::High);
    assert!(other.restore(host.device.selection(), &state));
    assert!(!AudioGadget::device(UsbSpeed::High).restore(host.device.selection(), &state[..state.len() - 1]));
    let counted = host.counts();
    host.device = other;
    assert_eq!(host.counts(), counted);
    host.record(24, 8);
    let second = host.next().payload.into_vec();
    host.play(&second, 24);
    host.next();
    assert_eq!(host.counts()[..3], [96, 96, 0]);
}

/// Reads the descriptors as `lsusb -v` does: each by its length, and each reference has to lead somewhere.
#[test]
fn audio_descriptors_are_consistent() {
    for speed in [UsbSpeed::Full, UsbSpeed::High] {
        let all = definition(speed).build();
        let configuration = &all.configurations[0];
        let mut rest = &configuration.bytes[..];
        let (mut interface, mut sources, mut ids, mut control_bytes, mut control_total) = (0, vec![], vec![], 0, 0);
        while let [length, what, ..] = *rest {
            let (one, after) = rest.split_at(usize::from(length));
            match (what, one[2]) {
                (kind::INTERFACE, number) => interface = number,
                (kind::ENDPOINT, _) => assert_eq!((length, &one[7..]), (9, &[0, 0][..]), "Audio 1.0 §4.6.1.1"),
                (CS_INTERFACE, AC_HEADER) if interface == 0 => {
                    control_total = u16::from_le_bytes([one[5], one[6]]);
                    assert_eq!(one[7..], [2, 1, 2]);
                }
                (CS_INTERFACE, AC_INPUT_TERMINAL) if interface == 0 => ids.push(one[3]),
                (CS_INTERFACE, AC_OUTPUT_TERMINAL) if interface == 0 => {
                    ids.push(one[3]);
                    sources.push(one[7]);
                }
                (CS_INTERFACE, AS_GENERAL) => sources.push(one[3]),
                (CS_INTERFACE, AS_FORMAT_TYPE) => {
                    assert_eq!(u32::from_le_bytes([one[8], one[9], one[10], 0]), RATE_HZ);
                }
                _ => {}
            }
            if interface == 0 && what == CS_INTERFACE {
                control_bytes += u16::from(length);
            }
            rest = after;
        }
        assert!(rest.is_empty());
        assert_eq!(control_bytes, control_total);
        assert!(sources.iter().all(|source| ids.contains(source)), "{sources:?} of {ids:?}");
        let endpoints: Vec<_> = configuration.settings.iter().flat_map(|setting| &setting.endpoints).collect();
        let [speaker, microphone] = endpoints[..] else { panic!("two endpoints") };
        assert_eq!((speaker.address, microphone.address), (SPEAKER, MICROPHONE));
        assert_eq!(speaker.service_interval(speed), interval(speed));
        assert_eq!(usize::from(speaker.packet_bytes_max), (packet_frames(speed) + 1) * 4);
        let attributes = |at: EpAddr| {
            let endpoint = configuration.bytes.windows(4).find(|four| four[..3] == [9, kind::ENDPOINT, at.as_byte()]);
            endpoint.map(|four| four[3])
        };
        assert_eq!(attributes(SPEAKER), Some(0x09), "adaptive");
        assert_eq!(attributes(MICROPHONE), Some(0x0d), "synchronous");
    }
}
