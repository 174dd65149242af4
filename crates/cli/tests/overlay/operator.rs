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

/// A file is checked without starting the role, and an empty one or one of another role is named.
#[test]
fn configurations_are_checked_before_the_start() {
    let folder = folder("checks");
    let file = folder.join("relay.toml").display().to_string();
    let run = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = tidegate(&[arguments, &[&file]].concat());
        let said = [&output.stdout[..], &output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let check = ["relay", "--check", "--config"];
    assert_eq!(run(RELAY, &check), (Some(0), format!("{file}: fine\n")));
    let (code, said) = run(&format!("{RELAY}bandwidth = \"0 Mbit/s\"\n"), &check);
    assert!(code == Some(2) && said.contains("relay.toml:4:13"), "{said}");
    let (code, said) = run("\n", &check);
    assert!(code == Some(2) && said.contains("is empty") && said.contains("docs/live.md"), "{said}");
    let key = folder.join("flashflow.key").display().to_string();
    assert!(tidegate(&["flashflow", "keygen", &key]).status.success());
    let measured = format!(
        "{RELAY}bandwidth = \"10 Mbit/s\"\n[measurement]\nidentity = \"flashflow.key\"\nallowed = true\n\
         coordinators = [\"{}\"]\n",
        "ab".repeat(32)
    );
    assert_eq!(run(&measured, &check).0, Some(0));
    for arguments in [&["flashflow", "check-config", "relay"][..], &["flashflow", "relay", "--config"]] {
        let (code, said) = run(&measured, arguments);
        let cure = format!("tidegate relay --config {file} --check");
        assert!(code == Some(2) && said.contains("is a configuration of `tidegate relay`"), "{said}");
        assert!(said.contains(&cure), "{said}");
        let (code, said) = run("", arguments);
        assert!(code == Some(2) && said.contains("docs/flashflow-operation.md"), "{said}");
        let (code, said) = run("listen = 1\n", arguments);
        assert!(code == Some(2) && said.contains("listen"), "a mistake in its own file: {said}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_relays_of_a_path_are_checked_at_the_start() {
    let folder = folder("path");
    let [key, token] = ["key", "token"].map(|name| folder.join(name).display().to_string());
    let directory = ["directory", "--listen", "127.0.0.1:0", "--key", &key, "--token-file", &token];
    let mut directory = Role::start(&directory);
    let authority = directory.wait("key")["authority"].as_str().unwrap().to_owned();
    let address = directory.wait("listening")["address"].as_str().unwrap().to_owned();
    let client =
        ["client", "--socks", "127.0.0.1:0", "--directory", &address, "--authority", &authority, "--path"];
    for (path, name) in [("alpha,,gamma", "``"), ("alpha, ,gamma", "``"), ("alpha,be ta", "`be ta`")] {
        let output = tidegate(&[&client[..], &[path]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(name) && said.contains("--path"), "{said}");
    }
    let mut client = Role::start(&[&client[..], &["alpha, beta"]].concat());
    let said = client.wait("no path");
    assert!(said["cause"].as_str().unwrap().ends_with("named alpha, beta"), "{said}");
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
    overlay.until(said, |lines| lines.iter().any(|line| line.contains(said) && line.contains("warn")));
}
