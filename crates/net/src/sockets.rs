//! Sockets that peers come to.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::clock;
use tidegate_control::units::Span;

/// Connections that wait to be accepted: a crowd that comes at once fits.
const BACKLOG: i32 = 4096;
/// How long one address may keep the other waiting (RFC 8305, "Connection Attempt Delay").
const HEAD_START: Span = Span::from_millis(250);

/// `apart`: a socket of IPv6 takes no connections by IPv4, for which there is another.
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

/// Listens at an address. `apart`: another socket listens at the same port by IPv4, if this one is of IPv6.
///
/// # Errors
/// If the address is not this machine's, or taken.
pub fn listen(at: SocketAddr, apart: bool) -> io::Result<TcpListener> {
    let socket = bound(at, Type::STREAM, Protocol::TCP, apart)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Takes datagrams at an address; see [`listen`].
///
/// # Errors
/// If the address is not this machine's, or taken.
pub fn datagrams(at: SocketAddr, apart: bool) -> io::Result<UdpSocket> {
    Ok(bound(at, Type::DGRAM, Protocol::UDP, apart)?.into())
}

/// Connects to whichever of two addresses of one peer answers first, the one of IPv6 a little earlier than the other.
///
/// # Errors
/// If neither can be connected to.
pub async fn connect(first: SocketAddr, second: Option<SocketAddr>) -> io::Result<TcpStream> {
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
