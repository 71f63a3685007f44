//! `farbus demo`: shares a disk, attaches it and reads it back, in one process and a few seconds.
//!
//! Each step prints its result. If this machine or this user does not allow a step, the demo does it in a lesser way
//! and says so. The steps' guards clean up in every case, Ctrl-C included.

mod image;
mod kernel;
pub mod lab;
mod stage;
mod tool;
mod traffic;

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farbus::broker::SystemAccess;
use farbus::devices::class_words::classes;
use farbus::exporter::share::Share;
use farbus::frontend::{Attachment, AttachmentEnd, FileAttachment};
use farbus::importer::client::{ClientError, DeviceTarget, list, name_of, open_disk};
use farbus::importer::disk::OpenedDisk;
use farbus::importer::port::DevicePort;
use farbus_control::units::format_bytes;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_host::RemoteDisk;
use farbus_io_linux::store::FileStore;
use farbus_model::BlockStore;
use farbus_session::OpStatus;

use self::image::{DemoImage, TAIL_BYTES};
use self::stage::{DemoFolder, DemoReporter};
use super::CommandFailure;
use super::output::say;
use super::page::loopback;

/// See it all work: share a disk, attach it, read its files back.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It makes a small disk image in the temporary folder, shares it on a free port of this machine, attaches it as another machine would, and leaves nothing behind. As root it also mounts the disk.\n\n\
    With --lab it starts three daemons that know each other, with twenty made-up devices, traffic, and the page, until Ctrl-C.\n\n\
    Examples:\n  farbus demo\n  sudo farbus demo      with the mount\n  farbus demo --lab     a lab to look at in a browser"
)]
pub struct Args {
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Run a lab and its page, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    lab: bool,
    /// Address of the lab's page, of the loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7240", requires = "lab", value_parser = loopback)]
    listen: SocketAddr,
    /// End the lab after so long.
    #[arg(long, value_name = "SECONDS", requires = "lab")]
    seconds: Option<u64>,
}

/// The bytes of one command: as many as a FUSE request or a loop device asks for.
const BLOCK_BYTES: usize = 128 << 10;
/// How long each direction is measured: long enough for a steady figure, short enough to wait for.
const MEASURE_TIME: Duration = Duration::from_millis(500);
/// How long an exporter may take to offer a device again after its last user has gone.
const REOFFER_TIME_MAX: Duration = Duration::from_secs(2);

type DemoDisk = RemoteDisk<DevicePort>;

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    if args.lab {
        return lab::run(args.listen, args.seconds);
    }
    let mut stage = DemoReporter::new(args.json)?;
    stage.begin("a disk is shared here, and used as another machine would use it");
    let scratch = DemoFolder::new()?;
    let image = DemoImage::make(&scratch, &mut stage)?;
    let share = Share::default();
    let target = offer(&share, &image, &stage)?;
    let mut disk = take(&target, &stage)?;
    measure(&mut disk, &image, &stage)?;
    read_back(disk, &target, &image, &scratch, &mut stage)?;
    give_back(&share, &image, &stage)?;
    drop(scratch);
    stage.end()?;
    if !args.json {
        if cfg!(debug_assertions) {
            say(
                "\nThis program is not optimized, so that it was built soon: its figures say nothing of farbus's speed.\n  \
                cargo build --release                   the program to use and to measure, target/release/farbus",
            );
        }
        say_what_next();
    }
    Ok(())
}

/// Shares the image and lists it, as `farbus share` and `farbus list` do.
fn offer(share: &Share, image: &DemoImage, stage: &DemoReporter) -> Result<DeviceTarget, CommandFailure> {
    stage.doing("share")?;
    let store = FileStore::open(&image.path, false).map_err(CommandFailure::local)?;
    let serial = StorageOptions::serial_of(&image.path.display().to_string());
    let disk = StorageGadget::device(
        Box::new(store),
        StorageOptions { serial, product: "demo disk".into(), ..StorageOptions::default() },
    );
    share.add("disk", disk.map_err(CommandFailure::local)?).map_err(CommandFailure::local)?;
    let address = share.listen(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(CommandFailure::local)?.to_string();
    stage.done("share", format!("'disk' is on offer at {address}, this machine alone"));
    stage.doing("list")?;
    for record in list(&address)? {
        let (name, ids) = (name_of(&record), format!("{:04x}:{:04x}", record.vendor, record.product));
        let classes = classes(&record).join(", ");
        stage.done("list", format!("{name}, bus id {}, {ids}, {} speed, {classes}", record.bus_id, record.speed));
    }
    Ok(DeviceTarget { address, device: "disk".into() })
}

/// Opens the disk. Its last user may have gone just now without the exporter having noticed, so it tries again.
fn take(target: &DeviceTarget, stage: &DemoReporter) -> Result<DemoDisk, CommandFailure> {
    stage.doing("attach")?;
    let since = Instant::now();
    let disk = loop {
        match open_disk(target) {
            Err(ClientError::Refused { status: OpStatus::Busy, .. }) if since.elapsed() < REOFFER_TIME_MAX => {
                thread::sleep(Duration::from_millis(10));
            }
            result => break result?,
        }
    };
    let info = disk.info();
    let (size, sectors) = (format_bytes(info.size_bytes()), info.block_bytes);
    let name = format!("{} {}", info.vendor, info.product);
    stage.done("attach", format!("'{name}', {size} in sectors of {sectors} bytes, by farbus's own USB host"));
    Ok(disk)
}

/// Reads the disk in order, then writes its spare space, one command at a time.
fn measure(disk: &mut DemoDisk, image: &DemoImage, stage: &DemoReporter) -> Result<(), CommandFailure> {
    stage.doing("measure")?;
    let trouble = |error: &dyn std::fmt::Display| CommandFailure::local(format!("the disk failed: {error}"));
    let mut block = vec![0; BLOCK_BYTES];
    let read = steadily(0, disk.size_bytes(), stage, |offset| {
        disk.read_at(offset, &mut block).map_err(|error| trouble(&error))
    })?;
    let (start, end) = (image.tail_offset, disk.size_bytes());
    let mut tail = vec![0; TAIL_BYTES as usize];
    image::fill(start, &mut tail);
    let mut write = |offset| {
        let at = (offset - start) as usize;
        disk.write_at(offset, &tail[at..at + BLOCK_BYTES]).map_err(|error| trouble(&error))
    };
    let mut written = steadily(start, end, stage, &mut write)?;
    // A slow disk has not been read to its end in that time.
    (start + written.bytes..end).step_by(BLOCK_BYTES).try_for_each(&mut write)?;
    let flush = Instant::now();
    disk.flush().map_err(|error| trouble(&error))?;
    written.time += flush.elapsed();
    let speeds = format!("reads {}/s, writes {}/s", read.per_second(), written.per_second());
    stage.done("measure", format!("{speeds}: one 128 KiB command at a time over loopback TCP"));
    Ok(())
}

/// How many bytes passed in which time.
struct TransferTiming {
    bytes: u64,
    time: Duration,
}

impl TransferTiming {
    fn per_second(&self) -> String {
        format_bytes((self.bytes as f64 / self.time.as_secs_f64()) as u64)
    }
}

/// Moves blocks from `start` to `end` repeatedly, for [`MEASURE_TIME`].
fn steadily(
    start: u64,
    end: u64,
    stage: &DemoReporter,
    mut move_block: impl FnMut(u64) -> Result<(), CommandFailure>,
) -> Result<TransferTiming, CommandFailure> {
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < MEASURE_TIME {
        stage.check()?;
        move_block(start + bytes % (end - start))?;
        bytes += BLOCK_BYTES as u64;
    }
    Ok(TransferTiming { bytes, time: began.elapsed() })
}

/// Reads the files back by the longest path that this machine and this user allow: the disk as a file, that file as a
/// block device, that device mounted.
fn read_back(
    disk: DemoDisk,
    target: &DeviceTarget,
    image: &DemoImage,
    scratch: &DemoFolder,
    stage: &mut DemoReporter,
) -> Result<(), CommandFailure> {
    stage.doing("show")?;
    let shown = OpenedDisk::usb(disk)
        .and_then(|disk| FileAttachment::over(disk, target, &SystemAccess::Own, &scratch.path("attached")));
    let attachment = match shown {
        Ok(attachment) => attachment,
        Err(error) => {
            stage.reduce(format!("the disk is not shown as a file: {error}"));
            let mut disk = take(target, stage)?;
            return compare_all(&mut disk, image, stage);
        }
    };
    let file = attachment.file().to_owned();
    stage.done("show", format!("it is the file {} now, by FUSE", file.display()));
    read_file(&file, image, scratch, stage)?;
    stage.doing("detach")?;
    attachment.handle().end();
    match Box::new(attachment).run() {
        AttachmentEnd::Requested
        | AttachmentEnd::Released
        | AttachmentEnd::HandedOver
        | AttachmentEnd::Moved
        | AttachmentEnd::Undurable(_) => {
            stage.done("detach", "the file is gone and everything is durable");
            Ok(())
        }
        AttachmentEnd::Lost(why) => Err(CommandFailure::local(format!("the link was lost: {why}"))),
        AttachmentEnd::Over(report) => Err(CommandFailure::new(report.attribute, report.message)),
        AttachmentEnd::Broken(reject) => Err(CommandFailure::local(reject)),
    }
}

fn read_file(
    file: &Path,
    image: &DemoImage,
    scratch: &DemoFolder,
    stage: &mut DemoReporter,
) -> Result<(), CommandFailure> {
    if !image.has_file_system() {
        return compare_file(file, image, stage);
    }
    match kernel::mount(file, image, scratch, stage)? {
        Ok(mounted) => {
            image.compare_with_tree(mounted.folder(), "read", stage)?;
            mounted.unmount(stage)
        }
        Err(why) => {
            stage.reduce(format!("the disk's file is not mounted: {why}"));
            match image.extract(file, scratch, stage)? {
                Some(folder) => image.compare_with_tree(&folder, "read", stage),
                None => compare_file(file, image, stage),
            }
        }
    }
}

/// Compares every byte of the disk, read through the library.
fn compare_all(disk: &mut DemoDisk, image: &DemoImage, stage: &DemoReporter) -> Result<(), CommandFailure> {
    let read =
        |offset, to: &mut [u8]| disk.read_at(offset, to).map_err(|error| CommandFailure::local(error.to_string()));
    image.compare(read, stage)?;
    stage.done("read", format!("all {} through the library: every byte is right", format_bytes(image.size_bytes)));
    Ok(())
}

/// Compares every byte of the disk, read through its file.
fn compare_file(path: &Path, image: &DemoImage, stage: &DemoReporter) -> Result<(), CommandFailure> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path).map_err(CommandFailure::local)?;
    image.compare(|offset, to| file.read_exact_at(to, offset).map_err(CommandFailure::local), stage)?;
    stage.done("read", format!("all {} of the file: every byte is right", format_bytes(image.size_bytes)));
    Ok(())
}

/// Ends the share and checks what reached its image.
fn give_back(share: &Share, image: &DemoImage, stage: &DemoReporter) -> Result<(), CommandFailure> {
    stage.doing("check")?;
    if !share.stop() {
        return Err(CommandFailure::local("the share did not end in time"));
    }
    image.compare_tail(stage)?;
    let fsck = match image.fsck()? {
        Some(program) => format!(", and {program} finds its file system clean"),
        None => String::new(),
    };
    stage.done("check", format!("the {} written from afar are in the image{fsck}", format_bytes(TAIL_BYTES)));
    Ok(())
}

fn say_what_next() {
    say("\nNext, with two terminals (farbus --help says more):\n  \
        farbus share disk:PATH zero keyboard    offer an image, a test device and a keyboard\n  \
        farbus list localhost                   what do you offer?\n  \
        farbus attach disk --via fuse           the disk, as a file\n  \
        farbus run keyboard -- lsusb            a program that sees the keyboard\n  \
        farbus status                           who uses what, and how much passed through\n\
        or with two machines, lab3 and desk:\n  \
        lab3$ farbus pair --allow disk          shows a code, and waits for desk\n  \
        desk$ farbus pair lab3 CODE\n  \
        lab3$ farbus share disk:PATH --secure   encrypted, for paired hosts\n  \
        desk$ farbus attach lab3/disk           /dev/sdX with vhci-hcd, otherwise a file");
}
