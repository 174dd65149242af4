//! One run's numbers as JSON. Keys end in the unit; values that were not measured are absent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tidegate_control::positions::Class;
use tidegate_control::units::Time;
use tidegate_sim::observe::HostTotals;
use tidegate_sim::plan::Plan;

use super::fairness::{self, Fairness};
use super::fold::Fold;
use super::histogram::{Histogram, supported};
use super::measured::{CAUSES, HOPS, Metrics, PARTS, RelayRow, UserRow};

/// Above this number of users, the summary has values per class only.
const MAX_USERS: usize = 5_000;

impl Fold<'_> {
    /// Ends the run and returns its metrics.
    pub(crate) fn finish(mut self) -> Metrics {
        let end = Time::ZERO + self.network.plan.duration;
        self.sample_backlog(end);
        self.transfers.finish(end);
        for user in &mut self.users {
            user.throughput_bytes_per_s = user.delivered_bytes as f64 / self.measured_s;
        }
        let rates: Vec<f64> = self.users.iter().map(|user| user.throughput_bytes_per_s).collect();
        // Bytes on the wire include headers and acknowledgements; fairness needs the efficiency of links.
        let on_wire = |host: u32, up: bool| {
            let relay = self.relays.get(&host)?;
            Some((if up { relay.sent_bytes } else { relay.received_bytes }) as f64 / relay.sampled_s)
        };
        let fairness = fairness::fairness(&self.network.plan, self.system, &rates, &on_wire);
        if let Some(Fairness { max_min, .. }) = &fairness {
            for (user, rate) in max_min {
                self.users[*user].max_min_bytes_per_s = Some(*rate);
            }
        }
        Metrics {
            summary: summary(&self, fairness.as_ref()),
            latency: self.latency,
            latency_from_departure: self.latency_from_departure,
            circuit_build: self.circuit_build,
            circuit_builds: self.circuit_builds,
            transfers: self.transfers,
            delivered: self.delivered,
            backlog: self.backlog,
            anatomy: self.anatomy,
            users: self.users,
            relays: self.relays.into_values().collect(),
            relayed_cells: self.relayed_cells,
        }
    }
}

fn summary(fold: &Fold<'_>, fairness: Option<&Fairness>) -> Value {
    let users = &fold.users;
    let mut all = Map::new();
    let mut put = |key: &str, value: Value| {
        // Absent keys mean "not measured" and keep the document small.
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        if !empty {
            all.insert(key.to_owned(), value);
        }
    };
    let total: f64 = users.iter().map(|user| user.throughput_bytes_per_s).sum();
    put("throughput_total_bytes_per_s", json!(total));
    put("throughput_bytes_per_s", per_user(users, |user| Some(user.throughput_bytes_per_s)));
    put("throughput_by_class_bytes_per_s", by_class(users));
    put("jain_index_by_class", jain_by_class(users));
    put("max_min_bytes_per_s", per_user(users, |user| user.max_min_bytes_per_s));
    if let Some(fairness) = fairness {
        put("fairness_index_by_rates", json!(fairness.by_rates));
        put("fairness_index_by_max_min", json!(fairness.by_max_min));
        put("jain_index", json!(fairness.jain));
    }
    for (name, histogram) in
        [("latency", &fold.latency), ("latency_from_departure", &fold.latency_from_departure)]
    {
        put(&format!("{name}_mean_s"), json!(histogram.mean()));
        for (label, q) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            put(&format!("{name}_{label}_s"), json!(histogram.quantile(q)));
        }
    }
    put("latency_mean_by_circuit_s", per_user(users, UserRow::latency_mean_s));
    put("latency_from_departure_mean_by_circuit_s", per_user(users, UserRow::latency_from_departure_mean_s));
    put("backlog_mean_bytes", json!(fold.backlog_sum as f64 / fold.backlog_samples.max(1) as f64));
    put("backlog_max_bytes", json!(fold.backlog_max));
    if let (sum, most, samples @ 1..) = fold.out_of_order {
        put("out_of_order_mean_bytes", json!(sum as f64 / samples as f64));
        put("out_of_order_max_bytes", json!(most));
    }
    transfers(fold, &mut put);
    put("circuits_built", json!(fold.circuits_built));
    put("circuit_build_s", times(&fold.circuit_build));
    let builds = fold.circuit_builds.iter().map(|(class, builds)| (class.clone(), times(builds)));
    put("circuit_build_by_class_s", builds.collect());
    put("utilisation", utilisation(&fold.network.plan, &fold.relays));
    put("switch_s", times(&fold.switched));
    put("switches", json!(fold.switched.total()));
    let parts = PARTS.iter().zip(&fold.switched_parts).filter(|(_, part)| part.total() > 0);
    put("switch_parts_s", parts.map(|(name, part)| ((*name).to_owned(), times(part))).collect());
    put("anatomy_mean_s", anatomy(fold));
    put("relays", fold.relays.values().map(|row| (row.name.clone(), relay(row))).collect());
    let queue = fold.relays.values().map(|row| row.means()[0].1).sum::<f64>();
    put("queue_mean_cells_per_relay", json!(queue / fold.relays.len().max(1) as f64));
    put("cells_processed", json!(fold.totals.cells_processed));
    put("cells_delivered", json!(fold.run.1));
    put("retransmissions", json!(fold.totals.retransmissions));
    put("tcp_timeouts", json!(fold.totals.timeouts));
    put("dropped_packets", json!(fold.totals.dropped_packets));
    put("connections_opened", json!(fold.totals.connections));
    let peak = |value: fn(&RelayRow) -> u64| fold.relays.values().map(value).max();
    put("descriptors_peak_per_relay", json!(peak(|row| row.totals.peak_descriptors)));
    put("kernel_peak_bytes_per_relay", json!(peak(|row| row.totals.peak_kernel_bytes)));
    put("control", control(&fold.totals));
    let endings = fold.totals.endings.iter().filter(|(_, number)| *number > 0);
    put("circuits_closed", endings.map(|(why, number)| (why.counter().to_owned(), json!(number))).collect());
    put("events", json!(fold.run.0));
    put("peak_pending_events", json!(fold.run.2));
    Value::Object(all)
}

fn per_user(users: &[UserRow], value: impl Fn(&UserRow) -> Option<f64>) -> Value {
    if users.len() > MAX_USERS {
        return Value::Null;
    }
    users.iter().filter_map(|user| Some((user.name.clone(), json!(value(user)?)))).collect()
}

fn by_class(users: &[UserRow]) -> Value {
    let mut classes: Map<String, Value> = Map::new();
    for user in users {
        let sum = classes.get(&user.class).and_then(Value::as_f64).unwrap_or(0.0);
        classes.insert(user.class.clone(), json!(sum + user.throughput_bytes_per_s));
    }
    Value::Object(classes)
}

/// Jain's index of the rates of each class's users: 1 if all are equal, 1/n if one user has everything.
fn jain_by_class(users: &[UserRow]) -> Value {
    let mut sums: BTreeMap<&str, (f64, f64, f64)> = BTreeMap::new();
    for user in users {
        let (count, sum, squares) = sums.entry(&user.class).or_default();
        *count += 1.0;
        *sum += user.throughput_bytes_per_s;
        *squares += user.throughput_bytes_per_s * user.throughput_bytes_per_s;
    }
    let some = sums.into_iter().filter(|(_, (_, _, squares))| *squares > 0.0);
    some.map(|(class, (n, sum, squares))| (class.to_owned(), json!(sum * sum / (n * squares)))).collect()
}

fn transfers(fold: &Fold<'_>, put: &mut impl FnMut(&str, Value)) {
    let classes = &fold.transfers.classes;
    let none = Histogram::default();
    for (key, pick) in [("connect_s", 0), ("ttfb_s", 1), ("ttlb_s", 2), ("round_trip_s", 3)] {
        let of = classes.iter().filter_map(|class| {
            let (ended, censored) = [
                (&class.connect, &none),
                (&class.first, &class.without_first),
                (&class.last, &class.without_last),
                (&class.round_trip, &none),
            ][pick];
            let value = censored_times(ended, censored);
            (!value.is_null()).then(|| (class.name.clone(), value))
        });
        put(key, of.collect());
    }
    // Published download times often leave out failed downloads.
    let completed = classes.iter().map(|class| (class.name.clone(), times(&class.last)));
    put("ttlb_completed_s", completed.filter(|(_, times)| !times.is_null()).collect());
    let counts = classes.iter().map(|class| {
        let done = class.last.total();
        (
            class.name.clone(),
            json!({ "begun": class.begun, "completed": done, "timed_out": class.timed_out,
                "timed_out_share": class.timed_out as f64 / (class.timed_out + done).max(1) as f64 }),
        )
    });
    put("transfers", counts.collect());
}

/// Count, mean, standard deviation and quantiles of times in seconds; null without values.
fn times(histogram: &Histogram) -> Value {
    censored_times(histogram, &Histogram::default())
}

/// The same with right-censored times: `censored` counts them, and quantiles are Kaplan and Meier's.
///
/// Mean and deviation are those of the times that ended. Quantiles that n values do not support are left out
/// ([`supported`]), as are those that too few times reached.
fn censored_times(histogram: &Histogram, censored: &Histogram) -> Value {
    if histogram.total() == 0 {
        return Value::Null;
    }
    let n = histogram.total() + censored.total();
    let mut all = Map::new();
    all.insert("count".into(), json!(histogram.total()));
    if censored.total() > 0 {
        all.insert("censored".into(), json!(censored.total()));
    }
    all.insert("mean".into(), json!(histogram.mean()));
    all.insert("deviation".into(), json!(histogram.deviation()));
    for (label, q) in
        [("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)]
    {
        if let Some(value) = histogram.quantile_censored(censored, q).filter(|_| supported(n, q)) {
            all.insert(label.into(), json!(value));
        }
    }
    Value::Object(all)
}

fn anatomy(fold: &Fold<'_>) -> Value {
    let hops = HOPS.iter().zip(&fold.anatomy).filter(|(_, anatomy)| anatomy.cells > 0);
    hops.map(|(hop, anatomy)| {
        let mut causes: Map<String, Value> = CAUSES
            .iter()
            .zip(anatomy.means())
            .map(|(cause, mean)| ((*cause).to_owned(), json!(mean)))
            .collect();
        causes.insert("cells".into(), json!(anatomy.cells));
        ((*hop).to_owned(), Value::Object(causes))
    })
    .collect()
}

fn relay(row: &RelayRow) -> Value {
    let mut all: Map<String, Value> =
        row.means().into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    all.insert("queue_max_cells".into(), json!(row.queue_max_cells));
    all.insert("cells_processed".into(), json!(row.cells_processed));
    for (key, value) in ["uplink_utilisation", "downlink_utilisation"].into_iter().zip(row.utilisation()) {
        if let Some(value) = value {
            all.insert(key.into(), json!(value));
        }
    }
    all.insert("dropped_packets".into(), json!(row.totals.dropped_packets));
    all.insert("retransmissions".into(), json!(row.totals.retransmissions));
    all.insert("descriptors_peak".into(), json!(row.totals.peak_descriptors));
    all.insert("kernel_peak_bytes".into(), json!(row.totals.peak_kernel_bytes));
    if row.totals.control.is_some() {
        all.insert("control".into(), control(&row.totals));
    }
    Value::Object(all)
}

/// Share of relays' capacity used after the warm-up: of all relays, and by class. Unlimited relays are left out.
fn utilisation(plan: &Plan, rows: &BTreeMap<u32, RelayRow>) -> Value {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for relay in &plan.directory.relays {
        let (Some(row), Some(host)) = (rows.get(&relay.id.0), plan.hosts.get(relay.id.0 as usize)) else {
            continue;
        };
        let carried = row.sent_per_s();
        let possible = host.capacity();
        let class = match relay.class {
            Class::Middle => "middle",
            Class::Guard => "guard",
            Class::Exit => "exit",
            Class::GuardExit => "guard_and_exit",
        };
        if possible.is_finite() {
            for key in ["network", class] {
                let (sent, limit) = sums.entry(key).or_default();
                *sent += carried;
                *limit += possible;
            }
        }
    }
    sums.into_iter().map(|(key, (sent, limit))| (key.to_owned(), json!(sent / limit))).collect()
}

/// Statistics of PredicTor's controllers over the whole run; null without controllers.
fn control(totals: &HostTotals) -> Value {
    totals.control.map_or(Value::Null, |did| {
        json!({
            "solves": did.solves,
            "circuits_per_solve": did.circuits as f64 / did.solves.max(1) as f64,
            "fallbacks": did.fallbacks,
            "left_to_windows": did.left_to_windows,
            "refused_trajectories": did.refused,
            "message_bytes": did.sent_bytes,
        })
    })
}
