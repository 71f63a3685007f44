//! The `farbus` command.

use std::process::ExitCode;

use clap::Parser;
use farbus::cli;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let filter = EnvFilter::try_from_env("FARBUS_LOG").unwrap_or_else(|_| EnvFilter::new(cli.log_level()));
    let styled = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say so on the same full disk, and panic: whoever logs goes on without that line.
        .log_internal_errors(false)
        .with_ansi(styled)
        .with_target(false)
        .without_time()
        .init();
    let as_json = cli.is_for_programs();
    match cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => cli::report(&failure, as_json),
    }
}
