//! The event loop: takes the next event from a queue and hands it to a model, and the timers of machines.
//!
//! Everything that happens in simulated time runs on this loop: the overlay, parallel paths, streams, and two TCP
//! endpoints over a link.

use std::ops::ControlFlow;

use tidegate_control::units::{Span, Time};

/// What is simulated: a state that events change.
pub(crate) trait Model {
    /// What happens.
    type Event;

    /// Takes the next event if it is due by `last`.
    fn next(&mut self, last: Time) -> Option<(Time, Self::Event)>;

    /// Changes the state; may schedule further events. Breaks to end the run.
    fn handle(&mut self, now: Time, event: Self::Event) -> ControlFlow<()>;
}

/// Handles all events that are due by `last`, or until one breaks.
pub(crate) fn run_until<M: Model>(model: &mut M, last: Time) -> ControlFlow<()> {
    while let Some((now, event)) = model.next(last) {
        model.handle(now, event)?;
    }
    ControlFlow::Continue(())
}

/// Handles all events that are due before `end`, or until one breaks.
pub(crate) fn run_before<M: Model>(model: &mut M, end: Time) -> ControlFlow<()> {
    match end.0 {
        0 => ControlFlow::Continue(()),
        after => run_until(model, Time(after - 1)),
    }
}

/// The timer of a machine. Queues cannot remove events, so an event that an earlier one overtook comes up too, and is
/// stale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer(Time);

impl Default for Timer {
    fn default() -> Timer {
        Timer(Time::NEVER)
    }
}

impl Timer {
    /// When to schedule an event for a machine that has its next timeout at `timeout`; `None` if the pending event is
    /// early enough.
    #[inline]
    pub(crate) fn arm(&mut self, now: Time, timeout: Time) -> Option<Time> {
        (timeout < self.0).then(|| {
            self.0 = timeout.max(now);
            self.0
        })
    }

    /// As [`arm`](Self::arm), for a machine that has caught up with `now`: a pending event of now is stale, and the
    /// next one comes later.
    pub(crate) fn arm_later(&mut self, now: Time, timeout: Option<Time>) -> Option<Time> {
        self.fires(now);
        self.arm(now, timeout.unwrap_or(Time::NEVER).max(now + Span(1)))
    }

    /// Whether an event that comes up now is the timer's; the timer is then no longer armed.
    #[inline]
    pub(crate) fn fires(&mut self, now: Time) -> bool {
        let fires = self.0 == now;
        if fires {
            self.0 = Time::NEVER;
        }
        fires
    }

    /// When the pending event is due.
    pub(crate) fn due(&self) -> Time {
        self.0
    }
}
