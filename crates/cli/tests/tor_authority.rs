//! A real tor directory authority reads our bandwidth file: a private network on loopback of three
//! authorities and two relays, whose weights in the consensus become those of the file. Runs where tor is
//! installed.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_control::flashflow::bandwidth_file::{BandwidthFile, Line};
use tidegate_control::units::Rate;

const AUTHORITIES: usize = 3;
/// What the file says of the relays, in kB/s.
const WEIGHTS: [u64; 2] = [4321, 87_654];

struct Network {
    directory: PathBuf,
    processes: Vec<Child>,
}

impl Drop for Network {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

struct Node {
    name: String,
    directory: PathBuf,
    or_port: u16,
    dir_port: u16,
    fingerprint: String,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn node(base: &Path, name: String) -> Node {
    let directory = base.join(&name);
    fs::create_dir_all(directory.join("keys")).unwrap();
    let (or_port, dir_port) = (free_port(), free_port());
    fs::write(directory.join("empty"), "").unwrap();
    let output = Command::new("tor")
        .args(["--list-fingerprint", "--quiet", "-f"])
        .arg(directory.join("empty"))
        .arg("--DataDirectory")
        .arg(&directory)
        .args(["--ORPort", &or_port.to_string(), "--Nickname", &name, "--Address", "127.0.0.1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rfind(|line| line.starts_with(&name)).expect("a fingerprint").to_owned();
    let fingerprint = line[name.len()..].replace(' ', "");
    Node { name, directory, or_port, dir_port, fingerprint }
}

/// An authority's voting identity.
fn certify(authority: &Node) -> String {
    let keys = authority.directory.join("keys");
    let mut child = Command::new("tor-gencert")
        .args(["--create-identity-key", "--passphrase-fd", "0", "-m", "12"])
        .args(["-a", &format!("127.0.0.1:{}", authority.dir_port)])
        .arg("-i")
        .arg(keys.join("authority_identity_key"))
        .arg("-s")
        .arg(keys.join("authority_signing_key"))
        .arg("-c")
        .arg(keys.join("authority_certificate"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"passphrase\n").unwrap();
    assert!(child.wait().unwrap().success());
    let certificate = fs::read_to_string(keys.join("authority_certificate")).unwrap();
    certificate.lines().find_map(|line| line.strip_prefix("fingerprint ")).expect("v3ident").to_owned()
}

fn unix() -> u64 {
    tidegate_net::clock::unix()
}

fn bandwidth_file(relays: &[Node]) -> String {
    let now = unix();
    let lines = relays.iter().zip(WEIGHTS).map(|(relay, weight)| Line {
        id: tidegate_net::identity::unhex(&relay.fingerprint).unwrap(),
        ed25519: None,
        nickname: relay.name.clone(),
        capacity: Rate(weight * 8000),
        descriptor_limit: None,
        time: now,
        success: 1,
        failures: 0,
        conclusive: true,
    });
    let file = BandwidthFile {
        latest: now,
        earliest: now,
        started: now,
        created: now,
        software_version: "0.1.0".into(),
        network_relays: 2,
        attempts: 2,
        failures: 0,
        excluded_old: 0,
        lines: lines.collect(),
    };
    file.to_text().unwrap()
}

#[test]
fn a_directory_authority_takes_our_weights_into_the_consensus() {
    let installed = |tool: &str| Command::new(tool).arg("--help").output().is_ok();
    if !installed("tor") || !installed("tor-gencert") {
        eprintln!("tor is not installed: no directory authority was asked");
        return;
    }
    let directory = std::env::temp_dir().join(format!("tidegate-tor-{}", std::process::id()));
    let mut network = Network { directory: directory.clone(), processes: Vec::new() };
    let authorities: Vec<Node> = (0..AUTHORITIES).map(|n| node(&directory, format!("auth{n}"))).collect();
    let relays: Vec<Node> = (0..WEIGHTS.len()).map(|n| node(&directory, format!("relay{n}"))).collect();
    let v3bw = directory.join("v3bw");
    fs::write(&v3bw, bandwidth_file(&relays)).unwrap();
    let mut common = "TestingTorNetwork 1\nAssumeReachable 1\nPathsNeededToBuildCircuits 0.25\nNumCPUs 1\n\
        SocksPort 0\nAddress 127.0.0.1\nContactInfo test\n"
        .to_owned();
    for authority in &authorities {
        common.push_str(&format!(
            "DirAuthority {} orport={} no-v2 v3ident={} 127.0.0.1:{} {}\n",
            authority.name,
            authority.or_port,
            certify(authority),
            authority.dir_port,
            authority.fingerprint
        ));
    }
    for node in authorities.iter().chain(&relays) {
        let own = format!(
            "{common}Nickname {}\nDataDirectory {}\nORPort {}\nLog notice file {}\n",
            node.name,
            node.directory.display(),
            node.or_port,
            node.directory.join("log").display()
        );
        let role = if node.name.starts_with("auth") {
            format!(
                "DirPort {}\nAuthoritativeDirectory 1\nV3AuthoritativeDirectory 1\nExitPolicy reject *:*\n\
                 TestingDirAuthVoteExit *\nTestingDirAuthVoteHSDir *\nTestingDirAuthVoteGuard *\n\
                 V3AuthNIntervalsValid 2\nTestingV3AuthInitialVotingInterval 5\nTestingV3AuthInitialVoteDelay 2\n\
                 TestingV3AuthInitialDistDelay 2\nV3AuthVotingInterval 10\nV3AuthVoteDelay 2\nV3AuthDistDelay 2\n\
                 V3BandwidthsFile {}\n",
                node.dir_port,
                v3bw.display()
            )
        } else {
            "ExitRelay 1\nExitPolicy accept 127.0.0.0/8:*\nExitPolicy reject *:*\nExitPolicyRejectPrivate 0\n"
                .into()
        };
        let torrc = node.directory.join("torrc");
        fs::write(&torrc, own + &role).unwrap();
        let child = Command::new("tor").args(["--quiet", "-f"]).arg(&torrc).spawn().unwrap();
        network.processes.push(child);
    }
    let consensus = authorities[0].directory.join("cached-consensus");
    let mut last = String::new();
    for _ in 0..240 {
        std::thread::sleep(Duration::from_millis(500));
        last = fs::read_to_string(&consensus).unwrap_or_default();
        if WEIGHTS.iter().all(|weight| last.contains(&format!("w Bandwidth={weight}\n"))) {
            return;
        }
    }
    let log = fs::read_to_string(authorities[0].directory.join("log")).unwrap_or_default();
    panic!("the weights did not show up in two minutes; consensus:\n{last}\nlog:\n{log}");
}
