//! When a controller does what.

use tidegate_control::units::{Span, Time};

use super::Parameters;
use crate::links::Clock;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A step begins. What arrives at the same instant is heard first.
    Begin,
    /// Solve.
    Solve,
    /// Act on the solution.
    Act,
    /// Let another part of the step's cells go; so many parts are left.
    Release(u32),
}

/// What is to come, by this node's clock.
#[derive(Debug)]
pub(super) struct Steps {
    /// How long a step takes.
    step: Span,
    parts: u32,
    due: Vec<(Time, Due)>,
}

impl Steps {
    pub fn new(parameters: &Parameters, clock: Clock) -> Steps {
        let step = parameters.step.as_secs_f64();
        let first = Time::ZERO + parameters.first + Span::from_secs_f64(step * clock.phase);
        let step = Span::from_secs_f64(step * (1.0 + clock.slow));
        Steps { step, parts: parameters.parts, due: vec![(first, Due::Begin)] }
    }

    pub fn next(&self) -> Option<Time> {
        self.due.iter().map(|(time, _)| *time).min()
    }

    /// What is due next, if it is by now.
    pub fn take(&mut self, now: Time) -> Option<Due> {
        let next = self.next().filter(|next| *next <= now)?;
        let at = self.due.iter().position(|(time, _)| *time == next)?;
        let (_, due) = self.due.remove(at);
        if due == Due::Begin {
            self.due.push((now, Due::Solve));
        }
        Some(due)
    }

    /// A solve has been made whose results count after `takes`; none is to wait for if that is no time.
    pub fn solved(&mut self, now: Time, takes: Span) {
        if takes > Span::ZERO {
            self.due.push((now + takes, Due::Act));
        }
        self.due.push((now + self.step, Due::Begin));
    }

    /// So many parts of the step's cells are let go later.
    pub fn release_later(&mut self, now: Time, parts: u32) {
        if parts > 0 {
            self.due.push((now + Span(self.step.0 / u64::from(self.parts)), Due::Release(parts)));
        }
    }
}
