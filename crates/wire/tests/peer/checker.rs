//! What every answer of an exporter has to be, whatever happened before it.
//!
//! | rule | where it is held |
//! |---|---|
//! | replies carry devid = direction = ep = 0 and zero padding | [`Checker::read`] |
//! | every submit is answered once: RET_SUBMIT, or RET_UNLINK −104, never both | `submitted`, `unlinked` |
//! | every unlink is answered once | `unlinked` |
//! | RET_UNLINK 0 comes behind its victim's RET_SUBMIT, or there never is one | `unlinked` |
//! | one endpoint's transfers end in the order of their submits | `submitted` |
//! | data only for IN, exactly `actual_length`, never more than was asked for | `submitted` |
//! | isochronous places come back unchanged, their sum is the header's | `submitted` |
//! | `number_of_packets` comes back as it was sent | `submitted` |

use std::collections::{BTreeMap, BTreeSet};

use super::frames::{ECONNRESET, EINVAL, ENOMEM, Packet, RetSubmit, Submit, word};

/// One message of an exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Submit(RetSubmit),
    Unlink { seqnum: u32, status: i32 },
}

impl Reply {
    pub fn seqnum(&self) -> u32 {
        match self {
            Reply::Submit(reply) => reply.seqnum,
            Reply::Unlink { seqnum, .. } => *seqnum,
        }
    }

    pub fn status(&self) -> i32 {
        match self {
            Reply::Submit(reply) => reply.status,
            Reply::Unlink { status, .. } => *status,
        }
    }
}

/// What a client asked, to be compared with the answers.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    /// By number: every submit, and what became of it.
    sent: BTreeMap<u32, SentSubmit>,
    /// Unanswered unlinks, and the requests they cancel.
    unlinks: BTreeMap<u32, u32>,
    /// Numbers whose unlink was answered with 0 before they were submitted: the client has given them up and expects no
    /// answer.
    given_up: BTreeSet<u32>,
    /// Bytes of an incomplete message.
    rest: Vec<u8>,
    /// Submits so far, which gives their order.
    submits: u64,
    /// The order of the last answer of each endpoint and direction.
    last_answered: BTreeMap<(u32, u32), u64>,
    /// The exporter relays a remote device, so the order of answers is not its own.
    pub is_unordered: bool,
    /// Every answer, in order.
    pub replies: Vec<Reply>,
}

/// A submit that was sent, and what became of it.
#[derive(Clone, Debug)]
struct SentSubmit {
    submit: Submit,
    order: u64,
    is_iso: bool,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    Answered,
    Withdrawn,
}

impl Checker {
    /// A URB was sent. `is_iso`: its endpoint is isochronous, which the wire does not say.
    pub fn requested(&mut self, submit: &Submit, is_iso: bool) {
        // The data is not needed any more, and may be large.
        let submit = Submit { data: Vec::new(), ..submit.clone() };
        let outcome = if self.given_up.contains(&submit.seqnum) { Outcome::Withdrawn } else { Outcome::Open };
        let sent = SentSubmit { order: self.submits, is_iso, outcome, submit };
        self.submits += 1;
        let before = self.sent.insert(sent.submit.seqnum, sent);
        assert!(before.is_none_or(|before| before.outcome != Outcome::Open), "the test uses a number twice");
    }

    /// An unlink was sent.
    pub fn unlink_asked(&mut self, seqnum: u32, victim: u32) {
        assert_eq!(self.unlinks.insert(seqnum, victim), None, "the test uses a number twice");
    }

    /// Adds bytes of the exporter, cut anywhere. Returns the messages they completed.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Reply> {
        self.rest.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Some(reply) = self.next() {
            replies.push(reply);
        }
        self.replies.extend(replies.iter().cloned());
        replies
    }

    fn next(&mut self) -> Option<Reply> {
        let head: [u8; 48] = *self.rest.first_chunk()?;
        let (command, seqnum) = (word(&head, 0), word(&head, 4));
        assert_eq!(head[8..20], [0; 12], "replies carry devid = direction = ep = 0: {head:02x?}");
        let (reply, bytes) = match command {
            3 => self.submit_reply(seqnum, &head)?,
            4 => {
                assert_eq!(head[24..], [0; 24], "padding of RET_UNLINK is zero");
                (Reply::Unlink { seqnum, status: word(&head, 20).cast_signed() }, 48)
            }
            other => panic!("an exporter sends 3 or 4, not {other}"),
        };
        self.rest.drain(..bytes);
        match &reply {
            Reply::Submit(reply) => self.submitted(reply),
            Reply::Unlink { seqnum, status } => self.unlinked(*seqnum, *status),
        }
        Some(reply)
    }

    fn submit_reply(&self, seqnum: u32, head: &[u8; 48]) -> Option<(Reply, usize)> {
        assert_eq!(head[40..], [0; 8], "padding of RET_SUBMIT is zero");
        let sent = self.sent.get(&seqnum).unwrap_or_else(|| panic!("an answer to {seqnum}, which nobody asked"));
        let actual = word(head, 24);
        let data_bytes = if sent.submit.is_in() { actual as usize } else { 0 };
        let packets = if sent.is_iso { sent.submit.number_of_packets as usize } else { 0 };
        let total = 48 + data_bytes + packets * 16;
        let body = self.rest.get(48..total)?;
        let (data, descriptors) = body.split_at(data_bytes);
        let reply = RetSubmit {
            seqnum,
            status: word(head, 20).cast_signed(),
            actual,
            start_frame: word(head, 28),
            number_of_packets: word(head, 32),
            error_count: word(head, 36),
            data: data.to_vec(),
            packets: descriptors.chunks_exact(16).map(Packet::read).collect(),
        };
        Some((Reply::Submit(reply), total))
    }

    fn submitted(&mut self, reply: &RetSubmit) {
        let sent = self.sent.get_mut(&reply.seqnum).expect("looked up before");
        let seqnum = reply.seqnum;
        assert_eq!(sent.outcome, Outcome::Open, "{seqnum} is answered, and was before");
        sent.outcome = Outcome::Answered;
        let submit = &sent.submit;
        assert!(reply.actual <= submit.length, "{seqnum}: {} of {} bytes", reply.actual, submit.length);
        assert_eq!(reply.number_of_packets, submit.number_of_packets, "{seqnum}: number_of_packets is echoed");
        if sent.is_iso {
            let locations = |packets: &[Packet]| packets.iter().map(|p| (p.offset, p.length)).collect::<Vec<_>>();
            assert_eq!(locations(&reply.packets), locations(&submit.packets), "{seqnum}: places come back unchanged");
            let sum: u32 = reply.packets.iter().map(|packet| packet.actual).sum();
            assert_eq!(sum, reply.actual, "{seqnum}: the packets' sum is the header's");
            assert!(reply.packets.iter().all(|packet| packet.actual <= packet.length));
            let failed = reply.packets.iter().filter(|packet| packet.status != 0).count() as u32;
            assert!(reply.error_count == failed || reply.status != 0, "{seqnum}: failed packets are counted");
        } else {
            assert_eq!(reply.error_count, 0, "{seqnum}: errors are counted in packets");
        }
        // A refusal (no credit, no such endpoint) overtakes waiting requests, and so does a cancelled request.
        if ![ENOMEM, EINVAL, ECONNRESET].contains(&reply.status) && !self.is_unordered {
            let last = self.last_answered.insert((submit.ep, submit.direction), sent.order);
            assert!(last.is_none_or(|last| last < sent.order), "{seqnum} overtook an earlier one of its endpoint");
        }
    }

    fn unlinked(&mut self, seqnum: u32, status: i32) {
        let victim = self.unlinks.remove(&seqnum);
        let victim = victim.unwrap_or_else(|| panic!("an answer to unlink {seqnum}, which nobody waits for"));
        let outcome = self.sent.get(&victim).map(|sent| sent.outcome);
        match (status, outcome) {
            (ECONNRESET, Some(Outcome::Open)) => {
                self.sent.get_mut(&victim).expect("looked up just now").outcome = Outcome::Withdrawn;
            }
            // A second unlink of a cancelled request is answered like the first, or as unknown.
            (ECONNRESET | 0, Some(Outcome::Withdrawn)) => {}
            (0, Some(Outcome::Answered)) => {}
            (0, None) => drop(self.given_up.insert(victim)),
            (0, Some(Outcome::Open)) => panic!("RET_UNLINK 0 while {victim} is pending: its data is lost"),
            (status, outcome) => panic!("RET_UNLINK {status} for {victim}, which is {outcome:?}"),
        }
    }

    /// The numbers of the submits that have no answer yet.
    pub fn open(&self) -> Vec<u32> {
        self.sent.values().filter(|sent| sent.outcome == Outcome::Open).map(|sent| sent.submit.seqnum).collect()
    }

    /// Asserts that no request is unanswered and no message incomplete.
    pub fn assert_settled(&self) {
        assert_eq!(self.open(), [], "every submit is answered");
        assert!(self.unlinks.is_empty(), "every unlink is answered: {:?}", self.unlinks);
        assert!(self.rest.is_empty(), "no half message: {:02x?}", self.rest);
    }

    /// The reply to `seqnum`, the last one if it was used again.
    pub fn reply(&self, seqnum: u32) -> Option<&Reply> {
        self.replies.iter().rev().find(|reply| reply.seqnum() == seqnum)
    }

    /// RET_SUBMIT of `seqnum`.
    pub fn ret_submit(&self, seqnum: u32) -> &RetSubmit {
        match self.reply(seqnum) {
            Some(Reply::Submit(reply)) => reply,
            other => panic!("{seqnum} was to be answered by RET_SUBMIT, not {other:?}"),
        }
    }
}
