//! Spans and times of day as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// A time as people write it: `+90m` from now, or `2026-11-27T08:00Z` (RFC 3339 in UTC; seconds may be left out).
///
/// # Errors
/// A sentence that says what a time is.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{}' is no time: +90m, or 2026-11-27T08:00Z (UTC)", text.escape_debug());
    if let Some(span) = text.strip_prefix('+') {
        return parse_span(span).map(|span| SystemTime::now() + span).map_err(|_| wrong());
    }
    let (date, time) = text.strip_suffix('Z').and_then(|text| text.split_once('T')).ok_or_else(wrong)?;
    let numbers = |text: &str, between: char, digits: &[usize]| -> Option<Vec<u64>> {
        let parts: Vec<&str> = text.split(between).collect();
        let is_so = |(part, digits): (&&str, &usize)| part.len() == *digits && part.bytes().all(|b| b.is_ascii_digit());
        let is_right = parts.len() <= digits.len() && parts.iter().zip(digits).all(is_so);
        is_right.then(|| parts.iter().map_while(|part| part.parse().ok()).collect())
    };
    let date = numbers(date, '-', &[4, 2, 2]).ok_or_else(wrong)?;
    let time = numbers(time, ':', &[2, 2, 2]).ok_or_else(wrong)?;
    let ([year, month, day], [hour, minute, rest @ ..]) = (&date[..], &time[..]) else { return Err(wrong()) };
    let second = rest.first().copied().unwrap_or_default();
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = usize::try_from(*month).ok().and_then(|month| lengths.get(month.wrapping_sub(1)).copied());
    let is_day = length.is_some_and(|length| (1..=length).contains(day));
    if *year < 1970 || !is_day || *hour > 23 || *minute > 59 || second > 59 {
        return Err(wrong());
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let days = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    let days = days + lengths.iter().take(*month as usize - 1).sum::<u64>() + day - 1;
    Ok(UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second))
}

/// A time that has passed, as people write it: `2d` ago, the day `2026-11-24` from its beginning (UTC), or as
/// [`parse_time`] reads it.
///
/// # Errors
/// A sentence that says what such a time is.
pub fn parse_past_time(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{}' is no time: 2d (ago), 2026-11-24 or 2026-11-24T08:00Z (UTC)", text.escape_debug());
    if let Ok(span) = parse_span(text) {
        return SystemTime::now().checked_sub(span).ok_or_else(wrong);
    }
    parse_day(text).or_else(|_| parse_time(text).map_err(|_| wrong()))
}

/// The beginning of a day: `2026-11-24` (UTC).
///
/// # Errors
/// A sentence that says what a day is.
pub fn parse_day(text: &str) -> Result<SystemTime, String> {
    parse_time(&format!("{text}T00:00Z")).map_err(|_| format!("'{}' is no day: 2026-11-24", text.escape_debug()))
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
    fn times_are_utc_or_from_now_and_nothing_else() {
        let unix = |text: &str| parse_time(text).map(|at| at.duration_since(UNIX_EPOCH).unwrap().as_secs());
        for (text, s) in [
            ("1970-01-01T00:00Z", 0),
            ("2000-02-29T12:30:15Z", 951_827_415),
            ("2026-11-27T08:00Z", 1_795_766_400),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(unix(text), Ok(s), "{text}");
        }
        let soon = parse_time("+90m").unwrap().duration_since(SystemTime::now()).unwrap();
        assert!(soon <= Duration::from_secs(5400) && soon > Duration::from_secs(5300));
        for text in [
            "",
            "+",
            "+x",
            "22:00",
            "2026-11-27",
            "2026-11-27T08:00",
            "2026-11-27T08:00+01:00",
            "2026-13-01T00:00Z",
            "2026-00-01T00:00Z",
            "2026-02-29T00:00Z",
            "2100-02-29T00:00Z",
            "2026-11-31T00:00Z",
            "2026-11-27T24:00Z",
            "2026-11-27T08Z",
            "1969-12-31T23:59Z",
            "2026-1-01T00:00Z",
            "2026-11-27T08:00:00:00Z",
            "+2026-11-27T08:00Z",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
