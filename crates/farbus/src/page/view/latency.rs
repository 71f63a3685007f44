//! How long a device's requests took in each of the last seconds: stage by stage, as a picture and as tables.

use std::fmt::Write;

use serde_json::Value;

use super::text::table;

/// Seconds that are drawn; their process keeps no more.
const SECONDS_MAX: u64 = 180;
/// Rows of the table of seconds, the latest.
const ROWS_MAX: usize = 30;
const STAGES: [(&str, &str); 4] =
    [("All", "all_us"), ("Network", "network_us"), ("Exporter", "bus_us"), ("Device", "back_end_us")];
const PERCENTILES: [(&str, &str); 3] = [("p50", "median"), ("p99", "99 %"), ("p999", "99.9 %")];
/// The picture, pixels: the width of a second, and the height of a stage with its heading.
const SECOND_WIDTH: f64 = 3.0;
const LEFT: f64 = 70.0;
const HEIGHT: f64 = 74.0;
const STAGE_HEIGHT: f64 = 100.0;
/// A line is not drawn over a longer gap, seconds.
const GAP_MAX: u64 = 5;
/// The ends of the scale, microseconds: powers of ten.
const SCALE: (i32, i32) = (-1, 8);

/// A time in its unit, from microseconds.
fn span(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1000.0),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.2} s", us / 1_000_000.0),
    }
}

fn number(second: &Value, stage: &str, percentile: &str) -> f64 {
    let us = second[stage][percentile].as_f64().unwrap_or_default();
    us.clamp(0.0, 1e9)
}

fn ago(second: &Value) -> u64 {
    second["ago_s"].as_u64().unwrap_or(u64::MAX)
}

/// Draws what a process says of the seconds of an attachment; empty if no second has a timed request.
pub fn drawn(said: &Value) -> String {
    let seconds = said["seconds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let seconds: Vec<&Value> = seconds.iter().filter(|second| ago(second) < SECONDS_MAX).collect();
    let seconds = &seconds[seconds.len().saturating_sub(SECONDS_MAX as usize)..];
    let Some(latest) = seconds.last() else { return String::new() };
    let mut out = picture(seconds);
    let rows: Vec<_> = STAGES
        .iter()
        .map(|(name, stage)| {
            let worst =
                seconds.iter().max_by(|one, other| number(one, stage, "p999").total_cmp(&number(other, stage, "p999")));
            let worst = worst.map(|worst| format!("{}, {} s ago", span(number(worst, stage, "p999")), ago(worst)));
            let now = PERCENTILES.iter().map(|(percentile, _)| span(number(latest, stage, percentile)));
            std::iter::once((*name).to_owned()).chain(now).chain(worst).collect()
        })
        .collect();
    let caption =
        format!("The latest second with a timed request, {} s ago, and the worst of three minutes", ago(latest));
    out.push_str(&table(&caption, &["Stage", "Median", "99 %", "99.9 %", "Worst 99.9 %"], &rows));
    let rows: Vec<_> = seconds
        .iter()
        .rev()
        .take(ROWS_MAX)
        .map(|second| {
            let timed = second["timed"].as_u64().unwrap_or_default().to_string();
            let all = PERCENTILES.iter().map(|(percentile, _)| span(number(second, "all_us", percentile)));
            [format!("{} s ago", ago(second)), timed].into_iter().chain(all).collect()
        })
        .collect();
    let table = table("All stages together", &["Second", "Timed", "Median", "99 %", "99.9 %"], &rows);
    let _ = writeln!(
        out,
        "<details aria-label=\"Each of the last seconds\"><summary>Each of the last seconds</summary>\n{table}</details>"
    );
    out
}

/// A part of the picture for each stage, over one scale: three lines on a logarithmic scale.
fn picture(seconds: &[&Value]) -> String {
    let each = || {
        let of_second =
            |second: &'_ &Value| STAGES.map(|(_, stage)| PERCENTILES.map(|(name, _)| number(second, stage, name)));
        seconds.iter().flat_map(of_second).flatten().filter(|us| *us > 0.0)
    };
    let (least, most) = (each().fold(f64::MAX, f64::min), each().fold(0.0, f64::max));
    let low = (least.log10().floor() as i32).clamp(SCALE.0, SCALE.1 - 1);
    let high = (most.max(1e-3).log10().ceil() as i32).clamp(low + 1, SCALE.1);
    let width = LEFT + SECONDS_MAX as f64 * SECOND_WIDTH + 10.0;
    let total = STAGE_HEIGHT * STAGES.len() as f64 + 24.0;
    let mut svg = format!(
        "<div class=\"picture\" tabindex=\"0\" role=\"group\" aria-label=\"Picture of the latency over time\">\
         <svg class=\"latency\" width=\"{width}\" height=\"{total}\" viewBox=\"0 0 {width} {total}\" role=\"img\" \
         aria-labelledby=\"latency-title latency-what\"><title id=\"latency-title\">Latency of the last three minutes</title>\
         <desc id=\"latency-what\">Median, 99 % and 99.9 % of each second, for all stages together, the network, the \
         exporter and the device, from {} to {} on a logarithmic scale. The tables below have the numbers.</desc>\n",
        span(10_f64.powi(low)),
        span(10_f64.powi(high))
    );
    let x = |second: &Value| LEFT + (SECONDS_MAX - ago(second)) as f64 * SECOND_WIDTH;
    for (at, (name, stage)) in STAGES.iter().enumerate() {
        let top = STAGE_HEIGHT * at as f64 + 18.0;
        let y = |us: f64| {
            let part = (us.max(1e-9).log10() - f64::from(low)) / f64::from(high - low);
            top + HEIGHT * (1.0 - part.clamp(0.0, 1.0))
        };
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.0}\">{name}</text>", top - 5.0);
        for power in low..=high {
            let (line, us) = (y(10_f64.powi(power)), 10_f64.powi(power));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {line:.1}H{:.0}\"/><text class=\"number\" x=\"{:.0}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                width - 10.0,
                LEFT - 6.0,
                line + 3.5,
                if us < 1.0 { "0.1 µs".to_owned() } else { span(us) }
            );
        }
        for (percentile, words) in PERCENTILES {
            let mut line = String::new();
            let mut before: Option<u64> = None;
            for second in seconds {
                let is_near = before.is_some_and(|before| before.saturating_sub(ago(second)) <= GAP_MAX);
                let (x, y) = (x(second), y(number(second, stage, percentile)));
                let _ = write!(line, "{}{x:.0} {y:.1}", if is_near { 'L' } else { 'M' });
                if !is_near {
                    // A second by itself is seen, too.
                    let _ = write!(line, "h1");
                }
                before = Some(ago(second));
            }
            let _ = writeln!(svg, "<path class=\"{percentile}\" d=\"{line}\"><title>{name}, {words}</title></path>");
        }
    }
    let bottom = total - 6.0;
    let _ = write!(svg, "<text class=\"number\" x=\"{LEFT}\" y=\"{bottom}\">{SECONDS_MAX} s ago</text>");
    let _ = writeln!(
        svg,
        "<text class=\"number\" x=\"{:.0}\" y=\"{bottom}\" text-anchor=\"end\">now</text></svg></div>",
        width - 10.0
    );
    svg.push_str(
        "<p class=\"legend\">Of each second: <span class=\"p50\">median (solid)</span>, <span class=\"p99\">99 % \
         (dashed)</span>, <span class=\"p999\">99.9 % (dotted)</span>. One request in 64 is timed, and one each second.</p>\n",
    );
    svg
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn second(ago_s: u64, us: f64) -> Value {
        let stage = json!({ "p50": us, "p99": us * 3.0, "p999": us * 10.0 });
        json!({ "ago_s": ago_s, "timed": 7, "all_us": stage, "network_us": stage, "bus_us": stage, "back_end_us": stage })
    }

    #[test]
    fn each_stage_is_drawn_with_three_percentiles_and_told_in_a_table() {
        let html = drawn(&json!({ "seconds": [second(9, 200.0), second(8, 4000.0), second(0, 100.0)] }));
        for class in ["p50", "p99", "p999"] {
            assert_eq!(html.matches(&format!("<path class=\"{class}\"")).count(), 4, "{html}");
        }
        assert!(html.contains("<td data-label=\"Median\">100 µs</td>"), "{html}");
        assert!(html.contains("<td data-label=\"Worst 99.9 %\">40.0 ms, 8 s ago</td>"), "{html}");
        assert!(html.contains("<th scope=\"row\">9 s ago</th>"), "{html}");
        let lines: Vec<&str> = html.split("<path class=\"p50\" d=\"").skip(1).collect();
        assert_eq!(lines[0].split('"').next().unwrap().matches('M').count(), 2, "nothing is drawn over a gap: {html}");
        assert_eq!(drawn(&json!({ "seconds": [] })), "");
        assert_eq!(drawn(&Value::Null), "");
    }

    #[test]
    fn numbers_of_a_process_that_make_no_sense_make_a_picture_of_bounded_size() {
        for us in [f64::MAX, -1.0, 0.0, 1e-300] {
            let html = drawn(&json!({ "seconds": vec![second(3, us); 5000] }));
            assert!(!html.contains("NaN") && !html.contains("inf") && html.len() < 64 << 10, "{us} {}", html.len());
        }
        let odd = json!({ "seconds": [{ "ago_s": -1 }, { "ago_s": 1e99 }, "x", { "ago_s": 2, "all_us": "<b>" }] });
        assert!(!drawn(&odd).contains("<b>"));
    }
}
