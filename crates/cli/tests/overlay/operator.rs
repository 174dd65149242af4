//! Messages of roles to their operators: refusals with place and cure, warnings at the start, and the effect of signals.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::roles::{Overlay, ask, greeter};
use super::{Role, refusal, tidegate};

const RELAY: &str = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n";

/// A folder with a relay's keys.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    assert!(
        tidegate(&["relay", "--keygen", &folder.join("relay.keys").display().to_string()]).status.success()
    );
    folder
}

#[test]
fn values_below_the_least_are_refused_with_their_place() {
    let folder = folder("least");
    for (lines, cause) in [
        ("bandwidth = \"0 Mbit/s\"\n", "relay.toml:4:13: `bandwidth` is 0 "),
        ("bandwidth = \"74 KiB/s\"\n", "below 75 KiB/s"),
        ("[limits]\nmemory = \"3 MiB\"\n", "limits.memory is 3 MiB: one connection may use 4 MiB"),
        (
            "[directory]\naddress = \"127.0.0.1:80\"\ntoken = \"short\"\n",
            "relay.toml:6:9: `token` is not one word of at least 16 characters",
        ),
    ] {
        let said = refusal(&folder, &format!("{RELAY}{lines}"));
        let place = said.split("relay.toml:").nth(1).unwrap_or_default();
        assert!(said.contains(cause) && place.starts_with(|c: char| c.is_ascii_digit()), "{lines}: {said}");
    }
    let keys = folder.join("relay.keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
    let said = refusal(&folder, RELAY);
    assert!(said.contains("chmod 600") && !said.contains("--keygen"), "the file exists: {said}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_relay_warns_of_no_network_and_of_a_token_that_others_can_read() {
    let folder = folder("warns");
    let file = folder.join("relay.toml");
    fs::write(&file, RELAY).unwrap();
    let mut relay = Role::start(&["relay", "--config", &file.display().to_string()]);
    let said = relay.wait("in no network: no client learns of this relay");
    assert!(said["cure"].as_str().unwrap().contains("[directory]"), "{said}");
    fs::write(&file, format!("{RELAY}bandwidth = \"0 Mbit/s\"\n")).unwrap();
    relay.signal("-HUP");
    assert!(
        relay.wait("not reloaded")["cause"].as_str().unwrap().contains("relay.toml:4:13: `bandwidth` is 0")
    );
    let directory = "[directory]\naddress = \"127.0.0.1:1\"\ntoken = \"0123456789abcdef\"\n";
    fs::write(&file, format!("{RELAY}{directory}")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    relay.signal("-HUP");
    assert_eq!(relay.wait("others can read the token")["mode"], "644");
    relay.wait("reloaded");
    fs::remove_dir_all(&folder).unwrap();
}

/// The directory creates its token, outlives SIGHUP, and says that a bandwidth file names none of its relays.
#[test]
fn a_directory_creates_its_token_and_warns_of_a_bandwidth_file_of_other_relays() {
    let folder = folder("directory");
    let at = |name: &str| folder.join(name).display().to_string();
    let weights =
        format!("{}\nversion=1.5.0\n=====\nnode_id=${} bw=250\n", tidegate_kernel::unix_s(), "AB".repeat(20));
    fs::write(at("v3bw"), weights).unwrap();
    let (key, token, v3bw) = (at("directory.key"), at("token"), at("v3bw"));
    let listens = ["directory", "--listen", "127.0.0.1:0", "--key", &key, "--allow-private-addresses"];
    let mut directory =
        Role::start(&[&listens[..], &["--token-file", &token, "--bandwidth-file", &v3bw]].concat());
    directory.wait("token created");
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    let address = directory.wait("listening")["address"].as_str().unwrap().to_owned();
    directory.signal("-HUP");
    directory.wait("SIGHUP ignored: nothing is reread");
    let word = fs::read_to_string(&token).unwrap();
    let joins = format!("{RELAY}[directory]\naddress = \"{address}\"\ntoken = \"{}\"\n", word.trim());
    fs::write(at("relay.toml"), joins).unwrap();
    let mut relay = Role::start(&["relay", "--config", &at("relay.toml")]);
    relay.wait("announced");
    let joined = directory.wait("joined");
    assert_eq!((&joined["nickname"], &joined["relays"]), (&"a".into(), &1.into()), "{joined}");
    let said = directory.wait("not measured");
    assert_eq!((said["relays"].as_u64(), said["of"].as_u64()), (Some(1), Some(1)), "{said}");
    relay.signal("-TERM");
    relay.wait("withdrawn");
    let left = directory.wait("left");
    assert_eq!((&left["fingerprint"], &left["relays"]), (&joined["fingerprint"], &0.into()), "{left}");
    assert!(left["why"].as_str().unwrap().contains("withdrew"), "{left}");
    assert!(relay.process.wait().unwrap().success());
    // A reload that names another directory, or none, also withdraws the entry.
    let mut relay = Role::start(&["relay", "--config", &at("relay.toml")]);
    directory.wait("joined");
    relay.wait("announced");
    fs::write(at("relay.toml"), RELAY).unwrap();
    relay.signal("-HUP");
    relay.wait("withdrawn");
    directory.wait("left");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_client_says_why_requests_fail() {
    let mut overlay = Overlay::of_three("unnamed");
    let directory = overlay.listening().remove(0);
    let key: serde_json::Value = serde_json::from_str(&overlay.lines()[0]).unwrap();
    let role = ["client", "--socks", "127.0.0.1:0", "--directory", &directory, "--path", "a,nosuch,c"];
    let key = ["--allow-private-addresses", "--authority", key["authority"].as_str().unwrap()];
    overlay.start(&[&role[..], &key].concat(), "directory");
    let client = overlay.listening().pop().unwrap();
    assert_ne!(ask(&client, "localhost", greeter()).0, 0);
    let said = "\"cause\":\"the directory lists no relay named `nosuch`\",\"event\":\"request failed\"";
    for _ in 0..100 {
        if overlay.lines().iter().any(|line| line.contains(said) && line.contains("warn")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{:#?}", overlay.lines());
}
