//! Draws paths from a policy's candidates.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tidegate_control::random::Random;
use tidegate_control::units::Span;

use super::policy::{Candidates, Comparison, Directory, Known, Policy, RelayEntry};
use super::tor::Tor;
use crate::cell::RelayId;

/// When a client abandons a circuit that is not built yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BuildTimeout {
    /// Never.
    Never,
    /// After this time.
    After(Span),
    /// Learnt from earlier circuits, as tor does ([`BuildTimes`](super::BuildTimes)), with this minimum (tor:
    /// `cbtmintimeout`).
    Learnt(Span),
}

/// How a system's clients select paths.
#[derive(Clone, Debug)]
pub struct PathSelection {
    /// How relays are weighed.
    pub policy: Arc<dyn Policy>,
    /// A client keeps its first guard (tor: `UseEntryGuards`).
    pub keep_guard: bool,
    /// No two relays of a family share a path (tor: `NodeFamily`, `family` of microdescriptors).
    pub exclude_families: bool,
    /// No two relays of a /16 share a path (tor: `EnforceDistinctSubnets`).
    pub exclude_networks: bool,
    /// When a circuit that is being built is abandoned.
    pub build_timeout: BuildTimeout,
}

impl Default for PathSelection {
    /// Tor's position weights, guards kept, families and networks separated, no timeout.
    fn default() -> PathSelection {
        PathSelection {
            policy: Arc::new(Tor),
            keep_guard: true,
            exclude_families: true,
            exclude_networks: true,
            build_timeout: BuildTimeout::Never,
        }
    }
}

/// A policy leaves a position without any relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCandidate {
    /// `guard`, `middle` or `exit`.
    pub position: &'static str,
}

impl fmt::Display for NoCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no relay can be chosen as {}", self.position)
    }
}

impl std::error::Error for NoCandidate {}

/// Draws paths for all clients of a system. A client's own state, its guard, is an argument.
#[derive(Clone, Debug)]
pub struct Selector {
    guards: Vec<Candidate>,
    middles: Vec<Candidate>,
    exits: Vec<Candidate>,
    keep_guard: bool,
    policy: Arc<dyn Policy>,
}

/// A relay that can be drawn, and the relays that it excludes.
#[derive(Clone, Debug)]
struct Candidate {
    relay: RelayId,
    weight: f64,
    /// In ascending order; empty if families are ignored.
    relatives: Arc<[RelayId]>,
    /// Zero if networks are ignored.
    network: u32,
}

impl Candidate {
    /// Whether two relays never share a path.
    fn clashes(&self, other: &Candidate) -> bool {
        self.relay == other.relay
            || self.relatives.binary_search(&other.relay).is_ok()
            || (self.network != 0 && self.network == other.network)
    }
}

impl Selector {
    /// Weighs the relays once.
    ///
    /// # Errors
    /// If a position has zero candidates.
    pub fn new(directory: &Directory, parameters: &PathSelection) -> Result<Selector, NoCandidate> {
        let entries: BTreeMap<RelayId, &RelayEntry> =
            directory.relays.iter().map(|relay| (relay.id, relay)).collect();
        let list = |list: Vec<(RelayId, f64)>, position| {
            let candidate = |(relay, weight): (RelayId, f64)| {
                let entry = entries.get(&relay);
                // Ignored properties stay empty, so that candidates never clash by them.
                let known = entry.filter(|_| parameters.exclude_families);
                let mut relatives = known.map_or(Vec::new(), |entry| entry.relatives.clone());
                relatives.sort_unstable();
                let network = entry.map_or(0, |entry| entry.network);
                Candidate {
                    relay,
                    weight,
                    relatives: relatives.into(),
                    network: if parameters.exclude_networks { network } else { 0 },
                }
            };
            let list: Vec<Candidate> = list.into_iter().map(candidate).collect();
            if list.is_empty() { Err(NoCandidate { position }) } else { Ok(list) }
        };
        let Candidates { guards, middles, exits } = parameters.policy.candidates(directory);
        Ok(Selector {
            guards: list(guards, "guard")?,
            middles: list(middles, "middle")?,
            exits: list(exits, "exit")?,
            keep_guard: parameters.keep_guard,
            policy: Arc::clone(&parameters.policy),
        })
    }

    /// Draws an exit, a guard unless `guard` holds one and guards are kept, and a middle, all different and of
    /// different families and networks. Relays may clash if the network is too small.
    pub fn draw(&self, random: &mut Random, guard: &mut Option<RelayId>) -> [RelayId; 3] {
        let known = |relay: RelayId| self.guards.iter().find(|candidate| candidate.relay == relay);
        let kept = guard.filter(|_| self.keep_guard).and_then(known);
        let exit = pick(random, &self.exits, kept.as_slice());
        let entry = kept.unwrap_or_else(|| pick(random, &self.guards, &[exit]));
        *guard = Some(entry.relay);
        [entry.relay, pick(random, &self.middles, &[entry, exit]).relay, exit.relay]
    }

    /// How clients compare paths before they use one.
    pub fn comparison(&self) -> Option<Comparison> {
        self.policy.comparison()
    }

    /// The cost of a path with what its client knows.
    pub fn cost(&self, known: &Known<'_>) -> f64 {
        self.policy.cost(known)
    }

    /// The path as [`draw`](Selector::draw) does, or, if paths are compared before they are built, the one with the
    /// lowest cost. `others` draws the paths beyond the first; `delay` is the one-way delay between two relays.
    pub fn draw_cheapest(
        &self,
        random: &mut Random,
        others: &mut Random,
        guard: &mut Option<RelayId>,
        delay: impl Fn(RelayId, RelayId) -> Span,
    ) -> [RelayId; 3] {
        let kept = *guard;
        let first = self.draw(random, guard);
        let Some(Comparison { paths, probes: 0 }) = self.comparison() else { return first };
        let cost = |[guard, middle, exit]: [RelayId; 3]| {
            let delay = delay(guard, middle) + delay(middle, exit);
            self.cost(&Known { delay, round_trips: &[] })
        };
        let mut best = (cost(first), first);
        for _ in 1..paths {
            let path = self.draw(others, &mut kept.clone());
            let cost = cost(path);
            if cost < best.0 {
                best = (cost, path);
            }
        }
        *guard = Some(best.1[0]);
        best.1
    }

    /// Draws the two halves of a circuit to an onion service: the client's guard, middle and rendezvous point, then
    /// two middles and the guard that the service keeps. Exit positions are not used. In each half, relays differ as in
    /// [`draw`](Selector::draw).
    pub fn draw_to_service(
        &self,
        random: &mut Random,
        guard: &mut Option<RelayId>,
        service_guard: &mut Option<RelayId>,
    ) -> ([RelayId; 3], [RelayId; 3]) {
        let mut half = |guard: &mut Option<RelayId>, far: Option<&Candidate>| {
            let known = |relay: RelayId| self.guards.iter().find(|candidate| candidate.relay == relay);
            let kept = guard.filter(|_| self.keep_guard).and_then(known);
            let mut taken: Vec<&Candidate> = far.into_iter().chain(kept).collect();
            let entry = kept.unwrap_or_else(|| pick(random, &self.guards, &taken));
            taken.push(entry);
            let middle = pick(random, &self.middles, &taken);
            taken.push(middle);
            *guard = Some(entry.relay);
            [entry, middle, pick(random, &self.middles, &taken)]
        };
        let own = half(guard, None);
        let theirs = half(service_guard, Some(own[2]));
        (own.map(|one| one.relay), [theirs[2], theirs[1], theirs[0]].map(|one| one.relay))
    }

    /// Draws another path to the same exit that shares no other relay with this one, for a set of linked circuits (proposal
    /// 329, 2.2); `None` if the network is too small. If guards are kept, the guard in `guard` is used.
    pub fn draw_second(
        &self,
        random: &mut Random,
        path: [RelayId; 3],
        guard: &mut Option<RelayId>,
    ) -> Option<[RelayId; 3]> {
        let exit = self.exits.iter().find(|candidate| candidate.relay == path[2])?;
        let free = |candidate: &Candidate, taken: &[&Candidate]| {
            !path.contains(&candidate.relay) && !taken.iter().any(|other| candidate.clashes(other))
        };
        let mut pick = |from: &[Candidate], taken: &[&Candidate]| {
            let weights = from.iter().map(|one| if free(one, taken) { one.weight } else { 0.0 });
            weights.clone().any(|weight| weight > 0.0).then(|| draw(random, weights))
        };
        let known = |relay: RelayId| self.guards.iter().find(|one| one.relay == relay && free(one, &[exit]));
        let kept = guard.filter(|_| self.keep_guard).and_then(known);
        let entry = match kept {
            Some(kept) => kept,
            None => &self.guards[pick(&self.guards, &[exit])?],
        };
        let middle = &self.middles[pick(&self.middles, &[entry, exit])?];
        *guard = Some(entry.relay);
        Some([entry.relay, middle.relay, exit.relay])
    }

    /// Draws a middle that weighs more than the path's; `None` if the path's is the heaviest.
    pub fn better_middle(&self, random: &mut Random, path: [RelayId; 3]) -> Option<RelayId> {
        fn of(list: &[Candidate], relay: RelayId) -> Option<&Candidate> {
            list.iter().find(|known| known.relay == relay)
        }
        let [guard, middle, exit] = path;
        let (guard, exit) = (of(&self.guards, guard)?, of(&self.exits, exit)?);
        let least = of(&self.middles, middle)?.weight;
        let better: Vec<&Candidate> = (self.middles.iter())
            .filter(|other| other.weight > least && !other.clashes(guard) && !other.clashes(exit))
            .collect();
        let weights = better.iter().map(|candidate| candidate.weight);
        (!better.is_empty()).then(|| better[draw(random, weights)].relay)
    }
}

/// Draws by weight a candidate that clashes with none of the taken relays; the first candidate if all clash.
fn pick<'a>(random: &mut Random, from: &'a [Candidate], taken: &[&Candidate]) -> &'a Candidate {
    let free = |candidate: &Candidate| !taken.iter().any(|other| candidate.clashes(other));
    &from[draw(random, from.iter().map(|candidate| if free(candidate) { candidate.weight } else { 0.0 }))]
}

/// An index drawn by weight.
pub fn draw(random: &mut Random, weights: impl Iterator<Item = f64> + Clone) -> usize {
    let mut point = random.unit() * weights.clone().sum::<f64>();
    let mut last = 0;
    for (index, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        last = index;
        point -= weight;
        if point < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use tidegate_control::positions::Class;
    use tidegate_control::random::Seed;

    use super::super::{BandwidthFile, CongestionAware, LatencyAware, Pinned, Uniform};
    use super::*;

    /// Six relays of each class in three networks. Of the first eight, the even ones are a family, and so are the odd
    /// ones.
    fn directory() -> Directory {
        let relay = |number: u32| RelayEntry {
            name: format!("relay{number}"),
            identity: [number as u8; 20],
            class: Class::ALL[number as usize % 4],
            weight: f64::from(100 * (number + 1)),
            relatives: (0..8)
                .filter(|other| number < 8 && *other != number && other % 2 == number % 2)
                .map(RelayId)
                .collect(),
            network: number % 3 + 1,
            ..RelayEntry::new(RelayId(number))
        };
        Directory { relays: (0..24).map(relay).collect(), positions: None }
    }

    fn paths(parameters: &PathSelection) -> Vec<[RelayId; 3]> {
        let directory = directory();
        let selector = Selector::new(&directory, parameters).unwrap();
        let (mut random, mut guard) = (Seed::root(3).random(), None);
        (0..500).map(|_| selector.draw(&mut random, &mut guard)).collect()
    }

    #[test]
    fn paths_respect_classes_families_and_networks() {
        let directory = directory();
        let of = |relay: RelayId| &directory.relays[relay.0 as usize];
        for path in paths(&PathSelection::default()) {
            let [guard, middle, exit] = path.map(of);
            assert!([Class::Guard, Class::GuardExit].contains(&guard.class));
            assert!([Class::Exit, Class::GuardExit].contains(&exit.class));
            for (one, other) in [(guard, middle), (middle, exit), (guard, exit)] {
                assert!(!one.relatives.contains(&other.id), "{path:?}");
                assert_ne!(one.network, other.network, "{path:?}");
            }
        }
        let together = paths(&PathSelection { exclude_networks: false, ..PathSelection::default() });
        assert!(together.iter().any(|path| of(path[0]).network == of(path[1]).network));
    }

    #[test]
    fn relatives_of_a_relative_may_share_a_path() {
        let shared = |relatives: [&[u32]; 6], parameters: &PathSelection| {
            let relay = |(number, relatives): (usize, &[u32])| RelayEntry {
                class: Class::GuardExit,
                weight: 100.0,
                relatives: relatives.iter().copied().map(RelayId).collect(),
                ..RelayEntry::new(RelayId(number as u32))
            };
            let relays = relatives.into_iter().enumerate().map(relay).collect();
            let selector = Selector::new(&Directory { relays, positions: None }, parameters).unwrap();
            let mut random = Seed::root(5).random();
            let paths: Vec<_> = (0..200).map(|_| selector.draw(&mut random, &mut None)).collect();
            let share = |one, other| {
                paths.iter().any(|path| path.contains(&RelayId(one)) && path.contains(&RelayId(other)))
            };
            [share(0, 1), share(1, 2), share(0, 2)]
        };
        let of_both: [&[u32]; 6] = [&[1], &[2, 0], &[1], &[], &[], &[]];
        assert_eq!(shared(of_both, &PathSelection::default()), [false, false, true]);
        let together = PathSelection { exclude_families: false, ..PathSelection::default() };
        assert_eq!(shared(of_both, &together), [true; 3]);
    }

    #[test]
    fn ways_to_a_service_are_of_six_relays_and_take_no_exit() {
        let directory = directory();
        let selector = Selector::new(&directory, &PathSelection::default()).unwrap();
        let (mut random, mut guard, mut theirs) = (Seed::root(3).random(), None, None);
        let mut last = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let (own, service) = selector.draw_to_service(&mut random, &mut guard, &mut theirs);
            let all: std::collections::BTreeSet<RelayId> = own[1..].iter().chain(&service).copied().collect();
            assert!(
                own.contains(&guard.unwrap()) && all.len() >= 4 && own[2] != service[0],
                "{own:?} {service:?}"
            );
            last.insert(service[2]);
        }
        assert_eq!(last.into_iter().collect::<Vec<_>>(), [theirs.unwrap()], "the service keeps its guard");
    }

    #[test]
    fn second_paths_share_the_exit_alone() {
        let directory = directory();
        for keep_guard in [true, false] {
            let parameters = PathSelection { keep_guard, ..PathSelection::default() };
            let selector = Selector::new(&directory, &parameters).unwrap();
            let (mut random, mut guard, mut second) = (Seed::root(3).random(), None, None);
            let mut guards = std::collections::BTreeSet::new();
            for _ in 0..300 {
                let path = selector.draw(&mut random, &mut guard);
                let Some(other) = selector.draw_second(&mut random, path, &mut second) else {
                    panic!("{path:?} leaves others");
                };
                assert_eq!(path[2], other[2]);
                assert!(!path[..2].iter().any(|relay| other.contains(relay)), "{path:?} {other:?}");
                guards.insert(other[0]);
            }
            // Sometimes the exit is of the second guard's family.
            assert_eq!(guards.len() < 4, keep_guard, "{guards:?}");
        }
        let few = Directory { relays: directory.relays[..4].to_vec(), positions: None };
        let selector = Selector::new(&few, &PathSelection::default()).unwrap();
        let path = selector.draw(&mut Seed::root(1).random(), &mut None);
        assert_eq!(selector.draw_second(&mut Seed::root(1).random(), path, &mut None), None);
    }

    #[test]
    fn guards_are_kept_or_not() {
        let guards = |keep_guard| {
            let paths = paths(&PathSelection { keep_guard, ..PathSelection::default() });
            paths.iter().map(|path| path[0]).collect::<std::collections::BTreeSet<RelayId>>().len()
        };
        assert_eq!(guards(true), 1);
        assert_eq!(guards(false), 12, "all guards");
    }

    #[test]
    fn policies_select_different_relays() {
        let share = |policy: Arc<dyn Policy>, relay: u32| {
            let parameters = PathSelection { policy, keep_guard: false, ..PathSelection::default() };
            paths(&parameters).iter().filter(|path| path.contains(&RelayId(relay))).count()
        };
        // The lightest relay.
        assert!(2 * share(Arc::new(Tor), 0) < share(Arc::new(Uniform), 0));
        let only = [1, 2, 4, 5, 6, 9, 10, 12].map(|number| ([number; 20], 1000));
        let file = BandwidthFile { weights: only.into() };
        assert_eq!(share(Arc::new(file), 23), 0, "it is not in the file");
        let names = ["relay1", "relay0", "relay2"].map(str::to_owned);
        let pinned = paths(&PathSelection { policy: Arc::new(Pinned(names)), ..PathSelection::default() });
        assert_eq!(pinned[0], [RelayId(1), RelayId(0), RelayId(2)]);
    }

    #[test]
    fn the_shortest_of_the_compared_paths_is_used() {
        let directory = directory();
        // Relays of the same third of the numbers are near each other.
        let delay =
            |from: RelayId, to: RelayId| Span::from_millis(if from.0 / 8 == to.0 / 8 { 20 } else { 80 });
        let of = |policy: Arc<dyn Policy>| {
            let parameters = PathSelection { policy, exclude_networks: false, ..PathSelection::default() };
            let selector = Selector::new(&directory, &parameters).unwrap();
            let (mut random, mut others, mut guard) = (Seed::root(3).random(), Seed::root(4).random(), None);
            let mut path = || selector.draw_cheapest(&mut random, &mut others, &mut guard, delay);
            let paths: Vec<_> = (0..100).map(|_| path()).collect();
            assert!(paths.iter().all(|path| path[0] == paths[0][0]), "the first path's guard is kept");
            let delays =
                paths.iter().map(|[guard, middle, exit]| delay(*guard, *middle) + delay(*middle, *exit));
            delays.map(|delay| delay.0 / 1_000_000).collect::<Vec<u64>>()
        };
        let by_weight = of(Arc::new(Tor));
        assert_eq!(by_weight, of(Arc::new(CongestionAware::default())), "compared once they are built");
        assert!(by_weight.contains(&160), "far apart");
        assert_eq!(of(Arc::new(LatencyAware { compared: 200 })), [40; 100]);
    }

    #[test]
    fn a_position_without_candidates_is_refused() {
        let names = ["relay1", "relay0", "nobody"].map(str::to_owned);
        let parameters = PathSelection { policy: Arc::new(Pinned(names)), ..PathSelection::default() };
        let refused = Selector::new(&directory(), &parameters).unwrap_err();
        assert_eq!(refused.to_string(), "no relay can be chosen as exit");
    }
}
