//! Prices: what an observer of both ends learns, what an adversary's relays see, what relays have to do.

use tidegate_control::units::Span;

use super::settings::AnswerSettings;
use crate::correlation::Ends;
use crate::exposure::{self, Adversary, ExposureSettings, StreamPaths};
use crate::monitor::Monitor;
use crate::results::look_up;
use crate::runs::Run;
use crate::scenario::Scenario;
use crate::scoreboard::RunError;
use crate::statistics::Estimate;

/// Interval over which the observer of both ends counts bytes.
pub(super) const BIN: Span = Span::from_secs(1);
/// Share of the pairs of different users that the observer may call a match.
const FALSE_POSITIVES: f64 = 0.01;

/// Price of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Number of the system.
    pub system: usize,
    /// Share of flows that the correlation attack attributes correctly; NaN without a flow.
    pub matched: f64,
    /// Packets that relays receive or send per delivered cell.
    pub packets: f64,
    /// Optimisation problems that a relay solves per second.
    pub solves: f64,
    /// Circuits that switching moves.
    pub moves: f64,
}

impl Cost {
    pub(super) fn of(run: &Run, ends: &Ends) -> Cost {
        let summary = &run.metrics.summary;
        let number = |path: &[&str]| look_up(summary, path).unwrap_or(0.0);
        let cells = number(&["cells_delivered"]).max(1.0);
        let relay_seconds = run.metrics.relays.len().max(1) as f64 * run.metrics.delivered.end.as_secs_f64();
        Cost {
            system: run.system,
            matched: ends.by_guard(ends.bins(), FALSE_POSITIVES).map_or(f64::NAN, |matched| matched.top),
            packets: ends.relays_packets() as f64 / cells,
            solves: number(&["control", "solves"]) / relay_seconds,
            moves: number(&["switches"]),
        }
    }
}

/// Shares of streams that the adversary sees at both ends, for each seed: with one circuit at a time, and with two
/// linked ones.
pub(super) struct Exposed {
    /// One circuit at a time.
    pub single: Vec<f64>,
    /// Two linked circuits.
    linked: Vec<f64>,
}

impl Exposed {
    /// Ratio of linked circuits to single ones, paired by seed. Without values if a seed saw no stream.
    pub(super) fn ratio(&self) -> Estimate {
        let ratios = self.linked.iter().zip(&self.single).map(|(two, one)| two / one);
        let ratios: Vec<f64> = ratios.collect();
        Estimate::of(if ratios.iter().all(|ratio| ratio.is_finite()) { &ratios } else { &[] })
    }
}

/// Simulates the paths of clients.
pub(super) fn exposed(
    settings: &AnswerSettings,
    scenario: &Scenario,
    monitor: &dyn Monitor,
) -> Result<Exposed, RunError> {
    let consensus = match &settings.consensus {
        Some(_) => scenario.inputs.consensus.clone().expect("a [tor] table has a consensus"),
        None => exposure::builtin_consensus(),
    };
    let mut exposed = Exposed { single: Vec::new(), linked: Vec::new() };
    let common = ExposureSettings::new(vec![consensus])?;
    for number in 0..u64::from(settings.seeds) {
        for conflux in [false, true] {
            let mut one = common.clone();
            one.adversary = Adversary { share: settings.share, ..Adversary::default() };
            (one.days, one.samples) = (settings.days, settings.clients);
            one.seed = settings.seed.wrapping_add(number);
            one.paths = if conflux { StreamPaths::Conflux } else { StreamPaths::Circuit };
            let seen = exposure::run(&one, monitor)?.ok_or(RunError::Stopped)?;
            let shares = if conflux { &mut exposed.linked } else { &mut exposed.single };
            shares.push(seen.stream_shares()[0].mean);
        }
    }
    Ok(exposed)
}
