//! Checks what arrives against the server's signatures, complains about parents, and reports to the server.

use bytes::Bytes;
use tidegate_control::units::{Span, Time};

use super::{Phase, Slice, Viewer, total};
use crate::message::{Fault, Message, Report};
use crate::packet::{self, Datagram, Key, Video};
use crate::reorder::Counters;
use crate::signing::{Added, Check, Held};
use crate::tree::NOBODY;
use crate::{Output, Peer, SERVER};

/// Least time without packets after which a slice is silent, if other slices go on.
///
/// It is longer for slices with jitter and while a new parent connects; the last value is the maximum.
const SILENCE: Span = Span::from_millis(250);
const UNEVEN: u64 = 6;
const LONGEST_SILENCE: Span = Span::from_millis(1000);
/// Time between complaints about one parent.
const AGAIN: Span = Span::from_millis(600);
/// The viewer blames a parent that loses this share of a slice between two reports.
const LOSSY: f64 = 0.1;
/// Lead over the newest announced group, in groups, of a packet that may wait without proof.
const LEAD: u32 = 16;

impl Viewer {
    /// Takes a packet if the server signed it, and drops it if the server did not.
    pub(super) fn check(&mut self, now: Time, from: Peer, video: &Video, bytes: Bytes, tree: bool) {
        match self.verifier.check(video.key, &bytes) {
            Check::Genuine => {
                if let Some(slice) = self.slices.get_mut(usize::from(video.key.slice)).filter(|_| tree) {
                    slice.delivers |= from == slice.parent;
                }
                self.video(now, video, bytes, tree);
            }
            Check::Forged => self.forged(now, from, tree.then_some(video.key.slice)),
            Check::Unknown => {
                // Packets far ahead do not show that a parent delivers: no manifest would ever list them.
                let near = video.key.group <= self.newest.saturating_add(self.step.max(LEAD));
                if let Some(slice) =
                    self.slices.get_mut(usize::from(video.key.slice)).filter(|_| tree && near)
                {
                    slice.heard = now;
                }
                self.verifier.hold(now, from, tree, video.key, bytes);
            }
        }
    }

    /// Drops a forgery. Complains if it came from the parent of a slice, which should have dropped it itself.
    fn forged(&mut self, now: Time, from: Peer, slice: Option<u8>) {
        self.counts.forged += 1;
        let Some(number) = slice else { return };
        let Some(slice) = self.slices.get_mut(usize::from(number)) else { return };
        let lately = slice.accused.is_some_and(|at| now.since(at) < AGAIN);
        if slice.parent == from && from != SERVER && !lately {
            slice.accused = Some(now);
            self.tell(Message::Complaint { slice: number, parent: from, fault: Fault::Forges });
        }
    }

    /// Takes a manifest, forwards it, and checks the packets that it lists.
    pub(super) fn manifest(&mut self, now: Time, from: Peer, bytes: &Bytes) {
        let of = self.slices.iter().position(|slice| slice.parent == from);
        let known = from == SERVER || of.is_some() || self.slices.iter().any(|slice| slice.before == from);
        if !known {
            self.counts.strange += 1;
            return;
        }
        match self.verifier.add(now, from, bytes, self.reorder.oldest()) {
            Added::New(tree) => {
                self.forward(now, usize::from(tree), bytes);
                for Held { from, tree, key, bytes, .. } in self.verifier.take_listed() {
                    if let Some(Datagram::Video(video)) = packet::decode(&bytes) {
                        debug_assert_eq!(video.key, key);
                        self.check(now, from, &video, bytes, tree);
                    }
                }
            }
            Added::Forged => self.forged(now, from, of.map(|slice| slice as u8)),
            Added::Known | Added::Ignored => {}
        }
    }

    /// Requests manifests of packets that wait: first from the sender of the packet, which must have checked it.
    pub(super) fn ask_for_manifests(&mut self, now: Time) {
        let helpers = self.helpers();
        while let Some((key, from, before)) = self.verifier.ask(now, self.config.skip_after) {
            let to = match usize::from(before).checked_sub(1) {
                None => from,
                Some(turn) => helpers.get(turn % (helpers.len() + 1)).copied().unwrap_or(SERVER),
            };
            self.outputs.push_back(Output::Datagram { to, bytes: packet::nack(&[key.of_manifest()]) });
        }
    }

    /// A buffered packet or manifest for a request.
    pub(super) fn stored(&self, key: Key) -> Option<Bytes> {
        match key.listed() {
            Some(listed) => self.verifier.manifest(listed).map(|manifest| manifest.encoded().clone()),
            None => self.reorder.get(key),
        }
    }

    /// Complains about slices that are silent while the stream goes on.
    pub(super) fn listen(&mut self, now: Time) {
        let Phase::In(welcome) = self.phase else { return };
        let newest = self.reorder.newest().unwrap_or(0).max(self.newest);
        for slice in 0..total(&welcome) {
            let silence = self.silence(slice);
            // After a pause of the whole stream, slices resume one by one. Only the time since then counts.
            let heard = self.reorder.last(slice);
            let waits = self.slices[slice].heard;
            let quiet = |at: Time| now.since(at.max(self.resumed).max(waits)) > silence;
            let behind = heard.is_none_or(|(group, _)| newest > group + 1)
                && quiet(heard.map_or(Time::ZERO, |(_, at)| at));
            let Slice { parent, since, delivers, .. } = self.slices[slice];
            let since = if delivers { since } else { since + (self.round_trip * 2).min(LONGEST_SILENCE) };
            let running = newest > 0 && parent != NOBODY;
            if behind && running && now.since(since) > silence {
                let first = !std::mem::replace(&mut self.slices[slice].silent, true);
                if first || now.since(since) > AGAIN {
                    self.slices[slice].since = now;
                    self.tell(Message::Complaint { slice: slice as u8, parent, fault: Fault::Silent });
                }
            }
        }
    }

    /// Time without packets after which a slice is silent.
    fn silence(&self, slice: usize) -> Span {
        let uneven = self.reorder.deviation(slice) * UNEVEN;
        SILENCE.max(uneven.min(LONGEST_SILENCE)).max(self.reorder.spacing() * 3)
    }

    pub(super) fn report(&mut self, _now: Time) {
        let Phase::In(welcome) = self.phase else { return };
        for slice in 0..usize::from(welcome.slices) {
            let (expected, missed) = self.reorder.take_losses(slice);
            let Slice { parent, silent, .. } = self.slices[slice];
            let lossy = expected >= 10 && f64::from(missed) > LOSSY * f64::from(expected);
            if lossy && !silent && parent != NOBODY {
                self.tell(Message::Complaint { slice: slice as u8, parent, fault: Fault::Loses });
            }
        }
        let Counters { delivered, gaps, duplicates, recovered, .. } = self.reorder.counters;
        let report = Report {
            delivered: delivered as u32,
            gaps: gaps as u32,
            duplicates: duplicates as u32,
            recovered: recovered as u32,
            forwarded: self.counts.forwarded,
            lag: self.lags.recent_median(),
        };
        self.tell(Message::Report(report));
    }
}
