//! The load of an experiment and its measurement: each client has an endless download and, on another circuit, downloads
//! of 50 KiB with pauses.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_control::units::{Span, Time};
use tidegate_net::clock;

use super::network::Side;
use super::schedule::PAUSE;
use crate::commands::overlay::{Origin, connect_over, read_on};
use crate::failure::Failure;
use crate::stage::Stage;

/// Size of the small downloads, of Tor's own measurements (OnionPerf).
pub const SMALL: u64 = 50 << 10;
/// Port of the server.
const PORT: u16 = 80;
/// Pause after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Attempts to build the circuits.
const ATTEMPTS: u32 = 60;
/// Interval at which an endless download looks whether it is over.
const LOOK: Duration = Duration::from_millis(500);

/// When what starts and ends. Small downloads start between `warmup` and `end`.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub warmup: Span,
    pub duration: Span,
}

/// One small download, in seconds after the request.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// Until the exit has connected to the server.
    pub connect: f64,
    /// Until the last byte.
    pub last_byte: f64,
}

/// Measurements of one client.
#[derive(Clone, Debug, Default)]
pub struct ClientLoad {
    pub downloads: Vec<Download>,
    /// Small downloads that failed.
    pub failed: u32,
    /// Rate of the endless download, in bytes per second.
    pub bulk: f64,
}

/// Loads a network and returns the clients' measurements.
pub fn measure(stage: &Stage, side: &Side, schedule: Schedule) -> Result<Vec<ClientLoad>, Failure> {
    let server: Origin = SocketAddr::from((side.server().address, PORT)).into();
    side.server().run(serve).map_err(Failure::other)?;
    for (path, socks) in &side.clients {
        for user in [BULK, WEB] {
            let (socks, server) = (*socks, server.clone());
            let built = side.host(&path.client).run(move || build_circuit(user, socks, &server));
            built
                .map_err(|cause| Failure::Other(format!("{} did not get a circuit: {cause}", path.client)))?;
        }
    }
    let over = Arc::new(AtomicBool::new(false));
    let begun = clock::now();
    let (from, until) = (begun + schedule.warmup, begun + schedule.warmup + schedule.duration);
    let mut users = Vec::new();
    for (path, socks) in &side.clients {
        let user = User { socks: *socks, server: server.clone(), over: over.clone() };
        let (offset, window) = (path.offset, (from, until));
        users.push(side.host(&path.client).run(move || {
            let small = user.clone();
            let bulk = thread::spawn(move || user.bulk(begun + offset, window));
            (bulk, thread::spawn(move || small.web((from + offset, until))))
        }));
    }
    let is_web_over =
        |users: &[(JoinHandle<u64>, JoinHandle<ClientLoad>)]| users.iter().all(|(_, web)| web.is_finished());
    while !stage.is_stopped() && !is_web_over(&users) {
        thread::sleep(LOOK);
    }
    over.store(true, Ordering::Relaxed);
    let mut measured = Vec::new();
    for (bulk, web) in users {
        let bytes = bulk.join().expect("downloads do not panic");
        let web = web.join().expect("downloads do not panic");
        measured.push(ClientLoad { bulk: bytes as f64 / schedule.duration.as_secs_f64(), ..web });
    }
    Ok(measured)
}

/// SOCKS users of a client. tor gives each its own circuit.
const BULK: &str = "bulk";
const WEB: &str = "web";

/// Sends what is asked for: a number of bytes in a line, or endless data for `endless`.
fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || drop(send(stream)));
        }
    });
    Ok(())
}

fn send(mut stream: TcpStream) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).take(32).read_line(&mut line)?;
    let mut left = line.trim().parse().unwrap_or(u64::MAX);
    let block = vec![0; 64 << 10];
    while left > 0 {
        let count = left.min(block.len() as u64);
        stream.write_all(&block[..count as usize])?;
        left -= count;
    }
    Ok(())
}

/// Downloads one byte, which makes tor build the user's circuit.
fn build_circuit(user: &str, socks: SocketAddr, server: &Origin) -> io::Result<()> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match get(user, socks, server, 1) {
            Ok(_) => return Ok(()),
            Err(cause) if attempt == ATTEMPTS => return Err(cause),
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

/// Makes one download.
fn get(user: &str, socks: SocketAddr, server: &Origin, bytes: u64) -> io::Result<Download> {
    let begun = clock::now();
    let mut stream = connect_over(user, socks, server)?;
    let connect = clock::now().since(begun).as_secs_f64();
    stream.write_all(format!("{bytes}\n").as_bytes())?;
    let mut left = bytes;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        match read_on(&mut stream, &mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => left = left.saturating_sub(count as u64),
        }
    }
    Ok(Download { connect, last_byte: clock::now().since(begun).as_secs_f64() })
}

/// Threads of a client's downloads.
#[derive(Clone)]
struct User {
    socks: SocketAddr,
    server: Origin,
    over: Arc<AtomicBool>,
}

impl User {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Downloads until the others are over; returns the bytes that arrive in the window.
    fn bulk(&self, start: Time, (from, until): (Time, Time)) -> u64 {
        sleep_until(start);
        let mut bytes = 0;
        let mut buffer = vec![0; 64 << 10];
        while !self.is_over() {
            let Ok(mut stream) = connect_over(BULK, self.socks, &self.server) else {
                thread::sleep(AGAIN);
                continue;
            };
            let started = stream.set_read_timeout(Some(LOOK)).and_then(|()| stream.write_all(b"endless\n"));
            while started.is_ok() && !self.is_over() {
                match read_on(&mut stream, &mut buffer) {
                    Ok(0) => break,
                    Ok(count) if (from..until).contains(&clock::now()) => bytes += count as u64,
                    Ok(_) => {}
                    Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => break,
                }
            }
        }
        bytes
    }

    /// Makes small downloads that start in the window.
    fn web(&self, (start, until): (Time, Time)) -> ClientLoad {
        sleep_until(start);
        let mut made = ClientLoad::default();
        while clock::now() < until && !self.is_over() {
            match get(WEB, self.socks, &self.server, SMALL) {
                Ok(download) => made.downloads.push(download),
                Err(_) => made.failed += 1,
            }
            thread::sleep(Duration::from_nanos(PAUSE.0));
        }
        made
    }
}

fn sleep_until(time: Time) {
    thread::sleep(Duration::from_nanos(time.since(clock::now()).0));
}
