//! Who gives devices back when their exporter was killed: the kernel takes them from a dead process, but looks for no driver.
//!
//! A child process of the exporter's, started with the first real device, that does nothing but wait for the end of its input.
//! What was not given back until then it hands to the kernel's drivers.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

/// The hidden verb that the child is started with.
pub const VERB: &str = "give-back";
/// Where the kernel is told to look for a driver.
const PROBE: &str = "/sys/bus/usb/drivers_probe";
/// Where it says which driver an interface has.
const DEVICES: &str = "/sys/bus/usb/devices";
/// How long a dead process may be in the kernel's hands.
const FREE_TIME_MAX: Duration = Duration::from_secs(10);
const FREE_POLL: Duration = Duration::from_millis(20);

/// The exporter's end. Dropping it after all was given back ends the child with nothing to do.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
    input: Option<ChildStdin>,
}

impl Guardian {
    /// Starts the child: this program again.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // In a group of its own: a Ctrl-C is for the exporter, which gives everything back itself.
        let mut child = command.arg(VERB).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// These interfaces (`1-1.4:1.0`) are taken from this machine's drivers now.
    pub fn taken(&mut self, interfaces: &[String]) {
        self.say('+', interfaces);
    }

    /// These were given back, or are gone.
    pub fn given_back(&mut self, interfaces: &[String]) {
        self.say('-', interfaces);
    }

    fn say(&mut self, sign: char, interfaces: &[String]) {
        let lines: String = interfaces.iter().map(|interface| format!("{sign}{interface}\n")).collect();
        if let Some(input) = &mut self.input
            && let Err(error) = input.write_all(lines.as_bytes())
        {
            warn!(%error, "should farbus be killed, nobody gives its devices back to their drivers");
            self.input = None;
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.input = None;
        // It has nothing left to do but to end.
        let _ = self.child.wait();
    }
}

/// The child's whole life.
///
/// # Errors
/// What the system says of its input.
pub fn run() -> io::Result<()> {
    let left = left_over(io::stdin().lock())?;
    give_back(&left, Path::new(PROBE));
    Ok(())
}

/// What was taken and not given back when the input ended.
fn left_over(input: impl BufRead) -> io::Result<BTreeSet<String>> {
    let mut left = BTreeSet::new();
    for line in input.lines() {
        let line = line?;
        if let Some(interface) = line.strip_prefix('+') {
            left.insert(interface.to_owned());
        } else if let Some(interface) = line.strip_prefix('-') {
            left.remove(interface);
        }
    }
    Ok(left)
}

/// The end of the input comes while the kernel still takes the dead process apart; what usbfs has until then is not probed.
fn wait_until_free(interface: &str) {
    let driver = Path::new(DEVICES).join(interface).join("driver");
    let until = Instant::now() + FREE_TIME_MAX;
    while std::fs::read_link(&driver).is_ok_and(|driver| driver.ends_with("usbfs")) && Instant::now() < until {
        thread::sleep(FREE_POLL);
    }
}

fn give_back(interfaces: &BTreeSet<String>, probe: &Path) {
    for interface in interfaces {
        wait_until_free(interface);
        // Without the right to it, or after an unplugging, there is nothing to be done and nobody to be told.
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .open(probe)
            .and_then(|mut file| file.write_all(interface.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_given_back_is_left_over() {
        let said = "+1-1:1.0\n+1-1:1.1\n+2-4:1.0\n-1-1:1.0\n?\n-1-1:1.1\n+2-4:1.1\n";
        let left = left_over(said.as_bytes()).unwrap();
        assert_eq!(left.iter().map(String::as_str).collect::<Vec<_>>(), ["2-4:1.0", "2-4:1.1"]);
        let probe = std::env::temp_dir().join(format!("farbus-guardian-{}", std::process::id()));
        std::fs::write(&probe, "").unwrap();
        give_back(&left, &probe);
        assert_eq!(std::fs::read_to_string(&probe).unwrap(), "2-4:1.1", "each is told to the kernel alone");
        std::fs::remove_file(probe).unwrap();
    }
}
