//! A coordinator of a network of other operators: a signed consensus, relays that come and go, several periods.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_control::random::Seed;
use tidegate_data::consensus::{Flags, Identity as RelayIdentity, RouterStatus};
use tidegate_data::signing::{Authority, consensus};
use tidegate_net::identity::{Identity, hex};

use crate::flashflow::{Role, Scratch, TRIES, run, text};
use crate::waiting::repeated;

/// A running relay with its consensus entry and its entry in the coordinator's configuration.
struct Relay {
    _process: Role,
    status: RouterStatus,
    entry: String,
}

/// Starts a rate-limited relay at its own address.
fn relay(scratch: &Scratch, n: u8, mbit: u32, coordinators: &[String]) -> Relay {
    let name = format!("r{n}");
    let identity = Identity::generate();
    identity.save(&scratch.0.join(format!("{name}.key"))).unwrap();
    let file = scratch.file(&format!("{name}.toml"));
    fs::write(
        &file,
        format!(
            "listen = \"127.9.{n}.1:0\"\nidentity = \"{name}.key\"\nrate = \"{mbit} Mbit/s\"\n\
             [measurement]\nallowed = true\ncoordinators = {coordinators:?}\n"
        ),
    )
    .unwrap();
    let mut process = Role::start(&["relay", "--config", &file]);
    let address: SocketAddr = process.wait_for("listening")["address"].as_str().unwrap().parse().unwrap();
    let SocketAddr::V4(address) = address else { panic!("it was told an IPv4 address") };
    let keys = identity.relay_public();
    let status = RouterStatus {
        nickname: name.clone(),
        identity: RelayIdentity(keys.identity),
        address: *address.ip(),
        or_port: address.port(),
        flags: Flags::from_names(["Running", "Valid"]),
        version: None,
        bandwidth: mbit * 150,
        unmeasured: false,
        ports: None,
        microdescriptor: None,
    };
    let entry = format!(
        "[[relay]]\nnickname = \"{name}\"\nfingerprint = \"{}\"\nonion-key = \"{}\"\n",
        hex(&identity.fingerprint()),
        hex(&keys.onion)
    );
    Relay { _process: process, status, entry }
}

/// Starts a measurer for these coordinators and returns its entry in their configurations.
fn measurer(scratch: &Scratch, coordinators: &[String]) -> (Role, String) {
    let identity = Identity::generate();
    identity.save(&scratch.0.join("m.key")).unwrap();
    let file = scratch.file("m.toml");
    let config = format!(
        "listen = \"127.0.0.1:0\"\nidentity = \"m.key\"\nworkers = 1\ncoordinators = {coordinators:?}\n"
    );
    fs::write(&file, config).unwrap();
    let mut role = Role::start(&["measurer", "--config", &file]);
    let address = role.wait_for("listening")["address"].as_str().unwrap().to_owned();
    let fingerprint = hex(&identity.fingerprint());
    let entry = format!(
        "[[measurer]]\nname = \"m\"\naddress = \"{address}\"\nfingerprint = \"{fingerprint}\"\n\
         capacity = \"200 Mbit/s\"\n"
    );
    (role, entry)
}

fn coordinator_key(scratch: &Scratch, name: &str) -> String {
    let identity = Identity::generate();
    identity.save(&scratch.0.join(format!("{name}.key"))).unwrap();
    hex(&identity.fingerprint())
}

fn unix() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "authorities date what they sign")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A relay of the consensus, without its operator's consent.
fn stranger(n: u8) -> RouterStatus {
    RouterStatus {
        nickname: format!("stranger{n}"),
        identity: RelayIdentity([n; 20]),
        address: [127, 9, 200, n].into(),
        or_port: 1,
        flags: Flags::from_names(["Running", "Valid"]),
        version: None,
        bandwidth: 1000,
        unmeasured: false,
        ports: None,
        microdescriptor: None,
    }
}

fn header(file: &str, key: &str) -> u64 {
    let line = file.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {key} in {file}")).parse().unwrap()
}

/// Relays' nicknames in the file, sorted.
fn nicknames(file: &str) -> Vec<&str> {
    let mut names: Vec<&str> =
        file.lines().filter_map(|line| line.split(' ').find_map(|part| part.strip_prefix("nick="))).collect();
    names.sort_unstable();
    names
}

/// Reads the events of a period up to its file and returns the relays of `results` results.
fn results(daemon: &mut Role, results: usize) -> Vec<String> {
    let mut measured: Vec<String> =
        (0..results).map(|_| daemon.wait_for("result")["relay"].as_str().unwrap().to_owned()).collect();
    measured.sort_unstable();
    daemon.wait_for("file");
    measured
}

#[test]
#[ignore = "slow: make test-all"]
fn a_daemon_follows_a_signed_network_over_several_periods() {
    let scratch = Scratch::new("signed-network");
    fs::create_dir(&scratch.0).unwrap();
    let mut random = Seed::root(9).random();
    let authorities: Vec<Authority> = (0..3).map(|_| Authority::draw(&mut random)).collect();
    let now = unix();
    let certificates: String =
        authorities.iter().map(|authority| authority.certificate(now - 86_400..now + 86_400)).collect();
    fs::write(scratch.file("certificates"), certificates).unwrap();
    let names: Vec<String> = authorities.iter().map(|authority| authority.identity().to_string()).collect();
    fs::create_dir(scratch.0.join("consensuses")).unwrap();
    let publish = |name: &str, relays: &[&RouterStatus], signers: &[Authority]| {
        let listed: Vec<RouterStatus> =
            relays.iter().map(|relay| (*relay).clone()).chain([1, 2, 3, 4].map(stranger)).collect();
        let text = consensus(now - 600, &[3; 32], &listed, signers);
        fs::write(scratch.0.join("consensuses").join(name), text).unwrap();
    };
    let coordinators = [coordinator_key(&scratch, "c")];
    let [a, b, c] = [1, 2, 3].map(|n| relay(&scratch, n, 2 + 2 * u32::from(n), &coordinators));
    let (_measurer, team) = measurer(&scratch, &coordinators);
    let bandwidth_file = scratch.0.join("v3bw");
    // The addresses of the relays come from the consensus.
    let config = format!(
        "identity = \"c.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nconsensus = \"consensuses\"\n\
         certificates = \"certificates\"\nauthorities = {names:?}\nperiod = \"18 s\"\nslot = \"18 s\"\n\
         [parameters]\nduration = \"3 s\"\nsockets = 4\n{team}{}{}{}",
        a.entry, b.entry, c.entry
    );
    let file = scratch.file("c.toml");
    fs::write(&file, &config).unwrap();

    publish("1", &[&a.status, &b.status], &authorities[..2]);
    let mut daemon = Role::start(&["coordinator", "--config", &file]);
    let network = daemon.wait_for("network");
    assert_eq!(
        (&network["relays"], &network["signatures"], &network["listed"]),
        (&6.into(), &2.into(), &2.into())
    );
    assert_eq!(results(&mut daemon, 2), ["r1", "r2"]);
    let first = fs::read_to_string(&bandwidth_file).unwrap();
    assert_eq!(nicknames(&first), ["r1", "r2"]);
    assert_eq!(
        (header(&first, "number_consensus_relays"), header(&first, "percent_eligible_relays")),
        (6, 33)
    );
    assert!(first.contains("under_min_report=1"), "a third of the network decides nothing: {first}");

    // One relay joins, one leaves.
    publish("2", &[&a.status, &c.status], &authorities);
    assert_eq!(daemon.wait_for("network")["listed"], 2);
    assert_eq!(results(&mut daemon, 2), ["r1", "r3"]);
    let second = fs::read_to_string(&bandwidth_file).unwrap();
    assert_eq!(nicknames(&second), ["r1", "r3"], "who left is not voted for");

    // The relay is back and its old result still counts; another one opts out. The last consensus is forged.
    publish("3", &[&a.status, &b.status, &c.status], &authorities);
    let id = a.status.identity.to_string();
    fs::write(&file, format!("opt-out = [\"{}\"]\n{config}", id.to_lowercase())).unwrap();
    assert_eq!(daemon.wait_for("network")["listed"], 3);
    assert_eq!(results(&mut daemon, 2), ["r2", "r3"]);
    let third = fs::read_to_string(&bandwidth_file).unwrap();
    assert_eq!(
        (header(&third, "number_consensus_relays"), header(&third, "percent_eligible_relays")),
        (7, 42)
    );
    let text_of = fs::read_to_string(scratch.0.join("consensuses/3")).unwrap();
    fs::write(scratch.0.join("consensuses/4"), text_of.replacen(" 127.9.2.1 ", " 127.9.2.2 ", 1)).unwrap();
    let warning = daemon.wait_for("warning");
    assert!(warning["cause"].as_str().unwrap().contains("signed by 0 of 3"), "{warning}");
    assert_eq!(daemon.wait_for("period")["placements"], 2, "everything is as it was");
    drop(daemon);

    dated(&scratch.0, &[&first, &second, &third]);
    let output = run(&["verify", "--config", &file]);
    assert!(output.status.success() && text(&output).contains("identical"), "{}", text(&output));
}

/// Checks that all dated files exist and that the undated name is a link to the latest.
fn dated(folder: &Path, texts: &[&String]) {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("v3bw-"))
        .collect();
    names.sort_unstable();
    let kept: Vec<String> = names.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap()).collect();
    assert!(texts.iter().all(|text| kept.contains(text)), "{names:?}");
    assert_eq!(fs::read_link(folder.join("v3bw")).unwrap().to_string_lossy(), *names.last().unwrap());
}

/// A relay's weight in a bandwidth file, which is in kB/s.
fn bits_per_s(file: &str, relay: &str) -> f64 {
    let line = file.lines().find(|line| line.contains(&format!("nick={relay}"))).unwrap();
    let weight: f64 = line.split(' ').find_map(|part| part.strip_prefix("bw=")?.parse().ok()).unwrap();
    weight * 8000.0
}

/// A relay that is fast for one of three coordinators gains nothing by it.
///
/// A coordinator that lies does not move the median beyond the error of one honest measurement.
#[test]
fn the_median_of_three_coordinators_forgives_one() {
    let scratch = Scratch::new("median");
    fs::create_dir(&scratch.0).unwrap();
    let names = ["c0", "c1", "c2"];
    let coordinators = names.map(|name| coordinator_key(&scratch, name));
    let (_measurer, team) = measurer(&scratch, &coordinators);
    // The same relay with another rate: it is fast for the first coordinator only.
    let limit = 4_000_000.0;
    let honest = relay(&scratch, 5, 4, &coordinators);
    let file = scratch.file("r6.toml");
    for (n, name) in names.iter().enumerate() {
        let sometimes = if n == 0 { 12 } else { 4 };
        let config = fs::read_to_string(scratch.file("r5.toml")).unwrap();
        let (from, to) = (config.find("rate").unwrap(), config.find("[measurement]").unwrap());
        let config = config.replace("r5.key", "r6.key").replace("127.9.5.1", "127.9.6.1");
        fs::write(&file, config.replace(&config[from..to], &format!("rate = \"{sometimes} Mbit/s\"\n")))
            .unwrap();
        if n == 0 {
            Identity::generate().save(&scratch.0.join("r6.key")).unwrap();
        }
        let mut liar = Role::start(&["relay", "--config", &file]);
        let address = liar.wait_for("listening")["address"].as_str().unwrap().to_owned();
        let keys = Identity::load(&scratch.0.join("r6.key")).unwrap();
        let entries = format!(
            "{}address = \"{}:{}\"\n[[relay]]\nnickname = \"r6\"\naddress = \"{address}\"\nfingerprint = \"{}\"\n\
             onion-key = \"{}\"\n",
            honest.entry,
            honest.status.address,
            honest.status.or_port,
            hex(&keys.fingerprint()),
            hex(&keys.relay_public().onion)
        );
        let config = format!(
            "identity = \"{name}.key\"\nstate = \"{name}\"\nbandwidth-file = \"{name}.v3bw\"\nslot = \"18 s\"\n\
             first-guess = \"13 Mbit/s\"\n[parameters]\nduration = \"3 s\"\nsockets = 4\n{team}{entries}"
        );
        let of = scratch.file(&format!("{name}.toml"));
        fs::write(&of, config).unwrap();
        let measure = || {
            let _ = fs::remove_dir_all(scratch.0.join(name));
            let output = run(&["coordinator", "--once", "--config", &of]);
            assert!(output.status.success(), "{}", text(&output));
            let file = fs::read_to_string(scratch.file(&format!("{name}.v3bw"))).unwrap();
            ["r5", "r6"].map(|relay| bits_per_s(&file, relay))
        };
        // The first coordinator must see what it was shown, beyond the honest limit.
        let least = [0.5 * limit, if n == 0 { 1.4 * limit } else { 0.5 * limit }];
        repeated(TRIES, measure, |seen| seen.iter().zip(least).all(|(seen, least)| *seen > least));
    }
    // The second coordinator lies about the honest relay.
    let bought = scratch.file("c1.v3bw");
    let file = fs::read_to_string(&bought).unwrap();
    let lie = |line: &str| {
        let bw = line.split(' ').find(|part| part.starts_with("bw=")).unwrap_or("bw=");
        if line.contains("nick=r5") { line.replace(bw, "bw=1") } else { line.to_owned() }
    };
    fs::write(&bought, file.lines().map(|line| lie(line) + "\n").collect::<String>()).unwrap();
    let files = names.map(|name| scratch.file(&format!("{name}.v3bw")));
    let output = run(&["median", "--json", &files[0], &files[1], &files[2]]);
    let medians: Value = serde_json::from_slice(&output.stdout).unwrap();
    let weights: Vec<f64> =
        medians["weights"].as_object().unwrap().values().filter_map(Value::as_f64).collect();
    assert_eq!(weights.len(), 2, "{medians}");
    for weight in weights {
        let ratio = weight * 8000.0 / limit;
        assert!((0.5..=1.4).contains(&ratio), "{ratio}: {medians}");
    }
    let fast = fs::read_to_string(&files[0]).unwrap();
    assert!(bits_per_s(&fast, "r6") > 1.4 * limit, "the first coordinator was shown more: {fast}");
}
