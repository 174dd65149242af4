//! Scenario files: reads TOML into a checked [`Scenario`], or fails with an [`InputError`] with line and column.

mod check;
mod clients;
pub(crate) mod file;
pub(crate) mod idle;
pub mod keys;
pub(crate) mod paths;
mod place;
pub(crate) mod quantity;
mod randomness;
mod systems;
pub(crate) mod tables;
mod tor;
pub(crate) mod users;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_control::keys::Wrong;
use tidegate_control::units::Span;
use tidegate_sim::plan::System;
use tidegate_sim::plan::paths::{BuildTimeout, PathSelection};
use toml::de::DeTable;

use crate::input::{InputError, SourceFile};
use crate::network::inputs::Inputs;
use crate::registry;
use crate::traffic::class_of;
pub(crate) use check::check_folder_name;
use file::file_name_character;
pub use file::{ScenarioFile, SystemFile};
pub(crate) use paths::PathsFile;
use place::Places;
pub use place::{Name, Placed};
use quantity::Timeout;
pub use tables::TorFile;
pub use users::UserFile;

pub use crate::network::builtin::parameters_of_2024;
pub use tor::{apply_parameters, models_parameter};

/// A checked scenario. Only mistakes that need a drawn network can remain.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file with every default filled in.
    pub file: ScenarioFile,
    /// The file's text, for errors that only a drawn network reveals.
    pub source: SourceFile,
    /// Folder of the file; paths in the file are relative to it.
    pub folder: PathBuf,
    /// The systems to compare.
    pub systems: Vec<System>,
    /// Contents of the data files that the scenario names.
    pub inputs: Inputs,
    /// The overrides that [`Scenario::parse`] applied.
    pub overrides: Vec<String>,
}

/// The name of users with downloads that are compared with measured ones.
const BENCHMARK: &str = "benchmark";

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// `overrides` are TOML texts such as `duration = "30 s"`. Their keys replace those of the file; tables are merged
    /// key by key.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Scenario, InputError> {
        let source = SourceFile::read(path)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut scenario = Scenario::parse(source, folder, overrides)?;
        if scenario.file.name.is_empty() {
            let stem = path.file_stem().map_or("scenario".into(), |stem| stem.to_string_lossy());
            scenario.file.name = stem.chars().map(|c| if file_name_character(c) { c } else { '-' }).collect();
        }
        Ok(scenario)
    }

    /// Checks a scenario given as text, like [`Scenario::load`].
    pub fn parse(source: SourceFile, folder: PathBuf, overrides: &[String]) -> Result<Scenario, InputError> {
        let whole = |n: usize| Scenario::with_overrides(source.clone(), folder.clone(), &overrides[..n]);
        let error = match whole(overrides.len()) {
            Err(error) if !overrides.is_empty() && error.file == source.file => error,
            other => return other,
        };
        // Places in the text of an override look like places of the file. The first override that leads to the same error is
        // to blame: overrides that are wrong one by one may be right together.
        let same = |n: &usize| whole(*n).is_err_and(|other| other.cause == error.cause);
        match (0..overrides.len()).find(same) {
            Some(0) => whole(0),
            first => {
                let culprit = &overrides[first.unwrap_or(overrides.len()) - 1];
                Err(InputError { at: None, file: override_place(culprit), ..error })
            }
        }
    }

    /// Checks a scenario without a search for the override that is to blame for a mistake.
    fn with_overrides(
        source: SourceFile,
        folder: PathBuf,
        overrides: &[String],
    ) -> Result<Scenario, InputError> {
        let mut file = read(&source, overrides)?;
        let mut inputs = Inputs::load(&file, &folder)?;
        inputs.notices.extend(left_out(&file));
        inputs.notices.extend(late_circuits(&file, &inputs));
        tor::settle_fraction(&mut file, &source, &inputs)?;
        tor::check_geoip(&file, &source, &inputs)?;
        tor::obey_consensus(&mut file, &source, &inputs)?;
        let mut systems = check::check(&file, &source)?;
        for (system, table) in systems.iter_mut().zip(&file.system) {
            system.paths = path_selection(&table.get_ref().paths, &source, &folder)?;
        }
        clients::mix(&mut systems, &file, &source)?;
        check::check_locations(&file, &source, &inputs)?;
        Ok(Scenario { file, source, folder, systems, inputs, overrides: overrides.to_vec() })
    }

    /// One line for each table of a part that no system chooses, for each attack that does not reach a system, and for each
    /// kind of traffic that no user has. This is not an error, because a study can choose the part at other points.
    pub fn idle_tables(&self) -> Vec<String> {
        let systems = self.file.system.iter().map(|system| system.get_ref());
        let idle: Vec<_> =
            systems.map(|system| (&system.written, system.parts.idle(&system.written))).collect();
        // A table of `[every-system]` is for the systems that choose the part.
        let is_used = |name: &str| {
            idle.iter().any(|(written, idle)| written.get(name).is_some() && !idle.contains(name))
        };
        let all: BTreeSet<&str> = idle.iter().flat_map(|(_, idle)| idle).map(|name| &**name).collect();
        let unused = all.into_iter().filter(|name| !is_used(name));
        let unused =
            unused.map(|name| format!("`{name}` has no effect here: no system with this table chooses it"));
        unused.chain(idle::unreached(&self.file)).chain(idle::unused(&self.file)).collect()
    }

    /// The data files that the scenario names, by key.
    pub fn input_files(&self) -> Vec<(String, PathBuf)> {
        let mut all = Vec::new();
        let mut add = |key: String, name: &Option<Name>| {
            all.extend(name.as_ref().map(|name| (key, self.folder.join(name.get_ref()))));
        };
        if let Some(tor) = &self.file.tor {
            for (key, name) in [
                ("consensus", &tor.consensus),
                ("microdescriptors", &tor.microdescriptors),
                ("geoip", &tor.geoip),
                ("latency", &tor.latency),
                ("compare", &tor.compare),
            ] {
                add(format!("tor.{key}"), name);
            }
        }
        add("underlay.file".into(), &self.file.underlay.file);
        for (name, traffic) in &self.file.traffic {
            add(format!("traffic.{name}.stream-model"), &traffic.stream_model);
            add(format!("traffic.{name}.packet-model"), &traffic.packet_model);
        }
        all
    }

    /// Simulated time of a run.
    pub fn duration(&self) -> Span {
        self.file.duration
    }

    /// The traffic of the users named `benchmark`; their downloads are compared with measured ones.
    pub(crate) fn benchmark(&self) -> &str {
        let named = self.file.user.iter().find(|user| user.name.get_ref() == BENCHMARK);
        named.map_or(BENCHMARK, |user| user.traffic.get_ref())
    }

    /// The class of the benchmark's downloads of this size. `None` if it requests none.
    pub(crate) fn benchmark_class(&self, bytes: u64) -> Option<String> {
        let traffic = self.file.traffic_of(self.benchmark())?;
        let is_requested = traffic.requests.iter().any(|request| request.size.0 == bytes);
        is_requested.then(|| class_of(self.benchmark(), traffic.requests.len(), bytes))
    }

    /// Time at which measurement begins.
    pub(crate) fn warmup(&self) -> Span {
        *self.file.warmup
    }

    /// Interval at which queues and rates are sampled.
    pub fn sample(&self) -> Span {
        *self.file.sample
    }
}

/// The place that errors of an override name.
pub fn override_place(text: &str) -> String {
    format!("override `{}`", text.trim_end())
}

/// Says which combinations of `[[combine]]` do not run: one line per reason.
fn left_out(file: &ScenarioFile) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in &file.left_out {
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons
        .into_iter()
        .map(|(why, names)| format!("[[combine]] leaves out {}: {why}", names.join(", ")))
        .collect()
}

/// Says which users begin circuits too late to be compared with measured downloads, which find their circuits built.
fn late_circuits(file: &ScenarioFile, inputs: &Inputs) -> Option<String> {
    inputs.compare.as_ref()?;
    let is_late =
        |user: &Placed<UserFile>| user.name.get_ref() == BENCHMARK && user.circuit_lead == Span::ZERO;
    file.user.iter().any(is_late).then(|| {
        format!(
            "the first download of each user `{BENCHMARK}` builds its circuit, and measured ones find theirs built; set \
             `circuit-lead` of this user"
        )
    })
}

/// Path selection of a system's clients. File names are relative to `folder`.
fn path_selection(file: &PathsFile, source: &SourceFile, folder: &Path) -> Result<PathSelection, InputError> {
    let build_timeout = match file.build_timeout {
        _ if file.learn_build_timeout => BuildTimeout::Learnt(file.least_build_timeout),
        Timeout::NEVER => BuildTimeout::Never,
        Timeout(Span::ZERO) => {
            let cause = "`build-timeout` is zero, so no circuit would be built";
            return Err(source.error(file.policy.span(), cause, "write `build-timeout = \"60 s\"`"));
        }
        Timeout(timeout) => BuildTimeout::After(timeout),
    };
    Ok(PathSelection {
        policy: registry::policy(file, source, folder)?,
        keep_guard: file.keep_guard,
        exclude_families: file.exclude_families,
        exclude_networks: file.exclude_networks,
        build_timeout,
    })
}

/// Reads the file, applies the overrides and checks the result.
fn read(source: &SourceFile, overrides: &[String]) -> Result<ScenarioFile, InputError> {
    if source.text.trim().is_empty() {
        return Err(InputError::new(&source.file, "is empty", "the README shows a complete scenario"));
    }
    let fail = |error: toml::de::Error| source.toml_error(&error);
    let mut document = DeTable::parse(&source.text).map_err(fail)?;
    if let Some(vary) = document.get_ref().get("vary") {
        let cure = format!("run its points: tidegate sweep {}", source.file);
        return Err(source.error(vary.span(), "is a study ([vary]), not a scenario", cure));
    }
    for text in overrides {
        let place = override_place(text);
        let table = DeTable::parse(text).map_err(|error| {
            let example = keys::example(text).unwrap_or_else(|| "duration = \"30 s\"".into());
            InputError::new(&place, error.message(), format!("write it like `{example}`"))
        })?;
        tor::replace_size(document.get_mut(), table.get_ref());
        systems::merge(document.get_mut(), table.into_inner(), true)
            .map_err(|(cause, cure)| InputError::new(&place, cause, cure))?;
    }
    // Parts of systems depend on the expanded tables, so expand first.
    let written = systems::spread(document.get_mut(), source)?;
    let (places, value) = Places::of(&document);
    let fail_at =
        |wrong: Wrong| source.error(places.find(&wrong.path, wrong.at_key), wrong.cause, wrong.cure);
    tidegate_control::keys::check(&keys::WHOLE, &value).map_err(fail_at)?;
    check::check_written(&value).map_err(fail_at)?;
    let parts = systems::take_parts(document.get_mut(), &value, written).map_err(fail_at)?;
    let mut file = ScenarioFile::deserialize(toml::Deserializer::from(document)).map_err(fail)?;
    for (system, parts) in file.system.iter_mut().zip(parts.systems) {
        (system.parts, system.written) = parts;
    }
    file.left_out = parts.left_out;
    for user in file.user.iter_mut().map(Placed::get_mut).filter(|user| user.of_tor.is_none()) {
        user.count.get_or_insert(1);
    }
    check::check(&file, source)?;
    idle::check(&file, &value).map_err(fail_at)?;
    Ok(file)
}

#[cfg(test)]
mod tests;
