//! Sources of frames for stream exports, each with a thread that shows its frames.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use farbus_gadgets::picture::{FrameSourceGadget, GradientPicture};
use farbus_io_net::store::{FrameFile, frames};
use farbus_model::Device;
use farbus_model::limits::FRAME_BYTES_MAX;
use farbus_session::native::stream::{PixelFormat, StreamDescription, StreamFormat, StreamFrame};
use farbus_session::stream::FramePublisher;
use tracing::{info, warn};

use crate::broker::SystemAccess;
use crate::exporter::state::shared::STACK_BYTES;

/// The longest time before a source checks whether it has readers.
const GLANCE: Duration = Duration::from_secs(1);
/// Default rate of a test pattern, frames in 1000 s.
const RATE_MHZ: u32 = 30_000;
/// The highest rate that can be asked for, frames a second.
const RATE_HZ_MAX: f64 = 100_000.0;

/// A source, as a command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    source: StreamSourceSpec,
    description: StreamDescription,
    /// Time from frame to frame; `None`: as fast as frames are read.
    period: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamSourceSpec {
    Pattern,
    Path(PathBuf),
}

impl StreamSpec {
    /// The FIFO, device or file that the source reads, if it is not the pattern.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            StreamSourceSpec::Pattern => None,
            StreamSourceSpec::Path(path) => Some(path),
        }
    }

    /// Opens the source, or uses what another process opened and passed. Its frames go to all readers until the stage
    /// is closed. The returned USB device only describes the stream.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn open(
        &self,
        system: &SystemAccess,
        passed: Option<OwnedFd>,
    ) -> Result<(FramePublisher, Box<dyn Device>), String> {
        let frames = self.frames(system, passed)?;
        let starter = Arc::new(StreamThreadStarter::default());
        let for_stage = Arc::clone(&starter);
        let stage = FramePublisher::new(self.description, move || for_stage.wake());
        let runner = StreamSourceThread { stage: stage.clone(), frames, period: self.period, what: self.to_string() };
        *starter.runner() = Some(runner);
        let title = format!("stream of {}", self.description.format);
        Ok((stage.clone(), Box::new(FrameSourceGadget::device(&title, stage.tally()))))
    }

    fn frames(&self, system: &SystemAccess, passed: Option<OwnedFd>) -> Result<FrameSource, String> {
        let frame_bytes = self.description.frame_bytes_max as usize;
        match (&self.source, self.description.format) {
            (StreamSourceSpec::Path(path), _) => passed
                .map_or_else(|| system.open_frames(path), frames::received)
                .map(|file| FrameFile::new(file, frame_bytes))
                .map(FrameSource::File)
                .map_err(|error| format!("{}: {error}", path.display())),
            (StreamSourceSpec::Pattern, StreamFormat::Video { pixels, width, height, .. }) => {
                let point_bytes = pixels.bytes().unwrap_or(1) as usize;
                Ok(FrameSource::Pattern(GradientPicture::new(width.into(), height.into(), point_bytes)))
            }
            (StreamSourceSpec::Pattern, StreamFormat::Bytes) => {
                Ok(FrameSource::Pattern(GradientPicture::new(frame_bytes, 1, 1)))
            }
        }
    }
}

impl fmt::Display for StreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            StreamSourceSpec::Pattern => f.write_str("stream:pattern"),
            StreamSourceSpec::Path(path) => write!(f, "stream:{}", path.display()),
        }
    }
}

impl FromStr for StreamSpec {
    type Err = String;

    /// `pattern` or a path, then `size=640x480`, `format=rgb24`, `rate=30`, or `frame=BYTES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let source = match words.next() {
            None | Some("") => return Err("stream needs a source: stream:pattern or stream:PATH".to_owned()),
            Some("pattern") => StreamSourceSpec::Pattern,
            Some(path) => StreamSourceSpec::Path(path.into()),
        };
        let (mut size, mut pixels, mut rate_mhz, mut frame) = (None, PixelFormat::RGB24, None, None);
        for word in words {
            match word.split_once('=') {
                Some(("size", text)) => size = Some(size_from(text)?),
                Some(("format", text)) => {
                    pixels = PixelFormat::named(text)
                        .ok_or_else(|| format!("'{text}' is no format of pixels: there are rgb24, grey and yuyv"))?;
                }
                Some(("rate", text)) => rate_mhz = Some(rate_from(text)?),
                Some(("frame", text)) => {
                    let bytes = text.parse().ok().filter(|bytes| (1..=FRAME_BYTES_MAX).contains(bytes));
                    frame =
                        Some(bytes.ok_or_else(|| format!("a frame has 1 to {FRAME_BYTES_MAX} bytes, not '{text}'"))?);
                }
                _ => {
                    return Err(format!("a stream has no option '{word}': there are size=, format=, rate= and frame="));
                }
            }
        }
        let is_pattern = source == StreamSourceSpec::Pattern;
        let rate_mhz = rate_mhz.unwrap_or(if is_pattern { RATE_MHZ } else { 0 });
        let description = match (size, frame) {
            (Some(_), Some(_)) => return Err("frames have a size= or so many bytes (frame=), not both".to_owned()),
            (None, Some(frame_bytes_max)) => StreamDescription { format: StreamFormat::Bytes, frame_bytes_max },
            (None, None) if !is_pattern => {
                return Err("how long is a frame? say size=640x480,format=rgb24, or frame=BYTES".to_owned());
            }
            (size, None) => {
                let (width, height) = size.unwrap_or((640, 480));
                let bytes = u64::from(width) * u64::from(height) * u64::from(pixels.bytes().unwrap_or(1));
                let fitting = u32::try_from(bytes).ok().filter(|bytes| *bytes <= FRAME_BYTES_MAX);
                let frame_bytes_max = fitting
                    .ok_or_else(|| format!("a picture of {bytes} bytes is too large: {FRAME_BYTES_MAX} is most"))?;
                StreamDescription { format: StreamFormat::Video { pixels, width, height, rate_mhz }, frame_bytes_max }
            }
        };
        let period = (rate_mhz > 0).then(|| Duration::from_secs_f64(1000.0 / f64::from(rate_mhz)));
        Ok(Self { source, description, period })
    }
}

fn size_from(text: &str) -> Result<(u16, u16), String> {
    let sizes = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    sizes.filter(|&(width, height)| width > 0 && height > 0).ok_or_else(|| format!("'{text}' is no size: say 640x480"))
}

/// Parses a rate into frames in 1000 s.
fn rate_from(text: &str) -> Result<u32, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=RATE_HZ_MAX).contains(rate));
    let rate: f64 =
        rate.ok_or_else(|| format!("'{text}' is no rate: say frames a second, or 0 for as fast as they are read"))?;
    Ok((rate * 1000.0).round() as u32)
}

/// Where frames come from.
enum FrameSource {
    Pattern(GradientPicture),
    File(FrameFile),
}

/// Starts a source's thread when its first reader comes. By then the process has given up its rights, so the thread has
/// none.
#[derive(Default)]
struct StreamThreadStarter {
    runner: Mutex<Option<StreamSourceThread>>,
    thread: OnceLock<Thread>,
}

impl StreamThreadStarter {
    fn runner(&self) -> MutexGuard<'_, Option<StreamSourceThread>> {
        self.runner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waiting = self.runner().take();
        if let Some(runner) = waiting.filter(|runner| !runner.stage.is_closed()) {
            let (stage, what) = (runner.stage.clone(), runner.what.clone());
            let builder = thread::Builder::new().name("frames".into()).stack_size(STACK_BYTES);
            match builder.spawn(move || runner.run()) {
                Ok(thread) => drop(self.thread.set(thread.thread().clone())),
                Err(error) => {
                    warn!(source = what, %error, "no thread for it");
                    stage.close();
                }
            }
        }
        self.thread.get().into_iter().for_each(Thread::unpark);
    }
}

/// A source's thread.
struct StreamSourceThread {
    stage: FramePublisher,
    frames: FrameSource,
    period: Option<Duration>,
    what: String,
}

impl StreamSourceThread {
    fn run(mut self) {
        let began = Instant::now();
        let (mut sequence, mut due) = (0, began);
        while !self.stage.is_closed() {
            if !self.stage.is_watched() {
                // Without readers no frame is read: the writer of a FIFO blocks.
                thread::park_timeout(GLANCE);
                due = Instant::now();
                continue;
            }
            self.stage.set_within_frame(true);
            let made = self.make(sequence);
            self.stage.set_within_frame(false);
            let Some(data) = made else { break };
            self.wait_until(due);
            let made = Instant::now();
            due = self.period.map_or(made, |period| (due + period).max(made));
            let moment_ns = made.duration_since(began).as_nanos() as u64;
            self.show(StreamFrame { sequence, moment_ns, data: data.into() });
            sequence += 1;
        }
        self.stage.close();
        info!(source = self.what, frames = sequence, "the source has ended");
    }

    fn make(&mut self, sequence: u64) -> Option<Vec<u8>> {
        let stage = &self.stage;
        match &mut self.frames {
            FrameSource::Pattern(picture) => Some(picture.numbered(sequence)),
            FrameSource::File(file) => match file.read_frame(&|| stage.is_closed()) {
                Ok(frame) => frame,
                Err(error) => {
                    warn!(source = self.what, %error, "no more frames can be read");
                    None
                }
            },
        }
    }

    fn wait_until(&self, due: Instant) {
        while !self.stage.is_closed() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    /// Shows a frame, waiting until every reader that wants all frames has room for it.
    fn show(&self, mut frame: StreamFrame) {
        while let Err(back) = self.stage.show(frame) {
            if self.stage.is_closed() {
                return;
            }
            frame = back;
            thread::park_timeout(GLANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<StreamDescription, String> {
        text.parse::<StreamSpec>().map(|spec| spec.description)
    }

    #[test]
    fn stream_spec_parses_as_its_help_says() {
        let video = |pixels, width, height, rate_mhz, frame_bytes_max| {
            Ok(StreamDescription { format: StreamFormat::Video { pixels, width, height, rate_mhz }, frame_bytes_max })
        };
        assert_eq!(read("pattern"), video(PixelFormat::RGB24, 640, 480, 30_000, 640 * 480 * 3));
        assert_eq!(read("pattern,size=32x16,rate=29.97,format=yuyv"), video(PixelFormat::YUYV, 32, 16, 29_970, 1024));
        assert_eq!(read("/dev/video0,size=32x16,format=grey"), video(PixelFormat::GREY, 32, 16, 0, 512));
        assert_eq!(
            read("/run/fifo,frame=4096"),
            Ok(StreamDescription { format: StreamFormat::Bytes, frame_bytes_max: 4096 })
        );
        let path = |text: &str| text.parse::<StreamSpec>().unwrap().path().map(Path::to_owned);
        assert_eq!((path("pattern"), path("/run/fifo,frame=1")), (None, Some("/run/fifo".into())));
        for wrong in [
            "",
            "/run/fifo",
            "/run/fifo,frame=0",
            "/run/fifo,frame=99999999",
            "pattern,size=0x1",
            "pattern,size=64",
            "pattern,size=9999x9999",
            "pattern,format=mjpeg",
            "pattern,rate=-1",
            "pattern,rate=nan",
            "pattern,frame=1,size=1x1",
            "pattern,loud",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
