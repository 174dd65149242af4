//! The registry: from a controller's name and the thesis' symbols to a controller.

use std::fmt;

use super::Controller;
use super::aimd::{Aimd, AimdParameters};
use super::cubic::{Cubic, CubicParameters};
use super::explicit::{Explicit, ExplicitParameters, FairShareParameters};
use super::guarded::{GuardParameters, Guarded};
use super::latency::Latencies;
use super::q_learning::{Exploration, QLearning, QParameters};
use super::q_signs::{self, QSigns};
use super::random::Random;
use super::signs::Signs;
use crate::random::Seed;

/// Every controller by name.
pub const NAMES: [&str; 10] = [
    "random",
    "perfect",
    "aimd",
    "aimd-locating",
    "aimd-signs",
    "q-learning",
    "q-signs",
    "cubic",
    "cubic-signs",
    "explicit",
];

/// A controller with its parameters, and the round-trip estimate that all of them use.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerParameters {
    /// gamma of equations 4.3 and 4.4.
    pub gamma: f64,
    /// alpha of equations 4.5 and 4.6, the timeout factor.
    pub timeout_factor: f64,
    /// The controller.
    pub kind: ControllerKind,
}

/// What distinguishes the controllers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ControllerKind {
    /// [`super::random`]
    Random,
    /// [`super::perfect`]
    Perfect,
    /// [`super::aimd`], plain or with the drop locator
    Aimd(AimdParameters),
    /// [`super::q_learning`]
    QLearning(QParameters),
    /// [`super::q_signs`] behind [`super::signs`]
    QSigns(QParameters),
    /// [`super::aimd`] behind [`super::signs`]
    AimdSigns(AimdParameters),
    /// [`super::cubic`]
    Cubic(CubicParameters),
    /// [`super::cubic`] behind [`super::signs`]
    CubicSigns(CubicParameters),
    /// [`super::explicit`]
    Explicit(ExplicitParameters, FairShareParameters),
    /// [`super::guarded`] with [`super::aimd`] for relays that lie
    ExplicitOrAimd(ExplicitParameters, FairShareParameters, GuardParameters, AimdParameters),
    /// [`super::guarded`] with [`super::aimd`] behind [`super::signs`] for relays that lie
    ExplicitOrSigns(ExplicitParameters, FairShareParameters, GuardParameters, AimdParameters),
    /// [`super::guarded`] with [`super::q_learning`] for relays that lie
    ExplicitOrQ(ExplicitParameters, FairShareParameters, GuardParameters, QParameters),
}

/// A name or symbol that the registry does not know, or a value it cannot take.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterError {
    /// No controller has this name.
    UnknownController(String),
    /// This controller has no such parameter.
    UnknownSymbol {
        /// What was asked for.
        symbol: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// The value is outside the parameter's range.
    OutOfRange {
        /// The parameter.
        symbol: String,
        /// The value given.
        value: f64,
        /// What is accepted.
        range: &'static str,
    },
}

impl fmt::Display for ParameterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterError::UnknownController(name) => {
                write!(f, "no controller is called `{name}`; use one of {}", NAMES.join(", "))
            }
            ParameterError::UnknownSymbol { symbol, known } => {
                write!(f, "this controller has no parameter `{symbol}`; it has {}", known.join(", "))
            }
            ParameterError::OutOfRange { symbol, value, range } => {
                write!(f, "`{symbol} = {value}` is out of range; give {range}")
            }
        }
    }
}

impl std::error::Error for ParameterError {}

/// Accepted by every controller.
const COMMON: [&str; 2] = ["gamma-rtt", "timeout-factor"];

/// What to tell a user who writes a symbol as it once was.
pub fn renamed(symbol: &str) -> Option<String> {
    symbol.contains('_').then(|| format!("`{symbol}` is now `{}`", symbol.replace('_', "-")))
}

impl ControllerParameters {
    /// The controller called `name` with the thesis' values (sections 7.1.5 and 7.2.4) for packets of
    /// `packet` bytes.
    ///
    /// # Errors
    /// [`ParameterError::UnknownController`].
    pub fn named(name: &str, packet: f64) -> Result<ControllerParameters, ParameterError> {
        let aimd = AimdParameters { packet, alpha: 1.5, beta: 1.4, locate: false };
        // Bytes/s that grow by alpha packets/s per round trip, where 4.7 as printed has alpha bytes/s.
        let signs = AimdParameters { alpha: aimd.alpha * packet, locate: true, ..aimd };
        let q = QParameters {
            packet,
            alpha: 0.25,
            gamma: 0.9,
            reward_ack: 0.015,
            reward_timeout: -1.0,
            exploration: Exploration::Greedy { epsilon: 0.003 },
            top: 8739,
        };
        let source = ExplicitParameters { packet, beta: 0.9 };
        let relay = FairShareParameters { packet, kappa: 0.1, lambda: 4.0, eta: 0.93, grain: 1.0 };
        let guard = GuardParameters { loss: 0.1, low: 0.33 };
        let kind = match name {
            "random" => ControllerKind::Random,
            "perfect" => ControllerKind::Perfect,
            "aimd" => ControllerKind::Aimd(aimd),
            "aimd-locating" => ControllerKind::Aimd(AimdParameters { locate: true, ..aimd }),
            "aimd-signs" => ControllerKind::AimdSigns(signs),
            "q-learning" => ControllerKind::QLearning(q),
            "q-signs" => ControllerKind::QSigns(QParameters { packet: q_signs::STEP * packet, ..q }),
            "cubic" => ControllerKind::Cubic(CubicParameters { packet, c: 1e-4, beta: 0.7 }),
            // RFC 9438's C.
            "cubic-signs" => ControllerKind::CubicSigns(CubicParameters { packet, c: 0.4, beta: 0.7 }),
            "explicit" => ControllerKind::Explicit(source, relay),
            "explicit-or-aimd" => {
                ControllerKind::ExplicitOrAimd(source, relay, guard, AimdParameters { locate: true, ..aimd })
            }
            "explicit-or-signs" => ControllerKind::ExplicitOrSigns(source, relay, guard, signs),
            "explicit-or-q" => ControllerKind::ExplicitOrQ(source, relay, guard, q),
            _ => return Err(ParameterError::UnknownController(name.chars().take(40).collect())),
        };
        Ok(ControllerParameters { gamma: 0.1, timeout_factor: 4.0, kind })
    }

    /// Sets one parameter by its symbol; with underscores, as once, it is taken too ([`renamed`]).
    ///
    /// # Errors
    /// [`ParameterError`] for a symbol this controller does not have, and for values outside its range.
    pub fn set(&mut self, symbol: &str, value: f64) -> Result<(), ParameterError> {
        let symbol = &*symbol.replace('_', "-");
        let symbols = self.kind.symbols();
        if !COMMON.contains(&symbol) && !symbols.contains(&symbol) {
            return Err(ParameterError::UnknownSymbol {
                symbol: symbol.chars().take(40).collect(),
                known: symbols,
            });
        }
        let range = match symbol {
            "gamma-rtt" | "alpha"
                if matches!(self.kind, ControllerKind::QLearning(_) | ControllerKind::QSigns(_)) =>
            {
                "a number above 0, at most 1"
            }
            "gamma-rtt" => "a number above 0, at most 1",
            "gamma" | "epsilon" | "eta" => "a number from 0 to 1",
            "reward-timeout" => "a number below 0",
            "beta" if !matches!(self.kind, ControllerKind::Aimd(_) | ControllerKind::AimdSigns(_)) => {
                "a number above 0, at most 1"
            }
            "beta" | "grain" => "a number of at least 1",
            "top" => "a whole number from 1 to 1048575",
            "lambda" => "a number of at least 0",
            _ => "a number above 0",
        };
        let fits = value.is_finite()
            && match range {
                "a number above 0, at most 1" => value > 0.0 && value <= 1.0,
                "a number from 0 to 1" => (0.0..=1.0).contains(&value),
                "a number below 0" => value < 0.0,
                "a number of at least 1" => value >= 1.0,
                "a number of at least 0" => value >= 0.0,
                "a number above 0" => value > 0.0,
                _ => value >= 1.0 && value <= f64::from(0xf_ffff) && value.fract() == 0.0,
            };
        if !fits {
            return Err(ParameterError::OutOfRange { symbol: symbol.into(), value, range });
        }
        match (&mut self.kind, symbol) {
            (_, "gamma-rtt") => self.gamma = value,
            (_, "timeout-factor") => self.timeout_factor = value,
            (ControllerKind::Aimd(p) | ControllerKind::AimdSigns(p), "alpha") => p.alpha = value,
            (ControllerKind::Aimd(p) | ControllerKind::AimdSigns(p), "beta") => p.beta = value,
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "alpha") => p.alpha = value,
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "gamma") => p.gamma = value,
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "reward-ack") => p.reward_ack = value,
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "reward-timeout") => {
                p.reward_timeout = value
            }
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "epsilon") => {
                p.exploration = Exploration::Greedy { epsilon: value }
            }
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "tau") => {
                p.exploration = Exploration::Softmax { tau: value }
            }
            (ControllerKind::QLearning(p) | ControllerKind::QSigns(p), "top") => p.top = value as u32,
            (ControllerKind::Cubic(p) | ControllerKind::CubicSigns(p), "c") => p.c = value,
            (ControllerKind::Cubic(p) | ControllerKind::CubicSigns(p), "beta") => p.beta = value,
            (kind, symbol) => {
                let (source, relay, guard) = kind.explicit().expect("the only controllers left");
                match (symbol, guard) {
                    ("beta", _) => source.beta = value,
                    ("kappa", _) => relay.kappa = value,
                    ("lambda", _) => relay.lambda = value,
                    ("eta", _) => relay.eta = value,
                    ("grain", _) => relay.grain = value,
                    ("loss", Some(guard)) => guard.loss = value,
                    ("low", Some(guard)) => guard.low = value,
                    _ => unreachable!("`symbols` lists {symbol}"),
                }
            }
        }
        Ok(())
    }

    /// The controller of one source; none for [`ControllerKind::Perfect`], which has a manager in its place.
    pub fn controller(&self, peers: usize, seed: Seed) -> Option<Box<dyn Controller>> {
        Some(match self.kind {
            ControllerKind::Random => Box::new(Random),
            ControllerKind::Perfect => return None,
            ControllerKind::Aimd(parameters) => Box::new(Aimd::new(peers, parameters)),
            ControllerKind::QLearning(parameters) => Box::new(QLearning::new(peers, parameters, seed)),
            ControllerKind::QSigns(parameters) => {
                Box::new(Signs::new(peers, Box::new(QSigns::new(peers, parameters, seed))))
            }
            ControllerKind::AimdSigns(parameters) => {
                Box::new(Signs::new(peers, Box::new(Aimd::new(peers, parameters))))
            }
            ControllerKind::Cubic(parameters) => Box::new(Cubic::new(peers, parameters)),
            ControllerKind::CubicSigns(parameters) => {
                Box::new(Signs::new(peers, Box::new(Cubic::new(peers, parameters))))
            }
            ControllerKind::Explicit(parameters, _) => Box::new(Explicit::new(peers, parameters)),
            ControllerKind::ExplicitOrAimd(explicit, _, guard, aimd) => {
                Box::new(Guarded::new(peers, explicit, guard, Box::new(move || Box::new(Aimd::new(1, aimd)))))
            }
            ControllerKind::ExplicitOrSigns(explicit, _, guard, aimd) => {
                let fallback =
                    move || Box::new(Signs::new(1, Box::new(Aimd::new(1, aimd)))) as Box<dyn Controller>;
                Box::new(Guarded::new(peers, explicit, guard, Box::new(fallback)))
            }
            ControllerKind::ExplicitOrQ(explicit, _, guard, q) => {
                let mut learners = 0;
                let fallback = move || {
                    learners += 1;
                    Box::new(QLearning::new(1, q, seed.fork_index(learners))) as Box<dyn Controller>
                };
                Box::new(Guarded::new(peers, explicit, guard, Box::new(fallback)))
            }
        })
    }

    /// Empty round-trip estimates of one source.
    pub fn latencies(&self, peers: usize) -> Latencies {
        Latencies::new(peers, self.gamma, self.timeout_factor)
    }

    /// What relays do for this controller: how they stamp rates, if they do.
    pub fn stamping(&self) -> Option<FairShareParameters> {
        match self.kind {
            ControllerKind::Explicit(_, relay)
            | ControllerKind::ExplicitOrAimd(_, relay, ..)
            | ControllerKind::ExplicitOrSigns(_, relay, ..)
            | ControllerKind::ExplicitOrQ(_, relay, ..) => Some(relay),
            _ => None,
        }
    }

    /// Whether relays say that they dropped a packet.
    pub fn refusing(&self) -> bool {
        self.stamping().is_some()
            || matches!(
                self.kind,
                ControllerKind::Aimd(AimdParameters { locate: true, .. })
                    | ControllerKind::AimdSigns(_)
                    | ControllerKind::QSigns(_)
                    | ControllerKind::CubicSigns(_)
            )
    }
}

impl ControllerKind {
    fn symbols(&self) -> &'static [&'static str] {
        match self {
            ControllerKind::Random | ControllerKind::Perfect => &[],
            ControllerKind::Aimd(_) | ControllerKind::AimdSigns(_) => &["alpha", "beta"],
            ControllerKind::QLearning(_) | ControllerKind::QSigns(_) => {
                &["alpha", "gamma", "reward-ack", "reward-timeout", "epsilon", "tau", "top"]
            }
            ControllerKind::Cubic(_) | ControllerKind::CubicSigns(_) => &["c", "beta"],
            ControllerKind::Explicit(..) => &["kappa", "lambda", "eta", "grain", "beta"],
            ControllerKind::ExplicitOrAimd(..)
            | ControllerKind::ExplicitOrSigns(..)
            | ControllerKind::ExplicitOrQ(..) => &["kappa", "lambda", "eta", "grain", "beta", "loss", "low"],
        }
    }

    /// The parts of the controllers with explicit rates.
    fn explicit(
        &mut self,
    ) -> Option<(&mut ExplicitParameters, &mut FairShareParameters, Option<&mut GuardParameters>)> {
        match self {
            ControllerKind::Explicit(source, relay) => Some((source, relay, None)),
            ControllerKind::ExplicitOrAimd(source, relay, guard, _)
            | ControllerKind::ExplicitOrSigns(source, relay, guard, _)
            | ControllerKind::ExplicitOrQ(source, relay, guard, _) => Some((source, relay, Some(guard))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_symbol_is_known_and_ranges_are_kept() {
        for name in NAMES {
            let mut parameters = ControllerParameters::named(name, 1500.0).expect("listed");
            for symbol in parameters.kind.symbols().iter().chain(&COMMON) {
                assert!(parameters.set(symbol, f64::NAN).is_err(), "{name} {symbol}");
                let value = if *symbol == "reward-timeout" { -0.5 } else { 1.0 };
                parameters.set(symbol, value).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            assert!(parameters.set("omega", 1.0).is_err());
            parameters.set("timeout_factor", 3.0).unwrap();
            assert_eq!(parameters.timeout_factor, 3.0, "as it once was written");
            assert_eq!(parameters.controller(5, Seed::root(1)).is_none(), name == "perfect");
        }
        assert!(ControllerParameters::named("vegas", 1500.0).is_err());
        assert_eq!(renamed("timeout_factor").as_deref(), Some("`timeout_factor` is now `timeout-factor`"));
        assert_eq!(renamed("timeout-factor"), None);
    }
}
