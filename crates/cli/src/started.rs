//! The processes that farbus starts of itself: halves with other rights than their parents, last parents of programs.

use std::{ffi::OsString, net::SocketAddr, os::fd::RawFd, path::PathBuf};

use clap::{Parser, Subcommand};
use farbus::frontend::usbfs;
use farbus::link::modules::program;
use farbus_io_linux::module::ModuleTransport;

use super::{CommandFailure, demo, page};

/// The command line of such a process.
#[derive(Debug, Parser)]
#[command(name = "farbus", about = "The processes that farbus starts of itself")]
pub struct StartedLine {
    #[command(subcommand)]
    pub verb: StartedVerb,
}

#[derive(Debug, Subcommand)]
pub enum StartedVerb {
    /// The half of a confined process that kept its rights; started by it alone.
    #[command(hide = true)]
    Broker,
    /// The process that ends a module's program when nobody uses it any more; started by others alone.
    #[command(hide = true, name = program::HOST_VERB)]
    ModuleHost {
        /// It shares memory.
        #[arg(long)]
        ring: bool,
        /// The path of the module's program.
        program: PathBuf,
    },
    /// The process that becomes a module's program, without rights; started by others alone.
    #[command(hide = true, name = program::PROGRAM_VERB)]
    ModuleProgram {
        /// It shares memory.
        #[arg(long)]
        ring: bool,
        /// The path of the module's program.
        program: PathBuf,
    },
    /// The process that becomes the program of `farbus run`; started by it alone.
    #[command(hide = true, name = usbfs::INSIDE_VERB)]
    RunInside {
        /// It hears of devices that come and go.
        #[arg(long)]
        events: bool,
        /// It sees the machine's own devices, too.
        #[arg(long)]
        with_local: bool,
        /// The name of its tree.
        #[arg(long)]
        tree: String,
        /// The descriptor of its parent.
        parent: RawFd,
        /// The program, and its arguments.
        #[arg(required = true, last = true)]
        program: Vec<OsString>,
    },
    /// The process that makes the sockets for events; started by `farbus run` alone.
    #[command(hide = true, name = usbfs::SOURCE_VERB)]
    RunEvents,
    /// The process that speaks multicast DNS; started by others alone.
    #[command(hide = true)]
    Nearby,
    /// The process that speaks HTTP for a page; started by that alone.
    #[command(hide = true, name = farbus_page::VERB)]
    PageHttp {
        /// It keeps its rights.
        #[arg(long)]
        no_sandbox: bool,
    },
    /// The process that asks other hosts for a page; started by that alone.
    #[command(hide = true, name = farbus_page::HOSTS_VERB)]
    PageHosts,
    /// The process that has the daemons of `farbus demo --lab`; started by it alone.
    #[command(hide = true, name = demo::lab::KEEPER_VERB)]
    DemoLab {
        /// The folder that all of it is in.
        folder: PathBuf,
        /// The address of the page.
        listen: SocketAddr,
    },
}

impl StartedVerb {
    /// Whether the only descriptors of its process are standard input, output and error.
    pub fn has_standard_descriptors_only(&self) -> bool {
        !matches!(self, Self::RunInside { .. } | Self::DemoLab { .. })
    }
}

/// Is that process.
///
/// # Errors
/// What it failed at.
pub fn run(verb: StartedVerb) -> Result<(), CommandFailure> {
    match verb {
        StartedVerb::Broker => farbus::broker::run(farbus_daemon::read_config).map_err(CommandFailure::local),
        StartedVerb::ModuleHost { ring, program } => {
            match program::host(&program, way(ring)).map_err(CommandFailure::local)? {
                0 => Ok(()),
                code => Err(CommandFailure::local(format!("{} ended with exit code {code}", program.display()))),
            }
        }
        StartedVerb::ModuleProgram { ring, program } => {
            Err(CommandFailure::local(program::become_program(&program, way(ring))))
        }
        StartedVerb::RunInside { events: hears_events, with_local, tree, parent, program } => {
            super::run::become_program(parent, &usbfs::ProgramProcessSetup { tree, hears_events, with_local }, &program)
        }
        StartedVerb::RunEvents => usbfs::be_source().map_err(CommandFailure::local),
        StartedVerb::DemoLab { folder, listen } => demo::lab::keep(&folder, listen),
        StartedVerb::Nearby => farbus::hosts::mdns::run().map_err(CommandFailure::local),
        StartedVerb::PageHosts => page::hosts::run(),
        StartedVerb::PageHttp { no_sandbox } => farbus_page::run(!no_sandbox).map_err(CommandFailure::local),
    }
}

fn way(is_ring: bool) -> ModuleTransport {
    if is_ring { ModuleTransport::Ring } else { ModuleTransport::Pipes }
}
