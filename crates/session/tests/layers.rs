//! The contract of layers: each method of a layer reaches the device below and returns its result, unless the layer's
//! table entry says that the layer answers it itself.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ConfigurationSelection, DescriptorSet, Device, Instant, NamedCounters, OwnerCommand,
    OwnerCommandError, Payload, ReadinessSource, SetupPacket, Urb, UrbId, UrbInFlight, UsbSpeed,
};
use farbus_session::block::swap::SwapOptions;
use farbus_session::block::{
    AnyByteLayer, CopyOnWriteView, RangeView, ReadAheadLayer, ReadOnlyView, SwappableDevice, TracingLayer,
    WriteBackLayer,
};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::isochronous::IsochronousLayer;
use farbus_session::observe::DeviceObservers;
use farbus_session::reserve::{SuspendableDevice, SuspensionSwitch};
use farbus_session::twin::TwinnedDevice;

mod world;

use world::{Manners, Scripted};

const NOW: Instant = Instant::from_nanos(100);

/// The methods of the device below that were called.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    fn note(&self, method: &'static str) {
        self.0.lock().unwrap().push(method);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A device whose every result differs from the default, and that records calls.
struct Probe {
    calls: Calls,
    info: BlockInfo,
    usb: Scripted,
    readiness: ReadinessSource,
}

impl Probe {
    fn new(calls: Calls) -> Self {
        let info = BlockInfo {
            size_bytes: 1 << 20,
            block_bytes: 512,
            preferred_bytes: 8192,
            request_bytes_max: 64 << 10,
            is_read_only: false,
            trims: true,
        };
        Self { calls, info, usb: Scripted::new(Manners::default()), readiness: ReadinessSource::new(7) }
    }
}

#[deny(clippy::missing_trait_methods)]
impl BlockDevice for Probe {
    fn info(&self) -> &BlockInfo {
        self.calls.note("info");
        &self.info
    }

    fn submit(&mut self, _now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.calls.note("submit");
        let data = Payload::from(vec![5; request.length as usize]);
        done.push(match request.op {
            BlockOp::Map => request.answer_all_data(),
            BlockOp::Read => request.answer(data),
            _ => request.answer(Payload::Empty),
        });
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.calls.note("poll_timeout");
        Some(Instant::from_nanos(77))
    }

    fn handle_timeout(&mut self, _now: Instant, _done: &mut CompletionQueue<BlockCompletion>) {
        self.calls.note("handle_timeout");
    }

    fn end_turn(&mut self, _now: Instant, _done: &mut CompletionQueue<BlockCompletion>) {
        self.calls.note("end_turn");
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.calls.note("readiness");
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _now: Instant, _done: &mut CompletionQueue<BlockCompletion>) {
        self.calls.note("handle_ready");
    }

    fn is_gone(&self) -> bool {
        self.calls.note("is_gone");
        true
    }

    fn command(
        &mut self,
        _: Instant,
        _: &OwnerCommand,
        _: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), OwnerCommandError> {
        self.calls.note("command");
        Ok(())
    }

    fn epoch(&self) -> Option<u64> {
        self.calls.note("epoch");
        Some(9)
    }

    fn is_ready(&self) -> bool {
        self.calls.note("is_ready");
        false
    }

    fn why_gone(&self) -> Option<String> {
        self.calls.note("why_gone");
        Some("pulled".to_owned())
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.calls.note("state");
        Some(vec![1, 2])
    }

    fn go_on_from(&mut self, state: &[u8]) -> bool {
        self.calls.note("go_on_from");
        state == [1, 2]
    }

    fn save(&mut self, _now: Instant) -> Option<Vec<u8>> {
        self.calls.note("save");
        Some(vec![3])
    }

    fn leave(&mut self) {
        self.calls.note("leave");
    }
}

#[deny(clippy::missing_trait_methods)]
impl Device for Probe {
    fn descriptors(&self) -> &DescriptorSet {
        self.calls.note("descriptors");
        self.usb.descriptors()
    }

    fn speed(&self) -> UsbSpeed {
        self.calls.note("speed");
        UsbSpeed::SuperPlus
    }

    fn selection(&self) -> &ConfigurationSelection {
        self.calls.note("selection");
        self.usb.selection()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.calls.note("submit");
        self.usb.submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.calls.note("cancel");
        self.usb.cancel(now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.calls.note("reset");
        self.usb.reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.calls.note("poll_timeout");
        Some(Instant::from_nanos(77))
    }

    fn handle_timeout(&mut self, _now: Instant, _done: &mut CompletionQueue) {
        self.calls.note("handle_timeout");
    }

    fn end_turn(&mut self, _now: Instant, _done: &mut CompletionQueue) {
        self.calls.note("end_turn");
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.calls.note("readiness");
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _now: Instant, _done: &mut CompletionQueue) {
        self.calls.note("handle_ready");
    }

    fn is_gone(&self) -> bool {
        self.calls.note("is_gone");
        true
    }

    fn verbs(&self) -> &'static [&'static str] {
        self.calls.note("verbs");
        &["type"]
    }

    fn command(
        &mut self,
        _now: Instant,
        _command: &OwnerCommand,
        _done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        self.calls.note("command");
        Ok(())
    }

    fn tally(&self) -> Option<NamedCounters> {
        self.calls.note("tally");
        Some(NamedCounters::new(&["typed"]))
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.calls.note("save");
        Some(vec![1, 2])
    }

    fn restore(&mut self, _selection: &ConfigurationSelection, state: &[u8]) -> bool {
        self.calls.note("restore");
        state == [1, 2]
    }

    fn leave(&mut self) {
        self.calls.note("leave");
    }
}

/// A method, with its result and completions as text.
type Call<D, A> = (&'static str, fn(&mut D, &mut CompletionQueue<A>) -> String);

const BLOCK_CALLS: [Call<dyn BlockDevice, BlockCompletion>; 16] = [
    ("info", |device, _| format!("{:?}", device.info())),
    ("submit", |device, done| {
        device.submit(NOW, BlockRequest::read(BlockId(5), 4096, 512).launch(), done);
        let answer = done.pop().expect("it is answered at once");
        format!("{:?} {} {:?} {:?}", answer.id, answer.offset, answer.result, answer.payload.contiguous())
    }),
    ("poll_timeout", |device, _| format!("{:?}", device.poll_timeout())),
    ("handle_timeout", |device, done| format!("{:?}", device.handle_timeout(NOW, done))),
    ("end_turn", |device, done| format!("{:?}", device.end_turn(NOW, done))),
    ("readiness", |device, _| format!("{:?}", device.readiness().and_then(ReadinessSource::inside::<i32>))),
    ("handle_ready", |device, done| format!("{:?}", device.handle_ready(NOW, done))),
    ("is_gone", |device, _| format!("{:?}", device.is_gone())),
    ("command", |device, done| format!("{:?}", device.command(NOW, &OwnerCommand::Eject, done))),
    ("epoch", |device, _| format!("{:?}", device.epoch())),
    ("is_ready", |device, _| format!("{:?}", device.is_ready())),
    ("why_gone", |device, _| format!("{:?}", device.why_gone())),
    ("state", |device, _| format!("{:?}", device.state())),
    ("go_on_from", |device, _| format!("{:?}", device.go_on_from(&[1, 2]))),
    ("save", |device, _| format!("{:?}", device.save(NOW))),
    ("leave", |device, _| format!("{:?}", device.leave())),
];

const DEVICE_CALLS: [Call<dyn Device, farbus_model::UrbCompletion>; 18] = [
    ("descriptors", |device, _| format!("{:?}", device.descriptors())),
    ("speed", |device, _| format!("{:?}", device.speed())),
    ("selection", |device, _| format!("{:?}", device.selection())),
    ("submit", |device, done| {
        let setup = SetupPacket::set_configuration(1);
        device.submit(NOW, Urb::control(UrbId(5), setup, Payload::Empty).launch(), done);
        done.pop().map(|answer| format!("{answer:?}")).unwrap_or_default()
    }),
    ("cancel", |device, done| format!("{:?}", device.cancel(NOW, UrbId(9), done))),
    ("poll_timeout", |device, _| format!("{:?}", device.poll_timeout())),
    ("handle_timeout", |device, done| format!("{:?}", device.handle_timeout(NOW, done))),
    ("end_turn", |device, done| format!("{:?}", device.end_turn(NOW, done))),
    ("readiness", |device, _| format!("{:?}", device.readiness().and_then(ReadinessSource::inside::<i32>))),
    ("handle_ready", |device, done| format!("{:?}", device.handle_ready(NOW, done))),
    ("is_gone", |device, _| format!("{:?}", device.is_gone())),
    ("verbs", |device, _| format!("{:?}", device.verbs())),
    ("command", |device, done| format!("{:?}", device.command(NOW, &OwnerCommand::Eject, done))),
    ("tally", |device, _| format!("{:?}", device.tally())),
    ("save", |device, _| format!("{:?}", device.save())),
    ("restore", |device, _| format!("{:?}", device.restore(&ConfigurationSelection::default(), &[1, 2]))),
    ("reset", |device, done| format!("{:?}", device.reset(NOW, done))),
    ("leave", |device, _| format!("{:?}", device.leave())),
];

/// A layer over the probe, with the methods that it answers itself.
struct Layer<D: ?Sized> {
    name: &'static str,
    make: fn(Probe) -> Box<D>,
    answers: &'static [&'static str],
}

fn scratch(probe: Probe) -> Box<dyn BlockDevice> {
    Box::new(CopyOnWriteView::new(probe, MemoryStore::new(vec![0; 64 << 10])))
}

/// A swap is under way.
fn exchanging(probe: Probe) -> Box<dyn BlockDevice> {
    let mut device = SwappableDevice::new(probe);
    let begun = device.begin(NOW, Probe::new(Calls::default()), None, SwapOptions::default());
    begun.unwrap_or_else(|(error, _)| panic!("{error}"));
    Box::new(device)
}

const BLOCK_LAYERS: [Layer<dyn BlockDevice>; 10] = [
    Layer { name: "Box", make: |probe| Box::new(Box::new(probe)), answers: &[] },
    // A part of the device, so it is smaller.
    Layer { name: "RangeView", make: |probe| Box::new(RangeView::new(probe, 1024, 8192).unwrap()), answers: &["info"] },
    Layer { name: "ReadOnlyView", make: |probe| Box::new(ReadOnlyView::new(probe)), answers: &["info"] },
    Layer { name: "TracingLayer", make: |probe| Box::new(TracingLayer::new(probe, 8)), answers: &[] },
    // Its changes cannot be saved.
    Layer { name: "CopyOnWriteView", make: scratch, answers: &["info", "state", "go_on_from", "save"] },
    // These three save the requests that they hold, besides the device's state.
    Layer { name: "AnyByteLayer", make: |probe| Box::new(AnyByteLayer::new(probe)), answers: &["info", "save"] },
    Layer { name: "ReadAheadLayer", make: |probe| Box::new(ReadAheadLayer::new(probe)), answers: &["save"] },
    Layer { name: "WriteBackLayer", make: |probe| Box::new(WriteBackLayer::new(probe)), answers: &["save"] },
    Layer { name: "SwappableDevice", make: |probe| Box::new(SwappableDevice::new(probe)), answers: &[] },
    // The properties stay those of the first device, whatever it is exchanged for. Both devices wake it, a turn ends
    // for those that were asked, and another process continues with neither.
    Layer {
        name: "SwapRequestTracker",
        make: exchanging,
        answers: &["info", "poll_timeout", "end_turn", "readiness", "state", "save"],
    },
];

fn observed(probe: Probe) -> Box<dyn Device> {
    let Ok(observed) = farbus_session::observe::ObservedDevice::new(probe, DeviceObservers::default()) else {
        unreachable!()
    };
    Box::new(observed)
}

fn suspendable(probe: Probe) -> Box<dyn Device> {
    Box::new(SuspendableDevice::new(Box::new(probe), SuspensionSwitch::default(), Vec::new()).0)
}

const DEVICE_LAYERS: [Layer<dyn Device>; 6] = [
    Layer { name: "Box", make: |probe| Box::new(Box::new(probe)), answers: &[] },
    // The owner of a session's device saves these two, and gives them the device when restoring.
    Layer {
        name: "FarLayer",
        make: |probe| Box::new(FarLayer::new(probe, FarLayerConfig::within(8))),
        answers: &["save", "restore"],
    },
    Layer {
        name: "IsochronousLayer",
        make: |probe| Box::new(IsochronousLayer::new(probe, true)),
        answers: &["save", "restore"],
    },
    Layer { name: "ObservedDevice", make: observed, answers: &[] },
    Layer { name: "SuspendableDevice", make: suspendable, answers: &[] },
    // It saves the settings made on its device. After an exchange it reports the first device's descriptors.
    Layer {
        name: "TwinnedDevice",
        make: |probe| Box::new(<TwinnedDevice>::new(Box::new(probe))),
        answers: &["save", "restore"],
    },
];

/// Layers of other crates, each over one type of the same crate that belongs to a link: they override what concerns the
/// link or the end. `Member` overrides nothing: it is one of two devices.
const ELSEWHERE: [&str; 8] =
    ["LinkedDevice", "SessionDisk", "SwapDisk", "FarDevice", "CountedDisk", "BusMember", "AttachedUsb", "SwapUsb"];

fn keeps_the_contract<D: ?Sized, A>(layer: &Layer<D>, calls: &[Call<D, A>], bare: fn(Probe) -> Box<D>) {
    for (method, call) in calls {
        let run = |make: fn(Probe) -> Box<D>| {
            let noted = Calls::default();
            let mut device = make(Probe::new(noted.clone()));
            noted.take();
            let message = call(&mut *device, &mut CompletionQueue::new(BufferPool::new(0)));
            (noted.take().contains(method), message)
        };
        let (is_reached, message) = run(layer.make);
        let passes = is_reached && message == run(bare).1;
        let is_own = layer.answers.contains(method);
        assert_eq!(
            passes, !is_own,
            "{}::{method} reached the device below: {is_reached}; it said {message}",
            layer.name
        );
    }
}

#[test]
fn block_layers_pass_on_what_they_do_not_answer() {
    BLOCK_LAYERS.iter().for_each(|layer| keeps_the_contract(layer, &BLOCK_CALLS, |probe| Box::new(probe)));
}

#[test]
fn device_layers_pass_on_what_they_do_not_answer() {
    DEVICE_LAYERS.iter().for_each(|layer| keeps_the_contract(layer, &DEVICE_CALLS, |probe| Box::new(probe)));
}

#[test]
fn every_layer_is_in_the_table() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources: Vec<PathBuf> = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.iter_mut().for_each(|path| path.push("src"));
    let mut found = Vec::new();
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            sources.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for (kind, name) in ["BlockLayer for ", "DeviceLayer for "].into_iter().flat_map(|kind| {
                text.lines()
                    .filter(|line| line.starts_with("impl"))
                    .filter_map(move |line| Some((kind, line.split_once(kind)?.1)))
            }) {
                let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
                found.push((kind, name));
            }
        }
    }
    assert!(found.len() >= BLOCK_LAYERS.len() + DEVICE_LAYERS.len(), "{found:?}");
    for (kind, name) in found {
        let is_tested = match kind {
            "BlockLayer for " => BLOCK_LAYERS.iter().any(|layer| layer.name == name),
            _ => DEVICE_LAYERS.iter().any(|layer| layer.name == name),
        };
        assert!(is_tested || ELSEWHERE.contains(&name.as_str()), "{name} is a layer without a row");
    }
}
