//! Formats quantities for people.

/// Formats a size in decimal units, with two decimal places above the byte: `1.05 MB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"kB");
    while value >= 1000.0
        && let Some(larger) = units.next()
    {
        (value, unit) = (value / 1000.0, larger);
    }
    format!("{value:.2} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_in_the_largest_unit_below_them() {
        let texts = [0, 999, 1000, 1_048_576, 16 << 20, 999_999, u64::MAX].map(format_bytes);
        assert_eq!(texts, ["0 B", "999 B", "1.00 kB", "1.05 MB", "16.78 MB", "1000.00 kB", "18.45 EB"]);
    }
}
