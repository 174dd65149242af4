//! Who is still there, how far away, and whether it has what was sent.

use tidegate_control::units::{Span, Time};

use super::Server;
use crate::judge::{Complaint, Fault};
use crate::member::Pinged;
use crate::message::{Message, Ping};
use crate::packet::{Key, WIRE};
use crate::source::digest;
use crate::{Peer, SERVER};

/// Between pings to one viewer: at least, and at most. Between them, so that all take a share of the uplink.
const PING: Span = Span::from_millis(500);
const RAREST: Span = Span::from_secs(4);
const SHARE: f64 = 0.04;
/// A ping's bytes.
const BYTES: usize = 40 + WIRE;
/// Pings ask about packets that should have arrived everywhere and are not forgotten anywhere.
const AUDITED: Span = Span::from_millis(1500);

impl Server {
    pub(super) fn ping(&mut self, now: Time) {
        let newest = self.source.newest();
        let all = (self.forest.members().len() * BYTES) as f64 / self.settings.uplink.as_bytes_per_s();
        let interval = Span::from_secs_f64(all / SHARE).clamp(PING, RAREST);
        let dead_after = self.settings.dead_after.max(interval * 2 + PING);
        for peer in self.forest.members().to_vec() {
            let Some(member) = &mut self.members[usize::from(peer)] else { continue };
            if now.since(member.heard) > dead_after {
                self.counters.died += 1;
                self.remove(peer);
                continue;
            }
            if member.suspected.is_some_and(|since| now.since(since) > member.timeout(self.uneven)) {
                member.suspected = None;
                self.forest.suspend(peer, &self.latencies);
            }
            if now < member.next_ping {
                continue;
            }
            member.next_ping = now + interval;
            self.pings = self.pings.wrapping_add(1);
            // Drawn: counted through, each of twenty viewers would be asked about one of ten slices for ever.
            let slice = self.random.below(self.settings.slices) as u8;
            let audit = self.source.aged(now, AUDITED, slice);
            let (key, digest) = audit.map_or((Key::default(), 0), |(key, bytes)| (key, digest(&bytes)));
            member.ping = Some(Pinged { number: self.pings, sent: now, slice: usize::from(slice), digest });
            let round_trip = (member.round_trip as u32).min(10_000_000);
            let (number, clock) = (self.pings, (now.0 / 1_000_000) as u32);
            self.tell(peer, Message::Ping(Ping { number, clock, round_trip, newest, audit: key }));
        }
    }

    pub(super) fn pong(&mut self, now: Time, from: Peer, number: u32, digest: u64) {
        let Some(member) = &mut self.members[usize::from(from)] else { return };
        let Some(ping) = member.ping.take_if(|ping| ping.number == number) else { return };
        let sample = now.since(ping.sent).0 as f64 / 1e3;
        member.pong(sample);
        self.latencies.measured(SERVER, from, sample / 2.0, &mut self.random);
        self.forest.set_avoided(from, false);
        if ping.digest != 0 && digest != 0 && digest != ping.digest {
            // What it has is not what was sent: somebody above it forges, which is judged like silence.
            self.counters.forged += 1;
            let parent = self.forest.tree(ping.slice).parent(from);
            let complaint = Complaint { slice: ping.slice, child: from, parent, fault: Fault::Forges };
            self.judge.complain(now, complaint, &self.forest);
        }
    }
}
