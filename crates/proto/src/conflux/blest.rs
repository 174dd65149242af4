//! BLEST: a slow leg carries a cell only if the fast leg does not then run out of the send window.
//!
//! Cells over the slow leg hold back the receiver, and with it the sender's window, until they arrive. BLEST estimates
//! how many cells the fast leg could send meanwhile. If they do not fit into the window, the sender waits for the
//! fast leg. MPTCP has this window; Conflux has not, so it is a parameter here, and it is enforced: cells after the
//! oldest one without a SENDME fill it.
//!
//! The sender never waits for ever. The leg that is fastest now does not wait for another one. If its own window is full,
//! its cells in flight fill a batch, so a SENDME comes, and the choice is made again.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::random::Seed;
use tidegate_control::registry::Origin;
use tidegate_control::units::{Span, Time};

use super::split::{Offer, Split, Splitter};
use crate::ids::CircuitKey;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "BLEST",
    source: "Ferlin, Alay, Mehani and Boreli, IFIP Networking 2016; mptcp_blest.c of multipath-tcp.org, version 0.95",
    oracles: &["crates/proto/src/conflux/blest.rs: estimates_are_those_of_the_authors_kernel_module"],
    deviation: "a SENDME acknowledges a batch of cells, so a leg may finish a batch that it has begun. Windows are not \
                known to be in slow start, so all are estimated as in congestion avoidance. The first scale and its \
                steps are the code's, not the paper's. Nothing is sent again over another leg, and no window is halved \
                when the send window is full",
};

/// The first scale of the estimate, its range, and its steps, in thousandths.
const SCALE: u32 = 1200;
const SCALES: [u32; 2] = [1000, 1300];
const RAISE: u32 = 40;
const LOWER: u32 = 10;

/// Parameters of BLEST.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Blest {
    /// The send window: cells from the oldest without a SENDME to the newest, over all legs. Conflux does not have this
    /// window. The largest value is what a receiver can hold out of order (16 MiB). Source: a send buffer of 1024 KiB
    /// (Ferlin and others 2016, section III) in cells of 498 bytes.
    #[schemars(range(min = 1000, max = 26_000))]
    pub window: u32,
    /// The slow leg waits as BLEST says. Without it, the leg with the least round-trip time goes first while the send
    /// window has room, as MPTCP's default scheduler does.
    pub waits: bool,
}

impl Default for Blest {
    fn default() -> Blest {
        Blest { window: 2105, waits: true }
    }
}

impl Parameters for Blest {}

impl Split for Blest {
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(Estimates {
            rules: *self,
            scale: SCALE,
            scaled: Time::ZERO,
            filled: false,
            legs: Vec::new(),
            unacknowledged: VecDeque::new(),
        })
    }
}

#[derive(Debug)]
struct Estimates {
    rules: Blest,
    /// Thousandths by which the fast leg's estimate is multiplied.
    scale: u32,
    /// When the scale last changed.
    scaled: Time,
    /// Whether the send window was full since then.
    filled: bool,
    legs: Vec<Leg>,
    /// The legs of the cells in the send window, oldest first; `None` for a cell with a SENDME.
    unacknowledged: VecDeque<Option<CircuitKey>>,
}

/// A leg as of its last cell.
#[derive(Clone, Copy, Debug)]
struct Leg {
    circuit: CircuitKey,
    round_trip: Span,
    /// The least and the longest round trip seen.
    least: Span,
    longest: Span,
    /// Congestion window, cells.
    window: u32,
    increment: u32,
}

impl Leg {
    fn of(leg: &Offer) -> Leg {
        let (circuit, round_trip) = (leg.circuit, leg.round_trip);
        // A plan's rate stands for a window that is acknowledged once per round trip.
        let window = (leg.rate() * round_trip.as_secs_f64()).round().max(1.0) as u32;
        let (least, longest, increment) = (round_trip, round_trip, leg.capacity.increment);
        Leg { circuit, round_trip, least, longest, window, increment }
    }

    /// This leg now, with the range of round trips that was known before.
    fn after(self, before: Option<&Leg>) -> Leg {
        let Some(before) = before else { return self };
        Leg { least: self.least.min(before.least), longest: self.longest.max(before.longest), ..self }
    }

    /// Until the SENDME for a cell that is sent now beside `in_flight` others (`blestsched_estimate_linger_time`).
    fn lingers(&self, in_flight: u32) -> Span {
        let within = u64::from(in_flight) + 1;
        let (window, slope) = (u64::from(self.window), self.longest.0 - self.least.0);
        let estimate =
            if within >= window { self.longest } else { Span(self.least.0 + slope * within / window) };
        estimate.max(self.round_trip)
    }

    /// Cells that this leg sends meanwhile, times the scale (`blestsched_estimate_bytes` in congestion avoidance).
    fn sends(&self, meanwhile: Span, scale: u32) -> u64 {
        let mean = (self.least.0 + self.longest.0) / 2;
        let rounds = meanwhile.0.checked_div(mean).map_or(1, |rounds| rounds + 1);
        (u64::from(self.window) + (rounds - 1) / 2) * rounds * u64::from(scale) / 1000
    }
}

impl Estimates {
    fn known(&self, circuit: CircuitKey) -> Option<&Leg> {
        self.legs.iter().find(|leg| leg.circuit == circuit)
    }

    fn leg(&self, offer: &Offer) -> Leg {
        Leg::of(offer).after(self.known(offer.circuit))
    }

    /// Adapts the scale, at most once per round trip of the slowest leg (`blestsched_update_lambda`).
    fn adapt(&mut self, now: Time) {
        let period = self.legs.iter().map(|leg| leg.least).max().unwrap_or(Span::ZERO);
        if now.since(self.scaled) < period {
            return;
        }
        let scale = if self.filled { self.scale + RAISE } else { self.scale - LOWER };
        self.scale = scale.clamp(SCALES[0], SCALES[1]);
        (self.scaled, self.filled) = (now, false);
    }
}

impl Splitter for Estimates {
    fn room(&self, offer: &Offer, fastest: &dyn Fn() -> Offer) -> u32 {
        let Blest { window, waits } = self.rules;
        let mut room = window.saturating_sub(self.unacknowledged.len() as u32);
        // Both round trips are the present ones. By those of the last cells, two legs can wait for each other.
        if let Some(fastest) = waits.then(fastest).filter(|fastest| fastest.circuit != offer.circuit) {
            let lingers = self.leg(offer).lingers(offer.in_flight);
            let needed = self.leg(&fastest).sends(lingers, self.scale) + u64::from(offer.in_flight);
            room = room.min(u64::from(window).saturating_sub(needed) as u32);
        }
        // No SENDME acknowledges an incomplete batch: without its other cells it would fill the window for ever.
        let increment = offer.capacity.increment;
        let begun = offer.in_flight % increment;
        let rest = if begun > 0 { increment - begun } else { 0 };
        offer.capacity.room.min(room.max(rest))
    }

    /// The estimate changes with the cells in flight.
    fn batch(&self, offer: &Offer) -> u32 {
        offer.capacity.increment
    }

    fn sent(&mut self, _: Time, offer: &Offer) {
        let leg = self.leg(offer);
        match self.legs.iter_mut().find(|known| known.circuit == leg.circuit) {
            Some(known) => *known = leg,
            None => self.legs.push(leg),
        }
        self.unacknowledged.push_back(Some(leg.circuit));
        self.filled |= self.unacknowledged.len() as u32 >= self.rules.window;
    }

    fn acknowledged(&mut self, now: Time, circuit: CircuitKey) {
        let increment = self.known(circuit).map_or(0, |leg| leg.increment);
        let cells = self.unacknowledged.iter_mut().filter(|cell| **cell == Some(circuit));
        cells.take(increment as usize).for_each(|cell| *cell = None);
        while let Some(None) = self.unacknowledged.front() {
            self.unacknowledged.pop_front();
        }
        self.adapt(now);
    }

    fn removed(&mut self, circuit: CircuitKey) {
        self.legs.retain(|leg| leg.circuit != circuit);
        self.unacknowledged.iter_mut().filter(|cell| **cell == Some(circuit)).for_each(|cell| *cell = None);
    }

    fn renamed(&mut self, circuit: CircuitKey, to: CircuitKey) {
        self.legs.iter_mut().filter(|leg| leg.circuit == circuit).for_each(|leg| leg.circuit = to);
        let cells = self.unacknowledged.iter_mut().filter(|cell| **cell == Some(circuit));
        cells.for_each(|cell| *cell = Some(to));
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::Capacity;
    use super::*;

    const MS: u64 = 1_000_000;

    fn leg(window: u32, least: u64, longest: u64, round_trip: u64) -> Leg {
        let [round_trip, least, longest] = [round_trip, least, longest].map(|us| Span(us * 1000));
        Leg { circuit: CircuitKey(0), round_trip, least, longest, window, increment: 31 }
    }

    /// A leg's offer, with `window` cells in flight at most.
    fn offer(circuit: u32, round_trip: Span, window: u32, in_flight: u32) -> Offer {
        let left = window.saturating_sub(in_flight);
        let capacity = Capacity { room: left, window: left, planned: None, increment: 31 };
        Offer { circuit: CircuitKey(circuit), capacity, in_flight, round_trip }
    }

    /// The module's two estimates, for these fields of the sockets and an MSS of 1.
    #[test]
    fn estimates_are_those_of_the_authors_kernel_module() {
        for (slow, in_flight, fast, scale, time_us, cells) in [
            (leg(40, 80_000, 160_000, 90_000), 100, leg(120, 40_000, 60_000, 0), 1200, 160_000, 580),
            (leg(300, 200_000, 200_000, 200_000), 10, leg(80, 30_000, 50_000, 0), 1000, 200_000, 492),
            (leg(90, 400_000, 640_000, 560_000), 90, leg(31, 60_000, 60_000, 0), 1300, 640_000, 514),
            (leg(2, 100_000, 100_000, 100_000), 0, leg(50, 100_000, 100_000, 0), 1200, 100_000, 120),
            (leg(200, 100_000, 300_000, 150_000), 49, leg(300, 40_000, 60_000, 0), 1200, 150_000, 1444),
        ] {
            let lingers = slow.lingers(in_flight);
            assert_eq!((lingers, fast.sends(lingers, scale)), (Span(time_us * 1000), cells), "{slow:?}");
        }
    }

    #[test]
    fn the_slow_leg_gets_what_the_fast_one_leaves_of_the_window() {
        let room = |window: u32, in_flight: u32, waits: bool| {
            let mut split = Blest { window, waits }.build(Seed::root(1));
            let fast = offer(1, Span(50 * MS), 300, 0);
            split.sent(Time::ZERO, &fast);
            split.room(&offer(2, Span(150 * MS), 200, in_flight), &|| fast)
        };
        // 300 cells in each of 4 round trips, one more in each than in the one before, times 1.2: 1444 cells.
        assert_eq!(room(2000, 0, true), 200, "as many as its own window takes");
        assert_eq!(room(1544, 0, true), 100);
        assert_eq!(room(1544, 62, true), 38);
        assert_eq!(room(1444, 0, true), 0);
        assert_eq!(room(1444, 0, false), 200, "MPTCP's default does not wait");
        assert_eq!(room(1444, 40, true), 22, "a batch is finished");
        let fast = offer(1, Span(50 * MS), 300, 0);
        let unused = Blest { window: 1000, waits: true }.build(Seed::root(1));
        assert_eq!(unused.room(&fast, &|| fast), 300, "the fastest leg waits for no other");
    }

    #[test]
    fn a_full_window_raises_the_scale_and_an_open_one_lowers_it() {
        let mut split = Estimates {
            rules: Blest { window: 1000, waits: true },
            scale: SCALE,
            scaled: Time::ZERO,
            filled: false,
            legs: Vec::new(),
            unacknowledged: VecDeque::new(),
        };
        let mut scales = Vec::new();
        for round in 1..=6 {
            let cells = if round <= 3 { 1000 - split.unacknowledged.len() } else { 31 };
            (0..cells).for_each(|_| split.sent(Time::ZERO, &offer(1, Span(50 * MS), 2000, 0)));
            let now = Time::ZERO + Span(50 * MS * round);
            split.acknowledged(now, CircuitKey(1));
            split.acknowledged(now, CircuitKey(1));
            scales.push(split.scale);
        }
        assert_eq!(scales, [1240, 1280, 1300, 1290, 1280, 1270]);
    }

    /// Sends as much as both legs take and acknowledges whole batches, in bursts with pauses: the window never stays full.
    #[test]
    fn cells_without_a_batch_do_not_block_the_window() {
        let mut split = Blest { window: 2000, waits: true }.build(Seed::root(1));
        let mut random = Seed::root(2).random();
        let (mut in_flight, mut carried, mut now) = ([0u32; 2], [0u32; 2], Time::ZERO);
        for burst in 0..2000 {
            for _ in 0..random.below(900) {
                let legs = [0, 1]
                    .map(|at| offer(at as u32, Span([40, 160][at] * MS), [250, 150][at], in_flight[at]));
                let Some(at) = (0..2).find(|at| split.room(&legs[*at], &|| legs[0]) > 0) else { break };
                split.sent(now, &legs[at]);
                in_flight[at] += 1;
                carried[at] += 1;
            }
            now += Span(20 * MS);
            for (at, cells) in in_flight.iter_mut().enumerate() {
                while *cells >= 31 && (at == 0 || burst % 4 == 0) {
                    *cells -= 31;
                    split.acknowledged(now, CircuitKey(at as u32));
                }
            }
        }
        assert!(carried[0] > 300_000 && carried[1] > 1000, "{carried:?}");
    }
}
