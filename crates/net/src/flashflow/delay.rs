//! An emulated path for kernels without netem: a TCP proxy that delays every byte by a
//! [`DelayLine`].

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_proto::flashflow::delay_line::DelayLine;
pub use tidegate_proto::flashflow::delay_line::{LONGEST, Path};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::admission::next_connection;
use crate::clock;

/// Limit of the bytes held by all connections together: one second of 2 Gbit/s.
///
/// Each direction of a connection may hold one [`CHUNK`] beyond it.
const MOST: usize = 256 << 20;
/// Bytes per read.
const CHUNK: usize = 1 << 16;
/// Limit of simultaneous connections; further ones wait to be accepted.
const CONNECTIONS: usize = 1024;

/// Passes connections on to `to` until dropped. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(listener: TcpListener, to: SocketAddr, path: Path, seed: Seed) {
    let (places, held) = (Arc::new(Semaphore::new(CONNECTIONS)), Rc::new(Cell::new(0)));
    for n in 0.. {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let (near, _) = next_connection(&listener).await;
        let (seed, held) = (seed.fork_index(n), held.clone());
        tokio::task::spawn_local(async move {
            // Errors of one connection are not reported; both ends see the connection close.
            join(near, to, path, seed, &held).await.unwrap_or_default();
            drop(place);
        });
    }
}

async fn join(near: TcpStream, to: SocketAddr, path: Path, seed: Seed, held: &Cell<usize>) -> io::Result<()> {
    // Round trip of the handshake.
    clock::until(clock::now() + path.delay * 2).await;
    let far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_reader, near_writer), (far_reader, far_writer)) = (near.into_split(), far.into_split());
    let direction = |name| Direction { line: DelayLine::new(path, seed.fork(name).random()), together: held };
    let there = direction("there").carry(near_reader, far_writer);
    let back = direction("back").carry(far_reader, near_writer);
    tokio::try_join!(there, back).map(drop)
}

/// One direction of a connection.
struct Direction<'a> {
    line: DelayLine,
    /// Bytes held by all lines together.
    together: &'a Cell<usize>,
}

impl Drop for Direction<'_> {
    fn drop(&mut self) {
        self.together.set(self.together.get() - self.line.held());
    }
}

impl Direction<'_> {
    /// Carries bytes until the reader ends and all of them have left.
    async fn carry(
        mut self,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut open = true;
        while open || self.line.held() > 0 {
            tokio::select! {
                // A full line stops reading; the sender sees a full TCP window.
                read = reader.read(&mut buffer), if open && self.line.takes(self.together.get(), MOST) => {
                    let count = read?;
                    open = count > 0;
                    if open {
                        self.together.set(self.together.get() + count);
                        self.line.push(clock::now(), buffer[..count].to_vec());
                    }
                }
                () = clock::until(self.line.next_time()) => {
                    while let Some(bytes) = self.line.pop(clock::now()) {
                        self.together.set(self.together.get() - bytes.len());
                        writer.write_all(&bytes).await?;
                    }
                }
            }
        }
        writer.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    /// Bytes arrive in order, in both directions, and not early. All memory is free afterwards, also after a
    /// connection is cut.
    #[test]
    fn bytes_cross_a_path_in_order_and_completely() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let far = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = far.local_addr().unwrap();
            let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let entry = near.local_addr().unwrap();
            let path = Path { delay: Span::from_millis(20), jitter: Span::from_millis(3) };
            tokio::task::spawn_local(run(near, to, path, Seed::root(1)));
            let content: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
            let before = clock::now();
            let (mut reader, mut writer) = TcpStream::connect(entry).await.unwrap().into_split();
            let sending = async {
                writer.write_all(&content).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let echoing = async {
                let (mut tcp, _) = far.accept().await.unwrap();
                let (mut reader, mut writer) = tcp.split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut back = Vec::new();
            let (.., read) = tokio::join!(sending, echoing, reader.read_to_end(&mut back));
            assert_eq!(read.unwrap(), content.len());
            assert!(back == content, "in order");
            // The handshake, the forward path and the return path.
            assert!(clock::now().since(before) >= path.delay * 4);

            let held = Cell::new(0);
            let (a, b) = tokio::io::duplex(100);
            let (_keep, gone) = tokio::io::duplex(100);
            drop(_keep);
            let direction = Direction { line: DelayLine::new(path, Seed::root(2).random()), together: &held };
            let (_, mut feed) = tokio::io::split(b);
            let (cut, ()) = tokio::join!(direction.carry(a, gone), async {
                for _ in 0..50 {
                    let _ = feed.write_all(&[1; 50]).await;
                }
                drop(feed);
            });
            assert!(cut.is_err(), "nobody takes it");
            assert_eq!(held.get(), 0);
        }));
    }
}
