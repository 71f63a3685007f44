//! What the rig proves, one named case each.
//!
//! Nearly every proof exists twice, once for each client: the distribution's `usbip attach` shows that farbus
//! is a good exporter to anybody, `farbus attach --via kernel` that it is a good importer too.

mod audio;
mod bridge;
mod can;
mod capture;
mod case;
mod daemon;
mod exporters;
mod far;
mod kernel;
mod keyboard;
mod link;
mod list;
mod nbd;
mod nothing_lost;
mod pair;
mod pipe;
mod redir;
mod redir_hosts;
mod reset;
mod storage;
mod strangers;
mod testusb;
mod usbfs;

pub use case::Case;

/// All cases, in the order in which a failure is best understood.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        kernel::CASES,
        list::CASES,
        storage::CASES,
        nbd::CASES,
        keyboard::CASES,
        audio::CASES,
        can::CASES,
        pipe::CASES,
        bridge::CASES,
        testusb::CASES,
        redir::CASES,
        redir_hosts::CASES,
        usbfs::CASES,
        exporters::CASES,
        strangers::CASES,
        daemon::CASES,
        nothing_lost::CASES,
        reset::CASES,
        link::CASES,
        capture::CASES,
    ]
    .into_iter()
    .flatten()
    .chain(far::all())
    .chain(pair::all())
}

/// How the names begin of cases that have all processors to themselves: they boot two machines, or are held to a clock;
/// or (usbfs) a guest was seen to stand still beside another one.
pub const ALONE: [&str; 8] =
    ["pair-", "bridge-", "topology-", "daemon-", "redir-migrate", "usbfs-", "lost-client-", "audio-"];

/// Whether the case wants the processors to itself.
pub fn runs_alone(case: &Case) -> bool {
    ALONE.iter().any(|start| case.name.starts_with(start))
}
