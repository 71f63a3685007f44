//! The cases, each a named proof.
//!
//! Nearly every proof exists twice, once for each client: with the distribution's `usbip attach` it tests farbus as an
//! exporter, with `farbus attach --via kernel` as an importer too.

mod audio;
mod bridge;
mod can;
mod capture;
mod case;
mod conform;
mod daemon;
mod driverless;
mod durability;
mod exporters;
mod far;
mod kernel;
mod keyboard;
mod link;
mod list;
mod nbd;
mod nothing_lost;
mod odd;
mod pair;
mod pipe;
mod programs;
mod redir;
mod redir_hosts;
mod reset;
mod routes;
mod storage;
mod strangers;
mod taken_over;
mod testusb;
mod usbfs;

pub use case::RigCase;

/// All cases, in the order in which a failure is best understood.
pub fn all() -> impl Iterator<Item = &'static RigCase> {
    [
        kernel::CASES,
        list::CASES,
        storage::CASES,
        nbd::CASES,
        keyboard::CASES,
        driverless::CASES,
        audio::CASES,
        can::CASES,
        pipe::CASES,
        taken_over::CASES,
        bridge::CASES,
        testusb::CASES,
        redir::CASES,
        redir_hosts::CASES,
        usbfs::CASES,
        programs::CASES,
        exporters::CASES,
        strangers::CASES,
        conform::CASES,
        daemon::CASES,
        nothing_lost::CASES,
        odd::CASES,
        durability::CASES,
        reset::CASES,
        link::CASES,
        capture::CASES,
        routes::CASES,
    ]
    .into_iter()
    .flatten()
    .chain(far::all())
    .chain(pair::all())
}

/// Cases that take minutes: they run when they are named, as the soak does.
pub const ONLY_NAMED: [&str; 3] = ["durability-uas", "usbfs-in-port-often", "routes-all"];

/// Beginnings of the names of cases that run without others beside them: they boot two machines, or measure time; or
/// (usbfs, program) a guest was seen to stall beside another one.
pub const ALONE: [&str; 9] =
    ["pair-", "bridge-", "topology-", "daemon-", "redir-migrate", "usbfs-", "program-", "lost-client-", "audio-"];

/// Whether the case has to run alone.
pub fn runs_alone(case: &RigCase) -> bool {
    ALONE.iter().any(|start| case.name.starts_with(start))
}
