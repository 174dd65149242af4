//! Division by rates: each leg carries in proportion to its planned rate.
//!
//! The plan comes from the controller of the sender's circuits, such as PredicTor. A leg without a plan counts with a window
//! per round trip.

use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::split::{Offer, Split, Splitter};
use crate::ids::CircuitKey;

/// Cells on one leg before the next: as many as a SENDME of tor's acknowledges. Smaller batches need more SWITCH messages.
const BATCH: u32 = 31;

/// In proportion to the legs' rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByRate;

impl Split for ByRate {
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(Shares::default())
    }
}

/// Start-time fair queueing (Goyal, Vin and Cheng 1996), with legs instead of flows.
///
/// A leg that always has room is at most one batch ahead; a leg that was full does not catch up later.
#[derive(Debug, Default)]
struct Shares {
    /// By leg: the time that its cells took at its rates, seconds.
    legs: Vec<(CircuitKey, f64)>,
    /// Virtual time at which the current batch began, seconds.
    now: f64,
    batch: Option<(CircuitKey, u32)>,
}

impl Shares {
    fn left(&self, circuit: CircuitKey) -> Option<u32> {
        self.batch.filter(|(leg, left)| *leg == circuit && *left > 0).map(|(_, left)| left)
    }

    /// The virtual time at which a batch of this leg would begin.
    fn start(&self, circuit: CircuitKey) -> f64 {
        let leg = self.legs.iter().find(|(leg, _)| *leg == circuit);
        leg.map_or(self.now, |(_, spent)| spent.max(self.now))
    }
}

impl Splitter for Shares {
    fn batch(&self, leg: &Offer) -> u32 {
        self.left(leg.circuit).unwrap_or(BATCH)
    }

    fn rank(&self, leg: &Offer) -> f64 {
        // Finish the current batch first.
        if self.left(leg.circuit).is_some() { f64::NEG_INFINITY } else { self.start(leg.circuit) }
    }

    fn sent(&mut self, _: Time, leg: &Offer) {
        let circuit = leg.circuit;
        let start = self.start(circuit);
        match &mut self.batch {
            Some((current, left)) if *current == circuit && *left > 0 => *left -= 1,
            _ => {
                self.now = start;
                self.batch = Some((circuit, BATCH - 1));
            }
        }
        let spent = start + 1.0 / leg.rate();
        match self.legs.iter_mut().find(|(leg, _)| *leg == circuit) {
            Some((_, before)) => *before = spent,
            None => self.legs.push((circuit, spent)),
        }
    }

    fn removed(&mut self, circuit: CircuitKey) {
        self.legs.retain(|(leg, _)| *leg != circuit);
    }

    fn renamed(&mut self, circuit: CircuitKey, to: CircuitKey) {
        let batch = self.batch.iter_mut().map(|(leg, _)| leg);
        self.legs
            .iter_mut()
            .map(|(leg, _)| leg)
            .chain(batch)
            .filter(|leg| **leg == circuit)
            .for_each(|leg| *leg = to);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::super::split::Capacity;
    use super::*;

    fn offer(circuit: u32, planned: Option<f64>, window: u32) -> Offer {
        let capacity = Capacity { room: 100, window, planned, increment: 31 };
        let (circuit, round_trip) = (CircuitKey(circuit), Span::from_millis(100));
        Offer { circuit, capacity, in_flight: 0, round_trip }
    }

    /// Divides `cells`: the cells of each leg, and the number of changes between legs.
    fn divide(shares: &mut Shares, legs: &[Offer], cells: u32) -> (Vec<u32>, u32) {
        let (mut carried, mut turns, mut last) = (vec![0; legs.len()], 0, usize::MAX);
        for _ in 0..cells {
            let rank = |at: &usize| shares.rank(&legs[*at]);
            let at = (0..legs.len()).min_by(|a, b| rank(a).total_cmp(&rank(b))).expect("there are some");
            shares.sent(Time::ZERO, &legs[at]);
            carried[at] += 1;
            turns += u32::from(std::mem::replace(&mut last, at) != at);
        }
        (carried, turns)
    }

    #[test]
    fn legs_carry_in_proportion_to_their_plans_or_windows() {
        let planned = [offer(0, Some(2000.0), 1), offer(1, Some(1000.0), 1)];
        let (carried, turns) = divide(&mut Shares::default(), &planned, 93 * 20);
        assert_eq!(carried, [62 * 20, 31 * 20], "two to one");
        assert!(turns <= 42, "in whole batches: {turns}");
        // A window of 300 cells per 0.1 s equals a plan for 3000 cells/s.
        let mixed = [offer(0, None, 300), offer(1, Some(1000.0), 1)];
        assert_eq!(divide(&mut Shares::default(), &mixed, 124 * 20).0, [93 * 20, 31 * 20]);
    }

    #[test]
    fn a_leg_that_was_full_does_not_make_up_for_it() {
        let mut shares = Shares::default();
        let both = [offer(0, Some(1000.0), 1), offer(1, Some(1000.0), 1)];
        divide(&mut shares, &both, 31 * 4);
        divide(&mut shares, &both[..1], 31 * 100);
        let (carried, _) = divide(&mut shares, &both, 31 * 20);
        assert!(carried[1].abs_diff(31 * 10) <= 31, "{carried:?}");
    }
}
