//! TCP connections under TLS with large read buffers. TLS alone reads 4 KiB at a time, a quarter of a record.

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
/// Bytes of a TLS record's header: its type, a version and the length of its body.
const HEADER: usize = 5;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A connection and its read block. An idle connection holds no block.
pub struct BufferedTcp {
    stream: TcpStream,
    lump: Vec<u8>,
    taken: usize,
    records: Records,
    unread: Arc<UnreadLimit>,
}

/// The place of the next byte in the stream of TLS records.
#[derive(Default)]
struct Records {
    /// Bytes of a body that are still to come. A header follows.
    body: usize,
    /// The header's bytes that came, and their number.
    header: [u8; HEADER],
    known: usize,
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
        BufferedTcp {
            stream,
            lump: Vec::new(),
            taken: 0,
            records: Records::default(),
            unread: Arc::default(),
        }
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

impl Records {
    /// Passes a record and the header of the next one, or what came of them. Returns the number of bytes.
    ///
    /// TLS moves the bytes behind a record to the front of its buffer. When they were most of another record, these moves took
    /// 6 % of a relay's time. The next header goes along because TLS frees an empty buffer and enlarges it again.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let (mut at, mut begun) = (0, false);
        loop {
            let body = self.body.min(bytes.len() - at);
            begun |= body > 0;
            (self.body, at) = (self.body - body, at + body);
            let header = (HEADER - self.known).min(bytes.len() - at);
            self.header[self.known..self.known + header].copy_from_slice(&bytes[at..at + header]);
            (self.known, at) = (self.known + header, at + header);
            if self.known < HEADER {
                return at;
            }
            self.body = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            self.known = 0;
            if begun {
                return at;
            }
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
        let count = this.records.pass(&rest[..rest.len().min(into.remaining())]);
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

    /// TLS records with bodies of these lengths.
    fn records(bodies: &[u16]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for body in bodies {
            bytes.extend([23, 3, 3]);
            bytes.extend(body.to_be_bytes());
            bytes.resize(bytes.len() + usize::from(*body), 7);
        }
        bytes
    }

    #[test]
    fn reads_end_behind_the_header_of_the_next_record() {
        let bodies = [535, 16_401, 0, 1, 4_091, 300];
        let bytes = records(&bodies);
        // The first read has its own header, too, and an empty record passes with the next one.
        let ends = [5 + 535 + 5, 16_401 + 5, 5 + 1 + 5, 4_091 + 5, 300];
        let (mut passing, mut at) = (Records::default(), 0);
        for end in ends {
            assert_eq!(passing.pass(&bytes[at..]), end);
            at += end;
        }
        assert_eq!(at, bytes.len());
        for cut in [1, 2, 3, 7, 64, 4_096] {
            let (mut passing, mut at, mut reads) = (Records::default(), 0, 0);
            while at < bytes.len() {
                let came = &bytes[at..bytes.len().min(at + cut)];
                let count = passing.pass(came);
                assert!(count > 0 && count <= came.len());
                (at, reads) = (at + count, reads + 1);
            }
            assert_eq!((passing.body, passing.known), (0, 0));
            assert!(reads <= bytes.len() / cut + ends.len() + 1, "{cut}: {reads}");
        }
    }

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
            for piece in came.chunks_mut(4096) {
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
