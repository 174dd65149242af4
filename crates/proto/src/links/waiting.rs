//! The list of cells in a circuit queue or in an output buffer.

use std::collections::VecDeque;

use crate::onion::Onion;
use crate::sink::Departure;

/// Cells in the order in which they leave, contiguous in memory, so that both ends stay in the CPU cache. Neighbours that
/// are equal, as simulated cells of one circuit often are, share an entry.
#[derive(Debug)]
pub(super) struct Waiting<O: Onion> {
    runs: VecDeque<(Departure<O>, u32)>,
    cells: u32,
    /// Maximum capacity while empty, in entries.
    kept: u32,
}

impl<O: Onion> Waiting<O> {
    /// The cells of a circuit queue. Nearly all of a relay's thousands of queues are empty or short.
    pub(crate) fn of_circuit() -> Waiting<O> {
        Waiting { runs: VecDeque::new(), cells: 0, kept: 16 }
    }

    /// The cells of an output buffer, which fills and empties with each block that the relay reads.
    pub(crate) fn of_channel() -> Waiting<O> {
        Waiting { kept: 256, ..Waiting::of_circuit() }
    }

    /// Number of cells.
    pub(crate) fn len(&self) -> u32 {
        self.cells
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// Adds a run of equal cells.
    #[inline]
    pub(crate) fn push_back(&mut self, departure: Departure<O>, count: u32) {
        self.cells += count;
        match self.runs.back_mut() {
            Some((last, before)) if O::REPEATS && *last == departure => *before += count,
            _ => self.runs.push_back((departure, count)),
        }
    }

    /// Puts a cell before all others.
    pub(crate) fn push_front(&mut self, departure: Departure<O>) {
        self.cells += 1;
        self.runs.push_front((departure, 1));
    }

    /// Takes the first cell and those behind it that equal it, at most `most`; returns how many.
    #[inline]
    pub(crate) fn pop_run(&mut self, most: u32) -> Option<(Departure<O>, u32)> {
        let (first, count) = self.runs.front_mut()?;
        if *count > most {
            *count -= most;
            self.cells -= most;
            return Some((first.clone(), most));
        }
        let run = self.runs.pop_front()?;
        self.cells -= run.1;
        if self.runs.is_empty() && self.runs.capacity() > self.kept as usize {
            self.runs = VecDeque::new();
        }
        Some(run)
    }

    pub(crate) fn pop_front(&mut self) -> Option<Departure<O>> {
        self.pop_run(1).map(|(first, _)| first)
    }

    pub(crate) fn front(&self) -> Option<&Departure<O>> {
        self.runs.front().map(|(first, _)| first)
    }

    /// The first cell alone, to change it.
    pub(crate) fn front_mut(&mut self) -> Option<&mut Departure<O>> {
        if self.runs.front()?.1 > 1 {
            let first = self.pop_front()?;
            self.push_front(first);
        }
        self.runs.front_mut().map(|(first, _)| first)
    }

    /// Runs of equal cells, each with their number.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &(Departure<O>, u32)> {
        self.runs.iter()
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
        let (mut queue, mut out) = (Waiting::of_circuit(), Waiting::of_channel());
        (1..1000).for_each(|circ| queue.push_back(numbered(circ), 1));
        queue.push_front(numbered(0));
        assert_eq!((queue.len(), queue.front().map(|first| first.cell.circ)), (1000, Some(CircId(0))));
        while let Some(mut moved) = queue.pop_front() {
            moved.buffered = Time(u64::from(moved.cell.circ.0));
            out.push_back(moved, 1);
        }
        assert!(queue.is_empty() && queue.runs.capacity() == 0);
        let left: Vec<_> = std::iter::from_fn(|| out.pop_front()).collect();
        let times: Vec<u64> = left.iter().map(|departure| departure.buffered.0).collect();
        assert_eq!(times, (0..1000).collect::<Vec<_>>());
        assert_eq!(out.runs.capacity(), 0);
        for (mut list, cells) in [(queue, 10), (out, 200)] {
            (0..cells).for_each(|circ| list.push_back(numbered(circ), 1));
            (0..cells).for_each(|_| drop(list.pop_front()));
            assert!(list.is_empty() && list.runs.capacity() > 0, "a short one keeps it");
        }
    }

    #[test]
    fn equal_cells_share_an_entry_until_one_is_taken_or_changed() {
        let mut queue = Waiting::of_circuit();
        queue.push_back(numbered(1), 3);
        queue.push_back(numbered(1), 1);
        queue.push_back(numbered(2), 2);
        assert_eq!((queue.len(), queue.runs.len()), (6, 2));
        assert_eq!(queue.pop_front(), Some(numbered(1)));
        assert_eq!(queue.pop_run(2), Some((numbered(1), 2)));
        assert_eq!(queue.pop_run(9), Some((numbered(1), 1)), "the others differ");
        queue.front_mut().unwrap().buffered = Time(5);
        assert_eq!((queue.len(), queue.runs.len()), (2, 2));
        assert_eq!(queue.pop_front().map(|first| first.buffered), Some(Time(5)));
        assert_eq!(queue.pop_run(9), Some((numbered(2), 1)));
        assert!(queue.is_empty() && queue.pop_front().is_none());
    }
}
