//! A test file, fetched through an overlay.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Bytes;
use tidegate_net::clock;
use tidegate_net::identity::hex;

use crate::failure::Failure;

/// The bytes of a test file: a counter's SHA-256, block by block.
fn block(number: u64) -> [u8; 32] {
    Sha256::digest(number.to_be_bytes()).into()
}

/// Serves the test file over HTTP: `GET /1000` asks for 1000 bytes of it.
pub fn serve_file() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::other)?;
    let address = listener.local_addr().map_err(Failure::other)?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // How a download ends its reader tells.
            thread::spawn(move || drop(send_file(stream)));
        }
    });
    Ok(address)
}

fn send_file(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).take(4096).lines();
    let line = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let asked = line.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    let Some(mut left) = asked else {
        return stream
            .write_all(b"HTTP/1.0 404 Not Found\r\n\r\nask for /1000, or how many bytes you like\n");
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

/// How a download went.
pub struct Download {
    /// Until the last byte.
    pub seconds: f64,
    /// SHA-256 of what came.
    pub digest: String,
    /// Whether it is the file.
    pub exact: bool,
}

/// Fetches so many bytes of the test file through a SOCKS5 proxy, over each of so many circuits at once.
pub fn fetch_over(
    circuits: u8,
    socks: SocketAddr,
    from: SocketAddr,
    bytes: u64,
) -> Result<Download, Failure> {
    let downloads = (0..circuits).map(|user| thread::spawn(move || fetch(user, socks, from, bytes)));
    let downloads: Vec<_> = downloads.collect();
    let mut whole: Option<Download> = None;
    for download in downloads {
        let download = download.join().expect("a download does not panic")?;
        let (seconds, exact) = whole.map_or((0.0, true), |whole| (whole.seconds, whole.exact));
        let (seconds, exact) = (download.seconds.max(seconds), download.exact && exact);
        whole = Some(Download { seconds, exact, ..download });
    }
    whole.ok_or_else(|| Failure::Other("no circuits to download over".into()))
}

/// Fetches so many bytes of the test file through a SOCKS5 proxy that keeps users' circuits apart.
pub fn fetch(user: u8, socks: SocketAddr, from: SocketAddr, bytes: u64) -> Result<Download, Failure> {
    let failed = |cause: std::io::Error| Failure::Other(format!("the download failed: {cause}"));
    let begun = clock::now();
    let mut stream = TcpStream::connect(socks).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(failed)?;
    let SocketAddr::V4(from) = from else { unreachable!("loopback of IPv4") };
    stream.write_all(&[5, 1, 2]).map_err(failed)?;
    let (mut method, mut known) = ([0; 2], [0; 2]);
    stream.read_exact(&mut method).map_err(failed)?;
    // RFC 1929: a name and a password of one byte each.
    stream.write_all(&[1, 1, b'a' + user, 1, b'-']).map_err(failed)?;
    stream.read_exact(&mut known).map_err(failed)?;
    let request = [&[5, 1, 0, 1][..], &from.ip().octets(), &from.port().to_be_bytes()].concat();
    stream.write_all(&request).map_err(failed)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).map_err(failed)?;
    if (method, known[1], reply[1]) != ([5, 2], 0, 0) {
        return Err(Failure::Other(format!("the proxy refused: SOCKS reply {}", reply[1])));
    }
    stream.write_all(format!("GET /{bytes} HTTP/1.0\r\n\r\n").as_bytes()).map_err(failed)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1024 {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(failed)?;
        head.push(byte[0]);
    }
    let (mut hash, mut expected) = (Sha256::new(), Sha256::new());
    let (mut buffer, mut received, mut number) = (vec![0; 1 << 16], 0, 0);
    while received < bytes {
        let count = stream.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        received += count as u64;
    }
    let seconds = clock::now().since(begun).as_secs_f64();
    let mut left = bytes;
    while left > 0 {
        let take = left.min(32);
        expected.update(&block(number)[..take as usize]);
        (left, number) = (left - take, number + 1);
    }
    let digest = hash.finalize();
    Ok(Download { seconds, exact: received == bytes && digest == expected.finalize(), digest: hex(&digest) })
}

/// Prints how a download went, and whether it was right.
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
            "bytes_per_s": bytes.0 as f64 / download.seconds,
            "sha256": download.digest,
            "exact": download.exact,
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
        let rate = bytes.0 as f64 / download.seconds / 1e6;
        println!("fetched   {bytes} in {:.2} s ({rate:.2} MB/s)", download.seconds);
        println!(
            "SHA-256   {}, {}",
            download.digest,
            if download.exact { "as sent" } else { "NOT what was sent" }
        );
    }
    ExitCode::from(u8::from(!download.exact))
}
