//! Budgets: how many children each peer can have, and how much of the uplinks the trees leave free.

use tidegate_control::units::{Rate, Span, Time};

use crate::Peer;
use crate::forest::Forest;
use crate::latency::Latencies;
use crate::member::{Member, Members};
use crate::packet::WIRE;

/// Share of an uplink for trees. The rest is for repairs, exploration and bursts.
pub(super) const HEADROOM: f64 = 0.85;
/// Share of an uplink for trees while, and some time after, viewers lack a parent.
const HEADROOM_IN_NEED: f64 = 0.92;
const NEED: Span = Span::from_secs(60);
/// Approximate size of a message, bits.
const MESSAGE: f64 = 8.0 * (40 + WIRE) as f64;
/// Weight of the last second in the smoothed rate of messages.
const SMOOTH: f64 = 0.3;

/// Rates on the wire, bit/s.
#[derive(Clone, Copy)]
pub(super) struct StreamRate {
    /// One slice, sent to one child.
    pub(super) slice: f64,
    /// All data slices.
    pub(super) stream: f64,
}

/// Computes budgets of children.
pub(super) struct Budgets {
    uplink: Rate,
    /// Smoothed number of messages per second from the server.
    messages: f64,
    /// When a viewer last lacked a parent.
    orphaned: Option<Time>,
}

impl Budgets {
    pub(super) fn new(uplink: Rate) -> Budgets {
        Budgets { uplink, messages: 0.0, orphaned: None }
    }

    /// A second passed in which the server sent `messages`.
    pub(super) fn second(&mut self, now: Time, messages: u32, orphans: usize) {
        if orphans > 0 {
            self.orphaned = Some(now);
        }
        self.messages += SMOOTH * (f64::from(messages) - self.messages);
    }

    /// Whether a viewer lacked a parent during the last [`NEED`].
    pub(super) fn in_need(&self, now: Time) -> bool {
        self.orphaned.is_some_and(|at| now.since(at) < NEED)
    }

    /// Number of children of the server.
    pub(super) fn of_server(&self, now: Time, rate: StreamRate) -> usize {
        // With thousands of viewers, messages take a noticeable part of the uplink.
        let carried = self.uplink.0 as f64 * self.headroom(now) - self.messages * MESSAGE;
        (carried / rate.slice) as usize
    }

    /// Number of children of a viewer.
    pub(super) fn of_member(&self, now: Time, member: &mut Member, rate: StreamRate) -> usize {
        (member.allowance(now, rate.stream, rate.slice) * self.headroom(now) / rate.slice) as usize
    }

    /// Applies the current budget of a viewer to the trees. Does nothing if the viewer is gone.
    pub(super) fn update(
        &self,
        now: Time,
        peer: Peer,
        rate: StreamRate,
        members: &mut Members,
        forest: &mut Forest,
        latencies: &Latencies,
    ) {
        let Some(member) = members.get_mut(peer) else { return };
        let budget = self.of_member(now, member, rate);
        let (before, used) = forest.load(peer);
        // A budget that exceeds its children by one is not worth a move.
        if budget != before && (budget > before || budget + 1 < used || budget == 0 || budget >= used) {
            forest.set_budget(peer, budget, latencies);
        }
    }

    fn headroom(&self, now: Time) -> f64 {
        if self.in_need(now) { HEADROOM_IN_NEED } else { HEADROOM }
    }
}
