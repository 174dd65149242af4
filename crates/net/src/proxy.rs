//! The proxy side of a local application's handshake, sans-IO: SOCKS5 with or without a user name (RFC 1928, 1929),
//! SOCKS4 and 4a, and HTTP CONNECT.
//!
//! Every handshake has a size limit. Besides CONNECT, Tor's RESOLVE and RESOLVE_PTR are served (tor's
//! `socks-extensions.txt`); torsocks and tor-resolve need them.

use std::net::{IpAddr, Ipv4Addr};

use tidegate_control::text::hex;
use tidegate_proto::crypto::Target;

pub(crate) mod reverse;

/// Maximum size of a handshake without authentication, bytes: at most 519 are needed.
const MAX_PLAIN_SOCKS: usize = 1024;
/// Maximum size of any other handshake, bytes: a browser's CONNECT request has headers.
const MAX_ANY: usize = 4096;

/// One handshake. It buffers bytes that it has not parsed yet.
#[derive(Debug)]
pub struct Handshake {
    accepts: Accepts,
    received: Vec<u8>,
    stage: Stage,
    user: String,
}

/// The protocols that a proxy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// SOCKS5 without authentication.
    PlainSocks,
    /// SOCKS5 with or without a user name, SOCKS4 and 4a, HTTP CONNECT, and requests to resolve names.
    All,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Password,
    Request,
}

impl Accepts {
    fn max_size(self) -> usize {
        match self {
            Accepts::PlainSocks => MAX_PLAIN_SOCKS,
            Accepts::All => MAX_ANY,
        }
    }
}

/// The protocol that the application speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SOCKS5.
    Socks,
    /// SOCKS4 or 4a.
    Socks4,
    /// HTTP CONNECT.
    Http,
}

/// The destination's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name, or over HTTP an address, as the application wrote it.
    Name(String),
    /// An address of a SOCKS5 request.
    Address(IpAddr),
}

impl Host {
    /// The address, also of a name that is one.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Host::Address(address) => Some(*address),
            Host::Name(name) => name.parse().ok(),
        }
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(address) => address.fmt(f),
        }
    }
}

/// The next step of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more bytes.
    Read,
    /// Send this, then call [`Handshake::read`] again.
    Send(&'static [u8]),
    /// The application wants a connection; answer with `answer`.
    Connect {
        /// The destination's host.
        host: Host,
        /// The destination's port.
        port: u16,
        /// Streams of different users share no circuit; empty without a user name.
        user: String,
        /// Bytes that the application sent after the request.
        rest: Vec<u8>,
        /// The protocol of the answer.
        protocol: Protocol,
    },
    /// The application wants a name's addresses, or the name of an address (below `in-addr.arpa` or `ip6.arpa`);
    /// answer with `resolved`, or with `answer` after a failure.
    Resolve {
        /// The name to resolve.
        name: String,
        /// Requests of different users share no circuit; empty without a user name.
        user: String,
        /// The protocol of the answer.
        protocol: Protocol,
    },
    /// Send this and close.
    Refuse(Vec<u8>),
}

/// The result of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The connection is open.
    Connected,
    /// The exit policy forbids it, or no exit exists.
    Forbidden,
    /// The host cannot be resolved or reached.
    Unreachable,
    /// The destination refused the connection.
    Refused,
    /// The destination did not answer in time.
    TimedOut,
    /// The command is not CONNECT.
    UnsupportedCommand,
    /// The proxy does not serve this type of address.
    UnsupportedAddress,
    /// Any other failure.
    Failed,
}

/// The answer to the application. It names no bound address, which could reveal the exit or the receiver.
pub(crate) fn answer(protocol: Protocol, outcome: Outcome) -> Vec<u8> {
    // SOCKS5 reply codes: RFC 1928, section 6.
    let (code, status) = match outcome {
        Outcome::Connected => (0, "200 Connection established"),
        Outcome::Failed => (1, "502 Bad Gateway"),
        Outcome::Forbidden => (2, "403 Forbidden"),
        Outcome::Unreachable => (4, "502 Host unreachable"),
        Outcome::Refused => (5, "502 Connection refused"),
        Outcome::TimedOut => (6, "504 Gateway Timeout"),
        Outcome::UnsupportedCommand => (7, "501 Not Implemented"),
        Outcome::UnsupportedAddress => (8, "501 Not Implemented"),
    };
    match protocol {
        Protocol::Socks => vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0],
        Protocol::Socks4 => vec![0, if code == 0 { GRANTED } else { REJECTED }, 0, 0, 0, 0, 0, 0],
        Protocol::Http => format!("HTTP/1.0 {status}\r\n\r\n").into_bytes(),
    }
}

/// Reply codes of SOCKS4.
const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

/// The answer to a request for a name, from a RESOLVED message (tor-spec, "Remote hostname lookup"): its first IPv4
/// address or name, otherwise its first IPv6 address: torsocks has room for IPv4 alone. A SOCKS4 answer cannot hold IPv6
/// addresses or names.
pub(crate) fn resolved(protocol: Protocol, message: &[u8]) -> Vec<u8> {
    let (mut rest, mut ipv6) = (message, None);
    while let [kind, length, after @ ..] = rest
        && let Some((value, more)) = after.split_at_checked(usize::from(*length))
    {
        // Types of answers: 0 a name, 4 and 6 addresses; others are errors.
        match (protocol, kind, value.len()) {
            (Protocol::Socks, 4, 4) => return [&[5, 0, 0, 1], value, &[0, 0]].concat(),
            (Protocol::Socks, 6, 16) => {
                ipv6.get_or_insert_with(|| [&[5, 0, 0, 4], value, &[0, 0]].concat());
            }
            (Protocol::Socks, 0, 1..) => return [&[5, 0, 0, 3, *length], value, &[0, 0]].concat(),
            (Protocol::Socks4, 4, 4) => return [&[0, GRANTED, 0, 0], value].concat(),
            _ => {}
        }
        // Every answer ends with a lifetime of four bytes.
        rest = more.get(4..).unwrap_or_default();
    }
    ipv6.unwrap_or_else(|| answer(protocol, Outcome::Unreachable))
}

/// An address in a RESOLVED message, and for how many seconds it holds.
pub(crate) fn resolved_address(address: IpAddr, seconds: u32) -> Vec<u8> {
    let seconds = seconds.to_be_bytes();
    match address {
        IpAddr::V4(v4) => [&[4, 4], &v4.octets()[..], &seconds].concat(),
        IpAddr::V6(v6) => [&[6, 16], &v6.octets()[..], &seconds].concat(),
    }
}

fn refuse_socks4() -> Option<Step> {
    Some(Step::Refuse(answer(Protocol::Socks4, Outcome::Failed)))
}

fn refuse_socks(outcome: Outcome) -> Option<Step> {
    Some(Step::Refuse(answer(Protocol::Socks, outcome)))
}

fn refuse_http(answer: &[u8]) -> Option<Step> {
    Some(Step::Refuse(answer.to_vec()))
}

const BAD_REQUEST: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\n";
/// Answer to a web page that addresses the proxy as a server.
const NOT_A_SERVER: &[u8] = b"HTTP/1.0 501 This is a proxy\r\nConnection: close\r\n\r\n";

/// Commands of SOCKS, the last two of Tor.
const CONNECT: u8 = 1;
const RESOLVE: u8 = 0xf0;
const RESOLVE_PTR: u8 = 0xf1;

impl Handshake {
    /// A handshake of a proxy that speaks these protocols.
    pub fn new(accepts: Accepts) -> Handshake {
        Handshake { accepts, received: Vec::new(), stage: Stage::Greeting, user: String::new() }
    }

    /// Takes more bytes from the application, possibly none.
    pub fn read(&mut self, bytes: &[u8]) -> Step {
        self.received.extend_from_slice(bytes);
        let step = match (&self.stage, self.received.first()) {
            (_, None) => Some(Step::Read),
            (Stage::Greeting, Some(5)) => self.greeting(),
            (Stage::Greeting, Some(4)) if self.accepts == Accepts::All => self.socks4(),
            (Stage::Greeting, Some(b'A'..=b'Z')) if self.accepts == Accepts::All => self.http(),
            (Stage::Password, Some(1)) => self.password(),
            (Stage::Request, Some(5)) => self.request(),
            (Stage::Request, Some(_)) => refuse_socks(Outcome::Failed),
            _ => Some(Step::Refuse(Vec::new())),
        };
        let asks_onion = |name: &str| {
            name.trim_end_matches('.')
                .rsplit('.')
                .next()
                .is_some_and(|last| last.eq_ignore_ascii_case("onion"))
        };
        match step {
            // No exit can reach an onion service, and should not learn its name (RFC 7686).
            Some(
                Step::Connect { host: Host::Name(name), protocol, .. } | Step::Resolve { name, protocol, .. },
            ) if asks_onion(&name) => Step::Refuse(answer(protocol, Outcome::Unreachable)),
            Some(Step::Read) | None if self.received.len() > self.accepts.max_size() => {
                Step::Refuse(Vec::new())
            }
            Some(step) => step,
            None => Step::Read,
        }
    }

    fn greeting(&mut self) -> Option<Step> {
        let count = usize::from(*self.received.get(1)?);
        let methods = self.received.get(2..2 + count)?;
        let (stage, choice): (_, &'static [u8]) = if methods.contains(&2) && self.accepts == Accepts::All {
            (Stage::Password, &[5, 2])
        } else if methods.contains(&0) {
            (Stage::Request, &[5, 0])
        } else {
            return Some(Step::Refuse(vec![5, 0xff]));
        };
        self.received.drain(..2 + count);
        self.stage = stage;
        Some(Step::Send(choice))
    }

    /// Accepts any user name and password. Together they select the circuits, as tor's IsolateSOCKSAuth does.
    fn password(&mut self) -> Option<Step> {
        let name = usize::from(*self.received.get(1)?);
        let password = usize::from(*self.received.get(2 + name)?);
        let both = self.received.get(..3 + name + password)?;
        self.user = hex(both);
        self.received.drain(..3 + name + password);
        self.stage = Stage::Request;
        Some(Step::Send(&[1, 0]))
    }

    fn request(&mut self) -> Option<Step> {
        let bytes = &self.received;
        let (command, kind) = (*bytes.get(1)?, *bytes.get(3)?);
        if command != CONNECT && !(self.accepts == Accepts::All && [RESOLVE, RESOLVE_PTR].contains(&command))
        {
            return refuse_socks(Outcome::UnsupportedCommand);
        }
        // Address types of RFC 1928, section 5.
        let (from, length) = match kind {
            1 => (4, 4),
            3 => (5, usize::from(*bytes.get(4)?)),
            4 => (4, 16),
            _ => return refuse_socks(Outcome::UnsupportedAddress),
        };
        let address = bytes.get(from..from + length)?;
        let port = bytes.get(from + length..from + length + 2)?;
        let host = match kind {
            1 => Host::Address(<[u8; 4]>::try_from(address).ok()?.into()),
            4 => Host::Address(<[u8; 16]>::try_from(address).ok()?.into()),
            _ => match std::str::from_utf8(address) {
                Ok(name) if is_name(name) => Host::Name(name.to_owned()),
                _ => return refuse_socks(Outcome::Unreachable),
            },
        };
        let port = u16::from_be_bytes([port[0], port[1]]);
        let rest = bytes[from + length + 2..].to_vec();
        match command {
            RESOLVE => return Some(self.resolve(&host, Protocol::Socks)),
            RESOLVE_PTR => return self.resolve_address(&host),
            _ => {}
        }
        Some(Step::Connect { host, port, user: self.user.clone(), rest, protocol: Protocol::Socks })
    }

    /// A request for addresses; an address resolves to itself.
    fn resolve(&self, host: &Host, protocol: Protocol) -> Step {
        match host.address() {
            Some(address) => Step::Refuse(resolved(protocol, &resolved_address(address, 0))),
            None => Step::Resolve { name: host.to_string(), user: self.user.clone(), protocol },
        }
    }

    /// A request for the name of an address.
    fn resolve_address(&self, host: &Host) -> Option<Step> {
        let Some(address) = host.address() else { return refuse_socks(Outcome::UnsupportedAddress) };
        Some(Step::Resolve {
            name: reverse::write(address),
            user: self.user.clone(),
            protocol: Protocol::Socks,
        })
    }

    /// SOCKS4: command, port, address, user; the address 0.0.0.x says that a name follows (4a).
    fn socks4(&mut self) -> Option<Step> {
        let fixed: [u8; 8] = self.received.get(..8)?.try_into().ok()?;
        let [_, command, high, low, a, b, c, d] = fixed;
        let mut texts = self.received[8..].split(|byte| *byte == 0);
        let user = texts.next()?.to_vec();
        let has_name = [a, b, c] == [0, 0, 0] && d != 0;
        let name = if has_name { texts.next()?.to_vec() } else { Vec::new() };
        // Without the final zero the last text is incomplete.
        let whole = 8 + user.len() + 1 + if has_name { name.len() + 1 } else { 0 };
        let rest = self.received.get(whole..)?.to_vec();
        self.user = hex(&user);
        let host = match (has_name, String::from_utf8(name)) {
            (false, _) => Host::Address(Ipv4Addr::new(a, b, c, d).into()),
            (true, Ok(name)) if is_name(&name) => Host::Name(name),
            (true, _) => return refuse_socks4(),
        };
        match command {
            CONNECT => {
                let port = u16::from_be_bytes([high, low]);
                Some(Step::Connect { host, port, user: self.user.clone(), rest, protocol: Protocol::Socks4 })
            }
            RESOLVE => Some(self.resolve(&host, Protocol::Socks4)),
            _ => refuse_socks4(),
        }
    }

    fn http(&mut self) -> Option<Step> {
        let end = self.received.windows(4).position(|four| four == b"\r\n\r\n")?;
        let Ok(head) = std::str::from_utf8(&self.received[..end]) else {
            return refuse_http(BAD_REQUEST);
        };
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (verb, place) = (words.next()?, words.next().unwrap_or_default());
        if verb != "CONNECT" {
            return refuse_http(NOT_A_SERVER);
        }
        let mut user = String::new();
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { return refuse_http(BAD_REQUEST) };
            match name.to_ascii_lowercase().as_str() {
                // A browser opens tunnels without these headers. With one of them, a web page made the request.
                "origin" | "referer" | "sec-fetch-site" => return refuse_http(NOT_A_SERVER),
                "proxy-authorization" => user = value.trim().to_owned(),
                _ => {}
            }
        }
        let rest = self.received[end + 4..].to_vec();
        match Target::parse(place, Target::IPV6_OKAY) {
            Some(Target::Host { host, port, .. }) if is_name(&host) => {
                Some(Step::Connect { host: Host::Name(host), port, user, rest, protocol: Protocol::Http })
            }
            _ => refuse_http(BAD_REQUEST),
        }
    }
}

/// Whether a text can be a host name or an address.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(accepts: Accepts, bytes: &[u8], size: usize) -> (Vec<u8>, Option<Step>) {
        let (mut handshake, mut sent) = (Handshake::new(accepts), Vec::new());
        for piece in bytes.chunks(size) {
            let mut step = handshake.read(piece);
            while let Step::Send(answer) = step {
                sent.extend_from_slice(answer);
                step = handshake.read(&[]);
            }
            if step != Step::Read {
                return (sent, Some(step));
            }
        }
        (sent, None)
    }

    fn name(name: &str) -> Host {
        Host::Name(name.to_owned())
    }

    #[test]
    fn socks_is_parsed_in_pieces_of_any_size() {
        let request = [&[5, 1, 0, 3, 9][..], b"a.example", &[0, 80], b"rest"].concat();
        let plain = [&[5, 1, 0][..], &request].concat();
        let with_user = [&[5, 2, 0, 2, 1, 2][..], b"me", &[2], b"pw", &request].concat();
        for size in 1..=plain.len() {
            for accepts in [Accepts::PlainSocks, Accepts::All] {
                let (sent, step) = feed(accepts, &plain, size);
                assert_eq!(sent, [5, 0]);
                let Some(Step::Connect { host, port, user, protocol, rest }) = step else {
                    panic!("{step:?}")
                };
                assert_eq!((host, port, user.as_str()), (name("a.example"), 80, ""));
                assert!(protocol == Protocol::Socks && rest.len() <= 4);
            }
            let (sent, step) = feed(Accepts::All, &with_user, size);
            assert_eq!(sent, [5, 2, 1, 0]);
            let Some(Step::Connect { user, .. }) = step else { panic!("{step:?}") };
            assert!(!user.is_empty());
        }
    }

    #[test]
    fn socks4_and_4a_are_parsed_in_pieces_of_any_size() {
        let by_name = [&[4, 1, 0, 80, 0, 0, 0, 1][..], b"me\0a.example\0"].concat();
        let by_address = [&[4, 1, 0, 80, 192, 0, 2, 7][..], b"\0"].concat();
        for (bytes, host) in
            [(by_name, name("a.example")), (by_address, Host::Address([192, 0, 2, 7].into()))]
        {
            for size in 1..=bytes.len() {
                let Some(Step::Connect { host: read, port: 80, protocol, rest, .. }) =
                    feed(Accepts::All, &bytes, size).1
                else {
                    panic!("{bytes:?}")
                };
                assert_eq!((read, protocol, rest), (host.clone(), Protocol::Socks4, Vec::new()));
            }
        }
        assert_eq!(answer(Protocol::Socks4, Outcome::Connected)[..2], [0, 90]);
        let bind = feed(Accepts::All, &[4, 2, 0, 80, 192, 0, 2, 7, 0], 100).1;
        assert_eq!(bind, Some(Step::Refuse(vec![0, 91, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn names_and_addresses_are_resolved() {
        let ask = |request: &[u8]| feed(Accepts::All, &[&[5, 1, 0], request].concat(), 1000).1.unwrap();
        let resolve =
            |name: &str| Step::Resolve { name: name.into(), user: String::new(), protocol: Protocol::Socks };
        assert_eq!(ask(&[&[5, 0xf0, 0, 3, 9][..], b"localhost", &[0, 0]].concat()), resolve("localhost"));
        assert_eq!(ask(&[5, 0xf1, 0, 1, 192, 0, 2, 7, 0, 0]), resolve("7.2.0.192.in-addr.arpa"));
        let six = [&[5, 0xf1, 0, 4][..], &[0x20; 16], &[0, 0]].concat();
        assert_eq!(ask(&six), resolve(&format!("{}ip6.arpa", "0.2.".repeat(16))));
        // An address resolves to itself, without a circuit.
        let itself = Step::Refuse(vec![5, 0, 0, 1, 192, 0, 2, 7, 0, 0]);
        assert_eq!(ask(&[5, 0xf0, 0, 1, 192, 0, 2, 7, 0, 0]), itself);
        let message = [4, 4, 127, 0, 0, 1, 0, 0, 0, 60];
        assert_eq!(resolved(Protocol::Socks, &message), [5, 0, 0, 1, 127, 0, 0, 1, 0, 0]);
        assert_eq!(resolved(Protocol::Socks4, &message), [0, 90, 0, 0, 127, 0, 0, 1]);
        // The first answer that the protocol has room for; errors and cut messages are failures.
        let six = [&[6, 16][..], &[0; 20]].concat();
        let both = [&six[..], &message].concat();
        assert_eq!(resolved(Protocol::Socks4, &both)[1], 90);
        assert_eq!(resolved(Protocol::Socks, &both)[3..5], [1, 127]);
        assert_eq!(resolved(Protocol::Socks, &six)[..4], [5, 0, 0, 4]);
        assert_eq!(resolved(Protocol::Socks, &[0, 1, b'a', 0, 0, 0, 0]), [5, 0, 0, 3, 1, b'a', 0, 0]);
        for failed in [&[0xf1, 0, 0, 0, 0, 60][..], &[4, 4, 127], &[]] {
            assert_eq!(resolved(Protocol::Socks, failed)[1], 4, "{failed:?}");
        }
    }

    #[test]
    fn names_of_onion_services_stay_here() {
        let refused = |protocol| Some(Step::Refuse(answer(protocol, Outcome::Unreachable)));
        for accepts in [Accepts::All, Accepts::PlainSocks] {
            let connect = [&[5, 1, 0, 5, 1, 0, 3, 7][..], b"a.Onion", &[0, 80]].concat();
            assert_eq!(feed(accepts, &connect, 100).1, refused(Protocol::Socks));
        }
        let resolve = [&[5, 1, 0, 5, 0xf0, 0, 3, 8][..], b"a.onion.", &[0, 0]].concat();
        assert_eq!(feed(Accepts::All, &resolve, 100).1, refused(Protocol::Socks));
        let old = [&[4, 1, 0, 80, 0, 0, 0, 1, 0][..], b"a.onion\0"].concat();
        assert_eq!(feed(Accepts::All, &old, 100).1, refused(Protocol::Socks4));
        let http = b"CONNECT a.onion:80 HTTP/1.1\r\n\r\n";
        assert_eq!(feed(Accepts::All, http, 100).1, refused(Protocol::Http));
    }

    #[test]
    fn socks_without_authentication_refuses_other_methods_and_http() {
        let refused = |bytes: &[u8]| match feed(Accepts::PlainSocks, bytes, 1000).1 {
            Some(Step::Refuse(answer)) => answer,
            other => panic!("{other:?}"),
        };
        assert!(refused(b"GET / HTTP/1.1").is_empty());
        assert!(refused(b"CONNECT a:80 HTTP/1.1\r\n\r\n").is_empty());
        assert!(refused(&[4, 1, 0, 80]).is_empty());
        assert_eq!(refused(&[5, 2, 1, 2]), [5, 0xff]);
    }

    #[test]
    fn refused_requests_name_the_cause() {
        let after = |bytes: &[u8]| {
            let mut handshake = Handshake::new(Accepts::PlainSocks);
            assert_eq!(handshake.read(&[5, 1, 0]), Step::Send(&[5, 0]));
            handshake.read(bytes)
        };
        for (request, outcome) in [
            (&[5, 2, 0, 1][..], Outcome::UnsupportedCommand),
            (&[5, 3, 0, 3], Outcome::UnsupportedCommand),
            (&[5, 1, 0, 9], Outcome::UnsupportedAddress),
            (&[5, 1, 0, 3, 1, 0xff, 0, 80], Outcome::Unreachable),
            (&[4, 1, 0, 3], Outcome::Failed),
        ] {
            assert_eq!(after(request), Step::Refuse(answer(Protocol::Socks, outcome)), "{request:?}");
        }
        let connects = |request: &[u8], address: IpAddr| {
            let step = after(request);
            assert!(matches!(&step, Step::Connect { host, port: 80, .. } if *host == Host::Address(address)));
        };
        connects(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80], [127, 0, 0, 1].into());
        connects(&[&[5, 1, 0, 4][..], &[0; 16], &[0, 80]].concat(), [0u16; 8].into());
    }

    #[test]
    fn http_connects_and_web_pages_are_refused() {
        let (_, step) = feed(Accepts::All, b"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\nmore", 7);
        let Some(Step::Connect { host, port, protocol, .. }) = step else { panic!("{step:?}") };
        assert_eq!((host, port, protocol), (name("::1"), 443, Protocol::Http));
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
            "CONNECT a:80 HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
            "CONNECT a HTTP/1.1\r\n\r\n",
            "CONNECT a:80 HTTP/1.1\r\nFoo\r\n\r\n",
            "CONNECT a b:80 HTTP/1.1\r\n\r\n",
            "CONNECT \u{0}:80 HTTP/1.1\r\n\r\n",
        ] {
            assert!(matches!(feed(Accepts::All, bad.as_bytes(), 1000).1, Some(Step::Refuse(_))), "{bad}");
        }
    }

    #[test]
    fn long_or_foreign_handshakes_are_refused() {
        let long = [b"CONNECT ".to_vec(), vec![b'a'; 5000]].concat();
        assert_eq!(feed(Accepts::All, &long, 100).1, Some(Step::Refuse(Vec::new())));
        for bad in [&[0][..], &[22, 3, 1], &[5, 1, 9], &[5, 1, 0, 5, 2, 0, 1], &[5, 1, 0, 5, 1, 0, 9]] {
            assert!(matches!(feed(Accepts::All, bad, 100).1, Some(Step::Refuse(_))), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused_or_bounded(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..12),
            greeted in any::<bool>(),
            all in any::<bool>(),
        ) {
            let mut handshake = Handshake::new(if all { Accepts::All } else { Accepts::PlainSocks });
            if greeted {
                handshake.stage = Stage::Request;
            }
            for piece in &pieces {
                match handshake.read(piece) {
                    Step::Read | Step::Send(_) => prop_assert!(handshake.received.len() <= handshake.accepts.max_size()),
                    Step::Connect { .. } | Step::Resolve { .. } | Step::Refuse(_) => break,
                }
            }
        }
    }
}
