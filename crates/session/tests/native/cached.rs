//! The cache layers of a remote disk, on the importer's side, over the disk of that world.

use std::sync::{Arc, Mutex};

use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BufferPool, CompletionQueue, Instant, PendingBlockRequests,
};
use farbus_session::ProtocolViolation;
use farbus_session::block::{AHEAD_KIND, BEHIND_KIND, ReadAheadLayer, WriteBackLayer};
use farbus_session::native::RemoteBlock;
use farbus_session::snapshot;

/// The device below the layers: its requests wait here until the test passes them to the remote disk.
#[derive(Clone, Default)]
struct Shore(Arc<Mutex<Ships>>);

#[derive(Default)]
struct Ships {
    out: Vec<BlockInFlight>,
    home: Vec<BlockCompletion>,
    epoch: Option<u64>,
}

struct Pier(Shore, BlockInfo);

impl BlockDevice for Pier {
    fn info(&self) -> &BlockInfo {
        &self.1
    }

    fn submit(&mut self, _now: Instant, request: BlockInFlight, _done: &mut CompletionQueue<BlockCompletion>) {
        self.0.0.lock().unwrap().out.push(request);
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.0.0.lock().unwrap().home.drain(..).for_each(|answer| done.push(answer));
    }

    fn epoch(&self) -> Option<u64> {
        self.0.0.lock().unwrap().epoch
    }

    fn save(&mut self, _now: Instant) -> Option<Vec<u8>> {
        Some(Vec::new())
    }
}

/// Both layers, as an attachment has them.
pub struct Cached {
    shore: Shore,
    top: ReadAheadLayer<WriteBackLayer<Pier>>,
    info: BlockInfo,
}

impl Cached {
    pub fn new(info: BlockInfo) -> Self {
        let shore = Shore::default();
        shore.0.lock().unwrap().epoch = Some(0);
        Self { top: ReadAheadLayer::new(WriteBackLayer::new(Pier(shore.clone(), info))), shore, info }
    }

    pub fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.top.submit(now, request, done);
    }

    /// Passes requests to the disk and answers back, until nothing moves.
    pub fn pump(
        &mut self,
        now: Instant,
        disk: &mut RemoteBlock,
        below: &mut CompletionQueue<BlockCompletion>,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        loop {
            let out = {
                let mut ships = self.shore.0.lock().unwrap();
                ships.epoch = disk.epoch();
                std::mem::take(&mut ships.out)
            };
            let is_quiet = out.is_empty() && below.is_empty();
            out.into_iter().for_each(|request| disk.submit(now, request, below));
            self.shore.0.lock().unwrap().home.extend(std::iter::from_fn(|| below.pop()));
            self.top.handle_ready(now, done);
            if is_quiet && self.shore.0.lock().unwrap().out.is_empty() {
                return;
            }
        }
    }

    /// The snapshot of the layers for another process; the disk is saved separately.
    pub fn save(&mut self, now: Instant) -> Vec<u8> {
        self.top.save(now).expect("it can go on elsewhere")
    }

    /// Restores the layers over `disk`, with the requests that it has; returns the requests that the layers have to
    /// answer.
    pub fn restore(&self, saved: &[u8], disk: &RemoteBlock) -> Result<(Self, PendingBlockRequests), ProtocolViolation> {
        let shore = Shore::default();
        shore.0.lock().unwrap().epoch = disk.epoch();
        let pier = Pier(shore.clone(), self.info);
        let below: PendingBlockRequests =
            disk.requests().map(|request| (request.id, (request.op, request.offset, request.length))).collect();
        let mut reader = snapshot::open(saved, AHEAD_KIND)?;
        let behind = |bytes: &[u8]| {
            let mut reader = snapshot::open(bytes, BEHIND_KIND)?;
            let (mut behind, pending) =
                WriteBackLayer::restore(&mut reader, |_| Ok::<_, ProtocolViolation>((pier, below)))?;
            match reader.end("behind") {
                Ok(()) => Ok((behind, pending)),
                Err(reject) => {
                    behind.leave();
                    Err(reject)
                }
            }
        };
        let (top, pending) = ReadAheadLayer::restore(&mut reader, behind)?;
        let mut this = Self { shore, top, info: self.info };
        match reader.end("ahead") {
            Ok(()) => Ok((this, pending)),
            Err(reject) => {
                this.leave();
                Err(reject)
            }
        }
    }

    pub fn leave(&mut self) {
        self.top.leave();
    }
}

pub fn nothing() -> CompletionQueue<BlockCompletion> {
    CompletionQueue::new(BufferPool::new(1 << 20))
}
