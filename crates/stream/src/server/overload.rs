//! Overload: reduces quality or redirects viewers when capacity is short (thesis section 7.4.1).

use std::net::SocketAddr;

use tidegate_control::units::{Span, Time};

use super::config::Overload;
use crate::Peer;
use crate::forest::Forest;

/// How long capacity must be short before the server reacts.
const SHORT: Span = Span::from_secs(1);

/// Watches for missing capacity and chooses a reaction.
pub(super) struct LoadShedder {
    policy: Overload,
    /// Numbers of data and of parity slices.
    slices: usize,
    parity: usize,
    short_since: Option<Time>,
}

/// A reaction to a lack, or to the return, of capacity.
pub(super) enum Relief {
    /// Send this number of data slices.
    SetActive(usize),
    /// Send a viewer to another server.
    Redirect(Peer, SocketAddr),
}

impl LoadShedder {
    pub(super) fn new(policy: Overload, slices: usize, parity: usize) -> LoadShedder {
        LoadShedder { policy, slices, parity, short_since: None }
    }

    /// Decides once per second. `active` is the number of data slices in use.
    pub(super) fn decide(&mut self, now: Time, forest: &Forest, active: usize) -> Option<Relief> {
        let short = forest.orphans() > 0;
        if !short {
            self.short_since = None;
        }
        let since = *self.short_since.get_or_insert(now);
        let overloaded = short && now.since(since) >= SHORT;
        match self.policy {
            Overload::Refuse => None,
            Overload::Layers => {
                let active = if overloaded && active > 1 {
                    // Drops all slices that do not fit in one step, and always at least one.
                    let fit = forest.capacity() / forest.members().len().max(1);
                    (active - 1).min(fit.saturating_sub(self.parity)).max(1)
                } else if !short && active < self.slices {
                    let needed = (forest.members().len() * (active + 1 + self.parity)) as f64;
                    (forest.capacity() as f64 > 1.1 * needed).then_some(active + 1)?
                } else {
                    return None;
                };
                self.short_since = None;
                Some(Relief::SetActive(active))
            }
            Overload::Redirect(to) => {
                let smallest =
                    forest.members().iter().copied().min_by_key(|peer| (forest.load(*peer).0, *peer));
                Some(Relief::Redirect(smallest.filter(|_| overloaded)?, to))
            }
        }
    }
}
