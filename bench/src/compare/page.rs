//! The findings as one page of HTML without script, and as the tables of a document.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::svg::escaped;

/// What stands around the generated part of a document.
const BEGINS: &str = "<!-- compare: begins -->";
const ENDS: &str = "<!-- compare: ends -->";
/// The cells of a row with a bar that say what farbus did; those behind them are about one peer.
const FIGURE_CELLS: usize = 2;
/// A bar of this value takes the whole width.
const BAR_MAX: f64 = 4.0;

const STYLE: &str =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1b1f24}
h1{font-size:1.6rem}h2{margin-top:2.2rem}p{max-width:60rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #d8dee4;vertical-align:top}
th{background:#f3f5f7}td+td{white-space:nowrap}td.wide{white-space:normal}
.bar{position:relative;display:block;width:12rem;height:.9rem;background:#eef1f4;margin-top:.25rem}
.bar i{display:block;height:100%;background:#0072b2}.bar i.less{background:#d55e00}
.bar b{position:absolute;top:-.15rem;bottom:-.15rem;left:25%;width:2px;background:#1b1f24}";

/// Everything that was found.
pub struct ComparisonPage {
    /// The machine and the programs, in one line.
    pub machine: String,
    pub tables: Vec<PageTable>,
    /// Pictures as SVG, one below the other.
    pub charts: Vec<String>,
    /// What was not measured, and why.
    pub left_out: Vec<(String, String)>,
}

pub struct PageTable {
    pub title: &'static str,
    pub note: String,
    pub headings: Vec<String>,
    pub rows: Vec<PageRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PageRow {
    pub cells: Vec<String>,
    /// A ratio to be drawn: above 1 farbus is the better one.
    pub bar: Option<f64>,
}

impl PageRow {
    pub fn new(cells: Vec<String>) -> Self {
        Self { cells, bar: None }
    }
}

impl ComparisonPage {
    pub fn html(&self) -> String {
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>farbus beside its peers</title>\n<style>{STYLE}</style>\n<h1>farbus beside its peers</h1>\n<p>{}</p>\n",
            escaped(&self.machine)
        );
        for table in &self.tables {
            table.push_html(&mut text);
        }
        for chart in &self.charts {
            let _ = writeln!(text, "<figure>{chart}</figure>");
        }
        if !self.left_out.is_empty() {
            text.push_str("<h2>Left out</h2>\n<ul>\n");
            for (what, why) in &self.left_out {
                let _ = writeln!(text, "<li>{}: {}</li>", escaped(what), escaped(why));
            }
            text.push_str("</ul>\n");
        }
        text + "</html>\n"
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        for table in &self.tables {
            let _ = writeln!(text, "\n## {}\n\n{}\n", table.title, table.note);
            let (headings, rows) = table.in_short();
            let _ = writeln!(text, "|{}|\n|{}", headings.join("|"), "---|".repeat(headings.len()));
            for cells in rows {
                let _ = writeln!(text, "|{}|", cells.join("|"));
            }
        }
        if !self.left_out.is_empty() {
            text.push_str("\nLeft out:\n\n");
            for (what, why) in &self.left_out {
                let _ = writeln!(text, "* {what}: {why}");
            }
        }
        text
    }
}

impl PageTable {
    /// The headings, and the cells of each row. A table of peers has one row for all peers of a figure of farbus.
    fn in_short(&self) -> (Vec<&str>, Vec<Vec<String>>) {
        let mut headings: Vec<&str> = self.headings.iter().map(String::as_str).collect();
        if self.rows.iter().all(|row| row.bar.is_none()) {
            return (headings, self.rows.iter().map(|row| row.cells.clone()).collect());
        }
        headings.splice(FIGURE_CELLS.., ["beside: its figure, the ratio (min..max)"]);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in &self.rows {
            let (figure, peer) = row.cells.split_at(FIGURE_CELLS.min(row.cells.len()));
            let peer = peer.join(", ");
            match rows.last_mut() {
                Some(cells) if cells.starts_with(figure) => cells[FIGURE_CELLS] += &format!("<br>{peer}"),
                _ => rows.push([figure, std::slice::from_ref(&peer)].concat()),
            }
        }
        (headings, rows)
    }

    fn push_html(&self, text: &mut String) {
        let has_bars = self.rows.iter().any(|row| row.bar.is_some());
        let _ = writeln!(text, "<h2>{}</h2>\n<p>{}</p>\n<table>\n<tr>", escaped(self.title), escaped(&self.note));
        for heading in &self.headings {
            let _ = write!(text, "<th>{}</th>", escaped(heading));
        }
        text.push_str(if has_bars { "<th>the line is 1</th></tr>\n" } else { "</tr>\n" });
        for row in &self.rows {
            text.push_str("<tr>");
            for cell in &row.cells {
                let class = if cell.chars().count() > 40 { " class=\"wide\"" } else { "" };
                let _ = write!(text, "<td{class}>{}</td>", escaped(cell));
            }
            if let Some(ratio) = row.bar {
                let width = 100.0 * ratio.clamp(0.0, BAR_MAX) / BAR_MAX;
                let class = if ratio < 1.0 { " class=\"less\"" } else { "" };
                let _ = write!(
                    text,
                    "<td><span class=\"bar\"><i{class} style=\"width:{width:.0}%\"></i><b></b></span></td>"
                );
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table>\n");
    }
}

/// Writes the generated part of the document at `path`, and keeps what stands around it.
///
/// # Errors
/// The document has no place for it.
pub fn write_between_markers(path: &Path, generated: &str) -> Result<()> {
    let text = match path.exists() {
        true => {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            replaced(&text, generated).with_context(|| format!("{} is left as it is", path.display()))?
        }
        false => format!("{BEGINS}\n\n{}\n\n{ENDS}\n", generated.trim()),
    };
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The document with another generated part.
fn replaced(document: &str, generated: &str) -> Result<String> {
    ensure!(
        document.matches(BEGINS).count() == 1 && document.matches(ENDS).count() == 1,
        "it has to have one line '{BEGINS}' and one line '{ENDS}'; add them where the tables shall be"
    );
    let (before, rest) = document.split_once(BEGINS).unwrap_or_default();
    let (_, after) = rest.split_once(ENDS).with_context(|| format!("'{ENDS}' stands above '{BEGINS}'; swap them"))?;
    Ok(format!("{before}{BEGINS}\n\n{}\n\n{ENDS}{after}", generated.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let before = format!("# Performance\n\n{BEGINS}\nold | table\n{ENDS}\n\n## Tuning\n");
        let after = replaced(&before, "new\n").expect("markers");
        assert_eq!(after, format!("# Performance\n\n{BEGINS}\n\nnew\n\n{ENDS}\n\n## Tuning\n"));
        assert_eq!(replaced(&after, "new").expect("markers"), after, "twice is like once");
    }

    #[test]
    fn a_document_without_one_pair_of_markers_is_refused_with_what_to_do() {
        for (document, word) in [
            ("# Performance".to_owned(), "add them"),
            (BEGINS.to_owned(), "add them"),
            (format!("{BEGINS}{ENDS}{BEGINS}{ENDS}"), "add them"),
            (format!("{ENDS}\n{BEGINS}"), "swap them"),
        ] {
            let refusal = replaced(&document, "new").unwrap_err().to_string();
            assert!(refusal.contains(word), "{document}: {refusal}");
        }
    }

    fn page() -> ComparisonPage {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let rows = ["nbdkit", "usbip"]
            .map(|peer| PageRow { cells: words(&["disk < 1", "2 k/s", peer, "0.5"]), bar: Some(0.5) });
        let headings = words(&["what", "farbus", "peer", "ratio"]);
        let tables = vec![PageTable { title: "Beside", note: "Why".into(), headings, rows: rows.into() }];
        let left_out = vec![("nbd-server".into(), "not installed".into())];
        ComparisonPage { machine: "two processors".into(), tables, charts: Vec::new(), left_out }
    }

    #[test]
    fn a_page_needs_nothing_but_itself() {
        let html = page().html();
        assert!(html.contains("<td>disk &lt; 1</td>") && html.contains("width:12%"), "{html}");
        assert!(html.contains("<li>nbd-server: not installed</li>"), "{html}");
        assert!(["<script", "http", "src=", "href="].iter().all(|outside| !html.contains(outside)), "{html}");
    }

    #[test]
    fn a_document_has_a_heading_a_table_and_what_was_left_out() {
        let text = page().markdown();
        let row = "|disk < 1|2 k/s|nbdkit, 0.5<br>usbip, 0.5|\n";
        assert!(text.contains("## Beside\n\nWhy\n\n|what|farbus|beside"), "{text}");
        assert!(text.contains(row), "{text}");
        assert!(text.ends_with("* nbd-server: not installed\n"), "{text}");
    }
}
