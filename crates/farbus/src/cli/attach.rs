//! `farbus attach` and `farbus detach`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::output::say;
use super::owner::{ProcessStatus, ask_owner, format_bytes};
use crate::attach::{AttachmentStatus, Ended, Ender, FileAttachment, KernelAttachment};
use crate::client::remember_address;
use crate::client::{Attribute, Target};
use crate::control::{Answer, Door, Question, folder};
use crate::meters::Meters;
use farbus_io::frontend::fuse::Cutter;
use farbus_io::sys::vhci::Vhci;
use farbus_io::sys::writeback::{Protection, protect_writeback_path};

/// Use a device of another machine here, until detached or interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ways:\n  \
    kernel  the device appears to this machine's kernel as if plugged in (root, module vhci-hcd)\n  \
    fuse    a disk appears as a file, without any kernel USB; for losetup, mkfs, mount, qemu\n  \
    auto    kernel where there is one, else fuse\n\n\
    Examples:\n  farbus attach lab3/disk\n  farbus attach 10.0.0.7/1-1 --via kernel\n  \
    farbus attach lab3/disk --via fuse --at /mnt/disk &\n  losetup --direct-io=on -f --show /mnt/disk/disk.img\n\n\
    Exit code 5 says that the link was lost.")]
pub struct AttachArgs {
    /// HOST[:PORT]/DEVICE; HOST may be the name of a paired host; DEVICE is a name or bus id that 'farbus list HOST' shows.
    target: Target,
    /// How it appears here.
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    via: Via,
    /// fuse: the folder in which the disk's file appears (made if missing).
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// Where the paired host is now; remembered.
    #[arg(long, value_name = "HOST[:PORT]")]
    address: Option<String>,
}

/// How a device appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Via {
    /// Through vhci-hcd.
    Kernel,
    /// As a file.
    Fuse,
    /// Whichever there is.
    Auto,
}

/// Let go of an attached device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus detach            the only one\n  farbus detach lab3/disk")]
pub struct DetachArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached; not needed where there is only one.
    device: Option<String>,
}

pub fn attach(args: AttachArgs) -> Result<(), Failure> {
    // Before any thread: what is granted here is inherited.
    report_protection(&protect_writeback_path());
    if let Some(moved) = &args.address {
        remember_address(&args.target.address, moved)?;
    }
    // Signals are caught before anything has to be taken back.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let via_kernel = match args.via {
        Via::Kernel => true,
        Via::Fuse => false,
        Via::Auto => Vhci::open().is_ok() && rustix::process::geteuid().is_root(),
    };
    let ended = if via_kernel {
        if args.at.is_some() {
            return Err(Failure::local("--at goes with --via fuse: the kernel names its devices itself"));
        }
        attach_to_kernel(&args.target, signals)?
    } else {
        attach_as_file(&args.target, args.at.as_deref(), signals)?
    };
    match ended {
        Ended::Asked | Ended::Released => {
            say(format!("{} detached", args.target));
            Ok(())
        }
        Ended::Lost(why) => Err(Failure::new(
            Attribute::Network,
            format!("{}: the link was lost: {why}\n  the device was unplugged here", args.target),
        )),
        Ended::Broken(reject) => {
            let message = format!("{}: cut off, its exporter broke the protocol: {reject}", args.target);
            Err(Failure::new(Attribute::Device, message))
        }
    }
}

fn attach_to_kernel(target: &Target, signals: Signals) -> Result<Ended, Failure> {
    let attachment = KernelAttachment::new(target)?;
    let at = format!("vhci port {}", attachment.port().0);
    let _door = open_door(target, &at, attachment.ender(), Some(attachment.meters()))?;
    end_on(signals, attachment.ender(), None);
    say(format!("{target} attached at {at}   (Ctrl-C or 'farbus detach' ends)"));
    Ok(attachment.run())
}

fn attach_as_file(target: &Target, at: Option<&Path>, signals: Signals) -> Result<Ended, Failure> {
    let at = at.map_or_else(|| folder().join(target.device.replace('/', "_")), Path::to_owned);
    let attachment = FileAttachment::new(target, &at)?;
    let file = attachment.file();
    let _door = open_door(target, &file.display().to_string(), attachment.ender(), None)?;
    end_on(signals, attachment.ender(), Some(attachment.cutter()));
    let size = format_bytes(attachment.size_bytes());
    say(format!("{target} attached as {} ({size})   (Ctrl-C or 'farbus detach' ends)", file.display()));
    say(format!(
        "  next: losetup --direct-io=on -f --show {0}, or qemu-system-x86_64 -drive file={0},format=raw",
        file.display()
    ));
    Ok(attachment.run())
}

/// What the system refused is said once: a disk under memory pressure may then wait for itself.
fn report_protection(protection: &Protection) {
    if !protection.is_complete() {
        tracing::info!("{protection}");
    }
}

/// The first signal ends the attachment in good order; a second one does not wait for a disk to be durable.
fn end_on(mut signals: Signals, ender: Ender, cutter: Option<Cutter>) {
    thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            ender.end();
        }
        if signals.next().is_some()
            && let Some(cutter) = cutter
        {
            cutter.cut();
        }
    });
}

fn open_door(target: &Target, at: &str, ender: Ender, meters: Option<Arc<Meters>>) -> Result<Door, Failure> {
    let (target, at, since) = (target.clone(), at.to_owned(), Instant::now());
    Door::open(move |question| match question {
        Question::Status => {
            let device = AttachmentStatus {
                name: target.device.clone(),
                title: target.to_string(),
                state: "attached",
                user: target.address.clone(),
                at: at.clone(),
                used_s: since.elapsed().as_secs_f64(),
                meters: meters.as_ref().map(|meters| meters.read()),
            };
            let address = target.address.clone();
            ProcessStatus { pid: std::process::id(), role: "attach", address, devices: vec![device] }.answer()
        }
        Question::Detach { device } => {
            let is_ours = device.is_none_or(|asked| {
                asked == target.device
                    || asked == target.to_string()
                    || asked.parse::<Target>().is_ok_and(|asked| asked == target)
            });
            if !is_ours {
                return Answer::Unknown;
            }
            ender.end();
            Answer::Ok(serde_json::Value::Null)
        }
        Question::Type { .. } | Question::Eject { .. } | Question::Insert { .. } => Answer::Unknown,
    })
    .map_err(Failure::local)
}

pub fn detach(args: DetachArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        only_one_attached()?;
    }
    let name = args.device.clone().unwrap_or_else(|| "any".into());
    ask_owner(&name, Question::Detach { device: args.device })
}

fn only_one_attached() -> Result<(), Failure> {
    let mut attached = Vec::new();
    for (_, answer) in crate::control::ask_all(&Question::Status).map_err(Failure::local)? {
        if let Answer::Ok(process) = answer
            && process["role"] == "attach"
        {
            let titles = process["devices"].as_array().into_iter().flatten();
            attached.extend(titles.filter_map(|device| device["title"].as_str().map(str::to_owned)));
        }
    }
    match attached.len() {
        0 => Err(Failure::new(Attribute::Gone, "nothing is attached here")),
        1 => Ok(()),
        _ => Err(Failure::local(format!("which one? farbus detach {}", attached.join(" | ")))),
    }
}
