//! What paired hosts ask each other about devices: `farbus-control/1`, a line of JSON each way, on an encrypted link.
//!
//! ```text
//! {"ask":"list"}
//! {"devices":[{"name":"disk","bus_id":"1-1","title":"…","speed":"high","ids":"1d6b:0104","state":"available"}]}
//! {"ask":"explain","device":"disk","reason":"nightly backup"}
//! "done"
//! {"ask":"status"}
//! {"status":{"name":"lab3","farbus":"0.2.0","up_s":3600,"devices":[…]}}
//! {"ask":"lease","device":"disk","act":{"do":"request","for_s":7200,"waits":true}}
//! {"lease":{"device":"disk","state":"held","lease":{"host":"desk","left_s":7200.0,…}}}
//! {"ask":"topology","said":"666275700101000002000000…"}
//! {"topology":"666275700102000001000000…"}
//! ```

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use farbus_control::device::DeviceStatus;
use farbus_control::failure::FailureReport;
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_io_net::link::{BoottimeClock, Link, PollInterest, wait};
use serde::{Deserialize, Serialize};

/// The longest question.
const QUESTION_BYTES_MAX: usize = 256 << 10;
/// The longest answer: a list of 126 devices has about 40 KiB, and 200 KiB with the longest labels and comments.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How much is received at a time: as much as a record of TLS has.
const PIECE_BYTES: usize = 16 << 10;

/// A question of a paired host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum HostQuestion {
    /// Asks which devices the asking host may use, and who uses them.
    List,
    /// Asks for the status of the host, as far as the asking host may see it.
    Status,
    /// Tells how far the asking host is with the links between the two ([`farbus_realtime::topology::party`]), in
    /// hexadecimal digits, and asks for the same.
    Topology {
        /// All that the asking host has to say.
        #[serde(rename = "said")]
        message: String,
    },
    /// Asks for something about the lease of a device.
    Lease {
        /// Name or bus id.
        device: String,
        /// What the host asks for: to request, prolong or give back the lease, for example.
        act: LeaseAct,
    },
    /// Tells why the asking host needs a device that it uses.
    Explain {
        /// Name or bus id.
        device: String,
        /// The reason, a few words.
        reason: String,
    },
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostAnswer {
    /// The devices that the asking host may use.
    Devices(Vec<DeviceStatus>),
    /// The status of the answering host.
    Status(HostStatus),
    /// How far the answering host is with the links between the two, in hexadecimal digits.
    Topology(String),
    /// What became of a question about a lease.
    Lease(LeaseAnswer),
    /// The answering host noted the reason of a [`HostQuestion::Explain`].
    Done,
    /// Refused, with the reason.
    Refused(String),
    /// Not done, with the kind of the failure.
    Failed(FailureReport),
}

/// The status of a host, as far as the asking host may see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// The name that the host gives itself.
    pub name: String,
    /// The version of its farbus.
    pub farbus: String,
    /// For how long its process has been serving, seconds.
    pub up_s: u64,
    /// The devices that the asking host may use. Links and traffic are those of the asking host's own sessions.
    pub devices: Vec<DeviceStatus>,
}

/// The beginning of the refusal of a host that does not know a question, in every release.
pub const NOT_A_QUESTION: &str = "not a question: ";

/// Lines of JSON on a link.
pub struct JsonLineChannel<'a> {
    link: &'a Link,
    time_max: Duration,
    bytes_max: usize,
    received: LineBuffer,
}

/// Bytes that were received, as lines. Each byte is looked at once, however long its line is.
#[derive(Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// How many of the bytes are known to be in a line that has not ended.
    searched: usize,
    /// How many bytes were looked at in all.
    #[cfg(test)]
    looked_at: usize,
}

impl LineBuffer {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next whole line, with its end.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        let new = &self.bytes[self.searched..];
        let end = new.iter().position(|&byte| byte == b'\n');
        #[cfg(test)]
        {
            self.looked_at += end.map_or(new.len(), |end| end + 1);
        }
        let Some(end) = end else {
            self.searched = self.bytes.len();
            return None;
        };
        let rest = self.bytes.split_off(self.searched + end + 1);
        self.searched = 0;
        Some(std::mem::replace(&mut self.bytes, rest))
    }
}

impl<'a> JsonLineChannel<'a> {
    /// Receives questions and sends answers on `link`. The peer may take `time_max` for each.
    ///
    /// # Errors
    /// The socket refuses its timeout.
    pub fn over(link: &'a Link, time_max: Duration) -> io::Result<Self> {
        link.set_receive_timeout(Some(time_max))?;
        Ok(Self { link, time_max, bytes_max: QUESTION_BYTES_MAX, received: LineBuffer::default() })
    }

    /// Sends questions and receives answers on `link`. The peer may take `time_max` for each.
    ///
    /// # Errors
    /// The socket refuses its timeout.
    pub fn asking(link: &'a Link, time_max: Duration) -> io::Result<Self> {
        Ok(Self { bytes_max: ANSWER_BYTES_MAX, ..Self::over(link, time_max)? })
    }

    /// The next line; `None` when the peer has closed the link.
    ///
    /// # Errors
    /// The link was lost or was silent for too long, or the line is too long.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut piece = [0; PIECE_BYTES];
        loop {
            if let Some(line) = self.received.take_line() {
                return Ok(Some(line));
            }
            if self.received.len() > self.bytes_max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line that does not end"));
            }
            match self.link.receive(&mut piece)? {
                0 => return Ok(None),
                count => self.received.push(&piece[..count]),
            }
        }
    }

    /// Sends a value as a line.
    ///
    /// # Errors
    /// The link was lost, or the peer does not read.
    pub fn send(&self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
        line.push(b'\n');
        send_all(self.link, &line, self.time_max)
    }
}

/// Sends all bytes within `time_max`.
///
/// # Errors
/// The link was lost, or `TimedOut`.
pub fn send_all(link: &Link, bytes: &[u8], time_max: Duration) -> io::Result<()> {
    let clock = BoottimeClock::start();
    let until = clock.now() + time_max;
    let mut rest = bytes;
    loop {
        if !rest.is_empty()
            && let Some(sent) = link.try_send(&[IoSlice::new(rest)])?
        {
            rest = &rest[sent..];
            continue;
        }
        if link.try_flush()? && rest.is_empty() {
            return Ok(());
        }
        let now = clock.now();
        if now >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Only room to write is waited for. What the peer sends meanwhile stays in the socket.
        wait(&mut [PollInterest::room(link.as_fd())], Some(until - now))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_long_answer_is_looked_at_once() {
        let mut buffer = LineBuffer::default();
        for _ in 0..1000 {
            buffer.push(&[b'x'; 1024]);
            assert_eq!(buffer.take_line(), None);
        }
        buffer.push(b"\nnext\nrest");
        assert_eq!(buffer.take_line().map(|line| line.len()), Some(1000 * 1024 + 1));
        assert_eq!(buffer.take_line().as_deref(), Some(&b"next\n"[..]));
        assert_eq!((buffer.take_line(), buffer.len()), (None, 4));
        assert_eq!(buffer.looked_at, 1000 * 1024 + b"\nnext\nrest".len());
    }

    #[test]
    fn questions_between_hosts_are_stable_json() {
        assert_eq!(serde_json::to_string(&HostQuestion::List).unwrap(), r#"{"ask":"list"}"#);
        let question = HostQuestion::Explain { device: "disk".into(), reason: "x".into() };
        assert_eq!(serde_json::to_string(&question).unwrap(), r#"{"ask":"explain","device":"disk","reason":"x"}"#);
        assert_eq!(
            serde_json::to_string(&HostQuestion::Topology { message: "00".into() }).unwrap(),
            r#"{"ask":"topology","said":"00"}"#
        );
        assert_eq!(serde_json::to_string(&HostAnswer::Topology("00".into())).unwrap(), r#"{"topology":"00"}"#);
        assert_eq!(serde_json::to_string(&HostAnswer::Done).unwrap(), r#""done""#);
        assert_eq!(serde_json::to_string(&HostAnswer::Devices(Vec::new())).unwrap(), r#"{"devices":[]}"#);
        assert_eq!(serde_json::from_str::<HostQuestion>(r#"{"ask":"list"}"#).unwrap(), HostQuestion::List);
        assert_eq!(serde_json::to_string(&HostQuestion::Status).unwrap(), r#"{"ask":"status"}"#);
        let status = HostStatus { name: "lab3".into(), farbus: "0.2.0".into(), up_s: 5, devices: Vec::new() };
        let text = r#"{"status":{"name":"lab3","farbus":"0.2.0","up_s":5,"devices":[]}}"#;
        assert_eq!(serde_json::to_string(&HostAnswer::Status(status)).unwrap(), text);
    }
}
