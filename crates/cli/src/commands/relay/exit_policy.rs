//! The exit policy of a torrc as rules of a relay's configuration.

use std::net::{IpAddr, Ipv4Addr};

use tidegate_data::document::DataError;
use tidegate_data::torrc::Setting;
use tidegate_net::live::Rule;

/// The rules that tor appends to a policy that does not end (tor's manual, `ExitPolicy` and `ReducedExitPolicy`).
const DEFAULT: &str = "reject *:25,reject *:119,reject *:135-139,reject *:445,reject *:563,reject *:1214,\
    reject *:4661-4666,reject *:6346-6429,reject *:6699,reject *:6881-6999,accept *:*";
const REDUCED: &str = "accept *:20-23,accept *:43,accept *:53,accept *:79-81,accept *:88,accept *:110,accept *:143,\
    accept *:194,accept *:220,accept *:389,accept *:443,accept *:464,accept *:465,accept *:531,accept *:543-544,\
    accept *:554,accept *:563,accept *:587,accept *:636,accept *:706,accept *:749,accept *:873,accept *:902-904,\
    accept *:981,accept *:989-995,accept *:1194,accept *:1220,accept *:1293,accept *:1500,accept *:1533,accept *:1677,\
    accept *:1723,accept *:1755,accept *:1863,accept *:2082-2083,accept *:2086-2087,accept *:2095-2096,\
    accept *:2102-2104,accept *:3128,accept *:3389,accept *:3690,accept *:4321,accept *:4643,accept *:5050,\
    accept *:5190,accept *:5222-5223,accept *:5228,accept *:5900,accept *:6660-6669,accept *:6679,accept *:6697,\
    accept *:8000,accept *:8008,accept *:8074,accept *:8080,accept *:8082,accept *:8087-8088,accept *:8232-8233,\
    accept *:8332-8333,accept *:8443,accept *:8888,accept *:9418,accept *:9999,accept *:10000,accept *:11371,\
    accept *:18080-18081,accept *:18089,accept *:19294,accept *:19638,accept *:50002,accept *:64738,reject *:*";
/// The networks of tor's alias `private`.
const PRIVATE: [&str; 12] = [
    "0.0.0.0/8",
    "169.254.0.0/16",
    "127.0.0.0/8",
    "192.168.0.0/16",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "[::]/8",
    "[fc00::]/7",
    "[fe80::]/10",
    "[fec0::]/10",
    "[ff00::]/8",
    "[::]/127",
];

/// The options that make a policy.
pub(super) struct Options<'a> {
    /// All lines of `ExitPolicy`.
    pub policy: Vec<&'a Setting>,
    /// `ReducedExitPolicy`.
    pub is_reduced: bool,
    /// `IPv6Exit`.
    pub exits_to_ipv6: bool,
    /// Whether `ExitPolicyRejectPrivate` is 0.
    pub exits_to_private: bool,
}

/// Rules, and settings with entries that tor ignores, with the reason.
type Rules<'a> = (Vec<String>, Vec<(&'a Setting, &'static str)>);

/// The rules of an exit, and the entries that tor ignores, with the reason. Without rules the relay is not an exit.
///
/// # Errors
/// If an entry is malformed: a policy without it could allow more.
pub(super) fn rules<'a>(options: &Options<'a>) -> Result<Rules<'a>, DataError> {
    let (mut rules, mut ignored) = (Vec::new(), Vec::new());
    let mut ends = false;
    for setting in &options.policy {
        for entry in setting.value.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let Some(added) = entry_rules(entry, options.exits_to_private) else {
                let cause = format!("`{entry}` is not an entry of an exit policy");
                return Err(
                    setting.error(cause, "write accept or reject, an address and ports: `accept *:443`")
                );
            };
            if ends {
                ignored.push((*setting, "an earlier entry with all addresses and ports decides"));
                break;
            }
            if added == Added::Nothing {
                ignored.push((*setting, "`accept6` and `reject6` with an IPv4 address mean nothing"));
            }
            if let Added::Rules(added) = added {
                ends = added.iter().any(|rule| rule.ends_with(" *:*"));
                rules.extend(added);
            }
        }
    }
    if !ends {
        let appended = if options.is_reduced { REDUCED } else { DEFAULT };
        rules.extend(appended.split(',').map(str::to_owned));
    }
    if !rules.iter().any(|rule| rule.starts_with("accept")) {
        return Ok((Vec::new(), ignored));
    }
    if !options.exits_to_ipv6 {
        rules.insert(0, "reject [::]/0:*".to_owned());
    }
    Ok((rules, ignored))
}

#[derive(PartialEq, Eq)]
enum Added {
    Rules(Vec<String>),
    /// Private networks are refused anyway.
    Already,
    /// Tor ignores the entry.
    Nothing,
}

/// The rules of one entry; `None` if it is malformed.
fn entry_rules(entry: &str, exits_to_private: bool) -> Option<Added> {
    let (verb, pattern) = entry.split_once(char::is_whitespace)?;
    let (verb, only_ipv6) = match &*verb.to_lowercase() {
        "accept" => ("accept", false),
        "reject" => ("reject", false),
        "accept6" => ("accept", true),
        "reject6" => ("reject", true),
        _ => return None,
    };
    let pattern = pattern.trim();
    // An address of IPv6 has brackets, so the ports follow the last colon outside of them.
    let end = pattern.rfind(']').map_or(0, |bracket| bracket + 1);
    let (address, ports) = match pattern[end..].rfind(':') {
        Some(colon) => (&pattern[..end + colon], &pattern[end + colon + 1..]),
        None => (pattern, "*"),
    };
    let networks = match address {
        "private" if !exits_to_private => return Some(Added::Already),
        "private" => PRIVATE.map(str::to_owned).to_vec(),
        "*" if only_ipv6 => vec!["[::]/0".to_owned()],
        "*" => vec!["*".to_owned()],
        "*4" if only_ipv6 => return Some(Added::Nothing),
        "*4" => vec!["0.0.0.0/0".to_owned()],
        "*6" => vec!["[::]/0".to_owned()],
        network => vec![with_prefix(network)?],
    };
    let is_ipv4 = |network: &String| network != "*" && !network.starts_with('[');
    if only_ipv6 && address != "private" && networks.iter().any(is_ipv4) {
        return Some(Added::Nothing);
    }
    let rule = |network: String| {
        let rule: Rule = format!("{verb} {network}:{ports}").parse().ok()?;
        Some(rule.to_string())
    };
    networks.into_iter().map(rule).collect::<Option<_>>().map(Added::Rules)
}

/// A network with its prefix as a length: tor also accepts `192.0.2.0/255.255.255.0`.
fn with_prefix(network: &str) -> Option<String> {
    let Some((address, mask)) = network.split_once('/') else { return Some(network.to_owned()) };
    let Ok(mask) = mask.parse::<Ipv4Addr>() else { return Some(network.to_owned()) };
    let bits = u32::from(mask);
    let is_prefix = bits.leading_ones() + bits.trailing_zeros().min(32) >= 32;
    let is_ipv4 = address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4());
    (is_prefix && is_ipv4).then(|| format!("{address}/{}", bits.leading_ones()))
}

#[cfg(test)]
mod tests {
    use tidegate_data::torrc::Change;

    use super::*;

    fn setting(value: &str) -> Setting {
        let (name, file) = ("ExitPolicy".to_owned(), "torrc".to_owned());
        Setting { name, value: value.to_owned(), change: Change::Set, file, line: 7 }
    }

    fn of(policy: &[&str], exits_to_ipv6: bool, exits_to_private: bool) -> Vec<String> {
        let policy: Vec<Setting> = policy.iter().map(|value| setting(value)).collect();
        let policy = policy.iter().collect();
        rules(&Options { policy, is_reduced: false, exits_to_ipv6, exits_to_private }).unwrap().0
    }

    #[test]
    fn entries_become_rules() {
        for (policy, wanted) in [
            (
                &["accept *:80, accept *:443", "reject *"][..],
                &["accept *:80", "accept *:443", "reject *:*"][..],
            ),
            (
                &["accept *4:80,accept6 *:80,reject *:*"],
                &["accept 0.0.0.0/0:80", "accept [::]/0:80", "reject *:*"],
            ),
            (
                &["reject 192.0.2.0/255.255.255.0:1-9,accept [2001:DB8::]/32,reject *:*"],
                &["reject 192.0.2.0/24:1-9", "accept [2001:db8::]/32:*", "reject *:*"],
            ),
            (&["reject private:*,accept *:1,reject *:*"], &["accept *:1", "reject *:*"]),
            (&["reject *:*", "accept *:80"], &[]),
            (&["accept6 192.0.2.1:80,accept *:5,reject *:*"], &["accept *:5", "reject *:*"]),
        ] {
            assert_eq!(of(policy, true, false), wanted, "{policy:?}");
        }
        assert_eq!(
            of(&["accept *:80,reject *:*"], false, false)[0],
            "reject [::]/0:*",
            "IPv6Exit is off by default"
        );
        assert_eq!(of(&["reject private:*"], true, true)[1], "reject 169.254.0.0/16:*");
    }

    #[test]
    fn a_policy_without_an_end_gets_tors() {
        let rules = of(&["accept *:25"], true, false);
        assert_eq!((rules.len(), &*rules[1], &*rules[11]), (12, "reject *:25", "accept *:*"));
        for rule in DEFAULT.split(',').chain(REDUCED.split(',')) {
            assert_eq!(rule.parse::<Rule>().unwrap().to_string(), rule);
        }
    }

    #[test]
    fn malformed_entries_are_refused_with_their_line() {
        for bad in [
            "accept",
            "allow *:80",
            "accept *:0",
            "accept 192.0.2.0/255.0.255.0:*",
            "reject x:1",
            "accept *:9-1",
        ] {
            let setting = setting(bad);
            let options = Options {
                policy: vec![&setting],
                is_reduced: false,
                exits_to_ipv6: true,
                exits_to_private: false,
            };
            let error = rules(&options).err().unwrap_or_else(|| panic!("{bad} was accepted"));
            assert!(error.line == Some(7) && error.cause.contains(bad), "{error}");
        }
    }
}
