//! Pairing: the order of its messages, and random bytes.

mod fuzzing;

use farbus_wire::pairing::{MESSAGE_BYTES_MAX, PairingConn, PairingEvent, PairingParticipant, PairingRefusal};
use fuzzing::{Input, fuzz};

const SHARE: [u8; 33] = [7; 33];
const JOINERS: [u8; 32] = [1; 32];
const WAITERS: [u8; 32] = [2; 32];

fn pair() -> (PairingConn, PairingConn) {
    (
        PairingConn::new(PairingParticipant::Joiner, "desk", &SHARE),
        PairingConn::new(PairingParticipant::Waiter, "lab3", &SHARE),
    )
}

/// Carries one side's bytes to the other.
fn carry(from: &mut PairingConn, to: &mut PairingConn) -> Option<PairingEvent> {
    let bytes = from.poll_transmit().to_vec();
    from.handle_transmitted(bytes.len());
    to.handle_received(&bytes).unwrap();
    to.poll_event().unwrap()
}

fn greeted(name: &str) -> Option<PairingEvent> {
    Some(PairingEvent::Greeted { name: name.into(), share: SHARE })
}

/// Runs a pairing up to the joiner's proof, which the waiter has checked.
fn until_proof(joiners: [u8; 32]) -> (PairingConn, PairingConn, Option<PairingEvent>) {
    let (mut joiner, mut waiter) = pair();
    assert!(waiter.poll_transmit().is_empty(), "a waiter sends nothing to a peer that sends nothing");
    assert_eq!(carry(&mut joiner, &mut waiter), greeted("desk"));
    waiter.prove(WAITERS, JOINERS);
    assert_eq!(carry(&mut waiter, &mut joiner), greeted("lab3"));
    joiner.prove(joiners, WAITERS);
    let event = carry(&mut joiner, &mut waiter);
    assert!(waiter.poll_transmit().is_empty(), "its proof is not out before the peer's was looked at");
    (joiner, waiter, event)
}

#[test]
fn the_right_code_pairs() {
    let (mut joiner, mut waiter, event) = until_proof(JOINERS);
    assert_eq!(event, Some(PairingEvent::Proved));
    waiter.confirm();
    assert_eq!(carry(&mut waiter, &mut joiner), Some(PairingEvent::Proved));
    assert!(joiner.is_over() && waiter.is_over());
}

#[test]
fn a_wrong_code_is_answered_by_a_refusal_and_never_by_a_proof() {
    let mut wrong = JOINERS;
    wrong[31] ^= 1;
    let (mut joiner, mut waiter, event) = until_proof(wrong);
    assert_eq!(event, Some(PairingEvent::NotProved));
    waiter.refuse(PairingRefusal::WrongCode);
    assert_eq!(waiter.poll_transmit(), [3, 0, 1, 1]);
    assert_eq!(carry(&mut waiter, &mut joiner), Some(PairingEvent::Refused(PairingRefusal::WrongCode)));
    assert!(joiner.is_over() && waiter.is_over());
}

#[test]
fn a_right_code_that_came_too_late_is_refused() {
    let (mut joiner, mut waiter, event) = until_proof(JOINERS);
    assert_eq!(event, Some(PairingEvent::Proved));
    waiter.refuse(PairingRefusal::Void);
    assert_eq!(carry(&mut waiter, &mut joiner), Some(PairingEvent::Refused(PairingRefusal::Void)));
}

#[test]
fn a_false_waiter_is_found_out() {
    let (mut joiner, mut waiter, _) = until_proof(JOINERS);
    waiter.confirm();
    let mut bytes = waiter.poll_transmit().to_vec();
    *bytes.last_mut().unwrap() ^= 0x80;
    joiner.handle_received(&bytes).unwrap();
    assert_eq!(joiner.poll_event().unwrap(), Some(PairingEvent::NotProved));
    assert!(joiner.is_over());
}

#[test]
fn messages_out_of_turn_or_out_of_shape_are_refused() {
    let hello = |name: &[u8], share: &[u8]| {
        let body = [&[name.len() as u8][..], name, share].concat();
        [&[1, 0, body.len() as u8][..], &body].concat()
    };
    let wrong: [(&str, Vec<u8>); 8] = [
        ("kind", [&[2, 0, 32][..], &JOINERS].concat()),
        ("kind", vec![9, 0, 0]),
        ("length", vec![1, 0xff, 0xff]),
        ("length", hello(b"a", &SHARE[1..])),
        ("length", vec![1, 0, 1, 200]),
        ("name", hello(b"", &SHARE)),
        ("name", hello(b"\x1b[2J", &SHARE)),
        ("refusal", vec![3, 0, 1, 77]),
    ];
    for (field, bytes) in wrong {
        let (_, mut waiter) = pair();
        waiter.handle_received(&bytes).unwrap();
        assert_eq!(waiter.poll_event().unwrap_err().field, field, "{bytes:?}");
        assert!(waiter.poll_transmit().is_empty());
    }
    let (_, mut waiter) = pair();
    assert_eq!(waiter.handle_received(&[1; 2 * MESSAGE_BYTES_MAX + 1]).unwrap_err().field, "bytes");
}

/// A host that sends random bytes in any pieces: no panic, little memory, and no `Proved` without the right proof.
#[test]
fn fuzz_pairing() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "pairing", |input: &mut Input<'_>| {
        let role = input.pick(&[0, 1]);
        let role = if role == 0 { PairingParticipant::Joiner } else { PairingParticipant::Waiter };
        let mut pairing = PairingConn::new(role, "lab3", &SHARE);
        let mut knows = false;
        for _ in 0..input.below(12) {
            let mut bytes = match input.below(5) {
                0 => [&[1, 0, 38, 4][..], b"desk", &SHARE].concat(),
                1 => [&[2, 0, 32][..], &JOINERS].concat(),
                2 => vec![3, 0, 1, input.byte()],
                3 => [&[2, 0, 32][..], &[input.byte(); 32]].concat(),
                _ => input.bytes(40),
            };
            if input.once_in(8) && !bytes.is_empty() {
                let at = input.below(bytes.len() as u32) as usize;
                bytes[at] ^= input.byte();
            }
            knows |= bytes.windows(32).any(|window| window == JOINERS);
            let cut = input.below(bytes.len() as u32 + 1) as usize;
            for piece in [&bytes[..cut], &bytes[cut..]] {
                if pairing.handle_received(piece).is_err() {
                    return;
                }
                loop {
                    match pairing.poll_event() {
                        Err(_) => return,
                        Ok(None) => break,
                        Ok(Some(PairingEvent::Greeted { .. })) => pairing.prove(WAITERS, JOINERS),
                        Ok(Some(PairingEvent::Proved)) => {
                            assert!(knows, "it has said the proof");
                            if role == PairingParticipant::Waiter {
                                pairing.confirm();
                            }
                        }
                        Ok(Some(PairingEvent::NotProved)) => {
                            if role == PairingParticipant::Waiter {
                                pairing.refuse(PairingRefusal::WrongCode);
                            }
                        }
                        Ok(Some(PairingEvent::Refused(_))) => assert!(pairing.is_over()),
                    }
                }
                let sent = pairing.poll_transmit();
                assert!(sent.len() <= 2 * MESSAGE_BYTES_MAX);
                let has_sent_proof = sent.windows(32).any(|window| window == WAITERS);
                assert!(
                    role == PairingParticipant::Joiner || knows || !has_sent_proof,
                    "a waiter proves to nobody who has not"
                );
            }
        }
    });
}
