//! Names below which the names of addresses are found (RFC 1035, section 3.5; RFC 3596, section 2.5).

use std::net::IpAddr;

/// The name for an address.
pub(crate) fn write(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = v6.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

/// The address that such a name is for.
pub(crate) fn parse(name: &str) -> Option<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let address: IpAddr = if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let parts: Vec<&str> = digits.split('.').rev().collect();
        parts.join(".").parse().ok()?
    } else {
        let nibbles: String = name.strip_suffix(".ip6.arpa")?.split('.').rev().collect();
        IpAddr::V6(u128::from_str_radix(&nibbles, 16).ok()?.into())
    };
    (write(address) == name).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        for text in ["127.0.0.1", "192.0.2.33", "::1", "2001:db8::ff00:42"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(parse(&write(address)), Some(address));
            assert_eq!(parse(&format!("{}.", write(address).to_uppercase())), Some(address));
        }
    }

    #[test]
    fn other_names_are_for_nothing() {
        let short = "1.0.ip6.arpa";
        for name in [
            "",
            "in-addr.arpa",
            "2.0.192.in-addr.arpa",
            "256.0.0.1.in-addr.arpa",
            "a.b.c.d.in-addr.arpa",
            short,
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
        assert_eq!(parse("+1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa"), None);
    }
}
