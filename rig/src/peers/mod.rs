//! Third-party programs that run on this machine: started, watched, and ended with the case.

pub mod crate_server;
pub mod odd;
pub mod python;

use crate::farbus::{announcement, end, follow};
use crate::{Result, RigError, tool};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server that has announced its address. Dropping it kills it.
pub struct InteropServer {
    child: Child,
    port: u16,
}

impl InteropServer {
    /// Starts it and waits for its "listening on ADDRESS".
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let shown = tool::show(&command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(RigError::io(format!("start {shown}")))?;
        let printed = follow(&mut child, log).map(|lines| announcement(&lines));
        match printed {
            Ok(Ok((port, _))) => Ok(Self { child, port }),
            Ok(Err(message)) => {
                end(&mut child);
                Err(RigError::Tool { command: shown, message })
            }
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// The port of the loopback that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends it a line on its standard input.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").map_err(RigError::io("write to a server's standard input"))
    }
}

impl Drop for InteropServer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
