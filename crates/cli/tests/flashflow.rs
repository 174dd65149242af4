//! `tidegate flashflow` as its users run it: processes, files, a kill -9, other people's parsers.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

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
    lines: BufReader<std::process::ChildStdout>,
}

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
        let lines = BufReader::new(child.stdout.take().expect("asked for"));
        Role { child, lines }
    }

    /// Reads events until one of that kind.
    fn wait_for(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("readable") > 0, "the role ended before {kind}");
            let event: Value = serde_json::from_str(&line).expect("events are JSON");
            if event["event"] == kind {
                return event;
            }
        }
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

#[test]
fn the_demo_measures_keeps_and_replays_through_a_kill() {
    let scratch = Scratch::new("demo");
    let verdict = demo(&scratch);
    // A loaded machine measures badly; how well an idle one does is an experiment.
    let estimate = verdict["estimate_bits_per_s"].as_u64().unwrap();
    assert!((10_000_000..=40_000_000).contains(&estimate), "{verdict}");
    assert_eq!(verdict["truth_bits_per_s"], 20_000_000);
    assert!(verdict["conclusive"].is_boolean());
    assert_eq!(verdict["per_second"].as_array().unwrap().len(), 3);
    let background = |second: &Value| second["background_bits_per_s"].as_u64().unwrap();
    assert!(verdict["per_second"].as_array().unwrap().iter().any(|second| background(second) > 0));

    let config = scratch.file("coordinator.toml");
    let verify = || {
        let output = run(&["verify", "--config", &config]);
        assert!(output.status.success() && text(&output).contains("identical"), "{}", text(&output));
    };
    verify();
    let file = fs::read_to_string(scratch.0.join("v3bw")).unwrap();
    assert_eq!(text(&run(&["bandwidth-file", "--config", &config])), file);
    stem_reads(&scratch.0.join("v3bw"));

    // The same roles again; the coordinator is killed in the middle of a measurement.
    let mut roles = Vec::new();
    let mut configuration = fs::read_to_string(&config).unwrap();
    for name in ["relay", "measurer0", "measurer1", "measurer2"] {
        let kind = if name == "relay" { "relay" } else { "measurer" };
        let mut role = Role::start(&[kind, "--config", &scratch.file(&format!("{name}.toml"))]);
        let address = role.wait_for("listening")["address"].as_str().unwrap().to_owned();
        configuration = with_address(&configuration, name, &address);
        roles.push(role);
    }
    fs::write(&config, configuration).unwrap();
    let mut coordinator = Role::start(&["coordinator", "--once", "--config", &config]);
    coordinator.wait_for("second");
    coordinator.child.kill().unwrap();
    coordinator.child.wait().unwrap();
    verify();
    assert_eq!(text(&run(&["bandwidth-file", "--config", &config])), file, "the good result is still there");

    // It goes on: the two measurements of the period are used up, and the old result stays.
    let output = run(&["coordinator", "--once", "--config", &config]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!text(&output).contains("\"event\":\"attempt\""), "{}", text(&output));
    verify();
    let after = fs::read_to_string(scratch.0.join("v3bw")).unwrap();
    let weight = |text: &str| text.lines().last().unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(weight(&after), weight(&file));
    assert!(after.contains("error_misc=1"), "the interrupted one counts as failed: {after}");
    status_page(&config);
}

/// Puts a role's new address where the configuration has its old one.
fn with_address(configuration: &str, name: &str, address: &str) -> String {
    let entry = if name == "relay" { "nickname = \"target\"".into() } else { format!("name = \"{name}\"") };
    let at = configuration.find(&entry).expect("the entry");
    let from = at + configuration[at..].find("address = \"").expect("its address") + 11;
    let to = from + configuration[from..].find('"').expect("a closing quote");
    format!("{}{address}{}", &configuration[..from], &configuration[to..])
}

/// stem's parser, where Python has stem.
fn stem_reads(path: &Path) {
    let program = "import sys\nfrom stem.descriptor.bandwidth_file import BandwidthFile\n\
        f = BandwidthFile.from_str(open(sys.argv[1]).read(), validate=True)\n\
        assert f.version == '1.5.0' and len(f.measurements) == 1, f.version\n\
        print(list(f.measurements.values())[0]['bw'])";
    let available = Command::new("/usr/bin/python3").args(["-c", "import stem"]).output();
    if !available.is_ok_and(|output| output.status.success()) {
        eprintln!("python3-stem is not installed: its parser was not asked");
        return;
    }
    let output = Command::new("/usr/bin/python3").args(["-c", program]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap() > 1000);
}

/// The page of a running daemon, asked for by hand and, where it is installed, by Chromium.
fn status_page(config: &str) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text_of = fs::read_to_string(config).unwrap();
    fs::write(config, format!("status = \"127.0.0.1:{port}\"\n{text_of}")).unwrap();
    let mut daemon = Role::start(&["coordinator", "--config", config]);
    daemon.wait_for("started");
    let get = |request: &str| {
        let mut stream = (0..100)
            .find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                TcpStream::connect(("127.0.0.1", port)).ok()
            })
            .expect("the page is served");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let page = get("GET / HTTP/1.1\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("<td>target</td>"), "{page}");
    assert!(get("GET /metrics HTTP/1.1\r\n\r\n").contains("\ntidegate_flashflow_measured_relays 1\n"));
    let json = get("GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n");
    let document: Value = serde_json::from_str(json.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(document["relays"][0]["nickname"], "target");
    assert!(get("GET /../etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get("POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert_eq!(get(&"x".repeat(10_000)), "");
    let chromium = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("http://127.0.0.1:{port}/"))
        .stderr(Stdio::null())
        .output();
    match chromium {
        Ok(output) => {
            let dom = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(dom.contains("<td>target</td>") && dom.contains("id=\"relays\""), "{dom}");
        }
        Err(_) => eprintln!("chromium is not installed: the page was not opened in a browser"),
    }
}

#[test]
fn keys_configurations_and_schedules_are_checked() {
    let scratch = Scratch::new("check");
    fs::create_dir(&scratch.0).unwrap();
    let key = scratch.file("c.key");
    assert!(run(&["keygen", &key]).status.success());
    assert!(text(&run(&["keygen", &key])).contains("cannot be written"), "keys are never overwritten");
    let fingerprint = "aa".repeat(32);
    let relays: String = (1..=5)
        .map(|n| {
            format!(
                "[[relay]]\nnickname = \"r{n}\"\nid = \"{}\"\naddress = \"127.0.0.{n}:9001\"\n\
                 fingerprint = \"{fingerprint}\"\nonion_key = \"{fingerprint}\"\n",
                format!("{n:02x}").repeat(20)
            )
        })
        .collect();
    let good = format!(
        "identity = \"c.key\"\nstate = \"state\"\nbandwidth_file = \"v3bw\"\nopt_out = [\"{}\"]\n\
         [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{fingerprint}\"\n\
         capacity = \"1 Gbit/s\"\n{relays}",
        "05".repeat(20)
    );
    let config = scratch.file("c.toml");
    fs::write(&config, &good).unwrap();
    assert!(run(&["check-config", "coordinator", &config]).status.success());
    let schedule = run(&["schedule", "--config", &config, "--period", "7", "--json"]);
    let document: Value = serde_json::from_slice(&schedule.stdout).unwrap();
    assert_eq!(document["placements"].as_array().unwrap().len(), 4, "who opted out is not in it");
    assert_eq!(run(&["schedule", "--config", &config, "--period", "7", "--json"]).stdout, schedule.stdout);
    assert!(!scratch.0.join("state").exists(), "a dry run writes nothing");

    fs::write(&config, good.replacen("state =", "stat =", 1)).unwrap();
    let output = run(&["check-config", "coordinator", &config]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("unknown field `stat`") && text(&output).contains("line 2"),
        "{}",
        text(&output)
    );
    for role in ["relay", "measurer", "coordinator"] {
        for bad in ["/nonexistent", "/dev/null", TIDEGATE] {
            assert_eq!(run(&["check-config", role, bad]).status.code(), Some(2), "{role} {bad}");
        }
    }
}
