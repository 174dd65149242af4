//! A fixed rate per circuit: data enters the overlay at most at this rate, even on an idle path.
//!
//! Fixed windows bound the cells in flight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Rate, Span, Time};

use super::{Allowance, Control, Controller, Place, Plant, Timer};
use crate::cell::DATA_BYTES;
use crate::ids::CircuitKey;

/// Paces every circuit towards its client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct FixedRate {
    /// Application bytes of one circuit.
    #[schemars(extend("x-range" = "8 bit/s.."))]
    pub rate: Rate,
    /// Time between two groups of cells; long intervals make bursts.
    #[schemars(extend("x-range" = "100 us..=1 s"))]
    pub interval: Span,
}

impl Default for FixedRate {
    fn default() -> FixedRate {
        FixedRate { rate: Rate(1_000_000), interval: Span::from_millis(10) }
    }
}

impl Parameters for FixedRate {}

impl Control for FixedRate {
    fn controller(&self, _: &Place) -> Option<Box<dyn Controller>> {
        let next = Timer { due: Time::ZERO + self.interval, set: Time::ZERO };
        Some(Box::new(Pacer { rule: *self, next, circuits: Vec::new() }))
    }
}

#[derive(Debug)]
struct Pacer {
    rule: FixedRate,
    next: Timer,
    circuits: Vec<CircuitKey>,
}

impl Controller for Pacer {
    fn first_allowance(&self) -> (f64, f64) {
        (f64::INFINITY, 1.0)
    }

    fn next_step(&self) -> Option<Timer> {
        Some(self.next)
    }

    fn step(&mut self, now: Time, plant: &mut dyn Plant) {
        let FixedRate { rate, interval } = self.rule;
        self.next = Timer { due: now + interval, set: now };
        let cells_per_s = rate.as_bytes_per_s() / f64::from(DATA_BYTES);
        let (package, planned) = (cells_per_s * interval.as_secs_f64(), Some(cells_per_s));
        let allowance = Allowance { send: f64::INFINITY, share: 0.0, package, planned, carry: true };
        plant.circuits(&mut self.circuits);
        for circuit in &self.circuits {
            if plant.view(*circuit).enters {
                plant.allow(now, *circuit, &allowance);
                plant.resume(*circuit);
            }
        }
    }
}
