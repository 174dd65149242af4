//! Exit policies: rules in the order of Tor's `ExitPolicy`, applied to every resolved address behind the address gate.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

use crate::gate::{self, Gate};

/// An exit policy. Without rules it accepts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    gate: Gate,
    /// Addresses where the relay listens or that it publishes.
    own: Vec<SocketAddr>,
}

/// One rule: `accept 192.0.2.0/24:80-443`, `reject *:25`, `accept [2001:db8::]/32:*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    accept: bool,
    /// The network; `None` means any address.
    network: Option<IpNet>,
    ports: (u16, u16),
}

impl Rule {
    /// Whether it accepts what it matches.
    pub fn accepts(&self) -> bool {
        self.accept
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let bad = || {
            format!("`{text}` is not an exit policy rule; write a rule such as `accept 192.0.2.0/24:80-443`")
        };
        let (verb, pattern) = text.split_once(' ').ok_or_else(bad)?;
        let accept = match verb {
            "accept" => true,
            "reject" => false,
            _ => return Err(bad()),
        };
        // The last colon: IPv6 addresses contain colons, too.
        let (address, ports) = pattern.trim().rsplit_once(':').ok_or_else(bad)?;
        let ports = match ports.split_once('-') {
            _ if ports == "*" => (1, u16::MAX),
            Some((low, high)) => (digits(low).ok_or_else(bad)?, digits(high).ok_or_else(bad)?),
            None => digits(ports).map(|port| (port, port)).ok_or_else(bad)?,
        };
        let network = match address.split_once('/') {
            _ if address == "*" => None,
            Some((address, bits)) => {
                let bits = digits(bits).ok_or_else(bad)?;
                Some(IpNet::new(ip(address).ok_or_else(bad)?, bits).map_err(|_| bad())?)
            }
            None => Some(IpNet::from(ip(address).ok_or_else(bad)?)),
        };
        if network.is_some_and(|network| network.addr().to_canonical() != network.addr()) {
            return Err(format!("`{text}` has an IPv4 address in IPv6 form; write the IPv4 address"));
        }
        if ports.0 == 0 || ports.0 > ports.1 {
            return Err(bad());
        }
        Ok(Rule { accept, network, ports })
    }
}

fn ip(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// A number without a sign.
fn digits<N: FromStr>(text: &str) -> Option<N> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.accept { "accept " } else { "reject " })?;
        match self.network {
            None => f.write_str("*:")?,
            Some(IpNet::V4(network)) => write!(f, "{network}:")?,
            Some(IpNet::V6(network)) => write!(f, "[{}]/{}:", network.addr(), network.prefix_len())?,
        }
        match self.ports {
            (1, u16::MAX) => f.write_str("*"),
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}

impl Rule {
    /// Whether the rule covers only IPv6 addresses.
    pub(crate) fn is_of_ipv6(&self) -> bool {
        matches!(self.network, Some(IpNet::V6(_)))
    }

    /// Whether the rule covers all IPv6 addresses.
    fn is_of_all_ipv6(&self) -> bool {
        self.network.is_none_or(|network| matches!(network, IpNet::V6(_)) && network.prefix_len() == 0)
    }

    fn matches(&self, address: &SocketAddr) -> bool {
        let within = self.network.is_none_or(|network| network.contains(&address.ip()));
        within && (self.ports.0..=self.ports.1).contains(&address.port())
    }
}

impl Policy {
    /// A policy: the first rule that matches decides, behind the gate. `private` lets the gate pass private networks.
    /// `own` are the relay's addresses.
    pub fn new(rules: Vec<Rule>, private: bool, own: Vec<SocketAddr>) -> Policy {
        Policy { rules, gate: Gate::allowing_private(private), own }
    }

    /// Denies another address of the relay itself.
    pub(crate) fn refuse(&mut self, own: SocketAddr) {
        self.own.push(own);
    }

    /// Whether an exit may connect to an address. IPv4-mapped IPv6 addresses count as IPv4.
    pub(crate) fn allows(&self, address: SocketAddr) -> bool {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        self.is_outside(address)
            && self.rules.iter().find(|rule| rule.matches(&address)).is_some_and(|rule| rule.accept)
    }

    /// Whether an address is neither the relay's own nor in a network that the gate closes.
    pub(crate) fn is_outside(&self, address: SocketAddr) -> bool {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        self.gate.check(address).is_ok() && !self.is_own(address)
    }

    /// Whether an exit may tell an address that a name resolves to.
    pub(crate) fn may_tell(&self, address: IpAddr) -> bool {
        self.gate.check_ip(address).is_ok()
    }

    /// Whether the address is the relay's own. Tor's exits refuse every port of their addresses
    /// (`ExitPolicyRejectPrivate`). In a private network other servers may share the address, so only the relay's
    /// ports are refused.
    fn is_own(&self, address: SocketAddr) -> bool {
        let known = |own: &SocketAddr| own.ip().to_canonical() == address.ip();
        let here = self.own.iter().any(known) || gate::is_this_machine(address.ip());
        here && (self.gate == Gate::Public || self.own.iter().any(|own| own.port() == address.port()))
    }

    /// Whether any address may be allowed.
    pub(crate) fn is_exit(&self) -> bool {
        self.rules.iter().any(|rule| rule.accept)
    }

    /// The ports at which every public IPv6 address is allowed, in the format of descriptors: `80,443,1000-2000`.
    pub(crate) fn ports_by_ipv6(&self) -> String {
        // Ports that no rule has matched yet, and accepted ports.
        let (mut open, mut accepted) = (vec![(1u16, u16::MAX)], Vec::new());
        for rule in
            self.rules.iter().filter(|rule| rule.is_of_all_ipv6() || rule.is_of_ipv6() && !rule.accept)
        {
            let (low, high) = rule.ports;
            let mut rest = Vec::new();
            for (from, to) in open {
                let (first, last) = (from.max(low), to.min(high));
                if first > last {
                    rest.push((from, to));
                    continue;
                }
                accepted.extend(rule.accept.then_some((first, last)));
                rest.extend((from < first).then(|| (from, first - 1)));
                rest.extend((last < to).then(|| (last + 1, to)));
            }
            open = rest;
        }
        accepted.sort_unstable();
        let range = |(low, high)| if low == high { format!("{low}") } else { format!("{low}-{high}") };
        accepted.into_iter().map(range).collect::<Vec<_>>().join(",")
    }

    /// The rules in order.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &[&str], private: bool) -> Policy {
        let own = "127.0.0.1:9001".parse().unwrap();
        Policy::new(rules.iter().map(|rule| rule.parse().unwrap()).collect(), private, vec![own])
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let policy = policy(&["reject *:25", "accept 8.8.8.0/24:*", "accept *:80-443"], false);
        let allows = |address: &str| policy.allows(address.parse().unwrap());
        assert!(allows("8.8.8.7:22") && allows("1.1.1.1:443") && allows("[2606:4700::1]:80"));
        assert!(!allows("8.8.8.7:25") && !allows("1.1.1.1:22"));
        assert!(!Policy::default().allows("1.1.1.1:80".parse().unwrap()));
    }

    #[test]
    fn private_addresses_are_denied_in_every_notation() {
        let open = policy(&["accept *:*"], false);
        for address in [
            "127.0.0.1:80",
            "10.1.2.3:80",
            "192.168.1.1:80",
            "0.0.0.0:80",
            "100.64.0.1:80",
            "224.0.0.1:80",
            "[::1]:80",
            "[::]:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:10.0.0.1]:80",
            "[::7f00:1]:80",
            "[fe80::1]:80",
            "[fd00::1]:80",
            "[64:ff9b::7f00:1]:80",
            "[2002:7f00:1::]:80",
            "1.1.1.1:0",
            "203.0.113.1:80",
            "[64:ff9b:1::1.1.1.1]:80",
        ] {
            assert!(!open.allows(address.parse().unwrap()), "{address}");
        }
        let private = policy(&["accept *:*"], true);
        assert!(private.allows("127.0.0.1:80".parse().unwrap()));
        for never in ["127.0.0.1:9001", "[::ffff:127.0.0.1]:9001", "169.254.169.254:80", "[fd00:ec2::254]:80"]
        {
            assert!(!private.allows(never.parse().unwrap()), "{never}");
        }
    }

    #[test]
    fn an_exit_refuses_its_own_addresses() {
        let own = ["0.0.0.0:9001", "8.8.4.4:443"].map(|own| own.parse().unwrap()).to_vec();
        let rules = || vec!["accept *:*".parse().unwrap()];
        let public = Policy::new(rules(), false, own.clone());
        for (address, allowed) in [
            ("8.8.4.4:443", false),
            ("8.8.4.4:22", false),
            ("[::ffff:8.8.4.4]:22", false),
            ("8.8.8.8:443", true),
            // The port of a relay that listens on every address is open on other machines.
            ("8.8.8.8:9001", true),
        ] {
            assert_eq!(public.allows(address.parse().unwrap()), allowed, "{address}");
        }
        let private = Policy::new(rules(), true, own);
        for (address, allowed) in [
            ("127.0.0.1:9001", false),
            ("127.0.0.9:443", false),
            ("[::1]:9001", false),
            ("127.0.0.1:80", true),
        ] {
            assert_eq!(private.allows(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn ipv6_ports_hold_for_every_address() {
        for (rules, ports) in [
            (&[][..], ""),
            (&["accept *:*"], "1-65535"),
            (&["reject *:25", "accept *:1-100"], "1-24,26-100"),
            (&["accept 192.0.2.0/24:*", "accept *:443", "accept [::]/0:80"], "80,443"),
            // A rule that covers some addresses can deny a port, not promise it.
            (&["reject [2001:db8::]/32:80", "accept [2001:db8::]/32:22", "accept *:79-81"], "79,81"),
        ] {
            assert_eq!(policy(rules, false).ports_by_ipv6(), ports, "{rules:?}");
        }
    }

    #[test]
    fn rules_are_parsed_strictly_and_round_trip() {
        for rule in ["accept *:*", "reject 10.0.0.0/8:80", "accept [2001:db8::]/32:1-1024"] {
            assert_eq!(rule.parse::<Rule>().unwrap().to_string(), rule);
        }
        for bad in [
            "accept *:+80",
            "accept [[1.2.3.4]]:80",
            "accept [1.2.3.4]:80",
            "accept 10.0.0.0/+8:80",
            "",
            "accept",
            "allow *:*",
            "accept *",
            "accept *:0",
            "accept *:9-1",
            "accept 1.2.3.4/33:*",
            "accept x:1",
        ] {
            assert!(bad.parse::<Rule>().unwrap_err().contains("not an exit policy rule"), "{bad}");
        }
        // Policies judge the IPv4 address, so such a rule would never match.
        for mapped in ["reject [::ffff:127.0.0.1]:80", "reject [::ffff:0:0]/96:80"] {
            assert!(mapped.parse::<Rule>().unwrap_err().contains("write the IPv4 address"), "{mapped}");
        }
    }
}
