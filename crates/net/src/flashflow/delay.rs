//! A path of a given delay, for machines whose kernel can make none: connections are passed on, and every
//! byte waits as long as the path is. Jitter is seeded and never lets bytes overtake.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::clock;

/// One way of a path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// What every byte waits.
    pub delay: Span,
    /// Standard deviation of what is added to it.
    pub jitter: Span,
}

/// Bytes under way in one direction of a connection, at most: a second of 1 Gbit/s.
const MOST: usize = 128 << 20;
/// Read at once.
const CHUNK: usize = 1 << 16;

/// Passes connections on to `to` until dropped. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(listener: TcpListener, to: SocketAddr, path: Path, seed: Seed) {
    for n in 0.. {
        let Ok((near, _)) = listener.accept().await else {
            clock::until(clock::now() + Span::from_millis(50)).await;
            continue;
        };
        let seed = seed.fork_index(n);
        // How a connection ends concerns nobody else.
        tokio::task::spawn_local(async move { join(near, to, path, seed).await.unwrap_or_default() });
    }
}

async fn join(near: TcpStream, to: SocketAddr, path: Path, seed: Seed) -> io::Result<()> {
    // The handshake's way there and back.
    clock::until(clock::now() + path.delay * 2).await;
    let far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_reader, near_writer), (far_reader, far_writer)) = (near.into_split(), far.into_split());
    let there = carry(near_reader, far_writer, path, seed.fork("there").random());
    let back = carry(far_reader, near_writer, path, seed.fork("back").random());
    tokio::try_join!(there, back).map(drop)
}

/// Carries bytes until the reader ends and all of them have left.
async fn carry(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    path: Path,
    mut random: Random,
) -> io::Result<()> {
    let mut under_way: VecDeque<(Time, Vec<u8>)> = VecDeque::new();
    let (mut held, mut last, mut open) = (0, Time::ZERO, true);
    let mut buffer = vec![0; CHUNK];
    while open || !under_way.is_empty() {
        let due = under_way.front().map_or(Time::NEVER, |(due, _)| *due);
        tokio::select! {
            read = reader.read(&mut buffer), if open && held < MOST => {
                let count = read?;
                open = count > 0;
                let extra = random.normal(0.0, path.jitter.0 as f64).max(0.0);
                last = last.max(clock::now() + path.delay + Span(extra as u64));
                if open {
                    held += count;
                    under_way.push_back((last, buffer[..count].to_vec()));
                }
            }
            () = clock::until(due) => {
                if let Some((_, bytes)) = under_way.pop_front() {
                    writer.write_all(&bytes).await?;
                    held -= bytes.len();
                }
            }
        }
    }
    writer.shutdown().await
}
