//! A TCP server for streams.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

/// A server that accepts connections and keeps them.
pub struct Server {
    pub address: SocketAddr,
    /// How many connections are open, and the most so far.
    pub open: Rc<Cell<usize>>,
    pub most: Rc<Cell<usize>>,
    /// How many connections it has accepted in total.
    pub accepted: Rc<Cell<usize>>,
}

/// Starts a server that reads, or an `endless` one that sends without end.
pub async fn server(endless: bool) -> Server {
    sending(if endless { usize::MAX } else { 0 }).await
}

/// Starts a server that sends this many bytes on each connection, and then reads.
pub async fn sending(bytes: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (open, most) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
    let accepted = Rc::<Cell<usize>>::default();
    let (count, highest, total) = (open.clone(), most.clone(), accepted.clone());
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let count = count.clone();
            count.set(count.get() + 1);
            highest.set(highest.get().max(count.get()));
            total.set(total.get() + 1);
            spawn_local(async move {
                if send(&mut tcp, bytes).await.is_ok() {
                    let _ = tokio::io::copy(&mut tcp, &mut tokio::io::sink()).await;
                }
                count.set(count.get() - 1);
            });
        }
    });
    Server { address, open, most, accepted }
}

async fn send(tcp: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    const BLOCK: [u8; 16 << 10] = [7; 16 << 10];
    let mut left = bytes;
    while left > 0 {
        let some = left.min(BLOCK.len());
        tcp.write_all(&BLOCK[..some]).await?;
        left -= some;
    }
    Ok(())
}
