//! The newest picture of a stream, while somebody looks at it.
//!
//! The command of such an operation (`farbus stream read --observe --pictures`) has given its rights away before it
//! reads a frame. It prints pictures one behind the other; of them the newest whole one is kept, and none after the
//! operation has ended.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::pictures::{EncodedPicture, PictureSplitter};

/// The longest picture, bytes: one of 1920x1080 pixels that cannot be compressed fits.
pub const PICTURE_BYTES_MAX: usize = 6 << 20;
/// Streams that are looked at, at a time.
pub const PICTURES_MAX: usize = 4;
/// What is read of a command's output at once, bytes.
pub const READ_BYTES: usize = 64 << 10;
/// An operation ends when nobody has fetched its picture for so long.
const UNSEEN_TIME_MAX: Duration = Duration::from_secs(20);
/// It ends after this time, also while it is fetched.
const TIME_MAX: Duration = Duration::from_secs(600);
/// How often it is looked whether it has to end, while no picture comes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pictures over which their rate is measured.
const RATED: usize = 8;

/// What an operation shows of a stream. Clones are the same.
#[derive(Clone, Debug)]
pub struct PictureBuffer(Arc<Mutex<BufferedPicture>>);

#[derive(Debug)]
struct BufferedPicture {
    begun: Instant,
    /// When its picture was fetched last.
    seen: Instant,
    newest: Option<Bytes>,
    count: u64,
    /// When the latest pictures came.
    came: VecDeque<Instant>,
}

impl PictureBuffer {
    /// One that begins now and shows nothing yet.
    pub fn new(now: Instant) -> Self {
        let came = VecDeque::with_capacity(RATED);
        Self(Arc::new(Mutex::new(BufferedPicture { begun: now, seen: now, newest: None, count: 0, came })))
    }

    fn shown(&self) -> MutexGuard<'_, BufferedPicture> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest picture, for somebody who looks at it now; `None`: there is none yet, or it has ended.
    pub fn look(&self, now: Instant) -> Option<Bytes> {
        let mut shown = self.shown();
        shown.seen = shown.seen.max(now);
        shown.newest.clone()
    }

    /// Shows the pictures that a command prints, until it ends or has to. `tell` gets what the operation says of them
    /// after each, and at the end if it has to end. Then the picture is forgotten. Returns whether it has to end.
    pub fn show_all(&self, stdout: &mut (impl Read + AsFd), mut tell: impl FnMut(Value)) -> bool {
        let mut answer = json!({ "pictures": 0 });
        let why = self.show_until(stdout, |progress| {
            answer = progress;
            tell(answer.clone());
        });
        self.shown().newest = None;
        if let Some(why) = &why {
            answer["ended"] = json!(why);
            tell(answer);
        }
        why.is_some()
    }

    /// Returns why it has to end; `None`: the command has ended.
    fn show_until(&self, stdout: &mut (impl Read + AsFd), mut tell: impl FnMut(Value)) -> Option<String> {
        let mut splitter = PictureSplitter::new(PICTURE_BYTES_MAX);
        let mut bytes = vec![0; READ_BYTES];
        loop {
            if let Some(why) = self.shown().is_over(Instant::now()) {
                return Some(why.to_owned());
            }
            match wait_for_bytes(stdout) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return None,
            }
            let Ok(read @ 1..) = stdout.read(&mut bytes) else { return None };
            splitter.add(&bytes[..read]);
            loop {
                match splitter.poll_picture() {
                    Ok(Some(whole)) => {
                        let progress = self.shown().show(whole, Instant::now());
                        tell(progress);
                    }
                    Ok(None) => break,
                    Err(no_picture) => return Some(no_picture.to_string()),
                }
            }
        }
    }
}

impl BufferedPicture {
    /// Shows a picture in place of the one before. Returns what the operation says of it.
    fn show(&mut self, whole: EncodedPicture, now: Instant) -> Value {
        self.count += 1;
        if self.came.len() == RATED {
            self.came.pop_front();
        }
        self.came.push_back(now);
        let span = self.came.front().map_or(Duration::ZERO, |first| now - *first).as_secs_f64();
        let per_second = if span > 0.0 { (self.came.len() - 1) as f64 / span } else { 0.0 };
        self.newest = Some(Bytes::from(whole.bytes));
        json!({
            "pictures": self.count, "width": whole.width, "height": whole.height, "type": whole.kind.media_type(),
            "per_second": (per_second * 10.0).round() / 10.0,
        })
    }

    /// Why it has to end, if it has to.
    fn is_over(&self, now: Instant) -> Option<&'static str> {
        if now.duration_since(self.begun) >= TIME_MAX {
            return Some("it has run for 10 minutes");
        }
        (now.duration_since(self.seen) >= UNSEEN_TIME_MAX).then_some("nobody has looked for 20 s")
    }
}

/// Waits until there is something to be read, or it has ended; at most [`LOOK_EVERY`]. Returns whether there is.
fn wait_for_bytes(of: &impl AsFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(of, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)).map_err(io::Error::from) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use farbus_session::native::stream::{PixelFormat, StreamDescription, StreamFormat};

    use super::*;
    use crate::pictures::{PictureEncoder, PictureFormat};

    fn whole(byte: u8) -> EncodedPicture {
        EncodedPicture { kind: PictureFormat::Png, width: 64, height: 48, bytes: vec![byte; 4] }
    }

    #[test]
    fn a_screen_keeps_the_newest_picture_and_says_how_fast_they_come() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let screen = PictureBuffer::new(begun);
        assert_eq!(screen.look(begun), None);
        assert_eq!(screen.shown().show(whole(0), at(0))["per_second"], 0.0, "one has no rate");
        for number in 1..20_u8 {
            let answer = screen.shown().show(whole(number), at(250 * u64::from(number)));
            assert_eq!((&answer["pictures"], &answer["per_second"]), (&json!(number + 1), &json!(4.0)));
            assert_eq!(answer["type"], "image/png");
        }
        assert_eq!(screen.look(at(5000)).as_deref(), Some(&[19; 4][..]));
        assert!(screen.shown().came.len() <= RATED);
    }

    #[test]
    fn a_screen_ends_when_nobody_looks_and_after_ten_minutes_in_any_case() {
        let begun = Instant::now();
        let screen = PictureBuffer::new(begun);
        let at = |s: u64| begun + Duration::from_secs(s);
        assert_eq!(screen.shown().is_over(at(19)), None);
        assert_eq!(screen.shown().is_over(at(20)), Some("nobody has looked for 20 s"));
        for s in (0..600).step_by(10) {
            screen.look(at(s));
            assert_eq!(screen.shown().is_over(at(s + 9)), None, "{s} s");
        }
        screen.look(at(600));
        assert_eq!(screen.shown().is_over(at(600)), Some("it has run for 10 minutes"));
    }

    #[test]
    fn what_is_no_picture_ends_it_and_nothing_is_kept_of_what_was_shown() {
        let (mut stdout, mut theirs) = io::pipe().unwrap();
        let screen = PictureBuffer::new(Instant::now());
        let mut png = Vec::new();
        let format = StreamFormat::Video { pixels: PixelFormat::GREY, width: 2, height: 2, rate_mhz: 0 };
        let painter = PictureEncoder::of(&StreamDescription { format, frame_bytes_max: 4 }).unwrap();
        png.extend_from_slice(&painter.paint(&[1, 2, 3, 4]).unwrap());
        let writer = std::thread::spawn(move || {
            io::Write::write_all(&mut theirs, &[&png[..], b"<html><script>"].concat()).unwrap();
        });
        let mut reported = Vec::new();
        assert!(screen.show_all(&mut stdout, |answer| reported.push((answer, screen.look(Instant::now()).is_some()))));
        writer.join().unwrap();
        let [(first, is_shown), (last, is_kept)] = &reported[..] else { panic!("{reported:?}") };
        assert_eq!((&first["pictures"], &first["width"], *is_shown), (&json!(1), &json!(2), true));
        assert_eq!((&last["ended"], *is_kept), (&json!("what came is no picture"), false));
    }
}
