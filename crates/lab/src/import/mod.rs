//! Imports scenarios: simulations of Shadow, files of `tornettools stage`, and tgen's models and action graphs.
//!
//! `network` takes a Shadow simulation in its folder, this file takes single files, and `text` writes the scenario.

mod draft;
mod network;
mod requests;
mod text;

use std::path::{Path, PathBuf};

use tidegate_data::document::Document;
use tidegate_data::formats::{self, LATENCIES};
use tidegate_data::tgen_actions::{self, Actions};
use tidegate_data::{kinds, open, shadow_file, shadow_folder, tgen};

use crate::input::InputError;
use draft::{Behaviour, Draft, Users};
use text::table;

pub use draft::Count;

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
    for file in &files {
        if draft.used.contains(&whole(file)) {
            continue;
        }
        match draft.take(file)? {
            Ok(what) => draft.taken.push(format!("{}: {what}", file.display())),
            Err(why) => draft.left.push(format!("{}: {why}", file.display())),
        }
    }
    if draft.taken.is_empty() {
        let why = draft.left.first().map_or(String::new(), |first| format!("; {first}"));
        let cure = "name files or the folder of `tornettools stage` or `generate`, or tgen's models or action graphs";
        return Err(InputError::new("the files", format!("contain nothing that can be imported{why}"), cure));
    }
    let text = draft.scenario();
    Ok(Imported { text, counts: draft.counts, taken: draft.taken, left: draft.left })
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
    /// Imports a file; the inner error is the reason for skipping it.
    fn take(&mut self, file: &Path) -> Result<Result<&'static str, String>, InputError> {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        let document = match open::open(file) {
            Ok(document) => document,
            Err(error) => return Ok(Err(error.cause)),
        };
        let Some(kind) = kinds::of(&document) else {
            return Ok(Err("unknown kind of file".into()));
        };
        match kind.name {
            kinds::STAGED | kinds::DESCRIPTORS => {
                formats::open_relays(file)?;
                keep(&mut self.relays, file)?;
                Ok(Ok("relays, their capacities and countries"))
            }
            kinds::GML | kinds::SHADOW1_GRAPH => {
                if let Err(error) = LATENCIES.read(file, &document) {
                    return Ok(Err(format!("{}: {}", error.cause, error.cure)));
                }
                keep(&mut self.latency, file)?;
                Ok(Ok("latencies"))
            }
            kinds::MARKOV => self.take_model(&document, file, &name),
            kinds::ACTIONS => Ok(self.take_actions(&document, file, &name)),
            kinds::STAGED_USERS => {
                Ok(Err("users' countries: clients are placed by the built-in shares".into()))
            }
            kinds::BANDWIDTH_FILE | kinds::TORRC if self.network.is_some() => {
                Ok(Err("read with its network".into()))
            }
            _ => Ok(Err(format!("{}: {}", kind.name, kind.read_by))),
        }
    }

    /// Imports an action graph; the error is the reason for skipping it.
    fn take_actions(&mut self, document: &Document, file: &Path, name: &str) -> Result<&'static str, String> {
        let stem = requests::key(name.split('.').next().unwrap_or("actions"));
        let mut actions = tgen_actions::read(document).map_err(|error| error.to_string())?;
        requests::fit(&mut actions);
        fetches(&actions)?;
        if actions.onion_service {
            return Err("downloads from an onion service, for which no client is known".into());
        }
        self.left.extend(actions.left.iter().map(|what| format!("{}: {what}", file.display())));
        self.traffic.push((stem.clone(), table(&stem, &actions)));
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
        Ok("requests")
    }

    /// Imports a Markov model; tgen's file names say what it models.
    fn take_model(
        &mut self,
        document: &Document,
        file: &Path,
        name: &str,
    ) -> Result<Result<&'static str, String>, InputError> {
        let (number, what) = if name.contains("flow") {
            return Ok(Err("a flow model; the simulator takes a stream model and a packet model".into()));
        } else if name.contains("packet") {
            (1, "packet model")
        } else if name.contains("stream") {
            (0, "stream model")
        } else {
            return Ok(Err("a Markov model; its name says neither `stream` nor `packet`".into()));
        };
        match tgen::read(document) {
            Ok(_) => {}
            Err(error) if self.named.iter().any(|named| named == file) => return Err(error.into()),
            Err(error) => return Ok(Err(error.to_string())),
        }
        keep(&mut self.models[number], file)?;
        Ok(Ok(what))
    }
}

/// Whether an action graph has requests that can be simulated; the error says why not.
fn fetches(actions: &Actions) -> Result<(), String> {
    if actions.serves {
        return Err("a server's action graph".into());
    }
    if actions.requests.is_empty() {
        let models = actions.models.as_ref().map(|_| "its Markov models are files of their own".to_owned());
        let why = models.unwrap_or_else(|| actions.left.join("; "));
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        return Err(format!("an action graph without requests{why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::SourceFile;
    use crate::scenario::Scenario;

    use tidegate_control::units::Rate;

    const ACTIONS: &str = r#"<graphml><key id="a" for="node" attr.name="time" attr.type="string"/>
<key id="b" for="node" attr.name="recvsize" attr.type="string"/>
<key id="c" for="node" attr.name="timeout" attr.type="string"/>
<key id="d" for="edge" attr.name="weight" attr.type="string"/>
<graph edgedefault="directed"><node id="start"/><node id="pause"><data key="a">1 minute</data></node>
<node id="stream_small"><data key="b">50 KiB</data><data key="c">15 seconds</data></node>
<node id="stream_large"><data key="b">1 MiB</data></node>
<edge source="start" target="pause"/><edge source="pause" target="pause"/>
<edge source="pause" target="stream_small"><data key="d">12.0</data></edge>
<edge source="pause" target="stream_large"><data key="d">2.0</data></edge></graph></graphml>"#;

    #[test]
    fn a_generated_network_becomes_a_scenario() {
        let folder = std::env::temp_dir().join(format!("tidegate-shadow-{}", std::process::id()));
        let authority = folder.join("shadow.data.template/hosts/bwauthority");
        std::fs::create_dir_all(&authority).unwrap();
        std::fs::create_dir_all(folder.join("conf")).unwrap();
        let config = include_str!("../../../data/fixtures/shadow.config.yaml");
        std::fs::write(folder.join("shadow.config.yaml"), config).unwrap();
        std::fs::write(folder.join("conf/tgenrc.perfclient.graphml"), ACTIONS).unwrap();
        let nodes = "graph [ node [ id 0 country_code \"US\" ] node [ id 7 country_code \"DE\" ] ]";
        let line = |byte: &str, rest: &str| format!("node_id=${}\t{rest}\n", byte.repeat(20));
        let weights = line("0a", "bw=3\tnick=relay1exitguard") + &line("0b", "bw=1\tnick=relay2guard");
        let without = import(std::slice::from_ref(&folder)).unwrap();
        assert!(
            without.left.iter().any(|left| left.contains("lacks a bandwidth file")),
            "{:?}",
            without.left
        );
        std::fs::write(authority.join("v3bw.init.consensus"), format!("1\n{weights}")).unwrap();
        let imported = import(std::slice::from_ref(&folder)).unwrap();
        let said = imported.left.join("\n");
        for named in
            ["conf/network.gml, which does not exist", "oniontrace", "times of start", "the version of tor"]
        {
            assert!(said.contains(named), "{named}: {said}");
        }
        let counts: Vec<_> =
            imported.counts.iter().map(|count| (count.what.as_str(), count.source, count.scenario)).collect();
        assert_eq!(
            counts,
            [
                ("relays", 2, 2),
                ("clients markovclientexit", 2, 2),
                ("clients perfclientexit", 1, 1),
                ("servers", 1, 1),
                ("directory authorities", 1, 0),
            ]
        );
        // A graph without edges says where relays are, and no latencies.
        std::fs::write(folder.join("conf/network.gml"), nodes).unwrap();
        let said = import(std::slice::from_ref(&folder)).unwrap().left.join("\n");
        assert!(said.contains("latencies, ") && said.contains("is unreachable from"), "{said}");
        let de = tidegate_data::country::Country::from_code("DE");
        let relays = formats::open_relays(&folder).unwrap();
        assert!(relays.values().any(|relay| relay.name == "relay1exitguard" && relay.country == de));
        let source = SourceFile { file: "imported".into(), text: imported.text.clone() };
        let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
        let counts: Vec<_> = scenario
            .file
            .user
            .iter()
            .map(|user| (user.name.get_ref().as_str(), scenario.file.users(user)))
            .collect();
        assert_eq!(counts, [("markovclientexit", 2), ("perfclientexit", 1)]);
        let traffic: Vec<&str> = scenario.file.user.iter().map(|user| user.traffic.as_str()).collect();
        assert_eq!(traffic, ["privcount", "perfclientexit"]);
        let tor = scenario.file.tor.as_ref().unwrap();
        assert_eq!(tor.client_up, Rate(1_000_000_000));
        let tor = scenario.file.tor.as_ref().unwrap();
        assert_eq!((tor.fraction, tor.servers), (1.0, Some(1)));
        let names = |relay: &tidegate_data::consensus::RouterStatus| relay.nickname.clone();
        let relays: Vec<String> =
            scenario.inputs.consensus.as_ref().unwrap().relays.iter().map(names).collect();
        assert_eq!(relays, ["relay1exitguard", "relay2guard"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn action_graphs_become_requests() {
        let folder = std::env::temp_dir().join(format!("tidegate-import-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("perf.tgenrc.graphml"), ACTIONS).unwrap();
        std::fs::write(folder.join("docker.yml"), "hosts: {}").unwrap();
        let imported = import(std::slice::from_ref(&folder)).unwrap();
        assert!(imported.left.len() == 1 && imported.left[0].contains("unknown kind"), "{:?}", imported.left);
        let source = SourceFile { file: "imported".into(), text: imported.text.clone() };
        let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
        let traffic = &scenario.file.traffic["perf"];
        assert_eq!(traffic.requests.len(), 2);
        assert_eq!((traffic.requests[0].size.0, traffic.requests[0].weight), (50 << 10, 12.0));
        assert!(traffic.every.is_some());
        std::fs::write(folder.join("perf.tgenrc.graphml"), ACTIONS.replace("50 KiB", "50 shoes")).unwrap();
        let nothing = import(std::slice::from_ref(&folder)).err().unwrap().to_string();
        assert!(nothing.contains("nothing that can be imported"), "{nothing}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
