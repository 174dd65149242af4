//! Values that a [tor] network derives: its fraction, the number of users, and the consensus' parameters.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_control::units::Span;
use tidegate_proto::system::SystemConfig;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::ScenarioFile;
use super::place::Name;
use super::tables::TorFile;
use super::users::UserFile;
use crate::input::{InputError, SourceFile};
use crate::network::inputs::Inputs;

impl TorFile {
    /// The table of relays that `capacity` names.
    pub(crate) fn table(&self) -> Option<&Name> {
        (!["drawn", "weight"].contains(&self.capacity.as_str())).then_some(&self.capacity)
    }

    /// Number of servers of a network with this fraction of Tor.
    pub(crate) fn servers(&self, share: f64) -> u32 {
        self.servers.unwrap_or((1000.0 * share).ceil() as u32)
    }
}

/// Lets an override of the network's size replace the other key of the size: `relays` or `fraction`.
pub(super) fn replace_size(document: &mut DeTable<'_>, overrides: &DeTable<'_>) {
    let Some(DeValue::Table(given)) = overrides.get("tor").map(Spanned::get_ref) else { return };
    let Some(DeValue::Table(tor)) = document.get_mut("tor").map(Spanned::get_mut) else { return };
    for (key, other) in [("relays", "fraction"), ("fraction", "relays")] {
        if given.contains_key(key) && !given.contains_key(other) {
            tor.remove(other);
        }
    }
}

/// Sets `fraction` from `relays`, if the file gives a number of relays. Refuses another `fraction` beside it.
pub(super) fn settle_fraction(
    file: &mut ScenarioFile,
    source: &SourceFile,
    inputs: &Inputs,
) -> Result<(), InputError> {
    let (Some(tor), Some(consensus)) = (&mut file.tor, &inputs.consensus) else { return Ok(()) };
    let span = tor.span();
    let tor = tor.get_mut();
    if consensus.relays.iter().all(|relay| relay.bandwidth == 0) {
        let cause = "[tor]: no relay of the network has a weight, so clients cannot choose any";
        return Err(source.error(span, cause, "name another `consensus` or table of relays"));
    }
    if let Some(relays) = &tor.relays {
        let whole = consensus.relays.len();
        if *relays as usize > whole {
            let cause = format!("[tor]: `relays` is {relays}, but the whole network has {whole}");
            return Err(source.error(span, cause, format!("set `relays` to {whole} or less")));
        }
        let share = f64::from(*relays) / whole as f64;
        // A scenario that the tool wrote has both.
        if tor.fraction != TorFile::default().fraction && tor.fraction != share {
            let cause = "[tor]: `fraction` has no effect beside `relays`, which sets the network's size";
            return Err(source.error(span, cause, "drop one of the two"));
        }
        tor.fraction = share;
    }
    Ok(())
}

/// Checks that `geoip` can name the country of a relay, if a table of relays is the network.
pub(super) fn check_geoip(
    file: &ScenarioFile,
    source: &SourceFile,
    inputs: &Inputs,
) -> Result<(), InputError> {
    let Some(tor) = file.tor.as_ref().filter(|tor| tor.consensus.is_none()) else { return Ok(()) };
    let (Some(geoip), Some(table)) = (&tor.geoip, &inputs.capacities) else { return Ok(()) };
    if table.values().any(|relay| relay.country.is_none() && relay.address.is_some()) {
        return Ok(());
    }
    let cause =
        "`geoip` has no effect: the table of relays that `capacity` names has no address without a country";
    Err(source.error(geoip.span(), cause, "remove it, or name a `consensus`"))
}

/// Unix time at which tor introduced KIST (0.3.2.9, January 2018).
const KIST_SINCE: u64 = 1_515_456_000;
/// Unix time of the first stable tor 0.4.8 (0.4.8.4, August 2023). `KIST_SCHED_RUN_INTERVAL_DEFAULT` in its `scheduler.h` is 2,
/// and 10 in 0.4.7. Vegas' defaults changed with it ([`VEGAS_BEFORE`]).
const TOR_0_4_8_SINCE: u64 = 1_692_748_800;

/// One round trip of TLS 1.3, which relays introduced in 2019, and one of the link protocol.
const LINK_ROUND_TRIPS: u32 = 2;
/// tor writes each 4 KiB chunk of its buffers as one record: `experiments/real-tor`.
const RECORD_CELLS: u32 = 8;

/// Keys of `vegas`, the consensus parameters of exit circuits that set them, and tor's bounds.
const VEGAS: [(&str, &str, i32, i32); 18] = [
    ("sendme-increment", "cc_sendme_inc", 1, 254),
    ("initial", "cc_cwnd_init", 31, i32::MAX),
    ("minimum", "cc_cwnd_min", 31, i32::MAX),
    ("increment", "cc_cwnd_inc", 1, 1_000),
    ("increment-rate", "cc_cwnd_inc_rate", 1, 250),
    ("slow-start-percent", "cc_cwnd_inc_pct_ss", 1, 500),
    ("slow-start-cap", "cc_sscap_exit", 100, i32::MAX),
    ("slow-start-max", "cc_ss_max", 500, i32::MAX),
    ("alpha", "cc_vegas_alpha_exit", 0, 1_000),
    ("beta", "cc_vegas_beta_exit", 0, 1_000),
    ("gamma", "cc_vegas_gamma_exit", 0, 1_000),
    ("delta", "cc_vegas_delta_exit", 0, i32::MAX),
    ("full-gap", "cc_cwnd_full_gap", 0, i16::MAX as i32),
    ("full-percent", "cc_cwnd_full_minpct", 0, 100),
    ("ewma-percent", "cc_ewma_cwnd_pct", 1, 255),
    ("ewma-max", "cc_ewma_max", 2, i32::MAX),
    ("ewma-slow-start", "cc_ewma_ss", 2, i32::MAX),
    ("rtt-reset-percent", "cc_rtt_reset_pct", 0, 100),
];

/// Vegas' defaults that tor 0.4.8.2 replaced (`congestion_control_vegas.c` and `congestion_control_common.c` of tor 0.4.7).
const VEGAS_BEFORE: [(&str, u32); 8] = [
    ("minimum", 62),
    ("increment", 31),
    ("increment-rate", 1),
    ("slow-start-cap", 500),
    ("alpha", 124),
    ("delta", 372),
    ("full-gap", 1),
    ("full-percent", 75),
];

/// Sets the keys of a system that tor takes from these consensus parameters at this Unix time.
pub fn apply_parameters(table: &mut Value, parameters: &BTreeMap<String, i32>, time: u64) {
    let parameter = |name: &str| parameters.get(name).copied();
    let millis = |value: i32| Span::from_millis(u64::try_from(value).unwrap_or(0)).to_string();
    let half_life = parameter("CircuitPriorityHalflifeMsec").unwrap_or(30_000).clamp(1, i32::MAX);
    table["scheduler"] = "ewma".into();
    table["ewma"]["half-life"] = millis(half_life).into();
    let kist = if time >= KIST_SINCE { "kist" } else { "vanilla" };
    table["channel-scheduler"] = kist.into();
    let default = if time >= TOR_0_4_8_SINCE { 2 } else { 10 };
    let interval = parameter("KISTSchedRunInterval").unwrap_or(default).clamp(2, 100);
    table["kist"]["interval"] = millis(interval).into();
    table["control"] = if parameter("cc_alg") == Some(2) { "vegas" } else { "windows" }.into();
    if table["control"] == "vegas" && time < TOR_0_4_8_SINCE {
        for (key, value) in VEGAS_BEFORE {
            table["vegas"][key] = value.into();
        }
    }
    for (key, name, least, most) in VEGAS {
        if let Some(value) = parameter(name) {
            table["vegas"][key] = value.clamp(least, most).into();
        }
    }
    if let Some(window) = parameter("circwindow").and_then(|window| u32::try_from(window).ok()) {
        table["windows"]["circuit"] = window.clamp(100, 1000).into();
    }
}

/// Whether the simulator models a consensus parameter.
pub fn models_parameter(name: &str) -> bool {
    ["CircuitPriorityHalflifeMsec", "KISTSchedRunInterval", "cc_alg", "circwindow"].contains(&name)
        || VEGAS.iter().any(|(_, known, ..)| *known == name)
}

/// The first key of a system's table as written that `of-consensus` has `set` to another value.
fn replaced(written: &Value, set: &Value, parameters: &BTreeMap<String, i32>, time: u64) -> Option<String> {
    let mut all = json!({ "tls": { "round-trips": 0, "standing": 0, "record-cells": 0 } });
    apply_parameters(&mut all, parameters, time);
    let tables = all.as_object().into_iter().flatten();
    let mut keys = tables.flat_map(|(name, inner)| match inner {
        Value::Object(inner) => inner.keys().map(|key| format!("{name}.{key}")).collect(),
        _ => vec![name.clone()],
    });
    keys.find(|key| {
        let path = format!("/{}", key.replace('.', "/"));
        written.pointer(&path).is_some_and(|value| set.pointer(&path) != Some(value))
    })
}

/// Configures systems with `of-consensus` by the parameters of the consensus.
pub(super) fn obey_consensus(
    file: &mut ScenarioFile,
    source: &SourceFile,
    inputs: &Inputs,
) -> Result<(), InputError> {
    for system in &mut file.system {
        let span = system.span();
        let system = system.get_mut();
        if !system.of_consensus {
            continue;
        }
        let Some(consensus) = &inputs.consensus else {
            let cause = "`of-consensus` needs a consensus, and this scenario has no [tor] table";
            return Err(source.error(span, cause, "add a [tor] table, or drop `of-consensus`"));
        };
        // A table of relays lacks a date. The table that docs/truth.md scores is from 2019.
        let time = if consensus.valid_after == 0 { KIST_SINCE } else { consensus.valid_after };
        let mut table = Value::Object(system.parts.table.clone());
        apply_parameters(&mut table, &consensus.params, time);
        system.tls.round_trips = LINK_ROUND_TRIPS;
        system.tls.standing = true;
        system.tls.record_cells = RECORD_CELLS;
        // With a connection per circuit, the EWMA of tor before KIST would not have an effect.
        if SystemConfig::read(&table).is_err_and(|wrong| wrong.path == ["scheduler"]) {
            table["scheduler"] = "round-robin".into();
        }
        system.parts = SystemConfig::read(&table)
            .map_err(|wrong| source.error(span.clone(), wrong.cause, wrong.cure))?;
        let mut set = Value::Object(system.parts.table.clone());
        set["tls"] = serde_json::to_value(system.tls).unwrap_or_default();
        if let Some(key) = replaced(&system.written, &set, &consensus.params, time) {
            let name = system.name.get_ref();
            let cause = format!(
                "system `{name}`: `{key}` has no effect, because `of-consensus` takes it from the consensus"
            );
            return Err(source.error(span, cause, format!("drop `{key}`, or drop `of-consensus`")));
        }
    }
    Ok(())
}

impl ScenarioFile {
    /// Number of users of this group in a run.
    pub(crate) fn users(&self, user: &UserFile) -> u32 {
        let (Some(of_tor), Some(tor)) = (&user.of_tor, &self.tor) else { return user.count.unwrap_or(1) };
        let here = **of_tor * tor.fraction * tor.load;
        // Casts of NaN and negative numbers give zero, which the check refuses.
        if here > 0.0 { (here.round() as u32).max(1) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidegate_data::country::Country;
    use tidegate_data::relays::Capacity;

    use super::super::{Placed, Scenario};
    use super::*;

    #[test]
    fn a_geoip_that_names_no_country_is_refused() {
        let text = include_str!("../../../../scenarios/tor.toml");
        let source = SourceFile { file: "x.toml".into(), text: text.into() };
        let mut file = Scenario::parse(source.clone(), PathBuf::new(), &[]).unwrap().file;
        file.tor.as_mut().unwrap().get_mut().geoip = Some(Placed::nowhere("geoip".to_owned()));
        let known = |country: Option<&str>, address: Option<&str>| Capacity {
            name: String::new(),
            country: country.and_then(Country::from_code),
            node: None,
            address: address.map(|address| address.parse().unwrap()),
            weight: 1.0,
            capacity_bytes_per_s: 1,
            rate_bytes_per_s: 1,
            burst_bytes: 1,
            running: 1.0,
            guard: 1.0,
            exit: 1.0,
        };
        let check = |relay| {
            let table = [(tidegate_data::consensus::Identity([1; 20]), relay)].into();
            let inputs = Inputs { capacities: Some(table), ..Inputs::default() };
            check_geoip(&file, &source, &inputs)
        };
        assert!(check(known(None, Some("192.0.2.1"))).is_ok());
        for relay in [known(Some("nl"), Some("192.0.2.1")), known(None, None)] {
            assert!(check(relay).unwrap_err().cause.contains("`geoip` has no effect"));
        }
    }

    /// Unix times of August 2017, August 2022 and May 2024.
    const TIMES: [u64; 3] = [1_502_000_000, 1_659_744_000, 1_715_965_200];

    fn system(parameters: &[(&str, i32)], time: u64) -> Value {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let mut table = json!({});
        apply_parameters(&mut table, &parameters, time);
        table
    }

    #[test]
    fn absent_parameters_take_the_defaults_of_the_tor_of_the_time() {
        let [before_kist, with_0_4_7, with_0_4_8] = TIMES.map(|time| system(&[("cc_alg", 2)], time));
        assert_eq!(before_kist["channel-scheduler"], "vanilla");
        assert_eq!(with_0_4_7["channel-scheduler"], "kist");
        assert_eq!(
            (&with_0_4_7["kist"]["interval"], &with_0_4_8["kist"]["interval"]),
            (&json!("10 ms"), &json!("2 ms"))
        );
        for (key, value) in VEGAS_BEFORE {
            assert_eq!(with_0_4_7["vegas"][key], value, "{key}");
            assert_eq!(with_0_4_8["vegas"][key], Value::Null, "{key}: today's default is the part's own");
        }
    }

    #[test]
    fn parameters_of_the_consensus_precede_defaults() {
        let parameters =
            [("cc_alg", 2), ("cc_vegas_alpha_exit", 200), ("cc_cwnd_min", 5), ("KISTSchedRunInterval", 3)];
        let found = system(&parameters, TIMES[1]);
        assert_eq!((&found["vegas"]["alpha"], &found["vegas"]["delta"]), (&json!(200), &json!(372)));
        // tor raises values below its bounds.
        assert_eq!((&found["vegas"]["minimum"], &found["kist"]["interval"]), (&json!(31), &json!("3 ms")));
        let windows = system(&[("circwindow", 50)], TIMES[1]);
        assert_eq!((&windows["control"], &windows["windows"]["circuit"]), (&json!("windows"), &json!(100)));
        assert_eq!(windows["vegas"], Value::Null);
    }
}
