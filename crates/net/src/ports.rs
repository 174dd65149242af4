//! Free ports of this machine for processes that start later.
//!
//! The kernel's ephemeral ports (port 0) do not work for this. It forgets a port once the socket is closed, and may
//! give it to the next connection. A port that is free for UDP may also belong to a closed TCP connection for another
//! minute. So these ports lie below the ephemeral range, and are free for both.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ephemeral range, which begins at 32,768 (Linux) or higher.
const PORTS: Range<u16> = 12_000..32_000;

/// A free address on loopback that no earlier call in this process returned.
///
/// # Errors
/// If all ports are in use.
pub fn free() -> io::Result<SocketAddr> {
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    let ports = PORTS.end - PORTS.start;
    // Processes with neighbouring ids start far from each other.
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
    fn used_and_returned_ports_are_not_returned_again() {
        let one = free().expect("a port");
        let two = free().expect("another");
        assert!(one != two && PORTS.contains(&one.port()) && PORTS.contains(&two.port()));
        // TCP keeps the port of a closed connection for a while.
        let listener = TcpListener::bind(one).expect("free");
        let near = std::net::TcpStream::connect(one).expect("listens");
        let (far, _) = listener.accept().expect("connected");
        drop(far);
        drop(near);
        let given: Vec<SocketAddr> = (0..100).map(|_| free().expect("a port")).collect();
        assert!(!given.contains(&one), "it is listened on");
    }
}
