//! Scenario files: TOML in, a checked [`Scenario`] out, or an [`InputError`] with line and column.

mod check;
mod combine;
pub mod file;
pub mod keys;
pub mod paths;
mod place;
pub mod predictor;
pub mod quantity;
pub mod tables;
mod tor;
pub mod users;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_control::units::Span;
use tidegate_sim::plan::System;
use tidegate_sim::plan::paths::{BuildTimeout, Parameters};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::input::{InputError, Source, explain, suggest};
use crate::network::inputs::Inputs;
use crate::registry;
pub use check::check_system;
use file::File;
use paths::PathsFile;
use quantity::Patience;

/// A checked scenario: everything that can be wrong without drawing a network has been looked at.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file with every default spelled out.
    pub file: File,
    /// Its text, for messages about what only the network shows.
    pub source: Source,
    /// Paths in the file count from here.
    pub folder: PathBuf,
    /// What is compared.
    pub systems: Vec<System>,
    /// The data files it names.
    pub inputs: Inputs,
}

impl Scenario {
    /// Reads and checks a scenario file. `overrides` are TOML texts, such as `duration = "30 s"`, whose
    /// keys replace those of the file (tables are merged key by key).
    pub fn load(path: &Path, overrides: &[String]) -> Result<Scenario, InputError> {
        let source = Source::read(path)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut scenario = Scenario::parse(source, folder, overrides)?;
        if scenario.file.name.is_empty() {
            let stem = path.file_stem().map_or("scenario".into(), |stem| stem.to_string_lossy());
            scenario.file.name = stem.chars().map(|c| if file_name_character(c) { c } else { '-' }).collect();
        }
        Ok(scenario)
    }

    /// The same for a text at hand.
    pub fn parse(source: Source, folder: PathBuf, overrides: &[String]) -> Result<Scenario, InputError> {
        let mut file = match read(&source, overrides) {
            Err(error) if !overrides.is_empty() => {
                // Places are the file's own only if the file alone has the mistake. Else the first override
                // with which it cannot be read is the place.
                read(&source, &[])?;
                let first = (1..overrides.len()).find(|n| read(&source, &overrides[..*n]).is_err());
                let culprit = &overrides[first.unwrap_or(overrides.len()) - 1];
                return Err(InputError { at: None, file: format!("override `{culprit}`"), ..error });
            }
            other => other?,
        };
        check::check(&file, &source)?;
        let inputs = Inputs::load(&file, &folder)?;
        tor::settle_fraction(&mut file, &inputs);
        tor::obey_consensus(&mut file, &source, &inputs)?;
        let mut systems = check::check(&file, &source)?;
        for (system, table) in systems.iter_mut().zip(&file.system) {
            system.paths = path_selection(&table.get_ref().paths, &source, &folder)?;
        }
        check::check_locations(&file, &source, &inputs)?;
        Ok(Scenario { file, source, folder, systems, inputs })
    }

    /// The files that it names, by key.
    pub fn input_files(&self) -> Vec<(String, PathBuf)> {
        let mut all = Vec::new();
        let mut add = |key: String, name: &Option<place::Name>| {
            all.extend(name.as_ref().map(|name| (key, self.folder.join(name.get_ref()))));
        };
        if let Some(tor) = &self.file.tor {
            for (key, name) in [
                ("consensus", &tor.consensus),
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

    /// Metrics count from here.
    pub fn warmup(&self) -> Span {
        *self.file.warmup
    }

    /// Every how much time queues and rates are sampled.
    pub fn sample(&self) -> Span {
        *self.file.sample
    }
}

/// How a system's clients select paths; files count from the folder.
fn path_selection(file: &PathsFile, source: &Source, folder: &Path) -> Result<Parameters, InputError> {
    let build_timeout = match file.build_timeout {
        _ if file.learn_build_timeout => BuildTimeout::Learnt,
        Patience::NEVER => BuildTimeout::Never,
        Patience(Span::ZERO) => {
            let cause = "no circuit is built in no time";
            return Err(source.error(file.policy.span(), cause, "write `build-timeout = \"60 s\"`"));
        }
        Patience(timeout) => BuildTimeout::After(timeout),
    };
    Ok(Parameters {
        policy: registry::policy(file, source, folder)?,
        keep_guard: file.keep_guard,
        exclude_families: file.exclude_families,
        exclude_networks: file.exclude_networks,
        build_timeout,
    })
}

/// What may stand in names that become folders and keys.
pub(crate) fn file_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn read(source: &Source, overrides: &[String]) -> Result<File, InputError> {
    if source.text.trim().is_empty() {
        return Err(InputError::new(&source.file, "is empty", "the README shows a complete scenario"));
    }
    let fail = |error: toml::de::Error| {
        let (cause, cure) = explain(error.message());
        match error.span() {
            Some(span) => source.error(span, cause, cure),
            None => InputError::new(&source.file, cause, cure),
        }
    };
    let mut document = DeTable::parse(&source.text).map_err(fail)?;
    for text in overrides {
        let place = format!("override `{text}`");
        let table = DeTable::parse(text).map_err(|error| {
            InputError::new(&place, error.message(), "write it like `duration = \"30 s\"`")
        })?;
        merge(document.get_mut(), table.into_inner(), true)
            .map_err(|(cause, cure)| InputError::new(&place, cause, cure))?;
    }
    combine::systems(document.get_mut(), source)?;
    share_system_keys(document.get_mut());
    let (places, value) = place::Places::of(&document);
    tidegate_control::keys::check(&keys::WHOLE, &value)
        .map_err(|wrong| source.error(places.find(&wrong.path, wrong.at_key), wrong.cause, wrong.cure))?;
    File::deserialize(toml::Deserializer::from(document)).map_err(fail)
}

/// Copies the keys of `[every-system]` into each `[[system]]` that does not have them.
fn share_system_keys(document: &mut DeTable<'_>) {
    let is_table = |value: &Spanned<DeValue<'_>>| matches!(value.get_ref(), DeValue::Table(_));
    if !document.get("every-system").is_some_and(is_table) {
        return;
    }
    let Some(DeValue::Table(shared)) = document.remove("every-system").map(Spanned::into_inner) else {
        return;
    };
    if let Some(DeValue::Array(systems)) = document.get_mut("system").map(Spanned::get_mut) {
        for system in systems.iter_mut() {
            if let DeValue::Table(system) = system.get_mut() {
                merge(system, shared.clone(), false).expect("nothing is replaced by name");
            }
        }
    }
}

/// Adds keys to a table; where both have one, tables are merged and `replace` decides about the rest. In a list of
/// tables with names (`[[user]]`, `[[system]]`, ...) a key is the name of an entry: `user.web.count = 5`.
///
/// # Errors
/// (cause, cure) if no entry has the name.
fn merge<'a>(table: &mut DeTable<'a>, more: DeTable<'a>, replace: bool) -> Result<(), (String, String)> {
    for (key, value) in more {
        let list = key.get_ref().clone();
        match (table.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(inner)), DeValue::Table(additions)) => {
                merge(inner, additions.clone(), replace)?;
            }
            (Some(DeValue::Array(entries)), DeValue::Table(additions)) if replace => {
                for (name, change) in additions.clone() {
                    let known =
                        entries.iter().filter_map(|entry| name_of(entry.get_ref())).map(str::to_owned);
                    let known: Vec<String> = known.collect();
                    let wanted = name.get_ref().as_ref();
                    let entry = entries.iter_mut().find(|entry| name_of(entry.get_ref()) == Some(wanted));
                    match (entry.map(Spanned::get_mut), change.into_inner()) {
                        (Some(DeValue::Table(entry)), DeValue::Table(change)) => merge(entry, change, true)?,
                        (Some(_), _) => {
                            let cure = format!("write it like `{list}.{wanted}.KEY = VALUE`");
                            return Err((
                                format!("`{list}.{wanted}` is an entry of [[{list}]], no value"),
                                cure,
                            ));
                        }
                        (None, _) => {
                            let known: Vec<&str> = known.iter().map(String::as_str).collect();
                            return Err((
                                format!("there is no [[{list}]] called `{wanted}`"),
                                suggest(wanted, &known),
                            ));
                        }
                    }
                }
            }
            (Some(old), _) if replace => *old = value.into_inner(),
            (Some(_), _) => {}
            (None, _) => {
                table.insert(key, value);
            }
        }
    }
    Ok(())
}

/// What a table in a list is called.
fn name_of<'a>(entry: &'a DeValue<'_>) -> Option<&'a str> {
    let DeValue::Table(table) = entry else { return None };
    match table.get("name")?.get_ref() {
        DeValue::String(name) => Some(name.as_ref()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
