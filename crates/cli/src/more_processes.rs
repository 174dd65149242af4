//! A MORE overlay as processes on loopback, for experiments and the demo.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_kernel::cpu_s_of;
use tidegate_net::os::{self, Signal};
use tidegate_net::ports;

use crate::commands::more::directory::create;
use crate::owned;
use crate::temporary::Temporary;

/// The peers of an overlay; dropping it kills their processes.
pub(crate) struct Processes {
    pub folder: Temporary,
    pub addresses: Vec<SocketAddr>,
    children: Vec<(u16, Child)>,
    /// Arguments for all peers.
    common: Vec<String>,
    /// Whether this is a demonstration. Its peers serve their status on the TCP port with the number of their UDP port, and
    /// a terminal's Ctrl-C does not reach them.
    pub shows: bool,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Processes {
    /// Creates keys and a directory for `peers` peers on free ports, without starting them.
    pub fn new(peers: u16, common: Vec<String>) -> Result<Processes, String> {
        let addresses: io::Result<Vec<SocketAddr>> = (0..peers).map(|_| ports::free()).collect();
        Processes::at(addresses.map_err(text)?, common)
    }

    /// Creates keys and a directory for peers at these addresses, without starting them.
    pub fn at(addresses: Vec<SocketAddr>, common: Vec<String>) -> Result<Processes, String> {
        let folder = Temporary::new("more").map_err(text)?;
        create(&folder, &addresses, 3600, 24).map_err(text)?;
        Ok(Processes { folder, addresses, children: Vec::new(), common, shows: false })
    }

    /// Makes the command that runs a peer.
    pub fn command(&self, role: &str, peer: u16) -> io::Result<Command> {
        let mut command = owned::command()?;
        command.args(["more", role, "--allow-private-addresses", "--number", &peer.to_string(), "--overlay"]);
        command.arg(&*self.folder);
        command.args(&self.common).stdout(Stdio::null());
        if self.shows {
            command.args(["--status", &self.addresses[usize::from(peer)].to_string()]);
            owned::keep_from_terminal(&mut command);
        }
        Ok(command)
    }

    /// Starts a peer.
    pub fn spawn(&mut self, role: &str, peer: u16, arguments: &[&str]) -> Result<(), String> {
        self.spawn_by(role, peer, arguments, |mut command| command.spawn())
    }

    /// Starts a peer with `by`, for example in another network namespace.
    pub fn spawn_by(
        &mut self,
        role: &str,
        peer: u16,
        arguments: &[&str],
        by: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<(), String> {
        let mut command = self.command(role, peer).map_err(text)?;
        command.args(arguments);
        self.children.push((peer, by(command).map_err(text)?));
        Ok(())
    }

    /// Waits until all started peers listen.
    pub fn wait(&mut self) -> Result<(), String> {
        for at in 0..self.children.len() {
            let address = self.addresses[usize::from(self.children[at].0)];
            while !is_listening(address).map_err(text)? {
                if self.children.iter_mut().any(|(_, child)| !matches!(child.try_wait(), Ok(None))) {
                    return Err("a peer exited while it was starting".into());
                }
                pause(20);
            }
        }
        Ok(())
    }

    /// Waits until a peer has written a file.
    pub fn wait_for(&mut self, name: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(name);
        loop {
            if self.children.iter_mut().any(|(_, child)| !matches!(child.try_wait(), Ok(None))) {
                return Err(format!("a peer exited before it wrote {name}"));
            }
            if path.exists() {
                return Ok(path);
            }
            pause(20);
        }
    }

    /// Freezes a peer with SIGSTOP.
    pub fn silence(&self, peer: u16) -> Result<(), String> {
        let known = self.children.iter().find(|(number, _)| *number == peer);
        let (_, child) = known.ok_or_else(|| format!("peer {peer} is not running"))?;
        os::send_signal(child, Signal::Stop).map_err(text)
    }

    /// Lists started peers with their process ids and whether they still run.
    pub fn peers(&mut self) -> Vec<(u16, u32, bool)> {
        let alive = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.children.iter_mut().map(|(peer, child)| (*peer, child.id(), alive(child))).collect()
    }

    /// CPU seconds of all peers; zero if the system does not report them.
    pub fn cpu_s(&self) -> f64 {
        self.children.iter().filter_map(|(_, child)| cpu_s_of(child.id())).sum()
    }
}

/// Returns whether a process listens on this UDP address.
///
/// Sends a datagram instead of binding the port, because binding could take the port from a peer that is starting.
fn is_listening(address: SocketAddr) -> io::Result<bool> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    // The kernel answers at once with ICMP if the port is closed.
    let answer = socket.send(&[]).and_then(|_| socket.recv(&mut [0]));
    Ok(!matches!(answer, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}

pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Byte `at` of the data of [`source`].
fn content(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Starts a local server that sends endless data to every connection.
pub(crate) fn source() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut at = 0;
                loop {
                    let block: Vec<u8> = (at..at + 16_384).map(content).collect();
                    at += block.len() as u64;
                    if tcp.write_all(&block).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// Reads from a [`source`] through a SOCKS5 front.
pub(crate) struct Reader {
    tcp: TcpStream,
    /// Number of received bytes.
    pub bytes: u64,
    /// Whether all received bytes are correct.
    pub exact: bool,
}

impl Reader {
    pub fn connect(front: SocketAddr, name: &str) -> io::Result<Reader> {
        let mut tcp = TcpStream::connect(front)?;
        tcp.set_read_timeout(Some(Duration::from_secs(30)))?;
        let request = [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &[0, 80]].concat();
        tcp.write_all(&request)?;
        let mut answer = [0; 12];
        tcp.read_exact(&mut answer)?;
        match answer[3] {
            0 => {}
            code => return Err(io::Error::other(format!("SOCKS5 reply {code}"))),
        }
        tcp.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Reader { tcp, bytes: 0, exact: true })
    }

    /// Reads data that arrives within 0.1 s.
    pub fn read(&mut self) -> io::Result<()> {
        let mut block = [0; 65_536];
        match self.tcp.read(&mut block) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                let right = |(byte, at): (&u8, u64)| *byte == content(at);
                self.exact &= block[..length].iter().zip(self.bytes..).all(right);
                self.bytes += length as u64;
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            },
        }
    }
}

/// Starts relays, a hidden service for `target` and a SOCKS front; returns the front's address.
pub(crate) fn hidden_service(
    overlay: &mut Processes,
    target: SocketAddr,
    service: &[&str],
    front: &[&str],
) -> Result<SocketAddr, String> {
    let last = overlay.addresses.len() as u16 - 1;
    for peer in 1..last {
        overlay.spawn("node", peer, &[])?;
    }
    let published = overlay.folder.join("hidden.toml");
    let (target, publish) = (target.to_string(), path(&published)?.to_owned());
    overlay.spawn("serve", last, &[&["--target", &target, "--publish", &publish][..], service].concat())?;
    overlay.wait()?;
    overlay.wait_for("hidden.toml")?;
    let listen = ports::free().map_err(text)?;
    let at = listen.to_string();
    overlay.spawn("socks", 0, &[&["--receiver", &publish, "--listen", &at][..], front].concat())?;
    while TcpStream::connect(listen).is_err() {
        overlay.wait_for("hidden.toml")?;
        pause(20);
    }
    Ok(listen)
}

fn path(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{}: the path is not UTF-8", path.display()))
}
