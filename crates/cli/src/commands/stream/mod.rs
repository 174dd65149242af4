//! `tidegate stream`: live video through trees of viewers.

mod demo;
mod path;

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::builder::PossibleValuesParser;
use path::{PathArgs, wrong};
use serde_json::json;
use tidegate_control::units::{Rate, Span};
use tidegate_net::gate::Gate;
use tidegate_net::identity::{Identity, digest, hex, unhex};
use tidegate_net::stream::input::Input;
use tidegate_net::stream::path as net;
use tidegate_net::stream::viewer::{Conduct, Screen};
use tidegate_net::stream::{moq, pages, server, viewer};
use tidegate_net::{http, os};
use tidegate_stream::packet::Share;
use tidegate_stream::server::{Overload, ServerConfig};
use tidegate_stream::signing::SharedChecks;
use tidegate_stream::viewer::{SKIP_AFTER, ViewerConfig};
use tidegate_stream::{MAX_SLICES, explorer};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;

use crate::failure::Failure;
use crate::roles;

/// Stream live video through trees of viewers (Q-Stream, see docs/streaming.md)
#[derive(clap::Args)]
pub struct StreamArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serve a stream to viewers, which forward it along trees
    Server(Box<ServerArgs>),
    /// Watch a stream and forward it to other viewers
    Client(Box<ClientArgs>),
    /// Run a server and clients on this machine and measure the stream
    Demo(Box<demo::StreamDemoArgs>),
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate stream server --input pattern:4Mbit/s")]
struct ServerArgs {
    /// Read MPEG-TS from - (standard input), udp://ADDRESS:PORT, http://.., moq://ADDRESS:PORT or pattern:RATE
    #[arg(long)]
    input: String,
    /// Listen for clients at this UDP address
    #[arg(long, default_value = "127.0.0.1:4455")]
    listen: SocketAddr,
    /// Limit the server's uplink to this rate
    #[arg(long, default_value = "20 Mbit/s")]
    uplink: Rate,
    /// Assume this rate of the stream until it is measured
    #[arg(long, default_value = "4 Mbit/s")]
    rate: Rate,
    /// Divide the stream into this many slices, each with its own tree
    #[arg(long, default_value_t = 10)]
    slices: usize,
    /// Add this many parity slices, 0 to 4
    #[arg(long, default_value_t = 1)]
    parity: usize,
    /// Admit at most this many viewers
    #[arg(long, default_value_t = 200)]
    viewers: usize,
    /// Admit only clients with the token in this file; create the file if it does not exist [default: all clients]
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Learn clients' bandwidth with this controller
    #[arg(long, default_value = "explicit", value_parser = PossibleValuesParser::new(ServerConfig::controllers()))]
    controller: String,
    /// Use this share of the uplink for exploration, 0 to 0.5
    #[arg(long, default_value_t = explorer::ExplorationConfig::default().share)]
    explore: f64,
    /// If uplinks are too slow: refuse clients, drop layers, or redirect clients to ADDRESS:PORT
    #[arg(long, default_value = "refuse")]
    overload: String,
    /// Use the keys in this file (`tidegate flashflow keygen`) [default: new keys]
    #[arg(long)]
    identity: Option<PathBuf>,
    /// Serve the dashboard at this loopback address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Print events as JSON lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate stream client --server 127.0.0.1:4455")]
struct ClientArgs {
    /// Connect to the server at this HOST:PORT
    #[arg(long)]
    server: String,
    /// Accept only the server with this fingerprint [default: any server]
    #[arg(long)]
    fingerprint: Option<String>,
    /// Give the token in this file to the server
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Limit the client's uplink to this rate and announce it
    #[arg(long, default_value = "6 Mbit/s")]
    uplink: Rate,
    /// Announce this uplink instead of the real one
    #[arg(long, hide = true)]
    claim: Option<Rate>,
    /// Forward exploration packets but not video
    #[arg(long, hide = true, conflicts_with = "forge")]
    free_ride: bool,
    /// Alter the packets or the manifests that are forwarded
    #[arg(long, hide = true, value_name = "WHAT", value_parser = ["packets", "manifests"])]
    forge: Option<String>,
    /// Drop datagrams from addresses that nothing was sent to, as address translation does
    #[arg(long, hide = true)]
    translated: bool,
    /// Change the uplink to RATE after the time AFTER
    #[arg(long, hide = true, num_args = 2, value_names = ["RATE", "AFTER"])]
    throttle: Option<Vec<String>>,
    /// Do not forward anything
    #[arg(long)]
    leaf: bool,
    /// Listen for other clients at this UDP address [default: any port]
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Forward to clients in private networks and on this machine
    #[arg(long)]
    allow_private_addresses: bool,
    /// Serve the player at this loopback address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Serve Media over QUIC at this loopback address; needs a build with `--features moq`
    #[arg(long)]
    moq: Option<SocketAddr>,
    /// Write the stream to this file, or to standard output with -
    #[arg(long)]
    out: Option<PathBuf>,
    /// Skip a missing packet after this time
    #[arg(long, default_value_t = SKIP_AFTER)]
    skip_after: Span,
    /// Print events and a final summary as JSON lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathArgs,
}

/// Runs the subcommand.
pub fn main(arguments: StreamArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Server(arguments) => serve(*arguments),
        Command::Client(arguments) => watch(*arguments),
        Command::Demo(arguments) => demo::main(*arguments),
    }
}

/// Hashes the token of a file to 16 bytes; zero without a file.
fn token(file: Option<&Path>, copy_to: Option<&'static str>) -> Result<[u8; 16], Failure> {
    let text = file.map(|path| roles::token(path, copy_to)).transpose()?;
    Ok(text.and_then(|text| unhex::<16>(&digest(text.as_bytes())[..32])).unwrap_or_default())
}

/// Runs a role until it ends, without waiting for a blocked read of standard input.
///
/// The role is a task: each time that a task wakes the future of `block_on`, the runtime polls the sockets first.
fn run(role: impl Future<Output = Result<ExitCode, Failure>> + 'static) -> Result<ExitCode, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime =
        runtime.map_err(|cause| Failure::Other(format!("cannot start the async runtime: {cause}")))?;
    let code = runtime.block_on(async { spawn_local(role).await });
    runtime.shutdown_background();
    match code {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn other(what: &str) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |cause| Failure::Other(format!("{what}: {cause}"))
}

/// Waits for a signal to stop, from the call on. SIGHUP has no effect, as in other roles without a configuration file.
fn stopped() -> impl Future<Output = ()> {
    let signals = os::Signals::new();
    async {
        let Ok(mut signals) = signals else { return std::future::pending().await };
        while signals.next().await == os::Request::Reload {
            // Standard output may carry the stream.
            eprintln!("SIGHUP ignored: nothing is reread; restart this role to change its options");
        }
    }
}

/// Binds the port of the page, which must be on loopback.
async fn page(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    roles::check_loopback("--page", address)?;
    let what = format!("the page on {address}");
    let listener = TcpListener::bind(address).await.map_err(other(&what))?;
    let bound = listener.local_addr().map_err(other(&what))?;
    Ok((listener, bound))
}

/// Most parity slices of a stream.
const MAX_PARITY: usize = 4;

fn server_machine(arguments: &ServerArgs) -> Result<ServerConfig, Failure> {
    let ServerArgs { slices, parity, viewers, uplink, rate, explore, .. } = *arguments;
    if parity > MAX_PARITY {
        let cause = format!("{parity} parity slices are not possible");
        return Err(wrong("--parity", cause, &format!("give 0 to {MAX_PARITY}")));
    }
    if slices == 0 || slices + parity > MAX_SLICES {
        let cause = format!("{slices} slices with {parity} parity slices are not possible");
        return Err(wrong("--slices", cause, &format!("give 1 to {}", MAX_SLICES - parity)));
    }
    if viewers == 0 || viewers > 20_000 {
        return Err(wrong(
            "--viewers",
            format!("{viewers} is not a valid number of viewers"),
            "give 1 to 20000",
        ));
    }
    if rate.0 < 10_000 || rate == Rate::UNLIMITED {
        return Err(wrong(
            "--rate",
            format!("{rate} is not a valid rate of a stream"),
            "give at least 10 kbit/s",
        ));
    }
    if !(0.0..=0.5).contains(&explore) {
        return Err(wrong("--explore", format!("{explore} is not a valid share"), "give 0 to 0.5"));
    }
    let controller = ServerConfig::controller(&arguments.controller)
        .map_err(|error| wrong("--controller", error.to_string(), "see `tidegate stream --help`"))?;
    let overload = match arguments.overload.as_str() {
        "refuse" => Overload::Refuse,
        "layers" => Overload::Layers,
        address => {
            let named = address.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
            Overload::Redirect(named.ok_or_else(|| {
                wrong(
                    "--overload",
                    format!("`{address}` is not a rule"),
                    "give refuse, layers or ADDRESS:PORT",
                )
            })?)
        }
    };
    let exploration =
        explorer::ExplorationConfig { share: explore, ..explorer::ExplorationConfig::default() };
    let token = token(arguments.token_file.as_deref(), Some("copy the file to the clients"))?;
    let base = ServerConfig::new(uplink, viewers);
    Ok(ServerConfig { slices, parity, token, controller, exploration, overload, rate, ..base })
}

fn serve(arguments: ServerArgs) -> Result<ExitCode, Failure> {
    let input: Input =
        arguments.input.parse().map_err(|error: tidegate_net::stream::input::InputError| {
            wrong(
                "--input",
                error.to_string(),
                "for example: ffmpeg -re -i FILE -c copy -f mpegts - | tidegate stream server --input -",
            )
        })?;
    let machine = server_machine(&arguments)?;
    let path = arguments.path.path(arguments.uplink)?;
    let identity = match &arguments.identity {
        Some(path) => Identity::load(path).map_err(|error| {
            wrong("--identity", error.to_string(), "name a file from `tidegate flashflow keygen`")
        })?,
        None => Identity::generate(),
    };
    let settings = server::ServerConfig { listen: arguments.listen, path, input, machine };
    let source = arguments.input.clone();
    run(async move {
        // A role that has said where it is must not end by SIGHUP.
        let stop = stopped();
        let (listener, page) = page(arguments.page).await?;
        let status = Arc::new(Mutex::new(server::Status::default()));
        spawn_local(http::serve(listener, pages::of_server(status.clone())));
        let json = arguments.json;
        let ready = |address: SocketAddr, fingerprint: [u8; 32]| {
            let fingerprint = hex(&fingerprint);
            if json {
                let page = page.to_string();
                println!(
                    "{}",
                    json!({ "event": "listening", "address": address, "fingerprint": fingerprint, "page": page })
                );
            } else {
                let token = arguments.token_file.as_deref();
                let token = token.map(|file| format!(" --token-file {}", file.display())).unwrap_or_default();
                println!("tidegate stream client --server {address} --fingerprint {fingerprint}{token}");
                println!("dashboard: http://{page}/");
            }
        };
        let say = |what: String| eprintln!("source: {what}");
        let what = format!("the server on {}", arguments.listen);
        let ended = server::run(settings, identity, status, ready, say, stop).await;
        let status = ended.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => wrong(
                &format!("--input {source}"),
                error.to_string(),
                "let its sender write MPEG-TS, for example `ffmpeg .. -f mpegts -`",
            ),
            _ => other(&what)(error),
        })?;
        if json {
            println!("{}", json!({ "event": "end", "status": status }));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Checks the address of `--moq`.
fn check_moq(address: SocketAddr) -> Result<(), Failure> {
    roles::check_loopback("--moq", address)?;
    if moq::IS_BUILT {
        return Ok(());
    }
    let remedy = "build with `cargo build --release --features moq` (Rust 1.91)";
    Err(wrong("--moq", "this build has no Media over QUIC", remedy))
}

/// Serves Media over QUIC and says where.
fn serve_moq(address: SocketAddr, screen: &Arc<Screen>, page: SocketAddr, json: bool) -> Result<(), Failure> {
    let what = format!("Media over QUIC on {address}");
    let renewed = move |renewal| say_renewal(renewal, json);
    let edge = moq::serve(address, screen, moq::Lifetimes::default(), renewed);
    let moq::Edge { address, certificate } = edge.map_err(other(&what))?;
    let certificate = hex(&certificate);
    let (broadcast, track) = (moq::BROADCAST, moq::TRACK);
    if json {
        println!(
            "{}",
            json!({ "event": "moq", "address": address, "certificate": certificate, "broadcast": broadcast, "track": track, "page": format!("http://{page}/live.html") })
        );
    } else {
        eprintln!(
            "Media over QUIC: https://{address}/ broadcast {broadcast} track {track} certificate {certificate}"
        );
        eprintln!("watch with less delay on http://{page}/live.html");
    }
    Ok(())
}

/// Says that the certificate of the edge is about to change, or has changed.
fn say_renewal(renewal: moq::Renewal, json: bool) {
    let (event, certificate, from) = match renewal {
        moq::Renewal::Announced { certificate, from } => ("moq-next-certificate", certificate, Some(from)),
        moq::Renewal::Replaced { certificate } => ("moq-certificate", certificate, None),
    };
    let certificate = hex(&certificate);
    match (json, from) {
        (true, _) => println!("{}", json!({ "event": event, "certificate": certificate, "from": from })),
        (false, Some(from)) => {
            eprintln!(
                "Media over QUIC: next certificate {certificate}, in use from {from} (seconds since 1970)"
            );
        }
        (false, None) => eprintln!("Media over QUIC: certificate {certificate} is in use"),
    }
}

/// Upper bound of `--skip-after`: packets behind a missing one are kept in memory.
const LONGEST_WAIT: Span = Span::from_secs(30);

/// Parses `--throttle RATE AFTER`.
fn throttle(given: &[String]) -> Result<(Span, Rate), Failure> {
    let [rate, after] = given else { unreachable!("clap requires two values") };
    let later = rate.parse().and_then(|rate: Rate| Ok((after.parse()?, rate)));
    later.ok().filter(|(_, rate)| rate.0 > 0).ok_or_else(|| {
        wrong(
            "--throttle",
            format!("`{rate} {after}` is not a rate and a time"),
            "write for example \"300 kbit/s\" \"5 s\"",
        )
    })
}

/// The conduct that hidden options ask for.
fn conduct(arguments: &ClientArgs) -> Conduct {
    match arguments.forge.as_deref() {
        Some("manifests") => Conduct::Forges(Share::Signatures),
        Some(_) => Conduct::Forges(Share::Video),
        None if arguments.free_ride => Conduct::FreeRides,
        None => Conduct::Honest,
    }
}

fn watch(arguments: ClientArgs) -> Result<ExitCode, Failure> {
    let found = arguments.server.to_socket_addrs().ok().and_then(|mut all| all.next());
    let server = found.ok_or_else(|| {
        wrong(
            "--server",
            format!("`{}` is not the address of a server", arguments.server),
            "give HOST:PORT as the server prints it",
        )
    })?;
    let fingerprint = arguments.fingerprint.as_deref().map(|text| {
        unhex(text).ok_or_else(|| {
            wrong(
                "--fingerprint",
                "is not 64 hexadecimal digits",
                "copy the fingerprint that the server prints",
            )
        })
    });
    let fingerprint = fingerprint.transpose()?;
    let any = match server.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => "127.0.0.1:0",
        IpAddr::V6(ip) if ip.is_loopback() => "[::1]:0",
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let listen = arguments.listen.unwrap_or_else(|| any.parse().expect("the four constants are addresses"));
    let stamping = ServerConfig::controller("explicit").ok().and_then(|controller| controller.stamping());
    let machine = ViewerConfig {
        token: token(arguments.token_file.as_deref(), None)?,
        uplink: arguments.claim.unwrap_or(arguments.uplink),
        forwards: !arguments.leaf,
        skip_after: arguments.skip_after,
        stamping,
        checks: SharedChecks::default(),
    };
    if arguments.skip_after > LONGEST_WAIT {
        let cause = format!("{} is longer than packets are stored", arguments.skip_after);
        return Err(wrong("--skip-after", cause, &format!("give at most {LONGEST_WAIT}")));
    }
    arguments.moq.map(check_moq).transpose()?;
    let later = arguments.throttle.as_deref().map(throttle).transpose()?;
    let path =
        net::Path { later, translated: arguments.translated, ..arguments.path.path(arguments.uplink)? };
    let out = arguments.out.as_deref().map(writer).transpose()?;
    let (conduct, gate) = (conduct(&arguments), Gate::allowing_private(arguments.allow_private_addresses));
    let settings = viewer::ViewerConfig { server, fingerprint, listen, path, machine, conduct, gate };
    run(async move {
        let stop = stopped();
        let (listener, page) = page(arguments.page).await?;
        let screen = Arc::new(Screen::default());
        spawn_local(http::serve(listener, pages::of_viewer(screen.clone())));
        let json = arguments.json;
        if json {
            println!("{}", json!({ "event": "watching", "page": page.to_string() }));
        } else if arguments.out.as_deref() != Some(Path::new("-")) {
            println!("watch on http://{page}/ or http://{page}/stream.ts");
        }
        arguments.moq.map(|address| serve_moq(address, &screen, page, json)).transpose()?;
        let (sender, thread) = match out {
            Some((sender, thread)) => (Some(sender), Some(thread)),
            None => (None, None),
        };
        let what = format!("the stream of {server}");
        // Standard output may carry the stream.
        let say = |what: String| eprintln!("{what}");
        let result = viewer::run(settings, Identity::generate(), screen, sender, say, stop).await;
        // The writer thread ends when its channel closes.
        let written = thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())));
        written.map_err(other("the output"))?;
        let status = result.map_err(other(&what))?;
        if json {
            println!("{}", json!({ "event": "end", "status": status }));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Capacity of the queue of unwritten payloads: ten seconds at 4 Mbit/s.
const UNWRITTEN: usize = 4096;

type Writer = (SyncSender<Bytes>, std::thread::JoinHandle<std::io::Result<()>>);

/// Starts a thread that writes the stream, so that a slow reader does not delay other viewers.
fn writer(path: &Path) -> Result<Writer, Failure> {
    let mut to: Box<dyn Write + Send> = match path {
        path if path == Path::new("-") => Box::new(std::io::stdout()),
        path => Box::new(File::create_new(path).map_err(|cause| {
            wrong(
                "--out",
                format!("{} cannot be written: {cause}", path.display()),
                "name a file that does not exist yet",
            )
        })?),
    };
    let (sender, payloads) = sync_channel::<Bytes>(UNWRITTEN);
    let thread = std::thread::spawn(move || {
        for payload in payloads {
            to.write_all(&payload)?;
        }
        to.flush()
    });
    Ok((sender, thread))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        server: ServerArgs,
    }

    #[test]
    fn each_controller_is_chosen() {
        let chosen = |name: &&str| {
            let words = ["server", "--input", "-", "--controller", *name];
            let Ok(machine) = server_machine(&Arguments::parse_from(words).server) else { panic!("{name}") };
            format!("{:?}", machine.controller)
        };
        let names = ServerConfig::controllers();
        let all: BTreeSet<String> = names.iter().map(chosen).collect();
        assert_eq!(all.len(), names.len(), "{all:?}");
    }
}
