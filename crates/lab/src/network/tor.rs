//! A scaled-down Tor: relays sampled from a consensus, drawn by the positions' weights, placed by country.

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span};
use tidegate_data::consensus::Relay;
use tidegate_data::country::Country;
use tidegate_data::latency::LatencyTable;
use tidegate_data::sample::{Representative, sample};
use tidegate_data::weights::{PositionWeights, candidates, exclusions};
use tidegate_sim::plan::{BucketPlan, LinkPlan, PathSelection, RelayLimits, Role};

use super::builtin;
use super::hosts::Hosts;
use super::inputs::Inputs;
use crate::scenario::tables::TorFile;

/// Adds sampled relays and servers; gives how clients draw paths.
///
/// A relay's token bucket holds it to its consensus weight in kB/s times the file's factor; its link is a
/// quarter faster. The bucket is refilled each 2^24 ns, and connections that find it empty try again after
/// 100 ms, as in tor since 0.3.5 (`experiments/real-tor/s4`).
pub(super) fn network(table: &TorFile, inputs: &Inputs, hosts: &mut Hosts, seed: Seed) -> PathSelection {
    let consensus = inputs.consensus.as_ref().expect("a [tor] table has a consensus");
    let fraction = match &table.relays {
        Some(relays) => f64::from(*relays) / consensus.relays.len().max(1) as f64,
        None => table.fraction,
    };
    let chosen = sample(&consensus.relays, fraction.min(1.0), Representative::Drawn(seed.fork("sample")));
    let relays: Vec<&Relay> = chosen.iter().map(|index| &consensus.relays[*index]).collect();
    let weights = PositionWeights::of(consensus);
    let first = hosts.count() as u32;
    for (number, relay) in relays.iter().enumerate() {
        let mut draws = seed.fork("relays").fork_index(number as u64).random();
        let known = inputs.geoip.as_ref().and_then(|geoip| geoip.country(relay.address));
        let country = known.unwrap_or_else(|| builtin::relay_country(&mut draws));
        // Below 50 kB/s a relay would carry next to nothing for minutes.
        let scaled = f64::from(relay.bandwidth) * table.bandwidth_factor;
        let rate_bytes_per_s = (scaled.max(50.0) * 1000.0) as u64;
        let rate = Rate::from_bytes_per_s(rate_bytes_per_s * 5 / 4);
        let link = LinkPlan { rate, queue: table.queue.0 };
        let refill_every = Span(1 << 24);
        let burst_bytes = rate_bytes_per_s;
        let bucket = BucketPlan { rate_bytes_per_s, burst_bytes, refill_every, drop_fractions: false };
        let limits = RelayLimits {
            bucket: Some(bucket),
            retry_after: Span::from_millis(100),
            ..RelayLimits::default()
        };
        let place = place(inputs, country, hosts, &mut draws);
        hosts.add_at(&format!("relay{}", number + 1), Role::Relay(limits), link, link, place);
    }
    for number in 0..table.servers {
        let mut draws = seed.fork("servers").fork_index(number.into()).random();
        let link = LinkPlan { rate: table.server_link, queue: table.queue.0 };
        let country = builtin::relay_country(&mut draws);
        let place = place(inputs, country, hosts, &mut draws);
        hosts.add_at(&format!("server{}", number + 1), Role::Server, link, link, place);
    }
    let picks = candidates(relays.iter().copied(), &weights);
    let numbered = |list: Vec<(usize, f64)>| {
        list.into_iter().map(|(index, weight)| (first + index as u32, weight)).collect::<Vec<(u32, f64)>>()
    };
    let mut families = vec![0; first as usize];
    families.extend(exclusions(relays.iter().copied(), []));
    PathSelection {
        guards: numbered(picks.guards),
        middles: numbered(picks.middles),
        exits: numbered(picks.exits),
        families,
    }
}

/// Adds a client somewhere on earth.
pub(super) fn client(
    table: &TorFile,
    inputs: &Inputs,
    hosts: &mut Hosts,
    name: &str,
    draws: &mut Random,
) -> u32 {
    let link = |rate| LinkPlan { rate, queue: table.queue.0 };
    let place = place(inputs, builtin::client_country(draws), hosts, draws);
    hosts.add_at(name, Role::Client, link(table.client_up), link(table.client_down), place)
}

/// A location in (or near) a country.
fn place(inputs: &Inputs, country: Country, hosts: &mut Hosts, draws: &mut Random) -> u32 {
    match &inputs.latency {
        Some(latency) => pick(latency, country, draws),
        None => hosts.country(country),
    }
}

fn pick(latency: &LatencyTable, country: Country, draws: &mut Random) -> u32 {
    let near = latency.in_or_near(country);
    near[draws.below(near.len())] as u32
}
