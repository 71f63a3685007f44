//! The load generator: one thread that keeps a number of like transfers in flight.

use std::{
    collections::VecDeque,
    io::{IoSlice, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::usbip::{self, HEADER_BYTES, ReplyParser, TransferTemplate, UsbipDirection};

/// Large enough to take dozens of small replies in one receive, small enough to stay in the
/// second-level cache of the processor while they are taken apart.
pub const RECEIVE_BYTES: usize = 256 * 1024;

/// The most transfers kept in flight; what vhci and `usbtest` use is far below.
pub const DEPTH_MAX: usize = 64;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum LoadLimit {
    Elapsed(Duration),
    Urbs(u64),
}

/// What a run did.
#[derive(Clone)]
pub struct LoadTally {
    pub urbs: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// From the submission of a transfer to the receive that completed it.
    pub latency_ns: Histogram<u64>,
}

impl LoadTally {
    pub fn nothing() -> Self {
        // From 1 ns to 100 s, with three digits.
        let latency_ns = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds in order");
        Self { urbs: 0, bytes: 0, seconds: 0.0, latency_ns }
    }

    pub fn add(&mut self, other: &Self) {
        self.urbs += other.urbs;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.latency_ns.add(&other.latency_ns).expect("like bounds");
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    pub fn urbs_per_second(&self) -> f64 {
        self.urbs as f64 / self.seconds
    }

    pub fn latency_us(&self, percentile: f64) -> f64 {
        self.latency_ns.value_at_percentile(percentile) as f64 / 1000.0
    }
}

/// Requests of one kind, one at a time, until the time is over. `operate` carries one out; it gets the number of those
/// before it.
///
/// # Errors
/// A request's own.
pub fn one_at_a_time(limit: Duration, bytes: usize, mut operate: impl FnMut(u64) -> Result<()>) -> Result<LoadTally> {
    let mut tally = LoadTally::nothing();
    let began = Instant::now();
    let mut now = began;
    while now - began < limit {
        operate(tally.urbs)?;
        let done = Instant::now();
        tally.latency_ns.saturating_record((done - now).as_nanos() as u64);
        tally.urbs += 1;
        tally.bytes += bytes as u64;
        now = done;
    }
    tally.seconds = (now - began).as_secs_f64();
    Ok(tally)
}

/// When a transfer was submitted, and when its completion was received.
#[derive(Clone, Copy, Debug)]
pub struct UrbMoments {
    pub submitted: Instant,
    pub completed: Instant,
}

/// An imported and configured device.
pub struct UsbipLoadClient<S = TcpStream> {
    stream: S,
    devid: u32,
    next_seqnum: u32,
    receive: Vec<u8>,
    watchdog: HangWatchdog,
}

impl UsbipLoadClient {
    pub fn attach(address: SocketAddr, busid: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
        stream.set_nodelay(true)?;
        let socket = stream.try_clone()?;
        Self::attach_over(stream, socket, busid)
    }
}

impl<S: Read + Write> UsbipLoadClient<S> {
    /// Attaches over a stream of any kind; `socket` is the TCP socket below it.
    pub fn attach_over(mut stream: S, socket: TcpStream, busid: &str) -> Result<Self> {
        let watchdog = HangWatchdog::over(socket);
        let devid = usbip::import(&mut stream, busid)?;
        let mut client = Self { stream, devid, next_seqnum: 1, receive: vec![0; RECEIVE_BYTES], watchdog };
        client
            .run(&TransferTemplate::control(UsbipDirection::Out, usbip::SET_CONFIGURATION_1, 0), 1, LoadLimit::Urbs(1))
            .context("the device did not take its configuration")?;
        Ok(client)
    }

    /// Keeps `depth` of `transfer` in flight, and waits for the last one before it returns.
    pub fn run(&mut self, transfer: &TransferTemplate, depth: usize, until: LoadLimit) -> Result<LoadTally> {
        assert!((1..=DEPTH_MAX).contains(&depth), "a depth of {depth}");
        self.watchdog.turn();
        let result = if depth == 1 {
            self.run_one_at_a_time(transfer, until)
        } else {
            self.run_deep(transfer, depth, until, |_| ())
        };
        self.watchdog.turn();
        result
    }

    /// Keeps `depth` of `transfer` in flight until so many are complete; returns when each was.
    pub fn moments(&mut self, transfer: &TransferTemplate, depth: usize, urbs: u64) -> Result<Vec<UrbMoments>> {
        let mut all = Vec::with_capacity(urbs as usize);
        self.watchdog.turn();
        let result = self.run_deep(transfer, depth, LoadLimit::Urbs(urbs), |moments| all.push(moments));
        self.watchdog.turn();
        result.map(|_| all)
    }

    fn run_one_at_a_time(&mut self, transfer: &TransferTemplate, until: LoadLimit) -> Result<LoadTally> {
        let mut request = transfer.header(self.devid).to_vec();
        request.extend(transfer.payload_out());
        if self.receive.len() < HEADER_BYTES + transfer.bytes_in() {
            self.receive.resize(HEADER_BYTES + transfer.bytes_in(), 0);
        }
        let mut tally = LoadTally::nothing();
        let began = Instant::now();
        let mut now = began;
        while wants_more(until, now - began, tally.urbs) {
            let seqnum = self.take_seqnums(1);
            usbip::set_seqnum(&mut request, seqnum);
            usbip::exchange(&mut self.stream, &request, &mut self.receive, transfer, seqnum)?;
            let done = Instant::now();
            tally.latency_ns.saturating_record((done - now).as_nanos() as u64);
            tally.urbs += 1;
            now = done;
        }
        tally.bytes = tally.urbs * transfer.bytes as u64;
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }

    fn run_deep(
        &mut self,
        transfer: &TransferTemplate,
        depth: usize,
        until: LoadLimit,
        mut seen: impl FnMut(UrbMoments),
    ) -> Result<LoadTally> {
        let mut tally = LoadTally::nothing();
        let mut submissions = SubmitBatch::new(transfer, self.devid);
        let mut replies = ReplyParser::new(*transfer, self.next_seqnum);
        let mut submitted_at = VecDeque::with_capacity(depth);
        let mut submitted = 0;

        let began = Instant::now();
        let mut now = began;
        let mut room = depth;
        loop {
            let wanted = match until {
                LoadLimit::Elapsed(limit) if now - began >= limit => 0,
                LoadLimit::Elapsed(_) => room,
                LoadLimit::Urbs(limit) => room.min(usize::try_from(limit - submitted).unwrap_or(usize::MAX)),
            };
            if wanted > 0 {
                let seqnum = self.take_seqnums(wanted);
                submissions.send(&mut self.stream, seqnum, wanted)?;
                submitted_at.extend(std::iter::repeat_n(now, wanted));
                submitted += wanted as u64;
            }
            if submitted_at.is_empty() {
                break;
            }
            let received = usbip::read_some(&mut self.stream, &mut self.receive)?;
            room = replies.feed(&self.receive[..received])?;
            now = Instant::now();
            for submitted_at in submitted_at.drain(..room) {
                tally.latency_ns.saturating_record((now - submitted_at).as_nanos() as u64);
                seen(UrbMoments { submitted: submitted_at, completed: now });
            }
            tally.urbs += room as u64;
        }
        tally.bytes = tally.urbs * transfer.bytes as u64;
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }

    /// The first of `count` sequence numbers in a row.
    fn take_seqnums(&mut self, count: usize) -> u32 {
        let first = self.next_seqnum;
        self.next_seqnum = first.wrapping_add(count as u32);
        first
    }
}

/// Ends a run that hangs because a server lost a request, by closing the connection.
///
/// A receive timeout would do so with one line, but it arms a timer for every receive that waits, which the bare loop
/// for comparison does not.
struct HangWatchdog {
    turns: mpsc::Sender<()>,
}

impl HangWatchdog {
    /// The longest run by count takes some ten seconds.
    const RUN_MAX: Duration = Duration::from_secs(60);

    fn over(stream: TcpStream) -> Self {
        let (turns, turned) = mpsc::channel();
        thread::spawn(move || {
            while turned.recv().is_ok() {
                if turned.recv_timeout(Self::RUN_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
        Self { turns }
    }

    /// A run begins, or ends.
    fn turn(&self) {
        let _ = self.turns.send(());
    }
}

fn wants_more(until: LoadLimit, elapsed: Duration, urbs: u64) -> bool {
    match until {
        LoadLimit::Elapsed(limit) => elapsed < limit,
        LoadLimit::Urbs(limit) => urbs < limit,
    }
}

/// Commands that differ in their sequence numbers only, sent many at a time.
struct SubmitBatch {
    headers: Vec<u8>,
    payload: Vec<u8>,
}

impl SubmitBatch {
    fn new(transfer: &TransferTemplate, devid: u32) -> Self {
        let headers = transfer.header(devid).repeat(DEPTH_MAX);
        Self { headers, payload: transfer.payload_out() }
    }

    fn send(&mut self, stream: &mut impl Write, first_seqnum: u32, count: usize) -> Result<()> {
        let headers = &mut self.headers[..count * HEADER_BYTES];
        for (header, seqnum) in headers.chunks_exact_mut(HEADER_BYTES).zip((0..).map(|n| first_seqnum.wrapping_add(n)))
        {
            usbip::set_seqnum(header, seqnum);
        }
        if self.payload.is_empty() {
            stream.write_all(headers)?;
            return Ok(());
        }
        // All commands share one payload: the content of the data is not measured.
        let mut slices = [IoSlice::new(&[]); 2 * DEPTH_MAX];
        for (pair, header) in slices.chunks_exact_mut(2).zip(headers.chunks_exact(HEADER_BYTES)) {
            pair[0] = IoSlice::new(header);
            pair[1] = IoSlice::new(&self.payload);
        }
        write_all_vectored(stream, &mut slices[..2 * count])
    }
}

/// `Write::write_all_vectored`, which the standard library does not offer on stable yet.
pub fn write_all_vectored(stream: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> Result<()> {
    while !slices.is_empty() {
        let written = stream.write_vectored(slices)?;
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}
