//! An overlay of roles that say everything they can, and what one asks of it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;

use super::tidegate;

/// Roles that say everything they can, and their folder; all lines so far.
pub struct Overlay {
    folder: PathBuf,
    pub roles: Vec<Child>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Drop for Overlay {
    fn drop(&mut self) {
        for role in &mut self.roles {
            let _ = role.kill();
            let _ = role.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Overlay {
    /// A directory, three relays that let everybody out, and a client.
    pub fn of_three(name: &str) -> Overlay {
        Overlay::of_three_with(name, ["", "", ""], "")
    }

    /// The same, with these keys in the relays' `[system]`, and in the client's.
    pub fn of_three_with(name: &str, systems: [&str; 3], own: &str) -> Overlay {
        Overlay::of_three_at(name, ["127.0.0.1:0", "\"127.0.0.1:0\""], systems, own)
    }

    /// The same, where the directory, and the relays, listen there.
    pub fn of_three_at(name: &str, at: [&str; 2], systems: [&str; 3], own: &str) -> Overlay {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut overlay = Overlay { folder, roles: Vec::new(), lines: Arc::default() };
        let [key, token] = ["key", "token"].map(|name| overlay.at(name));
        std::fs::write(&token, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let admits = ["--token-file", &token, "--allow-private-addresses"];
        let directory = ["directory", "--listen", at[0], "--key", &key];
        overlay.start(&[&directory[..], &admits].concat(), "listening");
        let listening = overlay.listening().remove(0);
        let key: Value = serde_json::from_str(&overlay.lines()[0]).unwrap();
        for (name, system) in ["a", "b", "c"].into_iter().zip(systems) {
            assert!(tidegate(&["relay", "--keygen", &overlay.at(name)]).status.success());
            let config = format!(
                "nickname = \"{name}\"\nlisten = {}\nkeys = \"{name}\"\nexit-policy = [\"accept *:*\"]\n\
                 exit-to-private-addresses = true\nextend-to-private-addresses = true\n[directory]\naddress = \"{listening}\"\ntoken = \"0123456789abcdef\"\n\
                 [system]\nname = \"test\"\n{system}\n",
                at[1]
            );
            let file = overlay.at(&format!("{name}.toml"));
            std::fs::write(&file, config).unwrap();
            overlay.start(&["relay", "--config", &file], "announced");
        }
        let system = overlay.at("system.toml");
        std::fs::write(&system, format!("[system]\nname = \"test\"\n{own}\n")).unwrap();
        let role = ["client", "--socks", "127.0.0.1:0", "--system", &system, "--directory", &listening];
        let key = ["--allow-private-addresses", "--authority", key["authority"].as_str().unwrap()];
        overlay.start(&[&role[..], &key].concat(), "directory");
        overlay
    }

    pub fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Where the roles listen, in the order of their start.
    pub fn listening(&self) -> Vec<String> {
        let said = self.lines().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        said.filter(|said| said["event"] == "listening")
            .map(|said| said["address"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Starts a role and waits until it logs this event.
    pub fn start(&mut self, arguments: &[&str], event: &str) -> Value {
        let mut role = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["--log", "debug"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(role.stdout.take().unwrap()).lines().map_while(Result::ok);
        self.roles.push(role);
        let all = self.lines.clone();
        let mut next = move || {
            let line = lines.next()?;
            all.lock().unwrap().push(line.clone());
            serde_json::from_str::<Value>(&line).ok()
        };
        let found = std::iter::from_fn(&mut next).find(|said| said["event"] == event);
        std::thread::spawn(move || while next().is_some() {});
        found.unwrap_or_else(|| panic!("{arguments:?} ended before `{event}`"))
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until the lines so far are so, for at most a minute.
    pub fn until(&self, what: &str, are: impl Fn(&[String]) -> bool) {
        let begun = clock::now();
        while !are(&self.lines()) {
            assert!(clock::now().since(begun) < Span::from_secs(60), "never {what}: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The port of a server that says hello.
pub fn greeter() -> u16 {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        server.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"hello")))
    });
    port
}

/// Requests a port of a name from a SOCKS port; returns the reply and the data after it.
pub fn ask(socks: &str, name: &str, port: u16) -> (u8, Vec<u8>) {
    ask_after(TcpStream::connect(socks).unwrap(), &[5, 1, 0], 2, name, port)
}

/// The same as a SOCKS user. Its streams do not share circuits with those of other users.
pub fn ask_as(user: &str, socks: &str, name: &str, port: u16) -> (u8, Vec<u8>) {
    let named = [&[5, 1, 2, 1, user.len() as u8], user.as_bytes(), &[1, b'x']].concat();
    ask_after(TcpStream::connect(socks).unwrap(), &named, 4, name, port)
}

fn ask_after(mut stream: TcpStream, greeting: &[u8], greeted: usize, name: &str, port: u16) -> (u8, Vec<u8>) {
    let length = [name.len() as u8];
    stream
        .write_all(&[greeting, &[5, 1, 0, 3], &length, name.as_bytes(), &port.to_be_bytes()].concat())
        .unwrap();
    let (mut answer, mut rest) = (vec![0; greeted + 10], Vec::new());
    stream.read_exact(&mut answer).unwrap();
    let _ = stream.read_to_end(&mut rest);
    (answer[greeted + 1], rest)
}
