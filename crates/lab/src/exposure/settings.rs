//! What to simulate: networks, adversary, clients.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_data::consensus::{Consensus, Identity};
use tidegate_data::document::day;

use super::adversary::Adversary;
use super::guards::GuardParameters;
use super::user::UserModel;
use crate::input::InputError;
use crate::network::builtin;

/// The relays that carry a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPaths {
    /// One circuit.
    Circuit,
    /// Two linked circuits with different guards (proposal 329).
    Conflux,
    /// A circuit that moves this often to another middle, as `switching = "circuit"` does.
    Moving(u8),
    /// This many paths, which packets take in turn. Each has an entry, a middle and an exit of its own; entries are drawn
    /// among all guards.
    PerPacket(u8),
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct ExposureSettings {
    /// The networks in the order of their dates; at least one.
    pub consensuses: Vec<Consensus>,
    /// Relatives of relays; empty if unknown.
    pub families: BTreeMap<Identity, BTreeSet<Identity>>,
    /// The adversary.
    pub adversary: Adversary,
    /// The clients' user.
    pub user: UserModel,
    /// Rules of guards.
    pub(super) guards: GuardParameters,
    /// The relays that carry a stream.
    pub paths: StreamPaths,
    /// Simulated days.
    pub days: u32,
    /// Number of clients.
    pub samples: u32,
    /// The seed.
    pub seed: u64,
}

impl ExposureSettings {
    /// Settings for these networks: TorPS' adversary and user, the guards of the last consensus, half a year.
    ///
    /// # Errors
    /// If two consensuses have the same date.
    pub fn new(mut consensuses: Vec<Consensus>) -> Result<ExposureSettings, InputError> {
        consensuses.sort_by_key(|consensus| consensus.valid_after);
        let dates = consensuses.iter().map(|consensus| consensus.valid_after);
        if let Some((date, _)) = dates.clone().zip(dates.skip(1)).find(|(one, next)| one == next) {
            let cause = format!("two consensuses are of the same time on {}", day(date));
            return Err(InputError::new("the consensuses", cause, "give consensuses of different times"));
        }
        let guards = consensuses.last().map_or_else(BTreeMap::new, |last| last.params.clone());
        Ok(ExposureSettings {
            consensuses,
            families: BTreeMap::new(),
            adversary: Adversary::default(),
            user: UserModel::Typical,
            guards: GuardParameters::of(&guards),
            paths: StreamPaths::Circuit,
            days: 180,
            samples: 1000,
            seed: 1,
        })
    }

    /// Sets the number of guards in use, as tor's `NumEntryGuards` does.
    pub fn use_guards(&mut self, used: Option<usize>) {
        let Some(used) = used else { return };
        self.guards.used = used;
        // tor: get_n_primary_guards
        match used {
            0..=1 => {}
            2..=5 => self.guards.primary = 2 * used,
            _ => self.guards.primary = used + used / 2,
        }
    }

    /// Checks the adversary.
    ///
    /// # Errors
    /// If a share is out of range, or a relay's weight is.
    pub(super) fn check(&self) -> Result<(), InputError> {
        let Adversary { share, on_guards, .. } = self.adversary;
        if !(share > 0.0 && share < 1.0) {
            let cause = format!("its share of all weight is {share}");
            return Err(InputError::new("the adversary", cause, "give a share above 0 and below 1"));
        }
        if !(0.0..=1.0).contains(&on_guards) {
            let cause = format!("the part of its weight on guards is {on_guards}");
            return Err(InputError::new("the adversary", cause, "give a part from 0 to 1"));
        }
        // Consensuses state whole numbers.
        let wrong = |bandwidth: &f64| *bandwidth > u32::MAX.into() || *bandwidth < 1.0;
        for consensus in &self.consensuses {
            let bandwidths =
                self.adversary.bandwidths(consensus).into_iter().zip([on_guards, 1.0 - on_guards]);
            let mut given = bandwidths.filter(|(_, part)| *part > 0.0).map(|(bandwidth, _)| bandwidth);
            if let Some(bandwidth) = given.find(wrong) {
                let cause = format!("a share of {share} gives one of its relays a weight of {bandwidth}");
                let cure = "give a share for which it is from 1 to 4294967295";
                return Err(InputError::new("the adversary", cause, cure));
            }
        }
        Ok(())
    }
}

/// The consensus of the built-in model of 2024, with the number of guards in use of that time.
pub fn builtin_consensus() -> Consensus {
    let mut consensus = builtin::consensus(builtin::YEARS[1]);
    // The consensus of 2024-05-17.
    consensus.params.insert("guard-n-primary-guards-to-use".into(), 2);
    consensus
}
