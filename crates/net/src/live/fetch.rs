//! HTTP requests to a directory, with a timeout and a size limit.

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

use crate::gate::Gate;
use crate::link::within;
use crate::sockets;

/// Timeout of a request, and maximum size of an answer, bytes.
const PATIENCE: Span = Span::from_secs(20);
const MOST: usize = 16 << 20;

/// Fetches a page, or posts `body`. Returns status code, reason phrase and body.
///
/// # Errors
/// If the request fails, times out, or the answer is not HTTP.
pub async fn fetch(at: SocketAddr, path: &str, body: Option<&[u8]>) -> io::Result<(u16, String, Vec<u8>)> {
    within(PATIENCE, async {
        // The operator chose the directory, so it may be in a private network.
        let (mut sender, connection) =
            handshake(TokioIo::new(sockets::connect(Gate::Private, at, None).await?))
                .await
                .map_err(io::Error::other)?;
        let request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(path)
            .header(HOST, at.to_string())
            .body(Full::new(Bytes::copy_from_slice(body.unwrap_or_default())))
            .map_err(io::Error::other)?;
        let asking = async {
            let answer = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status();
            // Tor's authorities explain a refusal in the status line.
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
            // The complete answer may have arrived before the connection ended.
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

    /// The result of a fetch from a server that sends `answer` and closes.
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
    fn answers_that_are_not_http_are_errors() {
        let answer = answered(b"HTTP/1.0 400 Missing TAP key\r\nX: y\r\n\r\nbody").unwrap();
        assert_eq!(answer, (400, "Missing TAP key".to_owned(), b"body".to_vec()));
        for bad in [&b""[..], b"HTTP/1.0 200", b"SSH-2.0\r\n\r\n", b"HTTP/1.0 x y\r\n\r\n"] {
            assert!(answered(bad).is_err(), "{bad:?}");
        }
    }

    /// A body and a head that do not end.
    #[test]
    fn documents_without_end_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (begin, line) in [("HTTP/1.1 200 OK\r\n\r\n", "relay\n"), ("HTTP/1.1 200 OK\r\n", "X: y\r\n")] {
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let server = async {
                    let (mut tcp, _) = listener.accept().await.unwrap();
                    tcp.write_all(begin.as_bytes()).await.unwrap();
                    let (lines, mut sent) = (line.repeat(10_000), 0);
                    while tcp.write_all(lines.as_bytes()).await.is_ok() {
                        sent += lines.len();
                    }
                    sent
                };
                let (answer, sent) = tokio::join!(fetch(address, "/directory", None), server);
                assert!(answer.is_err(), "{begin}");
                // The kernel holds a part.
                assert!(sent < 2 * MOST, "{sent} bytes were taken");
            });
        }
    }
}
