//! The link over which everything leaves a receiver's host, and a flow of TCP that shares it.

use std::collections::VecDeque;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use crate::event_loop::Timer;
use crate::tcp::pair::{Link, LinkRule};
use crate::tcp::{Config, Congestion, Endpoint, Segment};

/// A link and who uses it beside the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uplink {
    /// Its rate, delay and queue.
    pub rule: LinkRule,
    /// Queue limit in datagrams; the receiver's host drops the rest.
    pub waiting: usize,
    /// When a flow of TCP (Reno) without end begins, if one does.
    pub tcp_from: Option<Span>,
}

/// Bytes of IPv4's and UDP's headers.
const UDP: u64 = 28;

/// The link in use.
pub(super) struct Shared {
    link: Link,
    /// As the plan has it.
    most: usize,
    /// When each datagram that waits in it has left.
    waiting: VecDeque<Time>,
    /// Of what comes back to the flow, which nothing else is in the way of.
    delay: Span,
    config: Config,
    /// The sender and the receiver.
    ends: [Endpoint; 2],
    timers: [Timer; 2],
}

/// Something of the flow that happens later.
pub(super) enum Later {
    /// A segment reaches an end.
    Segment(usize, Segment),
    /// An end looks at its clock, for the first time its sender connects.
    Timer(usize),
}

impl Shared {
    pub(crate) fn new(plan: &Uplink, seed: Seed) -> Shared {
        let config = Config { congestion: Congestion::Reno, ..Config::default() };
        let ends = [Endpoint::active(&config), Endpoint::passive(&config)];
        Shared {
            link: Link::new(plan.rule, seed),
            most: plan.waiting,
            waiting: VecDeque::new(),
            delay: plan.rule.delay,
            config,
            ends,
            timers: [Timer::default(); 2],
        }
    }

    /// When a datagram of the receiver's host is at the other end, unless it is dropped.
    pub(crate) fn carry(&mut self, now: Time, datagram: &[u8]) -> Option<Time> {
        while self.waiting.front().is_some_and(|left| *left <= now) {
            self.waiting.pop_front();
        }
        if self.waiting.len() >= self.most {
            return None;
        }
        let arrival = self.link.carry(now, datagram.len() as u64 + UDP)[0]?;
        self.waiting.push_back(arrival - self.delay);
        Some(arrival)
    }

    /// Bytes of the flow that arrived in order.
    pub(crate) fn arrived(&self) -> u64 {
        self.ends[1].delivered_in_order()
    }

    pub(crate) fn connect(&mut self, now: Time) -> Vec<(Time, Later)> {
        self.ends[0].connect(now);
        self.drive(now, 0)
    }

    pub(crate) fn happen(&mut self, now: Time, later: &Later) -> Vec<(Time, Later)> {
        let end = match later {
            Later::Segment(end, segment) => {
                self.ends[*end].on_segment(&self.config, now, segment);
                *end
            }
            Later::Timer(end) if !self.timers[*end].fires(now) => return Vec::new(),
            Later::Timer(end) => {
                self.ends[*end].on_timeout(&self.config, now);
                *end
            }
        };
        self.drive(now, end)
    }

    /// Lets an end's application act; what it sends, and when it looks at its clock.
    fn drive(&mut self, now: Time, which: usize) -> Vec<(Time, Later)> {
        let Shared { link, delay, config, ends, timers, .. } = self;
        let end = &mut ends[which];
        let there = end.readable();
        end.read(config, now, there);
        if which == 0 {
            end.write(u64::MAX / 2);
        }
        let mut later = Vec::new();
        while let Some(segment) = end.poll_transmit(config, now) {
            let arrival = match which {
                0 => link.carry(now, u64::from(segment.wire_bytes(config)))[0],
                _ => Some(now + *delay),
            };
            later.extend(arrival.map(|at| (at, Later::Segment(1 - which, segment))));
        }
        later.extend(timers[which].arm(now, end.next_timeout()).map(|due| (due, Later::Timer(which))));
        later
    }
}
