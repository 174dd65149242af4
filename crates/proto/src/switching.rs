//! Active circuit switching: when, and which circuit (Kale, Ohzahata, Wu, Kato: "Emulation Evaluations of
//! Tor Schedulers with Active Circuit Switching", 2016).
//!
//! A guard follows how full each connection's output buffer is, as an exponentially weighted average. When
//! it passes the upper threshold, the circuit with the greatest decayed cell count moves away: to another
//! TCP connection between the same two nodes ([`Form::Connection`], done by [`crate::links`]), or to
//! another circuit that the client has built beforehand ([`Form::Circuit`], done by [`crate::client`] and
//! the exit's [`crate::relay`]).
//!
//! Both moves are one protocol, run on different floors. The mover sends LEAVE with a nonce as the last
//! thing on the old way, JOIN with the same nonce as the first on the new one, and goes on there. The other
//! side holds what comes on the new way until LEAVE has come on the old one, then answers with LEAVE on the
//! old way and moves as well; the mover holds what comes on the new way until that. Each way keeps order, so
//! nothing is lost, doubled or overtaken, and both directions keep flowing meanwhile.

use tidegate_control::units::{Span, Time};

/// The rules of switching.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switching {
    /// Where circuits move.
    pub form: Form,
    /// Weight of the previous estimate, gamma in `B_t = gamma B_{t-1} + (1 - gamma) B_sample`. The paper
    /// gives none.
    pub gamma: f64,
    /// Share of the output buffer below which it is underfull (paper: 0.1).
    pub alpha: f64,
    /// Share above which it is overfull (paper: 0.5).
    pub beta: f64,
    /// Interval between samples. The paper gives none.
    pub sample_every: Span,
    /// A connection from which a circuit has moved loses no other, and a circuit that has moved stays,
    /// for so long; a connection that was underfull in between may lose one at once.
    pub rest: Span,
    /// Connections between two nodes at most.
    pub connections: u32,
    /// Middles and exits switch as guards do (form 1 only): beyond the paper.
    pub everywhere: bool,
}

/// Where circuits move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// To another TCP connection between the same two nodes.
    Connection,
    /// To another circuit with the same guard and exit over a middle of higher bandwidth.
    Circuit,
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

/// How full a buffer has been lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupancy {
    /// B_t, as a share of the buffer.
    level: f64,
    sampled: Time,
    /// No alarm before this, unless the buffer was underfull.
    resting_until: Time,
}

impl Occupancy {
    /// An empty buffer.
    pub fn new(now: Time) -> Occupancy {
        Occupancy { level: 0.0, sampled: now, resting_until: Time::ZERO }
    }

    /// B_t as of the last sample.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// The buffer was `filled` (a share) until `now`. To be said before it changes.
    pub fn note(&mut self, rules: &Switching, now: Time, filled: f64) {
        let samples = now.since(self.sampled).0 / rules.sample_every.0;
        if samples == 0 {
            return;
        }
        self.sampled += rules.sample_every * samples;
        let kept = libm::pow(rules.gamma, samples as f64);
        self.level = kept * self.level + (1.0 - kept) * filled;
        if self.level < rules.alpha {
            self.resting_until = Time::ZERO;
        }
    }

    /// Whether a circuit should move now. Then there is rest.
    pub fn alarm(&mut self, rules: &Switching, now: Time) -> bool {
        let alarm = self.level > rules.beta && now >= self.resting_until;
        if alarm {
            self.resting_until = now + rules.rest;
        }
        alarm
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
            assert!((occupancy.level() - expected).abs() < 1e-12);
        }
        let mut at_once = Occupancy::new(Time::ZERO);
        at_once.note(&rules, at(700), 0.5);
        assert!((at_once.level() - 0.5 * (1.0 - libm::pow(0.9, 7.0))).abs() < 1e-12, "seven equal samples");
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
                alarms.push(step);
            }
        }
        // 0.9^7 < 0.5: the seventh full sample passes beta.
        assert_eq!(alarms, [7, 107, 166, 266, 366]);
    }
}
