//! A system, the way an overlay moves data: `[[system]]` of a scenario, `[system]` of a relay's configuration.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tidegate_control::balance::{Attack, BALANCES, Balance, Survey};
use tidegate_control::keys::{self, Parameters, Wrong};
use tidegate_control::registry::{Origin, Part, names};
use tidegate_control::units::Span;

use crate::combinations::{self, Neighbours};
use crate::conflux::Split;
use crate::control::Control;
use crate::control::windows::Windows;
use crate::links::{CircuitQueue, OutputBuffer, kist};
use crate::registry::{CONTROLS, SCHEDULERS, SPLITS};
use crate::scheduler::Discipline;
use crate::switching::{Form, Switching};
use crate::transport::{Pctcp, Transport};

/// The parts of a system.
#[derive(Clone, Debug)]
pub struct SystemConfig {
    /// Which connection carries a circuit between two relays.
    pub transport: Transport,
    /// Deployment and overhead of PCTCP.
    pub pctcp: Pctcp,
    /// Which circuit of a connection sends next.
    pub scheduler: Arc<dyn Discipline>,
    /// KIST; `None`: connections take cells as soon as they can.
    pub kist: Option<kist::KistParameters>,
    /// Half-life of the byte counts by which connections share a token bucket.
    pub connection_half_life: Option<Span>,
    /// Whether and how circuits move away from congested connections.
    pub switching: Option<Switching>,
    /// How clients' streams go over two circuits at once, if they do.
    pub conflux: Option<Arc<dyn Split>>,
    /// How circuits' rates are controlled.
    pub control: Arc<dyn Control>,
    /// Fixed windows, used unless `control` has its own windows.
    pub windows: Windows,
    /// Connections' output buffers.
    pub output_buffer: OutputBuffer,
    /// Thresholds at which a circuit queue stops and resumes its own end.
    pub circuit_queue: CircuitQueue,
    /// Source of the weights by which clients select relays.
    pub balance: Arc<dyn Balance>,
    /// How the balance system measures the network.
    pub survey: Survey,
    /// Attack by which relays try to raise their weight.
    pub attack: Attack,
    /// The table of this system, with every default filled in.
    pub table: Map<String, Value>,
}

/// Keys with plain values; the other keys are tables.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
struct Choices {
    /// Which connection carries a circuit between two relays: one for all, one per circuit (PCTCP), or one for all with a
    /// stream per circuit (QUIC).
    transport: TransportName,
    /// Which circuit of a connection sends next.
    #[schemars(extend("enum" = names(SCHEDULERS)))]
    scheduler: String,
    /// When, and in which order, connections take cells from circuits.
    channel_scheduler: ChannelScheduler,
    /// Half-life of the byte counts by which a relay with a token bucket chooses the connection that writes next: the one
    /// with the lowest count. Without it, connections take turns. Source: Tang and Goldberg 2010 (66 s).
    #[schemars(extend("x-range" = "1 ns.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_half_life: Option<Span>,
    /// How circuits move away from congested connections.
    switching: SwitchingName,
    /// Conflux: clients' streams go over two circuits (legs) with the same exit. `min-latency` uses the leg with the
    /// lower round-trip time. `throughput` also uses the slower leg while the faster leg's window is full. `blest` does
    /// so unless the faster leg would then run out of the send window (`blest.window`). `by-rate` divides in proportion
    /// to planned rates. `q-learning` divides by how timely the legs' SENDMEs are. Needs a `control` with congestion
    /// windows or with rates. Users with a `path` need a `second-path`. Source: proposal 329; Ferlin and others 2016;
    /// `by-rate` and `q-learning` are ours.
    #[schemars(extend("enum" = or_none(SPLITS)))]
    conflux: String,
    /// How circuits' rates are controlled.
    #[schemars(extend("enum" = names(CONTROLS)))]
    control: String,
    /// Source of the weights by which clients select relays: given with the network, or made by a system that surveys it
    /// before the run. Only in simulations.
    #[schemars(extend("enum" = names(BALANCES)))]
    balance: String,
}

/// A choice under which keys have no effect, and another one under which they have.
const CIRCUIT: (&str, &str) = ("switching = \"circuit\"", "switching = \"connection\"");
const QUIC: (&str, &str) = ("transport = \"quic\"", "transport = \"pctcp\"");

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum TransportName {
    Vanilla,
    Pctcp,
    Quic,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum ChannelScheduler {
    Vanilla,
    Kist,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum SwitchingName {
    None,
    Connection,
    Circuit,
}

impl Default for Choices {
    /// Tor as it was.
    fn default() -> Choices {
        Choices {
            transport: TransportName::Vanilla,
            scheduler: "round-robin".into(),
            channel_scheduler: ChannelScheduler::Vanilla,
            connection_half_life: None,
            switching: SwitchingName::None,
            conflux: NONE.into(),
            control: "windows".into(),
            balance: "given".into(),
        }
    }
}

impl Parameters for Choices {}

/// Does without a part.
const NONE: &str = "none";

fn or_none<T: ?Sized>(parts: &[Part<T>]) -> Vec<&'static str> {
    [NONE].into_iter().chain(names(parts)).collect()
}

/// Describes a table.
type Schema = fn() -> Value;

/// The tables that every system has.
const TABLES: [(&str, Schema); 8] = [
    ("pctcp", keys::schema::<Pctcp>),
    ("kist", keys::schema::<kist::KistParameters>),
    ("switch", keys::schema::<Switching>),
    ("windows", keys::schema::<Windows>),
    ("output-buffer", keys::schema::<OutputBuffer>),
    ("circuit-queue", keys::schema::<CircuitQueue>),
    ("survey", keys::schema::<Survey>),
    ("attack", keys::schema::<Attack>),
];

/// The JSON Schema of the table.
pub static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut all = keys::schema::<Choices>();
    let tables = TABLES.into_iter().map(|(name, schema)| (name, schema, None));
    for (name, schema, origin) in tables.chain(parts()) {
        let mut schema = schema();
        if let Value::Object(keywords) = &mut schema {
            keywords.retain(|keyword, _| keyword != "$schema" && keyword != "title");
            if let Some(origin) = origin.filter(|origin| origin.oracles.is_empty()) {
                let about = keywords["description"].as_str().unwrap_or_default();
                keywords["description"] = format!("{about} This is {}.", origin.title()).into();
            }
        }
        all["properties"][name] = schema;
    }
    all
});

/// The parts of all registries that have a table, with its schema.
fn parts() -> impl Iterator<Item = (&'static str, Schema, Option<&'static Origin>)> {
    described(SCHEDULERS).chain(described(CONTROLS)).chain(described(SPLITS)).chain(described(BALANCES))
}

/// The parts that have a table, with its schema.
fn described<T: ?Sized>(
    parts: &'static [Part<T>],
) -> impl Iterator<Item = (&'static str, Schema, Option<&'static Origin>)> {
    parts.iter().filter_map(|part| Some((part.name, part.schema?, part.origin)))
}

/// Every part that a relay can have other than that of [`SystemConfig::default`]: its name, and the key that chooses it.
pub fn alternatives() -> Vec<(&'static str, &'static str)> {
    let default = SystemConfig::default().table;
    let keys = ["transport", "scheduler", "channel-scheduler", "switching", "control"];
    let parts = keys.into_iter().flat_map(|key| {
        let names = SCHEMA["properties"][key]["enum"].as_array().into_iter().flatten();
        names.filter_map(Value::as_str).map(move |name| (name, key))
    });
    parts.filter(|(name, key)| default[*key] != **name).collect()
}

impl SystemConfig {
    /// Reads the table, in which any key may be missing.
    ///
    /// # Errors
    /// The first thing that is wrong, with its path in the table.
    pub fn read(table: &Value) -> Result<SystemConfig, Wrong> {
        let system = SystemConfig::parse(table)?;
        system.check(Neighbours::Alike)?;
        Ok(system)
    }

    /// Checks that the parts go together at a node with such neighbours ([`combinations`]).
    ///
    /// # Errors
    /// If a part would have no effect.
    pub fn check(&self, neighbours: Neighbours) -> Result<(), Wrong> {
        combinations::check(&self.table, neighbours)
    }

    /// Whether the system has this part under a key.
    pub fn chooses(&self, key: &str, part: &str) -> bool {
        self.table.get(key).is_some_and(|value| value == part)
    }

    /// The tables in `written` that belong to parts which this system does not choose.
    pub fn idle<'a>(&self, written: &'a Value) -> BTreeSet<&'a str> {
        let is_part = |name: &str| {
            ["pctcp", "kist", "switch", "survey", "attack"].contains(&name)
                || parts().any(|(other, ..)| other == name)
        };
        let keys = ["transport", "scheduler", "channel-scheduler", "control", "conflux", "balance"];
        let is_chosen = |name: &str| match name {
            "switch" => self.switching.is_some(),
            "survey" | "attack" => !self.chooses("balance", "given"),
            name => keys.iter().any(|key| self.chooses(key, name)),
        };
        let given = written.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        given.filter(|name| is_part(name) && !is_chosen(name)).collect()
    }

    /// As [`read`](Self::read), without the [`check`](Self::check) of combinations.
    ///
    /// # Errors
    /// The first thing that is wrong, with its path in the table.
    pub fn parse(table: &Value) -> Result<SystemConfig, Wrong> {
        keys::check(&SCHEMA, table)?;
        let is_choice = |value: &&Value| !value.is_object();
        let given = table.as_object().into_iter().flatten();
        let choices: Value = given
            .filter(|(_, value)| is_choice(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let choices: Choices = keys::read(&choices)?;
        let mut all = match serde_json::to_value(&choices) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        };
        let pctcp: Pctcp = own(table, "pctcp", &mut all)?;
        let kist = own(table, "kist", &mut all)?;
        let switch: Switching = own(table, "switch", &mut all)?;
        let form = match choices.switching {
            SwitchingName::None => None,
            SwitchingName::Connection => Some(Form::Connection),
            SwitchingName::Circuit => Some(Form::Circuit),
        };
        let usual = Switching::default();
        let alone = choices.transport == TransportName::Quic;
        let moves = form == Some(Form::Circuit);
        let without_effect = [
            (moves && switch.connections != usual.connections, "switch", "connections", CIRCUIT),
            (moves && switch.everywhere, "switch", "everywhere", CIRCUIT),
            (alone && pctcp.connections_per_peer != 0, "pctcp", "connections-per-peer", QUIC),
            (alone && pctcp.esp_overhead != 0, "pctcp", "esp-overhead", QUIC),
        ];
        for (given, table, key, (with, instead)) in without_effect {
            if given {
                return Err(Wrong {
                    path: vec![table.into(), key.into()],
                    at_key: true,
                    cause: format!("`{key}` has no effect with `{with}`"),
                    cure: format!("remove it, or set `{instead}`"),
                });
            }
        }
        let conflux = find(SPLITS, &choices.conflux, table, &mut all)?;
        let control = choose(CONTROLS, &choices.control, table, &mut all)?;
        let windows: Windows = own(table, "windows", &mut all)?;
        let circuit_queue: CircuitQueue = own(table, "circuit-queue", &mut all)?;
        // Without any window, the controller's steps wake an end.
        let increment =
            control.window().map_or(windows.circuit_increment, |window| window.sendme_increment());
        if increment < u32::MAX {
            circuit_queue.check(increment)?;
        }
        Ok(SystemConfig {
            transport: match choices.transport {
                TransportName::Vanilla => Transport::Vanilla,
                TransportName::Pctcp => pctcp.transport(),
                TransportName::Quic => Transport::Quic,
            },
            pctcp,
            scheduler: choose(SCHEDULERS, &choices.scheduler, table, &mut all)?,
            kist: (choices.channel_scheduler == ChannelScheduler::Kist).then_some(kist),
            connection_half_life: choices.connection_half_life,
            switching: form.map(|form| Switching { form, ..switch }),
            conflux,
            control,
            windows,
            output_buffer: own(table, "output-buffer", &mut all)?,
            circuit_queue,
            balance: choose(BALANCES, &choices.balance, table, &mut all)?,
            survey: own(table, "survey", &mut all)?,
            attack: own(table, "attack", &mut all)?,
            table: all,
        })
    }
}

impl Default for SystemConfig {
    /// Tor as it was: one connection per pair of relays, round robin, fixed windows.
    fn default() -> SystemConfig {
        SystemConfig::read(&json!({})).expect("defaults fit together")
    }
}

/// A table within the table; what it says with every default goes to `all`.
fn own<P: Parameters>(table: &Value, name: &str, all: &mut Map<String, Value>) -> Result<P, Wrong> {
    let parameters: P =
        keys::read(table.get(name).unwrap_or(&json!({}))).map_err(|wrong| wrong.below(name))?;
    all.insert(name.into(), serde_json::to_value(&parameters).unwrap_or_default());
    Ok(parameters)
}

/// Makes the part of this name; the tables of all parts go to `all`.
fn choose<T: ?Sized>(
    parts: &[Part<T>],
    name: &str,
    table: &Value,
    all: &mut Map<String, Value>,
) -> Result<Arc<T>, Wrong> {
    Ok(find(parts, name, table, all)?.expect("the check knows the names"))
}

/// The same, of a part that can be done without.
fn find<T: ?Sized>(
    parts: &[Part<T>],
    name: &str,
    table: &Value,
    all: &mut Map<String, Value>,
) -> Result<Option<Arc<T>>, Wrong> {
    let mut chosen = None;
    for part in parts {
        let own = table.get(part.name).cloned().unwrap_or(json!({}));
        let (made, spelled) = (part.make)(&own).map_err(|wrong| wrong.below(part.name))?;
        if part.schema.is_some() {
            all.insert(part.name.into(), spelled);
        }
        if part.name == name {
            chosen = Some(made);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_part_is_an_alternative_or_the_default() {
        let names: Vec<&str> = alternatives().into_iter().map(|(name, _)| name).collect();
        let registered = SCHEDULERS.iter().map(|part| part.name).chain(CONTROLS.iter().map(|part| part.name));
        assert!(registered.clone().count() > 7);
        for name in registered.chain(["pctcp", "quic", "kist", "connection", "circuit"]) {
            let is_default = ["round-robin", "windows"].contains(&name);
            assert_eq!(names.contains(&name), !is_default, "{name} of {names:?}");
        }
        for (name, key) in alternatives() {
            SystemConfig::read(&json!({ key: name })).expect("it fits the defaults");
        }
    }

    #[test]
    fn a_table_spelled_out_says_the_same() {
        let table = json!({
            "transport": "pctcp", "scheduler": "ewma", "ewma": { "half-life": "5 s" }, "control": "predictor",
            "predictor": { "preset": "journal" }, "channel-scheduler": "kist", "kist": { "interval": "20 ms" },
            "windows": { "circuit": 500 },
        });
        let system = SystemConfig::read(&table).unwrap();
        assert!(system.kist.is_some() && system.transport == Transport::PerCircuit);
        assert_eq!(system.windows.circuit, 500);
        assert_eq!(system.table["predictor"]["problem"], "journal");
        let again = SystemConfig::read(&Value::Object(system.table.clone())).unwrap();
        assert_eq!(format!("{again:?}"), format!("{system:?}"));
    }

    #[test]
    fn errors_name_the_path_of_the_mistake() {
        for (table, path, cause) in [
            (json!({ "scheduler": "emwa" }), "scheduler", "there is no scheduler `emwa`"),
            (json!({ "control": 7 }), "control", "`control` is 7"),
            (json!({ "ewma": { "half-life": "0 s" } }), "ewma.half-life", "`half-life` is not in 1 ns.."),
            (json!({ "vegas": { "alhpa": 7 } }), "vegas.alhpa", "unknown key `alhpa`"),
            (json!({ "switch": { "alpha": 0.9 } }), "switch", "`alpha` is above `beta`"),
            (json!({ "vegas": { "initial": 30 } }), "vegas", "`initial` or `minimum` is below"),
            (json!({ "circuit-queue": { "high": 99 } }), "circuit-queue.high", "an end stops at 99 cells"),
            (json!({ "q-learning": { "late": 1 } }), "q-learning.late", "`late` is not in 1.01.."),
            (json!({ "q-learning": { "first": 9, "top": 3 } }), "q-learning", "`first` is above `top`"),
            (json!({ "kist": "fast" }), "kist", "`kist` is \"fast\", expected table"),
            (json!({ "conflux": "fast", "control": "vegas" }), "conflux", "there is no conflux `fast`"),
            (
                json!({ "conflux": "min-latency", "control": "vegas", "switching": "circuit" }),
                "conflux",
                "`conflux` = \"min-latency\" has no use with `switching = \"circuit\"`: both move",
            ),
        ] {
            let wrong = SystemConfig::read(&table).unwrap_err();
            assert_eq!(wrong.path.join("."), path, "{wrong:?}");
            assert!(wrong.cause.starts_with(cause), "{wrong:?}");
        }
    }

    #[test]
    fn every_part_is_read_from_its_table() {
        for name in names(SCHEDULERS) {
            let system = SystemConfig::read(&json!({ "scheduler": name })).unwrap();
            assert_eq!(system.table["scheduler"], name);
        }
        for name in names(CONTROLS) {
            SystemConfig::read(&json!({ "control": name })).unwrap();
            for split in names(SPLITS) {
                let table = json!({ "control": name, "conflux": split });
                assert_eq!(SystemConfig::read(&table).is_ok(), name != "windows", "{table}");
            }
        }
    }
}
