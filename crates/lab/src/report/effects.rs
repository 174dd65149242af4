//! Generates `docs/effects.md` and its picture: what changes were predicted to do, beside what was measured.

use std::fmt::Write as _;

use plotters::prelude::*;

use crate::input::InputError;
use crate::number::format_change;
use crate::scoreboard::experiment::{Experiment, PublishedRow, RowKind, Scale};
use crate::scoreboard::record::{self, Recorded, RecordedRow};
use crate::scoreboard::verdict::Verdict;

/// The page, its picture, and a summary.
pub struct EffectsPage {
    /// Markdown.
    pub text: String,
    /// SVG.
    pub picture: String,
}

/// A ratio of after to before, with its 95 % interval if it is known.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    value: f64,
    interval: Option<[f64; 2]>,
}

impl Ratio {
    /// Converts a number of a row.
    fn of(row: &PublishedRow, value: f64, interval: Option<[f64; 2]>) -> Option<Ratio> {
        let form = row.file.effect.as_ref()?.value;
        let interval = interval.map(|ends| {
            let [one, other] = ends.map(|end| form.ratio(end));
            [one.min(other), one.max(other)]
        });
        Some(Ratio { value: form.ratio(value), interval })
    }

    /// The interval, or the value twice.
    fn ends(self) -> [f64; 2] {
        self.interval.unwrap_or([self.value; 2])
    }

    fn text(&self) -> String {
        format_change(self.value - 1.0, self.interval.map(|ends| ends.map(|end| end - 1.0)))
    }
}

/// One change and one quantity that it changes.
struct Effect {
    change: String,
    on: String,
    paper: String,
    figure: String,
    kind: RowKind,
    scale: Scale,
    n: usize,
    measured: Ratio,
    predicted: Ratio,
}

impl Effect {
    /// Makes the effect of a recorded row; `None` if the row is not comparable.
    fn of(
        experiment: &Experiment,
        row: &PublishedRow,
        recorded: &Recorded,
        found: &RecordedRow,
    ) -> Option<Effect> {
        let effect = row.file.effect.as_ref()?;
        if matches!(found.verdict, Verdict::NotComparable | Verdict::NoData) {
            return None;
        }
        Some(Effect {
            change: effect.change.clone(),
            on: effect.on.clone(),
            paper: experiment.paper.clone(),
            figure: experiment.figure.clone(),
            kind: row.file.kind.unwrap_or(experiment.file.kind),
            scale: recorded.scale,
            n: found.n,
            measured: Ratio::of(row, row.file.published?, effect.interval)?,
            predicted: Ratio::of(row, found.ours?, found.interval)?,
        })
    }

    /// Whether the prediction goes in the measured direction; `None` if an interval covers no change.
    fn sign_is_right(&self) -> Option<bool> {
        let [measured, predicted] = [self.measured, self.predicted]
            .map(Ratio::ends)
            .map(|[low, high]| if low > 1.0 { Some(true) } else { (high < 1.0).then_some(false) });
        Some(measured? == predicted?)
    }

    /// Whether the whole prediction lies in the measured interval or within 25 % of the measured change; `None` if only
    /// a part of its interval does.
    fn size_is_right(&self) -> Option<bool> {
        let quarter = 0.25 * (self.measured.value - 1.0).abs();
        let [low, high] = self.measured.ends();
        let (low, high) = (low.min(self.measured.value - quarter), high.max(self.measured.value + quarter));
        let [from, to] = self.predicted.ends();
        if low <= from && to <= high { Some(true) } else { (to < low || high < from).then_some(false) }
    }

    fn cells(&self) -> [String; 8] {
        let said = |right: Option<bool>| match right {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => "open".to_owned(),
        };
        let (paper, figure) = (&self.paper, &self.figure);
        let n = if self.n == 0 { "–".into() } else { self.n.to_string() };
        [
            self.change.clone(),
            self.on.clone(),
            format!("[{paper}/{figure}](../experiments/{paper}/{figure}), {}", self.kind),
            self.measured.text(),
            self.predicted.text(),
            format!("{n}, {}", self.scale),
            said(self.sign_is_right()),
            said(self.size_is_right()),
        ]
    }
}

/// Makes the page from all rows that name an effect, are recorded, and were not used to fit a parameter.
///
/// # Errors
/// If an experiment or a record is wrong.
pub fn page(experiments: &[Experiment]) -> Result<EffectsPage, InputError> {
    let (mut effects, mut waiting) = (Vec::new(), 0);
    for experiment in experiments {
        let recorded = record::read(&experiment.folder)?;
        let rows = experiment.rows()?;
        for (row, found) in rows.iter().zip(record::settled(&rows, recorded.as_ref())) {
            if row.file.effect.is_none() || experiment.fitted(&row.file).is_some() {
                continue;
            }
            let effect = recorded
                .as_ref()
                .zip(found)
                .and_then(|(recorded, found)| Effect::of(experiment, row, recorded, &found));
            match effect {
                Some(effect) => effects.push(effect),
                None => waiting += 1,
            }
        }
    }
    Ok(EffectsPage { text: text(&effects, waiting), picture: picture(&effects) })
}

fn text(effects: &[Effect], waiting: usize) -> String {
    let count = |judge: &dyn Fn(&Effect) -> Option<bool>| {
        let right = effects.iter().filter(|effect| judge(effect) == Some(true)).count();
        let wrong = effects.iter().filter(|effect| judge(effect) == Some(false)).count();
        format!("right in {right} rows, wrong in {wrong}, open in {}", effects.len() - right - wrong)
    };
    let mut text = format!(
        "# Effects: predicted and measured\n\n<!-- Made by `tidegate scoreboard` from experiments/*/*/result.json. Do not \
         edit. -->\n\nEach row is a change, its measured effect, and the effect that this project \
         predicts. No measured effect in this table was used to choose a parameter; but after first \
         comparisons, the model was corrected on the network of effects/real-tor, and the network of effects/load was chosen \
         again. Changes are in percent of the value before; brackets hold 95 % intervals, where they are known.\n\n\
         - **Sign**: {}. It is open if the interval of the measurement or of the prediction covers 0.\n\
         - **Size**: {}. It is right if the whole interval of the prediction lies in the measured interval or within 25 % \
         of the measured change, wrong if no part of it does, and open otherwise.\n\n![Measured and predicted effects](effects.svg)\n\n\
         | change | on | measured by | measured | predicted | seeds, scale | sign | size |\n\
         |---|---|---|---|---|---|---|---|\n",
        count(&Effect::sign_is_right),
        count(&Effect::size_is_right)
    );
    for effect in effects {
        let cells = effect.cells().map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = write!(
        text,
        "\n{waiting} effects have a measurement but no comparable record yet, and are not shown. Each row names its \
         experiment: `tidegate reproduce PAPER/FIGURE --record` predicts it again, and `tidegate scoreboard` makes this \
         page. [Real tor](real-tor.md) tells how to measure effects on stock tor.\n"
    );
    text
}

/// Pixels of the picture: a row, the space for names, the axis, and the margins above and below.
const ROW: i32 = 34;
const NAMES: i32 = 430;
const WIDTH: i32 = 470;
const TOP: i32 = 60;
const BOTTOM: i32 = 50;
/// Ends of the axis; longer intervals are cut.
const RANGE: [f64; 2] = [0.2, 5.0];
/// Labelled ratios.
const TICKS: [f64; 7] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0];

const MEASURED: RGBColor = RGBColor(0, 114, 178);
const PREDICTED: RGBColor = RGBColor(213, 94, 0);

/// Draws both ratios of each effect on a logarithmic axis.
fn picture(effects: &[Effect]) -> String {
    let mut text = String::new();
    draw(effects, &mut text).expect("drawing into memory cannot fail");
    text
}

/// Horizontal place of a ratio.
fn place(ratio: f64) -> i32 {
    let share = (ratio.clamp(RANGE[0], RANGE[1]) / RANGE[0]).ln() / (RANGE[1] / RANGE[0]).ln();
    NAMES + (share * f64::from(WIDTH)) as i32
}

fn draw(effects: &[Effect], text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let height = TOP + ROW * effects.len() as i32 + BOTTOM;
    let root =
        SVGBackend::with_string(text, ((NAMES + WIDTH + 20) as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let (small, label) = (("sans-serif", 13), ("sans-serif", 15));
    let grey = RGBColor(120, 120, 120);
    for (x, colour, name) in [(NAMES, MEASURED, "measured"), (NAMES + 120, PREDICTED, "predicted")] {
        root.draw(&Circle::new((x, 20), 4, colour.filled()))?;
        root.draw(&PathElement::new([(x - 10, 20), (x + 10, 20)], colour.stroke_width(2)))?;
        root.draw(&Text::new(name, (x + 16, 14), label.into_font()))?;
    }
    let hint = "lines: 95 % intervals; grey rows: wrong sign";
    root.draw(&Text::new(hint, (NAMES + 240, 15), small.into_font().color(&grey)))?;
    for (number, effect) in effects.iter().enumerate() {
        let top = TOP + ROW * number as i32;
        if effect.sign_is_right() == Some(false) {
            let shade = RGBColor(225, 225, 225).filled();
            root.draw(&Rectangle::new([(0, top), (NAMES + WIDTH + 20, top + ROW)], shade))?;
        }
        root.draw(&Text::new(effect.change.clone(), (8, top + 3), small.into_font()))?;
        root.draw(&Text::new(effect.on.clone(), (20, top + 17), small.into_font().color(&grey)))?;
    }
    for tick in TICKS {
        let colour = if tick == 1.0 { BLACK } else { RGBColor(215, 215, 215) };
        let bottom = height - BOTTOM;
        root.draw(&PathElement::new([(place(tick), TOP), (place(tick), bottom)], colour.stroke_width(1)))?;
        let name = if tick == 1.0 { "0 %".into() } else { format!("{:+.0} %", 100.0 * (tick - 1.0)) };
        root.draw(&Text::new(name, (place(tick) - 16, bottom + 8), small.into_font()))?;
    }
    for (number, effect) in effects.iter().enumerate() {
        let top = TOP + ROW * number as i32;
        for (ratio, colour, y) in
            [(effect.measured, MEASURED, top + 11), (effect.predicted, PREDICTED, top + 23)]
        {
            if let Some(ends) = ratio.interval {
                let line = ends.map(|end| (place(end), y));
                root.draw(&PathElement::new(line, colour.stroke_width(2)))?;
            }
            root.draw(&Circle::new((place(ratio.value), y), 4, colour.filled()))?;
        }
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(measured: Ratio, predicted: f64) -> Effect {
        Effect {
            change: "A & B".into(),
            on: "downloads".into(),
            paper: "paper".into(),
            figure: "figure-1".into(),
            kind: RowKind::Paper,
            scale: Scale::Full,
            n: 3,
            measured,
            predicted: Ratio { value: predicted, interval: Some([predicted - 0.1, predicted + 0.1]) },
        }
    }

    #[test]
    fn sign_and_size_are_judged() {
        let known = |value: f64| Ratio { value, interval: Some([value - 0.1, value + 0.1]) };
        let alone = |value| Ratio { value, interval: None };
        let (right, wrong, open) = (Some(true), Some(false), None);
        // The prediction's interval reaches 0.1 to both sides.
        for (measured, predicted, sign, size) in [
            (alone(0.5), 0.5, right, right),
            (known(0.5), 0.5, right, right),
            (known(0.7), 0.75, right, open),
            (known(0.7), 0.95, open, wrong),
            (known(0.7), 1.2, wrong, wrong),
            (known(0.95), 1.4, open, wrong),
            (alone(0.6), 0.71, right, open),
            (alone(1.4), 1.25, right, open),
            (alone(1.0), 1.0, open, open),
        ] {
            let effect = effect(measured, predicted);
            let judged = (effect.sign_is_right(), effect.size_is_right());
            assert_eq!(judged, (sign, size), "{measured:?} {predicted}");
        }
    }

    #[test]
    fn the_page_counts_and_the_picture_names() {
        let ratio = Ratio { value: 0.5, interval: Some([0.4, 0.6]) };
        let effects = [effect(ratio, 0.55), effect(ratio, 1.2)];
        let text = text(&effects, 4);
        assert!(text.contains("**Sign**: right in 1 rows, wrong in 1, open in 0"), "{text}");
        assert!(text.contains("**Size**: right in 0 rows, wrong in 1, open in 1"), "{text}");
        assert!(text.contains("-50 % [-60, -40] | -45 % [-55, -35] | 3, full | yes | open"), "{text}");
        assert!(text.contains("4 effects have a measurement"), "{text}");
        let picture = picture(&effects);
        for part in ["<svg", "A &amp; B", "predicted", "</svg>"] {
            assert!(picture.contains(part), "{part}");
        }
        assert!(picture.len() > super::picture(&[]).len());
    }
}
