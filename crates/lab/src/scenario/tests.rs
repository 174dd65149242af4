use proptest::prelude::*;
use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_sim::plan::paths::Selector;
use tidegate_sim::plan::{RelayEntry, Role, Route, Transport};

use super::*;

fn bottleneck() -> String {
    include_str!("../../../../scenarios/bottleneck.toml").to_owned()
}

/// Line and column of the first occurrence of a text in the bottleneck.
fn place(text: &str) -> String {
    let all = bottleneck();
    let before = &all[..all.find(text).unwrap()];
    let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
    format!("x.toml:{}:{column}:", before.matches('\n').count() + 1)
}

fn parse(text: &str, overrides: &[&str]) -> Result<Scenario, InputError> {
    let source = SourceFile { file: "x.toml".into(), text: text.into() };
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Scenario::parse(source, PathBuf::new(), &overrides)
}

/// The error of the bottleneck scenario with one text replaced.
fn complaint(from: &str, to: &str) -> String {
    let text = bottleneck();
    assert!(text.contains(from), "{from}");
    parse(&text.replacen(from, to, 1), &[]).unwrap_err().to_string()
}

#[test]
fn the_bottleneck_becomes_three_systems_and_a_plan() {
    let scenario = parse(&bottleneck(), &[]).unwrap();
    assert_eq!(scenario.systems.len(), 3);
    assert_eq!(scenario.systems[1].transport, Transport::PerCircuit);
    assert!(scenario.systems.iter().all(|system| system.tcp.initial_window == 5), "every-system applies");
    let network = crate::network::build(&scenario, Seed::root(1)).unwrap();
    assert_eq!(network.users, ["circuit1", "circuit2", "circuit3"]);
    let plan = &network.plan;
    let names = |user: usize| match plan.users[user].route {
        Route::Pinned(path) => path.map(|host| plan.hosts[host as usize].name.as_str()),
        Route::Drawn { .. } | Route::Shared(_) => panic!("pinned"),
    };
    assert_eq!(names(1), ["entry2", "btlnk", "exit1"]);
    // The client is on the entry's machine, the server on the exit's.
    let client = &plan.hosts[plan.users[2].host as usize];
    assert_eq!(client.colocated.map(|host| plan.hosts[host as usize].name.as_str()), Some("entry3"));
    assert_eq!(plan.users[0].servers, plan.users[1].servers, "one server at exit1");
    assert_eq!(plan.paths.get(0, 0).delay, Span::from_millis(40));
}

#[test]
fn mistakes_name_place_cause_and_cure() {
    let said = complaint("warmup", "warmpu");
    assert!(said.starts_with("x.toml:5:1: unknown key `warmpu`") && said.contains("`warmup`?"), "{said}");
    let said = complaint("transport = \"pctcp\"", "transport = \"pctpc\"");
    assert!(said.starts_with(&place("\"pctcp\"\n\n[[system]]")), "{said}");
    assert!(said.contains("there is no transport `pctpc`") && said.contains("`pctcp`?"), "{said}");
    let control = "control = \"predictor\"";
    let said = complaint(control, "control = \"predictor\"\npredictor = { horizon = 0 }");
    assert!(said.contains("`horizon` is not in 1..=61"), "{said}");
    for (table, wanted) in [
        ("estimate-delay = true, clocks = \"own\"", "`estimate-delay` goes by the senders' clocks"),
        ("local-ends = true, problem = \"journal\"", "`local-ends` is for the prototype's problem"),
    ] {
        let said = complaint(control, &format!("control = \"predictor\"\npredictor = {{ {table} }}"));
        assert!(said.contains(wanted), "{said}");
    }
    let said = complaint(control, "control = \"predictor\"\npredictor = { first = \"1 h\" }");
    assert!(said.contains("controllers first plan (`predictor.first`) after the run's end"), "{said}");
    let said = complaint(control, "control = \"predictor\"\npredictor = { resolution = 0.0 }");
    assert!(said.contains("`resolution` is not in 0.0001..=1"), "{said}");
    let lie = "[[fault]]\nkind = \"byzantine\"\nhost = \"btlnk\"\nlie = \"gredy\"\n\n[underlay]";
    let said = complaint("[underlay]", lie);
    assert!(said.contains("there is no lie `gredy`") && said.contains("`greedy`?"), "{said}");
    let said = complaint("[underlay]", &lie.replace("lie = ", "# "));
    assert!(said.contains("a fault of this kind needs the key `lie`"), "{said}");
    let kist = "[[system]]\nname = \"vanilla\"\nchannel-scheduler = \"kist\"";
    let said = complaint("[[system]]\nname = \"vanilla\"", &kist.replace("kist", "kits"));
    assert!(said.starts_with("x.toml:") && said.contains(": there is no channel scheduler `kits`"), "{said}");
    assert!(said.contains("`kist`?"), "{said}");
    for (bad, cause) in [
        ("interval = \"0 s\"", "`interval` is not in 1 ms..=1 s"),
        ("interval = \"10\"", "has no unit"),
        ("intervall = \"10 ms\"", "did you mean `interval`?"),
        ("buffer-factor = -1.0", "`buffer-factor` is not in 0..=1000"),
        ("buffer-factor = nan", "`buffer-factor` is not a finite number"),
        (
            "buffer-factor = \"1\"",
            "`buffer-factor` is \"1\", expected number\n  help: write it without quotation marks",
        ),
    ] {
        let said = complaint("[[system]]\nname = \"vanilla\"", &format!("{kist}\nkist = {{ {bad} }}"));
        assert!(said.starts_with("x.toml:") && said.contains(cause), "{said}");
    }
    let said = complaint("\"7.5 s\"", "7.5");
    assert!(said.starts_with(&place("\"7.5 s\"")) && said.contains("has no unit"), "{said}");
    let said = complaint("\"40 ms\"", "\"-40 ms\"");
    assert!(said.starts_with(&place("\"40 ms\"")) && said.contains("is negative"), "{said}");
    let said = complaint("[\"entry1\", \"btlnk\"", "[\"entry1\", \"btlnck\"");
    assert!(said.starts_with(&place("\"btlnk\", \"exit1\"")) && said.contains("no relay `btlnck`"), "{said}");
    let said = complaint("[\"entry1\", \"btlnk\"", "[\"btlnk\", \"btlnk\"");
    assert!(said.contains("contains a relay twice"), "{said}");
    let said = complaint("traffic = \"bulk\"", "traffic = \"blk\"");
    assert!(said.contains("no traffic `blk`") && said.contains("`bulk`?"), "{said}");
    let said = complaint("name = \"pctcp\"", "name = \"vanilla\"");
    assert!(said.contains("`vanilla` is used twice"), "{said}");
    let said = complaint("initial-window = 5", "initial-window = 0");
    assert!(said.starts_with("x.toml:19:18: `initial-window` is not in 1..=10000"), "{said}");
    let said = complaint("initial-window = 5", "initial-windows = 5");
    assert!(said.contains("did you mean `initial-window`?"), "{said}");
    let said = complaint("\"4 s\"", "\"8 s\"");
    assert!(said.starts_with(&(place("\"4 s\"") + " `warmup` is not shorter than `duration`")), "{said}");
    let said = complaint("link = \"10 Mbit/s\"", "link = \"0 Mbit/s\"");
    assert!(said.contains("`link` is not in 1 bit/s.."), "{said}");
    assert!(parse("", &[]).unwrap_err().to_string().contains("is empty"));
    assert!(
        parse("duration = \"1 s\"", &[]).unwrap_err().to_string().contains("`system` is missing"),
        "no systems"
    );
}

#[test]
fn conflux_needs_a_user_with_a_second_circuit() {
    let system = "name = \"vanilla\"\ntransport = \"vanilla\"";
    let keys = "control = \"vegas\"\nconflux = \"throughput\"";
    let conflux = bottleneck().replacen(system, &format!("{system}\n{keys}"), 1);
    let said = parse(&conflux, &[]).unwrap_err().to_string();
    let wanted = "system `vanilla`: `conflux` has no effect, because no user has a second circuit: every user with a \
        `path` lacks a `second-path`\n  help: set `second-path` of a user, or drop `conflux`";
    assert_eq!(said, format!("{} {wanted}", place("[[system]]\nname = \"vanilla\"")));
    let second = "user.circuit1.second-path = [\"entry2\", \"entry3\", \"exit1\"]";
    assert!(parse(&conflux, &[second]).is_ok(), "one user of three has an effect");
    // Users without `path` draw both circuits.
    let host = |kind: &str, name: &str| format!("[[{kind}]]\nname = \"{name}\"\nlink = \"10 Mbit/s\"\n");
    let drawn = |relays: usize, user: &str| {
        let relays: String = (0..relays).map(|n| host("relay", &format!("r{n}"))).collect();
        let text = format!(
            "duration = \"5 s\"\n[[system]]\nname = \"c\"\n{keys}\n{relays}{}{}[[user]]\nname = \"u\"\n\
             traffic = \"web\"\nclient = \"c\"\nserver = \"s\"\n{user}",
            host("client", "c"),
            host("server", "s")
        );
        parse(&text, &[])
    };
    assert!(drawn(5, "").is_ok());
    assert!(drawn(4, "").unwrap_err().to_string().contains("need five relays\n  help: add [[relay]]"));
    let onion = drawn(5, "onion-service = true").unwrap_err().to_string();
    assert!(onion.contains("circuits to onion services stay single"), "{onion}");
}

#[test]
fn cures_fit_the_mistake() {
    let vanilla = "name = \"vanilla\"\ntransport = \"vanilla\"";
    let path = "[\"entry1\", \"btlnk\", \"exit1\"]";
    for (from, to, wanted) in [
        (vanilla, "name = \"v\"\nwindows = 100", "write it like `windows = { circuit = 100 }`"),
        (
            vanilla,
            "name = \"v\"\nscheduler = \"kist\"",
            "`kist` is a `channel-scheduler`: write `channel-scheduler = \"kist\"`",
        ),
        (
            vanilla,
            "name = \"v\"\ncontrol = \"pctcp\"",
            "`pctcp` is a `transport`: write `transport = \"pctcp\"`",
        ),
        (
            vanilla,
            "name = \"v\"\nconflux = \"vanilla\"",
            "write `channel-scheduler = \"vanilla\"` or `transport = \"vanilla\"`",
        ),
        ("\"10 Mbit/s\"", "\"10 Mbps\"", "has an unknown unit (rates have bit/s, kbit/s, Mbit/s"),
        ("\"10 Mbit/s\"", "\"10 MB\"", "`10 MB` is a size, not a rate"),
        (path, "[\"entry1\", \"btlnk\"]", "a path has three relays: guard, middle, exit"),
        (path, "[\"entry1\", \"x\", \"exit1\"]", "known here: "),
        ("traffic = \"bulk\"", "traffic = \"bulk\"\ncount = -1", "permitted: 1 to 200000"),
    ] {
        let said = complaint(from, to);
        assert!(said.starts_with("x.toml:") && said.contains(wanted), "{to}: {said}");
    }
    let said = parse(&bottleneck(), &["user.circuit1.count=a"]).unwrap_err().to_string();
    assert!(said.contains("write it like `user.circuit1.count = 1`"), "{said}");
    let said = parse("scenario = \"x\"\n[vary]\nseeds = [1]\n", &[]).unwrap_err().to_string();
    assert!(said.contains("is a study") && said.contains("tidegate sweep x.toml"), "{said}");
}

#[test]
fn a_table_of_a_part_that_no_system_chooses_is_named() {
    let idle = |overrides: &[&str]| parse(&bottleneck(), overrides).unwrap().idle_tables();
    assert_eq!(
        idle(&["every-system.kist.buffer-factor = 2.0"]),
        ["`kist` has no effect here: no system with this table chooses it"]
    );
    let kist = "system.vanilla.channel-scheduler = 'kist'";
    assert!(idle(&["every-system.kist.buffer-factor = 2.0", kist]).is_empty());
    assert_eq!(idle(&["system.vanilla.vegas.alpha = 5"]).len(), 1, "the other systems do not have it");
    assert!(idle(&["every-system.output-buffer.high = '64 KiB'"]).is_empty(), "every system has it");
}

#[test]
fn every_combination_is_a_system() {
    let from = "[[system]]\nname = \"vanilla\"\ntransport = \"vanilla\"";
    let choices = "[[combine]]\nold = {}\nnew = { transport = \"pctcp\" }\n[[combine]]\nfifo = {}\n\
        kist = { channel-scheduler = \"kist\", kist = { interval = \"20 ms\" } }\n";
    let text = bottleneck().replacen(from, &format!("{choices}{from}"), 1);
    let scenario = parse(&text, &["every-system.kist.buffer-factor = 2.0"]).unwrap();
    let names: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
    assert_eq!(names, ["vanilla", "pctcp", "predictor", "new-fifo", "old-fifo", "new-kist", "old-kist"]);
    let kist = scenario.systems[5].kist.unwrap();
    assert_eq!(
        (scenario.systems[5].transport, kist.interval),
        (Transport::PerCircuit, Span::from_millis(20))
    );
    assert_eq!(kist.buffer_factor, 2.0, "every-system applies");
    for (bad, wanted) in [
        ("[[combine]]\nold = 7\n", "holds alternatives"),
        ("[combine]\nold = {}\n", "holds alternatives"),
        ("[[combine]]\n", "holds alternatives"),
        ("[[combine]]\nold = { transprot = \"pctcp\" }\n", "did you mean `transport`?"),
        ("[[combine]]\n\"a b\" = {}\n", "a b"),
        ("[[combine]]\nvanilla = {}\n", "`vanilla` is used twice"),
        (&"[[combine]]\na = {}\nb = {}\nc = {}\n".repeat(7), "more than 1000 combinations"),
    ] {
        let said =
            parse(&bottleneck().replacen(from, &format!("{bad}{from}"), 1), &[]).unwrap_err().to_string();
        assert!(said.starts_with("x.toml:") && said.contains(wanted), "{bad}: {said}");
    }
}

#[test]
fn overrides_replace_and_merge() {
    let scenario = parse(&bottleneck(), &["duration = \"30 s\"", "underlay.fuzziness = 0.5"]).unwrap();
    assert_eq!(scenario.duration(), Span::from_secs(30));
    assert_eq!(scenario.file.underlay.fuzziness, 0.5);
    assert_eq!(scenario.file.underlay.delay, Span::from_millis(40), "the rest of the table stays");
    let error = parse(&bottleneck(), &["durations = \"30 s\""]).unwrap_err();
    assert_eq!(error.at, None);
    assert!(error.to_string().contains("`duration`?"), "{error}");
    // Alone the first one ends before the warm-up; with the second it does not.
    let good = ["duration = \"2 s\"", "warmup = \"1 s\""];
    let error = parse(&bottleneck(), &[good[0], good[1], "underlay.dely = \"20 ms\""]).unwrap_err();
    assert!(error.file.contains("underlay.dely") && error.to_string().contains("`delay`?"), "{error}");
    let error = parse(&bottleneck(), &good[..1]).unwrap_err();
    assert!(error.file.contains("duration"), "{error}");
    // This is found after all tables are read.
    let error = parse(&bottleneck(), &["system.vanilla.paths.compared = 3"]).unwrap_err();
    assert!(error.at.is_none() && error.file.contains("paths.compared"), "{error}");
}

#[test]
fn every_default_is_written_back() {
    let scenario = parse(&bottleneck(), &[]).unwrap();
    let written = toml::to_string(&scenario.file).unwrap();
    for spelled in
        ["rto-max = \"2 min\"", "scheduler = \"round-robin\"", "drop-fractions = false", "seed = 1"]
    {
        assert!(written.contains(spelled), "{spelled} in\n{written}");
    }
    let again = parse(&written, &[]).unwrap();
    assert_eq!(toml::to_string(&again.file).unwrap(), written, "reading it back changes nothing");
    assert!(serde_json::to_value(&scenario.file).unwrap()["system"][0]["tcp"]["mss"].is_u64());
}

#[test]
fn random_networks_depend_on_the_seed_alone() {
    let text = "duration = \"3 s\"\n[random]\nrelays = 50\nrelay-link = [\"5 Mbit/s\", \"50 Mbit/s\"]\n\
        [[system]]\nname = \"vanilla\"\n[[user]]\nname = \"bulk\"\ncount = 100\ntraffic = \"bulk\"\n";
    let scenario = parse(text, &[]).unwrap();
    let build = |seed| format!("{:?}", crate::network::build(&scenario, Seed::root(seed)).unwrap().plan);
    assert_eq!(build(1), build(1));
    assert_ne!(build(1), build(2));
    let fuzzy = parse(text, &["underlay.fuzziness = 1.0"]).unwrap();
    let fuzzy = crate::network::build(&fuzzy, Seed::root(1)).unwrap();
    assert_eq!(fuzzy.plan.paths.locations(), 50, "each relay has its own access delay");
    assert_eq!(fuzzy.users.len(), 100);
    assert_eq!(fuzzy.users[99], "bulk100");
}

#[test]
fn trains_without_a_link_that_carries_them_are_refused() {
    let text = "duration = \"3 s\"\n[random]\nrelays = 5\nrelay-link = \"5 Mbit/s\"\n\
        [[system]]\nname = \"vanilla\"\ntcp.fidelity = \"train\"\n[[user]]\nname = \"bulk\"\ntraffic = \"bulk\"\n";
    let built =
        |overrides: &[&str]| crate::network::build(&parse(text, overrides).unwrap(), Seed::root(1)).map(drop);
    assert!(built(&[]).is_ok());
    let refused = built(&["random.queue = \"codel\""]).unwrap_err();
    assert!(refused.cause.contains("`fidelity` = \"train\" has no effect"), "{refused}");
    assert!(built(&["random.queue = \"codel\"", "system.vanilla.tcp.fidelity = \"packet\""]).is_ok());
}

#[test]
fn tor_without_files_is_the_built_in_model() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let scenario = parse(text, &[]).unwrap();
    let build = |seed| crate::network::build(&scenario, Seed::root(seed)).unwrap();
    let network = build(1);
    let plan = &network.plan;
    let relays = plan.hosts.iter().filter(|host| host.name.starts_with("relay")).count();
    assert!((60..90).contains(&relays), "1 % of 7,195 relays: {relays}");
    assert_eq!(network.users.len(), 1330 + 133 + 60, "1 % of Tor's, and the benchmark");
    let fetched = text.replace("traffic = \"benchmark\"", "traffic = \"download\"");
    assert_eq!((scenario.benchmark(), parse(&fetched, &[]).unwrap().benchmark()), ("benchmark", "download"));
    assert_eq!(plan.directory.relays.len(), relays, "all are usable");
    assert!(plan.directory.relays.iter().all(|relay| (relay.id.0 as usize) < relays && relay.weight > 0.0));
    assert!(plan.paths.locations() > 5, "places in several countries");
    assert_eq!(format!("{plan:?}"), format!("{:?}", build(1).plan));
    let said = parse(text, &["tor.fraction = 7.0"]).unwrap_err().to_string();
    assert!(said.contains("`fraction` is not in >0..=1"), "{said}");
    let line = text.lines().position(|line| line == "fraction = 0.01").unwrap() + 2;
    for bad in ["-1.0", "0.0", "1e9"] {
        let text = text.replace("fraction = 0.01", &format!("fraction = 0.01\nbandwidth-factor = {bad}"));
        let said = parse(&text, &[]).unwrap_err().to_string();
        let cause = format!("x.toml:{line}:20: `bandwidth-factor` is not in 0.0001..=1000");
        assert!(said.starts_with(&cause), "{said}");
        assert!(said.contains("the default is 1.0"), "{said}");
    }
    let as_weight = |factor: &str| {
        let scenario = parse(text, &["tor.capacity = \"weight\"", factor]).unwrap();
        crate::network::build(&scenario, Seed::root(1)).unwrap().plan
    };
    let (plan, slow) = (as_weight("tor.bandwidth-factor = 1.0"), as_weight("tor.bandwidth-factor = 0.1"));
    let rate =
        |plan: &tidegate_sim::plan::Plan| plan.hosts.iter().map(|host| host.up.rate.0).collect::<Vec<u64>>();
    let mut both = rate(&plan).into_iter().zip(rate(&slow)).zip(&plan.hosts);
    // Above the floor of 50 kB/s.
    assert!(
        both.all(|((all, tenth), host)| !host.name.starts_with("relay") || tenth == (all / 10).max(500_000))
    );
    let said = parse(text, &["tor.year = 1999"]).unwrap_err().to_string();
    assert!(said.contains("no built-in model of this `year`") && said.contains("2011"), "{said}");
    let said = parse(text, &["tor.consensus = \"/nowhere\""]).unwrap_err().to_string();
    assert!(said.starts_with("/nowhere: "), "{said}");
}

#[test]
fn users_are_placed_and_hosts_have_queues_and_processors_as_told() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let place = "countries = [\"nl\", \"hk\"]\nown-server = true\n";
    let placed = text.replace("traffic = \"benchmark\"\n", &format!("traffic = \"benchmark\"\n{place}"));
    assert_ne!(placed, text);
    let keys = ["tor.queue = \"shadow\"", "tor.queue-down = \"codel\"", "tor.cell-cost = \"1 ms\""];
    let scenario = parse(&placed, &[&keys[..], &["tor.cell-cost-share = 0.25"]].concat()).unwrap();
    let plan = crate::network::build(&scenario, Seed::root(1)).unwrap().plan;
    let benchmark: Vec<_> = plan.users.iter().filter(|user| user.class == "benchmark").collect();
    let location = |host: u32| plan.hosts[host as usize].location;
    let places: Vec<u32> = benchmark.iter().map(|user| location(user.host)).collect();
    assert!(places[0] != places[1] && places.chunks(2).all(|two| two == &places[..2]), "in turn");
    assert!(benchmark.iter().all(|user| location(user.servers[0]) == location(user.host)), "beside them");
    let queues = |host: &tidegate_sim::plan::HostPlan| (host.up.queue, host.down.queue);
    use tidegate_sim::plan::QueuePlan::{CoDel, Shadow};
    assert!(plan.hosts.iter().all(|host| matches!(queues(host), (Shadow, CoDel { .. }))));
    let costs = plan.hosts.iter().filter_map(|host| match &host.role {
        Role::Relay(limits) => Some(limits.cell_cost > Span::ZERO),
        _ => None,
    });
    let slow: Vec<bool> = costs.collect();
    let share = slow.iter().filter(|slow| **slow).count() as f64 / slow.len() as f64;
    assert!((0.1..0.4).contains(&share), "{share}");

    let scenario = parse(text, &["tor.limit-by-bucket = true"]).unwrap();
    let plan = crate::network::build(&scenario, Seed::root(1)).unwrap().plan;
    let below = |host: &tidegate_sim::plan::HostPlan| match &host.role {
        Role::Relay(_) => (host.capacity() / (host.up.rate.as_bytes_per_s() / 1.25) - 1.0).abs() < 1e-3,
        _ => true,
    };
    assert!(plan.hosts.iter().all(below), "the link is a quarter faster than the bucket");
    assert_eq!(scenario.systems[0].tls.record_cells, 8, "tor's records of 4 KiB");

    let nowhere = placed.replace("\"hk\"", "\"zz\"");
    let said = parse(&nowhere, &[]).unwrap_err().to_string();
    assert!(said.contains("unknown country `zz`"), "{said}");
    let named = bottleneck().replace("[[user]]\n", &format!("[[user]]\n{place}"));
    let said = parse(&named, &[]).unwrap_err().to_string();
    assert!(said.contains("`countries` and `own-server`"), "{said}");
}

#[test]
fn tor_of_2011_is_slower() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let capacity = |overrides: &[&str]| -> u64 {
        let network = crate::network::build(&parse(text, overrides).unwrap(), Seed::root(1)).unwrap();
        let relays = network.plan.hosts.iter().filter(|host| matches!(host.role, Role::Relay(_)));
        relays.map(|host| host.capacity() as u64).sum()
    };
    let (of_2024, of_2011) =
        (capacity(&["tor.relays = 50"]), capacity(&["tor.relays = 50", "tor.year = 2011"]));
    // Means of the two consensuses: 11,794 and 2,053 kB/s.
    assert!((3.0..12.0).contains(&(of_2024 as f64 / of_2011 as f64)), "{of_2024} {of_2011}");
}

proptest! {
    #[test]
    fn noise_is_refused(text in "(\\[+[a-z]{1,8}\\]+\n|[a-z-]{1,8} = [\"a-z0-9 .\\[\\]{}-]{0,12}\n|.{0,20}\n){0,30}") {
        let _ = parse(&text, &[]);
    }

    #[test]
    fn a_damaged_bottleneck_is_refused_or_read(at in 0usize..2200, junk in "[\"=\\[\\]{}a-z0-9. -]{0,6}") {
        let mut text = bottleneck();
        let at = at.min(text.len());
        if text.is_char_boundary(at) {
            let end = (at + 3).min(text.len());
            if text.is_char_boundary(end) {
                text.replace_range(at..end, &junk);
            }
            if let Ok(scenario) = parse(&text, &[]) {
                let _ = crate::network::build(&scenario, Seed::root(1));
            }
        }
    }
}

#[test]
fn load_and_users_scale_with_the_network() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let users = |overrides: &[&str]| {
        let scenario = parse(text, overrides).unwrap();
        scenario.file.users(scenario.file.user[0].get_ref())
    };
    assert_eq!((users(&[]), users(&["tor.fraction = 0.1"])), (1330, 13_300));
    assert_eq!((users(&["tor.load = 0.5"]), users(&["tor.relays = 144"])), (665, 2662));
    for (bad, said) in [("tor.load = 0.0", "`load` is not in"), ("tor.load = nan", "`load` is not a finite")]
    {
        let error = parse(text, &[bad]).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let text = text.replace("of-tor = 133_000", "of-tor = -1.0");
    let error = parse(&text, &[]).unwrap_err().to_string();
    assert!(error.contains("`of-tor` is not in"), "{error}");
}

#[test]
fn systems_differ_in_their_paths() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let with = |paths: &str| {
        parse(&text.replace("name = \"vanilla-2010\"", &format!("name = \"vanilla-2010\"\n{paths}")), &[])
    };
    let uniform = with("paths = { policy = \"uniform\", keep-guard = false }").unwrap();
    let network = crate::network::build(&uniform, Seed::root(1)).unwrap();
    let [tor, uniform] = [0, 1].map(|system| {
        let selector = Selector::new(&network.plan.directory, &uniform.systems[system].paths).unwrap();
        let mut random = Seed::root(1).random();
        (0..1000).map(|_| selector.draw(&mut random, &mut None)[1]).collect::<BTreeSet<_>>()
    });
    assert!(uniform.len() > tor.len(), "light relays are chosen as often as heavy ones");
    for (bad, said) in [
        ("paths = { policy = \"unifrom\" }", "did you mean `uniform`?"),
        ("paths = { policy = \"bandwidth-file\" }", "needs a `file`"),
        ("paths = { policy = \"bandwidth-file\", file = \"/nowhere\" }", "/nowhere: cannot be read"),
        ("paths = { policy = \"pinned\" }", "needs `relays`"),
        ("paths = { file = \"/nowhere\" }", "`file` has no effect with `policy = \"tor\"`"),
        ("paths = { relays = [\"a\", \"b\", \"c\"] }", "`relays` has no effect with `policy = \"tor\"`"),
        ("paths = { build-timeout = \"0 s\" }", "`build-timeout` is zero"),
    ] {
        let error = with(bad).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let foreign = std::env::temp_dir().join(format!("tidegate-foreign-{}.bw", std::process::id()));
    std::fs::write(&foreign, format!("1500000000\nnode_id=${} bw=7\n", "AB".repeat(20))).unwrap();
    let keys = format!("paths = {{ policy = \"bandwidth-file\", file = {foreign:?} }}");
    let error = crate::network::build(&with(&keys).unwrap(), Seed::root(1)).unwrap_err().to_string();
    std::fs::remove_file(&foreign).unwrap();
    assert!(error.contains("names none of the network's"), "{error}");
    let nobody =
        with("paths = { policy = \"pinned\", relays = [\"relay1\", \"relay2\", \"nobody\"] }").unwrap();
    let error = crate::network::build(&nobody, Seed::root(1)).unwrap_err().to_string();
    assert!(error.contains("system `vanilla-2010`: no relay can be chosen as exit"), "{error}");
}

#[test]
fn systems_differ_in_their_balance() {
    let with = |keys: &str| {
        let text = include_str!("../../../../scenarios/tor.toml");
        parse(&text.replace("name = \"vanilla-2010\"", &format!("name = \"vanilla-2010\"\n{keys}")), &[])
    };
    let sbws = with("balance = \"sbws\"\nsbws = { downloads = 5 }\nsurvey = { files = 3 }").unwrap();
    assert!(sbws.systems[0].balance.is_given());
    assert_eq!((sbws.systems[1].balance.asks().probes, sbws.systems[1].survey.files), (5, 3));
    for (bad, said) in [
        ("balance = \"torflw\"", "did you mean `torflow`?"),
        ("torflow = { downloads = 0 }", "`downloads` is not in"),
        ("survey = { duration = \"1 s\" }", "`duration` is not in"),
        ("attack = { share = 0.9 }", "`share` is not in"),
        ("attack = { trick = \"lie\" }", "there is no trick `lie`"),
        ("flashflow = { rate = \"1 bit/s\" }", "`rate` is not in"),
    ] {
        let error = with(bad).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn attacks_and_surveys_that_cannot_act_are_refused() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let with = |keys: &str| parse(text, &[&format!("system.vanilla-2010 = {{ {keys} }}")]);
    let only = "has no effect with `balance = ";
    let praise = "which does not read relays' reports of each other";
    for (balance, key, said) in [
        ("torflow", "attack.trick = 'frame'", praise),
        ("self-reports", "attack.trick = 'frame'", praise),
        ("flashflow", "attack.trick = 'frame'", praise),
        ("eigenspeed", "attack.trick = 'hold'", "which does not measure relays under full load"),
        ("diprober", "attack.trick = 'flood'", "which does not measure relays under full load"),
        ("truth", "attack.trick = 'inflate'", "which does not survey the network"),
        (
            "peerflow",
            "attack.factor = 5",
            "`attack.factor` = 5.0 has no effect with `attack.trick = \"none\"`",
        ),
        (
            "flashflow",
            "attack = { trick = 'hold', factor = 5 }",
            "has no effect with `attack.trick = \"hold\"`",
        ),
        ("torflow", "attack = { trick = 'inflate', serves = 0.5 }", "or use trick = \"refuse\""),
        ("sbws", "survey.trusted = 0.5", "remove `trusted`, or use balance = \"eigenspeed\""),
        ("flashflow", "survey.duration = '20 s'", "change `flashflow.seconds`"),
        ("truth", "survey.files = 3", only),
    ] {
        let error = with(&format!("balance = '{balance}', {key}")).unwrap_err().to_string();
        assert!(error.contains("has no effect with") && error.contains(said), "{balance} {key}: {error}");
    }
    let place = text.replace(
        "name = \"vanilla-2010\"",
        "name = \"vanilla-2010\"\nbalance = \"sbws\"\nattack.trick = \"hold\"",
    );
    let line = place.lines().position(|line| line.starts_with("attack")).unwrap() + 1;
    let error = parse(&place, &[]).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("x.toml:{line}:16: system `vanilla-2010`: `attack.trick` = \"hold\"")),
        "{error}"
    );
    assert!(error.contains("a balance that this one reaches: \"flashflow\""), "{error}");
    let defaults = "attack = { trick = 'none', factor = 10.0, serves = 0.0 }, survey = { trusted = 0.2, duration = '60 s' }";
    assert!(with(&format!("balance = 'flashflow', {defaults}")).is_ok());
    // An attack on several systems may reach only some: the others are named.
    let both = parse(
        text,
        &[
            "every-system.attack.trick = 'hold'",
            "system.tor.balance = 'flashflow'",
            "system.vanilla-2010.balance = 'sbws'",
        ],
    )
    .unwrap();
    assert_eq!(
        both.idle_tables(),
        ["`attack.trick` = \"hold\" does not reach `vanilla-2010`: their relays are honest"]
    );
}

/// The refusal of the Tor scenario with these keys of its system `vanilla-2010`.
fn refused_at_tor(keys: &[&str]) -> String {
    parse(include_str!("../../../../scenarios/tor.toml"), keys).unwrap_err().to_string()
}

#[test]
fn keys_that_another_part_makes_idle_are_refused() {
    let tor = |keys: &str| {
        parse(
            include_str!("../../../../scenarios/tor.toml"),
            &[&format!("system.vanilla-2010 = {{ {keys} }}")],
        )
    };
    let kist = "channel-scheduler = 'kist'";
    let quic = "transport = 'quic'";
    for (part, key) in [
        (kist, "output-buffer.high = '64 KiB'"),
        (kist, "output-buffer.low = '1 KiB'"),
        ("channel-scheduler = 'kist', transport = 'quic'", "kist.buffer-factor = 2.0"),
        ("channel-scheduler = 'kist', transport = 'quic'", "kist.counts-unsent = false"),
        (quic, "tls.record-cells = 1"),
        (quic, "tls.record-overhead = '0 B'"),
        ("transport = 'pctcp'", "tls.standing = true"),
        ("balance = 'given'", "paths.least-build-timeout = '1 s'"),
        ("paths.learn-build-timeout = true", "paths.build-timeout = '9 s'"),
    ] {
        let error = tor(&format!("tls.standing = false, {part}, {key}")).map(|_| ());
        let error = match key {
            "tls.standing = true" => tor(&format!("{part}, {key}")).map(|_| ()),
            _ => error,
        };
        let error = error.unwrap_err().to_string();
        let name = key.split(' ').next().unwrap();
        assert!(error.contains(&format!("system `vanilla-2010`: `{name}` = ")), "{error}");
        assert!(error.contains("has no effect with"), "{error}");
    }
    // Where the keys act, and their defaults.
    for keys in [
        "channel-scheduler = 'kist', transport = 'quic', output-buffer.high = '64 KiB'",
        "channel-scheduler = 'kist', switching = 'circuit', output-buffer.high = '64 KiB'",
        "transport = 'quic', pctcp.upgraded = 0.5, tls.record-cells = 1",
        "transport = 'quic', tls.record-cells = 31",
        "transport = 'quic', kist.buffer-factor = 2.0",
        "paths.build-timeout = 'never'",
    ] {
        assert!(tor(keys).is_ok(), "{keys}: {:?}", tor(keys).unwrap_err());
    }
    let shared = "every-system.output-buffer.high = '64 KiB'";
    let scenario = parse(include_str!("../../../../scenarios/tor.toml"), &[shared]);
    assert!(scenario.is_ok(), "one system without KIST");
}

#[test]
fn keys_of_a_tor_network_without_effect_are_refused() {
    let weights = "tor.capacity = \"/nowhere\"";
    for (keys, said) in [
        (&["underlay.delay = \"90 ms\""][..], "`delay` has no effect beside [tor], which places hosts"),
        (&["underlay.fuzziness = 0.5"], "`fuzziness` has no effect beside [tor]"),
        (&["underlay.file = \"/nowhere\""], "name the file in `tor.latency`"),
        (&["tor.year = 2011", weights], "`year` has no effect beside a table as `capacity`"),
        (&["tor.year = 2011", "tor.consensus = \"/nowhere\""], "`year` has no effect beside `consensus`"),
        (&["tor.cell-cost-share = 0.5"], "`cell-cost-share` has no effect without `cell-cost`"),
        (&["tor.count-exit-connections = true"], "add `limit-by-bucket = true`"),
        (&["system.vanilla-2010.connection-half-life = \"9 s\""], "no effect without token buckets"),
    ] {
        let error = refused_at_tor(keys);
        assert!(error.contains(said), "{keys:?}: {error}");
    }
    let place = include_str!("../../../../scenarios/tor.toml")
        .replace("[tor]\n", "[underlay]\ndelay = \"90 ms\"\n[tor]\n");
    let line = place.lines().position(|line| line.starts_with("delay")).unwrap() + 1;
    let error = parse(&place, &[]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("x.toml:{line}:1: `delay`")), "{error}");
    for keys in [
        &["underlay.delay = \"40 ms\"", "underlay.loss = 0.01"][..],
        &["tor.year = 2024", "tor.cell-cost-share = 1.0"],
        &[
            "tor.limit-by-bucket = true",
            "tor.count-exit-connections = true",
            "system.vanilla-2010.connection-half-life = \"9 s\"",
        ],
    ] {
        assert!(parse(include_str!("../../../../scenarios/tor.toml"), keys).is_ok(), "{keys:?}");
    }
}

#[test]
fn a_network_has_one_size() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let both = text.replace("fraction = 0.01", "fraction = 0.01\nrelays = 14");
    let error = parse(&both, &[]).unwrap_err().to_string();
    assert!(error.contains("`fraction` has no effect beside `relays`"), "{error}");
    let fraction = |text: &str, keys: &[&str]| parse(text, keys).unwrap().file.tor.unwrap().fraction;
    let few = fraction(text, &["tor.relays = 14"]);
    assert!((0.001..0.003).contains(&few), "{few}");
    let relays = text.replace("fraction = 0.01", "relays = 14");
    assert_eq!(fraction(&relays, &["tor.fraction = 0.05"]), 0.05, "the override counts");
    let written = toml::to_string(&parse(&relays, &[]).unwrap().file).unwrap();
    assert_eq!(fraction(&written, &[]), few, "a scenario that the tool wrote has both");
    let error = parse(&relays, &["tor.relays = 100000"]).unwrap_err().to_string();
    assert!(error.contains("`relays` is 100000, but the whole network has"), "{error}");
}

#[test]
fn keys_of_users_traffic_and_faults_without_effect_are_refused() {
    let fault = |keys: &str| format!("fault = [{{ from = \"1 s\", {keys} }}]");
    for (key, said) in [
        (
            "user.circuit1.keep-guard = false".to_owned(),
            "`keep-guard` has no effect for a user with given relays",
        ),
        (
            "traffic.x = { requests = [{ size = \"1 KB\" }], timeout = \"1 s\" }".into(),
            "set the `timeout` of each",
        ),
        (
            "traffic.x = { requests = [{ size = \"1 KB\" }], pause = \"1 s\", every = \"2 s\" }".into(),
            "`pause` has no effect beside `every`",
        ),
        (
            fault("kind = \"drop\", between = [\"entry1\", \"btlnk\"], probability = 0.1, extra = \"1 s\""),
            "`extra` has",
        ),
        (
            fault("kind = \"drop\", between = [\"entry1\", \"btlnk\"], probability = 0.1, lie = \"greedy\""),
            "`lie` has",
        ),
        (
            fault("kind = \"drop\", between = [\"entry1\", \"btlnk\"], probability = 0.1, host = \"btlnk\""),
            "`host` has",
        ),
        (
            fault("kind = \"delay\", between = [\"entry1\", \"btlnk\"], extra = \"1 s\", probability = 0.1"),
            "`probability` has",
        ),
        (
            fault("kind = \"host-down\", host = \"btlnk\", between = [\"entry1\", \"btlnk\"]"),
            "`between` has no effect on a fault of this",
        ),
        (fault("kind = \"partition\", between = [\"btlnk\", \"btlnk\"]"), "between two hosts on one machine"),
    ] {
        let error = parse(&bottleneck(), &[&key]).unwrap_err().to_string();
        assert!(error.contains(said), "{key}: {error}");
    }
}

#[test]
fn keys_of_paths_that_nobody_draws_are_refused() {
    for (key, name) in [
        ("policy = \"uniform\"", "policy"),
        ("keep-guard = false", "keep-guard"),
        ("exclude-families = false", "exclude-families"),
        ("exclude-networks = false", "exclude-networks"),
    ] {
        let scenario = parse(&bottleneck(), &[&format!("system.vanilla.paths.{key}")]).unwrap();
        let error = crate::network::build(&scenario, Seed::root(1)).unwrap_err().to_string();
        let wanted = format!("system `vanilla`: `paths.{name}` has no effect: every user has a `path`");
        assert!(error.contains(&wanted), "{error}");
    }
    let random = "duration = \"3 s\"\n[random]\nrelays = 5\nrelay-link = \"5 Mbit/s\"\n[[system]]\nname = \"x\"\n\
        paths.keep-guard = false\n[[user]]\nname = \"bulk\"\ntraffic = \"bulk\"\n";
    let error = crate::network::build(&parse(random, &[]).unwrap(), Seed::root(1)).unwrap_err();
    assert!(error.to_string().contains("[random] draws every user's relays"), "{error}");
}

#[test]
fn traffic_that_no_user_has_is_named() {
    let idle = parse(&bottleneck(), &["traffic.x.requests = [{ size = \"1 KB\" }]"]).unwrap().idle_tables();
    assert_eq!(idle, ["`traffic.x` has no effect here: no user has this traffic"]);
}

#[test]
fn keys_of_a_host_on_the_machine_of_another_are_refused() {
    for kind in ["relay", "server", "client"] {
        for key in [
            "queue = \"2 packets\"",
            "queue-down = \"2 packets\"",
            "access-delay = \"9 ms\"",
            "up = \"1 Mbit/s\"",
            "link = \"1 Mbit/s\"",
        ] {
            let host = format!("[[{kind}]]\nname = \"x\"\nat = \"btlnk\"\n{key}\n\n[[user]]");
            let said = complaint("[[user]]", &host);
            let wanted =
                ["beside `at`: the host is on the machine of `btlnk`", "has both `at` and a link of its own"];
            assert!(wanted.iter().any(|wanted| said.contains(wanted)), "{kind} {key}: {said}");
        }
    }
}

#[test]
fn capacities_are_not_weights_and_classes_have_their_shares() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let plan = |overrides: &[&str], seed| {
        crate::network::build(&parse(text, overrides).unwrap(), Seed::root(seed)).unwrap().plan
    };
    let shares = |plan: &tidegate_sim::plan::Plan| {
        let relays = &plan.directory.relays;
        let of = |class: Class, value: &dyn Fn(&RelayEntry) -> f64| {
            let sum = |all: bool| -> f64 {
                relays.iter().filter(|relay| all || relay.class == class).map(value).sum()
            };
            sum(false) / sum(true)
        };
        let capacity = |relay: &RelayEntry| plan.hosts[relay.id.0 as usize].capacity();
        Class::ALL.map(|class| (of(class, &|relay| relay.weight), of(class, &capacity)))
    };
    let (one, other) = (shares(&plan(&[], 1)), shares(&plan(&[], 2)));
    for ((weight, _), (of_other, _)) in one.iter().zip(&other) {
        assert!((weight - of_other).abs() < 1e-6, "every sample has the whole network's shares");
    }
    let same = |plan: &tidegate_sim::plan::Plan| {
        let capacity =
            |relay: &RelayEntry| plan.hosts[relay.id.0 as usize].capacity() / relay.weight / 1000.0;
        plan.directory.relays.iter().filter(|relay| (capacity(relay) - 1.0).abs() < 0.01).count()
    };
    let as_weight = plan(&["tor.capacity = \"weight\""], 1);
    assert!(same(&as_weight) > as_weight.directory.relays.len() * 9 / 10);
    assert!(same(&plan(&[], 1)) < 10);
    let said = parse(text, &["tor.capacity = \"/nowhere\""]).unwrap_err().to_string();
    assert!(said.starts_with("/nowhere: "), "{said}");
    let said = parse(text, &["tor.utilisation = 1.5"]).unwrap_err().to_string();
    assert!(said.contains("`utilisation` is not in"), "{said}");
}

#[test]
fn a_system_obeys_the_consensus() {
    let text = include_str!("../../../../scenarios/tor.toml");
    let tor = |overrides: &[&str]| parse(text, overrides).unwrap().systems[0].clone();
    let of_2024 = tor(&[]);
    assert_eq!(of_2024.kist.map(|kist| kist.interval), Some(Span::from_millis(3)));
    let control = format!("{:?}", of_2024.control);
    let said =
        ["minimum: 124", "increment: 1,", "slow_start_cap: 600", "alpha: 186", "beta: 248", "full_gap: 4"];
    assert!(said.iter().all(|said| control.contains(said)), "{control}");
    assert_ne!(format!("{:?}", of_2024.control), format!("{:?}", tor(&["tor.year = 2011"]).control));
    assert!(tor(&["tor.year = 2011"]).kist.is_none(), "KIST came in 2017");
    let said = parse(
        &bottleneck().replacen("name = \"vanilla\"", "name = \"vanilla\"\nof-consensus = true", 1),
        &[],
    );
    assert!(said.unwrap_err().to_string().contains("`of-consensus` needs a consensus"));
}

#[test]
fn a_score_has_a_hundred_downloads_of_each_size_and_cuts_none_off() {
    use tidegate_sim::plan::Traffic;

    let scenario = parse(include_str!("../../../../scenarios/tor-score.toml"), &[]).unwrap();
    assert_eq!(scenario.benchmark(), "benchmark");
    let plan = crate::network::build(&scenario, Seed::root(1)).unwrap().plan;
    let (mut begun, mut expected) = (0.0, std::collections::BTreeMap::new());
    for user in plan.users.iter().filter(|user| user.class == "benchmark") {
        let Traffic::Fetch { requests, every: Some(every), .. } = &user.traffic else { panic!("{user:?}") };
        // Downloads count if they begin between the warm-up and `stop`.
        let starts = (0..).map(|number| user.start + *every * number).take_while(|start| *start < user.stop);
        let counted = starts.filter(|start| start.0 >= scenario.warmup().0);
        let downloads = counted.count() as f64;
        let weights: f64 = requests.iter().map(|request| request.weight).sum();
        for request in requests {
            *expected.entry(request.bytes).or_default() += downloads * request.weight / weights;
            assert!(user.stop + request.timeout <= tidegate_control::units::Time::ZERO + plan.duration);
        }
        begun += downloads;
    }
    assert!(expected.len() == 3 && expected.values().all(|n: &f64| *n > 105.0), "{expected:?} of {begun}");
}
