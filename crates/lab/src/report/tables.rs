//! The result tables, as columns for CSV and Parquet.

use std::collections::BTreeMap;

use tidegate_control::units::Span;

use crate::metrics::known::RelayAbout;
use crate::results::{Results, flatten, whole_summary};

/// A table by columns of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// File name without ending.
    pub name: &'static str,
    /// Columns in order.
    pub columns: Vec<(String, Column)>,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Text.
    Text(Vec<String>),
    /// Whole numbers.
    Integer(Vec<i64>),
    /// Numbers; NaN for missing values.
    Number(Vec<f64>),
}

impl Column {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Column::Text(values) => values.len(),
            Column::Integer(values) => values.len(),
            Column::Number(values) => values.len(),
        }
    }

    /// One value as text; empty if missing.
    pub(crate) fn text(&self, row: usize) -> String {
        match self {
            Column::Text(values) => values[row].clone(),
            Column::Integer(values) => values[row].to_string(),
            Column::Number(values) if values[row].is_nan() => String::new(),
            Column::Number(values) => values[row].to_string(),
        }
    }
}

impl Table {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// The table as CSV (RFC 4180, except that lines end in LF).
    pub(crate) fn csv(&self) -> Vec<u8> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let names = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let rows =
            (0..self.rows()).map(|row| self.columns.iter().map(|(_, column)| column.text(row)).collect());
        for row in std::iter::once(names).chain(rows) {
            let row: Vec<String> = row;
            writer.write_record(row).expect("writing to memory cannot fail, and rows have equal length");
        }
        writer.into_inner().expect("writing to memory cannot fail")
    }
}

/// Collects rows of (system, seed, ...).
struct Rows {
    system: Vec<String>,
    seed: Vec<i64>,
}

impl Rows {
    fn new() -> Rows {
        Rows { system: Vec::new(), seed: Vec::new() }
    }

    fn add(&mut self, system: &str, seed: u64) {
        self.system.push(system.to_owned());
        self.seed.push(seed.cast_signed());
    }

    fn table(self, name: &'static str, more: Vec<(&'static str, Column)>) -> Table {
        let mut columns = vec![("system", Column::Text(self.system)), ("seed", Column::Integer(self.seed))];
        columns.extend(more);
        Table { name, columns: columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect() }
    }
}

/// Makes a table of results.
pub type Tabulate = fn(&Results<'_>) -> Table;

/// All tables of a scenario's results.
pub const ALL: [Tabulate; 6] = [metrics, circuits, relays, transfers, series, latency];

/// Every number of every run: one row per (system, seed, metric).
fn metrics(results: &Results<'_>) -> Table {
    let (mut rows, mut names, mut values) = (Rows::new(), Vec::new(), Vec::new());
    for system in &results.systems {
        for run in &system.runs {
            for (name, value) in flatten(&whole_summary(run)) {
                rows.add(system.name, run.seed);
                names.push(name);
                values.push(value);
            }
        }
    }
    rows.table("metrics", vec![("metric", Column::Text(names)), ("value", Column::Number(values))])
}

/// One row per user, who has one circuit at a time for new streams.
fn circuits(results: &Results<'_>) -> Table {
    let (mut rows, mut text, mut numbers) = (Rows::new(), [vec![], vec![]], [vec![], vec![], vec![], vec![]]);
    for system in &results.systems {
        for run in &system.runs {
            for user in &run.metrics.users {
                rows.add(system.name, run.seed);
                text[0].push(user.name.clone());
                text[1].push(user.class.clone());
                numbers[0].push(user.throughput_bytes_per_s);
                numbers[1].push(user.max_min_bytes_per_s.unwrap_or(f64::NAN));
                numbers[2].push(user.latency_mean_s().unwrap_or(f64::NAN));
                numbers[3].push(user.latency_from_departure_mean_s().unwrap_or(f64::NAN));
            }
        }
    }
    let ([name, class], [rate, fair, latency, departure]) = (text, numbers);
    rows.table(
        "circuits",
        vec![
            ("user", Column::Text(name)),
            ("class", Column::Text(class)),
            ("throughput_bytes_per_s", Column::Number(rate)),
            ("max_min_bytes_per_s", Column::Number(fair)),
            ("latency_mean_s", Column::Number(latency)),
            ("latency_from_departure_mean_s", Column::Number(departure)),
        ],
    )
}

/// One row per relay; `relay` is what transfers name.
fn relays(results: &Results<'_>) -> Table {
    let (mut rows, mut names) = (Rows::new(), [const { Vec::new() }; 6]);
    let (mut known, mut families) = ([const { Vec::new() }; 3], Vec::new());
    let (mut means, mut shares) = ([const { Vec::new() }; 5], [const { Vec::new() }; 2]);
    let mut counts = [const { Vec::new() }; 4];
    let mut labels = [""; 5];
    for system in &results.systems {
        for run in &system.runs {
            for relay in &run.metrics.relays {
                rows.add(system.name, run.seed);
                let about = relay.about.clone();
                let RelayAbout { nickname, fingerprint, flags, country, positions, .. } = about;
                let text = [relay.name.clone(), nickname, fingerprint, flags, country, positions];
                names.iter_mut().zip(text).for_each(|(column, value)| column.push(value));
                let capacity = about.capacity_bytes_per_s.unwrap_or(f64::NAN);
                let numbers = [about.weight, about.advertised_bytes_per_s, capacity];
                known.iter_mut().zip(numbers).for_each(|(column, value)| column.push(value));
                families.push(i64::from(about.family));
                for (number, (label, value)) in relay.means().into_iter().enumerate() {
                    labels[number] = label;
                    means[number].push(value);
                }
                for (column, share) in shares.iter_mut().zip(relay.utilisation()) {
                    column.push(share.unwrap_or(f64::NAN));
                }
                let totals = &relay.totals;
                let values =
                    [relay.cells_processed, totals.dropped_packets, totals.retransmissions, totals.timeouts];
                counts.iter_mut().zip(values).for_each(|(column, value)| column.push(value.cast_signed()));
            }
        }
    }
    let texts = ["relay", "nickname", "fingerprint", "flags", "country", "positions"];
    let mut columns: Vec<(&str, Column)> = texts.into_iter().zip(names.map(Column::Text)).collect();
    let numbers = ["weight_kb_per_s", "advertised_bytes_per_s", "capacity_bytes_per_s"];
    columns.extend(numbers.into_iter().zip(known.map(Column::Number)));
    columns.push(("family", Column::Integer(families)));
    columns.extend(labels.into_iter().zip(means.map(Column::Number)).filter(|(label, _)| !label.is_empty()));
    columns
        .extend(["uplink_utilisation", "downlink_utilisation"].into_iter().zip(shares.map(Column::Number)));
    let labels = ["cells_processed", "dropped_packets", "retransmissions", "tcp_timeouts"];
    columns.extend(labels.into_iter().zip(counts.map(Column::Integer)));
    rows.table("relays", columns)
}

/// The steps of a transfer, in their order.
const STEPS: [&str; 8] = [
    "begun_s",
    "circuit_begun_s",
    "circuit_built_s",
    "opened_s",
    "connect_s",
    "ttfb_s",
    "ttlb_s",
    "given_up_s",
];

/// One row per transfer that began after the warm-up. `guard`, `middle` and `exit` join with `relay` of the relays
/// table, `user` with `user` of the circuits table; times count from the request, those of the circuit are below zero if
/// it was there before.
fn transfers(results: &Results<'_>) -> Table {
    let (mut rows, mut text, mut whole) = (Rows::new(), [const { Vec::new() }; 5], [const { Vec::new() }; 3]);
    let (mut times, mut rates) = ([const { Vec::new() }; STEPS.len()], [const { Vec::new() }; 2]);
    for system in &results.systems {
        for run in &system.runs {
            let metrics = &run.metrics;
            let names: BTreeMap<u32, &String> =
                metrics.relays.iter().map(|relay| (relay.host, &relay.name)).collect();
            let name = |host: u32| names.get(&host).map_or_else(String::new, |name| (*name).clone());
            for record in &metrics.transfers.records {
                rows.add(system.name, run.seed);
                let [guard, middle, exit] = record.path.map(name);
                let user = metrics.users[record.user as usize].name.clone();
                let class = metrics.transfers.classes[record.class].name.clone();
                text.iter_mut()
                    .zip([user, class, guard, middle, exit])
                    .for_each(|(column, v)| column.push(v));
                // Endless transfers exceed i64.
                let bytes = i64::try_from(record.bytes).unwrap_or(i64::MAX);
                let numbers = [i64::from(record.circuit), bytes, i64::from(record.timed_out)];
                whole.iter_mut().zip(numbers).for_each(|(column, value)| column.push(value));
                let goodput = record.goodput_bytes_per_s.map(|rate| rate.unwrap_or(f64::NAN));
                rates.iter_mut().zip(goodput).for_each(|(column, rate)| column.push(rate));
                let signed = |ns: Option<i64>| ns.map_or(f64::NAN, |ns| ns as f64 / 1e9);
                let span = |span: Option<Span>| span.map_or(f64::NAN, |span| span.as_secs_f64());
                let steps = [
                    record.begun.as_secs_f64(),
                    signed(record.circuit_begun_ns),
                    signed(record.circuit_built_ns),
                    span(record.opened),
                    span(record.connected),
                    span(record.first),
                    span(record.last),
                    span(record.given_up),
                ];
                times.iter_mut().zip(steps).for_each(|(column, value)| column.push(value));
            }
        }
    }
    let mut columns: Vec<(&str, Column)> =
        ["user", "class", "guard", "middle", "exit"].into_iter().zip(text.map(Column::Text)).collect();
    columns.extend(["circuit", "size_bytes", "timed_out"].into_iter().zip(whole.map(Column::Integer)));
    columns.extend(STEPS.into_iter().zip(times.map(Column::Number)));
    let names = ["goodput_to_1mib_bytes_per_s", "goodput_5th_mib_bytes_per_s"];
    columns.extend(names.into_iter().zip(rates.map(Column::Number)));
    rows.table("transfers", columns)
}

/// Rates and backlog over time: one row per (system, seed, curve, bin).
fn series(results: &Results<'_>) -> Table {
    let (mut rows, mut kinds, mut names) = (Rows::new(), Vec::new(), Vec::new());
    let (mut times, mut values) = (Vec::new(), Vec::new());
    for system in &results.systems {
        for run in &system.runs {
            let metrics = &run.metrics;
            let mut add = |kind: &str, name: &str, until: f64, value: f64| {
                rows.add(system.name, run.seed);
                kinds.push(kind.to_owned());
                names.push(name.to_owned());
                times.push(until);
                values.push(value);
            };
            let (delivered, backlog) = (&metrics.delivered, &metrics.backlog);
            for (name, curve) in delivered.names.iter().zip(&delivered.curves) {
                delivered.rates(curve).for_each(|(until, rate)| add("rate_bytes_per_s", name, until, rate));
            }
            // A bin is labelled with its end, at which backlog is sampled.
            for (name, curve) in backlog.names.iter().zip(&backlog.curves) {
                backlog.samples(curve).for_each(|(until, bytes)| add("backlog_bytes", name, until, bytes));
            }
        }
    }
    rows.table(
        "series",
        vec![
            ("quantity", Column::Text(kinds)),
            ("curve", Column::Text(names)),
            ("until_s", Column::Number(times)),
            ("value", Column::Number(values)),
        ],
    )
}

/// The latency's distribution function.
fn latency(results: &Results<'_>) -> Table {
    let (mut rows, mut times, mut shares) = (Rows::new(), Vec::new(), Vec::new());
    for system in &results.systems {
        for run in &system.runs {
            for (seconds, share) in run.metrics.latency.distribution(200) {
                rows.add(system.name, run.seed);
                times.push(seconds);
                shares.push(share);
            }
        }
    }
    rows.table(
        "latency",
        vec![("latency_at_most_s", Column::Number(times)), ("share_of_bytes", Column::Number(shares))],
    )
}
