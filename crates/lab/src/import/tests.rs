//! Tests of imports.

use super::*;
use crate::input::SourceFile;
use crate::scenario::Scenario;

use tidegate_control::units::Rate;

const CONFIG: &str = include_str!("../../../data/fixtures/shadow.config.yaml");
const GRAPH: &str = "graph [ node [ id 0 country_code \"US\" ]\nnode [ id 7 country_code \"DE\" ]\n\
    edge [ source 0 target 7 latency \"40 ms\" ] ]";
const KEYS: &str = "<key id='t' attr.name='type'/><key id='n' attr.name='name'/><key id='w' attr.name='weight'/>\
    <key id='d' attr.name='distribution'/><key id='r' attr.name='param_rate'/>";

/// A folder of files that is removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str, files: &[(&str, &str)]) -> Place {
        let place = Place(std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id())));
        files.iter().for_each(|(file, text)| place.write(file, text));
        place
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn import(&self) -> Result<Imported, InputError> {
        import(std::slice::from_ref(&self.0))
    }

    fn refusal(&self) -> InputError {
        self.import().err().unwrap()
    }

    fn files(&self, names: &[&str]) -> Result<Imported, InputError> {
        import(&names.iter().map(|name| self.0.join(name)).collect::<Vec<_>>())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Markov model with these observations of these weights, one per second.
fn model(observations: &[(&str, u32)]) -> String {
    let data = |pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("<data key='{key}'>{value}</data>")).collect()
    };
    let node = |id: &str, kind: &str, name: &str| {
        format!("<node id='{id}'>{}</node>", data(&[("t", kind), ("n", name)]))
    };
    let edge =
        |to: &str, rest: &[(&str, &str)]| format!("<edge source='a' target='{to}'>{}</edge>", data(rest));
    let mut text = node("s", "state", "start") + &node("a", "state", "active");
    text += &edge("a", &[("t", "transition"), ("w", "1")]);
    text += &edge("a", &[("t", "transition"), ("w", "1")]).replace("source='a'", "source='s'");
    for (name, weight) in observations {
        let id = format!("o{name}");
        text += &node(&id, "observation", name);
        let weight = weight.to_string();
        text += &edge(&id, &[("t", "emission"), ("w", &weight), ("d", "exponential"), ("r", "0.000001")]);
    }
    format!("<graphml>{KEYS}<graph edgedefault='directed'>{text}</graph></graphml>")
}

fn stream_model() -> String {
    model(&[("+", 9), ("F", 1)])
}

fn packet_model() -> String {
    model(&[("+", 1), ("-", 8), ("F", 1)])
}

/// The action graph of a client that follows models.
fn walker(flows: &str) -> String {
    let paths = [("flow", flows), ("stream", "conf/streams.graphml"), ("packet", "conf/packets.graphml")];
    let keys = paths.map(|(what, _)| format!("<key id='{what}' attr.name='{what}modelpath'/>")).concat();
    let data = paths.map(|(what, path)| format!("<data key='{what}'>{path}</data>")).concat();
    format!(
        "<graphml><key id='p' attr.name='peers'/>{keys}<graph edgedefault='directed'>\
         <node id='start'><data key='p'>server1exit:80</data></node><node id='traffic'>{data}</node>\
         <edge source='start' target='traffic'/></graph></graphml>"
    )
}

/// The network of the fixture with its files; `config` is its configuration.
fn network(name: &str, config: &str) -> Place {
    Place::new(
        name,
        &[
            ("shadow.config.yaml", config),
            ("conf/network.gml", GRAPH),
            ("conf/tgenrc.perfclient.graphml", ACTIONS),
            ("conf/flows1.graphml", &model(&[("+", 1)])),
            ("conf/flows2.graphml", &model(&[("+", 1)])),
            ("conf/streams.graphml", &stream_model()),
            ("conf/packets.graphml", &packet_model()),
            ("shadow.data.template/hosts/markovclient1exit/tgenrc.graphml", &walker("conf/flows1.graphml")),
            ("shadow.data.template/hosts/markovclient2exit/tgenrc.graphml", &walker("conf/flows2.graphml")),
        ],
    )
}

/// Numbers in the source and in the scenario.
fn counts(imported: &Imported, what: &str) -> (u64, u64) {
    let count = imported.counts.iter().find(|count| count.what == what);
    count.map(|count| (count.source, count.scenario)).unwrap()
}

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
    assert!(without.left.iter().any(|left| left.contains("lacks a bandwidth file")), "{:?}", without.left);
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
    let refused = import(std::slice::from_ref(&folder)).err().unwrap();
    assert!(refused.cause.contains("is unreachable from"), "{refused}");
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
    let relays: Vec<String> = scenario.inputs.consensus.as_ref().unwrap().relays.iter().map(names).collect();
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

#[test]
fn a_missing_flow_model_is_named_and_costs_only_its_client() {
    let place = network("flows", CONFIG);
    let whole = place.import().unwrap();
    // Two clients begin a flow per second each, and flows last 9 s on average and one to end.
    let (_, users) = counts(&whole, "clients markovclientexit");
    assert!((17..=23).contains(&users), "{users}");
    let taken = whole.taken.join("\n");
    assert!(
        taken.contains("flows1.graphml: flow model") && taken.contains("flows2.graphml: flow model"),
        "{taken}"
    );
    assert!(!whole.left.join("\n").contains("flow model"), "{:?}", whole.left);
    std::fs::remove_file(place.0.join("conf/flows2.graphml")).unwrap();
    let part = place.import().unwrap();
    let (clients, fewer) = counts(&part, "clients markovclientexit");
    assert!(clients == 2 && (9..=13).contains(&fewer), "{fewer}");
    let left = part.left.join("\n");
    for said in [
        "flow models that do not exist: conf/flows2.graphml; of 1 clients, such as markovclient2exit",
        "markovclientexit: clients without a flow model: 1; each is one user",
    ] {
        assert!(left.contains(said), "{said}: {left}");
    }
}

#[test]
fn processes_of_a_host_count() {
    let tor = "    - path: ~/.local/bin/tor\n      args: --Address relay1exitguard";
    let more = format!("    - {{path: tor, args: --Nickname b}}\n    - {{path: tor, quantity: 2}}\n{tor}");
    let tgen = "tgenrc.perfclient.graphml, start_time: 300}";
    let config = CONFIG.replacen(tor, &more, 1).replacen(tgen, "tgenrc.perfclient.graphml, quantity: 5}", 1);
    let place = network("processes", &config);
    let imported = place.import().unwrap();
    assert_eq!(counts(&imported, "relays"), (5, 2));
    let why = imported.counts.iter().find(|count| count.what == "relays").unwrap().why.clone().unwrap();
    assert!(why.contains("several tors"), "{why}");
    assert_eq!(counts(&imported, "clients perfclientexit"), (5, 5));
    let service = ACTIONS.replace("<node id=\"start\"/>", "<node id=\"start\"><data key=\"a\"/></node>");
    place.write("conf/other.graphml", &service.replace("1 MiB", "5 MiB"));
    let second = "    - {path: tgen, args: conf/other.graphml}\n  markovclient1exit:";
    place.write("shadow.config.yaml", &CONFIG.replacen("  markovclient1exit:", second, 1));
    let imported = place.import().unwrap();
    let perf: Vec<u64> = (imported.counts.iter().filter(|count| count.what == "clients perfclientexit"))
        .map(|count| count.scenario)
        .collect();
    assert_eq!(perf, [1, 1], "each tgen is a client");
    assert!(imported.text.contains("name = \"perfclientexit2\""), "{}", imported.text);
}

#[test]
fn builds_of_tor_count_and_a_simulation_without_tor_is_refused() {
    let imported = network("builds", &CONFIG.replace("bin/tor", "bin/tor-0.4.8")).import().unwrap();
    assert_eq!(counts(&imported, "relays"), (2, 2));
    let left = imported.left.join("\n");
    assert!(left.contains("version of tor (tor-0.4.8)") && left.contains("`control = \"vegas\"`"), "{left}");
    let refused = network("no-tor", &CONFIG.replace("bin/tor", "bin/curl")).refusal();
    assert!(refused.cause.contains("without a relay of Tor"), "{refused}");
}

#[test]
fn broken_graphs_are_refused() {
    let place = network("graphs", CONFIG);
    for (graph, cause) in [
        (GRAPH[..60].to_owned(), "lacks a value"),
        ("\n".to_owned(), "is empty"),
        (GRAPH.replace("\"40 ms\"", "\"0 ms\""), "latency is zero"),
        (GRAPH.replace("\"40 ms\"", "40"), "no unit"),
        (GRAPH.replace("\"40 ms\"", "\"40 ms\" packet_loss 2.0"), "is not a probability"),
    ] {
        place.write("conf/network.gml", &graph);
        let refused = place.refusal();
        assert!(refused.file.ends_with("network.gml") && refused.cause.contains(cause), "{cause}: {refused}");
    }
    place.write("conf/network.gml", &GRAPH.replace("id 7", "id 9").replace("target 7", "target 9"));
    let refused = place.refusal();
    assert!(refused.cause.contains("`relay1exitguard` is at node 7"), "{refused}");
    assert_eq!(refused.at.map(|at| at.0), Some(20), "{refused}");
}

#[test]
fn stand_ins_for_missing_files_are_what_the_scenario_has() {
    let place = network("stand-ins", CONFIG);
    let own = |number: u32| format!("shadow.data.template/hosts/markovclient{number}exit/tgenrc.graphml");
    (1..=2).for_each(|number| std::fs::remove_file(place.0.join(own(number))).unwrap());
    let missing = "action graphs that do not exist: tgenrc.graphml; of 2 clients, such as markovclient1exit";
    let imported = place.import().unwrap();
    let left = imported.left.join("\n");
    assert!(left.contains(missing) && left.contains("files are missing; `markov` stands in"), "{left}");
    assert!(imported.text.contains("traffic = \"markov\""), "{}", imported.text);
    std::fs::remove_file(place.0.join("conf/packets.graphml")).unwrap();
    let imported = place.import().unwrap();
    let left = imported.left.join("\n");
    assert!(left.contains("files are missing; `privcount` stands in"), "{left}");
    assert!(left.contains("streams.graphml: is a stream model without a packet model"), "{left}");
    assert!(!imported.taken.join("\n").contains("stream model"), "{:?}", imported.taken);
}

#[test]
fn files_that_the_scenario_does_not_use_are_not_imported() {
    let place = network("unused", CONFIG);
    place.write("conf/extra.graphml", ACTIONS);
    (1..=2).for_each(|number| {
        let file = format!("shadow.data.template/hosts/markovclient{number}exit/tgenrc.graphml");
        place.write(&file, ACTIONS);
    });
    place.write("conf/tor.common.torrc", "ORPort 9001\nBandwidthRate 5 KB\n");
    let imported = place.import().unwrap();
    let left = imported.left.join("\n");
    for said in [
        "streams.graphml: is a stream model that no client follows",
        "packets.graphml: is a packet model that no client follows",
        "extra.graphml: is an action graph that no client follows",
    ] {
        assert!(left.contains(said), "{said}: {left}");
    }
    assert!(!imported.text.contains("markov]") && !imported.text.contains("extra"), "{}", imported.text);
    assert!(!left.contains("torrc"), "{left}");
    assert!(imported.taken.join("\n").contains("tor.common.torrc: options of the network's tors"));
}

#[test]
fn models_are_told_apart_by_content() {
    let both = model(&[("+", 1), ("-", 1)]);
    for (first, second, named) in [
        (("a.graphml", stream_model()), ("b.graphml", packet_model()), false),
        (("x.packet.graphml", stream_model()), ("x.stream.graphml", packet_model()), true),
        (("x.flow-and-stream.graphml", both.clone()), ("x.packet.graphml", both), true),
    ] {
        let place = Place::new("content", &[(first.0, &first.1), (second.0, &second.1)]);
        let imported = place.files(&[second.0, first.0]).unwrap();
        let line = |key: &str| imported.text.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(
            line("stream-model").contains(first.0) && line("packet-model").contains(second.0),
            "{}",
            imported.text
        );
        let said = imported.taken.iter().all(|line| line.contains("name"));
        assert_eq!(said, named, "{:?}", imported.taken);
        let alone = place.files(&[second.0]).err().unwrap();
        assert!(alone.cause.contains("is a packet model without a stream model"), "{alone}");
        assert!(alone.file.ends_with(second.0) && alone.cure.contains("stream model"), "{alone}");
    }
}

#[test]
fn simulations_without_clients_are_refused() {
    let config = &CONFIG[..CONFIG.find("  perfclient1exit:").unwrap()];
    let place = network("no-clients", config);
    let refused = place.refusal();
    assert!(refused.file.ends_with("shadow.config.yaml"), "{refused}");
    assert!(refused.cause.contains("has relays, but no client"), "{refused}");
    place.write(
        "conf/tgenrc.perfclient.graphml",
        &ACTIONS.replace("1 MiB", "9999 tib").replace("50 KiB", "9999 tib"),
    );
    let first = CONFIG.find("  markovclient1exit:").unwrap();
    place.write("shadow.config.yaml", &CONFIG[..first]);
    let refused = place.refusal();
    assert!(refused.cause.contains("cannot be simulated") && refused.cause.contains("(1 PiB)"), "{refused}");
}

#[test]
fn relays_of_a_stage_are_counted_and_descriptors_refused() {
    let slow = include_str!("../../../data/fixtures/relayinfo.json");
    let place = Place::new(
        "stage",
        &[
            ("relayinfo_staging_2024.json", slow),
            ("descriptors", "router a 10.0.0.1 9001 0 0\nbandwidth 1 1 1\n"),
        ],
    );
    let imported = place.files(&["relayinfo_staging_2024.json"]).unwrap();
    let source = SourceFile { file: "imported".into(), text: imported.text.clone() };
    let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
    let network = crate::network::build(&scenario, tidegate_control::random::Seed::root(1)).unwrap();
    let (source, sampled) = counts(&imported, "relays");
    assert_eq!(source, slow.matches("bandwidth_capacity").count() as u64);
    assert_eq!(sampled, network.listed.len() as u64);
    let left = imported.left.join("\n");
    assert!(left.contains("tor of 2018") && left.contains("name a consensus of its month"), "{left}");
    let refused = place.files(&["descriptors"]).err().unwrap();
    assert!(refused.cause.contains("lack the flags") && refused.cure.contains("--consensus"), "{refused}");
}

#[test]
fn capacities_below_the_least_are_said() {
    let left = network("slow", CONFIG).import().unwrap().left.join("\n");
    assert!(left.contains("capacities below 50 kB/s: 1; 50 kB/s, the least"), "{left}");
}

#[test]
fn a_single_file_has_its_own_error() {
    let place = Place::new("single", &[("a.graphml", &ACTIONS.replace("1 minute", "3e1")), ("b.txt", "x")]);
    let refused = place.files(&["a.graphml"]).err().unwrap();
    assert!(refused.cause.starts_with("the time `3e1`") && refused.cure.contains("m (minutes)"), "{refused}");
    assert!(refused.file.ends_with("a.graphml") && refused.at.map(|at| at.0) == Some(5), "{refused}");
    let folder = place.refusal();
    assert_eq!(folder.file, place.0.display().to_string());
    assert!(folder.cause.contains("`3e1`") && folder.cause.contains("b.txt"), "{folder}");
    place.write("a.graphml", &ACTIONS.replace("<edge source=\"start\" target=\"pause\"/>", ""));
    let refused = place.files(&["a.graphml"]).err().unwrap();
    assert!(refused.cause.contains("no edges lead to it from `start`"), "{refused}");
}
