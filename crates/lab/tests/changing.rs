//! Tests of mixed clients, churn, daily load, onion services and relays that share a machine.

use std::path::PathBuf;

use tidegate_lab::input::SourceFile;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::{Run, run_once};
use tidegate_lab::scenario::Scenario;

struct Nobody;

impl Monitor for Nobody {}

fn parse(text: &str) -> Result<Scenario, String> {
    let source = SourceFile { file: "x.toml".into(), text: text.into() };
    Scenario::parse(source, PathBuf::new(), &[]).map_err(|error| error.to_string())
}

/// The first system on the first seed's network.
fn run(text: &str) -> Run {
    run_once(&parse(text).unwrap(), 0, 1, &Nobody).unwrap().unwrap()
}

/// Named relays, a client and a server, 20 ms apart.
fn network(relays: u32, system: &str, users: &str) -> String {
    let links = "link = \"20 Mbit/s\"\n";
    let relays = (0..relays).map(|n| format!("[[relay]]\nname = \"r{n}\"\n{links}"));
    format!(
        "duration = \"20 s\"\n{system}\n[underlay]\ndelay = \"20 ms\"\n{}[[client]]\nname = \"c\"\n{links}\
         [[server]]\nname = \"s\"\n{links}[traffic.page]\nrequests = [{{ size = \"20 KiB\", timeout = \"5 s\" }}]\n\
         pause = \"500 ms\"\n{users}",
        relays.collect::<String>()
    )
}

const PAGES: &str = "[[user]]\nname = \"u\"\ntraffic = \"page\"\nclient = \"c\"\nserver = \"s\"\n";

fn system(keys: &str) -> String {
    format!("[[system]]\nname = \"x\"\n{keys}\n")
}

#[test]
fn old_clients_have_fixed_windows() {
    let digest = |keys: &str| run(&network(5, &system(keys), PAGES)).digest;
    let (windows, vegas) = (digest("control = \"windows\""), digest("control = \"vegas\""));
    assert_ne!(windows, vegas);
    assert_eq!(digest("control = \"vegas\"\nold-clients = 1.0"), windows, "relays do as each client asks");
    assert_eq!(digest("control = \"vegas\"\nold-clients = 0.0"), vegas);
    let mixed = include_str!("../../../scenarios/changing.toml")
        .replace("duration = \"240 s\"", "duration = \"30 s\"");
    let classes = run(&mixed).metrics.transfers.classes.clone();
    let begun = |name: &str| classes.iter().find(|class| class.name == name).map_or(0, |class| class.begun);
    let (old, new) = (begun("web-old"), begun("web"));
    assert!(old > 0 && new > 0, "{old} old and {new} new");
    let said = parse(&network(5, &system("old-clients = 0.5"), PAGES)).unwrap_err();
    assert!(said.contains("already use the fixed windows"), "{said}");
}

#[test]
fn clients_of_another_system_are_as_that_one_has_them() {
    let systems = |keys: &str, other: &str| {
        system(keys) + "[[system]]\nname = \"other\"\n" + other + "\n[every-system]\nscheduler = \"ewma\"\n"
    };
    let digest = |keys: &str, other: &str| run(&network(12, &systems(keys, other), PAGES)).digest;
    let other = "windows = { circuit = 200 }\npaths = { keep-guard = false, build-timeout = \"3 s\" }";
    let (own, theirs) = (digest("control = \"vegas\"", other), digest(other, ""));
    assert_ne!(own, theirs);
    let mixed = |share: &str| {
        digest(&format!("control = \"vegas\"\nother-clients = {{ of = \"other\", share = {share} }}"), other)
    };
    assert_eq!((mixed("0.0"), mixed("1.0")), (own, theirs), "relays do as each client asks");
    for (keys, other, said) in [
        (
            "channel-scheduler = \"kist\"",
            "channel-scheduler = \"kist\"\ntransport = \"pctcp\"",
            "`transport` is \"vanilla\" in `x` and \"pctcp\" in `other`",
        ),
        ("", "tcp = { mss = 1000 }", "`tcp` is "),
        (
            "channel-scheduler = \"kist\"",
            "channel-scheduler = \"kist\"\ncontrol = \"predictor\"",
            "`control = \"predictor\"` also runs at relays",
        ),
        ("control = \"fixed-rate\"", "", "`control = \"fixed-rate\"` also runs at relays"),
        ("", "vegas = { alpha = 1 }", "clients of `other` do not differ"),
        ("", "control = \"vegas\"\nold-clients = 0.5", "at most two kinds of clients"),
    ] {
        let keys = format!("{keys}\nother-clients = {{ of = \"other\", share = 0.5 }}");
        let error = parse(&network(5, &systems(&keys, other), PAGES)).unwrap_err();
        assert!(error.starts_with("x.toml:") && error.contains(said), "{keys} {other}: {error}");
    }
    for (table, said) in [
        ("{ of = \"othr\", share = 0.5 }", "there is no other system `othr`"),
        ("{ of = \"x\", share = 0.5 }", "there is no other system `x`"),
        ("{ of = \"other\", share = 1.5 }", "`share` is not in 0..=1"),
        ("{ of = \"other\" }", "share"),
    ] {
        let keys = format!("other-clients = {table}");
        let error = parse(&network(5, &systems(&keys, "control = \"vegas\""), PAGES)).unwrap_err();
        assert!(error.contains(said), "{table}: {error}");
    }
}

#[test]
fn the_example_of_mixed_clients_has_both() {
    let text = include_str!("../../../scenarios/mixed-clients.toml");
    let short = text
        .replace("duration = \"60 s\"", "duration = \"15 s\"")
        .replace("fraction = 0.003", "fraction = 0.001");
    let scenario = parse(&short).unwrap();
    let mixed = scenario.systems.iter().position(|system| system.name == "half-and-half").unwrap();
    let classes = run_once(&scenario, mixed, 1, &Nobody).unwrap().unwrap().metrics.transfers.classes.clone();
    let begun = |name: &str| classes.iter().find(|class| class.name == name).map_or(0, |class| class.begun);
    assert!(begun("web") > 0 && begun("web-windows") > 0, "{} and {}", begun("web"), begun("web-windows"));
}

#[test]
fn a_way_to_an_onion_service_has_six_relays() {
    let first = |keys: &str| {
        let run = run(&network(40, &system(""), &format!("{PAGES}{keys}")));
        let busy = run.metrics.relays.iter().filter(|relay| relay.cells_processed > 0).count();
        let ttfb = run.metrics.summary["ttfb_s"]["page"]["p50"].as_f64().unwrap();
        (busy, ttfb)
    };
    let (straight, to_service) = (first(""), first("onion-service = true\n"));
    assert_eq!((straight.0, to_service.0), (3, 6));
    // CONNECTED and the response: two round trips, each three paths longer. One of the four ends at the exit's TCP.
    assert!((to_service.1 - straight.1 - 0.24).abs() < 0.01, "{straight:?} {to_service:?}");
    let said = parse(&network(
        5,
        &system(""),
        &format!("{PAGES}path = [\"r0\", \"r1\", \"r2\"]\nonion-service = true"),
    ));
    assert!(said.unwrap_err().contains("drop `path`"));
}

#[test]
fn relays_that_go_break_circuits_and_users_go_on() {
    let gives_up = "paths = { build-timeout = \"2 s\" }";
    let churn = "\n[relay-churn]\nup = \"10 s\"\ndown = \"3 s\"\n";
    let failed = |churn: &str| {
        let all = run(&network(12, &system(gives_up), &format!("{PAGES}count = 8\n{churn}")))
            .metrics
            .transfers
            .clone();
        let late =
            all.records.iter().filter(|record| record.last.is_some() && record.begun.as_secs_f64() > 15.0);
        (all.records.iter().filter(|record| record.timed_out).count(), late.count())
    };
    let ((still_failed, still_done), (failed, done)) = (failed(""), failed(churn));
    assert_eq!(still_failed, 0);
    assert!(failed > 5, "{failed} transfers failed");
    assert!(done > 0 && done < still_done, "{done} ended late, {still_done} where nothing breaks");
    let said = parse(&network(12, &system(""), &format!("{PAGES}{churn}"))).unwrap_err();
    assert!(said.contains("has no build timeout") && said.contains("learn-build-timeout"), "{said}");
}

#[test]
fn users_sleep_by_the_day() {
    let users = format!("{PAGES}count = 10\nday = \"10 s\"\nawake = [1.0, 0.5, 0.0, 0.2, 1.0]\n");
    let transfers = run(&network(5, &system(""), &users)).metrics.transfers.records.clone();
    let begun = |part: u64| {
        let in_part = |begun: f64| (begun % 10.0) as u64 / 2 == part;
        let users =
            transfers.iter().filter(|record| in_part(record.begun.as_secs_f64())).map(|record| record.user);
        users.collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert_eq!([0, 1, 2, 3, 4].map(begun), [10, 5, 0, 2, 10]);
    let said = parse(&network(5, &system(""), &format!("{PAGES}awake = [0.5, 1.5]"))).unwrap_err();
    assert!(said.starts_with("x.toml:") && said.contains("a value of `awake` is outside 0 to 1"), "{said}");
}

#[test]
fn relays_of_one_machine_share_its_links() {
    let rate = |second: &str| {
        // Without Nagle's rule, so that the links are the limit and not the windows.
        let text = network(6, &system("tcp = { nagle = false }"), "")
            .replace("[[relay]]\nname = \"r1\"\nlink = \"20 Mbit/s\"", second);
        let user = |name: &str, path: &str| {
            format!(
                "[[user]]\nname = \"{name}\"\ntraffic = \"bulk\"\npath = [{path}]\nclient = \"c\"\nserver = \"s\"\n"
            )
        };
        let users = user("a", "\"r2\", \"r0\", \"r3\"") + &user("b", "\"r4\", \"r1\", \"r5\"");
        let fast = text.replace("name = \"c\"\nlink = \"20", "name = \"c\"\nlink = \"90");
        let run = run(&format!(
            "{}{users}",
            fast.replace("name = \"s\"\nlink = \"20", "name = \"s\"\nlink = \"90")
        ));
        run.metrics.summary["throughput_total_bytes_per_s"].as_f64().unwrap() * 8e-6
    };
    let apart = rate("[[relay]]\nname = \"r1\"\nlink = \"20 Mbit/s\"");
    let together = rate("[[relay]]\nname = \"r1\"\nat = \"r0\"");
    assert!(apart > 20.0 && together < 19.0 && together > 12.0, "{apart} and {together} Mbit/s");
    let wrong = |keys: &str| {
        let text = network(6, &system(""), PAGES);
        parse(&text.replace("name = \"r1\"\nlink = \"20 Mbit/s\"", &format!("name = \"r1\"\n{keys}")))
            .unwrap_err()
    };
    assert!(wrong("at = \"r0\"\nlink = \"1 Mbit/s\"").contains("has both `at` and a link of its own"));
    assert!(wrong("at = \"r5\"").contains("there is no relay `r5`"), "only one above");
}
