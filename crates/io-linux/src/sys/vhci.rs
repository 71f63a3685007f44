//! The kernel's virtual USB host controller, `vhci_hcd`: which ports it has, and how a socket becomes a device on one.
//!
//! It is controlled by a few files in sysfs, all on the first controller:
//!
//! | file | says or takes |
//! |---|---|
//! | `status`, `status.1`, … | one line for each port, one file for each controller; port numbers run through all of them |
//! | `attach` | `port fd devid speed`, decimal, from the process that owns the socket |
//! | `detach` | `port`; done when the port's state is free again |
//!
//! Closing our end of the socket unplugs the device as [`Vhci::detach`] does.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farbus_model::UsbSpeed;
use rustix::io::Errno;

/// Where the kernel keeps platform devices.
const PLATFORM: &str = "/sys/devices/platform";
/// Where it lists USB devices and, as `DEVICE:CONFIGURATION.NUMBER`, their interfaces.
const USB_DEVICES: &str = "/sys/bus/usb/devices";

/// How long an unplugged device may take to leave its port. A driver's last request is cancelled
/// within milliseconds; a disk's driver may first wait for its own, shorter, time-outs.
const DETACH_WAIT: Duration = Duration::from_secs(5);
const DETACH_POLL: Duration = Duration::from_millis(10);

/// The virtual host controllers of this machine.
#[derive(Debug)]
pub struct Vhci {
    /// The first controller's folder, which controls all of them.
    folder: PathBuf,
}

/// A port's number, counted through all controllers, as `farbus detach` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VhciPort(pub u32);

/// A port's line in `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The port's number, counted over both root hubs of all controllers.
    pub port: VhciPort,
    /// Which root hub it belongs to.
    pub hub: VhciHub,
    /// What it is doing.
    pub state: PortState,
    /// The device's speed, if one is attached.
    pub speed: Option<UsbSpeed>,
    /// What the exporter calls the device (bus << 16 | device), 0 if none is attached.
    pub devid: u32,
    /// What this machine calls the device, such as `3-1`, if one is attached.
    pub local_busid: Option<String>,
}

/// The two root hubs of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhciHub {
    /// USB 2: low, full and high speed.
    High,
    /// USB 3: SuperSpeed and faster.
    Super,
}

/// What a port is doing (`enum usbip_device_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Nothing attached (4).
    Free,
    /// A socket is attached and the device has no address yet (5).
    Attaching,
    /// A device is attached (6).
    Used,
    /// The connection failed and the port is being cleaned up (7).
    Failed,
    /// A number this version does not know.
    Other(u32),
}

impl Vhci {
    /// Finds the controllers.
    ///
    /// # Errors
    /// [`VhciError::NoModule`] where there are none.
    pub fn open() -> Result<Self, VhciError> {
        Self::open_at(Path::new(PLATFORM))
    }

    /// Opens the controllers under `platform` instead of /sys/devices/platform, for tests.
    ///
    /// # Errors
    /// [`VhciError::NoModule`] where there are none.
    pub fn open_at(platform: &Path) -> Result<Self, VhciError> {
        let folder = platform.join("vhci_hcd.0");
        if !folder.join("status").exists() {
            return Err(VhciError::NoModule);
        }
        Ok(Self { folder })
    }

    /// All ports of all controllers, by number.
    ///
    /// # Errors
    /// [`VhciError::Os`] or [`VhciError::Malformed`].
    pub fn ports(&self) -> Result<Vec<PortStatus>, VhciError> {
        let mut ports = Vec::new();
        for controller in 0.. {
            let name = if controller == 0 { "status".into() } else { format!("status.{controller}") };
            let path = self.folder.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let parsed = parse_status(&text);
                    ports.extend(parsed.map_err(|line| VhciError::Malformed { path, line: line.to_owned() })?);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && controller > 0 => break,
                Err(error) => return Err(VhciError::Os { doing: "reading", path, error }),
            }
        }
        Ok(ports)
    }

    /// The status of `port`; `None` if there is no such port.
    ///
    /// # Errors
    /// As [`Vhci::ports`].
    pub fn port(&self, port: VhciPort) -> Result<Option<PortStatus>, VhciError> {
        Ok(self.ports()?.into_iter().find(|p| p.port == port))
    }

    /// The drivers that took interfaces of the device on `port`, each once; none if no driver took any. `None`: the
    /// kernel does not know the device's interfaces yet.
    ///
    /// # Errors
    /// As [`Vhci::ports`].
    pub fn drivers(&self, port: VhciPort) -> Result<Option<Vec<String>>, VhciError> {
        self.drivers_in(Path::new(USB_DEVICES), port)
    }

    fn drivers_in(&self, devices: &Path, port: VhciPort) -> Result<Option<Vec<String>>, VhciError> {
        let Some(bus_id) = self.port(port)?.and_then(|status| status.local_busid) else { return Ok(None) };
        let failed = |error| VhciError::Os { doing: "reading", path: devices.to_owned(), error };
        let prefix = format!("{bus_id}:");
        let (mut is_known, mut drivers) = (false, Vec::new());
        for entry in fs::read_dir(devices).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !entry.file_name().to_string_lossy().starts_with(&prefix) {
                continue;
            }
            is_known = true;
            // Without a driver there is no such link.
            if let Ok(driver) = fs::read_link(entry.path().join("driver"))
                && let Some(name) = driver.file_name()
            {
                drivers.push(name.to_string_lossy().into_owned());
            }
        }
        drivers.sort();
        drivers.dedup();
        Ok(is_known.then_some(drivers))
    }

    /// Hands `socket`, a connected stream socket of any family, to the kernel, which from now on speaks USB/IP to its
    /// other end, and plugs the device into a free port. The kernel keeps its own reference to the socket: the caller
    /// may close `socket` afterwards.
    ///
    /// # Errors
    /// [`VhciError::NotAllowed`], [`VhciError::NoFreePort`], [`VhciError::Refused`].
    pub fn attach(&self, socket: BorrowedFd<'_>, devid: u32, speed: UsbSpeed) -> Result<VhciPort, VhciError> {
        let path = self.folder.join("attach");
        let mut file = open_switch(&path)?;
        self.attach_through(socket, devid, speed, |words| file.write_all(words.as_bytes()))
    }

    fn attach_through(
        &self,
        socket: BorrowedFd<'_>,
        devid: u32,
        speed: UsbSpeed,
        mut write: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<VhciPort, VhciError> {
        let hub = VhciHub::of(speed);
        let fd = socket.as_raw_fd();
        let mut code = speed_code(speed);
        for free in self.ports()?.iter().filter(|p| p.hub == hub && p.state == PortState::Free) {
            let VhciPort(port) = free.port;
            let mut result = write(&format!("{port} {fd} {devid} {code}"));
            if code == SUPER_PLUS && errno(&result) == Some(Errno::INVAL) {
                // Kernels such as 6.1 know nothing above SuperSpeed; the device works there all the same.
                code = speed_code(UsbSpeed::Super);
                result = write(&format!("{port} {fd} {devid} {code}"));
            }
            match (errno(&result), result) {
                (_, Ok(())) => return Ok(free.port),
                // Another process was faster, or the port's controller is not ready.
                (Some(Errno::BUSY | Errno::AGAIN), _) => {}
                (_, Err(error)) => return Err(VhciError::Refused { port: free.port, error }),
            }
        }
        Err(VhciError::NoFreePort { hub })
    }

    /// Unplugs the device on `port` and waits until the port is free again. Does nothing if it is free.
    ///
    /// # Errors
    /// [`VhciError::NoSuchPort`], [`VhciError::NotAllowed`], [`VhciError::StillThere`].
    pub fn detach(&self, port: VhciPort) -> Result<(), VhciError> {
        self.detach_within(port, DETACH_WAIT)
    }

    fn detach_within(&self, port: VhciPort, patience: Duration) -> Result<(), VhciError> {
        let is_free = || match self.port(port)? {
            Some(status) => Ok(status.state == PortState::Free),
            None => Err(VhciError::NoSuchPort { port }),
        };
        if is_free()? {
            return Ok(());
        }
        let path = self.folder.join("detach");
        if let Err(error) = open_switch(&path)?.write_all(port.0.to_string().as_bytes()) {
            // It was unplugged between the check and the write.
            return if is_free()? { Ok(()) } else { Err(VhciError::Os { doing: "writing", path, error }) };
        }
        let deadline = Instant::now() + patience;
        while !is_free()? {
            if Instant::now() >= deadline {
                return Err(VhciError::StillThere { port });
            }
            thread::sleep(DETACH_POLL);
        }
        Ok(())
    }
}

fn open_switch(path: &Path) -> Result<File, VhciError> {
    File::options().write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => VhciError::NotAllowed,
        _ => VhciError::Os { doing: "opening", path: path.to_owned(), error },
    })
}

fn errno(result: &io::Result<()>) -> Option<Errno> {
    result.as_ref().err().and_then(Errno::from_io_error)
}

impl VhciHub {
    /// The root hub for devices of `speed`.
    pub const fn of(speed: UsbSpeed) -> Self {
        match speed {
            UsbSpeed::Low | UsbSpeed::Full | UsbSpeed::High => VhciHub::High,
            UsbSpeed::Super | UsbSpeed::SuperPlus => VhciHub::Super,
        }
    }
}

/// The kernel's number for 10 Gb/s.
const SUPER_PLUS: u32 = 6;

/// The kernel's `enum usb_device_speed`, in which 4 is wireless.
const fn speed_code(speed: UsbSpeed) -> u32 {
    match speed {
        UsbSpeed::Low => 1,
        UsbSpeed::Full => 2,
        UsbSpeed::High => 3,
        UsbSpeed::Super => 5,
        UsbSpeed::SuperPlus => SUPER_PLUS,
    }
}

const fn speed_of_code(code: u32) -> Option<UsbSpeed> {
    match code {
        1 => Some(UsbSpeed::Low),
        2 => Some(UsbSpeed::Full),
        3 => Some(UsbSpeed::High),
        5 => Some(UsbSpeed::Super),
        SUPER_PLUS => Some(UsbSpeed::SuperPlus),
        _ => None,
    }
}

/// Reads one controller's `status`; the error is the line that could not be read.
fn parse_status(text: &str) -> Result<Vec<PortStatus>, &str> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    // Kernels before 4.13 have one hub and no column for it; this program does not run on them.
    if !header.starts_with("hub ") {
        return Err(header);
    }
    lines.map(|line| parse_port(line).ok_or(line)).collect()
}

fn parse_port(line: &str) -> Option<PortStatus> {
    let mut words = line.split_whitespace();
    let hub = match words.next()? {
        "hs" => VhciHub::High,
        "ss" => VhciHub::Super,
        _ => return None,
    };
    let port = VhciPort(words.next()?.parse().ok()?);
    let state = match words.next()?.parse().ok()? {
        4 => PortState::Free,
        5 => PortState::Attaching,
        6 => PortState::Used,
        7 => PortState::Failed,
        number => PortState::Other(number),
    };
    let speed = speed_of_code(words.next()?.parse().ok()?);
    let devid = u32::from_str_radix(words.next()?, 16).ok()?;
    // The descriptor's number in the process that attached it: it means nothing in another process.
    let _socket = words.next()?;
    let local_busid = Some(words.next()?.to_owned()).filter(|_| state == PortState::Used);
    words.next().is_none().then_some(PortStatus { port, hub, state, speed, devid, local_busid })
}

/// Why the virtual host controller did not do what was asked.
#[derive(Debug)]
pub enum VhciError {
    /// The kernel module is not loaded.
    NoModule,
    /// Only root may plug and unplug.
    NotAllowed,
    /// Every port for this kind of device is taken.
    NoFreePort {
        /// The root hub that is full.
        hub: VhciHub,
    },
    /// The kernel refused the socket.
    Refused {
        /// The port it was to be plugged into.
        port: VhciPort,
        /// The kernel's error.
        error: io::Error,
    },
    /// There is no port of that number.
    NoSuchPort {
        /// The number that was asked for.
        port: VhciPort,
    },
    /// The device has not left its port in time.
    StillThere {
        /// The port that is still in use.
        port: VhciPort,
    },
    /// A status file in a form this version cannot read.
    Malformed {
        /// The status file, in a controller's folder of sysfs.
        path: PathBuf,
        /// The first line that cannot be read.
        line: String,
    },
    /// Any other error.
    Os {
        /// What was being done.
        doing: &'static str,
        /// The file that was read or written.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for VhciPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for VhciHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VhciHub::High => "high-speed",
            VhciHub::Super => "SuperSpeed",
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Free => f.write_str("free"),
            PortState::Attaching => f.write_str("attaching"),
            PortState::Used => f.write_str("used"),
            PortState::Failed => f.write_str("failed"),
            PortState::Other(number) => write!(f, "state {number}"),
        }
    }
}

impl fmt::Display for VhciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VhciError::NoModule => f.write_str(
                "this kernel has no virtual USB host controller; load it with `modprobe vhci-hcd`, \
                 or attach a disk without it by `--via fuse`",
            ),
            VhciError::NotAllowed => f.write_str("only root may plug devices into the kernel; try again with `sudo`"),
            VhciError::NoFreePort { hub } => {
                write!(f, "every {hub} port is taken; see `farbus status` and free one with `farbus detach`")
            }
            VhciError::Refused { port, error } => {
                write!(f, "the kernel refused the connection for port {port}: {error}")
            }
            VhciError::NoSuchPort { port } => write!(f, "there is no port {port}; see `farbus status`"),
            VhciError::StillThere { port } => write!(
                f,
                "the device on port {port} has not left in {} s; unmount what is on it and try again",
                DETACH_WAIT.as_secs()
            ),
            VhciError::Malformed { path, line } => write!(f, "{} has a line of unknown form: {line:?}", path.display()),
            VhciError::Os { doing, path, error } => write!(f, "{doing} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for VhciError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            VhciError::Refused { error, .. } | VhciError::Os { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const HEADER: &str = "hub port sta spd dev      sockfd local_busid\n";

    /// What `cat status` prints on Debian's 6.1 with a high-speed disk and one SuperSpeed disk
    /// attached, one port on its way in, shortened to four ports a hub.
    const DEBIAN_6_1: &str = "\
hub port sta spd dev      sockfd local_busid
hs  0000 006 003 00010002 000003 3-1
hs  0001 005 000 00000000 000000 0-0
hs  0002 004 000 00000000 000000 0-0
hs  0003 004 000 00000000 000000 0-0
ss  0004 006 005 00020011 000007 4-1
ss  0005 007 000 00000000 000000 0-0
ss  0006 004 000 00000000 000000 0-0
ss  0007 004 000 00000000 000000 0-0
";

    /// The second controller before its driver is bound: its ports have numbers, but none is free.
    const NOT_READY: &str = "\
hub port sta spd dev      sockfd local_busid
hs  0008 005 000 00000000 0000000000000000 0-0
ss  0012 005 000 00000000 0000000000000000 0-0
";

    /// A folder that looks like sysfs and is removed with its test.
    struct FakeSysfs(PathBuf);

    impl FakeSysfs {
        fn new(status_files: &[&str]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-vhci-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let fake = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(fake.0.join("vhci_hcd.0")).unwrap();
            for (controller, text) in status_files.iter().enumerate() {
                fake.set_status(controller, text);
            }
            fs::write(fake.file("attach"), "").unwrap();
            fs::write(fake.file("detach"), "").unwrap();
            fake
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join("vhci_hcd.0").join(name)
        }

        fn set_status(&self, controller: usize, text: &str) {
            let name = if controller == 0 { "status".into() } else { format!("status.{controller}") };
            // Written in one piece, as in sysfs.
            fs::write(self.file("new"), text).unwrap();
            fs::rename(self.file("new"), self.file(&name)).unwrap();
        }

        fn vhci(&self) -> Vhci {
            Vhci::open_at(&self.0).unwrap()
        }
    }

    impl Drop for FakeSysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn drivers_of_a_port_are_those_of_its_own_interfaces() {
        let fake = FakeSysfs::new(&[DEBIAN_6_1]);
        let devices = fake.0.join("devices");
        // 4-1 has two interfaces and no driver; 4-1.1 is another device.
        for interface in ["3-1:1.0", "3-1:1.1", "4-1:1.0", "4-1:1.1", "4-1.1:1.0"] {
            fs::create_dir_all(devices.join(interface)).unwrap();
        }
        for (interface, driver) in [("3-1:1.0", "cdc_acm"), ("3-1:1.1", "cdc_acm"), ("4-1.1:1.0", "usbhid")] {
            let driver = Path::new("/sys/bus/usb/drivers").join(driver);
            std::os::unix::fs::symlink(driver, devices.join(interface).join("driver")).unwrap();
        }
        let drivers = |port| fake.vhci().drivers_in(&devices, VhciPort(port)).unwrap();
        assert_eq!(drivers(0), Some(vec!["cdc_acm".to_owned()]));
        assert_eq!(drivers(4), Some(Vec::new()), "no driver took it");
        assert_eq!(drivers(1), None, "it has no address yet");
        fs::remove_dir_all(&devices).unwrap();
        fs::create_dir_all(&devices).unwrap();
        assert_eq!(drivers(0), None, "its interfaces are not known yet");
    }

    #[test]
    fn a_kernel_without_the_module_is_told_how_to_load_it() {
        let error = Vhci::open_at(Path::new("/nowhere")).unwrap_err();
        assert!(matches!(error, VhciError::NoModule));
        assert!(error.to_string().contains("modprobe vhci-hcd"));
    }

    #[test]
    fn all_controllers_are_listed_as_the_kernel_numbers_them() {
        let fake = FakeSysfs::new(&[DEBIAN_6_1, NOT_READY]);
        let ports = fake.vhci().ports().unwrap();
        assert_eq!(ports.iter().map(|p| p.port.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12]);
        assert_eq!(
            ports[0],
            PortStatus {
                port: VhciPort(0),
                hub: VhciHub::High,
                state: PortState::Used,
                speed: Some(UsbSpeed::High),
                devid: 0x0001_0002,
                local_busid: Some("3-1".into()),
            }
        );
        assert_eq!((ports[4].hub, ports[4].speed), (VhciHub::Super, Some(UsbSpeed::Super)));
        let states: Vec<_> = ports.iter().map(|p| p.state.to_string()).collect();
        assert_eq!(states[..6], ["used", "attaching", "free", "free", "used", "failed"]);
        assert_eq!(ports[1].local_busid, None);
        assert_eq!(ports[9].state, PortState::Attaching);
    }

    #[test]
    fn lines_of_unknown_form_are_named() {
        for line in ["", "hs", "xs  0000 004 000 00000000 000000 0-0", "hs  0000 004 000 0000zz00 000000 0-0"] {
            let fake = FakeSysfs::new(&[&format!("{HEADER}{line}\n")]);
            let error = fake.vhci().ports().unwrap_err();
            assert!(matches!(&error, VhciError::Malformed { line: l, .. } if l == line), "{error}");
        }
        let old = FakeSysfs::new(&["port sta spd dev      socket           local_busid\n"]);
        assert!(matches!(old.vhci().ports(), Err(VhciError::Malformed { .. })));
    }

    #[test]
    fn a_device_is_plugged_into_the_half_of_its_speed() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        for (speed, port, code) in [
            (UsbSpeed::Low, 2, 1),
            (UsbSpeed::Full, 2, 2),
            (UsbSpeed::High, 2, 3),
            (UsbSpeed::Super, 6, 5),
            (UsbSpeed::SuperPlus, 6, 6),
        ] {
            let fake = FakeSysfs::new(&[DEBIAN_6_1]);
            assert_eq!(fake.vhci().attach(socket.as_fd(), 0x0003_0004, speed).unwrap(), VhciPort(port));
            let words = fs::read_to_string(fake.file("attach")).unwrap();
            assert_eq!(words, format!("{port} {fd} {} {code}", 0x0003_0004));
        }
    }

    /// Attaches to a kernel that answers each write with the next of `answers`; returns what was written, too.
    fn attach_to(speed: UsbSpeed, answers: &[Result<(), Errno>]) -> (Result<VhciPort, VhciError>, Vec<String>) {
        let fake = FakeSysfs::new(&[DEBIAN_6_1, &format!("{HEADER}hs  0008 004 000 00000000 000000 0-0\n")]);
        let (socket, _other) = UnixStream::pair().unwrap();
        let mut answers = answers.iter();
        let mut words = Vec::new();
        let result = fake.vhci().attach_through(socket.as_fd(), 1, speed, |line| {
            let mut parts = line.split(' ');
            words.push(format!("{}/{}", parts.next().unwrap(), parts.next_back().unwrap()));
            answers.next().expect("one answer more").map_err(Into::into)
        });
        (result, words)
    }

    #[test]
    fn port_taken_by_another_process_is_skipped() {
        let (port, words) = attach_to(UsbSpeed::High, &[Err(Errno::BUSY), Err(Errno::AGAIN), Ok(())]);
        assert_eq!(port.unwrap(), VhciPort(8));
        assert_eq!(words, ["2/3", "3/3", "8/3"]);
        let (none, _) = attach_to(UsbSpeed::Super, &[Err(Errno::BUSY), Err(Errno::BUSY)]);
        assert!(matches!(none, Err(VhciError::NoFreePort { hub: VhciHub::Super })));
    }

    #[test]
    fn kernel_without_10_gigabit_gets_the_device_at_5() {
        let (port, words) = attach_to(UsbSpeed::SuperPlus, &[Err(Errno::INVAL), Err(Errno::BUSY), Ok(())]);
        assert_eq!(port.unwrap(), VhciPort(7));
        assert_eq!(words, ["6/6", "6/5", "7/5"]);
    }

    #[test]
    fn a_socket_that_the_kernel_refuses_is_not_offered_to_every_port() {
        let (refused, words) = attach_to(UsbSpeed::High, &[Err(Errno::INVAL)]);
        assert!(matches!(refused, Err(VhciError::Refused { port: VhciPort(2), .. })));
        assert_eq!(words.len(), 1);
    }

    #[test]
    fn detaching_waits_until_the_port_is_free() {
        let fake = FakeSysfs::new(&[DEBIAN_6_1]);
        let vhci = fake.vhci();
        vhci.detach(VhciPort(2)).unwrap();
        assert_eq!(fs::read_to_string(fake.file("detach")).unwrap(), "", "a free port is left alone");

        thread::scope(|s| {
            let kernel = s.spawn(|| {
                while fs::read_to_string(fake.file("detach")).unwrap() != "4" {
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(Duration::from_millis(50));
                fake.set_status(
                    0,
                    &DEBIAN_6_1.replace("0004 006 005 00020011 000007 4-1", "0004 004 000 00000000 000000 0-0"),
                );
            });
            vhci.detach(VhciPort(4)).unwrap();
            kernel.join().unwrap();
        });
        assert_eq!(vhci.port(VhciPort(4)).unwrap().unwrap().state, PortState::Free);

        let stuck = vhci.detach_within(VhciPort(0), Duration::from_millis(30));
        assert!(matches!(stuck, Err(VhciError::StillThere { port: VhciPort(0) })));
        assert!(matches!(vhci.detach(VhciPort(99)), Err(VhciError::NoSuchPort { port: VhciPort(99) })));
    }
}
