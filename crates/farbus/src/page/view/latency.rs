//! How long a device's requests took in each of the last seconds, stage by stage: as tables, and as numbers that the
//! page's script draws.

use std::fmt::Write;

use maud::{Markup, html};
use serde_json::Value;

use super::text::table;

/// Seconds that are told; their process keeps no more.
const SECONDS_MAX: u64 = 180;
/// Rows of the table of seconds, the latest.
const ROWS_MAX: usize = 30;
const STAGES: [(&str, &str); 4] =
    [("All", "all_us"), ("Network", "network_us"), ("Exporter", "bus_us"), ("Device", "back_end_us")];
const PERCENTILES: [(&str, &str); 3] = [("p50", "median"), ("p99", "99 %"), ("p999", "99.9 %")];
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

/// Tells what a process says of the seconds of an attachment; empty if no second has a timed request.
pub fn drawn(said: &Value) -> Markup {
    let seconds = said["seconds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let seconds: Vec<&Value> = seconds.iter().filter(|second| ago(second) < SECONDS_MAX).collect();
    let seconds = &seconds[seconds.len().saturating_sub(SECONDS_MAX as usize)..];
    let Some(latest) = seconds.last() else { return Markup::default() };
    let of_percentiles = |second: &Value, stage: &str| {
        PERCENTILES.map(|(percentile, _)| html! { (span(number(second, stage, percentile))) }).into_iter()
    };
    let stages: Vec<Vec<Markup>> = STAGES
        .iter()
        .map(|(name, stage)| {
            let worst =
                seconds.iter().max_by(|one, other| number(one, stage, "p999").total_cmp(&number(other, stage, "p999")));
            let worst = worst.map(|it| html! { (span(number(it, stage, "p999"))) ", " (ago(it)) " s ago" });
            std::iter::once(html! { (name) }).chain(of_percentiles(latest, stage)).chain(worst).collect()
        })
        .collect();
    let each: Vec<Vec<Markup>> = seconds
        .iter()
        .rev()
        .take(ROWS_MAX)
        .map(|second| {
            let timed = second["timed"].as_u64().unwrap_or_default();
            let first = [html! { (ago(second)) " s ago" }, html! { (timed) }];
            first.into_iter().chain(of_percentiles(second, "all_us")).collect()
        })
        .collect();
    let caption =
        format!("The latest second with a timed request, {} s ago, and the worst of three minutes", ago(latest));
    html! {
        (to_draw(seconds))
        (table(&caption, &["Stage", "Median", "99 %", "99.9 %", "Worst 99.9 %"], &stages))
        details aria-label="Each of the last seconds" {
            summary { "Each of the last seconds" }
            (table("All stages together", &["Second", "Timed", "Median", "99 %", "99.9 %"], &each))
        }
    }
}

/// What the page's script draws: of each second its number, how many seconds ago it ended, and the percentiles of each
/// stage, microseconds.
fn to_draw(seconds: &[&Value]) -> Markup {
    let rows = seconds.iter().map(|second| {
        let number = second["number"].as_u64().map_or_else(|| "null".to_owned(), |number| number.to_string());
        let mut row = format!("[{number},{}", ago(second));
        for (_, stage) in STAGES {
            for (percentile, _) in PERCENTILES {
                let _ = write!(row, ",{:.1}", self::number(second, stage, percentile));
            }
        }
        row + "]"
    });
    let rows: Vec<String> = rows.collect();
    html! { div id="latency-seconds" hidden data-seconds={ "[" (rows.join(",")) "]" } {} }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn second(ago_s: u64, us: f64) -> Value {
        let stage = json!({ "p50": us, "p99": us * 3.0, "p999": us * 10.0 });
        let stages = json!({ "all_us": stage, "network_us": stage, "bus_us": stage, "back_end_us": stage });
        let mut second = json!({ "number": 100 - ago_s, "ago_s": ago_s, "timed": 7 });
        second.as_object_mut().unwrap().extend(stages.as_object().unwrap().clone());
        second
    }

    #[test]
    fn each_stage_is_given_to_the_script_with_three_percentiles_and_told_in_a_table() {
        let html = drawn(&json!({ "seconds": [second(9, 200.0), second(8, 4000.0), second(0, 100.0)] })).0;
        let given = html.split("data-seconds=\"").nth(1).unwrap().split('"').next().unwrap();
        let given: Value = serde_json::from_str(given).unwrap();
        let stage = [4000.0, 12_000.0, 40_000.0];
        let second = [92.0, 8.0].into_iter().chain(std::iter::repeat_n(stage, 4).flatten()).collect::<Vec<f64>>();
        let said: Vec<f64> = given[1].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        assert_eq!((given.as_array().unwrap().len(), said), (3, second), "{html}");
        assert!(html.contains("<td data-label=\"Median\">100 µs</td>"), "{html}");
        assert!(html.contains("<td data-label=\"Worst 99.9 %\">40.0 ms, 8 s ago</td>"), "{html}");
        assert!(html.contains("<th scope=\"row\">9 s ago</th>"), "{html}");
        assert_eq!(drawn(&json!({ "seconds": [] })).0, "");
        assert_eq!(drawn(&Value::Null).0, "");
    }

    #[test]
    fn numbers_of_a_process_that_make_no_sense_make_a_part_of_bounded_size() {
        for us in [f64::MAX, -1.0, 0.0, 1e-300] {
            let html = drawn(&json!({ "seconds": vec![second(3, us); 5000] })).0;
            assert!(!html.contains("NaN") && !html.contains("inf") && html.len() < 64 << 10, "{us} {}", html.len());
        }
        let odd = json!({ "seconds": [{ "ago_s": -1 }, { "ago_s": 1e99 }, "x", { "ago_s": 2, "all_us": "<b>" }] });
        assert!(!drawn(&odd).0.contains("<b>"));
    }
}
