//! An exporter under random operations: over a source and sink, a keyboard, and a device whose completions are among
//! the operations; alone, in front of another exporter, and in front of one that lies.
//!
//! Besides the absence of panics, the tests check: the client's checker accepts every reply, waiting data stays within
//! the limits, everything is answered in the end, and the device comes back with nothing in flight.

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
mod world;

use std::time::Duration;

use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{Device, EpAddr, OwnerCommand, SessionLimits, UrbStatus, UsbSpeed};
use farbus_session::{ConnectionFault, PortResetPolicy};
use fuzzing::{Input, fuzz};
use world::peer::{self, Packet, RetSubmit, Submit, setup, word};
use world::{Loopback, Manners, Relay, Scripted, relay};

/// Small enough that every limit is reached.
const LIMITS: SessionLimits = SessionLimits {
    receive_bytes: 2048,
    urbs_in_flight_max: 24,
    payload_bytes_max: 8 << 10,
    reply_bytes_backlog: 2 << 10,
    reply_header_bytes_max: 16 << 10,
    ..SessionLimits::DEFAULT
};

/// Most bytes of one transfer.
const TRANSFER_BYTES_MAX: u32 = 3000;
/// Most bytes that may wait to be sent: the backlog, what had credit, one more transfer, and the headers.
const WAITING_BYTES_MAX: usize =
    LIMITS.payload_bytes_max + LIMITS.reply_bytes_backlog + TRANSFER_BYTES_MAX as usize + LIMITS.reply_header_bytes_max;

fn target(name: &str, act: impl Fn(&mut Input<'_>)) {
    fuzz(env!("CARGO_MANIFEST_DIR"), name, act);
}

/// A client that makes random requests within the protocol.
struct Client {
    /// Bytes sent that have not arrived yet.
    sent: Vec<u8>,
    seqnum: u32,
    /// Sequence numbers of submits.
    submitted: Vec<u32>,
    /// Whether endpoint 3 is isochronous, as the client knows from its descriptors.
    has_iso: bool,
}

impl Client {
    fn new(has_iso: bool) -> Self {
        Self { sent: Vec::new(), seqnum: 1, submitted: Vec::new(), has_iso }
    }

    /// Sequence numbers ascend with gaps, because the ports of a root hub share them.
    fn take_seqnum(&mut self, input: &mut Input<'_>) -> u32 {
        self.seqnum += 1 + input.below(3);
        self.seqnum
    }

    fn submit<D: Device + 'static>(&mut self, loopback: &mut Loopback<D>, input: &mut Input<'_>) {
        let seqnum = self.take_seqnum(input);
        let mut submit = self.any_submit(seqnum, input);
        let is_iso = self.has_iso && submit.ep == 3;
        if !is_iso {
            // Random values where the endpoint is known not to be isochronous; for an unknown endpoint they would be a
            // number of packets.
            let is_there = submit.ep == 0 || (submit.ep == 1 && submit.is_in()) || (self.has_iso && submit.ep <= 2);
            submit.number_of_packets = input.pick(&[0, u32::MAX, if is_there { 7 } else { 0 }]);
        }
        // Sometimes the unlink overtakes the submit, as with Linux.
        if input.once_in(16) {
            let unlink = self.take_seqnum(input);
            loopback.checker.unlink_asked(unlink, seqnum);
            self.sent.extend(peer::unlink(unlink, seqnum));
        }
        loopback.checker.requested(&submit, is_iso);
        self.sent.extend(submit.bytes());
        self.submitted.push(seqnum);
    }

    fn any_submit(&mut self, seqnum: u32, input: &mut Input<'_>) -> Submit {
        let size = input.below(TRANSFER_BYTES_MAX);
        let ep = input.pick(&[1, 1, 1, 2, 2, 4, 9]);
        let lengths: Vec<u32> = (0..input.below(5)).map(|_| input.below(256)).collect();
        match input.below(8) {
            0 | 1 => Submit::data_in(seqnum, ep, size),
            2 => Submit::data_out(seqnum, ep, &vec![0; size as usize]),
            3 => Submit::data_out(seqnum, ep, &[1, 2, 3]),
            4 if self.has_iso => Submit::iso_in(seqnum, 3, &lengths),
            5 if self.has_iso => {
                let data = vec![0; lengths.iter().sum::<u32>() as usize];
                Submit::iso_out(seqnum, 3, &lengths, &data)
            }
            6 => Submit::control_out(seqnum, [0x40, 0x5b, 0, 0, 0, 0, 5, 0], &[1, 2, 3, 4, 5]),
            _ => {
                let requests = [
                    setup::GET_DEVICE_8,
                    setup::GET_DEVICE_18,
                    setup::GET_DEVICE_64,
                    setup::GET_CONFIGURATION,
                    setup::get_configuration_descriptor(255),
                    setup::get_string(1),
                    setup::set_configuration(1),
                    setup::set_interface(1, 1),
                    setup::set_interface(0, 0),
                    setup::set_halt(0x81),
                    setup::clear_halt(0x81),
                    setup::clear_halt(0x02),
                    setup::get_endpoint_status(0x81),
                    [0xc0, 0x5c, 0, 0, 0, 0, 8, 0],
                ];
                Submit::control(seqnum, input.pick(&requests))
            }
        }
    }

    fn unlink<D: Device + 'static>(&mut self, loopback: &mut Loopback<D>, input: &mut Input<'_>) {
        let back = input.below(6) as usize;
        let recent = self.submitted.iter().rev().nth(back).copied();
        // Or a number that another port of the hub used.
        let victim = recent.unwrap_or(0);
        let seqnum = self.take_seqnum(input);
        loopback.checker.unlink_asked(seqnum, victim);
        self.sent.extend(peer::unlink(seqnum, victim));
    }

    /// Delivers some of the sent bytes.
    fn arrive<D: Device + 'static>(&mut self, loopback: &mut Loopback<D>, most: usize) -> Result<(), ConnectionFault> {
        let bytes: Vec<u8> = self.sent.drain(..most.min(self.sent.len())).collect();
        loopback.receive(&bytes)
    }
}

fn some_bytes(input: &mut Input<'_>) -> usize {
    input.pick(&[1, 10, 47, 48, 49, 200, 3000, usize::MAX])
}

fn waiting_bytes<D: Device>(loopback: &Loopback<D>) -> usize {
    loopback.exporter.poll_transmit().iter().map(|run| run.len()).sum()
}

/// Plays operations until the input ends; `act` moves the device.
fn play<D: Device + 'static>(
    mut loopback: Loopback<D>,
    has_iso: bool,
    input: &mut Input<'_>,
    act: impl Fn(&mut Loopback<D>, &mut Input<'_>),
    still_moves: impl Fn(&mut Loopback<D>) -> bool,
) {
    let mut client = Client::new(has_iso);
    while !input.is_empty() {
        let arrived = match input.below(8) {
            0 | 1 => {
                client.submit(&mut loopback, input);
                Ok(())
            }
            2 => {
                client.unlink(&mut loopback, input);
                Ok(())
            }
            3 => client.arrive(&mut loopback, some_bytes(input)),
            4 => client.arrive(&mut loopback, usize::MAX),
            5 => {
                loopback.read_some(some_bytes(input));
                loopback.advance()
            }
            6 => {
                loopback.pass(Duration::from_micros(u64::from(input.below(2000))));
                Ok(())
            }
            _ => {
                act(&mut loopback, input);
                Ok(())
            }
        };
        assert!(waiting_bytes(&loopback) <= WAITING_BYTES_MAX, "{} bytes wait", waiting_bytes(&loopback));
        if arrived == Err(ConnectionFault::NeverReads) {
            loopback.end();
            return;
        }
        arrived.expect("a client within the rules");
    }
    if input_says_go(&client) {
        client.arrive(&mut loopback, usize::MAX).expect("a client within the rules");
        settle(&mut loopback, still_moves);
    }
    loopback.end();
}

/// Whether the client disconnects in the middle, as half of them do.
fn input_says_go(client: &Client) -> bool {
    client.seqnum.is_multiple_of(2)
}

/// Reads and lets time pass until nothing changes. Then everything must be answered except what waits for the device's
/// owner, and that is cancelled.
fn settle<D: Device + 'static>(loopback: &mut Loopback<D>, still_moves: impl Fn(&mut Loopback<D>) -> bool) {
    loop {
        let replies = loopback.read().len();
        loopback.pass(Duration::from_millis(300));
        if replies == 0 && !still_moves(loopback) && waiting_bytes(loopback) == 0 {
            break;
        }
    }
    for (at, victim) in loopback.checker.open().into_iter().enumerate() {
        loopback.unlink(0x4000_0000 + at as u32, victim);
    }
    // An unlink of an unknown submit is answered with the next submit.
    loopback.submit(&Submit::control(0x5000_0000, setup::GET_CONFIGURATION));
    while !loopback.read().is_empty() || still_moves(loopback) {}
    loopback.checker.assert_settled();
}

#[test]
fn fuzz_exporter_over_source_and_sink() {
    target("fuzz_exporter_over_source_and_sink", |input| {
        let speed = input.pick(&[UsbSpeed::High, UsbSpeed::Full, UsbSpeed::Super]);
        let device = SourceSink::device(speed, SourcePattern::Zeros, input.once_in(2));
        let loopback = Loopback::configured(device, LIMITS);
        play(loopback, true, input, |_, _| {}, |_| false);
    });
}

#[test]
fn fuzz_exporter_over_keyboard() {
    target("fuzz_exporter_over_keyboard", |input| {
        let loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        let type_some = |loopback: &mut Loopback<_>, input: &mut Input<'_>| {
            let text = "aB3 ".repeat(input.below(4) as usize);
            loopback.exporter.command(loopback.now, &OwnerCommand::Type(text)).expect("there is room for so little");
        };
        play(loopback, false, input, type_some, |_| false);
    });
}

#[test]
fn fuzz_exporter_over_late_device() {
    target("fuzz_exporter_over_late_device", |input| {
        let manners = Manners { cancels_late: input.once_in(2), answers_control_late: input.once_in(2) };
        let mut loopback = Loopback::imported(Scripted::new(manners), LIMITS);
        loopback.submit(&Submit::control(u32::MAX, setup::set_configuration(1)));
        loopback.device(|device, done| device.complete(EpAddr::CONTROL, done));
        loopback.read();
        let act = |loopback: &mut Loopback<Scripted>, input: &mut Input<'_>| {
            let room = loopback.device(|device, _| device.room());
            assert!(room <= LIMITS.payload_bytes_max + TRANSFER_BYTES_MAX as usize, "{room} bytes may come at once");
            let endpoint = EpAddr::from_byte(input.pick(&ENDPOINTS));
            loopback.device(|device, done| match input.below(4) {
                0 => device.let_go(done),
                1 if !endpoint.is_control() => {
                    device.fail(endpoint, input.pick(&[UrbStatus::Stall, UrbStatus::Protocol, UrbStatus::Gone]), done)
                }
                _ => device.complete(endpoint, done),
            });
        };
        play(loopback, true, input, act, |loopback| loopback.device(move_anything));
    });
}

const ENDPOINTS: [u8; 9] = [0, 0x81, 0x01, 0x82, 0x02, 0x83, 0x03, 0x84, 0x04];

fn move_anything(device: &mut Scripted, done: &mut farbus_model::CompletionQueue) -> bool {
    device.let_go(done) || ENDPOINTS.map(EpAddr::from_byte).into_iter().any(|endpoint| device.complete(endpoint, done))
}

#[test]
fn fuzz_exporter_before_exporter() {
    target("fuzz_exporter_before_exporter", |input| {
        let manners = Manners { cancels_late: input.once_in(2), ..Manners::default() };
        let mut both = Relay::new(manners, LIMITS);
        let mut client = Client::new(true);
        while !input.is_empty() {
            match input.below(8) {
                0 | 1 => client.submit(&mut both.near, input),
                2 => client.unlink(&mut both.near, input),
                3 => client.arrive(&mut both.near, some_bytes(input)).expect("a client within the rules"),
                4 => _ = both.carry_there(some_bytes(input)),
                5 => _ = both.carry_back(some_bytes(input)),
                6 => drop(both.near.read_some(some_bytes(input))),
                _ => {
                    let endpoint = EpAddr::from_byte(input.pick(&ENDPOINTS));
                    both.far.device(|device, done| match input.below(4) {
                        0 => device.let_go(done),
                        1 => device.fail(endpoint, UrbStatus::Stall, done),
                        _ => device.complete(endpoint, done),
                    });
                }
            }
            both.near.advance().expect("the kernel reads often enough");
        }
        client.arrive(&mut both.near, usize::MAX).expect("a client within the rules");
        both.near.submit(&Submit::control(0x5000_0000, setup::GET_CONFIGURATION));
        loop {
            both.settle();
            if !both.far.device(move_anything) {
                break;
            }
        }
        both.near.checker.assert_settled();
        let (remote, device, _) = both.end();
        assert_eq!((remote.in_flight(), device.holds(), device.given), (0, 0, device.taken));
    });
}

#[test]
fn fuzz_exporter_that_lies() {
    target("fuzz_exporter_that_lies", |input| {
        let device = Scripted::new(Manners::default());
        let mut near = Loopback::imported_by(world::remote(&device, LIMITS), LIMITS, PortResetPolicy::PassOn);
        near.checker.is_unordered = true;
        let mut liar = Liar::default();
        near.submit(&Submit::control(1, setup::set_configuration(1)));
        liar.listen(&mut near);
        let honest = RetSubmit::taken(liar.submits[0].seqnum, 0).bytes();
        near.device(|remote, done| relay::receive(remote, &honest, done)).expect("an honest answer");
        let mut client = Client::new(true);
        let mut is_caught = false;
        while !input.is_empty() && !is_caught {
            match input.below(4) {
                0 => client.submit(&mut near, input),
                1 => client.unlink(&mut near, input),
                2 => {
                    client.arrive(&mut near, usize::MAX).expect("a client within the rules");
                    liar.listen(&mut near);
                }
                _ => {
                    let bytes = liar.say(input);
                    is_caught = near.device(|remote, done| relay::receive(remote, &bytes, done)).is_err();
                }
            }
            // The kernel reads everything, and its checker compares it with the requests.
            near.read();
        }
        client.arrive(&mut near, usize::MAX).expect("a client within the rules");
        near.device(|remote, done| remote.handle_lost(done));
        near.submit(&Submit::control(0x5000_0000, setup::GET_CONFIGURATION));
        near.read();
        near.checker.assert_settled();
    });
}

/// An exporter that receives requests and answers at random.
#[derive(Default)]
struct Liar {
    heard: Vec<u8>,
    submits: Vec<Submit>,
    unlinks: Vec<u32>,
}

impl Liar {
    fn listen(&mut self, near: &mut Loopback<farbus_session::RemoteDevice>) {
        let bytes = near.device(|remote, done| {
            let bytes: Vec<u8> = remote.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            remote.handle_transmitted(bytes.len(), done);
            bytes
        });
        self.heard.extend(bytes);
        while !self.heard.is_empty() {
            let frame = &self.heard;
            let (command, seqnum) = (word(frame, 0), word(frame, 4));
            assert!(matches!(command, 1 | 2) && word(frame, 8) == peer::DEVID);
            if command == 2 {
                self.unlinks.push(seqnum);
                self.heard.drain(..48);
                continue;
            }
            let (direction, ep, length) = (word(frame, 12), word(frame, 16), word(frame, 24));
            let number_of_packets = word(frame, 32);
            assert!(ep == 3 || number_of_packets == 0);
            let data_bytes = if direction == 0 { length as usize } else { 0 };
            let total = 48 + data_bytes + 16 * number_of_packets as usize;
            let packets = frame[48 + data_bytes..total].chunks(16).map(Packet::read).collect();
            let submit = Submit { direction, ep, length, number_of_packets, packets, ..Submit::data_in(seqnum, 0, 0) };
            self.submits.push(submit);
            self.heard.drain(..total);
        }
    }

    fn say(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        if input.once_in(4) {
            let at = input.below(self.unlinks.len().max(1) as u32) as usize;
            return peer::ret_unlink(self.unlinks.get(at).copied().unwrap_or(7), input.pick(&[0, -104, -2, -71]));
        }
        let back = input.below(6) as usize;
        let Some(submit) = self.submits.iter().rev().nth(back) else { return input.bytes(48) };
        let packets: Vec<Packet> = submit.packets.iter().map(|p| Packet { actual: p.length, ..*p }).collect();
        let actual = if packets.is_empty() { submit.length } else { packets.iter().map(|packet| packet.actual).sum() };
        let data = if submit.is_in() { vec![5; actual as usize] } else { Vec::new() };
        let mut reply = RetSubmit { actual, data, ..RetSubmit::iso(submit.seqnum, &packets, &[]) };
        let lie = input.pick(&[0, 1, 2, 3, 9, 1024, 4096, u32::MAX]);
        match input.below(16) {
            0 => reply.actual = lie,
            1 => reply.number_of_packets = lie,
            2 => reply.seqnum = lie,
            3 => reply.status = -(input.below(130) as i32),
            4 => reply.data.truncate(lie as usize),
            5 => reply.error_count = lie,
            6 => reply.packets.reverse(),
            7 => reply.packets.iter_mut().for_each(|packet| packet.actual = lie),
            _ => {}
        }
        reply.bytes()
    }
}
