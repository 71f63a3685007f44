//! Which devices are meant: words such as `class=serial vendor=ftdi label:board=imx8 free`, all of which have to be
//! true.

use farbus_io_net::trust::check_label_name;
use farbus_session::device_class::DeviceClassName;
use farbus_session::rules::WildcardPattern;

use crate::devices::offer::ListedDevice;

/// The most words of a query.
const WORDS_MAX: usize = 16;
/// The words that a device has to satisfy, all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceQuery {
    words: Vec<QueryWord>,
    /// As they were written.
    texts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueryWord {
    Class(DeviceClassName),
    Vendor(String),
    Product(String),
    Speed(String),
    Name(WildcardPattern),
    Host(WildcardPattern),
    Place(WildcardPattern),
    /// With any value, if there is none.
    Label(String, Option<WildcardPattern>),
    Free,
}

impl DeviceQuery {
    /// Whether a word is one of a query, and not a host or a device.
    pub fn is_word(text: &str) -> bool {
        let key = text.split_once('=').map(|(key, _)| key);
        text == "free"
            || text.starts_with("label:")
            || key.is_some_and(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphabetic()))
    }

    /// Reads a query.
    ///
    /// # Errors
    /// A sentence for a person: which word is none, and which there are.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let texts: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let words = texts.iter().map(|text| word_of(text)).collect::<Result<Vec<QueryWord>, String>>()?;
        match words.len() {
            0..=WORDS_MAX => Ok(Self { words, texts }),
            count => Err(format!("a query has {WORDS_MAX} words at most, not {count}")),
        }
    }

    /// Whether it has no word, and means every device.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Its words, from which [`DeviceQuery::parse`] reads the same query.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether it means this device of `host`.
    pub fn matches(&self, host: &str, device: &ListedDevice) -> bool {
        self.words.iter().all(|word| is_true(word, host, device))
    }
}

fn word_of(text: &str) -> Result<QueryWord, String> {
    let wrong = || {
        format!(
            "'{}' is no word of a query: class=, vendor=, product=, speed=, name=, host=, place=, label:NAME, \
             label:NAME=VALUE and free are",
            text.escape_debug()
        )
    };
    if text == "free" {
        return Ok(QueryWord::Free);
    }
    if let Some(label) = text.strip_prefix("label:") {
        let (name, value) = label.split_once('=').map_or((label, None), |(name, value)| (name, Some(value)));
        check_label_name(name)?;
        return Ok(QueryWord::Label(name.to_owned(), value.map(WildcardPattern::new)));
    }
    let (key, value) = text.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(wrong)?;
    Ok(match key {
        "class" => QueryWord::Class(value.parse()?),
        "vendor" => QueryWord::Vendor(value.to_lowercase()),
        "product" => QueryWord::Product(value.to_lowercase()),
        "speed" => QueryWord::Speed(value.to_lowercase()),
        "name" => QueryWord::Name(WildcardPattern::new(value)),
        "host" => QueryWord::Host(WildcardPattern::new(value)),
        "place" => QueryWord::Place(WildcardPattern::new(value)),
        _ => return Err(wrong()),
    })
}

fn is_true(word: &QueryWord, host: &str, device: &ListedDevice) -> bool {
    match word {
        QueryWord::Class(class) => class.is_described(device.ids(), &device.interfaces),
        QueryWord::Vendor(wanted) => {
            let name = device.vendor_name.as_deref().unwrap_or_default();
            // What everybody calls FTDI is "Future Technology Devices International, Ltd" in the list.
            let initials: String = name.split_whitespace().filter_map(|word| word.chars().next()).collect();
            let is_called = wanted.len() > 2 && initials.to_lowercase().starts_with(wanted);
            device.vendor == *wanted || contains(name, wanted) || contains(&device.title, wanted) || is_called
        }
        QueryWord::Product(wanted) => {
            let name = device.product_name.as_deref().unwrap_or_default();
            device.product == *wanted || contains(name, wanted) || contains(&device.title, wanted)
        }
        QueryWord::Speed(wanted) => device.speed.to_lowercase() == *wanted,
        QueryWord::Name(pattern) => pattern.matches(&device.name),
        QueryWord::Host(pattern) => pattern.matches(host),
        QueryWord::Place(pattern) => device.notes.place.as_deref().is_some_and(|location| pattern.matches(location)),
        QueryWord::Label(name, pattern) => {
            let value = device.notes.labels.get(name);
            value.is_some_and(|value| pattern.as_ref().is_none_or(|pattern| pattern.matches(value)))
        }
        QueryWord::Free => device.is_free(),
    }
}

fn contains(text: &str, lowercase: &str) -> bool {
    text.to_lowercase().contains(lowercase)
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::DeviceNotes;

    use super::*;
    use farbus_control::device::DeviceStatus;

    fn device(extra: &serde_json::Value) -> ListedDevice {
        let mut status = serde_json::json!({
            "name": "console", "bus_id": "1-2", "title": "", "speed": "full", "ids": "0403:6001",
            "interfaces": ["vendor specific"], "state": "available",
            "labels": { "board": "imx8", "rev": "b" }, "place": "shelf 3",
        });
        for (key, value) in extra.as_object().unwrap() {
            status[key] = value.clone();
        }
        let status: DeviceStatus = serde_json::from_value(status).unwrap();
        ListedDevice::from(status)
    }

    fn is_meant(words: &str, device: &ListedDevice) -> bool {
        DeviceQuery::parse(words.split_whitespace()).unwrap().matches("lab3", device)
    }

    #[test]
    fn query_means_devices_for_which_all_its_words_are_true() {
        let console = device(&serde_json::json!({}));
        for words in [
            "",
            "free",
            "class=serial vendor=ftdi label:board=imx8 free",
            "class=vendor",
            "vendor=0403 product=6001",
            "vendor=future product=ft232",
            "label:board",
            "label:board=imx* label:rev=b",
            "name=con* host=lab* place=*3 speed=full",
        ] {
            assert!(is_meant(words, &console), "{words}");
        }
        for words in [
            "class=storage",
            "vendor=0404",
            "vendor=prolific",
            "label:board=imx6",
            "label:boards",
            "label:board=",
            "host=lab4",
            "place=shelf",
            "class=serial speed=high",
        ] {
            assert!(!is_meant(words, &console), "{words}");
        }
        let disk = device(&serde_json::json!({ "interfaces": ["storage (UAS)"], "ids": "0781:5567" }));
        assert!(is_meant("class=disk", &disk) && !is_meant("class=serial", &disk));
        let modem = device(&serde_json::json!({ "interfaces": ["communications"], "ids": "1209:0001" }));
        assert!(is_meant("class=serial", &modem));
    }

    #[test]
    fn device_is_free_if_nobody_uses_it_has_it_or_waits_for_it() {
        let lease = serde_json::json!({ "host": "desk", "state": "held", "since_s": 1.0, "left_s": 5.0, "until": "" });
        for taken in [
            serde_json::json!({ "state": "in use" }),
            serde_json::json!({ "lease": lease }),
            serde_json::json!({ "waiting": [{ "host": "rack", "waits_s": 1.0 }] }),
        ] {
            assert!(!is_meant("free", &device(&taken)), "{taken}");
        }
    }

    #[test]
    fn words_that_are_none_are_refused_with_those_that_are() {
        for (words, why) in [
            ("colour=red", "class=, vendor="),
            ("class=", "no word"),
            ("class=tape", "there are application, audio"),
            ("label:=x", "no name of a label"),
            ("busy", "no word"),
            ("name=\u{1b}[2J \u{1b}", "no word"),
        ] {
            let refused = DeviceQuery::parse(words.split_whitespace()).unwrap_err();
            assert!(refused.contains(why) && !refused.contains('\u{1b}'), "{words:?}: {refused}");
        }
        assert!(DeviceQuery::parse(["free"; 17]).unwrap_err().contains("16 words at most"));
        for (text, is_word) in [("free", true), ("label:x", true), ("colour=red", true), ("lab3", false)] {
            assert_eq!(DeviceQuery::is_word(text), is_word, "{text}");
        }
        assert!(!DeviceQuery::is_word("lab3/a=b") && !DeviceQuery::is_word("unix:/run/x=y/disk"), "targets");
    }

    #[test]
    fn labels_of_another_host_are_plain_in_a_list() {
        let hostile =
            device(&serde_json::json!({ "labels": { "a\u{1b}": "x", "b": "\u{1b}[2J" }, "place": "\u{202e}x" }));
        let expected = DeviceNotes {
            labels: [("b".to_owned(), " [2J".to_owned())].into(),
            place: Some(" x".into()),
            comment: None,
        };
        assert_eq!(hostile.notes, expected);
    }
}
