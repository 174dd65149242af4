//! A request to a directory over HTTP: short and bounded.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::handshake;
use hyper::ext::ReasonPhrase;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use tidegate_control::units::Span;
use tokio::net::TcpStream;

use crate::link::within;

/// How long a request may take, and how long an answer may be.
const PATIENCE: Span = Span::from_secs(20);
const MOST: usize = 16 << 20;

/// Asks for a page, or posts `body`: the status line's code and words, and what came.
///
/// # Errors
/// If there is no answer in time, or none of HTTP.
pub async fn fetch(at: SocketAddr, path: &str, body: Option<&[u8]>) -> io::Result<(u16, String, Vec<u8>)> {
    within(PATIENCE, async {
        let (mut sender, connection) =
            handshake(TokioIo::new(TcpStream::connect(at).await?)).await.map_err(io::Error::other)?;
        let request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(path)
            .header(HOST, at.to_string())
            .body(Full::new(Bytes::copy_from_slice(body.unwrap_or_default())))
            .map_err(io::Error::other)?;
        let asking = async {
            let answer = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status();
            // Tor's authorities say why in the status line.
            let words = match answer.extensions().get::<ReasonPhrase>() {
                Some(words) => String::from_utf8_lossy(words.as_bytes()).into_owned(),
                None => status.canonical_reason().unwrap_or_default().to_owned(),
            };
            let body = Limited::new(answer.into_body(), MOST).collect().await.map_err(io::Error::other)?;
            Ok((status.as_u16(), words, body.to_bytes().to_vec()))
        };
        tokio::pin!(connection, asking);
        tokio::select! {
            biased;
            answered = &mut asking => answered,
            // The answer may be here although the connection is over.
            _ = &mut connection => asking.await,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What is read of a server that says that and closes.
    fn answered(answer: &'static [u8]) -> io::Result<(u16, String, Vec<u8>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = async {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"text") {
                    assert!(tcp.read_buf(&mut request).await.unwrap() > 0);
                }
                assert!(request.starts_with(b"POST /tor/ HTTP/1.1\r\n"));
                tcp.write_all(answer).await.unwrap();
            };
            tokio::join!(fetch(address, "/tor/", Some(b"text")), server).0
        })
    }

    #[test]
    fn an_authority_is_understood_and_others_are_refused() {
        let said = answered(b"HTTP/1.0 400 Missing TAP key\r\nX: y\r\n\r\nbody").unwrap();
        assert_eq!(said, (400, "Missing TAP key".to_owned(), b"body".to_vec()));
        for bad in [&b""[..], b"HTTP/1.0 200", b"SSH-2.0\r\n\r\n", b"HTTP/1.0 x y\r\n\r\n"] {
            assert!(answered(bad).is_err(), "{bad:?}");
        }
    }
}
