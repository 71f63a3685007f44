//! The newest picture of a stream, while somebody looks at it.
//!
//! The command of such an operation (`farbus stream read --observe --pictures`) has given its rights away before it
//! reads a frame. It prints pictures one behind the other; of them the newest whole one is kept, and none after the
//! operation has ended.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::operations::Operations;
use crate::common::pictures::{NoPicture, Splitter, Whole};

/// The longest picture, bytes: one of 1920x1080 pixels that cannot be compressed fits.
pub const PICTURE_BYTES_MAX: usize = 6 << 20;
/// Streams that are looked at, at a time.
pub const PICTURES_MAX: usize = 4;
/// What is read of a command's output at once, bytes.
pub const READ_BYTES: usize = 64 << 10;
/// An operation ends when nobody has fetched its picture for so long.
const UNSEEN_TIME_MAX: Duration = Duration::from_secs(20);
/// It ends after this time, whoever fetches it.
const TIME_MAX: Duration = Duration::from_secs(600);
/// How often it is looked whether it has to end, while no picture comes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pictures over which their rate is measured.
const RATED: usize = 8;

/// What an operation shows of a stream.
#[derive(Debug)]
pub struct Screen {
    begun: Instant,
    /// When its picture was fetched last.
    seen: Instant,
    newest: Option<Bytes>,
    count: u64,
    /// When the latest pictures came.
    came: VecDeque<Instant>,
}

impl Screen {
    /// One that begins now and shows nothing yet.
    pub fn new(now: Instant) -> Self {
        Self { begun: now, seen: now, newest: None, count: 0, came: VecDeque::with_capacity(RATED) }
    }

    /// The newest picture, for somebody who looks at it now.
    pub fn look(&mut self, now: Instant) -> Option<Bytes> {
        self.seen = self.seen.max(now);
        self.newest.clone()
    }

    /// Shows a picture in place of the one before. Returns what the operation says of it.
    fn show(&mut self, whole: Whole, now: Instant) -> Value {
        self.count += 1;
        if self.came.len() == RATED {
            self.came.pop_front();
        }
        self.came.push_back(now);
        let span = self.came.front().map_or(Duration::ZERO, |first| now - *first).as_secs_f64();
        let per_second = if span > 0.0 { (self.came.len() - 1) as f64 / span } else { 0.0 };
        let said = json!({
            "pictures": self.count, "width": whole.width, "height": whole.height, "type": whole.kind.media_type(),
            "per_second": (per_second * 10.0).round() / 10.0,
        });
        self.newest = Some(Bytes::from(whole.bytes));
        said
    }

    /// Why it has to end, if it has to.
    fn is_over(&self, now: Instant) -> Option<&'static str> {
        if now.duration_since(self.begun) >= TIME_MAX {
            return Some("it has run for 10 minutes");
        }
        (now.duration_since(self.seen) >= UNSEEN_TIME_MAX).then_some("nobody has looked for 20 s")
    }
}

impl Operations {
    /// Shows the pictures that the command of an operation prints, until it ends or has to. Then its picture is
    /// forgotten.
    pub fn show_pictures(&self, id: u64, stdout: &mut (impl Read + AsFd)) {
        let why = self.show_until(id, stdout);
        self.with_screen(id, |screen, operation| {
            screen.newest = None;
            if let Some(why) = &why {
                operation.progress.get_or_insert_with(|| json!({ "pictures": 0 }))["ended"] = json!(why);
            }
        });
        if why.is_some() {
            self.stop(id);
        }
    }

    /// Returns why it has to end; `None`: the command has ended.
    fn show_until(&self, id: u64, stdout: &mut (impl Read + AsFd)) -> Option<String> {
        let mut splitter = Splitter::new(PICTURE_BYTES_MAX);
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let over = self.with_screen(id, |screen, _| screen.is_over(Instant::now()));
            match over {
                // It is forgotten.
                None => return Some("too many operations came after it".to_owned()),
                Some(Some(why)) => return Some(why.to_owned()),
                Some(None) => {}
            }
            match wait_for_bytes(stdout) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return None,
            }
            let Ok(read @ 1..) = stdout.read(&mut bytes) else { return None };
            splitter.add(&bytes[..read]);
            match self.show_all(id, &mut splitter) {
                Ok(()) => {}
                Err(no_picture) => return Some(no_picture.to_string()),
            }
        }
    }

    fn show_all(&self, id: u64, splitter: &mut Splitter) -> Result<(), NoPicture> {
        while let Some(whole) = splitter.poll_picture()? {
            self.with_screen(id, |screen, operation| operation.progress = Some(screen.show(whole, Instant::now())));
        }
        Ok(())
    }
}

/// Waits until there is something to be read, or it has ended; at most [`LOOK_EVERY`]. Returns whether there is.
fn wait_for_bytes(of: &impl AsFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(of, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::pictures::Kind;

    fn whole(byte: u8) -> Whole {
        Whole { kind: Kind::Png, width: 64, height: 48, bytes: vec![byte; 4] }
    }

    #[test]
    fn a_screen_keeps_the_newest_picture_and_says_how_fast_they_come() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut screen = Screen::new(begun);
        assert_eq!(screen.look(begun), None);
        assert_eq!(screen.show(whole(0), at(0))["per_second"], 0.0, "one has no rate");
        for number in 1..20_u8 {
            let said = screen.show(whole(number), at(250 * u64::from(number)));
            assert_eq!((&said["pictures"], &said["per_second"]), (&json!(number + 1), &json!(4.0)));
            assert_eq!(said["type"], "image/png");
        }
        assert_eq!(screen.look(at(5000)).as_deref(), Some(&[19; 4][..]));
        assert!(screen.came.len() <= RATED);
    }

    #[test]
    fn a_screen_ends_when_nobody_looks_and_after_ten_minutes_whoever_does() {
        let begun = Instant::now();
        let mut screen = Screen::new(begun);
        let at = |s: u64| begun + Duration::from_secs(s);
        assert_eq!(screen.is_over(at(19)), None);
        assert_eq!(screen.is_over(at(20)), Some("nobody has looked for 20 s"));
        for s in (0..600).step_by(10) {
            screen.look(at(s));
            assert_eq!(screen.is_over(at(s + 9)), None, "{s} s");
        }
        screen.look(at(600));
        assert_eq!(screen.is_over(at(600)), Some("it has run for 10 minutes"));
    }
}
