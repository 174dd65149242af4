//! Classes of relays, position weights, and relays that exclude each other.
//!
//! See dir-spec, "Computing bandwidth weights", and path-spec 2.2.

use std::collections::BTreeMap;

pub use tidegate_control::positions::{Class, PositionWeights};

use crate::consensus::{Consensus, RouterStatus};

/// The class of a relay. A bad exit does not count as an exit.
pub fn class_of(relay: &RouterStatus) -> Class {
    match (relay.flags.guard(), relay.flags.exit() && !relay.flags.bad_exit()) {
        (false, false) => Class::Middle,
        (true, false) => Class::Guard,
        (false, true) => Class::Exit,
        (true, true) => Class::GuardExit,
    }
}

/// Whether clients use a relay for general-purpose circuits: it runs, is valid and fast.
pub fn is_usable(relay: &RouterStatus) -> bool {
    relay.flags.running() && relay.flags.valid() && relay.flags.fast()
}

/// Consensus method since which the sums begin at one.
///
/// In tor: `MIN_METHOD_FOR_INIT_BW_WEIGHTS_ONE`.
const METHOD_BEGINS_AT_ONE: u32 = 31;

/// The position weights in the document, or the computed ones if the document lacks some.
pub fn positions(consensus: &Consensus) -> PositionWeights {
    stated(consensus).unwrap_or_else(|| computed(consensus))
}

/// The position weights in the document, if complete.
pub fn stated(consensus: &Consensus) -> Option<PositionWeights> {
    let weight = |name: &str| consensus.bandwidth_weights.get(name).map(|value| i64::from(*value));
    Some(PositionWeights {
        scale: scale(consensus),
        gg: weight("Wgg")?,
        gd: weight("Wgd")?,
        mg: weight("Wmg")?,
        mm: weight("Wmm")?,
        me: weight("Wme")?,
        md: weight("Wmd")?,
        eg: weight("Weg")?,
        em: weight("Wem")?,
        ee: weight("Wee")?,
        ed: weight("Wed")?,
    })
}

/// The position weights that authorities compute from the bandwidths of the relays.
pub fn computed(consensus: &Consensus) -> PositionWeights {
    let relays = consensus.relays.iter().map(|relay| (class_of(relay), i64::from(relay.bandwidth)));
    let first = i64::from(consensus.method >= METHOD_BEGINS_AT_ONE);
    PositionWeights::computed(relays, first, scale(consensus))
}

fn scale(consensus: &Consensus) -> i64 {
    consensus.params.get("bwweightscale").map_or(10_000, |scale| i64::from(*scale).max(1))
}

/// Groups relays by IPv4 /16. Relays with the same number exclude each other; zero excludes none.
pub fn networks<'a>(relays: impl IntoIterator<Item = &'a RouterStatus>) -> Vec<u32> {
    let networks: Vec<u32> = relays.into_iter().map(|relay| u32::from(relay.address) >> 16).collect();
    let mut members: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (index, network) in (1..).zip(&networks) {
        members.entry(*network).or_insert((index, 0)).1 += 1;
    }
    let number = |network| match members[network] {
        (_, 1) => 0,
        (first, _) => first,
    };
    networks.iter().map(number).collect()
}
