//! Every documented key has an effect: it changes the digest of a run in a scenario where it matters, or it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tidegate_lab::input::SourceFile;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::run_once;
use tidegate_lab::scenario::{Scenario, keys};

struct Nobody;

impl Monitor for Nobody {}

/// A case per line.
const CASES: &str = include_str!("keys.txt");

/// Keys without a case, and why.
const OTHERS: [(&str, &str); 28] = [
    ("name", "names the folder of the results"),
    ("title", "a line of the report"),
    ("client[].name", "a name"),
    ("relay[].name", "a name"),
    ("server[].name", "a name"),
    ("system[].name", "a name"),
    ("user[].name", "a name"),
    ("client[].location", "needs a file: `locations_come_from_the_file` and crates/data"),
    ("relay[].location", "needs a file"),
    ("server[].location", "needs a file"),
    ("client[].bandwidth.burst", "clients have no token bucket: the table is refused"),
    ("client[].bandwidth.drop-fractions", "refused with the table"),
    ("client[].bandwidth.refill", "refused with the table"),
    ("client[].bandwidth.retry", "refused with the table"),
    ("client[].bandwidth.servers", "refused with the table"),
    ("server[].bandwidth.burst", "servers have no token bucket: the table is refused"),
    ("server[].bandwidth.drop-fractions", "refused with the table"),
    ("server[].bandwidth.refill", "refused with the table"),
    ("server[].bandwidth.retry", "refused with the table"),
    ("server[].bandwidth.servers", "refused with the table"),
    ("system[].paths.file", "a file: `tests::bandwidth_files`"),
    ("system[].paths.exclude-families", "needs a consensus with families: `families`"),
    ("system[].paths.exclude-networks", "needs a consensus with addresses: crates/proto paths::selector"),
    ("tor.shared-machines", "needs a consensus with addresses: `families`"),
    ("tor.compare", "a file that the report shows beside the results"),
    ("underlay.file", "a file: crates/data"),
    ("traffic.<name>.timeout", "of the models, which are files"),
    ("tor.utilisation", "settled before the runs: `load::settle`"),
];

/// Keys that name files; tests beside their readers vary them.
const FILES: [&str; 6] = [
    "tor.consensus",
    "tor.geoip",
    "tor.latency",
    "tor.microdescriptors",
    "traffic.<name>.packet-model",
    "traffic.<name>.stream-model",
];

const TRAFFIC: &str = "[traffic.page]\nrequests = [{ size = \"60 KB\" }]\npause = \"300 ms\"\n\
    [traffic.file]\nrequests = [{ size = \"1 MB\" }]\n";
/// Small socket buffers, so that queues are in the relays.
const SYSTEM: &str = "[[system]]\nname = \"x\"\ntcp.send-buffer = \"32 KiB\"\n";

fn hosts(kind: &str, named: &[(&str, u32)]) -> String {
    let tables =
        named.iter().map(|(name, rate)| format!("[[{kind}]]\nname = \"{name}\"\nlink = \"{rate} Mbit/s\"\n"));
    tables.collect()
}

fn user(name: &str, count: u32, traffic: &str, client: &str) -> String {
    format!(
        "[[user]]\nname = \"{name}\"\ncount = {count}\ntraffic = \"{traffic}\"\nclient = \"{client}\"\nserver = \"s\"\n"
    )
}

/// Five relays and two clients. The first draws its paths; the guard of the second is the bottleneck.
fn net() -> String {
    let path = "path = [\"r0\", \"r3\", \"r4\"]\n";
    let relays = hosts("relay", &[("r0", 20), ("r1", 3), ("r2", 4), ("r3", 12), ("r4", 16)]);
    format!(
        "duration = \"4 s\"\n[underlay]\ndelay = \"10 ms\"\n{TRAFFIC}{SYSTEM}{}{}{}{}{}{path}{}{path}",
        relays.replacen("link = \"20 Mbit/s\"", "up = \"3 Mbit/s\"\ndown = \"20 Mbit/s\"", 1),
        hosts("client", &[("c0", 20), ("c1", 20)]),
        hosts("server", &[("s", 100), ("s2", 1)]),
        user("page-c0", 2, "page", "c0") + &user("file-c0", 1, "file", "c0"),
        user("page-c1", 2, "page", "c1"),
        user("file-c1", 3, "file", "c1"),
    )
}

/// The scenario of a base.
fn scenario(base: &str) -> String {
    let system = |keys: &str| net().replace(SYSTEM, &format!("{SYSTEM}{keys}\n"));
    let tor = |size: &str| {
        format!(
            "duration = \"4 s\"\n[tor]\nbandwidth-factor = 0.01\n{size}\n{TRAFFIC}[[system]]\nname = \"x\"\nsurvey = {{ duration = \"10 s\", users = 0.2 }}\n\
             flashflow = {{ seconds = 2, sockets = 8 }}\n\
             [[user]]\nname = \"web\"\ncount = 6\ntraffic = \"page\"\n[[user]]\nname = \"bulk\"\ncount = 3\n\
             traffic = \"file\"\n"
        )
    };
    match base {
        "net" => net(),
        // Hosts on the machines of others.
        "at" => {
            let at = |kind: &str, name: &str| format!("[[{kind}]]\nname = \"{name}\"\nat = \"r0\"\n");
            let all = at("relay", "r5") + &at("client", "c2") + &at("server", "s3") + "[[client]]";
            let user = user("page-c2", 6, "page", "c2").replace("\"s\"", "\"s3\"");
            net().replacen("[[client]]", &all, 1) + &user
        }
        "fault" => net() + "[[fault]]\nkind = \"drop\"\nbetween = [\"c0\", \"s\"]\nprobability = 0.1\n",
        "bucket" => net().replace(
            "name = \"r0\"\n",
            "name = \"r0\"\nbandwidth = { rate = \"1 Mbit/s\", burst = \"30 KB\" }\n",
        ),
        "predictor" => system("control = \"predictor\""),
        "vegas" => system("control = \"vegas\""),
        "conflux" => system("control = \"vegas\"\nconflux = \"q-learning\"").replace("\"4 s\"", "\"10 s\""),
        "switch" => system("switch.rest = \"1 s\"").replace("\"4 s\"", "\"8 s\""),
        "two" => net().replace(
            SYSTEM,
            &format!(
                "{SYSTEM}{}control = \"vegas\"\n{}windows.circuit = 300\n",
                SYSTEM.replace("\"x\"", "\"y\""),
                SYSTEM.replace("\"x\"", "\"z\"")
            ),
        ),
        // Each request has a circuit of its own.
        "short" => net()
            .replace("size = \"60 KB\"", "size = \"1 KB\"")
            .replace("pause = \"300 ms\"\n", "pause = \"20 ms\"\ncircuit-lifetime = \"0 s\"\n"),
        "idle" => net().replace("pause = \"300 ms\"", "pause = \"1500 ms\""),
        "shares" => net() + &user("one", 1, "page", "c0") + &user("other", 1, "page", "c0"),
        "random" => format!(
            "duration = \"4 s\"\n[random]\nrelays = 6\nrelay-link = \"2 Mbit/s\"\n{TRAFFIC}{SYSTEM}[[user]]\nname = \"u\"\n\
             count = 6\ntraffic = \"file\"\n"
        ),
        "tor" | "spread" => tor("relays = 14"),
        "of-tor" => tor("relays = 14").replacen("count = 6", "of-tor = 4000.0", 1),
        "fraction" => tor("fraction = 0.002"),
        other => panic!("no base `{other}`"),
    }
}

/// The digest and the summary of the first system's run, or the refusal.
fn run(base: &str, overrides: &[&str]) -> Result<(u64, String), String> {
    let source = SourceFile { file: "x.toml".into(), text: scenario(base) };
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let scenario = Scenario::parse(source, PathBuf::new(), &overrides).map_err(|error| error.to_string())?;
    let run = run_once(&scenario, 0, scenario.file.seed, &Nobody).map_err(|error| error.to_string())?;
    let run = run.expect("nobody stops it");
    Ok((run.digest, run.metrics.summary.to_string()))
}

/// The overrides in a column.
fn statements(column: &str) -> Vec<&str> {
    column.split("; ").map(str::trim).filter(|text| !text.is_empty()).collect()
}

#[test]
fn every_documented_key_has_an_effect() {
    let cases: Vec<Vec<&str>> = CASES
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let mut known = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut tried: BTreeSet<&str> = OTHERS.iter().map(|(key, _)| *key).chain(FILES).collect();
    for case in &cases {
        let [key, base, before, change] = case[..] else { panic!("{case:?} has not four columns") };
        tried.insert(key);
        let (base, summary) = base.split_once(' ').map_or((base, false), |(base, _)| (base, true));
        let before = statements(before);
        if let Some(change) = change.strip_prefix('!') {
            if run(base, &[&before[..], &statements(change)].concat()).is_ok() {
                wrong.push(format!("{key}: `{change}` is accepted"));
            }
            continue;
        }
        let reference =
            known.entry((base.to_owned(), before.concat())).or_insert_with(|| run(base, &before)).clone();
        let changed = run(base, &[&before[..], &statements(change)].concat());
        match (reference, changed) {
            (Ok(one), Ok(other)) if one.0 != other.0 || summary && one.1 != other.1 => {}
            (Ok(_), Ok(_)) => wrong.push(format!("{key}: `{change}` changes nothing")),
            (Err(why), _) | (_, Err(why)) => wrong.push(format!("{key}: {why}")),
        }
    }
    for key in keys::find("").into_iter().filter(|key| !key.table && !tried.contains(key.path.as_str())) {
        wrong.push(format!("{} has no case in keys.txt", key.path));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
