//! A scaled-down Tor: relays sampled from a consensus and placed by country.

use std::collections::BTreeMap;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span};
use tidegate_data::consensus::{Identity, RouterStatus};
use tidegate_data::country::Country;
use tidegate_data::sample::{Representative, sample};
use tidegate_data::weights::{class_of, is_usable, networks, positions};
use tidegate_proto::cell::RelayId;
use tidegate_sim::plan::{BucketPlan, Directory, RelayEntry, RelayLimits, Role};

use super::balanced::Whole;
use super::builtin;
use super::capacity::{Quantities, normalise, quantities};
use super::hosts::{Hosts, Listed};
use super::inputs::Inputs;
use crate::scenario::tables::{Sampling, TorFile};
use crate::scenario::users::UserFile;

/// Adds sampled relays and servers; returns the clients' directory.
pub(super) fn network(table: &TorFile, inputs: &Inputs, hosts: &mut Hosts, seed: Seed) -> Directory {
    let consensus = inputs.consensus.as_ref().expect("a [tor] table has a consensus");
    let all = quantities(table, inputs, seed);
    let fraction = table.fraction;
    let as_weight = table.capacity.as_str() == "weight";
    let of_sample = |chosen: &[usize]| {
        if as_weight {
            return chosen.iter().map(|index| all[*index]).collect();
        }
        normalise(&consensus.relays, &all, chosen, fraction)
    };
    let known_country = |relay: &RouterStatus| {
        let listed = inputs.capacities.as_ref().and_then(|table| table.get(&relay.identity)?.country);
        listed.or_else(|| inputs.countries.get(&relay.address).copied())
    };
    let chosen = match *table.sample {
        Sampling::Drawn => sample(&consensus.relays, fraction, Representative::Drawn(seed.fork("sample"))),
        Sampling::Balanced => {
            let countries = |index: usize| known_country(&consensus.relays[index]);
            let (relays, positions) = (&consensus.relays[..], positions(consensus));
            let whole = Whole { relays, countries: &countries, positions, quantities: &of_sample };
            whole.nearest(&all, fraction, seed.fork("sample"))
        }
    };
    let relays: Vec<&RouterStatus> = chosen.iter().map(|index| &consensus.relays[*index]).collect();
    let quantities = of_sample(&chosen);
    let networks = networks(relays.iter().copied());
    let (mut entries, mut machines) = (Vec::new(), BTreeMap::new());
    for (number, (relay, quantities)) in relays.iter().zip(&quantities).enumerate() {
        let mut draws = seed.fork("relays").fork_index(number as u64).random();
        let country = known_country(relay).unwrap_or_else(|| builtin::relay_country(&mut draws));
        let by_bucket =
            as_weight || table.limit_by_bucket || table.relay_link.is_some() || table.refill.is_some();
        let (link, limits) =
            if by_bucket { bucket_below_link(quantities) } else { link_and_limit(quantities) };
        let link = table.relay_link.map_or(link, |rate| rate.as_bytes_per_s() as u64);
        let [up, down] = table.links([Rate::from_bytes_per_s(link); 2]);
        // A separate branch keeps the other draws independent of `cell-cost-share`.
        let slow = seed.fork("slow").fork_index(number as u64).random().unit() < table.cell_cost_share;
        let cell_cost = if slow { table.cell_cost } else { Span::ZERO };
        let limits = RelayLimits { cell_cost, servers: table.count_exit_connections, ..limits };
        let limits = table.refill.map_or(limits, |every| refilled(limits, every));
        let place = node(inputs, relay.identity).unwrap_or_else(|| place(inputs, country, hosts, &mut draws));
        let name = format!("relay{}", number + 1);
        let host = match machines.get(&relay.address) {
            Some(machine) if table.shared_machines => {
                hosts.widen(*machine, up.rate);
                hosts.add_sharing(&name, Role::Relay(limits), *machine)
            }
            _ => hosts.add_at(&name, Role::Relay(limits), up, down, place),
        };
        // The first relay of an address owns the machine.
        machines.entry(relay.address).or_insert(host);
        let flags = relay.flags.names().collect::<Vec<_>>().join(" ");
        let (nickname, country) = (relay.nickname.clone(), country.code().to_owned());
        hosts.list(host, Listed { nickname, flags, country });
        if is_usable(relay) {
            entries.push(RelayEntry {
                name,
                identity: relay.identity.0,
                class: class_of(relay),
                weight: quantities.weight,
                advertised: quantities.capacity(),
                network: networks[number],
                ..RelayEntry::new(RelayId(host))
            });
        }
    }
    relate(&mut entries, inputs);
    for number in 0..table.servers(table.fraction) {
        let mut draws = seed.fork("servers").fork_index(number.into()).random();
        let country = builtin::relay_country(&mut draws);
        let place = place(inputs, country, hosts, &mut draws);
        server(table, hosts, &format!("server{}", number + 1), place);
    }
    Directory { relays: entries, positions: Some(positions(consensus)) }
}

/// Sets the relatives of each relay.
fn relate(entries: &mut [RelayEntry], inputs: &Inputs) {
    let ids: BTreeMap<[u8; 20], RelayId> = entries.iter().map(|entry| (entry.identity, entry.id)).collect();
    for entry in entries {
        let relatives = inputs.relatives.get(&Identity(entry.identity)).into_iter().flatten();
        entry.relatives = relatives.filter_map(|relative| ids.get(&relative.0).copied()).collect();
    }
}

/// A token bucket as in tor since 0.3.5, with a burst of one second.
///
/// tor refills every 2^24 ns; connections that find the bucket empty try again after 100 ms
/// (`experiments/real-tor/s4`).
fn limited(rate_bytes_per_s: u64) -> RelayLimits {
    let (refill_every, burst_bytes) = (Span(1 << 24), rate_bytes_per_s);
    let bucket = BucketPlan { rate_bytes_per_s, burst_bytes, refill_every, drop_fractions: false };
    let retry_after = Span::from_millis(100);
    RelayLimits { bucket: Some(bucket), retry_after, ..RelayLimits::default() }
}

/// A token bucket as in tor before 0.3.5: connections that find it empty wait for the next refill.
fn refilled(limits: RelayLimits, refill_every: Span) -> RelayLimits {
    let bucket = limits.bucket.map(|bucket| BucketPlan { refill_every, ..bucket });
    RelayLimits { bucket, retry_after: Span::ZERO, ..limits }
}

/// Limits the relay's capacity by a token bucket, with a link that is 25 % faster.
fn bucket_below_link(quantities: &Quantities) -> (u64, RelayLimits) {
    let rate = quantities.capacity() as u64;
    (rate * 5 / 4, limited(rate))
}

/// Limits the relay's capacity by its link, and by a token bucket if its configured limit is lower.
fn link_and_limit(quantities: &Quantities) -> (u64, RelayLimits) {
    let limits = quantities.limit.map_or_else(RelayLimits::default, |limit| limited(limit as u64));
    (quantities.link as u64, limits)
}

/// Adds a user's client; draws one of the servers, or adds one at the client's location for `own-server`.
pub(super) fn ends(
    table: &TorFile,
    inputs: &Inputs,
    hosts: &mut Hosts,
    (user, name, number): (&UserFile, &str, u32),
    draws: &mut Random,
) -> (u32, u32) {
    let client = client(table, inputs, hosts, (format!("client of {name}"), user.country(number)), draws);
    if user.own_server {
        let place = hosts.location(client);
        return (client, server(table, hosts, &format!("server of {name}"), place));
    }
    let drawn = draws.below(table.servers(table.fraction) as usize) + 1;
    (client, hosts.named(&format!("server{drawn}")))
}

/// Adds a client in a country, drawn from Tor's users by default.
fn client(
    table: &TorFile,
    inputs: &Inputs,
    hosts: &mut Hosts,
    (name, country): (String, Option<Country>),
    draws: &mut Random,
) -> u32 {
    let [up, down] = table.links([table.client_up, table.client_down]);
    let country = country.unwrap_or_else(|| builtin::client_country(draws));
    let place = place(inputs, country, hosts, draws);
    hosts.add_at(&name, Role::Client, up, down, place)
}

/// Adds a server at a location of the map.
fn server(table: &TorFile, hosts: &mut Hosts, name: &str, place: u32) -> u32 {
    let [up, down] = table.links([table.server_link; 2]);
    hosts.add_at(name, Role::Server, up, down, place)
}

/// The location of a relay that a simulation of Shadow placed, if the latencies are of the same graph.
fn node(inputs: &Inputs, relay: Identity) -> Option<u32> {
    let known = inputs.capacities.as_ref()?.get(&relay)?;
    let (node, table) = (known.node.as_ref()?, inputs.latency.as_ref()?);
    let at = table.locations.iter().position(|location| location.name == *node)?;
    // Other tables may have the same names for other places.
    let same =
        known.country.is_none() || table.locations[at].country.is_none_or(|of| Some(of) == known.country);
    same.then_some(at as u32)
}

/// Draws a location in or near a country.
fn place(inputs: &Inputs, country: Country, hosts: &mut Hosts, draws: &mut Random) -> u32 {
    match &inputs.latency {
        Some(latency) => {
            let near = hosts.in_or_near(latency, country);
            near[draws.below(near.len())] as u32
        }
        None => hosts.country(country),
    }
}
