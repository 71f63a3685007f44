//! Bytes as text: in JSON a list of numbers would be three times as long.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Two digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let digit = |at: u8| char::from(DIGITS[usize::from(at & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// The bytes; `None`: it is not what [`encode`] writes.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |at: u8| DIGITS.iter().position(|digit| *digit == at).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    rest.is_empty().then_some(())?;
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_nothing_else_is_read() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        for wrong in ["0", "0g", "AB", "é", " 1"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
