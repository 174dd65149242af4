//! Study files: `STUDY.toml`, one scenario at many points.
//!
//! ```toml
//! scenario = "../scenarios/tor.toml"   # counts from this file
//! seeds = 3
//! overrides = ["duration = '60 s'"]    # of every point
//! mode = "grid"                        # every combination; "list": the first values, then the second, ...
//! [vary]
//! systems = ["tor", "vanilla-2010"]    # one system at a time; without it every point runs all
//! user.web.of-tor = { from = 100_000, to = 200_000, step = 50_000 }
//! tor.fraction = { from = 0.002, to = 0.016, count = 4, log = true }
//! every-system.tcp.initial-window = [4, 10]
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::DeTable;
use toml::{Spanned, Value};

use crate::input::{InputError, SourceFile, suggest};
use crate::scenario::{Scenario, check_folder_name};

/// Limit on points; a larger number is most likely a mistake.
const MAX_POINTS: usize = 1_000_000;

/// The study file as serde reads it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StudyFile {
    #[serde(default)]
    name: String,
    scenario: String,
    #[serde(default = "one")]
    seeds: u32,
    #[serde(default)]
    overrides: Vec<String>,
    #[serde(default)]
    mode: PointMode,
    vary: Spanned<toml::Table>,
}

fn one() -> u32 {
    1
}

/// How values combine to points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PointMode {
    /// Every combination.
    #[default]
    Grid,
    /// The first values of all keys, then the second, ...
    List,
}

/// `{ from, to, step }` or `{ from, to, count }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueRange {
    from: f64,
    to: f64,
    step: Option<f64>,
    count: Option<u32>,
    #[serde(default)]
    log: bool,
}

/// A checked study.
#[derive(Clone, Debug)]
pub struct Study {
    /// Its name; default: the name of the file.
    pub name: String,
    /// The scenario's file.
    pub scenario: PathBuf,
    /// Networks per point.
    pub seeds: u32,
    /// The points, in order.
    pub points: Vec<Point>,
    overrides: Vec<String>,
}

/// One point: a value for each varied key.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// `p0001`, by its position in the study.
    pub name: String,
    /// Key -> value, as text.
    pub values: BTreeMap<String, String>,
    overrides: Vec<String>,
    system: Option<String>,
    seed: Option<u64>,
}

impl Point {
    /// The only system that runs at this point; `None` runs all of them.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// The first seed at this point; `None` takes the scenario's.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }
}

impl Study {
    /// Reads a study and lists its points.
    ///
    /// # Errors
    /// A mistake in the file, with its position.
    pub(crate) fn load(path: &Path) -> Result<Study, InputError> {
        let source = SourceFile::read(path)?;
        refuse_scenario(&source)?;
        let file: StudyFile = source.parse_toml("docs/studies.md shows a complete study")?;
        check_folder_name(&file.name, &source)?;
        if file.seeds == 0 {
            return Err(InputError::new(&source.file, "`seeds` is 0", "set `seeds` to 1 or more"));
        }
        let fail = |cause: String, cure: &str| source.error(file.vary.span(), cause, cure);
        let mut axes: Vec<(String, Vec<Value>)> = Vec::new();
        axes_of("", file.vary.get_ref(), &mut axes).map_err(|(key, cause)| {
            fail(
                format!("`{key}`: {cause}"),
                "give a list, or { from, to, step } or { from, to, count, log }",
            )
        })?;
        if axes.is_empty() {
            return Err(fail("[vary] has no keys".into(), "add a key to [vary], or use `tidegate run`"));
        }
        check_keys(&axes, &file.overrides).map_err(|(cause, cure)| fail(cause, cure))?;
        let lengths: Vec<usize> = axes.iter().map(|(_, values)| values.len()).collect();
        // In a list, the other keys tell equal values apart.
        let repeated = |values: &[Value]| (1..values.len()).any(|at| values[..at].contains(&values[at]));
        if let (PointMode::Grid, Some((key, _))) =
            (file.mode, axes.iter().find(|(_, values)| repeated(values)))
        {
            return Err(fail(format!("`{key}` has a value twice"), "remove one of them"));
        }
        let count = match file.mode {
            PointMode::Grid => lengths.iter().try_fold(1usize, |product, n| product.checked_mul(*n)),
            PointMode::List if lengths.iter().all(|n| *n == lengths[0]) => Some(lengths[0]),
            PointMode::List => {
                let cause = format!(
                    "mode = \"list\" needs equally many values for each key, and the keys have {lengths:?}"
                );
                return Err(fail(cause, "give each key the same number of values, or set mode = \"grid\""));
            }
        };
        let count = count.filter(|count| *count <= MAX_POINTS);
        let count = count.ok_or_else(|| {
            fail(format!("the study has more than {MAX_POINTS} points"), "vary fewer keys or values")
        })?;
        let points = (0..count).map(|index| {
            // Mixed-radix digits of the index select the values; the last key varies fastest.
            let mut rest = index;
            let chosen = axes.iter().rev().map(|(key, values)| {
                let at = if file.mode == PointMode::List { index } else { rest % values.len() };
                rest /= values.len();
                (key.as_str(), &values[at])
            });
            point(index + 1, chosen)
        });
        let stem =
            path.file_stem().map_or_else(|| "study".into(), |stem| stem.to_string_lossy().into_owned());
        Ok(Study {
            name: if file.name.is_empty() { stem } else { file.name.clone() },
            scenario: path.parent().unwrap_or(Path::new("")).join(&file.scenario),
            seeds: file.seeds,
            points: points.collect(),
            overrides: file.overrides.clone(),
        })
    }

    /// The overrides of the scenario at a point.
    pub(crate) fn overrides(&self, point: &Point) -> Vec<String> {
        [&self.overrides[..], &point.overrides[..]].concat()
    }

    /// The scenario at a point, with only one system if `systems` is varied.
    ///
    /// # Errors
    /// If the point's values are not valid in the scenario.
    pub(crate) fn scenario(&self, point: &Point) -> Result<Scenario, InputError> {
        let mut scenario = Scenario::load(&self.scenario, &self.overrides(point))?;
        if let Some(wanted) = &point.system {
            let known: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
            if !known.contains(&wanted.as_str()) {
                let cause = format!("there is no system `{wanted}` in {}", self.scenario.display());
                return Err(InputError::new("[vary] systems", cause, suggest(wanted, &known)));
            }
            scenario.systems.retain(|system| system.name == *wanted);
        }
        Ok(scenario)
    }
}

/// Refuses a scenario in place of a study.
fn refuse_scenario(source: &SourceFile) -> Result<(), InputError> {
    let Ok(document) = DeTable::parse(&source.text) else { return Ok(()) };
    let table = document.get_ref();
    let key = ["duration", "system", "user"].iter().find_map(|key| table.get_key_value(*key));
    match key {
        Some((key, _)) if !table.contains_key("vary") => {
            let cure =
                format!("simulate it with `tidegate run {}`, or write a study: docs/studies.md", source.file);
            Err(source.error(key.span(), "is a scenario, not a study: it has no [vary]", cure))
        }
        _ => Ok(()),
    }
}

/// Short names of frequently varied keys.
const SHORT: [(&str, &str); 2] = [("fraction", "tor.fraction"), ("load", "tor.load")];

/// The full key of the scenario that a key of `[vary]` sets.
fn full(key: &str) -> &str {
    match key {
        "systems" => "system",
        "seeds" => "seed",
        _ => SHORT.iter().find(|(short, _)| *short == key).map_or(key, |(_, long)| long),
    }
}

/// Refuses keys of `[vary]` without effect, and overrides that they undo. Returns cause and cure.
fn check_keys(axes: &[(String, Vec<Value>)], overrides: &[String]) -> Result<(), (String, &'static str)> {
    for (at, (key, _)) in axes.iter().enumerate() {
        if ["name", "title"].contains(&key.as_str()) {
            let cause = format!("`{key}` does not change a run, so its points would be the same");
            return Err((cause, "remove it from [vary]"));
        }
        if let Some((other, _)) = axes[..at].iter().find(|(other, _)| full(other) == full(key)) {
            return Err((format!("`{other}` and `{key}` set the same value"), "keep one of them"));
        }
        let mut set = overrides.iter().filter_map(|text| text.split_once('=').map(|(set, _)| set.trim()));
        // `system` in [vary] picks one of the systems that overrides set.
        let undone = |set: &&str| {
            let rest = full(set).strip_prefix(full(key)).filter(|_| full(key) != "system");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(set) = set.find(undone) {
            let cause = format!("`overrides` sets `{set}`, and [vary] sets `{key}` again at every point");
            return Err((cause, "remove one of them"));
        }
    }
    Ok(())
}

fn point<'a>(number: usize, chosen: impl Iterator<Item = (&'a str, &'a Value)>) -> Point {
    let mut point = Point {
        name: format!("p{number:04}"),
        values: BTreeMap::new(),
        overrides: Vec::new(),
        system: None,
        seed: None,
    };
    for (key, value) in chosen {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        point.values.insert(key.to_owned(), text.clone());
        match key {
            "systems" | "system" => point.system = Some(text),
            "seeds" | "seed" => {
                point.seed = value.as_integer().and_then(|seed| u64::try_from(seed).ok());
                point.overrides.push(format!("seed = {value}"));
            }
            _ => {
                // Overrides need the full key of the scenario.
                point.overrides.push(format!("{} = {value}", full(key)));
            }
        }
    }
    point
}

/// Collects (dotted key, values) of nested tables.
fn axes_of(
    prefix: &str,
    table: &toml::Table,
    into: &mut Vec<(String, Vec<Value>)>,
) -> Result<(), (String, String)> {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Array(values) if !values.is_empty() => into.push((path, values.clone())),
            Value::Array(_) => return Err((path, "the list has no values".into())),
            Value::Table(inner) if inner.contains_key("from") || inner.contains_key("to") => {
                let range = ValueRange::deserialize(inner.clone())
                    .map_err(|error| (path.clone(), error.to_string()))?;
                into.push((path.clone(), range.values().map_err(|cause| (path, cause))?));
            }
            Value::Table(inner) => axes_of(&path, inner, into)?,
            other => into.push((path, vec![other.clone()])),
        }
    }
    Ok(())
}

impl ValueRange {
    fn values(&self) -> Result<Vec<Value>, String> {
        let count = match (self.step, self.count) {
            (Some(_), Some(_)) | (None, None) => return Err("needs either `step` or `count`".into()),
            (Some(_), None) if self.log => return Err("`log` needs `count`, not `step`".into()),
            (Some(step), None) if step > 0.0 && self.to >= self.from => {
                ((self.to - self.from) / step + 1e-9).floor() + 1.0
            }
            (Some(_), None) => return Err("needs `step` above 0 and `to` not below `from`".into()),
            (None, Some(count)) if count >= 2 => f64::from(count),
            (None, Some(_)) => return Err("needs `count` of at least 2".into()),
        };
        if !(self.from.is_finite() && self.to.is_finite() && count <= MAX_POINTS as f64) {
            return Err("the range is not finite, or has too many values".into());
        }
        if self.log && !(self.from > 0.0 && self.to > 0.0) {
            return Err("a logarithmic range needs `from` and `to` above 0".into());
        }
        let value = |k: f64| {
            let share = k / (count - 1.0).max(1.0);
            match self.step {
                Some(step) => self.from + k * step,
                None if self.log => self.from * (self.to / self.from).powf(share),
                None => self.from + (self.to - self.from) * share,
            }
        };
        // Ten significant digits turn 0.1 + 0.2 into 0.3; scenarios require whole numbers for counts.
        let tidy = |value: f64| {
            let digits = 9 - value.abs().max(1e-300).log10().floor() as i32;
            let scale = 10f64.powi(digits.clamp(-300, 300));
            (value * scale).round() / scale
        };
        let all: Vec<f64> = (0..count as usize).map(|k| tidy(value(k as f64))).collect();
        let whole = all.iter().all(|value| value.fract() == 0.0 && value.abs() < 1e15);
        Ok(all.into_iter().map(|v| if whole { Value::Integer(v as i64) } else { Value::Float(v) }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(text: &str) -> Result<Study, InputError> {
        let unique: u64 =
            text.bytes().fold(7, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let path = std::env::temp_dir().join(format!("tidegate-study-{}-{unique}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let result = Study::load(&path);
        std::fs::remove_file(path).unwrap();
        result
    }

    #[test]
    fn grids_combine_and_lists_go_together() {
        let grid = "scenario = 'x.toml'\n[vary]\nuser.web.count = { from = 10, to = 30, step = 10 }\n\
                    systems = ['a', 'b']\n";
        let found = study(grid).unwrap();
        assert_eq!(found.points.len(), 6);
        let first = &found.points[0];
        assert_eq!((&*first.name, &*first.values["systems"]), ("p0001", "a"));
        assert_eq!(first.overrides, ["user.web.count = 10"]);
        assert_eq!(found.points[5].values["user.web.count"], "30");
        let list = "scenario = 'x.toml'\nmode = 'list'\n[vary]\nfraction = [0.1, 0.2]\nseeds = [7, 8]\n";
        let found = study(list).unwrap();
        assert_eq!(found.points.len(), 2);
        let mut overrides = found.points[1].overrides.clone();
        overrides.sort();
        assert_eq!(overrides, ["seed = 8", "tor.fraction = 0.2"]);
    }

    #[test]
    fn ranges_are_tidy_and_mistakes_have_a_place() {
        let values = |range: &str| {
            let study = study(&format!("scenario = 'x'\n[vary]\nload = {range}\n")).unwrap();
            study.points.iter().map(|point| point.values["load"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(values("{ from = 0.1, to = 0.4, step = 0.1 }"), ["0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(values("{ from = 1, to = 100, count = 3, log = true }"), ["1", "10", "100"]);
        for (bad, wanted) in [
            ("load = []", "the list has no values"),
            ("load = { from = 1, to = 2 }", "needs either `step` or `count`"),
            ("load = { from = 1, to = 2, step = 1, count = 3 }", "needs either `step` or `count`"),
            ("load = { from = 2, to = 4, step = 1, log = true }", "`log` needs `count`"),
            ("load = { from = 2, to = 1, step = 1 }", "`to` not below `from`"),
            ("load = [4, 5, 4]", "`load` has a value twice"),
            ("seed = [5, 6]\nseeds = [1, 2]", "`seed` and `seeds` set the same value"),
            ("load = [1, 2]\ntor.load = [3, 4]", "`load` and `tor.load` set the same value"),
            ("title = ['a', 'b']", "`title` does not change a run"),
            ("load = { from = 1, to = 2, stp = 1 }", "stp"),
            ("load = { from = 0, to = 2, count = 3, log = true }", "above 0"),
            ("load = { from = 0, to = 1e9, step = 1e-9 }", "too many"),
        ] {
            let said = study(&format!("scenario = 'x'\n[vary]\n{bad}\n")).unwrap_err();
            assert!(said.cause.contains(wanted) && said.at.is_some(), "{bad}: {said}");
        }
        let cause = |text: &str| study(text).unwrap_err().cause;
        assert!(cause("name = 'a/../../b'\nscenario = 'x'\n[vary]\na = 1\n").contains("name of a folder"));
        let twice = "scenario = 'x'\noverrides = ['tor.load = 2']\n[vary]\nload = [1, 2]\n";
        assert!(cause(twice).contains("`overrides` sets `tor.load`, and [vary] sets `load` again"));
        assert!(study(&twice.replace("tor.load", "tor.relays")).is_ok());
        assert!(cause("seeds = 0\nscenario = 'x'\n[vary]\na = 1\n").contains("`seeds` is 0"));
        assert!(study("scenario = 'x'\nmode = 'list'\n[vary]\na = [1, 2]\nb = [1]\n").is_err());
        assert!(study("scenario = 'x'\n[vary]\n").unwrap_err().cause.contains("no key"));
    }
}
