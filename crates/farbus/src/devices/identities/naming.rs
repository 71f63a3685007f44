//! Names of devices, given by their owner or by farbus.

/// The longest name, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Words that mean every device.
const RESERVED: [&str; 1] = ["all"];
/// Names that farbus gives to unnamed devices, without their numbers.
const KINDS: [&str; 11] =
    ["disk", "block", "memory", "zero", "keyboard", "serial", "audio", "can", "dfu", "fastboot", "cmsis-dap"];

/// How a device gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceNaming<'a> {
    /// Named by its kind, with a number if that is taken. Another device may have the name after the next start.
    Automatic(&'a str),
    /// Named by its owner. No other device may have the name.
    Given(&'a str),
    /// Named by a rule of its owner, which may match several devices: the first has the name, the others have numbers
    /// appended.
    ByRule(&'a str),
}

impl<'a> DeviceNaming<'a> {
    /// Names a device `name`, given by its owner or not.
    pub fn of(name: &'a str, is_named: bool) -> Self {
        if is_named { DeviceNaming::Given(name) } else { DeviceNaming::Automatic(name) }
    }

    /// The name, or its beginning.
    pub fn text(self) -> &'a str {
        match self {
            DeviceNaming::Automatic(name) | DeviceNaming::Given(name) | DeviceNaming::ByRule(name) => name,
        }
    }

    /// A naming of this kind whose text is `name`.
    pub fn with<'b>(self, name: &'b str) -> DeviceNaming<'b> {
        match self {
            DeviceNaming::Automatic(_) => DeviceNaming::Automatic(name),
            DeviceNaming::Given(_) => DeviceNaming::Given(name),
            DeviceNaming::ByRule(_) => DeviceNaming::ByRule(name),
        }
    }
}

/// Checks whether a device may have this name.
///
/// # Errors
/// A sentence for a person: why not.
pub fn check_name(text: &str) -> Result<(), String> {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let has_letter = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    if !is_word || !has_letter || text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "'{text}' is no name: up to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', one a letter at least"
        ));
    }
    match RESERVED.contains(&text) {
        true => Err(format!("'{text}' means every device: choose another name")),
        false => Ok(()),
    }
}

/// Splits a device's words into those without `name=NAME`, and the name.
///
/// # Errors
/// A sentence for a person: what is wrong with the name.
pub fn split_name(text: &str) -> Result<(String, Option<String>), String> {
    let mut words: Vec<&str> = text.split(',').collect();
    let mut names = words.extract_if(1.., |word| word.starts_with("name="));
    let name = names.next().map(|word| word["name=".len()..].to_owned());
    if names.next().is_some() {
        return Err(format!("'{text}' has two names"));
    }
    drop(names);
    name.as_deref().map_or(Ok(()), check_name)?;
    Ok((words.join(","), name))
}

/// Whether farbus gives such names: a kind, possibly with a number.
pub fn looks_automatic(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    KINDS.contains(&stem) || ["stream", "bridge-a", "bridge-b"].contains(&stem) || is_end_of_bridge(name)
}

/// Whether `name` is that of one end of a bridge, such as `bridge2-a`.
fn is_end_of_bridge(name: &str) -> bool {
    let number = name.strip_prefix("bridge").and_then(|rest| rest.strip_suffix("-a").or(rest.strip_suffix("-b")));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_option_is_split_off_and_may_occur_once() {
        let split = |text: &str| split_name(text);
        let both = |words: &str, name: &str| Ok((words.to_owned(), Some(name.to_owned())));
        assert_eq!(split("disk:/a.img,name=backup,ro"), both("disk:/a.img,ro", "backup"));
        assert_eq!(split("keyboard,name=k"), both("keyboard", "k"));
        assert_eq!(split("disk:name=x"), Ok(("disk:name=x".to_owned(), None)));
        for wrong in
            ["zero,name=", "zero,name=1-1", "zero,name=a b", "zero,name=all", "zero,name=a,name=b", "zero,name=*"]
        {
            assert!(split(wrong).is_err(), "{wrong}");
        }
        assert!(check_name(&"a".repeat(65)).is_err() && check_name(&"a".repeat(64)).is_ok());
    }

    #[test]
    fn names_that_farbus_gives_are_recognized() {
        for name in ["disk", "disk2", "memory", "can17", "bridge-a", "bridge2-b", "stream"] {
            assert!(looks_automatic(name), "{name}");
        }
        for name in ["backup", "diskette", "disk-2", "2", "", "bridge", "bridge-c"] {
            assert!(!looks_automatic(name), "{name}");
        }
    }
}
