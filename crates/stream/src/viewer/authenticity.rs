//! Checks what arrives against the server's signatures, and requests manifests that are missing.

use bytes::Bytes;
use tidegate_control::units::{Span, Time};

use super::Viewer;
use crate::message::{Fault, Message};
use crate::packet::{self, Datagram, Key, Video};
use crate::signing::{Added, Check, Held};
use crate::{Output, Peer, SERVER};

/// Time between complaints about the forgeries of one parent.
const AGAIN: Span = Span::from_millis(600);
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
}
