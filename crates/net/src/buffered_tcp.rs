//! TCP connections with large read buffers. TLS alone reads 4 KiB at a time, a quarter of a record.

use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::sockets;

/// Size of a read block, bytes. Its cells are forwarded as one batch ([`crate::batch`]).
pub(crate) const BLOCK: usize = 120 << 10;
/// Read blocks kept for the next connection that reads: their memory is in the processor's cache.
const KEPT: usize = 4;
/// TLS gets this many bytes less than it asks for. It asks for whole pages. A buffer of whole pages is followed
/// directly by the copy of a record, which then begins 16 bytes further in its page. AMD's `rep movsb` takes 30 times
/// as long for such a copy.
const LESS: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A connection and its read block. An idle connection holds no block.
pub struct BufferedTcp {
    stream: TcpStream,
    lump: Vec<u8>,
    taken: usize,
    unread: Arc<UnreadLimit>,
}

/// A limit of a connection's unread bytes in the kernel, for the owner of one half of the connection. The connection
/// applies it with its next read.
#[derive(Debug, Default)]
pub(crate) struct UnreadLimit(AtomicU32);

impl UnreadLimit {
    /// Sets the limit in bytes.
    pub(crate) fn set(&self, bytes: u32) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl BufferedTcp {
    /// Wraps a connection from which nothing was read.
    pub(crate) fn new(stream: TcpStream) -> BufferedTcp {
        BufferedTcp { stream, lump: Vec::new(), taken: 0, unread: Arc::default() }
    }

    /// Sets a limit of unread bytes later; without it the kernel decides.
    pub(crate) fn unread_limit(&self) -> Arc<UnreadLimit> {
        self.unread.clone()
    }

    /// The connection.
    pub fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    fn poll_lump(&mut self, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lump.clear();
        self.taken = 0;
        match self.unread.0.swap(0, Ordering::Relaxed) {
            0 => {}
            bytes => sockets::bound_unread(&self.stream, bytes),
        }
        if self.stream.poll_read_ready(at)?.is_pending() {
            self.give_back();
            return Poll::Pending;
        }
        if self.lump.capacity() == 0 {
            self.lump = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
            self.lump.reserve_exact(BLOCK);
        }
        let read = pin!(self.stream.read_buf(&mut self.lump)).poll(at);
        if read.is_pending() {
            self.give_back();
        }
        read.map_ok(|_| ())
    }

    fn give_back(&mut self) {
        let lump = std::mem::take(&mut self.lump);
        if lump.capacity() > 0 {
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < KEPT {
                    spare.push(lump);
                }
            });
        }
    }
}

impl AsyncRead for BufferedTcp {
    fn poll_read(self: Pin<&mut Self>, at: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.taken == this.lump.len() {
            ready!(this.poll_lump(at))?;
        }
        let rest = &this.lump[this.taken..];
        let room = into.remaining();
        let count = rest.len().min(if room > LESS { room - LESS } else { room });
        into.put_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BufferedTcp {
    fn poll_write(self: Pin<&mut Self>, at: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(at, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        at: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(at, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(at)
    }

    fn poll_shutdown(self: Pin<&mut Self>, at: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(at)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn bytes_arrive_in_order_and_idle_connections_hold_no_block() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut tcp = BufferedTcp::new(listener.accept().await.unwrap().0);
            let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
            let bytes = sent.clone();
            let sending = tokio::spawn(async move {
                peer.write_all(&bytes).await.unwrap();
                peer
            });
            let mut came = vec![0; sent.len()];
            assert_eq!(tcp.read(&mut came[..4096]).await.unwrap(), 4096 - LESS, "no whole page");
            for piece in came[4096 - LESS..].chunks_mut(4096) {
                tcp.read_exact(piece).await.unwrap();
            }
            assert!(came == sent);
            let peer = sending.await.unwrap();
            let mut byte = [0];
            {
                let mut waiting = pin!(tcp.read(&mut byte));
                let polled = std::future::poll_fn(|at| Poll::Ready(waiting.as_mut().poll(at).is_pending()));
                assert!(polled.await, "nothing comes");
            }
            assert_eq!(tcp.lump.capacity(), 0);
            assert_eq!(SPARE.with_borrow(Vec::len), 1, "its memory is for the next that reads");
            drop(peer);
            assert_eq!(tcp.read(&mut byte).await.unwrap(), 0);
        });
    }
}
