//! How close rates are to max-min fair ones (`specs/predictor.md`, section 4).

use tidegate_control::maxmin::Sharing;
use tidegate_control::units::Rate;
use tidegate_sim::plan::{Plan, RequestPlan, Role, Route, System, Traffic};

/// Cell bytes on the wire and their payload (tor-spec, 3 and 6.1).
const CELL: f64 = 514.0;
const PAYLOAD: f64 = 498.0;

/// Fairness of the endless transfers of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Fairness {
    /// (user, max-min fair rate in application bytes/s).
    pub max_min: Vec<(usize, f64)>,
    /// sum min(r, r*) / sum r: the share of traffic that behaves according to max-min fairness.
    pub by_rates: f64,
    /// sum min(r, r*) / sum r*: this one also falls when capacity is left unused.
    pub by_max_min: f64,
    /// Jain's index of the rates; fair only where all share one bottleneck.
    pub jain: f64,
}

/// Compares measured rates (application bytes/s per user) with max-min fair ones, over the users with an
/// endless transfer on pinned relays; none if there are no such users or they have other company.
pub fn fairness(plan: &Plan, system: &System, rates: &[f64]) -> Option<Fairness> {
    let mut resources = Resources { capacities: Vec::new(), known: std::collections::BTreeMap::new() };
    let mut circuits = Vec::new();
    let share = payload_share(system);
    for user in &plan.users {
        let Route::Pinned(path) = user.route else { return None };
        if !is_endless(&user.traffic) {
            return None;
        }
        let server = *user.servers.first()?;
        let way = [server, path[2], path[1], path[0], user.host];
        let mut used = Vec::new();
        for hop in way.windows(2) {
            if machine(plan, hop[0]) != machine(plan, hop[1]) {
                used.push(resources.link(plan, hop[0], true, share));
                used.push(resources.link(plan, hop[1], false, share));
            }
        }
        used.extend(path.iter().filter_map(|relay| resources.bucket(plan, *relay, share)));
        circuits.push(used.into_iter().flatten().collect::<Vec<usize>>());
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

/// Application bytes per byte of IP: full cells in full segments, one TLS record per segment's worth. The
/// other direction's acknowledgements and SENDMEs are left out.
fn payload_share(system: &System) -> f64 {
    let mss = f64::from(system.tcp.mss);
    let segment = mss / (mss + f64::from(system.tcp.header_bytes));
    let record = f64::from(system.tls_record_cells.max(1)) * CELL;
    PAYLOAD / CELL * segment * record / (record + f64::from(system.tls_record_overhead))
}

fn is_endless(traffic: &Traffic) -> bool {
    let endless = |request: &RequestPlan| request.bytes == u64::MAX;
    matches!(traffic, Traffic::Fetch { requests, .. } if requests.iter().all(endless))
}

fn machine(plan: &Plan, host: u32) -> u32 {
    plan.hosts[host as usize].colocated.unwrap_or(host)
}

struct Resources {
    capacities: Vec<f64>,
    /// (host, what) -> index of its capacity: 0 uplink, 1 downlink, 2 bucket.
    known: std::collections::BTreeMap<(u32, u8), usize>,
}

impl Resources {
    fn number(&mut self, key: (u32, u8), capacity: f64) -> usize {
        let capacities = &mut self.capacities;
        *self.known.entry(key).or_insert_with(|| {
            capacities.push(capacity);
            capacities.len() - 1
        })
    }

    fn link(&mut self, plan: &Plan, host: u32, up: bool, share: f64) -> Option<usize> {
        let host_plan = &plan.hosts[host as usize];
        let rate = if up { host_plan.up.rate } else { host_plan.down.rate };
        (rate != Rate::UNLIMITED).then(|| self.number((host, u8::from(!up)), rate.as_bytes_per_s() * share))
    }

    fn bucket(&mut self, plan: &Plan, relay: u32, share: f64) -> Option<Option<usize>> {
        let Role::Relay(limits) = &plan.hosts[relay as usize].role else { return None };
        let rate = limits.bucket?.rate_bytes_per_s as f64;
        Some(Some(self.number((relay, 2), rate * share)))
    }
}
