//! One direction of an access link: a queue and a sender of fixed rate, sans-IO.
//!
//! A first-in-first-out link knows on arrival when a packet will have left, so it needs no event. Under
//! CoDel what happens to a packet depends on what comes before its turn: such a link asks to be woken.

use std::collections::VecDeque;

use tidegate_control::units::{Rate, Span, Time};

use crate::codel::{CoDel, Waiting};
use crate::plan::{LinkPlan, QueuePlan};

/// One direction of an access link. Times given to it never decrease.
#[derive(Clone, Debug)]
pub struct Link {
    sender: Sender,
    queue: Queue,
    sent_bytes: u64,
    dropped: u64,
}

/// Puts one packet after the other on the wire.
#[derive(Clone, Debug)]
struct Sender {
    rate: Rate,
    /// When the last packet whose departure is known will have left.
    free_at: Time,
    /// Serialisation time of all packets up to `free_at`.
    busy: Span,
}

impl Sender {
    /// Appends a packet to what is being sent; gives the time its last bit leaves.
    fn begin(&mut self, now: Time, bytes: u32) -> Time {
        let span = self.rate.span_for(u64::from(bytes));
        self.busy = self.busy + span;
        self.free_at = self.free_at.max(now) + span;
        self.free_at
    }
}

#[derive(Clone, Debug)]
enum Queue {
    /// Nothing ever waits.
    Unlimited,
    /// Departure and size of the packet being sent and of those waiting behind it.
    DropTail { packets: usize, bytes: u64, held: VecDeque<(Time, u32)>, held_bytes: u64 },
    /// `sending`: size of the packet that leaves at `free_at`, until it is counted as sent.
    CoDel { packets: usize, waiting: Box<CoDel>, sending: u32 },
}

/// What a link does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Its last bit will have left at this time.
    Departs(Time),
    /// It waits; [`Link::wake`] must be called at the time given, if one is.
    Waits(Option<Time>),
    /// It was dropped.
    Dropped,
}

/// A waiting packet begins to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The packet.
    pub id: u32,
    /// When its last bit will have left.
    pub at: Time,
    /// [`Link::wake`] must be called again at that time.
    pub wake: bool,
}

/// What a link has done up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTotals {
    /// Bytes of packets whose last bit has left.
    pub sent_bytes: u64,
    /// Packets dropped by the queue or lost when the link went down.
    pub dropped: u64,
    /// Bytes waiting, the packet being sent not counted.
    pub queued_bytes: u64,
    /// Time it was sending.
    pub busy: Span,
}

impl Link {
    /// An idle link. A rate of zero drops everything.
    pub fn new(plan: &LinkPlan) -> Link {
        let queue = match plan.queue {
            _ if plan.rate == Rate::UNLIMITED => Queue::Unlimited,
            QueuePlan::DropTail { packets, bytes } => {
                Queue::DropTail { packets: packets as usize, bytes, held: VecDeque::new(), held_bytes: 0 }
            }
            QueuePlan::CoDel { target, interval, packets } => Queue::CoDel {
                packets: packets as usize,
                waiting: Box::new(CoDel::new(target, interval)),
                sending: 0,
            },
        };
        let sender = Sender { rate: plan.rate, free_at: Time::ZERO, busy: Span::ZERO };
        Link { sender, queue, sent_bytes: 0, dropped: 0 }
    }

    /// Whether packets pass in no time, whatever their number.
    pub fn is_unlimited(&self) -> bool {
        matches!(self.queue, Queue::Unlimited)
    }

    /// A packet arrives; `id` names it in [`Departure`] and to `lost` later, if it has to wait.
    pub fn offer(&mut self, now: Time, id: u32, bytes: u32) -> Offer {
        self.settle(now);
        let sender = &mut self.sender;
        match &mut self.queue {
            Queue::Unlimited => {
                self.sent_bytes += u64::from(bytes);
                return Offer::Departs(now);
            }
            _ if sender.rate == Rate(0) => {}
            Queue::DropTail { packets, bytes: limit, held, held_bytes } => {
                let admitted = held.front().is_none_or(|(_, sending)| {
                    held.len() <= *packets && *held_bytes - u64::from(*sending) + u64::from(bytes) <= *limit
                });
                if admitted {
                    let departs = sender.begin(now, bytes);
                    held.push_back((departs, bytes));
                    *held_bytes += u64::from(bytes);
                    return Offer::Departs(departs);
                }
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

    /// The link is free and packets wait: the next one begins. Dropped ones go to `lost`. `None` if all were
    /// dropped, or if the call is out of date because the link has been down since it was asked for.
    pub fn wake(&mut self, now: Time, mut lost: impl FnMut(u32)) -> Option<Departure> {
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
        Some(Departure { id: next.id, at: self.sender.begin(now, next.bytes), wake })
    }

    /// Everything that has not left before `now` is lost. `lost` is told about packets that were waiting for
    /// a wake-up; the others' owner knew their departure and that the link would be down by then.
    pub fn cut(&mut self, now: Time, mut lost: impl FnMut(u32)) {
        if now > Time::ZERO {
            self.settle(now - Span(1));
        }
        self.sender.busy = self.sender.busy - self.sender.free_at.since(now);
        self.sender.free_at = self.sender.free_at.min(now);
        match &mut self.queue {
            Queue::Unlimited => {}
            Queue::DropTail { held, held_bytes, .. } => {
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

    /// What the link has done up to `now`.
    pub fn totals(&mut self, now: Time) -> LinkTotals {
        self.settle(now);
        let queued_bytes = match &self.queue {
            Queue::Unlimited => 0,
            Queue::DropTail { held, held_bytes, .. } => {
                held_bytes - held.front().map_or(0, |(_, sending)| u64::from(*sending))
            }
            Queue::CoDel { waiting, .. } => waiting.bytes(),
        };
        LinkTotals {
            sent_bytes: self.sent_bytes,
            dropped: self.dropped,
            queued_bytes,
            busy: self.sender.busy - self.sender.free_at.since(now),
        }
    }

    /// Counts what has left by `now`.
    fn settle(&mut self, now: Time) {
        match &mut self.queue {
            Queue::Unlimited => {}
            Queue::DropTail { held, held_bytes, .. } => {
                while let Some((departs, bytes)) = held.front()
                    && *departs <= now
                {
                    *held_bytes -= u64::from(*bytes);
                    self.sent_bytes += u64::from(*bytes);
                    held.pop_front();
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
