//! Who holds a device, who waits for it, who had it: exclusive use (U13) with a memory.
//!
//! Plain USB/IP knows no queue: a device in use is *busy*, and that is all its answer can say. Whoever wants to wait asks
//! again. So a refused claim is remembered, and a host that has asked twice and goes on asking is waiting: when the
//! device comes free it is kept for those who waited longest, as long as they still ask.
//!
//! | who asks | the device is | answer |
//! |---|---|---|
//! | anybody | held | [`Refusal::Held`]; remembered |
//! | a host that its owner keeps out | free | [`Refusal::KeptOut`] until the time is over |
//! | anybody | free, somebody has waited longer | [`Refusal::Waited`]; remembered |
//! | anybody | free | theirs |
//!
//! Time is an argument. A peer is told apart by its host: each try comes from another port.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;

/// Ends of use that are remembered per device.
pub const HISTORY_MAX: usize = 16;
/// Hosts that may wait for one device.
pub const QUEUE_MAX: usize = 32;
/// Who has not asked again for so long waits no more: three times what `attach --wait` leaves between two tries.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of a reason that are kept: a sentence.
pub const REASON_BYTES_MAX: usize = 200;

/// Who holds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The peer's address, as people write it.
    pub who: String,
    /// Since when.
    pub since: Instant,
    /// What for, if it said so.
    pub reason: Option<String>,
}

/// A host that waits for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The host, without a port.
    pub host: String,
    /// When it asked first.
    pub since: Instant,
    /// When it asked last.
    asked: Instant,
    tries: u32,
}

/// How a use ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its user detached.
    Detached,
    /// The link to its user was lost.
    Lost,
    /// Its user broke the protocol and was cut off.
    CutOff,
    /// The owner took the device back.
    TakenBack,
    /// The device went away.
    Gone,
    /// An assertion of ours failed.
    Bug,
}

impl Ending {
    /// In a word or two, as a history shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Detached => "detached",
            Ending::Lost => "link lost",
            Ending::CutOff => "cut off",
            Ending::TakenBack => "taken back",
            Ending::Gone => "device gone",
            Ending::Bug => "bug in farbus",
        }
    }
}

/// A use that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Who it was.
    pub holder: Holder,
    /// Until when.
    pub until: Instant,
    /// How it ended.
    pub ending: Ending,
    /// What the owner said who took it back.
    pub remark: Option<String>,
}

/// Why a claim is refused. All of it is *busy* on plain USB/IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody holds it.
    Held,
    /// It is free, and kept for a host that has waited longer.
    Waited,
    /// The owner took it from this host and keeps it out for now.
    KeptOut,
}

/// The claims on one device.
#[derive(Debug, Default)]
pub struct Claims {
    holder: Option<Holder>,
    queue: Vec<Waiting>,
    history: VecDeque<Past>,
    kept_out: Option<(String, Instant)>,
    remark: Option<String>,
}

impl Claims {
    /// Claims the device for `who` (`HOST:PORT`, or a name).
    ///
    /// # Errors
    /// [`Refusal`]: it is somebody else's, now or next.
    pub fn claim(&mut self, who: &str, now: Instant) -> Result<(), Refusal> {
        let host = host_of(who);
        self.queue.retain(|waiting| waiting.is_patient(now));
        if self.holder.is_some() {
            self.remember(host, now);
            return Err(Refusal::Held);
        }
        if self.kept_out.as_ref().is_some_and(|(out, until)| out == host && now < *until) {
            return Err(Refusal::KeptOut);
        }
        let mut ahead = self.queue.iter().take_while(|waiting| waiting.host != host);
        if ahead.any(|waiting| waiting.tries > 1) {
            self.remember(host, now);
            return Err(Refusal::Waited);
        }
        self.queue.retain(|waiting| waiting.host != host);
        self.kept_out = None;
        self.holder = Some(Holder { who: who.to_owned(), since: now, reason: None });
        Ok(())
    }

    /// Notes that `host` was refused.
    fn remember(&mut self, host: &str, now: Instant) {
        if let Some(waiting) = self.queue.iter_mut().find(|waiting| waiting.host == host) {
            waiting.asked = now;
            waiting.tries = waiting.tries.saturating_add(1);
        } else if self.queue.len() < QUEUE_MAX {
            self.queue.push(Waiting { host: host.to_owned(), since: now, asked: now, tries: 1 });
        }
    }

    /// The holder says what it needs the device for. Says whether `who` is the holder.
    pub fn explain(&mut self, who: &str, reason: &str) -> bool {
        let holder = self.holder.as_mut().filter(|holder| holder.who == who);
        holder.map(|holder| holder.reason = Some(shortened(reason))).is_some()
    }

    /// The owner takes the device back: what the history will say of it, and for how long the holder's host is
    /// kept out. The use ends when [`Claims::end`] is called. Says whether anybody holds it.
    pub fn take_back(&mut self, remark: Option<&str>, keep_out_until: Option<Instant>) -> bool {
        let Some(holder) = &self.holder else { return false };
        self.remark = remark.map(shortened);
        self.kept_out = keep_out_until.map(|until| (host_of(&holder.who).to_owned(), until));
        true
    }

    /// The use is over.
    pub fn end(&mut self, ending: Ending, now: Instant) {
        let Some(holder) = self.holder.take() else { return };
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Past { holder, until: now, ending, remark: self.remark.take() });
    }

    /// Who holds it.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Who waits for it, the longest first: those who have asked more than once and still do.
    pub fn queue(&self, now: Instant) -> impl Iterator<Item = &Waiting> {
        self.queue.iter().filter(move |waiting| waiting.tries > 1 && waiting.is_patient(now))
    }

    /// Who had it, the latest last.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &Past> {
        self.history.iter()
    }
}

impl Waiting {
    fn is_patient(&self, now: Instant) -> bool {
        now - self.asked <= PATIENCE
    }
}

/// The host of a peer's address; anything without a port is its own. A paired host goes by its name, which stands before
/// its address in brackets.
pub fn host_of(who: &str) -> &str {
    if let Some((name, _)) = who.split_once(" (") {
        return name;
    }
    match who.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => who,
    }
}

/// One line, not too long: it is shown in tables and written to logs.
fn shortened(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(REASON_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    const A: &str = "192.0.2.1:1000";
    const B: &str = "192.0.2.2:1000";
    const C: &str = "[2001:db8::3]:1000";

    fn waiting(claims: &Claims, now: Instant) -> Vec<&str> {
        claims.queue(now).map(|waiting| waiting.host.as_str()).collect()
    }

    #[test]
    fn one_holder_at_a_time_and_a_single_try_is_no_queue() {
        let mut claims = Claims::default();
        assert_eq!(claims.claim(A, at_ms(0)), Ok(()));
        assert_eq!(claims.claim(B, at_ms(1)), Err(Refusal::Held));
        assert_eq!(claims.claim(A, at_ms(2)), Err(Refusal::Held), "not even by the same host");
        assert_eq!(waiting(&claims, at_ms(2)), [""; 0]);
        claims.end(Ending::Detached, at_ms(3));
        assert_eq!(claims.claim(C, at_ms(4)), Ok(()), "B asked once: nothing is kept for it");
    }

    #[test]
    fn who_waited_longest_comes_next_whoever_asks_first() {
        let mut claims = Claims::default();
        claims.claim(A, at_ms(0)).unwrap();
        for ms in [10, 500, 1000] {
            assert_eq!(claims.claim(&B.replace("1000", &ms.to_string()), at_ms(ms)), Err(Refusal::Held));
            assert_eq!(claims.claim(C, at_ms(ms + 1)), Err(Refusal::Held));
        }
        assert_eq!(waiting(&claims, at_ms(1001)), ["192.0.2.2", "[2001:db8::3]"]);
        claims.end(Ending::Detached, at_ms(1100));
        assert_eq!(claims.claim(C, at_ms(1101)), Err(Refusal::Waited));
        assert_eq!(claims.claim(A, at_ms(1102)), Err(Refusal::Waited), "who had it goes to the end");
        assert_eq!(claims.claim(B, at_ms(1200)), Ok(()));
        assert_eq!(waiting(&claims, at_ms(1200)), ["[2001:db8::3]"]);
        claims.end(Ending::Detached, at_ms(1300));
        assert_eq!(claims.claim(A, at_ms(1301)), Err(Refusal::Waited));
        assert_eq!(claims.claim(C, at_ms(1302)), Ok(()));
    }

    #[test]
    fn who_stops_asking_waits_no_more() {
        let mut claims = Claims::default();
        claims.claim(A, at_ms(0)).unwrap();
        for ms in [1, 2] {
            claims.claim(B, at_ms(ms)).unwrap_err();
        }
        claims.end(Ending::Lost, at_ms(3));
        assert_eq!(claims.claim(C, at_ms(3002)), Err(Refusal::Waited));
        assert_eq!(claims.claim(C, at_ms(3003)), Ok(()), "3 s without a word");
        assert_eq!(waiting(&claims, at_ms(3003)), [""; 0]);
    }

    #[test]
    fn a_queue_is_bounded_and_nobody_in_it_is_pushed_out() {
        let mut claims = Claims::default();
        claims.claim(A, at_ms(0)).unwrap();
        for turn in 0..2 {
            for host in 0..10 * QUEUE_MAX {
                claims.claim(&format!("10.0.0.{host}:1"), at_ms(turn)).unwrap_err();
            }
        }
        let names = waiting(&claims, at_ms(2));
        assert_eq!((names.len(), names[0]), (QUEUE_MAX, "10.0.0.0"));
    }

    #[test]
    fn what_is_taken_back_is_in_the_history_and_the_host_is_kept_out() {
        let mut claims = Claims::default();
        assert!(!claims.take_back(Some("mine"), None), "nobody holds it");
        claims.claim(A, at_ms(0)).unwrap();
        assert!(claims.explain(A, "a\nbackup") && !claims.explain(B, "no"));
        assert!(claims.take_back(Some("needed here"), Some(at_ms(5000))));
        claims.end(Ending::TakenBack, at_ms(100));
        let past = claims.history().last().unwrap();
        assert_eq!((past.holder.who.as_str(), past.until, past.ending), (A, at_ms(100), Ending::TakenBack));
        assert_eq!((past.holder.reason.as_deref(), past.remark.as_deref()), (Some("a backup"), Some("needed here")));
        assert_eq!(claims.claim("192.0.2.1:7", at_ms(4999)), Err(Refusal::KeptOut));
        assert_eq!(claims.claim(A, at_ms(5000)), Ok(()));
        claims.end(Ending::Detached, at_ms(5001));
        assert_eq!(claims.history().last().unwrap().remark, None, "a remark is of one use");
    }

    #[test]
    fn a_history_keeps_the_latest() {
        let mut claims = Claims::default();
        for use_ in 0..40 {
            claims.claim(&format!("h{use_}"), at_ms(use_)).unwrap();
            claims.end(Ending::Detached, at_ms(use_));
        }
        assert_eq!(claims.history().count(), HISTORY_MAX);
        assert_eq!(claims.history().last().unwrap().holder.who, "h39");
    }

    #[test]
    fn a_host_is_what_stands_before_the_port() {
        let cases = [
            ("10.0.0.1:9", "10.0.0.1"),
            ("[::1]:9", "[::1]"),
            ("lab3", "lab3"),
            ("a:b", "a:b"),
            ("::1:99999", "::1:99999"),
        ];
        for (who, host) in cases {
            assert_eq!(host_of(who), host);
        }
        assert_eq!(shortened(&"é".repeat(REASON_BYTES_MAX)).len(), REASON_BYTES_MAX);
    }
}
