//! What applications say to a client: SOCKS5 with or without a user (RFC 1928, 1929), or HTTP's CONNECT. No IO; a
//! handshake is short, or refused.

use tidegate_proto::crypto::names::Target;

/// Bytes of a handshake at most.
const MOST: usize = 4096;

/// One handshake. What arrived and was not understood yet stays here.
#[derive(Debug, Default)]
pub struct Handshake {
    received: Vec<u8>,
    stage: Stage,
    user: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Password,
    Request,
}

/// How to answer an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// In SOCKS5.
    Socks,
    /// In HTTP.
    Http,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read on.
    Read,
    /// Send this and go on with what is there.
    Say(&'static [u8]),
    /// The application wants a connection; answer with [`answer`].
    Connect {
        /// Where to.
        target: Target,
        /// Streams of different users share no circuit.
        user: String,
        /// What it sent after the request.
        rest: Vec<u8>,
        /// How to answer.
        speech: Speech,
    },
    /// Send this and close.
    Refuse(&'static [u8]),
}

/// How a connection came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It stands.
    Connected,
    /// The exit's policy, or the lack of an exit, forbids it.
    Forbidden,
    /// The name leads nowhere.
    Unreachable,
    /// The other side does not want it.
    Refused,
    /// Nobody answered in time.
    TimedOut,
    /// Something else.
    Failed,
}

/// What to tell the application.
pub fn answer(speech: Speech, outcome: Outcome) -> Vec<u8> {
    let (code, status) = match outcome {
        Outcome::Connected => (0, "200 Connection established"),
        Outcome::Failed => (1, "502 Bad Gateway"),
        Outcome::Forbidden => (2, "403 Forbidden"),
        Outcome::Unreachable => (4, "502 Host unreachable"),
        Outcome::Refused => (5, "502 Connection refused"),
        Outcome::TimedOut => (6, "504 Gateway Timeout"),
    };
    match speech {
        Speech::Socks => vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0],
        Speech::Http => format!("HTTP/1.0 {status}\r\n\r\n").into_bytes(),
    }
}

const BAD_REQUEST: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\n";
/// Browsers send this for pages that try to use the proxy as a server.
const NOT_A_SERVER: &[u8] = b"HTTP/1.0 501 This is a proxy\r\nConnection: close\r\n\r\n";
const FAILURE: &[u8] = &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0];
const NO_COMMAND: &[u8] = &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0];
const NO_ADDRESS: &[u8] = &[5, 8, 0, 1, 0, 0, 0, 0, 0, 0];

impl Handshake {
    /// More bytes from the application, possibly none.
    pub fn read(&mut self, bytes: &[u8]) -> Step {
        self.received.extend_from_slice(bytes);
        let step = match (&self.stage, self.received.first()) {
            (_, None) => Some(Step::Read),
            (Stage::Greeting, Some(5)) => self.greeting(),
            (Stage::Greeting, Some(b'A'..=b'Z')) => self.http(),
            (Stage::Password, Some(1)) => self.password(),
            (Stage::Request, Some(5)) => self.request(),
            _ => Some(Step::Refuse(&[])),
        };
        match step {
            Some(Step::Read) | None if self.received.len() > MOST => Step::Refuse(&[]),
            Some(step) => step,
            None => Step::Read,
        }
    }

    fn greeting(&mut self) -> Option<Step> {
        let count = usize::from(*self.received.get(1)?);
        let methods = self.received.get(2..2 + count)?;
        let (stage, says): (_, &'static [u8]) = if methods.contains(&2) {
            (Stage::Password, &[5, 2])
        } else if methods.contains(&0) {
            (Stage::Request, &[5, 0])
        } else {
            return Some(Step::Refuse(&[5, 0xff]));
        };
        self.received.drain(..2 + count);
        self.stage = stage;
        Some(Step::Say(says))
    }

    /// Any name and any password: together they say whose circuits are used.
    fn password(&mut self) -> Option<Step> {
        let name = usize::from(*self.received.get(1)?);
        let password = usize::from(*self.received.get(2 + name)?);
        let both = self.received.get(..3 + name + password)?;
        self.user = both.iter().map(|byte| format!("{byte:02x}")).collect();
        self.received.drain(..3 + name + password);
        self.stage = Stage::Request;
        Some(Step::Say(&[1, 0]))
    }

    fn request(&mut self) -> Option<Step> {
        let bytes = &self.received;
        let (command, kind) = (*bytes.get(1)?, *bytes.get(3)?);
        if command != 1 {
            return Some(Step::Refuse(NO_COMMAND));
        }
        let (from, length) = match kind {
            1 => (4, 4),
            3 => (5, usize::from(*bytes.get(4)?)),
            4 => (4, 16),
            _ => return Some(Step::Refuse(NO_ADDRESS)),
        };
        let address = bytes.get(from..from + length)?;
        let port = bytes.get(from + length..from + length + 2)?;
        let host = match kind {
            1 => std::net::Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).to_string(),
            4 => std::net::Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).to_string(),
            _ => match std::str::from_utf8(address) {
                Ok(name) if is_name(name) => name.to_owned(),
                _ => return Some(Step::Refuse(FAILURE)),
            },
        };
        let target =
            Target::Host { host, port: u16::from_be_bytes([port[0], port[1]]), flags: Target::IPV6_OKAY };
        let rest = bytes[from + length + 2..].to_vec();
        Some(Step::Connect { target, user: self.user.clone(), rest, speech: Speech::Socks })
    }

    fn http(&mut self) -> Option<Step> {
        let end = self.received.windows(4).position(|four| four == b"\r\n\r\n")?;
        let Ok(head) = std::str::from_utf8(&self.received[..end]) else {
            return Some(Step::Refuse(BAD_REQUEST));
        };
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (verb, place) = (words.next()?, words.next().unwrap_or_default());
        if verb != "CONNECT" {
            return Some(Step::Refuse(NOT_A_SERVER));
        }
        let mut user = String::new();
        for line in lines {
            let (name, value) = line.split_once(':')?;
            match name.to_ascii_lowercase().as_str() {
                // Pages do not open tunnels: a browser that sends one for a page is being used.
                "origin" | "referer" | "sec-fetch-site" => return Some(Step::Refuse(NOT_A_SERVER)),
                "proxy-authorization" => user = value.trim().to_owned(),
                _ => {}
            }
        }
        let rest = self.received[end + 4..].to_vec();
        match Target::parse(place, Target::IPV6_OKAY) {
            Some(target @ Target::Host { .. }) if is_name(&target.to_string()) => {
                Some(Step::Connect { target, user, rest, speech: Speech::Http })
            }
            _ => Some(Step::Refuse(BAD_REQUEST)),
        }
    }
}

/// Whether a text can be a host's name, or an address.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(bytes: &[u8], size: usize) -> (Vec<u8>, Option<Step>) {
        let (mut handshake, mut said) = (Handshake::default(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut step = handshake.read(piece);
            while let Step::Say(answer) = step {
                said.extend_from_slice(answer);
                step = handshake.read(&[]);
            }
            if step != Step::Read {
                return (said, Some(step));
            }
        }
        (said, None)
    }

    fn target(host: &str, port: u16) -> Target {
        Target::Host { host: host.to_owned(), port, flags: Target::IPV6_OKAY }
    }

    #[test]
    fn socks_is_understood_in_any_pieces() {
        let request = [&[5, 1, 0, 3, 9][..], b"a.example", &[0, 80]].concat();
        let plain = [&[5, 1, 0][..], &request].concat();
        let with_user = [&[5, 2, 0, 2, 1, 2][..], b"me", &[2], b"pw", &request].concat();
        for size in 1..plain.len() {
            let (said, step) = feed(&plain, size);
            assert_eq!(said, [5, 0]);
            let Some(Step::Connect { target: to, user, speech, .. }) = step else { panic!("{step:?}") };
            assert_eq!((to, user.as_str(), speech), (target("a.example", 80), "", Speech::Socks));
            let (said, step) = feed(&with_user, size);
            assert_eq!(said, [5, 2, 1, 0]);
            let Some(Step::Connect { user, .. }) = step else { panic!("{step:?}") };
            assert!(!user.is_empty());
        }
    }

    #[test]
    fn http_connects_and_pages_are_refused() {
        let (_, step) = feed(b"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\nmore", 7);
        let Some(Step::Connect { target: to, speech, .. }) = step else { panic!("{step:?}") };
        assert_eq!((to, speech), (target("::1", 443), Speech::Http));
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
            "CONNECT a:80 HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
            "CONNECT a HTTP/1.1\r\n\r\n",
            "CONNECT a b:80 HTTP/1.1\r\n\r\n",
            "CONNECT \u{0}:80 HTTP/1.1\r\n\r\n",
        ] {
            assert!(matches!(feed(bad.as_bytes(), 1000).1, Some(Step::Refuse(_))), "{bad}");
        }
    }

    #[test]
    fn long_or_foreign_handshakes_are_refused() {
        let long = [b"CONNECT ".to_vec(), vec![b'a'; 5000]].concat();
        assert_eq!(feed(&long, 100).1, Some(Step::Refuse(&[])));
        for bad in [
            &[4, 1, 0, 80][..],
            &[0],
            &[22, 3, 1],
            &[5, 1, 9],
            &[5, 1, 0, 5, 2, 0, 1],
            &[5, 1, 0, 5, 1, 0, 9],
        ] {
            assert!(matches!(feed(bad, 100).1, Some(Step::Refuse(_))), "{bad:?}");
        }
    }
}
