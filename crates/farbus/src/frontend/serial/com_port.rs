//! RFC 2217's numbers for what a serial line has (section 3).

use farbus_host::serial::{FlowControl, LineCoding, LineFaults, ModemState, Parity, StopBits};

/// The lowest and the highest rate that are passed on: what the fastest chip has.
const RATES: std::ops::RangeInclusive<u32> = 46..=12_000_000;

/// What a line was set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSettings {
    pub coding: LineCoding,
    pub dtr: bool,
    pub rts: bool,
    pub has_break: bool,
    pub flow: FlowControl,
}

impl LineSettings {
    /// With this rate; the same if it is none.
    pub fn with_rate(self, rate: u32) -> Self {
        if RATES.contains(&rate) { Self { coding: LineCoding { rate, ..self.coding }, ..self } } else { self }
    }

    /// With so many data bits.
    pub fn with_data_bits(self, number: u8) -> Self {
        if (5..=8).contains(&number) {
            return Self { coding: LineCoding { data_bits: number, ..self.coding }, ..self };
        }
        self
    }

    /// With the parity of this number.
    pub fn with_parity(self, number: u8) -> Self {
        let parity = match number {
            1 => Parity::None,
            2 => Parity::Odd,
            3 => Parity::Even,
            4 => Parity::Mark,
            5 => Parity::Space,
            _ => return self,
        };
        Self { coding: LineCoding { parity, ..self.coding }, ..self }
    }

    /// With the stop bits of this number.
    pub fn with_stop_bits(self, number: u8) -> Self {
        let stop_bits = match number {
            1 => StopBits::One,
            2 => StopBits::Two,
            3 => StopBits::OneAndAHalf,
            _ => return self,
        };
        Self { coding: LineCoding { stop_bits, ..self.coding }, ..self }
    }

    /// With what SET-CONTROL of this number sets.
    pub fn with_control(self, number: u8) -> Self {
        match number {
            1 | 14 => Self { flow: FlowControl::None, ..self },
            2 | 15 => Self { flow: FlowControl::Software, ..self },
            3 | 16 => Self { flow: FlowControl::Hardware, ..self },
            5 | 6 => Self { has_break: number == 5, ..self },
            8 | 9 => Self { dtr: number == 8, ..self },
            11 | 12 => Self { rts: number == 11, ..self },
            _ => self,
        }
    }

    /// The number of the parity.
    pub fn parity_number(&self) -> u8 {
        match self.coding.parity {
            Parity::None => 1,
            Parity::Odd => 2,
            Parity::Even => 3,
            Parity::Mark => 4,
            Parity::Space => 5,
        }
    }

    /// The number of the stop bits.
    pub fn stop_number(&self) -> u8 {
        match self.coding.stop_bits {
            StopBits::One => 1,
            StopBits::Two => 2,
            StopBits::OneAndAHalf => 3,
        }
    }

    /// What answers SET-CONTROL of this number: the state of what it sets or asks for.
    pub fn control_number(&self, number: u8) -> Option<u8> {
        let (outbound, inbound) = match self.flow {
            FlowControl::None => (1, 14),
            FlowControl::Software => (2, 15),
            FlowControl::Hardware => (3, 16),
        };
        match number {
            0..=3 => Some(outbound),
            4..=6 => Some(if self.has_break { 5 } else { 6 }),
            7..=9 => Some(if self.dtr { 8 } else { 9 }),
            10..=12 => Some(if self.rts { 11 } else { 12 }),
            // Flow control by DCD, DTR or DSR is nothing that these chips have.
            13..=19 => Some(inbound),
            _ => None,
        }
    }
}

/// NOTIFY-MODEMSTATE: the incoming lines, and which of them changed since `before`.
pub fn modem_state(now: ModemState, before: ModemState) -> u8 {
    let bit = |is_set: bool, at: u32| u8::from(is_set) << at;
    bit(now.dcd, 7)
        | bit(now.ri, 6)
        | bit(now.dsr, 5)
        | bit(now.cts, 4)
        | bit(now.dcd != before.dcd, 3)
        // The trailing edge.
        | bit(!now.ri && before.ri, 2)
        | bit(now.dsr != before.dsr, 1)
        | bit(now.cts != before.cts, 0)
}

/// NOTIFY-LINESTATE: what went wrong on the line.
pub fn line_state(faults: LineFaults) -> u8 {
    let bit = |is_set: bool, at: u32| u8::from(is_set) << at;
    bit(faults.has_break, 4) | bit(faults.framing, 3) | bit(faults.parity, 2) | bit(faults.overrun, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_survives_its_number() {
        let first = LineSettings::default();
        for number in 1..=5 {
            assert_eq!(first.with_parity(number).parity_number(), number);
        }
        for number in 1..=3 {
            assert_eq!(first.with_stop_bits(number).stop_number(), number);
            assert_eq!(first.with_control(number).control_number(0), Some(number));
            assert_eq!(first.with_control(number + 13).control_number(13), Some(number + 13));
        }
        for number in [5, 6, 8, 9, 11, 12] {
            assert_eq!(first.with_control(number).control_number(number), Some(number));
        }
        assert_eq!(first.with_rate(0).with_rate(u32::MAX).with_data_bits(9).with_parity(9).with_stop_bits(0), first);
        assert_eq!((first.with_control(99), first.control_number(99)), (first, None));
    }

    #[test]
    fn notices_name_lines_and_changes() {
        let before = ModemState { ri: true, ..ModemState::default() };
        let now = ModemState { dcd: true, cts: true, ..ModemState::default() };
        assert_eq!(modem_state(now, before), 0b1001_1101);
        assert_eq!(modem_state(now, now), 0b1001_0000);
        assert_eq!(line_state(LineFaults { overrun: true, has_break: true, ..LineFaults::default() }), 0b1_0010);
    }
}
