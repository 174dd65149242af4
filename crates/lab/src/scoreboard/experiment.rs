//! The file `experiment.toml`: published numbers, their source, and how they are measured here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::calibration::CalibrateFile;
use super::drawing::FigureFile;
use super::expression::{Expression, Missing, Relation};
use crate::input::{InputError, SourceFile, suggest};

/// Size of a reproduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Takes seconds; shows that the experiment runs and has the right shape.
    Smoke,
    /// Allows comparing every published row; all experiments together take 3.5 hours on two cores.
    Medium,
    /// The published size.
    Full,
}

impl Scale {
    /// All scales, the largest last.
    #[cfg(test)]
    pub(crate) const ALL: [Scale; 3] = [Scale::Smoke, Scale::Medium, Scale::Full];

    /// A sentence on what results at this scale can show.
    pub fn headline(self) -> &'static str {
        match self {
            Scale::Smoke => {
                "smoke scale: shows that everything runs and has the right shape; where its seeds and seconds are too few \
                 for the published numbers, rows count as not comparable"
            }
            Scale::Medium => "medium scale: every published row is compared, with fewer seeds or seconds",
            Scale::Full => "full scale: the published size",
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scale::Smoke => "smoke",
            Scale::Medium => "medium",
            Scale::Full => "full",
        })
    }
}

/// Origin of the number that a row compares ours with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RowKind {
    /// A number or statement in a paper.
    #[default]
    #[serde(alias = "published")]
    Paper,
    /// A run of the authors' code.
    AuthorsCode,
    /// A measurement of the live network by others, such as Tor Metrics.
    LiveMeasurement,
    /// A run of other software by this project, such as tor in Shadow.
    OtherSoftware,
    /// A goal of this project.
    Own,
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowKind::Paper => "paper",
            RowKind::AuthorsCode => "authors' code",
            RowKind::LiveMeasurement => "live measurement",
            RowKind::OtherSoftware => "other software",
            RowKind::Own => "own goal",
        })
    }
}

/// One figure or table of a paper.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Folder below `experiments/`: `predictor`.
    pub paper: String,
    /// Folder below the paper's: `table-1`.
    pub figure: String,
    /// Folder of `experiment.toml`; paths in parameters are relative to it.
    pub folder: PathBuf,
    /// Folder of measured inputs.
    pub data: PathBuf,
    /// The contents of `experiment.toml`.
    pub file: ExperimentFile,
    /// Seeds in addition to those of the scale; zero for runners without the parameter `seeds`.
    pub extra_seeds: u32,
    /// The first seed to measure. Only runners with [`Dependence::EachSeed`](super::Dependence::EachSeed) heed it.
    pub first_seed: u32,
    /// Where to store finished runs of its scenarios, if at all.
    pub keep: Option<KeptRuns>,
    /// Values of its free parameters; without them, the centres of their ranges apply.
    pub(crate) trial: Option<ParameterTrial>,
    pub(super) source: SourceFile,
}

/// A measurement with given values of the free parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterTrial {
    /// Values by parameter.
    pub values: BTreeMap<String, f64>,
    /// Number of seeds; default: the scale's.
    pub seeds: Option<u32>,
    /// Measures only this system.
    pub system: Option<String>,
    /// With `system`: measures only the scenarios of these quantities.
    pub quantities: Vec<String>,
}

impl ParameterTrial {
    /// Whether one of several scenarios is needed.
    pub(crate) fn needs(&self, scenario: &str) -> bool {
        let of =
            |quantity: &String| quantity.strip_prefix(scenario).is_some_and(|rest| rest.starts_with('.'));
        self.system.is_none() || self.quantities.iter().any(of)
    }
}

/// A folder for finished runs.
#[derive(Clone, Debug)]
pub struct KeptRuns {
    /// The folder for the runs of all experiments.
    pub place: PathBuf,
    /// The commit that the tool was built from; runs of other commits do not match.
    pub commit: String,
}

/// `experiment.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExperimentFile {
    /// Title of the figure or table.
    pub title: String,
    /// The publication.
    pub source: String,
    /// Name of the runner.
    pub runner: Spanned<String>,
    /// Default of the rows' `kind`.
    #[serde(default)]
    pub(crate) kind: RowKind,
    /// Default of the rows' `fitted`.
    pub fitted: Option<String>,
    /// Names of presets in quantities. A quantity measured under several presets is one claim.
    #[serde(default)]
    pub presets: Vec<String>,
    /// Required measured inputs, relative to the data folder; without them the rows lack data. In overrides,
    /// `{data}` stands for that folder.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Parameters that the publication does not state, and the rows that fit them; only for the runner `scenario`.
    pub calibrate: Option<Spanned<CalibrateFile>>,
    /// Parameters of the runner at any scale.
    #[serde(default)]
    pub parameters: toml::Table,
    /// Parameters that replace those at smoke scale.
    #[serde(default)]
    pub smoke: toml::Table,
    /// Parameters that replace those at medium scale.
    #[serde(default)]
    pub medium: toml::Table,
    /// Parameters that replace those at full scale.
    #[serde(default)]
    pub full: toml::Table,
    /// The published figures.
    #[serde(default)]
    pub figure: Vec<Spanned<FigureFile>>,
    /// The published numbers.
    #[serde(default)]
    pub(crate) row: Vec<Spanned<RowFile>>,
}

/// A published number or statement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RowFile {
    /// Name of the quantity, for readers.
    pub quantity: String,
    /// Origin of the number; default: [`ExperimentFile::kind`].
    pub(crate) kind: Option<RowKind>,
    /// Which parameter of ours was chosen by looking at the published value, if one was; default:
    /// [`ExperimentFile::fitted`].
    pub fitted: Option<String>,
    /// Its unit, for readers.
    #[serde(default)]
    pub unit: String,
    /// The measured quantity, or an expression over several: `vanilla.total_bytes_per_s / 1024`.
    pub measure: Option<String>,
    /// The published number.
    pub published: Option<f64>,
    /// Permitted distance of ours: `"10 %"`, or a number in the row's unit.
    pub(crate) tolerance: Option<Tolerance>,
    /// A statement instead of a number: `latency_1000 <= 1.3 * latency_10`.
    pub relation: Option<String>,
    /// How the published number was derived, if the paper's text does not contain it.
    pub derived: Option<String>,
    /// Reason why this row cannot be compared.
    pub not_comparable: Option<String>,
    /// Reason why this row cannot be compared at smoke scale.
    pub not_comparable_at_smoke: Option<String>,
    /// The change of which the number is the effect; such rows are on the page of effects.
    pub(crate) effect: Option<EffectFile>,
    /// A row that demonstrates why this one differs.
    pub(crate) cause: Option<CauseFile>,
    /// Remark for readers.
    #[serde(default)]
    pub note: String,
}

/// A cause, and the row that demonstrates it if it holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CauseFile {
    /// The cause.
    pub why: String,
    /// The row's experiment, as `paper/figure`; default: this one.
    pub experiment: Option<String>,
    /// The row's `quantity`.
    pub quantity: String,
}

/// The change that a row's number belongs to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct EffectFile {
    /// The change, such as "KIST instead of Vanilla".
    pub change: String,
    /// The changed quantity, such as "median of 1 MiB downloads".
    pub on: String,
    /// How the number states the effect.
    pub value: EffectForm,
    /// The 95 % interval of the published number, in the row's unit, if it is known.
    pub interval: Option<[f64; 2]>,
}

/// How a number states an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EffectForm {
    /// After over before: 0.8 is a fifth less.
    Ratio,
    /// The ratio less 1: -0.2 is a fifth less.
    Change,
    /// 1 less the ratio: 0.2 is a fifth less.
    Decrease,
}

impl EffectForm {
    /// The ratio of after to before.
    pub(crate) fn ratio(self, value: f64) -> f64 {
        match self {
            EffectForm::Ratio => value,
            EffectForm::Change => 1.0 + value,
            EffectForm::Decrease => 1.0 - value,
        }
    }
}

/// A checked row.
#[derive(Clone, Debug)]
pub struct PublishedRow {
    /// The row as written.
    pub(crate) file: RowFile,
    /// The parsed comparison.
    pub(crate) check: Check,
}

/// The comparison of a row.
#[derive(Clone, Debug)]
pub(crate) enum Check {
    /// A number with a published value.
    Number {
        /// The expression for our number.
        measure: Expression,
        /// The published number.
        published: f64,
        /// Permitted distance between the two.
        tolerance: Tolerance,
    },
    /// A statement over measured quantities.
    Statement(Relation),
}

/// A published number or statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Published {
    /// A number.
    Number(f64),
    /// A statement.
    Statement(String),
}

impl Check {
    /// Per seed, the values that decide the row: the number, or a statement's left side minus its right side.
    ///
    /// # Errors
    /// If a quantity was not measured.
    pub(crate) fn values(&self, measured: &BTreeMap<String, Vec<f64>>) -> Result<Vec<f64>, Missing> {
        match self {
            Check::Number { measure, .. } => measure.evaluate(measured),
            Check::Statement(relation) => {
                Ok(relation.sides(measured)?.into_iter().map(|[left, right]| left - right).collect())
            }
        }
    }

    /// The quantities that the row compares.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Check::Number { measure, .. } => measure.names(),
            Check::Statement(relation) => [relation.left.names(), relation.right.names()].concat(),
        }
    }
}

impl PublishedRow {
    /// The published number or statement.
    pub(crate) fn published(&self) -> Published {
        match &self.check {
            Check::Number { published, .. } => Published::Number(*published),
            Check::Statement(relation) => Published::Statement(relation.to_string()),
        }
    }

    /// The remark for readers, and how the published number was derived.
    pub(crate) fn note(&self) -> String {
        let derived = self.file.derived.as_ref().map(|how| format!("published number derived: {how}"));
        joined([self.file.note.as_str(), derived.as_deref().unwrap_or_default()])
    }
}

/// Remarks in one line, without empty ones.
pub(crate) fn joined<'a>(remarks: impl IntoIterator<Item = &'a str>) -> String {
    remarks.into_iter().filter(|remark| !remark.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Permitted distance from a published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// Share of the published number.
    Relative(f64),
    /// In the row's unit.
    Absolute(f64),
}

impl Tolerance {
    /// The distance, in the row's unit.
    pub(crate) fn width(self, published: f64) -> f64 {
        match self {
            Tolerance::Relative(share) => share * published.abs(),
            Tolerance::Absolute(width) => width,
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Relative(share) => write!(f, "{} %", (share * 1e6).round() / 1e4),
            Tolerance::Absolute(width) => write!(f, "{width}"),
        }
    }
}

impl FromStr for Tolerance {
    type Err = String;
    fn from_str(text: &str) -> Result<Tolerance, String> {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(percent) => (percent, 0.01),
            None => (text, 1.0),
        };
        match number.trim().parse::<f64>() {
            Ok(value) if value >= 0.0 && value.is_finite() && scale == 1.0 => Ok(Tolerance::Absolute(value)),
            Ok(value) if value >= 0.0 && value.is_finite() => Ok(Tolerance::Relative(value * scale)),
            _ => Err(format!("`{text}` is not a tolerance; write it like \"10 %\" or \"0.5\"")),
        }
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Tolerance {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Experiment {
    /// Reads `experiments/<paper>/<figure>/experiment.toml` and checks its rows.
    pub(crate) fn load(
        root: &Path,
        data: &Path,
        paper: &str,
        figure: &str,
    ) -> Result<Experiment, InputError> {
        let folder = root.join(paper).join(figure);
        let source = SourceFile::read(&folder.join("experiment.toml"))?;
        let file = source.parse_toml("copy the experiment.toml of another folder")?;
        let experiment = Experiment {
            paper: paper.into(),
            figure: figure.into(),
            folder,
            data: data.into(),
            file,
            extra_seeds: 0,
            first_seed: 0,
            keep: None,
            trial: None,
            source,
        };
        let rows = experiment.rows()?;
        experiment.check_calibration(&rows)?;
        for figure in &experiment.file.figure {
            if let Some(cause) = figure.get_ref().wrong() {
                return Err(experiment.source.error(figure.span(), cause, "see CONTRIBUTING.md"));
            }
        }
        Ok(experiment)
    }

    /// The error of a cause that names an unknown row.
    pub(crate) fn unknown_cause(&self, quantity: &str, cause: &CauseFile) -> InputError {
        let row = self.file.row.iter().find(|row| row.get_ref().quantity == quantity);
        let span = row.map_or(0..0, |row| row.span());
        let id = self.cause_of(cause).0;
        let wrong = format!("no row of {id} has the quantity `{}`", cause.quantity);
        self.source.error(span, wrong, "name an existing row as the cause")
    }

    /// Experiment and quantity of a cause.
    pub(crate) fn cause_of(&self, cause: &CauseFile) -> (String, String) {
        let here = || format!("{}/{}", self.paper, self.figure);
        (cause.experiment.clone().unwrap_or_else(here), cause.quantity.clone())
    }

    /// The checked rows.
    pub fn rows(&self) -> Result<Vec<PublishedRow>, InputError> {
        self.file.row.iter().map(|row| self.check(row)).collect()
    }

    /// Refuses a calibration that fits other numbers than the baseline's, or parameters without effect.
    fn check_calibration(&self, rows: &[PublishedRow]) -> Result<(), InputError> {
        let Some(spanned) = &self.file.calibrate else { return Ok(()) };
        let file = spanned.get_ref();
        let fail = |cause: String, cure: &str| Err(self.source.error(spanned.span(), cause, cure));
        if self.file.runner.get_ref() != "scenario" {
            return fail("only the runner `scenario` has free parameters".into(), "remove [calibrate]");
        }
        if file.parameter.is_empty() || file.fit.is_empty() || file.candidates == 0 {
            return fail("needs a parameter, a fitted row and a candidate".into(), "see CONTRIBUTING.md");
        }
        for parameter in &file.parameter {
            if let Some(cause) = parameter.wrong() {
                return fail(cause, "correct it, or remove the parameter");
            }
            let place = format!("{{{}}}", parameter.name);
            if !self.source.text.contains(&place) {
                return fail(format!("no override contains `{place}`"), "use it, or remove the parameter");
            }
        }
        for quantity in file.fit.iter().chain(file.predict.iter().flatten()) {
            let Some(row) = rows.iter().find(|row| row.file.quantity == *quantity) else {
                let known: Vec<&str> = rows.iter().map(|row| &*row.file.quantity).collect();
                return fail(format!("no row has the quantity `{quantity}`"), &suggest(quantity, &known));
            };
            if !file.fit.contains(quantity) {
                continue;
            }
            if file.predict.iter().flatten().any(|predicted| predicted == quantity) {
                return fail(
                    format!("`{quantity}` is fitted and predicted"),
                    "remove it from one of the lists",
                );
            }
            let baseline = |name: &&str| {
                let free = file.parameter.iter().any(|parameter| parameter.name == **name);
                free || name.ends_with("duration_s")
                    || name.split('.').take(2).any(|part| part == file.baseline)
            };
            if let Some(name) = row.check.names().into_iter().find(|name| !baseline(name)) {
                let cause = format!("fitting `{quantity}` would use `{name}`, which is not the baseline's");
                return fail(cause, "fit rows of the baseline only");
            }
        }
        Ok(())
    }

    /// Replaces `{data}` by the data folder, and `{name}` by the value of a free parameter.
    pub(crate) fn substitute(&self, text: &str) -> String {
        let free = self.file.calibrate.iter().flat_map(|file| &file.get_ref().parameter);
        let value = |name: &str| self.trial.as_ref().and_then(|trial| trial.values.get(name).copied());
        let text = text.replace("{data}", &self.data.display().to_string());
        free.fold(text, |text, parameter| {
            let value = value(&parameter.name).unwrap_or_else(|| parameter.value(0.5));
            text.replace(&format!("{{{}}}", parameter.name), &value.to_string())
        })
    }

    /// Whether a row is judged at every point of the posterior range.
    pub(crate) fn predicted(&self, row: &RowFile) -> bool {
        self.file.calibrate.as_ref().is_some_and(|file| match &file.get_ref().predict {
            Some(predict) => predict.contains(&row.quantity),
            None => !file.get_ref().fit.contains(&row.quantity),
        })
    }

    fn check(&self, spanned: &Spanned<RowFile>) -> Result<PublishedRow, InputError> {
        let file = spanned.get_ref().clone();
        let fail = |cause: String, cure: &str| {
            Err(self.source.error(spanned.span(), format!("row `{}`: {cause}", file.quantity), cure))
        };
        let check = match (&file.measure, file.published, file.tolerance, &file.relation) {
            (Some(_), Some(published), Some(tolerance), None)
                if !published.is_finite() || !tolerance.width(published).is_finite() =>
            {
                return fail(
                    format!("`published` is {published} and `tolerance` {tolerance}"),
                    "write finite numbers",
                );
            }
            (Some(measure), Some(published), Some(tolerance), None) => match measure.parse() {
                Ok(measure) => Check::Number { measure, published, tolerance },
                Err(error) => return fail(format!("`{measure}`: {error}"), "see CONTRIBUTING.md"),
            },
            (None, None, None, Some(relation)) => match relation.parse() {
                Ok(relation) => Check::Statement(relation),
                Err(error) => return fail(format!("`{relation}`: {error}"), "see CONTRIBUTING.md"),
            },
            _ => {
                return fail(
                    "needs either a number or a statement".into(),
                    "set `measure`, `published` and `tolerance`, or `relation`",
                );
            }
        };
        match (&file.effect, &check) {
            (Some(_), Check::Statement(_)) => {
                fail("a statement is not an effect".into(), "drop `effect`, or set `measure` and `published`")
            }
            (Some(EffectFile { interval: Some([low, high]), .. }), Check::Number { published, .. })
                if !(low..=high).contains(&published) =>
            {
                fail("the interval of `effect` does not contain `published`".into(), "write [lower, upper]")
            }
            _ => Ok(PublishedRow { file, check }),
        }
    }

    /// The parameters at a scale, as the runner's own type, which decides whether unknown keys are errors.
    pub fn parameters<T: serde::de::DeserializeOwned>(&self, scale: Scale) -> Result<T, InputError> {
        let mut table = self.file.parameters.clone();
        let scaled = match scale {
            Scale::Smoke => &self.file.smoke,
            Scale::Medium => &self.file.medium,
            Scale::Full => &self.file.full,
        };
        table.extend(scaled.clone());
        if let Some(seeds) = self.trial.as_ref().and_then(|trial| trial.seeds) {
            table.insert("seeds".into(), seeds.into());
        } else if self.extra_seeds > 0 {
            let seeds = table.get("seeds").and_then(toml::Value::as_integer).unwrap_or(1);
            table.insert("seeds".into(), (seeds + i64::from(self.extra_seeds)).into());
        }
        if table.get("seeds").and_then(toml::Value::as_integer).is_some_and(|seeds| seeds < 1) {
            let cause =
                format!("[parameters] at {scale} scale: `seeds` is below 1, so nothing would be measured");
            return Err(InputError::new(&self.source.file, cause, "set 1 or more; intervals need 2"));
        }
        T::deserialize(table).map_err(|error| {
            let (cause, cure) = crate::input::explain(error.message());
            InputError::new(&self.source.file, format!("[parameters] at {scale} scale: {cause}"), cure)
        })
    }

    /// Why a row counts as fitted, if it does.
    pub(crate) fn fitted(&self, row: &RowFile) -> Option<String> {
        let calibrated = self
            .file
            .calibrate
            .as_ref()
            .map(Spanned::get_ref)
            .filter(|file| file.fit.contains(&row.quantity));
        let names = |file: &CalibrateFile| {
            let names: Vec<&str> = file.parameter.iter().map(|parameter| &*parameter.name).collect();
            format!("calibrated {}", names.join(", "))
        };
        row.fitted.clone().or_else(|| calibrated.map(names)).or_else(|| self.file.fitted.clone())
    }

    /// The claim of a row: its quantity without the names of presets; and the preset.
    pub(crate) fn claim(&self, row: &RowFile) -> (String, Option<&str>) {
        let plain = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
        let presets = || self.file.presets.iter();
        let words: Vec<&str> = row.quantity.split(' ').collect();
        let preset = words.iter().find_map(|word| presets().find(|preset| **preset == plain(word)));
        let rest: Vec<&str> =
            words.into_iter().filter(|word| !presets().any(|preset| *preset == plain(word))).collect();
        (rest.join(" "), preset.map(String::as_str))
    }

    /// The first required input that is missing in the data folder.
    pub fn lacks(&self) -> Option<PathBuf> {
        self.file.needs.iter().map(|input| self.data.join(input)).find(|input| !input.exists())
    }

    /// The error for a runner that is not registered.
    pub fn unknown_runner(&self, known: &[&str]) -> InputError {
        let name = &self.file.runner;
        let cause = format!("unknown runner `{}`", name.get_ref());
        self.source.error(name.span(), cause, suggest(name.get_ref(), known))
    }
}

/// The experiments below `root` that match `wanted` (`paper` or `paper/figure`; `None` matches all), in order.
pub fn find(root: &Path, data: &Path, wanted: Option<&str>) -> Result<Vec<Experiment>, InputError> {
    let all = list(root)?;
    let names: Vec<String> = all.iter().map(|(paper, figure)| format!("{paper}/{figure}")).collect();
    let chosen: Vec<&(String, String)> = match wanted.map(|wanted| wanted.trim_matches('/')) {
        None => all.iter().collect(),
        Some(wanted) => all
            .iter()
            .zip(&names)
            .filter(|((paper, _), name)| wanted == paper || wanted == name.as_str())
            .map(|(pair, _)| pair)
            .collect(),
    };
    if let (true, Some(wanted)) = (chosen.is_empty(), wanted) {
        let mut known: Vec<&str> = all.iter().map(|(paper, _)| paper.as_str()).collect();
        known.dedup();
        // Suggest papers for a paper, and figures for a figure.
        if wanted.contains('/') {
            known = names.iter().map(String::as_str).collect();
        }
        return Err(InputError::new(
            "reproduce",
            format!("unknown experiment `{wanted}`"),
            suggest(wanted, &known),
        ));
    }
    chosen.into_iter().map(|(paper, figure)| Experiment::load(root, data, paper, figure)).collect()
}

/// (paper, figure) of every experiment, sorted; numbers within names sort numerically.
fn list(root: &Path) -> Result<Vec<(String, String)>, InputError> {
    let folders = |path: &Path| -> Result<Vec<String>, InputError> {
        let fail = |error: std::io::Error| {
            InputError::new(
                path.display().to_string(),
                format!("cannot be listed: {error}"),
                "experiments are in the folder `experiments` of the source tree, not in the program: run this in a \
                 checkout, or name that folder with --experiments FOLDER",
            )
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.path().is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        // `figure-10` sorts after `figure-9`.
        names.sort_by_key(|name| {
            let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
            let number: String = name[digits..].chars().take_while(char::is_ascii_digit).collect();
            (name[..digits].to_owned(), number.parse::<u32>().unwrap_or(0), name.clone())
        });
        Ok(names)
    };
    let mut all = Vec::new();
    for paper in folders(root)? {
        for figure in folders(&root.join(&paper))? {
            if root.join(&paper).join(&figure).join("experiment.toml").is_file() {
                all.push((paper.clone(), figure));
            }
        }
    }
    if all.is_empty() {
        let cure = "name the folder `experiments` of a checkout with --experiments FOLDER";
        let cause = "does not contain an experiment (PAPER/FIGURE/experiment.toml)";
        return Err(InputError::new(root.display().to_string(), cause, cure));
    }
    Ok(all)
}
