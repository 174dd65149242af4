//! Ports of this machine for processes that are started a moment later.
//!
//! The system's own draw (port 0) forgets a port once its socket is closed, and may give it to the next connection; and one that
//! is free for UDP may be a closed TCP connection's for another minute. So these lie below the ports that systems draw, and are
//! free for both.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Systems draw from 32,768 (Linux) or higher.
const PORTS: Range<u16> = 12_000..32_000;

/// An address on loopback that nobody uses, and that no other call in this process has given lately.
///
/// # Errors
/// If every port is in use.
pub fn free() -> io::Result<SocketAddr> {
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    let ports = PORTS.end - PORTS.start;
    // Processes that start one after another begin far from each other.
    let first = std::process::id().wrapping_mul(7_919);
    for _ in 0..ports {
        let drawn = u32::from(DRAWN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (first.wrapping_add(drawn) % u32::from(ports)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all ports of {PORTS:?} are in use")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_what_is_used_nor_what_was_given_is_given() {
        let one = free().expect("a port");
        let two = free().expect("another");
        assert!(one != two && PORTS.contains(&one.port()) && PORTS.contains(&two.port()));
        // A closed connection keeps its port for a while, in TCP alone.
        let listener = TcpListener::bind(one).expect("free");
        let near = std::net::TcpStream::connect(one).expect("listens");
        let (far, _) = listener.accept().expect("connected");
        drop(far);
        drop(near);
        let given: Vec<SocketAddr> = (0..100).map(|_| free().expect("a port")).collect();
        assert!(!given.contains(&one), "it is listened on");
    }
}
