//! A relay's test of its own bandwidth, as tor's `router_perform_bandwidth_test` does it.
//!
//! A new relay of a Tor network has carried nothing. Its observed bandwidth is 0, so clients never select it. It
//! therefore sends cells to itself over other relays: its descriptor then states what it carried.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use tidegate_control::units::Span;
use tidegate_data::consensus::RouterStatus;
use tidegate_proto::cell::RelayId;
use tidegate_proto::client::Client;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::crypto::{Encrypted, Router, SharedNames};
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Output};
use tokio::sync::Notify;

use super::bandwidth::Limit;
use super::channel::Links;
use super::fetch::fetch;
use super::microdescriptors::{Digest, List, digest_of};
use crate::clock;
use crate::gate::Gate;
use crate::identity::random;
use crate::link::within;
use crate::overlay::{Overlay, Owner};

/// Number of circuits (tor's `NUM_PARALLEL_TESTING_CIRCS`), and of cells on each. All circuits together get 1,000 cells (tor's
/// `CIRCWINDOW_START`). Tor sends fewer at rates below 51.4 kB/s, which `[tor]` does not allow.
const CIRCUITS: usize = 4;
const CELLS: u32 = 1000 / CIRCUITS as u32;
/// Other relays of a circuit.
const OTHERS: usize = 2;
/// Relays that are remembered for further tests.
const REMEMBERED: usize = 32;
/// Timeout of building circuits.
const BUILDING: Span = Span::from_secs(30);
/// Time in which the cells arrive. The observed bandwidth is a mean of 10 s, and the lowest rate (75 KiB/s) needs 7 s.
const ARRIVING: Span = Span::from_secs(12);
/// Pauses between tests that fail: the first one, and the longest one.
const AGAIN: Span = Span::from_secs(60);
const LONGEST: Span = Span::from_secs(3600);

/// When a relay can test its bandwidth.
#[derive(Default)]
pub(super) struct Conditions {
    /// An authority has accepted its descriptor.
    is_announced: Cell<bool>,
    /// Relays that the consensus lists.
    relays: RefCell<Vec<RouterStatus>>,
    changed: Notify,
}

impl Conditions {
    /// An authority has accepted its descriptor.
    pub(super) fn announced(&self) {
        self.is_announced.set(true);
        self.changed.notify_one();
    }

    /// Learns relays of a consensus, drawn at random. Circuits go over fast relays, if there are some, as tor's do.
    pub(super) fn learn(&self, lines: Vec<RouterStatus>, own: [u8; 20], gate: Gate) {
        let may_serve = |relay: &RouterStatus| {
            let runs = relay.flags.running() && relay.flags.valid() && relay.microdescriptor.is_some();
            runs && relay.identity.0 != own && gate.check(address(relay)).is_ok()
        };
        let mut relays: Vec<RouterStatus> = lines.into_iter().filter(may_serve).collect();
        if relays.iter().filter(|relay| relay.flags.fast()).count() >= OTHERS {
            relays.retain(|relay| relay.flags.fast());
        }
        shuffle(&mut relays);
        relays.truncate(REMEMBERED);
        self.relays.replace(relays);
        self.changed.notify_one();
    }

    /// The relay moves to another network.
    pub(super) fn clear(&self) {
        self.is_announced.set(false);
        self.relays.take();
    }

    /// Waits until it can test its bandwidth. Returns the relays of its circuits.
    pub(super) async fn are_met(&self) -> Vec<RouterStatus> {
        loop {
            if self.is_announced.get() && !self.relays.borrow().is_empty() {
                let mut relays = self.relays.borrow().clone();
                shuffle(&mut relays);
                relays.truncate(CIRCUITS * OTHERS);
                return relays;
            }
            self.changed.notified().await;
        }
    }
}

/// The pause after a test that failed, from the one before.
pub(super) fn pause_after(before: Option<Span>) -> Span {
    before.map_or(AGAIN, |before| (before * 2).min(LONGEST))
}

fn shuffle<T>(items: &mut [T]) {
    items.sort_by_cached_key(|_| random::<8>());
}

fn address(relay: &RouterStatus) -> SocketAddr {
    (relay.address, relay.or_port).into()
}

/// A relay of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub router: Router,
    /// Its ntor onion key.
    pub onion: [u8; 32],
}

/// Reads the keys of relays from the first authority that has them.
///
/// # Errors
/// If none has any: the cause at the last one.
pub(super) async fn read_keys(
    authorities: &[SocketAddr],
    relays: &[RouterStatus],
) -> Result<Vec<Hop>, String> {
    let digests = relays.iter().filter_map(|relay| relay.microdescriptor);
    let list = List::of(digests.collect());
    let mut last = "no authority is configured".to_owned();
    for at in authorities {
        last = match fetch(*at, &list.path(), None).await {
            Ok((200, _, body)) => {
                let hops = hops(&list, relays, &body);
                if !hops.is_empty() {
                    return Ok(hops);
                }
                format!("http://{at}: the answer holds none of the microdescriptors")
            }
            Ok((code, words, _)) => format!("http://{at}: microdescriptors: {code} {words}"),
            Err(cause) => format!("http://{at}: microdescriptors: {cause}"),
        };
    }
    Err(last)
}

/// The relays with a microdescriptor of the list in an answer.
fn hops(list: &List, relays: &[RouterStatus], answer: &[u8]) -> Vec<Hop> {
    let proved = list.proved(answer);
    let texts: BTreeMap<Digest, &[u8]> = proved.iter().map(|text| (digest_of(text), &text[..])).collect();
    let hop = |relay: &RouterStatus| {
        let text = str::from_utf8(texts.get(&relay.microdescriptor?)?).ok()?;
        let (onion, ed25519) = keys(text)?;
        let fingerprint = relay.identity.0;
        Some(Hop { router: Router { address: address(relay), fingerprint, ed25519: Some(ed25519) }, onion })
    };
    relays.iter().filter_map(hop).collect()
}

/// The onion key and the Ed25519 identity in a microdescriptor.
fn keys(text: &str) -> Option<([u8; 32], [u8; 32])> {
    let key = |keyword: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(keyword))?;
        let word = line.split(' ').next()?.trim_end_matches('=');
        STANDARD_NO_PAD.decode(word).ok()?.try_into().ok()
    };
    Some((key("ntor-onion-key ")?, key("id ed25519 ")?))
}

/// Paths over different relays that end at one.
fn paths(others: &[RelayId], own: RelayId) -> Vec<Vec<RelayId>> {
    let other = |number: usize| others[number % others.len()];
    let path = |circuit: usize| {
        let mut path: Vec<RelayId> =
            (0..OTHERS.min(others.len())).map(|hop| other(circuit * OTHERS + hop)).collect();
        path.push(own);
        path
    };
    if others.is_empty() { Vec::new() } else { (0..CIRCUITS).map(path).collect() }
}

type Node = Overlay<Client<Encrypted>, Limit, Rc<Links>>;

/// How circuits ended so far: whether each one was built.
#[derive(Default)]
struct Progress {
    circuits: RefCell<BTreeMap<CircuitKey, bool>>,
    changed: Notify,
}

impl Progress {
    fn built(&self) -> usize {
        self.circuits.borrow().values().filter(|built| **built).count()
    }
}

/// Circuits that close when the test ends, also with its relay.
struct Circuits {
    node: Node,
    keys: BTreeSet<CircuitKey>,
}

impl Drop for Circuits {
    fn drop(&mut self) {
        self.node.with(|node, now| self.keys.iter().for_each(|key| node.close(now, *key)));
    }
}

/// Sends cells over circuits of `others` to `own`, the relay itself, within its `limit`. Returns the number of circuits that
/// were built.
///
/// # Errors
/// If TLS cannot be set up.
pub(super) async fn run(own: Hop, others: &[Hop], gate: Gate, limit: Limit) -> io::Result<usize> {
    let names = SharedNames::default();
    let links = Rc::new(Links::client(names.clone(), false)?.with_gate(gate).without_extensions());
    let mut onion = Encrypted::new(None, BTreeMap::new(), random()).with_names(names.clone());
    let mut learn = |hop: &Hop| {
        let id = names.borrow_mut().keep(hop.router);
        onion.learn(id, RelayPublic { identity: hop.router.fingerprint, onion: hop.onion }, None);
        id
    };
    let others: Vec<RelayId> = others.iter().map(&mut learn).collect();
    let paths = paths(&others, learn(&own));
    let progress = Rc::<Progress>::default();
    let heard = progress.clone();
    let owner: Owner<Client<Encrypted>> = Box::new(move |node, now, output| {
        let (key, built) = match output {
            Output::CircuitBuilt(key) => (key, true),
            Output::CircuitClosed(key) => (key, false),
            _ => return,
        };
        heard.circuits.borrow_mut().entry(key).or_insert(built);
        heard.changed.notify_one();
        if built {
            node.send_drops(now, key, CELLS);
        }
    });
    let config = Config { close_unused: true, ..Config::default() };
    let node = Node::with_dial(Client::new(onion, config), limit, links, |_| owner);
    let keys = node.with(|node, now| paths.into_iter().map(|path| node.build(now, path)).collect());
    let circuits = Circuits { node, keys };
    let settled = within(BUILDING, async {
        while progress.circuits.borrow().len() < circuits.keys.len() {
            progress.changed.notified().await;
        }
        Ok(())
    });
    // Those that are not built in time count as failed.
    let _ = settled.await;
    let built = progress.built();
    if built > 0 {
        clock::until(clock::now() + ARRIVING).await;
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use tidegate_data::consensus::{Flags, Identity};

    use super::*;

    fn relay(number: u8, flags: &[&str], microdescriptor: Option<Digest>) -> RouterStatus {
        RouterStatus {
            nickname: format!("relay{number}"),
            identity: Identity([number; 20]),
            address: [10, 0, 0, number].into(),
            or_port: 9001,
            flags: Flags::from_names(flags.iter().copied()),
            version: None,
            bandwidth: 0,
            unmeasured: true,
            ports: None,
            microdescriptor,
        }
    }

    const FAST: [&str; 3] = ["Fast", "Running", "Valid"];

    /// The numbers of the relays that a test would use.
    fn usable(lines: Vec<RouterStatus>, gate: Gate) -> BTreeSet<u8> {
        let conditions = Conditions::default();
        conditions.learn(lines, [1; 20], gate);
        let relays = conditions.relays.take();
        relays.iter().map(|relay| relay.identity.0[0]).collect()
    }

    #[test]
    fn tests_use_running_relays_that_the_gate_passes_and_fast_ones_first() {
        let known = Some([0; 32]);
        let lines = || {
            vec![
                relay(1, &FAST, known),
                relay(2, &FAST, known),
                relay(3, &["Running", "Valid"], known),
                relay(4, &["Fast", "Valid"], known),
                relay(5, &["Fast", "Running"], known),
                relay(6, &FAST, None),
            ]
        };
        assert_eq!(usable(lines(), Gate::Private), [2, 3].into(), "relay 1 is the one that tests");
        let two_fast = [lines(), vec![relay(7, &FAST, known)]].concat();
        assert_eq!(usable(two_fast, Gate::Private), [2, 7].into());
        assert_eq!(usable(lines(), Gate::Public), [].into(), "their addresses are private");
        let many = (2..200).map(|number| relay(number, &FAST, known)).collect();
        assert_eq!(usable(many, Gate::Private).len(), REMEMBERED);
    }

    #[tokio::test]
    async fn a_test_waits_for_relays_and_an_accepted_descriptor() {
        let conditions = Conditions::default();
        let is_waiting = async |conditions: &Conditions| {
            let soon = tokio::time::Duration::from_millis(5);
            tokio::time::timeout(soon, conditions.are_met()).await.is_err()
        };
        conditions.announced();
        assert!(is_waiting(&conditions).await);
        let learn = || {
            let lines = (2..30).map(|number| relay(number, &FAST, Some([0; 32]))).collect();
            conditions.learn(lines, [1; 20], Gate::Private);
        };
        learn();
        assert_eq!(conditions.are_met().await.len(), CIRCUITS * OTHERS);
        conditions.clear();
        learn();
        assert!(is_waiting(&conditions).await, "another network has not accepted it");
    }

    #[test]
    fn circuits_end_at_the_relay_and_visit_each_other_one_once() {
        let own = RelayId(0);
        assert!(paths(&[], own).is_empty());
        for count in 1..=8 {
            let others: Vec<RelayId> = (1..=count).map(RelayId).collect();
            let paths = paths(&others, own);
            assert_eq!(paths.len(), CIRCUITS);
            for path in &paths {
                assert_eq!((path.len(), path.last()), (count.min(2) as usize + 1, Some(&own)));
                assert_eq!(path.iter().collect::<BTreeSet<_>>().len(), path.len(), "{path:?}");
            }
            assert_eq!(paths.concat().into_iter().collect::<BTreeSet<_>>().len(), count as usize + 1);
        }
    }

    #[test]
    fn keys_come_from_microdescriptors_that_the_consensus_names() {
        let text = |fill: u8| {
            let key = |fill| STANDARD_NO_PAD.encode([fill; 32]);
            format!("onion-key\nntor-onion-key {}=\nid ed25519 {}\n", key(fill), key(fill + 100))
        };
        let named = [text(1), "onion-key\nntor-onion-key x\n".to_owned()];
        let digests = named.each_ref().map(|text| digest_of(text.as_bytes()));
        let relays: Vec<RouterStatus> =
            (0..2).map(|number| relay(number + 1, &FAST, Some(digests[usize::from(number)]))).collect();
        let answer = [text(3), named.concat()].concat();
        let router = Router { address: address(&relays[0]), fingerprint: [1; 20], ed25519: Some([101; 32]) };
        let found = hops(&List::of(digests.into()), &relays, answer.as_bytes());
        assert_eq!(found, [Hop { router, onion: [1; 32] }]);
    }

    #[test]
    fn pauses_between_tests_grow_to_an_hour() {
        let mut pause = None;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            pause = Some(pause_after(pause));
            assert_eq!(pause, Some(Span::from_secs(60 * minutes)));
        }
    }
}
