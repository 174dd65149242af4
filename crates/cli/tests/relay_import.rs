//! `tidegate relay --import`: a torrc becomes a configuration that a relay accepts, and nothing is left out silently.

use crate::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tidegate-import-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).unwrap();
        self.at(name)
    }
}

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The configuration that a torrc becomes, and what the import says.
fn imported(torrc: &str) -> (toml::Table, String) {
    let output = tidegate(&["relay", "--import", torrc]);
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (toml::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}")), errors(&output))
}

/// Starts a relay with this configuration.
fn starts(config: &str) {
    let mut relay = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["relay", "--config", config])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(relay.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert!(line.contains("\"listening\""), "{line}");
}

const EXIT: &str = "\
Nickname tide
ORPort 9001
ORPort [2001:db8::1]:9001
Address 192.0.2.1
ControlPort 9051   # for a monitor
SocksPort 0
RelayBandwidthRate 5 MBytes
RelayBandwidthBurst 10 MBytes
MaxAdvertisedBandwidth 2 MBytes
ExitRelay 1
IPv6Exit 1
ExitPolicy accept *:80, \\
# the web
    accept *:443
ExitPolicy reject *:*
MetricsPort 127.0.0.1:9035
MetricsPortPolicy accept 127.0.0.1
NumCPUs 2
MaxMemInQueues 1 GB
SigningKeyLifetime 20 days
DoSCircuitCreationEnabled 1
DoSCircuitCreationDefenseTimePeriod 2 hours
DoSConnectionEnabled auto
DoSConnectionConnectRate 9
DoSCircuitCreationRate 0
ShutdownWaitLength 20 seconds
";

#[test]
fn an_exit_keeps_its_addresses_rates_policy_and_limits() {
    let folder = Folder::new("exit");
    let (config, said) = imported(&folder.write("torrc", EXIT));
    let wanted = "nickname = \"tide\"\nkeys = \"relay.keys\"\nlisten = [\"0.0.0.0:9001\", \"[2001:db8::1]:9001\"]\n\
        address = [\"192.0.2.1:9001\", \"[2001:db8::1]:9001\"]\nbandwidth = \"41943040 bit/s\"\n\
        exit-policy = [\"accept *:80\", \"accept *:443\", \"reject *:*\"]\n\
        exit-to-private-addresses = false\nstatus = \"127.0.0.1:9035\"\nthreads = 2\ndrain = \"20 s\"\n\
        [limits]\nmemory = \"1 GiB\"\n[key-lifetimes]\nsigning = \"20 d\"\n\
        [dos]\nDoSCircuitCreationEnabled = 1\nDoSCircuitCreationDefenseTimePeriod = 7200\n";
    let mut wanted: toml::Table = toml::from_str(wanted).unwrap();
    // The writer selects the unit; the values are compared.
    for (table, key) in [("limits", "memory"), ("key-lifetimes", "signing")] {
        assert!(config[table][key].is_str(), "{config}");
        wanted[table] = config[table].clone();
    }
    let rate =
        |config: &toml::Table| config["bandwidth"].as_str().unwrap().parse::<tidegate_control::units::Rate>();
    assert_eq!(rate(&config), rate(&wanted));
    wanted["bandwidth"] = config["bandwidth"].clone();
    assert_eq!(config, wanted);
    for line in [
        "torrc:5: ControlPort 9051: the relay has no control port",
        "torrc:8: RelayBandwidthBurst 10 MBytes: the bucket",
        "torrc:9: MaxAdvertisedBandwidth 2 MBytes: `published-bandwidth` acts only with [directory] or [tor]",
        "torrc:17: MetricsPortPolicy accept 127.0.0.1: the page",
        "torrc:24: DoSConnectionConnectRate 9: it has no effect without DoSConnectionEnabled = 1",
        "torrc:25: DoSCircuitCreationRate 0: 0 means the value of the consensus",
        "left out: the public Tor network: ",
        "off in every relay: SocksPort",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("no such option"), "{said}");
}

#[test]
fn too_many_threads_become_the_most_with_a_notice() {
    let folder = Folder::new("threads");
    let (config, said) = imported(&folder.write("torrc", "ORPort 9001\nNumCPUs 200\n"));
    assert_eq!(config["threads"].as_integer(), Some(64));
    assert!(said.contains("torrc:2: NumCPUs 200: a relay has at most 64 threads"), "{said}");
}

#[test]
fn a_private_network_is_joined_and_a_public_one_is_not() {
    let folder = Folder::new("private");
    let torrc = "TestingTorNetwork 1\nORPort 127.0.0.1:9001\n\
        DirAuthority a orport=1 no-v2 v3ident=00 127.0.0.1:7000 00\nDirAuthority b orport=1 v3ident=01 127.0.0.1:7001 00\n\
        DirAuthority c orport=1 v3ident=02 192.0.2.1:80 00\nDirAuthority bridge v3ident=03 bridge 127.0.0.1:7003 00\n\
        DirAuthority d orport=1 127.0.0.1:7004 00\nMaxAdvertisedBandwidth 2 MBytes\n";
    let (config, said) = imported(&folder.write("torrc", torrc));
    assert_eq!(config["tor"]["authority"].as_str(), Some("127.0.0.1:7000"));
    assert_eq!(config["tor"]["further-authorities"], toml::Value::from(vec!["127.0.0.1:7001"]));
    assert!(said.contains("torrc:6: DirAuthority") && said.contains("an authority of bridges"), "{said}");
    assert!(said.contains("torrc:7: DirAuthority") && said.contains("no `v3ident`"), "{said}");
    assert_eq!(config["extend-to-private-addresses"].as_bool(), Some(true));
    assert!(config.contains_key("published-bandwidth"), "{config}");
    assert!(said.contains("torrc:5: DirAuthority") && said.contains("--allow-public-authority"), "{said}");
    let (config, said) =
        imported(&folder.write("torrc", "ORPort 9001\nDirAuthority a v3ident=00 127.0.0.1:7000 00\n"));
    assert!(!config.contains_key("tor") && said.contains("write `address`"), "{said}");
    assert!(said.contains("imported: ORPort\n"), "an option that is left out is not imported: {said}");
}

#[test]
fn contact_and_family_are_kept_and_keys_of_families_are_found() {
    let folder = Folder::new("family");
    let key = [&b"== ed25519v1-secret: fmly-id ==\0"[..], &[9; 64]].concat();
    fs::create_dir(folder.0.join("keys")).unwrap();
    fs::write(folder.at("keys/a.secret_family_key"), key).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(folder.at("keys/a.secret_family_key"), private).unwrap();
    let member = "0123456789abcdef0123456789ABCDEF01234567";
    let torrc = format!(
        "ORPort 9001\nContactInfo \"Tide <a@b>\"\nMyFamily ${member}~nick,{member}\nDataDirectory {}\nFamilyId *\nFamilyId x\n",
        folder.0.display()
    );
    let network = "Address 127.0.0.1\nDirAuthority a orport=1 v3ident=00 127.0.0.1:7000 00\n";
    let (config, said) = imported(&folder.write("torrc", &format!("{torrc}{network}")));
    assert!(
        said.contains("imported: Address, ContactInfo, DirAuthority, FamilyId, MyFamily, ORPort"),
        "{said}"
    );
    assert_eq!(config["contact"].as_str(), Some("Tide <a@b>"));
    assert_eq!(config["family"].as_array().unwrap().len(), 2);
    assert_eq!(config["family-keys"], toml::Value::from(vec![folder.at("keys/a.secret_family_key")]));
    assert!(said.contains("torrc:6: FamilyId x: ") && said.contains("no readable key"), "{said}");

    // A relay of a [directory] refuses these keys, so they are comments.
    let out = folder.at("relay.toml");
    let torrc = folder.write("torrc", &torrc.replace("9001", "127.0.0.1:auto"));
    let output = tidegate(&["relay", "--import", &torrc, "--out", &out]);
    let (said, text) = (errors(&output), fs::read_to_string(&out).unwrap());
    for (line, option, key) in
        [(2, "ContactInfo", "contact"), (3, "MyFamily", "family"), (5, "FamilyId", "family-keys")]
    {
        assert!(
            said.contains(&format!("torrc:{line}: {option} "))
                && said.contains(&format!("`{key}` acts only with [tor]")),
            "{said}"
        );
        assert!(text.contains(&format!("\n# {key} = ")), "{text}");
    }
    assert!(said.contains("imported: ORPort\n"), "{said}");
    fs::write(&out, format!("{text}[directory]\naddress = \"127.0.0.1:1\"\n")).unwrap();
    assert!(tidegate(&["relay", "--keygen", &folder.at("relay.keys")]).status.success());
    starts(&out);
}

#[test]
fn the_relay_starts_with_what_is_written_and_no_file_is_overwritten() {
    let folder = Folder::new("starts");
    let options = folder.write("options", "ORPort 127.0.0.1:auto\nMetricsPort 0\n");
    let torrc = folder.write("torrc", &format!("%include {options}\nNickname tide\nExitPolicy reject *:*\n"));
    let out = folder.at("relay.toml");
    let output = tidegate(&["relay", "--import", &torrc, "--out", &out]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", errors(&output));
    assert!(tidegate(&["relay", "--keygen", &folder.at("relay.keys")]).status.success());
    starts(&out);

    let before = fs::read(&out).unwrap();
    let again = tidegate(&["relay", "--import", &torrc, "--out", &out]);
    assert_eq!(again.status.code(), Some(2));
    assert!(errors(&again).contains("cannot be written") && fs::read(&out).unwrap() == before);
}

#[test]
fn bad_files_are_refused_with_place_and_cure_and_nothing_is_written() {
    let folder = Folder::new("bad");
    let out = folder.at("relay.toml");
    for (torrc, cause) in [
        ("SocksPort 9050\n", "sets no `ORPort`"),
        ("ORPort 0\n", "sets no `ORPort`"),
        ("ORPort 9001\nBridgeRelay 1\n", "torrc:2:1: `BridgeRelay` is set"),
        ("ORPort 99999\n", "torrc:1:1: `99999` is not a port"),
        ("ORPort 9001 NoListen\n", "torrc:1:1: no `ORPort` listens"),
        ("ORPort 9001\nMetricsPort page\n", "torrc:2:1: `page` is not a port"),
        (
            "ORPort 9001\nRelayBandwidthRate 20 KB\n",
            "torrc:2:1: `RelayBandwidthRate` is 20480 bytes per second",
        ),
        ("ORPort 9001\nBandwidthRate much\n", "torrc:2:1: `much` is not a size"),
        ("ORPort 9001\nExitPolicy permit *:80\n", "torrc:2:1: `permit *:80` is not an entry"),
        (
            "ORPort 9001\nContactInfo \"a\n",
            "torrc:2:1: the value of `ContactInfo` has an opening quotation mark",
        ),
        ("ORPort 9001\nNickname a b\n", "torrc:2:1: `a b` is not a nickname"),
        ("ORPort 9001\n%include /nowhere/torrc\n", "torrc:2:1: /nowhere/torrc cannot be read"),
        ("network-status-version 3\n", "is a network consensus of Tor, and not a torrc"),
        ("", "is empty"),
    ] {
        let path = folder.write("torrc", torrc);
        let output = tidegate(&["relay", "--import", &path, "--out", &out]);
        assert_eq!(output.status.code(), Some(2), "{torrc}");
        assert!(errors(&output).contains(cause), "{torrc}: {}", errors(&output));
        assert!(!Path::new(&out).exists(), "{torrc}");
    }
    assert_eq!(tidegate(&["relay", "--import", "/nowhere/torrc"]).status.code(), Some(2));
    assert_eq!(tidegate(&["relay", "--out", &out, "--config", "x"]).status.code(), Some(2));
}

/// Tor lists its options; the import takes each or says why not.
#[test]
fn every_option_of_tor_is_taken_or_has_a_reason() {
    let Ok(listed) = Command::new("tor").arg("--list-torrc-options").output() else {
        return skipped::skipped("the options of an installed tor", "tor");
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    // These are refused with the value 1.
    let refused = ["ExitPolicy", "BridgeRelay", "BandwidthRate", "RelayBandwidthRate"];
    let options = listed.lines().filter(|option| !refused.contains(option));
    let torrc: String = options.map(|option| format!("{option} 1\n")).collect();
    assert!(torrc.lines().count() > 300, "{torrc}");
    let folder = Folder::new("options");
    let (_, said) = imported(&folder.write("torrc", &torrc));
    let unknown: Vec<&str> = said.lines().filter(|line| line.contains("no such option")).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    let (_, said) = imported(&folder.write("torrc", "ORPort 9001\nORPrt 1\n"));
    assert!(said.contains("torrc:2: ORPrt 1: tor 0.4.9 has no such option"), "{said}");
}

/// Tor prints the options that it reads; the reader finds the same values.
#[test]
fn values_are_those_that_tor_reads() {
    let folder = Folder::new("values");
    let text =
        format!("DataDirectory {}\n{EXIT}ContactInfo \"a \\\"b\\\" \\x21 # c\" # d\n", folder.at("data"));
    let torrc = folder.write("torrc", &text);
    let command = [
        "--verify-config",
        "--quiet",
        "--defaults-torrc",
        "/dev/null",
        "-f",
        &torrc,
        "--dump-config",
        "short",
    ];
    let Ok(dumped) = Command::new("tor").args(command).output() else {
        return skipped::skipped("the values that an installed tor reads", "tor");
    };
    assert!(dumped.status.success(), "tor refuses the torrc of these tests");
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    let texts = [
        "Address",
        "ControlPort",
        "ExitPolicy",
        "MetricsPort",
        "MetricsPortPolicy",
        "Nickname",
        "ORPort",
        "SocksPort",
    ];
    let settings = tidegate_data::torrc::open(Path::new(&torrc)).unwrap();
    let mut compared = 0;
    for setting in &settings {
        let line = match &*setting.name {
            "ContactInfo" => format!("ContactInfo {:?}", setting.value),
            name if texts.contains(&name) => format!("{name} {}", setting.value),
            _ => continue,
        };
        assert!(dumped.lines().any(|dumped| dumped == line), "{line}: {dumped}");
        compared += 1;
    }
    assert_eq!(compared, 11);
}
