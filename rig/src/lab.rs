//! The environment of a case: machines to boot, farbus to start, a scratch folder, a place for logs.

use crate::farbus::{FarbusProgram, ShareProcess};
use crate::hosts::RigHost;
use crate::image::kernel::{InstalledKernel, write_whole};
use crate::image::{ours, root::BaseRootFs, testusb};
use crate::machine::{MachineClock, MachineNetwork, MachineSpec, RunningMachine};
use crate::{Result, RigError, prerequisites, tool};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How the guest reaches the host's loopback under QEMU's user networking.
pub const HOST_SEEN_FROM_GUEST: &str = "10.0.2.2";

/// Every guest's own address, as `guest/init.sh` sets it, and that of a second guest on the same cable.
const GUEST: &str = "10.0.2.15";
const OTHER_GUEST: &str = "10.0.2.16";

/// The program that `farbus conform` starts.
const KIT: &str = "farbus-conform";

/// What all cases share and none changes.
pub struct Rig {
    kernel: PathBuf,
    base: BaseRootFs,
    farbus: Option<PathBuf>,
    /// The conformance kit that is beside farbus, without its symbols.
    kit: Option<PathBuf>,
    scratch: PathBuf,
    logs: PathBuf,
    cache: PathBuf,
    records: PathBuf,
    versions: BTreeMap<String, String>,
    /// How many passes the repeating cases make.
    pub times: u32,
    /// The only steps to try of cases that have steps; all if empty.
    pub steps: Vec<String>,
}

/// A rig with one case in it.
pub struct CaseEnvironment<'a> {
    rig: &'a Rig,
    name: String,
    boots: std::cell::Cell<u32>,
    met: RefCell<BTreeMap<String, String>>,
}

/// What attaches the device in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachClient {
    /// The distribution's `usbip attach`.
    Stock,
    /// `farbus attach --via kernel`.
    Farbus,
    /// The guest attaches nothing: `farbus attach --via redir` on the host has plugged the device in.
    Redir,
}

/// One machine to boot, as a case describes it.
#[derive(Clone)]
pub struct MachineBoot<'a> {
    /// The shell script that is its work; the functions of `guest/prelude.sh` are defined in it.
    pub script: &'a str,
    /// Kernel modules to load, by name; what they need comes along.
    pub modules: &'a [&'a str],
    /// What attaches the device.
    pub client: AttachClient,
    /// The exporter's port on the host's loopback, or on the guest's own if there is none on the host.
    pub port: Option<u16>,
    /// Further `NAME=value` lines for the script.
    pub variables: &'a [(&'a str, String)],
    /// Timeout of the machine: generous, because the host may be busy and only a hang should reach it.
    pub patience: Duration,
    /// Keep a capture of the network traffic.
    pub capture: Option<PathBuf>,
    /// Additional devices, as QEMU arguments.
    pub hardware: Vec<String>,
    /// Additional programs and files of the host: names, absolute paths, or `FILE=PATH` for one that has another path
    /// in the guest.
    pub programs: &'a [&'a str],
    /// The role among several machines, for the names of its logs.
    pub role: &'a str,
    /// What its network card is plugged into.
    pub network: MachineNetwork,
    /// Whether its kernel is fully preemptible, as everywhere except where that exposes a kernel bug.
    pub is_preemptible: bool,
    /// The clock of the machine.
    pub time: MachineClock,
    /// Its processors; more than one makes everything slower.
    pub processors: u8,
}

impl Default for MachineBoot<'_> {
    fn default() -> Self {
        Self {
            script: "",
            modules: &[],
            client: AttachClient::Stock,
            port: None,
            variables: &[],
            patience: Duration::from_secs(180),
            capture: None,
            hardware: Vec::new(),
            programs: &[],
            role: "",
            network: MachineNetwork::Host,
            is_preemptible: true,
            time: MachineClock::Host,
            processors: 1,
        }
    }
}

impl Rig {
    /// Checks or installs the prerequisites, and prepares kernel, programs and folders.
    pub fn open(farbus: Option<PathBuf>, logs: Option<PathBuf>, times: u32, steps: Vec<String>) -> Result<Self> {
        prerequisites::ensure()?;
        let cache = target_folder().join("rig");
        let scratch = cache.join(format!("scratch-{}", std::process::id()));
        let logs = logs.unwrap_or_else(|| cache.join("logs"));
        let records = records_folder();
        for folder in [&cache, &scratch, &logs, &records] {
            std::fs::create_dir_all(folder).map_err(RigError::io(format!("create {}", folder.display())))?;
        }
        let farbus = farbus.or_else(beside_us);
        let kernel = InstalledKernel::find()?;
        let testusb = testusb::build(&cache)?;
        let ours = ours::build(&scratch)?;
        let for_guests = farbus.as_deref().map(|program| stripped(program, &scratch)).transpose()?;
        let kit = farbus.as_deref().map(|program| program.with_file_name(KIT)).filter(|kit| kit.is_file());
        let kit = kit.map(|kit| stripped(&kit, &scratch)).transpose()?;
        let programs: Vec<&Path> = [&testusb].into_iter().chain(&ours).map(PathBuf::as_path).collect();
        let base = BaseRootFs::build(&kernel, &programs, for_guests.as_deref())?;
        let versions = versions(&kernel)?;
        let kernel = kernel.uncompressed(&cache)?;
        Ok(Self { kernel, base, farbus, kit, scratch, logs, cache, records, versions, times, steps })
    }

    /// The environment of the case with this name: files and logs of its own.
    pub fn lab(&self, name: impl Into<String>) -> CaseEnvironment<'_> {
        CaseEnvironment {
            rig: self,
            name: name.into(),
            boots: std::cell::Cell::new(0),
            met: RefCell::new(self.versions.clone()),
        }
    }

    /// Where the logs go.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Where the records go.
    pub fn records(&self) -> &Path {
        &self.records
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Images are made anew each time; what cannot be removed now is in the target folder anyway.
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

impl CaseEnvironment<'_> {
    /// How many passes a repeating case makes.
    pub fn times(&self) -> u32 {
        self.rig.times
    }

    /// Whether this step of the case is to run.
    pub fn tries(&self, step: &str) -> bool {
        self.rig.steps.is_empty() || self.rig.steps.iter().any(|wanted| wanted == step)
    }

    /// Boots a machine for this case.
    pub fn boot(&self, boot: &MachineBoot) -> Result<RunningMachine> {
        let number = self.boots.replace(self.boots.get() + 1);
        let name = match boot.role {
            "" if number == 0 => self.name.clone(),
            "" => format!("{}.{number}", self.name),
            role => format!("{}.{role}", self.name),
        };
        let root = self.scratch(&format!("{name}.cpio"));
        write_whole(&root, &self.rig.base.image(&script(boot), boot.modules, boot.programs)?)?;
        RunningMachine::boot(&MachineSpec {
            kernel: &self.rig.kernel,
            root: &root,
            patience: boot.patience,
            logs: &self.rig.logs,
            name: &name,
            capture: boot.capture.clone(),
            network: &boot.network,
            is_preemptible: boot.is_preemptible,
            time: boot.time,
            processors: boot.processors,
            hardware: &boot.hardware,
            monitor: &self.scratch(&format!("{number}.qmp")),
        })
    }

    /// The farbus under test, or the reason to skip the case.
    pub fn farbus(&self) -> Result<FarbusProgram> {
        FarbusProgram::new(self.program()?, &self.scratch("run"), &self.rig.logs, &self.name)
    }

    /// The program under test, or the reason to skip the case.
    pub fn program(&self) -> Result<PathBuf> {
        self.rig.farbus.clone().ok_or_else(|| {
            RigError::Skip("no farbus program: build it (cargo build --release -p farbus) or give --farbus PATH".into())
        })
    }

    /// The conformance kit beside the program under test, as a program of a [`MachineBoot`] that has it beside the
    /// guest's farbus, where `farbus conform` looks for it; or the reason to skip the case.
    pub fn kit_in_guest(&self) -> Result<String> {
        let beside = self.program()?;
        let missing = || format!("no {KIT} beside {}: build it (cargo xtask dist)", beside.display());
        let kit = self.rig.kit.as_ref().ok_or_else(|| RigError::Skip(missing()))?;
        Ok(format!("{}=/usr/bin/{KIT}", kit.display()))
    }

    /// A host of this name, with a key of its own.
    pub fn host(&self, name: &'static str) -> Result<RigHost> {
        RigHost::new(self.program()?, name, &self.scratch("hosts"), &self.rig.logs.join(&self.name))
    }

    /// `farbus share` on the host's loopback, ready for connections.
    pub fn share(&self, what: &[String]) -> Result<ShareProcess> {
        self.farbus()?.share(what)
    }

    /// `farbus share` as another host, with a key of its own, ready for connections.
    pub fn share_elsewhere(&self, host: &str, what: &[String]) -> Result<ShareProcess> {
        let name = format!("{}.{host}", self.name);
        FarbusProgram::new(self.program()?, &self.scratch(&format!("run-{host}")), &self.rig.logs, &name)?.share(what)
    }

    /// A file of this case that goes away after the run.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.rig.scratch.join(format!("{}.{name}", self.name))
    }

    /// The folder for files that are made or fetched once.
    pub fn cache(&self) -> &Path {
        &self.rig.cache
    }

    /// Notes the version of a peer that is not from this distribution.
    pub fn meet(&self, software: &str, version: &str) {
        self.met.borrow_mut().insert(software.to_owned(), version.to_owned());
    }

    /// The versions of the software in the case.
    pub fn met(&self) -> BTreeMap<String, String> {
        self.met.borrow().clone()
    }

    /// A file of this case that stays with the logs.
    pub fn log(&self, name: &str) -> PathBuf {
        self.rig.logs.join(format!("{}.{name}", self.name))
    }
}

fn script(boot: &MachineBoot) -> String {
    let client = match boot.client {
        AttachClient::Stock => "stock",
        AttachClient::Farbus => "farbus",
        AttachClient::Redir => "redir",
    };
    let (exporter, port) = match (boot.port, &boot.network) {
        (Some(port), _) => (HOST_SEEN_FROM_GUEST, port),
        (None, MachineNetwork::CableTo(_)) => (GUEST, 3240),
        (None, _) => ("127.0.0.1", 3240),
    };
    let mut text = format!("CLIENT={client}\nEXPORTER={exporter}\nPORT={port}\n");
    if let MachineNetwork::CableTo(_) = boot.network {
        text += &format!("ip addr del {GUEST}/24 dev eth0; ip addr add {OTHER_GUEST}/24 dev eth0\n");
    }
    for (name, value) in boot.variables {
        text += &format!("{name}='{value}'\n");
    }
    text + ". /rig/prelude\n" + boot.script
}

/// Where every run leaves its records.
pub fn records_folder() -> PathBuf {
    target_folder().join("rig").join("records")
}

/// The versions of the software in every case.
fn versions(kernel: &InstalledKernel) -> Result<BTreeMap<String, String>> {
    let first_line = |program: &str, option: &str| {
        let program = tool::which(program).unwrap_or_else(|| program.into());
        tool::text(Command::new(program).arg(option))
            .map(|message| message.lines().next().unwrap_or_default().trim().to_owned())
    };
    let mut versions =
        BTreeMap::from([("Linux (Debian)".to_owned(), format!("{} ({})", kernel.release, kernel.version))]);
    for (software, program, option) in [
        ("usbip-utils", "usbip", "version"),
        ("Wireshark", "tshark", "--version"),
        ("QEMU", "qemu-system-x86_64", "--version"),
    ] {
        versions.insert(software.to_owned(), number_in(&first_line(program, option)?).to_owned());
    }
    Ok(versions)
}

/// The first word that looks like a version, as in "QEMU emulator version 7.2.22 (Debian …)".
fn number_in(printed: &str) -> &str {
    let words = printed.split([' ', ')']);
    let mut numbers = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    numbers.next().unwrap_or(printed).trim_end_matches('.')
}

/// The cargo target folder that this program was built into; cargo marks it with a tag file.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists())
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(|| "target".into())
}

/// A release build carries its line tables: twenty megabytes that every boot would have to move.
fn stripped(program: &Path, scratch: &Path) -> Result<PathBuf> {
    let target = scratch.join(program.file_name().unwrap_or_default());
    tool::output(Command::new("strip").arg("-o").arg(&target).arg(program))?;
    Ok(target)
}

/// The farbus that cargo built beside this program.
fn beside_us() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("farbus");
    beside.is_file().then_some(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_tools_say() {
        assert_eq!(number_in("usbip (usbip-utils 2.0)"), "2.0");
        assert_eq!(number_in("TShark (Wireshark) 4.0.17 (Git v4.0.17 packaged as 4.0.17-0+deb12u3)."), "4.0.17");
        assert_eq!(number_in("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"), "7.2.22");
        assert_eq!(number_in("no idea"), "no idea");
    }
}
