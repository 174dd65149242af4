//! A connection that carries cells: TLS, or a stream of a QUIC connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::{ClientConfig, ServerConfig};
use tidegate_control::units::Span;
use tidegate_proto::crypto::cert::Fingerprint;
use tidegate_proto::crypto::wire::FIXED;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream, client, server};

use crate::lane::Lane;
use crate::{clock, tls};

pub use crate::lumps::Tcp;

/// What a channel's cells go over.
pub enum Carrier {
    /// A TLS connection of its own.
    Tls(Box<TlsStream<Tcp>>),
    /// A stream of a QUIC connection.
    Quic(Box<Lane>),
}

impl Carrier {
    /// Its own TCP connection, if it has one.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Carrier::Tls(stream) => Some(stream.get_ref().0.get_ref()),
            Carrier::Quic(_) => None,
        }
    }

    /// So many bytes may be written at once.
    pub fn may_hold(&mut self, bytes: usize) {
        match self {
            Carrier::Tls(stream) => match &mut **stream {
                TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
                TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
            },
            Carrier::Quic(_) => {}
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(self: Pin<&mut Self>, at: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carrier::Tls(stream) => Pin::new(stream).poll_read(at, into),
            Carrier::Quic(lane) => Pin::new(lane).poll_read(at, into),
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(self: Pin<&mut Self>, at: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Carrier::Tls(stream) => Pin::new(stream).poll_write(at, bytes),
            Carrier::Quic(lane) => Pin::new(lane).poll_write(at, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carrier::Tls(stream) => Pin::new(stream).poll_flush(at),
            Carrier::Quic(lane) => Pin::new(lane).poll_flush(at),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carrier::Tls(stream) => Pin::new(stream).poll_shutdown(at),
            Carrier::Quic(lane) => Pin::new(lane).poll_shutdown(at),
        }
    }
}

/// Makes the connection ready for TLS and cells.
///
/// # Errors
/// If the kernel refuses.
pub fn in_lumps(tcp: TcpStream) -> io::Result<Tcp> {
    tcp.set_nodelay(true)?;
    Ok(Tcp::new(tcp))
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
    within(limit, async { secure(TcpStream::connect(address).await?, config).await }).await
}

/// Proves who both sides of a connection are.
///
/// # Errors
/// If that fails.
pub async fn secure(tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<client::TlsStream<Tcp>> {
    TlsConnector::from(config).connect(tls::name(), in_lumps(tcp)?).await
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
        // The timer is not set for what is done at once.
        biased;
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

/// Lets the other tasks that are ready go first.
pub async fn others_first() {
    let mut went = false;
    poll_fn(|context| {
        if std::mem::replace(&mut went, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs a future, and says whether it had to wait.
pub async fn waits<T>(future: impl Future<Output = T>) -> (T, bool) {
    let (mut future, mut waited) = (pin!(future), false);
    let result = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waited |= polled.is_pending();
        polled
    })
    .await;
    (result, waited)
}
