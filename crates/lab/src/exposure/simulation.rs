//! The simulation of all clients.

use tidegate_control::random::Seed;

use super::client::{self, World};
use super::network::{Network, Roster};
use super::report::Exposure;
use super::settings::ExposureSettings;
use super::timeline;
use super::user::PORTS;
use crate::input::InputError;
use crate::jobs;
use crate::monitor::Monitor;

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

/// State that all clients share.
pub(super) fn world(settings: &ExposureSettings) -> World {
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
    World { roster, days, guards: settings.guards, user: settings.user, paths: settings.paths }
}

fn empty_position(network: &Network) -> Option<&'static str> {
    let exits = network.exits.iter().map(|exits| ("exit", exits));
    let all = [("guard", &network.guards), ("middle", &network.middles)].into_iter().chain(exits);
    all.into_iter().find(|(_, relays)| relays.len() == 0).map(|(position, _)| position)
}
