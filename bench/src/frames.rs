//! Raw frames from a source to a sink, through pipelines and over a link: the networked device driver of the paper on
//! transformation modules (2013), with both its ends in this process.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use farbus::{
    importer::session::bare::{
        BoottimeClock,
        pipelines::{
            ModulePipeline,
            module::{ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput},
        },
    },
    model::Payload,
};

/// Bytes that the shaped link takes at a time: half a millisecond of 100 Mb/s.
const PIECE_BYTES: usize = 6000;
/// Bytes that a shaped link buffers, like a card and a switch; the system doubles it.
const HELD_BYTES: usize = 64 << 10;
/// Bytes before a message on the link: the lengths of its head and its payload.
const WORDS_BYTES: usize = 8;

/// A link for frames.
pub struct FrameLink {
    to: TcpStream,
    from: TcpStream,
}

impl FrameLink {
    /// A link over loopback, shaped to this rate if one is given.
    pub fn new(bits_per_s: Option<u64>) -> Result<Self> {
        let (to, from) = pair()?;
        let Some(bits_per_s) = bits_per_s else { return Ok(Self { to, from }) };
        let (paced, far) = pair()?;
        rustix::net::sockopt::set_socket_send_buffer_size(&to, HELD_BYTES)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&from, HELD_BYTES)?;
        thread::spawn(move || pace(from, paced, bits_per_s));
        Ok(Self { to, from: far })
    }

    /// Carries `count` frames; returns the mean seconds from one to the next at the sink. With `waits`, each frame
    /// begins when the one before it has been shown; without, the source is as fast as the link permits.
    pub fn carry(&mut self, ends: &mut [ModulePipeline; 2], bytes: usize, count: usize, waits: bool) -> Result<f64> {
        let [exporter, importer] = ends;
        let frame: Arc<[u8]> = (0..bytes).map(|at| at as u8).collect();
        let (shown, seen) = mpsc::channel();
        let from = &mut self.from;
        thread::scope(|scope| {
            let sink = scope.spawn(move || show(from, importer, bytes, count, &shown));
            let clock = BoottimeClock::start();
            let source = (0..count).try_for_each(|at| {
                if waits && at > 0 {
                    seen.recv().map_err(|_| anyhow!("the sink has ended"))?;
                }
                let payload = Payload::shared(&frame, 0..bytes);
                let message =
                    ModuleMessage { kind: ModuleMessageKind::Event, id: 0, head: vec![7; 12].into(), payload };
                send(&mut self.to, &through(exporter, clock, ModuleNeighbor::Above, message)?)
            });
            if let Err(error) = source {
                // No more bytes follow.
                self.to.shutdown(std::net::Shutdown::Both)?;
                return Err(error);
            }
            let shown = sink.join().map_err(|_| anyhow!("the sink fell over"))??;
            let span = shown.last().zip(shown.first()).map(|(last, first)| *last - *first);
            Ok(span.unwrap_or_default().as_secs_f64() / (count - 1) as f64)
        })
    }
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Passes bytes on at a steady rate, until either end closes.
fn pace(mut from: TcpStream, mut to: TcpStream, bits_per_s: u64) {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut piece = [0; PIECE_BYTES];
    let mut free = Instant::now();
    loop {
        let count = match from.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // An idle link accumulates no credit.
        free = free.max(Instant::now()) + Duration::from_secs_f64(count as f64 * 8.0 / bits_per_s as f64);
        thread::sleep(free.saturating_duration_since(Instant::now()));
        if to.write_all(&piece[..count]).is_err() {
            return;
        }
    }
}

fn show(
    from: &mut TcpStream,
    importer: &mut ModulePipeline,
    bytes: usize,
    count: usize,
    shown: &mpsc::Sender<()>,
) -> Result<Vec<Instant>> {
    let clock = BoottimeClock::start();
    let mut moments = Vec::with_capacity(count);
    for _ in 0..count {
        let message = through(importer, clock, ModuleNeighbor::Below, receive(from)?)?;
        let payload = &message.payload;
        ensure!(payload.len() == bytes, "a frame of {} bytes, not {bytes}", payload.len());
        let last = payload.runs().last().and_then(|run| run.last().copied());
        ensure!(last == Some((bytes - 1) as u8), "a frame arrives as it was sent");
        moments.push(Instant::now());
        // At the end no receiver is left.
        let _ = shown.send(());
    }
    Ok(moments)
}

/// Passes one message through a pipeline.
fn through(
    pipeline: &mut ModulePipeline,
    clock: BoottimeClock,
    from: ModuleNeighbor,
    message: ModuleMessage,
) -> Result<ModuleMessage> {
    let mut turn = ModuleOutput::default();
    pipeline.handle(clock.now(), from, message, &mut turn);
    if let Some(failure) = turn.failure() {
        return Err(anyhow!(failure.why));
    }
    let (_, message) = turn.pop().context("null pairs keep nothing back")?;
    Ok(message)
}

fn send(to: &mut TcpStream, message: &ModuleMessage) -> Result<()> {
    let lengths = [message.head.len(), message.payload.len()].map(|length| (length as u32).to_le_bytes());
    to.write_all(&[lengths.concat(), message.head.contiguous().into_owned()].concat())?;
    message.payload.runs().try_for_each(|run| to.write_all(run))?;
    Ok(())
}

fn receive(from: &mut TcpStream) -> Result<ModuleMessage> {
    let mut words = [0; WORDS_BYTES];
    from.read_exact(&mut words)?;
    let [head, payload] =
        [0, 4].map(|at| u32::from_le_bytes(words[at..at + 4].try_into().expect("four bytes")) as usize);
    let mut bytes = vec![0; head];
    from.read_exact(&mut bytes)?;
    let mut data = vec![0; payload];
    from.read_exact(&mut data)?;
    Ok(ModuleMessage { kind: ModuleMessageKind::Event, id: 0, head: bytes.into(), payload: data.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shaped_link_carries_no_more_than_its_rate() {
        let mut ends = [ModulePipeline::new(Vec::new()), ModulePipeline::new(Vec::new())];
        let mut shaped = FrameLink::new(Some(80_000_000)).unwrap();
        let began = Instant::now();
        let seconds = shaped.carry(&mut ends, 100_000, 20, false).unwrap();
        // 10 ms a frame: whatever else the machine does, all frames take at least that long.
        assert!(seconds > 0.0 && began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        let mut open = FrameLink::new(None).unwrap();
        for waits in [true, false] {
            let seconds = open.carry(&mut ends, 100_000, 20, waits).unwrap();
            assert!(seconds > 0.0, "{seconds}");
        }
    }
}
