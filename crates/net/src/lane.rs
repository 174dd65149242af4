//! A stream of a QUIC connection, as the way of a channel's cells.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a connection that are written and not acknowledged, at least and at most. In between it is twice the
/// congestion window, as Linux has it for TCP: more would only wait here instead of in circuit queues.
const LEAST_UNACKNOWLEDGED: u64 = 64 << 10;
/// See [`LEAST_UNACKNOWLEDGED`].
const MOST_UNACKNOWLEDGED: u64 = 1 << 20;

/// One stream in each direction, for one channel.
pub struct Lane {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
    /// How many of the connection's lanes are in use: also by this one.
    used: Rc<Cell<u32>>,
}

impl Lane {
    /// A connection's lane; `used` counts them.
    pub fn new(
        connection: Connection,
        (send, receive): (SendStream, RecvStream),
        used: &Rc<Cell<u32>>,
    ) -> Lane {
        used.set(used.get() + 1);
        Lane { connection, send, receive, used: used.clone() }
    }

    /// The connection that it is a part of.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.used.set(self.used.get() - 1);
    }
}

impl AsyncRead for Lane {
    fn poll_read(
        mut self: Pin<&mut Self>,
        at: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), at, into)
    }
}

impl AsyncWrite for Lane {
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
