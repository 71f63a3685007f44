//! A live migration of a virtual machine between hosts, each with a farbus of its own; the machine keeps its remote
//! devices.

use super::case::{RigCase, expect};
use super::usbfs::xhci;
use super::{keyboard, nbd, storage};
use crate::farbus::AttachProcess;
use crate::hosts::{HostShare, ProcessLines, RigHost};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::RunningMachine;
use crate::{Result, RigError, disk};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "redir-migrate-hosts",
        purpose: "a guest under load migrates live between two hosts, each with its own farbus, and back, --times: USB disk, keyboard and sound card keep their numbers, its block disk (NBD) goes along, the tone that it plays has no xrun, no reset, no error, trees and keys check out",
        run: there_and_back,
    },
    RigCase {
        name: "redir-migrate-fails",
        purpose: "the destination dies in mid-migration, and nobody inherits there: the guest goes on at the source, its devices with it",
        run: stays,
    },
];

/// The machine's devices: name on the exporter, and front end.
const DEVICES: [(&str, MigrationFrontEnd); 4] = [
    ("disk", MigrationFrontEnd::Redir),
    ("keyboard", MigrationFrontEnd::Redir),
    ("audio", MigrationFrontEnd::Redir),
    ("disk2", MigrationFrontEnd::Nbd),
];
/// The paper's figure for a whole migration (Kwon et al. 2007, section 7.5).
const PAPER_MS: u64 = 7;
/// How much later than its machine a device may go on, as the median of many moves.
const LATER_MAX: Duration = Duration::from_millis(20);
/// Fewer moves are not judged.
const MOVES_MIN: usize = 20;
/// The block disk's size.
const BLOCK_BYTES: u64 = 64 << 20;

/// The front end of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MigrationFrontEnd {
    Redir,
    Nbd,
}

impl MigrationFrontEnd {
    fn name(self) -> &'static str {
        match self {
            MigrationFrontEnd::Redir => "redir",
            MigrationFrontEnd::Nbd => "nbd",
        }
    }
}

/// An exporter, and two hosts of virtual machines.
struct MigrationCluster<'l> {
    lab: &'l CaseEnvironment<'l>,
    exporter: RigHost,
    hosts: [RigHost; 2],
    share: HostShare,
    image: PathBuf,
    block: PathBuf,
    moves: u32,
}

/// A machine, and the devices that its host's farbus attaches for it.
struct MigratingMachine {
    guest: RunningMachine,
    lent: Vec<MachineDevice>,
}

/// A device of the machine.
struct MachineDevice {
    name: &'static str,
    way: MigrationFrontEnd,
    attached: AttachProcess,
    heard: ProcessLines,
}

impl<'l> MigrationCluster<'l> {
    fn new(lab: &'l CaseEnvironment<'l>, moves: u32) -> Result<Self> {
        let image = storage::image_with_tree(lab)?;
        let (folder, block) = (lab.scratch("block-tree"), lab.scratch("block"));
        std::fs::create_dir_all(&folder).map_err(RigError::io(format!("create {}", folder.display())))?;
        disk::few_files(&folder)?;
        disk::ext4(&block, BLOCK_BYTES, &folder)?;
        let [exporter, desk, rack] = [lab.host("lab3")?, lab.host("desk")?, lab.host("rack")?];
        exporter.pair(&desk)?;
        exporter.pair(&rack)?;
        desk.pair(&rack)?;
        let disks = [&image, &block].map(|path| format!("disk:{}", path.display()));
        let share = exporter.share(&[&disks[..], &["keyboard".to_owned(), "audio".to_owned()]].concat())?;
        Ok(Self { lab, exporter, hosts: [desk, rack], share, image, block, moves })
    }

    fn incoming(&self) -> String {
        format!("unix:{}", self.lab.scratch("incoming").display())
    }

    /// The machine's next place: its devices wait to be inherited, unless it is the first place.
    fn machine_at(&self, number: u32) -> Result<MigratingMachine> {
        let host = &self.hosts[number as usize % 2];
        let (mut lent, mut hardware, mut plugged) = (Vec::new(), Vec::new(), Vec::new());
        for (name, way) in DEVICES {
            let socket = self.lab.scratch(&format!("{number}-{name}.sock"));
            let target = format!("lab3/{name}");
            let mut words = vec![&*target, "--address", &self.share.address, "--via", way.name()];
            words.extend((number > 0).then_some("--inherit"));
            let (attached, heard) = host.attach_heard(&words, &socket, &format!("attach-{number}-{name}"))?;
            lent.push(MachineDevice { name, way, attached, heard });
            let socket = socket.display();
            match way {
                MigrationFrontEnd::Redir => {
                    hardware.extend(["-chardev".to_owned(), format!("socket,id={name},path={socket}")]);
                    plugged.push(format!("usb-redir,chardev={name},bus=hc.0"));
                }
                MigrationFrontEnd::Nbd => {
                    let drive = format!("file=nbd+unix:///?socket={socket},format=raw,if=none,id={name},discard=unmap");
                    let device = format!("virtio-blk-device,drive={name}");
                    hardware.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
                }
            }
        }
        hardware.extend(xhci(&plugged.iter().map(String::as_str).collect::<Vec<_>>()));
        if number > 0 {
            hardware.extend(["-incoming".to_owned(), self.incoming()]);
        }
        let guest = self.lab.boot(&MachineBoot {
            script: include_str!("../../guest/redir-hosts.sh"),
            modules: &[
                "virtio_mmio",
                "virtio_net",
                "virtio_blk",
                "xhci_pci",
                "usb_storage",
                "sd_mod",
                "crc32c_generic",
                "ext4",
                "usbhid",
                "hid_generic",
                "evdev",
                "snd_usb_audio",
            ],
            client: AttachClient::Redir,
            programs: &["chrt"],
            patience: Duration::from_secs(240 + 40 * u64::from(self.moves)),
            role: &number.to_string(),
            hardware,
            ..MachineBoot::default()
        })?;
        Ok(MigratingMachine { guest, lent })
    }

    /// The hosts of the machine's place with that number and of the next one.
    fn hosts_of(&self, number: u32) -> (&RigHost, &RigHost) {
        (&self.hosts[number as usize % 2], &self.hosts[(number as usize + 1) % 2])
    }

    /// Waits until the sound card has received more of the tone.
    fn await_sound(&self) -> Result<()> {
        let heard = || -> Result<u64> {
            let counts = self.exporter.status("share", "audio")?["counts"].clone();
            Ok(counts["speaker_tone_frames"].as_u64().unwrap_or_default())
        };
        let (start, before) = (Instant::now(), heard()?);
        while start.elapsed() < Duration::from_secs(20) {
            if heard()? > before {
                return Ok(());
            }
        }
        Err(RigError::Expectation(format!("the sound card is sent nothing more: {before} frames")))
    }

    /// Checks that the load ended well, and everything else.
    fn judge(mut self, mut placed: MigratingMachine) -> Result<String> {
        placed.guest.tell_wherever("enough")?;
        let passes = placed.guest.await_word("done")?;
        placed.guest.await_word("detach")?;
        let typed = {
            let (usb, block): (Vec<_>, Vec<_>) =
                placed.lent.into_iter().partition(|lent| lent.way == MigrationFrontEnd::Redir);
            usb.into_iter().try_for_each(|lent| lent.attached.detach())?;
            let typed = keyboard::judge(&placed.guest.finish()?.output)?;
            // Its machine has it until the machine ends.
            block.into_iter().try_for_each(|lent| lent.attached.detach())?;
            typed
        };
        self.share.still_runs()?;
        storage::judge_guests_tree(self.lab, &self.image)?;
        nbd::judge_noise(self.lab, &self.block)?;
        Ok(format!("{passes} passes of the load; {typed}"))
    }

    /// Types one of `moves + 1` parts of the text.
    fn type_part(&self, part: u32) -> Result<()> {
        let (text, parts) = (keyboard::TEXT, self.moves as usize + 1);
        let at = |part: usize| text.len() * part / parts;
        let piece = &text[at(part as usize)..at(part as usize + 1)];
        match piece.is_empty() {
            true => Ok(()),
            false => self.exporter.run(&["type", "keyboard", "--", piece]).map(drop),
        }
    }

    /// Migrates the machine to its place with that number, by `farbus migrate-vm`.
    fn go(&self, number: u32, here: &mut MigratingMachine) -> Result<MigrationTimes> {
        let there = self.machine_at(number)?;
        std::thread::sleep(Duration::from_secs(1));
        let (from, to) = self.hosts_of(number - 1);
        let monitor = here.guest.monitor().display().to_string();
        let message = from.run(&["migrate-vm", &monitor, "--to", to.name(), "--uri", &self.incoming(), "--json"])?;
        let moved: Value = serde_json::from_str(&message)
            .map_err(|error| RigError::Expectation(format!("migrate-vm said {message}: {error}")))?;
        let of = |field: &str| Duration::from_millis(moved[field].as_u64().unwrap_or_default());
        let (downtime, completed) = (of("downtime_ms"), instant_of(&moved["completed_unix_us"])?);
        let has_departed = moved["departed"].as_u64() == Some(DEVICES.len() as u64);
        expect(has_departed, || format!("its devices did not go before its QEMU had ended: {moved}"))?;
        let MigratingMachine { guest, lent: before } = std::mem::replace(here, there);
        guest.cut_power();
        // The keyboard answers when a key is pressed.
        self.type_part(number)?;
        let mut later = Vec::new();
        for (before, after) in before.into_iter().zip(&here.lent) {
            before.heard.await_line("goes to its successor when")?;
            let (arrived, _) = after.heard.await_line("was handed over to this host")?;
            let (_, line) = after.heard.await_line("answers its first request here")?;
            let is_awaited = line.contains("is_awaited=true") && before.name != "keyboard";
            let waited = if is_awaited { span_in(&line, "after_us=")? } else { Duration::ZERO };
            later.push((before.name, [arrived.saturating_duration_since(completed), waited]));
            let status = before.attached.end()?;
            expect(status.success(), || format!("farbus attach ended with {status} when its device had gone"))?;
        }
        self.await_sound()?;
        Ok(MigrationTimes { downtime, later })
    }
}

/// A migration's times.
struct MigrationTimes {
    /// How long the machine stood still, as its QEMU says.
    downtime: Duration,
    /// For each device, how much later than the machine it went on: until it had been handed over, and from then until
    /// it had answered what it was asked before.
    later: Vec<(&'static str, [Duration; 2])>,
}

/// The devices' delays in words, and whether each device's median is within [`LATER_MAX`]. Few moves decide nothing.
fn judge_moves(moves: &[MigrationTimes]) -> (String, bool) {
    let ms = |span: Duration| format!("{:.1}", span.as_secs_f64() * 1e3);
    let median = |mut spans: Vec<Duration>| {
        spans.sort_unstable();
        spans.get(spans.len() / 2).copied().unwrap_or_default()
    };
    let mut is_met = true;
    let mut messages = vec![format!(
        "{} moves, medians: QEMU {} ms down",
        moves.len(),
        ms(median(moves.iter().map(|one| one.downtime).collect()))
    )];
    for (name, _) in DEVICES {
        let of = |one: &MigrationTimes| one.later.iter().find(|(device, _)| *device == name).map(|(_, parts)| *parts);
        let parts: Vec<[Duration; 2]> = moves.iter().filter_map(of).collect();
        let later = median(parts.iter().map(|parts| parts.iter().sum()).collect());
        let [handed, answered] = [0, 1].map(|part| ms(median(parts.iter().map(|of| of[part]).collect())));
        let verdict = match later <= LATER_MAX {
            _ if moves.len() < MOVES_MIN => "not judged",
            true => "PASS",
            false => {
                is_met = false;
                "MISS"
            }
        };
        messages.push(format!(
            "{name} {} ms later than the machine ({verdict}; handed over {handed}, answered {answered})",
            ms(later)
        ));
    }
    (messages.join(", "), is_met)
}

/// The moment that a program said in microseconds of Unix time.
fn instant_of(unix_us: &Value) -> Result<Instant> {
    let span = unix_us.as_u64().map(Duration::from_micros);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let since = now.zip(span).and_then(|(now, then)| now.checked_sub(then));
    let at = since.and_then(|since| Instant::now().checked_sub(since));
    at.ok_or_else(|| RigError::Expectation(format!("migrate-vm completed at {unix_us}")))
}

fn span_in(line: &str, name: &str) -> Result<Duration> {
    let figure = line.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    figure
        .map(Duration::from_micros)
        .ok_or_else(|| RigError::Expectation(format!("farbus attach says no {name}: {line}")))
}

fn there_and_back(lab: &CaseEnvironment) -> Result<String> {
    let moves = 2 * lab.times();
    let cluster = MigrationCluster::new(lab, moves)?;
    let mut here = cluster.machine_at(0)?;
    here.guest.await_word("ready")?;
    cluster.type_part(0)?;
    let mut figures = Vec::new();
    for number in 1..=moves {
        std::thread::sleep(Duration::from_secs(2));
        figures.push(cluster.go(number, &mut here)?);
    }
    let note = cluster.judge(here)?;
    let (message, is_met) = judge_moves(&figures);
    let message = format!("{note}; the paper: {PAPER_MS} ms; {message}");
    expect(is_met, || message.clone())?;
    Ok(message)
}

fn stays(lab: &CaseEnvironment) -> Result<String> {
    let cluster = MigrationCluster::new(lab, 1)?;
    let mut here = cluster.machine_at(0)?;
    here.guest.await_word("ready")?;
    cluster.type_part(0)?;
    let there = cluster.machine_at(1)?;
    std::thread::sleep(Duration::from_secs(1));
    let (host, successor) = cluster.hosts_of(0);
    for lent in &here.lent {
        host.run(&["migrate", lent.name, "--to", successor.name()])?;
    }
    cluster.type_part(1)?;
    there.guest.cut_power();
    drop(there.lent);
    // Before it has stopped: a QEMU that has saved its usb-redir devices once does not send packets with earlier ids
    // again.
    let failed = here.guest.migrate(&cluster.incoming(), Duration::from_secs(20));
    expect(failed.is_err(), || "it has migrated to nobody".into())?;
    for lent in &here.lent {
        host.run(&["resume", lent.name])?;
    }
    cluster.judge(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_of_a_hold_is_parsed_from_the_log() {
        let line = " INFO held_us=1234 result=Ok(ToUser) the disk was held still";
        assert_eq!(span_in(line, "held_us=").unwrap(), Duration::from_micros(1234));
        assert_eq!(span_in(" INFO is told after_us=7", "after_us=").unwrap(), Duration::from_micros(7));
        assert!(span_in("nothing", "held_us=").is_err());
    }

    #[test]
    fn devices_are_judged_by_their_medians_and_only_by_many_moves() {
        let ms = Duration::from_millis;
        let moves = |count: usize, later: Duration| -> Vec<MigrationTimes> {
            let one = |at: usize| if at < count / 3 { [ms(500); 2] } else { [later - ms(4), ms(4)] };
            let of = |at| MigrationTimes { downtime: ms(75), later: DEVICES.map(|(name, _)| (name, one(at))).to_vec() };
            (0..count).map(of).collect()
        };
        let (message, is_met) = judge_moves(&moves(MOVES_MIN, ms(20)));
        assert!(
            is_met && message.contains("disk2 20.0 ms later than the machine (PASS; handed over 16.0, answered 4.0)"),
            "{message}"
        );
        let (message, is_met) = judge_moves(&moves(MOVES_MIN, ms(21)));
        assert!(!is_met && message.contains("MISS"), "{message}");
        let (message, is_met) = judge_moves(&moves(MOVES_MIN - 1, ms(900)));
        assert!(is_met && message.contains("not judged") && message.contains("QEMU 75.0 ms down"), "{message}");
    }
}
