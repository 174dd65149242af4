//! Exit streams: TCP connections that the policy allows, name lookups, and directory streams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::units::Span;
use tidegate_proto::cell::EndReason;
use tidegate_proto::crypto::{Encrypted, Target};
use tidegate_proto::node::{Node as _, StreamKey};
use tidegate_proto::relay::Relay;
use tokio::net::{TcpSocket, TcpStream};

use super::bandwidth::Limit;
use super::channel::Links;
use super::directory_stream::{self, DirectoryStream, SharedConnections, SharedDescriptors, SharedDocuments};
use super::history::Overload;
use super::lookups::{Holder, Lookups};
use super::policy::Policy;
use super::stream::{self, AtEnd, Local};
use crate::link::within;
use crate::overlay::Overlay;
use crate::proxy::{resolved_address, reverse};
use crate::{clock, descriptors, os, sockets};

/// Timeouts of a name lookup, and of connecting to each of its addresses.
const PATIENCE: Span = Span::from_secs(10);
/// Addresses that are tried per name.
const ADDRESSES: usize = 4;
/// How long clients may cache a lookup.
const TTL: u32 = 60;
/// Longest name in the answer to a reverse lookup (RFC 1035, section 2.3.4).
const LONGEST_NAME: usize = 255;

/// An exit relay on sockets.
pub(crate) type Exiting = Overlay<Relay<Encrypted>, Limit, Rc<Links>>;

/// Configuration of an exit.
pub struct Exit {
    /// The exit policy.
    pub policy: Policy,
    /// The directories of directory streams. Without any, none is served.
    pub directories: Vec<SocketAddr>,
}

/// A stream's request, and the holder of its name lookups.
pub(crate) struct Request {
    /// The stream.
    pub key: StreamKey,
    /// The destination, name or directory.
    pub target: Target,
    /// The neighbour and the circuit that it came by.
    pub of: Holder,
    /// The exit's lookups.
    pub lookups: Rc<Lookups>,
    /// The descriptors of onion services that it stores.
    pub descriptors: Arc<SharedDescriptors>,
    /// The directory documents that it keeps.
    pub documents: Arc<SharedDocuments>,
    /// The connections to the directory.
    pub connections: SharedConnections,
    /// Notes that ports are exhausted.
    pub overload: Overload,
}

impl Request {
    async fn lookup(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, EndReason> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let found = within(PATIENCE, self.lookups.lookup(&self.of, host, port)).await;
        found.map_err(|_| {
            descriptors::check();
            EndReason::RESOLVE_FAILED
        })
    }
}

/// Serves one stream from its request to its end.
pub(crate) async fn serve(overlay: Exiting, exit: Arc<Exit>, request: Request, local: Rc<Local>) {
    tokio::select! {
        biased;
        () = local.aborted() => {}
        () = open(&overlay, &exit, &request, &local) => {}
    }
}

async fn open(overlay: &Exiting, exit: &Exit, request: &Request, local: &Local) {
    let key = request.key;
    if matches!(request.target, Target::Directory) {
        let (from, descriptors, documents) = (request.of.0, &*request.descriptors, &*request.documents);
        let connections = &request.connections;
        let served = DirectoryStream { key, from, local, descriptors, documents, connections };
        let connect = |address| connect(address, &request.overload);
        return directory_stream::serve(overlay, &exit.directories, served, connect).await;
    }
    let opening = async {
        match &request.target {
            Target::Resolve(name) => {
                resolve(overlay, &exit.policy, request, name).await;
                None
            }
            Target::Directory => None,
            Target::Host { host, port, flags } => {
                Some(to_host(&exit.policy, request, host, (*port, *flags)).await)
            }
        }
    };
    let connected = tokio::select! {
        biased;
        // The circuit closed the stream: a pending connection must not outlive it.
        () = local.over() => return,
        connected = opening => connected,
    };
    match connected {
        Some(Ok(socket)) => {
            if let Ok(own) = socket.local_addr() {
                local.leaves_by(own.port());
            }
            overlay.with(|node, now| node.stream_connected(now, key));
            stream::run(overlay, key, local, socket, (Vec::new(), AtEnd::End)).await;
        }
        Some(Err(NoStream::Failed(reason))) => {
            tracing::debug!(reason = reason.0, "no stream");
            overlay.with(|node, now| node.end_stream(now, key, reason));
        }
        Some(Err(NoStream::Refused(address))) => {
            // Logs do not contain destinations.
            tracing::debug!(reason = EndReason::EXIT_POLICY.0, "no stream");
            overlay.with(|node, now| node.refuse_stream(now, key, address, TTL));
        }
        None => {}
    }
}

/// Why a stream does not open.
enum NoStream {
    Failed(EndReason),
    /// The policy refuses this address.
    Refused(IpAddr),
}

impl From<EndReason> for NoStream {
    fn from(reason: EndReason) -> NoStream {
        NoStream::Failed(reason)
    }
}

/// Connects to the first allowed address of a host that answers.
async fn to_host(
    policy: &Policy,
    request: &Request,
    host: &str,
    (port, flags): (u16, u32),
) -> Result<TcpStream, NoStream> {
    let mut addresses = request.lookup(host, port).await?;
    let wanted = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(_) => flags & Target::IPV4_NOT_OKAY == 0,
        IpAddr::V6(_) => flags & Target::IPV6_OKAY != 0,
    };
    addresses.retain(wanted);
    if flags & Target::IPV6_PREFERRED != 0 {
        addresses.sort_by_key(SocketAddr::is_ipv4);
    }
    if addresses.is_empty() {
        return Err(EndReason::RESOLVE_FAILED.into());
    }
    // A name of which one address leads into the relay's own networks may lead there at the next lookup (DNS rebinding).
    if let Some(inside) = addresses.iter().find(|address| !policy.is_outside(**address)) {
        // A name's address in a private network is not told, as in answers to RESOLVE.
        let may_tell = policy.may_tell(inside.ip()) || host.parse::<IpAddr>().is_ok();
        let failed = NoStream::Failed(EndReason::RESOLVE_FAILED);
        return Err(if may_tell { NoStream::Refused(inside.ip()) } else { failed });
    }
    let refused = addresses[0].ip();
    addresses.retain(|address| policy.allows(*address));
    if addresses.is_empty() {
        return Err(NoStream::Refused(refused));
    }
    let mut last = EndReason::RESOLVE_FAILED;
    for address in addresses.into_iter().take(ADDRESSES) {
        match connect(address, &request.overload).await {
            Ok(socket) => return Ok(socket),
            Err(reason) => last = reason,
        }
    }
    Err(last.into())
}

async fn connect(address: SocketAddr, overload: &Overload) -> Result<TcpStream, EndReason> {
    let connecting = async {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Before connecting: the window scale follows from it.
        socket.set_recv_buffer_size(stream::RECEIVED)?;
        let socket = socket.connect(address).await?;
        sockets::bound_unsent(&socket, stream::UNSENT);
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    let connected = within(PATIENCE, connecting).await.inspect_err(descriptors::note);
    connected.map_err(|cause| match cause.kind() {
        _ if os::descriptors_exhausted(&cause).is_some() => EndReason::RESOURCE_LIMIT,
        io::ErrorKind::AddrNotAvailable => {
            overload.note(clock::unix());
            EndReason::RESOURCE_LIMIT
        }
        io::ErrorKind::ConnectionRefused => EndReason::CONNECT_REFUSED,
        io::ErrorKind::TimedOut => EndReason::TIMEOUT,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => EndReason::NO_ROUTE,
        io::ErrorKind::ConnectionReset => EndReason::RESET,
        _ => EndReason::MISC,
    })
}

/// Answers a name lookup (tor-spec, "Remote hostname lookup"). As in tor, only relays that allow some destination look
/// names up. Addresses of private networks are not told, nor are their names.
async fn resolve(overlay: &Exiting, policy: &Policy, request: &Request, name: &str) {
    let mut answer = Vec::new();
    match reverse::parse(name) {
        _ if !policy.is_exit() => {}
        Some(address) if policy.may_tell(address) => {
            let found = within(PATIENCE, request.lookups.name_of(&request.of, address)).await.ok();
            if let Some(name) = found.filter(|name| (1..=LONGEST_NAME).contains(&name.len())) {
                answer = [&[0, name.len() as u8], name.as_bytes(), &TTL.to_be_bytes()].concat();
            }
        }
        Some(_) => {}
        None => {
            let mut found = request.lookup(name, 0).await.unwrap_or_default();
            found.retain(|address| policy.may_tell(address.ip()));
            // Applications that take the first address often want one of IPv4.
            found.sort_by_key(SocketAddr::is_ipv6);
            for address in found.iter().take(ADDRESSES) {
                answer.extend(resolved_address(address.ip(), TTL));
            }
        }
    }
    if answer.is_empty() {
        // A non-transient error.
        answer = [&[0xf1, 0][..], &TTL.to_be_bytes()].concat();
    }
    overlay.with(|node, now| node.resolved(now, request.key, answer.into()));
}
