//! The `farbus` command.

use std::process::ExitCode;

use farbus_cli::{self as command, FarbusCli, LogLimit};
use farbus_io_linux::sys::{inherited, startup_memory};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    // Before this process opens anything: descriptors that are open now are inherited.
    inherited::note();
    startup_memory::permit();
    let cli = FarbusCli::of_command_line();
    if cli.is_started_by_farbus() {
        inherited::close();
    }
    let filter = EnvFilter::try_from_env("FARBUS_LOG").unwrap_or_else(|_| EnvFilter::new(cli.log_level()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // The message about a failed log line would go to the same full disk, and panic: drop the line instead.
        .log_internal_errors(false)
        .with_ansi(command::is_styled(&std::io::stderr()))
        .with_target(false)
        .without_time()
        .finish()
        .with(LogLimit::default())
        .init();
    let as_json = cli.is_for_programs();
    let (code, signal) = match command::run(cli) {
        Ok(()) => (ExitCode::SUCCESS, None),
        Err(failure) => (command::report(&failure, as_json), failure.signal()),
    };
    // Last words over TCP are the kernel's.
    farbus_io_net::trust::end_quic();
    signal.into_iter().for_each(command::end_by);
    code
}
