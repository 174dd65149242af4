//! The timers of a controller's step.

use tidegate_control::units::{Span, Time};

use super::parameters::PredictorParameters;
use crate::control::{Clock, Timer};

/// The action of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Begin a step. Messages that arrive at the same instant are read first.
    Begin,
    /// Solve.
    Solve,
    /// Act on the solution.
    Act,
    /// Release another part of the step's cells; this many parts remain.
    Release(u32),
}

/// Pending timers by this node's clock.
#[derive(Debug)]
pub(super) struct Steps {
    /// Length of a step.
    step: Span,
    parts: u32,
    due: Vec<(Timer, Due)>,
}

impl Steps {
    pub(crate) fn new(parameters: &PredictorParameters, clock: Clock) -> Steps {
        let step = parameters.step.as_secs_f64();
        let first = Time::ZERO + parameters.first + Span::from_secs_f64(step * clock.phase);
        let step = Span::from_secs_f64(step * (1.0 + clock.slow));
        let first = Timer { due: first, set: Time::ZERO };
        Steps { step, parts: parameters.parts, due: vec![(first, Due::Begin)] }
    }

    pub(crate) fn next(&self) -> Option<Timer> {
        self.due.iter().map(|(timer, _)| *timer).min()
    }

    fn set(&mut self, now: Time, after: Span, due: Due) {
        self.due.push((Timer { due: now + after, set: now }, due));
    }

    /// Removes and returns the next action if it is due.
    pub(crate) fn take(&mut self, now: Time) -> Option<Due> {
        let next = self.next().filter(|next| next.due <= now)?;
        let at = self.due.iter().position(|(timer, _)| *timer == next)?;
        let (_, due) = self.due.remove(at);
        if due == Due::Begin {
            self.set(now, Span::ZERO, Due::Solve);
        }
        Some(due)
    }

    /// A solve finished. Its result takes effect after `takes`; zero means immediately.
    pub(crate) fn solved(&mut self, now: Time, takes: Span) {
        if takes > Span::ZERO {
            self.set(now, takes, Due::Act);
        }
        self.set(now, self.step, Due::Begin);
    }

    /// Schedules the release of `parts` more parts of the step's cells.
    pub(crate) fn release_later(&mut self, now: Time, parts: u32) {
        if parts > 0 {
            self.set(now, Span(self.step.0 / u64::from(self.parts)), Due::Release(parts));
        }
    }
}
