//! Server side of a SOCKS5 handshake (RFC 1928), sans-IO: no authentication, CONNECT only.

/// A handshake, with at most [`MOST`] received bytes.
#[derive(Debug, Default)]
pub struct Handshake {
    received: Vec<u8>,
    greeted: bool,
}

/// Limit of received bytes. A greeting has at most 257 bytes, a request 262.
const MOST: usize = 1024;

/// The next step of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more bytes.
    Read,
    /// Send this, and call [`Handshake::read`] again.
    Say([u8; 2]),
    /// Connect; answer with [`reply`].
    Connect {
        /// The host as the application wrote it.
        host: Host,
        /// The port.
        port: u16,
        /// Bytes after the request.
        rest: Vec<u8>,
    },
    /// Send this and close.
    Refuse(Vec<u8>),
}

/// Destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name.
    Name(String),
    /// An IPv4 or IPv6 address.
    Address(std::net::IpAddr),
}

/// Reply codes (RFC 1928, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The connection is established.
    Succeeded = 0,
    /// A general failure.
    Failure = 1,
    /// The name is unknown.
    HostUnreachable = 4,
    /// The other side refused.
    Refused = 5,
    /// The other side did not answer in time.
    TimedOut = 6,
    /// The command is not CONNECT.
    Command = 7,
    /// The address type is not supported.
    AddressType = 8,
}

/// Encodes a reply. It contains no address, since the bound address would reveal the receiver.
pub fn reply(reply: Reply) -> Vec<u8> {
    vec![5, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

impl Handshake {
    /// Takes more bytes from the application, possibly none.
    pub fn read(&mut self, bytes: &[u8]) -> Step {
        self.received.extend_from_slice(bytes);
        let step = if self.greeted { self.request() } else { self.greeting() };
        match step {
            // A longer prefix that does not parse is not SOCKS.
            Some(Step::Read) | None if self.received.len() > MOST => Step::Refuse(Vec::new()),
            Some(step) => step,
            None => Step::Read,
        }
    }

    fn greeting(&mut self) -> Option<Step> {
        if *self.received.first()? != 5 {
            return Some(Step::Refuse(Vec::new()));
        }
        let count = usize::from(*self.received.get(1)?);
        let methods = self.received.get(2..2 + count)?;
        if !methods.contains(&0) {
            return Some(Step::Refuse(vec![5, 0xff]));
        }
        self.received.drain(..2 + count);
        self.greeted = true;
        Some(Step::Say([5, 0]))
    }

    fn request(&mut self) -> Option<Step> {
        let bytes = &self.received;
        if bytes.first().is_some_and(|version| *version != 5) {
            return Some(Step::Refuse(reply(Reply::Failure)));
        }
        let (command, kind) = (*bytes.get(1)?, *bytes.get(3)?);
        if command != 1 {
            return Some(Step::Refuse(reply(Reply::Command)));
        }
        // RFC 1928, section 5: offset and length of the address by its type. `?` waits for more bytes.
        let (from, length) = match kind {
            1 => (4, 4),
            3 => (5, usize::from(*bytes.get(4)?)),
            4 => (4, 16),
            _ => return Some(Step::Refuse(reply(Reply::AddressType))),
        };
        let address = bytes.get(from..from + length)?;
        let port = bytes.get(from + length..from + length + 2)?;
        let host = match kind {
            1 => Host::Address(<[u8; 4]>::try_from(address).ok()?.into()),
            4 => Host::Address(<[u8; 16]>::try_from(address).ok()?.into()),
            _ => match String::from_utf8(address.to_vec()) {
                Ok(name) => Host::Name(name),
                Err(_) => return Some(Step::Refuse(reply(Reply::HostUnreachable))),
            },
        };
        let port = u16::from_be_bytes([port[0], port[1]]);
        Some(Step::Connect { host, port, rest: bytes[from + length + 2..].to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREETING: [u8; 3] = [5, 1, 0];

    fn request(name: &str) -> Vec<u8> {
        [&[5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &80u16.to_be_bytes()].concat()
    }

    #[test]
    fn requests_are_read_in_any_pieces() {
        let bytes = [&GREETING[..], &request("a.more"), b"rest"].concat();
        for size in 1..=bytes.len() {
            let (mut handshake, mut said, mut connect) = (Handshake::default(), Vec::new(), None);
            for piece in bytes.chunks(size) {
                let mut step = handshake.read(piece);
                while let Step::Say(answer) = step {
                    said.extend(answer);
                    step = handshake.read(&[]);
                }
                if let Step::Connect { host, port, rest } = step {
                    connect.get_or_insert((host, port, rest.len()));
                }
            }
            let (host, port, rest) = connect.expect("complete");
            assert_eq!((said, host, port), (vec![5, 0], Host::Name("a.more".into()), 80));
            assert!(rest <= 4);
        }
    }

    #[test]
    fn unsupported_requests_are_refused() {
        let refused = |bytes: &[u8]| match Handshake::default().read(bytes) {
            Step::Refuse(answer) => answer,
            other => panic!("{other:?}"),
        };
        assert!(refused(b"GET / HTTP/1.1").is_empty());
        assert!(refused(&[4, 1, 0, 80]).is_empty());
        assert_eq!(refused(&[5, 2, 1, 2]), [5, 0xff]);
        let after = |bytes: &[u8]| {
            let mut handshake = Handshake::default();
            assert_eq!(handshake.read(&GREETING), Step::Say([5, 0]));
            handshake.read(bytes)
        };
        assert_eq!(after(&[5, 2, 0, 1]), Step::Refuse(reply(Reply::Command)));
        assert_eq!(after(&[5, 3, 0, 3]), Step::Refuse(reply(Reply::Command)));
        assert_eq!(after(&[5, 1, 0, 9]), Step::Refuse(reply(Reply::AddressType)));
        assert_eq!(after(&[5, 1, 0, 3, 1, 0xff, 0, 80]), Step::Refuse(reply(Reply::HostUnreachable)));
        assert_eq!(after(&[4, 1, 0, 3]), Step::Refuse(reply(Reply::Failure)));
        let address = Host::Address([127, 0, 0, 1].into());
        let port = 80;
        assert_eq!(
            after(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80]),
            Step::Connect { host: address, port, rest: vec![] }
        );
        assert!(matches!(after(&[&[5, 1, 0, 4][..], &[0; 18]].concat()), Step::Connect { .. }));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_bounded(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..12), greet in any::<bool>()) {
            let mut handshake = Handshake { greeted: greet, ..Handshake::default() };
            for piece in &pieces {
                match handshake.read(piece) {
                    Step::Read | Step::Say(_) => prop_assert!(handshake.received.len() <= MOST),
                    Step::Connect { .. } | Step::Refuse(_) => break,
                }
            }
        }
    }
}
