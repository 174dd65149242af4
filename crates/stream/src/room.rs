//! Who can carry how many children over all slices, and has room for another.

use crate::Peer;

/// What one peer carries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Takes part.
    pub member: bool,
    /// Children over all slices that it can have.
    pub budget: usize,
    /// Children that it has.
    pub used: usize,
    /// Gets no new children for now.
    pub avoided: bool,
    /// Has no parents until it answers.
    pub suspended: bool,
}

/// What everybody carries.
#[derive(Clone, Debug)]
pub struct Rooms {
    places: Vec<Place>,
    open: Vec<Peer>,
    /// Where they are among those with room.
    at: Vec<Option<usize>>,
    capacity: usize,
}

impl Rooms {
    /// Nobody carries anything; numbers up to `peers`.
    pub fn new(peers: usize) -> Rooms {
        Rooms { places: vec![Place::default(); peers], open: Vec::new(), at: vec![None; peers], capacity: 0 }
    }

    /// One peer's.
    pub fn of(&self, peer: Peer) -> &Place {
        &self.places[usize::from(peer)]
    }

    /// Those that can have another child, in no particular order.
    pub fn open(&self) -> &[Peer] {
        &self.open
    }

    /// Children that all together can have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes what a peer carries. Whether it has room now that it had not.
    pub fn change(&mut self, peer: Peer, change: impl FnOnce(&mut Place)) -> bool {
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
