//! Imports scenarios: simulations of Shadow, files of `tornettools stage`, and tgen's models and action graphs.
//!
//! `network` takes a Shadow simulation in its folder, this file takes single files, and `text` writes the scenario.

mod draft;
mod network;
mod requests;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tidegate_control::markov::Observation;
use tidegate_data::document::Document;
use tidegate_data::formats::{self, LATENCIES};
use tidegate_data::sample::{Representative, sample};
use tidegate_data::tgen_actions::{self, Actions};
use tidegate_data::{kinds, open, shadow_file, shadow_folder, tgen};

use crate::input::InputError;
use crate::network::inputs::consensus_of;
use draft::{Behaviour, Draft, Model, Table, Users};
use text::{FRACTION, OLD_TOR, table};

pub use draft::Count;

const CURE: &str =
    "name files or the folder of `tornettools stage` or `generate`, or tgen's models or action graphs";
/// Number of mistakes that are shown, one of each file, if nothing can be imported.
const SHOWN: usize = 5;

/// The result of an import.
pub struct Imported {
    /// The scenario file.
    pub text: String,
    /// Numbers of relays, clients and servers, if a network was imported.
    pub counts: Vec<Count>,
    /// File and contents of everything that was imported.
    pub taken: Vec<String>,
    /// File and reason of everything that was not imported.
    pub left: Vec<String>,
}

/// Creates a scenario from files, and from the files in folders (one level deep).
///
/// # Errors
/// If a file cannot be read, two files have the same role, or nothing can be imported.
pub fn import(places: &[PathBuf]) -> Result<Imported, InputError> {
    let mut draft = Draft { named: places.to_vec(), ..Draft::default() };
    let mut folders = Vec::new();
    for place in places {
        let config = if place.is_dir() { shadow_folder::find(place) } else { configuration(place)? };
        let Some(config) = config else { continue };
        draft.take_network(&config)?;
        // tornettools keeps graphs, models and configurations in `conf`.
        folders.extend(config.parent().map(|folder| folder.join("conf")).filter(|folder| folder.is_dir()));
    }
    let mut files = Vec::new();
    for place in places.iter().chain(&folders) {
        if place.is_dir() {
            let fail =
                |cause| InputError::new(place.display().to_string(), format!("{cause}"), "check the path");
            let entries = std::fs::read_dir(place).map_err(fail)?.flatten().map(|entry| entry.path());
            let mut inside: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
            inside.sort();
            files.extend(inside);
        } else {
            // A file that the user names must be readable; others in a folder are skipped.
            open::open(place)?;
            files.push(place.clone());
        }
    }
    let mut skipped = Vec::new();
    for file in &files {
        if draft.used.contains(&whole(file)) {
            continue;
        }
        match draft.take(file)? {
            Ok(Some(what)) => draft.taken.push(format!("{}: {what}", file.display())),
            Ok(None) => {}
            Err(why) => skipped.push(why),
        }
    }
    draft.settle_models(&mut skipped)?;
    draft.settle_traffic(&mut skipped);
    if draft.taken.is_empty() {
        return Err(nothing(places, skipped));
    }
    draft.left.extend(skipped.iter().map(line));
    let text = draft.scenario();
    Ok(Imported { text, counts: draft.counts, taken: draft.taken, left: draft.left })
}

/// An error as one line.
fn line(error: &InputError) -> String {
    error.to_string().replace("\n  help: ", "; ")
}

/// The error if nothing can be imported: of the file, if the user names a single one.
fn nothing(places: &[PathBuf], mut skipped: Vec<InputError>) -> InputError {
    match places {
        [file] if !file.is_dir() && skipped.len() == 1 => skipped.remove(0),
        _ => {
            let named: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            let why: String = skipped.iter().map(|error| format!("; {}", line(error))).take(SHOWN).collect();
            let cause = format!(
                "nothing that can be imported is in {}{why}",
                if places.len() == 1 { "it" } else { "them" }
            );
            InputError::new(named.join(", "), cause, CURE)
        }
    }
}

/// A path without links and `..`, to compare.
fn whole(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// The file itself, if it is a configuration of Shadow.
fn configuration(file: &Path) -> Result<Option<PathBuf>, InputError> {
    let name = file.to_string_lossy().to_lowercase();
    let might_be =
        [".yaml", ".yml", ".xml"].iter().any(|ending| name.contains(ending)) && !name.contains("graphml");
    let is = might_be && shadow_file::looks_like(&open::open(file)?);
    Ok(is.then(|| file.to_owned()))
}

fn keep(slot: &mut Option<PathBuf>, file: &Path) -> Result<(), InputError> {
    if let Some(before) = slot.replace(whole(file)) {
        let cause = format!("has the same role as {}", before.display());
        return Err(InputError::new(file.display().to_string(), cause, "name only one of them"));
    }
    Ok(())
}

impl Draft {
    /// Imports a file; the inner error is the reason for skipping it. Nothing is said of models and action graphs,
    /// which the scenario uses only if others complete them.
    fn take(&mut self, file: &Path) -> Result<Result<Option<&'static str>, InputError>, InputError> {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        let document = match open::open(file) {
            Ok(document) => document,
            Err(error) => return Ok(Err(error.into())),
        };
        let skip =
            |cause: &str, cure: &str| Ok(Err(InputError::new(file.display().to_string(), cause, cure)));
        let Some(kind) = kinds::of(&document) else {
            return skip("is of an unknown kind", CURE);
        };
        match kind.name {
            kinds::STAGED => {
                self.take_staged(file)?;
                Ok(Ok(Some("relays, their capacities and countries")))
            }
            kinds::DESCRIPTORS => skip(
                "has server descriptors, which lack the flags and weights of relays",
                "run a scenario with a consensus (`tidegate run SCENARIO --consensus FILE`), and name the descriptors \
                 by `capacity` in its [tor]",
            ),
            kinds::GML | kinds::SHADOW1_GRAPH => {
                if let Err(error) = LATENCIES.read(file, &document) {
                    return Ok(Err(error.into()));
                }
                keep(&mut self.latency, file)?;
                Ok(Ok(Some("latencies")))
            }
            kinds::MARKOV => self.take_model(&document, file, &name),
            kinds::ACTIONS => Ok(self.take_actions(&document, file, &name).map(|()| None)),
            kinds::STAGED_USERS => skip(
                "has users' countries, and clients are placed by the built-in shares",
                "set `countries` of the users",
            ),
            kinds::BANDWIDTH_FILE if self.network.is_some() => {
                Ok(Ok(Some("weights of the network's relays")))
            }
            kinds::TORRC if self.network.is_some() => {
                Ok(Ok(Some("options of the network's tors: bandwidths, exit policies and roles")))
            }
            _ => skip(&format!("is {}", kind.name), kind.read_by),
        }
    }

    /// Imports relays of `tornettools stage`.
    fn take_staged(&mut self, file: &Path) -> Result<(), InputError> {
        let relays = formats::open_relays(file)?;
        keep(&mut self.relays, file)?;
        self.say_least(&file.display().to_string(), &relays);
        let sampled = sample(&consensus_of(&relays).relays, FRACTION, Representative::Median).len() as u64;
        let why = format!("`fraction = {FRACTION}` takes this share of each class of the relays that run");
        self.count("relays", relays.len() as u64, sampled, &why);
        self.left.push(format!(
            "{}: the version of tor, which it does not say; {OLD_TOR}; name a consensus of its month by `consensus` in [tor]",
            file.display()
        ));
        Ok(())
    }

    /// Imports an action graph; the error is the reason for skipping it.
    fn take_actions(&mut self, document: &Document, file: &Path, name: &str) -> Result<(), InputError> {
        let stem = requests::key(name.split('.').next().unwrap_or("actions"));
        let mut actions = tgen_actions::read(document)?;
        requests::fit(&mut actions);
        let skip = |cause: &str, cure: &str| InputError::new(file.display().to_string(), cause, cure);
        fetches(&actions).map_err(|why| {
            skip(&format!("is {why}"), "give a client's action graph with `stream` actions")
        })?;
        if actions.onion_service {
            let cause = "has downloads from an onion service, for which no client is known";
            return Err(skip(cause, "import it with the Shadow simulation of its clients"));
        }
        self.left.extend(actions.left.iter().map(|what| format!("{}: {what}", file.display())));
        let text = table(&stem, &actions);
        self.traffic.push(Table { name: stem.clone(), text, file: Some(file.to_owned()) });
        // Without a network the number of users is not known.
        if self.network.is_none() {
            self.users.push(Users {
                name: stem.clone(),
                traffic: Behaviour::Table(stem),
                count: 10,
                countries: Vec::new(),
                onion: false,
            });
        }
        Ok(())
    }

    /// Notes a Markov model.
    fn take_model(
        &mut self,
        document: &Document,
        file: &Path,
        name: &str,
    ) -> Result<Result<Option<&'static str>, InputError>, InputError> {
        let chain = match tgen::read(document) {
            Ok(chain) => chain,
            Err(error) if self.named.iter().any(|named| named == file) => return Err(error.into()),
            Err(error) => return Ok(Err(error.into())),
        };
        let mut emissions = chain.states().iter().flat_map(|state| &state.emissions);
        let from_server = emissions.any(|one| one.weight > 0.0 && one.observation == Observation::ToOrigin);
        // Flow models and stream models look alike.
        if !from_server && name.contains("flow") {
            let cause = "is a flow model by its name; a scenario takes a stream model and a packet model";
            let cure =
                "import it with the Shadow simulation of its clients; rename it if it is a stream model";
            return Ok(Err(InputError::new(file.display().to_string(), cause, cure)));
        }
        self.found.push(Model { file: file.to_owned(), from_server });
        Ok(Ok(None))
    }

    /// Makes traffic of a stream model and a packet model, if they are all there is and users follow them.
    ///
    /// A model with packets from the server (`-`) is a packet model. tgen allows `-` in stream models, too: if both have
    /// it, their names tell.
    fn settle_models(&mut self, skipped: &mut Vec<InputError>) -> Result<(), InputError> {
        for file in std::mem::take(&mut self.flow_models) {
            let what = "flow model; its rate sets the number of users, which begin one flow after another";
            self.taken.push(format!("{}: {what}", file.display()));
        }
        let named = |model: &Model, what: &str| {
            let name = model.file.file_name().map(|name| name.to_string_lossy().to_lowercase());
            name.is_some_and(|name| name.contains(what))
        };
        let mut found = std::mem::take(&mut self.found);
        let alike = found.iter().all(|model| model.from_server);
        let by_name =
            found.len() == 2 && alike && found.iter().filter(|model| named(model, "stream")).count() == 1;
        if by_name {
            found.iter_mut().for_each(|model| model.from_server = !named(model, "stream"));
        }
        let (mut packet, mut stream) = (None, None);
        for model in &found {
            keep(if model.from_server { &mut packet } else { &mut stream }, &model.file)?;
        }
        let browses = |users: &Users| users.traffic == Behaviour::Browses;
        let wanted = self.network.is_none() || self.users.iter().any(browses);
        self.models = stream.zip(packet).map(|(stream, packet)| [stream, packet]).filter(|_| wanted);
        for model in &found {
            let (what, other) = if model.from_server { ("packet", "stream") } else { ("stream", "packet") };
            if self.models.is_some() {
                let how = match (by_name, named(model, other)) {
                    (true, _) => " by its name: both models have packets from the server (`-`)",
                    (false, true) if model.from_server => {
                        ", whatever its name is: it has packets from the server (`-`)"
                    }
                    (false, true) => ", whatever its name is: it lacks packets from the server (`-`)",
                    _ => "",
                };
                self.taken.push(format!("{}: {what} model{how}", model.file.display()));
            } else {
                let (cause, cure) = if wanted {
                    (
                        format!("is a {what} model without a {other} model"),
                        format!("name the {other} model, too"),
                    )
                } else {
                    (
                        format!("is a {what} model that no client follows"),
                        "name it in their action graph".into(),
                    )
                };
                skipped.push(InputError::new(model.file.display().to_string(), cause, cure));
            }
        }
        Ok(())
    }

    /// Drops action graphs that no user follows, and says which traffic stands in for missing files.
    fn settle_traffic(&mut self, skipped: &mut Vec<InputError>) {
        let used: BTreeSet<String> =
            self.users.iter().map(|users| self.traffic_of(users).to_owned()).collect();
        for table in std::mem::take(&mut self.traffic) {
            let file = table.file.as_ref().map(|file| file.display().to_string());
            match file {
                Some(file) if !used.contains(&table.name) => {
                    let cause = "is an action graph that no client follows";
                    skipped.push(InputError::new(file, cause, "name it in the configuration of a client"));
                    continue;
                }
                Some(file) => self.taken.push(format!("{file}: requests")),
                None => {}
            }
            self.traffic.push(table);
        }
        let stands_in = |users: &&Users| !matches!(users.traffic, Behaviour::Table(_));
        let said: Vec<String> = (self.users.iter().filter(stands_in))
            .map(|users| {
                format!(
                    "{}: their own traffic, whose files are missing; `{}` stands in",
                    users.name,
                    self.traffic_of(users)
                )
            })
            .collect();
        self.left.extend(said);
    }
}

/// The first reasons, and the number of the others.
fn first_of(reasons: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = reasons[..reasons.len().min(SHOWN)].join("; ");
    if reasons.len() > SHOWN {
        text += &format!("; and {} more", reasons.len() - SHOWN);
    }
    text
}

/// Whether an action graph has requests that can be simulated; the error says why not.
fn fetches(actions: &Actions) -> Result<(), String> {
    if actions.serves {
        return Err("a server's action graph".into());
    }
    if actions.requests.is_empty() {
        let models = actions.models.as_ref().map(|_| "its Markov models are files of their own".to_owned());
        let why = models.unwrap_or_else(|| first_of(&actions.left));
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        return Err(format!("an action graph without requests{why}"));
    }
    Ok(())
}
