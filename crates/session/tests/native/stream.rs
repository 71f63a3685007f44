//! A stream in that world: a source that may be faster than its reader, and frames of every length.

use std::sync::Arc;

use farbus_model::{ExportIdentity, Instant, ReadinessSource};
use farbus_session::native::stream::{StreamDescription, StreamFormat, StreamFrame};
use farbus_session::native::{
    AttachmentState, ExporterServices, ImporterAttachment, RemoteStream, ServedExport, ServedObserver,
};
use farbus_session::stream::{FramePublisher, SlowReaderPolicy};
use farbus_wire::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};

use crate::random::Random;
use crate::world::World;

const FRAME_BYTES_MAX: u32 = 3 << 20;

/// The source of one exporter process, and which process it is.
struct Source {
    stage: FramePublisher,
    policy: SlowReaderPolicy,
    process: u64,
    made: u64,
}

impl Source {
    fn new(policy: SlowReaderPolicy, process: u64) -> Self {
        let description = StreamDescription { format: StreamFormat::Bytes, frame_bytes_max: FRAME_BYTES_MAX };
        Self { stage: FramePublisher::new(description, || ()), policy, process, made: 0 }
    }

    /// Makes a frame, unless its reader must be waited for.
    fn make(&mut self, random: &mut Random) {
        let bytes = random.pick(&[16, 17, 100, 5000, 65_535, 70_000]);
        let data = content(self.process, self.made, bytes);
        let frame = StreamFrame { sequence: self.made, moment_ns: self.process, data: data.into() };
        if self.stage.show(frame).is_ok() {
            self.made += 1;
        }
    }

    fn serve(&self, number: u16) -> Box<dyn ServedExport> {
        let observer = self.stage.join(self.policy, || ()).expect("there is room for a reader");
        let description = self.stage.description().encode();
        let readiness = ReadinessSource::new(Arc::new(()));
        Box::new(ServedObserver::new(number, Box::new(observer), readiness, || (), description, |_| ()))
    }
}

/// A stream without a reader, served anew.
pub fn served(number: u16) -> Box<dyn ServedExport> {
    Source::new(SlowReaderPolicy::Latest, 1).serve(number)
}

/// The content of a frame: its number, and bytes that follow from it.
fn content(process: u64, sequence: u64, bytes: usize) -> Vec<u8> {
    let mut data = [process.to_le_bytes(), sequence.to_le_bytes()].concat();
    data.resize(bytes, (process * 31 + sequence) as u8);
    data
}

impl ExporterServices for Source {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 11, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        assert_eq!((open.class, open.name.as_str()), (AttachmentClass::STREAM, "cam"));
        Ok((0, self.serve(number)))
    }
}

/// A source, its reader, and the frames that arrived.
pub struct StreamWorld {
    world: World<RemoteStream>,
    source: Source,
    arrived: Vec<StreamFrame>,
    /// Process and sequence number of the last frame that was checked.
    last: Option<(u64, u64)>,
    count: u32,
}

impl StreamWorld {
    pub fn new(random: &mut Random) -> Self {
        let policy = random.pick(&[SlowReaderPolicy::All, SlowReaderPolicy::Latest]);
        let mode = if policy == SlowReaderPolicy::All { AttachmentMode::Exclusive } else { AttachmentMode::Read };
        let open =
            OpenRequest { class: AttachmentClass::STREAM, mode, epoch: 0, name: "cam".into(), reason: String::new() };
        let world = World::new(RemoteStream::new(1, open));
        let mut all = Self { world, source: Source::new(policy, 1), arrived: Vec::new(), last: None, count: 0 };
        all.world.link(random, &mut all.arrived);
        all
    }

    pub fn step(&mut self, random: &mut Random) {
        match random.below(40) {
            0 => self.world.cut(),
            1 if random.once_in(8) => {
                self.world.crash();
                self.source = Source::new(self.source.policy, self.source.process + 1);
            }
            2 if self.source.policy == SlowReaderPolicy::Latest => {
                let (is_meant, source) = (random.once_in(2), &self.source);
                self.world.exporter_moves_on(is_meant, |now, left| {
                    let mut served = source.serve(left.number);
                    let state = left.state.as_ref().expect("it can go on");
                    served.restore(now, &mut state.reader()).expect("as it was written down");
                    Ok(served)
                });
            }
            3..=5 if !self.world.is_linked() => self.world.link(random, &mut self.arrived),
            6..=12 => self.source.make(random),
            13..=15 => {
                let now = self.world.now;
                if let Some(session) = &mut self.world.exporter {
                    session.handle_ready(now);
                }
            }
            _ => self.world.shuffle(random, &mut self.source, &mut self.arrived),
        }
        self.look();
    }

    /// Every frame is complete and arrives once and in order; with [`SlowReaderPolicy::All`] without gaps.
    fn look(&mut self) {
        for frame in self.arrived.drain(..) {
            let (process, sequence) = (frame.moment_ns, frame.sequence);
            let data = frame.data.contiguous();
            assert!(*data == content(process, sequence, data.len())[..], "frame {sequence} of process {process}");
            match self.last {
                Some((before, last)) if before == process => match self.source.policy {
                    SlowReaderPolicy::All => assert_eq!(sequence, last + 1, "none is lost, none comes twice"),
                    SlowReaderPolicy::Latest => assert!(sequence > last, "{sequence} after {last}"),
                },
                Some((before, _)) => assert!(process > before, "an old process says nothing more"),
                None => {}
            }
            self.last = Some((process, sequence));
            self.count += 1;
        }
    }

    /// In the end everything that was made arrives, or the latest frame.
    pub fn settle(mut self, random: &mut Random) -> u32 {
        for _ in 0..6 {
            if !self.world.is_linked() {
                self.world.link(random, &mut self.arrived);
            }
            self.world.exchange(&mut self.source, &mut self.arrived);
            self.source.make(random);
            self.world.exchange(&mut self.source, &mut self.arrived);
            self.look();
        }
        assert_eq!(*self.world.remote.state(), AttachmentState::Open);
        assert_eq!(self.last, Some((self.source.process, self.source.made - 1)), "the last that was made is there");
        self.count
    }
}
