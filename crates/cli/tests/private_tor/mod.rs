//! A private Tor network on loopback: three directory authorities and relays, as real tor processes.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const AUTHORITIES: usize = 3;

/// What makes a node a relay that forwards and exits to loopback.
pub const RELAY: &str =
    "ExitRelay 1\nExitPolicy accept 127.0.0.0/8:*\nExitPolicy reject *:*\nExitPolicyRejectPrivate 0\n";

/// Whether tor and its tools are here.
pub fn is_installed() -> bool {
    ["tor", "tor-gencert"].iter().all(|tool| Command::new(tool).arg("--help").output().is_ok())
}

/// The network's processes and files; both are gone when it is dropped.
pub struct Network {
    /// Of everything.
    pub directory: PathBuf,
    /// Options of whoever takes part.
    pub common: String,
    authorities: Vec<Node>,
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

/// An authority or a relay.
pub struct Node {
    /// Its nickname.
    pub name: String,
    /// Its files.
    pub directory: PathBuf,
    /// Its identity in hexadecimal.
    pub fingerprint: String,
    or_port: u16,
    dir_port: u16,
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

impl Network {
    /// Authorities that take weights from that file.
    pub fn new(purpose: &str, v3bw: &str) -> Network {
        let name = format!("tidegate-{purpose}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let authorities: Vec<Node> = (0..AUTHORITIES).map(|n| node(&directory, format!("auth{n}"))).collect();
        let mut common = "TestingTorNetwork 1\nAssumeReachable 1\nPathsNeededToBuildCircuits 0.25\n\
            NumCPUs 1\nContactInfo test\n"
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
        fs::write(directory.join("v3bw"), v3bw).unwrap();
        Network { directory, common, authorities, processes: Vec::new() }
    }

    /// Makes a relay's keys.
    pub fn relay(&self, name: &str) -> Node {
        node(&self.directory, name.into())
    }

    /// Where the authorities look for weights.
    pub fn v3bw(&self) -> PathBuf {
        self.directory.join("v3bw")
    }

    /// Starts the authorities.
    pub fn start(&mut self) {
        let v3bw = self.v3bw();
        for authority in std::mem::take(&mut self.authorities) {
            let role = format!(
                "DirPort {}\nAuthoritativeDirectory 1\nV3AuthoritativeDirectory 1\nExitPolicy reject *:*\n\
                 TestingDirAuthVoteExit *\nTestingDirAuthVoteHSDir *\nTestingDirAuthVoteGuard *\n\
                 V3AuthNIntervalsValid 2\nTestingV3AuthInitialVotingInterval 5\nTestingV3AuthInitialVoteDelay 2\n\
                 TestingV3AuthInitialDistDelay 2\nV3AuthVotingInterval 10\nV3AuthVoteDelay 2\nV3AuthDistDelay 2\n\
                 V3BandwidthsFile {}\n",
                authority.dir_port,
                v3bw.display()
            );
            self.run(&authority, &role);
            self.authorities.push(authority);
        }
    }

    /// Starts a node with options of its own.
    pub fn run(&mut self, node: &Node, options: &str) {
        let torrc = node.directory.join("torrc");
        let own = format!(
            "{}Nickname {}\nDataDirectory {}\nSocksPort 0\nAddress 127.0.0.1\nORPort {}\n\
             Log notice file {}\n{options}",
            self.common,
            node.name,
            node.directory.display(),
            node.or_port,
            node.directory.join("log").display()
        );
        fs::write(&torrc, own).unwrap();
        self.processes.push(Command::new("tor").args(["--quiet", "-f"]).arg(&torrc).spawn().unwrap());
    }

    /// Waits until the consensus has all that.
    pub fn wait_for(&self, wanted: &[String]) {
        let consensus = self.authorities[0].directory.join("cached-consensus");
        let mut last = String::new();
        for _ in 0..240 {
            std::thread::sleep(Duration::from_millis(500));
            last = fs::read_to_string(&consensus).unwrap_or_default();
            if wanted.iter().all(|text| last.contains(text)) {
                return;
            }
        }
        let log = fs::read_to_string(self.authorities[0].directory.join("log")).unwrap_or_default();
        panic!("{wanted:?} did not show up in two minutes; consensus:\n{last}\nlog:\n{log}");
    }
}
