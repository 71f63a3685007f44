//! A directory on etcd with as many hosts and devices as a large site has: what a list takes, how soon a change is
//! seen, what is written while nothing happens, and what a daemon needs for it.
//!
//! The made-up hosts run the state machines of the daemon, each with connections of its own, and look for changes as
//! often as a daemon does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use farbus::model::Instant as Moment;
use farbus_directory::gateway::{EtcdCall, EtcdRefusal, EtcdReply, WatchUpdate, news};
use farbus_directory::http::{HttpResponsePart, ResponseReader, request};
use farbus_directory::key::HostId;
use farbus_directory::record::{DeviceRecord, HostRecord};
use farbus_directory::{DirectoryView, HostPublisher, publisher, view};
use serde_json::Value;

use crate::{
    lab::BenchmarkEnvironment,
    probe::resident_kib,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "directory";

const HOSTS: usize = 200;
pub(super) const DEVICES_OF_HOST: usize = 25;
const LIST_MS_MAX: f64 = 200.0;
const SEEN_MS_MAX: f64 = 1000.0;
const WRITES_MAX: f64 = 50.0;
const RESIDENT_MIB_MAX: f64 = 64.0;
/// How often a daemon looks at its devices.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long all hosts may take to say what they have.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(120);

/// What all made-up hosts share.
struct DirectorySite {
    address: String,
    began: Instant,
    is_over: AtomicBool,
    published: AtomicUsize,
    following: AtomicUsize,
    /// When each change was made, by its number.
    changes: Mutex<Vec<Instant>>,
    /// How long after that a watcher saw it, milliseconds.
    seen: Mutex<Vec<f64>>,
}

impl DirectorySite {
    fn now(&self) -> Moment {
        Moment::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A process that is killed with its folder.
pub(super) struct FolderProcess {
    child: Child,
    folder: PathBuf,
}

impl Drop for FolderProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn own_folder(name: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("farbus-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// An etcd of one member; returns where it serves clients.
pub(super) fn start_etcd() -> Result<(FolderProcess, String)> {
    let folder = own_folder("etcd")?;
    let taken = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [client, peer] = [taken[0].local_addr()?, taken[1].local_addr()?];
    drop(taken);
    let (at_client, at_peer) = (format!("http://{client}"), format!("http://{peer}"));
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(&folder)
        .args(["--listen-client-urls", &at_client, "--advertise-client-urls", &at_client])
        .args(["--listen-peer-urls", &at_peer, "--initial-advertise-peer-urls", &at_peer])
        .args(["--initial-cluster", &format!("default={at_peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("etcd (Debian: etcd-server) is needed")?;
    let running = FolderProcess { child, folder };
    let until = Instant::now() + Duration::from_secs(30);
    while raft_index(&client.to_string()).is_err() {
        if Instant::now() > until {
            bail!("etcd does not begin to serve");
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok((running, client.to_string()))
}

/// Sends a request and reads its answer.
fn post(stream: &mut TcpStream, address: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
    stream.write_all(&request(address, path, None, body))?;
    let (mut reader, mut status, mut answer) = (ResponseReader::default(), 0, Vec::new());
    let mut space = vec![0; 64 << 10];
    loop {
        while let Some(piece) = reader.poll()? {
            match piece {
                HttpResponsePart::Head(read) => status = read,
                HttpResponsePart::Body(more) => answer.extend(more),
                HttpResponsePart::End => return Ok((status, answer)),
            }
        }
        match stream.read(&mut space)? {
            0 => bail!("etcd closed the connection"),
            count => reader.handle(&space[..count]),
        }
    }
}

pub(super) fn call(stream: &mut TcpStream, address: &str, call: &EtcdCall) -> Result<Result<EtcdReply, EtcdRefusal>> {
    let (status, body) = post(stream, address, call.path(), &call.body())?;
    Ok(call.reply(status, &body))
}

/// How many entries etcd's log has: each write is one.
fn raft_index(address: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    let (_, body) = post(&mut stream, address, "/v3/maintenance/status", b"{}")?;
    let status: Value = serde_json::from_slice(&body)?;
    status["raftIndex"].as_str().and_then(|text| text.parse().ok()).ok_or_else(|| anyhow!("no status: {status}"))
}

pub(super) fn id_of(host: usize) -> HostId {
    let letter = |digit: usize| char::from(b'a' + u8::try_from(digit % 26).unwrap_or_default());
    let letters = [letter(host / 676), letter(host / 26), letter(host)];
    let text: String = letters.iter().chain(&['a'; 49]).collect();
    HostId::new(&text).expect("52 letters")
}

/// A device as a real one is: some 400 bytes.
pub(super) fn device(host: usize, number: usize) -> DeviceRecord {
    DeviceRecord {
        bus_id: format!("1-1.{number}"),
        ids: "0403:6001".to_owned(),
        title: "FTDI FT232R USB UART".to_owned(),
        speed: "full".to_owned(),
        interfaces: vec!["vendor specific".to_owned()],
        state: "available".to_owned(),
        labels: [("board", "imx8mp"), ("rev", "b")].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        place: Some(format!("rack {host}, shelf {number}")),
        id: Some(format!("{host:016x}{number:016x}")),
        at: "2026-11-27T00:00:00.000Z".to_owned(),
        ..DeviceRecord::default()
    }
}

/// Publishes one host until the end. The comment of its first device is the number of the latest change, if that is
/// this host's.
fn publish(site: &DirectorySite, host: usize) -> Result<()> {
    let mut stream = TcpStream::connect(&site.address)?;
    let mut publisher = HostPublisher::new(id_of(host), host as u64 + 1);
    let record = HostRecord { name: format!("host{host}"), ..HostRecord::default() };
    let names: Vec<String> = (0..DEVICES_OF_HOST).map(|number| format!("uart{number}")).collect();
    let mut devices: Vec<DeviceRecord> = (0..DEVICES_OF_HOST).map(|number| device(host, number)).collect();
    let mut look_at = site.now();
    let mut was_told = false;
    while !site.is_over() {
        let now = site.now();
        if now >= look_at {
            let latest = site.changes.lock().expect("no thread panics").len();
            if latest > 0 && latest % HOSTS == host {
                devices[0].comment = Some(latest.to_string());
            }
            publisher.want(&record, names.iter().map(String::as_str).zip(&devices));
            look_at = now + LOOK_EVERY;
        }
        match publisher.poll(now) {
            publisher::PublisherStep::Call(etcd_call) => {
                let answer = call(&mut stream, &site.address, &etcd_call)?;
                publisher.handle(answer, site.now());
            }
            publisher::PublisherStep::Wait(until) => {
                thread::sleep(until.map_or(look_at, |until| until.min(look_at)) - now)
            }
        }
        if publisher.is_told() && !was_told {
            was_told = true;
            site.published.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(trouble) = publisher.trouble() {
            bail!("host {host}: {trouble}");
        }
    }
    Ok(())
}

/// Follows all hosts until the end, and notes when each change was seen.
fn follow(site: &DirectorySite, host: usize) -> Result<()> {
    let mut view = DirectoryView::new(host as u64 + 1);
    let mut stream = TcpStream::connect(&site.address)?;
    loop {
        match view.poll(site.now()) {
            view::DirectoryViewStep::Call(etcd_call) => {
                let answer = call(&mut stream, &site.address, &etcd_call)?;
                view.handle(answer, site.now());
            }
            view::DirectoryViewStep::Wait(_) => bail!("a view waits: {:?}", view.trouble()),
            view::DirectoryViewStep::Watch(etcd_call) => {
                site.following.fetch_add(1, Ordering::Relaxed);
                return watch(site, &mut view, &etcd_call);
            }
        }
    }
}

fn watch(site: &DirectorySite, view: &mut DirectoryView, etcd_call: &EtcdCall) -> Result<()> {
    let mut stream = TcpStream::connect(&site.address)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(&request(&site.address, etcd_call.path(), None, &etcd_call.body()))?;
    let (mut reader, mut text) = (ResponseReader::default(), Vec::new());
    let mut space = vec![0; 64 << 10];
    while !site.is_over() {
        match stream.read(&mut space) {
            Ok(0) => bail!("etcd ended a watch"),
            Ok(count) => reader.handle(&space[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        while let Some(HttpResponsePart::Head(_) | HttpResponsePart::Body(_)) = reader.poll()?.inspect(|piece| {
            if let HttpResponsePart::Body(more) = piece {
                text.extend_from_slice(more);
            }
        }) {}
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let update = news(&line).map_err(|refusal| anyhow!("{refusal:?}"))?;
            if let WatchUpdate::Changes { changes, .. } = &update {
                let numbers = changes.iter().filter_map(|change| {
                    DeviceRecord::parse(change.value.as_deref()?).ok()?.comment?.parse::<usize>().ok()
                });
                for number in numbers {
                    let made = site.changes.lock().expect("no thread panics").get(number - 1).copied();
                    let took = made.map(|made| made.elapsed().as_secs_f64() * 1000.0);
                    site.seen.lock().expect("no thread panics").extend(took);
                }
            }
            view.handle_news(update, site.now());
        }
    }
    Ok(())
}

/// A daemon that follows the directory, and a command beside it.
pub(super) struct DirectoryDaemon<'a> {
    running: FolderProcess,
    program: &'a Path,
}

impl<'a> DirectoryDaemon<'a> {
    pub(super) fn start(program: &'a Path, address: &str) -> Result<Self> {
        let folder = own_folder("daemon")?;
        let file = folder.join("farbus.toml");
        std::fs::write(&file, format!("directory = 'etcd://{address}'\nplain.listen = []\n"))?;
        let mut command = Self::command(program, &folder);
        command.args(["daemon", "--config"]).arg(file).stdout(Stdio::null());
        Ok(Self { running: FolderProcess { child: command.spawn()?, folder }, program })
    }

    fn command(program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("FARBUS_STATE", folder.join("state")).env("XDG_RUNTIME_DIR", folder.join("run"));
        command.stdin(Stdio::null());
        command
    }

    pub(super) fn id(&self) -> u32 {
        self.running.child.id()
    }

    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        let output = Self::command(self.program, &self.running.folder).args(words).stderr(Stdio::null()).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

pub(super) fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + BEGIN_TIME_MAX;
    while !is_so() {
        if Instant::now() > until {
            bail!("not in time: {what}");
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let (etcd, address) = start_etcd()?;
    let site = Arc::new(DirectorySite {
        address: address.clone(),
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        published: AtomicUsize::new(0),
        following: AtomicUsize::new(0),
        changes: Mutex::default(),
        seen: Mutex::default(),
    });
    let mut threads = Vec::new();
    let mut spawn = |act: fn(&DirectorySite, usize) -> Result<()>, host: usize| {
        let site = Arc::clone(&site);
        threads.push(thread::spawn(move || act(&site, host)));
    };
    (0..HOSTS).for_each(|host| spawn(publish, host));
    wait("all hosts say what they have", || site.published.load(Ordering::Relaxed) == HOSTS)?;
    (0..HOSTS).for_each(|host| spawn(follow, host));
    wait("all hosts follow", || site.following.load(Ordering::Relaxed) == HOSTS)?;
    let findings = measure(lab, &site);
    site.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a made-up host panicked"))??;
    }
    drop(etcd);
    findings
}

fn measure(lab: &BenchmarkEnvironment, site: &DirectorySite) -> Result<Vec<BenchmarkFinding>> {
    let daemon = DirectoryDaemon::start(lab.farbus_program()?, &site.address)?;
    let devices = HOSTS * DEVICES_OF_HOST;
    wait("the daemon knows all devices", || {
        daemon.json(&["status", "--json"]).is_ok_and(|status| status[0]["directory"]["devices"] == devices)
    })?;
    let rounds = if lab.quick { 3 } else { 20 };
    let mut lists = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let listed = daemon.json(&["list", "--directory", "--json", "class=serial", "label:board=imx8*", "free"])?;
        lists.push(began.elapsed().as_secs_f64() * 1000.0);
        let count = listed.as_array().map_or(0, Vec::len);
        if count != devices {
            bail!("{count} devices are listed, not {devices}");
        }
    }
    let list = MeasuredQuantity::new(SampleSpread::new(lists), "ms");
    let mut findings = vec![BenchmarkFinding::absolute(
        NAME,
        format!("list of {devices} devices"),
        list,
        SpeedTarget::AtMost(LIST_MS_MAX),
    )];

    let rest = Duration::from_secs(if lab.quick { 10 } else { 60 });
    let (before, began) = (raft_index(&site.address)?, Instant::now());
    thread::sleep(rest);
    let writes = (raft_index(&site.address)? - before) as f64 / began.elapsed().as_secs_f64();
    let writes = MeasuredQuantity::new(SampleSpread::once(writes), "1/s");
    findings.push(BenchmarkFinding::absolute(
        NAME,
        format!("entries of etcd's log while {HOSTS} hosts only live"),
        writes,
        SpeedTarget::AtMost(WRITES_MAX),
    ));

    let changes = if lab.quick { 10 } else { 60 };
    for _ in 0..changes {
        site.changes.lock().expect("no thread panics").push(Instant::now());
        thread::sleep(Duration::from_millis(1100));
    }
    let mut seen = site.seen.lock().expect("no thread panics").clone();
    if seen.len() < HOSTS * changes * 99 / 100 {
        bail!("{} of {} sights", seen.len(), HOSTS * changes);
    }
    seen.sort_by(f64::total_cmp);
    let at = |part: usize| seen[(seen.len() * part / 1000).min(seen.len() - 1)];
    let detail = format!("median {:.0} ms, the latest {:.0} ms, {} sights", at(500), at(999), seen.len());
    let late = MeasuredQuantity::new(SampleSpread::once(at(990)), "ms");
    let what = format!("p99 until a change is seen by {HOSTS} watchers");
    findings.push(BenchmarkFinding::absolute(NAME, what, late, SpeedTarget::AtMost(SEEN_MS_MAX)).with_detail(detail));

    let resident = resident_kib(daemon.running.child.id())? as f64 / 1024.0;
    let resident = MeasuredQuantity::new(SampleSpread::once(resident), "MiB");
    let what = "a daemon that knows all of it".to_owned();
    findings.push(BenchmarkFinding::absolute(NAME, what, resident, SpeedTarget::AtMost(RESIDENT_MIB_MAX)));
    Ok(findings)
}
