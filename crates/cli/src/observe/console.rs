//! `farbus observe --console`: what serial ports send, as text.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use farbus_page::console_text::ConsoleText;
use farbus_session::native::console::{ConsoleDescription, ConsoleOutput};
use serde::Serialize;

use super::hex::hex;

/// A piece of text, as JSON.
#[derive(Serialize)]
struct ConsoleRecord {
    /// Seconds since the first piece that was shown.
    at_s: f64,
    endpoint: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Bytes before this piece that were not shown.
    lost_bytes: u32,
    /// Without control characters; the end of a piece may stand in the next one's text.
    text: String,
    /// The bytes of this piece as the device sent them, in hexadecimal digits.
    data: String,
}

/// What is printed of a console.
pub struct ConsolePrinter {
    as_json: bool,
    /// Whether the lines of several ports have to be told apart.
    has_several: bool,
    /// The port whose text was printed last.
    port: Option<u8>,
    texts: BTreeMap<u8, ConsoleText>,
    is_in_line: bool,
}

impl ConsolePrinter {
    /// Prints what these ports send.
    pub fn new(description: Option<&ConsoleDescription>, as_json: bool) -> Self {
        let has_several = description.is_some_and(|console| console.ports.len() > 1);
        Self { as_json, has_several, port: None, texts: BTreeMap::new(), is_in_line: false }
    }

    /// Writes to standard output at once.
    ///
    /// # Errors
    /// Nobody reads it.
    pub fn print(&mut self, output: &ConsoleOutput, at_ns: u64) -> io::Result<()> {
        let text = self.text(output, at_ns)?;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn text(&mut self, output: &ConsoleOutput, at_ns: u64) -> io::Result<String> {
        let (port, bytes) = (output.endpoint.as_byte(), output.data.contiguous());
        // An endpoint is one of fifteen; the number of them needs no further limit.
        let of_port = self.texts.entry(port).or_default();
        let mut text = String::new();
        if self.as_json {
            of_port.add(&bytes, &mut text);
            let (at_s, endpoint) = (at_ns as f64 / 1e9, format!("{port:02x}"));
            let data = hex(&bytes, "");
            let piece = ConsoleRecord { at_s, endpoint, kind: "console", lost_bytes: output.lost, text, data };
            return Ok(serde_json::to_string(&piece)? + "\n");
        }
        let is_other = self.has_several && self.port != Some(port);
        if self.is_in_line && (is_other || output.lost > 0) {
            text.push('\n');
        }
        if output.lost > 0 {
            text += &format!("[{} bytes were lost]\n", output.lost);
        }
        if is_other {
            text += &format!("[{port:02x}] ");
        }
        self.port = Some(port);
        of_port.add(&bytes, &mut text);
        self.is_in_line = if text.is_empty() { self.is_in_line } else { !text.ends_with('\n') };
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::EpAddr;
    use farbus_session::native::console::{ConsolePort, PortKind};
    use serde_json::Value;

    use super::*;

    fn output(port: u8, lost: u32, bytes: &[u8]) -> ConsoleOutput {
        ConsoleOutput { endpoint: EpAddr::from_byte(port), lost, moment_ns: 0, data: bytes.to_vec().into() }
    }

    fn ports(all: &[u8]) -> ConsoleDescription {
        let port = |&endpoint| ConsolePort { endpoint: EpAddr::from_byte(endpoint), kind: PortKind::FTDI };
        ConsoleDescription { ports: all.iter().map(port).collect() }
    }

    #[test]
    fn lines_of_several_ports_are_told_apart_and_what_is_lost_is_told() {
        let printed = |all: &[u8], outputs: &[ConsoleOutput]| {
            let mut console = ConsolePrinter::new(Some(&ports(all)), false);
            outputs.iter().map(|output| console.text(output, 0).unwrap()).collect::<String>()
        };
        let one = [output(0x81, 0, b"boot\r\nlog"), output(0x81, 7, b"in: "), output(0x81, 0, b"\x1b[1mroot")];
        assert_eq!(printed(&[0x81], &one), "boot\nlog\n[7 bytes were lost]\nin: root");
        let two = [output(0x81, 0, b"a"), output(0x82, 0, b"b\r\n"), output(0x82, 0, b"c\r\n"), output(0x81, 0, b"d")];
        assert_eq!(printed(&[0x81, 0x82], &two), "[81] a\n[82] b\nc\n[81] d");
    }

    #[test]
    fn json_has_the_bytes_as_they_came_and_text_without_control_characters() {
        let mut console = ConsolePrinter::new(Some(&ports(&[0x81])), true);
        let line = console.text(&output(0x81, 3, b"\x1b[31mx\xff"), 1_500_000_000).unwrap();
        let piece: Value = serde_json::from_str(line.strip_suffix('\n').unwrap()).unwrap();
        let expected = serde_json::json!({
            "at_s": 1.5, "endpoint": "81", "type": "console", "lost_bytes": 3, "text": "x\u{fffd}",
            "data": "1b5b33316d78ff",
        });
        assert_eq!(piece, expected);
    }
}
