//! A connection that carries cells: TLS, or a stream of a QUIC connection.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
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

use crate::buffered_tcp::UnreadLimit;
use crate::gate::Gate;
use crate::quic_stream::QuicStream;
use crate::{clock, sockets, tls};

pub use crate::buffered_tcp::BufferedTcp;

/// The transport of a channel's cells.
pub enum Carrier {
    /// A TLS connection.
    Tls(Box<TlsStream<BufferedTcp>>),
    /// A stream of a QUIC connection.
    Quic(Box<QuicStream>),
}

impl Carrier {
    /// The TCP connection under TLS.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Carrier::Tls(stream) => Some(stream.get_ref().0.get_ref()),
            Carrier::Quic(_) => None,
        }
    }

    /// The neighbour's address; `None` if the connection is gone.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        let address = match self {
            Carrier::Tls(stream) => stream.get_ref().0.get_ref().peer_addr().ok()?,
            Carrier::Quic(stream) => stream.connection().remote_address(),
        };
        Some(address.ip())
    }

    /// The limit of unread bytes in the kernel; `None` for QUIC, which bounds them itself.
    pub(crate) fn unread_limit(&self) -> Option<Arc<UnreadLimit>> {
        match self {
            Carrier::Tls(stream) => Some(stream.get_ref().0.unread_limit()),
            Carrier::Quic(_) => None,
        }
    }

    /// Sets how many bytes TLS may buffer for one write.
    pub(crate) fn may_hold(&mut self, bytes: usize) {
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

/// Sets TCP_NODELAY and TCP's keep-alive, and adds a read buffer.
///
/// # Errors
/// If the kernel refuses an option.
pub fn buffered(tcp: TcpStream) -> io::Result<BufferedTcp> {
    tcp.set_nodelay(true)?;
    sockets::keep_alive(&tcp)?;
    Ok(BufferedTcp::new(tcp))
}

/// Connects, and authenticates the server and, if the configuration has a certificate, the client.
///
/// # Errors
/// If the connection or the handshake fails, both take longer than `limit`, or the address is never connected to.
pub async fn connect(
    address: std::net::SocketAddr,
    config: Arc<ClientConfig>,
    limit: Span,
) -> io::Result<client::TlsStream<BufferedTcp>> {
    // FlashFlow's roles authenticate each other, so they may be in a private network.
    within(limit, async { secure(sockets::connect(Gate::Private, address, None).await?, config).await }).await
}

/// Runs the TLS handshake on a connection.
///
/// # Errors
/// If the handshake fails.
pub async fn secure(tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<client::TlsStream<BufferedTcp>> {
    TlsConnector::from(config).connect(tls::name(), buffered(tcp)?).await
}

/// Accepts a TLS connection. Returns the client's fingerprint if it has a certificate.
///
/// # Errors
/// If the handshake fails or takes longer than `limit`.
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<ServerConfig>,
    limit: Span,
) -> io::Result<(server::TlsStream<BufferedTcp>, Option<Fingerprint>)> {
    within(limit, async {
        let stream = TlsAcceptor::from(config).accept(buffered(tcp)?).await?;
        let peer = tls::peer(stream.get_ref().1);
        Ok((stream, peer))
    })
    .await
}

/// Runs a future with a timeout.
///
/// # Errors
/// The future's error, or [`io::ErrorKind::TimedOut`].
pub async fn within<T>(limit: Span, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        // Do not arm the timer if the future is ready at once.
        biased;
        result = future => result,
        () = clock::until(clock::now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads one cell.
///
/// # Errors
/// If the connection ends or fails first.
pub async fn read_cell(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; FIXED]> {
    let mut cell = [0; FIXED];
    stream.read_exact(&mut cell).await?;
    Ok(cell)
}

/// Writes cells and flushes them.
///
/// # Errors
/// If the connection fails.
pub async fn write_cells(stream: &mut (impl AsyncWrite + Unpin), cells: &[u8]) -> io::Result<()> {
    stream.write_all(cells).await?;
    stream.flush().await
}

/// Reads the available bytes, waiting only for the first one. Returns 0 at the end of the stream.
///
/// # Errors
/// If the connection fails.
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
                // Return the bytes before the error or the gap first.
                _ => return Poll::Ready(Ok(before)),
            }
        }
    })
    .await
}

/// Yields to other ready tasks once.
pub(crate) async fn others_first() {
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

/// Runs a future, and returns whether it had to wait.
pub(crate) async fn waits<T>(future: impl Future<Output = T>) -> (T, bool) {
    let (mut future, mut waited) = (pin!(future), false);
    let result = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waited |= polled.is_pending();
        polled
    })
    .await;
    (result, waited)
}
