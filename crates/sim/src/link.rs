//! One direction of an access link: a queue and a sender of fixed rate, sans-IO.
//!
//! A first-in-first-out link knows a packet's departure when the packet arrives, so it needs fewer events. Under CoDel
//! the departure depends on later arrivals: such a link asks for a wake-up event.

use std::collections::VecDeque;

use tidegate_control::units::{Rate, Span, Time};

use crate::codel::{CoDel, Waiting};
use crate::packet::{Size, Train};
use crate::plan::{LinkPlan, QueuePlan};

/// One direction of an access link. Times given to it never decrease.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    sender: Sender,
    queue: Queue,
    sent_bytes: u64,
    dropped: u64,
}

/// Puts one packet after the other on the wire.
#[derive(Clone, Debug)]
struct Sender {
    rate: Rate,
    /// Departure of the last packet with a known departure.
    free_at: Time,
    /// Serialisation time of all packets up to `free_at`.
    busy: Span,
    /// The last packet's bytes and serialisation time at the whole rate, because most packets have one of two sizes.
    last: (u32, Span),
    /// The shares of the rate, with the time from which each holds. Almost no link has any.
    shares: Option<Box<[(Time, f64)]>>,
}

impl Sender {
    /// Appends a packet to the sender; returns the time its last bit leaves.
    fn begin(&mut self, now: Time, bytes: u32) -> Time {
        if self.last.0 != bytes {
            self.last = (bytes, self.rate.span_for(u64::from(bytes)));
        }
        let start = self.free_at.max(now);
        let span = match self.share_at(start) {
            None => self.last.1,
            Some(share) => Span((self.last.1.0 as f64 / share) as u64),
        };
        self.busy = self.busy + span;
        self.free_at = start + span;
        self.free_at
    }

    /// The share of the rate at `time`; `None` if it is whole.
    fn share_at(&self, time: Time) -> Option<f64> {
        let shares = self.shares.as_ref()?;
        let begun = shares.partition_point(|(from, _)| *from <= time);
        Some(shares[begun.checked_sub(1)?].1)
    }

    /// Packets and bytes of the first train that do not wait: the packet being sent, and those already sent.
    fn begun(&self, now: Time, (departs, size): &(Time, Size)) -> (u64, u64) {
        let (packets, bytes) = (u64::from(size.packets()), u64::from(size.bytes()));
        if packets == 1 {
            return (1, bytes);
        }
        let span = self.rate.span_for(bytes).0.max(1);
        // With 4096 packets of at most a second each the product fits into 64 bits.
        let left = (packets * departs.since(now).0).div_ceil(span).clamp(1, packets);
        let begun = packets + 1 - left;
        (begun, begun * (bytes / packets))
    }
}

#[derive(Clone, Debug)]
enum Queue {
    /// Nothing ever waits.
    Unlimited,
    /// Departure and size of the packets or trains being sent and waiting behind.
    DropTail { packets: u64, bytes: u64, held: VecDeque<(Time, Size)>, held_packets: u64, held_bytes: u64 },
    /// Departure, size and flow of the packets that wait for tokens; `depth`: how far the bucket lets sending run
    /// ahead of the rate.
    Shadow { held: VecDeque<(Time, u32, u32)>, held_bytes: u64, depth: Span },
    /// `sending`: size of the packet that leaves at `free_at`, until it is counted as sent.
    CoDel { packets: usize, waiting: Box<CoDel>, sending: u32 },
}

/// A link's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Its last bit leaves at this time.
    Departs(Time),
    /// It waits; [`Link::wake`] must be called at the time given, if one is.
    Waits(Option<Time>),
    /// It was dropped.
    Dropped,
}

/// A waiting packet begins to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    /// The packet,
    pub id: u32,
    /// its size,
    pub bytes: u32,
    /// and the time its last bit leaves.
    pub at: Time,
    /// [`Link::wake`] must be called again at that time.
    pub wake: bool,
}

/// A link's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkTotals {
    /// Bytes of packets that have left completely.
    pub sent_bytes: u64,
    /// Packets dropped by the queue or lost when the link went down.
    pub dropped: u64,
    /// Bytes waiting, the packet being sent not counted.
    pub queued_bytes: u64,
    /// Time it was sending.
    pub busy: Span,
}

/// Shadow's packets without payload are no longer than this: IP and TCP headers with options.
const SHADOW_URGENT_BYTES: u32 = 60;

impl Link {
    /// An idle link. A rate of zero drops everything.
    pub(crate) fn new(plan: &LinkPlan) -> Link {
        let queue = match plan.queue {
            _ if plan.rate == Rate::UNLIMITED => Queue::Unlimited,
            // The host that the machine is named after has it.
            QueuePlan::Machine => Queue::Unlimited,
            QueuePlan::DropTail { packets, bytes } => {
                let packets = packets.into();
                Queue::DropTail { packets, bytes, held: VecDeque::new(), held_packets: 0, held_bytes: 0 }
            }
            QueuePlan::Shadow => {
                let depth = Span::from_millis(1) + plan.rate.span_for(1500);
                Queue::Shadow { held: VecDeque::new(), held_bytes: 0, depth }
            }
            QueuePlan::CoDel { target, interval, packets } => Queue::CoDel {
                packets: packets as usize,
                waiting: Box::new(CoDel::new(target, interval)),
                sending: 0,
            },
        };
        let last = (0, Span::ZERO);
        let sender = Sender { rate: plan.rate, free_at: Time::ZERO, busy: Span::ZERO, last, shares: None };
        Link { sender, queue, sent_bytes: 0, dropped: 0 }
    }

    /// The link with a rate that changes: the shares of its rate, each with the time from which it holds.
    pub(crate) fn sharing(mut self, shares: &[(Time, f64)]) -> Link {
        self.sender.shares = (!shares.is_empty()).then(|| shares.into());
        self
    }

    /// Departure of the first packet that has not been counted, where it is known.
    pub(crate) fn next_departure(&self) -> Option<Time> {
        match &self.queue {
            Queue::DropTail { held, .. } => held.front().map(|(at, _)| *at),
            Queue::Unlimited | Queue::Shadow { .. } | Queue::CoDel { .. } => None,
        }
    }

    /// Whether packets pass without delay.
    pub(crate) fn is_unlimited(&self) -> bool {
        matches!(self.queue, Queue::Unlimited)
    }

    /// A packet arrives. If it has to wait, `id` names it in [`Departure`] and for `lost`. `flow` is a closure because
    /// few links need it and it costs a cache miss.
    pub(crate) fn offer(&mut self, now: Time, id: u32, flow: impl FnOnce() -> u32, bytes: u32) -> Offer {
        self.settle(now);
        let sender = &mut self.sender;
        match &mut self.queue {
            Queue::Unlimited => {
                self.sent_bytes += u64::from(bytes);
                return Offer::Departs(now);
            }
            _ if sender.rate == Rate(0) => {}
            Queue::DropTail { packets, bytes: limit, held, held_packets, held_bytes } => {
                let admitted = held.front().is_none_or(|head| {
                    let (sending, sending_bytes) = sender.begun(now, head);
                    *held_packets - sending < *packets
                        && *held_bytes - sending_bytes + u64::from(bytes) <= *limit
                });
                if admitted {
                    let departs = sender.begin(now, bytes);
                    held.push_back((departs, Size::new(1, bytes)));
                    *held_packets += 1;
                    *held_bytes += u64::from(bytes);
                    return Offer::Departs(departs);
                }
            }
            Queue::Shadow { held, held_bytes, depth } => {
                let departs = Time(sender.begin(now, bytes).0.saturating_sub(depth.0)).max(now);
                let flow = flow();
                if bytes <= SHADOW_URGENT_BYTES || departs == now {
                    self.sent_bytes += u64::from(bytes);
                    let next = held.iter().find(|(_, _, other)| *other == flow).map_or(now, |(at, ..)| *at);
                    return Offer::Departs(next);
                }
                held.push_back((departs, bytes, flow));
                *held_bytes += u64::from(bytes);
                return Offer::Departs(departs);
            }
            Queue::CoDel { packets, waiting, sending } => {
                let packet = Waiting { id, bytes, since: now };
                if now >= sender.free_at && waiting.is_empty() {
                    // CoDel sees this one, too: a packet without delay ends its dropping.
                    waiting.push(packet);
                    waiting.next(now, |_| unreachable!("a packet that did not wait was dropped"));
                    *sending = bytes;
                    return Offer::Departs(sender.begin(now, bytes));
                }
                if waiting.len() < *packets {
                    waiting.push(packet);
                    return Offer::Waits((waiting.len() == 1).then_some(sender.free_at));
                }
            }
        }
        self.dropped += 1;
        Offer::Dropped
    }

    /// Number of packets of a train that the queue admits if all arrive now. The link is first come, first served.
    pub(crate) fn admits(&mut self, now: Time, train: Train) -> u32 {
        self.settle(now);
        let sender = &self.sender;
        match &self.queue {
            Queue::Unlimited => train.packets,
            _ if sender.rate == Rate(0) => 0,
            Queue::DropTail { packets, bytes, held, held_packets, held_bytes } => {
                // The first packet does not wait if nothing is being sent.
                let first = (1, train.bytes_of(0).into());
                let (more, more_bytes) = held.front().map_or(first, |head| sender.begun(now, head));
                let room = (packets + more).saturating_sub(*held_packets);
                let room_bytes = bytes.saturating_add(more_bytes).saturating_sub(*held_bytes);
                let by_bytes = if u64::from(train.size().bytes()) <= room_bytes {
                    train.packets
                } else {
                    ((room_bytes / u64::from(train.full)) as u32).min(train.packets - 1)
                };
                room.min(by_bytes.into()) as u32
            }
            Queue::Shadow { .. } | Queue::CoDel { .. } => unreachable!("trains use first-come links"),
        }
    }

    /// Sends packets that it admits, and that were there at `arrived`; `now` is not earlier. Counts packets that it
    /// did not admit. Returns when the last one leaves.
    pub(crate) fn offer_train(&mut self, now: Time, arrived: Time, size: Size, dropped: u32) -> Time {
        // A train is admitted by the whole rate.
        assert!(self.sender.shares.is_none(), "a link that other guests share carries single packets");
        self.dropped += u64::from(dropped);
        let bytes = u64::from(size.bytes());
        if let Queue::DropTail { held, held_packets, held_bytes, .. } = &mut self.queue
            && bytes > 0
        {
            let departs = self.sender.begin(arrived, size.bytes());
            if departs > now {
                held.push_back((departs, size));
                *held_packets += u64::from(size.packets());
                *held_bytes += bytes;
                return departs;
            }
        }
        self.sent_bytes += bytes;
        now
    }

    /// Time to send so many bytes.
    pub(crate) fn span_for(&self, bytes: u32) -> Span {
        if self.is_unlimited() { Span::ZERO } else { self.sender.rate.span_for(bytes.into()) }
    }

    /// The link is free and packets wait: the next one begins. Dropped ones go to `lost`. `None` if all were
    /// dropped, or if the wake-up is stale because the link has been down since.
    pub(crate) fn wake(&mut self, now: Time, mut lost: impl FnMut(u32)) -> Option<Departure> {
        self.settle(now);
        let Queue::CoDel { waiting, sending, .. } = &mut self.queue else { return None };
        if now != self.sender.free_at {
            return None;
        }
        let mut dropped = 0;
        let next = waiting.next(now, |packet| {
            dropped += 1;
            lost(packet.id);
        });
        self.dropped += dropped;
        let next = next?;
        *sending = next.bytes;
        let wake = !waiting.is_empty();
        Some(Departure { id: next.id, bytes: next.bytes, at: self.sender.begin(now, next.bytes), wake })
    }

    /// Everything that has not left before `now` is lost. `lost` is told about packets that were waiting for
    /// a wake-up; the others' owner knew their departure and that the link would be down by then.
    pub(crate) fn cut(&mut self, now: Time, mut lost: impl FnMut(u32)) {
        if now > Time::ZERO {
            // A packet that would depart exactly now is lost, too.
            self.settle(now - Span(1));
        }
        self.sender.busy = self.sender.busy - self.sender.free_at.since(now);
        self.sender.free_at = self.sender.free_at.min(now);
        match &mut self.queue {
            Queue::Unlimited => {}
            Queue::DropTail { held, held_packets, held_bytes, .. } => {
                self.dropped += *held_packets;
                held.clear();
                (*held_packets, *held_bytes) = (0, 0);
            }
            Queue::Shadow { held, held_bytes, .. } => {
                self.dropped += held.len() as u64;
                held.clear();
                *held_bytes = 0;
            }
            Queue::CoDel { waiting, sending, .. } => {
                self.dropped += u64::from(*sending > 0) + waiting.len() as u64;
                *sending = 0;
                while let Some(packet) = waiting.pop() {
                    lost(packet.id);
                }
            }
        }
    }

    /// The link's counters at `now`.
    pub(crate) fn totals(&mut self, now: Time) -> LinkTotals {
        self.settle(now);
        let queued_bytes = match &self.queue {
            Queue::Unlimited => 0,
            Queue::DropTail { held, held_bytes, .. } => {
                held_bytes - held.front().map_or(0, |head| self.sender.begun(now, head).1)
            }
            Queue::Shadow { held_bytes, .. } => *held_bytes,
            Queue::CoDel { waiting, .. } => waiting.bytes(),
        };
        LinkTotals {
            sent_bytes: self.sent_bytes,
            dropped: self.dropped,
            queued_bytes,
            busy: self.sender.busy - self.sender.free_at.since(now),
        }
    }

    /// Counts the packets that have left by `now`.
    fn settle(&mut self, now: Time) {
        match &mut self.queue {
            Queue::Unlimited => {}
            Queue::Shadow { held, held_bytes, .. } => {
                while let Some((departs, bytes, _)) = held.front()
                    && *departs <= now
                {
                    *held_bytes -= u64::from(*bytes);
                    self.sent_bytes += u64::from(*bytes);
                    held.pop_front();
                }
            }
            Queue::DropTail { held, held_packets, held_bytes, .. } => {
                while let Some((departs, size)) = held.front()
                    && *departs <= now
                {
                    *held_packets -= u64::from(size.packets());
                    *held_bytes -= u64::from(size.bytes());
                    self.sent_bytes += u64::from(size.bytes());
                    held.pop_front();
                    // Restarts at the beginning of its memory, which is in the cache, instead of cycling through all of it.
                    if held.is_empty() {
                        held.clear();
                    }
                }
            }
            Queue::CoDel { sending, .. } => {
                if self.sender.free_at <= now {
                    self.sent_bytes += u64::from(*sending);
                    *sending = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_control::random::Seed;

    use super::*;

    const NO_LIMIT: QueuePlan = QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX };

    fn link(rate: Rate, queue: QueuePlan) -> Link {
        Link::new(&LinkPlan { rate, queue })
    }

    fn us(us: u64) -> Time {
        Time(1_000 * us)
    }

    #[test]
    fn departures_are_exact_to_the_nanosecond() {
        // 1514 bytes at 100 Mbit/s: 121.12 us. At 7 Mbit/s 1730285.71 ns, each packet rounded up.
        let mut fast = link(Rate(100_000_000), NO_LIMIT);
        assert_eq!(fast.offer(Time(5), 0, || 0, 1514), Offer::Departs(Time(121_125)));
        assert_eq!(fast.offer(Time(6), 0, || 0, 1514), Offer::Departs(Time(242_245)));
        assert_eq!(fast.offer(Time(242_245), 0, || 0, 1), Offer::Departs(Time(242_325)));
        assert_eq!(fast.offer(Time(900_000), 0, || 0, 1514), Offer::Departs(Time(1_021_120)));
        let mut odd = link(Rate(7_000_000), NO_LIMIT);
        for i in 1..=100 {
            assert_eq!(odd.offer(Time(0), 0, || 0, 1514), Offer::Departs(Time(1_730_286 * i)));
        }
    }

    #[test]
    fn packets_keep_the_share_of_the_rate_at_which_they_begin() {
        let shares = [(us(1000), 0.5), (us(4000), 0.25), (us(5000), 1.0)];
        let mut link = link(Rate(8_000_000), NO_LIMIT).sharing(&shares);
        let mut departs = |now| link.offer(us(now), 0, || 0, 1000);
        assert_eq!(departs(0), Offer::Departs(us(1000)));
        // These begin at 1000 and 3000 us; the second crosses into the time with a quarter of the rate.
        assert_eq!(departs(0), Offer::Departs(us(3000)));
        assert_eq!(departs(0), Offer::Departs(us(5000)));
        assert_eq!(departs(0), Offer::Departs(us(6000)));
        assert_eq!(departs(9000), Offer::Departs(us(10_000)));
    }

    #[test]
    fn queue_limits_exclude_the_packet_being_sent() {
        let offers = |queue| {
            let mut link = link(Rate(8_000_000), queue);
            let mut admitted = |now, bytes| link.offer(us(now), 0, || 0, bytes) != Offer::Dropped;
            [admitted(0, 1000), admitted(0, 600), admitted(0, 600), admitted(999, 300), admitted(1000, 300)]
        };
        assert_eq!(
            offers(QueuePlan::DropTail { packets: 0, bytes: u64::MAX }),
            [true, false, false, false, true]
        );
        assert_eq!(
            offers(QueuePlan::DropTail { packets: 1, bytes: u64::MAX }),
            [true, true, false, false, true]
        );
        assert_eq!(
            offers(QueuePlan::DropTail { packets: u32::MAX, bytes: 900 }),
            [true, true, false, true, true]
        );
        assert_eq!(
            offers(QueuePlan::DropTail { packets: u32::MAX, bytes: 599 }),
            [true, false, false, true, true]
        );
        let codel = QueuePlan::CoDel { target: Span(1), interval: Span(1), packets: 1 };
        let mut link = link(Rate(8_000_000), codel);
        assert_eq!(link.offer(us(0), 0, || 0, 1000), Offer::Departs(us(1000)));
        assert_eq!(link.offer(us(0), 1, || 0, 1000), Offer::Waits(Some(us(1000))));
        assert_eq!(link.offer(us(0), 2, || 0, 1000), Offer::Dropped);
    }

    #[test]
    fn a_zero_rate_blocks_and_an_absent_limit_passes() {
        let mut closed = link(Rate(0), NO_LIMIT);
        assert_eq!(closed.offer(us(1), 0, || 0, 1), Offer::Dropped);
        assert_eq!(closed.totals(us(1)).dropped, 1);
        let mut open = link(Rate::UNLIMITED, QueuePlan::DropTail { packets: 0, bytes: 0 });
        assert_eq!([0; 3].map(|_| open.offer(us(1), 0, || 0, 1500)), [Offer::Departs(us(1)); 3]);
        assert_eq!(open.totals(us(1)), LinkTotals { sent_bytes: 4500, ..LinkTotals::default() });
    }

    #[test]
    fn totals_follow_the_clock_and_a_cut_drops_unsent_data() {
        for queue in
            [NO_LIMIT, QueuePlan::CoDel { target: Span(1 << 40), interval: Span(1 << 40), packets: 9 }]
        {
            let mut link = link(Rate(8_000_000), queue);
            for id in 0..4 {
                link.offer(us(100), id, || 0, 1000);
            }
            link.wake(us(1100), |_| ());
            let busy = Span::from_micros;
            let expected = LinkTotals { sent_bytes: 1000, dropped: 0, queued_bytes: 2000, busy: busy(1500) };
            assert_eq!(link.totals(us(1600)), expected);
            let mut lost = Vec::new();
            link.cut(us(1700), |id| lost.push(id));
            let expected = LinkTotals { sent_bytes: 1000, dropped: 3, queued_bytes: 0, busy: busy(1600) };
            assert_eq!(link.totals(us(9000)), expected);
            // Waiting packets are reported where their departure was not known.
            assert!(lost == if queue == NO_LIMIT { vec![] } else { vec![2, 3] });
            assert_eq!(link.wake(us(2100), |_| ()), None, "the wake-up is out of date");
            assert_eq!(link.offer(us(9000), 0, || 0, 1000), Offer::Departs(us(10_000)));
        }
    }

    #[test]
    fn mean_wait_is_that_of_an_m_d_1_queue() {
        let mut draws = Seed::root(3).random();
        for load in [0.3, 0.6, 0.8] {
            // 1000 bytes take 1 ms; Pollaczek-Khinchine: load * service / (2 (1 - load)).
            let mut link = link(Rate(8_000_000), NO_LIMIT);
            let (mut now, mut waited, packets) = (0.0, 0.0, 300_000);
            for _ in 0..packets {
                now += draws.exponential(1e6 / load);
                let Offer::Departs(at) = link.offer(Time(now as u64), 0, || 0, 1000) else { unreachable!() };
                waited += at.since(Time(now as u64)).0 as f64 - 1e6;
            }
            let theory = load * 1e6 / (2.0 * (1.0 - load));
            let mean = waited / f64::from(packets);
            assert!((mean / theory - 1.0).abs() < 0.03, "load {load}: {mean} ns instead of {theory} ns");
            let totals = link.totals(Time(now as u64));
            assert!((totals.busy.0 as f64 / now - load).abs() < 0.01);
        }
    }

    proptest! {
        /// Against a model that keeps every admitted packet and looks through all of them each time.
        #[test]
        fn drop_tail_agrees_with_a_plain_model(
            arrivals in prop::collection::vec((0u64..3000, 40u32..1500), 1..200),
            packets in 0u32..6,
            limit in prop_oneof![Just(u64::MAX), 0u64..5000],
            rate in 1_000_000u64..40_000_000,
        ) {
            let mut link = link(Rate(rate), QueuePlan::DropTail { packets, bytes: limit });
            let mut sent: Vec<(Time, Time, u64)> = Vec::new();
            let (mut now, mut dropped) = (Time::ZERO, 0);
            for (gap, bytes) in arrivals {
                now += Span(gap * 1000);
                let bytes = u64::from(bytes);
                let begins = sent.last().map_or(now, |(_, ends, _)| now.max(*ends));
                let waiting = || sent.iter().filter(|(begins, _, _)| *begins > now);
                let waiting_bytes: u64 = waiting().map(|(_, _, bytes)| bytes).sum();
                let fits = waiting().count() < packets as usize && waiting_bytes + bytes <= limit;
                let expected = if begins == now || fits {
                    let ends = begins + Rate(rate).span_for(bytes);
                    sent.push((begins, ends, bytes));
                    Offer::Departs(ends)
                } else {
                    dropped += 1;
                    Offer::Dropped
                };
                prop_assert_eq!(link.offer(now, 0, || 0, bytes as u32), expected);
                let waiting = sent.iter().filter(|(begins, _, _)| *begins > now);
                let expected = LinkTotals {
                    sent_bytes: sent.iter().filter(|(_, ends, _)| *ends <= now).map(|(_, _, bytes)| bytes).sum(),
                    dropped,
                    queued_bytes: waiting.map(|(_, _, bytes)| bytes).sum(),
                    busy: Span(sent.iter().map(|(begins, ends, _)| now.min(*ends).since(*begins).0).sum()),
                };
                prop_assert_eq!(link.totals(now), expected);
            }
        }
    }

    #[test]
    fn shadows_interface_lets_a_lone_packet_and_acknowledgements_pass() {
        // 500 B/ms: the bucket holds 2000 B.
        let mut link = Link::new(&LinkPlan { rate: Rate(4_000_000), queue: QueuePlan::Shadow });
        let us = |us: u64| Time(us * 1_000);
        assert_eq!(link.offer(us(0), 0, || 1, 1500), Offer::Departs(us(0)));
        assert_eq!(link.offer(us(0), 0, || 1, 1500), Offer::Departs(us(2000)));
        assert_eq!(link.offer(us(0), 0, || 2, 1500), Offer::Departs(us(5000)));
        assert_eq!(link.offer(us(1), 0, || 3, 40), Offer::Departs(us(1)), "overtakes other flows");
        assert_eq!(link.offer(us(1), 0, || 2, 40), Offer::Departs(us(5000)), "but not its own");
        assert_eq!(link.totals(us(1)).queued_bytes, 3000);
    }
}
