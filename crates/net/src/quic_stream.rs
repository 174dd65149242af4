//! A QUIC stream as the transport of one channel's cells.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::turns::{Place, Turns};

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
    place: Arc<Place>,
}

impl QuicStream {
    /// Wraps a stream; `used` counts the connection's streams, which write in `turns`.
    pub(crate) fn new(
        connection: Connection,
        (send, receive): (SendStream, RecvStream),
        used: &Rc<Cell<u32>>,
        turns: &Arc<Turns>,
    ) -> QuicStream {
        used.set(used.get() + 1);
        QuicStream { connection, send, receive, used: used.clone(), place: Place::new(turns) }
    }

    /// The connection of this stream.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        self.used.set(self.used.get() - 1);
        self.place.leave();
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
        if !self.place.may_write(at.waker()) {
            return Poll::Pending;
        }
        let room = Waker::from(self.place.clone());
        let result = AsyncWrite::poll_write(Pin::new(&mut self.send), &mut Context::from_waker(&room), bytes);
        match result {
            Poll::Pending => self.place.found_no_room(),
            Poll::Ready(_) => self.place.wrote(),
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), at)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.place.leave();
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), at)
    }
}
