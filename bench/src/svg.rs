//! Line charts as SVG: panels one above the other over a common axis, readable in a browser and in a diff.

use std::fmt::Write;

/// Panels over one horizontal axis.
pub struct LineChart {
    /// The line above it.
    pub title: String,
    /// The label of the horizontal axis.
    pub across: String,
    /// One below the other, over the same horizontal axis.
    pub panels: Vec<ChartPanel>,
}

/// One vertical axis and its lines.
pub struct ChartPanel {
    /// The axis's label, with its unit.
    pub up: String,
    /// Whether the scale is logarithmic; values that are not above zero are then drawn at its lower end.
    pub is_logarithmic: bool,
    /// In the order of the legend.
    pub lines: Vec<ChartLine>,
}

/// A line: its name and its points, from left to right.
pub struct ChartLine {
    /// The legend's text.
    pub name: String,
    /// Horizontal and vertical values.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const PANEL: f64 = 240.0;
const TOP: f64 = 40.0;
const GAP: f64 = 30.0;
const LEFT: f64 = 70.0;
/// Space for the lines' names.
const RIGHT: f64 = 190.0;
const BOTTOM: f64 = 45.0;
/// Told apart without colour vision too (Okabe and Ito, 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// The strokes of the first six lines, of the next six, and of all others.
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""];
/// The distance of two lines of the legend, where there is space.
const LEGEND_LINE: f64 = 18.0;

impl LineChart {
    /// The SVG, with axes from zero.
    pub fn render(&self) -> String {
        self.render_from(true)
    }

    /// Like [`LineChart::render`], but axes begin near the least value: for lines that differ little.
    pub fn render_close(&self) -> String {
        self.render_from(false)
    }

    fn render_from(&self, from_zero: bool) -> String {
        let height = TOP + (PANEL + GAP) * self.panels.len() as f64 + BOTTOM;
        let mut svg = String::new();
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        );
        text(&mut svg, (LEFT, 22.0), "start", &self.title);
        let (from, to) = ends(
            self.panels
                .iter()
                .flat_map(|panel| panel.lines.iter())
                .flat_map(|line| line.points.iter().map(|&(x, _)| x)),
        );
        for (at, panel) in self.panels.iter().enumerate() {
            panel.render(&mut svg, TOP + (PANEL + GAP) * at as f64, (from, to), from_zero);
        }
        text(&mut svg, ((LEFT + WIDTH - RIGHT) / 2.0, height - 12.0), "middle", &self.across);
        svg.push_str("</svg>\n");
        svg
    }
}

impl ChartPanel {
    fn render(&self, svg: &mut String, top: f64, (from, to): (f64, f64), from_zero: bool) {
        let right = WIDTH - RIGHT;
        let x_at = |x: f64| LEFT + (x - from) / (to - from) * (right - LEFT);
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y);
        let scale =
            if from_zero { AxisScale::over(values(), self.is_logarithmic) } else { AxisScale::close_over(values()) };
        let y_at = |y: f64| top + PANEL * (1.0 - scale.position(y));
        for mark in scale.marks() {
            let y = y_at(mark);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>");
            text(svg, (LEFT - 6.0, y + 4.0), "end", &shown(mark));
        }
        for mark in AxisScale::over([from, to].into_iter(), false).marks().filter(|mark| (from..=to).contains(mark)) {
            text(svg, (x_at(mark), top + PANEL + 16.0), "middle", &shown(mark));
        }
        let _ = writeln!(svg, "<path d=\"M{LEFT} {top}V{}H{right}\" fill=\"none\" stroke=\"#444\"/>", top + PANEL);
        text(svg, (LEFT, top - 6.0), "start", &self.up);
        for (at, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let dash = DASHES[(at / COLOURS.len()).min(DASHES.len() - 1)];
            let points: Vec<String> =
                line.points.iter().map(|&(x, y)| format!("{:.1},{:.1}", x_at(x), y_at(y))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                points.join(" ")
            );
            let y = top + 12.0 + LEGEND_LINE.min(PANEL / self.lines.len() as f64) * at as f64;
            let stroke = format!("stroke=\"{colour}\" stroke-width=\"2\"{dash}");
            let _ = writeln!(svg, "<path d=\"M{} {}h18\" {stroke}/>", right + 12.0, y - 4.0);
            text(svg, (right + 36.0, y), "start", &line.name);
        }
    }
}

/// Words as text of SVG or HTML, none of which is taken for markup.
pub fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// The least and the greatest value; a little apart if they are equal.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(value), b.max(value)));
    match least < most {
        true => (least, most),
        false if least.is_finite() => (least, least + 1.0),
        false => (0.0, 1.0),
    }
}

/// A vertical axis with round ends.
struct AxisScale {
    from: f64,
    to: f64,
    step: f64,
    is_logarithmic: bool,
}

impl AxisScale {
    /// A scale from zero, or from a power of ten.
    fn over(values: impl Iterator<Item = f64>, is_logarithmic: bool) -> Self {
        // Nothing but what is above zero has a place on a logarithmic scale.
        let (least, most) = ends(values.filter(|&value| !is_logarithmic || value > 0.0));
        if is_logarithmic {
            let (least, most) = if least > 0.0 { (least, most) } else { (1.0, 10.0) };
            let from = 10_f64.powf(least.log10().floor());
            let to = 10_f64.powf(most.log10().ceil()).max(from * 10.0);
            return Self { from, to, step: 10.0, is_logarithmic };
        }
        let rough = most.max(f64::MIN_POSITIVE) / 5.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(rough);
        Self { from: 0.0, to: (most / step).ceil().max(1.0) * step, step, is_logarithmic }
    }

    /// A scale from a round mark below the least value.
    fn close_over(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = ends(values);
        let Self { step, .. } = Self::over(std::iter::once(most - least), false);
        Self { from: (least / step).floor() * step, to: (most / step).ceil() * step, step, is_logarithmic: false }
    }

    /// The position of a value, from 0 at the bottom to 1.
    fn position(&self, value: f64) -> f64 {
        match self.is_logarithmic {
            true => (value.max(self.from) / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        }
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        let (from, to, step, is_logarithmic) = (self.from, self.to, self.step, self.is_logarithmic);
        let next = move |mark: &f64| if is_logarithmic { mark * step } else { mark + step };
        std::iter::successors(Some(from), move |mark| Some(next(mark)))
            .take_while(move |&mark| mark <= to * (1.0 + 1e-9))
    }
}

fn shown(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_marks_that_cover_every_value() {
        let marks = |values: &[f64], log| AxisScale::over(values.iter().copied(), log).marks().collect::<Vec<_>>();
        assert_eq!(marks(&[3.0, 95.0], false), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(marks(&[0.4, 90.0], true), [0.1, 1.0, 10.0, 100.0]);
        assert_eq!(marks(&[5.0], true).first(), Some(&1.0));
        assert_eq!(marks(&[0.0, 5.0], true), [1.0, 10.0]);
        assert_eq!(marks(&[0.0], true), [1.0, 10.0]);
        let close: Vec<_> = AxisScale::close_over([-104.0, 3.0].into_iter()).marks().collect();
        assert_eq!(close, [-125.0, -100.0, -75.0, -50.0, -25.0, 0.0, 25.0]);
        let scale = AxisScale::over([1.0, 100.0].into_iter(), true);
        assert!((scale.position(10.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_chart_has_each_line_and_its_name() {
        let line = |name: &str| ChartLine { name: name.into(), points: vec![(0.0, 1.0), (95.0, 20.0)] };
        let panel = |log| ChartPanel { up: "ms".into(), is_logarithmic: log, lines: vec![line("a < b"), line("c")] };
        let chart = LineChart { title: "t".into(), across: "load, %".into(), panels: vec![panel(false), panel(true)] };
        let svg = chart.render();
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(svg.contains("a &lt; b") && svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
