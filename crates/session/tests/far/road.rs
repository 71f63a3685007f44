//! A long path in simulated time: a device at one end, its user at the other.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::{BufferPool, CompletionQueue, Device, Instant, SessionLimits, Urb, UrbCompletion, UrbId};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::native::{
    AttachmentState, ExporterServices, ExporterSession, ImporterAttachment, ImporterSession, Lane, LaneLimits,
    RemoteUsb, ServedExport, ServedUsb,
};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};
use farbus_wire::native::{SessionId, WelcomeOutcome};
use farbus_wire::usbip::DeviceRecord;

use super::window::{TcpWindow, WindowPlan};

/// Data on its way in one direction, with its time of arrival.
type Way = VecDeque<(Instant, Vec<u8>)>;

pub struct Road {
    pub now: Instant,
    one_way: Duration,
    importer: ImporterSession,
    pub far: FarLayer<RemoteUsb>,
    /// `None` after the end.
    exporter: Option<ExporterSession>,
    shelf: Shelf,
    there: Way,
    back: Way,
    /// What limits the exporter's sending; `None`: nothing.
    window: Option<TcpWindow>,
    done: CompletionQueue,
}

struct Shelf(Option<Box<dyn Device>>);

impl ExporterServices for Shelf {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = self.0.take().expect("it is opened once");
        let record = DeviceRecord {
            path: "/farbus/far".into(),
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed: device.speed(),
            vendor: 1,
            product: 1,
            device_bcd: 0,
            class: [0; 3],
            configuration: 0,
            configurations: 1,
            interfaces: Vec::new(),
            interface_count: 0,
        };
        Ok((1, Box::new(ServedUsb::new(number, device, record, SessionLimits::DEFAULT, |_, _| ()))))
    }
}

impl Road {
    /// A session whose open request is on its way; the round trip is `round_trip`.
    pub fn to(device: impl Device + 'static, round_trip: Duration, is_on: bool) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut importer = ImporterSession::new(now, 7, Duration::from_secs(20), LaneLimits::DEFAULT);
        let hello = importer.hello(0);
        let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 1, Duration::from_secs(20), LaneLimits::DEFAULT);
        let (exporter, welcome) = begun.expect("a version that both speak");
        assert_eq!(welcome.outcome, WelcomeOutcome::Begun);
        importer.handle_welcome(&welcome).expect("it is what was asked");
        let (class, mode, name, reason) =
            (AttachmentClass::USB, AttachmentMode::Exclusive, "far".into(), String::new());
        let remote = RemoteUsb::new(1, OpenRequest { class, mode, epoch: 0, name, reason });
        let plan = if is_on { FarLayerConfig::within(4096) } else { FarLayerConfig::OFF };
        Self {
            now,
            one_way: round_trip / 2,
            importer,
            far: FarLayer::new(remote, plan),
            exporter: Some(exporter),
            shelf: Shelf(Some(Box::new(device))),
            there: Way::new(),
            back: Way::new(),
            window: None,
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
        }
    }

    /// From now on the exporter sends within a congestion window.
    pub fn limit_exporter(&mut self, plan: WindowPlan) {
        self.window = Some(TcpWindow::new(plan, self.one_way * 2));
    }

    /// Runs until the device is open.
    pub fn open(&mut self) {
        while *self.far.device().state() == AttachmentState::Opening {
            self.step(None);
        }
        assert_eq!(*self.far.device().state(), AttachmentState::Open);
        self.far.begin(self.now, &mut self.done);
        self.send();
    }

    pub fn submit(&mut self, urb: Urb) {
        self.far.submit(self.now, urb.launch(), &mut self.done);
    }

    pub fn cancel(&mut self, id: UrbId) {
        self.far.cancel(self.now, id, &mut self.done);
    }

    pub fn pop(&mut self) -> Option<UrbCompletion> {
        self.done.pop()
    }

    /// Submits a request and waits for its answer.
    pub fn ask(&mut self, urb: Urb) -> UrbCompletion {
        let id = urb.id;
        self.submit(urb);
        loop {
            match self.done.pop() {
                Some(done) if done.id == id => return done,
                Some(_) => {}
                None => self.step(None),
            }
        }
    }

    fn exporter(&mut self) -> &mut ExporterSession {
        self.exporter.as_mut().expect("it is there until all is over")
    }

    fn send(&mut self) {
        let mut nobody = CompletionQueue::new(BufferPool::new(0));
        while let Some(message) = self.far.act(self.now, &mut nobody, |remote, _| remote.poll_message()) {
            self.importer.send(message);
        }
        assert!(nobody.is_empty());
        let (now, at) = (self.now, self.now + self.one_way);
        let there = transmitted(self.importer.lane_mut(), now);
        self.there.extend((!there.is_empty()).then_some((at, there)));
        let lane = self.exporter.as_mut().unwrap().lane_mut();
        match &mut self.window {
            None => {
                let back = transmitted(lane, now);
                self.back.extend((!back.is_empty()).then_some((at, back)));
            }
            Some(window) => {
                if lane.has_transmit() && !window.holds(now, lane) {
                    window.write(now, &transmitted(lane, now));
                }
                self.back.extend(std::iter::from_fn(|| window.poll_segment(now)).map(|segment| (at, segment)));
            }
        }
    }

    /// Runs to the next event, or to `until` if that is earlier.
    pub fn step(&mut self, until: Option<Instant>) {
        self.send();
        let front = |way: &Way| way.front().map(|(at, _)| *at);
        let moments = [
            front(&self.there),
            front(&self.back),
            self.exporter.as_ref().unwrap().poll_timeout(),
            Device::poll_timeout(&self.far),
            self.window.as_ref().and_then(TcpWindow::poll_timeout),
            until,
        ];
        let next = moments.into_iter().flatten().min().expect("something happens");
        self.now = self.now.max(next);
        let now = self.now;
        while self.there.front().is_some_and(|(at, _)| *at <= now) {
            let (_, bytes) = self.there.pop_front().expect("looked at just now");
            let exporter = self.exporter.as_mut().unwrap();
            receive(exporter.lane_mut(), &bytes);
            while exporter.advance(now, &mut self.shelf).expect("an honest importer") {}
        }
        self.exporter().handle_ready(now);
        while self.back.front().is_some_and(|(at, _)| *at <= now) {
            let (_, bytes) = self.back.pop_front().expect("looked at just now");
            receive(self.importer.lane_mut(), &bytes);
            while let Some(arrived) = self.importer.poll_arrived(0).expect("an honest exporter") {
                let heard =
                    |remote: &mut RemoteUsb, done: &mut CompletionQueue| remote.handle_arrived(now, arrived, done);
                self.far.act(now, &mut self.done, heard).expect("an honest exporter");
            }
        }
        if Device::poll_timeout(&self.far).is_some_and(|at| at <= now) {
            self.far.handle_timeout(now, &mut self.done);
        }
        self.send();
    }
}

impl Drop for Road {
    /// Requests in flight end unseen.
    fn drop(&mut self) {
        let over = |remote: &mut RemoteUsb, done: &mut CompletionQueue| {
            remote.handle_over(AttachmentEndCause::Requested, "enough", done)
        };
        self.far.act(self.now, &mut self.done, over);
        if let Some(exporter) = self.exporter.take() {
            exporter.finish(self.now);
        }
    }
}

/// What a lane sends now.
fn transmitted(lane: &mut Lane, now: Instant) -> Vec<u8> {
    let mut all = Vec::new();
    while lane.has_transmit() {
        let bytes: Vec<u8> = lane.poll_transmit(now).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        lane.handle_transmitted(bytes.len());
        all.extend(bytes);
    }
    all
}

fn receive(lane: &mut Lane, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let space = lane.receive_space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        lane.handle_received(count);
        rest = &rest[count..];
    }
}
