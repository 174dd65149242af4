//! `[parameters]` of the runner `parallel-paths`, and the plans made from them.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::paths::{ControllerParameters, MAX_HOPS, Peer};
use tidegate_control::units::{Span, Time};
use tidegate_sim::parallel::{Change, Conduct, Delays, Plan, Traffic};

use crate::input::InputError;

/// `[parameters]`; defaults are the thesis' testbed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ParallelPathsExperiment {
    /// Simulated time of each run.
    pub duration: Span,
    /// Start of the measurement.
    #[serde(default)]
    pub from: Option<Span>,
    /// Interval of the results.
    #[serde(default)]
    pub bin: Option<Span>,
    /// Runs of each combination.
    #[serde(default = "one")]
    pub seeds: u32,
    /// The overlay.
    #[serde(default)]
    pub overlay: Overlay,
    /// Controllers by name, which is the prefix of their quantities.
    pub case: BTreeMap<String, Case>,
    /// An optional sweep of one quantity.
    pub sweep: Option<Sweep>,
}

fn one() -> u32 {
    1
}

/// The overlay, its traffic and its faults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Overlay {
    peers: Option<usize>,
    hops: Option<usize>,
    limit: Option<u32>,
    /// A constant delay instead of coordinates.
    delay: Option<Span>,
    jitter: Option<f64>,
    layout: Option<u64>,
    /// Interval at which peers start to send, one after the other.
    joins_every: Option<Span>,
    /// Time at which limits swap: the second half of the peers has half the limit before, the first half after.
    swap_at: Option<Span>,
    /// Number of peers, from the first, that lie about their rates.
    liars: usize,
    /// Rate that they claim, in B/s.
    claim: Option<f64>,
    /// Whether they also drop packets silently.
    silent: bool,
    /// Number of peers, from the first, that drop everything.
    drop_all: usize,
    /// Mean durations of sources' exponential on and off periods.
    on: Option<Span>,
    off: Option<Span>,
    /// Whether only peer 0 sends, to the last peer.
    single: bool,
    /// The pair of peers with a recorded rate.
    watch: Option<(Peer, Peer)>,
}

/// A controller and its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Case {
    controller: String,
    /// Duration of the run, if it differs.
    duration: Option<Span>,
    /// Time between attempts to send, if it differs.
    attempt_every: Option<Span>,
    /// Parameters by their symbol in the thesis.
    #[serde(default)]
    set: BTreeMap<String, f64>,
}

/// A sweep of `peers`, `hops`, `limit`, `delay-ms` or a parameter of the controllers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sweep {
    /// The quantity.
    pub over: String,
    /// Its values.
    pub values: Vec<f64>,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Prefix of its quantities.
    pub name: String,
    /// Its case.
    pub case: String,
    /// The value of the sweep.
    pub at: Option<f64>,
    /// From 0.
    pub seed: u32,
    /// The overlay.
    pub plan: Plan,
    /// The controller.
    pub parameters: ControllerParameters,
    /// The first interval that is measured.
    pub first: usize,
    /// The interval in which limits are swapped.
    pub swap: Option<usize>,
}

/// Limit on runs; a larger number is most likely a mistake.
const MAX_JOBS: usize = 10_000;

impl ParallelPathsExperiment {
    /// Lists and checks all runs.
    ///
    /// # Errors
    /// An [`InputError`] with `place` as its file.
    pub(crate) fn jobs(&self, place: &str) -> Result<Vec<Job>, InputError> {
        let fail = |cause: String, cure: &str| InputError::new(place, cause, cure);
        let values: Vec<Option<f64>> = match &self.sweep {
            None => vec![None],
            Some(sweep) => sweep.values.iter().copied().map(Some).collect(),
        };
        let total = values.len() * self.case.len() * self.seeds as usize;
        if !(1..=MAX_JOBS).contains(&total) {
            return Err(fail(format!("the experiment has {total} runs"), "choose 1 to 10000 runs"));
        }
        let mut jobs = Vec::new();
        for (name, case) in &self.case {
            for at in &values {
                let job = self.job(name, case, *at).map_err(|cause| {
                    fail(format!("case `{name}`: {cause}"), "see docs/parallel-paths.md for names and ranges")
                })?;
                jobs.extend((0..self.seeds).map(|seed| Job { seed, ..job.clone() }));
            }
        }
        Ok(jobs)
    }

    fn job(&self, name: &str, case: &Case, at: Option<f64>) -> Result<Job, String> {
        let mut overlay = self.overlay.clone();
        let mut set = case.set.clone();
        if let (Some(sweep), Some(value)) = (&self.sweep, at) {
            // Sweeps hold floats, but these quantities are integers.
            let whole = |most: f64| match value.fract() == 0.0 && (0.0..=most).contains(&value) {
                true => Ok(value),
                false => Err(format!("sweep value {value} must be a whole number up to {most}")),
            };
            match sweep.over.as_str() {
                "peers" => overlay.peers = Some(whole(1000.0)? as usize),
                "hops" => overlay.hops = Some(whole(MAX_HOPS as f64)? as usize),
                "limit" => overlay.limit = Some(whole(f64::from(u32::MAX))? as u32),
                "delay-ms" => overlay.delay = Some(Span::from_millis(whole(1000.0)? as u64)),
                symbol => {
                    set.insert(symbol.to_owned(), value);
                }
            }
        }
        let duration = case.duration.unwrap_or(self.duration);
        let mut plan = overlay.plan(duration)?;
        plan.bin = self.bin.unwrap_or(plan.bin);
        if let Some(every) = case.attempt_every {
            plan.attempt_every = every;
        }
        plan.check().map_err(|error| error.to_string())?;
        let mut parameters = ControllerParameters::named(&case.controller, f64::from(plan.packet))
            .map_err(|e| e.to_string())?;
        for (symbol, value) in &set {
            parameters.set(symbol, *value).map_err(|error| error.to_string())?;
        }
        let bins = |span: Span| (span.0 / plan.bin.0) as usize;
        let first = self.from.map_or(0, bins);
        let swap = overlay.swap_at.map(bins);
        if first.max(swap.unwrap_or(0)) + 1 >= bins(duration) {
            return Err(format!("`from` or `swap-at` is not before the end of the run ({duration})"));
        }
        // Names of quantities are in snake case.
        let name = match (&self.sweep, at) {
            (Some(sweep), Some(value)) => format!("{name}.{}-{value}", sweep.over.replace('-', "_")),
            _ => name.to_owned(),
        };
        let case = name.split('.').next().unwrap_or_default().to_owned();
        Ok(Job { name, case, at, seed: 0, plan, parameters, first, swap })
    }
}

/// Shortest mean duration of an on or off period: much shorter ones fill a run with switches.
const SHORTEST_PERIOD: Span = Span::from_millis(1);
/// Shortest delay: AIMD's rates grow by the inverse of a link's delay.
const SHORTEST_DELAY: Span = Span::from_micros(1);

impl Overlay {
    /// Refuses values out of range, and keys that have no effect.
    fn check(&self, peers: usize, packet: u32) -> Result<(), String> {
        let refused = [
            (self.liars > 0 && self.claim.is_none(), "`liars` needs a `claim` in B/s"),
            (self.liars == 0 && (self.claim.is_some() || self.silent), "`claim` and `silent` need `liars`"),
            (self.liars.max(self.drop_all) > peers, "`liars` or `drop-all` is above the number of peers"),
            (self.on.is_some() != self.off.is_some(), "`on` and `off` must be given together"),
            (
                self.on.is_some() && self.joins_every.is_some(),
                "`joins-every` has no effect beside `on` and `off`",
            ),
            (self.delay.is_some() && self.layout.is_some(), "`layout` has no effect beside `delay`"),
            (self.on.is_some_and(|on| on < SHORTEST_PERIOD), "`on` is below 1 ms"),
            (self.off.is_some_and(|off| off < SHORTEST_PERIOD), "`off` is below 1 ms"),
            (self.delay.is_some_and(|delay| delay < SHORTEST_DELAY), "`delay` is below 1 us"),
            (self.limit.is_some_and(|limit| limit < packet), "`limit` is below a packet per second"),
        ];
        match refused.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(why.into()),
            None => Ok(()),
        }
    }

    fn plan(&self, duration: Span) -> Result<Plan, String> {
        let peers = self.peers.unwrap_or(20);
        let mut plan = Plan::thesis(peers, duration);
        plan.hops = self.hops.unwrap_or(plan.hops);
        plan.jitter = self.jitter.unwrap_or(plan.jitter);
        plan.watch = self.watch;
        match (self.delay, &mut plan.delays) {
            (Some(delay), delays) => *delays = Delays::Constant(delay),
            (None, Delays::Coordinates { layout, .. }) => *layout = self.layout.unwrap_or(*layout),
            (None, Delays::Constant(_)) => {}
        }
        self.check(peers, plan.packet)?;
        let limit = self.limit.unwrap_or(400_000);
        for (index, peer) in plan.peers.iter_mut().enumerate() {
            peer.limit = limit;
            if let Some(every) = self.joins_every {
                peer.traffic = Traffic::Saturated { from: Time::ZERO + every * index as u64 };
            }
            if let (Some(on), Some(off)) = (self.on, self.off) {
                peer.traffic = Traffic::OnOff { on, off };
            }
            if self.single {
                match index {
                    // One transfer from the first to the last peer; all others only relay.
                    0 => peer.to = Some((peers - 1) as Peer),
                    _ => peer.traffic = Traffic::Silent,
                }
            }
            if index < self.liars {
                let rate = self.claim.unwrap_or_default();
                peer.conduct = Conduct::Claims { rate, silent: self.silent };
            }
            if index < self.drop_all {
                peer.conduct = Conduct::DropsAll;
            }
            if let Some(at) = self.swap_at {
                let before = index < peers / 2;
                peer.limit = if before { limit } else { limit / 2 };
                let after = if before { limit / 2 } else { limit };
                plan.changes.push((Time::ZERO + at, Change::Limit(index as Peer, after)));
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::experiment::find;
    use crate::scoreboard::{Experiment, Scale};

    #[test]
    fn every_experiment_of_the_thesis_gives_runs_at_both_scales() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let ours = |experiment: &Experiment| experiment.file.runner.get_ref() == "parallel-paths";
        let experiments: Vec<_> = find(&root, std::path::Path::new("no-data"), Some("parallel-paths"))
            .unwrap()
            .into_iter()
            .filter(ours)
            .collect();
        assert!(experiments.len() > 10, "{} found", experiments.len());
        for experiment in experiments {
            for scale in Scale::ALL {
                let parameters: ParallelPathsExperiment = experiment.parameters(scale).unwrap();
                let place = format!("{} {scale}", experiment.folder.display());
                assert!(!parameters.jobs(&place).unwrap().is_empty(), "{place}");
            }
        }
    }

    #[test]
    fn overlays_out_of_range_and_keys_without_effect_are_refused() {
        for (overlay, why) in [
            ("on = \"0 s\"\noff = \"1 s\"", "`on` is below"),
            ("on = \"1 s\"\noff = \"1 ns\"", "`off` is below"),
            ("on = \"1 s\"", "together"),
            ("on = \"1 s\"\noff = \"1 s\"\njoins-every = \"1 s\"", "`joins-every` has no effect"),
            ("delay = \"0 s\"", "`delay` is below"),
            ("delay = \"1 ms\"\nlayout = 3", "`layout` has no effect"),
            ("claim = 1e6", "need `liars`"),
            ("silent = true", "need `liars`"),
            ("liars = 4", "needs a `claim`"),
            ("drop-all = 21", "above the number of peers"),
            ("limit = 1499", "below a packet"),
        ] {
            let text = format!("duration = \"100 s\"\n[overlay]\n{overlay}\n[case.a]\ncontroller = \"aimd\"");
            let experiment: ParallelPathsExperiment = toml::from_str(&text).unwrap();
            let error = experiment.jobs("x").unwrap_err().to_string();
            assert!(error.contains(why), "{overlay}: {error}");
        }
    }
}
