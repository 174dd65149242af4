//! A measurer in one measurement: its machine, and the order in which its circuits send.

use std::collections::VecDeque;

use tidegate_control::units::{Rate, Time};
use tidegate_proto::flashflow::load::{Load, Turn};
use tidegate_proto::flashflow::measurer::Measurer;

use super::circuit::Circuit;

pub(in crate::world) struct Member {
    /// Index in the plan's hosts.
    pub host: u32,
    pub machine: Measurer,
    /// Time of the machine's wake-up event.
    pub wake: Time,
    /// Time at which circuits may send again.
    pub load_wake: Time,
    rate: Rate,
    sockets: u16,
    load: Option<Load>,
    /// Circuits with room to send, in turn.
    turns: VecDeque<u32>,
}

impl Member {
    pub(crate) fn new(host: u32, rate: Rate, sockets: u16) -> Member {
        Member {
            host,
            machine: Measurer::new(),
            wake: Time::NEVER,
            load_wake: Time::NEVER,
            rate,
            sockets,
            load: None,
            turns: VecDeque::new(),
        }
    }

    pub(crate) fn begin(&mut self) {
        self.load = Some(Load::new(self.rate.0, usize::from(self.sockets)));
    }

    pub(crate) fn stop(&mut self) {
        self.load = None;
        self.turns.clear();
    }

    /// Queues a circuit that may have room to send.
    pub(crate) fn ready(&mut self, number: u32, circuit: &mut Circuit) {
        if self.load.is_some() && !std::mem::replace(&mut circuit.waits, true) {
            self.turns.push_back(number);
        }
    }

    /// Lets circuits send in turn; returns when to continue, if the rate stops them.
    pub(crate) fn send(&mut self, mut send: impl FnMut(u32, &mut Load) -> Turn) -> Option<Time> {
        let load = self.load.as_mut()?;
        while let Some(number) = self.turns.pop_front() {
            match send(number, load) {
                Turn::Send(_) => self.turns.push_back(number),
                Turn::At(later) => {
                    self.turns.push_front(number);
                    return Some(later);
                }
                Turn::Full => {}
            }
        }
        None
    }
}
