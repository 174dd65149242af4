//! A request to a directory over HTTP/1.0: short, bounded, and without anything that needs a library.

use std::io;
use std::net::SocketAddr;

use tidegate_control::units::Span;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::flashflow::link::within;

/// How long a request may take, and how long an answer may be.
const PATIENCE: Span = Span::from_secs(20);
const MOST: u64 = 16 << 20;

/// Asks for a page, or posts `body`: the status line's code and words, and what came.
///
/// # Errors
/// If there is no answer in time, or none of HTTP.
pub async fn fetch(at: SocketAddr, path: &str, body: Option<&[u8]>) -> io::Result<(u16, String, Vec<u8>)> {
    within(PATIENCE, async {
        let mut stream = TcpStream::connect(at).await?;
        let verb = if body.is_some() { "POST" } else { "GET" };
        let length = body.map_or(String::new(), |body| format!("Content-Length: {}\r\n", body.len()));
        let head = format!("{verb} {path} HTTP/1.0\r\nHost: {at}\r\n{length}\r\n");
        stream.write_all(&[head.as_bytes(), body.unwrap_or_default()].concat()).await?;
        let mut answer = Vec::new();
        stream.take(MOST).read_to_end(&mut answer).await?;
        parse(answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
    })
    .await
}

fn parse(mut answer: Vec<u8>) -> Option<(u16, String, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.lines().next()?.strip_prefix("HTTP/1.")?;
    let (code, words) = status.get(2..)?.split_once(' ')?;
    let (code, words) = (code.parse().ok()?, words.to_owned());
    answer.drain(..end + 4);
    Some((code, words, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_strictly() {
        let answer = parse(b"HTTP/1.0 400 Missing TAP key\r\nX: y\r\n\r\nbody".to_vec());
        assert_eq!(answer, Some((400, "Missing TAP key".to_owned(), b"body".to_vec())));
        for bad in ["", "HTTP/1.0 200 OK", "SSH-2.0\r\n\r\n", "HTTP/1.0 x y\r\n\r\n"] {
            assert_eq!(parse(bad.into()), None, "{bad}");
        }
    }
}
