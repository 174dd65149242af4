//! The list of cells in a circuit queue or in an output buffer.

use std::collections::VecDeque;

use crate::onion::Onion;
use crate::sink::Departure;

/// Cells in the order in which they leave. They are contiguous in memory, so that both ends stay in the CPU cache.
#[derive(Debug)]
pub(super) struct Waiting<O: Onion>(VecDeque<Departure<O>>);

/// Maximum capacity of an empty list, in cells. Nearly all of a relay's thousands of lists are empty or short.
const KEPT: usize = 16;

impl<O: Onion> Default for Waiting<O> {
    fn default() -> Waiting<O> {
        Waiting(VecDeque::new())
    }
}

impl<O: Onion> Waiting<O> {
    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push_back(&mut self, departure: Departure<O>) {
        self.0.push_back(departure);
    }

    /// Puts a cell before all others.
    pub(crate) fn push_front(&mut self, departure: Departure<O>) {
        self.0.push_front(departure);
    }

    pub(crate) fn pop_front(&mut self) -> Option<Departure<O>> {
        let first = self.0.pop_front()?;
        if self.0.is_empty() && self.0.capacity() > KEPT {
            self.0 = VecDeque::new();
        }
        Some(first)
    }

    pub(crate) fn front(&self) -> Option<&Departure<O>> {
        self.0.front()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut Departure<O>> {
        self.0.front_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Departure<O>> {
        self.0.iter()
    }

    /// Moves the first cell to the end of another list, and returns it there.
    pub(crate) fn move_front<'to>(&mut self, to: &'to mut Waiting<O>) -> Option<&'to mut Departure<O>> {
        let first = self.pop_front()?;
        to.0.push_back(first);
        to.0.back_mut()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Time;

    use super::*;
    use crate::cell::{Cell, CircId, Command};
    use crate::onion::Clear;

    fn numbered(circ: u32) -> Departure<Clear> {
        let cell = Cell { circ: CircId(circ), command: Command::Relay, body: Clear::empty() };
        Departure { cell, queued: Time::ZERO, buffered: Time::ZERO }
    }

    #[test]
    fn cells_leave_in_order_and_a_long_list_gives_its_memory_back() {
        let (mut queue, mut out) = (Waiting::default(), Waiting::default());
        (1..1000).for_each(|circ| queue.push_back(numbered(circ)));
        queue.push_front(numbered(0));
        assert_eq!((queue.len(), queue.front().map(|first| first.cell.circ)), (1000, Some(CircId(0))));
        while let Some(moved) = queue.move_front(&mut out) {
            moved.buffered = Time(u64::from(moved.cell.circ.0));
        }
        assert!(queue.is_empty() && queue.0.capacity() == 0);
        let left: Vec<_> = std::iter::from_fn(|| out.pop_front()).collect();
        let times: Vec<u64> = left.iter().map(|departure| departure.buffered.0).collect();
        assert_eq!(times, (0..1000).collect::<Vec<_>>());
        queue.push_back(numbered(0));
        queue.pop_front();
        assert!(queue.0.capacity() > 0, "a short one keeps it");
    }
}
