//! A path that a client uses again.

use std::collections::BTreeMap;

use tidegate_control::paths::sender::Path;
use tidegate_control::units::{Span, Time};

use crate::message::Session;
use crate::routes::{Inbound, Outbound, Tags};

/// How long a route is used: shorter than relays keep it.
const LIFE: Span = Span::from_secs(30);
/// A route that could be used for less than this share of the time of late is not counted on: some relay of it is allowed next to
/// nothing.
const USABLE: f64 = 0.25;
/// Cells in a row whose loss ends a route.
const LOSSES: u32 = 2;

/// A route.
pub(crate) struct Route {
    pub path: Path,
    pub outbound: Outbound,
    pub end: Inbound,
    pub session: Session,
    /// Of the next cell.
    pub number: u32,
    pub until: Time,
    /// Cells on their way, as relays name them in refusals.
    pub flying: BTreeMap<u32, Tags>,
    /// Round trip and its deviation, seconds (4.3 and 4.4 of the thesis).
    round: [f64; 2],
    tries: Tries,
    /// Losses since the last answer.
    losses: u32,
    /// When it would have ended, if losses ended it: an answer that comes after all takes that back.
    given_up: Option<Time>,
}

impl Route {
    /// It was established by a message that was answered after so many seconds.
    pub fn new(
        now: Time,
        path: Path,
        (outbound, end): (Outbound, Inbound),
        session: Session,
        seconds: f64,
    ) -> Route {
        Route {
            path,
            outbound,
            end,
            session,
            number: 1,
            until: now + LIFE,
            flying: BTreeMap::new(),
            round: [seconds, seconds / 2.0],
            tries: Tries::new(now),
            losses: 0,
            given_up: None,
        }
    }

    /// A cell waited, and could be sent over it or not.
    pub fn tried(&mut self, now: Time, sent: bool) {
        self.tries = Tries { at: now, sent, share: self.tries.share(now) };
    }

    /// Whether few cells can be expected to leave over it.
    pub fn is_blocked(&self, now: Time) -> bool {
        self.tries.share(now) < USABLE
    }

    /// Smoothed, seconds.
    pub fn round_trip(&self) -> f64 {
        self.round[0]
    }

    /// How long an answer is waited for, seconds.
    pub fn timeout(&self, factor: f64) -> f64 {
        self.round[0] + factor * self.round[1]
    }

    /// A cell was lost.
    pub fn lost(&mut self, now: Time, number: u32) {
        self.flying.remove(&number);
        self.losses += 1;
        if self.losses >= LOSSES && self.given_up.is_none() {
            self.given_up = Some(self.until);
            self.until = self.until.min(now);
        }
    }

    /// A cell was answered.
    pub fn answered(&mut self, number: u32, seconds: f64, gamma: f64) {
        self.round[1] += gamma * ((seconds - self.round[0]).abs() - self.round[1]);
        self.round[0] += gamma * (seconds - self.round[0]);
        self.losses = 0;
        if let Some(until) = self.given_up.take() {
            self.until = until;
        }
        self.flying.remove(&number);
    }
}

/// For how much of the time of late cells that waited could be sent over a route.
#[derive(Clone, Copy, Debug)]
struct Tries {
    /// When a cell last waited, and whether it could be sent.
    at: Time,
    sent: bool,
    /// The share until then.
    share: f64,
}

impl Tries {
    /// Older than so many seconds is not of late.
    const OF_LATE: f64 = 1.0;
    /// So much of a pause between two tries counts, seconds: in the rest of it nothing may have waited.
    const PAUSE: f64 = 0.1;

    fn new(now: Time) -> Tries {
        Tries { at: now, sent: true, share: 1.0 }
    }

    fn share(&self, now: Time) -> f64 {
        let weight = now.since(self.at).as_secs_f64().min(Tries::PAUSE) / Tries::OF_LATE;
        self.share + weight * (f64::from(u8::from(self.sent)) - self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share after five seconds of tries, each `every` ms, of which those in the first `open` ms of a second succeed.
    fn share(every: u64, open: u64) -> f64 {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut tries = Tries::new(at(0));
        for ms in (0..5000).step_by(every as usize) {
            tries = Tries { at: at(ms), sent: ms % 1000 < open, share: tries.share(at(ms)) };
        }
        assert_eq!(
            tries.share(at(5100)),
            tries.share(at(60_000)),
            "a long pause says no more than a short one"
        );
        tries.share(at(5000))
    }

    #[test]
    fn a_route_that_sends_now_and_then_is_blocked_and_one_that_mostly_does_is_not() {
        assert!(share(1, 3) < USABLE, "three packets a second");
        assert!(share(60, 60) < USABLE, "the same beside others");
        assert!(share(1, 650) > USABLE && share(60, 650) > USABLE);
    }
}
