//! Base 64 (RFC 4648, section 4), in which the gateway writes keys and values.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            text.push(match letter <= group.len() {
                true => char::from(ALPHABET[(bits >> (18 - 6 * letter) & 63) as usize]),
                false => '=',
            });
        }
    }
    text
}

/// `None` if the text is not base 64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    if text.len() - letters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in letters.as_bytes().chunks(4) {
        let mut bits = 0;
        for at in 0..4 {
            bits = bits << 6 | group.get(at).map_or(Some(0), |letter| value_of(*letter))?;
        }
        let all = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        bytes.extend_from_slice(&all[..group.len() * 3 / 4]);
    }
    Some(bytes)
}

fn value_of(letter: u8) -> Option<u32> {
    Some(match letter {
        b'A'..=b'Z' => u32::from(letter - b'A'),
        b'a'..=b'z' => u32::from(letter - b'a') + 26,
        b'0'..=b'9' => u32::from(letter - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_rfc_are_written_and_read() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, text) in vectors {
            assert_eq!((encode(plain.as_bytes()).as_str(), decode(text).unwrap().as_slice()), (text, plain.as_bytes()));
        }
        assert_eq!(decode(&encode(&[0xfb, 0xff, 0xfe])).unwrap(), [0xfb, 0xff, 0xfe]);
        for wrong in ["Zg=", "Zg", "Z===", "Zm9v\u{e9}===", "Zm 9", "===="] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
