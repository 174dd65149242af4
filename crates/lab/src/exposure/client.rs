//! One client over all days: its guards, circuits and streams.

use std::sync::Arc;

use tidegate_control::random::{Random, Seed};

use super::guards::{DAY, GuardParameters, Guards};
use super::network::{Network, Roster};
use super::settings::StreamPaths;
use super::user::UserModel;

/// Seconds for which a used circuit takes new streams (tor: `MaxCircuitDirtiness`).
const DIRTINESS: i64 = 600;

/// State that all clients share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) roster: Roster,
    /// The network of each day.
    pub(super) days: Vec<Arc<Network>>,
    pub(super) guards: GuardParameters,
    pub(super) user: UserModel,
    pub(super) paths: StreamPaths,
}

/// The adversary's view of one client. Times are days since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClientExposure {
    /// Number of streams.
    pub(super) streams: u64,
    /// Streams over an adversary's guard.
    pub(super) at_guard: u64,
    /// Streams over an adversary's exit.
    pub(super) at_exit: u64,
    /// Streams over both: compromised.
    pub(super) at_both: u64,
    /// Streams over an adversary's middle, which learns the client's guard.
    pub(super) at_middle: u64,
    /// The first stream over an adversary's guard.
    pub(super) first_at_guard: Option<f64>,
    /// The first stream over an adversary's exit.
    pub(super) first_at_exit: Option<f64>,
    /// The first compromised stream.
    pub(super) first_at_both: Option<f64>,
    /// The first stream over an adversary's middle.
    pub(super) first_at_middle: Option<f64>,
    /// When the client used each of its guards for the first time, in order.
    pub(super) guards_since: Vec<f64>,
    /// Streams without a circuit, because every relay of a position was excluded.
    pub(super) failed: u64,
}

/// A circuit, or several that carry the same streams.
#[derive(Clone, Copy, Debug)]
struct Circuit {
    dirty_since: i64,
    /// The exit that decides which further streams fit.
    exit: u32,
    /// Whether the adversary runs a guard.
    at_guard: bool,
    /// Whether the adversary runs an exit.
    at_exit: bool,
    /// Whether the adversary runs a middle.
    at_middle: bool,
}

/// Simulates one client.
pub(super) fn simulate(world: &World, seed: Seed) -> ClientExposure {
    let (mut paths, mut streams) = (seed.fork("paths").random(), seed.fork("streams").random());
    let mut seen = ClientExposure::default();
    let (mut guards, mut used) = (Guards::default(), Vec::new());
    let mut circuits: Vec<Circuit> = Vec::new();
    for (day, network) in world.days.iter().enumerate() {
        let start = day as i64 * DAY;
        guards.update(start, network, &world.guards, &mut paths);
        for (second, port) in world.user.day(&mut streams) {
            let now = start + i64::from(second);
            circuits.retain(|circuit| now - circuit.dirty_since < DIRTINESS);
            // tor prefers the circuit that is dirty for the shortest time.
            let fitting = circuits.iter().rev().find(|circuit| world.roster.exits_to(circuit.exit, port));
            let circuit = match fitting {
                Some(circuit) => Some(*circuit),
                None => build(world, (now, network, port), &mut guards, &mut used, &mut paths),
            };
            let Some(circuit) = circuit else {
                seen.failed += 1;
                continue;
            };
            // Per-packet paths are drawn for every stream, so no stream takes those of another.
            let kept = !matches!(world.paths, StreamPaths::PerPacket(_));
            if circuit.dirty_since == now && fitting.is_none() && kept {
                circuits.push(circuit);
            }
            seen.note(now as f64 / DAY as f64, circuit);
        }
    }
    seen.guards_since = used.into_iter().map(|(_, since)| since).collect();
    seen
}

impl ClientExposure {
    /// Counts a stream.
    fn note(&mut self, time: f64, circuit: Circuit) {
        self.streams += 1;
        let Circuit { at_guard, at_exit, at_middle, .. } = circuit;
        for (seen, count, first) in [
            (at_guard, &mut self.at_guard, &mut self.first_at_guard),
            (at_exit, &mut self.at_exit, &mut self.first_at_exit),
            (at_guard && at_exit, &mut self.at_both, &mut self.first_at_both),
            (at_middle, &mut self.at_middle, &mut self.first_at_middle),
        ] {
            if seen {
                *count += 1;
                first.get_or_insert(time);
            }
        }
    }
}

/// Builds a set of circuits that carries a stream to this port. Chooses exit, guard, middle (path-spec 2.2).
fn build(
    world: &World,
    (now, network, port): (i64, &Network, usize),
    guards: &mut Guards,
    used: &mut Vec<(u32, f64)>,
    random: &mut Random,
) -> Option<Circuit> {
    let (legs, moves) = match world.paths {
        StreamPaths::Circuit => (1, 0),
        StreamPaths::Conflux => (2, 0),
        StreamPaths::Moving(moves) => (1, moves),
        StreamPaths::PerPacket(count) => return scatter(world, (now, network, port), count, used, random),
    };
    let roster = &world.roster;
    let exit = network.exits[port].draw(random, |_| true)?;
    let (mut at_guard, mut at_middle, mut first) = (false, false, None);
    let mut taken = vec![exit];
    for _ in 0..legs {
        let guard = guards.choose((now, network, roster), (exit, first), &world.guards, random)?;
        first = Some(guard);
        taken.push(guard);
        let free = |relay: u32| !taken.iter().any(|other| roster.clash(relay, *other));
        let middle = network.middles.draw(random, free)?;
        taken.push(middle);
        at_guard |= roster.adversary[guard as usize];
        at_middle |= roster.adversary[middle as usize];
        note_use(used, guard, now);
    }
    for _ in 0..moves {
        let last = *taken.last().expect("a path has relays");
        let free = |relay: u32| relay != last && !taken[..2].iter().any(|other| roster.clash(relay, *other));
        let middle = network.middles.draw(random, free)?;
        at_middle |= roster.adversary[middle as usize];
        taken.push(middle);
    }
    let at_exit = roster.adversary[exit as usize];
    Some(Circuit { dirty_since: now, exit, at_guard, at_exit, at_middle })
}

/// Draws `count` independent paths by weight that together carry a stream to this port.
fn scatter(
    world: &World,
    (now, network, port): (i64, &Network, usize),
    count: u8,
    used: &mut Vec<(u32, f64)>,
    random: &mut Random,
) -> Option<Circuit> {
    let roster = &world.roster;
    let mut all: Option<Circuit> = None;
    for _ in 0..count {
        let exit = network.exits[port].draw(random, |_| true)?;
        let entry = network.guards.draw(random, |relay| !roster.clash(relay, exit))?;
        let free = |relay: u32| ![entry, exit].iter().any(|other| roster.clash(relay, *other));
        let middle = network.middles.draw(random, free)?;
        note_use(used, entry, now);
        let [at_guard, at_exit, at_middle] =
            [entry, exit, middle].map(|relay| roster.adversary[relay as usize]);
        let path = Circuit { dirty_since: now, exit, at_guard, at_exit, at_middle };
        all = Some(all.map_or(path, |all| Circuit {
            at_guard: all.at_guard || at_guard,
            at_exit: all.at_exit || at_exit,
            at_middle: all.at_middle || at_middle,
            ..all
        }));
    }
    all
}

/// Notes the first use of a guard.
fn note_use(used: &mut Vec<(u32, f64)>, guard: u32, now: i64) {
    if !used.iter().any(|(known, _)| *known == guard) {
        used.push((guard, now as f64 / DAY as f64));
    }
}
