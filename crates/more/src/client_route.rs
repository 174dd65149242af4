//! A path that a client uses again.

use std::collections::BTreeMap;

use tidegate_control::paths::sender::Path;
use tidegate_control::units::{Span, Time};

use crate::message::Session;
use crate::routes::{Inbound, Outbound, Tags};

/// How long a route is used: shorter than relays keep it.
const LIFE: Span = Span::from_secs(30);
/// A route over which nothing could be sent for so long, although something waited, is not counted on: some relay of it
/// is allowed next to nothing.
const BLOCKED: Span = Span::from_secs(1);
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
    /// Since when its relays have had no rate left for a cell that waited.
    waits: Option<Time>,
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
            waits: None,
            losses: 0,
            given_up: None,
        }
    }

    /// A cell waited, and could be sent over it or not.
    pub fn tried(&mut self, now: Time, sent: bool) {
        self.waits = if sent { None } else { self.waits.or(Some(now)) };
    }

    /// Whether no cell can be expected to leave over it.
    pub fn is_blocked(&self, now: Time) -> bool {
        self.waits.is_some_and(|since| now >= since + BLOCKED)
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
