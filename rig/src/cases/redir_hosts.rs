//! A virtual machine goes live from one host to another, each with a farbus of its own, and keeps its remote devices.

use super::case::{Case, expect};
use super::usbfs::xhci;
use super::{keyboard, storage};
use crate::farbus::Attached;
use crate::hosts::{Host, Shared};
use crate::lab::{Boot, Client, Lab};
use crate::machine::Guest;
use crate::{Error, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "redir-migrate-hosts",
        purpose: "a guest under load migrates live between two hosts, each with its own farbus, and back, --times: disk and keyboard keep their numbers, no reset, no error, trees and keys check out",
        run: there_and_back,
    },
    Case {
        name: "redir-migrate-fails",
        purpose: "the destination dies in mid-migration, and nobody inherits there: the guest goes on at the source, its devices with it",
        run: stays,
    },
];

/// What the machine has.
const DEVICES: [&str; 2] = ["disk", "keyboard"];
/// The paper's figure, for all that a migration takes (Kwon et al. 2007, section 7.5).
const PAPER_MS: u64 = 7;

/// An exporter, and two hosts of virtual machines.
struct Cluster<'l> {
    lab: &'l Lab<'l>,
    exporter: Host,
    hosts: [Host; 2],
    share: Shared,
    image: PathBuf,
    moves: u32,
}

/// A machine, and what its host's farbus lends it.
struct Placed {
    guest: Guest,
    attached: Vec<Attached>,
}

impl<'l> Cluster<'l> {
    fn new(lab: &'l Lab<'l>, moves: u32) -> Result<Self> {
        let image = storage::image_with_tree(lab)?;
        let [exporter, desk, rack] = [lab.host("lab3")?, lab.host("desk")?, lab.host("rack")?];
        exporter.pair(&desk)?;
        exporter.pair(&rack)?;
        desk.pair(&rack)?;
        let share = exporter.share(&[format!("disk:{}", image.display()), "keyboard".into()])?;
        Ok(Self { lab, exporter, hosts: [desk, rack], share, image, moves })
    }

    fn incoming(&self) -> String {
        format!("unix:{}", self.lab.scratch("incoming").display())
    }

    /// The machine's next place: what is lent there waits to be inherited, unless it is the first.
    fn place(&self, number: u32) -> Result<Placed> {
        let host = &self.hosts[number as usize % 2];
        let (mut attached, mut hardware) = (Vec::new(), Vec::new());
        for device in DEVICES {
            let socket = self.lab.scratch(&format!("{number}-{device}.sock"));
            let target = format!("lab3/{device}");
            let mut words = vec![&*target, "--address", &self.share.address, "--via", "redir"];
            words.extend((number > 0).then_some("--inherit"));
            attached.push(host.attach(&words, &socket, &format!("attach-{number}-{device}"))?);
            hardware.extend(["-chardev".to_owned(), format!("socket,id={device},path={}", socket.display())]);
        }
        let plugged = DEVICES.map(|device| format!("usb-redir,chardev={device},bus=hc.0"));
        hardware.extend(xhci(&plugged.each_ref().map(String::as_str)));
        if number > 0 {
            hardware.extend(["-incoming".to_owned(), self.incoming()]);
        }
        let guest = self.lab.boot(&Boot {
            script: include_str!("../../guest/redir-hosts.sh"),
            modules: &[
                "virtio_mmio",
                "virtio_net",
                "xhci_pci",
                "usb_storage",
                "sd_mod",
                "crc32c_generic",
                "ext4",
                "usbhid",
                "hid_generic",
                "evdev",
            ],
            client: Client::Redir,
            variables: &[("UNTIL", (40 + 15 * self.moves).to_string())],
            patience: Duration::from_secs(240 + 40 * u64::from(self.moves)),
            role: &number.to_string(),
            hardware,
            ..Boot::default()
        })?;
        Ok(Placed { guest, attached })
    }

    /// Has its devices held still for the host of that number.
    fn hold(&self, from: u32) -> Result<()> {
        let (here, there) = (&self.hosts[from as usize % 2], &self.hosts[(from as usize + 1) % 2]);
        DEVICES.iter().try_for_each(|device| here.run(&["migrate", device, "--to", there.name()]).map(drop))
    }

    /// Waits until a device there has answered something.
    fn await_answer(&self, number: u32, device: &str) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            let said = self.hosts[number as usize % 2].status("attach", device)?;
            if said["meters"]["urbs"].as_u64().unwrap_or_default() > 0 {
                return Ok(());
            }
        }
        Err(Error::Expectation(format!("{device} has answered nothing within 30 s where it went")))
    }

    /// The load ends well, and so does all else.
    fn judge(mut self, mut placed: Placed) -> Result<String> {
        let passes = placed.guest.await_word("done")?;
        placed.guest.await_word("detach")?;
        placed.attached.into_iter().try_for_each(Attached::detach)?;
        let typed = keyboard::judge(&placed.guest.finish()?.output)?;
        self.share.still_runs()?;
        storage::judge_guests_tree(self.lab, &self.image)?;
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
}

fn there_and_back(lab: &Lab) -> Result<String> {
    let moves = 2 * lab.times();
    let cluster = Cluster::new(lab, moves)?;
    let mut here = cluster.place(0)?;
    here.guest.await_word("ready")?;
    cluster.type_part(0)?;
    let mut figures = Vec::new();
    for number in 1..=moves {
        std::thread::sleep(Duration::from_secs(2));
        let there = cluster.place(number)?;
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        cluster.hold(number - 1)?;
        let held = start.elapsed();
        // Keys are pressed while it is nowhere.
        cluster.type_part(number)?;
        let start = Instant::now();
        let Placed { guest, attached } = std::mem::replace(&mut here, there);
        let downtime = guest.migrate(&cluster.incoming(), Duration::from_secs(60))?;
        let migrated = start.elapsed();
        let start = Instant::now();
        guest.cut_power();
        cluster.await_answer(number, "disk")?;
        let handed = start.elapsed();
        for attached in attached {
            let status = attached.end()?;
            expect(status.success(), || format!("farbus attach ended with {status} when its device had gone"))?;
        }
        figures.push(format!(
            "held in {} ms, handed over and answering in {} ms (QEMU: {} ms in all, {} ms down)",
            held.as_millis(),
            handed.as_millis(),
            migrated.as_millis(),
            downtime.as_millis()
        ));
    }
    let note = cluster.judge(here)?;
    Ok(format!("{note}; the paper: {PAPER_MS} ms; {}", figures.join("; ")))
}

fn stays(lab: &Lab) -> Result<String> {
    let cluster = Cluster::new(lab, 1)?;
    let mut here = cluster.place(0)?;
    here.guest.await_word("ready")?;
    cluster.type_part(0)?;
    let there = cluster.place(1)?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.hold(0)?;
    cluster.type_part(1)?;
    there.guest.cut_power();
    drop(there.attached);
    let failed = here.guest.migrate(&cluster.incoming(), Duration::from_secs(20));
    expect(failed.is_err(), || "it has migrated to nobody".into())?;
    for device in DEVICES {
        cluster.hosts[0].run(&["resume", device])?;
    }
    cluster.judge(here)
}
