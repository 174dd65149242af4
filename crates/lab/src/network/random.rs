//! Random networks: relays with random link rates, circuits of three random relays (PredicTor, section 5.3).

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span};
use tidegate_sim::plan::{BucketPlan, LinkPlan, RelayLimits, Role, Route};

use super::hosts::{Hosts, limits};
use crate::scenario::quantity::Between;
use crate::scenario::tables::RandomFile;
use crate::scenario::users::UserFile;

/// Adds the relays.
pub(super) fn relays(table: &RandomFile, hosts: &mut Hosts, seed: Seed) {
    for number in 0..table.relays {
        let rate = draw(table.relay_link, &mut seed.fork_index(number.into()).random());
        let link = LinkPlan { rate, queue: table.queue.0 };
        let share = table.bandwidth_share;
        let throttle = (share < 1.0 && rate != Rate::UNLIMITED).then(|| throttled(rate, share));
        let configured = limits(table.bandwidth.as_ref());
        let limits = RelayLimits { bucket: throttle.or(configured.bucket), ..configured };
        hosts.add(&format!("relay{}", number + 1), Role::Relay(limits), link, link, None);
    }
}

/// A token bucket with a share of the link's rate, refilled every 100 ms.
fn throttled(link: Rate, share: f64) -> BucketPlan {
    let rate_bytes_per_s = ((link.as_bytes_per_s() * share) as u64).max(1);
    let refill_every = Span::from_millis(100);
    BucketPlan { rate_bytes_per_s, burst_bytes: rate_bytes_per_s, refill_every, drop_fractions: false }
}

/// Draws three different relays for a user, and adds its client and server.
pub(super) fn circuit(
    table: &RandomFile,
    hosts: &mut Hosts,
    user: &UserFile,
    draws: &mut Random,
) -> (Route, u32, u32) {
    let relays = table.relays as usize;
    // In a random network the relays are the first hosts, so indices are host numbers.
    let mut path = [0u32; 3];
    for hop in 0..3 {
        path[hop] = loop {
            let relay = draws.below(relays) as u32;
            if !path[..hop].contains(&relay) {
                break relay;
            }
        };
    }
    let (client, server) = match table.end_link {
        None => hosts.ends(user, path),
        Some(range) => {
            let number = hosts.count();
            let mut end = |role: Role, kind: &str, draws: &mut Random| {
                let link = LinkPlan { rate: draw(range, draws), queue: table.queue.0 };
                hosts.add(&format!("{kind}{number}"), role, link, link, None)
            };
            (end(Role::Client, "client", draws), end(Role::Server, "server", draws))
        }
    };
    (Route::Pinned(path), client, server)
}

/// Draws a second path to the same exit over two other relays, if there are enough.
pub(super) fn second_path(table: &RandomFile, first: &Route, draws: &mut Random) -> Option<[u32; 3]> {
    let Route::Pinned(first) = first else { return None };
    let mut others: Vec<u32> = (0..table.relays).filter(|relay| !first.contains(relay)).collect();
    if others.len() < 2 {
        return None;
    }
    draws.shuffle(&mut others);
    Some([others[0], others[1], first[2]])
}

fn draw(range: Between<Rate>, draws: &mut Random) -> Rate {
    if range.low == range.high {
        return range.low;
    }
    Rate(draws.uniform(range.low.0 as f64, range.high.0 as f64) as u64)
}
