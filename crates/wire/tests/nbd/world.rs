//! An NBD server over a store in memory, whose answers come when the test releases them.

use std::sync::Arc;

use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockCompletion, BlockInfo, BlockOp, BlockRequest, BlockStore, BufferPool, ExtentList, Payload,
    PendingBlockRequests, SessionLimits, StoreError, StoreExtent,
};
use farbus_wire::nbd::message::{ProtocolViolation, command_flag, option, reply};
use farbus_wire::nbd::{NbdExportDescription, NbdServerConn};
use farbus_wire::snapshot::{self, SnapshotWriter};

use crate::client::{self, Reader};

/// Kind of the snapshots here.
const KIND: u16 = 7;

pub const LIMITS: SessionLimits = SessionLimits { receive_bytes: 4096, ..SessionLimits::DEFAULT };

pub const INFO: BlockInfo = BlockInfo {
    size_bytes: 256 << 10,
    block_bytes: 1,
    preferred_bytes: 4096,
    request_bytes_max: 16 << 10,
    is_read_only: false,
    trims: true,
};

pub fn exports(infos: &[(&str, BlockInfo)]) -> Arc<[NbdExportDescription]> {
    infos
        .iter()
        .map(|(name, info)| NbdExportDescription {
            name: (*name).into(),
            description: format!("the disk {name:?}"),
            info: *info,
            zeroes_fast: false,
        })
        .collect()
}

pub struct World {
    exports: Arc<[NbdExportDescription]>,
    pub conn: NbdServerConn,
    pub store: MemoryStore,
    pub pool: BufferPool,
    /// What the server sent and the test has not taken yet.
    pub output: Vec<u8>,
    /// Requests that are carried out and not answered yet.
    pub held: Vec<BlockCompletion>,
    /// The requests that the device got: operation, offset, length, and whether it has to be durable.
    pub requests: Vec<(BlockOp, u64, u32, bool)>,
    /// The device fails for ranges from here on.
    pub bad_from: Option<u64>,
}

impl World {
    pub fn new(exports: Arc<[NbdExportDescription]>) -> Self {
        let size = exports[0].info.size_bytes as usize;
        Self {
            conn: NbdServerConn::new(7, Arc::clone(&exports), &LIMITS),
            exports,
            store: MemoryStore::new((0..size).map(|at| (at / 7) as u8).collect()),
            pool: BufferPool::new(1 << 20),
            output: Vec::new(),
            held: Vec::new(),
            requests: Vec::new(),
            bad_from: None,
        }
    }

    /// A server past the handshake.
    pub fn begun(info: BlockInfo, is_structured: bool) -> Self {
        let mut world = Self::new(exports(&[("", info)]));
        world.hear(&3u32.to_be_bytes()).unwrap();
        if is_structured {
            world.hear(&client::option(option::STRUCTURED_REPLY, &[])).unwrap();
            let contexts = client::contexts("", &["base:allocation"]);
            world.hear(&client::option(option::SET_META_CONTEXT, &contexts)).unwrap();
        }
        world.hear(&client::option(option::GO, &client::go("", &[]))).unwrap();
        let bytes = world.listen();
        let mut reader = Reader(&bytes[18..]);
        if is_structured {
            assert_eq!(reader.option_reply(option::STRUCTURED_REPLY).0, reply::ACK);
            let context = (reply::META_CONTEXT, &b"\0\0\0\x01base:allocation"[..]);
            assert_eq!(reader.option_reply(option::SET_META_CONTEXT), context);
            assert_eq!(reader.option_reply(option::SET_META_CONTEXT).0, reply::ACK);
        }
        while reader.option_reply(option::GO).0 != reply::ACK {}
        assert!(reader.0.is_empty());
        assert_eq!(world.conn.export(), Some(0));
        world
    }

    /// Receives bytes; carries out their requests in order, and holds the answers back.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolViolation> {
        self.carry_out()?;
        while !bytes.is_empty() {
            if !self.conn.wants_input() {
                self.answer_all();
                self.listen_on();
                self.carry_out()?;
                continue;
            }
            let space = self.conn.receive_space();
            assert!(!space.is_empty(), "there is always room");
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.conn.handle_received(count);
            bytes = &bytes[count..];
            self.carry_out()?;
        }
        Ok(())
    }

    fn carry_out(&mut self) -> Result<(), ProtocolViolation> {
        while let Some(request) = self.conn.poll_request()? {
            self.carry_out_one(request);
        }
        Ok(())
    }

    fn carry_out_one(&mut self, request: BlockRequest) {
        assert_eq!(NbdServerConn::number_of(request.id), 7);
        self.requests.push((request.op, request.offset, request.length, request.is_durable));
        let (offset, length) = (request.offset, request.length as usize);
        let payload = request.payload.clone();
        let request = request.launch();
        if self.bad_from.is_some_and(|from| offset + length as u64 > from) {
            self.held.push(request.fail(StoreError::Medium));
            return;
        }
        let mut brought = Payload::Empty;
        match request.op {
            BlockOp::Read => {
                let mut bytes = self.pool.take(length);
                self.store.read_at(offset, &mut bytes).unwrap();
                brought = bytes.into();
            }
            BlockOp::Write => {
                assert_eq!(payload.len(), length);
                self.store.write_at(offset, &payload.contiguous()).unwrap();
            }
            BlockOp::Flush => assert_eq!((offset, length), (0, 0)),
            BlockOp::Map => brought = extents(offset, length as u64).to_payload(),
            BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => {
                self.store.discard(offset, length as u64).unwrap()
            }
        }
        self.held.push(request.answer(brought));
    }

    fn pending(&self) -> PendingBlockRequests {
        self.held.iter().map(|done| (done.id, (done.op, done.offset, done.length))).collect()
    }

    pub fn saved(&self) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(KIND);
        self.conn.save(&mut writer);
        writer.into_bytes()
    }

    fn restored(&self, saved: &[u8]) -> Result<NbdServerConn, ProtocolViolation> {
        let mut reader = snapshot::open(saved, KIND)?;
        let mut pending = self.pending();
        let conn = NbdServerConn::restore(Arc::clone(&self.exports), &LIMITS, &mut pending, &mut reader)?;
        reader.end("snapshot")?;
        match pending.is_empty() {
            true => Ok(conn),
            false => Err(ProtocolViolation::new("requests", pending.len() as u64, "all of them are its own")),
        }
    }

    /// Lets another process continue.
    pub fn move_on(&mut self) {
        self.conn = self.restored(&self.saved()).expect("it stood so");
    }

    /// Restores these bytes in another process: returns whether they are a connection, which then has to answer and to
    /// do no harm.
    pub fn go_on_with(&self, saved: &[u8]) -> bool {
        let Ok(mut conn) = self.restored(saved) else { return false };
        let mut pool = BufferPool::new(0);
        let done = |(id, (op, offset, length)): (_, (BlockOp, u64, u32))| {
            let brought = if op == BlockOp::Read { length as usize } else { 0 };
            let payload = vec![0; brought].into();
            BlockCompletion { id, op, offset, length, result: Ok(()), payload, spent: Payload::Empty }
        };
        self.pending().into_iter().for_each(|pending| conn.complete(done(pending), &mut pool));
        for _ in 0..1000 {
            let count = conn.poll_transmit().iter().map(|run| run.len()).sum();
            conn.handle_transmitted(count, &mut pool);
            match conn.poll_request() {
                Ok(Some(request)) => {
                    conn.complete(done((request.id, (request.op, request.offset, request.length))), &mut pool)
                }
                Ok(None) if count == 0 => break,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        conn.close();
        true
    }

    pub fn answer_all(&mut self) {
        while !self.held.is_empty() {
            self.answer(0);
        }
    }

    /// Answers the held request at `at`, and reads on if that released credit.
    pub fn answer(&mut self, at: usize) {
        let done = self.held.remove(at);
        self.conn.complete(done, &mut self.pool);
    }

    /// Takes what the server sends now.
    pub fn listen_on(&mut self) {
        while self.conn.backlog_bytes() > 0 {
            let runs: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            self.conn.handle_transmitted(runs.len(), &mut self.pool);
            self.output.extend(runs);
        }
    }

    /// All that the server sends until it has nothing more to send.
    pub fn listen(&mut self) -> Vec<u8> {
        loop {
            self.listen_on();
            self.carry_out().unwrap();
            if self.held.is_empty() && self.conn.backlog_bytes() == 0 {
                return std::mem::take(&mut self.output);
            }
            self.answer_all();
        }
    }
}

/// Bytes of an extent of the test's device: data and holes by turns.
pub const EXTENT_BYTES: u64 = 1024;

/// Where the holes of a range are said to be.
pub fn extents(offset: u64, length: u64) -> ExtentList {
    let (mut extents, mut at) = (ExtentList::default(), offset);
    while at < offset + length {
        let number = at / EXTENT_BYTES;
        let end = ((number + 1) * EXTENT_BYTES).min(offset + length);
        if !extents.push(StoreExtent { length: end - at, is_hole: number % 2 == 1 }) {
            break;
        }
        at = end;
    }
    extents
}

/// The flags that have a meaning with a command.
pub const FLAGS: [u16; 6] =
    [0, command_flag::FUA, command_flag::NO_HOLE, command_flag::DF, command_flag::FAST_ZERO, command_flag::REQ_ONE];
