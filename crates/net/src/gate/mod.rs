//! The address gate: every address that a peer, a directory or a name server chose passes it before a role connects.
//!
//! `blocks.txt` lists the blocks of IANA's special-purpose registries, and where clouds serve metadata.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::LazyLock;

use ipnet::IpNet;

/// Which addresses a role may connect to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Hosts on the Internet.
    #[default]
    Public,
    /// Private networks and this machine, too. Metadata services, multicast and port 0 stay refused.
    Private,
}

/// Whether a setting opens a block of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    Never,
}

/// A block of the table.
#[derive(Debug)]
struct Block {
    kind: Kind,
    network: IpNet,
    name: &'static str,
}

/// The table, longest blocks first.
static BLOCKS: LazyLock<Vec<Block>> = LazyLock::new(|| {
    let lines = include_str!("blocks.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut blocks: Vec<Block> = lines.map(|line| block(line).expect("a test reads the table")).collect();
    blocks.sort_by_key(|block| std::cmp::Reverse(block.network.prefix_len()));
    blocks
});

fn block(line: &'static str) -> Option<Block> {
    let (kind, rest) = line.split_once(' ')?;
    let (network, name) = rest.trim_start().split_once(' ')?;
    let kind = match kind {
        "private" => Kind::Private,
        "never" => Kind::Never,
        _ => return None,
    };
    Some(Block { kind, network: network.parse().ok()?, name: name.trim_start() })
}

/// Why the gate refuses an address. It does not show the address: logs must not contain destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The address is in this block of a private network, with this name.
    Private(IpNet, &'static str),
    /// The address is in this block, with this name, which no setting opens.
    Never(IpNet, &'static str),
    /// The port is 0.
    Port,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Private(network, name) => write!(
                f,
                "the address is in {network} ({name}); connecting to private networks needs the setting that allows it"
            ),
            Refused::Never(network, name) => {
                write!(f, "the address is in {network} ({name}), which is never connected to")
            }
            Refused::Port => f.write_str("port 0 is not a destination"),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for io::Error {
    fn from(why: Refused) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }
}

impl Gate {
    /// The gate of a role with or without the setting that allows private networks.
    pub fn allowing_private(allowed: bool) -> Gate {
        if allowed { Gate::Private } else { Gate::Public }
    }

    /// Checks a destination.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn check(self, destination: SocketAddr) -> Result<(), Refused> {
        if destination.port() == 0 {
            return Err(Refused::Port);
        }
        self.check_ip(destination.ip())
    }

    /// Checks an address. An IPv4-mapped address counts as its IPv4 address.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn check_ip(self, address: IpAddr) -> Result<(), Refused> {
        let address = address.to_canonical();
        let inner = match address {
            IpAddr::V6(address) => isatap(address).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        for address in [Some(address), inner].into_iter().flatten() {
            let Some(block) = BLOCKS.iter().find(|block| block.network.contains(&address)) else { continue };
            match block.kind {
                Kind::Never => return Err(Refused::Never(block.network, block.name)),
                Kind::Private if self == Gate::Public => {
                    return Err(Refused::Private(block.network, block.name));
                }
                Kind::Private => {}
            }
        }
        Ok(())
    }
}

/// The IPv4 address in an ISATAP interface identifier (RFC 5214, section 6.1), which may follow any prefix.
fn isatap(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., high, low, a, b] = address.segments();
    // The universal/local bit of the first octet is 0 or 1.
    (high & !0x0200 == 0 && low == 0x5efe).then(|| Ipv4Addr::from(u32::from(a) << 16 | u32::from(b)))
}

/// Whether an address belongs to this machine. The kernel selects it as the source of packets to itself; none is sent.
pub(crate) fn is_this_machine(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Any port: connecting a UDP socket only looks up the route.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    address.is_loopback() || source().is_ok_and(|source: SocketAddr| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The first and the last address of every block.
    #[test]
    fn every_block_is_refused_at_both_ends() {
        assert!(BLOCKS.len() > 60, "{} blocks", BLOCKS.len());
        for block in BLOCKS.iter() {
            for end in [block.network.network(), block.network.broadcast()] {
                assert!(Gate::Public.check_ip(end).is_err(), "{end} of {block:?}");
            }
            // A block that contains no exception is refused as a whole or opened as a whole.
            let inner = BLOCKS
                .iter()
                .any(|other| other.network != block.network && block.network.contains(&other.network));
            if !inner && block.network.network().to_canonical() == block.network.network() {
                let opened = Gate::Private.check_ip(block.network.network()).is_ok();
                assert_eq!(opened, block.kind == Kind::Private, "{block:?}");
            }
        }
    }

    #[test]
    fn hosts_on_the_internet_pass() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.32.0.1",
            "192.0.1.0",
            "198.20.0.1",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "2a00:1::5efe:808:808",
        ] {
            assert_eq!(Gate::Public.check_ip(ip(public)), Ok(()), "{public}");
        }
    }

    #[test]
    fn every_way_to_embed_an_ipv4_address_is_closed() {
        for private in
            ["127.0.0.1", "10.0.0.1", "192.168.0.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"]
        {
            let v4: Ipv4Addr = private.parse().unwrap();
            let [a, b, c, d] = v4.octets();
            let low = format!("{:x}:{:x}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            // 64:ff9b:1::/48 with the positions of RFC 6052, section 2.2, for prefixes of 48, 56 and 64 bits.
            let rfc_6052 = [
                format!("64:ff9b:1:{a:02x}{b:02x}:{c:x}:{d:02x}00::"),
                format!("64:ff9b:1:{a:x}:{b:x}:{c:02x}{d:02x}::"),
                format!("64:ff9b:1:0:{a:x}:{b:02x}{c:02x}:{d:02x}00:0"),
            ];
            let hidden = !u32::from(v4);
            let forms = [
                format!("::ffff:{low}"),
                format!("::{low}"),
                format!("::ffff:0:{low}"),
                format!("64:ff9b::{low}"),
                format!("64:ff9b:1::{low}"),
                format!("2002:{low}::1"),
                format!("2001:0:{low}::"),
                format!("2001:0:808:808:8000:f227:{:x}:{:x}", hidden >> 16, hidden & 0xffff),
                format!("2a00:1::5efe:{low}"),
                format!("2a00:1::200:5efe:{low}"),
                format!("fe80::5efe:{low}"),
            ];
            for form in forms.iter().chain(&rfc_6052) {
                assert!(Gate::Public.check_ip(ip(form)).is_err(), "{form} for {private}");
            }
            // With private networks allowed, a form reaches no more than its IPv4 address does.
            if Gate::Private.check_ip(v4.into()).is_err() {
                for form in forms.iter().chain(&rfc_6052) {
                    assert!(Gate::Private.check_ip(ip(form)).is_err(), "{form} for {private}");
                }
            }
        }
    }

    #[test]
    fn metadata_services_are_never_reached() {
        for never in [
            "169.254.169.254",
            "169.254.170.2",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fe80::a9fe:a9fe",
            "fd00:42::42",
            "fd00:a9fe:a9fe::1",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "0.0.0.0",
            "::",
        ] {
            for gate in [Gate::Public, Gate::Private] {
                assert!(matches!(gate.check_ip(ip(never)), Err(Refused::Never(..))), "{never}");
            }
        }
        assert_eq!(Gate::Private.check("10.0.0.1:0".parse().unwrap()), Err(Refused::Port));
        for open in ["127.0.0.1:1", "10.0.0.1:1", "[::1]:1", "[fd00::1]:1"] {
            assert_eq!(Gate::Private.check(open.parse().unwrap()), Ok(()), "{open}");
            let why = Gate::Public.check(open.parse().unwrap()).unwrap_err().to_string();
            assert!(why.contains("setting") && !why.contains("10.0.0.1"), "{why}");
        }
    }

    #[test]
    fn this_machine_knows_its_addresses() {
        assert!(is_this_machine(ip("127.0.0.1")) && is_this_machine(ip("127.8.8.8")));
        assert!(!is_this_machine(ip("192.0.2.1")) && !is_this_machine(ip("2001:db8::1")));
    }
}
