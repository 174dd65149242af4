//! The report's page: one HTML file with its data, its script and its style, that opens without a network.
//!
//! Charts over time and distributions are drawn by uPlot (MIT, vendored from npm in `assets/`), the rest by the page's own
//! script.

use serde::Serialize;

use crate::scoreboard::Figure;

const PAGE: &str = include_str!("assets/report.html");
const PARTS: [(&str, &str); 4] = [
    ("/*UPLOT_CSS*/", include_str!("assets/uPlot.min.css")),
    ("/*CSS*/", include_str!("assets/report.css")),
    ("/*UPLOT_JS*/", include_str!("assets/uPlot.iife.min.js")),
    ("/*JS*/", include_str!("assets/report.js")),
];

/// What the page's script draws.
#[derive(Serialize)]
pub(super) struct Page {
    pub title: String,
    pub subtitle: String,
    pub version: &'static str,
    /// What comes first.
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
    /// A paragraph a line.
    pub text: String,
    /// Ratios with their intervals.
    pub forests: Vec<Forest>,
    pub table: Option<HtmlTable>,
    /// Published figures with ours.
    pub svgs: Vec<String>,
    /// Line charts, side by side.
    pub charts: Vec<Chart>,
    /// A stacked bar chart.
    pub bars: Option<Bars>,
}

/// Ratios to one system, a row each, on a logarithmic axis; closed if it is not the first thing to look at.
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
    /// The ends of its interval.
    pub ends: Option<(f64, f64)>,
    /// Whether less is better, where that can be said.
    pub less: Option<bool>,
}

/// What lies between two curves.
#[derive(Serialize)]
pub(super) struct Band {
    /// The curve's number.
    pub curve: usize,
    /// Points of the one side in order, then those of the other backwards.
    pub outline: Vec<(f64, f64)>,
}

#[derive(Serialize)]
pub(super) struct Chart {
    #[serde(flatten)]
    pub figure: Figure,
    /// Confidence bands.
    pub bands: Vec<Band>,
    /// The vertical axis shows shares so that each nine takes as much room: .9, .99, .999.
    pub tail: bool,
    /// Common ends of the vertical axis.
    pub y_range: Option<(f64, f64)>,
    /// A mark on the horizontal axis: where measuring begins.
    pub mark: Option<f64>,
    /// Shared by charts whose pointers move together.
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

/// Fills the page. Data cannot end the script element that holds it.
pub(super) fn render(page: &Page) -> String {
    let data = serde_json::to_string(page).expect("pages can be written").replace('<', "\\u003c");
    let escaped = page.title.replace('&', "&amp;").replace('<', "&lt;");
    let mut text = PAGE.to_owned();
    for (place, part) in PARTS {
        text = text.replacen(place, part, 1);
    }
    // The title comes last: data holds no `<`, so it cannot hold the title's place either.
    text.replacen("/*DATA*/", &data, 1).replacen("<!--TITLE-->", &escaped, 1)
}
