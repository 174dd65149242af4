//! The HTML page of a report: one file with data, script and style, which works offline.
//!
//! uPlot (MIT, vendored from npm in `assets/`) draws the line charts, the page's own script everything else.

use serde::Serialize;

use crate::scoreboard::Figure;

const PAGE: &str = include_str!("assets/report.html");
const PARTS: [(&str, &str); 4] = [
    ("/*UPLOT_CSS*/", include_str!("assets/uPlot.min.css")),
    ("/*CSS*/", include_str!("assets/report.css")),
    ("/*UPLOT_JS*/", include_str!("assets/uPlot.iife.min.js")),
    ("/*JS*/", include_str!("assets/report.js")),
];

/// The data that the page's script draws.
#[derive(Serialize)]
pub(super) struct Page {
    pub title: String,
    pub subtitle: String,
    pub version: &'static str,
    /// The first section.
    pub lead: Option<Section>,
    pub tables: Vec<HtmlTable>,
    pub sections: Vec<Section>,
    /// Text at the end, such as the scenario.
    pub appendix: String,
}

#[derive(Default, Serialize)]
pub(super) struct HtmlTable {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

#[derive(Default, Serialize)]
pub(super) struct Section {
    pub title: String,
    /// Paragraphs, one per line.
    pub text: String,
    /// Ratios with their intervals.
    pub forests: Vec<Forest>,
    pub table: Option<HtmlTable>,
    /// Published figures with our points, as SVG.
    pub svgs: Vec<String>,
    /// Line charts, side by side.
    pub charts: Vec<Chart>,
    /// A stacked bar chart.
    pub bars: Option<Bars>,
}

/// Ratios to one system on a logarithmic axis; `open` unfolds it.
#[derive(Serialize)]
pub(super) struct Forest {
    pub title: String,
    pub open: bool,
    pub rows: Vec<Ratio>,
}

#[derive(Serialize)]
pub(super) struct Ratio {
    pub label: String,
    pub system: String,
    pub mean: f64,
    /// Ends of the confidence interval.
    pub ends: Option<(f64, f64)>,
    /// Whether the interval shows a difference.
    pub sure: bool,
    /// Whether smaller is better; `None` if neither is.
    pub less: Option<bool>,
}

/// The area of a confidence band.
#[derive(Serialize)]
pub(super) struct Band {
    /// Index of the curve.
    pub curve: usize,
    /// Points of one side in order, then points of the other side in reverse.
    pub outline: Vec<(f64, f64)>,
}

#[derive(Serialize)]
pub(super) struct Chart {
    #[serde(flatten)]
    pub figure: Figure,
    /// Confidence bands.
    pub bands: Vec<Band>,
    /// Scales the vertical axis so that shares of 0.9, 0.99 and 0.999 are equally far apart.
    pub tail: bool,
    /// Common range of the vertical axis.
    pub y_range: Option<(f64, f64)>,
    /// A mark on the horizontal axis: the end of the warm-up.
    pub mark: Option<f64>,
    /// Charts of the same group share the position of the pointer.
    pub group: &'static str,
}

#[derive(Serialize)]
pub(super) struct Bars {
    pub unit: String,
    pub parts: Vec<String>,
    pub rows: Vec<Bar>,
}

#[derive(Serialize)]
pub(super) struct Bar {
    pub group: String,
    pub name: String,
    pub values: Vec<f64>,
}

/// Renders the page. Escapes `<` so that data cannot end its script element.
pub(super) fn render(page: &Page) -> String {
    let data = serde_json::to_string(page).expect("a page has only strings as keys").replace('<', "\\u003c");
    let escaped = page.title.replace('&', "&amp;").replace('<', "&lt;");
    let mut text = PAGE.to_owned();
    for (place, part) in PARTS {
        text = text.replacen(place, part, 1);
    }
    // The title is last: data contains no `<`, so it cannot contain the title's placeholder.
    text.replacen("/*DATA*/", &data, 1).replacen("<!--TITLE-->", &escaped, 1)
}
