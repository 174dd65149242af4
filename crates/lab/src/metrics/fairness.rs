//! Fairness of rates relative to max-min fair rates (PredicTor, section 4).

use std::collections::BTreeMap;

use tidegate_control::maxmin::Sharing;
use tidegate_control::units::Rate;
use tidegate_sim::plan::{Plan, RequestPlan, Role, Route, System, Traffic};

/// Cell bytes on the wire and their payload (tor-spec, 3 and 6.1).
const CELL: f64 = 514.0;
const PAYLOAD: f64 = 498.0;

/// Fairness of a run in which all transfers are endless.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fairness {
    /// (user, max-min fair rate in application bytes/s).
    pub max_min: Vec<(usize, f64)>,
    /// sum min(r, r*) / sum r: share of the traffic within the max-min fair rates r*.
    pub by_rates: f64,
    /// sum min(r, r*) / sum r*: share of the max-min fair rates that is reached; unused capacity lowers it.
    pub by_max_min: f64,
    /// Jain's index of the rates; meaningful only if all users share one bottleneck.
    pub jain: f64,
}

/// Compares measured rates (application bytes/s per user) with max-min fair ones.
///
/// `None` unless every user has an endless transfer on pinned relays.
///
/// Capacities of links are in application bytes, at the efficiency of this run, which accounts for headers, records,
/// SENDMEs and acknowledgements of the other direction. `on_wire(host, up)` is the rate in bytes/s on a relay's link,
/// if it is known.
pub(crate) fn fairness(
    plan: &Plan,
    system: &System,
    rates: &[f64],
    on_wire: &dyn Fn(u32, bool) -> Option<f64>,
) -> Option<Fairness> {
    let mut ways = Vec::new();
    for user in &plan.users {
        let Route::Pinned(path) = user.route else { return None };
        if !is_endless(&user.traffic) {
            return None;
        }
        ways.push([*user.servers.first()?, path[2], path[1], path[0], user.host]);
    }
    let mut resources = Resources { capacities: Vec::new(), known: BTreeMap::new(), shares: BTreeMap::new() };
    let mut carried: BTreeMap<(u32, bool), f64> = BTreeMap::new();
    for (way, rate) in ways.iter().zip(rates) {
        for link in links(plan, way) {
            *carried.entry(link).or_default() += rate;
        }
    }
    let default_share = payload_share(system);
    for ((host, up), rate) in carried {
        let capacity = link_rate(plan, host, up).as_bytes_per_s();
        // An almost idle link gives a poor estimate of its efficiency.
        let measured = on_wire(host, up).filter(|wire| *wire > 0.05 * capacity).map(|wire| rate / wire);
        resources.shares.insert((host, up), measured.filter(|share| *share > 0.0).unwrap_or(default_share));
    }
    let mut circuits = Vec::new();
    for way in &ways {
        let mut used: Vec<usize> =
            links(plan, way).filter_map(|(host, up)| resources.link(plan, host, up)).collect();
        used.extend(way[1..4].iter().filter_map(|relay| resources.bucket(plan, *relay, default_share)));
        circuits.push(used);
    }
    let sharing = Sharing::new(resources.capacities, circuits).ok()?;
    let fair = sharing.max_min().rates;
    let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
    let kept = sum(&mut rates.iter().zip(&fair).map(|(rate, fair)| rate.min(*fair)));
    let (total, fair_total) = (sum(&mut rates.iter().copied()), sum(&mut fair.iter().copied()));
    let squares = sum(&mut rates.iter().map(|rate| rate * rate));
    if total <= 0.0 {
        return None;
    }
    Some(Fairness {
        by_rates: kept / total,
        by_max_min: kept / fair_total,
        jain: total * total / (rates.len() as f64 * squares),
        max_min: fair.into_iter().enumerate().collect(),
    })
}

/// Application bytes per IP byte of an unmeasured link: full cells in full segments and records.
fn payload_share(system: &System) -> f64 {
    let mss = f64::from(system.tcp.mss);
    let segment = mss / (mss + f64::from(system.tcp.header_bytes));
    let record = f64::from(system.tls.record_cells.max(1)) * CELL;
    PAYLOAD / CELL * segment * record / (record + f64::from(system.tls.record_overhead))
}

fn is_endless(traffic: &Traffic) -> bool {
    let endless = |request: &RequestPlan| request.bytes == u64::MAX;
    matches!(traffic, Traffic::Fetch { requests, .. } if requests.iter().all(endless))
}

fn machine(plan: &Plan, host: u32) -> u32 {
    plan.hosts[host as usize].colocated.unwrap_or(host)
}

fn link_rate(plan: &Plan, host: u32, up: bool) -> Rate {
    let host = &plan.hosts[host as usize];
    if up { host.up.rate } else { host.down.rate }
}

/// The links that data crosses: (machine, is uplink). Hosts on one machine are connected without links.
fn links(plan: &Plan, way: &[u32; 5]) -> impl Iterator<Item = (u32, bool)> {
    let machines = way.map(|host| machine(plan, host));
    let pairs: Vec<(u32, u32)> = machines.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter().filter(|(from, to)| from != to).flat_map(|(from, to)| [(from, true), (to, false)])
}

struct Resources {
    capacities: Vec<f64>,
    /// (host, what) -> index of its capacity: 0 uplink, 1 downlink, 2 bucket.
    known: BTreeMap<(u32, u8), usize>,
    /// Application bytes per byte on a link.
    shares: BTreeMap<(u32, bool), f64>,
}

impl Resources {
    fn number(&mut self, key: (u32, u8), capacity: f64) -> usize {
        let capacities = &mut self.capacities;
        *self.known.entry(key).or_insert_with(|| {
            capacities.push(capacity);
            capacities.len() - 1
        })
    }

    fn link(&mut self, plan: &Plan, host: u32, up: bool) -> Option<usize> {
        let rate = link_rate(plan, host, up);
        let share = self.shares[&(host, up)];
        (rate != Rate::UNLIMITED).then(|| self.number((host, u8::from(!up)), rate.as_bytes_per_s() * share))
    }

    fn bucket(&mut self, plan: &Plan, relay: u32, share: f64) -> Option<usize> {
        let Role::Relay(limits) = &plan.hosts[relay as usize].role else { return None };
        let rate = limits.bucket?.rate_bytes_per_s as f64;
        Some(self.number((relay, 2), rate * share))
    }
}
