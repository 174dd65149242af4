//! A QUIC stream as the transport of one channel's cells.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bounds of the send window, bytes. In between it is twice the congestion window, as in Linux's TCP. More data would
/// wait here instead of in circuit queues.
const LEAST_UNACKNOWLEDGED: u64 = 64 << 10;
/// See [`LEAST_UNACKNOWLEDGED`].
const MOST_UNACKNOWLEDGED: u64 = 1 << 20;

/// A bidirectional stream for one channel.
pub struct QuicStream {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
    /// How many streams of the connection are in use, this one included.
    used: Rc<Cell<u32>>,
}

impl QuicStream {
    /// Wraps a stream; `used` counts the connection's streams.
    pub(crate) fn new(
        connection: Connection,
        (send, receive): (SendStream, RecvStream),
        used: &Rc<Cell<u32>>,
    ) -> QuicStream {
        used.set(used.get() + 1);
        QuicStream { connection, send, receive, used: used.clone() }
    }

    /// The connection of this stream.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        self.used.set(self.used.get() - 1);
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        at: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), at, into)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, at: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let window = 2 * self.connection.stats().path.cwnd;
        self.connection.set_send_window(window.clamp(LEAST_UNACKNOWLEDGED, MOST_UNACKNOWLEDGED));
        AsyncWrite::poll_write(Pin::new(&mut self.send), at, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), at)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), at)
    }
}
