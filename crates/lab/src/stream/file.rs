//! `[parameters]` of the runner `q-stream`, and the plans made from them.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::stream::Plan;
use tidegate_stream::forest::Rule;
use tidegate_stream::server::{Overload, ServerConfig};
use tidegate_stream::viewer::SKIP_AFTER;

use crate::input::InputError;

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct StreamExperiment {
    /// Simulated time of each run.
    duration: Span,
    /// Runs of each case.
    #[serde(default = "one")]
    seeds: u64,
    /// Settings shared by all cases.
    stream: Stream,
    /// Cases by name; each overrides some shared settings.
    case: BTreeMap<String, Stream>,
}

fn one() -> u64 {
    1
}

/// A stream, its viewers and their network; defaults are those of `tidegate stream server`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Stream {
    viewers: Option<usize>,
    rate: Option<Rate>,
    server: Option<Rate>,
    /// The weakest and the strongest uplink of a viewer.
    uplinks: Option<(Rate, Rate)>,
    /// The mean uplink; default: the midpoint of `uplinks`.
    mean_uplink: Option<Rate>,
    /// Time within which all viewers arrive.
    come_within: Option<Span>,
    delay: Option<Span>,
    /// Edge of the square in which peers lie, as a latency.
    side: Option<Span>,
    jitter: Option<Span>,
    loss: Option<f64>,
    slices: Option<usize>,
    parity: Option<usize>,
    rule: Option<RuleName>,
    controller: Option<String>,
    explore: Option<f64>,
    optimise: Option<bool>,
    overload: Option<OverloadName>,
    /// Share of viewers that cannot forward, for example behind address translation.
    leaves: Option<f64>,
    /// Mean interval at which one viewer leaves and another arrives.
    leave_every: Option<Span>,
    /// Time at which every viewer's uplink falls to a share of its rate, and that share.
    falls: Option<(Span, f64)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuleName {
    Any,
    OneTree,
    Unicast,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OverloadName {
    Refuse,
    Layers,
    Redirect,
}

/// One run.
pub(crate) struct Job {
    /// The case's name.
    pub name: String,
    /// Its seed, from 1.
    pub seed: u64,
    /// The simulated stream.
    pub plan: Plan,
}

impl Stream {
    /// Merges two sets of settings; this one has precedence.
    fn or(&self, shared: &Stream) -> Stream {
        macro_rules! either {
            ($($field:ident),*) => { Stream { $($field: self.$field.clone().or(shared.$field.clone())),* } };
        }
        either!(
            viewers,
            rate,
            server,
            uplinks,
            mean_uplink,
            come_within,
            delay,
            side,
            jitter,
            loss,
            slices,
            parity,
            rule,
            controller,
            explore,
            optimise,
            overload,
            leaves,
            leave_every,
            falls
        )
    }

    fn plan(&self, duration: Span, seed: Seed) -> Result<Plan, String> {
        let span = |given: &Option<Span>, default: u64| given.unwrap_or(Span::from_millis(default));
        let rate = |given: &Option<Rate>, default: u64| given.unwrap_or(Rate(default));
        let count = self.viewers.unwrap_or(20);
        let (low, high) = self.uplinks.map_or((2e6, 10e6), |(a, b)| (a.0 as f64, b.0 as f64));
        let mean = self.mean_uplink.map_or((low + high) / 2.0, |mean| mean.0 as f64);
        if !(1.0 <= low && low < mean && mean < high) {
            return Err(
                "`uplinks` needs two rates, the lower first, and `mean-uplink` must lie between them".into(),
            );
        }
        // Room for viewers that replace leaving ones.
        let mut server = ServerConfig::new(rate(&self.server, 12_000_000), count + count / 4 + 8);
        server.rate = rate(&self.rate, 4_000_000);
        server.slices = self.slices.unwrap_or(server.slices);
        server.parity = self.parity.unwrap_or(server.parity);
        if server.slices == 0 || server.slices + server.parity > tidegate_stream::MAX_SLICES {
            return Err(format!(
                "{} slices with {} of parity are not possible",
                server.slices, server.parity
            ));
        }
        server.optimise = self.optimise.unwrap_or(server.optimise);
        server.exploration.share = self.explore.unwrap_or(server.exploration.share);
        if let Some(name) = &self.controller {
            server.controller = ServerConfig::controller(name).map_err(|error| error.to_string())?;
        }
        server.rule = match self.rule {
            None | Some(RuleName::Any) => Rule::Any,
            Some(RuleName::OneTree) => Rule::OneTree,
            Some(RuleName::Unicast) => Rule::Unicast,
        };
        server.overload = match self.overload {
            None | Some(OverloadName::Refuse) => Overload::Refuse,
            Some(OverloadName::Layers) => Overload::Layers,
            Some(OverloadName::Redirect) => Overload::Redirect(([192, 0, 2, 1], 4455).into()),
        };
        let viewers = Plan::viewers(count, low..high, mean, span(&self.come_within, 3000), seed);
        let mut plan = Plan {
            rate: server.rate,
            server,
            viewers,
            delay: span(&self.delay, 40),
            side: span(&self.side, 0),
            jitter: span(&self.jitter, 2),
            loss: self.loss.unwrap_or(0.0),
            skip_after: SKIP_AFTER,
            changes: Vec::new(),
            duration,
        };
        let leaves = self.leaves.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&leaves) {
            return Err(format!("`leaves` is {leaves}, not a share of the viewers; give 0 to 1"));
        }
        // The order of viewers says nothing about their uplinks.
        let leaves = (leaves * count as f64).round() as usize;
        plan.viewers.iter_mut().take(leaves).for_each(|viewer| viewer.forwards = false);
        if let Some((at, share)) = &self.falls {
            let falls = |(viewer, its): (usize, &tidegate_sim::stream::ViewerPlan)| {
                (Time::ZERO + *at, viewer, Rate((its.uplink.0 as f64 * share) as u64))
            };
            plan.changes = plan.viewers.iter().enumerate().map(falls).collect();
        }
        if let Some(mean) = &self.leave_every {
            plan.churn(*mean, seed);
        }
        plan.check().map_err(|error| error.to_string())?;
        Ok(plan)
    }
}

impl StreamExperiment {
    /// Lists all runs.
    pub(crate) fn jobs(&self, place: &str) -> Result<Vec<Job>, InputError> {
        let mut jobs = Vec::new();
        for (name, case) in &self.case {
            for seed in 1..=self.seeds {
                let plan = case.or(&self.stream).plan(self.duration, Seed::root(seed)).map_err(|cause| {
                    InputError::new(place, format!("case `{name}`: {cause}"), "see docs/streaming.md")
                })?;
                jobs.push(Job { name: name.clone(), seed, plan });
            }
        }
        Ok(jobs)
    }
}
