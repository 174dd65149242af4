//! Sources of a stream: standard input, UDP, HTTP, Media over QUIC, or a test pattern.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tidegate_control::units::{Rate, Span};
use tidegate_stream::framer::TS;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::mpsc;

use super::moq;
use crate::clock;

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input: `-`.
    Standard,
    /// Datagrams that arrive at `udp://ADDRESS:PORT`.
    Udp(SocketAddr),
    /// An HTTP resource `http://...`, requested again after it ends.
    Http(Uri),
    /// A publisher of Media over QUIC that connects to `moq://ADDRESS:PORT`, on loopback.
    Moq(SocketAddr),
    /// A test pattern `pattern:RATE`: TS packets without a picture.
    Pattern(Rate),
}

/// Text that is not a valid source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError(String);

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputError {}

impl FromStr for Input {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Input, InputError> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            InputError(format!(
                "`{shown}` {why}; give -, udp://ADDRESS:PORT, http://HOST[:PORT]/PATH, moq://ADDRESS:PORT or pattern:RATE"
            ))
        };
        if text == "-" {
            Ok(Input::Standard)
        } else if let Some(address) = text.strip_prefix("udp://") {
            match address.parse::<SocketAddr>() {
                Ok(address) if address.port() == 0 => {
                    Err(wrong("has port 0, so that no sender knows the port"))
                }
                Ok(address) => Ok(Input::Udp(address)),
                Err(_) => Err(wrong("needs a numeric address and a port")),
            }
        } else if let Some(address) = text.strip_prefix("moq://") {
            match address.parse::<SocketAddr>() {
                _ if !moq::IS_BUILT => Err(wrong("needs a build with `--features moq`")),
                Ok(address) if address.ip().is_loopback() => Ok(Input::Moq(address)),
                Ok(_) => Err(wrong("is not on loopback: anyone who reaches the address could publish")),
                Err(_) => Err(wrong("needs a numeric address and a port")),
            }
        } else if let Some(rate) = text.strip_prefix("pattern:") {
            let rate: Rate = rate.parse().map_err(|error| wrong(&format!("needs a rate: {error}")))?;
            let sound = rate != Rate::UNLIMITED && rate.0 >= 8 * TS as u64;
            sound.then_some(Input::Pattern(rate)).ok_or_else(|| wrong("has a rate that cannot be sent"))
        } else if text.starts_with("http://") {
            let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
            if uri.host().is_some() { Ok(Input::Http(uri)) } else { Err(wrong("has no host")) }
        } else if text.starts_with("https://") {
            Err(wrong("needs TLS, which is not supported; pipe ffmpeg's output into standard input instead"))
        } else {
            Err(wrong("is not a source"))
        }
    }
}

/// Bytes per read.
const CHUNK: usize = 1 << 14;
/// Pause before a source is requested again.
const AGAIN: Span = Span::from_secs(1);
/// Pause between two messages about the same end of a source.
const SAY_AGAIN: Span = Span::from_secs(60);
/// Timeout of an HTTP request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timer interval of the pattern.
const TICK: Span = Span::from_millis(5);
/// Longest time of the pattern that is sent at once.
const AT_ONCE: Span = Span::from_millis(200);

/// Reads the source until it ends for good, or the receiver is dropped. `say` gets warnings.
///
/// # Errors
/// If standard input or the UDP socket cannot be read.
pub(crate) async fn read(
    input: &Input,
    to: mpsc::Sender<Bytes>,
    say: impl Fn(String) + Sync,
) -> io::Result<()> {
    match input {
        Input::Standard => copy(tokio::io::stdin(), &to).await,
        Input::Udp(address) => {
            let socket = UdpSocket::bind(address).await?;
            let mut buffer = vec![0; 1 << 16];
            while !to.is_closed() {
                let (count, _) = socket.recv_from(&mut buffer).await?;
                let _ = to.send(Bytes::copy_from_slice(&buffer[..count])).await;
            }
            Ok(())
        }
        Input::Http(uri) => {
            let mut last = None;
            while !to.is_closed() {
                // Live sources restart, so request again after every end.
                let result = pull(uri, &to).await;
                let (ended, now) = (result.err().unwrap_or_else(|| "ended".into()), clock::now());
                if last.as_ref().is_none_or(|(said, at)| *said != ended || now.since(*at) >= SAY_AGAIN) {
                    say(format!("{uri}: {ended}; it is requested again every second"));
                    last = Some((ended, now));
                }
                clock::until(clock::now() + AGAIN).await;
            }
            Ok(())
        }
        Input::Moq(address) => moq::read(*address, &to, say).await,
        Input::Pattern(rate) => {
            pattern(*rate, &to).await;
            Ok(())
        }
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, to: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 || to.send(Bytes::copy_from_slice(&buffer[..count])).await.is_err() {
            return Ok(());
        }
    }
}

async fn pull(uri: &Uri, to: &mpsc::Sender<Bytes>) -> Result<(), String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(80);
    let found = lookup_host((host.trim_matches(['[', ']']), port)).await.map_err(|e| text(&e))?.next();
    let address = found.ok_or("the host name has no address")?;
    let tcp = TcpStream::connect(address).await.map_err(|e| text(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|e| text(&e))?;
    tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(HOST, format!("{host}:{port}")).body(Empty::<Bytes>::new());
    let request = request.map_err(|e| text(&e))?;
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request));
    let response = response.await.map_err(|_| "the server did not answer in time")?.map_err(|e| text(&e))?;
    if !response.status().is_success() {
        return Err(format!("answered {}", response.status()));
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|e| text(&e))?.into_data()
            && to.send(data).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// The `n`-th TS packet of the pattern.
pub(crate) fn pattern_packet(n: u64) -> [u8; TS] {
    let mut packet = [0; TS];
    packet[..4].copy_from_slice(&[0x47, 0x01, 0x00, 0x10 | (n & 0xf) as u8]);
    packet[4..12].copy_from_slice(&n.to_be_bytes());
    packet[12..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (n as usize + at) as u8);
    packet
}

/// Sends the pattern at its rate. After a pause of the machine, what was due is not caught up beyond [`AT_ONCE`]: a live
/// source does not either, and an uplink would drop such a burst.
async fn pattern(rate: Rate, to: &mpsc::Sender<Bytes>) {
    let per_packet = rate.span_for(TS as u64);
    let (mut looked, mut shown, mut sent) = (clock::now(), Span::ZERO, 0);
    loop {
        clock::until(looked + TICK).await;
        let now = clock::now();
        shown = shown + now.since(looked).min(AT_ONCE);
        looked = now;
        let due = shown.0 / per_packet.0;
        let packets: Vec<u8> = (sent..due).flat_map(pattern_packet).collect();
        sent = due;
        if !packets.is_empty() && to.send(packets.into()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_parsed_or_rejected_with_a_reason() {
        assert_eq!("-".parse(), Ok(Input::Standard));
        assert_eq!("udp://127.0.0.1:9".parse(), Ok(Input::Udp("127.0.0.1:9".parse().unwrap())));
        assert_eq!("pattern:4 Mbit/s".parse(), Ok(Input::Pattern(Rate(4_000_000))));
        assert!(matches!("http://localhost:1/a?b".parse(), Ok(Input::Http(_))));
        for bad in [
            "",
            "udp://x",
            "udp://127.0.0.1:0",
            "moq://x",
            "moq://192.0.2.1:4443",
            "pattern:fast",
            "pattern:0 bit/s",
            "http://",
            "https://a/",
            "/dev/zero",
            "é",
        ] {
            let error = bad.parse::<Input>().unwrap_err().to_string();
            assert!(error.contains("give -"), "{error}");
        }
    }
}
