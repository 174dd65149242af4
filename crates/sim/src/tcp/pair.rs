//! Two endpoints over one link: what tests, benches and the comparison with the kernel run.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};

use super::{Arrival, Config, Endpoint, Segment};
use crate::event_loop::{Model, Timer, run_until};
use crate::queue::Queue;

/// One direction of the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRule {
    /// Bits per second of IP packets.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: Span,
    /// Packets waiting, the one being sent not counted; arrivals beyond are dropped.
    pub queue: usize,
    /// Probability that a packet is lost before it reaches the queue.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by `reorder_by` and overtaken.
    pub reorder: f64,
    /// How long an overtaken packet is held back.
    pub reorder_by: Span,
}

impl LinkRule {
    /// A link that only delays and queues.
    pub fn new(rate: Rate, delay: Span, queue: usize) -> LinkRule {
        LinkRule { rate, delay, queue, loss: 0.0, duplicate: 0.0, reorder: 0.0, reorder_by: Span::ZERO }
    }

    /// The same link with random loss.
    #[must_use]
    pub fn with_loss(self, loss: f64) -> LinkRule {
        LinkRule { loss, ..self }
    }
}

/// One direction of the link. The comparison with the kernel carries real packets by the same object.
#[derive(Clone, Debug)]
pub struct Link {
    rule: LinkRule,
    random: Random,
    /// When each packet still waiting begins to be sent.
    starts: VecDeque<Time>,
    free_at: Time,
    dropped: u64,
}

impl Link {
    /// A link that draws its losses from `seed`.
    pub fn new(rule: LinkRule, seed: Seed) -> Link {
        Link { rule, random: seed.random(), starts: VecDeque::new(), free_at: Time::ZERO, dropped: 0 }
    }

    /// Packets dropped, by chance or for want of room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// When a packet of `bytes` that enters now arrives at the other end: never, once or twice.
    pub fn carry(&mut self, now: Time, bytes: u64) -> [Option<Time>; 2] {
        while self.starts.front().is_some_and(|start| *start <= now) {
            self.starts.pop_front();
        }
        let lost = self.rule.loss > 0.0 && self.random.chance(self.rule.loss);
        if lost || self.starts.len() >= self.rule.queue {
            self.dropped += 1;
            return [None, None];
        }
        let start = self.free_at.max(now);
        if start > now {
            self.starts.push_back(start);
        }
        self.free_at = start + self.rule.rate.span_for(bytes);
        let mut arrival = self.free_at + self.rule.delay;
        if self.rule.reorder > 0.0 && self.random.chance(self.rule.reorder) {
            arrival += self.rule.reorder_by;
        }
        let twice = self.rule.duplicate > 0.0 && self.random.chance(self.rule.duplicate);
        [Some(arrival), twice.then_some(arrival)]
    }
}

/// One end and its application, which writes a number of bytes and reads as it arrives.
#[derive(Clone, Debug)]
pub struct End {
    /// The endpoint.
    pub tcp: Endpoint,
    /// Its parameters.
    pub config: Config,
    /// Bytes still to be written; `u64::MAX` is endless.
    pub to_write: u64,
    /// Close after the last byte.
    pub close_after: bool,
    /// Whether the application reads what arrives.
    pub reading: bool,
    /// Sum of what arrivals reported.
    pub seen: Arrival,
    /// Segments sent, with data or without.
    pub segments: u64,
    timer: Timer,
}

/// An event of a [`Pair`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Packet { to: usize, slot: usize },
    Timer { end: usize },
}

/// Two ends and the link between them. End 0 connects.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The two ends.
    pub ends: [End; 2],
    /// The present.
    pub now: Time,
    links: [Link; 2],
    events: Queue<Event>,
    slots: Vec<Segment>,
    free: Vec<usize>,
}

impl Model for Pair {
    type Event = Event;

    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.events.pop_until(last, |_| ())
    }

    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        self.now = now;
        match event {
            Event::Packet { to, slot } => {
                let segment = self.slots[slot];
                self.free.push(slot);
                let end = &mut self.ends[to];
                let arrival = end.tcp.on_segment(&end.config, now, &segment);
                end.seen.received += arrival.received;
                end.seen.acked += arrival.acked;
                end.seen.established |= arrival.established;
                end.seen.peer_closed |= arrival.peer_closed;
                self.drive(to);
            }
            Event::Timer { end } if self.ends[end].timer.fires(now) => {
                let which = &mut self.ends[end];
                which.tcp.on_timeout(&which.config, now);
                self.drive(end);
            }
            Event::Timer { .. } => {}
        }
        ControlFlow::Continue(())
    }
}

impl Pair {
    /// `rules[i]` is the link that end `i` sends into.
    pub fn new(configs: [Config; 2], rules: [LinkRule; 2], seed: Seed) -> Pair {
        let end = |config: Config, tcp| End {
            tcp,
            config,
            to_write: 0,
            close_after: false,
            reading: true,
            seen: Arrival::default(),
            segments: 0,
            timer: Timer::default(),
        };
        let tcp = [Endpoint::active(&configs[0]), Endpoint::passive(&configs[1])];
        let ([c0, c1], [t0, t1]) = (configs, tcp);
        let mut pair = Pair {
            ends: [end(c0, t0), end(c1, t1)],
            now: Time::ZERO,
            links: [Link::new(rules[0], seed.fork_index(0)), Link::new(rules[1], seed.fork_index(1))],
            events: Queue::new(),
            slots: Vec::new(),
            free: Vec::new(),
        };
        pair.ends[0].tcp.connect(Time::ZERO);
        pair
    }

    /// The link that end `i` sends into.
    pub fn link(&self, end: usize) -> &Link {
        &self.links[end]
    }

    /// Changes the link from end `i`.
    #[cfg(test)]
    pub(crate) fn set_rule(&mut self, end: usize, rule: LinkRule) {
        self.links[end].rule = rule;
    }

    /// Lets the application of an end act and sends what it may.
    pub(crate) fn drive(&mut self, which: usize) {
        let now = self.now;
        let end = &mut self.ends[which];
        if end.reading {
            let there = end.tcp.readable();
            end.tcp.read(&end.config, now, there);
        }
        if end.to_write > 0 {
            let taken = end.tcp.write(end.to_write);
            if end.to_write != u64::MAX {
                end.to_write -= taken;
            }
        }
        if end.close_after && end.to_write == 0 {
            end.tcp.close();
        }
        while let Some(segment) = self.ends[which].tcp.poll_transmit(&self.ends[which].config, now) {
            self.ends[which].segments += 1;
            let bytes = u64::from(segment.wire_bytes(&self.ends[which].config));
            for arrival in self.links[which].carry(now, bytes).into_iter().flatten() {
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.slots.push(segment);
                    self.slots.len() - 1
                });
                self.slots[slot] = segment;
                self.events.push(arrival, Event::Packet { to: 1 - which, slot });
            }
        }
        let timeout = self.ends[which].tcp.next_timeout();
        if let Some(due) = self.ends[which].timer.arm(now, timeout) {
            self.events.push(due, Event::Timer { end: which });
        }
    }

    /// Runs to a point in time, or until nothing is left to happen.
    pub(crate) fn run_until(&mut self, until: Time) {
        self.drive(0);
        self.drive(1);
        let _ = run_until(self, until);
        self.now = until;
    }

    /// Payload bytes per second that end 1 received in order between two times.
    pub fn goodput(&mut self, from: Time, until: Time) -> f64 {
        self.run_until(from);
        let before = self.ends[1].tcp.delivered_in_order();
        self.run_until(until);
        (self.ends[1].tcp.delivered_in_order() - before) as f64 / until.since(from).as_secs_f64()
    }
}
