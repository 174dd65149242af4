//! A TLS connection that carries cells.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use rustls::{ClientConfig, ServerConfig};
use tidegate_control::units::Span;
use tidegate_proto::crypto::cert::Fingerprint;
use tidegate_proto::crypto::wire::FIXED;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::{clock, tls};

/// A TCP connection that is read in lumps: TLS alone asks the kernel for 4 KiB at a time, a quarter of a record.
pub type Tcp = BufReader<TcpStream>;

/// Bytes of a lump.
const LUMP: usize = 1 << 14;

/// Makes the connection ready for TLS and cells.
///
/// # Errors
/// If the kernel refuses.
pub fn in_lumps(tcp: TcpStream) -> io::Result<Tcp> {
    tcp.set_nodelay(true)?;
    Ok(BufReader::with_capacity(LUMP, tcp))
}

/// Connects and proves who both sides are.
///
/// # Errors
/// If that fails or takes longer than `limit`.
pub async fn connect(
    address: std::net::SocketAddr,
    config: Arc<ClientConfig>,
    limit: Span,
) -> io::Result<client::TlsStream<Tcp>> {
    within(limit, async {
        let tcp = in_lumps(TcpStream::connect(address).await?)?;
        TlsConnector::from(config).connect(tls::name(), tcp).await
    })
    .await
}

/// Answers a connection; the fingerprint if the client proved one.
///
/// # Errors
/// If that fails or takes longer than `limit`.
pub async fn accept(
    tcp: TcpStream,
    config: Arc<ServerConfig>,
    limit: Span,
) -> io::Result<(server::TlsStream<Tcp>, Option<Fingerprint>)> {
    within(limit, async {
        let stream = TlsAcceptor::from(config).accept(in_lumps(tcp)?).await?;
        let peer = tls::peer(stream.get_ref().1);
        Ok((stream, peer))
    })
    .await
}

/// Gives a future a limited time.
///
/// # Errors
/// The future's own, or [`io::ErrorKind::TimedOut`].
pub async fn within<T>(limit: Span, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        result = future => result,
        () = clock::until(clock::now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads one cell.
///
/// # Errors
/// If the connection ends or breaks first.
pub async fn read_cell(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; FIXED]> {
    let mut cell = [0; FIXED];
    stream.read_exact(&mut cell).await?;
    Ok(cell)
}

/// Writes cells and sees them off.
///
/// # Errors
/// If the connection breaks.
pub async fn write_cells(stream: &mut (impl AsyncWrite + Unpin), cells: &[u8]) -> io::Result<()> {
    stream.write_all(cells).await?;
    stream.flush().await
}

/// Reads what is there, waiting for the first bytes only; zero at the end of the stream.
///
/// # Errors
/// If the connection breaks.
pub async fn read_some(stream: &mut (impl AsyncRead + Unpin), space: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| {
        let mut buffer = ReadBuf::new(space);
        loop {
            let before = buffer.filled().len();
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().len() > before && buffer.remaining() > 0 => {}
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(buffer.filled().len())),
                Poll::Ready(Err(cause)) if before == 0 => return Poll::Ready(Err(cause)),
                Poll::Pending if before == 0 => return Poll::Pending,
                // What came before the error or the gap is worth having.
                _ => return Poll::Ready(Ok(before)),
            }
        }
    })
    .await
}
