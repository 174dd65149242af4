//! How many children everybody can have, and how much of uplinks the trees leave.

use tidegate_control::units::{Span, Time};

use super::{HEADROOM, Server};
use crate::member::Member;
use crate::packet::WIRE;
use crate::{Peer, SERVER};

/// [`HEADROOM`] in need, and how long that lasts.
const NEEDED: f64 = 0.92;
const NEED: Span = Span::from_secs(60);
/// A message's bits, about, and how fast their number per second is learnt.
const MESSAGE: f64 = 8.0 * (40 + WIRE) as f64;
const SMOOTH: f64 = 0.3;

impl Server {
    /// How much round trips to most viewers vary.
    pub(super) fn unevenness(&self) -> Span {
        let of = |peer: &Peer| self.member(*peer).map(|member| member.deviation);
        let mut all: Vec<f64> = self.forest.members().iter().filter_map(of).collect();
        all.sort_by(f64::total_cmp);
        Span::from_micros(all.get(all.len() * 3 / 4).copied().unwrap_or(0.0) as u64)
    }

    pub(super) fn budget_of(&self, now: Time, member: &mut Member) -> usize {
        let slice = self.slice_rate();
        let stream = slice * self.settings.slices as f64;
        (member.allowance(now, stream, slice) * self.headroom(now) / slice) as usize
    }

    /// The share of uplinks that trees fill: more while somebody has no parent, and for a while after.
    pub(super) fn headroom(&self, now: Time) -> f64 {
        if self.in_need(now) { NEEDED } else { HEADROOM }
    }

    pub(super) fn in_need(&self, now: Time) -> bool {
        self.orphaned.is_some_and(|at| now.since(at) < NEED)
    }

    /// How many children everybody can have now.
    pub(super) fn budgets(&mut self, now: Time) {
        if self.forest.orphans() > 0 {
            self.orphaned = Some(now);
        }
        // What messages take is not for the trees: with thousands of viewers that is much.
        let told = f64::from(std::mem::take(&mut self.told));
        self.talk += SMOOTH * (told - self.talk);
        let carried = self.settings.uplink.0 as f64 * self.headroom(now) - self.talk * MESSAGE;
        let server = (carried / self.slice_rate()) as usize;
        self.forest.set_budget(SERVER, server, &self.latencies);
        for peer in self.forest.members().to_vec() {
            if let Some(member) = &mut self.members[usize::from(peer)] {
                member.second();
            }
            self.budget(now, peer);
        }
    }

    pub(super) fn budget(&mut self, now: Time, peer: Peer) {
        let Some(mut member) = self.members[usize::from(peer)].take() else { return };
        let budget = self.budget_of(now, &mut member);
        self.members[usize::from(peer)] = Some(member);
        // Small changes are not worth a move.
        let (before, used) = self.forest.load(peer);
        if budget != before && (budget > before || budget + 1 < used || budget == 0 || budget >= used) {
            self.forest.set_budget(peer, budget, &self.latencies);
        }
    }
}
