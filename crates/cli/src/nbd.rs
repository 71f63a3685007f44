//! `farbus nbd`: block devices of this machine for programs that speak NBD.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use farbus::broker::confined::{give_rights_away, report_protection, start_broker};
use farbus::broker::{BrokerPolicy, SystemAccess};
use farbus::devices::status::medium_status;
use farbus::exporter::sources::block::BlockSpec;
use farbus::exporter::swap::ExportSwaps;
use farbus::exporter::swap_answers::{answer_disk, asked_of};
use farbus::frontend::nbd::{NbdExport, NbdServer, PROTOCOL, uri};
use farbus::frontend::{AttachmentEnd, NbdExportAddress, StopSignal, undurable};
use farbus::importer::client::FailureKind;
use farbus::link::meters::EngineMeters;
use farbus_control::attachment::AttachmentStatus;
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::sys::writeback::protect_writeback_path;
use farbus_io_net::local::control_socket::{Answer, ControlSocket, Question};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_session::block::BlockExport;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::CommandFailure;
use super::listen::{SocketAccessArgs, place_told};
use super::served::say_served;

/// Serve block devices of this machine to programs that speak NBD.
#[derive(Debug, clap::Args)]
#[command(after_help = "WHAT is one of:\n  \
        block:PATH[,ro][,offset=BYTES][,size=BYTES][,scratch[=BYTES|=/PATH]]\n      \
        a file or block device, or a range of it; with scratch, changes are kept\n      \
        in memory or in a file, and go away\n  \
        memory:SIZE[,ro]\n      \
        so much memory, which goes away\n\n\
        BYTES and SIZE may end in K, M, G or T.\n\n\
        Examples:\n  \
        farbus nbd block:disk.img &\n  \
        nbdinfo 'nbd+unix:///?socket=/run/farbus/nbd-disk.img.sock'\n\n  \
        farbus nbd block:/dev/sdb,ro memory:1G --socket /tmp/disks.sock\n  \
        farbus nbd block:disk.img --socket /srv/vm/disk.sock --socket-group kvm\n  \
        farbus nbd memory:1G --listen 127.0.0.1      at NBD's port, 10809\n\n\
        A disk of another machine: 'farbus attach HOST/disk --via nbd'.")]
pub struct Args {
    /// What to serve; the first is also the default export.
    #[arg(required = true)]
    what: Vec<BlockSpec>,
    /// The Unix socket.
    ///
    /// Only its owner and root may connect, unless --socket-mode or --socket-group says otherwise.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    access: SocketAccessArgs,
    /// Serve a disk that this machine uses itself.
    ///
    /// Without it, farbus refuses to let others write an image that is mounted, a loop device, swap, or open in another
    /// program here: two that write it destroy what is on it. As the word 'force' behind its path.
    #[arg(long)]
    force: bool,
    /// A TCP address instead, ADDR[:PORT].
    ///
    /// The port is 10809 unless you name another. There is no password and no encryption: every program that reaches
    /// the address may use the disks.
    #[arg(long, value_name = "ADDR", conflicts_with = "socket")]
    listen: Option<String>,
    /// Print the address, and failures, as JSON.
    #[arg(long)]
    pub json: bool,
    /// Keep the rights of the user who started it.
    ///
    /// Without it, the process that reads from its clients runs as a user without rights, sees no other files and
    /// makes no connections by itself.
    #[arg(long)]
    no_sandbox: bool,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    if args.what.iter().any(|what| what.images().next().is_some()) {
        // Before any thread starts: threads inherit what is granted here.
        report_protection(&protect_writeback_path());
    }
    // Catch signals before any program can know where this one listens.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
    if args.what.len() > NbdServer::offers_max() {
        return Err(CommandFailure::local(format!("at most {} at once", NbdServer::offers_max())));
    }
    let names = names(&args.what);
    let access = args.access.access()?;
    let location = place_told(PROTOCOL, args.socket.as_deref(), args.listen.as_deref(), &names[0])?;
    let (control_socket, control_listener) = ControlSocket::bind().map_err(CommandFailure::local)?;
    let (remove, locations) = (vec![control_socket.path().to_owned()], vec![(location.clone(), access.clone())]);
    let system = match args.no_sandbox {
        true => SystemAccess::Own,
        false => SystemAccess::Through(Arc::new(start_broker(&BrokerPolicy {
            remove,
            places: locations,
            ..BrokerPolicy::default()
        })?)),
    };
    let offers = args.what.iter().zip(&names).map(|(what, name)| {
        let what = if args.force { &what.clone().forced() } else { what };
        let opened = what.open(&SystemAccess::Own).map_err(CommandFailure::local)?;
        let (name, description) = (name.clone(), what.to_string());
        let offer = NbdExport { name, description, device: opened.device, zeroes_fast: opened.zeroes_fast };
        Ok((offer, opened.export))
    });
    let (offers, exports): (Vec<_>, Vec<_>) = offers.collect::<Result<Vec<_>, CommandFailure>>()?.into_iter().unzip();
    let sizes: Vec<u64> = offers.iter().map(|offer| offer.device.info().size_bytes).collect();
    let listener = system.listen_at(&location, &access).map_err(CommandFailure::local)?;
    let location = listener.location().map_err(CommandFailure::local)?;
    let is_alone = names.len() == 1;
    let served = names.iter().zip(sizes).map(|(name, size_bytes)| {
        let name = if is_alone { String::new() } else { name.clone() };
        NbdExportAddress { uri: uri(&location, &name), name, size_bytes }
    });
    let served: Vec<NbdExportAddress> = served.collect();
    let server = NbdServer::new(listener, offers, None).map_err(CommandFailure::local)?;
    if !args.no_sandbox {
        give_rights_away(&ConfinementNeeds::default())?;
    }
    let shown = Arc::new(NbdStatusSource {
        names,
        exports,
        swaps: ExportSwaps::default(),
        uri: served[0].uri.clone(),
        what: args.what.iter().map(BlockSpec::to_string).collect(),
        since: Instant::now(),
        stop: server.stop(),
        meters: server.meters(),
    });
    let for_control_socket = Arc::clone(&shown);
    control_socket
        .open(control_listener, move |question, files| for_control_socket.answer(question, files))
        .map_err(CommandFailure::local)?;
    let stop = server.stop();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop.end();
        }
    });
    startup_memory::give_back_soon();
    say_served(&served, args.json)?;
    let ended = server.run();
    shown.swaps.stop();
    drop(system);
    match ended {
        AttachmentEnd::Requested | AttachmentEnd::Released | AttachmentEnd::HandedOver | AttachmentEnd::Moved => Ok(()),
        AttachmentEnd::Undurable(why) => Err(CommandFailure::new(FailureKind::Device, undurable("the disk", &why))),
        AttachmentEnd::Lost(why) => Err(CommandFailure::new(FailureKind::Device, why)),
        AttachmentEnd::Over(report) => Err(CommandFailure::new(report.attribute, report.message)),
        AttachmentEnd::Broken(reject) => Err(CommandFailure::local(reject)),
    }
}

/// A distinct name for each.
fn names(what: &[BlockSpec]) -> Vec<String> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    what.iter()
        .map(|spec| {
            let name = spec.name();
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 { name } else { format!("{name}-{count}") }
        })
        .collect()
}

/// What the status shows.
struct NbdStatusSource {
    names: Vec<String>,
    exports: Vec<Arc<BlockExport>>,
    /// The swaps, by name.
    swaps: ExportSwaps,
    uri: String,
    what: Vec<String>,
    since: Instant,
    stop: StopSignal,
    meters: Arc<EngineMeters>,
}

impl NbdStatusSource {
    fn answer(&self, question: Question, files: &PassedFiles) -> Answer {
        let is_meant = |wanted: &str| self.names.iter().chain(&self.what).any(|name| name == wanted);
        if let Some(wanted) = asked_of(&question) {
            let found = self.names.iter().zip(&self.exports).find(|(name, _)| *name == wanted);
            let Some((name, export)) = found else { return Answer::Unknown };
            return answer_disk(&self.swaps, name, export, (question, files), || {});
        }
        match question {
            Question::Status => self.status(),
            Question::Detach { device, .. } if device.as_deref().is_none_or(is_meant) => {
                self.stop.end();
                Answer::Ok(serde_json::Value::Null)
            }
            _ => Answer::Unknown,
        }
    }

    fn status(&self) -> Answer {
        let all = self.names.iter().zip(&self.what).zip(&self.exports);
        let devices = all.enumerate().map(|(at, ((name, what), export))| AttachmentStatus {
            at: self.uri.clone(),
            used_s: self.since.elapsed().as_secs_f64(),
            // All exports are counted together.
            meters: (at == 0).then(|| self.meters.read()),
            medium: medium_status(export),
            ..AttachmentStatus::named(name, what, "served")
        });
        let devices = devices.map(ProcessDevice::from).collect();
        Answer::of(&ProcessStatus::new(std::process::id(), "nbd", self.uri.clone(), devices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_one_server_have_names_of_their_own() {
        let what: Vec<BlockSpec> =
            ["block:/a/disk.img", "memory:1M", "block:/b/disk.img"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(names(&what), ["disk.img", "memory", "disk.img-2"]);
    }
}
