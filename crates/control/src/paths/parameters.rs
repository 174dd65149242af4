//! The registry of controllers, and a controller chosen by name with the thesis' symbols.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Controller;
use super::aimd::{AimdLocating, AimdSymbols};
use super::cubic::{self, CubicSymbols};
use super::explicit::ExplicitSymbols;
use super::fair_share::FairShareParameters;
use super::guarded::ExplicitOr;
use super::kind::ControllerKind;
use super::latency::Latencies;
use super::perfect::Perfect;
use super::q_learning::{self, QSymbols};
use super::random::Random;
use super::signs::{AimdSigns, CubicSigns, QLearningSigns};
use crate::keys::{self, Parameters, Wrong};
use crate::part;
use crate::random::Seed;
use crate::registry::{Part, UnknownPart, find};

/// Every controller of parallel paths.
pub const CONTROLLERS: &[Part<dyn ControllerKind>] = &[
    part!("random" = Random),
    part!("perfect" = Perfect),
    part!("aimd", AimdSymbols),
    part!("aimd-locating", AimdLocating),
    part!("aimd-signs", AimdSigns),
    part!("q-learning", QSymbols, q_learning::ORIGIN),
    part!("q-signs", QLearningSigns),
    part!("cubic", CubicSymbols, cubic::ORIGIN),
    part!("cubic-signs", CubicSigns),
    part!("explicit", ExplicitSymbols),
    part!("explicit-or-aimd", ExplicitOr<AimdLocating>),
    part!("explicit-or-signs", ExplicitOr<AimdSigns>),
    part!("explicit-or-q", ExplicitOr<QSymbols>),
];

/// The round-trip estimate, which every controller uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct RoundTripSymbols {
    /// Weight of a new measurement, gamma of equations 4.3 and 4.4. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
    gamma_rtt: f64,
    /// Timeout in multiples of the estimate, alpha of equations 4.5 and 4.6. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    timeout_factor: f64,
}

impl Default for RoundTripSymbols {
    fn default() -> RoundTripSymbols {
        RoundTripSymbols { gamma_rtt: 0.1, timeout_factor: 4.0 }
    }
}

impl Parameters for RoundTripSymbols {}

/// A controller with its parameters, and the round-trip estimate that all of them use.
#[derive(Clone, Debug)]
pub struct ControllerParameters {
    part: &'static Part<dyn ControllerKind>,
    /// Packet size, bytes.
    packet: f64,
    /// The symbols that were set.
    table: Map<String, Value>,
    round_trips: RoundTripSymbols,
    kind: Arc<dyn ControllerKind>,
}

impl ControllerParameters {
    /// The controller called `name` with the thesis' values (sections 7.1.5 and 7.2.4) for `packet`-byte packets.
    ///
    /// # Errors
    /// [`UnknownPart`] lists the controllers.
    pub fn named(name: &str, packet: f64) -> Result<ControllerParameters, UnknownPart> {
        let part = find("controller", CONTROLLERS, name)?;
        let round_trips = RoundTripSymbols::default();
        Ok(ControllerParameters { part, packet, table: Map::new(), round_trips, kind: part.by_default() })
    }

    /// Sets one parameter by its symbol.
    ///
    /// # Errors
    /// [`Wrong`] for a symbol that this controller does not have, and for a value outside its range.
    pub fn set(&mut self, symbol: &str, value: f64) -> Result<(), Wrong> {
        let mut table = self.table.clone();
        // JSON tells whole numbers from others, f64 does not.
        let whole = value.fract() == 0.0 && value.abs() < f64::from(u32::MAX);
        table.insert(symbol.to_owned(), if whole { json!(value as i64) } else { json!(value) });
        let all = Value::Object(table.clone());
        keys::check(&schema(self.part), &all)?;
        let common = keys::schema::<RoundTripSymbols>();
        let (round_trips, own): (Map<_, _>, Map<_, _>) =
            table.clone().into_iter().partition(|(symbol, _)| common["properties"].get(symbol).is_some());
        self.round_trips = keys::read(&Value::Object(round_trips))?;
        (self.kind, _) = (self.part.make)(&Value::Object(own))?;
        self.table = table;
        Ok(())
    }

    /// The controller of one source; `None` for `perfect`, where a central manager replaces the sources.
    pub fn controller(&self, peers: usize, seed: Seed) -> Option<Box<dyn Controller>> {
        self.kind.controller(self.packet, peers, seed)
    }

    /// Empty round-trip estimates of one source.
    pub fn latencies(&self, peers: usize) -> Latencies {
        Latencies::new(peers, self.round_trips.gamma_rtt, self.round_trips.timeout_factor)
    }

    /// The parameters with which relays stamp rates; `None` if they do not.
    pub fn stamping(&self) -> Option<FairShareParameters> {
        self.kind.stamping(self.packet)
    }

    /// Whether relays report the packets that they drop.
    pub fn refusing(&self) -> bool {
        self.kind.refusing()
    }
}

/// The JSON Schema of a controller's symbols, those of the round-trip estimate included.
pub(crate) fn schema(part: &Part<dyn ControllerKind>) -> Value {
    let mut all = keys::schema::<RoundTripSymbols>();
    let own = part.schema.map_or(Value::Null, |schema| schema());
    for (symbol, keywords) in own["properties"].as_object().into_iter().flatten() {
        all["properties"][symbol] = keywords.clone();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_symbol_is_known_and_ranges_are_kept() {
        for part in CONTROLLERS {
            let named = || ControllerParameters::named(part.name, 1500.0).expect("listed");
            let schema = schema(part);
            for symbol in schema["properties"].as_object().unwrap().keys() {
                assert!(named().set(symbol, f64::NAN).is_err(), "{} {symbol}", part.name);
                let value = if symbol == "reward-timeout" { -0.5 } else { 1.0 };
                let mut parameters = named();
                parameters.set(symbol, value).unwrap_or_else(|e| panic!("{}: {e}", part.name));
                parameters.set("timeout-factor", 3.0).unwrap();
                assert_eq!(parameters.round_trips.timeout_factor, 3.0);
            }
            assert!(named().set("omega", 1.0).is_err());
            assert_eq!(named().controller(5, Seed::root(1)).is_none(), part.name == "perfect");
        }
        let unknown = ControllerParameters::named("vegas", 1500.0).unwrap_err().to_string();
        assert!(unknown.ends_with("explicit-or-aimd, explicit-or-signs, explicit-or-q"), "{unknown}");
    }

    #[test]
    fn values_keep_to_their_ranges() {
        for (name, symbol, value) in [
            ("aimd", "alpha", 0.0),
            ("aimd", "beta", 0.9),
            ("q-learning", "alpha", 1.1),
            ("q-learning", "top", 1.5),
            ("q-learning", "top", 1_048_576.0),
            ("q-learning", "reward-timeout", 0.0),
            ("cubic", "beta", 1.1),
            ("explicit-or-q", "eta", 1.1),
            ("explicit-or-q", "grain", 0.9),
            ("random", "gamma-rtt", 0.0),
        ] {
            let mut parameters = ControllerParameters::named(name, 1500.0).unwrap();
            assert!(parameters.set(symbol, value).is_err(), "{name} {symbol} = {value}");
        }
        let mut q = ControllerParameters::named("q-signs", 1500.0).unwrap();
        q.set("tau", 0.5).unwrap();
        assert!(q.set("epsilon", 0.1).is_err(), "one way of exploring");
    }
}
