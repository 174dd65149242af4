//! Content and state of transfers.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use tidegate_control::markov::{self, Walk};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_proto::ids::StreamKey;

use crate::plan::RequestPlan;
use crate::world::connections::EndId;

/// Content of a transfer.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// A request and a response of known sizes.
    Fetch(RequestPlan),
    /// Packets both ways as the user's Markov model says, drawn from this seed by both sides.
    Markov(u64),
}

/// The transfers of a process' clients, and those of other processes that use its exits and servers. Numbers are
/// interleaved: process `p` of `n` has `p`, `p + n`, and so on.
pub(super) struct Transfers {
    /// Boxed, because a long run has many times more transfers than are under way: the state of one that has ended at
    /// both ends is dropped.
    own: Vec<Option<Box<TransferState>>>,
    process: u32,
    processes: u32,
    others: BTreeMap<u32, TransferState>,
}

impl Transfers {
    /// No transfers yet.
    pub(crate) fn new(process: u32, processes: u32) -> Transfers {
        Transfers { own: Vec::new(), process, processes, others: BTreeMap::new() }
    }

    /// The number that the next one has.
    pub(crate) fn next(&self) -> u32 {
        self.own.len() as u32 * self.processes + self.process
    }

    /// A client of this process has begun it.
    pub(crate) fn push(&mut self, transfer: TransferState) {
        self.own.push(Some(Box::new(transfer)));
    }

    /// A client of another process has begun it.
    pub(crate) fn learn(&mut self, number: u32, transfer: TransferState) {
        self.others.insert(number, transfer);
    }

    /// The connection between its exit and its server has closed.
    pub(crate) fn server_closed(&mut self, number: u32) {
        if self.is_own(number) {
            if let Some(transfer) = self.get(number) {
                transfer.server_closed = true;
            }
            self.drop_ended(number);
        } else {
            self.others.remove(&number);
        }
    }

    /// Drops the state of a transfer of a client of this process, if it has ended at its client and its server. One that
    /// ended before its exit connected stays: its BEGIN cell may still arrive there.
    pub(crate) fn drop_ended(&mut self, number: u32) {
        let transfer = &mut self.own[(number / self.processes) as usize];
        if transfer.as_ref().is_some_and(|transfer| transfer.over && transfer.server_closed) {
            *transfer = None;
        }
    }

    fn is_own(&self, number: u32) -> bool {
        number % self.processes == self.process
    }

    /// Its client has ended it. Once its connection is open here, it lasts until that closes.
    pub(crate) fn over(&mut self, number: u32) {
        if self.others.get(&number).is_some_and(|transfer| transfer.exit.is_none()) {
            self.others.remove(&number);
        }
    }

    /// Of a client of this process, if it has not ended at both ends.
    pub(crate) fn look(&self, number: u32) -> Option<&TransferState> {
        self.own[(number / self.processes) as usize].as_deref()
    }

    /// Of this process or another, if it is known.
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut TransferState> {
        if self.is_own(number) {
            self.own.get_mut((number / self.processes) as usize)?.as_deref_mut()
        } else {
            self.others.get_mut(&number)
        }
    }
}

const ENDED: &str = "a transfer in use has not ended at both ends";

/// Those of this process' clients that have not ended at both ends.
impl Index<usize> for Transfers {
    type Output = TransferState;

    fn index(&self, number: usize) -> &TransferState {
        self.own[number / self.processes as usize].as_deref().expect(ENDED)
    }
}

impl IndexMut<usize> for Transfers {
    fn index_mut(&mut self, number: usize) -> &mut TransferState {
        self.own[number / self.processes as usize].as_deref_mut().expect(ENDED)
    }
}

#[derive(Clone)]
pub(in crate::world) struct TransferState {
    pub user: u32,
    /// The number of the circuit that carries it.
    pub circuit: u32,
    pub stream: Option<StreamKey>,
    pub server: u32,
    /// The exit's end of the connection to the server.
    pub exit: Option<EndId>,
    /// In a divided run: the exit that has been told of it.
    pub exit_host: Option<u32>,
    pub begun: Time,
    pub over: bool,
    /// The exit's connection to the server was open and is closed.
    pub server_closed: bool,
    /// The server answers once it has this many bytes.
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Client: request bytes still to come, those not yet packaged, and response bytes received.
    pub to_write: u64,
    pub to_package: u64,
    pub received: u64,
    /// Server: request bytes received, response bytes not yet written.
    pub requested: u64,
    pub to_respond: u64,
    pub markov: Option<Box<Schedules>>,
}

/// When the two sides of a Markov stream write their packets.
#[derive(Clone)]
pub(in crate::world) struct Schedules {
    pub client: Schedule,
    pub server: Schedule,
}

/// One side's walk through the packet chain; the side writes only its own packets.
#[derive(Clone)]
pub(in crate::world) struct Schedule {
    pub model: Arc<markov::Model>,
    pub walk: Walk,
    pub random: Random,
    pub from_server: bool,
}

/// Markov streams longer than this are cut: 1.4 GB.
const MAX_PACKETS: u32 = 1_000_000;

impl Schedule {
    pub(crate) fn new(model: &Arc<markov::Model>, seed: u64, from_server: bool) -> Schedule {
        let random = Seed::root(seed).random();
        Schedule { model: Arc::clone(model), walk: model.packets.walk(), random, from_server }
    }

    /// Bytes to write now, and the time until the next, if there is one. Packets that are due within
    /// [`markov::AT_ONCE`] are written together, as tgen does.
    pub(crate) fn next(&mut self) -> (u64, Option<Span>) {
        let (mut bytes, mut wait) = (0, Span::ZERO);
        for _ in 0..MAX_PACKETS {
            let (observation, delay) = self.model.packets.step(&mut self.walk, &mut self.random);
            let own = match observation {
                markov::Observation::End => return (bytes, None),
                markov::Observation::ToServer => !self.from_server,
                markov::Observation::ToOrigin => self.from_server,
            };
            bytes += if own { u64::from(markov::PACKET_BYTES) } else { 0 };
            wait = wait + delay;
            if wait > markov::AT_ONCE {
                return (bytes, Some(wait));
            }
        }
        // The chain does not let time pass.
        (bytes, None)
    }

    /// Bytes of the whole schedule.
    pub(crate) fn total(mut self) -> u64 {
        let mut total = 0;
        for _ in 0..MAX_PACKETS {
            let (bytes, next) = self.next();
            total += bytes;
            if next.is_none() {
                break;
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::markov::{Chain, Delay, Emission, Observation, State};

    use super::*;

    #[test]
    fn a_chain_that_does_not_let_time_pass_is_cut() {
        let delay = Delay::Uniform { low: 0.0, high: 0.0 };
        let emissions = vec![Emission { observation: Observation::ToServer, weight: 1.0, delay }];
        let state = State { name: "start".into(), transitions: vec![(0, 1.0)], emissions };
        let chain = Chain::new(vec![state], 0, Span::from_secs(1));
        let model = Arc::new(markov::Model { streams: chain.clone(), packets: chain });
        let cut = u64::from(MAX_PACKETS) * u64::from(markov::PACKET_BYTES);
        assert_eq!(Schedule::new(&model, 1, false).next(), (cut, None));
    }
}
