//! A route of a client.

use std::collections::BTreeMap;

use tidegate_control::paths::Path;
use tidegate_control::units::{Span, Time};

use crate::message::Session;
use crate::routes::{Inbound, Outbound, Tags};

/// How long a route is used, shorter than relays keep it.
const LIFE: Span = Span::from_secs(30);
/// Minimum share of the last seconds in which a usable route could carry cells.
///
/// Below, a relay on the route has too little rate.
const USABLE: f64 = 0.25;
/// Consecutive losses that end a route.
const LOSSES: u32 = 2;

/// A route of a client.
pub(crate) struct Route {
    pub path: Path,
    pub outbound: Outbound,
    pub end: Inbound,
    pub session: Session,
    /// Number of the next cell.
    pub number: u32,
    pub until: Time,
    /// Cells in flight with the tags that refusals contain.
    pub flying: BTreeMap<u32, Tags>,
    /// Round-trip time and its deviation, seconds (equations 4.3 and 4.4 of the thesis).
    round: [f64; 2],
    tries: Tries,
    /// Losses since the last answer.
    losses: u32,
    /// The former end of a route that losses ended. A late answer restores it.
    given_up: Option<Time>,
}

impl Route {
    /// A route that a message with this round-trip time established.
    pub(crate) fn new(
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

    /// Records whether the route could carry a waiting cell.
    pub(crate) fn tried(&mut self, now: Time, sent: bool) {
        self.tries = Tries { at: now, sent, share: self.tries.share(now) };
    }

    /// Whether the route could rarely carry cells in the last seconds.
    pub(crate) fn is_blocked(&self, now: Time) -> bool {
        self.tries.share(now) < USABLE
    }

    /// Smoothed round-trip time, seconds.
    pub(crate) fn round_trip(&self) -> f64 {
        self.round[0]
    }

    /// Timeout of an answer, seconds.
    pub(crate) fn timeout(&self, factor: f64) -> f64 {
        self.round[0] + factor * self.round[1]
    }

    /// Records the loss of a cell.
    pub(crate) fn lost(&mut self, now: Time, number: u32) {
        self.flying.remove(&number);
        self.losses += 1;
        if self.losses >= LOSSES && self.given_up.is_none() {
            self.given_up = Some(self.until);
            self.until = self.until.min(now);
        }
    }

    /// Records the answer to a cell.
    pub(crate) fn answered(&mut self, number: u32, seconds: f64, gamma: f64) {
        self.round[1] += gamma * ((seconds - self.round[0]).abs() - self.round[1]);
        self.round[0] += gamma * (seconds - self.round[0]);
        self.losses = 0;
        if let Some(until) = self.given_up.take() {
            self.until = until;
        }
        self.flying.remove(&number);
    }
}

/// Share of time during which a route could carry waiting cells, over the last seconds.
#[derive(Clone, Copy, Debug)]
struct Tries {
    /// When a cell last waited, and whether the route could carry it.
    at: Time,
    sent: bool,
    /// The share until then.
    share: f64,
}

impl Tries {
    /// Time constant of the share, seconds.
    const OF_LATE: f64 = 1.0;
    /// Largest weight of a pause between two tries, seconds. During longer pauses, perhaps no cell waited.
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

    /// The share after five seconds of tries, one every `every` ms.
    ///
    /// Tries succeed in the first `open` ms of each second.
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
    fn a_route_that_rarely_sends_is_blocked() {
        assert!(share(1, 3) < USABLE, "three packets a second");
        assert!(share(60, 60) < USABLE, "the same beside others");
        assert!(share(1, 650) > USABLE && share(60, 650) > USABLE);
    }
}
