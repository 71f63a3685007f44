//! One table of routes: every capability on every way in which users have it.
//!
//! A capability is written once ([`capabilities`]) and is proved on each [`Route`] that it applies to: a way of use, a
//! plain connection or a session of paired hosts, an attachment that the command or the daemon keeps, near, 50 ms away
//! or over a link that is cut. The gate runs a choice that covers each pair of these ([`choice`]); with
//! `FARBUS_ROUTES=all`, as `cargo xtask soak` has it, all cells run. `docs/interop.md` shows the table: `FARBUS_WRITE=1
//! FARBUS_ROUTES=all cargo test -p farbus-cli --test command -- routes` writes it, once all have passed.
//!
//! A new way of use is a value of [`Way`] and a line in [`scene`]; a new capability is a value of [`CAPABILITIES`] and
//! a test here.

mod capabilities;
mod choice;
mod scene;
mod table;

use std::fmt;

use super::harness::{Harness, has, has_fuse};
use super::run::can_run;
use capabilities::{CAPABILITIES, Capability};
use scene::Scene;

/// How programs on the importer's machine use a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    /// `attach --via kernel`: a block device of usb-storage.
    Kernel,
    /// `attach --via uas`: a block device of the kernel's uas.
    Uas,
    /// `farbus run`: a program that drives the disk by usbfs.
    Run,
    /// `attach --via redir`: a virtual machine.
    Redir,
    /// `attach --via nbd`: an NBD client.
    Nbd,
    /// `attach --via fuse`: a program that opens a file.
    Fuse,
    /// A program that uses farbus's library.
    Library,
}

/// How the hosts are connected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Connection {
    /// Plain USB/IP over TCP, without pairing.
    Plain,
    /// A session of paired hosts, over TLS.
    Session,
}

/// What keeps the attachment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Keeper {
    Command,
    Daemon,
}

/// The link between the hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    Near,
    /// A round trip takes 50 ms.
    Far,
    /// It is cut while the device is in use, and links can be made again.
    Cut,
}

/// One way in which users have a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    pub way: Way,
    pub connection: Connection,
    pub keeper: Keeper,
    pub distance: Distance,
}

pub const WAYS: [Way; 7] = [Way::Kernel, Way::Uas, Way::Run, Way::Redir, Way::Nbd, Way::Fuse, Way::Library];
const CONNECTIONS: [Connection; 2] = [Connection::Plain, Connection::Session];
const KEEPERS: [Keeper; 2] = [Keeper::Command, Keeper::Daemon];
const DISTANCES: [Distance; 3] = [Distance::Near, Distance::Far, Distance::Cut];

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, connection, keeper, distance } = self;
        f.write_str(&format!("{way:?}-{connection:?}-{keeper:?}-{distance:?}").to_lowercase())
    }
}

impl Route {
    pub fn all() -> impl Iterator<Item = Self> {
        WAYS.into_iter().flat_map(|way| {
            CONNECTIONS.into_iter().flat_map(move |connection| {
                KEEPERS.into_iter().flat_map(move |keeper| {
                    DISTANCES.into_iter().map(move |distance| Self { way, connection, keeper, distance })
                })
            })
        })
    }

    /// Why nobody can have this route, whatever it is used for.
    pub fn left_out(self) -> Option<&'static str> {
        match (self.way, self.connection, self.keeper) {
            (Way::Run | Way::Library, _, Keeper::Daemon) => Some("a program has the device, and no daemon keeps it"),
            (Way::Uas, Connection::Plain, _) => Some("UAS needs a session"),
            _ => None,
        }
    }

    /// Whether only a kernel with `vhci_hcd` has it: the rig's.
    pub fn needs_vhci(self) -> bool {
        matches!(self.way, Way::Kernel | Way::Uas)
    }

    /// Whether this machine can run it. If not, it says so.
    fn can_run_here(self) -> bool {
        match self.way {
            Way::Kernel | Way::Uas => std::path::Path::new("/sys/bus/platform/drivers/vhci_hcd").exists(),
            Way::Run => can_run(),
            Way::Fuse => has_fuse(),
            Way::Redir | Way::Nbd | Way::Library => true,
        }
    }
}

/// A capability on a route.
#[derive(Clone, Copy)]
pub struct Cell {
    pub capability: &'static Capability,
    pub route: Route,
}

impl Cell {
    /// All cells that apply.
    pub fn all() -> impl Iterator<Item = Self> {
        CAPABILITIES.iter().flat_map(|capability| {
            let applies = |route: &Route| capability.left_out(*route).is_none();
            Route::all().filter(applies).map(move |route| Self { capability, route })
        })
    }
}

/// What the rig gives as `FARBUS_ROUTES`, for the choice and for all of its cells.
const RIG: &str = "rig";
const RIG_ALL: &str = "rig-all";

fn by_the_kernel() -> Vec<Cell> {
    Cell::all().filter(|cell| cell.route.needs_vhci()).collect()
}

/// The cells to run now: those that cover each pair, `all`, or those whose route has the words of `FARBUS_ROUTES` in
/// its name, such as `nbd-session`.
fn chosen() -> Vec<Cell> {
    match std::env::var("FARBUS_ROUTES").as_deref() {
        Ok("all") => return Cell::all().collect(),
        Ok(RIG) => return choice::covering(&by_the_kernel()),
        Ok(RIG_ALL) => return by_the_kernel(),
        Ok(words) => return Cell::all().filter(|cell| cell.route.to_string().contains(words)).collect(),
        Err(_) => {}
    }
    // Each place covers all pairs by itself: what runs in the rig does not run here.
    let (rig, here): (Vec<Cell>, Vec<Cell>) = Cell::all().partition(|cell| cell.route.needs_vhci());
    [here, rig].iter().flat_map(|cells| choice::covering(cells)).collect()
}

/// Proves a capability on each of its chosen routes that this machine has.
fn drive(name: &str) {
    let cells: Vec<Cell> = chosen().into_iter().filter(|cell| cell.capability.name == name).collect();
    assert!(CAPABILITIES.iter().any(|capability| capability.name == name), "no capability has the name {name}");
    for cell in cells.iter().filter(|cell| !cell.route.needs_vhci() || cell.route.can_run_here()) {
        if !has(&format!("what {} needs", cell.route), cell.route.can_run_here()) {
            continue;
        }
        // A test that fails shows it.
        println!("{name} on {}", cell.route);
        let began = std::time::Instant::now();
        let harness = Harness::new();
        (cell.capability.prove)(&mut Scene::lay(&harness, cell.route));
        drop(harness);
        table::record(*cell);
        println!("{name} on {} passed in {:?}", cell.route, began.elapsed());
    }
}

#[test]
fn what_a_program_writes_is_on_the_medium_and_what_it_reads_is_too() {
    drive("content");
}

#[test]
fn exporter_that_is_killed_and_started_again_is_found_again() {
    drive("exporter-killed");
}

#[test]
fn another_disk_of_the_same_name_is_served_to_nobody_who_had_the_first() {
    drive("another-medium");
}

#[test]
fn disk_that_is_shared_read_only_refuses_writes() {
    drive("read-only");
}

#[test]
fn both_hosts_say_who_uses_the_device_where_and_how_much_has_passed() {
    drive("status");
}

#[test]
fn owner_takes_the_device_back_and_says_why() {
    drive("released");
}

#[test]
fn host_that_is_forbidden_a_device_loses_it() {
    drive("forbidden");
}

#[test]
fn user_gives_the_device_back_and_it_is_free() {
    drive("given-back");
}

#[test]
fn data_pass_through_a_module() {
    drive("module");
}

#[test]
fn programs_find_manufacturer_product_and_serial_number_below_sys() {
    drive("strings");
}

#[test]
fn device_is_taken_from_its_user_when_the_lease_ends() {
    drive("lease-ended");
}
