//! Downloads of a test file through an overlay.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::{Bytes, Span};
use tidegate_net::clock;
use tidegate_net::identity::hex;

use crate::failure::Failure;

/// Returns a block of the test file: the SHA-256 of its number.
fn block(number: u64) -> [u8; 32] {
    Sha256::digest(number.to_be_bytes()).into()
}

/// Serves the test file over HTTP: `GET /1000` asks for 1000 bytes of it.
pub fn serve_file() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::other)?;
    let address = listener.local_addr().map_err(Failure::other)?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The reader checks the download, so errors are ignored here.
            thread::spawn(move || drop(send_file(stream)));
        }
    });
    Ok(address)
}

fn send_file(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).take(4096).lines();
    let line = lines.next().ok_or(ErrorKind::UnexpectedEof)??;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let asked = line.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    let Some(mut left) = asked else {
        return stream.write_all(
            b"HTTP/1.0 404 Not Found\r\n\r\nrequest /NUMBER for that many bytes, such as /1000\n",
        );
    };
    stream.write_all(format!("HTTP/1.0 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes())?;
    let mut number = 0;
    while left > 0 {
        let blocks = left.div_ceil(32).min(2048) as u64;
        let bytes: Vec<u8> = (number..number + blocks).flat_map(block).take(left).collect();
        stream.write_all(&bytes)?;
        left -= bytes.len();
        number += blocks;
    }
    Ok(())
}

/// Result of a download.
pub struct Download {
    /// Time to the last byte, in seconds.
    pub seconds: f64,
    /// SHA-256 of the received bytes.
    pub digest: String,
    /// Whether all bytes arrived.
    pub whole: bool,
    /// Whether the received bytes are correct.
    pub right: bool,
    /// Number of downloads.
    pub times: u32,
    /// Longest time without a byte between the request and the last byte, in seconds.
    pub pause: f64,
}

/// The server of the test file.
#[derive(Clone)]
pub enum Origin {
    /// At this address.
    At(SocketAddr),
    /// An onion service with this name and port.
    Named(String, u16),
}

impl From<SocketAddr> for Origin {
    fn from(at: SocketAddr) -> Origin {
        Origin::At(at)
    }
}

impl Origin {
    /// The SOCKS5 request to connect to it.
    fn request(&self) -> Vec<u8> {
        match self {
            Origin::At(SocketAddr::V4(at)) => {
                [&[5, 1, 0, 1][..], &at.ip().octets(), &at.port().to_be_bytes()].concat()
            }
            Origin::At(SocketAddr::V6(_)) => unreachable!("the file server listens on 127.0.0.1"),
            Origin::Named(name, port) => {
                [&[5, 1, 0, 3, name.len() as u8], name.as_bytes(), &port.to_be_bytes()].concat()
            }
        }
    }
}

/// Concurrent streams, unless there are more circuits.
const AT_ONCE: u32 = 32;

/// Downloads `bytes` of the test file per stream through a SOCKS5 proxy, over several circuits at once.
pub fn fetch_over(
    (circuits, streams): (u16, u32),
    socks: SocketAddr,
    from: impl Into<Origin>,
    bytes: u64,
) -> Result<Download, Failure> {
    let (begun, from) = (clock::now(), from.into());
    let workers = streams.min(AT_ONCE.max(circuits.into()));
    let work = |worker: u32| {
        let (user, share) = ((worker % u32::from(circuits)) as u16, (streams - worker).div_ceil(workers));
        let from = from.clone();
        thread::spawn(move || -> Result<Download, Failure> {
            let mut whole = fetch(user, socks, from.clone(), bytes)?;
            for _ in 1..share {
                let next = fetch(user, socks, from.clone(), bytes)?;
                (whole.whole, whole.right) = (whole.whole && next.whole, whole.right && next.right);
            }
            Ok(whole)
        })
    };
    let working: Vec<_> = (0..workers).map(work).collect();
    let mut whole: Option<Download> = None;
    for worker in working {
        let download = worker.join().expect("download threads do not panic")?;
        let before = whole.as_ref().map_or((true, true), |whole| (whole.whole, whole.right));
        let (all, right) = (before.0 && download.whole, before.1 && download.right);
        whole = Some(Download { whole: all, right, ..download });
    }
    let whole = whole.ok_or_else(|| Failure::Other("--streams is 0".into()))?;
    Ok(Download { seconds: clock::now().since(begun).as_secs_f64(), times: streams, ..whole })
}

impl Download {
    /// Whether the download is complete and correct.
    pub fn exact(&self) -> bool {
        self.whole && self.right
    }
}

/// Longest wait for the proxy's answer or for a byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects through a SOCKS5 proxy that gives each user separate circuits.
pub fn connect_over(user: &str, socks: SocketAddr, to: &Origin) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(socks)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[5, 1, 2])?;
    let (mut method, mut known) = ([0; 2], [0; 2]);
    stream.read_exact(&mut method)?;
    // RFC 1929: user name, and a password of one byte.
    stream.write_all(&[&[1, user.len() as u8], user.as_bytes(), &[1, b'-']].concat())?;
    stream.read_exact(&mut known)?;
    stream.write_all(&to.request())?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    if (method, known[1], reply[1]) != ([5, 2], 0, 0) {
        let cause = format!("the proxy refused the connection: SOCKS reply {}", reply[1]);
        return Err(std::io::Error::other(cause));
    }
    Ok(stream)
}

/// Reads from a connection of [`connect_over`]. A process that is stopped and continued comes back from a read with a timeout
/// as if it was interrupted; this reads on.
pub fn read_on(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Downloads `bytes` of the test file through a SOCKS5 proxy that gives each user separate circuits.
pub fn fetch(user: u16, socks: SocketAddr, from: impl Into<Origin>, bytes: u64) -> Result<Download, Failure> {
    let failed_after = |received: Option<u64>, cause: std::io::Error| {
        let seconds = PATIENCE.as_secs();
        // A read that exceeds its timeout fails as one that would block.
        let why = match received {
            _ if cause.kind() != ErrorKind::WouldBlock => cause.to_string(),
            None => format!("the proxy did not connect for {seconds} s"),
            Some(received) => format!("no byte came for {seconds} s, after {received} of {bytes} B"),
        };
        Failure::Other(format!("the download failed: {why}"))
    };
    let failed = |cause| failed_after(Some(0), cause);
    let begun = clock::now();
    let mut stream =
        connect_over(&user.to_string(), socks, &from.into()).map_err(|cause| failed_after(None, cause))?;
    stream.write_all(format!("GET /{bytes} HTTP/1.0\r\n\r\n").as_bytes()).map_err(failed)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1024 {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(failed)?;
        head.push(byte[0]);
    }
    let (mut heard, mut pause) = (clock::now(), Span::ZERO);
    let (mut hash, mut expected) = (Sha256::new(), Sha256::new());
    let (mut buffer, mut received, mut number) = (vec![0; 1 << 16], 0, 0);
    while received < bytes {
        let count = read_on(&mut stream, &mut buffer).map_err(|cause| failed_after(Some(received), cause))?;
        if count == 0 {
            break;
        }
        pause = pause.max(clock::now().since(heard));
        heard = clock::now();
        hash.update(&buffer[..count]);
        received += count as u64;
    }
    let seconds = clock::now().since(begun).as_secs_f64();
    let mut left = received;
    while left > 0 {
        let take = left.min(32);
        expected.update(&block(number)[..take as usize]);
        (left, number) = (left - take, number + 1);
    }
    let digest = hash.finalize();
    let (whole, right) = (received == bytes, digest == expected.finalize());
    Ok(Download { seconds, whole, right, digest: hex(&digest), times: 1, pause: pause.as_secs_f64() })
}

/// Prints the result of a download; the exit code is 1 if it was not correct.
pub fn report(
    network: Value,
    bytes: Bytes,
    paths: &[Vec<String>],
    download: &Download,
    as_json: bool,
) -> ExitCode {
    if as_json {
        let mut document = json!({
            "bytes": bytes.0,
            "seconds": download.seconds,
            "bytes_per_s": f64::from(download.times) * bytes.0 as f64 / download.seconds,
            "sha256": download.digest,
            "exact": download.exact(),
            "paths": paths,
        });
        if let (Some(document), Some(network)) = (document.as_object_mut(), network.as_object()) {
            document.extend(network.clone());
        }
        println!("{document}");
    } else {
        for path in paths {
            println!("path      {}", path.join(" -> "));
        }
        let Download { times, seconds, .. } = download;
        let rate = f64::from(*times) * bytes.0 as f64 / seconds / 1e6;
        let often = if *times > 1 { format!("{times} times ") } else { String::new() };
        println!("fetched   {often}{bytes} in {seconds:.2} s ({rate:.2} MB/s)");
        println!(
            "SHA-256   {}, {}",
            download.digest,
            if download.exact() { "as sent" } else { "NOT what was sent" }
        );
    }
    ExitCode::from(u8::from(!download.exact()))
}
