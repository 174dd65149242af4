//! Listening sockets, and connections to peers with an IPv4 and an IPv6 address.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::gate::Gate;
use crate::{clock, descriptors};
use tidegate_control::units::Span;

/// Connections that wait to be accepted. A burst of clients fits.
const BACKLOG: i32 = 4096;
/// Head start of IPv6 (RFC 8305, "Connection Attempt Delay").
const HEAD_START: Span = Span::from_millis(250);

/// Binds a socket. With `apart`, an IPv6 socket does not accept IPv4, which has its own socket.
fn bound(at: SocketAddr, kind: Type, protocol: Protocol, apart: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), kind, Some(protocol))?;
    if apart && at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&at.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens on an address. Set `apart` if another socket listens on the same port over IPv4.
///
/// # Errors
/// If the address is in use or does not belong to this machine.
pub fn listen(at: SocketAddr, apart: bool) -> io::Result<TcpListener> {
    let socket = bound(at, Type::STREAM, Protocol::TCP, apart)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Binds a UDP socket; see [`listen`] for `apart`.
///
/// # Errors
/// If the address is in use or does not belong to this machine.
pub(crate) fn datagrams(at: SocketAddr, apart: bool) -> io::Result<UdpSocket> {
    Ok(bound(at, Type::DGRAM, Protocol::UDP, apart)?.into())
}

/// Probes of a silent connection: the first after tor's KeepalivePeriod, in which tor sends a padding cell.
const PROBE_AFTER: Duration = Duration::from_secs(300);
/// See [`PROBE_AFTER`].
const PROBE_EVERY: Duration = Duration::from_secs(60);

/// Lets the kernel find out that a silent peer is gone. Circuits may be silent for hours, so no timeout tells.
///
/// # Errors
/// If the kernel refuses the option.
pub(crate) fn keep_alive(tcp: &TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    SockRef::from(tcp).set_tcp_keepalive(&probes)
}

/// Bounds the bytes that a connection holds in the kernel before they are sent, where the system can (Linux). Unlike a
/// small send buffer, it leaves room for any amount of data in flight.
pub(crate) fn bound_unsent(tcp: &TcpStream, bytes: u32) {
    #[cfg(target_os = "linux")]
    // A connection works without it.
    let _ = SockRef::from(tcp).set_tcp_notsent_lowat(bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = (tcp, bytes);
}

/// Sets how many unread bytes of a connection the kernel holds, about twice this number.
pub(crate) fn bound_unread(tcp: &TcpStream, bytes: u32) {
    // A connection works without it.
    let _ = SockRef::from(tcp).set_recv_buffer_size(bytes as usize);
}

/// Connects to a peer by the address that answers first. IPv6 gets a head start (RFC 8305).
///
/// # Errors
/// If the gate refuses one of the addresses, or both fail.
pub(crate) async fn connect(
    gate: Gate,
    first: SocketAddr,
    second: Option<SocketAddr>,
) -> io::Result<TcpStream> {
    gate.check(first)?;
    second.map_or(Ok(()), |second| gate.check(second))?;
    reach(first, second).await.inspect_err(descriptors::note)
}

/// Connects to the address that answers first.
async fn reach(first: SocketAddr, second: Option<SocketAddr>) -> io::Result<TcpStream> {
    let Some(v6) = second else { return TcpStream::connect(first).await };
    let (mut early, mut late) =
        (std::pin::pin!(TcpStream::connect(v6)), std::pin::pin!(TcpStream::connect(first)));
    tokio::select! {
        result = &mut early => return match result {
            Err(_) => late.await,
            connected => connected,
        },
        () = clock::until(clock::now() + HEAD_START) => {}
    }
    tokio::select! {
        result = &mut early => match result {
            Err(_) => late.await,
            connected => connected,
        },
        result = &mut late => match result {
            Err(_) => early.await,
            connected => connected,
        },
    }
}
