//! A bus's schedule as a picture: a column for each (micro)frame, with what is reserved in it.

use std::fmt::Write;

/// Columns of a picture; the rest of a longer schedule is left out.
pub const COLUMNS_MAX: u32 = 64;
/// Endpoints that have a colour and a line below the picture.
const PLACES_MAX: usize = 64;
const COLUMN_WIDTH: u32 = 28;
const COLUMN_HEIGHT: f64 = 240.0;

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusDrawing<'a> {
    /// Length of a (micro)frame, picoseconds.
    pub interval_ps: u64,
    /// What is kept of each for bulk and control, picoseconds.
    pub asynchronous_ps: u64,
    /// After how many the schedule repeats.
    pub cycle: u32,
    /// `frame` or `microframe`.
    pub unit: &'a str,
    /// The periodic endpoints.
    pub drawings: Vec<EndpointDrawing>,
}

/// An endpoint in its intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointDrawing {
    /// Its name, as HTML or XML has it.
    pub name_escaped: String,
    /// The first interval.
    pub start: u32,
    /// The distance to the next.
    pub every: u32,
    /// Bus time each time, picoseconds.
    pub time_ps: u64,
}

/// The elements of an SVG picture, and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SvgPicture {
    /// What the picture consists of, as the inner text of an `svg` element.
    pub elements: String,
    /// In user units.
    pub width: u32,
    /// In user units.
    pub height: u32,
}

impl BusDrawing<'_> {
    /// Draws a column for each interval, from the bottom: reserved time, then the periodic endpoints.
    pub fn draw(&self) -> SvgPicture {
        let shown = self.cycle.min(COLUMNS_MAX);
        let interval = self.interval_ps.max(1) as f64;
        let drawings = &self.drawings[..self.drawings.len().min(PLACES_MAX)];
        let mut elements = String::new();
        let mut rect = |x: u32, from_ps: f64, time_ps: f64, (class, fill): (&str, &str), title: &str| {
            let (from_ps, time_ps) = (from_ps.min(interval), time_ps.min(interval));
            let top = (from_ps + time_ps).min(interval);
            let (y, height) = (10.0 + COLUMN_HEIGHT * (1.0 - top / interval), COLUMN_HEIGHT * time_ps / interval);
            let width = COLUMN_WIDTH - 2;
            let _ = writeln!(
                elements,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y:.2}\" width=\"{width}\" height=\"{height:.2}\" \
                 fill=\"{fill}\"><title>{title}</title></rect>"
            );
        };
        let colour = |at: usize| format!("hsl({},60%,60%)", at * 67 % 360);
        for column in 0..shown {
            let x = 10 + column * COLUMN_WIDTH;
            rect(x, 0.0, interval, ("free", "#f4f4f4"), "free");
            let mut from = self.asynchronous_ps as f64;
            rect(x, 0.0, from, ("kept", "#bbb"), "reserved for bulk and control");
            for (at, endpoint) in drawings.iter().enumerate() {
                if column % endpoint.every.max(1) == endpoint.start {
                    rect(x, from, endpoint.time_ps as f64, ("place", &colour(at)), &endpoint.name_escaped);
                    from += endpoint.time_ps as f64;
                }
            }
        }
        let mut label = |x: u32, y: u32, (class, fill): (&str, &str), words: &str| {
            let _ = writeln!(elements, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{words}</text>");
        };
        let base = COLUMN_HEIGHT as u32 + 22;
        for column in 0..shown {
            label(10 + column * COLUMN_WIDTH, base, ("number", "#000"), &column.to_string());
        }
        let kept = format!("reserved for bulk and control, of {shown} {}s", self.unit);
        label(10, base + 18, ("number", "#777"), &kept);
        for (at, endpoint) in drawings.iter().enumerate() {
            let y = base + 34 + 16 * at as u32;
            label(26, y, ("name", "#000"), &endpoint.name_escaped);
        }
        for at in 0..drawings.len() {
            let (top, fill) = (base + 25 + 16 * at as u32, colour(at));
            let _ = writeln!(
                elements,
                "<rect class=\"place\" x=\"10\" y=\"{top}\" width=\"10\" height=\"10\" fill=\"{fill}\"/>"
            );
        }
        let legend = drawings.len() as u32 * 16 + 40;
        let (width, height) = ((shown * COLUMN_WIDTH).max(320) + 20, COLUMN_HEIGHT as u32 + 40 + legend);
        SvgPicture { elements, width, height }
    }
}
