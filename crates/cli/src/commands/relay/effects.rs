//! Tests: each key of a relay's configuration file changes the configuration that the relay runs with, or it is refused.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tidegate_control::random::Seed;
use tidegate_net::live::family_id;
use tidegate_proto::crypto::KeyLifetimes;
use tidegate_proto::defence::{DefenceParameters, OPTIONS};

use super::*;

/// A key, keys that both configurations have besides the shortest one, and keys that one of them has. `!`: it is refused.
const CASES: [(&str, &str, &str); 47] = [
    ("nickname", "", "nickname = \"b\""),
    ("listen", "", "listen = \"127.0.0.1:9002\""),
    ("address", "", "address = \"192.0.2.1:9001\""),
    ("keys", "", "keys = \"other.keys\""),
    ("threads", "", "threads = 2"),
    ("bandwidth", "", "bandwidth = \"8 Mbit/s\""),
    ("published-bandwidth", "directory.address = \"192.0.2.9:9\"", "published-bandwidth = \"8 Mbit/s\""),
    ("published-bandwidth", "", "!published-bandwidth = \"8 Mbit/s\""),
    ("system.kist.buffer-factor", KIST_OVER_QUIC, "!system.kist.buffer-factor = 2.0"),
    ("system.kist.counts-unsent", KIST_OVER_QUIC, "!system.kist.counts-unsent = false"),
    (
        "system.output-buffer.high",
        "system.channel-scheduler = \"kist\"",
        "!system.output-buffer.high = \"64 KiB\"",
    ),
    ("system.output-buffer.high", KIST_OVER_QUIC, "system.output-buffer.high = \"64 KiB\""),
    ("contact", "tor.authority = \"10.0.0.1:9\"", "contact = \"me\""),
    ("contact", "", "!contact = \"me\""),
    ("contact", "directory.address = \"192.0.2.9:9\"", "!contact = \"me\""),
    ("family", "tor.authority = \"10.0.0.1:9\"", "family = [\"0123456789ABCDEF0123456789ABCDEF01234567\"]"),
    (
        "family",
        "directory.address = \"192.0.2.9:9\"",
        "!family = [\"0123456789ABCDEF0123456789ABCDEF01234567\"]",
    ),
    ("family-keys", "tor.authority = \"10.0.0.1:9\"", "family-keys = [\"family\"]"),
    ("family-keys", "directory.address = \"192.0.2.9:9\"", "!family-keys = [\"family\"]"),
    ("exit-policy", "", "exit-policy = [\"accept *:80\"]"),
    ("exit-to-private-addresses", "exit-policy = [\"accept *:80\"]", "exit-to-private-addresses = true"),
    ("exit-to-private-addresses", "", "!exit-to-private-addresses = true"),
    ("exit-to-private-addresses", "exit-policy = [\"reject *:*\"]", "!exit-to-private-addresses = true"),
    ("extend-to-private-addresses", "", "extend-to-private-addresses = true"),
    ("status", "", "status = \"127.0.0.1:9100\""),
    ("status", "", "!status = \"127.0.0.1:9001\""),
    ("show-circuits", "status = \"127.0.0.1:9100\"", "show-circuits = true"),
    ("show-circuits", "", "!show-circuits = true"),
    ("drain", "", "drain = \"10 min\""),
    ("limits.extending", "", "!limits.extending = \"0 s\""),
    ("limits.without-circuits", "", "!limits.without-circuits = \"0.9 s\""),
    ("directory.address", "directory.address = \"192.0.2.9:9\"", "directory.address = \"192.0.2.9:8\""),
    ("directory.token", "directory.address = \"192.0.2.9:9\"", "directory.token = \"0123456789abcdef\""),
    ("tor.authority", "tor.authority = \"10.0.0.1:9\"", "tor.authority = \"10.0.0.2:9\""),
    (
        "tor.further-authorities",
        "tor.authority = \"10.0.0.1:9\"",
        "tor.further-authorities = [\"10.0.0.2:9\"]",
    ),
    (
        "tor.further-authorities",
        "tor.authority = \"10.0.0.1:9\"",
        "!tor.further-authorities = [\"10.0.0.1:9\"]",
    ),
    ("tor.allow-public-authority", "tor.authority = \"10.0.0.1:9\"", "!tor.allow-public-authority = true"),
    ("tor.authority", "", "!tor.authority = \"9.9.9.9:9\""),
    ("tor.allow-public-authority", "tor.authority = \"10.0.0.1:9\"", "!tor.authority = \"9.9.9.9:9\""),
    ("measurement.identity", MEASURED, "measurement.identity = \"other.key\""),
    ("measurement.allowed", MEASURED, "measurement.allowed = false"),
    (
        "measurement.coordinators",
        MEASURED,
        "measurement.coordinators = [\"ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"]",
    ),
    ("measurement.period", MEASURED, "measurement.period = \"2 h\""),
    ("measurement.background-percent", MEASURED, "measurement.background-percent = 10"),
    ("measurement.max-duration", MEASURED, "measurement.max-duration = \"40 s\""),
    ("measurement.identity", "", "!measurement.allowed = true"),
    ("threads", MEASURED, "!threads = 2"),
];

const KIST_OVER_QUIC: &str = "system.channel-scheduler = \"kist\"\nsystem.transport = \"quic\"";

const MEASURED: &str = "measurement.identity = \"own.key\"\nmeasurement.allowed = true\n\
    measurement.coordinators = [\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"]\n";

/// A folder with the key files that configurations name.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for name in ["own.key", "other.key"] {
            Identity::generate().save(&folder.join(name)).unwrap();
        }
        let family = folder.join("family");
        fs::write(&family, [&b"== ed25519v1-secret: fmly-id ==\0"[..], &[9; 64]].concat()).unwrap();
        fs::set_permissions(&family, fs::Permissions::from_mode(0o600)).unwrap();
        for name in ["relay.keys", "other.keys"] {
            keys::create(&folder.join(name)).unwrap();
        }
        Files(folder)
    }

    /// The configuration of a relay with these keys, or the reason of its refusal.
    fn run(&self, keys: &[&str]) -> Result<String, String> {
        let least = "nickname = \"a\"\nlisten = \"127.0.0.1:9001\"\nkeys = \"relay.keys\"";
        let mut table = Table::new();
        for text in [&[least], keys].concat() {
            merge(&mut table, toml::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}")));
        }
        let source = SourceFile { file: "relay.toml".into(), text: toml::to_string(&table).unwrap() };
        let keys = |path: &Path| keys::load(path, clock::unix());
        check(&source, &self.0, false, keys).map(shown).map_err(|why| why.to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Adds keys to a table. Tables in both are merged.
fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// All that a relay gets of its configuration.
fn shown(loaded: Loaded) -> String {
    let Loaded { listen, status, drain, settings } = loaded;
    let RelayConfig { nickname, address, keys, mut config, exit, extends, announce, .. } = settings;
    // It is drawn for each start.
    config.nonces = Seed::root(0);
    let (identity, lifetimes) = (keys.router.fingerprint(), keys.lifetimes);
    let measured = settings.measurement.map(|own| (own.identity.fingerprint(), own.permissions));
    let Operator { contact, family, family_keys } = settings.operator;
    let families: Vec<String> = family_keys.iter().map(|key| family_id(key)).collect();
    let defences = DefenceParameters::of_consensus(|name| settings.defences.get(name).copied());
    let exit = (exit.policy, exit.directories);
    format!(
        "{listen:?} {status:?} {nickname} {address:?} {identity:?} {lifetimes:?} {config:?} {exit:?} {extends:?} \
         {announce:?} {measured:?} {:?} {contact:?} {family:?} {families:?} {defences:?} {} {drain}",
        settings.published, settings.threads
    )
}

/// The keys that a reader names when it refuses `x`.
fn named(refusal: &str) -> Vec<String> {
    let (_, list) = refusal.split_once("expected ").expect("it names the keys");
    let list = list.lines().next().unwrap_or_default();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All keys of the file, except those of `[system]`.
fn keys() -> BTreeSet<String> {
    let of =
        |table: &str, keys: Vec<String>| keys.into_iter().map(move |key| format!("{table}{key}")).collect();
    let refused = |error: Option<toml::de::Error>| named(&error.unwrap().to_string());
    let values = |value: Value| value.as_object().unwrap().keys().cloned().collect();
    let permissions: Result<Permissions, _> = serde_json::from_str("{\"x\":1}");
    let mut all: Vec<Vec<String>> = vec![
        of("", refused(toml::from_str::<RelayFile>("x = 1").err())),
        of("directory.", refused(toml::from_str::<DirectoryFile>("x = 1").err())),
        of("tor.", refused(toml::from_str::<TorFile>("x = 1").err())),
        of("measurement.", named(&permissions.unwrap_err().to_string())),
        of("limits.", values(serde_json::to_value(Limits::default()).unwrap())),
        of("key-lifetimes.", values(serde_json::to_value(KeyLifetimes::default()).unwrap())),
        of("dos.", OPTIONS.iter().map(|(name, _)| (*name).to_owned()).collect()),
    ];
    all.push(vec!["measurement.identity".into()]);
    let tables = ["directory", "tor", "system", "limits", "dos", "key-lifetimes", "measurement"];
    all.into_iter().flatten().filter(|key| !tables.contains(&key.as_str())).collect()
}

/// Cases of keys that are numbers or times.
fn further_cases() -> Vec<(String, String, String)> {
    let mut cases = Vec::new();
    for key in serde_json::to_value(Limits::default()).unwrap().as_object().unwrap().keys() {
        let value = match key.as_str() {
            "memory" => "\"9 MiB\"",
            "extending" | "without-circuits" => "\"7 s\"",
            _ => "7",
        };
        cases.push((format!("limits.{key}"), String::new(), format!("limits.{key} = {value}")));
    }
    for key in serde_json::to_value(KeyLifetimes::default()).unwrap().as_object().unwrap().keys() {
        let change = format!("key-lifetimes.{key} = \"8 d\"");
        cases.push((format!("key-lifetimes.{key}"), String::new(), change));
    }
    for (name, allowed) in &OPTIONS {
        let on = ["DoSCircuitCreation", "DoSConnection", "DoSStreamCreation"].into_iter();
        let on = on.map(|defence| format!("dos.{defence}Enabled = 1"));
        let on: String = on.filter(|on| !on.contains(name)).map(|on| on + "\n").collect();
        // One of them is not the default.
        let values = [allowed.start() + 1, *allowed.start()].map(|value| format!("dos.{name} = {value}"));
        cases.push((format!("dos.{name}"), on + &values[1], values[0].clone()));
    }
    cases
}

#[test]
fn every_key_has_an_effect_or_is_refused() {
    let files = Files::new("keys");
    let fixed = CASES.iter().map(|(key, base, change)| [*key, *base, *change].map(str::to_owned).into());
    let cases: Vec<(String, String, String)> = fixed.chain(further_cases()).collect();
    let (mut wrong, mut tried) = (Vec::new(), BTreeSet::new());
    for (key, base, change) in &cases {
        tried.insert(key.clone());
        if let Some(refused) = change.strip_prefix('!') {
            if files.run(&[base, refused]).is_ok() {
                wrong.push(format!("{key}: `{refused}` is accepted"));
            }
            continue;
        }
        match (files.run(&[base]), files.run(&[base, change])) {
            (Ok(before), Ok(after)) if before != after => {}
            (Ok(_), Ok(_)) => wrong.push(format!("{key}: `{change}` changes nothing")),
            (Err(why), _) | (_, Err(why)) => wrong.push(format!("{key}: {why}")),
        }
    }
    wrong.extend(keys().difference(&tried).map(|key| format!("{key} has no case")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Texts of refusals that say why a key has no effect.
const REASONS: [&str; 2] = ["acts only in simulations", "has no use with"];

/// The cases of the simulator's test, `crates/lab/tests/keys.txt`, without the keys of scenarios.
#[test]
fn every_key_of_a_system_has_an_effect_or_is_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tests/keys.txt");
    let text = fs::read_to_string(path).unwrap();
    let (files, mut wrong, mut counts) = (Files::new("system-keys"), Vec::new(), [0; 2]);
    for line in text.lines().filter(|line| line.starts_with("system[].")) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [key, base, before, change] = columns[..] else { panic!("{line}") };
        // The base scenarios of these names have a system with these parts.
        let base = match base {
            "predictor" => "system.control = \"predictor\"",
            "vegas" => "system.control = \"vegas\"",
            "conflux" => "system.control = \"vegas\"\nsystem.conflux = \"q-learning\"",
            "switch" => "system.switch.rest = \"1 s\"",
            _ => "system.name = \"x\"",
        };
        let of = |column: &str| -> String {
            let statements = column.trim_start_matches('!').split("; ");
            let own = statements.filter_map(|text| text.strip_prefix("system.x."));
            own.map(|text| format!("system.{text}\n")).collect()
        };
        let parts = |column: &str| -> Vec<String> { of(column).lines().map(str::to_owned).collect() };
        let (before, changed) = (parts(before), parts(change));
        let run = |more: &[String]| {
            let all = [&[base.to_owned()], &before[..], more].concat();
            files.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
        };
        match (run(&[]), run(&changed)) {
            (_, Err(why)) if REASONS.iter().any(|reason| why.contains(reason)) => counts[1] += 1,
            (_, Err(why)) => wrong.push(format!("{key}: {why}")),
            (Ok(one), Ok(other)) if one != other => counts[0] += 1,
            // The change chooses the part of the base's table.
            (Err(why), Ok(_)) if why.contains("no key of [system] chooses this part") => counts[0] += 1,
            _ if change.starts_with('!') => {}
            _ => wrong.push(format!("{key}: `{change}` changes nothing")),
        }
    }
    eprintln!("{} cases change the relay, {} are refused", counts[0], counts[1]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counts[0] >= 60, "{counts:?}");
}

#[test]
fn a_relay_of_a_tor_network_uses_all_cores() {
    let files = Files::new("threads");
    let run = |keys: &[&str]| files.run(keys).unwrap();
    let tor = "tor.authority = \"10.0.0.1:9\"";
    assert_eq!(run(&[tor]), run(&[tor, "threads = \"all\""]));
    assert_eq!(run(&[]), run(&["threads = 1"]));
    for part in ["system.transport = \"pctcp\"", "system.channel-scheduler = \"kist\""] {
        assert_eq!(run(&[tor, part]), run(&[tor, part, "threads = 1"]), "{part}");
    }
}

#[test]
fn a_listening_address_that_needs_a_restart_is_not_announced() {
    let files = Files::new("reread");
    let path = files.0.join("relay.toml");
    let text = |port: u16, more: &str| {
        format!("nickname = \"a\"\nlisten = \"127.0.0.1:{port}\"\nkeys = \"relay.keys\"\n{more}")
    };
    let mut before: Table = toml::from_str(&text(9001, "")).unwrap();
    fs::write(&path, text(9002, "bandwidth = \"2 MB/s\"\n")).unwrap();
    let arguments = RelayArgs {
        config: Some(path.clone()),
        check: false,
        keygen: None,
        import: None,
        out: None,
        allow_public_authority: false,
    };
    let bound = "127.0.0.1:9001".parse().unwrap();
    let (changes, _) = reread(&path, &arguments, &mut before, &bound).unwrap();
    assert_eq!(changes.address, bound, "nothing listens at the other one");
    assert_eq!((changes.bandwidth, before["listen"].as_str()), (2e6, Some("127.0.0.1:9001")));
}
