//! The coordinator's role in one measurement.
//!
//! The relay agrees, the measurers open circuits and start to send, and the coordinator collects everyone's
//! reports of each second. Every phase has a timeout. Any error ends the measurement with a [`Reason`], which
//! all peers are told.

use std::collections::VecDeque;

use tidegate_control::flashflow::Percent;
use tidegate_control::flashflow::aggregate::{self, Second};
use tidegate_control::machine::Machine;
use tidegate_control::units::{Rate, Span, Time};

use super::message::{Message, Open, Params, Reason};

/// Timeouts of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until all peers are connected.
    pub connect: Span,
    /// Until the relay agrees.
    pub agree: Span,
    /// Until all measurers have their circuits.
    pub open: Span,
    /// How late the report of a second may be, for clocks of different speed or a stuck measurer.
    pub late: Span,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Span::from_secs(10),
            agree: Span::from_secs(5),
            open: Span::from_secs(25),
            late: Span::from_secs(3),
        }
    }
}

/// How early the report of a second may be.
///
/// Covers clocks that run slightly fast, and messages that were delayed on the way to the measurer only.
const EARLY: Span = Span::from_millis(250);

/// Upper bound of the bytes that a measurer with that rate can have received after `seconds`.
///
/// The tolerance is 5 % and a quarter of a second. A measurer that reports more lies.
fn most_in(rate: u64, seconds: u64) -> u64 {
    (u128::from(rate) / 8 * u128::from(105 * seconds + 25) / 100).min(u128::from(u64::MAX)) as u64
}

/// A measurement to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Parameters for the relay.
    pub params: Params,
    /// Order for each measurer.
    pub shares: Vec<Open>,
    /// The share of background that counts.
    pub ratio: Percent,
    /// Timeouts of the phases.
    pub timeouts: Timeouts,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// The relay.
    Relay,
    /// The measurer with this index in [`Order::shares`].
    Measurer(usize),
}

/// An action that the driver must perform.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a message.
    Send(Peer, Message),
    /// A second is complete.
    Second(u16, SecondRecord),
    /// The measurement is over: close all connections.
    Done(Result<Outcome, Failure>),
}

/// The reports of one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecondRecord {
    /// `x_j^i`: echoed bytes per measurer.
    pub measurers: Vec<u64>,
    /// Background bytes that the relay claims to have sent.
    pub sent: u64,
    /// Background bytes that the relay claims to have received.
    pub received: u64,
}

impl SecondRecord {
    /// The second as it counts for the estimate.
    pub fn second(&self, ratio: Percent) -> Second {
        Second::new(&self.measurers, self.sent, self.received, ratio)
    }
}

/// A complete measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// All seconds.
    pub seconds: Vec<SecondRecord>,
    /// `z`: the estimate.
    pub estimate: Rate,
    /// `sum a_i`.
    pub allocated: Rate,
    /// Number of cells with a checked content.
    pub checked: u64,
}

/// A failed measurement: it says nothing about the relay's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason of the failure.
    pub reason: Reason,
    /// The peer that caused it; `None` for the coordinator itself.
    pub by: Option<Peer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Agreeing,
    Opening,
    Measuring { since: Time },
    Done,
}

/// One measurement, from connecting to its outcome.
#[derive(Debug)]
pub struct Measurement {
    order: Order,
    phase: Phase,
    deadline: Time,
    relay_connected: bool,
    measurers: Vec<MeasurerState>,
    background: Vec<(u64, u64)>,
    complete: u16,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug, Default)]
struct MeasurerState {
    connected: bool,
    opened: Option<u16>,
    counts: Vec<u64>,
    checked: u64,
}

impl Measurement {
    /// Begins a measurement: the driver connects to all peers of the order.
    ///
    /// # Panics
    /// If the order lacks measurers.
    pub fn new(now: Time, order: Order) -> Measurement {
        assert!(!order.shares.is_empty(), "someone must measure");
        Measurement {
            phase: Phase::Connecting,
            deadline: now + order.timeouts.connect,
            relay_connected: false,
            measurers: vec![MeasurerState::default(); order.shares.len()],
            background: Vec::new(),
            complete: 0,
            outputs: VecDeque::new(),
            order,
        }
    }

    /// A connection is open, and the peer has proved its identity.
    pub fn connected(&mut self, now: Time, peer: Peer) {
        match peer {
            Peer::Relay => self.relay_connected = true,
            Peer::Measurer(i) => self.measurers[i].connected = true,
        }
        if self.phase == Phase::Connecting
            && self.relay_connected
            && self.measurers.iter().all(|m| m.connected)
        {
            self.enter(Phase::Agreeing, now + self.order.timeouts.agree);
            self.send(Peer::Relay, Message::Params(self.order.params.clone()));
        }
    }

    /// A connection broke or could not be opened.
    pub fn lost(&mut self, peer: Peer) {
        // The relay closes after its last second, when reports of measurers may still be in transit.
        if peer == Peer::Relay && self.background.len() == usize::from(self.order.params.seconds) {
            return;
        }
        if let Peer::Measurer(i) = peer
            && self.measurers[i].counts.len() == usize::from(self.order.params.seconds)
        {
            return;
        }
        self.fail(Reason::Lost, Some(peer));
    }

    /// The operator stops everything.
    pub fn stop(&mut self) {
        self.fail(Reason::Stopped, None);
    }

    /// A peer sent something that is not a message.
    pub fn garbage(&mut self, peer: Peer) {
        self.fail(Reason::Protocol, Some(peer));
    }

    /// Handles a message of a peer.
    pub fn message(&mut self, now: Time, peer: Peer, message: Message) {
        match (self.phase, peer, message) {
            (Phase::Done, _, _) => {}
            (_, _, Message::Failed(reason)) => self.fail(reason, Some(peer)),
            (Phase::Agreeing, Peer::Relay, Message::ParamsOk) => {
                self.enter(Phase::Opening, now + self.order.timeouts.open);
                for i in 0..self.order.shares.len() {
                    self.send(Peer::Measurer(i), Message::Open(self.order.shares[i].clone()));
                }
            }
            (Phase::Opening, Peer::Measurer(i), Message::Ready { opened }) => {
                // Proposal 316: fewer than half of the circuits are a failure.
                let sockets = self.order.shares[i].sockets;
                if 2 * u32::from(opened) < u32::from(sockets) || opened > sockets {
                    return self.fail(Reason::Circuits, Some(peer));
                }
                self.measurers[i].opened = Some(opened);
                if self.measurers.iter().all(|m| m.opened.is_some()) {
                    self.enter(Phase::Measuring { since: now }, self.due(now, 1));
                    for i in 0..self.order.shares.len() {
                        self.send(Peer::Measurer(i), Message::Go);
                    }
                }
            }
            (Phase::Measuring { since }, Peer::Measurer(i), Message::Count { second, bytes, checked }) => {
                let counts = &mut self.measurers[i].counts;
                counts.push(bytes);
                let (seconds, sum) = (counts.len(), counts.iter().fold(0u64, |a, b| a.saturating_add(*b)));
                if sum > most_in(self.order.shares[i].rate, seconds as u64) {
                    return self.fail(Reason::Protocol, Some(peer));
                }
                if let Err(reason) = self.in_turn(now, since, second, seconds) {
                    return self.fail(reason, Some(peer));
                }
                self.measurers[i].checked += u64::from(checked);
                self.advance(since);
            }
            (Phase::Measuring { since }, Peer::Relay, Message::Background { second, sent, received }) => {
                self.background.push((u64::from(sent), u64::from(received)));
                if let Err(reason) = self.in_turn(now, since, second, self.background.len()) {
                    return self.fail(reason, Some(peer));
                }
                self.advance(since);
            }
            _ => self.fail(Reason::Protocol, Some(peer)),
        }
    }

    /// Checks that a report is for the expected second and not before that second can be over.
    fn in_turn(&self, now: Time, since: Time, second: u16, expected: usize) -> Result<(), Reason> {
        if usize::from(second) != expected || second > self.order.params.seconds {
            Err(Reason::Protocol)
        } else if now + EARLY < since + Span::from_secs(u64::from(second)) {
            Err(Reason::Clock)
        } else {
            Ok(())
        }
    }

    /// Outputs the seconds that all peers have reported, and the outcome after the last.
    fn advance(&mut self, since: Time) {
        loop {
            let j = usize::from(self.complete);
            let Some(&(sent, received)) = self.background.get(j) else { break };
            if self.measurers.iter().any(|m| m.counts.len() <= j) {
                break;
            }
            let record = self.record(j, sent, received);
            self.complete += 1;
            self.outputs.push_back(Output::Second(self.complete, record));
        }
        if self.complete == self.order.params.seconds {
            self.finish();
        } else {
            self.deadline = self.due(since, self.complete + 1);
        }
    }

    fn due(&self, since: Time, second: u16) -> Time {
        since + Span::from_secs(u64::from(second)) + self.order.timeouts.late
    }

    fn record(&self, j: usize, sent: u64, received: u64) -> SecondRecord {
        SecondRecord { measurers: self.measurers.iter().map(|m| m.counts[j]).collect(), sent, received }
    }

    fn finish(&mut self) {
        let seconds: Vec<SecondRecord> =
            self.background.iter().enumerate().map(|(j, (s, r))| self.record(j, *s, *r)).collect();
        let counted: Vec<Second> = seconds.iter().map(|record| record.second(self.order.ratio)).collect();
        let estimate = aggregate::estimate(&counted).expect("a measurement has seconds");
        let checked = self.measurers.iter().map(|m| m.checked).sum();
        // A relay that returns whole buckets of cells without a checked one is impossible.
        let buckets = seconds.iter().flat_map(|s| &s.measurers).sum::<u64>()
            / 514
            / u64::from(self.order.shares[0].check_one_in);
        let circuits: u64 = self.measurers.iter().map(|m| u64::from(m.opened.unwrap_or(0))).sum();
        if checked + 2 * circuits < buckets {
            return self.fail(Reason::Protocol, None);
        }
        let allocated = Rate(self.order.shares.iter().map(|share| share.rate).sum());
        self.over(Ok(Outcome { seconds, estimate, allocated, checked }));
    }

    fn fail(&mut self, reason: Reason, by: Option<Peer>) {
        if self.phase == Phase::Done {
            return;
        }
        if self.relay_connected && by != Some(Peer::Relay) {
            self.send(Peer::Relay, Message::Failed(reason));
        }
        self.over(Err(Failure { reason, by }));
    }

    fn over(&mut self, result: Result<Outcome, Failure>) {
        for i in 0..self.measurers.len() {
            if self.measurers[i].connected {
                self.send(Peer::Measurer(i), Message::Stop);
            }
        }
        self.enter(Phase::Done, Time::NEVER);
        self.outputs.push_back(Output::Done(result));
    }

    fn send(&mut self, to: Peer, message: Message) {
        self.outputs.push_back(Output::Send(to, message));
    }

    fn enter(&mut self, phase: Phase, deadline: Time) {
        self.phase = phase;
        self.deadline = deadline;
    }
}

impl Machine for Measurement {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        (self.phase != Phase::Done).then_some(self.deadline)
    }

    fn timeout(&mut self, now: Time) {
        if self.phase == Phase::Done || now < self.deadline {
            return;
        }
        let j = usize::from(self.complete);
        let late = match self.phase {
            Phase::Connecting if !self.relay_connected => Some(Peer::Relay),
            Phase::Connecting => self.measurers.iter().position(|m| !m.connected).map(Peer::Measurer),
            Phase::Opening => self.measurers.iter().position(|m| m.opened.is_none()).map(Peer::Measurer),
            Phase::Measuring { .. } if self.background.len() > j => {
                self.measurers.iter().position(|m| m.counts.len() <= j).map(Peer::Measurer)
            }
            _ => Some(Peer::Relay),
        };
        self.fail(Reason::Timeout, late);
    }
}
