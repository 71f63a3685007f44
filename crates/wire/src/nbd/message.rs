//! The bytes of NBD: checked parsing of what a client sends, and encoders that cannot fail. Big-endian throughout.

use farbus_model::{BlockInfo, ExtentList, StoreError};

pub use crate::usbip::message::ProtocolViolation;

/// The beginning of a server's greeting ("Newstyle negotiation").
pub const SERVER_MAGIC: &[u8; 8] = b"NBDMAGIC";
/// The rest of the greeting, and the beginning of a client's options.
pub const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
/// The beginning of every answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The beginning of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The beginning of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The beginning of every chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option's header: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a name at most ("Values": strings).
pub const NAME_BYTES_MAX: usize = 4096;

/// The metadata context that tells data from holes ("Metadata querying").
pub const CONTEXT: &str = "base:allocation";
/// Its number on a connection.
pub const CONTEXT_ID: u32 = 1;

/// Flags of the handshake, the server's and the client's alike.
pub mod handshake_flag {
    /// The fixed newstyle handshake: it goes on after an option that the server does not know.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No padding behind the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// The options of a client ("Option types").
pub mod option {
    /// Use this export; the server can refuse only by closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Encrypt the connection from here on; this server does not support it.
    pub const STARTTLS: u32 = 5;
    /// Describe this export.
    pub const INFO: u32 = 6;
    /// Use this export.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use headers with 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Answers to options ("Option reply types").
pub mod reply {
    /// Success, or the end of a list.
    pub const ACK: u32 = 1;
    /// One export of a list: its name and description.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    /// The server does not know this option.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option's data is malformed, or the option comes at the wrong time.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The option has more data than the server takes.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// The kinds of information about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// The export's name, which the server uses for it.
    pub const NAME: u16 = 1;
    /// A sentence for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum size of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export, sent before transmission begins ("Transmission flags").
pub mod flag {
    /// The flags field is valid.
    pub const HAS_FLAGS: u16 = 1;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// DF is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what was answered on all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// FAST_ZERO is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The operation of a request ("Request types").
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range.
    pub const WRITE: u16 = 1;
    /// End the connection; there is no reply.
    pub const DISC: u16 = 2;
    /// Make earlier writes durable.
    pub const FLUSH: u16 = 3;
    /// Declare a range unneeded.
    pub const TRIM: u16 = 4;
    /// Make a range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell of a range where its holes are.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of one request ("Command flags").
pub mod command_flag {
    /// The change must be durable before the answer.
    pub const FUA: u16 = 1;
    /// Keep the space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Tell of one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// "Structured reply types".
pub mod chunk {
    /// The last one.
    pub const FLAG_DONE: u16 = 1;
    /// A chunk without data, to end a reply.
    pub const NONE: u16 = 0;
    /// Bytes that were read, with the offset at which they begin.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The request failed: an error number and a text.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error with its offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The flags of an extent in [`CONTEXT`] ("`base:allocation` metadata context").
pub mod state {
    /// It takes no space.
    pub const HOLE: u32 = 1;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Why a request failed, as the protocol numbers it ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdError {
    /// Not permitted: the export is read-only.
    NotPermitted,
    /// The medium failed.
    Medium,
    /// Malformed, out of range, or not supported.
    Invalid,
    /// No space, or past the end.
    NoSpace,
    /// Not possible as fast as asked.
    NotSupported,
    /// The server is shutting down.
    ShuttingDown,
}

impl NbdError {
    /// The wire's number.
    pub const fn code(self) -> u32 {
        match self {
            NbdError::NotPermitted => 1,
            NbdError::Medium => 5,
            NbdError::Invalid => 22,
            NbdError::NoSpace => 28,
            NbdError::NotSupported => 95,
            NbdError::ShuttingDown => 108,
        }
    }

    /// The NBD error of a store's error. A store that is gone or unreachable does not end the server: its other exports
    /// continue.
    pub const fn of(error: StoreError) -> Self {
        match error {
            StoreError::Medium | StoreError::Gone | StoreError::Lost => NbdError::Medium,
            StoreError::NoSpace => NbdError::NoSpace,
            StoreError::ReadOnly => NbdError::NotPermitted,
            StoreError::Invalid => NbdError::Invalid,
        }
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// The bits of [`command_flag`] that are set.
    pub flags: u16,
    /// The operation, one of [`command`].
    pub command: u16,
    /// The client's name for it, echoed.
    pub cookie: u64,
    /// The start of the range, bytes.
    pub offset: u64,
    /// The length of the range, bytes.
    pub length: u32,
}

impl NbdRequest {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`ProtocolViolation`] for a wrong magic: the next message cannot be found.
    pub fn decode(b: &[u8; REQUEST_BYTES]) -> Result<Self, ProtocolViolation> {
        let magic = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if magic != REQUEST_MAGIC {
            return Err(ProtocolViolation::new("request magic", u64::from(magic), "a request begins with 0x25609513"));
        }
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| b[at + i]));
        Ok(Self {
            flags: u16::from_be_bytes([b[4], b[5]]),
            command: u16::from_be_bytes([b[6], b[7]]),
            cookie: long(8),
            offset: long(16),
            length: u32::from_be_bytes([b[24], b[25], b[26], b[27]]),
        })
    }

    /// The header's bytes, as a client sends them.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut b = [0; REQUEST_BYTES];
        b[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        b[4..6].copy_from_slice(&self.flags.to_be_bytes());
        b[6..8].copy_from_slice(&self.command.to_be_bytes());
        b[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        b[16..24].copy_from_slice(&self.offset.to_be_bytes());
        b[24..].copy_from_slice(&self.length.to_be_bytes());
        b
    }
}

/// An option's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptionHeader {
    /// The option's number, one of [`option`] or one that is not known.
    pub option: u32,
    /// Bytes that follow.
    pub length: u32,
}

impl NbdOptionHeader {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`ProtocolViolation`] for a wrong magic.
    pub fn decode(b: &[u8; OPTION_HEADER_BYTES]) -> Result<Self, ProtocolViolation> {
        if &b[..8] != OPTION_MAGIC {
            let magic = u64::from_be_bytes(std::array::from_fn(|i| b[i]));
            return Err(ProtocolViolation::new("option magic", magic, "an option begins with IHAVEOPT"));
        }
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Ok(Self { option: word(8), length: word(12) })
    }
}

/// The server's greeting.
pub fn greeting() -> [u8; 18] {
    let mut b = [0; 18];
    b[..8].copy_from_slice(SERVER_MAGIC);
    b[8..16].copy_from_slice(OPTION_MAGIC);
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    b[16..].copy_from_slice(&flags.to_be_bytes());
    b
}

/// The header of an answer to an option; `length` bytes follow.
pub fn option_reply(option: u32, kind: u32, length: usize) -> [u8; 20] {
    let mut b = [0; 20];
    b[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    b[8..12].copy_from_slice(&option.to_be_bytes());
    b[12..16].copy_from_slice(&kind.to_be_bytes());
    b[16..].copy_from_slice(&(length as u32).to_be_bytes());
    b
}

/// A simple reply; error 0 is success, after which a read's bytes follow.
pub fn simple_reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut b = [0; 16];
    b[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    b[4..8].copy_from_slice(&error.to_be_bytes());
    b[8..].copy_from_slice(&cookie.to_be_bytes());
    b
}

/// The header of a chunk; `length` bytes follow.
pub fn chunk_header(cookie: u64, flags: u16, kind: u16, length: usize) -> [u8; 20] {
    let mut b = [0; 20];
    b[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    b[4..6].copy_from_slice(&flags.to_be_bytes());
    b[6..8].copy_from_slice(&kind.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b[16..].copy_from_slice(&(length as u32).to_be_bytes());
    b
}

/// The header of a data chunk, with its offset; `length` bytes of data follow.
pub fn data_chunk(cookie: u64, flags: u16, offset: u64, length: usize) -> [u8; 28] {
    let mut b = [0; 28];
    b[..20].copy_from_slice(&chunk_header(cookie, flags, chunk::OFFSET_DATA, length + 8));
    b[20..].copy_from_slice(&offset.to_be_bytes());
    b
}

/// The chunk that tells of these extents, the last of its reply; of the first one only if `is_one`.
pub fn status_chunk(cookie: u64, extents: &ExtentList, is_one: bool) -> Vec<u8> {
    let mut bytes = CONTEXT_ID.to_be_bytes().to_vec();
    for extent in extents.iter().take(if is_one { 1 } else { ExtentList::MAX }) {
        // It tells of a request's range, whose length has 32 bits.
        bytes.extend((extent.length as u32).to_be_bytes());
        bytes.extend(if extent.is_hole { state::HOLE | state::ZERO } else { 0 }.to_be_bytes());
    }
    [&chunk_header(cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, bytes.len())[..], &bytes].concat()
}

/// The flags that go with every answer about an export ("Transmission flags").
pub const fn transmission_flags(info: &BlockInfo, is_structured: bool) -> u16 {
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN;
    flags |= if info.is_read_only {
        flag::READ_ONLY
    } else {
        let trim = if info.trims { flag::SEND_TRIM } else { 0 };
        flag::SEND_FUA | trim | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
    };
    if is_structured { flags | flag::SEND_DF } else { flags }
}
