//! Pairing: the few messages by which two hosts that share a short code come to trust each other's keys.
//!
//! Runs inside TLS between hosts whose keys are shown but not yet known. The caller computes the
//! cryptography (SPAKE2, and proofs over both keys); this state machine enforces the order, which keeps a code from
//! being guessed:
//!
//! | step | joiner (was told the code) | waiter (shows it) |
//! |---|---|---|
//! | 1 | `Hello`: its name, its share | |
//! | 2 | | `Hello`: its name, its share. Says nothing about the code |
//! | 3 | `Proof`. Right only with the code | |
//! | 4 | | checks it: a wrong one costs a try and is answered by `PairingRefusal`; a right one is answered by its own `Proof` |
//! | 5 | checks it | |
//!
//! The joiner proves first. A host that only guesses learns from the waiter whether its one guess was right, and
//! nothing on which it could try others. A host that pretends to be the waiter gets one guess each time that a person
//! types the code.
//!
//! A message is a kind (1 byte), the length of its body (2 bytes, big endian), and the body. A `Hello`'s body is the
//! name's length (1 byte), the name, and the share; a `Proof`'s is 32 bytes; a `PairingRefusal`'s is one.

use std::fmt;

use crate::usbip::ProtocolViolation;

/// The longest name: a DNS label's.
const NAME_BYTES_MAX: usize = 63;
/// SPAKE2 over Ed25519: a side's letter and a point.
const SHARE_BYTES: usize = 33;
const HEADER_BYTES: usize = 3;
/// The largest message there is.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 1 + NAME_BYTES_MAX + SHARE_BYTES;

const HELLO: u8 = 1;
const PROOF: u8 = 2;
const REFUSAL: u8 = 3;

/// The side of a pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingParticipant {
    /// Was told the code, and begins.
    Joiner,
    /// Shows the code.
    Waiter,
}

/// Why the peer does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingRefusal {
    /// The proof was wrong: a wrong code, or a third host in between.
    WrongCode,
    /// The code has expired, or there were too many wrong tries.
    Void,
    /// Another pairing has used the code.
    Taken,
}

impl PairingRefusal {
    const ALL: [PairingRefusal; 3] = [PairingRefusal::WrongCode, PairingRefusal::Void, PairingRefusal::Taken];

    const fn byte(self) -> u8 {
        match self {
            PairingRefusal::WrongCode => 1,
            PairingRefusal::Void => 2,
            PairingRefusal::Taken => 3,
        }
    }
}

impl fmt::Display for PairingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PairingRefusal::WrongCode => "the code is wrong",
            PairingRefusal::Void => "the code does not hold any more",
            PairingRefusal::Taken => "another host has used the code",
        })
    }
}

/// An event of a pairing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairingEvent {
    /// The peer's name and share: compute the proofs, then [`PairingConn::prove`].
    Greeted {
        /// The name that the peer gives itself; unchecked.
        name: String,
        /// Its share for the key exchange.
        share: [u8; SHARE_BYTES],
    },
    /// The peer knows the code and sees the same two keys. A waiter now calls [`PairingConn::confirm`] or
    /// [`PairingConn::refuse`]; for a joiner this is the end.
    Proved,
    /// The peer's proof is wrong. A waiter now calls [`PairingConn::refuse`]; for a joiner this is the end.
    NotProved,
    /// The peer does not continue: the end.
    Refused(PairingRefusal),
}

/// One pairing, from either side.
#[derive(Debug)]
pub struct PairingConn {
    role: PairingParticipant,
    state: PairingState,
    hello: Vec<u8>,
    received: Vec<u8>,
    transmit: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PairingState {
    /// Waits for the peer's `Hello`.
    Greeting,
    /// Waits for this side's proofs.
    Computing,
    /// Waits for the peer's proof.
    Proving { ours: [u8; 32], theirs: [u8; 32] },
    /// Waits for the waiter's decision.
    Deciding { ours: [u8; 32] },
    /// The pairing is over.
    Over,
}

impl fmt::Debug for PairingState {
    /// Leaves the secrets out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PairingState::Greeting => "Greeting",
            PairingState::Computing => "Computing",
            PairingState::Proving { .. } => "Proving",
            PairingState::Deciding { .. } => "Deciding",
            PairingState::Over => "Over",
        })
    }
}

impl PairingConn {
    /// Begins a pairing.
    ///
    /// # Panics
    /// If the name is longer than 63 bytes or the share is not 33 bytes: both are this host's own.
    pub fn new(role: PairingParticipant, name: &str, share: &[u8]) -> Self {
        assert!(name.len() <= NAME_BYTES_MAX && share.len() == SHARE_BYTES, "our own name and share fit");
        let body = [&[name.len() as u8][..], name.as_bytes(), share].concat();
        let mut pairing =
            Self { role, state: PairingState::Greeting, hello: body, received: Vec::new(), transmit: Vec::new() };
        if role == PairingParticipant::Joiner {
            pairing.say_hello();
        }
        pairing
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: more bytes than a pairing has.
    pub fn handle_received(&mut self, bytes: &[u8]) -> Result<(), ProtocolViolation> {
        if self.received.len() + bytes.len() > 2 * MESSAGE_BYTES_MAX {
            return Err(ProtocolViolation::new("bytes", bytes.len() as u64, "a peer waits for its answer"));
        }
        self.received.extend_from_slice(bytes);
        Ok(())
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: a message that is not due.
    pub fn poll_event(&mut self) -> Result<Option<PairingEvent>, ProtocolViolation> {
        if !matches!(self.state, PairingState::Greeting | PairingState::Proving { .. }) {
            return Ok(None);
        }
        let Some((&[kind, high, low], rest)) = self.received.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MESSAGE_BYTES_MAX - HEADER_BYTES {
            return Err(ProtocolViolation::new("length", length as u64, "no message is so long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let event = self.understand(kind, body)?;
        self.received.drain(..HEADER_BYTES + length);
        self.follow(&event);
        Ok(Some(event))
    }

    fn understand(&self, kind: u8, body: &[u8]) -> Result<PairingEvent, ProtocolViolation> {
        let wrong_length =
            || ProtocolViolation::new("length", body.len() as u64, "the message's kind has another length");
        match (kind, self.state) {
            (HELLO, PairingState::Greeting) => {
                let (&name_length, rest) = body.split_first().ok_or_else(wrong_length)?;
                let (name, share) = rest.split_at_checked(name_length.into()).ok_or_else(wrong_length)?;
                let share = share.try_into().map_err(|_| wrong_length())?;
                let printable = |byte: &u8| byte.is_ascii_graphic();
                let not_printable =
                    || ProtocolViolation::new("name", name.len() as u64, "a name is 1 to 63 visible ASCII characters");
                if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.iter().all(printable) {
                    return Err(not_printable());
                }
                Ok(PairingEvent::Greeted { name: String::from_utf8_lossy(name).into_owned(), share })
            }
            (PROOF, PairingState::Proving { theirs, .. }) => {
                let proof: &[u8; 32] = body.try_into().map_err(|_| wrong_length())?;
                // Compares all bytes, whatever the first ones are, so that the time reveals nothing.
                let difference = proof.iter().zip(&theirs).fold(0, |sum, (a, b)| sum | (a ^ b));
                Ok(if difference == 0 { PairingEvent::Proved } else { PairingEvent::NotProved })
            }
            (REFUSAL, _) => {
                let &[byte] = body else { return Err(wrong_length()) };
                let known = PairingRefusal::ALL.into_iter().find(|refusal| refusal.byte() == byte);
                known.map(PairingEvent::Refused).ok_or(ProtocolViolation::new(
                    "refusal",
                    byte.into(),
                    "there is no such refusal",
                ))
            }
            _ => Err(ProtocolViolation::new("kind", kind.into(), "no such message is due")),
        }
    }

    fn follow(&mut self, event: &PairingEvent) {
        self.state = match (event, self.state) {
            (PairingEvent::Greeted { .. }, _) => {
                if self.role == PairingParticipant::Waiter {
                    self.say_hello();
                }
                PairingState::Computing
            }
            (PairingEvent::Proved | PairingEvent::NotProved, PairingState::Proving { ours, .. })
                if self.role == PairingParticipant::Waiter =>
            {
                PairingState::Deciding { ours }
            }
            _ => PairingState::Over,
        };
    }

    /// Sends this side's proof, and sets the one that the peer has to send.
    ///
    /// # Panics
    /// Unless the peer has just greeted.
    pub fn prove(&mut self, ours: [u8; 32], theirs: [u8; 32]) {
        assert_eq!(self.state, PairingState::Computing, "proofs follow a greeting");
        self.state = PairingState::Proving { ours, theirs };
        if self.role == PairingParticipant::Joiner {
            self.say(PROOF, &ours);
        }
    }

    /// Confirms, as the waiter, a peer that has proved that it knows the code.
    ///
    /// # Panics
    /// Unless the peer has just sent its proof.
    pub fn confirm(&mut self) {
        let PairingState::Deciding { ours } = self.state else { panic!("a peer is taken when it has shown its proof") };
        self.say(PROOF, &ours);
        self.state = PairingState::Over;
    }

    /// Ends the pairing and sends the reason.
    pub fn refuse(&mut self, why: PairingRefusal) {
        self.say(REFUSAL, &[why.byte()]);
        self.state = PairingState::Over;
    }

    /// Whether the pairing is over.
    pub fn is_over(&self) -> bool {
        self.state == PairingState::Over
    }

    /// The bytes to send.
    pub fn poll_transmit(&self) -> &[u8] {
        &self.transmit
    }

    /// Reports that `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.transmit.drain(..count);
    }

    fn say_hello(&mut self) {
        let body = std::mem::take(&mut self.hello);
        self.say(HELLO, &body);
    }

    fn say(&mut self, kind: u8, body: &[u8]) {
        self.transmit.push(kind);
        self.transmit.extend_from_slice(&(body.len() as u16).to_be_bytes());
        self.transmit.extend_from_slice(body);
    }
}
