use std::time::Duration;

use farbus_model::{BufferPool, CompletionQueue, Device, Urb, UrbId, UrbStatus};

use super::*;

/// A host that drives the adapter as `gs_usb` does.
struct Host {
    can: EmulatedDevice<CanAdapter>,
    done: CompletionQueue,
    now: Instant,
    next: u64,
}

impl Host {
    fn new(settings: &str) -> Self {
        let can = CanAdapter::device(&settings.parse().unwrap());
        let done = CompletionQueue::new(BufferPool::new(1 << 16));
        let mut host = Self { can, done, now: Instant::ZERO, next: 1 };
        assert_eq!(host.control(SetupPacket::set_configuration(1), &[]).0, UrbStatus::Ok);
        host
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8]) -> (UrbStatus, Vec<u8>) {
        let urb = Urb::control(UrbId(0), setup, data.to_vec().into());
        self.can.submit(self.now, urb.launch(), &mut self.done);
        let done = self.done.pop().expect("a control request is answered at once");
        (done.status, done.payload.into_vec())
    }

    fn tell(&mut self, request: u8, channel: u16, words: &[u32]) -> UrbStatus {
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = data.len() as u16;
        self.control(SetupPacket { request_type: 0x41, request, value: channel, index: 0, length }, &data).0
    }

    fn ask(&mut self, request: u8, channel: u16, length: u16) -> (UrbStatus, Vec<u8>) {
        self.control(SetupPacket { request_type: 0xc1, request, value: channel, index: 0, length }, &[])
    }

    /// Sets 500 kb/s and switches the channel on.
    fn start(&mut self, channel: u16, flags: u32) {
        assert_eq!(self.tell(BIT_TIMING, channel, &[6, 7, 2, 1, 6]), UrbStatus::Ok);
        assert_eq!(self.tell(MODE, channel, &[1, flags]), UrbStatus::Ok);
    }

    /// Sends a frame; returns its status if it was taken at once.
    fn send(&mut self, number: u32, channel: u8, id: u32) -> Option<UrbStatus> {
        let frame = CanFrame { id, length: 2, data: [1, 2, 0, 0, 0, 0, 0, 0] };
        self.give(GsHostFrame { number, channel, flags: 0, frame }.to_bytes().to_vec())
    }

    fn give(&mut self, bytes: Vec<u8>) -> Option<UrbStatus> {
        self.next += 1;
        let urb = Urb::data_out(UrbId(self.next), EpAddr::from_byte(DATA), bytes.into());
        self.can.submit(self.now, urb.launch(), &mut self.done);
        self.done.pop().map(|done| done.status)
    }

    /// Lets time pass, event by event.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.can.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.can.handle_timeout(self.now, &mut self.done);
        }
        self.now = end;
    }

    /// Fetches the waiting frames, with `room` bytes per transfer.
    fn fetch(&mut self, room: u32) -> Vec<GsHostFrame> {
        let mut all = Vec::new();
        loop {
            self.next += 1;
            let urb = Urb::data_in(UrbId(self.next), EpAddr::from_byte(0x80 | DATA), room);
            self.can.submit(self.now, urb.launch(), &mut self.done);
            let came: Vec<_> = std::iter::from_fn(|| self.done.pop()).collect();
            let Some(done) = came.into_iter().find(|done| done.direction == TransferDirection::In) else {
                self.can.cancel(self.now, UrbId(self.next), &mut self.done);
                while self.done.pop().is_some() {}
                return all;
            };
            let bytes = done.payload.into_vec();
            all.extend(bytes.chunks(MESSAGE_BYTES).map(|bytes| GsHostFrame::from_bytes(bytes).expect("a frame")));
        }
    }

    fn counts(&self) -> Vec<u64> {
        self.can.function().tally().unwrap().read().map(|(_, count)| count).collect()
    }
}

#[test]
fn the_drivers_questions_are_answered() {
    let mut host = Host::new("channels=5");
    assert_eq!(host.tell(HOST_FORMAT, 1, &[LITTLE_ENDIAN]), UrbStatus::Ok);
    assert_eq!(host.tell(HOST_FORMAT, 1, &[LITTLE_ENDIAN.swap_bytes()]), UrbStatus::Stall);
    assert_eq!(host.ask(DEVICE_CONFIG, 1, 12).1[3], 4, "the last channel");
    let (status, limits) = host.ask(TIMING_LIMITS, 4, 40);
    assert_eq!((status, &limits[4..8]), (UrbStatus::Ok, &CLOCK_HZ.to_le_bytes()[..]));
    assert_eq!(host.ask(TIMING_LIMITS, 5, 40).0, UrbStatus::Stall, "there are five");
    host.start(4, 0);
    for wrong in [[0, 0, 0, 1, 1], [u32::MAX, u32::MAX, 1, 1, 1], [6, 7, 2, 1, u32::MAX], [6, 7, 2, 1, 0]] {
        assert_eq!(host.tell(BIT_TIMING, 0, &wrong), UrbStatus::Stall, "{wrong:?}");
    }
    for wrong in [[2, 0], [1, 1 << 8]] {
        assert_eq!(host.tell(MODE, 0, &wrong), UrbStatus::Stall, "{wrong:?}");
    }
    assert_eq!(host.tell(MODE, 0, &[1]), UrbStatus::Stall);
    assert_eq!(host.tell(99, 0, &[]), UrbStatus::Stall);
}

#[test]
fn sent_frame_takes_its_bus_time_and_is_echoed() {
    let mut host = Host::new("channels=2");
    host.start(1, 0);
    for number in 0..3 {
        assert_eq!(host.send(number, 1, 0x123), Some(UrbStatus::Ok));
    }
    // 44 and 16 bits, and ten stuffed ones.
    host.pass(Duration::from_micros(2 * 140 + 139));
    let numbers: Vec<u32> = host.fetch(MESSAGE_BYTES as u32).iter().map(|message| message.number).collect();
    assert_eq!(numbers, [0, 1]);
    host.pass(Duration::from_micros(1));
    let last = host.fetch(MESSAGE_BYTES as u32);
    assert_eq!((last.len(), last[0].number, last[0].channel, last[0].frame.id), (1, 2, 1, 0x123));
    assert_eq!(host.counts()[4], 3);

    assert_eq!(host.tell(MODE, 1, &[0, 0]), UrbStatus::Ok);
    assert_eq!(host.send(3, 1, 0x123), Some(UrbStatus::Ok), "it was on its way");
    host.start(0, LOOP_BACK);
    assert_eq!(host.send(4, 0, 0x7), Some(UrbStatus::Ok));
    host.pass(Duration::from_millis(10));
    let heard: Vec<u32> = host.fetch(4096).iter().map(|message| message.number).collect();
    assert_eq!(heard, [4, NOT_OURS], "it went nowhere, and one in a loop is heard");
}

#[test]
fn host_that_never_fetches_echoes_has_to_wait() {
    let mut host = Host::new("channels=2");
    host.start(0, 0);
    let mut taken = 0;
    while host.send(taken, 0, 1).is_some() {
        taken += 1;
        host.pass(Duration::from_millis(1));
    }
    assert_eq!(taken as usize, FRAMES_MAX / 2);
    assert_eq!(host.fetch(MESSAGE_BYTES as u32).len(), FRAMES_MAX / 2, "and goes on when he does");
    host.pass(Duration::from_millis(1));
    assert_eq!(host.fetch(4096).iter().map(|message| message.number).collect::<Vec<_>>(), [taken]);
}

#[test]
fn late_host_loses_the_oldest_frames_and_is_told() {
    let mut host = Host::new("traffic=69/0/40x");
    host.start(0, 0);
    host.start(2, 0);
    let mut counts = [0; 3];
    let mut overflows = 0;
    for round in 0..20 {
        host.pass(Duration::from_millis(if round == 10 { 100 } else { 10 }));
        for message in host.fetch(4096) {
            let channel = usize::from(message.channel);
            let counted = u64::from_le_bytes(message.frame.data);
            overflows += u64::from(message.flags);
            assert_eq!(counted > counts[channel], message.flags == OVERFLOW, "{message:?}");
            assert_eq!(message.frame.id & bus::EXTENDED != 0, channel == 2);
            counts[channel] = counted + 1;
        }
    }
    let counters = host.counts();
    assert_eq!(overflows, 2, "both lost some, once");
    assert!(counters[OVERRUNS] > 0 && counters[6 + OVERRUNS] > 0, "{counters:?}");
    let [first, _, last] = counts;
    assert_eq!((counters[IN], counters[3 + IN], counters[6 + IN]), (first, 0, last));
    assert_eq!((first, last), (2738 * 290 / 1000 - 1, 1342 * 290 / 1000 - 1), "in 290 ms, less the one on its way");
}

#[test]
fn invalid_can_message_is_refused() {
    for wrong in [vec![0; 19], vec![0; 24], GsHostFrame::from_bytes(&[0; 20]).unwrap().to_bytes()[..12].to_vec()] {
        let mut host = Host::new("channels=1");
        host.start(0, 0);
        assert_eq!(host.give(wrong), Some(UrbStatus::Stall));
    }
    let mut host = Host::new("channels=1");
    host.start(0, 0);
    assert_eq!(host.send(0, 1, 1), Some(UrbStatus::Stall), "there is no channel 1");
    let mut long = [0; MESSAGE_BYTES];
    long[8] = 9;
    assert!(GsHostFrame::from_bytes(&long).is_none(), "no frame has nine bytes");
}

#[test]
fn another_process_goes_on_with_the_same_channels() {
    let mut host = Host::new("traffic=10/20x");
    host.start(0, 0);
    host.start(1, 0);
    host.pass(Duration::from_millis(50));
    assert_eq!(host.send(9, 1, 1), Some(UrbStatus::Ok));
    let state = host.can.function().save().unwrap();
    let settings: CanSettings = "traffic=10/20x".parse().unwrap();
    let mut again = CanAdapter::new(&settings);
    again.restore(&state).unwrap();
    assert_eq!(again.save().unwrap(), state);
    again.advance(Instant::ZERO + Duration::from_millis(20));
    assert_eq!(again.echoes.front().map(|echo| echo.number), Some(9));
    assert!(
        again.channels[0].bus.as_ref().unwrap().counted()
            > host.can.function().channels[0].bus.as_ref().unwrap().counted()
    );
    assert!((0..state.len()).all(|end| CanAdapter::new(&settings).restore(&state[..end]).is_none()));
    assert!(
        CanAdapter::new(&CanSettings { units: vec![None] }).restore(&state).is_none(),
        "it has another number of channels"
    );
}

#[test]
fn can_settings_are_parsed_as_documented() {
    let unit = |percent, is_extended| Some(CanNode { percent, is_extended });
    assert_eq!("".parse(), Ok(CanSettings { units: vec![None] }));
    assert_eq!(
        "channels=3,traffic=7/40x".parse(),
        Ok(CanSettings { units: vec![unit(7, false), unit(40, true), None] })
    );
    assert_eq!("traffic=10/20x/30/40x/69".parse(), Ok(CanSettings::paper()));
    assert_eq!("traffic=paper".parse(), Ok(CanSettings::paper()));
    for wrong in ["channels=0", "channels=9", "channels=1,traffic=1/2", "traffic=101", "traffic=x", "speed=high"] {
        assert!(wrong.parse::<CanSettings>().is_err(), "{wrong}");
    }
}
