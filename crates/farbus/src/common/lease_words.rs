//! What a host or an owner asks for about a lease, in the words of the protocols.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What to do about the lease of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum LeaseAct {
    /// Request it, or repeat a request that waits.
    Request {
        /// For how long, seconds.
        for_s: u64,
        /// The priority; 0 is everyone's.
        #[serde(default, skip_serializing_if = "is_zero")]
        priority: u8,
        /// What for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Whether to take a place in the queue.
        #[serde(default)]
        waits: bool,
        /// Whether the lease ends after 10 s unless it is confirmed. An earlier release does not know this, and grants
        /// what needs no confirmation.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        provisional: bool,
    },
    /// Confirm a provisional lease.
    Confirm,
    /// Leave the queue.
    Withdraw,
    /// Move its end to so long from now, if that is later.
    Extend {
        /// Seconds.
        for_s: u64,
    },
    /// Give the rest of it to another host.
    Give {
        /// The key of that host.
        to: String,
    },
    /// End it.
    Release {
        /// Whether to end it even while its holder has the device attached.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(priority: &u8) -> bool {
    *priority == 0
}

/// A span as people write it: `90`, `90s`, `15m`, `2h`, `3d`, `1h30m`.
///
/// # Errors
/// A sentence that says what a span is.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no span of time: 90s, 15m, 2h, 3d or 1h30m");
    let (mut total_s, mut digits) = (0_u64, String::new());
    for letter in text.chars() {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        let unit_s = match letter {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(wrong()),
        };
        let count: u64 = digits.parse().map_err(|_| wrong())?;
        total_s = count.checked_mul(unit_s).and_then(|s| total_s.checked_add(s)).ok_or_else(wrong)?;
        digits.clear();
    }
    if !digits.is_empty() {
        // A number alone is seconds; behind a unit it has none.
        let is_alone = text.bytes().all(|byte| byte.is_ascii_digit());
        total_s = digits.parse().ok().filter(|_| is_alone).ok_or_else(wrong)?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(total_s)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them_and_nothing_else_is() {
        for (text, s) in [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259_200), ("1h30m", 5400)] {
            assert_eq!(parse_span(text), Ok(Duration::from_secs(s)), "{text}");
        }
        for text in ["", "h", "2x", "-1h", "1h30", "2 h", "99999999999999999999d", "18446744073709551615d", "1.5h"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn acts_are_stable_json() {
        for text in [
            r#"{"do":"request","for_s":7200,"waits":true}"#,
            r#"{"do":"request","for_s":60,"priority":3,"reason":"nightly","waits":false}"#,
            r#"{"do":"request","for_s":60,"waits":false,"provisional":true}"#,
            r#"{"do":"confirm"}"#,
            r#"{"do":"withdraw"}"#,
            r#"{"do":"extend","for_s":60}"#,
            r#"{"do":"give","to":"abc"}"#,
            r#"{"do":"release"}"#,
            r#"{"do":"release","force":true}"#,
        ] {
            let act: LeaseAct = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&act).unwrap(), text);
        }
    }
}
