//! USB/IP 0x0111 as bytes, written a second time on purpose.
//!
//! The benchmarks are also a check: if they shared `farbus-wire`, they would not notice a mistake in it. Only what a
//! load generator and a source/sink server need is here.

use std::io::{self, Read, Write};

use anyhow::{Context, Result, bail, ensure};

pub const VERSION: u16 = 0x0111;
pub const OP_REQ_IMPORT: u16 = 0x8003;
pub const OP_REP_IMPORT: u16 = 0x0003;
pub const CMD_SUBMIT: u32 = 1;
pub const CMD_UNLINK: u32 = 2;
pub const RET_SUBMIT: u32 = 3;
pub const RET_UNLINK: u32 = 4;

/// Every command and reply after the import starts with a header of this many bytes.
pub const HEADER_BYTES: usize = 48;
/// The description of a device that follows the status of an import reply.
pub const DEVICE_BYTES: usize = 312;

/// SET_CONFIGURATION(1), the request after which the endpoints of a device exist.
pub const SET_CONFIGURATION_1: [u8; 8] = [0x00, 0x09, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00];
/// GET_STATUS of the device: the smallest control request with a data stage.
pub const GET_STATUS: [u8; 8] = [0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbipDirection {
    Out,
    In,
}

impl UsbipDirection {
    pub const BOTH: [Self; 2] = [Self::In, Self::Out];

    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "OUT",
            Self::In => "IN",
        }
    }
}

/// One transfer to submit: everything of a CMD_SUBMIT but its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTemplate {
    pub endpoint: u8,
    pub direction: UsbipDirection,
    pub setup: [u8; 8],
    pub bytes: usize,
    /// Packets of equal length, if the endpoint is isochronous; 0 for every other.
    pub packets: usize,
}

/// The description of an isochronous packet: offset, length, actual length, status.
const PACKET_BYTES: usize = 16;

impl TransferTemplate {
    /// A transfer on endpoint 1 of the source/sink device, which is bulk.
    pub fn bulk(direction: UsbipDirection, bytes: usize) -> Self {
        Self { endpoint: 1, direction, setup: [0; 8], bytes, packets: 0 }
    }

    /// A transfer on endpoint 3 of the source/sink device, which is isochronous.
    pub fn isochronous(packets: usize, packet_bytes: usize) -> Self {
        let bytes = packets * packet_bytes;
        Self { endpoint: 3, direction: UsbipDirection::In, setup: [0; 8], bytes, packets }
    }

    pub fn control(direction: UsbipDirection, setup: [u8; 8], bytes: usize) -> Self {
        Self { endpoint: 0, direction, setup, bytes, packets: 0 }
    }

    /// The bytes of the header; [`set_seqnum`] then makes each use of it a different request.
    pub fn header(&self, devid: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let direction = match self.direction {
            UsbipDirection::Out => 0,
            UsbipDirection::In => 1,
        };
        // USBIP_URB_DIR_IN is what Linux sends for IN; nothing else is asked for.
        let mut transfer_flags: u32 = if self.direction == UsbipDirection::In { 0x200 } else { 0 };
        if self.packets > 0 {
            // URB_ISO_ASAP: in the next interval that is free.
            transfer_flags |= 0x2;
            header[32..36].copy_from_slice(&(self.packets as u32).to_be_bytes());
            header[36..40].copy_from_slice(&1_u32.to_be_bytes());
        }
        let words = [CMD_SUBMIT, 0, devid, direction, u32::from(self.endpoint), transfer_flags, self.bytes as u32];
        for (word, at) in words.iter().zip((0..).step_by(4)) {
            header[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        header[40..48].copy_from_slice(&self.setup);
        header
    }

    /// Bytes that follow a command's header on the wire.
    pub fn bytes_out(&self) -> usize {
        PACKET_BYTES * self.packets + if self.direction == UsbipDirection::Out { self.bytes } else { 0 }
    }

    /// What follows a command's header on the wire: zeros, and the packets.
    pub fn payload_out(&self) -> Vec<u8> {
        let mut payload = vec![0; self.bytes_out()];
        let length = self.bytes / self.packets.max(1);
        let first = payload.len() - PACKET_BYTES * self.packets;
        for (at, packet) in payload[first..].chunks_exact_mut(PACKET_BYTES).enumerate() {
            packet[..4].copy_from_slice(&((at * length) as u32).to_be_bytes());
            packet[4..8].copy_from_slice(&(length as u32).to_be_bytes());
        }
        payload
    }

    /// Bytes that follow the header of a successful reply on the wire.
    pub fn bytes_in(&self) -> usize {
        PACKET_BYTES * self.packets + if self.direction == UsbipDirection::In { self.bytes } else { 0 }
    }
}

pub fn set_seqnum(header: &mut [u8], seqnum: u32) {
    header[4..8].copy_from_slice(&seqnum.to_be_bytes());
}

/// The big-endian word at `offset`.
pub fn word(header: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(header[offset..offset + 4].try_into().expect("four bytes"))
}

/// Imports `busid` and returns the device id that commands have to carry.
pub fn import(stream: &mut (impl Read + Write), busid: &str) -> Result<u32> {
    let mut request = [0; 40];
    request[..2].copy_from_slice(&VERSION.to_be_bytes());
    request[2..4].copy_from_slice(&OP_REQ_IMPORT.to_be_bytes());
    request[8..8 + busid.len()].copy_from_slice(busid.as_bytes());
    stream.write_all(&request)?;

    let mut head = [0; 8];
    stream.read_exact(&mut head).context("the import was not answered")?;
    let (version, code, status) =
        (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]), word(&head, 4));
    ensure!(version == VERSION && code == OP_REP_IMPORT, "not an import reply: {head:02x?}");
    ensure!(status == 0, "import of {busid} refused with status {status}");

    let mut device = [0; DEVICE_BYTES];
    stream.read_exact(&mut device).context("the device description is cut short")?;
    let named = device[256..288].split(|&byte| byte == 0).next().unwrap_or_default();
    ensure!(named == busid.as_bytes(), "asked for {busid}, was given {}", named.escape_ascii());
    Ok(word(&device, 288) << 16 | word(&device, 292))
}

/// Parses a stream of replies, wherever it is cut.
///
/// A reply does not say whether data follows it (its direction is zero on the wire), so the reader has to know the
/// transfers; here all transfers in flight are alike and on one endpoint, and are therefore answered in order.
pub struct ReplyParser {
    transfer: TransferTemplate,
    expected_seqnum: u32,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    payload_bytes_left: usize,
}

impl ReplyParser {
    pub fn new(transfer: TransferTemplate, first_seqnum: u32) -> Self {
        Self {
            transfer,
            expected_seqnum: first_seqnum,
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            payload_bytes_left: 0,
        }
    }

    /// Takes the next bytes of the stream and returns how many replies they completed.
    ///
    /// # Errors
    /// At the first reply that is not the success that was expected next.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<usize> {
        let mut completed = 0;
        loop {
            let skipped = bytes.len().min(self.payload_bytes_left);
            self.payload_bytes_left -= skipped;
            bytes = &bytes[skipped..];
            if self.header_bytes == HEADER_BYTES {
                if self.payload_bytes_left > 0 {
                    return Ok(completed);
                }
                self.header_bytes = 0;
                completed += 1;
            }

            let taken = bytes.len().min(HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..self.header_bytes + taken].copy_from_slice(&bytes[..taken]);
            self.header_bytes += taken;
            bytes = &bytes[taken..];
            if self.header_bytes < HEADER_BYTES {
                return Ok(completed);
            }
            check_reply(&self.header, &self.transfer, self.expected_seqnum)?;
            self.expected_seqnum = self.expected_seqnum.wrapping_add(1);
            self.payload_bytes_left = self.transfer.bytes_in();
        }
    }
}

/// Refuses every reply except one that `transfer` succeeded in full.
pub fn check_reply(header: &[u8; HEADER_BYTES], transfer: &TransferTemplate, seqnum: u32) -> Result<()> {
    let (command, replied, status, actual_length) =
        (word(header, 0), word(header, 4), word(header, 20).cast_signed(), word(header, 24));
    if command != RET_SUBMIT {
        bail!("expected RET_SUBMIT, got command {command:#x}");
    }
    if replied != seqnum {
        bail!("expected the reply to {seqnum}, got the one to {replied}");
    }
    if status != 0 {
        bail!("request {seqnum} ({transfer:?}) failed with status {status}");
    }
    let packet_errors = word(header, 36);
    if transfer.packets > 0 && packet_errors > 0 {
        bail!("request {seqnum} lost {packet_errors} of {} packets", transfer.packets);
    }
    if actual_length as usize != transfer.bytes {
        bail!("request {seqnum} moved {actual_length} bytes instead of {}", transfer.bytes);
    }
    Ok(())
}

/// One blocking request and reply; `reply` has to hold a header and the data asked for.
pub fn exchange(
    stream: &mut (impl Read + Write),
    request: &[u8],
    reply: &mut [u8],
    transfer: &TransferTemplate,
    seqnum: u32,
) -> Result<()> {
    stream.write_all(request)?;
    // Asks for no more than is due, like the bare loop for comparison.
    let (reply, _) = reply.split_at_mut(HEADER_BYTES + transfer.bytes_in());
    let mut received = 0;
    // Not `read_exact` of the whole: a refusal has no data, and waiting for it would hang.
    while received < HEADER_BYTES {
        received += read_some(stream, &mut reply[received..])?;
    }
    check_reply(reply.first_chunk().expect("a header"), transfer, seqnum)?;
    while received < reply.len() {
        received += read_some(stream, &mut reply[received..])?;
    }
    Ok(())
}

/// A read where the end of the stream is an error.
pub fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        received => Ok(received),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_100: TransferTemplate =
        TransferTemplate { endpoint: 1, direction: UsbipDirection::In, setup: [0; 8], bytes: 100, packets: 0 };
    const OUT_100: TransferTemplate = TransferTemplate { direction: UsbipDirection::Out, ..IN_100 };

    fn reply(seqnum: u32, status: i32, actual_length: u32, payload_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        for (at, word) in [(0, RET_SUBMIT), (4, seqnum), (20, status.cast_unsigned()), (24, actual_length)] {
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        // A payload that looks like headers detects a parser that lost its place.
        bytes.extend((0..payload_bytes).map(|at| if at % 4 == 3 { RET_SUBMIT as u8 } else { 0 }));
        bytes
    }

    #[test]
    fn a_submit_is_the_bytes_the_protocol_document_shows() {
        let mut header = TransferTemplate { bytes: 0x12345, ..IN_100 }.header(0x0001_0002);
        set_seqnum(&mut header, 7);
        let words: Vec<u32> = (0..48).step_by(4).map(|at| word(&header, at)).collect();
        assert_eq!(words, [CMD_SUBMIT, 7, 0x0001_0002, 1, 1, 0x200, 0x12345, 0, 0, 0, 0, 0]);
        let header = TransferTemplate::control(UsbipDirection::Out, SET_CONFIGURATION_1, 0).header(1);
        assert_eq!(header[40..], SET_CONFIGURATION_1);
    }

    #[test]
    fn an_isochronous_submit_has_its_packets_behind_the_header() {
        let transfer = TransferTemplate::isochronous(2, 100);
        let header = transfer.header(1);
        let words: Vec<u32> = (12..40).step_by(4).map(|at| word(&header, at)).collect();
        assert_eq!(words, [1, 3, 0x202, 200, 0, 2, 1], "direction, endpoint, flags, length, frame, packets, interval");
        let payload = transfer.payload_out();
        let words: Vec<u32> = (0..32).step_by(4).map(|at| word(&payload, at)).collect();
        assert_eq!(words, [0, 100, 0, 0, 100, 100, 0, 0]);
        // The reply has the data, then the packets.
        let mut lost = reply(1, 0, 200, 200 + 32);
        let mut replies = ReplyParser::new(transfer, 1);
        assert_eq!(replies.feed(&lost).expect("a good reply"), 1);
        lost[39] = 1;
        assert!(
            ReplyParser::new(transfer, 1).feed(&lost).expect_err("a lost packet").to_string().contains("lost 1 of 2")
        );
    }

    #[test]
    fn replies_are_the_same_wherever_the_stream_is_cut() {
        for (transfer, payload) in [(IN_100, 100), (OUT_100, 0)] {
            let stream: Vec<u8> = (5..9).flat_map(|seqnum| reply(seqnum, 0, 100, payload)).collect();
            for chunk_bytes in 1..=stream.len() {
                let mut replies = ReplyParser::new(transfer, 5);
                let completed: usize =
                    stream.chunks(chunk_bytes).map(|chunk| replies.feed(chunk).expect("good replies")).sum();
                assert_eq!(completed, 4, "cut every {chunk_bytes} bytes");
            }
        }
    }

    #[test]
    fn a_reply_counts_only_when_its_last_byte_has_come() {
        let stream = reply(1, 0, 100, 100);
        let mut replies = ReplyParser::new(IN_100, 1);
        assert_eq!(replies.feed(&stream[..147]).expect("a good start"), 0);
        assert_eq!(replies.feed(&stream[147..]).expect("a good end"), 1);
    }

    #[test]
    fn a_wrong_reply_is_refused_by_name() {
        let refusal = |bytes: Vec<u8>| ReplyParser::new(IN_100, 1).feed(&bytes).expect_err("a wrong reply").to_string();
        assert!(refusal(reply(2, 0, 100, 100)).contains("got the one to 2"));
        assert!(refusal(reply(1, -32, 0, 0)).contains("status -32"));
        assert!(refusal(reply(1, 0, 99, 99)).contains("moved 99 bytes"));
        let mut unlinked = reply(1, 0, 100, 0);
        unlinked[3] = RET_UNLINK as u8;
        assert!(refusal(unlinked).contains("command 0x4"));
    }

    /// A stream that answers with given bytes, one at a time, whatever is sent.
    struct Canned(std::collections::VecDeque<u8>);

    impl Read for Canned {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok(self.0.pop_front().map_or(0, |byte| {
                buffer[0] = byte;
                1
            }))
        }
    }

    impl Write for Canned {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_exchange_takes_a_reply_in_pieces_and_does_not_wait_for_the_data_of_a_refusal() {
        let exchange = |bytes: Vec<u8>| {
            exchange(&mut Canned(bytes.into()), &[], &mut [0; 148], &IN_100, 1).map_err(|error| error.to_string())
        };
        assert_eq!(exchange(reply(1, 0, 100, 100)), Ok(()));
        assert!(exchange(reply(1, -71, 0, 0)).expect_err("a refusal").contains("status -71"));
        assert!(exchange(reply(1, 0, 100, 50)).expect_err("a cut stream").contains("closed"));
    }

    #[test]
    fn an_import_gives_the_device_id_or_the_reason_why_not() {
        let answer = |status: u32, busid: &str| {
            let mut bytes = vec![1, 0x11, 0, 3];
            bytes.extend(status.to_be_bytes());
            let mut device = [0; DEVICE_BYTES];
            device[256..256 + busid.len()].copy_from_slice(busid.as_bytes());
            device[288..296].copy_from_slice(&[0, 0, 0, 3, 0, 0, 0, 9]);
            bytes.extend(device);
            import(&mut Canned(bytes.into()), "1-1").map_err(|error| error.to_string())
        };
        assert_eq!(answer(0, "1-1"), Ok(0x0003_0009));
        assert!(answer(4, "").expect_err("a refusal").contains("status 4"));
        assert!(answer(0, "1-2").expect_err("another device").contains("was given 1-2"));
    }
}
