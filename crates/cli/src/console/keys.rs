//! The keys of a console: what is for the port, and what is for the console itself.

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleKey {
    /// Bytes for the port.
    Bytes(Vec<u8>),
    Leave,
    Break,
    /// Raise DTR if it is dropped, drop it if it is raised.
    ToggleDtr,
    ToggleRts,
    /// Say how the line is set.
    ShowLine,
    Help,
    /// A letter behind the escape key that means nothing.
    Unknown(u8),
}

/// The letters behind the escape key, and what they do.
pub const LETTERS: [(u8, ConsoleKey, &str); 6] = [
    (b'q', ConsoleKey::Leave, "leaves; the device is given back"),
    (b'b', ConsoleKey::Break, "sends a break"),
    (b'd', ConsoleKey::ToggleDtr, "drops or raises DTR"),
    (b'r', ConsoleKey::ToggleRts, "drops or raises RTS"),
    (b'i', ConsoleKey::ShowLine, "says how the line is set"),
    (b'?', ConsoleKey::Help, "says this"),
];

/// What Enter sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EnterBytes {
    #[default]
    Cr,
    Lf,
    Crlf,
}

/// Takes apart what is typed.
#[derive(Debug)]
pub struct KeyReader {
    /// `None`: all of it is for the port.
    escape: Option<u8>,
    enter: Option<EnterBytes>,
    is_escaped: bool,
}

impl KeyReader {
    /// `enter`: what the end of a line becomes; `None`: every byte passes as it is.
    pub fn new(escape: Option<u8>, enter: Option<EnterBytes>) -> Self {
        Self { escape, enter, is_escaped: false }
    }

    /// The keys in these bytes, in their order.
    pub fn read(&mut self, typed: &[u8]) -> Vec<ConsoleKey> {
        let (mut keys, mut bytes) = (Vec::new(), Vec::new());
        for &byte in typed {
            match (std::mem::take(&mut self.is_escaped), Some(byte) == self.escape) {
                (false, true) => self.is_escaped = true,
                // Twice: the byte itself.
                (true, true) => bytes.push(byte),
                (false, false) => self.add(byte, &mut bytes),
                (true, false) => {
                    keys.extend(taken(&mut bytes));
                    let known = LETTERS.into_iter().find(|(letter, ..)| *letter == byte.to_ascii_lowercase());
                    keys.push(known.map_or(ConsoleKey::Unknown(byte), |(_, key, _)| key));
                }
            }
        }
        keys.extend(taken(&mut bytes));
        keys
    }

    fn add(&self, byte: u8, to: &mut Vec<u8>) {
        match (byte, self.enter) {
            (b'\r' | b'\n', Some(EnterBytes::Cr)) => to.push(b'\r'),
            (b'\r' | b'\n', Some(EnterBytes::Lf)) => to.push(b'\n'),
            (b'\r' | b'\n', Some(EnterBytes::Crlf)) => to.extend(b"\r\n"),
            _ => to.push(byte),
        }
    }
}

fn taken(bytes: &mut Vec<u8>) -> Option<ConsoleKey> {
    (!bytes.is_empty()).then(|| ConsoleKey::Bytes(std::mem::take(bytes)))
}

/// Reads the escape key: `^]`, `^A`, one letter, or `none`.
///
/// # Errors
/// It is neither.
pub fn escape_from(word: &str) -> Result<Escape, String> {
    let bytes = word.as_bytes();
    match bytes {
        b"none" => Ok(Escape(None)),
        [b'^', letter @ b'@'..=b'_'] => Ok(Escape(Some(letter - b'@'))),
        [b'^', letter @ b'a'..=b'z'] => Ok(Escape(Some(letter - b'a' + 1))),
        [byte @ b'!'..=b'~'] => Ok(Escape(Some(*byte))),
        _ => Err("it is a control key such as ^], a character such as ~, or 'none'".to_owned()),
    }
}

/// The escape key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escape(pub Option<u8>);

/// A key as people write it.
pub fn key_name(byte: u8) -> String {
    match byte {
        0..=0x1f => format!("Ctrl-{}", char::from(byte + b'@')),
        _ => char::from(byte).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_behind_the_escape_key_are_for_the_console_however_the_bytes_arrive() {
        let typed = b"ls\r\x1db\x1d\x1d!\x1dD\x1dz\x1dq";
        let expected = [
            ConsoleKey::Bytes(b"ls\n".to_vec()),
            ConsoleKey::Break,
            ConsoleKey::Bytes(b"\x1d!".to_vec()),
            ConsoleKey::ToggleDtr,
            ConsoleKey::Unknown(b'z'),
            ConsoleKey::Leave,
        ];
        let reader = || KeyReader::new(Some(0x1d), Some(EnterBytes::Lf));
        assert_eq!(reader().read(typed), expected);
        let mut slow = reader();
        let mut joined: Vec<ConsoleKey> = Vec::new();
        for key in typed.iter().flat_map(|byte| slow.read(&[*byte])) {
            match (joined.last_mut(), key) {
                (Some(ConsoleKey::Bytes(before)), ConsoleKey::Bytes(bytes)) => before.extend(bytes),
                (_, key) => joined.push(key),
            }
        }
        assert_eq!(joined, expected);
        let every_byte: Vec<u8> = (0..=255).collect();
        assert_eq!(KeyReader::new(None, None).read(&every_byte), [ConsoleKey::Bytes(every_byte)]);
        let crlf = KeyReader::new(None, Some(EnterBytes::Crlf)).read(b"a\nb\r");
        assert_eq!(crlf, [ConsoleKey::Bytes(b"a\r\nb\r\n".to_vec())]);
    }

    #[test]
    fn escape_key_is_written_as_people_write_it() {
        let table = [("^]", Some(0x1d)), ("^a", Some(1)), ("^A", Some(1)), ("~", Some(b'~')), ("none", None)];
        for (word, byte) in table {
            assert_eq!(escape_from(word), Ok(Escape(byte)));
        }
        assert!(escape_from("").is_err() && escape_from("ab").is_err());
        assert_eq!((key_name(0x1d), key_name(b'~')), ("Ctrl-]".to_owned(), "~".to_owned()));
    }
}
