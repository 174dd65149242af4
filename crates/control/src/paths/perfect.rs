//! A central manager with complete knowledge (thesis section 6.3.2, algorithm A.0.2).
//!
//! For every packet it reserves room at each relay and at the destination, in the second in
//! which the packet gets there. All peers begin their seconds together.

use super::kind::ControllerKind;
use super::sender::Path;
use super::{Controller, MAX_HOPS, Peer};
use crate::random::Seed;
use crate::units::{Span, Time};

/// T_s, the time slice by which rates are limited.
const SLICE: Span = Span::from_secs(1);
/// Slices kept at once: every packet arrives within this many seconds.
const SLICES: usize = 16;

/// The registry's entry: the [`Manager`] replaces the sources' controllers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Perfect;

impl ControllerKind for Perfect {
    fn controller(&self, _: f64, _: usize, _: Seed) -> Option<Box<dyn Controller>> {
        None
    }
}

/// The central manager.
#[derive(Clone, Debug)]
pub struct Manager {
    peers: usize,
    hops: usize,
    packet: f64,
    /// R_l in bytes per slice; zero for peers outside the overlay.
    limits: Vec<f64>,
    /// R_c by slice and peer, bytes reserved.
    reserved: Vec<f64>,
    /// Half of R_ij: mean one-way delays.
    delays: Vec<Span>,
    /// T_l and T_u of A.0.2 by slice, relays so far and peer: between them no path was found.
    failed: Vec<(Time, Time)>,
    /// The slice that each row of `reserved` and `failed` belongs to.
    slices: [u64; SLICES],
}

/// The reason why the manager did not find a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPath {
    /// The destination is full; another may have room.
    DestinationFull,
    /// Too few relays have room.
    RelaysFull,
}

impl Manager {
    /// A manager without reservations. `delays[a * peers + b]` is the mean one-way delay from `a` to `b`.
    ///
    /// # Panics
    /// If `hops` is zero or above [`MAX_HOPS`], or `delays` is not a square table.
    pub fn new(hops: usize, packet: f64, limits: Vec<f64>, delays: Vec<Span>) -> Manager {
        let peers = limits.len();
        assert!((1..=MAX_HOPS).contains(&hops), "a path has 1 to {MAX_HOPS} relays");
        assert_eq!(delays.len(), peers * peers, "a delay for each pair");
        Manager {
            peers,
            hops,
            packet,
            limits,
            reserved: vec![0.0; SLICES * peers],
            delays,
            failed: vec![(Time::NEVER, Time::ZERO); SLICES * peers * (MAX_HOPS + 1)],
            slices: [u64::MAX; SLICES],
        }
    }

    /// The limit of a peer changes from the next reservation on.
    pub fn set_limit(&mut self, peer: Peer, limit: f64) {
        self.limits[usize::from(peer)] = limit;
    }

    /// Reserves the first path from `from` to `to` with room everywhere; tries relays in order.
    ///
    /// # Errors
    /// [`NoPath`] says whether another destination is worth trying.
    pub fn path(&mut self, now: Time, from: Peer, to: Peer) -> Result<Path, NoPath> {
        let mut path = [0; MAX_HOPS + 2];
        path[0] = from;
        self.search(1, from, to, now, &mut path)?;
        let mut at = now;
        for hop in 1..=self.hops + 1 {
            at += self.delay(path[hop - 1], path[hop]);
            let cell = self.cell(at, path[hop]);
            self.reserved[cell] += self.packet;
        }
        Ok(path)
    }

    fn delay(&self, a: Peer, b: Peer) -> Span {
        self.delays[usize::from(a) * self.peers + usize::from(b)]
    }

    /// Row of the slice of `at`, cleared if it still held an older slice.
    fn row(&mut self, at: Time) -> usize {
        let slice = at.0 / SLICE.0;
        let row = slice as usize % SLICES;
        if self.slices[row] != slice {
            self.slices[row] = slice;
            self.reserved[row * self.peers..][..self.peers].fill(0.0);
            let width = self.peers * (MAX_HOPS + 1);
            self.failed[row * width..][..width].fill((Time::NEVER, Time::ZERO));
        }
        row
    }

    fn cell(&mut self, at: Time, peer: Peer) -> usize {
        self.row(at) * self.peers + usize::from(peer)
    }

    fn room(&mut self, at: Time, peer: Peer) -> bool {
        let cell = self.cell(at, peer);
        self.reserved[cell] + self.packet <= self.limits[usize::from(peer)]
    }

    fn search(&mut self, hop: usize, at: Peer, to: Peer, now: Time, path: &mut Path) -> Result<(), NoPath> {
        let memory = (self.row(now) * (MAX_HOPS + 1) + hop - 1) * self.peers + usize::from(at);
        let (first, last) = self.failed[memory];
        if first <= now && now <= last {
            return Err(NoPath::RelaysFull);
        }
        if hop > self.hops {
            path[hop] = to;
            let arrival = now + self.delay(at, to);
            return if self.room(arrival, to) { Ok(()) } else { Err(NoPath::DestinationFull) };
        }
        let mut reason = NoPath::RelaysFull;
        for relay in 0..self.peers as Peer {
            if relay == to || path[..hop].contains(&relay) {
                continue;
            }
            let arrival = now + self.delay(at, relay);
            if !self.room(arrival, relay) {
                continue;
            }
            path[hop] = relay;
            match self.search(hop + 1, relay, to, arrival, path) {
                Ok(()) => return Ok(()),
                // The last relay reaches the destination in another slice at best: no use trying them all.
                Err(NoPath::DestinationFull) => return Err(NoPath::DestinationFull),
                Err(NoPath::RelaysFull) => reason = NoPath::RelaysFull,
            }
        }
        self.failed[memory] = (first.min(now), last.max(now));
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(limit: f64) -> Manager {
        Manager::new(2, 1500.0, vec![limit; 5], vec![Span::from_millis(10); 25])
    }

    #[test]
    fn reservations_never_exceed_a_limit() {
        let mut central = manager(3000.0);
        let mut found = 0;
        for attempt in 0..50u16 {
            let (from, to) = (attempt % 5, (attempt + 1 + attempt / 5 % 4) % 5);
            if from != to && central.path(Time::ZERO, from, to).is_ok() {
                found += 1;
            }
        }
        assert!(central.reserved.iter().all(|bytes| *bytes <= 3000.0));
        // Two packets at each of five peers, three at a time.
        assert_eq!(found, 3);
    }

    #[test]
    fn a_new_slice_has_room_again_and_the_memory_does_not_outlive_it() {
        let mut central = manager(1500.0);
        assert!(central.path(Time::ZERO, 0, 1).is_ok());
        assert_eq!(central.path(Time::ZERO, 0, 1), Err(NoPath::RelaysFull));
        let later = Time::ZERO + SLICE;
        let path = central.path(later, 0, 1).expect("everything is free again");
        assert_eq!(path[..4], [0, 2, 3, 1]);
        assert_eq!(central.path(later, 0, 1), Err(NoPath::RelaysFull));
    }

    #[test]
    fn a_full_destination_is_told_apart() {
        let mut central = manager(3000.0);
        central.set_limit(1, 0.0);
        assert_eq!(central.path(Time::ZERO, 0, 1), Err(NoPath::DestinationFull));
        assert!(central.path(Time::ZERO, 0, 4).is_ok());
    }
}
