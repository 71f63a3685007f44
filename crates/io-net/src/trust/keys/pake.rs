//! The code that a person carries from one host to the other, and the key exchange that it authenticates.
//!
//! SPAKE2 over Ed25519, between two hosts that have shown each other their keys in TLS. Both fingerprints are SPAKE2's
//! identities, and both proofs cover the connection's own exporter (in the spirit of RFC 9266): a host in the middle,
//! which has to show another key to either side, gets two different secrets and can prove neither. A peer that guesses
//! a code has to send a proof to the waiting host, and learns only whether that one guess was right.

use std::fmt;
use std::str::FromStr;

use farbus_control::fingerprint::Fingerprint;
use ring::hmac;
use spake2::{Ed25519Group, Identity as SpakeIdentity, Password, Spake2};

use super::random::fill_random;

/// Eight digits, for one pairing.
#[derive(Clone, PartialEq, Eq)]
pub struct PairingCode([u8; DIGITS]);

const DIGITS: usize = 8;
const CODES: u32 = 100_000_000;

/// The text is not a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairingCodeFormatError;

impl fmt::Display for PairingCodeFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a code has eight digits, such as 4821-0937")
    }
}

impl std::error::Error for PairingCodeFormatError {}

impl PairingCode {
    /// A random code.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn generate() -> Self {
        // The largest multiple of the number of codes that fits: every code is equally likely.
        const BELOW: u32 = u32::MAX / CODES * CODES;
        loop {
            let mut bytes = [0; 4];
            fill_random(&mut bytes);
            let number = u32::from_be_bytes(bytes);
            if number < BELOW {
                return Self::of(number % CODES);
            }
        }
    }

    fn of(mut number: u32) -> Self {
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        Self(digits)
    }
}

impl fmt::Display for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.split_at(DIGITS / 2);
        write!(f, "{}-{}", String::from_utf8_lossy(first), String::from_utf8_lossy(last))
    }
}

impl fmt::Debug for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(…)")
    }
}

impl FromStr for PairingCode {
    type Err = PairingCodeFormatError;

    fn from_str(text: &str) -> Result<Self, PairingCodeFormatError> {
        let mut digits = text.bytes().filter(|byte| !matches!(byte, b'-' | b' '));
        let mut code = [0; DIGITS];
        for digit in &mut code {
            *digit = digits.next().filter(u8::is_ascii_digit).ok_or(PairingCodeFormatError)?;
        }
        if digits.next().is_some() { Err(PairingCodeFormatError) } else { Ok(Self(code)) }
    }
}

/// The role in a pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingRole {
    /// The host that was told the code, and connects.
    Joins,
    /// The host that shows the code, and waits.
    Waits,
}

/// An exchange that has begun.
pub struct PairingExchange {
    side: PairingRole,
    spake: Spake2<Ed25519Group>,
    share: Vec<u8>,
    joiner: Fingerprint,
    waiter: Fingerprint,
}

/// What each side sends to show that it knows the code.
pub struct PairingProofs {
    /// The proof that this host sends.
    pub ours: [u8; 32],
    /// The proof that the peer has to send.
    pub theirs: [u8; 32],
}

impl PairingExchange {
    /// Begins an exchange between two hosts.
    pub fn start(side: PairingRole, code: &PairingCode, joiner: Fingerprint, waiter: Fingerprint) -> Self {
        let password = Password::new(code.0);
        let (a, b) = (SpakeIdentity::new(joiner.as_bytes()), SpakeIdentity::new(waiter.as_bytes()));
        let (spake, share) = match side {
            PairingRole::Joins => Spake2::<Ed25519Group>::start_a(&password, &a, &b),
            PairingRole::Waits => Spake2::<Ed25519Group>::start_b(&password, &a, &b),
        };
        Self { side, spake, share, joiner, waiter }
    }

    /// The message for the peer; it reveals nothing about the code.
    pub fn share(&self) -> &[u8] {
        &self.share
    }

    /// Computes the proofs from the peer's message. `context` must be the same on both sides. `None`: the message is
    /// invalid.
    pub fn finish(self, their_share: &[u8], context: &[&[u8]]) -> Option<PairingProofs> {
        let secret = self.spake.finish(their_share).ok()?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let proof_of = |side: &[u8]| {
            let mut text = hmac::Context::with_key(&key);
            let parts = [&b"farbus-pair/1"[..], side, self.joiner.as_bytes(), self.waiter.as_bytes()];
            for part in parts.iter().chain(context) {
                text.update(&(part.len() as u64).to_be_bytes());
                text.update(part);
            }
            let mut proof = [0; 32];
            proof.copy_from_slice(text.sign().as_ref());
            proof
        };
        let (joiner, waiter) = (proof_of(b"joins"), proof_of(b"waits"));
        let (ours, theirs) = if self.side == PairingRole::Joins { (joiner, waiter) } else { (waiter, joiner) };
        Some(PairingProofs { ours, theirs })
    }
}

impl fmt::Debug for PairingExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairingExchange").field("side", &self.side).finish_non_exhaustive()
    }
}

impl fmt::Debug for PairingProofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proofs(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::keys::fingerprint::fingerprint_of_key;

    fn prints() -> [Fingerprint; 3] {
        [b"j", b"w", b"m"].map(|text| fingerprint_of_key(text))
    }

    fn run(codes: [&str; 2], seen: [[Fingerprint; 2]; 2], contexts: [&str; 2]) -> (PairingProofs, PairingProofs) {
        let [code_j, code_w] = codes.map(|code| code.parse::<PairingCode>().unwrap());
        let joins = PairingExchange::start(PairingRole::Joins, &code_j, seen[0][0], seen[0][1]);
        let waits = PairingExchange::start(PairingRole::Waits, &code_w, seen[1][0], seen[1][1]);
        let (share_j, share_w) = (joins.share().to_owned(), waits.share().to_owned());
        (
            joins.finish(&share_w, &[contexts[0].as_bytes()]).unwrap(),
            waits.finish(&share_j, &[contexts[1].as_bytes()]).unwrap(),
        )
    }

    #[test]
    fn both_sides_agree_if_code_keys_and_connection_are_the_same() {
        let [j, w, m] = prints();
        let honest = [[j, w], [j, w]];
        let (joins, waits) = run(["1234-5678", "12345678"], honest, ["x", "x"]);
        assert_eq!((joins.ours, joins.theirs), (waits.theirs, waits.ours));
        assert_ne!(joins.ours, joins.theirs, "a proof cannot be sent back");
        for (codes, seen, contexts) in [
            (["1234-5678", "1234-5679"], honest, ["x", "x"]),
            // A host in the middle shows its own key to both.
            (["1234-5678", "1234-5678"], [[j, m], [m, w]], ["x", "x"]),
            (["1234-5678", "1234-5678"], honest, ["x", "y"]),
        ] {
            let (joins, waits) = run(codes, seen, contexts);
            assert_ne!(joins.ours, waits.theirs);
            assert_ne!(joins.theirs, waits.ours);
        }
    }

    #[test]
    fn invalid_message_is_refused() {
        let [j, w, _] = prints();
        let code = PairingCode::generate();
        for share in [&[][..], &[0; 33], &[0xff; 33], &[b'A'; 32]] {
            assert!(PairingExchange::start(PairingRole::Joins, &code, j, w).finish(share, &[]).is_none(), "{share:?}");
        }
        let own = PairingExchange::start(PairingRole::Joins, &code, j, w);
        let share = own.share().to_owned();
        assert!(own.finish(&share, &[]).is_none(), "and so is one's own");
    }

    #[test]
    fn codes_are_read_as_people_write_them_and_not_shown_to_logs() {
        let code = PairingCode::of(937);
        assert_eq!(code.to_string(), "0000-0937");
        assert_eq!("0000 0937".parse(), Ok(code.clone()));
        assert_eq!(code.to_string().parse(), Ok(code.clone()));
        for wrong in ["", "1234567", "123456789", "1234-567a"] {
            assert_eq!(wrong.parse::<PairingCode>(), Err(PairingCodeFormatError), "{wrong}");
        }
        assert!(!format!("{code:?}").contains("937"));
        assert_ne!(PairingCode::generate(), PairingCode::generate(), "once in 10^8 runs this is bad luck");
    }
}
