//! Command lines to be copied from the page. Names in them are other people's.

use std::fmt::Write;

use farbus_io_net::trust::is_shown;

/// The longest name that is put into a command line or an address, bytes: as long as one may be on the wire.
pub const NAME_BYTES_MAX: usize = 255;

/// Characters that change how text after them is shown, or are not seen.
pub fn is_deceptive(c: char) -> bool {
    !is_shown(c)
}

/// A word as bash and zsh read it. No control character is left in it: pasted into a terminal, it does what is shown.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.chars().any(is_deceptive) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for c in word.chars() {
        if c == '\'' || c == '\\' {
            out.push('\\');
            out.push(c);
        } else if is_deceptive(c) {
            let mut utf8 = [0; 4];
            for byte in c.encode_utf8(&mut utf8).bytes() {
                // Three octal digits at most are read, so a digit that follows is not.
                let _ = write!(out, "\\{byte:03o}");
            }
        } else {
            out.push(c);
        }
    }
    out.push('\'');
    out
}

/// `farbus VERB WORD…`. A word that begins with a hyphen is not read as an option; options stand with the verb.
pub fn command(verb: &str, words: &[&str]) -> String {
    let guard = if words.iter().any(|word| word.starts_with('-')) { " --" } else { "" };
    let words: String = words.iter().map(|word| format!(" {}", quoted(word))).collect();
    format!("farbus {verb}{guard}{words}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_hostile_name_is_one_word_to_bash_and_has_no_control_character() {
        for name in [
            "disk",
            "",
            "a b",
            "$(reboot)",
            "`id`",
            "it's",
            "a\nreboot\n",
            "\x1b[2J\x07",
            "\u{202e}txt",
            "-f",
            "a\\'b\r1",
            "\x011",
            "~",
            "*",
            "a;b&c|d",
            "!!",
        ] {
            let line = quoted(name);
            assert!(!line.chars().any(is_deceptive), "{line:?}");
            let output = Command::new("bash").arg("-c").arg(format!("printf '<%s>' {line}")).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("<{name}>"), "{line}");
        }
        assert_eq!(command("detach", &["-f"]), "farbus detach -- -f");
    }
}
