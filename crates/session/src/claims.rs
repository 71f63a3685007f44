//! Who holds a device, who waits for it, who had it: exclusive use (U13), or many readers (N6), with a memory.
//!
//! Plain USB/IP knows no queue: a device in use is *busy*, and that is all its answer can say. Whoever wants to wait
//! asks again. So a refused claim is remembered, and a host that has asked twice and goes on asking is waiting: when
//! the device comes free it is kept for those who waited longest, as long as they still ask.
//!
//! | who asks | the device is | answer |
//! |---|---|---|
//! | anybody | held in a way that excludes this one ([`Mode`]) | [`Refusal::Held`]; remembered |
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

/// How a device is used, and beside whom.
///
/// | beside | exclusive | read | scratch |
/// |---|---|---|---|
/// | exclusive | no | no | no |
/// | read | no | yes | yes |
/// | scratch | no | yes | yes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By one, who may change it.
    #[default]
    Exclusive,
    /// By many who change nothing.
    Read,
    /// By many, each of whom sees changes of his own and nobody else's.
    Scratch,
}

impl Mode {
    /// In a word, as a status shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Read => "read",
            Mode::Scratch => "scratch",
        }
    }

    fn goes_beside(self, other: Mode) -> bool {
        self != Mode::Exclusive && other != Mode::Exclusive
    }
}

/// Who holds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The peer's address, as people write it.
    pub who: String,
    /// How.
    pub mode: Mode,
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
    /// Its user handed the device over to another host.
    HandedOver,
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
            Ending::HandedOver => "handed over",
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
    /// More than one only if each goes beside the others; the first came first.
    holders: Vec<Holder>,
    queue: Vec<Waiting>,
    history: VecDeque<Past>,
    kept_out: Vec<(String, Instant)>,
    remark: Option<String>,
}

impl Claims {
    /// Claims the device for `who` (`HOST:PORT`, or a name).
    ///
    /// # Errors
    /// [`Refusal`]: it is somebody else's, now or next.
    pub fn claim(&mut self, who: &str, mode: Mode, now: Instant) -> Result<(), Refusal> {
        let host = host_of(who);
        self.queue.retain(|waiting| waiting.is_patient(now));
        if !self.holders.iter().all(|holder| mode.goes_beside(holder.mode)) {
            self.remember(host, now);
            return Err(Refusal::Held);
        }
        self.kept_out.retain(|(_, until)| now < *until);
        if self.kept_out.iter().any(|(out, _)| out == host) {
            return Err(Refusal::KeptOut);
        }
        let mut ahead = self.queue.iter().take_while(|waiting| waiting.host != host);
        if ahead.any(|waiting| waiting.tries > 1) {
            self.remember(host, now);
            return Err(Refusal::Waited);
        }
        self.queue.retain(|waiting| waiting.host != host);
        self.holders.push(Holder { who: who.to_owned(), mode, since: now, reason: None });
        Ok(())
    }

    /// `who` could not have it for another reason than its claim: as if somebody held it.
    pub fn refuse(&mut self, who: &str, now: Instant) {
        self.remember(host_of(who), now);
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

    /// A holder says what it needs the device for. Says whether `who` is one.
    pub fn explain(&mut self, who: &str, reason: &str) -> bool {
        let holder = self.holders.iter_mut().find(|holder| holder.who == who);
        holder.map(|holder| holder.reason = Some(shortened(reason))).is_some()
    }

    /// The owner takes the device back: what the history will say of it, and for how long the holders' hosts are
    /// kept out. Each use ends when [`Claims::end`] is called. Says whether anybody holds it.
    pub fn take_back(&mut self, remark: Option<&str>, keep_out_until: Option<Instant>) -> bool {
        if self.holders.is_empty() {
            return false;
        }
        self.remark = remark.map(shortened);
        let hosts = self.holders.iter().map(|holder| host_of(&holder.who).to_owned());
        self.kept_out = keep_out_until.map(|until| hosts.map(|host| (host, until)).collect()).unwrap_or_default();
        true
    }

    /// The use of `who` is over. Says how it was used.
    pub fn end(&mut self, who: &str, ending: Ending, now: Instant) -> Option<Mode> {
        let at = self.holders.iter().position(|holder| holder.who == who)?;
        let holder = self.holders.remove(at);
        let mode = holder.mode;
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        let remark = if self.holders.is_empty() { self.remark.take() } else { self.remark.clone() };
        let remark = remark.filter(|_| ending == Ending::TakenBack);
        self.history.push_back(Past { holder, until: now, ending, remark });
        Some(mode)
    }

    /// `from` hands over to `to`, who does not wait with others.
    pub fn hand_over(&mut self, from: &str, to: &str, now: Instant) {
        if let Some(mode) = self.end(from, Ending::HandedOver, now) {
            self.holders.push(Holder { who: to.to_owned(), mode, since: now, reason: None });
        }
    }

    /// Who holds it: the first that came, if there are several.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }

    /// Everybody who holds it.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
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

/// The host of a peer's address; anything without a port is its own. A paired host goes by its name, which stands
/// before its address in brackets.
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
        assert_eq!(claims.claim(A, Mode::Exclusive, at_ms(0)), Ok(()));
        assert_eq!(claims.claim(B, Mode::Exclusive, at_ms(1)), Err(Refusal::Held));
        assert_eq!(claims.claim(A, Mode::Exclusive, at_ms(2)), Err(Refusal::Held), "not even by the same host");
        assert_eq!(waiting(&claims, at_ms(2)), [""; 0]);
        claims.end(A, Ending::Detached, at_ms(3));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(4)), Ok(()), "B asked once: nothing is kept for it");
    }

    #[test]
    fn who_waited_longest_comes_next_whoever_asks_first() {
        let mut claims = Claims::default();
        claims.claim(A, Mode::Exclusive, at_ms(0)).unwrap();
        for ms in [10, 500, 1000] {
            assert_eq!(
                claims.claim(&B.replace("1000", &ms.to_string()), Mode::Exclusive, at_ms(ms)),
                Err(Refusal::Held)
            );
            assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(ms + 1)), Err(Refusal::Held));
        }
        assert_eq!(waiting(&claims, at_ms(1001)), ["192.0.2.2", "[2001:db8::3]"]);
        claims.end(A, Ending::Detached, at_ms(1100));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(1101)), Err(Refusal::Waited));
        assert_eq!(claims.claim(A, Mode::Exclusive, at_ms(1102)), Err(Refusal::Waited), "who had it goes to the end");
        assert_eq!(claims.claim(B, Mode::Exclusive, at_ms(1200)), Ok(()));
        assert_eq!(waiting(&claims, at_ms(1200)), ["[2001:db8::3]"]);
        claims.end(B, Ending::Detached, at_ms(1300));
        assert_eq!(claims.claim(A, Mode::Exclusive, at_ms(1301)), Err(Refusal::Waited));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(1302)), Ok(()));
    }

    #[test]
    fn many_read_or_one_writes() {
        let mut claims = Claims::default();
        assert_eq!(claims.claim(A, Mode::Read, at_ms(0)), Ok(()));
        assert_eq!(claims.claim(B, Mode::Scratch, at_ms(1)), Ok(()));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(2)), Err(Refusal::Held));
        assert_eq!(claims.holders().len(), 2);
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(3)), Err(Refusal::Held));
        assert_eq!(claims.claim("d", Mode::Read, at_ms(4)), Err(Refusal::Waited), "the writer has waited longer");
        assert_eq!(claims.end(A, Ending::Detached, at_ms(5)), Some(Mode::Read));
        assert_eq!(claims.end(A, Ending::Detached, at_ms(5)), None, "it ends once");
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(6)), Err(Refusal::Held));
        assert_eq!(claims.end(B, Ending::Detached, at_ms(7)), Some(Mode::Scratch));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(8)), Ok(()));
        assert_eq!(claims.claim("d", Mode::Read, at_ms(9)), Err(Refusal::Held));
        claims.claim(A, Mode::Read, at_ms(10)).unwrap_err();
    }

    #[test]
    fn all_readers_are_sent_away_together() {
        let mut claims = Claims::default();
        for who in [A, B] {
            claims.claim(who, Mode::Read, at_ms(0)).unwrap();
        }
        assert!(claims.take_back(Some("repair"), Some(at_ms(1000))));
        for who in [A, B] {
            claims.end(who, Ending::TakenBack, at_ms(1));
            assert_eq!(claims.claim(who, Mode::Read, at_ms(2)), Err(Refusal::KeptOut), "{who}");
        }
        let remarks: Vec<_> = claims.history().map(|past| past.remark.as_deref()).collect();
        assert_eq!(remarks, [Some("repair"); 2]);
    }

    #[test]
    fn who_stops_asking_waits_no_more() {
        let mut claims = Claims::default();
        claims.claim(A, Mode::Exclusive, at_ms(0)).unwrap();
        for ms in [1, 2] {
            claims.claim(B, Mode::Exclusive, at_ms(ms)).unwrap_err();
        }
        claims.end(A, Ending::Lost, at_ms(3));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(3002)), Err(Refusal::Waited));
        assert_eq!(claims.claim(C, Mode::Exclusive, at_ms(3003)), Ok(()), "3 s without a word");
        assert_eq!(waiting(&claims, at_ms(3003)), [""; 0]);
    }

    #[test]
    fn a_queue_is_bounded_and_nobody_in_it_is_pushed_out() {
        let mut claims = Claims::default();
        claims.claim(A, Mode::Exclusive, at_ms(0)).unwrap();
        for turn in 0..2 {
            for host in 0..10 * QUEUE_MAX {
                claims.claim(&format!("10.0.0.{host}:1"), Mode::Exclusive, at_ms(turn)).unwrap_err();
            }
        }
        let names = waiting(&claims, at_ms(2));
        assert_eq!((names.len(), names[0]), (QUEUE_MAX, "10.0.0.0"));
    }

    #[test]
    fn what_is_taken_back_is_in_the_history_and_the_host_is_kept_out() {
        let mut claims = Claims::default();
        assert!(!claims.take_back(Some("mine"), None), "nobody holds it");
        claims.claim(A, Mode::Exclusive, at_ms(0)).unwrap();
        assert!(claims.explain(A, "a\nbackup") && !claims.explain(B, "no"));
        assert!(claims.take_back(Some("needed here"), Some(at_ms(5000))));
        claims.end(A, Ending::TakenBack, at_ms(100));
        let past = claims.history().last().unwrap();
        assert_eq!((past.holder.who.as_str(), past.until, past.ending), (A, at_ms(100), Ending::TakenBack));
        assert_eq!((past.holder.reason.as_deref(), past.remark.as_deref()), (Some("a backup"), Some("needed here")));
        assert_eq!(claims.claim("192.0.2.1:7", Mode::Exclusive, at_ms(4999)), Err(Refusal::KeptOut));
        assert_eq!(claims.claim(A, Mode::Exclusive, at_ms(5000)), Ok(()));
        claims.end(A, Ending::Detached, at_ms(5001));
        assert_eq!(claims.history().last().unwrap().remark, None, "a remark is of one use");
    }

    #[test]
    fn a_history_keeps_the_latest() {
        let mut claims = Claims::default();
        for use_ in 0..40 {
            claims.claim(&format!("h{use_}"), Mode::Exclusive, at_ms(use_)).unwrap();
            claims.end(&format!("h{use_}"), Ending::Detached, at_ms(use_));
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
