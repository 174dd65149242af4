//! The consensus of a Tor network, as far as a relay needs it: the parameters against denial of service, the addresses of
//! relays, and relays for its self-test. The directory of an overlay has the addresses only.
//!
//! The relay reads it from its authorities over HTTP, as it publishes there, and does not check signatures: the
//! configuration names authorities by address only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tidegate_control::units::Span;
use tidegate_data::consensus::{self, Identity, RouterStatus};
use tidegate_data::document::Document;

use super::directory;
use super::fetch::fetch;

/// Where authorities serve it (dir-spec, "General-use HTTP URLs"). The flavour for clients is the shorter one.
const PATH: &str = "/tor/status-vote/current/consensus-microdesc";
/// Shortest time until it is read again.
const SHORTEST: Span = Span::from_secs(5);
/// Longest time until it is read again: the voting interval of the public network.
const LONGEST: Span = Span::from_secs(3600);
/// Pause after it could not be read.
const AGAIN: Span = Span::from_secs(10);
/// Time until the directory of an overlay is read again. Relays join it at any time.
const DIRECTORY: Span = Span::from_secs(60);

/// The part of a consensus that a relay obeys.
#[derive(Debug)]
pub(crate) struct Consensus {
    /// Parameters by name.
    pub parameters: BTreeMap<String, i32>,
    /// Identities and addresses of relays.
    pub identities: BTreeSet<Identity>,
    /// See `identities`.
    pub relays: BTreeSet<IpAddr>,
    /// All that it says of each relay.
    pub lines: Vec<RouterStatus>,
    /// When a newer one exists, seconds since 1970.
    pub fresh_until: Option<u64>,
}

/// Reads the consensus of the first authority that answers with one.
///
/// # Errors
/// If none does: the cause at the last one.
pub(crate) async fn read(authorities: &[SocketAddr]) -> Result<Consensus, String> {
    let mut last = "no authority is configured".to_owned();
    for at in authorities {
        match read_from(*at).await {
            Ok(consensus) => return Ok(consensus),
            Err(why) => last = format!("http://{at}{PATH}: {why}"),
        }
    }
    Err(last)
}

/// Reads the addresses of the relays that the directory of an overlay lists.
///
/// # Errors
/// If it does not answer with one.
pub(crate) async fn listed(at: SocketAddr) -> Result<BTreeSet<IpAddr>, String> {
    let answer = fetch(at, "/directory", None).await;
    match answer.map_err(|cause| cause.to_string())? {
        (200, _, body) => Ok(directory::addresses(&String::from_utf8_lossy(&body))),
        (code, words, _) => Err(format!("{code} {words}")),
    }
}

async fn read_from(at: SocketAddr) -> Result<Consensus, String> {
    let (code, words, body) = fetch(at, PATH, None).await.map_err(|cause| cause.to_string())?;
    if code != 200 {
        return Err(format!("{code} {words}"));
    }
    let text = String::from_utf8(body).map_err(|_| "is not text".to_owned())?;
    let document = Document::new("consensus", text).map_err(|cause| cause.to_string())?;
    let read = consensus::read(&document).map_err(|cause| cause.to_string())?;
    let first = read.relays.iter().map(|relay| IpAddr::V4(relay.address));
    Ok(Consensus {
        parameters: read.params,
        identities: read.relays.iter().map(|relay| relay.identity).collect(),
        relays: first.chain(further_addresses(document.text())).collect(),
        lines: read.relays,
        fresh_until: consensus::fresh_until(&document),
    })
}

/// The addresses of relays in lines `a` of a consensus: those of IPv6.
fn further_addresses(consensus: &str) -> impl Iterator<Item = IpAddr> {
    let read = |line: &str| line.strip_prefix("a ")?.parse::<SocketAddr>().ok();
    consensus.lines().filter_map(read).map(|address| address.ip())
}

/// How long to wait before reading the directory of an overlay again.
pub(crate) fn pause_of_directory<T>(read: &Result<T, String>) -> Span {
    if read.is_ok() { DIRECTORY } else { AGAIN }
}

/// How long to wait before reading the consensus again at `now`, seconds since 1970.
pub(crate) fn pause(read: &Result<Consensus, String>, now: u64) -> Span {
    match read {
        Ok(Consensus { fresh_until: Some(until), .. }) => {
            Span::from_secs(until.saturating_sub(now)).clamp(SHORTEST, LONGEST)
        }
        Ok(_) => LONGEST,
        Err(_) => AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_known_by_their_ipv6_addresses_too() {
        let entry =
            "r tide AAAA 2026-11-30 08:00:00 192.0.2.1 9001 0\na [2001:db8::1]:9001\ns Fast\na nonsense\n";
        let expected: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(further_addresses(entry).collect::<Vec<_>>(), [expected]);
    }
}
