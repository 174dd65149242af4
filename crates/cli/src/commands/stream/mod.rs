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
use path::{PathArguments, wrong};
use serde_json::json;
use tidegate_control::units::{Rate, Span};
use tidegate_net::identity::{Identity, digest, hex, unhex};
use tidegate_net::stream::input::Input;
use tidegate_net::stream::path as net;
use tidegate_net::stream::viewer::Screen;
use tidegate_net::stream::{pages, server, viewer};
use tidegate_net::{http, os};
use tidegate_stream::server::{Overload, ServerConfig};
use tidegate_stream::viewer::{SKIP_AFTER, ViewerConfig};
use tidegate_stream::{MAX_SLICES, explorer};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use crate::failure::Failure;

/// Live video through trees of viewers (Q-Stream, see docs/streaming.md)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serve a stream: arrange its viewers in trees
    Server(Box<ServerArguments>),
    /// Watch a stream, and pass it on
    Client(Box<ClientArguments>),
    /// A server and clients as processes on loopback, with a test pattern for a stream
    Demo(Box<demo::Arguments>),
}

#[derive(clap::Args)]
struct ServerArguments {
    /// Where the MPEG-TS comes from: - (standard input), udp://ADDRESS:PORT, http://.. or pattern:RATE
    #[arg(long)]
    input: String,
    /// Where clients find the server (UDP)
    #[arg(long, default_value = "127.0.0.1:4455")]
    listen: SocketAddr,
    /// What the server may send
    #[arg(long, default_value = "20 Mbit/s")]
    uplink: Rate,
    /// The stream's rate until it was measured
    #[arg(long, default_value = "4 Mbit/s")]
    rate: Rate,
    /// Slices, each with its own tree
    #[arg(long, default_value_t = 10)]
    slices: usize,
    /// Slices of parity besides
    #[arg(long, default_value_t = 1)]
    parity: usize,
    /// The most viewers
    #[arg(long, default_value_t = 200)]
    viewers: usize,
    /// What clients must give to join; anybody may without
    #[arg(long)]
    token: Option<String>,
    /// How clients' bandwidth is learnt: explicit, q-learning, aimd or cubic
    #[arg(long, default_value = "explicit")]
    controller: String,
    /// The share of the uplink for exploration
    #[arg(long, default_value_t = explorer::ExplorationConfig::default().share)]
    explore: f64,
    /// When the uplinks do not suffice: refuse, layers (send fewer slices of a layered stream), or the address of
    /// another server to send clients to
    #[arg(long, default_value = "refuse")]
    overload: String,
    /// Keys of an earlier `flashflow keygen`, so that clients recognise the server; fresh ones otherwise
    #[arg(long)]
    identity: Option<PathBuf>,
    /// Where the dashboard is shown (loopback; port 0: any)
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Say everything as JSON, a line each
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathArguments,
}

#[derive(clap::Args)]
struct ClientArguments {
    /// The server: HOST:PORT
    #[arg(long)]
    server: String,
    /// The server's fingerprint, as it prints it; whoever answers is believed without
    #[arg(long)]
    fingerprint: Option<String>,
    /// What the server asks for
    #[arg(long)]
    token: Option<String>,
    /// What this client may send, and says that it can
    #[arg(long, default_value = "6 Mbit/s")]
    uplink: Rate,
    /// What it says that it can send, if that is something else
    #[arg(long, hide = true)]
    claim: Option<Rate>,
    /// Pass on exploration, but no video
    #[arg(long, hide = true)]
    free_ride: bool,
    /// What it may send once that time has passed
    #[arg(long, hide = true, num_args = 2, value_names = ["RATE", "AFTER"])]
    throttle: Option<Vec<String>>,
    /// Pass nothing on
    #[arg(long)]
    leaf: bool,
    /// Where other clients find this one (UDP; default: any port, on loopback if the server is there)
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Where the page is shown (loopback; port 0: any)
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Write the stream to this file, or to standard output (-)
    #[arg(long)]
    out: Option<PathBuf>,
    /// How long the player waits for a missing packet
    #[arg(long, alias = "patience", default_value_t = SKIP_AFTER)]
    skip_after: Span,
    /// Say everything as JSON, a line each, and how it went at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathArguments,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Server(arguments) => serve(*arguments),
        Command::Client(arguments) => watch(*arguments),
        Command::Demo(arguments) => demo::main(*arguments),
    }
}

/// A token of any length becomes one of 16 bytes.
fn token(text: Option<&str>) -> [u8; 16] {
    text.and_then(|text| unhex::<16>(&digest(text.as_bytes())[..32])).unwrap_or_default()
}

/// Runs a role until it ends. Nobody can interrupt a read of standard input: it is not waited for.
fn run(role: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| Failure::Other(format!("no runtime: {cause}")))?;
    let code = LocalSet::new().block_on(&runtime, role);
    runtime.shutdown_background();
    code
}

fn other(what: &str) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |cause| Failure::Other(format!("{what}: {cause}"))
}

async fn stopped() {
    match os::Signals::new() {
        Ok(mut signals) => drop(signals.next().await),
        Err(_) => std::future::pending().await,
    }
}

/// A port for pages.
async fn page(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    if !address.ip().is_loopback() {
        return Err(wrong("--page", format!("{address} is not on loopback"), "give 127.0.0.1:PORT"));
    }
    let what = format!("the page on {address}");
    let listener = TcpListener::bind(address).await.map_err(other(&what))?;
    let bound = listener.local_addr().map_err(other(&what))?;
    Ok((listener, bound))
}

fn server_machine(arguments: &ServerArguments) -> Result<ServerConfig, Failure> {
    let ServerArguments { slices, parity, viewers, uplink, rate, explore, .. } = *arguments;
    let most = MAX_SLICES;
    if slices == 0 || parity > 4 || slices + parity > most {
        let cause = format!("{slices} slices and {parity} of parity cannot be");
        return Err(wrong("--slices", cause, &format!("give 1 to {} and --parity 0 to 4", most - 4)));
    }
    if viewers == 0 || viewers > 20_000 {
        return Err(wrong("--viewers", format!("{viewers} viewers cannot be"), "give 1 to 20000"));
    }
    if rate.0 < 10_000 || rate == Rate::UNLIMITED {
        return Err(wrong("--rate", format!("{rate} is no stream's rate"), "give at least 10 kbit/s"));
    }
    if !(0.0..=0.5).contains(&explore) {
        return Err(wrong("--explore", format!("{explore} is no share to explore with"), "give 0 to 0.5"));
    }
    let controller = ServerConfig::controller(&arguments.controller).map_err(|error| {
        wrong("--controller", error.to_string(), "give explicit, q-learning, aimd or cubic")
    })?;
    let overload = match arguments.overload.as_str() {
        "refuse" => Overload::Refuse,
        "layers" => Overload::Layers,
        address => Overload::Redirect(address.parse().map_err(|_| {
            wrong("--overload", format!("`{address}` is no rule"), "give refuse, layers or ADDRESS:PORT")
        })?),
    };
    let exploration =
        explorer::ExplorationConfig { share: explore, ..explorer::ExplorationConfig::default() };
    let token = token(arguments.token.as_deref());
    let base = ServerConfig::new(uplink, viewers);
    Ok(ServerConfig { slices, parity, token, controller, exploration, overload, rate, ..base })
}

fn serve(arguments: ServerArguments) -> Result<ExitCode, Failure> {
    let input: Input =
        arguments.input.parse().map_err(|error: tidegate_net::stream::input::InputError| {
            wrong(
                "--input",
                error.to_string(),
                "ffmpeg -re -i FILE -c copy -f mpegts - | tidegate stream server --input -",
            )
        })?;
    let machine = server_machine(&arguments)?;
    let path = arguments.path.path(arguments.uplink)?;
    let identity = match &arguments.identity {
        Some(path) => Identity::load(path).map_err(|error| {
            wrong("--identity", error.to_string(), "name a file that `flashflow keygen` made")
        })?,
        None => Identity::generate(),
    };
    let settings = server::Settings { listen: arguments.listen, path, input, machine };
    run(async {
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
                println!("tidegate stream client --server {address} --fingerprint {fingerprint}");
                println!("dashboard: http://{page}/");
            }
        };
        let say = |what: String| eprintln!("source: {what}");
        let what = format!("the server on {}", arguments.listen);
        let status =
            server::run(settings, identity, status, ready, say, stopped()).await.map_err(other(&what))?;
        if json {
            println!("{}", json!({ "event": "end", "status": status }));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// All that waits for a missing packet is in memory.
const LONGEST_WAIT: Span = Span::from_secs(30);

/// What a path's uplink becomes, and after how long.
fn throttle(given: &[String]) -> Result<(Span, Rate), Failure> {
    let [rate, after] = given else { unreachable!("two were asked for") };
    let later = rate.parse().and_then(|rate: Rate| Ok((after.parse()?, rate)));
    later.ok().filter(|(_, rate)| rate.0 > 0).ok_or_else(|| {
        wrong(
            "--throttle",
            format!("`{rate} {after}` is no rate and time"),
            "give such as \"300 kbit/s\" \"5 s\"",
        )
    })
}

fn watch(arguments: ClientArguments) -> Result<ExitCode, Failure> {
    let found = arguments.server.to_socket_addrs().ok().and_then(|mut all| all.next());
    let server = found.ok_or_else(|| {
        wrong(
            "--server",
            format!("`{}` is no server's address", arguments.server),
            "give HOST:PORT as the server prints it",
        )
    })?;
    let fingerprint = arguments.fingerprint.as_deref().map(|text| {
        unhex(text).ok_or_else(|| {
            wrong("--fingerprint", "it is not 64 hexadecimal digits", "copy what the server prints")
        })
    });
    let fingerprint = fingerprint.transpose()?;
    let any = match server.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => "127.0.0.1:0",
        IpAddr::V6(ip) if ip.is_loopback() => "[::1]:0",
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let listen = arguments.listen.unwrap_or_else(|| any.parse().expect("an address"));
    let stamping = ServerConfig::controller("explicit").ok().and_then(|controller| controller.stamping());
    let machine = ViewerConfig {
        token: token(arguments.token.as_deref()),
        uplink: arguments.claim.unwrap_or(arguments.uplink),
        forwards: !arguments.leaf,
        skip_after: arguments.skip_after,
        stamping,
    };
    if arguments.skip_after > LONGEST_WAIT {
        let cause = format!("{} is longer than packets are kept", arguments.skip_after);
        return Err(wrong("--skip-after", cause, &format!("give at most {LONGEST_WAIT}")));
    }
    let later = arguments.throttle.as_deref().map(throttle).transpose()?;
    let path = net::Path { later, ..arguments.path.path(arguments.uplink)? };
    let out = arguments.out.as_deref().map(writer).transpose()?;
    let settings =
        viewer::Settings { server, fingerprint, listen, path, machine, free_ride: arguments.free_ride };
    run(async {
        let (listener, page) = page(arguments.page).await?;
        let screen = Arc::new(Screen::default());
        spawn_local(http::serve(listener, pages::of_viewer(screen.clone())));
        let json = arguments.json;
        if json {
            println!("{}", json!({ "event": "watching", "page": page.to_string() }));
        } else if arguments.out.as_deref() != Some(Path::new("-")) {
            println!("watch on http://{page}/ or http://{page}/stream.ts");
        }
        let (sender, thread) = match out {
            Some((sender, thread)) => (Some(sender), Some(thread)),
            None => (None, None),
        };
        let what = format!("the stream of {server}");
        let result = viewer::run(settings, Identity::generate(), screen, sender, stopped()).await;
        // The writer ends with its channel.
        let written = thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())));
        written.map_err(other("the output"))?;
        let status = result.map_err(other(&what))?;
        if json {
            println!("{}", json!({ "event": "end", "status": status }));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Payloads that may wait to be written: ten seconds of 4 Mbit/s.
const UNWRITTEN: usize = 4096;

type Writer = (SyncSender<Bytes>, std::thread::JoinHandle<std::io::Result<()>>);

/// A thread that writes, so that a reader who pauses does not stop the stream for others.
fn writer(path: &Path) -> Result<Writer, Failure> {
    let mut to: Box<dyn Write + Send> = match path {
        path if path == Path::new("-") => Box::new(std::io::stdout()),
        path => Box::new(File::create_new(path).map_err(|cause| {
            wrong(
                "--out",
                format!("{} cannot be written: {cause}", path.display()),
                "name a file that is not there yet",
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
