//! Imports scenarios from files of `tornettools` (staged and generated) and tgen (models and action graphs).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tidegate_data::document::Document;
use tidegate_data::formats::{self, LATENCIES};
use tidegate_data::tgen_actions::{self, Actions};
use tidegate_data::{graphml, open, shadow_yaml, tgen};

use crate::input::InputError;

/// The parts of a scenario collected so far.
#[derive(Default)]
struct Draft {
    relays: Option<PathBuf>,
    latency: Option<PathBuf>,
    models: [Option<PathBuf>; 2],
    /// Action graphs as `[traffic]` tables, by name.
    actions: Vec<(String, String)>,
    /// Number of hosts by kind in a Shadow network.
    kinds: BTreeMap<String, u32>,
    /// Parts of imported files that are left out, and why.
    left: Vec<String>,
}

/// The result of an import.
pub struct Imported {
    /// The scenario file.
    pub text: String,
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
    let mut files = Vec::new();
    let mut draft = Draft::default();
    let (mut taken, mut left, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for place in places {
        if place.join("shadow.config.xml").exists() || place.join("shadow.config.xml.xz").exists() {
            keep(&mut draft.relays, place)?;
            taken.push(format!("{}: relays", place.display()));
        }
        let yaml = open::find_packed(place, "shadow.config.yaml");
        if yaml.exists() {
            draft.take_shadow(place, &yaml, &mut taken, &mut left)?;
        }
        // tornettools keeps graphs, models and configurations in `conf`.
        if yaml.exists() && place.join("conf").is_dir() {
            more.push(place.join("conf"));
        }
    }
    for place in places.iter().chain(&more) {
        if place.is_dir() {
            let fail =
                |cause| InputError::new(place.display().to_string(), format!("{cause}"), "check the path");
            let entries = std::fs::read_dir(place).map_err(fail)?.flatten().map(|entry| entry.path());
            let mut inside: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
            inside.sort();
            files.extend(inside);
        } else {
            files.push(place.clone());
        }
    }
    for file in &files {
        match draft.take(file)? {
            Ok(what) => taken.push(format!("{}: {what}", file.display())),
            Err(why) => left.push(format!("{}: {why}", file.display())),
        }
    }
    if taken.is_empty() {
        let cure = "name files or the folder of `tornettools stage`, or tgen's models or action graphs";
        return Err(InputError::new("the files", "contain nothing that can be imported", cure));
    }
    left.append(&mut draft.left);
    Ok(Imported { text: draft.scenario(), taken, left })
}

fn keep(slot: &mut Option<PathBuf>, file: &Path) -> Result<(), InputError> {
    let whole = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    if let Some(before) = slot.replace(whole) {
        let cause = format!("has the same role as {}", before.display());
        return Err(InputError::new(file.display().to_string(), cause, "name only one of them"));
    }
    Ok(())
}

impl Draft {
    /// Imports the network of a Shadow 2 or 3 configuration from its folder.
    fn take_shadow(
        &mut self,
        folder: &Path,
        yaml: &Path,
        taken: &mut Vec<String>,
        left: &mut Vec<String>,
    ) -> Result<(), InputError> {
        let relays = formats::open_relays(folder)?.len();
        keep(&mut self.relays, folder)?;
        let contents = shadow_yaml::contents(&open::open(yaml)?)?;
        let name = yaml.display();
        taken.push(format!("{name}: {relays} relays with links, limits and weights"));
        match contents.graph.map(|graph| open::find_packed(folder, &graph)) {
            Some(graph) if graph.exists() => match LATENCIES.open(&graph) {
                Ok(_) => keep(&mut self.latency, &graph)?,
                Err(error) => left.push(format!("{name}: latencies: {error}")),
            },
            Some(graph) => left.push(format!("{name}: the graph {}, which does not exist", graph.display())),
            None => left.push(format!("{name}: a graph that is built into Shadow")),
        }
        for kind in ["perfclient", "markovclient", "server"] {
            // Hosts of onion services are not imported.
            let of_kind = contents.kinds.iter().filter(|(name, _)| name.starts_with(kind));
            let count: u32 = of_kind.filter(|(name, _)| !name.contains("onion")).map(|(_, n)| n).sum();
            if count > 0 {
                taken.push(format!("{name}: {count} hosts of the kind {kind}"));
                self.kinds.insert(kind.to_owned(), count);
            }
        }
        let known = ["relay", "perfclient", "markovclient", "server"];
        let is_known =
            |kind: &str| known.iter().any(|known| kind.starts_with(known)) && !kind.contains("onion");
        let others = contents.kinds.iter().filter(|(kind, _)| !is_known(kind));
        left.extend(others.map(|(kind, count)| format!("{name}: {count} hosts of the kind {kind}")));
        if !contents.programs.is_empty() {
            left.push(format!("{name}: programs other than tor and tgen: {}", contents.programs.join(", ")));
        }
        left.push(format!(
            "{name}: the nodes of clients and servers (placed by the built-in shares), relays' nodes (their countries count), \
             links of clients and servers, and the times of start and stop"
        ));
        Ok(())
    }

    /// Imports a file; the inner error is the reason for skipping it.
    fn take(&mut self, file: &Path) -> Result<Result<&'static str, String>, InputError> {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        let is = |part: &str| name.contains(part);
        if is("relayinfo_staging") || is("server-descriptors") {
            formats::open_relays(file)?;
            keep(&mut self.relays, file)?;
            return Ok(Ok("relays, their capacities and countries"));
        }
        if is("userinfo_staging") {
            return Ok(Err("users' countries: clients are placed by the built-in shares".into()));
        }
        if is(".yaml") && !is("shadow.config.yaml") || is(".yml") {
            return Ok(Err("no `shadow.config.yaml`".into()));
        }
        if is("shadow.config.yaml") && !self.kinds.is_empty() || is("shadow.config.xml") || is("v3bw.init") {
            return Ok(Err("belongs to its folder's relays".into()));
        }
        if is(".gml") {
            open::open(file)?;
            // The Shadow configuration names its graph, which was imported with it.
            if self.latency.as_deref() == Some(&file.canonicalize().unwrap_or_else(|_| file.to_owned())) {
                return Ok(Ok("latencies, as the configuration says"));
            }
            if let Err(error) = LATENCIES.open(file) {
                return Ok(Err(format!("{}: {}", error.cause, error.cure)));
            }
            keep(&mut self.latency, file)?;
            return Ok(Ok("latencies"));
        }
        if !is(".graphml") {
            return Ok(Err("unknown kind of file".into()));
        }
        let document = open::open(file)?;
        // Markov models and action graphs have the same format. All nodes of a Markov model have a type.
        let graph = graphml::read(&document)?;
        if graph.nodes.iter().any(|node| node.attributes.contains_key("type")) {
            return self.take_model(&document, file, &name);
        }
        let stem = name.split('.').next().unwrap_or("actions").to_owned();
        let actions = match tgen_actions::read(&document) {
            Ok(actions) => actions,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if actions.onion_service {
            return Ok(Err("downloads from an onion service".into()));
        }
        if actions.requests.is_empty() {
            let why =
                if actions.left.is_empty() { "such as a server's".into() } else { actions.left.join("; ") };
            return Ok(Err(format!("an action graph without requests: {why}")));
        }
        self.left.extend(actions.left.iter().map(|what| format!("{}: {what}", file.display())));
        self.actions.push((stem.clone(), table(&stem, &actions)));
        Ok(Ok("requests"))
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
        tgen::read(document)?;
        keep(&mut self.models[number], file)?;
        Ok(Ok(what))
    }

    fn scenario(&self) -> String {
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        let mut text =
            String::from("duration = \"120 s\"\nwarmup = \"30 s\"\nsample = \"100 ms\"\n\n[tor]\n");
        // A generated network is simulated as a whole; staged relays are all of Tor, of which 1 % is simulated.
        put(&mut text, if self.kinds.is_empty() { "fraction = 0.01" } else { "fraction = 1.0" });
        self.kinds.get("server").iter().for_each(|count| put(&mut text, &format!("servers = {count}")));
        for (key, file) in [("capacity", &self.relays), ("latency", &self.latency)] {
            file.iter().for_each(|file| put(&mut text, &format!("{key} = {}", quoted(file))));
        }
        put(&mut text, "\n[[system]]\nname = \"tor\"\nof-consensus = true");
        if let [Some(stream), Some(packet)] = &self.models {
            put(&mut text, "\n[traffic.markov]\ntimeout = \"120 s\"");
            put(&mut text, &format!("stream-model = {}\npacket-model = {}", quoted(stream), quoted(packet)));
            put(&mut text, &user("markov", self.kinds.get("markovclient").copied().unwrap_or(100)));
        }
        for (name, table) in &self.actions {
            put(&mut text, &format!("\n{table}"));
            put(&mut text, &user(name, self.kinds.get("perfclient").copied().unwrap_or(10)));
        }
        for (kind, traffic, own) in [
            ("perfclient", "benchmark", !self.actions.is_empty()),
            ("markovclient", "privcount", self.models.iter().all(Option::is_some)),
        ] {
            if let (Some(count), false) = (self.kinds.get(kind), own) {
                put(&mut text, &user(traffic, *count));
            }
        }
        if self.kinds.is_empty() && self.actions.is_empty() && self.models.iter().any(Option::is_none) {
            put(&mut text, &user("web", 100));
        }
        text
    }
}

fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("text can be written");
}

fn user(name: &str, count: u32) -> String {
    format!(
        "\n[[user]]\nname = \"{name}\"\ntraffic = \"{name}\"\ncount = {count}\nstart = [\"0 s\", \"30 s\"]"
    )
}

/// The `[traffic]` table of an action graph.
fn table(name: &str, actions: &Actions) -> String {
    let mut text = format!("[traffic.{name}]\n");
    if let Some(pause) = actions.pause {
        put(&mut text, &format!("{} = \"{}\"", if pause.again { "every" } else { "pause" }, pause.time));
    }
    for request in &actions.requests {
        put(&mut text, &format!("[[traffic.{name}.requests]]"));
        put(&mut text, &format!("size = \"{} B\"", request.size));
        put(&mut text, &format!("weight = {:?}", request.weight));
        request.sent.iter().for_each(|sent| put(&mut text, &format!("request = \"{sent} B\"")));
        request.timeout.iter().for_each(|timeout| put(&mut text, &format!("timeout = \"{timeout}\"")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::SourceFile;
    use crate::scenario::Scenario;

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
        let config = include_str!("../../data/fixtures/shadow.config.yaml");
        std::fs::write(folder.join("shadow.config.yaml"), config).unwrap();
        std::fs::write(folder.join("conf/tgenrc.perfclient.graphml"), ACTIONS).unwrap();
        let nodes = "graph [ node [ id 0 country_code \"US\" ] node [ id 7 country_code \"DE\" ] ]";
        let line = |byte: &str, rest: &str| format!("node_id=${}\t{rest}\n", byte.repeat(20));
        let weights = line("0a", "bw=3\tnick=relay1exitguard") + &line("0b", "bw=1\tnick=relay2guard");
        let missing = import(std::slice::from_ref(&folder)).err().unwrap().to_string();
        assert!(missing.contains("v3bw.init.consensus"), "{missing}");
        std::fs::write(authority.join("v3bw.init.consensus"), format!("1\n{weights}")).unwrap();
        let imported = import(std::slice::from_ref(&folder)).unwrap();
        let said = imported.left.join("\n");
        for named in [
            "conf/network.gml, which does not exist",
            "1 hosts of the kind uthority",
            "oniontrace",
            "times of start",
        ] {
            assert!(said.contains(named), "{named}: {said}");
        }
        // A graph without edges says where relays are, and no latencies.
        std::fs::write(folder.join("conf/network.gml"), nodes).unwrap();
        let said = import(std::slice::from_ref(&folder)).unwrap().left.join("\n");
        assert!(said.contains("latencies: ") && said.contains("is unreachable from"), "{said}");
        let de = tidegate_data::country::Country::from_code("DE");
        let relays = formats::open_relays(&folder).unwrap();
        assert!(relays.values().any(|relay| relay.name == "relay1exitguard" && relay.country == de));
        let source = SourceFile { file: "imported".into(), text: imported.text.clone() };
        let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
        let counts: Vec<_> =
            scenario.file.user.iter().map(|user| (user.name.get_ref().as_str(), user.count)).collect();
        assert_eq!(counts, [("tgenrc", 1), ("privcount", 2)]);
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
        assert!(
            imported.left.len() == 1 && imported.left[0].contains("no `shadow.config.yaml`"),
            "{:?}",
            imported.left
        );
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
