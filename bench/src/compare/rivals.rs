//! Other NBD servers over one disk image, each with what carries the disk to this machine's programs.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::{
    benchmarks::database::ScratchFolder,
    lab::BenchmarkEnvironment,
    late::late,
    peers::{nbdkit::NbdLoadClient, tls},
};

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// A connection of either kind.
pub trait ByteStream: Read + Write {}
impl<T: Read + Write> ByteStream for T {}

pub type RivalClient = NbdLoadClient<Box<dyn ByteStream>>;

/// Programs, which are named like the packages that have them.
pub const NBDKIT: &str = "nbdkit";
pub const NBD_SERVER: &str = "nbd-server";

/// Why this program is left out, and what to type; `None` if it is here.
pub fn lacks(program: &str) -> Option<String> {
    let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_missing = found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_missing.then(|| format!("not installed; as root: apt-get install {program}"))
}

/// A running server; all its processes are killed when dropped.
pub struct NbdRival {
    pub name: &'static str,
    children: Vec<Child>,
    place: RivalPlace,
    /// When the last of its programs was started.
    started: Instant,
    /// From then until the disk can be used.
    pub attach_time: Duration,
}

enum RivalPlace {
    Path(PathBuf),
    Address(SocketAddr),
}

impl NbdRival {
    /// `nbdkit file` on a Unix socket: no network and no encryption.
    pub fn plain(lab: &BenchmarkEnvironment, folder: &ScratchFolder, image: &Path) -> Result<Self> {
        let socket = folder.path_of("nbdkit-plain");
        let mut command = nbdkit();
        command.arg("--unix").arg(&socket).arg("file").arg(image);
        let _ = fs::remove_file(&socket);
        Self::new("nbdkit plain", RivalPlace::Path(socket)).with_program(lab, command)?.answering()
    }

    /// `nbdkit file` behind TLS, `nbdkit nbd` as its client with a Unix socket for programs: what farbus does. Every
    /// byte between them is under way for this long.
    pub fn encrypted(
        lab: &BenchmarkEnvironment,
        folder: &ScratchFolder,
        image: &Path,
        each_way: Duration,
    ) -> Result<Self> {
        let (keys, socket) = (folder.folder("nbdkit-keys")?, folder.path_of("nbdkit-tls"));
        tls::write_certificate(&keys)?;
        let _ = fs::remove_file(&socket);
        let mut address = free_port()?;
        let mut server = nbdkit();
        server.args(["--ipaddr", "127.0.0.1", "--port", &address.port().to_string(), "--tls", "require"]);
        server.arg(word("--tls-certificates=", &keys)?).arg("file").arg(image);
        let mut rival = Self::new("nbdkit TLS", RivalPlace::Address(address)).with_program(lab, server)?;
        drop(rival.connect()?);
        if !each_way.is_zero() {
            address = late(address, each_way)?;
        }
        let mut client = nbdkit();
        client.arg("--unix").arg(&socket).args(["nbd", "hostname=127.0.0.1", "tls=require", "tls-verify=false"]);
        client.args([format!("port={}", address.port()), word("tls-certificates=", &keys)?]);
        rival.place = RivalPlace::Path(socket);
        rival.with_program(lab, client)?.answering()
    }

    /// `nbd-server` over TCP, not encrypted.
    pub fn nbd_server(lab: &BenchmarkEnvironment, image: &Path) -> Result<Self> {
        let address = free_port()?;
        let mut command = Command::new(NBD_SERVER);
        command.args([&format!("{}@{}", address.ip(), address.port()), word("", image)?.as_str(), "-d", "-C", ""]);
        // It serves one client and ends.
        Self::new("nbd-server plain", RivalPlace::Address(address)).with_program(lab, command)
    }

    fn new(name: &'static str, place: RivalPlace) -> Self {
        Self { name, children: Vec::new(), place, started: Instant::now(), attach_time: Duration::ZERO }
    }

    fn with_program(mut self, lab: &BenchmarkEnvironment, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.started = Instant::now();
        self.children.push(lab.placement.start_server(&mut command)?);
        Ok(self)
    }

    /// Once its disk was used once.
    fn answering(mut self) -> Result<Self> {
        self.client()?;
        self.attach_time = self.started.elapsed();
        Ok(self)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    pub fn client(&mut self) -> Result<RivalClient> {
        let stream = self.connect()?;
        NbdLoadClient::negotiate(stream).with_context(|| format!("{} does not offer its disk", self.name))
    }

    fn connect(&mut self) -> Result<Box<dyn ByteStream>> {
        let until = Instant::now() + START_MAX;
        loop {
            let connected: std::io::Result<Box<dyn ByteStream>> = match &self.place {
                RivalPlace::Path(path) => UnixStream::connect(path).map(|stream| Box::new(stream) as _),
                RivalPlace::Address(address) => TcpStream::connect(address)
                    .and_then(|stream| stream.set_nodelay(true).map(|()| Box::new(stream) as _)),
            };
            let error = match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    bail!("{} ended as it started: {status}", self.name);
                }
            }
            ensure!(Instant::now() < until, "{} does not listen: {error}", self.name);
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for NbdRival {
    fn drop(&mut self) {
        // Clients first: their servers would complain.
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn nbdkit() -> Command {
    let mut command = Command::new(NBDKIT);
    command.args(["--foreground", "--exit-with-parent"]);
    command
}

/// A port that was free a moment ago: these servers cannot choose one and say which.
fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn word(before: &str, path: &Path) -> Result<String> {
    let path = path.to_str().ok_or_else(|| anyhow!("{} is not a plain path", path.display()))?;
    Ok(format!("{before}{path}"))
}
