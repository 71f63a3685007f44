//! How long a device's requests took in each of the last seconds, stage by stage: as tables, and as numbers that the
//! page's script draws.

use std::fmt::Write;

use farbus_control::session::{Percentiles, Second, Seconds};
use maud::{Markup, html};

use crate::view::text::table;

/// Seconds that are told; their process keeps no more.
const SECONDS_MAX: u64 = 180;
/// Rows of the table of seconds, the latest.
const ROWS_MAX: usize = 30;
const STAGES: [&str; 4] = ["All", "Network", "Exporter", "Device"];

/// A time in its unit, from microseconds.
fn span(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1000.0),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.2} s", us / 1_000_000.0),
    }
}

/// The stages of a second, in that order.
fn stages_of(second: &Second) -> [Percentiles; 4] {
    [second.all_us, second.network_us, second.bus_us, second.back_end_us]
}

/// The median, the 99th and the 99.9th percentile of a stage, within what is drawn.
fn times(Percentiles { p50, p99, p999 }: Percentiles) -> [f64; 3] {
    [p50, p99, p999].map(|us| if us.is_nan() { 0.0 } else { f64::from(us).clamp(0.0, 1e9) })
}

/// Tells what a process says of the seconds of an attachment; empty if no second has a timed request.
pub fn drawn(history: &Seconds) -> Markup {
    let seconds: Vec<&Second> = history.seconds.iter().filter(|second| second.ago_s < SECONDS_MAX).collect();
    let seconds = &seconds[seconds.len().saturating_sub(SECONDS_MAX as usize)..];
    let Some(latest) = seconds.last() else { return Markup::default() };
    let of_percentiles = |stage: Percentiles| times(stage).map(|us| html! { (span(us)) }).into_iter();
    let stages: Vec<Vec<Markup>> = STAGES
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let worst_of = |second: &Second| times(stages_of(second)[at])[2];
            let worst = seconds.iter().max_by(|one, other| worst_of(one).total_cmp(&worst_of(other)));
            let worst = worst.map(|it| html! { (span(worst_of(it))) ", " (it.ago_s) " s ago" });
            std::iter::once(html! { (name) }).chain(of_percentiles(stages_of(latest)[at])).chain(worst).collect()
        })
        .collect();
    let each: Vec<Vec<Markup>> = seconds
        .iter()
        .rev()
        .take(ROWS_MAX)
        .map(|second| {
            let first = [html! { (second.ago_s) " s ago" }, html! { (second.timed) }];
            first.into_iter().chain(of_percentiles(second.all_us)).collect()
        })
        .collect();
    let caption =
        format!("The latest second with a timed request, {} s ago, and the worst of three minutes", latest.ago_s);
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
fn to_draw(seconds: &[&Second]) -> Markup {
    let rows = seconds.iter().map(|second| {
        let mut row = format!("[{},{}", second.number, second.ago_s);
        for us in stages_of(second).into_iter().flat_map(times) {
            let _ = write!(row, ",{us:.1}");
        }
        row + "]"
    });
    let rows: Vec<String> = rows.collect();
    html! { div id="latency-seconds" hidden data-seconds={ "[" (rows.join(",")) "]" } {} }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn second(ago_s: u64, us: f32) -> Second {
        let stage = Percentiles { p50: us, p99: us * 3.0, p999: us * 10.0 };
        let (number, timed) = (100 - ago_s, 7);
        Second { number, ago_s, timed, all_us: stage, network_us: stage, bus_us: stage, back_end_us: stage }
    }

    #[test]
    fn each_stage_is_given_to_the_script_with_three_percentiles_and_told_in_a_table() {
        let html = drawn(&Seconds { seconds: vec![second(9, 200.0), second(8, 4000.0), second(0, 100.0)] }).0;
        let given = html.split("data-seconds=\"").nth(1).unwrap().split('"').next().unwrap();
        let given: Value = serde_json::from_str(given).unwrap();
        let stage = [4000.0, 12_000.0, 40_000.0];
        let second = [92.0, 8.0].into_iter().chain(std::iter::repeat_n(stage, 4).flatten()).collect::<Vec<f64>>();
        let stated: Vec<f64> = given[1].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        assert_eq!((given.as_array().unwrap().len(), stated), (3, second), "{html}");
        assert!(html.contains("<td data-label=\"Median\">100 µs</td>"), "{html}");
        assert!(html.contains("<td data-label=\"Worst 99.9 %\">40.0 ms, 8 s ago</td>"), "{html}");
        assert!(html.contains("<th scope=\"row\">9 s ago</th>"), "{html}");
        assert_eq!(drawn(&Seconds::default()).0, "");
    }

    #[test]
    fn numbers_of_a_process_that_make_no_sense_make_a_part_of_bounded_size() {
        for us in [f32::MAX, f32::NAN, -1.0, 0.0, 1e-30] {
            let html = drawn(&Seconds { seconds: vec![second(3, us); 5000] }).0;
            assert!(!html.contains("NaN") && !html.contains("inf") && html.len() < 64 << 10, "{us} {}", html.len());
        }
    }
}
