//! Server and clients as processes, and what their pages say.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;

/// A folder of one test, gone when it ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-stream-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process of `tidegate stream`, killed when dropped.
pub struct Role {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// Its first line of output: its address.
    pub said: Value,
}

impl Role {
    /// `arguments` in one text, separated by spaces; then those that hold spaces.
    pub fn start(arguments: &str, more: &[&str]) -> Role {
        Role::start_with_log(arguments, more, Stdio::inherit())
    }

    /// The same with a place for its standard error.
    pub fn start_with_log(arguments: &str, more: &[&str], log: Stdio) -> Role {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("stream")
            .args(arguments.split_whitespace())
            .args(more)
            .arg("--json")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut role = Role { child, lines, said: Value::Null };
        let mut next = || role.next().expect("it says where it is found");
        let first = next();
        // Events of the log come before it.
        role.said = if first["level"].is_string() { next() } else { first };
        role
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).ok()
    }

    /// Its next line of output.
    pub fn event(&mut self) -> Value {
        self.next().expect("it goes on")
    }

    pub fn text(&self, key: &str) -> &str {
        self.said[key].as_str().unwrap()
    }

    pub fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Tells it to end, and gives its last status.
    pub fn end(mut self) -> Value {
        self.signal(Signal::INT);
        let mut last = self.next().expect("it says how it went");
        assert!(self.child.wait().unwrap().success());
        last["status"].take()
    }

    /// Waits until it ends by itself, and gives its last status.
    pub fn wait(mut self) -> Value {
        let mut last = self.next().expect("it says how it went");
        assert!(self.child.wait().unwrap().success());
        last["status"].take()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&get(self.text("page"), "/status.json")).unwrap()
    }

    /// Waits until its status is so, for at most a minute: other tests and pauses of the machine delay it.
    pub fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let since = clock::now();
        loop {
            let status = self.status();
            if is(&status) {
                return;
            }
            assert!(clock::now().since(since) < Span::from_secs(60), "never {what}: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of a page on loopback.
pub fn get(page: &str, path: &str) -> String {
    let mut tcp = TcpStream::connect(page).unwrap();
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: {page}\r\n\r\n").unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Starts a client that the server refuses, and gives what it says when it ends. Its page ends with it.
pub fn refusal(server: &Role, more: &str) -> String {
    let mut client = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["stream", "client", "--server", server.text("address")])
        .args(more.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = clock::now();
    while client.try_wait().unwrap().is_none() {
        if clock::now().since(since) > Span::from_secs(60) {
            let _ = client.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "never refused: {said}");
    said
}

/// A server on a fresh port that reads standard input at a given rate.
pub fn server(rate: &str, uplink: &str, more: &str) -> Role {
    let options = format!("server --listen 127.0.0.1:0 --input - {more}");
    Role::start(&options, &["--rate", rate, "--uplink", uplink])
}

/// A client of it.
pub fn client(server: &Role, uplink: &str, more: &str) -> Role {
    let (address, fingerprint) = (server.text("address"), server.text("fingerprint"));
    let options =
        format!("client --allow-private-addresses --server {address} --fingerprint {fingerprint} {more}");
    Role::start(&options, &["--uplink", uplink])
}
