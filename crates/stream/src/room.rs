//! Budgets of children over all slices, and the peers with free capacity.

use crate::Peer;

/// Budget and state of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Whether the peer takes part.
    pub member: bool,
    /// Maximum number of children over all slices.
    pub budget: usize,
    /// Number of children.
    pub used: usize,
    /// Whether new children avoid it for now.
    pub avoided: bool,
    /// Whether it stays detached from all trees until it answers.
    pub suspended: bool,
}

/// The budgets of all peers.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    places: Vec<Place>,
    open: Vec<Peer>,
    /// Index of each peer in `open`.
    at: Vec<Option<usize>>,
    capacity: usize,
}

impl Rooms {
    /// No capacity, for numbers below `peers`.
    pub(crate) fn new(peers: usize) -> Rooms {
        Rooms { places: vec![Place::default(); peers], open: Vec::new(), at: vec![None; peers], capacity: 0 }
    }

    /// The place of one peer.
    pub(crate) fn of(&self, peer: Peer) -> &Place {
        &self.places[usize::from(peer)]
    }

    /// Peers with free capacity, in no particular order.
    pub(crate) fn open(&self) -> &[Peer] {
        &self.open
    }

    /// Sum of all budgets.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes a place. Returns whether the peer gained free capacity.
    pub(crate) fn change(&mut self, peer: Peer, change: impl FnOnce(&mut Place)) -> bool {
        let place = &mut self.places[usize::from(peer)];
        self.capacity -= place.budget;
        change(place);
        self.capacity += place.budget;
        let open = place.used < place.budget && !place.avoided;
        let at = self.at[usize::from(peer)];
        match at {
            None if open => {
                self.at[usize::from(peer)] = Some(self.open.len());
                self.open.push(peer);
            }
            Some(at) if !open => {
                self.at[usize::from(peer)] = None;
                self.open.swap_remove(at);
                if let Some(moved) = self.open.get(at) {
                    self.at[usize::from(*moved)] = Some(at);
                }
            }
            _ => {}
        }
        open && at.is_none()
    }
}
