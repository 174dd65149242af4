//! `tidegate overlay`: files fetched through overlays of processes on loopback, and among stock tor's.

mod descriptors;
mod directory_options;
mod matrix;
mod memory;
mod operator;
mod published;
mod reached;
mod roles;
mod strangers;
use crate::skipped;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use roles::{Overlay, ask, greeter};
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap()
}

fn documents(arguments: &[&str]) -> Vec<Value> {
    let output = tidegate(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_system_carries_a_file_byte_for_byte() {
    let parts = tidegate_proto::system::alternatives().into_iter().map(|(name, _)| name);
    for system in parts.chain(["vanilla", "conflux", "conflux-by-rate", "conflux-q-learning"]) {
        let document = &documents(&["overlay", "demo", "--system", system, "--bytes", "300 kB", "--json"])[0];
        assert_eq!(document["exact"], true, "{document}");
        assert_eq!((&document["system"], &document["bytes"]), (&system.into(), &300_000.into()));
        let path = document["paths"][0].as_array().unwrap();
        let mut relays: Vec<&str> = path.iter().map(|name| name.as_str().unwrap()).collect();
        relays.sort_unstable();
        relays.dedup();
        assert_eq!(relays.len(), 3, "{document}");
    }
}

#[test]
fn a_crowd_breaks_no_download() {
    let attacked = |phase: &str| -> Value {
        let arguments =
            ["overlay", "crowd", "--connections", "300", "--per-second", "100", "--phase", phase, "--json"];
        // Its exit code is about processor time, of which others take a share here.
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
        assert_eq!(document["wrong"], 0, "{document}");
        document
    };
    // Whole downloads count. On a loaded machine none may end within 2 s.
    let mut document = attacked("2 s");
    for phase in ["10 s", "30 s"] {
        if document["attacked_bytes_per_s"].as_f64() > Some(0.0) {
            break;
        }
        document = attacked(phase);
    }
    assert!(document["attacked_bytes_per_s"].as_f64() > Some(0.0), "{document}");
    assert!(
        document["opened_per_s"].as_f64() > Some(20.0) && document["open"].as_u64() > Some(100),
        "{document}"
    );
}

#[test]
fn a_relay_of_two_threads_is_counted() {
    let arguments = ["overlay", "threads", "--threads", "1,2", "--clients", "2", "--phase", "1 s", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    // The measured relays have the lowest priority, so beside other tests they may carry nothing in a second.
    for threads in ["threads-1", "threads-2"] {
        assert_eq!(document[threads]["wrong"], 0, "{document}");
    }
    let twice = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["overlay", "threads", "--threads", "2,1,2"])
        .output();
    let twice = twice.unwrap();
    let message = String::from_utf8_lossy(&twice.stderr);
    assert_eq!(twice.status.code(), Some(2), "{message}");
    assert!(message.contains("--threads: 2 stands there twice"), "{message}");
}

#[test]
fn relays_of_two_threads_carry_mixed_load() {
    if Command::new("tor").arg("--version").output().is_err() {
        return skipped::skipped("relays of two threads carry mixed load", "tor");
    }
    let arguments = ["overlay", "tornet", "--soak", "5 s", "--threads", "2", "--json"];
    // Its exit code also depends on memory, which still grows in the first seconds.
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&document["wrong"], &document["broken"]), (&0.into(), &0.into()), "{document}");
    assert!(document["exact"].as_u64() > Some(0) && document["strangers"].as_u64() > Some(0), "{document}");
    assert!(document["warnings"].as_array().is_some_and(Vec::is_empty), "{document}");
}

#[test]
fn stock_tor_fetches_a_file_through_our_relays() {
    if Command::new("tor").arg("--version").output().is_err() {
        return skipped::skipped("stock tor fetches a file through our relays", "tor");
    }
    let places = [("guard", "tss"), ("middle", "sts"), ("exit", "sst"), ("all", "ttt"), ("any", "")];
    let at = places.map(|(place, _)| place).join(",");
    let documents = documents(&["overlay", "tornet", "--at", &at, "--bytes", "2 MB", "--json"]);
    assert_eq!(documents.len(), places.len());
    for ((place, wanted), document) in places.iter().zip(documents) {
        assert_eq!((&document["at"], &document["exact"]), (&(*place).into(), &true.into()), "{document}");
        // The relay of each hop. Circuits of one hop fetch the consensus, the first from the authority.
        let paths = document["paths"].as_array().unwrap().iter();
        let mut kinds = paths
            .map(|path| path.as_array().unwrap().iter().map(|hop| &hop.as_str().unwrap()[..1]).collect());
        assert!(kinds.any(|kinds: String| kinds.len() >= 3 && kinds.starts_with(wanted)), "{document}");
        no_protocol_warnings(&document);
        if matches!(*place, "exit" | "all") {
            assert!(document["congestion_control"].as_u64() > Some(0), "FlowCtrl=2 is agreed on: {document}");
        }
    }
}

/// To an exit of ours stock tor links circuits as to its own (proposal 329), and downloads over both at once.
#[test]
#[ignore = "slow: make test-all"]
fn stock_tor_fetches_a_file_over_two_circuits_to_our_exit() {
    if Command::new("tor").arg("--version").output().is_err() {
        return skipped::skipped("stock tor links circuits to our exit", "tor");
    }
    // Each network spends half a minute on starting up, so the three start at once.
    std::thread::scope(|scope| {
        for system in ["vanilla", "conflux-by-rate", "conflux-q-learning"] {
            scope.spawn(move || {
                let arguments = [
                    "overlay", "tornet", "--at", "exit", "--linked", "--system", system, "--bytes", "5 MB",
                    "--json",
                ];
                let document = &documents(&arguments)[0];
                assert_eq!(document["exact"], true, "{document}");
                no_protocol_warnings(document);
                let cells = document["linked_cells"].as_array().unwrap().iter().filter_map(Value::as_u64);
                // Circuits that only answered have few cells.
                let used: Vec<u64> = cells.filter(|cells| *cells > 100).collect();
                let whole = 5_000_000 / 498;
                assert!(used.len() >= 2 && used.iter().sum::<u64>() > whole, "{system}: {document}");
            });
        }
    });
}

/// A stock onion service and a stock client meet over introduction points, rendezvous points and directories of ours.
#[test]
fn stock_tor_meets_an_onion_service_over_our_relays_alone() {
    if Command::new("tor").arg("--version").output().is_err() {
        return skipped::skipped("a stock onion service meets a stock client over our relays", "tor");
    }
    let arguments = ["overlay", "tornet", "--onion-service", "--bytes", "1 MB", "--streams", "4", "--json"];
    let document = &documents(&arguments)[0];
    assert_eq!(document["exact"], true, "{document}");
    no_protocol_warnings(document);
    for (kind, least) in [("paths", 1), ("service_paths", 1), ("introduction_paths", 3)] {
        let paths = document[kind].as_array().unwrap();
        assert!(paths.len() >= least, "{kind}: {document}");
        let hops = paths.iter().flat_map(|path| path.as_array().unwrap());
        assert!(hops.map(|hop| hop.as_str().unwrap()).all(|hop| hop.starts_with("tide")), "{document}");
    }
}

fn no_protocol_warnings(document: &Value) {
    let about_us = |line: &&Value| {
        let line = line.as_str().unwrap();
        let words = ["protocol", "Received", "cell", "AUTHENTICATE", "circuit", "TLS", "OpenSSL"];
        // The authority lacks a consensus in the first seconds. Cells to a stock relay are those of a stock client. Relays
        // of ours only pass them on, encrypted, so they cannot make one that the other end decrypts and then refuses.
        let others = ["Received http status code 404", "(away from origin) failed"];
        words.iter().any(|word| line.contains(word)) && !others.iter().any(|other| line.contains(other))
    };
    let all = document["warnings"].as_array().unwrap();
    assert!(!all.iter().any(|line| about_us(&line)), "{all:#?}");
}

/// What a relay says when it refuses its configuration.
fn refusal(folder: &Path, config: &str) -> String {
    let file = folder.join("relay.toml");
    std::fs::write(&file, config).unwrap();
    let output = tidegate(&["relay", "--config", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(2), "{config}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn mistakes_in_dos_are_told_with_key_range_and_cure() {
    let directory = std::env::temp_dir().join(format!("tidegate-dos-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let keys = directory.join("relay.keys").display().to_string();
    assert!(tidegate(&["relay", "--keygen", &keys]).status.success());
    let good = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n";
    for (table, cause) in [
        ("[dos]\nDoSConnectionsEnabled = 1\n", "did you mean `DoSConnectionEnabled`?"),
        ("[dos]\ndosconnectionenabled = 1\n", "did you mean `DoSConnectionEnabled`?"),
        ("[dos]\nrate = 1\n", "known here: DoSCircuitCreationEnabled, "),
        (
            "[dos]\nDoSConnectionEnabled = 2\n",
            "dos.DoSConnectionEnabled is 2\n  help: set a whole number from 0 to 1",
        ),
        ("[dos]\nDoSConnectionEnabled = \"auto\"\n", "remove DoSConnectionEnabled to obey the consensus"),
        ("[dos]\nDoSConnectionEnabled = true\n", "dos.DoSConnectionEnabled is true"),
        ("[dos]\nDoSStreamCreationRate = -4\n", "from 1 to 2147483647"),
        ("[dos]\nDoSStreamCreationRate = 1.5\n", "dos.DoSStreamCreationRate is 1.5"),
        ("[dos]\nDoSStreamCreationRate = 3000000000\n", "dos.DoSStreamCreationRate is 3000000000"),
        (
            "[dos]\nDoSConnectionConnectDefenseTimePeriod = \"2 h\"\n",
            "set a whole number from 10 to 2147483647 seconds",
        ),
        ("[dos]\nDoSStreamCreationRate = 3\n", "has no effect: the defence is off"),
        (
            "[dos]\nDoSStreamCreationEnabled = 0\nDoSStreamCreationRate = 3\n",
            "set DoSStreamCreationEnabled = 1, or remove DoSStreamCreationRate",
        ),
        ("dos = 3\n", "expected a map"),
    ] {
        let said = refusal(&directory, &format!("{good}{table}"));
        let line = if table.starts_with("dos") { ":4:" } else { ":5:" };
        assert!(said.contains(cause) && (said.contains(line) || said.contains(":6:")), "{table}: {said}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn mistakes_are_told_with_place_and_cure() {
    let directory = std::env::temp_dir().join(format!("tidegate-live-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    let refused = |config: &str| refusal(&directory, config);
    assert!(tidegate(&["relay", "--keygen", &at("relay.keys")]).status.success());
    assert_eq!(
        tidegate(&["relay", "--keygen", &at("relay.keys")]).status.code(),
        Some(2),
        "never overwritten"
    );
    let good = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n";
    for (line, cause) in [
        ("nicknam = \"b\"\n", "did you mean `nickname`?"),
        ("exit-policy = [\"allow *:*\"]\n", "is not an exit policy rule"),
        ("contact = \"a\\nb\"\n", "`contact` is not one line"),
        ("family = [\"$0123\"]\n", "family: `$0123` is not a fingerprint"),
        ("family-keys = [\"relay.keys\"]\n", "relay.keys is not a file of `tor --keygen-family`"),
        ("family-keys = [\"none\"]\n", "cannot be read"),
        ("contact = \"a\"\n[directory]\naddress = \"127.0.0.1:80\"\n", "have no effect"),
        ("[tor]\nauthority = \"192.0.2.1:80\"\n", "not in a private network"),
        ("[tor]\nauthority = \"192.0.2.1:80\"\nallow-public-authority = true\n", "--allow-public-authority"),
        ("[system]\nname = \"x\"\ntransport = \"pctpc\"\n", "did you mean `pctcp`?"),
        ("[system]\nbalance = \"sbws\"\n", "`balance` = \"sbws\" acts only in simulations"),
        ("[system]\nsurvey = { files = 3 }\n", "remove `survey`"),
        ("[system]\nattack = { trick = \"inflate\" }\n", "remove `attack`"),
        ("[system]\nconnection-half-life = \"66 s\"\n", "remove `connection-half-life`"),
        ("[system]\nkist = { interval = \"5 ms\" }\n", "system.kist: has no effect"),
        ("[system.eigenspeed]\n", "system.eigenspeed: has no effect"),
        ("[system]\nconflux = \"fast\"\n", "there is no conflux `fast`"),
        ("[system]\nconflux = \"throughput\"\n", "fixed windows are neither"),
        ("[limits]\nmemroy = \"1 MB\"\n", "did you mean `memory`?"),
        ("[limits]\nconnections = 0\n", "limits.connections"),
        ("[key-lifetimes]\nonoin = \"1 h\"\n", "did you mean `onion`?"),
        ("[key-lifetimes]\nonion = \"1 d\"\n", "`onion-grace` is longer than `onion`"),
        ("[key-lifetimes]\nonion = \"0 s\"\n", "`onion` is not in 1 s..="),
    ] {
        let said = refused(&format!("{good}{line}"));
        assert!(said.contains(cause), "{said}");
    }
    for (at, table, cause) in [
        ("\"127.0.0.1\"", "", "not an address with a port"),
        ("9001", "", "an address must be a string"),
        ("[\"127.0.0.1:0\", \"127.0.0.2:0\"]", "", "expected one address, or one IPv4 and one IPv6 address"),
        ("[]", "", "expected one address"),
        ("\"[::1]:0\"", "[tor]\nauthority = \"127.0.0.1:80\"\n", "every relay needs an IPv4 address"),
        (
            "\"127.0.0.1:0\"",
            "address = \"224.0.0.1:9001\"\n[tor]\nauthority = \"127.0.0.1:80\"\n",
            "not an address that others can reach",
        ),
        (
            "\"0.0.0.0:0\"",
            "[directory]\naddress = \"127.0.0.1:80\"\n",
            "not an address that others can reach",
        ),
    ] {
        let said = refused(&format!("{}{table}", good.replace("\"127.0.0.1:0\"", at)));
        assert!(said.contains(cause), "{at}: {said}");
    }
    let key = "00".repeat(32);
    let twice = tidegate(&["client", "--directory", "127.0.0.1:1", "--authority", &key, "--path", "a,b,a"]);
    assert_eq!(twice.status.code(), Some(2), "a path names a relay twice");
    assert!(refused(&good.replace("\"a\"", "\"a b\"")).contains("not a nickname"));
    assert!(refused(&good.replace("relay.keys", "none.keys")).contains("--keygen"));
    let keys = std::fs::read_to_string(at("relay.keys")).unwrap();
    for (text, cause) in [
        (keys[..keys.len() / 2].to_owned(), "is not a key file"),
        (format!("{keys}onion-key-since = 99999999999\n"), "the clock is wrong, or was"),
    ] {
        std::fs::write(at("relay.keys"), text).unwrap();
        assert!(refused(good).contains(cause), "{cause}");
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(Path::new(&at("relay.keys")), mode).unwrap();
    assert!(refused(good).contains("can be read by others (mode 644)"));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A running role, its events as they come.
struct Role {
    process: Child,
    events: Lines<BufReader<ChildStdout>>,
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Role {
    fn relay(config: &str) -> Role {
        Role::start(&["relay", "--config", config])
    }

    fn start(arguments: &[&str]) -> Role {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let events = BufReader::new(process.stdout.take().unwrap()).lines();
        Role { process, events }
    }

    fn wait(&mut self, kind: &str) -> Value {
        self.wait_for_any(&[kind])
    }

    fn wait_for_any(&mut self, kinds: &[&str]) -> Value {
        loop {
            let line = self.events.next().unwrap_or_else(|| panic!("it ended before {kinds:?}")).unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            if kinds.iter().any(|kind| event["event"] == *kind) {
                return event;
            }
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

fn get(address: &str, host: &str, path: &str) -> String {
    let mut tcp = TcpStream::connect(address).unwrap();
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    // A reset may follow what was answered.
    let _ = tcp.read_to_string(&mut answer);
    answer
}

#[test]
fn a_relay_reloads_shows_itself_and_drains() {
    let directory = std::env::temp_dir().join(format!("tidegate-relay-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    assert!(tidegate(&["relay", "--keygen", &at("relay.keys")]).status.success());
    let config =
        "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\nstatus = \"127.0.0.1:0\"\n";
    std::fs::write(at("relay.toml"), config).unwrap();
    let mut relay = Role::relay(&at("relay.toml"));
    let taken = relay.wait("listening")["address"].as_str().unwrap().to_owned();
    let status = relay.wait("status")["address"].as_str().unwrap().to_owned();

    let metrics = get(&status, "localhost", "/metrics");
    assert!(metrics.contains("\ntidegate_relay_circuits 0.0\n"), "{metrics}");
    assert!(metrics.contains("\n# TYPE tidegate_relay_sent_cells_total counter\n"), "{metrics}");
    let shown = get(&status, "localhost", "/status.json");
    assert!(shown.contains("\"connections\":0.0") && !shown.contains("\"circuit\":"), "{shown}");
    assert!(get(&status, "evil.example", "/metrics").starts_with("HTTP/1.1 421"));

    std::fs::write(at("relay.toml"), format!("{config}bandwdth = \"1 Mbit/s\"\n")).unwrap();
    relay.signal("-HUP");
    assert!(relay.wait("not reloaded")["cause"].as_str().unwrap().contains("did you mean `bandwidth`?"));
    let changed = config.replace("\"a\"", "\"b\"")
        + "exit-policy = [\"accept *:80\"]\n[dos]\nDoSStreamCreationEnabled = 1\n";
    std::fs::write(at("relay.toml"), changed).unwrap();
    relay.signal("-HUP");
    for (event, key, before, after) in [
        ("changed", "dos.DoSStreamCreationEnabled", "default", "1"),
        ("changed", "exit-policy", "default", "[\"accept *:80\"]"),
        ("not changed", "nickname", "\"a\"", "\"b\""),
    ] {
        let said = relay.wait(event);
        let values = (&said["key"], &said["before"], &said["after"]);
        assert_eq!(values, (&key.into(), &before.into(), &after.into()), "{said}");
    }
    relay.wait("defends against denial of service");
    relay.wait("reloaded");

    // A port that is taken is said.
    let again = config.replace("listen = \"127.0.0.1:0\"", &format!("listen = \"{taken}\""));
    std::fs::write(at("second.toml"), again).unwrap();
    let second = tidegate(&["relay", "--config", &at("second.toml")]);
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{taken}: cannot listen: Address already in use")), "{said}");

    relay.signal("-TERM");
    relay.wait("draining");
    assert!(relay.process.wait().unwrap().success(), "without circuits it ends at once");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn logs_name_neither_clients_nor_destinations() {
    let overlay = Overlay::of_three("logs");
    let own = overlay.listening();
    assert_eq!(own.len(), 5);

    let port = greeter();
    assert_eq!(ask(&own[4], "localhost", port), (0, b"hello".to_vec()));
    // A closed port, an unknown name, and a server without TLS.
    assert_ne!(ask(&own[4], "localhost", 1).0, 0);
    assert_ne!(ask(&own[4], "nobody.invalid", 80).0, 0);
    TcpStream::connect(&own[1]).unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();

    for event in ["built", "connection", "handshake failed", "no stream"] {
        let is_it = |line: &String| line.contains(&format!("\"event\":\"{event}\""));
        overlay.until(event, |lines| lines.iter().any(is_it));
    }
    // The client asks the directory from time to time. All else ends with the requests: then no line comes for 3 s.
    let happened = || {
        let is_other = |line: &String| !line.contains("\"event\":\"directory\"");
        overlay.lines().into_iter().filter(is_other).collect::<Vec<_>>()
    };
    let (begun, mut before) = (clock::now(), happened());
    loop {
        std::thread::sleep(Duration::from_secs(3));
        let now = happened();
        if now == before {
            break;
        }
        assert!(clock::now().since(begun) < Span::from_secs(60), "something happens: {now:#?}");
        before = now;
    }
    let lines = overlay.lines();
    for line in &lines {
        let private = ["localhost", "nobody.invalid", &format!("{port}")];
        assert!(!private.iter().any(|word| line.contains(word)), "{line}");
        let rest = own.iter().fold(line.clone(), |line, known| line.replace(known.as_str(), ""));
        assert!(!rest.contains("127.0.0.1") && !rest.contains("::1"), "{line}");
    }
}

#[test]
fn a_client_learns_at_once_where_relays_have_moved() {
    let mut overlay = Overlay::of_three("moved");
    let client = overlay.listening().pop().unwrap();
    let port = greeter();
    assert_eq!(ask(&client, "localhost", port), (0, b"hello".to_vec()));
    // The first is killed and returns at another port. Every path needs it.
    let mut relay = overlay.roles.remove(1);
    relay.kill().unwrap();
    relay.wait().unwrap();
    overlay.start(&["relay", "--config", &overlay.at("a.toml")], "announced");
    #[expect(clippy::disallowed_methods, reason = "how long a client takes is the point")]
    let killed = Instant::now();
    while ask(&client, "localhost", port).0 != 0 {
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "it asks the directory each half minute, and when a circuit fails"
        );
    }
}

/// The demo's page once all relays are on it, and three of them have asked the kernel.
fn shown_relays(address: &str) -> Vec<Value> {
    let mut relays = Vec::new();
    for _ in 0..200 {
        let answer = get(address, "localhost", "/status.json");
        let shown: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        relays.clone_from(shown["relays"].as_array().unwrap());
        let asked = relays.iter().filter(|relay| relay["kernel_inspections"].as_f64() > Some(0.0));
        if relays.len() == 5 && asked.count() >= 3 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    relays
}

/// In the path of a curve that has a second point.
const SECOND_POINT: &str = "L1.7 ";

/// The page in a browser after this number of its milliseconds; `None` without a browser.
fn dom(page: &str, size: &str, budget: &str) -> Option<String> {
    let browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", size])
        .arg(format!("--virtual-time-budget={budget}"))
        .arg(page)
        .stderr(Stdio::null())
        .output();
    Some(String::from_utf8_lossy(&browser.ok()?.stdout).into_owned())
}

#[test]
fn the_demos_page_shows_relays_and_circuits_on_a_desk_and_on_a_phone() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["overlay", "demo", "--system", "kist"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
    let page =
        lines.find_map(|line| Some(line.strip_prefix("page at ")?.split(' ').next()?.to_owned())).unwrap();
    // The load has begun.
    assert!(lines.any(|line| line.contains("as sent")));
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    assert!(get(address, "evil.example", "/status.json").starts_with("HTTP/1.1 421"));
    let relays = shown_relays(address);
    assert_eq!(relays.len(), 5, "{relays:?}");
    let asked = |relay: &&Value| relay["kernel_inspections"].as_f64() > Some(0.0);
    if cfg!(target_os = "linux") {
        assert!(relays.iter().filter(asked).count() >= 3, "KIST hears of its sockets: {relays:?}");
    }
    for size in ["--window-size=1280,900", "--window-size=390,844"] {
        // The browser's clock runs ahead of ours, by which the page's second look must bring news: the faster the
        // machine, the longer it has to look.
        let dom = ["60000", "600000", "6000000"].iter().find_map(|budget| {
            let dom = dom(&page, size, budget);
            dom.as_ref().is_none_or(|dom| dom.contains(SECOND_POINT) || *budget == "6000000").then_some(dom)
        });
        let Some(dom) = dom.flatten() else {
            skipped::skipped("the demo's page in a browser", "chromium");
            break;
        };
        assert!(dom.contains("5 relays") && dom.matches("<section>").count() == 5, "{size}: {dom}");
        assert!(dom.contains(SECOND_POINT), "a circuit's curve is drawn: {dom}");
        assert!(dom.contains("data-fits=\"true\""), "{size}: {dom}");
    }
    assert!(Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap().success());
    demo.wait().unwrap();
}
