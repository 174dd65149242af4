//! `tidegate overlay tornet`: a private Tor network on this machine, whose authority and client are stock tor, and whose
//! relays are ours.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::json;
use tidegate_control::units::Bytes;
use tidegate_net::identity::hex;
use tidegate_net::live::keys;

use super::download::{fetch, report, serve_file};
use crate::failure::Failure;
use crate::stage::{Stage, free_address, is_installed, until_stopped};

/// Run a private Tor network on this machine: stock tor as authority and client, our relays between them
#[derive(clap::Args)]
pub struct Arguments {
    /// Fetch so much, check it, and end; without it, run until Ctrl-C
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The tor program; `tor-gencert` must lie beside it or be on the path
    #[arg(long, default_value = "tor")]
    tor: PathBuf,
}

const RELAYS: usize = 4;
/// What all of tor's processes are told. Faults of the protocol are warnings, not hints.
const COMMON: &str = "TestingTorNetwork 1\nAssumeReachable 1\nPathsNeededToBuildCircuits 0.25\nNumCPUs 1\n\
    ContactInfo test\nProtocolWarnings 1\nAvoidDiskWrites 1\nAddress 127.0.0.1\n";
const AUTHORITY: &str = "Nickname authority\nSocksPort 0\nAuthoritativeDirectory 1\nV3AuthoritativeDirectory 1\n\
    ExitPolicy reject *:*\nTestingDirAuthVoteExit *\nTestingDirAuthVoteHSDir *\nTestingDirAuthVoteGuard *\n\
    V3AuthNIntervalsValid 2\nTestingV3AuthInitialVotingInterval 5\nTestingV3AuthInitialVoteDelay 2\n\
    TestingV3AuthInitialDistDelay 2\nV3AuthVotingInterval 10\nV3AuthVoteDelay 2\nV3AuthDistDelay 2\n";

/// An authority's addresses and names.
struct Authority {
    or_port: SocketAddr,
    dir_port: SocketAddr,
    fingerprint: String,
    v3_identity: String,
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !is_installed(&arguments.tor) {
        let cause = format!("{} cannot be started; Debian's package is `tor`", arguments.tor.display());
        return Err(Failure::Other(cause));
    }
    let mut stage = Stage::new("tornet")?;
    let authority = make_authority(&stage, &arguments.tor)?;
    let common = format!(
        "{COMMON}__OwningControllerProcess {}\nDirAuthority authority orport={} no-v2 v3ident={} {} {}\n",
        std::process::id(),
        authority.or_port.port(),
        authority.v3_identity,
        authority.dir_port,
        authority.fingerprint
    );
    let role = format!("{AUTHORITY}ORPort {}\nDirPort {}\n", authority.or_port, authority.dir_port);
    start(&mut stage, &arguments.tor, "authority", &format!("{common}{role}"))?;
    let names = start_relays(&mut stage, authority.dir_port)?;
    let consensus = stage.directory.join("authority/cached-consensus");
    stage.wait_for("a consensus with all relays", || {
        let text = fs::read_to_string(&consensus).ok()?;
        names.iter().all(|name| text.contains(&format!("\nr {name} "))).then_some(())
    })?;

    let socks = free_address()?;
    let list = names.join(",");
    let control = stage.directory.join("client/control");
    let role = format!(
        "SocksPort {socks}\nControlSocket {}\nCookieAuthentication 1\nEntryNodes {list}\nMiddleNodes {list}\n\
         ExitNodes {list}\nClientOnly 1\n",
        control.display()
    );
    start(&mut stage, &arguments.tor, "client", &format!("{common}{role}"))?;
    let log = stage.directory.join("client/log");
    stage.wait_for("a client that knows the network", || {
        fs::read_to_string(&log).ok()?.contains("Bootstrapped 100%").then_some(())
    })?;
    let file = serve_file()?;
    if let Some(bytes) = arguments.bytes {
        let download = fetch(socks, file, bytes.0)?;
        let paths = built_paths(&stage.directory.join("client")).map_err(Failure::other)?;
        let warnings = warnings(&stage.directory);
        if !arguments.json {
            warnings.iter().for_each(|line| println!("tor says  {line}"));
        }
        let network = json!({ "relays": names, "warnings": warnings });
        return Ok(report(network, bytes, &paths, &download, arguments.json));
    }
    println!("stock tor's SOCKS port is {socks}; its relays: {list}; Ctrl-C ends it");
    println!("try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum");
    until_stopped(&stage, || {});
    Ok(ExitCode::SUCCESS)
}

/// Starts a tor with its files in a directory of that name.
fn start(stage: &mut Stage, tor: &Path, name: &str, options: &str) -> Result<(), Failure> {
    let directory = stage.directory.join(name);
    let place = directory.display();
    let torrc = stage.write(
        &format!("{name}.torrc"),
        &format!("DataDirectory {place}\nLog notice file {place}/log\n{options}"),
    )?;
    let mut command = Command::new(tor);
    command.args(["--quiet", "--defaults-torrc", "/dev/null", "-f"]).arg(torrc);
    stage.spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    Ok(())
}

fn start_relays(stage: &mut Stage, authority: SocketAddr) -> Result<Vec<String>, Failure> {
    let (mut names, mut relays) = (Vec::new(), Vec::new());
    for number in 0..RELAYS {
        let name = format!("tide{number}");
        keys::create(&stage.directory.join(format!("{name}.keys"))).map_err(Failure::Other)?;
        let config = format!(
            "nickname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"{name}.keys\"\n\
             exit-policy = [\"accept *:*\"]\nexit-to-private-addresses = true\n\n[tor]\nauthority = \"{authority}\"\n"
        );
        let config = stage.write(&format!("{name}.toml"), &config)?;
        relays.push(stage.role(&["relay", "--config", &config.display().to_string()])?);
        names.push(name);
    }
    for relay in &relays {
        relay.wait("announced")?;
    }
    Ok(names)
}

/// Draws an authority's keys with tor's own tools.
fn make_authority(stage: &Stage, tor: &Path) -> Result<Authority, Failure> {
    let directory = stage.directory.join("authority");
    let keys = directory.join("keys");
    fs::create_dir_all(&keys).map_err(Failure::other)?;
    fs::create_dir_all(stage.directory.join("client")).map_err(Failure::other)?;
    for private in [&directory, &keys, &stage.directory.join("client")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(private, mode).map_err(Failure::other)?;
    }
    let (or_port, dir_port) = (free_address()?, free_address()?);
    let empty = stage.write("empty", "")?;
    let output = Command::new(tor)
        .args(["--list-fingerprint", "--quiet", "--defaults-torrc", "/dev/null", "-f"])
        .arg(empty)
        .arg("--DataDirectory")
        .arg(&directory)
        .args(["--ORPort", &or_port.port().to_string(), "--Nickname", "authority", "--Address", "127.0.0.1"])
        .output()
        .map_err(Failure::other)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("authority "));
    let fingerprint =
        line.map(|line| line.replace(' ', "")).ok_or_else(|| Failure::other("tor made no keys"))?;
    let mut child = Command::new(tor.with_file_name("tor-gencert"))
        .args(["--create-identity-key", "--passphrase-fd", "0", "-m", "12"])
        .args(["-a", &dir_port.to_string(), "-i"])
        .arg(keys.join("authority_identity_key"))
        .arg("-s")
        .arg(keys.join("authority_signing_key"))
        .arg("-c")
        .arg(keys.join("authority_certificate"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|cause| Failure::other(format!("cannot start tor-gencert: {cause}")))?;
    // The keys end with the network.
    let passphrase = format!("{}\n", hex(&tidegate_net::identity::random::<16>()));
    child.stdin.take().expect("it was asked for").write_all(passphrase.as_bytes()).map_err(Failure::other)?;
    if !child.wait().map_err(Failure::other)?.success() {
        return Err(Failure::other("tor-gencert failed"));
    }
    let certificate = fs::read_to_string(keys.join("authority_certificate")).map_err(Failure::other)?;
    let identity = certificate.lines().find_map(|line| line.strip_prefix("fingerprint "));
    let v3_identity = identity.ok_or_else(|| Failure::other("tor-gencert wrote no fingerprint"))?.to_owned();
    Ok(Authority { or_port, dir_port, fingerprint, v3_identity })
}

/// The paths of a client's built circuits, by nicknames, as its control port tells.
fn built_paths(client: &Path) -> std::io::Result<Vec<Vec<String>>> {
    let mut control = UnixStream::connect(client.join("control"))?;
    let cookie = fs::read(client.join("control_auth_cookie"))?;
    write!(control, "AUTHENTICATE {}\r\nGETINFO circuit-status\r\nQUIT\r\n", hex(&cookie))?;
    let mut paths = Vec::new();
    for line in BufReader::new(control).lines() {
        let line = line?;
        let words: Vec<&str> = line.trim_start_matches("250+circuit-status=").split(' ').collect();
        if let [_, "BUILT", path, rest @ ..] = &words[..]
            && rest.contains(&"PURPOSE=GENERAL")
        {
            let name = |hop: &str| hop.split_once('~').map_or(hop, |(_, name)| name).to_owned();
            paths.push(path.split(',').map(name).collect());
        }
    }
    Ok(paths)
}

/// What tor warned of.
fn warnings(directory: &Path) -> Vec<String> {
    let logs = ["authority/log", "client/log"]
        .map(|log| fs::read_to_string(directory.join(log)).unwrap_or_default());
    let lines = logs.iter().flat_map(|log| log.lines());
    lines.filter(|line| line.contains("[warn]") || line.contains("[err]")).map(str::to_owned).collect()
}
