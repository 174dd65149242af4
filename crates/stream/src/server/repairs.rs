//! What viewers miss, within limits.

use tidegate_control::units::Time;

use super::Server;
use crate::packet::{Key, PAYLOAD};
use crate::{Output, Peer};

/// The share of the server's uplink for repairs; in need half of it, as for exploration.
const REPAIRS: f64 = 0.08;
impl Server {
    pub(super) fn nacked(&mut self, now: Time, from: Peer, keys: &[Key]) {
        let share = if self.in_need(now) { REPAIRS / 2.0 } else { REPAIRS };
        let Some(member) = self.members.get_mut(usize::from(from)).and_then(Option::as_mut) else {
            self.counters.strange += 1;
            return;
        };
        let all = self.settings.uplink.as_bytes_per_s() * share;
        // One viewer gets a quarter of that at most, and no more than a part of the stream.
        let one = (self.source.rate().as_bytes_per_s() * 0.25).min(all / 4.0).max(2.0 * PAYLOAD as f64);
        self.repairs.forget(now);
        for key in keys {
            let Some(bytes) = self.source.get(*key) else { continue };
            let mut above = self.forest.tree(usize::from(key.slice)).upwards(from).skip(1);
            if above.any(|peer| self.repairs.has(*key, peer)) {
                // It comes from there.
                continue;
            }
            let cost = bytes.len() as f64;
            let granted = member.repairs.take(now, cost, one, 4.0 * one)
                && self.repairs.left.take(now, cost, all, (2.0 * all).max(8.0 * PAYLOAD as f64));
            if !granted {
                self.counters.unrepaired += 1;
                continue;
            }
            self.counters.repaired += 1;
            self.repairs.sent(now, *key, from);
            self.outputs.push_back(Output::Datagram { to: from, bytes });
        }
    }
}
