//! Which streams of Tor's users an adversary that runs relays can see at both ends, over months.
//!
//! A path simulator in the manner of TorPS (Johnson and others, "Users Get Routed", CCS 2013) and TorFS, with the guards
//! of today's tor. Simulated clients choose guards, exits and middles from real consensuses. The simulator does not send
//! any packet. See docs/anonymity.md.

mod adversary;
mod client;
mod guards;
mod network;
mod report;
pub mod runner;
mod survival;
mod timeline;
mod user;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::random::Seed;
use tidegate_data::consensus::{Consensus, Identity};
use tidegate_data::document::day;

pub use self::adversary::Adversary;
pub use self::client::ClientExposure;
pub use self::guards::GuardParameters;
use self::network::{Network, Roster};
pub use self::report::Exposure;
pub use self::survival::Survival;
use self::user::PORTS;
pub use self::user::UserModel;
use crate::input::InputError;
use crate::jobs;
use crate::monitor::Monitor;
use crate::network::builtin;

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
    pub guards: GuardParameters,
    /// Whether streams use two linked circuits with different guards (proposal 329).
    pub conflux: bool,
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
            conflux: false,
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

    fn check(&self) -> Result<(), InputError> {
        let Adversary { share, on_guards, .. } = self.adversary;
        if !(share > 0.0 && share < 1.0) {
            let cause = format!("the adversary's share is {share}");
            return Err(InputError::new("the adversary", cause, "give a share above 0 and below 1"));
        }
        if !(0.0..=1.0).contains(&on_guards) {
            let cause = format!("the part of the adversary's weight on guards is {on_guards}");
            return Err(InputError::new("the adversary", cause, "give a part from 0 to 1"));
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

/// Simulates all clients; `None` if the user stopped. The result does not depend on the number of threads.
///
/// # Errors
/// If a setting is out of range, or a position lacks relays.
pub fn run(settings: &ExposureSettings, monitor: &dyn Monitor) -> Result<Option<Exposure>, InputError> {
    settings.check()?;
    let world = world(settings);
    for (network, number) in world.days.iter().zip(1..) {
        if let Some(position) = empty_position(network) {
            let cause = format!("day {number} lacks relays for the {position} position");
            return Err(InputError::new("the network", cause, "give the consensus of a whole network"));
        }
    }
    let seed = Seed::root(settings.seed).fork("exposure").fork("clients");
    let numbers: Vec<u32> = (0..settings.samples).collect();
    let clients = jobs::run_all(
        &numbers,
        monitor,
        |_| "clients",
        |number, goes_on| {
            let client = client::simulate(&world, seed.fork_index(u64::from(*number)));
            goes_on(1.0);
            Ok(client)
        },
    );
    Ok(clients.ok().map(|clients| Exposure::new(settings, &world, clients)))
}

fn world(settings: &ExposureSettings) -> client::World {
    let adversary = settings.adversary.identities();
    let mut last = settings.consensuses.clone();
    last.iter_mut().for_each(|consensus| settings.adversary.join(consensus));
    let roster = Roster::new(&last, &settings.families, &adversary, &PORTS);
    let seed = Seed::root(settings.seed).fork("exposure").fork("network");
    let days = timeline::timeline(
        &settings.consensuses,
        &roster,
        &settings.adversary,
        (settings.days, PORTS.len()),
        seed,
    );
    let legs = if settings.conflux { 2 } else { 1 };
    client::World { roster, days, guards: settings.guards, user: settings.user, legs }
}

fn empty_position(network: &Network) -> Option<&'static str> {
    let exits = network.exits.iter().map(|exits| ("exit", exits));
    let all = [("guard", &network.guards), ("middle", &network.middles)].into_iter().chain(exits);
    all.into_iter().find(|(_, relays)| relays.len() == 0).map(|(position, _)| position)
}

#[cfg(test)]
mod tests;
