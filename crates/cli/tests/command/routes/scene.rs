//! Two hosts, the link between them, a shared disk and the program that uses it, for one route.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::super::bulk_only::{BulkOnlyDisk, RedirPipes};
use super::super::cuts::Cutter;
use super::super::disk_clients::{Client, DISK_OF, DiskUser, Nbd, Reach, open_soon};
use super::super::harness::{Harness, PATIENCE, Running, wait_until};
use super::super::redir::Guest;
use super::super::trust::{Host, hosts, pair};
use super::{Connection, Distance, Keeper, Route, Way};

/// How long bytes are under way in one direction, if the route is [`Distance::Far`].
const FAR: Duration = Duration::from_millis(25);
/// The grace period of sessions, in seconds: longer than any cut of these tests.
const GRACE_S: &str = "100";
pub const DISK_BYTES: u64 = 1 << 20;

/// Where a device is used on one route.
pub struct Scene<'h> {
    pub route: Route,
    pub lab3: Host<'h>,
    pub desk: Host<'h>,
    pub image: PathBuf,
    /// What `farbus share` or `[[share]]` is told of the disk.
    what: String,
    exporter: Option<Running>,
    pub link: Cutter,
    /// Options of `farbus attach`, and keys of `[[attach]]`, that a capability adds.
    options: Vec<String>,
    keys: String,
    pub importer: Option<Running>,
}

impl<'h> Scene<'h> {
    pub fn lay(harness: &'h Harness, route: Route) -> Self {
        let [lab3, desk] = hosts(harness);
        if route.connection == Connection::Session {
            pair(&lab3, &desk);
            lab3.ok(&["allow", "desk", "all"]);
        }
        let image = harness.image("disk.img", DISK_BYTES);
        let what = format!("disk:{}", image.display());
        let delay = if route.distance == Distance::Far { FAR } else { Duration::ZERO };
        let link = Cutter::at_distance(([127, 0, 0, 1], 1).into(), delay);
        let (exporter, options, keys) = (None, Vec::new(), String::new());
        Self { route, lab3, desk, image, what, exporter, link, options, keys, importer: None }
    }

    /// Shares the disk with these parameters, such as `,ro`.
    pub fn with_parameters(&mut self, parameters: &str) {
        self.what += parameters;
    }

    /// Attaches with this option of the command and this line of the daemon's file.
    pub fn with_option(&mut self, option: &[&str], key: &str) {
        self.options.extend(option.iter().map(|&word| word.to_owned()));
        self.keys += &format!("{key}\n");
    }

    /// Starts the exporter; the link leads to it.
    pub fn share(&mut self) {
        let (words, line) = match self.route.connection {
            Connection::Plain => (["--listen", "127.0.0.1:0"].as_slice(), "listening on"),
            Connection::Session => (["--listen", "none", "--secure", "127.0.0.1:0"].as_slice(), "for paired hosts"),
        };
        let exporter = self.lab3.start(&[&["share", &self.what], words].concat());
        let address = exporter.wait_for_line(line).split_whitespace().nth(2).unwrap().parse().unwrap();
        self.link.lead_to(address);
        self.exporter = Some(exporter);
    }

    /// Starts the exporter with another disk of the same name and size, which is returned.
    pub fn share_another(&mut self) -> PathBuf {
        let other = self.lab3.harness.image("other.img", DISK_BYTES);
        let what = std::mem::replace(&mut self.what, format!("disk:{},name=disk", other.display()));
        self.share();
        self.what = what;
        other
    }

    /// Kills the exporter. Its links end, as the kernel ends them.
    pub fn kill_exporter(&mut self) {
        self.exporter.take().expect("it runs").kill();
    }

    pub fn exporter_log(&self) -> String {
        self.exporter.as_ref().map(Running::log).unwrap_or_default()
    }

    /// The device, as the importer's command names it.
    pub fn target(&self) -> String {
        match self.route.connection {
            Connection::Plain => format!("{}/disk", self.link.address()),
            Connection::Session => "lab3/disk".to_owned(),
        }
    }

    /// Where front ends show the disk.
    fn location(&self) -> PathBuf {
        let name = if self.route.way == Way::Fuse { "mounted" } else { "programs.sock" };
        self.desk.harness.path(name)
    }

    /// Shares the disk, attaches it and opens it with the program that uses it.
    pub fn begin(&mut self) -> Box<dyn Client> {
        self.share_for_desk();
        self.attach()
    }

    /// Shares the disk where desk finds it.
    pub fn share_for_desk(&mut self) {
        self.share();
        if self.route.connection == Connection::Session {
            // From now on desk finds lab3 there.
            self.desk.ok(&["list", "lab3", "--address", &self.link.address().to_string()]);
        }
    }

    /// Attaches the shared disk and opens it.
    pub fn attach(&mut self) -> Box<dyn Client> {
        let mut client = match self.route.way {
            Way::Run | Way::Library => self.start_program(),
            _ => {
                match self.route.keeper {
                    Keeper::Command => self.start_command(),
                    Keeper::Daemon => self.start_daemon(),
                }
                self.client()
            }
        };
        self.open(client.as_mut());
        client
    }

    /// Opens the disk, now or when it is there again.
    pub fn open(&self, client: &mut dyn Client) {
        open_soon(client, || false);
    }

    /// The program that uses what a front end shows.
    fn client(&self) -> Box<dyn Client> {
        let path = self.location();
        match self.route.way {
            Way::Nbd => Box::new(Nbd::new(path)),
            Way::Redir => Box::new(RedirDisk { socket: path, disk: None }),
            Way::Fuse => Box::new(DiskUser::start(self.desk.harness, "user.sock", path.join("disk.img"))),
            Way::Kernel | Way::Uas => {
                let at = self.wait_for_block_device();
                Box::new(DiskUser::start(self.desk.harness, "user.sock", at))
            }
            Way::Run | Way::Library => unreachable!("a program has it"),
        }
    }

    /// The block device that the kernel has made of the disk.
    fn wait_for_block_device(&self) -> PathBuf {
        let mut found = None;
        let bytes = (DISK_BYTES / 512).to_string();
        wait_until(PATIENCE, "a block device", || {
            let disks = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
            let is_it = |disk: &PathBuf| {
                fs::read_to_string(disk.join("size")).is_ok_and(|size| size.trim() == bytes)
                    && fs::read_link(disk.join("device")).is_ok()
            };
            found = disks.filter(|disk| disk.join("device/vendor").exists()).find(is_it);
            found.is_some()
        });
        PathBuf::from("/dev").join(found.expect("it was waited for").file_name().unwrap())
    }

    fn start_command(&mut self) {
        let (target, path) = (self.target(), self.location());
        let way = format!("{:?}", self.route.way).to_lowercase();
        let mut words = vec!["attach", &target, "--via", &way];
        match self.route.way {
            Way::Fuse => words.extend(["--at", path.to_str().unwrap()]),
            Way::Nbd | Way::Redir => words.extend(["--socket", path.to_str().unwrap()]),
            _ => {}
        }
        if self.route.connection == Connection::Session {
            words.extend(["--grace", GRACE_S]);
        }
        words.extend(self.options.iter().map(String::as_str));
        let command = self.desk.start(&words);
        command.wait_for_line("attached");
        self.importer = Some(command);
    }

    fn start_daemon(&mut self) {
        let mut text = format!("plain.listen = []\n[[attach]]\ntarget = '{}'\n", self.target());
        text += &format!("via = '{}'\n", format!("{:?}", self.route.way).to_lowercase());
        match self.route.way {
            Way::Fuse => text += &format!("at = '{}'\n", self.location().display()),
            Way::Nbd | Way::Redir => text += &format!("socket = '{}'\n", self.location().display()),
            _ => {}
        }
        if self.route.connection == Connection::Session {
            text += &format!("grace = {GRACE_S}\n");
        }
        text += &self.keys;
        let file = self.desk.harness.path("desk.toml");
        fs::write(&file, text).unwrap();
        self.importer = Some(self.desk.start(&["daemon", "--config", file.to_str().unwrap()]));
    }

    /// Starts a program that has the device itself.
    fn start_program(&mut self) -> Box<dyn Client> {
        let harness = self.desk.harness;
        let (listener, words) = DiskUser::prepare(harness, "user.sock");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let target = self.target();
        let (mut command, reach) = match self.route.way {
            Way::Run => {
                let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
                if self.route.connection == Connection::Session {
                    options.extend(["--grace", GRACE_S]);
                }
                let all = [&["run", &target], &options[..], &["--"], &words].concat();
                (self.desk.command(&all), Reach::Usbfs)
            }
            _ => {
                let command = harness.command_of(words[0].as_ref(), &words[1..]);
                (self.desk.equip(command), Reach::Library(target))
            }
        };
        command.env(DISK_OF, harness.path("user.sock"));
        let mut program = Running::start(command);
        let stream = accept(&listener, &mut program);
        self.importer = Some(program);
        Box::new(DiskUser::over(stream, reach))
    }

    /// Cuts the link while the device is in use, if the route says so.
    pub fn cut(&self) {
        if self.route.distance == Distance::Cut {
            self.link.wait_until_in_use(|| false);
            self.link.cut();
        }
    }

    /// Whether what is under way survives a lost link.
    pub fn survives_cuts(&self) -> bool {
        self.route.connection == Connection::Session
    }

    /// Waits for the end of the importer's process, which is not a daemon.
    pub fn wait_for_importer_end(&mut self) -> (Option<i32>, String) {
        let mut importer = self.importer.take().expect("it runs");
        (importer.wait_for_end(PATIENCE), importer.log())
    }

    /// The only device of the only process of this role on a host.
    pub fn device_of(host: &Host<'_>, role: &str) -> Option<Value> {
        let status = host.json(&["status", "--json"]);
        let process = status.as_array().unwrap().iter().find(|process| process["role"] == role)?;
        process["devices"].get(0).cloned()
    }

    /// Waits until the exporter says of the device that it is in this state.
    pub fn wait_until_state(&self, state: &str) {
        wait_until(PATIENCE, state, || {
            Self::device_of(&self.lab3, "share").is_some_and(|device| device["state"] == state)
        });
    }

    /// Ends the importer as its user does, which has to succeed.
    pub fn end(&mut self, client: Box<dyn Client>) {
        drop(client);
        let mut importer = self.importer.take().expect("it runs");
        if !matches!(self.route.way, Way::Run | Way::Library) {
            importer.signal(Signal::TERM);
        }
        let code = importer.wait_for_end(PATIENCE);
        assert_eq!(code, Some(0), "{}", importer.log());
    }
}

/// Waits until the program has connected.
fn accept(listener: &UnixListener, program: &mut Running) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let mut stream = None;
    wait_until(PATIENCE, "the program begins", || {
        assert!(program.is_running(), "the program ended: {}", program.log());
        stream = listener.accept().ok().map(|(stream, _)| stream);
        stream.is_some()
    });
    stream.expect("it was waited for")
}

/// The disk of a virtual machine, by usbredir.
struct RedirDisk {
    socket: PathBuf,
    disk: Option<BulkOnlyDisk<RedirPipes>>,
}

impl RedirDisk {
    fn disk(&mut self) -> std::io::Result<&mut BulkOnlyDisk<RedirPipes>> {
        self.disk.as_mut().ok_or_else(|| std::io::ErrorKind::NotConnected.into())
    }
}

impl Client for RedirDisk {
    fn open(&mut self) -> std::io::Result<()> {
        self.disk = None;
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut guest = Guest::over(stream);
        guest.try_configure()?;
        self.disk = Some(BulkOnlyDisk::open(RedirPipes::new(guest))?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.disk()?.write(offset, bytes)
    }

    fn read(&mut self, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
        self.disk()?.read(offset, length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.disk()?.synchronize()
    }
}
