//! The measurer's role: opens circuits, loads the relay after `Go`, and reports the returned bytes every
//! second.
//!
//! Seconds are counted from `Go` on its own monotonic clock; no wall clocks are compared.

use std::collections::VecDeque;

use tidegate_control::machine::Machine;
use tidegate_control::units::{Span, Time};

use super::message::{Message, Open, Reason};

/// Time after which all circuits must be open or refused.
///
/// A relay allows 45 s from its agreement for a measurement of 30 s, so one circuit that loses its handshake
/// again and again must not use up the rest.
const OPENING: Span = Span::from_secs(10);
/// Time between `Ready` and `Go`.
const WAITING: Span = Span::from_secs(30);

/// An action that the driver must perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to the coordinator.
    Send(Message),
    /// Open the circuits, and call [`Measurer::opened`] or [`Measurer::not_opened`] for each.
    Connect(Open),
    /// Send echo cells on all circuits, together at most at the rate.
    Load,
    /// Close all circuits.
    Disconnect,
}

/// A measurer, which serves one coordinator at a time.
#[derive(Debug, Default)]
pub struct Measurer {
    state: State,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Opening {
        order: Open,
        opened: u16,
        refused: u16,
        deadline: Time,
    },
    Waiting {
        seconds: u16,
        deadline: Time,
    },
    Loading {
        since: Time,
        seconds: u16,
        reported: u16,
        bytes: u64,
        checked: u32,
    },
}

impl Measurer {
    /// A measurer without an order.
    pub fn new() -> Measurer {
        Measurer::default()
    }

    /// Handles a message of the coordinator.
    pub fn message(&mut self, now: Time, message: Message) {
        match (&self.state, message) {
            (State::Idle, Message::Open(order)) => {
                self.outputs.push_back(Output::Connect(order.clone()));
                self.state = State::Opening { order, opened: 0, refused: 0, deadline: now + OPENING };
            }
            (State::Waiting { seconds, .. }, Message::Go) => {
                let seconds = *seconds;
                self.state = State::Loading { since: now, seconds, reported: 0, bytes: 0, checked: 0 };
                self.outputs.push_back(Output::Load);
            }
            (_, Message::Stop | Message::Failed(_)) => self.stop(),
            _ => self.fail(Reason::Protocol),
        }
    }

    /// A circuit to the relay is open.
    pub fn opened(&mut self, now: Time) {
        if let State::Opening { opened, .. } = &mut self.state {
            *opened += 1;
            self.check_ready(now);
        }
    }

    /// A circuit could not be opened.
    pub fn not_opened(&mut self, now: Time) {
        if let State::Opening { refused, .. } = &mut self.state {
            *refused += 1;
            self.check_ready(now);
        }
    }

    /// Proposal 316: a measurement fails with fewer than half of the circuits.
    fn check_ready(&mut self, now: Time) {
        let State::Opening { order, opened, refused, deadline } = &self.state else { return };
        let (opened, sockets, seconds) = (*opened, order.sockets, order.seconds);
        if opened + refused < sockets && now < *deadline {
            return;
        }
        if 2 * u32::from(opened) < u32::from(sockets) {
            return self.fail(Reason::Circuits);
        }
        self.state = State::Waiting { seconds, deadline: now + WAITING };
        self.outputs.push_back(Output::Send(Message::Ready { opened }));
    }

    /// Cells came back without an error.
    pub fn echoed(&mut self, more: u64, more_checked: u32) {
        if let State::Loading { bytes, checked, .. } = &mut self.state {
            *bytes += more;
            *checked = checked.saturating_add(more_checked);
        }
    }

    /// A circuit broke or a cell came back wrong: the measurement fails.
    ///
    /// In the last second the relay may close first, because timers are not exact.
    pub fn failed(&mut self, reason: Reason) {
        match &self.state {
            State::Idle => {}
            State::Loading { seconds, reported, .. }
                if reason == Reason::Lost && reported + 1 == *seconds => {}
            _ => self.fail(reason),
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.outputs.push_back(Output::Send(Message::Failed(reason)));
        self.stop();
    }

    fn stop(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.state = State::Idle;
            self.outputs.push_back(Output::Disconnect);
        }
    }
}

impl Machine for Measurer {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Idle => None,
            State::Opening { deadline, .. } | State::Waiting { deadline, .. } => Some(*deadline),
            State::Loading { since, reported, .. } => {
                Some(*since + Span::from_secs(u64::from(*reported) + 1))
            }
        }
    }

    fn timeout(&mut self, now: Time) {
        if self.next_timeout().is_none_or(|due| now < due) {
            return;
        }
        match &mut self.state {
            State::Idle => {}
            State::Opening { .. } => self.check_ready(now),
            State::Waiting { .. } => self.fail(Reason::Timeout),
            State::Loading { seconds, reported, bytes, checked, .. } => {
                *reported += 1;
                let (bytes, checked) = (std::mem::take(bytes), std::mem::take(checked));
                let count = Message::Count { second: *reported, bytes, checked };
                let over = reported == seconds;
                self.outputs.push_back(Output::Send(count));
                if over {
                    self.stop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::ntor::RelayPublic;

    fn order(sockets: u16) -> Open {
        Open {
            token: [1; 16],
            seconds: 2,
            sockets,
            rate: 1_000_000,
            check_one_in: 125,
            address: "127.0.0.1:1".parse().unwrap(),
            fingerprint: [2; 32],
            relay: RelayPublic { identity: [3; 20], onion: [4; 32] },
        }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn drain(measurer: &mut Measurer) -> Vec<Output> {
        std::iter::from_fn(|| measurer.poll()).collect()
    }

    fn ready() -> Measurer {
        let mut m = Measurer::new();
        m.message(at(0), Message::Open(order(4)));
        assert_eq!(drain(&mut m), [Output::Connect(order(4))]);
        (0..3).for_each(|_| m.opened(at(10)));
        assert_eq!(drain(&mut m), []);
        m.not_opened(at(20));
        assert_eq!(drain(&mut m), [Output::Send(Message::Ready { opened: 3 })]);
        m
    }

    #[test]
    fn it_opens_loads_counts_and_is_idle_again() {
        let mut m = ready();
        m.message(at(100), Message::Go);
        assert_eq!(drain(&mut m), [Output::Load]);
        m.echoed(514, 1);
        m.echoed(1028, 0);
        m.timeout(at(1099));
        assert_eq!(drain(&mut m), []);
        m.timeout(at(1100));
        m.echoed(514, 0);
        m.timeout(at(2101));
        let count = |second, bytes, checked| Output::Send(Message::Count { second, bytes, checked });
        assert_eq!(drain(&mut m), [count(1, 1542, 1), count(2, 514, 0), Output::Disconnect]);
        assert_eq!(m.next_timeout(), None);
        m.message(at(3000), Message::Open(order(1)));
        assert_eq!(drain(&mut m).len(), 1, "ready for the next order");
    }

    #[test]
    fn fewer_than_half_of_the_circuits_are_a_failure() {
        for (sockets, opened, fine) in [(4, 2, true), (4, 1, false), (5, 2, false), (5, 3, true)] {
            let mut m = Measurer::new();
            m.message(at(0), Message::Open(order(sockets)));
            (0..opened).for_each(|_| m.opened(at(1)));
            // The other circuits never answer.
            m.timeout(at(20_000));
            let outputs = drain(&mut m);
            if fine {
                assert_eq!(outputs[1], Output::Send(Message::Ready { opened }));
            } else {
                assert_eq!(
                    outputs[1..],
                    [Output::Send(Message::Failed(Reason::Circuits)), Output::Disconnect]
                );
            }
        }
    }

    #[test]
    fn it_stops_when_told_when_left_alone_and_when_cheated() {
        let mut m = ready();
        m.message(at(30), Message::Stop);
        assert_eq!(drain(&mut m), [Output::Disconnect]);
        let mut m = ready();
        m.stop();
        assert_eq!(drain(&mut m), [Output::Disconnect]);
        let mut m = ready();
        m.timeout(at(30_020));
        assert_eq!(drain(&mut m), [Output::Send(Message::Failed(Reason::Timeout)), Output::Disconnect]);
        let mut m = ready();
        m.message(at(30), Message::Go);
        drain(&mut m);
        m.failed(Reason::WrongEcho);
        assert_eq!(drain(&mut m), [Output::Send(Message::Failed(Reason::WrongEcho)), Output::Disconnect]);
        m.failed(Reason::Lost);
        assert_eq!(drain(&mut m), [], "it fails once");
        let mut m = ready();
        m.message(at(0), Message::Go);
        m.timeout(at(1000));
        drain(&mut m);
        m.failed(Reason::Lost);
        assert_eq!(drain(&mut m), [], "the relay was first to end the last second");
        m.failed(Reason::WrongEcho);
        assert_eq!(drain(&mut m).len(), 2);
        let mut m = Measurer::new();
        m.message(at(30), Message::ParamsOk);
        assert_eq!(drain(&mut m), [Output::Send(Message::Failed(Reason::Protocol))]);
    }
}
