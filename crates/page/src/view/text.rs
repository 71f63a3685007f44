//! Texts of others in a document, and in an address.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::shell::is_deceptive;

/// Characters of one text of a device.
const TEXT_CHARS_MAX: usize = 160;

/// Others' text in an element, apart from the direction of the text around it and not longer than a line or two.
pub fn theirs(text: &str) -> Markup {
    let is_longer = text.chars().nth(TEXT_CHARS_MAX).is_some();
    let short: String = text.chars().take(TEXT_CHARS_MAX).collect();
    html! { bdi { (whole(&short)) @if is_longer { "…" } } }
}

/// Text in an element or in an attribute. What cannot be seen is shown as a replacement character.
pub fn whole(text: &str) -> Markup {
    written(text, |_| "\u{fffd}".to_owned())
}

/// A value that is sent back as it is: a character that is not seen stays, as its number. HTML has no way to write two
/// of them.
pub fn sent_back(value: &str) -> Markup {
    let number = |c| match c {
        // A browser sends the second as two characters.
        '\0' | '\r' => "\u{fffd}".to_owned(),
        c => format!("&#{};", u32::from(c)),
    };
    written(value, number)
}

/// A text with what stands for each character that is not seen.
fn written(text: &str, unseen: impl Fn(char) -> String) -> Markup {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c == '\0' || c == '\r' || is_deceptive(c) => out.push_str(&unseen(c)),
            c => out.push(c),
        }
    }
    PreEscaped(out)
}

/// A text as a value in an address's query: nothing of it separates, and nothing of it needs escaping in an attribute.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The value of a query that was [`encoded`], here or by a browser's form. What is no UTF-8 is replaced.
pub fn decoded(value: &str) -> String {
    let digit = |at: usize| value.as_bytes().get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let (mut out, mut at) = (Vec::with_capacity(value.len()), 0);
    while let Some(&byte) = value.as_bytes().get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The value of a name in a query; `None` if it is absent.
pub fn value_in(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(field, _)| *field == name).map(|(_, value)| decoded(value))
}

/// All names of a query or of a form's body with their values, so many at most.
pub fn pairs_in(query: &str, pairs_max: usize) -> Vec<(String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.take(pairs_max).map(|(name, value)| (decoded(name), decoded(value))).collect()
}

/// A time in its largest unit.
pub fn span(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// A table; empty without rows.
pub fn table(caption: &str, headings: &[&str], rows: &[Vec<Markup>]) -> Markup {
    html! {
        @if !rows.is_empty() {
            table {
                caption { (caption) }
                thead { tr { @for heading in headings { th scope="col" { (heading) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (at, (cell, heading)) in row.iter().zip(headings).enumerate() {
                                @if at == 0 { th scope="row" { (cell) } } @else { td data-label=(heading) { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back_from_a_query_and_separates_nothing_in_it() {
        for text in ["", "disk", "a b+c", "..", "/?#&=%%41", "\u{202e}ü\u{0}\n\"'<", "10.0.0.1:3240/disk"] {
            let value = encoded(text);
            assert!(value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)), "{value}");
            assert_eq!(decoded(&value), text);
            assert_eq!(value_in(&format!("q=&name={value}&page=2"), "name").as_deref(), Some(text));
        }
        assert_eq!(decoded("a+b%2gc%"), "a b%2gc%", "a form's, and what is not encoded");
        assert_eq!(decoded("%ff"), "\u{fffd}");
        assert_eq!(value_in("page=2", "name"), None);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(pairs_in("a=1+2&b%20c=%26&d&e=", 3), [pair("a", "1 2"), pair("b c", "&"), pair("e", "")]);
        assert_eq!(pairs_in("a=1&b=2", 1), [pair("a", "1")]);
    }
}
