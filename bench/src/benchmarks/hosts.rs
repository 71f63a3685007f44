//! Three paired hosts on this machine: one shares a disk, and the disk may be attached at each of them in turn.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::database::{LineProcess, ScratchFolder};
use crate::lab::BenchmarkEnvironment;

/// The hosts, and the share of the disk.
pub struct DiskHostTrio<'a> {
    pub lab3: BenchmarkHost<'a>,
    pub desk: BenchmarkHost<'a>,
    pub rack: BenchmarkHost<'a>,
    /// Where the exporter listens for paired hosts.
    pub address: String,
    _share: LineProcess,
}

impl<'a> DiskHostTrio<'a> {
    pub fn new(lab: &'a BenchmarkEnvironment, folder: &ScratchFolder, image: &Path) -> Result<Self> {
        let host = |name| BenchmarkHost::new(lab, folder, name);
        let [lab3, desk, rack] = [host(EXPORTER)?, host("desk")?, host("rack")?];
        for importer in [&desk, &rack] {
            lab3.pair(importer)?;
            lab3.ok(&["allow", importer.name, "all"])?;
        }
        desk.pair(&rack)?;
        let disk = format!("disk:{},name=disk", image.display());
        let mut share = lab3.start(&["share", &disk, "--secure", "127.0.0.1:0"])?;
        let line = share.wait_for("for paired hosts")?;
        let address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();
        Ok(Self { lab3, desk, rack, address, _share: share })
    }
}

/// A host of its own: processes of one do not find those of another.
pub struct BenchmarkHost<'a> {
    pub name: &'static str,
    lab: &'a BenchmarkEnvironment,
    /// A copy of the program.
    own_program: Option<PathBuf>,
    state: PathBuf,
    run: PathBuf,
}

impl<'a> BenchmarkHost<'a> {
    pub fn new(lab: &'a BenchmarkEnvironment, folder: &ScratchFolder, name: &'static str) -> Result<Self> {
        Ok(Self {
            name,
            lab,
            own_program: None,
            state: folder.path_of(name),
            run: folder.folder(&format!("run-{name}"))?,
        })
    }

    /// The host with a file of the program of its own: as on another machine, its processes share the program's code
    /// in memory with each other and with no other host's.
    pub fn with_own_program(self, folder: &ScratchFolder) -> Result<Self> {
        let own_program = folder.path_of(&format!("farbus-{}", self.name));
        fs::copy(self.lab.farbus_program()?, &own_program).context("cannot copy the program")?;
        Ok(Self { own_program: Some(own_program), ..self })
    }

    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = match &self.own_program {
            Some(program) => Command::new(program),
            None => Command::new(self.lab.farbus_program()?),
        };
        command.args(words).env("XDG_RUNTIME_DIR", &self.run).env("FARBUS_STATE", &self.state);
        command.env("FARBUS_NAME", self.name);
        Ok(command)
    }

    pub fn start(&self, words: &[&str]) -> Result<LineProcess> {
        LineProcess::start(self.command(words)?)
    }

    pub fn ok(&self, words: &[&str]) -> Result<()> {
        let ended = self.command(words)?.output()?;
        match ended.status.success() {
            true => Ok(()),
            false => bail!("farbus {words:?}: {}", String::from_utf8_lossy(&ended.stderr)),
        }
    }

    pub fn pair(&self, joins: &BenchmarkHost<'_>) -> Result<()> {
        let mut waiting = self.start(&["pair", "--listen", "127.0.0.1:0", "--json"])?;
        let answer: Value = serde_json::from_str(&waiting.wait_for("\"code\"")?)?;
        let word =
            |what: &str| answer[what].as_str().map(str::to_owned).context("a host that pairs says where and how");
        joins.ok(&["pair", &word("address")?, &word("code")?])?;
        // The other end may know it first.
        waiting.end()
    }

    /// The disk as this host names it.
    pub fn disk(&self) -> &'static str {
        if self.name == EXPORTER { "disk" } else { "lab3/disk" }
    }
}

/// The host whose disk it is.
pub const EXPORTER: &str = "lab3";

/// The disk at one host, as a machine there has it.
pub struct DiskAttachment {
    pub process: LineProcess,
    pub socket: PathBuf,
    /// Where its process is asked.
    control: PathBuf,
}

impl DiskAttachment {
    pub fn at(host: &BenchmarkHost<'_>, folder: &ScratchFolder, address: &str, more: &[&str]) -> Result<Self> {
        let socket = folder.path_of(&format!("{}.sock", host.name));
        let socket_text = socket.to_str().context("a plain path")?;
        let words = ["attach", host.disk(), "--via", "nbd", "--socket", socket_text];
        let away = ["--address", address];
        let mut process = host.start(&[&words[..], if host.name == EXPORTER { &[] } else { &away }, more].concat())?;
        process.wait_for(socket_text)?;
        let control = host.run.join(format!("farbus/{}.sock", process.id()));
        Ok(Self { process, socket, control })
    }

    /// Says to it that the machine of this process has stopped for good.
    pub fn depart(&self, machine: u32) -> Result<()> {
        let mut stream = UnixStream::connect(&self.control)?;
        writeln!(stream, "{}", json!({ "ask": "depart", "device": "disk", "process": machine }))?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        let answer: Value = serde_json::from_str(&answer)?;
        ensure!(answer.get("ok").is_some(), "the disk does not leave: {answer}");
        Ok(())
    }
}
