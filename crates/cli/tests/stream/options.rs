//! Tests: each option of `tidegate stream` changes what a role does.

#![expect(clippy::disallowed_methods, reason = "processes on sockets are watched for so long")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_control::random::Seed;
use tidegate_control::units::Rate;

use super::roles::{Role, Scratch, refusal};
use super::{number, pause};
use crate::demos::children;
use crate::waiting::repeated;

/// Options of every command.
const COMMON: [&str; 4] = ["--help", "--version", "--log", "--log-format"];
/// An uplink that carries the stream to one client, and not to two.
const SCARCE: &str = "--rate 1Mbit/s --uplink 1500kbit/s";
const PATTERN: &str = "--input pattern:1Mbit/s";

/// The options that are tried, and those without an effect.
#[derive(Default)]
struct Tried {
    options: BTreeSet<&'static str>,
    wrong: Vec<String>,
}

impl Tried {
    /// What is seen with two values of an option.
    fn option<T: PartialEq + std::fmt::Debug>(&mut self, option: &'static str, expected: T, seen: T) {
        self.options.insert(option);
        if expected != seen {
            self.wrong.push(format!("{option}: {seen:?}, not {expected:?}"));
        }
    }

    /// All options of a subcommand are tried, and have an effect.
    fn check(self, subcommand: &str) {
        let help =
            Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["stream", subcommand, "--help"]).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        let words = help
            .lines()
            .filter_map(|line| line.split_whitespace().take(2).find(|word| word.starts_with("--")));
        let tried = self.options.into_iter().chain(COMMON);
        assert_eq!(words.collect::<BTreeSet<_>>(), tried.collect(), "a case for each option");
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

fn server(options: &str) -> Role {
    let own =
        |option: &str, text: &str| if options.contains(option) { String::new() } else { text.to_owned() };
    let [listen, input] = [own("--listen", "--listen 127.0.0.1:0"), own("--input", PATTERN)];
    Role::start(&format!("server {listen} {input} {options}"), &[])
}

fn client(server: &Role, options: &str) -> Role {
    Role::start(&format!("client --server {} {options}", server.text("address")), &[])
}

/// A client that forwards to others on this machine, once it is admitted.
fn admitted(server: &Role, options: &str) -> Role {
    let client = client(server, &format!("--allow-private-addresses {options}"));
    client.until("in", |status| status["phase"] == "in");
    client
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process, the first line of its output, and the rest, which it must be able to write.
struct Plain(Running, String, #[expect(dead_code, reason = "an open pipe")] BufReader<ChildStdout>);

impl Plain {
    fn start(arguments: &str) -> Plain {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("stream")
            .args(arguments.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        Plain(Running(child), line, lines)
    }
}

/// Which of six questions a role answers, and when: in QUIC, versions that it does not know are answered at once.
///
/// Waits for so many answers, and then a moment for others.
fn answers(address: &str, count: usize) -> Vec<(u8, Duration)> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let asked = Instant::now();
    for number in 0..6 {
        let head = [&[0xc0, 10, 10, 10, 10, 8][..], &[0; 8], &[8], &[number; 8]].concat();
        socket.send_to(&[&head[..], &[0; 1200]].concat(), address).unwrap();
    }
    let mut all = Vec::new();
    loop {
        let wait = if all.len() < count { MOST } else { Duration::from_millis(300) };
        let Some(answer) = received(&socket, wait) else { return all };
        all.push((answer[6], asked.elapsed()));
    }
}

/// The next datagram within that time.
fn received(socket: &UdpSocket, wait: Duration) -> Option<Vec<u8>> {
    let end = Instant::now() + wait;
    let mut datagram = vec![0; 2048];
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).unwrap();
        match socket.recv(&mut datagram) {
            Ok(length) => return Some(datagram[..length].to_vec()),
            // SIGSTOP and SIGCONT also end the wait of a socket with a timeout, see signal(7).
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn answers_of_a_server(options: &str, count: usize) -> Vec<(u8, Duration)> {
    answers(server(options).text("address"), count)
}

/// A client also accepts connections, from other viewers. This one sends nothing by itself: nothing reaches port 0.
fn answers_of_a_client(options: &str, count: usize) -> Vec<(u8, Duration)> {
    let listen = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Role::start(&format!("client --server 127.0.0.1:0 --listen {listen} {options}"), &[]);
    client.until("on its port", |status| status["problem"].is_string());
    answers(&listen.to_string(), count)
}

/// The time from the start of a client to its first datagram.
fn knock(options: &str) -> Duration {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = socket.local_addr().unwrap();
    let started = Instant::now();
    let _client = Role::start(&format!("client --server {server} {options}"), &[]);
    received(&socket, MOST).expect("a client sends");
    started.elapsed()
}

/// Longest time until a datagram that must come.
const MOST: Duration = Duration::from_secs(60);
/// A delay that an open path stays below.
const LATE: Duration = Duration::from_millis(1500);
/// A loaded or paused machine makes an open path late. Delays of a path show in every try, so one in time is enough.
const TRIES: usize = 10;

/// Tries the options of a path with the answers of a role.
fn path(tried: &mut Tried, answers: fn(&str, usize) -> Vec<(u8, Duration)>) {
    let numbers = |seen: &[(u8, Duration)]| seen.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    let open = std::thread::spawn(move || repeated(TRIES, || answers("", 6), |open| open[5].1 < LATE));
    let uneven =
        std::thread::spawn(move || repeated(TRIES, || answers("--jitter 2s", 6), |seen| seen[3].1 < LATE));
    let runs = [("--delay 1500ms", 6), ("--loss 0.5", 3), ("--loss 0.5 --seed 2", 2)];
    let runs = runs.map(|(options, count)| std::thread::spawn(move || answers(options, count)));
    let [late, lossy, other] = runs.map(|run| run.join().unwrap());
    let (open, uneven) = (open.join().unwrap(), uneven.join().unwrap());
    for seen in [&open, &late, &uneven] {
        assert_eq!(numbers(seen), [0, 1, 2, 3, 4, 5], "a path without losses");
    }
    assert!(open[5].1 < LATE, "an open path: {open:?}");
    tried.option("--delay", true, late[0].1 >= LATE);
    // The fifth datagram is the first one that the first seed delays for long.
    tried.option("--jitter", [false, true], [3, 4].map(|at: usize| uneven[at].1 >= LATE));
    tried.option("--loss", vec![1, 2, 4], numbers(&lossy));
    tried.option("--seed", vec![2, 4], numbers(&other));
}

/// Tries delay and jitter with the first datagram that a client sends by itself, and all options with its answers.
fn path_of_a_client(tried: &mut Tried) {
    let seen = |options: &'static str| std::thread::spawn(move || knock(options));
    let [late, uneven] = ["--delay 1500ms", "--jitter 4s --seed 2"].map(seen);
    let open = repeated(TRIES, || knock(""), |open| *open < LATE);
    assert!(open < LATE, "an open path: {open:?}");
    tried.option("--delay", true, late.join().unwrap() >= LATE);
    tried.option("--jitter", true, uneven.join().unwrap() >= LATE);
    path(tried, answers_of_a_client);
}

/// Names of a file of `tidegate flashflow keygen` and of a token file.
fn files(scratch: &Scratch) -> [String; 2] {
    let [identity, token] = ["identity", "token"].map(|name| scratch.path(name));
    let made =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["flashflow", "keygen"]).arg(&identity).output();
    assert!(made.unwrap().status.success());
    std::fs::write(&token, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    [identity, token].map(|path| path.display().to_string())
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').unwrap().0
}

/// Parity slices of a status.
fn parity(status: &Value) -> u64 {
    let slices = status["edges"].as_array().unwrap().iter().filter_map(|edge| edge[0].as_u64());
    slices.max().unwrap() + 1 - number(status, "slices")
}

#[test]
fn every_option_of_a_server_has_an_effect() {
    let (mut tried, scratch) = (Tried::default(), Scratch::new("server-options"));
    let [identity, token] = files(&scratch);
    let base = server(SCARCE);
    let many = server(&format!(
        "--rate 1Mbit/s --uplink 6Mbit/s --slices 5 --parity 2 --explore 0 --listen 127.0.0.2:0 --page 127.0.0.2:0 --identity {identity}"
    ));
    let strong = server(&format!("--rate 1Mbit/s --uplink 3Mbit/s --viewers 1 --identity {identity}"));
    let silent = server(&format!("--input - {SCARCE}"));
    let closed = server(&format!("--input - --rate 2Mbit/s --uplink 1500kbit/s --token-file {token}"));
    let weak = "--rate 1Mbit/s --uplink 900kbit/s";
    let [patient, layered] = [server(weak), server(&format!("{weak} --overload layers"))];
    let redirects = server(&format!("{weak} --overload {}", base.text("address")));
    let servers = [&base, &base, &many, &many, &strong, &silent, &patient, &layered, &redirects];
    let _clients = servers.map(|server| admitted(server, "--uplink 8Mbit/s"));
    let [full, stranger] = [&strong, &closed].map(|server| refusal(server, ""));
    assert!(full.contains("maximum number of viewers"), "{full}");
    strong.until("refusing", |status| number(status, "refused") == 1);
    base.until("exploring", |status| number(status, "explored") > 0 && number(status, "rate_bits_per_s") > 0);
    many.until("two parity slices", |status| parity(status) == 2);
    many.until("measured", |status| number(status, "rate_bits_per_s") > 0);
    layered.until("reduced", |status| number(status, "slices") < 10);
    let budget = |role: &Role| number(&role.status()["viewers"][0], "budget");
    let (seen, other) = (base.status(), many.status());
    tried.option("--slices", [10, 5], [&seen, &other].map(|status| number(status, "slices")));
    tried.option("--parity", [1, 2], [&seen, &other].map(parity));
    tried.option("--explore", 0, number(&other, "explored"));
    tried.option(
        "--listen",
        ["127.0.0.1", "127.0.0.2"],
        [&base, &many].map(|role| host(role.text("address"))),
    );
    tried.option("--page", ["127.0.0.1", "127.0.0.2"], [&base, &many].map(|role| host(role.text("page"))));
    let [one, two, three] = [&base, &many, &strong].map(|role| role.text("fingerprint"));
    tried.option("--identity", [false, true], [one == two, two == three]);
    tried.option("--viewers", [0, 1], [&seen, &strong.status()].map(|status| number(status, "refused")));
    tried.option("--uplink", true, budget(&strong) > budget(&base) + 5);
    tried.option("--rate", true, budget(&silent) > budget(&closed) + 2);
    tried.option("--input", 0, number(&silent.status(), "rate_bits_per_s"));
    tried.option("--token-file", true, stranger.contains("--token-file"));
    redirects.until("redirecting", |status| number(status, "redirected") == 1);
    tried.option("--overload", 10, number(&patient.status(), "slices"));
    let text = Plain::start(&format!("server --input - --listen 127.0.0.1:0 --token-file {token}"));
    tried.option("--json", true, text.1.starts_with("tidegate stream client --server"));
    assert!(
        text.1.trim_end().ends_with(&format!("--token-file {token}")),
        "a command that works: {}",
        text.1
    );
    path(&mut tried, answers_of_a_server);
    // `each_controller_is_chosen` in the crate tries it: what controllers learn in seconds is alike.
    tried.option("--controller", (), ());
    tried.check("server");
}

/// Whether a client with `--moq` says where it serves it, or that the build lacks it.
fn serves_or_refuses_moq(server: &Role) -> bool {
    let mut client = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["stream", "client", "--moq", "127.0.0.1:0", "--json", "--server", server.text("address")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    let serves = lines.take(2).any(|line| line.contains("\"event\":\"moq\""));
    let _ = client.kill();
    let output = client.wait_with_output().unwrap();
    serves
        || output.status.code() == Some(2)
            && String::from_utf8_lossy(&output.stderr).contains("--features moq")
}

#[test]
fn every_option_of_a_client_has_an_effect() {
    let (mut tried, scratch) = (Tried::default(), Scratch::new("client-options"));
    let [_, token] = files(&scratch);
    let out = scratch.path("out.ts").display().to_string();
    let open = server("--rate 1Mbit/s");
    let closed = server(&format!("--rate 1Mbit/s --token-file {token}"));
    let lossy = server("--rate 1Mbit/s --loss 0.3 --parity 0");
    let impatient = ["10ms", "30s"].map(|time| admitted(&lossy, &format!("--skip-after {time}")));
    let [one, two] = ["8", "7"].map(|rate| admitted(&open, &format!("--uplink {rate}Mbit/s")));
    let three = admitted(&open, &format!("--leaf --listen 127.0.0.2:0 --page 127.0.0.2:0 --out {out}"));
    let stranger = refusal(&open, &format!("--fingerprint {}", "00".repeat(32)));
    let known = admitted(&closed, &format!("--token-file {token}"));
    // The first client would forward to the second.
    let [private, public] = ["--allow-private-addresses", ""].map(|option| {
        let server = server(SCARCE);
        let first = client(&server, &format!("--uplink 8Mbit/s {option}"));
        first.until("in", |status| status["phase"] == "in");
        let second = client(&server, &format!("--uplink 2Mbit/s {option}"));
        second.until("in", |status| status["phase"] == "in");
        (server, first, second)
    });
    private.1.until("forwarding", |status| number(status, "sent_video") > 0);
    impatient[0].until("skipping", |status| number(status, "gaps") > 0);
    let status = open.status();
    let viewer = |at: usize| &status["viewers"][at];
    tried.option("--server", 1, number(&closed.status(), "joined"));
    tried.option("--uplink", [8e6, 7e6], [1, 2].map(|at| viewer(at)["claim"].as_f64().unwrap()));
    tried.option("--leaf", [false, true], [2, 3].map(|at| viewer(at)["budget"] == 0));
    let from = [2, 3].map(|at| host(viewer(at)["address"].as_str().unwrap()));
    tried.option("--listen", ["127.0.0.1", "127.0.0.2"], from);
    tried.option("--page", ["127.0.0.1", "127.0.0.2"], [&one, &three].map(|role| host(role.text("page"))));
    tried.option("--out", true, std::fs::metadata(&out).unwrap().len() > 0);
    tried.option("--fingerprint", true, stranger.contains("another fingerprint"));
    tried.option("--token-file", "in", known.status()["phase"].as_str().unwrap());
    tried.option("--allow-private-addresses", 0, number(&public.1.status(), "sent_video"));
    tried.option("--skip-after", 0, number(&impatient[1].status(), "gaps"));
    let text = Plain::start(&format!("client --server {}", open.text("address")));
    tried.option("--json", true, text.1.starts_with("watch on http://"));
    tried.option("--moq", true, serves_or_refuses_moq(&open));
    path_of_a_client(&mut tried);
    drop(two);
    tried.check("client");
}

/// The arguments of the processes that a demonstration started: the server's, then the clients'.
fn roles_of(demo: &Child, count: usize) -> Vec<Vec<String>> {
    let since = Instant::now();
    loop {
        let of = |child: u32| {
            let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            line.split('\0').map(str::to_owned).collect()
        };
        let roles: Vec<Vec<String>> = children(demo).into_iter().map(of).collect();
        // Between fork and exec, a child has the arguments of the demonstration, or none.
        let is_role = |role: &Vec<String>| role.iter().any(|word| word == "server" || word == "client");
        if roles.len() == count && roles.iter().all(is_role) {
            return roles;
        }
        assert!(since.elapsed() < MOST, "{roles:?}");
        pause(20);
    }
}

fn value<'a>(arguments: &'a [String], option: &str) -> &'a str {
    let at = arguments.iter().position(|word| word == option).unwrap();
    &arguments[at + 1]
}

#[test]
fn every_option_of_a_demonstration_has_an_effect() {
    let mut tried = Tried::default();
    let options = "--rate 900kbit/s --server-uplink 9Mbit/s --weakest 3Mbit/s --strongest 5Mbit/s --parity 2 \
                   --controller aimd --page 127.0.0.2:0 --delay 7ms --jitter 3ms --loss 0.01 --seed 5 --json";
    let start = |arguments: &str| {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        demo.args(["stream", "demo"]).args(arguments.split_whitespace()).args(options.split_whitespace());
        Running(demo.stdout(Stdio::piped()).spawn().unwrap())
    };
    let begun = Instant::now();
    let mut ending = start("--clients 4 --duration 5s --kill 1 --leave 2");
    // This one does not end while its roles are read.
    let changed = start("--clients 4 --duration 1h");
    let plain = Plain::start("demo --clients 3 --duration 1h --input pattern:800kbit/s");
    tried.option("--json", true, plain.1.starts_with("dashboard: http://127.0.0.1:"));
    let (after, before) = (roles_of(&changed.0, 5), roles_of(&plain.0.0, 4));
    tried.option("--clients", [4, 5], [before.len(), after.len()]);
    for (option, of_role, usual, other) in [
        ("--rate", "--rate", "4 Mbit/s", "900 kbit/s"),
        ("--input", "--input", "pattern:800kbit/s", "pattern:900 kbit/s"),
        ("--server-uplink", "--uplink", "12 Mbit/s", "9 Mbit/s"),
        ("--parity", "--parity", "1", "2"),
        ("--controller", "--controller", "explicit", "aimd"),
        ("--page", "--page", "127.0.0.1:0", "127.0.0.2:0"),
        ("--delay", "--delay", "0 ns", "7 ms"),
        ("--jitter", "--jitter", "0 ns", "3 ms"),
        ("--loss", "--loss", "0", "0.01"),
    ] {
        let seen = [&before, &after].map(|roles| value(&roles[0], of_role));
        tried.option(option, [usual, other], seen);
        if ["--delay", "--jitter", "--loss"].contains(&option) {
            tried.option(option, [usual, other], [&before, &after].map(|roles| value(&roles[1], of_role)));
        }
    }
    let usual = Seed::root(1).fork_index(0).value().to_string();
    tried.option("--seed", false, usual == value(&after[0], "--seed"));
    let uplinks = |roles: &[Vec<String>]| -> Vec<u64> {
        roles[1..].iter().map(|role| value(role, "--uplink").parse::<Rate>().unwrap().0).collect()
    };
    // Of the defaults, 2 to 12 Mbit/s.
    let beyond = |roles| uplinks(roles).into_iter().map(|uplink| (uplink < 3_000_000, uplink > 5_000_000));
    let all = |roles| beyond(roles).fold((false, false), |one, other| (one.0 | other.0, one.1 | other.1));
    tried.option("--weakest", [true, false], [all(&before).0, all(&after).0]);
    tried.option("--strongest", [true, false], [all(&before).1, all(&after).1]);
    drop((plain, changed));
    let measured = std::io::read_to_string(ending.0.stdout.take().unwrap()).unwrap();
    // The default is a minute.
    let took = begun.elapsed().as_secs();
    tried.option("--duration", true, (5..60).contains(&took));
    let measured: Value = serde_json::from_str(&measured).unwrap();
    // One of four is killed and says nothing; two leave and are replaced.
    tried.option("--kill", 5, number(&measured, "clients"));
    tried.option("--leave", 5, number(&measured, "clients"));
    tried.check("demo");
}
