//! Pings: liveness and round-trip times.

use tidegate_control::units::{Rate, Span, Time};

use crate::forest::Forest;
use crate::member::{Member, Members, Pinged};
use crate::message::Ping;
use crate::packet::WIRE;

/// Limits of the interval between pings to one viewer. Within them, pings take [`SHARE`] of the uplink.
const SHORTEST: Span = Span::from_millis(500);
const LONGEST: Span = Span::from_secs(4);
const SHARE: f64 = 0.04;
/// Size of a ping, bytes.
const BYTES: usize = 40 + WIRE;

/// Sends pings and evaluates pongs.
pub(super) struct Pings {
    uplink: Rate,
    /// A viewer that is silent for longer is dead.
    dead_after: Span,
    /// Number of the last ping.
    number: u32,
    /// Third quartile of the viewers' deviation of round-trip times.
    spread: Span,
    interval: Span,
}

/// Result of the check of a viewer.
pub(super) enum Liveness {
    Dead,
    Alive {
        /// The viewer did not answer after a complaint about it.
        suspend: bool,
        ping: Option<Ping>,
    },
}

impl Pings {
    pub(super) fn new(uplink: Rate, dead_after: Span) -> Pings {
        Pings { uplink, dead_after, number: 0, spread: Span::ZERO, interval: SHORTEST }
    }

    /// Measures how much round trips to most viewers vary.
    pub(super) fn measure_spread(&mut self, forest: &Forest, members: &Members) -> Span {
        let members = forest.members().iter().filter_map(|peer| members.get(*peer));
        let mut deviations: Vec<f64> = members.map(|member| member.deviation).collect();
        deviations.sort_by(f64::total_cmp);
        let quartile = deviations.get(deviations.len() * 3 / 4).copied().unwrap_or(0.0);
        self.spread = Span::from_micros(quartile as u64);
        self.spread
    }

    /// Adapts the interval to the number of viewers.
    pub(super) fn set_viewers(&mut self, viewers: usize) {
        let all = (viewers * BYTES) as f64 / self.uplink.as_bytes_per_s();
        self.interval = Span::from_secs_f64(all / SHARE).clamp(SHORTEST, LONGEST);
    }

    /// Checks one viewer and makes its next ping if it is due.
    ///
    /// `newest` is the newest group that was sent.
    pub(super) fn check(&mut self, now: Time, member: &mut Member, newest: u32) -> Liveness {
        if now.since(member.heard) > self.dead_after.max(self.interval * 2 + SHORTEST) {
            return Liveness::Dead;
        }
        let timeout = member.timeout(self.spread);
        let suspend = member.suspected.take_if(|since| now.since(*since) > timeout).is_some();
        if now < member.next_ping {
            return Liveness::Alive { suspend, ping: None };
        }
        member.next_ping = now + self.interval;
        self.number = self.number.wrapping_add(1);
        member.ping = Some(Pinged { number: self.number, sent: now });
        let ping = Ping {
            number: self.number,
            clock: (now.0 / 1_000_000) as u32,
            round_trip: (member.round_trip as u32).min(10_000_000),
            newest,
        };
        Liveness::Alive { suspend, ping: Some(ping) }
    }

    /// Evaluates a pong. Returns the round-trip time in microseconds; `None` if it does not answer the last ping.
    pub(super) fn pong(now: Time, member: &mut Member, number: u32) -> Option<f64> {
        let ping = member.ping.take_if(|ping| ping.number == number)?;
        let round_trip = now.since(ping.sent).0 as f64 / 1e3;
        member.pong(round_trip);
        Some(round_trip)
    }
}
