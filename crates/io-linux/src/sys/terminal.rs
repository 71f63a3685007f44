//! Pseudo terminals (pty(7)): what programs open as a serial port, and the end that farbus serves.

#![allow(unsafe_code, reason = "an ioctl that the standard library and rustix have no name for")]

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, chmod};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::ioctl::{Opcode, Setter, ioctl};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{ControlModes, OptionalActions, tcgetattr, tcsetattr};

/// A byte that says what was flushed comes before what is read (`TIOCPKT`, ioctl_tty(2)).
const PACKET_MODE: Opcode = 0x5420;
/// Bits of that byte: what a program was to read was flushed, and what it wrote.
const FLUSHED_INPUT: u8 = 1;
const FLUSHED_OUTPUT: u8 = 2;
/// The rate before a program sets one, in bits a second.
const FIRST_RATE: u32 = 115_200;
/// Only the owner opens it.
const OWNER_ALONE: u32 = 0o600;

/// farbus's end of a pseudo terminal. It never blocks.
#[derive(Debug)]
pub struct TerminalMaster {
    master: OwnedFd,
    /// An inotify descriptor that becomes readable when a program opens the terminal.
    opens: OwnedFd,
    /// The file that programs open.
    path: PathBuf,
}

/// What a program has set of the line. Of the format Linux keeps the stop bits: on a pseudo terminal it replaces data
/// bits and parity by 8 and none, whatever a program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSettings {
    /// Bits a second; 0: the program hangs up (`B0`).
    pub rate: u32,
    /// Two stop bits instead of one.
    pub has_two_stop_bits: bool,
    /// Flow control by RTS and CTS (`CRTSCTS`).
    pub has_hardware_flow: bool,
    /// DTR drops when the last program closes it (`HUPCL`).
    pub hangs_up: bool,
}

/// What a read of the master brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalRead {
    /// Nothing for now.
    Nothing,
    /// No program has it open any more, and all that was written has been read.
    Closed,
    /// A program dropped what it had not read (`input`), or what it wrote and was not sent (`output`).
    Flushed {
        /// What it had not read.
        input: bool,
        /// What was not sent.
        output: bool,
    },
    /// Bytes, behind the first of the buffer: how many.
    Data(usize),
}

impl TerminalMaster {
    /// A new pseudo terminal: raw, 115200 bits a second, accessible to this process's user alone.
    ///
    /// # Errors
    /// The system has no more of them, or no devpts.
    pub fn open() -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let path = PathBuf::from(OsString::from_vec(ptsname(&master, Vec::new())?.into_bytes()));
        // Before a program can open it.
        chmod(&path, Mode::from_raw_mode(OWNER_ALONE))?;
        unlockpt(&master)?;
        ioctl_fionbio(&master, true)?;
        let mut settings = tcgetattr(&master)?;
        settings.make_raw();
        settings.control_modes |= ControlModes::CREAD | ControlModes::CLOCAL | ControlModes::HUPCL;
        settings.set_speed(FIRST_RATE)?;
        tcsetattr(&master, OptionalActions::Now, &settings)?;
        // SAFETY: TIOCPKT reads one `int` at the address that it is given.
        unsafe { ioctl(&master, Setter::<PACKET_MODE, i32>::new(1)) }?;
        // Only a terminal that was closed hangs up.
        drop(rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?);
        let opens = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&opens, &path, WatchFlags::OPEN)?;
        Ok(Self { master, opens, path })
    }

    /// A terminal that another process opened, with its two descriptors.
    pub fn passed([master, opens]: [OwnedFd; 2], path: PathBuf) -> Self {
        Self { master, opens, path }
    }

    /// Its two descriptors, for another process.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.master.try_clone()?, self.opens.try_clone()?])
    }

    /// The file that programs open.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Becomes readable when a program opens the terminal; see [`TerminalMaster::take_opens`].
    pub fn opens(&self) -> BorrowedFd<'_> {
        self.opens.as_fd()
    }

    /// Whether a program has opened it since this was called last; it may have closed it again. Ask
    /// [`TerminalMaster::is_in_use`] afterwards.
    pub fn take_opens(&self) -> bool {
        let (mut events, mut was_opened) = ([0; 4096], false);
        while rustix::io::read(&self.opens, &mut events).is_ok_and(|count| count > 0) {
            was_opened = true;
        }
        was_opened
    }

    /// Whether a program has it open, or had it and left something to be read.
    ///
    /// # Errors
    /// The system's.
    pub fn is_in_use(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(fds[0].revents().contains(PollFlags::IN) || !fds[0].revents().contains(PollFlags::HUP))
    }

    /// What programs have set of the line.
    ///
    /// # Errors
    /// The system's.
    pub fn settings(&self) -> io::Result<TerminalSettings> {
        let settings = tcgetattr(&self.master)?;
        let has = |mode| settings.control_modes.contains(mode);
        Ok(TerminalSettings {
            rate: settings.output_speed(),
            has_two_stop_bits: has(ControlModes::CSTOPB),
            has_hardware_flow: has(ControlModes::CRTSCTS),
            hangs_up: has(ControlModes::HUPCL),
        })
    }

    /// Reads what a program wrote. The first byte of `buffer` is no data.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<TerminalRead> {
        match rustix::io::read(&self.master, &mut *buffer) {
            Ok(0) | Err(Errno::IO) => Ok(TerminalRead::Closed),
            Ok(count) => Ok(match buffer[0] {
                0 => TerminalRead::Data(count - 1),
                what => TerminalRead::Flushed { input: what & FLUSHED_INPUT > 0, output: what & FLUSHED_OUTPUT > 0 },
            }),
            Err(Errno::AGAIN | Errno::INTR) => Ok(TerminalRead::Nothing),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes what programs read; returns how much was taken, `None` if there is no room. If no program has the
    /// terminal open, bytes may be lost, or wait for the next ([`discard_unread`]).
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match rustix::io::write(&self.master, bytes) {
            Ok(count) => Ok(Some(count)),
            Err(Errno::IO) => Ok(Some(bytes.len())),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Drops what no program has read of the terminal with this file. A line without its end may stay if a program chose
/// to read lines.
///
/// # Errors
/// The system's.
pub fn discard_unread(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let program = rustix::fs::open(path, flags, Mode::empty())?;
    let mut dropped = [0; 4096];
    while rustix::io::read(&program, &mut dropped).is_ok_and(|count| count > 0) {}
    Ok(())
}

impl AsFd for TerminalMaster {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn terminal_has_bytes_settings_and_flushes_of_programs_that_come_and_go() {
        let terminal = TerminalMaster::open().unwrap();
        assert_eq!(std::fs::metadata(terminal.path()).unwrap().permissions().mode() & 0o7777, 0o600);
        let settings = terminal.settings().unwrap();
        let first =
            TerminalSettings { rate: 115_200, has_two_stop_bits: false, has_hardware_flow: false, hangs_up: true };
        assert_eq!(settings, first);
        let mut buffer = [0; 64];
        for _ in 0..2 {
            assert!(!terminal.is_in_use().unwrap());
            assert_eq!(terminal.write(b"for nobody").unwrap(), Some(10));
            discard_unread(terminal.path()).unwrap();
            assert!(!terminal.is_in_use().unwrap() && terminal.take_opens());
            let mut program = OpenOptions::new().read(true).write(true).open(terminal.path()).unwrap();
            assert!(terminal.take_opens() && !terminal.take_opens());
            assert!(terminal.is_in_use().unwrap());
            assert_eq!(terminal.read(&mut buffer).unwrap(), TerminalRead::Nothing);
            // No translation, no echo.
            assert_eq!(terminal.write(b"\x03\r\x13").unwrap(), Some(3));
            let mut taken = [0; 3];
            program.read_exact(&mut taken).unwrap();
            assert_eq!(&taken, b"\x03\r\x13");
            let mut settings = tcgetattr(&program).unwrap();
            settings.set_speed(250_000).unwrap();
            settings.control_modes |= ControlModes::CSTOPB;
            tcsetattr(&program, OptionalActions::Flush, &settings).unwrap();
            let settings = terminal.settings().unwrap();
            assert_eq!(settings, TerminalSettings { rate: 250_000, has_two_stop_bits: true, ..first });
            assert_eq!(terminal.read(&mut buffer).unwrap(), TerminalRead::Flushed { input: true, output: false });
            program.write_all(b"left").unwrap();
            drop(program);
            assert!(terminal.is_in_use().unwrap());
            assert_eq!(terminal.read(&mut buffer).unwrap(), TerminalRead::Data(4));
            assert_eq!(&buffer[1..5], b"left");
            assert_eq!(terminal.read(&mut buffer).unwrap(), TerminalRead::Closed);
        }
        let mut program = OpenOptions::new().read(true).write(true).open(terminal.path()).unwrap();
        drop(terminal);
        assert_eq!(program.read(&mut buffer).unwrap_or(0), 0);
    }
}
