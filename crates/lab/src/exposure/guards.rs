//! Entry guards as tor's clients keep them: guard-spec (proposal 271) as in tor 0.4.8's `entrynodes.c`.
//!
//! A client samples guards by weight, uses the first ones of the sample, and confirms those that it used. A guard leaves
//! the sample when it is too old, or when the consensus has not listed it for too long. Every listed guard is reachable.

use std::collections::BTreeMap;

use tidegate_control::random::Random;

use super::network::{Network, Roster};

/// Seconds of a day.
pub(super) const DAY: i64 = 86_400;

/// Rules of guards. Source of the defaults: tor's `entrynodes.h`; consensuses may override them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuardParameters {
    /// Guards that circuits use in turn (`guard-n-primary-guards-to-use`).
    pub(super) used: usize,
    /// Primary guards (`guard-n-primary-guards`).
    pub(super) primary: usize,
    /// Days after which a guard leaves the sample (`guard-lifetime-days`).
    pub(super) lifetime_days: i64,
    /// Days that a used guard stays at least (`guard-confirmed-min-lifetime-days`).
    pub(super) confirmed_days: i64,
    /// Days after which an unlisted guard leaves the sample (`guard-remove-unlisted-guards-after-days`).
    pub(super) unlisted_days: i64,
    /// Listed guards of a sample (`guard-min-filtered-sample-size`).
    pub(super) sampled: usize,
    /// The most guards of a sample (`guard-max-sample-size`).
    pub(super) most_sampled: usize,
    /// The most guards of a sample, in percent of all (`guard-max-sample-threshold-percent`).
    pub(super) most_sampled_percent: usize,
}

impl GuardParameters {
    /// The parameters of a consensus; tor's defaults where it does not state them.
    pub(super) fn of(parameters: &BTreeMap<String, i32>) -> GuardParameters {
        let value = |name: &str, default: i32| parameters.get(name).copied().unwrap_or(default).max(1);
        let days = |name: &str, default: i32| i64::from(value(name, default).min(3650));
        GuardParameters {
            used: value("guard-n-primary-guards-to-use", 1) as usize,
            primary: value("guard-n-primary-guards", 3) as usize,
            lifetime_days: days("guard-lifetime-days", 120),
            confirmed_days: days("guard-confirmed-min-lifetime-days", 60),
            unlisted_days: days("guard-remove-unlisted-guards-after-days", 20),
            sampled: value("guard-min-filtered-sample-size", 20) as usize,
            most_sampled: value("guard-max-sample-size", 60) as usize,
            most_sampled_percent: value("guard-max-sample-threshold-percent", 20) as usize,
        }
    }
}

/// A guard of a client's sample. Times are seconds since the start of the simulation.
#[derive(Clone, Copy, Debug)]
struct SampledGuard {
    relay: u32,
    sampled_at: i64,
    confirmed_at: Option<i64>,
    unlisted_since: Option<i64>,
}

/// The guards of one client.
#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    /// In the order in which they were sampled, which is also the order of preference.
    sample: Vec<SampledGuard>,
    /// Relays of the primary guards, in the order of the sample.
    primary: Vec<u32>,
}

impl Guards {
    /// Applies a new consensus: marks guards that it does not list, and removes old ones.
    pub(super) fn update(
        &mut self,
        now: i64,
        network: &Network,
        parameters: &GuardParameters,
        random: &mut Random,
    ) {
        for guard in &mut self.sample {
            if network.is_guard(guard.relay) {
                guard.unlisted_since = None;
            } else if guard.unlisted_since.is_none() {
                guard.unlisted_since = Some(backdated(now, parameters.unlisted_days * DAY / 5, random));
            }
        }
        self.sample.retain(|guard| {
            let before = |time: i64, days: i64| time < now - days * DAY;
            let unlisted = guard.unlisted_since.is_some_and(|since| before(since, parameters.unlisted_days));
            let old = before(guard.sampled_at, parameters.lifetime_days)
                && guard.confirmed_at.is_none_or(|at| before(at, parameters.confirmed_days));
            !(unlisted || old)
        });
        self.update_primary(now, network, parameters, random);
    }

    /// Chooses a guard for a circuit to this exit and confirms it; `None` if every listed guard clashes with the exit or
    /// with `other`, the guard of the circuit that this one is linked to.
    pub(super) fn choose(
        &mut self,
        (now, network, roster): (i64, &Network, &Roster),
        (exit, other): (u32, Option<u32>),
        parameters: &GuardParameters,
        random: &mut Random,
    ) -> Option<u32> {
        let allowed = |relay: u32| !roster.clash(relay, exit) && other != Some(relay);
        // A guard that the path excludes counts as one of those to use, unless it leaves none.
        let (mut usable, mut considered) = (Vec::new(), 0);
        for &relay in &self.primary {
            considered += 1;
            if allowed(relay) {
                usable.push(relay);
            }
            if considered >= parameters.used && !usable.is_empty() {
                break;
            }
        }
        let chosen = if usable.is_empty() {
            // tor prefers confirmed guards to others, each in the order of the sample.
            let listed = || self.sample.iter().filter(|guard| guard.unlisted_since.is_none());
            let first = |confirmed: bool| {
                listed().find(|guard| guard.confirmed_at.is_some() == confirmed && allowed(guard.relay))
            };
            first(true).or_else(|| first(false))?.relay
        } else {
            usable[random.below(usable.len())]
        };
        let guard = self.sample.iter_mut().find(|guard| guard.relay == chosen);
        let guard = guard.expect("a chosen guard is sampled");
        if guard.confirmed_at.is_none() {
            guard.confirmed_at = Some(backdated(now, parameters.lifetime_days * DAY / 10, random));
            self.update_primary(now, network, parameters, random);
        }
        Some(chosen)
    }

    /// Fills the primary guards with confirmed ones, then the previous primary ones, then others of the sample.
    fn update_primary(
        &mut self,
        now: i64,
        network: &Network,
        parameters: &GuardParameters,
        random: &mut Random,
    ) {
        let listed = |guard: &&SampledGuard| guard.unlisted_since.is_none();
        let confirmed = |guard: &&SampledGuard| guard.confirmed_at.is_some();
        let mut primary: Vec<u32> = (self.sample.iter().filter(listed).filter(confirmed))
            .map(|guard| guard.relay)
            .take(parameters.primary)
            .collect();
        for relay in std::mem::take(&mut self.primary) {
            let known = self.sample.iter().filter(listed).any(|guard| guard.relay == relay);
            if primary.len() < parameters.primary && known && !primary.contains(&relay) {
                primary.push(relay);
            }
        }
        if primary.len() < parameters.primary {
            self.expand(now, network, parameters, random);
            let others = self.sample.iter().filter(listed).filter(|guard| !confirmed(guard));
            let others: Vec<u32> =
                others.map(|guard| guard.relay).filter(|relay| !primary.contains(relay)).collect();
            let missing = parameters.primary - primary.len();
            primary.extend(others.into_iter().take(missing));
        }
        let sampled = self.sample.iter().map(|guard| guard.relay);
        self.primary = sampled.filter(|relay| primary.contains(relay)).collect();
    }

    /// Samples guards by weight until enough of them are listed.
    fn expand(&mut self, now: i64, network: &Network, parameters: &GuardParameters, random: &mut Random) {
        let all = network.guards.len();
        let most = (all * parameters.most_sampled_percent / 100)
            .min(parameters.most_sampled)
            .max(parameters.sampled)
            .min(all);
        let mut listed = self.sample.iter().filter(|guard| guard.unlisted_since.is_none()).count();
        while listed < parameters.sampled && self.sample.len() < most {
            let sample = &self.sample;
            let fresh = |relay: u32| !sample.iter().any(|guard| guard.relay == relay);
            let Some(relay) = network.guards.draw(random, fresh) else { return };
            self.sample.push(SampledGuard {
                relay,
                sampled_at: backdated(now, parameters.lifetime_days * DAY / 10, random),
                confirmed_at: None,
                unlisted_since: None,
            });
            listed += 1;
        }
    }
}

/// A time up to `most` seconds before now: tor writes no exact times to its state file.
fn backdated(now: i64, most: i64, random: &mut Random) -> i64 {
    now - random.below(most.max(1) as usize) as i64
}
