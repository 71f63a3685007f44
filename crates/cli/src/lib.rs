//! # The `farbus` command, verb by verb
//!
//! **This crate is** the program that people type: a module for each verb, what it prints, and its exit code.
//!
//! **It may touch** the terminal, processes, and whatever the verb is about, through the crates below.
//!
//! **It never touches** a protocol, a device or a socket of its own: each verb is a few questions to the library, to
//! the daemon, or to a process that answers.
//!
//! **Start reading at** [`FarbusCli`], which lists the verbs; then at `attach.rs` or `share/mod.rs`.
//!
//! **Why** a library and a program of 40 lines: the reference of all commands, the manual and the benchmarks' names are
//! held against it by tests.

mod attach;
mod audit;
pub mod bench;
mod conform;
mod console;
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
pub mod papers;
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
pub use output::{CommandFailure, is_styled, report};
use started::{StartedLine, StartedVerb};

/// Any machine's devices on any other machine, as if they were plugged in there.
#[derive(Debug, Parser)]
#[command(
    name = "farbus",
    version = version::program_version(),
    max_term_width = 100,
    propagate_version = true,
    help_template = "{about}\n{usage-heading} {usage}   (farbus COMMAND --help, farbus explain MESSAGE)\nCommands:\n{subcommands}{after-help}",
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
pub struct FarbusCli {
    #[command(subcommand)]
    verb: FarbusCommand,
}

#[derive(Debug, Subcommand)]
enum FarbusCommand {
    Share(share::Args),
    Unshare(share::by_daemon::UnshareArgs),
    List(list::Args),
    Attach(attach::AttachArgs),
    Run(run::RunArgs),
    Shell(run::ShellArgs),
    Detach(attach::DetachArgs),
    Console(console::ConsoleArgs),
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
    Papers(papers::Args),
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

impl FarbusCli {
    /// What the command line of this process says; a line that says nothing ends the process.
    pub fn of_command_line() -> Self {
        // All other verbs and their options are a third of a megabyte, and milliseconds.
        let is_started = std::env::args().nth(1).is_some_and(|verb| StartedVerb::has_subcommand(&verb));
        if is_started { Self { verb: FarbusCommand::Started(StartedLine::parse().verb) } } else { Self::parse() }
    }

    /// Whether farbus itself started this process, whose only descriptors are then standard input, output and error.
    pub fn is_started_by_farbus(&self) -> bool {
        match &self.verb {
            FarbusCommand::Started(verb) => verb.has_standard_descriptors_only(),
            FarbusCommand::Daemon(args) => args.is_successor(),
            _ => false,
        }
    }

    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            FarbusCommand::List(args) => args.json,
            FarbusCommand::Attach(args) => args.json,
            FarbusCommand::Audit(args) => args.json,
            FarbusCommand::Conform(args) => args.is_for_programs(),
            FarbusCommand::Doctor(args) => args.json,
            FarbusCommand::Explain(args) => args.json,
            FarbusCommand::Events(args) => args.json,
            FarbusCommand::Allow(args) => args.json,
            FarbusCommand::Identity(args) => args.is_for_programs(),
            FarbusCommand::Module(args) => args.is_for_programs(),
            FarbusCommand::Nbd(args) => args.json,
            FarbusCommand::Observe(args) => args.json,
            FarbusCommand::Page(args) => args.is_for_programs(),
            FarbusCommand::Pipe(args) => args.json,
            FarbusCommand::Plan(args) => args.is_for_programs(),
            FarbusCommand::Topology(args) => args.is_for_programs(),
            FarbusCommand::Stream(args) => args.is_for_programs(),
            FarbusCommand::Status(args) => args.json,
            FarbusCommand::Swap(args) => args.json,
            FarbusCommand::Share(args) => args.is_for_programs(),
            FarbusCommand::Unshare(args) => args.json,
            FarbusCommand::Daemon(args) => args.is_for_programs(),
            FarbusCommand::Detach(args) => args.json,
            FarbusCommand::Hold(args) | FarbusCommand::Resume(args) => args.json,
            FarbusCommand::Migrate(args) => args.json,
            FarbusCommand::MigrateVm(args) => args.json,
            FarbusCommand::Label(args) => args.json,
            FarbusCommand::Directory(args) => args.is_for_programs(),
            FarbusCommand::Lease(args) => args.is_for_programs(),
            FarbusCommand::Release(args) => args.json,
            FarbusCommand::Type(args) => args.json,
            FarbusCommand::Eject(args) | FarbusCommand::Insert(args) => args.json,
            FarbusCommand::Demo(args) => args.json,
            FarbusCommand::Id(args) => args.json,
            FarbusCommand::Pair(args) => args.json,
            FarbusCommand::Peers(args) => args.json,
            FarbusCommand::Unpair(args) => args.json,
            FarbusCommand::Forbid(args) => args.json,
            _ => false,
        }
    }

    /// The default log level: the demo prints its own progress, and beside a program there is its output.
    pub fn log_level(&self) -> &'static str {
        let is_quiet = matches!(
            self.verb,
            FarbusCommand::Demo(_)
                | FarbusCommand::Run(_)
                | FarbusCommand::Console(_)
                | FarbusCommand::Shell(_)
                | FarbusCommand::Started(StartedVerb::RunInside { .. })
        );
        if is_quiet { "warn" } else { "info" }
    }
}

/// Carries out the command line.
///
/// # Errors
/// A failure, which has its exit code.
pub fn run(cli: FarbusCli) -> Result<(), CommandFailure> {
    let serves_many = matches!(cli.verb, FarbusCommand::Page(_) | FarbusCommand::Started(StartedVerb::PageHttp { .. }));
    if serves_many
        || matches!(
            cli.verb,
            FarbusCommand::Share(_) | FarbusCommand::Attach(_) | FarbusCommand::Daemon(_) | FarbusCommand::Nbd(_)
        )
    {
        // Before the process gives its rights away. The broker that it starts inherits the limit.
        descriptors::raise();
    }
    let result = carry_out(cli.verb);
    farbus::broker::end_started();
    result
}

fn carry_out(verb: FarbusCommand) -> Result<(), CommandFailure> {
    match verb {
        FarbusCommand::Share(args) => share::run(args),
        FarbusCommand::Unshare(args) => share::by_daemon::unshare(&args),
        FarbusCommand::List(args) => list::run(&args),
        FarbusCommand::Attach(args) => attach::attach(args),
        FarbusCommand::Run(args) => run::run(args),
        FarbusCommand::Shell(args) => run::shell(args),
        FarbusCommand::Detach(args) => attach::detach(args),
        FarbusCommand::Console(args) => console::run(args),
        FarbusCommand::Hold(args) => attach::hold(args),
        FarbusCommand::Resume(args) => attach::resume(args),
        FarbusCommand::Migrate(args) => migrate::run(args),
        FarbusCommand::MigrateVm(args) => migrate_vm::run(&args),
        FarbusCommand::Module(args) => module::run(&args),
        FarbusCommand::Observe(args) => observe::run(&args),
        FarbusCommand::Page(args) => page::run(&args),
        FarbusCommand::Stream(args) => stream::run(args),
        FarbusCommand::Daemon(args) => daemon::run(args),
        FarbusCommand::Nbd(args) => nbd::run(&args),
        FarbusCommand::Status(args) => owner::status(&args),
        FarbusCommand::Events(args) => events::run(&args),
        FarbusCommand::Audit(args) => audit::run(&args),
        FarbusCommand::Doctor(args) => doctor::run(&args),
        FarbusCommand::Explain(args) => explain::run(&args),
        FarbusCommand::Label(args) => label::run(&args),
        FarbusCommand::Directory(args) => directory::run(&args),
        FarbusCommand::Lease(args) => lease::run(args),
        FarbusCommand::Release(args) => release::run(args),
        FarbusCommand::Swap(args) => swap::run(&args),
        FarbusCommand::Type(args) => owner::type_text(args),
        FarbusCommand::Eject(args) => owner::eject(args),
        FarbusCommand::Insert(args) => owner::insert(args),
        FarbusCommand::Demo(args) => demo::run(&args),
        FarbusCommand::Pipe(args) => pipe::run(&args),
        FarbusCommand::Plan(args) => plan::run(&args),
        FarbusCommand::Topology(args) => topology::run(&args),
        FarbusCommand::Bench(args) => bench::run(args),
        FarbusCommand::Papers(args) => papers::run(args),
        FarbusCommand::Conform(args) => conform::run(&args),
        FarbusCommand::Id(args) => trust::id(&args),
        FarbusCommand::Pair(args) => trust::pair(&args),
        FarbusCommand::Peers(args) => trust::peers(&args),
        FarbusCommand::Unpair(args) => trust::unpair(&args),
        FarbusCommand::Allow(args) => grants::allow(&args),
        FarbusCommand::Forbid(args) => grants::forbid(&args),
        FarbusCommand::Identity(args) => identity::run(&args),
        FarbusCommand::Completions(args) => docs::completions(&args, FarbusCli::command()),
        FarbusCommand::Man(args) => docs::man(&args, FarbusCli::command()),
        FarbusCommand::Started(verb) => started::run(verb),
    }
}
