//! # The `farbus` command, verb by verb
//!
//! **This crate is** the program that people type: a module for each verb, what it prints, and its exit code.
//!
//! **It may touch** the terminal, processes, and whatever the verb is about, through the crates below.
//!
//! **It never touches** a protocol, a device or a socket of its own: each verb is a few questions to the library, to
//! the daemon, or to a process that answers.
//!
//! **Start reading at** [`Cli`], which lists the verbs; then at `attach.rs` or `share/mod.rs`.
//!
//! **Why** a library and a program of 40 lines: the reference of all commands, the manual and the benchmarks' names are
//! held against it by tests.

mod attach;
mod audit;
pub mod bench;
mod conform;
mod daemon;
mod demo;
mod directory;
mod docs;
mod doctor;
mod ending;
mod events;
mod explain;
mod grants;
#[cfg(test)]
mod help_tests;
mod identity;
mod interruption;
mod inventory;
mod label;
mod lease;
mod link_args;
mod list;
mod listen;
mod log_limit;
mod machine;
mod migrate;
mod migrate_all;
mod migrate_vm;
mod module;
mod nbd;
mod observe;
mod other_program;
mod output;
mod owner;
mod page;
mod pipe;
mod plan;
mod release;
mod run;
mod served;
mod share;
mod sleep;
mod started;
mod stream;
mod swap;
mod topology;
mod trust;
mod version;
mod waiting;
mod watch;

use clap::{CommandFactory, Parser, Subcommand};
use farbus_io_linux::sys::descriptors;

pub use interruption::end_by;
pub use log_limit::LogLimit;
pub use output::{Failure, report};
use started::{StartedLine, StartedVerb};

/// Any machine's devices on any other machine, as if they were plugged in there.
#[derive(Debug, Parser)]
#[command(
    name = "farbus",
    version = version::program_version(),
    max_term_width = 100,
    propagate_version = true,
    help_template = "{about}\n{usage-heading} {usage}\n\nCommands:\n{subcommands}\nOptions and examples: 'farbus COMMAND --help'; exit codes: 'farbus explain'.{after-help}",
    after_long_help = "Examples:\n  \
        farbus share disk:backup.img zero   offer a disk image and a test device\n  \
        farbus share usb:1-1.4              offer a USB device ('farbus share --list')\n  \
        farbus pair                         let two hosts know each other\n  \
        farbus list lab3                    what does lab3 offer?\n  \
        farbus attach lab3/disk             use its disk here\n  \
        farbus run lab3/board -- lsusb -v   a program that sees its USB device\n  \
        farbus demo                         see it all work, in ten seconds\n\n\
        Exit codes: 0 done, 1 failed here, 2 usage, 3 refused, 4 gone or unknown, 5 network, 6 device; 130 or 143: a signal ended it before it had what it waited for."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Share(share::Args),
    Unshare(share::by_daemon::UnshareArgs),
    List(list::Args),
    Attach(attach::AttachArgs),
    Run(run::RunArgs),
    Shell(run::ShellArgs),
    Detach(attach::DetachArgs),
    /// Hold a virtual machine's device before the machine migrates.
    #[command(
        after_help = "A machine that has a device by '--via redir' migrates between two QEMUs of this host. Start the destination with the same options and '-incoming', connected to the same socket; then hold the device, and migrate. The guest waits for the device meanwhile, and loses nothing.\n\n\
        Between two hosts use 'farbus migrate lab3/disk --to HOST' in its place.\n\n\
        Examples:\n  \
        farbus hold lab3/disk        returns when nothing is under way: now migrate\n  \
        farbus resume lab3/disk      only if the migration failed"
    )]
    Hold(attach::MovingArgs),
    /// Let a held device continue: the machine did not migrate.
    #[command(after_help = "After a migration that succeeded the device continues by itself.\n\n\
        Examples:\n  farbus hold lab3/disk\n  farbus resume lab3/disk      the migration failed: the guest continues here")]
    Resume(attach::MovingArgs),
    Migrate(migrate::Args),
    MigrateVm(migrate_vm::Args),
    Module(module::Args),
    Observe(observe::Args),
    Page(page::Args),
    Stream(stream::Args),
    Daemon(daemon::Args),
    Nbd(nbd::Args),
    Status(owner::StatusArgs),
    Events(events::Args),
    Audit(audit::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Lease(lease::Args),
    Directory(directory::Args),
    Label(label::Args),
    Release(release::Args),
    Swap(swap::Args),
    Type(owner::TypeArgs),
    /// Take the medium out of a shared disk, as if its drive were opened.
    ///
    /// The disk's user sees a drive without a medium until 'farbus insert'.
    #[command(after_help = "Examples:\n  farbus share disk:cd.img,ro      here\n  farbus eject\n  farbus eject disk2")]
    Eject(owner::DeviceArgs),
    /// Put the medium of a shared disk back after 'farbus eject'.
    ///
    /// The disk's user sees a medium that was changed.
    #[command(after_help = "Examples:\n  farbus insert\n  farbus insert disk2")]
    Insert(owner::DeviceArgs),
    Demo(demo::Args),
    Pipe(pipe::Args),
    Plan(plan::Args),
    Topology(topology::Args),
    Bench(bench::Args),
    Conform(conform::Args),
    Id(trust::IdArgs),
    Pair(trust::PairArgs),
    Peers(trust::PeersArgs),
    Unpair(trust::UnpairArgs),
    Allow(grants::AllowArgs),
    Forbid(grants::ForbidArgs),
    Identity(identity::Args),
    // A package installs what it prints; the book's chapter on installing names it.
    #[command(hide = true)]
    Completions(docs::CompletionsArgs),
    #[command(hide = true)]
    Man(docs::ManArgs),
    #[command(flatten)]
    Started(StartedVerb),
}

impl Cli {
    /// What the command line of this process says; a line that says nothing ends the process.
    pub fn of_command_line() -> Self {
        // All other verbs and their options are a third of a megabyte, and milliseconds.
        let is_started = std::env::args().nth(1).is_some_and(|verb| StartedVerb::has_subcommand(&verb));
        if is_started { Self { verb: Verb::Started(StartedLine::parse().verb) } } else { Self::parse() }
    }

    /// Whether farbus itself started this process, whose only descriptors are then standard input, output and error.
    pub fn is_started_by_farbus(&self) -> bool {
        match &self.verb {
            Verb::Started(verb) => verb.has_standard_descriptors_only(),
            Verb::Daemon(args) => args.is_successor(),
            _ => false,
        }
    }

    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            Verb::List(args) => args.json,
            Verb::Attach(args) => args.json,
            Verb::Audit(args) => args.json,
            Verb::Conform(args) => args.is_for_programs(),
            Verb::Doctor(args) => args.json,
            Verb::Explain(args) => args.json,
            Verb::Events(args) => args.json,
            Verb::Allow(args) => args.json,
            Verb::Identity(args) => args.is_for_programs(),
            Verb::Module(args) => args.is_for_programs(),
            Verb::Nbd(args) => args.json,
            Verb::Observe(args) => args.json,
            Verb::Page(args) => args.is_for_programs(),
            Verb::Pipe(args) => args.json,
            Verb::Plan(args) => args.is_for_programs(),
            Verb::Topology(args) => args.is_for_programs(),
            Verb::Stream(args) => args.is_for_programs(),
            Verb::Status(args) => args.json,
            Verb::Swap(args) => args.json,
            Verb::Share(args) => args.is_for_programs(),
            Verb::Unshare(args) => args.json,
            Verb::Daemon(args) => args.is_for_programs(),
            Verb::Detach(args) => args.json,
            Verb::Hold(args) | Verb::Resume(args) => args.json,
            Verb::Migrate(args) => args.json,
            Verb::MigrateVm(args) => args.json,
            Verb::Label(args) => args.json,
            Verb::Directory(args) => args.is_for_programs(),
            Verb::Lease(args) => args.is_for_programs(),
            Verb::Release(args) => args.json,
            Verb::Type(args) => args.json,
            Verb::Eject(args) | Verb::Insert(args) => args.json,
            Verb::Demo(args) => args.json,
            Verb::Id(args) => args.json,
            Verb::Pair(args) => args.json,
            Verb::Peers(args) => args.json,
            Verb::Unpair(args) => args.json,
            Verb::Forbid(args) => args.json,
            _ => false,
        }
    }

    /// The default log level: the demo prints its own progress, and beside a program there is its output.
    pub fn log_level(&self) -> &'static str {
        let is_quiet = matches!(
            self.verb,
            Verb::Demo(_) | Verb::Run(_) | Verb::Shell(_) | Verb::Started(StartedVerb::RunInside { .. })
        );
        if is_quiet { "warn" } else { "info" }
    }
}

/// Carries out the command line.
///
/// # Errors
/// A failure, which has its exit code.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let serves_many = matches!(cli.verb, Verb::Page(_) | Verb::Started(StartedVerb::PageHttp { .. }));
    if serves_many || matches!(cli.verb, Verb::Share(_) | Verb::Attach(_) | Verb::Daemon(_) | Verb::Nbd(_)) {
        // Before the process gives its rights away. The broker that it starts inherits the limit.
        descriptors::raise();
    }
    let result = carry_out(cli.verb);
    farbus::broker::end_started();
    result
}

fn carry_out(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Share(args) => share::run(args),
        Verb::Unshare(args) => share::by_daemon::unshare(&args),
        Verb::List(args) => list::run(&args),
        Verb::Attach(args) => attach::attach(args),
        Verb::Run(args) => run::run(args),
        Verb::Shell(args) => run::shell(args),
        Verb::Detach(args) => attach::detach(args),
        Verb::Hold(args) => attach::hold(args),
        Verb::Resume(args) => attach::resume(args),
        Verb::Migrate(args) => migrate::run(args),
        Verb::MigrateVm(args) => migrate_vm::run(&args),
        Verb::Module(args) => module::run(&args),
        Verb::Observe(args) => observe::run(&args),
        Verb::Page(args) => page::run(&args),
        Verb::Stream(args) => stream::run(args),
        Verb::Daemon(args) => daemon::run(args),
        Verb::Nbd(args) => nbd::run(&args),
        Verb::Status(args) => owner::status(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Audit(args) => audit::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Label(args) => label::run(&args),
        Verb::Directory(args) => directory::run(&args),
        Verb::Lease(args) => lease::run(args),
        Verb::Release(args) => release::run(args),
        Verb::Swap(args) => swap::run(&args),
        Verb::Type(args) => owner::type_text(args),
        Verb::Eject(args) => owner::eject(args),
        Verb::Insert(args) => owner::insert(args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Pipe(args) => pipe::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Topology(args) => topology::run(&args),
        Verb::Bench(args) => bench::run(args),
        Verb::Conform(args) => conform::run(&args),
        Verb::Id(args) => trust::id(&args),
        Verb::Pair(args) => trust::pair(&args),
        Verb::Peers(args) => trust::peers(&args),
        Verb::Unpair(args) => trust::unpair(&args),
        Verb::Allow(args) => grants::allow(&args),
        Verb::Forbid(args) => grants::forbid(&args),
        Verb::Identity(args) => identity::run(&args),
        Verb::Completions(args) => docs::completions(&args, Cli::command()),
        Verb::Man(args) => docs::man(&args, Cli::command()),
        Verb::Started(verb) => started::run(verb),
    }
}
