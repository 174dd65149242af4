//! Tests: each option of `tidegate directory` changes what relays and clients get.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Role, get, tidegate};

const TOKEN: &str = "0123456789abcdef";
/// An identity of no relay.
const NOBODY: &str = "--allow 0000000000000000000000000000000000000000000000000000000000000000";

/// An option, options that both directories have, and those that one of them has. Capital words stand for files, the identity of
/// the relay, and the address of a coordinator.
const CASES: [[&str; 3]; 9] = [
    ["--listen", OPEN, "--listen 127.0.0.2:0"],
    ["--key", OPEN, "--key OTHER"],
    ["--allow", "--allow-private-addresses", "--allow IDENTITY"],
    ["--token-file", "--allow-private-addresses", "--token-file TOKEN"],
    ["--relays-per-address", OPEN, "--relays-per-address 1"],
    ["--allow-private-addresses", "--token-file TOKEN", "--allow-private-addresses"],
    ["--bandwidth-file", OPEN, "--bandwidth-file WEIGHTS"],
    ["--coordinator", OPEN, "--coordinator COORDINATOR"],
    ["--validity", OPEN, "--validity 20min"],
];
const OPEN: &str = "--token-file TOKEN --allow-private-addresses";
/// Options of every command.
const COMMON: [&str; 4] = ["--help", "--version", "--log", "--log-format"];

/// Files, and the identity of a relay.
struct Scene {
    folder: PathBuf,
    identity: String,
    coordinator: String,
}

impl Scene {
    fn new() -> Scene {
        let folder = std::env::temp_dir().join(format!("tidegate-options-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let keys = |name: &str| tidegate(&["relay", "--keygen", &folder.join(name).display().to_string()]);
        let output = keys("a.keys");
        assert!(keys("b.keys").status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let identity = text.lines().find_map(|line| line.strip_prefix("identity = ")).unwrap();
        private(&folder.join("TOKEN"), TOKEN);
        let weights = format!(
            "{}\nversion=1.5.0\n=====\nnode_id=${} bw=250\n",
            tidegate_kernel::unix_s(),
            "AB".repeat(20)
        );
        fs::write(folder.join("WEIGHTS"), &weights).unwrap();
        Scene { folder, identity: identity.trim_matches('"').to_owned(), coordinator: coordinator(weights) }
    }

    /// Options with files and addresses of this scene.
    fn options(&self, options: &str) -> Vec<String> {
        let word = |word: &str| match word {
            "TOKEN" | "OTHER" | "WEIGHTS" => self.folder.join(word).display().to_string(),
            "IDENTITY" => self.identity.clone(),
            "COORDINATOR" => self.coordinator.clone(),
            _ => word.to_owned(),
        };
        options.split_whitespace().map(word).collect()
    }

    /// Runs a directory and a relay that wants to join. Returns the view of relays and clients.
    fn seen(&self, options: &str) -> String {
        let has = |option: &str| options.split_whitespace().any(|word| word == option);
        let mut all = vec!["directory".to_owned()];
        if !has("--listen") {
            all.extend(self.options("--listen 127.0.0.1:0"));
        }
        if !has("--key") {
            all.extend(["--key".into(), self.folder.join("KEY").display().to_string()]);
        }
        if !has("--allow") {
            all.extend(self.options(NOBODY));
        }
        all.extend(self.options(options));
        let mut directory = Role::start(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let key = directory.wait("key")["authority"].to_string();
        let address = directory.wait("listening")["address"].as_str().unwrap().to_owned();
        let relays = ["a", "b"].map(|name| {
            let file = self.folder.join(format!("{name}.toml"));
            let config = format!(
                "nickname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"{name}.keys\"\n[directory]\n\
                 address = \"{address}\"\ntoken = \"{TOKEN}\"\n"
            );
            private(&file, &config);
            let mut relay = Role::relay(&file.display().to_string());
            let answer = relay.wait_for_any(&["announced", "refused"]);
            (relay, format!("{} {}", answer["event"], answer["cause"]))
        });
        let text = get(&address, "localhost", "/directory");
        let valid = text.lines().find_map(|line| line.strip_prefix("valid ")?.split_once(' ')).unwrap();
        let [from, until] = [valid.0, valid.1].map(|time| time.trim().parse::<u64>().unwrap());
        let measured = text.lines().any(|line| line.starts_with("measured "));
        let host = address.split(':').next().unwrap();
        let answers = relays.map(|(_, answer)| answer).join(" ");
        format!("{key} {host} {answers} {} {measured}", until - from)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The status page of a coordinator with these weights.
fn coordinator(weights: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().map_while(Result::ok) {
            let _ = tcp.read(&mut [0; 4096]);
            let _ = write!(tcp, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{weights}", weights.len());
        }
    });
    address
}

#[test]
fn every_option_of_a_directory_has_an_effect() {
    let help = String::from_utf8(tidegate(&["directory", "--help"]).stdout).unwrap();
    let words =
        help.lines().filter_map(|line| line.split_whitespace().take(2).find(|word| word.starts_with("--")));
    let tried = CASES.iter().map(|[option, ..]| *option).chain(COMMON);
    assert_eq!(words.collect::<BTreeSet<_>>(), tried.collect(), "a case for each option");
    let scene = Scene::new();
    let mut wrong = Vec::new();
    for [option, base, change] in CASES {
        let [before, after] = [scene.seen(base), scene.seen(&format!("{base} {change}"))];
        if before == after {
            wrong.push(format!("{option}: `{change}` changes nothing of {before}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(scene.seen(OPEN), scene.seen(OPEN), "without a change nothing changes");
}
