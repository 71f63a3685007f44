//! Verbs of farbus that are programs of their own, found as `git` finds its external commands.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};

use super::CommandFailure;

/// Accepts and passes on any word of another program's command line; a shell completes these.
#[derive(Clone)]
pub struct AnyWordParser(pub fn() -> Vec<&'static str>);

impl TypedValueParser for AnyWordParser {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// The path of this farbus.
///
/// # Errors
/// The system does not say.
pub fn ours() -> Result<PathBuf, CommandFailure> {
    std::env::current_exe().map_err(CommandFailure::local)
}

/// Replaces this process by the program of this name, which is beside `ours` or in PATH. Returns only if that failed:
/// why, with `how_to_get` where there is no such program.
pub fn become_program(name: &str, ours: &Path, words: &[OsString], how_to_get: &str) -> String {
    let program = beside(ours, name).unwrap_or_else(|| name.into());
    // `exec` returns only if it failed.
    let error = Command::new(&program).args(words).exec();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{name} is neither beside {} nor in PATH\n  {how_to_get}", ours.display()),
        _ => format!("{}: {error}", program.display()),
    }
}

/// Whether these words of another program's command line say which farbus it is to use.
pub fn names_farbus(words: &[OsString]) -> bool {
    words.iter().filter_map(|word| word.to_str()).any(|word| word == "--farbus" || word.starts_with("--farbus="))
}

/// Whether [`become_program`] finds a program of this name.
pub fn is_there(name: &str, ours: &Path) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside(ours, name).is_some() || std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn beside(ours: &Path, name: &str) -> Option<PathBuf> {
    Some(ours.with_file_name(name)).filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_farbus_can_be_named_in_either_form() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(!names_farbus(&words("modules --plots .")));
        assert!(
            names_farbus(&words("modules --farbus /usr/bin/farbus")) && names_farbus(&words("--farbus=./farbus deep"))
        );
    }

    #[test]
    fn program_that_is_not_beside_farbus_is_looked_for_by_its_name() {
        let ours = ours().unwrap();
        let name = ours.file_name().unwrap().to_str().unwrap();
        assert_eq!(beside(&ours, name), Some(ours.clone()));
        assert_eq!(beside(Path::new("/nowhere/at/all/farbus"), name), None);
        let message = become_program("farbus-no-such-program", &ours, &[], "build it");
        assert_eq!(
            message,
            format!("farbus-no-such-program is neither beside {} nor in PATH\n  build it", ours.display())
        );
    }
}
