//! A thousand clients that follow the events of a page, without TLS and with it: what one costs, and when each is told.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    peers::tls::{self, TlsStream},
    probe::resident_kib,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

const CLIENTS: usize = 1000;
/// Connections that may show one token: fewer than the page allows.
const OF_TOKEN: usize = 50;
/// Tokens that the clients over TLS need.
pub const TOKENS: usize = CLIENTS.div_ceil(OF_TOKEN);
/// What one client may cost without TLS and with it, KiB.
const KIB_MAX: [f64; 2] = [48.0, 80.0];
/// An event is there within this time.
const TOLD_MS_MAX: f64 = 1000.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// A page, and how its clients are let in.
pub struct PageClientLoad<'a> {
    /// The number of its process that has the rights.
    pub pid: u32,
    /// Where its owner's programs connect, as `ADDRESS:PORT`.
    pub plain: &'a str,
    /// Where browsers of other machines connect.
    pub tls: SocketAddr,
    /// The name and port by which they ask for it.
    pub host: &'a str,
    /// The tokens that the clients show, each for [`OF_TOKEN`] of them.
    pub tokens: &'a [String],
    /// Changes a device, which has this title then.
    pub retitle: &'a dyn Fn(&str),
}

enum PageClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl PageClientStream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    fn stream(&mut self) -> &mut dyn ReadWrite {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &mut **stream,
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// The processes that a process has started.
fn children(pid: u32) -> Result<BTreeSet<u32>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).context("the page's processes")?;
    Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

impl PageClientLoad<'_> {
    /// A client that follows the devices, of whose answer the head has come.
    fn follow(&self, number: usize, is_tls: bool) -> Result<PageClientStream> {
        let (mut client, host, more) = match is_tls {
            false => {
                let stream = TcpStream::connect(self.plain)?;
                stream.set_nodelay(true)?;
                (PageClientStream::Plain(stream), self.plain, String::new())
            }
            true => {
                let token = &self.tokens[number / OF_TOKEN % self.tokens.len()];
                let client = PageClientStream::Tls(Box::new(tls::connect(self.tls)?));
                (client, self.host, format!("Cookie: __Host-farbus={token}\r\n"))
            }
        };
        client.socket().set_read_timeout(Some(PATIENCE))?;
        let stream = client.stream();
        write!(stream, "GET /events?view=%2F&version=0 HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")?;
        stream.flush()?;
        let mut text = Vec::new();
        while !text.windows(4).any(|window| window == b"\r\n\r\n") {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes)?;
            ensure!(count > 0, "client {number} is refused: {}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&bytes[..count]);
        }
        ensure!(text.starts_with(b"HTTP/1.1 200"), "client {number}: {}", String::from_utf8_lossy(&text));
        client.socket().set_nonblocking(true)?;
        Ok(client)
    }

    /// Changes a device; returns how long each client took to be told, milliseconds, the longest last. A client is told
    /// first to load the view again.
    fn change(&self, clients: &mut [PageClientStream], title: &str) -> Result<Vec<f64>> {
        let changed = Instant::now();
        (self.retitle)(title);
        let mut texts = vec![Vec::new(); clients.len()];
        let (mut left, mut took): (BTreeSet<usize>, Vec<f64>) = ((0..clients.len()).collect(), Vec::new());
        while !left.is_empty() {
            ensure!(changed.elapsed() < PATIENCE, "{} of {} clients were not told", left.len(), clients.len());
            let waiting: Vec<usize> = left.iter().copied().collect();
            let ready: Vec<usize> = {
                let mut waits: Vec<PollFd<'_>> = waiting
                    .iter()
                    .map(|at| PollFd::from_borrowed_fd(clients[*at].socket().as_fd(), PollFlags::IN))
                    .collect();
                poll(&mut waits, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
                let is_ready = |(at, wait): (&usize, &PollFd<'_>)| (!wait.revents().is_empty()).then_some(*at);
                waiting.iter().zip(&waits).filter_map(is_ready).collect()
            };
            for at in ready {
                let mut bytes = [0; 16 << 10];
                loop {
                    match clients[at].stream().read(&mut bytes) {
                        Ok(0) => bail!("client {at} lost its connection"),
                        Ok(count) => texts[at].extend_from_slice(&bytes[..count]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                let text = String::from_utf8_lossy(&texts[at]);
                if text.contains(title) || text.contains("event: reload") {
                    took.push(changed.elapsed().as_secs_f64() * 1000.0);
                    left.remove(&at);
                }
            }
        }
        took.sort_unstable_by(f64::total_cmp);
        Ok(took)
    }

    /// What one client costs in all processes of the page, KiB, and for each round how long each took to be told.
    fn measure(&self, is_tls: bool, rounds: u64) -> Result<(f64, Vec<Vec<f64>>)> {
        // The process for these clients starts with the first.
        drop(self.follow(0, is_tls)?);
        let processes: Vec<u32> = children(self.pid)?.into_iter().chain([self.pid]).collect();
        let resident = || processes.iter().map(|pid| resident_kib(*pid)).sum::<Result<u64>>();
        let before = resident()?;
        let mut clients =
            (0..CLIENTS).map(|number| self.follow(number, is_tls)).collect::<Result<Vec<PageClientStream>>>()?;
        let kind = if is_tls { "TLS" } else { "plain" };
        self.change(&mut clients, &format!("{kind} at first."))?;
        let times = (0..rounds).map(|round| self.change(&mut clients, &format!("{kind} round {round}.")));
        let times = times.collect::<Result<Vec<_>>>()?;
        Ok((resident()?.saturating_sub(before) as f64 / CLIENTS as f64, times))
    }

    /// The findings of a benchmark of this name, and the plot of them.
    pub fn run(&self, name: &'static str, rounds: u64) -> Result<(Vec<BenchmarkFinding>, LineChart)> {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("descriptors for the clients")?;
        let (mut findings, mut lines) = (Vec::new(), Vec::new());
        for (is_tls, kib_max) in [false, true].into_iter().zip(KIB_MAX) {
            let way = if is_tls { "over TLS" } else { "without TLS" };
            let (kib, times) = self.measure(is_tls, rounds)?;
            let of = |value| MeasuredQuantity::new(SampleSpread::once(value), "KiB");
            let what = format!("{CLIENTS} clients follow the events {way}: memory of one");
            findings.push(BenchmarkFinding::ratio(
                name,
                what,
                of(kib),
                ("its limit", of(kib_max)),
                SpeedTarget::AtMost(1.0),
            ));
            let at = |took: &Vec<f64>, percent: usize| took[(took.len() - 1) * percent / 100];
            for percent in [50, 99] {
                let what = format!("{CLIENTS} clients follow the events {way}: told after, p{percent}");
                let ms = MeasuredQuantity::new(
                    SampleSpread::new(times.iter().map(|took| at(took, percent)).collect()),
                    "ms",
                );
                findings.push(BenchmarkFinding::absolute(name, what, ms, SpeedTarget::AtMost(TOLD_MS_MAX)));
            }
            let mut all: Vec<f64> = times.concat();
            all.sort_unstable_by(f64::total_cmp);
            let points = (0..=100).map(|percent| (percent as f64, at(&all, percent))).collect();
            lines.push(ChartLine { name: way.to_owned(), points });
        }
        let chart = LineChart {
            title: "A thousand clients of a page: when they are told of a change (limit: 1,000 ms)".into(),
            across: "share of the clients, %".into(),
            panels: vec![ChartPanel { up: "ms".into(), is_logarithmic: false, lines }],
        };
        Ok((findings, chart))
    }
}
