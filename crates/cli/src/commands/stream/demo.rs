//! `tidegate stream demo`: runs a server and clients as processes on loopback and measures the stream.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::number::format_number;
use tidegate_net::clock;
use tidegate_net::os::{self, Signal};
use tidegate_net::stream::{server, viewer};
use tidegate_stream::lag::Lags;
use tidegate_stream::packet::PAYLOAD;
use tidegate_stream::server::ServerConfig;

use super::path::{PathArgs, wrong};
use crate::failure::Failure;
use crate::owned;

/// Run a server and clients on this machine and measure the stream
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate stream demo --clients 20 --duration '30 s'")]
pub struct StreamDemoArgs {
    /// Start this many clients, 1 to 200
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// Run this long after all clients have started
    #[arg(long, default_value = "60 s")]
    duration: Span,
    /// Kill this many clients, one after the other
    #[arg(long, default_value_t = 0)]
    kill: usize,
    /// Replace this many clients, one after the other
    #[arg(long, default_value_t = 0)]
    leave: usize,
    /// Stream at this rate
    #[arg(long, default_value = "4 Mbit/s")]
    rate: Rate,
    /// Stream this input instead of the test pattern; see `stream server --input`
    #[arg(long)]
    input: Option<String>,
    /// Limit the server's uplink to this rate
    #[arg(long, default_value = "12 Mbit/s")]
    server_uplink: Rate,
    /// Limit the weakest client's uplink to this rate
    #[arg(long, default_value = "2 Mbit/s")]
    weakest: Rate,
    /// Limit the strongest client's uplink to this rate; most clients are weaker
    #[arg(long, default_value = "12 Mbit/s")]
    strongest: Rate,
    /// Add this many parity slices, 0 to 4
    #[arg(long, default_value_t = 1)]
    parity: usize,
    /// Learn clients' bandwidth with this controller
    #[arg(long, default_value = "explicit", value_parser = PossibleValuesParser::new(ServerConfig::controllers()))]
    controller: String,
    /// Serve the dashboard at this loopback address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Print the measurements as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathArgs,
}

/// The exit code is 1 if the continuity is below this.
const CONTINUITY: f64 = 0.99;
/// Time between the starts of two clients.
const STAGGER: Span = Span::from_millis(60);
/// Packets of the last seconds may still arrive, so they do not count as missed.
const BEHIND: Span = Span::from_secs(3);

/// A role in a process, which ends with the demo.
struct Role {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Drop for Role {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Role {
    fn start(arguments: &[String]) -> Result<Role, Failure> {
        let mut child = owned::command()
            .map_err(Failure::other)?
            .arg("stream")
            .args(arguments)
            .arg("--json")
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| Failure::other(format!("cannot start a process: {cause}")))?;
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Ok(Role { child, lines })
    }

    /// Waits for the next event of this kind; `None` if the process exited.
    fn event(&mut self, kind: &str) -> Option<Value> {
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let event: Value = serde_json::from_str(&line).ok()?;
            if event["event"] == kind {
                return Some(event);
            }
        }
    }

    fn interrupt(&self) {
        // The process may have exited already.
        let _ = os::send_signal(&self.child, Signal::Interrupt);
    }

    /// Reads the final status after an interrupt.
    fn end<T: serde::de::DeserializeOwned>(mut self) -> Option<T> {
        serde_json::from_value(self.event("end")?["status"].take()).ok()
    }
}

struct Demo<'a> {
    arguments: &'a StreamDemoArgs,
    server: Value,
    started: usize,
}

impl Demo<'_> {
    fn client(&mut self, uplink: Rate) -> Result<Role, Failure> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.started += 1;
        let mut role = vec![
            "client".into(),
            "--allow-private-addresses".into(),
            "--server".into(),
            text(&self.server["address"]),
        ];
        role.extend(["--fingerprint".into(), text(&self.server["fingerprint"])]);
        role.extend(["--uplink".into(), uplink.to_string()]);
        role.extend(path(&self.arguments.path, self.started as u64));
        Role::start(&role)
    }
}

fn path(path: &PathArgs, number: u64) -> Vec<String> {
    let PathArgs { delay, jitter, loss, .. } = path;
    let mut options =
        vec![("--delay", delay.to_string()), ("--jitter", jitter.to_string()), ("--loss", loss.to_string())];
    if path.is_random() {
        options.push(("--seed", Seed::root(path.seed()).fork_index(number).value().to_string()));
    }
    options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
}

/// Draws uplinks between the weakest and the strongest, in random order; for 2 to 12 Mbit/s the mean is 6.
fn uplinks(arguments: &StreamDemoArgs) -> Vec<Rate> {
    let (low, high) = (arguments.weakest.0 as f64, arguments.strongest.0 as f64);
    let share = |n: usize| ((n as f64 + 0.5) / arguments.clients as f64).powf(1.5);
    let mut rates: Vec<Rate> =
        (0..arguments.clients).map(|n| Rate((low + (high - low) * share(n)) as u64)).collect();
    Seed::root(arguments.path.seed()).fork("uplinks").random().shuffle(&mut rates);
    rates
}

fn pause(span: Span) {
    std::thread::sleep(Duration::from_nanos(span.0));
}

/// Runs the subcommand.
pub fn main(arguments: StreamDemoArgs) -> Result<ExitCode, Failure> {
    check(&arguments)?;
    let input = arguments.input.clone().unwrap_or_else(|| format!("pattern:{}", arguments.rate));
    let mut role: Vec<String> = ["server", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    role.extend(["--input".into(), input, "--rate".into(), arguments.rate.to_string()]);
    role.extend(["--uplink".into(), arguments.server_uplink.to_string()]);
    role.extend([
        "--parity".into(),
        arguments.parity.to_string(),
        "--page".into(),
        arguments.page.to_string(),
    ]);
    role.extend(["--controller".into(), arguments.controller.clone()]);
    role.extend(["--viewers".into(), (arguments.clients * 2).to_string()]);
    role.extend(path(&arguments.path, 0));
    let mut server = Role::start(&role)?;
    let listening = server.event("listening").ok_or_else(|| Failure::other("the server did not start"))?;
    if !arguments.json {
        println!("dashboard: http://{}/", listening["page"].as_str().unwrap_or_default());
    }
    let mut demo = Demo { arguments: &arguments, server: listening, started: 0 };
    let mut clients = Vec::new();
    for uplink in uplinks(&arguments) {
        let mut client = demo.client(uplink)?;
        let watching = client.event("watching");
        if let (false, Some(page)) =
            (arguments.json, watching.as_ref().and_then(|event| event["page"].as_str()))
        {
            let uplink = format_number(uplink.0 as f64 / 1e6);
            println!("client {}, uplink {uplink} Mbit/s: http://{page}/", demo.started);
        }
        clients.push((uplink, client));
        pause(STAGGER);
    }
    let begun = clock::now();
    let mut statuses: Vec<Option<viewer::Status>> = Vec::new();
    let events = arguments.kill + arguments.leave;
    for n in 0..events {
        // Trees grow in the first third; events are spread over the next half.
        let at = arguments.duration.0 / 3 + arguments.duration.0 / 2 * n as u64 / events as u64;
        pause(Span(at.saturating_sub(clock::now().since(begun).0)));
        let (uplink, mut client) = clients.remove(0);
        if n < arguments.kill {
            let _ = client.child.kill();
        } else {
            client.interrupt();
            statuses.push(client.end());
            clients.push((uplink, demo.client(uplink)?));
        }
    }
    pause(Span(arguments.duration.0.saturating_sub(clock::now().since(begun).0)));
    clients.iter().for_each(|(_, client)| client.interrupt());
    statuses.extend(clients.into_iter().map(|(_, client)| client.end()));
    let seconds = clock::now().since(begun).as_secs_f64();
    server.interrupt();
    let status: server::Status = server.end().ok_or_else(|| Failure::other("the server ended early"))?;
    Ok(report(&arguments, &statuses, &status, seconds))
}

fn check(arguments: &StreamDemoArgs) -> Result<(), Failure> {
    if arguments.input.as_deref() == Some("-") {
        let cause = "the server of a demonstration has no standard input";
        return Err(wrong("--input", cause, "give another input; see `tidegate stream server --help`"));
    }
    if arguments.clients == 0 || arguments.clients > 200 {
        return Err(wrong(
            "--clients",
            format!("{} is not a valid number of clients", arguments.clients),
            "give 1 to 200",
        ));
    }
    if arguments.kill + arguments.leave >= arguments.clients {
        return Err(wrong("--kill", "no client would be left", "keep --kill plus --leave below --clients"));
    }
    if arguments.weakest > arguments.strongest || arguments.strongest == Rate::UNLIMITED {
        return Err(wrong(
            "--weakest",
            "is above --strongest, or a rate is unlimited",
            "give --weakest at most --strongest",
        ));
    }
    if arguments.duration < Span::from_secs(5) {
        return Err(wrong(
            "--duration",
            format!("{} is too short to measure", arguments.duration),
            "give at least 5 s",
        ));
    }
    arguments.path.path(arguments.weakest).map(drop)
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn report(
    arguments: &StreamDemoArgs,
    statuses: &[Option<viewer::Status>],
    server: &server::Status,
    seconds: f64,
) -> ExitCode {
    let known: Vec<&viewer::Status> = statuses.iter().flatten().collect();
    let per_s = arguments.rate.as_bytes_per_s() / PAYLOAD as f64;
    let allowed = (per_s * BEHIND.as_secs_f64()) as u64;
    let played: u64 = known.iter().map(|status| status.delivered).sum();
    let missed: u64 = known.iter().map(|status| status.gaps + status.behind.saturating_sub(allowed)).sum();
    let continuity = played as f64 / (played + missed).max(1) as f64;
    let mut lags = Lags::default();
    known.iter().for_each(|status| lags.merge(&status.lags));
    let all: u64 = server.sent_all + known.iter().map(|status| status.sent_all).sum::<u64>();
    let video: u64 = server.sent_video + known.iter().map(|status| status.sent_video).sum::<u64>();
    let start_ups: Vec<f64> = known.iter().filter_map(|status| status.start_up_s).collect();
    let watched = start_ups.len();
    let outages: Vec<f64> =
        known.iter().flat_map(|status| &status.outages_ms).map(|ms| f64::from(*ms) / 1e3).collect();
    let clients_cpu = known.iter().map(|status| status.cpu_s / seconds).collect();
    let measured = json!({
        "continuity": continuity,
        "lag_p50_s": lags.quantile(0.5) as f64 / 1e3,
        "lag_p95_s": lags.quantile(0.95) as f64 / 1e3,
        "start_up_p95_s": quantile(start_ups, 0.95),
        "outage_p95_s": quantile(outages.clone(), 0.95),
        "outages": outages.len(),
        "overhead_share": 1.0 - video as f64 / all.max(1) as f64,
        "egress_share": server.sent_all as f64 * 8.0
            / (seconds * arguments.rate.0 as f64 * statuses.len().max(1) as f64),
        "gaps": known.iter().map(|status| status.gaps).sum::<u64>(),
        "recovered": known.iter().map(|status| status.recovered).sum::<u64>(),
        "duplicates_share": known.iter().map(|status| status.duplicates).sum::<u64>() as f64 / played.max(1) as f64,
        "server_cpu_share": server.cpu_s / seconds,
        "client_cpu_share_p95": quantile(clients_cpu, 0.95),
        "clients": statuses.len(),
        "clients_that_watched": watched,
        "refused": server.refused,
        "died": server.died,
        "relegated": server.relegated,
        "moves": server.moves,
    });
    if arguments.json {
        println!("{measured}");
    } else {
        for (name, value) in measured.as_object().into_iter().flatten() {
            println!("{name:22} {value}");
        }
    }
    let good = watched == statuses.len() && continuity >= CONTINUITY;
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
