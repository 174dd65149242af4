//! What gives when capacity drops (thesis section 7.4.1).

use tidegate_control::units::{Span, Time};

use super::{Overload, Server};
use crate::Peer;
use crate::message::{Message, Refusal};

/// Capacity must have been short for so long before quality falls or viewers are sent away.
const SHORT: Span = Span::from_secs(1);

impl Server {
    /// When the uplinks have not carried the stream for a while, something gives; when they carry more again,
    /// it comes back.
    pub(super) fn shed_load(&mut self, now: Time) {
        let short = self.forest.orphans() > 0;
        if !short {
            self.short_since = None;
        }
        let since = *self.short_since.get_or_insert(now);
        match self.settings.overload {
            Overload::Refuse => {}
            Overload::Layers => {
                let active = self.source.active();
                if short && now.since(since) >= SHORT && active > 1 {
                    // At once as many as fit, with parity.
                    let fit = self.forest.capacity() / self.forest.members().len().max(1);
                    self.layers((active - 1).min(fit.saturating_sub(self.settings.parity)).max(1));
                } else if !short && active < self.settings.slices {
                    let spare = self.forest.capacity() as f64;
                    let needed = (self.forest.members().len() * (active + 1 + self.settings.parity)) as f64;
                    if spare > 1.1 * needed {
                        self.layers(active + 1);
                    }
                }
            }
            Overload::Redirect(to) => {
                let least = |peer: &Peer| (self.forest.load(*peer).0, *peer);
                let found = self.forest.members().iter().copied().min_by_key(|peer| least(peer));
                if let Some(peer) = found.filter(|_| short && now.since(since) >= SHORT) {
                    self.counters.redirected += 1;
                    self.tell(peer, Message::Refused(Refusal::Redirect(to)));
                    self.remove(peer);
                }
            }
        }
    }

    fn layers(&mut self, active: usize) {
        let slices = self.settings.slices;
        self.source.set_active(active);
        for slice in 0..slices {
            self.forest.set_active(slice, slice < active, &self.latencies);
        }
        self.short_since = None;
    }
}
