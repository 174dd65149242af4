//! Combinations of parts that do not run, and why: one of the parts would have no effect, or both do the same work.
//!
//! The table `RULES` refuses them and documents them: `docs/combinations.md` is generated from it.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use tidegate_control::keys::Wrong;

use crate::control::Control;
use crate::links::OutputBuffer;
use crate::links::kist::KistParameters;

/// Neighbours that a system meets besides those of its own kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// All nodes have the same system, as in simulations and private overlays.
    #[default]
    Alike,
    /// Some speak only Tor's protocol: their circuits share one connection, whatever the transport is.
    Stock,
}

/// A node on sockets that reads a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnSockets {
    /// Its neighbours.
    pub neighbours: Neighbours,
    /// Whether KIST asks the kernel about each TLS connection: at a relay on Linux with one thread.
    pub asks_kernel: bool,
}

/// The choices of a system that rules depend on.
struct Choice<'a> {
    table: &'a Map<String, Value>,
    neighbours: Neighbours,
    /// Some clients lack congestion control, and the others do not have it either.
    old_like_others: bool,
}

impl Choice<'_> {
    fn is(&self, key: &str, part: &str) -> bool {
        self.table.get(key).is_some_and(|chosen| chosen == part)
    }

    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether each circuit has a connection, or a stream of one, to itself between any two nodes.
    fn isolates(&self) -> bool {
        let pctcp = &self.table["pctcp"];
        let alike = self.neighbours == Neighbours::Alike && pctcp["upgraded"] == 1.0;
        let alone = self.is("transport", "pctcp") && pctcp["connections-per-peer"] == 0;
        alike && (alone || self.is("transport", "quic"))
    }

    /// Whether connections take cells as soon as they can.
    fn is_eager(&self) -> bool {
        self.is("channel-scheduler", "vanilla")
    }

    fn schedules(&self) -> bool {
        !self.is("scheduler", "round-robin")
    }
}

/// A kind of combination that is refused.
struct Rule {
    /// The key that is refused, and its values.
    key: &'static str,
    values: &'static str,
    /// The other part of the combination.
    with: &'static str,
    because: &'static str,
    instead: &'static str,
    applies: fn(&Choice<'_>) -> bool,
}

/// `pctcp` and `quic` as far as each circuit has a connection or a stream to itself.
const ISOLATING: &str =
    "every relay upgraded, and `transport = \"quic\"`, or `\"pctcp\"` without `connections-per-peer`";

const RULES: &[Rule] = &[
    Rule {
        key: "scheduler",
        values: "other than `\"round-robin\"`",
        with: "every relay upgraded, no KIST, and `transport = \"quic\"`, or `\"pctcp\"` without \
               `connections-per-peer`",
        because: "one circuit per connection leaves nothing to schedule",
        instead: "use channel-scheduler = \"kist\", which orders connections by their circuits, let circuits share by \
                  pctcp.connections-per-peer, or use scheduler = \"round-robin\"",
        applies: |choice| choice.schedules() && choice.isolates() && choice.is_eager(),
    },
    Rule {
        key: "scheduler",
        values: "other than `\"round-robin\"`",
        with: "`control = \"predictor\"` without KIST",
        because: "PredicTor's rates say when each circuit's cells leave, which leaves nothing to schedule",
        instead: "use channel-scheduler = \"kist\", which collects cells for an interval and orders them, or scheduler = \"round-robin\"",
        applies: |choice| choice.schedules() && choice.is("control", "predictor") && choice.is_eager(),
    },
    Rule {
        key: "switching",
        values: "`\"connection\"`",
        with: ISOLATING,
        because: "each circuit has a connection to itself, so another one is not better",
        instead: "use switching = \"circuit\", or let circuits share by pctcp.connections-per-peer",
        applies: |choice| choice.is("switching", "connection") && choice.isolates(),
    },
    Rule {
        key: "switching",
        values: "`\"connection\"` or `\"circuit\"`",
        with: "`control = \"predictor\"`",
        because: "PredicTor keeps output buffers short, so circuits would never move",
        instead: "use another control, or switching = \"none\"",
        applies: |choice| !choice.is("switching", "none") && choice.is("control", "predictor"),
    },
    Rule {
        key: "connection-half-life",
        values: "any",
        with: "`control = \"predictor\"`",
        because: "PredicTor's rates keep within the token bucket, so connections do not wait",
        instead: "remove it, or use another control",
        applies: |choice| choice.has("connection-half-life") && choice.is("control", "predictor"),
    },
    Rule {
        key: "conflux",
        values: "other than `\"none\"`",
        with: "`control = \"windows\"`",
        because: "the legs need congestion windows or rates, and fixed windows are neither",
        instead: "use control = \"vegas\", \"predictor\" or \"fixed-rate\"",
        applies: |choice| !choice.is("conflux", "none") && choice.is("control", "windows"),
    },
    Rule {
        key: "conflux",
        values: "other than `\"none\"`",
        with: "`switching = \"circuit\"`",
        because: "both move streams between circuits",
        instead: "leave one out, or use switching = \"connection\"",
        applies: |choice| !choice.is("conflux", "none") && choice.is("switching", "circuit"),
    },
    Rule {
        key: "old-clients",
        values: "above 0",
        with: "a `control` without congestion windows",
        because: "the clients' circuits already use the fixed windows",
        instead: "use control = \"vegas\", or remove `old-clients`",
        applies: |choice| choice.old_like_others,
    },
];

/// A key that acts only in simulations.
struct Simulated {
    /// Its path in the table of a system.
    path: &'static [&'static str],
    /// The only value that relays and clients on sockets accept; `None`: the key is refused.
    accepts: Option<&'static str>,
    because: &'static str,
}

const SIMULATED: &[Simulated] = &[
    only(&["tcp"], "the kernel has its own TCP"),
    only(&["tls"], "TLS is real"),
    only(&["packaging"], "cells hold what the relay cell format says"),
    only(&["paths"], "clients select relays by the directory"),
    only(&["of-consensus"], "relays do not read a consensus"),
    only(&["old-clients"], "each client has its own configuration"),
    only(&["other-clients"], "each client has its own configuration"),
    only(&["balance"], "clients take the directory's weights"),
    only(&["survey"], "clients take the directory's weights"),
    only(&["attack"], "relays do not attack"),
    only(&["connection-half-life"], "connections take turns at the token bucket"),
    must(&["pctcp", "upgraded"], "1.0", "each relay has its own configuration"),
    must(&["pctcp", "esp-overhead"], "\"0 B\"", "the kernel sends the packets"),
    must(&["predictor", "exchange"], "\"in-band\"", "sockets have no other way to the neighbour"),
    must(&["predictor", "reads"], "\"cells\"", "servers do not announce their bytes"),
    must(&["predictor", "drift"], "0.0", "the clocks are real"),
    must(&["predictor", "phases"], "\"synchronous\"", "a relay's steps follow its own clock"),
];

const fn only(path: &'static [&'static str], because: &'static str) -> Simulated {
    Simulated { path, accepts: None, because }
}

const fn must(path: &'static [&'static str], value: &'static str, because: &'static str) -> Simulated {
    Simulated { path, accepts: Some(value), because }
}

/// Keys that have no effect on sockets beside other parts. Their defaults are accepted.
struct Idle {
    table: &'static str,
    keys: &'static [&'static str],
    with: &'static str,
    because: &'static str,
    instead: &'static str,
    applies: fn(&Choice<'_>, OnSockets) -> bool,
}

const IDLE: &[Idle] = &[
    Idle {
        table: "kist",
        keys: &["buffer-factor", "counts-unsent"],
        with: "`transport = \"quic\"` in a private overlay",
        because: "KIST asks the kernel about TCP sockets only",
        instead: "use transport = \"vanilla\" or \"pctcp\"",
        applies: |choice, at| at.neighbours == Neighbours::Alike && choice.is("transport", "quic"),
    },
    Idle {
        table: "output-buffer",
        keys: &["high", "low"],
        with: "`channel-scheduler = \"kist\"` at a relay with one thread on Linux",
        because: "KIST writes what the kernel says that the socket sends at once",
        instead: "set channel-scheduler = \"vanilla\"",
        // Switching compares the buffers, and QUIC limits its streams by them.
        applies: |choice, at| {
            let uses = !choice.is("switching", "none") || choice.is("transport", "quic");
            at.asks_kernel && choice.is("channel-scheduler", "kist") && !uses
        },
    },
];

/// Checks a system, given as its table with every default, for keys that have no effect at this node.
fn check_idle(table: &Map<String, Value>, at: OnSockets) -> Result<(), Wrong> {
    let choice = Choice { table, neighbours: at.neighbours, old_like_others: false };
    let usual = |name: &str| match name {
        "kist" => serde_json::to_value(KistParameters::default()),
        _ => serde_json::to_value(OutputBuffer::default()),
    };
    for Idle { table: name, keys, with, because, instead, .. } in
        IDLE.iter().filter(|rule| (rule.applies)(&choice, at))
    {
        let usual = usual(name).expect("parameters can be written");
        if let Some(key) = keys.iter().find(|key| table[*name][**key] != usual[**key]) {
            let given = &table[*name][*key];
            return Err(Wrong {
                path: vec![(*name).into(), (*key).into()],
                at_key: false,
                cause: format!("`{key}` = {given} has no effect with {with}: {because}"),
                cure: format!("remove it, or {instead}"),
            });
        }
    }
    Ok(())
}

fn refused(choice: &Choice<'_>) -> Result<(), Wrong> {
    let Some(rule) = RULES.iter().find(|rule| (rule.applies)(choice)) else { return Ok(()) };
    let given = choice.table.get(rule.key).map_or(String::new(), |value| format!(" = {value}"));
    Err(Wrong {
        path: vec![rule.key.into()],
        at_key: false,
        cause: format!("`{}`{given} has no use with {}: {}", rule.key, rule.with, rule.because),
        cure: rule.instead.into(),
    })
}

/// Checks the parts of a system, given as its table with every default.
///
/// # Errors
/// If two parts do not go together.
pub(crate) fn check(table: &Map<String, Value>, neighbours: Neighbours) -> Result<(), Wrong> {
    refused(&Choice { table, neighbours, old_like_others: false })
}

/// Checks that clients without congestion control would differ from those with `control`. `table` has every default.
///
/// # Errors
/// If they would not.
pub fn check_old_clients(table: &Map<String, Value>, control: &dyn Control) -> Result<(), Wrong> {
    refused(&Choice { table, neighbours: Neighbours::Alike, old_like_others: control.window().is_none() })
}

/// Checks a table, as written and with every default, for keys that act only in simulations, or not at this node.
///
/// # Errors
/// The first such key, with the reason.
pub fn check_on_sockets(written: &Value, whole: &Map<String, Value>, at: OnSockets) -> Result<(), Wrong> {
    for Simulated { path, accepts, because } in SIMULATED {
        let table = if accepts.is_some() { whole.get(path[0]) } else { Some(written) };
        let Some(value) = table.and_then(|table| table.get(path[path.len() - 1])) else { continue };
        let given = value.to_string();
        if accepts.is_some_and(|accepted| given == accepted) {
            continue;
        }
        // A part that is not chosen has no effect, and neither has its table.
        if path[0] == "predictor" && whole.get("control").is_none_or(|control| control != "predictor") {
            continue;
        }
        let key = path.join(".");
        let cure = match accepts {
            Some(value) => format!("remove it, or set {key} = {value}"),
            None => format!("remove `{key}`"),
        };
        let given = if value.is_object() { String::new() } else { format!(" = {value}") };
        return Err(Wrong {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            at_key: false,
            cause: format!("`{key}`{given} acts only in simulations: {because}"),
            cure,
        });
    }
    check_idle(whole, at)
}

/// The page `docs/combinations.md`.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for rule in RULES {
        writeln!(
            page,
            "| `{}`: {} | {} | {} | {} |",
            rule.key, rule.values, rule.with, rule.because, rule.instead
        )
        .expect("writing to a string cannot fail");
    }
    page.push_str(ON_SOCKETS);
    for Simulated { path, accepts, because } in SIMULATED {
        let accepted = accepts.map_or("none".to_owned(), |value| format!("`{value}`"));
        writeln!(page, "| `{}` | {accepted} | {because} |", path.join("."))
            .expect("writing to a string cannot fail");
    }
    page.push_str(IDLE_ON_SOCKETS);
    for Idle { table, keys, with, because, instead, .. } in IDLE {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{table}.{key}`")).collect();
        writeln!(page, "| {} | {with} | {because} | {instead} |", keys.join(", "))
            .expect("writing to a string cannot fail");
    }
    page
}

const INTRODUCTION: &str = "\
# Combinations of parts

The parts of a `[[system]]` are `scheduler`, `channel-scheduler`, `control`, `transport`, `switching`, `conflux`, `paths` and
`balance`. They combine freely, except for the combinations in this table. In each of them a part would not have
an effect, or two parts would do the same work. Scenarios and relays refuse them, with the reason. `[[combine]]` leaves them out
and says so. Every other combination of the first six runs, simulated and on sockets. `paths` and `balance` act only in
simulations.

`tidegate keys --combinations` generates this page from the table that refuses them.

| key | with | why not | instead |
|---|---|---|---|
";

const ON_SOCKETS: &str = "
A relay on sockets that joins a Tor network (`[tor]` of its own configuration) accepts a `scheduler` and
`switching = \"connection\"` with any transport: circuits to stock relays share one connection.

## Keys that act only in simulations

`[system]` of a relay or a client has the keys of a scenario's `[[system]]`. It refuses these, except with the accepted value
(those of `predictor` only with `control = \"predictor\"`):

| key | accepted value | why |
|---|---|---|
";

const IDLE_ON_SOCKETS: &str = "
## Keys without effect beside a part, on sockets

A relay refuses these keys, unless they have their defaults, and a client those of the first line:

| key | with | why not | instead |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::{CONTROLS, SCHEDULERS};
    use crate::system::SystemConfig;

    #[test]
    fn the_page_is_the_table() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/combinations.md");
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, page(), "regenerate it: tidegate keys --combinations > docs/combinations.md");
    }

    #[test]
    fn parts_without_effect_are_refused_with_the_reason() {
        for (table, key, reason) in [
            (json!({ "transport": "pctcp", "scheduler": "ewma" }), "scheduler", "one circuit per connection"),
            (
                json!({ "transport": "quic", "scheduler": "weighted" }),
                "scheduler",
                "one circuit per connection",
            ),
            (json!({ "control": "predictor", "scheduler": "ewma" }), "scheduler", "PredicTor's rates"),
            (json!({ "transport": "quic", "switching": "connection" }), "switching", "to itself"),
            (json!({ "transport": "pctcp", "switching": "connection" }), "switching", "to itself"),
            (json!({ "control": "predictor", "switching": "circuit" }), "switching", "never move"),
            (
                json!({ "control": "predictor", "connection-half-life": "9 s" }),
                "connection-half-life",
                "bucket",
            ),
            (json!({ "conflux": "throughput" }), "conflux", "fixed windows are neither"),
        ] {
            let wrong = SystemConfig::read(&table).unwrap_err();
            assert_eq!(wrong.path, [key], "{table}");
            assert!(wrong.cause.contains(reason) && !wrong.cure.is_empty(), "{wrong:?}");
        }
    }

    #[test]
    fn keys_without_effect_beside_a_part_are_refused() {
        let stream = |key: &str, value: Value| json!({ "transport": "quic", "pctcp": { key: value } });
        let circuit = |key: &str, value: Value| json!({ "switching": "circuit", "switch": { key: value } });
        for (table, path) in [
            (stream("connections-per-peer", json!(2)), ["pctcp", "connections-per-peer"]),
            (stream("esp-overhead", json!("57 B")), ["pctcp", "esp-overhead"]),
            (circuit("everywhere", json!(true)), ["switch", "everywhere"]),
        ] {
            let wrong = SystemConfig::read(&table).unwrap_err();
            assert_eq!(wrong.path, path, "{table}");
            assert!(wrong.cause.contains("has no effect with"), "{wrong:?}");
        }
    }

    #[test]
    fn parts_with_an_effect_run() {
        for table in [
            json!({ "transport": "pctcp", "scheduler": "ewma", "channel-scheduler": "kist" }),
            json!({ "transport": "pctcp", "scheduler": "ewma", "pctcp": { "connections-per-peer": 2 } }),
            json!({ "transport": "quic", "scheduler": "ewma", "pctcp": { "upgraded": 0.5 } }),
            json!({ "transport": "pctcp", "switching": "connection", "pctcp": { "connections-per-peer": 2 } }),
            json!({ "transport": "quic", "switching": "circuit" }),
            json!({ "control": "predictor", "scheduler": "ewma", "channel-scheduler": "kist" }),
        ] {
            SystemConfig::read(&table).expect("it has an effect");
        }
        let stock = json!({ "transport": "pctcp", "scheduler": "ewma", "switching": "connection" });
        let stock = SystemConfig::parse(&stock).unwrap();
        assert!(stock.check(Neighbours::Alike).is_err());
        stock.check(Neighbours::Stock).expect("circuits to stock relays share a connection");
    }

    #[test]
    fn only_vegas_differs_from_the_clients_of_old() {
        for control in CONTROLS {
            let system = SystemConfig::read(&json!({ "control": control.name })).unwrap();
            let differs = check_old_clients(&system.table, &*system.control).is_ok();
            assert_eq!(differs, control.name == "vegas", "{}", control.name);
        }
    }

    const RELAY: OnSockets = OnSockets { neighbours: Neighbours::Alike, asks_kernel: true };

    #[test]
    fn keys_without_effect_on_sockets_are_refused() {
        let kist = |more: Value| {
            let mut table = json!({ "channel-scheduler": "kist" });
            table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            table
        };
        let check = |table: &Value, at: OnSockets| {
            let system = SystemConfig::parse(table).unwrap();
            check_on_sockets(table, &system.table, at).map_err(|wrong| wrong.path.join("."))
        };
        let factor = kist(json!({ "transport": "quic", "kist": { "buffer-factor": 2.0 } }));
        let unsent = kist(json!({ "transport": "quic", "kist": { "counts-unsent": false } }));
        let high = kist(json!({ "output-buffer": { "high": "64 KiB" } }));
        let low = kist(json!({ "output-buffer": { "low": "8 KiB" } }));
        let client = OnSockets { asks_kernel: false, ..RELAY };
        let of_tor = OnSockets { neighbours: Neighbours::Stock, ..RELAY };
        assert_eq!(check(&factor, RELAY), Err("kist.buffer-factor".into()));
        assert_eq!(check(&unsent, client), Err("kist.counts-unsent".into()));
        assert_eq!(check(&high, RELAY), Err("output-buffer.high".into()));
        assert_eq!(check(&low, of_tor), Err("output-buffer.low".into()));
        assert_eq!(check(&factor, of_tor), Ok(()), "connections to stock relays are TLS");
        assert_eq!(check(&high, client), Ok(()), "it counts output buffers");
        let switching = kist(json!({ "switching": "circuit", "output-buffer": { "high": "64 KiB" } }));
        let quic = kist(json!({ "transport": "quic", "output-buffer": { "high": "64 KiB" } }));
        let spelled = kist(json!({ "transport": "quic", "kist": { "buffer-factor": 1.0 } }));
        for table in [switching, quic, spelled, json!({ "output-buffer": { "high": "64 KiB" } })] {
            assert_eq!(check(&table, RELAY), Ok(()), "{table}");
        }
    }

    #[test]
    fn keys_of_simulations_are_refused_on_sockets() {
        let check = |written: &Value, parts: &Value| {
            check_on_sockets(written, &SystemConfig::read(parts).unwrap().table, RELAY)
        };
        for scheduler in SCHEDULERS {
            let table = json!({ "scheduler": scheduler.name });
            assert_eq!(check(&table, &table), Ok(()));
        }
        for key in ["tcp", "tls", "packaging", "paths", "of-consensus", "old-clients", "attack", "survey"] {
            let wrong = check(&json!({ key: {} }), &json!({})).unwrap_err();
            assert!(wrong.cause.contains("acts only in simulations"), "{wrong:?}");
        }
        for (table, path) in [
            (json!({ "pctcp": { "upgraded": 0.0 } }), "pctcp.upgraded"),
            (json!({ "pctcp": { "esp-overhead": "57 B" } }), "pctcp.esp-overhead"),
            (
                json!({ "control": "predictor", "predictor": { "exchange": "out-of-band" } }),
                "predictor.exchange",
            ),
            (json!({ "control": "predictor", "predictor": { "preset": "prototype" } }), "predictor.exchange"),
            (json!({ "control": "predictor", "predictor": { "drift": 0.01 } }), "predictor.drift"),
        ] {
            let wrong = check(&table, &table).unwrap_err();
            assert_eq!(wrong.path.join("."), path, "{wrong:?}");
        }
        let spelled =
            json!({ "pctcp": { "upgraded": 1, "esp-overhead": "0 B" }, "predictor": { "drift": 0.05 } });
        assert_eq!(check(&spelled, &spelled), Ok(()), "defaults, and the table of a part that is not chosen");
    }
}
