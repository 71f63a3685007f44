//! How a console sets its line.

use std::str::FromStr;

use farbus_session::rfc2217::ComPortRequest;

/// Data bits, parity and stop bits, as people write them: `8N1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFormat {
    data_bits: u8,
    /// A letter of [`PARITIES`].
    parity: char,
    stop_bits: u8,
}

/// The letters of parities, by RFC 2217's numbers from 1 on.
const PARITIES: [char; 5] = ['N', 'O', 'E', 'M', 'S'];

impl FromStr for LineFormat {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let read = || {
            let mut letters = word.chars();
            let (data, parity, stop) = (letters.next()?, letters.next()?.to_ascii_uppercase(), letters.next()?);
            let (data_bits, stop_bits) = (data.to_digit(10)? as u8, stop.to_digit(10)? as u8);
            let is_one = (5..=8).contains(&data_bits) && PARITIES.contains(&parity) && (1..=2).contains(&stop_bits);
            (is_one && letters.next().is_none()).then_some(Self { data_bits, parity, stop_bits })
        };
        read().ok_or_else(|| "it is such as 8N1: 5 to 8 bits; N, O, E, M or S; 1 or 2 stop bits".to_owned())
    }
}

/// Who may pause whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LineFlow {
    #[default]
    None,
    /// By RTS and CTS.
    Rtscts,
    /// By Ctrl-S and Ctrl-Q.
    Xonxoff,
}

/// How a line is set.
#[derive(Clone, Copy, Debug)]
pub struct LineSettings {
    /// Bits a second.
    pub rate: u32,
    pub format: LineFormat,
    pub flow: LineFlow,
    pub dtr: bool,
    pub rts: bool,
    /// The incoming lines, as RFC 2217 has them, if they were said.
    pub modem: Option<u8>,
}

impl LineSettings {
    /// What sets a line that was just opened.
    pub fn requests(&self) -> [ComPortRequest; 6] {
        let LineFormat { data_bits, parity, stop_bits } = self.format;
        let parity = PARITIES.iter().position(|letter| *letter == parity).map_or(1, |at| at as u8 + 1);
        let flow = match self.flow {
            LineFlow::None => 1,
            LineFlow::Xonxoff => 2,
            LineFlow::Rtscts => 3,
        };
        [
            ComPortRequest::Rate(self.rate),
            ComPortRequest::DataSize(data_bits),
            ComPortRequest::Parity(parity),
            ComPortRequest::StopSize(stop_bits),
            ComPortRequest::Control(flow),
            ComPortRequest::ModemStateMask(u8::MAX),
        ]
    }

    /// The request that makes DTR what it is to be.
    pub fn dtr_request(&self) -> ComPortRequest {
        ComPortRequest::Control(if self.dtr { 8 } else { 9 })
    }

    /// The request that makes RTS what it is to be.
    pub fn rts_request(&self) -> ComPortRequest {
        ComPortRequest::Control(if self.rts { 11 } else { 12 })
    }

    /// In words that a person reads: `9600 8N1, RTS/CTS DTR DCD`.
    pub fn describe(&self) -> String {
        let LineFormat { data_bits, parity, stop_bits } = self.format;
        let mut text = format!("{} {data_bits}{parity}{stop_bits}", self.rate);
        match self.flow {
            LineFlow::None => {}
            LineFlow::Rtscts => text += ", RTS/CTS",
            LineFlow::Xonxoff => text += ", XON/XOFF",
        }
        let outgoing = [(self.dtr, "DTR"), (self.rts, "RTS")];
        let modem = self.modem.unwrap_or_default();
        let incoming =
            [(0x80, "DCD"), (0x40, "RI"), (0x20, "DSR"), (0x10, "CTS")].map(|(bit, name)| (modem & bit != 0, name));
        for (is_set, name) in outgoing.into_iter().chain(incoming) {
            if is_set {
                text += " ";
                text += name;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_as_people_write_them() {
        let of = |word: &str| word.parse::<LineFormat>();
        assert_eq!(of("7e2"), Ok(LineFormat { data_bits: 7, parity: 'E', stop_bits: 2 }));
        for wrong in ["", "8", "8N", "8N3", "9N1", "8X1", "8N11", "8N1.5"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let (format, flow) = (of("8M1").unwrap(), LineFlow::Rtscts);
        let line = LineSettings { rate: 9600, format, flow, dtr: true, rts: false, modem: Some(0x90) };
        assert_eq!(line.describe(), "9600 8M1, RTS/CTS DTR DCD CTS");
        let last = [ComPortRequest::StopSize(1), ComPortRequest::Control(3)];
        assert_eq!((&line.requests()[2], &line.requests()[3..5]), (&ComPortRequest::Parity(4), &last[..]));
    }
}
