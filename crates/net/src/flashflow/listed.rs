//! Completes configured relays with the consensus.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_control::flashflow::schedule::RelayId;

use super::config::RelayEntry;
use super::network::Network;

/// Updates the configured relays from the consensus.
///
/// Relays that are not listed are removed, missing addresses are filled in, and families get new numbers.
pub(crate) fn inform(network: &Network, relays: &mut Vec<RelayEntry>) {
    relays.retain(|relay| network.relays.contains_key(&relay.id));
    for relay in &mut *relays {
        if relay.address.ip().is_unspecified() {
            relay.address = network.relays[&relay.id].address;
        }
    }
    let numbers = families(network, relays);
    relays.iter_mut().zip(numbers).for_each(|(relay, number)| relay.family = Some(number));
}

/// A family number for each relay, equal for relays that may share a machine.
///
/// They are in one configured family, have a common address in either source, or are relatives, directly or
/// through others.
fn families(network: &Network, relays: &[RelayEntry]) -> Vec<u32> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Tie {
        Family(u32),
        Address(IpAddr),
        Relatives(RelayId, RelayId),
    }
    let mut number: Vec<usize> = (0..relays.len()).collect();
    let mut first: BTreeMap<Tie, usize> = BTreeMap::new();
    for (n, relay) in relays.iter().enumerate() {
        let listed = &network.relays[&relay.id];
        let pair = |other: &RelayId| Tie::Relatives(relay.id.min(*other), relay.id.max(*other));
        let addresses = [relay.address.ip(), listed.address.ip()].map(Tie::Address);
        let ties = relay.family.map(Tie::Family).into_iter().chain(addresses);
        for tie in ties.chain(listed.relatives.iter().map(pair)) {
            let other = number[*first.entry(tie).or_insert(n)];
            let (from, to) = (number[n].max(other), number[n].min(other));
            // Families are small and rarely joined, so renumbering all relays is cheap enough.
            if from != to {
                number.iter_mut().filter(|number| **number == from).for_each(|number| *number = to);
            }
        }
    }
    number.into_iter().map(|number| number as u32).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tidegate_control::units::Rate;

    use super::*;
    use crate::flashflow::config::Target;
    use crate::flashflow::network::Listed;

    #[test]
    fn relays_that_may_share_a_machine_are_one_family() {
        let listed = |n: u8, address: [u8; 4], relatives: &[u8]| {
            let relatives = relatives.iter().map(|other| [*other; 20]).collect();
            let address = SocketAddr::from((address, 9001));
            ([n; 20], Listed { weight: Rate(1), address, relatives })
        };
        let network = Network {
            valid_after: 0,
            shared_random: Vec::new(),
            relays: BTreeMap::from([
                listed(1, [192, 0, 2, 1], &[]),
                listed(2, [192, 0, 2, 2], &[5]),
                listed(3, [192, 0, 2, 1], &[]),
                listed(4, [192, 0, 2, 4], &[]),
                listed(5, [192, 0, 2, 5], &[2]),
                listed(6, [192, 0, 2, 6], &[]),
            ]),
            signatures: 1,
        };
        let relay = |n: u8, address: [u8; 4], family| RelayEntry {
            nickname: format!("r{n}"),
            id: [n; 20],
            address: (address, 7000).into(),
            target: Target::Stock,
            family,
            descriptor_limit: None,
        };
        let nowhere = [0; 4];
        let mut relays = vec![
            relay(1, [10, 0, 0, 1], None),
            relay(2, nowhere, None),
            relay(3, nowhere, Some(9)),
            relay(4, [10, 0, 0, 4], None),
            relay(5, [10, 0, 0, 5], Some(9)),
            relay(6, [10, 0, 0, 4], None),
            relay(7, [10, 0, 0, 7], None),
        ];
        inform(&network, &mut relays);
        assert_eq!(relays.len(), 6, "who is not listed is left out");
        assert_eq!(relays[0].address, ([10, 0, 0, 1], 7000).into(), "the configuration's word");
        assert_eq!(relays[1].address, ([192, 0, 2, 2], 9001).into(), "the consensus' word");
        // 1 and 3 share a consensus address, 3 and 5 a configured family, 5 and 2 are relatives; 4 and 6 share
        // an address.
        let families: Vec<u32> = relays.iter().map(|relay| relay.family.unwrap()).collect();
        assert_eq!(families, [0, 0, 0, 3, 0, 3]);
    }
}
