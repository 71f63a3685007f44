//! A database's transactions over time, while its disk and the database migrate to another host, the disk is swapped to
//! another file there, and both come back (Netbus, Figures 10 and 11).
//!
//! Three paired hosts on this machine: one has the disk, two use it in turn. The database closes its disk between two
//! transactions, as an application does that moves: the figures show the time that it cannot work.

use std::{
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::database::{Event, Folder, Load, Process, chart, findings};
use crate::{
    lab::{Lab, Subject},
    report::Finding,
};

pub const NAME: &str = "journey";

/// A host of its own: processes of one do not find those of another.
struct Host<'a> {
    name: &'static str,
    lab: &'a Lab,
    state: PathBuf,
    run: PathBuf,
}

impl Host<'_> {
    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.lab.farbus_program()?);
        command.args(words).env("XDG_RUNTIME_DIR", &self.run).env("FARBUS_STATE", &self.state);
        command.env("FARBUS_NAME", self.name);
        Ok(command)
    }

    fn start(&self, words: &[&str]) -> Result<Process> {
        Process::start(self.command(words)?)
    }

    fn ok(&self, words: &[&str]) -> Result<()> {
        let ended = self.command(words)?.output()?;
        match ended.status.success() {
            true => Ok(()),
            false => bail!("farbus {words:?}: {}", String::from_utf8_lossy(&ended.stderr)),
        }
    }

    fn pair(&self, joins: &Host<'_>) -> Result<()> {
        let mut waiting = self.start(&["pair", "--listen", "127.0.0.1:0", "--json"])?;
        let said: Value = serde_json::from_str(&waiting.wait_for("\"code\"")?)?;
        let word = |what: &str| said[what].as_str().map(str::to_owned).context("a host that pairs says where and how");
        joins.ok(&["pair", &word("address")?, &word("code")?])
    }
}

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus moves disks");
    }
    let folder = Folder::new(NAME)?;
    let (bytes, pause) = if lab.quick { (32 << 20, 1) } else { (256 << 20, 3) };
    let pause = Duration::from_secs(pause);
    let host = |name: &'static str| -> Result<Host<'_>> {
        Ok(Host { name, lab, state: folder.place(name), run: folder.folder(&format!("run-{name}"))? })
    };
    let (lab3, desk, rack) = (host("lab3")?, host("desk")?, host("rack")?);
    for importer in [&desk, &rack] {
        lab3.pair(importer)?;
        lab3.ok(&["allow", importer.name, "all"])?;
    }
    desk.pair(&rack)?;
    let disk = format!("disk:{}", folder.database("first.img", bytes)?.display());
    let mut share = lab3.start(&["share", &disk, "--listen", "none", "--secure", "127.0.0.1:0"])?;
    let line = share.wait_for("for paired hosts")?;
    let address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();
    let attach = |host: &Host<'_>| -> Result<(Process, PathBuf)> {
        let at = folder.folder(&format!("at-{}", host.name))?;
        let place = at.to_str().context("a plain path")?;
        let words = ["attach", "lab3/disk", "--via", "fuse", "--at", place, "--address", &address, "--wait=20"];
        let mut attached = host.start(&words)?;
        attached.wait_for("attached as ")?;
        Ok((attached, at.join("disk.img")))
    };
    let (mut attached, at) = attach(&desk)?;
    let (mut load, began) = Load::start(&at)?;
    let since = |began: Instant| began.elapsed().as_secs_f64();
    let mut events = Vec::new();
    for (from, to) in [(&desk, &rack), (&rack, &desk)] {
        thread::sleep(pause);
        let begun = since(began);
        load.close()?;
        from.ok(&["migrate", "lab3/disk", "--to", to.name])?;
        let (there, at) = attach(to)?;
        load.open(&at)?;
        events.push(Event { name: format!("to {}", to.name), begun, ended: since(began) });
        // The previous attachment has ended by itself.
        attached = there;
        if to.name == rack.name {
            thread::sleep(pause);
            let begun = since(began);
            lab3.ok(&["swap", "disk", "--to", &format!("block:{}", folder.place("second.img").display())])?;
            events.push(Event { name: "swap".into(), begun, ended: since(began) });
        }
    }
    thread::sleep(pause);
    let moments = load.end(began)?;
    drop(attached);
    let title = "A database that goes to another host with its disk, and back";
    lab.plot(NAME, &chart(title, &moments, &events).render())?;
    Ok(findings(NAME, &moments, &events))
}
