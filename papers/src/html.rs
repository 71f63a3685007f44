//! One page with every item that ran, which needs no other file: an index by paper and number, then each item with its
//! rows and charts.

use std::fmt::Write;

use farbus_bench::escaped;
use serde_json::Value;

use crate::{
    items::PAPERS,
    result::ItemRow,
    run::{ItemOutcome, OutcomeState},
};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:1.5rem auto;padding:0 1rem;color:#222;\
    background:#fff}table{border-collapse:collapse;margin:.6rem 0;width:100%}td,th{border-bottom:1px solid #ddd;\
    padding:.2rem .6rem;text-align:left;vertical-align:top}h2{margin-top:2.4rem;border-top:2px solid #0072b2;\
    padding-top:.6rem}h3{margin-top:2rem}.missed{color:#b00020;font-weight:600}.label{background:#eef4f8;\
    border-radius:.6rem;padding:.1rem .6rem;font-size:.85em}.detail{color:#666;font-size:.85em}\
    svg{max-width:100%;height:auto}nav td{padding:.1rem .6rem}nav a{white-space:nowrap}";

pub fn page(outcomes: &[ItemOutcome], machine: &Value, is_quick: bool) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = writeln!(page, "<title>farbus: the papers, run again</title><style>{STYLE}</style></head><body>");
    let _ = writeln!(
        page,
        "<h1>The papers, run again with farbus</h1>\n<p>{} processors ({}), Linux {}.{} A value is a median; beside it \
         the interval that has the true median with 95 % certainty, or of few repeats their range.</p>",
        machine["cpus"],
        escaped(machine["cpu"].as_str().unwrap_or_default()),
        escaped(machine["kernel"].as_str().unwrap_or_default()),
        if is_quick { " The quick form: fewer repeats, so wider intervals." } else { "" },
    );
    page.push_str("<nav><table><tr><th>paper</th><th>item</th><th>shows</th><th>how</th><th>result</th></tr>\n");
    for outcome in outcomes {
        let item = outcome.item;
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td{}>{}</td></tr>",
            item.paper,
            anchor(outcome),
            item.number,
            escaped(item.title),
            item.evidence.label(),
            if outcome.is_missed() || outcome.failure().is_some() { " class=\"missed\"" } else { "" },
            outcome.status(),
        );
    }
    page.push_str("</table></nav>\n");
    for (year, title) in PAPERS {
        let of_paper: Vec<_> = outcomes.iter().filter(|outcome| outcome.item.paper == year).collect();
        if of_paper.is_empty() {
            continue;
        }
        let _ = writeln!(page, "<h2>{year}: {}</h2>", escaped(title));
        of_paper.into_iter().for_each(|outcome| push_item(&mut page, outcome));
    }
    page.push_str("</body></html>\n");
    page
}

fn anchor(outcome: &ItemOutcome) -> String {
    format!("{}-{}", outcome.item.paper, outcome.item.word())
}

fn push_item(page: &mut String, outcome: &ItemOutcome) {
    let item = outcome.item;
    let _ = writeln!(
        page,
        "<h3 id=\"{}\">{}: {} <span class=\"label\">{}</span></h3>\n<p>The paper: {}.</p>",
        anchor(outcome),
        item.number,
        escaped(item.title),
        item.evidence.label(),
        escaped(item.says),
    );
    match &outcome.state {
        OutcomeState::Failed(why) => {
            let _ = writeln!(page, "<p class=\"missed\">Could not be run: {}</p>", escaped(why));
        }
        OutcomeState::Needs(what) => {
            let _ = writeln!(page, "<p>It needs {}.</p>", escaped(what));
        }
        OutcomeState::Ran(result) => {
            page.push_str(
                "<table><tr><th></th><th>farbus</th><th>how sure</th><th>the paper</th><th>bound</th></tr>\n",
            );
            result.rows.iter().for_each(|row| push_row(page, outcome, row));
            page.push_str("</table>\n");
            for svg in &result.charts {
                let _ = writeln!(page, "<figure>{svg}</figure>");
            }
        }
    }
    for name in &outcome.left_out {
        let _ = writeln!(page, "<p>Left out because it takes minutes: <code>farbus bench {name}</code>.</p>");
    }
    let _ = writeln!(
        page,
        "<p>Why it differs: {} Run it alone: <code>farbus papers {} {}</code></p>",
        escaped(item.why),
        item.paper,
        item.word()
    );
}

fn push_row(page: &mut String, outcome: &ItemOutcome, row: &ItemRow) {
    let detail = match row.detail.is_empty() {
        true => String::new(),
        false => format!("<br><span class=\"detail\">{}</span>", escaped(&row.detail)),
    };
    let _ = writeln!(
        page,
        "<tr><td>{}{detail}</td><td>{}</td><td>{}</td><td>{}</td><td{}>{}</td></tr>",
        escaped(&row.what),
        escaped(&row.shown()),
        outcome.certainty(row),
        escaped(&row.paper),
        if row.is_missed { " class=\"missed\"" } else { "" },
        escaped(&row.bound),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        item::{ItemEvidence, PaperItem},
        items,
        result::ItemResult,
    };

    #[test]
    fn page_has_each_item_in_index_and_text_and_needs_no_other_file() {
        let row = ItemRow::spread("a < b", vec![1.0, 2.0], "ms", "3").at_most(1.0);
        let result = ItemResult { rows: vec![row], charts: vec!["<svg></svg>".into()] };
        let state = |item: &'static PaperItem| match item.evidence {
            ItemEvidence::Rig => OutcomeState::Needs("a kernel"),
            ItemEvidence::Computed => OutcomeState::Failed("no farbus".into()),
            _ => OutcomeState::Ran(result.clone()),
        };
        let outcomes: Vec<_> = items::all()
            .into_iter()
            .map(|item| ItemOutcome { item, state: state(item), left_out: Vec::new() })
            .collect();
        let page = page(&outcomes, &serde_json::json!({"cpus": 2}), true);
        for outcome in &outcomes {
            let anchor = anchor(outcome);
            assert!(
                page.contains(&format!("href=\"#{anchor}\"")) && page.contains(&format!("id=\"{anchor}\"")),
                "{anchor}"
            );
        }
        assert!(page.contains("a &lt; b") && page.contains("class=\"missed\"") && page.contains("It needs a kernel"));
        assert!(!page.contains("src=") && !page.contains("href=\"http"), "it needs no other file");
    }
}
