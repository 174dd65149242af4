//! Exports `tornet.plot.data/*.json` for `tornettools plot`, as its `parse` step writes them from Shadow's logs.
//!
//! Goodput is in Mibit/s, over 500 KiB to 1 MiB and over the fifth MiB. Error rates are pairs of percentage and
//! resolution, one per client. Relays' goodput is the sum of bytes in each second.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_control::units::Span;
use tidegate_proto::cell::CELL_BYTES;

use crate::input::InputError;
use crate::metrics::transfers::Record as Transfer;
use crate::report::folder::ResultFile;
use crate::store::Record;

use super::clients;

/// The files of a run. `class` selects the users that are clients; `parameters` are the study's.
///
/// # Errors
/// If the class is unknown.
pub fn files(record: &Record, parameters: &Value, class: &str) -> Result<Vec<ResultFile>, InputError> {
    let transfers = clients(record, class)?;
    let goodput = |span: usize| -> Value {
        let rates = transfers.iter().filter_map(|transfer| transfer.goodput_bytes_per_s[span]);
        rates.map(|rate| rate * 8.0 / f64::from(1 << 20)).collect()
    };
    // tornettools computes the round trip from these two times.
    let round_trips =
        transfers.iter().filter_map(|transfer| Some(seconds(transfer.first? - transfer.connected?)));
    let all = [
        ("round_trip_time.exit", round_trips.collect()),
        ("time_to_first_byte_recv.exit", times(&transfers, |transfer| transfer.first)),
        ("time_to_last_byte_recv.exit", times(&transfers, |transfer| transfer.last)),
        ("error_rate.exit", error_rates(&transfers)),
        ("perfclient_goodput.exit", goodput(0)),
        ("perfclient_goodput_5MiB.exit", goodput(1)),
        ("perfclient_circuit_build_time.exit", circuit_build_times(record, class)),
        ("relay_goodput", relay_goodput(record, parameters)),
        ("resource_usage", resource_usage(record, parameters)),
        ("simulation_info", simulation_info(record, parameters, class)),
    ];
    Ok(all
        .into_iter()
        .map(|(name, value)| (format!("{name}.json"), value.to_string().into_bytes()))
        .collect())
}

fn seconds(span: Span) -> f64 {
    span.as_secs_f64()
}

/// A time of finished transfers, by size; `ALL` has all sizes.
fn times(transfers: &[&Transfer], time: fn(&Transfer) -> Option<Span>) -> Value {
    let mut by_size: BTreeMap<String, Vec<f64>> = BTreeMap::from([("ALL".to_owned(), Vec::new())]);
    for transfer in transfers {
        let (Some(took), Some(_)) = (time(transfer), transfer.last) else { continue };
        for size in ["ALL".to_owned(), transfer.bytes.to_string()] {
            by_size.entry(size).or_default().push(seconds(took));
        }
    }
    json!(by_size)
}

/// Per client with ended transfers: (percentage of errors, percentage of one transfer).
fn error_rates(transfers: &[&Transfer]) -> Value {
    let mut ended: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for transfer in transfers.iter().filter(|transfer| transfer.timed_out || transfer.last.is_some()) {
        let (all, late) = ended.entry(transfer.user).or_default();
        *all += 1;
        *late += u32::from(transfer.timed_out);
    }
    let pair =
        |(all, late): &(u32, u32)| [100.0 * f64::from(*late) / f64::from(*all), 100.0 / f64::from(*all)];
    let of = |clients: &dyn Fn(&(u32, u32)) -> bool| -> Vec<[f64; 2]> {
        ended.values().filter(|client| clients(client)).map(pair).collect()
    };
    let mut rates = json!({ "ALL": of(&|_| true) });
    let late = of(&|(_, late)| *late > 0);
    if !late.is_empty() {
        rates["TIMEOUT"] = json!(late);
    }
    rates
}

/// Build times from the run's histogram, with an error of at most 0.4 %.
fn circuit_build_times(record: &Record, class: &str) -> Value {
    let Some(built) = record.metrics.circuit_builds.get(class) else { return json!([]) };
    built.values().flat_map(|(seconds, count)| std::iter::repeat_n(seconds, count as usize)).collect()
}

/// A duration of the scenario.
fn scenario_span(parameters: &Value, key: &str) -> Span {
    serde_json::from_value(parameters["scenario"][key].clone()).unwrap_or(Span::ZERO)
}

/// Bytes of the cells that all relays forwarded, per second after the warm-up.
fn relay_goodput(record: &Record, parameters: &Value) -> Value {
    let warmup = scenario_span(parameters, "warmup");
    let cells = &record.metrics.relayed_cells;
    let after = cells.full_bins(&cells.curves[0], warmup);
    after.map(|(second, cells)| (second.to_string(), json!(cells * u64::from(CELL_BYTES)))).collect()
}

/// Time of the run. Memory belongs to the process rather than to a run, so its plots stay empty.
fn resource_usage(record: &Record, parameters: &Value) -> Value {
    let wall = record.wall_s;
    let (hours, minutes) = ((wall / 3600.0).floor(), (wall % 3600.0 / 60.0).floor());
    let simulated = seconds(scenario_span(parameters, "duration"));
    json!({ "run_time": {
        "seconds": wall,
        "minutes": wall / 60.0,
        "hours": wall / 3600.0,
        "human": format!("{hours:.0}:{minutes:02.0}:{:09.6}", wall % 60.0),
        "real_seconds_per_sim_second": { "0.0": 0.0, format!("{simulated:?}"): wall },
    }})
}

fn simulation_info(record: &Record, parameters: &Value, class: &str) -> Value {
    let users = &record.metrics.users;
    let clients = users.iter().filter(|user| user.class == class).count();
    let scale = parameters["scenario"]["tor"]["fraction"].as_f64();
    json!({
        "net_scale": scale.unwrap_or(1.0),
        "num_sampled_relays": record.metrics.relays.len(),
        "num_tgen_exit_perf_clients": clients,
        "num_tgen_exit_markov_clients": users.len() - clients,
        "tornettools_generate_seed": record.seed,
    })
}
