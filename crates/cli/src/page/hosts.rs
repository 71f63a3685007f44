//! The process that asks other hosts what they have, for a page.

use std::io::{self, Read, Write};
use std::process;
use std::thread;

use farbus::importer::discovery::each;

use super::CommandFailure;

/// Writes a line of JSON for each host as soon as it is known. It ends with its standard input, which the page holds
/// open.
pub fn run() -> Result<(), CommandFailure> {
    let watch = || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        process::exit(0);
    };
    thread::Builder::new().name("page".into()).spawn(watch).map_err(CommandFailure::local)?;
    let mut out = io::stdout().lock();
    each::tell(|host| writeln!(out, "{host}").and_then(|()| out.flush()).is_ok());
    // What has not answered yet is not waited for.
    Ok(())
}
