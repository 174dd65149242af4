//! One answer: which users each part helps in the Tor of a consensus, with what confidence, and at what price.
//!
//! Every part is added to vanilla Tor alone and runs on the same sampled networks. The same runs give the download
//! times, the bytes at both ends for the correlation attack, and the packets that relays handle. The path simulator
//! ([`crate::exposure`]) gives what an adversary's relays see. See docs/answer.md.

mod comparison;
mod costs;
mod parts;
mod settings;

use serde_json::{Value, json};

use self::comparison::settle;
pub(crate) use self::comparison::{Comparison, Verdict};
use self::costs::{BIN, Cost, Exposed, exposed};
pub(crate) use self::parts::BASE;
pub(crate) use self::parts::Paths;
pub use self::parts::{ComparedPart, PARTS};
pub use self::settings::AnswerSettings;
use crate::correlation::observed;
use crate::load;
use crate::monitor::Monitor;
use crate::results::{Results, SystemResult, VERSION, look_up};
use crate::runs::{Run, Runs};
use crate::scoreboard::RunError;
use crate::statistics::Estimate;

/// A quantity of users: its key in JSON, its name, its path in a summary, and whether less is better.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Benefit {
    /// Its key in JSON.
    pub key: &'static str,
    /// Its name in tables.
    pub label: &'static str,
    path: [&'static str; 3],
    /// Whether less is better.
    pub less: bool,
}

/// The quantities that say which users a part helps.
pub(crate) const BENEFITS: [Benefit; 3] = [
    Benefit { key: "web_first_byte", label: "web: first byte", path: ["ttfb_s", "web", "p50"], less: true },
    Benefit { key: "web_download", label: "web: download", path: ["ttlb_s", "web", "p50"], less: true },
    Benefit {
        key: "bulk_rate",
        label: "bulk: rate",
        path: ["throughput_by_class_bytes_per_s", "bulk", ""],
        less: false,
    },
];

impl Benefit {
    fn path(&self) -> Vec<&str> {
        self.path.into_iter().filter(|key| !key.is_empty()).collect()
    }
}

/// The baseline's values: means over networks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// In the order of [`BENEFITS`]; NaN if a network is too small for the quantile.
    pub benefits: [Estimate; 3],
    /// Share of streams that the adversary sees at both ends.
    pub streams: Estimate,
    /// Share of flows that the correlation attack attributes correctly.
    pub matched: Estimate,
    /// Packets that relays receive or send per delivered cell.
    pub packets: Estimate,
}

/// One part beside the baseline.
#[derive(Clone, Debug)]
pub(crate) struct PartAnswer {
    /// The part.
    pub part: &'static ComparedPart,
    /// Ratios in the order of [`BENEFITS`]; `None` if the networks are too small for the quantile.
    pub(crate) benefits: [Option<Comparison>; 3],
    /// Ratio of the streams that the adversary sees at both ends; `None` unless streams use two guards.
    pub streams: Option<Estimate>,
    /// Difference of the share of flows that the correlation attack attributes correctly.
    pub(crate) matched: Comparison,
    /// Ratio of the packets that relays receive or send per delivered cell.
    pub packets: Estimate,
    /// Optimisation problems that a relay solves per second.
    pub solves: f64,
    /// Circuits that switching moves, per run.
    pub moves: f64,
    /// Share of relays that upgrade.
    pub upgraded: f64,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How it was made, in sentences.
    pub conditions: Vec<String>,
    /// The baseline.
    pub(crate) base: Baseline,
    /// Every part.
    pub(crate) parts: Vec<PartAnswer>,
    /// The scenario with all defaults, as TOML.
    pub scenario: String,
}

/// Runs everything.
///
/// # Errors
/// [`RunError::Input`] for settings or a consensus that cannot be used; [`RunError::Stopped`] if the user stopped.
pub fn run(settings: &AnswerSettings, monitor: &dyn Monitor) -> Result<Answer, RunError> {
    let mut scenario = settings.scenario()?;
    scenario.inputs.notices.iter().for_each(|notice| monitor.notice(notice));
    // Refuses a wrong adversary before the long runs.
    let exposed = exposed(settings, &scenario, monitor)?;
    load::settle(&mut scenario, monitor)?;
    if monitor.stopped() {
        return Err(RunError::Stopped);
    }
    let observed = observed(&scenario, settings.seeds, BIN, monitor)?;
    let costs: Vec<Cost> = observed.iter().map(|(run, ends)| Cost::of(run, ends)).collect();
    let runs = Runs { finished: observed.into_iter().map(|(run, _)| run).collect(), missing: Vec::new() };
    let results = Results::new(&scenario, &runs);
    let (first, others) = results.systems.split_first().expect("the baseline is a system");
    let of = |system: &SystemResult<'_>| -> Vec<Cost> {
        costs.iter().filter(|cost| cost.system == system.runs[0].system).copied().collect()
    };
    let base_costs = of(first);
    let consensus = scenario.inputs.consensus.as_ref().expect("a [tor] table has a consensus");
    let mut parts: Vec<PartAnswer> = (PARTS.iter().zip(others))
        .map(|(part, system)| PartAnswer {
            benefits: BENEFITS.map(|benefit| {
                let ratios = results.paired_ratios(system, first, &benefit.path())?;
                Some(Comparison::of(&ratios, 1.0, benefit.less))
            }),
            streams: (part.paths == Paths::TwoGuards).then(|| exposed.ratio()),
            upgraded: part.upgrade.share_of_relays(consensus),
            ..PartAnswer::priced(part, &of(system), &base_costs)
        })
        .collect();
    settle(parts.iter_mut().flat_map(PartAnswer::comparisons));
    Ok(Answer {
        conditions: conditions(settings, &results, &exposed),
        base: baseline(first, &base_costs, &exposed),
        parts,
        scenario: toml::to_string(&scenario.file).unwrap_or_default(),
    })
}

impl PartAnswer {
    /// A part with its prices only.
    fn priced(part: &'static ComparedPart, own: &[Cost], base: &[Cost]) -> PartAnswer {
        let pairs = || own.iter().zip(base);
        let matched: Vec<f64> = pairs().map(|(own, base)| own.matched - base.matched).collect();
        let mean = |pick: fn(&Cost) -> f64| own.iter().map(pick).sum::<f64>() / own.len().max(1) as f64;
        let packets: Vec<f64> = pairs().map(|(own, base)| own.packets / base.packets).collect();
        PartAnswer {
            part,
            benefits: [None; 3],
            streams: None,
            matched: Comparison::of(&matched, 0.0, true),
            packets: Estimate::of(&packets),
            solves: mean(|cost| cost.solves),
            moves: mean(|cost| cost.moves),
            upgraded: 0.0,
        }
    }

    /// Everything that is tested.
    fn comparisons(&mut self) -> impl Iterator<Item = &mut Comparison> {
        self.benefits.iter_mut().flatten().chain(std::iter::once(&mut self.matched))
    }
}

fn baseline(system: &SystemResult<'_>, costs: &[Cost], exposed: &Exposed) -> Baseline {
    let of = |pick: fn(&Cost) -> f64| Estimate::of(&costs.iter().map(pick).collect::<Vec<_>>());
    let benefits = BENEFITS.map(|benefit| {
        let value = |run: &&Run| look_up(&run.metrics.summary, &benefit.path()).unwrap_or(f64::NAN);
        Estimate::of(&system.runs.iter().map(value).collect::<Vec<_>>())
    });
    let streams = Estimate::of(&exposed.single);
    Baseline { benefits, streams, matched: of(|cost| cost.matched), packets: of(|cost| cost.packets) }
}

/// How the answer was made, in sentences.
fn conditions(settings: &AnswerSettings, results: &Results<'_>, exposed: &Exposed) -> Vec<String> {
    let network = match &settings.consensus {
        Some(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        None => "the built-in model of Tor in 2024".to_owned(),
    };
    let AnswerSettings { relays, bandwidth_factor, seeds, seed, share, clients, days, .. } = settings;
    let measured = (results.scenario.duration().0 - results.scenario.warmup().0) / BIN.0;
    vec![
        format!(
            "Network: {seeds} samples of {relays} relays of {network} (seeds from {seed}), at {bandwidth_factor} of their \
             bandwidth; everyone concerned has upgraded. {}",
            results.conditions()
        ),
        format!(
            "Ratios to {BASE} are paired by network, with Student's 95 % intervals, n = {seeds}. `helps` and `harms` \
             hold for all comparisons together (Holm, 5 %); `same` means an interval within 1 %."
        ),
        format!(
            "Streams seen: share of streams with an adversary's guard and exit; {} % of the weight, {clients} clients \
             for {days} days, n = {}.",
            100.0 * share,
            exposed.single.len()
        ),
        format!(
            "Flows matched: share of clients' flows that Spearman's correlation of bytes per second attributes to the \
             right server within {measured} s, by an observer of one guard and all exits; differences to {BASE}."
        ),
        "Packets per cell: packets that relays receive or send per delivered cell, in place of processor time.".to_owned(),
    ]
}

impl Answer {
    /// The answer as JSON.
    pub fn document(&self) -> Value {
        let estimate = |key: &str, of: &Estimate| json!({ key: of.mean, "ci95": of.ci95, "n": of.n });
        let base = &self.base;
        let values = BENEFITS.iter().zip(&base.benefits);
        let values = values.map(|(benefit, value)| (benefit.key.to_owned(), estimate("mean", value)));
        let parts = self.parts.iter().map(|answer| {
            let benefits = BENEFITS.iter().zip(&answer.benefits).filter_map(|(benefit, comparison)| {
                Some((benefit.key.to_owned(), comparison.as_ref()?.document("ratio")))
            });
            let part = answer.part;
            let value = json!({
                "about": part.about,
                "benefits": benefits.collect::<Value>(),
                "anonymity": {
                    "streams_seen": answer.streams.as_ref().map(|ratio| estimate("ratio", ratio)),
                    "flows_matched": answer.matched.document("difference"),
                },
                "work": {
                    "packets_per_cell": estimate("ratio", &answer.packets),
                    "solves_per_relay_and_s": answer.solves,
                    "moves_per_run": answer.moves,
                },
                "deployment": {
                    "who": part.upgrade.text(),
                    "share_of_relays": answer.upgraded,
                    "source": part.source,
                },
            });
            (part.name.to_owned(), value)
        });
        json!({
            "version": VERSION,
            "conditions": self.conditions,
            "baseline": {
                "name": BASE,
                "benefits": values.collect::<Value>(),
                "anonymity": {
                    "streams_seen": estimate("mean", &base.streams),
                    "flows_matched": estimate("mean", &base.matched),
                },
                "work": { "packets_per_cell": estimate("mean", &base.packets) },
            },
            "parts": parts.collect::<Value>(),
        })
    }
}

#[cfg(test)]
mod tests;
