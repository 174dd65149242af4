//! The scoreboard: segments sent and not acknowledged.
//!
//! Segments sent back to back at one time share a [`Run`], so that a window costs one entry a burst. A
//! run is cut where a selective acknowledgement or a retransmission tells its segments apart.

use std::collections::VecDeque;

use tidegate_control::units::Time;

/// Neighbouring segments with the same fate; begins where the run before it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Offset after the last byte.
    pub end: u64,
    /// When it was last sent.
    pub sent: Time,
    /// Segments in it. All but the last are full until runs merge.
    pub packets: u32,
    /// What is known about it.
    pub marks: u8,
}

/// Selectively acknowledged.
pub(super) const SACKED: u8 = 1;
/// Taken for lost.
pub(super) const LOST: u8 = 2;
/// A retransmission is under way.
pub(super) const RETRANSMITTED: u8 = 4;
/// Was sent more than once, so that its round-trip time is ambiguous.
pub(super) const EVER_RETRANSMITTED: u8 = 8;

/// Effects of an acknowledgement on the flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Segments delivered that were not known to be.
    pub packets: u32,
    /// Earliest and latest transmission among those newly acknowledged that were sent once.
    pub sent_once: Option<(Time, Time)>,
    /// The latest transmission newly delivered: when, offset after it, whether it was a retransmission.
    pub latest: Option<(Time, u64, bool)>,
    /// Bytes sent once were delivered below the previous highest selective acknowledgement.
    pub reordered: bool,
    /// Something sent once, before `high`, was delivered (F-RTO's evidence).
    pub original: bool,
    /// Something sent more than once was delivered.
    pub again: bool,
}

impl Delivery {
    fn add(&mut self, run: &Run, high: u64) {
        self.packets += run.packets;
        let again = run.marks & EVER_RETRANSMITTED != 0;
        self.again |= again;
        if !again {
            let (first, last) = self.sent_once.unwrap_or((run.sent, run.sent));
            self.sent_once = Some((first.min(run.sent), last.max(run.sent)));
            self.original |= run.end <= high;
        }
        if self.latest.is_none_or(|(sent, end, _)| (run.sent, run.end) > (sent, end)) {
            self.latest = Some((run.sent, run.end, again));
        }
    }
}

/// Bytes `[una, next)` as runs, with counts of segments by fate.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight {
    runs: VecDeque<Run>,
    /// First offset not acknowledged.
    pub una: u64,
    /// First offset never sent.
    pub next: u64,
    /// Segments between the two.
    pub packets: u32,
    /// Of these, selectively acknowledged.
    pub sacked: u32,
    /// Of these, taken for lost.
    pub lost: u32,
    /// Of these, retransmitted and still under way.
    pub retransmitted: u32,
    /// Of the lost ones, not retransmitted since.
    pub to_retransmit: u32,
}

impl Flight {
    /// Segments thought to be in the network.
    pub(crate) fn in_network(&self) -> u32 {
        (self.packets + self.retransmitted).saturating_sub(self.sacked + self.lost)
    }

    /// When the oldest segment was last sent.
    pub(crate) fn head_sent(&self) -> Option<Time> {
        self.runs.front().map(|run| run.sent)
    }

    /// When the segment that has been under way longest was sent, those known to have arrived not counted.
    pub(crate) fn oldest_sent(&self) -> Option<Time> {
        self.runs.iter().filter(|run| run.marks & SACKED == 0).map(|run| run.sent).min()
    }

    /// Whether the oldest segment is selectively acknowledged: the receiver has thrown data away.
    pub(crate) fn head_sacked(&self) -> bool {
        self.runs.front().is_some_and(|run| run.marks & SACKED != 0)
    }

    /// Offset after the highest selectively acknowledged byte; `una` without any.
    pub(crate) fn highest_sacked(&self) -> u64 {
        if self.sacked == 0 {
            return self.una;
        }
        self.runs.iter().rev().find(|run| run.marks & SACKED != 0).map_or(self.una, |run| run.end)
    }

    /// New bytes up to `end` leave at `now` as one segment; `full` if it carries `mss` bytes.
    pub(crate) fn send(&mut self, end: u64, now: Time, mss: u64) {
        self.packets += 1;
        self.next = end;
        let start = self.start_of(self.runs.len().saturating_sub(1));
        if let Some(last) = self.runs.back_mut()
            && last.sent == now
            && last.marks == 0
            && last.end - start == u64::from(last.packets) * mss
        {
            last.end = end;
            last.packets += 1;
            return;
        }
        self.runs.push_back(Run { end, sent: now, packets: 1, marks: 0 });
    }

    fn start_of(&self, index: usize) -> u64 {
        if index == 0 { self.una } else { self.runs[index - 1].end }
    }

    /// Everything before `ack` has arrived. `high` separates what counts as original evidence.
    pub(crate) fn acknowledge(&mut self, ack: u64, mss: u64, high: u64) -> Delivery {
        let mut delivery = Delivery::default();
        let highest = if self.sacked > 0 { self.highest_sacked() } else { ack };
        while let Some(head) = self.runs.front() {
            let whole = head.end <= ack;
            let mut part = *head;
            if !whole {
                if ack <= self.una {
                    break;
                }
                part.end = ack;
                // A partly acknowledged segment stays in flight.
                part.packets = (((ack - self.una) / mss) as u32).min(head.packets - 1);
            }
            self.count(&part, -1);
            self.packets -= part.packets;
            if part.marks & SACKED == 0 && part.packets > 0 {
                delivery.reordered |= part.end < highest && part.marks & EVER_RETRANSMITTED == 0;
                delivery.add(&part, high);
            }
            self.una = part.end;
            if !whole {
                self.runs[0].packets -= part.packets;
                break;
            }
            self.runs.pop_front();
        }
        self.una = self.una.max(ack);
        // Returns the memory of a long loss episode: most connections never need it again.
        if self.runs.is_empty() && self.runs.capacity() > 32 {
            self.runs = VecDeque::new();
        }
        delivery
    }

    /// Bytes `[start, end)` have arrived out of order.
    pub(crate) fn selectively_acknowledge(
        &mut self,
        start: u64,
        end: u64,
        mss: u64,
        high: u64,
        delivery: &mut Delivery,
    ) {
        if start < self.una || end > self.next || start >= end {
            return;
        }
        let highest = self.highest_sacked();
        let mut index = self.runs.partition_point(|run| run.end <= start);
        while index < self.runs.len() {
            let from = self.start_of(index);
            if from >= end {
                break;
            }
            if self.runs[index].marks & SACKED != 0 {
                index += 1;
                continue;
            }
            // A block that begins inside a run splits it at a segment's edge.
            if from < start {
                self.cut(index, from + (start - from).div_ceil(mss) * mss, mss);
                index += 1;
                continue;
            }
            if self.runs[index].end > end && !self.cut(index, from + (end - from) / mss * mss, mss) {
                break;
            }
            let run = self.runs[index];
            self.count(&run, -1);
            // An original segment that arrives after later ones shows reordering.
            delivery.reordered |= run.end < highest && run.marks & EVER_RETRANSMITTED == 0;
            delivery.add(&run, high);
            self.runs[index].marks = SACKED | (run.marks & EVER_RETRANSMITTED);
            self.sacked += run.packets;
            index = self.merge_sacked(index) + 1;
        }
    }

    /// Cuts a run at an offset strictly inside it; false if one side would be empty.
    fn cut(&mut self, index: usize, at: u64, mss: u64) -> bool {
        let start = self.start_of(index);
        let run = self.runs[index];
        if at <= start || at >= run.end || run.packets < 2 {
            return false;
        }
        let left = ((at - start).div_ceil(mss) as u32).clamp(1, run.packets - 1);
        self.runs[index] = Run { end: at, packets: left, ..run };
        self.runs.insert(index + 1, Run { packets: run.packets - left, ..run });
        true
    }

    /// Joins a selectively acknowledged run with its neighbours; gives the place of the joined run.
    fn merge_sacked(&mut self, mut index: usize) -> usize {
        for neighbour in [index + 1, index.wrapping_sub(1)] {
            let Some(other) = self.runs.get(neighbour).copied() else { continue };
            if other.marks & SACKED == 0 {
                continue;
            }
            let kept = index.max(neighbour);
            let gone = index.min(neighbour);
            let marks = other.marks | self.runs[index].marks;
            let packets = other.packets + self.runs[index].packets;
            let sent = other.sent.max(self.runs[index].sent);
            self.runs[kept] = Run { end: self.runs[kept].end, sent, packets, marks };
            self.runs.remove(gone);
            index = gone;
        }
        index
    }

    /// Takes a run's segments out of the counts (`-1`) or puts them in (`1`).
    fn count(&mut self, run: &Run, sign: i32) {
        if run.marks == 0 {
            return;
        }
        let add = |sum: &mut u32, counted: bool| {
            if counted {
                *sum = sum.wrapping_add_signed(sign * run.packets as i32);
            }
        };
        add(&mut self.sacked, run.marks & SACKED != 0);
        add(&mut self.lost, run.marks & LOST != 0);
        add(&mut self.retransmitted, run.marks & RETRANSMITTED != 0);
        add(&mut self.to_retransmit, run.marks & (LOST | RETRANSMITTED) == LOST);
    }

    fn mark(&mut self, index: usize, marks: u8) {
        let run = self.runs[index];
        self.count(&run, -1);
        self.runs[index].marks = marks;
        self.count(&Run { marks, ..run }, 1);
    }

    /// RACK (RFC 8985, 6.2): of the segments sent before the one sent at `latest` (up to `end`), those
    /// older than `age` at `now` are lost. Gives how many, whether retransmissions were among them, and
    /// when the next one will be old enough. `lose` gets each run that is lost, with the offset where it begins.
    pub(crate) fn detect_lost(
        &mut self,
        latest: Time,
        end: u64,
        now: Time,
        age: u64,
        mut lose: impl FnMut(u64, &Run),
    ) -> (u32, bool, Option<Time>) {
        let (mut newly, mut again, mut next) = (0, false, None);
        for index in 0..self.runs.len() {
            let run = self.runs[index];
            if run.marks & SACKED != 0 {
                continue;
            }
            if (run.sent, run.end) >= (latest, end) {
                if run.marks & EVER_RETRANSMITTED == 0 {
                    break; // first transmissions leave in order: all that follow are younger
                }
                continue;
            }
            if run.marks & (LOST | RETRANSMITTED) == LOST {
                continue;
            }
            let due = Time(run.sent.0.saturating_add(age));
            if due <= now {
                newly += run.packets;
                again |= run.marks & RETRANSMITTED != 0;
                lose(self.start_of(index), &run);
                self.mark(index, (run.marks | LOST) & !RETRANSMITTED);
            } else {
                next = Some(next.map_or(due, |other: Time| other.max(due)));
            }
        }
        (newly, again, next)
    }

    /// A retransmission timeout: everything not selectively acknowledged and older than `age` is lost,
    /// the oldest segment in any case. If the receiver has thrown data away, its promises are void. `lose` is that of
    /// [`detect_lost`](Self::detect_lost).
    pub(crate) fn lose_all(&mut self, now: Time, age: u64, mut lose: impl FnMut(u64, &Run)) {
        let reneged = self.head_sacked();
        for index in 0..self.runs.len() {
            let run = self.runs[index];
            let is_old = index == 0 || run.sent.0.saturating_add(age) <= now.0;
            if !reneged && (run.marks & SACKED != 0 || !is_old) {
                continue;
            }
            if run.marks & (LOST | RETRANSMITTED) != LOST {
                lose(self.start_of(index), &run);
            }
            self.mark(index, (run.marks | LOST) & !(RETRANSMITTED | SACKED));
        }
    }

    /// Removes loss marks that turned out to be wrong.
    pub(crate) fn unmark_lost(&mut self) {
        for index in 0..self.runs.len() {
            let marks = self.runs[index].marks;
            self.mark(index, marks & !LOST);
        }
    }

    /// Takes the first lost segment that is not under way again and marks it retransmitted at `now`;
    /// gives its bytes.
    pub(crate) fn retransmit_lost(&mut self, now: Time, mss: u64) -> Option<(u64, u64)> {
        if self.to_retransmit == 0 {
            return None;
        }
        let index = self.runs.iter().position(|run| run.marks & (LOST | RETRANSMITTED | SACKED) == LOST)?;
        Some(self.retransmit(index, now, mss))
    }

    /// Retransmits the last segment, or the first: a loss probe.
    pub(crate) fn retransmit_last(&mut self, now: Time, mss: u64) -> Option<(u64, u64)> {
        let index = self.runs.len().checked_sub(1)?;
        let start = self.start_of(index);
        let run = self.runs[index];
        if run.marks & SACKED != 0 {
            return None;
        }
        let tail = start + (run.end - start - 1) / mss * mss;
        let index = if self.cut(index, tail, mss) { index + 1 } else { index };
        Some(self.retransmit(index, now, mss))
    }

    fn retransmit(&mut self, index: usize, now: Time, mss: u64) -> (u64, u64) {
        let start = self.start_of(index);
        self.cut(index, start + mss, mss);
        let end = self.runs[index].end;
        let marks = self.runs[index].marks | RETRANSMITTED | EVER_RETRANSMITTED;
        self.mark(index, marks);
        self.runs[index].sent = now;
        if index > 0 {
            let before = self.runs[index - 1];
            let from = self.start_of(index - 1);
            if before.marks == marks && before.sent == now && start - from == u64::from(before.packets) * mss
            {
                self.runs[index].packets += before.packets;
                self.runs.remove(index - 1);
            }
        }
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 100;

    /// The counts are what the runs say, and the runs tile the flight.
    fn check(flight: &Flight) {
        let mut sum = Flight::default();
        let mut start = flight.una;
        for run in &flight.runs {
            assert!(run.end > start && run.packets > 0, "{flight:?}");
            start = run.end;
            sum.packets += run.packets;
            sum.count(run, 1);
        }
        assert_eq!(start, flight.next);
        assert_eq!(
            (sum.packets, sum.sacked, sum.lost, sum.retransmitted, sum.to_retransmit),
            (flight.packets, flight.sacked, flight.lost, flight.retransmitted, flight.to_retransmit)
        );
    }

    fn sent(packets: u64) -> Flight {
        let mut flight = Flight::default();
        for packet in 0..packets {
            flight.send((packet + 1) * MSS, Time(packet / 4), MSS);
        }
        flight
    }

    #[test]
    fn a_hole_is_lost_once_later_segments_have_arrived() {
        let mut flight = sent(8);
        assert_eq!(flight.runs.len(), 2);
        let mut delivery = Delivery::default();
        flight.selectively_acknowledge(300, 600, MSS, 0, &mut delivery);
        check(&flight);
        assert_eq!((delivery.packets, flight.sacked, flight.in_network()), (3, 3, 5));
        assert_eq!(delivery.latest, Some((Time(1), 600, false)));
        // Sent before the latest delivered one: three at time 0. The two after it stay.
        let (newly, again, due) = flight.detect_lost(Time(1), 600, Time(50), 20, |_, _| {});
        assert_eq!((newly, again, due), (3, false, None));
        assert_eq!(flight.retransmit_lost(Time(51), MSS), Some((0, 100)));
        assert_eq!(flight.retransmit_lost(Time(51), MSS), Some((100, 200)));
        check(&flight);
        assert_eq!((flight.in_network(), flight.to_retransmit), (4, 1));
        let cumulative = flight.acknowledge(600, MSS, 0);
        check(&flight);
        // Three repaired or late; those selectively acknowledged do not count again.
        assert_eq!((cumulative.packets, flight.packets), (3, 2));
    }

    proptest! {
        #[test]
        fn the_counts_hold(steps in prop::collection::vec((0u8..8, 0u64..60, 1u64..20), 1..120)) {
            let mut flight = Flight::default();
            for (now, (kind, a, b)) in steps.into_iter().enumerate() {
                let now = Time(now as u64);
                let (start, end) = (flight.una + a * 50, flight.una + (a + b) * 50);
                match kind {
                    0..3 => for packet in 0..b {
                        let size = if packet + 1 == b { a.clamp(1, MSS) } else { MSS };
                        flight.send(flight.next + size, now, MSS);
                    },
                    3 => { flight.acknowledge(start.min(flight.next), MSS, end); }
                    4 => flight.selectively_acknowledge(start, end, MSS, 0, &mut Delivery::default()),
                    5 => { flight.detect_lost(Time(now.0.saturating_sub(a / 6)), end, now, b / 4, |_, _| {}); }
                    6 => { flight.retransmit_lost(now, MSS); }
                    _ if a < 8 => flight.lose_all(now, b, |_, _| {}),
                    _ if a < 16 => flight.unmark_lost(),
                    _ => { flight.retransmit_last(now, MSS); }
                }
                check(&flight);
            }
        }
    }
}
