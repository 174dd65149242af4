//! `tidegate flashflow` as a user runs it: processes, files, kill -9, and other parsers of its output.

use crate::skipped;
use crate::waiting::repeated;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;

mod files;
mod network;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-cli-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }
    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Role {
    child: Child,
    lines: mpsc::Receiver<String>,
}

/// Limit of the time until an expected event.
const EVENT: Span = Span::from_secs(90);

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Role {
    fn start(arguments: &[&str]) -> Role {
        let mut child = Command::new(TIDEGATE)
            .arg("flashflow")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let output = BufReader::new(child.stdout.take().expect("asked for"));
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Role { child, lines }
    }

    /// Reads events until one of that kind.
    fn wait_for(&mut self, kind: &str) -> Value {
        let event = self.event(kind);
        event.unwrap_or_else(|others| panic!("the role ended, or fell silent, before {kind}: {others:#?}"))
    }

    /// The same. If the role ends, or falls silent, its other events.
    fn event(&mut self, kind: &str) -> Result<Value, Vec<String>> {
        let (end, mut others) = (clock::now() + EVENT, Vec::new());
        // A daemon never falls silent, so the limit is for all other events together.
        let left = || Duration::from_nanos(end.since(clock::now()).0);
        while let Ok(line) = self.lines.recv_timeout(left()) {
            let event: Value = serde_json::from_str(&line).expect("events are JSON");
            if event["event"] == kind {
                return Ok(event);
            }
            others.push(line);
        }
        Err(others)
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(TIDEGATE).arg("flashflow").args(arguments).output().expect("the tool runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn demo(directory: &Scratch) -> Value {
    let output = run(&[
        "demo",
        "--rate",
        "20Mbit/s",
        "--duration",
        "3 s",
        "--sockets",
        "12",
        "--json",
        "--keep",
        &directory.0.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// How often a measurement is repeated while its estimate is too low: a pause of the machine of 1.5 s halves one of 3 s.
///
/// Nothing makes an estimate too high, so that is a failure at once.
const TRIES: usize = 5;

#[test]
fn the_demo_measures_keeps_and_replays_through_a_kill() {
    let scratch = Scratch::new("demo");
    let background = |second: &Value| second["background_bits_per_s"].as_u64().unwrap();
    let has_background = |verdict: &Value| {
        verdict["per_second"].as_array().unwrap().iter().any(|second| background(second) > 0)
    };
    let estimate = |verdict: &Value| verdict["estimate_bits_per_s"].as_u64().unwrap();
    let measure = || {
        let _ = fs::remove_dir_all(&scratch.0);
        let verdict = demo(&scratch);
        assert!(estimate(&verdict) <= 40_000_000, "{verdict}");
        verdict
    };
    // The relay allows two measurements in a period. The second is the one that is interrupted below.
    let is_first = |verdict: &Value| {
        verdict["bandwidth_file"].as_str().unwrap().contains("measurement_attempt_count=1\n")
    };
    let config = scratch.file("coordinator.toml");
    let verify = || {
        let output = run(&["verify", "--config", &config]);
        assert!(output.status.success() && text(&output).contains("identical"), "{}", text(&output));
    };
    let mut tries = 0;
    let (file, _roles) = loop {
        let verdict = repeated(TRIES, measure, |verdict| {
            estimate(verdict) >= 10_000_000 && has_background(verdict) && is_first(verdict)
        });
        // A loaded machine measures badly. Accuracy on an idle machine is an experiment, not a test.
        assert!(estimate(&verdict) >= 10_000_000, "{verdict}");
        assert_eq!(verdict["truth_bits_per_s"], 20_000_000);
        assert!(verdict["conclusive"].is_boolean());
        assert_eq!(verdict["per_second"].as_array().unwrap().len(), 3);
        assert!(has_background(&verdict), "{verdict}");
        verify();
        let file = fs::read_to_string(scratch.0.join("v3bw")).unwrap();
        assert_eq!(text(&run(&["bandwidth-file", "--config", &config])), file);
        stem_reads(&scratch.0.join("v3bw"));

        // Start the same roles again and kill the coordinator in the middle of a measurement.
        let roles = restart(&scratch);
        let ordinary = lasting_longer(&config);
        let mut coordinator = Role::start(&["coordinator", "--once", "--config", &config]);
        let second = coordinator.event("second");
        coordinator.child.kill().unwrap();
        coordinator.child.wait().unwrap();
        fs::write(&config, ordinary).unwrap();
        tries += 1;
        match second {
            Ok(_) => break (file, roles),
            // After a long pause of the machine it may fail before its first second.
            Err(others) => assert!(tries < TRIES, "{others:#?}"),
        }
    };
    verify();
    assert_eq!(text(&run(&["bandwidth-file", "--config", &config])), file, "the good result is still there");

    // After a restart both measurements of the period are used up, and the old result stays: every relay has one.
    let output = run(&["coordinator", "--once", "--config", &config]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("\"event\":\"kept\""), "{}", text(&output));
    assert!(!text(&output).contains("\"event\":\"attempt\""), "{}", text(&output));
    verify();
    let after = fs::read_to_string(scratch.0.join("v3bw")).unwrap();
    let weight = |text: &str| text.lines().last().unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(weight(&after), weight(&file));
    assert!(after.contains("error_misc=1"), "the interrupted one counts as failed: {after}");
    status_page(&config);
}

/// Makes measurements take 15 s, so that one still runs when a test interrupts it. Returns the configuration before.
fn lasting_longer(config: &str) -> String {
    let ordinary = fs::read_to_string(config).unwrap();
    let (duration, slot) = ("duration = \"3 s\"", "slot = \"18 s\"");
    assert!(ordinary.contains(duration) && ordinary.contains(slot), "{ordinary}");
    let longer = ordinary.replace(duration, "duration = \"15 s\"").replace(slot, "slot = \"30 s\"");
    fs::write(config, longer).unwrap();
    ordinary
}

/// Starts the demo's relay and measurers again and updates their addresses in the coordinator's configuration.
fn restart(scratch: &Scratch) -> Vec<Role> {
    let config = scratch.file("coordinator.toml");
    let mut configuration = fs::read_to_string(&config).unwrap();
    let mut roles = Vec::new();
    for name in ["relay", "measurer0", "measurer1", "measurer2"] {
        let kind = if name == "relay" { "relay" } else { "measurer" };
        let mut role = Role::start(&[kind, "--config", &scratch.file(&format!("{name}.toml"))]);
        let address = role.wait_for("listening")["address"].as_str().unwrap().to_owned();
        configuration = with_address(&configuration, name, &address);
        roles.push(role);
    }
    fs::write(&config, configuration).unwrap();
    roles
}

/// 10,000 silent connections do not prevent a measurement, and the relay closes them soon after.
#[test]
#[ignore = "slow: make test-all"]
fn ten_thousand_silent_connections_do_not_stop_a_measurement() {
    let scratch = Scratch::new("crowd");
    demo(&scratch);
    fs::remove_dir_all(scratch.0.join("state")).unwrap();
    let mut roles = restart(&scratch);
    let limit = tidegate_net::os::raise_descriptors().unwrap();
    let count = limit.saturating_sub(500).min(10_000) as usize;
    if count < 10_000 {
        eprintln!("this process may open {limit} files: {count} connections instead of 10,000");
    }
    let config = scratch.file("coordinator.toml");
    let text_of = fs::read_to_string(&config).unwrap();
    let at = text_of.find("nickname = \"target\"\naddress = \"").unwrap() + 31;
    let address = text_of[at..].split('"').next().unwrap().to_owned();
    let crowd: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let output = run(&["coordinator", "--once", "--config", &config]);
    let said = text(&output);
    assert!(output.status.success() && said.contains("\"event\":\"result\""), "{said}");
    // Besides the measurement's connections, the relay keeps only its places for unauthenticated peers, and
    // only for a short time.
    let mut most = 0;
    loop {
        let now = roles[0].wait_for("second")["connections"].as_u64().unwrap();
        most = most.max(now);
        assert!(most < 3_000, "{most} connections");
        if most >= 1_000 && now < 100 {
            return drop(crowd);
        }
    }
}

#[test]
#[ignore = "slow: make test-all"]
fn a_lost_measurer_is_named_and_the_kill_switch_stops_everything() {
    let scratch = Scratch::new("stop");
    demo(&scratch);
    fs::remove_dir_all(scratch.0.join("state")).unwrap();
    let config = scratch.file("coordinator.toml");
    let mut roles = restart(&scratch);
    let ordinary = lasting_longer(&config);
    let mut once = Role::start(&["coordinator", "--once", "--config", &config]);
    once.wait_for("second");
    roles[1].child.kill().unwrap();
    let failure = once.wait_for("failure");
    assert_eq!((failure["by"].as_str(), failure["reason"].as_str()), (Some("measurer0"), Some("lost")));
    // The others measure without it.
    assert_eq!(once.wait_for("result")["relay"], "target");
    assert!(once.child.wait().unwrap().success());
    drop(roles);
    fs::write(&config, ordinary).unwrap();

    // The first measurer is dead from the start, and the coordinator says so.
    fs::remove_dir_all(scratch.0.join("state")).unwrap();
    let mut roles = restart(&scratch);
    roles[1].child.kill().unwrap();
    let output = run(&["coordinator", "--once", "--config", &config]);
    let said = text(&output);
    assert!(output.status.success() && said.contains("\"event\":\"result\""), "{said}");
    assert!(said.contains("\"event\":\"absent\"") && said.contains("measurer0"), "{said}");
    drop(roles);

    // The period has one slot, so the daemon begins to measure at once.
    fs::remove_dir_all(scratch.0.join("state")).unwrap();
    let _roles = restart(&scratch);
    lasting_longer(&config);
    let text_of = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("period = \"30 s\"\n{text_of}")).unwrap();
    let mut daemon = Role::start(&["coordinator", "--config", &config]);
    daemon.wait_for("second");
    fs::write(scratch.0.join("state/stop"), "").unwrap();
    assert_eq!(daemon.wait_for("kill-switch")["on"], true);
    assert_eq!(daemon.wait_for("failure")["reason"], "stopped");
    fs::remove_file(scratch.0.join("state/stop")).unwrap();
    assert_eq!(daemon.wait_for("kill-switch")["on"], false);
    // The slot of the next period measures again.
    assert_eq!(daemon.wait_for("result")["relay"], "target");
    // The state has a record of the bandwidth file only after the file is written.
    daemon.wait_for("file");
    let output = run(&["verify", "--config", &config]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn measurers_find_their_capacity_by_udp() {
    let scratch = Scratch::new("capacity");
    fs::create_dir(&scratch.0).unwrap();
    let port = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let members: Vec<(String, u16)> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let output = run(&["keygen", &scratch.file(&format!("{name}.key"))]);
            let key = text(&output).lines().find_map(|l| l.strip_prefix("onion-key = ").map(String::from));
            (key.unwrap(), port())
        })
        .collect();
    for (n, name) in ["a", "b", "c"].iter().enumerate() {
        let mut config = format!(
            "listen = \"127.0.0.1:0\"\nidentity = \"{name}.key\"\nrate = \"8 Mbit/s\"\n\
             coordinators = [\"{}\"]\n[capacity]\nlisten = \"127.0.0.1:{}\"\n",
            "aa".repeat(32),
            members[n].1
        );
        for (m, (key, port)) in members.iter().enumerate().filter(|(m, _)| *m != n) {
            config.push_str(&format!(
                "[[capacity.peer]]\nname = \"{m}\"\naddress = \"127.0.0.1:{port}\"\nonion-key = {key}\n"
            ));
        }
        fs::write(scratch.file(&format!("{name}.toml")), config).unwrap();
    }
    let mut roles: Vec<Role> = ["b", "c"]
        .map(|n| Role::start(&["measurer", "--config", &scratch.file(&format!("{n}.toml"))]))
        .into();
    roles.iter_mut().for_each(|role| drop(role.wait_for("listening")));
    let config = scratch.file("a.toml");
    let capacity = |more: &[&str]| {
        run(&[&["measurer-capacity", "--config", &config, "--rate", "8 Mbit/s"], more].concat())
    };
    let found = |answer: &Value| answer["capacity_bits_per_s"].as_u64().unwrap();
    let measure = || {
        let output = capacity(&["--duration", "2 s", "--json"]);
        let answer: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
        assert!(found(&answer) <= 8_800_000, "{answer}");
        answer
    };
    let answer = repeated(TRIES, measure, |answer| found(answer) >= 3_000_000);
    assert!(found(&answer) >= 3_000_000, "{answer}");
    assert!(text(&capacity(&["--duration", "200 s"])).contains("1 s to 120 s"));
    roles.truncate(1);
    assert!(text(&capacity(&["--duration", "1 s"])).contains("does not answer"));
}

/// Replaces a role's address in the configuration.
fn with_address(configuration: &str, name: &str, address: &str) -> String {
    let entry = if name == "relay" { "nickname = \"target\"".into() } else { format!("name = \"{name}\"") };
    let at = configuration.find(&entry).expect("the entry");
    let from = at + configuration[at..].find("address = \"").expect("its address") + 11;
    let to = from + configuration[from..].find('"').expect("a closing quote");
    format!("{}{address}{}", &configuration[..from], &configuration[to..])
}

/// Parses the file with stem, if Python has stem.
fn stem_reads(path: &Path) {
    let program = "import sys\nfrom stem.descriptor.bandwidth_file import BandwidthFile\n\
        f = BandwidthFile.from_str(open(sys.argv[1]).read(), validate=True)\n\
        assert f.version == '1.5.0' and len(f.measurements) == 1, f.version\n\
        print(list(f.measurements.values())[0]['bw'])";
    let available = Command::new("/usr/bin/python3").args(["-c", "import stem"]).output();
    if !available.is_ok_and(|output| output.status.success()) {
        skipped::skipped("stem reads the bandwidth file", "python3-stem");
        return;
    }
    let output = Command::new("/usr/bin/python3").args(["-c", program]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap() > 1000);
}

/// Requests a page from the status server at `port`, waiting until it listens.
fn get(port: u16, request: &str) -> String {
    let mut stream = (0..100)
        .find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(("127.0.0.1", port)).ok()
        })
        .expect("the page is served");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn status(port: u16) -> Value {
    let answer = get(port, "GET /status.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Requests the status page of a running daemon, and renders it in Chromium if that is installed.
///
/// Beside the measured relay there is a stock relay that opted out.
fn status_page(config: &str) {
    let port = free_port();
    let text_of = fs::read_to_string(config).unwrap();
    let id = "ee".repeat(20);
    let text_of = format!(
        "status = \"127.0.0.1:{port}\"\nopt-out = [\"{id}\"]\n{text_of}\n[[relay]]\nnickname = \"old\"\n\
         target = \"stock\"\naddress = \"127.0.0.1:3\"\nid = \"{id}\"\n\n[stock]\n\
         far-end = \"00000000000000000000000000000000000000cc\"\nlisten = \"127.0.0.1:0\"\n\
         capacity = \"300 Mbit/s\"\n"
    );
    fs::write(config, text_of).unwrap();
    let mut daemon = Role::start(&["coordinator", "--config", config]);
    daemon.wait_for("started");
    let page = get(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("<td>target</td>"), "{page}");
    assert!(
        get(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .contains("\ntidegate_flashflow_measured_relays 1\n")
    );
    let document = status(port);
    assert_eq!(document["relays"][0]["nickname"], "target");
    assert_eq!(document["relays"][0]["target"], "flashflow");
    assert_eq!(
        (&document["relays"][1]["target"], &document["relays"][1]["opted_out"]),
        (&"stock".into(), &true.into())
    );
    for (request, answer) in [
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405"),
        ("GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", "HTTP/1.1 421"),
    ] {
        assert!(get(port, request).starts_with(answer), "{request}");
    }
    let nonsense = get(port, &"x".repeat(10_000));
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400"), "{nonsense}");
    let chromium = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("http://127.0.0.1:{port}/"))
        .stderr(Stdio::null())
        .output();
    match chromium {
        Ok(output) => {
            let dom = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(dom.contains("id=\"relays\""), "{dom}");
            assert!(dom.contains("<td>target</td><td>flashflow</td>"), "{dom}");
            assert!(dom.contains("<td>old</td><td>stock (weaker: a lower bound)</td>"), "{dom}");
        }
        Err(_) => skipped::skipped("the status page in a browser", "chromium"),
    }
}

/// The daemon measures two relays with one address in one slot, with the same measurers.
///
/// The second one is 20 ms and jitter away.
#[test]
fn the_daemon_measures_two_relays_in_one_slot() {
    let scratch = Scratch::new("pair");
    demo(&scratch);
    fs::remove_dir_all(scratch.0.join("state")).unwrap();
    let _roles = restart(&scratch);
    let made = text(&run(&["keygen", &scratch.file("second.key")]));
    let keys: String = made.lines().take(2).map(|line| format!("{line}\n")).collect();
    let relay = fs::read_to_string(scratch.file("relay.toml")).unwrap();
    let relay = relay.replace("relay.key", "second.key").replace("20 Mbit/s", "10 Mbit/s");
    fs::write(scratch.file("second.toml"), relay).unwrap();
    let mut second = Role::start(&["relay", "--config", &scratch.file("second.toml")]);
    let address = second.wait_for("listening")["address"].as_str().unwrap().to_owned();
    let mut path =
        Role::start(&["delay", "--delay", "20 ms", "--jitter", "1 ms", "--seed", "3", "--to", &address]);
    let address = path.wait_for("listening")["address"].as_str().unwrap().to_owned();
    let (config, port) = (scratch.file("coordinator.toml"), free_port());
    // Both together need 2 x 2.953 x 20 Mbit/s, which fits the budget once.
    let text_of = format!(
        "period = \"18 s\"\nbudget = \"120 Mbit/s\"\nstatus = \"127.0.0.1:{port}\"\n{}\n\
         [[relay]]\nnickname = \"second\"\naddress = \"{address}\"\n{keys}",
        fs::read_to_string(&config).unwrap()
    );
    fs::write(&config, text_of).unwrap();
    let estimate = |result: &Value| result["estimate_bits_per_s"].as_u64().unwrap_or(0);
    let limits = [20_000_000, 10_000_000];
    let measure = || {
        let _ = fs::remove_dir_all(scratch.0.join("state"));
        let mut daemon = Role::start(&["coordinator", "--config", &config]);
        let attempts = [daemon.wait_for("attempt"), daemon.wait_for("attempt")];
        assert_ne!(attempts[0]["relay"], attempts[1]["relay"]);
        let allocated = |n: usize| attempts[n]["allocated_bits_per_s"].as_u64().unwrap();
        assert!(allocated(0) > 50_000_000 && allocated(0) + allocated(1) <= 120_000_000, "{attempts:?}");
        // Both run from their attempts on.
        let document = status(port);
        // After a pause one may fail until the next period, or for good.
        let mut results = [(); 2].map(|()| daemon.event("result").unwrap_or_default());
        results.sort_by_key(|result| result["relay"] != "target");
        for (result, limit) in results.iter().zip(limits) {
            // The test is that neither relay got the other's result.
            assert!(estimate(result) <= limit * 7 / 5, "{result}");
        }
        let _ = daemon.event("file");
        (document, results)
    };
    let running = |document: &Value| document["current"].as_array().unwrap().len();
    let is_enough = |(document, results): &(Value, [Value; 2])| {
        running(document) == 2
            && results[0]["relay"] != results[1]["relay"]
            && results.iter().zip(limits).all(|(result, limit)| estimate(result) >= limit / 2)
    };
    let (document, results) = repeated(TRIES, measure, is_enough);
    assert_eq!(running(&document), 2, "{document}");
    let current = document["current"].as_array().unwrap();
    assert!(current.iter().all(|current| current["target"] == "flashflow"), "{document}");
    for (result, (name, limit)) in results.iter().zip(["target", "second"].into_iter().zip(limits)) {
        assert_eq!(result["relay"], name);
        // A loaded machine measures badly.
        assert!(estimate(result) >= limit / 2, "{result}");
    }
    let output = run(&["verify", "--config", &config]);
    assert!(output.status.success() && text(&output).contains("2 results"), "{}", text(&output));
    let file = fs::read_to_string(scratch.0.join("v3bw")).unwrap();
    assert!(file.contains("nick=target") && file.contains("nick=second"), "{file}");
}
