//! Pictures: curves and points over two labelled axes, written as SVG by hand.
//!
//! One small chart is all the lab needs, so there is no plotting library. What this file must not do: decide
//! what is shown; a plot is data, and the same data gives the same bytes.

use crate::claim::short;
use std::fmt::Write;

/// A chart.
///
/// ```
/// use lockwright_lab::{Axis, Plot, Series, Style};
/// let plot = Plot {
///     name: "goodput".into(),
///     title: "Goodput".into(),
///     note: "simulated".into(),
///     x: Axis::linear("clients"),
///     y: Axis::log("ops/s"),
///     series: vec![Series::new("cas", Style::Line, vec![(1.0, 300.0), (240.0, 15.0)])],
/// };
/// assert!(plot.svg().starts_with("<svg") && plot.svg().contains("simulated"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Part of the file's name.
    pub name: String,
    /// The headline.
    pub title: String,
    /// The line under it: whether this is simulated or measured, and by whom.
    pub note: String,
    /// The axis along the bottom.
    pub x: Axis,
    /// The axis on the left.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it counts, and in which unit.
    pub label: String,
    /// Whether equal distances are equal factors.
    pub log: bool,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend says.
    pub label: String,
    /// How it is drawn.
    pub style: Style,
    /// The points. Those that are not finite, or not positive on a logarithmic axis, are left out.
    pub points: Vec<(f64, f64)>,
}

/// How a series is drawn. Crosses and dashes are for other people's figures, lines for our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with a dot at every point.
    Line,
    /// A dashed line.
    Dashes,
    /// A cross at every point.
    Cross,
}

impl Axis {
    /// Equal distances are equal differences.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), log: false }
    }

    /// Equal distances are equal factors.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), log: true }
    }

    fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }
}

impl Series {
    /// A series.
    pub fn new(label: &str, style: Style, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.to_owned(), style, points }
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Where the chart proper lies in the picture; the legend stands to its right.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 388.0;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];

impl Plot {
    /// The picture.
    pub fn svg(&self) -> String {
        let shown = |point: &&(f64, f64)| self.x.can_show(point.0) && self.y.can_show(point.1);
        let points = || self.series.iter().flat_map(|series| series.points.iter()).filter(shown);
        let x = Scale::new(&self.x, points().map(|point| point.0), LEFT, RIGHT);
        let y = Scale::new(&self.y, points().map(|point| point.1), BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(&mut svg, (LEFT, 26.0), "font-size=\"16\" font-weight=\"bold\"", &self.title);
        text(&mut svg, (LEFT, 45.0), "fill=\"#555\"", &self.note);
        for value in x.ticks() {
            let at = x.place(value);
            line(&mut svg, (at, TOP), (at, BOTTOM), "stroke=\"#e4e4e4\"");
            text(&mut svg, (at, BOTTOM + 18.0), "text-anchor=\"middle\"", &short(value));
        }
        for value in y.ticks() {
            let at = y.place(value);
            line(&mut svg, (LEFT, at), (RIGHT, at), "stroke=\"#e4e4e4\"");
            text(&mut svg, (LEFT - 8.0, at + 4.0), "text-anchor=\"end\"", &short(value));
        }
        line(&mut svg, (LEFT, BOTTOM), (RIGHT, BOTTOM), "stroke=\"#333\"");
        line(&mut svg, (LEFT, TOP), (LEFT, BOTTOM), "stroke=\"#333\"");
        let middle = f64::midpoint(LEFT, RIGHT);
        text(&mut svg, (middle, BOTTOM + 40.0), "text-anchor=\"middle\"", &self.x.label);
        let (across, down) = (18.0, f64::midpoint(TOP, BOTTOM));
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 {across} {down})\"");
        text(&mut svg, (across, down), &turned, &self.y.label);

        for (index, series) in self.series.iter().enumerate() {
            let colour = self.colour(index);
            let places: Vec<_> = series
                .points
                .iter()
                .filter(shown)
                .map(|point| (x.place(point.0), y.place(point.1)))
                .collect();
            draw(&mut svg, series.style, colour, &places);
            let row = TOP + 12.0 + 22.0 * index as f64;
            draw(&mut svg, series.style, colour, &legend_sample(series.style, row));
            text(&mut svg, (RIGHT + 54.0, row + 4.0), "", &series.label);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The paper's points about a thing have the colour of our curve about it: the legend says
    /// `thing` and `thing, paper`.
    fn colour(&self, index: usize) -> &'static str {
        let thing = |series: &Series| series.label.split(',').next().map(ToOwned::to_owned);
        let wanted = thing(&self.series[index]);
        let first = self.series.iter().position(|series| thing(series) == wanted).unwrap_or(index);
        COLOURS[first % COLOURS.len()]
    }
}

/// From values to places in the picture.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let empty = low > high;
        let (low, high) = match axis.log {
            _ if empty => (if axis.log { 1.0 } else { 0.0 }, 10.0),
            // Whole decades, so that curves of different runs can be laid over each other.
            true => (10f64.powf(low.log10().floor()), 10f64.powf((high * 1.05).log10().ceil())),
            // Zero belongs to every linear axis: heights are then true to proportion.
            false => (low.min(0.0), if high > 0.0 { high * 1.04 } else { 1.0 }),
        };
        Self { low, high, from, to, log: axis.log }
    }

    fn place(&self, value: f64) -> f64 {
        let measure = |value: f64| if self.log { value.log10() } else { value };
        let share = (measure(value) - measure(self.low)) / (measure(self.high) - measure(self.low));
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = self.low.log10().round() as i32..=self.high.log10().round() as i32;
            let steps: &[f64] = if decades.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
            return all.filter(|tick| *tick <= self.high * 1.000_1).collect();
        }
        // About six steps of 1, 2 or 5 times a power of ten.
        let rough = (self.high - self.low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

fn legend_sample(style: Style, row: f64) -> Vec<(f64, f64)> {
    match style {
        Style::Cross => vec![(RIGHT + 33.0, row)],
        Style::Line | Style::Dashes => vec![(RIGHT + 20.0, row), (RIGHT + 46.0, row)],
    }
}

fn draw(svg: &mut String, style: Style, colour: &str, places: &[(f64, f64)]) {
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let pen = format!("stroke=\"{colour}\" stroke-width=\"2\"");
    match style {
        Style::Line => {
            put(svg, &format!("<polyline points=\"{path}\" fill=\"none\" {pen}/>"));
            for (x, y) in places {
                put(svg, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
            }
        }
        Style::Dashes => {
            put(svg, &format!("<polyline points=\"{path}\" fill=\"none\" {pen} stroke-dasharray=\"6 4\"/>"));
        }
        Style::Cross => {
            for (x, y) in places {
                let arms = format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0);
                put(svg, &format!("<path d=\"{arms}\" fill=\"none\" {pen}/>"));
            }
        }
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), look: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    put(svg, &format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {look}/>"));
}

fn text(svg: &mut String, at: (f64, f64), look: &str, text: &str) {
    put(svg, &format!("<text x=\"{:.1}\" y=\"{:.1}\" {look}>{}</text>", at.0, at.1, escaped(text)));
}

/// Text as it stands in SVG and HTML, between tags and in quotes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn put(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("a string takes everything");
}
