//! A private Tor network on this machine: processes of stock tor with their own directory authorities.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidegate_control::units::Span;

use crate::identity::{hex, random};
use crate::{clock, os, ports};

/// Options of all tor processes. Protocol faults are logged as warnings.
const COMMON: &str = "TestingTorNetwork 1\nAssumeReachable 1\nPathsNeededToBuildCircuits 0.25\nNumCPUs 1\n\
    ContactInfo test\nProtocolWarnings 1\nAvoidDiskWrites 1\n";
/// Options of authorities. They vote every 10 s, and call new relays stable, or clients would not use them as guards.
const AUTHORITY: &str = "AuthoritativeDirectory 1\nV3AuthoritativeDirectory 1\nExitPolicy reject *:*\n\
    TestingDirAuthVoteExit *\nTestingDirAuthVoteHSDir *\nTestingDirAuthVoteGuard *\n\
    AuthDirVoteStableGuaranteeMinUptime 0\nV3AuthNIntervalsValid 2\nTestingV3AuthInitialVotingInterval 5\n\
    TestingV3AuthInitialVoteDelay 2\nTestingV3AuthInitialDistDelay 2\nV3AuthVotingInterval 10\nV3AuthVoteDelay 2\n\
    V3AuthDistDelay 2\n";
/// Options of a relay that exits to any address, this machine's included.
pub const RELAY: &str = "ExitRelay 1\nExitPolicy accept *:*\nExitPolicyRejectPrivate 0\n";

/// Warnings that every private network causes, and that say nothing of its relays.
const EXPECTED: [&str; 11] = [
    // The configuration above.
    "TestingTorNetwork is set",
    "You have used DirAuthority",
    "V3AuthVotingInterval is very low",
    "You are running Tor as root",
    // The first start of an authority, before it has voted.
    "sr-state\"",
    "Cannot open fingerprint file",
    "while fetching consensus directory",
    "We just marked ourself as down",
    // A node that builds circuits before the consensus lists relays, as on a slow machine.
    "No available nodes when trying to choose node",
    // Clients choose relays by name and fetch from an address.
    "by name, but nicknames can be used",
    "is giving Tor only an IP address",
];

/// The hosts on which a network's processes run.
pub trait Hosts: Send {
    /// The address of the node with that name.
    fn address(&self, name: &str) -> Ipv4Addr;
    /// Starts the process of the node with that name on its host.
    ///
    /// # Errors
    /// If the process does not start.
    fn spawn(&self, name: &str, command: Command) -> io::Result<Child>;
}

/// All nodes on this machine's loopback device.
struct Loopback;

impl Hosts for Loopback {
    fn address(&self, _: &str) -> Ipv4Addr {
        Ipv4Addr::LOCALHOST
    }
    fn spawn(&self, _: &str, mut command: Command) -> io::Result<Child> {
        command.spawn()
    }
}

/// The network's processes. Dropping it ends them.
pub struct Network {
    tor: PathBuf,
    hosts: Box<dyn Hosts>,
    directory: PathBuf,
    common: String,
    authorities: Vec<Relay>,
    processes: Vec<(String, Child)>,
}

impl Drop for Network {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            // A process that has ended already returns an error.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A relay or an authority of stock tor.
pub struct Relay {
    /// Its nickname.
    pub name: String,
    /// Its RSA identity in hexadecimal.
    pub fingerprint: String,
    host: Ipv4Addr,
    or_port: u16,
    dir_port: u16,
}

impl Relay {
    /// Its OR port.
    pub fn address(&self) -> SocketAddr {
        (self.host, self.or_port).into()
    }

    fn directory_port(&self) -> SocketAddr {
        (self.host, self.dir_port).into()
    }
}

/// Whether tor and its tools are installed.
pub fn is_installed(tor: &Path) -> bool {
    missing(tor).is_none()
}

/// The program among tor and its tools that cannot be started, and why.
pub fn missing(tor: &Path) -> Option<(PathBuf, io::Error)> {
    [tor.to_owned(), gencert(tor)].into_iter().find_map(|tool| {
        let started = Command::new(&tool).arg("--version").output();
        started.err().map(|cause| (tool, cause))
    })
}

/// `tor-gencert` is beside tor or, as on Debian, on the path.
fn gencert(tor: &Path) -> PathBuf {
    let beside = tor.with_file_name("tor-gencert");
    if beside.exists() { beside } else { "tor-gencert".into() }
}

impl Network {
    /// Generates the keys of `authorities` in an existing directory.
    ///
    /// # Errors
    /// If tor or `tor-gencert` cannot be started, or files cannot be written.
    pub fn new(tor: &Path, directory: &Path, authorities: usize) -> io::Result<Network> {
        Network::on(Loopback, tor, directory, authorities)
    }

    /// Like [`Network::new`], with nodes on other hosts. Authorities are called `authority0` and so on.
    ///
    /// # Errors
    /// If tor or `tor-gencert` cannot be started, or files cannot be written.
    pub fn on(
        hosts: impl Hosts + 'static,
        tor: &Path,
        directory: &Path,
        authorities: usize,
    ) -> io::Result<Network> {
        let mut network = Network {
            tor: tor.to_owned(),
            hosts: Box::new(hosts),
            directory: directory.to_owned(),
            common: format!("{COMMON}__OwningControllerProcess {}\n", std::process::id()),
            authorities: Vec::new(),
            processes: Vec::new(),
        };
        for number in 0..authorities {
            let authority = network.relay(&format!("authority{number}"))?;
            let v3_identity = network.certify(&authority)?;
            let Relay { name, fingerprint, or_port, .. } = &authority;
            let at = authority.directory_port();
            network.common.push_str(&format!(
                "DirAuthority {name} orport={or_port} no-v2 v3ident={v3_identity} {at} {fingerprint}\n"
            ));
            network.authorities.push(authority);
        }
        Ok(network)
    }

    /// Options of every process of this network.
    pub fn common(&self) -> &str {
        &self.common
    }

    /// The first authority's directory port.
    pub fn authority(&self) -> SocketAddr {
        self.authorities[0].directory_port()
    }

    /// The directory ports of the other authorities.
    pub fn further_authorities(&self) -> Vec<SocketAddr> {
        self.authorities[1..].iter().map(Relay::directory_port).collect()
    }

    /// The directory of the node with that name.
    pub fn files_of(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Generates a relay's keys.
    ///
    /// # Errors
    /// If tor cannot be started, or files cannot be written.
    pub fn relay(&self, name: &str) -> io::Result<Relay> {
        let directory = self.files_of(name);
        os::private_directory()?.recursive(true).create(directory.join("keys"))?;
        let (or_port, dir_port) = (ports::free()?.port(), ports::free()?.port());
        let host = self.hosts.address(name);
        let torrc = directory.join("torrc");
        fs::write(&torrc, "")?;
        let output = os::keep_from_terminal(&mut Command::new(&self.tor))
            .args(["--list-fingerprint", "--quiet", "--defaults-torrc", "/dev/null", "-f"])
            .arg(torrc)
            .arg("--DataDirectory")
            .arg(&directory)
            .args(["--ORPort", &or_port.to_string(), "--Nickname", name])
            .args(["--Address", &host.to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let fingerprint = line
            .ok_or_else(|| io::Error::other("tor --list-fingerprint printed no fingerprint"))?
            .replace(' ', "");
        Ok(Relay { name: name.to_owned(), fingerprint, host, or_port, dir_port })
    }

    /// Generates an authority's voting keys.
    fn certify(&self, authority: &Relay) -> io::Result<String> {
        let keys = self.files_of(&authority.name).join("keys");
        let mut child = os::keep_from_terminal(&mut Command::new(gencert(&self.tor)))
            .args(["--create-identity-key", "--passphrase-fd", "0", "-m", "12"])
            .args(["-a", &authority.directory_port().to_string(), "-i"])
            .arg(keys.join("authority_identity_key"))
            .arg("-s")
            .arg(keys.join("authority_signing_key"))
            .arg("-c")
            .arg(keys.join("authority_certificate"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|cause| io::Error::other(format!("cannot start tor-gencert: {cause}")))?;
        // The passphrase protects nothing: the keys are deleted with the network.
        let passphrase = format!("{}\n", hex(&random::<16>()));
        child.stdin.take().expect("it was asked for").write_all(passphrase.as_bytes())?;
        if !child.wait()?.success() {
            return Err(io::Error::other("tor-gencert exited with an error"));
        }
        let certificate = fs::read_to_string(keys.join("authority_certificate"))?;
        let identity = certificate.lines().find_map(|line| line.strip_prefix("fingerprint "));
        identity.map(str::to_owned).ok_or_else(|| io::Error::other("tor-gencert wrote no fingerprint"))
    }

    /// Starts the authorities.
    ///
    /// # Errors
    /// If tor cannot be started, or files cannot be written.
    pub fn start(&mut self, options: &str) -> io::Result<()> {
        for authority in std::mem::take(&mut self.authorities) {
            self.run_relay(&authority, &format!("DirPort {}\n{AUTHORITY}{options}", authority.dir_port))?;
            self.authorities.push(authority);
        }
        Ok(())
    }

    /// Starts a relay with additional options.
    ///
    /// # Errors
    /// If tor cannot be started, or files cannot be written.
    pub fn run_relay(&mut self, relay: &Relay, options: &str) -> io::Result<()> {
        let own = format!("Nickname {}\nSocksPort 0\nORPort {}\n{options}", relay.name, relay.or_port);
        self.run(&relay.name, &own)
    }

    /// Starts tor with its files in the directory of that name.
    ///
    /// # Errors
    /// If tor cannot be started, or files cannot be written.
    pub fn run(&mut self, name: &str, options: &str) -> io::Result<()> {
        let directory = self.files_of(name);
        os::private_directory()?.recursive(true).create(&directory)?;
        let place = directory.display();
        let torrc = directory.join("torrc");
        let (common, address) = (&self.common, self.hosts.address(name));
        let own = format!("DataDirectory {place}\nLog notice file {place}/log\nAddress {address}\n");
        fs::write(&torrc, format!("{own}{common}{options}"))?;
        let mut command = Command::new(&self.tor);
        command.args(["--quiet", "--defaults-torrc", "/dev/null", "-f"]).arg(torrc);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push((name.to_owned(), self.hosts.spawn(name, command)?));
        Ok(())
    }

    /// The process of the node with that name, if it was started.
    pub fn process(&self, name: &str) -> Option<u32> {
        self.processes.iter().find(|(known, _)| known == name).map(|(_, process)| process.id())
    }

    /// Ends the node with that name.
    pub fn stop(&mut self, name: &str) {
        if let Some(at) = self.processes.iter().position(|(known, _)| known == name) {
            let (_, mut process) = self.processes.remove(at);
            // A process that has ended already returns an error.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The first authority's consensus; empty before the first vote.
    pub fn consensus(&self) -> String {
        let files = self.files_of(&self.authorities[0].name);
        fs::read_to_string(files.join("cached-consensus")).unwrap_or_default()
    }

    /// Whether the consensus contains all of `wanted`.
    pub fn lists(&self, wanted: &[String]) -> bool {
        self.knows(&self.authorities[0].name, wanted)
    }

    /// Whether a node's copy of the consensus contains all of `wanted`. An exit refuses streams from unknown relays.
    pub fn knows(&self, name: &str, wanted: &[String]) -> bool {
        ["cached-consensus", "cached-microdesc-consensus"].iter().any(|file| {
            let text = fs::read_to_string(self.files_of(name).join(file)).unwrap_or_default();
            wanted.iter().all(|wanted| text.contains(wanted))
        })
    }

    /// Waits until the consensus contains all of `wanted`.
    ///
    /// # Errors
    /// After 2 minutes, with the log of the first authority.
    pub fn wait_for(&self, wanted: &[String]) -> io::Result<()> {
        let end = clock::now() + Span::from_secs(120);
        while !self.lists(wanted) {
            if clock::now() > end {
                let log = self.log(&self.authorities[0].name);
                return Err(io::Error::other(format!(
                    "{wanted:?} did not show up in two minutes; log:\n{log}"
                )));
            }
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        Ok(())
    }

    /// A node's log.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.files_of(name).join("log")).unwrap_or_default()
    }

    /// The warnings of all nodes, without those that every private network causes.
    pub fn warnings(&self) -> Vec<String> {
        let is_expected = |line: &str| EXPECTED.iter().any(|part| line.contains(part));
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let warned = names.flat_map(|name| {
            let log = self.log(&name);
            let lines = log.lines().filter(|line| line.contains("[warn]") || line.contains("[err]"));
            let lines = lines.filter(|line| !is_expected(line));
            lines.map(|line| format!("{name}: {line}")).collect::<Vec<String>>()
        });
        warned.collect()
    }
}
