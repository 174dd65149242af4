//! Active circuit switching: when a circuit moves, and which one (Kale, Ohzahata, Wu, Kato: "Emulation Evaluations of
//! Tor Schedulers with Active Circuit Switching", 2016).
//!
//! A guard follows how full each connection's output buffer is, as an exponentially weighted average. When
//! it passes the upper threshold, the circuit with the greatest decayed cell count moves away: to another
//! TCP connection between the same two nodes ([`Form::Connection`], done by [`crate::links`]), or to
//! another circuit that the client has built in advance ([`Form::Circuit`], done by [`crate::client`] and
//! the exit's [`crate::relay`]).
//!
//! Both forms use one protocol, between neighbours or between client and exit. The mover sends LEAVE with a nonce as
//! its last cell on the old path, and JOIN with the same nonce as its first on the new path. The other side holds cells
//! from the new path until LEAVE arrives on the old one. Then it answers with LEAVE on the old path and moves as well;
//! the mover holds cells from the new path until that LEAVE. Each path keeps order, so cells are not lost, duplicated or
//! reordered, and both directions keep flowing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Span, Time};

/// The rules of switching.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Switching {
    /// Where circuits move.
    #[serde(skip)]
    pub form: Form,
    /// Weight of the previous estimate of a buffer's occupancy, gamma in `B_t = gamma B_{t-1} + (1 - gamma) B_sample`.
    /// The paper does not state it.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub gamma: f64,
    /// Share of the output buffer below which it is underfull; at most `beta`. Source: Kale et al. 2016.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
    /// Share of the output buffer above which its loudest circuit moves. Source: Kale et al. 2016.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta: f64,
    /// Interval between samples of the occupancy. The paper does not state it.
    #[serde(rename = "sample")]
    #[schemars(extend("x-range" = "1 ns.."))]
    pub sample_every: Span,
    /// Minimum time between two moves from one connection, and between two moves of one circuit. A connection that was
    /// underfull in between may lose a circuit at once.
    pub rest: Span,
    /// Maximum number of connections between two nodes.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Middles and exits switch as guards do (only with `switching = "connection"`): beyond the paper.
    pub everywhere: bool,
}

/// Where circuits move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// To another TCP connection between the same two nodes.
    #[default]
    Connection,
    /// To another circuit with the same guard and exit over a middle of higher bandwidth.
    Circuit,
}

impl Parameters for Switching {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.alpha > self.beta).then_some(("`alpha` is above `beta`", "the paper: alpha = 0.1, beta = 0.5"))
    }
}

impl Default for Switching {
    fn default() -> Switching {
        Switching {
            form: Form::Connection,
            gamma: 0.9,
            alpha: 0.1,
            beta: 0.5,
            sample_every: Span::from_millis(100),
            rest: Span::from_secs(10),
            connections: 4,
            everywhere: false,
        }
    }
}

/// Times in a guard's notice that a circuit should move. Simulated cells only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionNotice {
    /// When the guard sent the notice.
    pub said: Time,
    /// How long the buffer had been overfull; unknown if it was never underfull since the last move.
    pub detection: Option<Span>,
}

/// The start of a move, as the mover knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoveStart {
    at: Time,
    detection: Option<Span>,
    notice: Option<Span>,
}

impl MoveStart {
    /// A guard moves a circuit from its own connection.
    pub(crate) fn alone(now: Time, detection: Option<Span>) -> MoveStart {
        MoveStart { at: now, detection, notice: Some(Span::ZERO) }
    }

    /// The guard has sent a notice.
    pub(crate) fn on_notice(now: Time, notice: Option<CongestionNotice>) -> MoveStart {
        let detection = notice.and_then(|notice| notice.detection);
        MoveStart { at: now, detection, notice: notice.map(|notice| now.since(notice.said)) }
    }

    /// The times of a finished move: our cells use the new path since `left`, and the first cell came from it at `first`.
    pub(crate) fn over(self, left: Time, first: Option<Time>, now: Time) -> MoveTimes {
        MoveTimes {
            detection: self.detection,
            notice: self.notice,
            set_up: left.since(self.at),
            first: first.map(|first| first.since(left)),
            drain: now.since(left),
        }
    }
}

/// Durations of a move's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveTimes {
    /// From the first overfull sample until B_t passed the upper threshold.
    pub detection: Option<Span>,
    /// From there until the mover knew. Unknown outside of simulations: real cells carry no timestamps.
    pub notice: Option<Span>,
    /// Until the new connection was open.
    pub set_up: Span,
    /// From the end of `set_up`, when our cells took the new path, until the first cell came from there; `None` if the old
    /// path was empty before.
    pub first: Option<Span>,
    /// From the end of `set_up` until the last cell came from the old path.
    pub drain: Span,
}

impl MoveTimes {
    /// From the guard's decision until both directions had moved.
    pub fn total(&self) -> Span {
        self.notice.unwrap_or(Span::ZERO) + self.set_up + self.drain
    }
}

/// Average fill of an output buffer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Occupancy {
    /// B_t, as a share of the buffer.
    level: f64,
    sampled: Time,
    /// B_t was below the lower threshold since the last alarm.
    underfull: bool,
    /// The first overfull sample since the last underfull one.
    overfull: Option<Time>,
    /// Alarms are suppressed until then, unless the buffer was underfull since.
    resting_until: Time,
}

impl Occupancy {
    /// An empty buffer.
    pub(crate) fn new(now: Time) -> Occupancy {
        Occupancy { level: 0.0, sampled: now, underfull: true, overfull: None, resting_until: Time::ZERO }
    }

    /// Adds the samples until `now`, at which the buffer was `filled` (a share). Call this before the fill changes.
    pub(crate) fn note(&mut self, rules: &Switching, now: Time, filled: f64) {
        let samples = now.since(self.sampled).0 / rules.sample_every.0;
        if samples == 0 {
            return;
        }
        let next = self.sampled + rules.sample_every;
        self.sampled += rules.sample_every * samples;
        let kept = libm::pow(rules.gamma, samples as f64);
        self.level = kept * self.level + (1.0 - kept) * filled;
        if filled > rules.beta && self.underfull {
            self.overfull.get_or_insert(next);
        } else if self.level < rules.alpha {
            (self.underfull, self.overfull) = (true, None);
            self.resting_until = Time::ZERO;
        }
    }

    /// Whether a circuit should move now. If so, alarms are suppressed for [`Switching::rest`].
    pub(crate) fn alarm(&mut self, rules: &Switching, now: Time) -> bool {
        let alarm = self.level > rules.beta && now >= self.resting_until;
        if alarm {
            self.resting_until = now + rules.rest;
        }
        alarm
    }

    /// How long the buffer has been overfull; unknown if it was not underfull since the last call.
    pub(crate) fn detection(&mut self, now: Time) -> Option<Span> {
        self.underfull = false;
        self.overfull.take().map(|since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn the_estimate_follows_the_papers_equation() {
        let rules = Switching::default();
        let (mut occupancy, mut expected) = (Occupancy::new(Time::ZERO), 0.0);
        for step in 1..=20 {
            let filled = if step % 3 == 0 { 0.2 } else { 1.0 };
            occupancy.note(&rules, at(100 * step), filled);
            expected = 0.9 * expected + 0.1 * filled;
            assert!((occupancy.level - expected).abs() < 1e-12);
        }
        let mut at_once = Occupancy::new(Time::ZERO);
        at_once.note(&rules, at(700), 0.5);
        assert!((at_once.level - 0.5 * (1.0 - libm::pow(0.9, 7.0))).abs() < 1e-12, "seven equal samples");
    }

    #[test]
    fn one_alarm_per_rest_or_per_underfull_buffer() {
        let rules = Switching::default();
        let mut occupancy = Occupancy::new(Time::ZERO);
        let mut alarms = vec![];
        for step in 1..=400 {
            // Full, but for a pause between 12 s and 16 s in which it empties.
            let filled = if (120..160).contains(&step) { 0.0 } else { 1.0 };
            occupancy.note(&rules, at(100 * step), filled);
            if occupancy.alarm(&rules, at(100 * step)) {
                alarms.push((step, occupancy.detection(at(100 * step))));
            }
        }
        // 0.9^7 < 0.5: the seventh full sample passes beta, 600 ms after the first.
        let seen = Some(Span::from_millis(600));
        assert_eq!(alarms, [(7, seen), (107, None), (166, seen), (266, None), (366, None)]);
    }

    #[test]
    fn a_moves_parts_are_counted_where_they_are_known() {
        let ms = Span::from_millis;
        let notice = CongestionNotice { said: at(1000), detection: Some(ms(600)) };
        let parts = MoveStart::on_notice(at(1100), Some(notice)).over(at(1350), Some(at(1500)), at(2000));
        let all = MoveTimes {
            detection: Some(ms(600)),
            notice: Some(ms(100)),
            set_up: ms(250),
            first: Some(ms(150)),
            drain: ms(650),
        };
        assert_eq!((parts, parts.total()), (all, ms(1000)));
        // Real cells carry no timestamps.
        let parts = MoveStart::on_notice(at(1100), None).over(at(1350), None, at(2000));
        assert_eq!((parts.detection, parts.notice, parts.first, parts.total()), (None, None, None, ms(900)));
    }
}
