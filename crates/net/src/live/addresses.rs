//! Addresses of relays.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// One or two addresses of a relay: at most one of IPv4 and one of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The IPv4 address.
    first: SocketAddr,
    second: Option<SocketAddr>,
}

impl From<SocketAddr> for Addresses {
    fn from(first: SocketAddr) -> Addresses {
        Addresses { first, second: None }
    }
}

impl Addresses {
    /// From addresses in any order; `None` for an empty slice or two addresses of one family.
    pub fn new(all: &[SocketAddr]) -> Option<Addresses> {
        match *all {
            [one] => Some(one.into()),
            [v4, v6] if v4.is_ipv4() && v6.is_ipv6() => Some(Addresses { first: v4, second: Some(v6) }),
            [v6, v4] if v4.is_ipv4() && v6.is_ipv6() => Some(Addresses { first: v4, second: Some(v6) }),
            _ => None,
        }
    }

    /// The address by which others name the relay: IPv4 if it has one.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// The IPv6 address beside an IPv4 address.
    pub fn second(&self) -> Option<SocketAddr> {
        self.second
    }

    /// All addresses.
    pub fn all(&self) -> Vec<SocketAddr> {
        [Some(self.first), self.second].into_iter().flatten().collect()
    }

    /// Replaces ports that are 0 by these.
    pub fn with_ports(mut self, bound: &Addresses) -> Addresses {
        let fill = |own: &mut SocketAddr| {
            let same = bound.all().into_iter().find(|other| other.is_ipv4() == own.is_ipv4());
            if own.port() == 0 {
                own.set_port(same.unwrap_or(bound.first).port());
            }
        };
        fill(&mut self.first);
        self.second.as_mut().map(fill);
        self
    }
}

impl FromStr for Addresses {
    type Err = ();

    fn from_str(text: &str) -> Result<Addresses, ()> {
        // An IPv4-mapped address is a second name of an IPv4 address.
        let unmapped = |address: &SocketAddr| address.ip() == address.ip().to_canonical();
        let read = |text: &str| text.parse::<SocketAddr>().ok().filter(unmapped).ok_or(());
        match text.split_once(',') {
            None => read(text).map(Addresses::from),
            Some((first, second)) => match [read(first)?, read(second)?] {
                // The canonical form: signed lines must be unambiguous.
                all if all[0].is_ipv4() => Addresses::new(&all).ok_or(()),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_one_or_one_per_family() {
        let (v4, v6) = (at("192.0.2.1:1"), at("[2001:db8::1]:2"));
        let both = Addresses::new(&[v6, v4]).unwrap();
        assert_eq!((both.first(), both.second(), both.all()), (v4, Some(v6), vec![v4, v6]));
        assert_eq!(Addresses::new(&[v6]).unwrap().first(), v6);
        for bad in [&[][..], &[v4, v4], &[v6, v6], &[v4, v6, v6]] {
            assert_eq!(Addresses::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn addresses_have_one_canonical_form() {
        for text in ["192.0.2.1:1", "[2001:db8::1]:2", "192.0.2.1:1,[2001:db8::1]:2"] {
            assert_eq!(text.parse::<Addresses>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            ",",
            "[::ffff:192.0.2.1]:1",
            "192.0.2.1:1,",
            "[2001:db8::1]:2,192.0.2.1:1",
            "192.0.2.1:1,192.0.2.1:2",
            "::1",
        ] {
            assert_eq!(bad.parse::<Addresses>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn port_zero_is_replaced() {
        let bound = Addresses::new(&[at("0.0.0.0:5"), at("[::]:6")]).unwrap();
        let configured = Addresses::new(&[at("192.0.2.1:0"), at("[2001:db8::1]:7")]).unwrap();
        assert_eq!(configured.with_ports(&bound).to_string(), "192.0.2.1:5,[2001:db8::1]:7");
    }
}
