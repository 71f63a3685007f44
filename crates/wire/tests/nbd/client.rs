//! An NBD client that can send anything, and that parses the server's answers strictly.

use std::collections::BTreeMap;

use farbus_wire::nbd::message::{
    CHUNK_MAGIC, NbdRequest, OPTION_MAGIC, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, chunk, command,
};

pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The data of GO and INFO.
pub fn go(name: &str, information: &[u16]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
    data.extend((information.len() as u16).to_be_bytes());
    information.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let mut data = [text(name), (queries.len() as u32).to_be_bytes().to_vec()].concat();
    queries.iter().for_each(|query| data.extend(text(query)));
    data
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    NbdRequest { flags, command, cookie, offset, length }.to_bytes().to_vec()
}

pub fn write(flags: u16, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [request(command::WRITE, flags, cookie, offset, data.len() as u32), data.to_vec()].concat()
}

/// Reads bytes from their front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count);
        self.0 = rest;
        front
    }

    pub fn half(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    /// The answer to an option: its kind and data.
    pub fn option_reply(&mut self, option: u32) -> (u32, &'a [u8]) {
        assert_eq!(self.long(), OPTION_REPLY_MAGIC);
        assert_eq!(self.word(), option);
        let (kind, length) = (self.word(), self.word());
        (kind, self.take(length as usize))
    }
}

/// A request whose answer is awaited.
#[derive(Clone, Debug)]
pub struct AwaitedRequest {
    pub command: u16,
    pub offset: u64,
    pub length: usize,
    /// Whether the answer has to be in one chunk.
    pub is_whole: bool,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done(Vec<u8>),
    Failed(u32),
}

/// Parses all replies in `bytes`, each of which has to be complete.
pub fn replies(bytes: &[u8], awaited: &BTreeMap<u64, AwaitedRequest>, is_structured: bool) -> BTreeMap<u64, Answer> {
    let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
    let mut open: BTreeMap<u64, (Vec<u8>, Vec<bool>, u32)> = BTreeMap::new();
    let mut from = Reader(bytes);
    while !from.0.is_empty() {
        let magic = from.word();
        if magic == SIMPLE_REPLY_MAGIC {
            let (error, cookie) = (from.word(), from.long());
            let request = &awaited[&cookie];
            let is_read = request.command == command::READ;
            assert!(!is_read || !is_structured, "a read is answered in chunks once that was agreed");
            let data = if is_read && error == 0 { from.take(request.length).to_vec() } else { Vec::new() };
            let answer = if error == 0 { Answer::Done(data) } else { Answer::Failed(error) };
            assert_eq!(answers.insert(cookie, answer), None, "one answer each");
            continue;
        }
        assert_eq!(magic, CHUNK_MAGIC);
        assert!(is_structured, "no chunks unless that was agreed");
        let (flags, kind, cookie, length) = (from.half(), from.half(), from.long(), from.word() as usize);
        let mut data = Reader(from.take(length));
        let request = &awaited[&cookie];
        assert!(!answers.contains_key(&cookie), "nothing comes after the last chunk");
        let (bytes, seen, chunks) =
            open.entry(cookie).or_insert_with(|| (vec![0; request.length], vec![false; request.length], 0));
        *chunks += 1;
        let mut error = None;
        match kind {
            chunk::NONE => assert_eq!((length, flags), (0, chunk::FLAG_DONE)),
            chunk::OFFSET_DATA => {
                let at = (data.long() - request.offset) as usize;
                assert!(!data.0.is_empty(), "a chunk of data has some");
                assert!(at + data.0.len() <= request.length, "data lies in what was asked");
                let covered = &mut seen[at..][..data.0.len()];
                assert!(covered.iter().all(|seen| !seen), "no byte comes twice");
                covered.fill(true);
                bytes[at..][..data.0.len()].copy_from_slice(data.0);
                assert!(!request.is_whole || data.0.len() == request.length, "DF: one piece");
            }
            chunk::BLOCK_STATUS => {
                assert_eq!((request.command, data.word(), flags), (command::BLOCK_STATUS, 1, chunk::FLAG_DONE));
                assert!(!data.0.is_empty() && data.0.len() % 8 == 0, "it tells of whole extents");
                answers.insert(cookie, Answer::Done(data.0.to_vec()));
                open.remove(&cookie);
                continue;
            }
            chunk::ERROR => {
                error = Some(data.word());
                let length = data.half();
                assert_eq!(data.0.len(), usize::from(length));
                assert!(std::str::from_utf8(data.0).is_ok());
            }
            other => panic!("chunk {other}"),
        }
        if flags & chunk::FLAG_DONE != 0 {
            let (bytes, seen, _) = open.remove(&cookie).unwrap();
            let answer = match error {
                Some(error) => Answer::Failed(error),
                None => {
                    assert!(seen.iter().all(|seen| *seen), "a read that succeeded is whole");
                    Answer::Done(bytes)
                }
            };
            answers.insert(cookie, answer);
        }
    }
    assert!(open.is_empty(), "the last chunk says so");
    answers
}
