//! Tests: each published key of a configuration changes the view that others have of a running relay.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{Role, get, tidegate};

/// A key, keys that both relays have, and keys that one of them has. `DIRECTORY` and `OTHER` stand for addresses of servers.
const CASES: [[&str; 3]; 17] = [
    ["nickname", OVERLAY, "nickname = \"b\""],
    ["listen", OVERLAY, "listen = \"127.0.0.2:0\""],
    ["address", OVERLAY, "address = \"127.0.0.1:9998\""],
    ["keys", OVERLAY, "keys = \"other.keys\""],
    ["threads", OVERLAY, "threads = 2"],
    ["bandwidth", OVERLAY, "bandwidth = \"8 Mbit/s\""],
    ["published-bandwidth", OVERLAY, "published-bandwidth = \"8 Mbit/s\""],
    ["exit-policy", OVERLAY, "exit-policy = [\"accept *:80\"]"],
    ["show-circuits", OVERLAY, "show-circuits = true"],
    ["directory.address", OVERLAY, "directory.address = \"OTHER\""],
    ["directory.token", OVERLAY, "directory.token = \"fedcba9876543210\""],
    ["tor.authority", TOR, "tor.authority = \"OTHER\""],
    ["tor.further-authorities", TOR, "tor.further-authorities = [\"OTHER\"]"],
    ["contact", TOR, "contact = \"me\""],
    ["family", TOR, "family = [\"0123456789ABCDEF0123456789ABCDEF01234567\"]"],
    ["family-keys", TOR, "family-keys = [\"family\"]"],
    ["exit-policy", TOR, "exit-policy = [\"accept *:80\"]"],
];

const OVERLAY: &str = "directory = { address = \"DIRECTORY\", token = \"0123456789abcdef\" }";
const TOR: &str = "tor.authority = \"DIRECTORY\"";

/// Lines of a descriptor that depend on the configuration.
const CONFIGURED: [&str; 8] =
    ["router ", "bandwidth ", "contact ", "family ", "family-cert", "accept ", "reject ", "fingerprint "];

/// Starts a server that takes posts, as directories and authorities do. Returns its address and the posts.
fn taker() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let posts = Arc::<Mutex<Vec<String>>>::default();
    let taken = posts.clone();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().map_while(Result::ok) {
            let request = request(&mut tcp);
            if request.starts_with("POST ") {
                taken.lock().unwrap().push(request);
                let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nlisted\n");
            } else {
                let _ = tcp.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    (address, posts)
}

/// Reads a request with its body.
fn request(tcp: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 1 << 14]);
    loop {
        let read = tcp.read(&mut buffer).unwrap_or(0);
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if read == 0 || body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}

/// Adds keys to a table. Tables in both are merged.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// Runs a relay with these keys until it has published itself. Returns what others see.
fn seen(folder: &Path, keys: [&str; 2]) -> String {
    let servers = [taker(), taker()];
    let least = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\naddress = \"127.0.0.1:9999\"\n\
                 status = \"127.0.0.1:0\"";
    let mut table = toml::Table::new();
    for text in [least, keys[0], keys[1]] {
        let text = text.replace("DIRECTORY", &servers[0].0).replace("OTHER", &servers[1].0);
        merge(&mut table, text.parse().unwrap());
    }
    let file = folder.join("relay.toml");
    fs::write(&file, toml::to_string(&table).unwrap()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut relay = Role::relay(&file.display().to_string());
    let address = relay.wait("listening")["address"].as_str().unwrap().to_owned();
    let status = relay.wait("status")["address"].as_str().unwrap().to_owned();
    relay.wait("announced");
    let page = get(&status, "localhost", "/status.json");
    let page: Value = serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap();
    let mut seen = vec![
        address.split(':').next().unwrap().to_owned(),
        format!("{} {}", page["threads"], page.get("circuit").is_some()),
    ];
    for (number, (_, posts)) in servers.iter().enumerate() {
        for line in posts.lock().unwrap().iter().flat_map(|post| post.lines()) {
            let entry = line.starts_with("relay ").then(|| {
                let words: Vec<&str> = line.split(' ').collect();
                // Without time and signature.
                words[..words.len() - 2].join(" ")
            });
            let is_stated =
                CONFIGURED.iter().any(|start| line.starts_with(start)) || line.starts_with("token ");
            seen.extend(entry.or(is_stated.then(|| line.to_owned())).map(|line| format!("{number} {line}")));
        }
    }
    seen.join("\n")
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-published-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    for name in ["relay.keys", "other.keys"] {
        assert!(tidegate(&["relay", "--keygen", &folder.join(name).display().to_string()]).status.success());
    }
    let family = folder.join("family");
    fs::write(&family, [&b"== ed25519v1-secret: fmly-id ==\0"[..], &[9; 64]].concat()).unwrap();
    fs::set_permissions(&family, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

#[test]
fn every_published_key_is_seen_by_others() {
    let folder = folder();
    let bases = [OVERLAY, TOR].map(|base| (base, seen(&folder, [base, ""])));
    let mut wrong = Vec::new();
    for [key, base, change] in CASES {
        let before = &bases.iter().find(|(known, _)| *known == base).unwrap().1;
        if seen(&folder, [base, change]) == *before {
            wrong.push(format!("{key}: `{change}` changes nothing of\n{before}"));
        }
    }
    // Without a change nothing changes.
    assert_eq!(seen(&folder, [OVERLAY, ""]), bases[0].1);
    fs::remove_dir_all(&folder).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
