//! State that every owner of a world uses: plan, clock, event queue and the log of observations.

use std::sync::Arc;

use tidegate_control::units::Time;

use super::connections::Trace;
use super::event::Event;
use crate::division::Division;
use crate::observe::{Observation, Recorder, Seen};
use crate::plan::{Plan, Role, System};
use crate::queue::Queue;

/// Events handled between two calls of the progress function.
pub(super) const PROGRESS_EVERY: u32 = 1 << 14;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// Simulated time reached.
    pub reached: Time,
    /// Events handled.
    pub events: u64,
    /// Times that the event queue filed an event.
    pub filings: u64,
    /// Data cells that arrived at clients.
    pub cells_delivered: u64,
    /// Whether the progress function stopped the run.
    pub stopped: bool,
}

/// Observations with their times.
pub(super) type Observed = Vec<(Time, Observation)>;

/// State that every owner of a world uses.
pub(super) struct Context<'a> {
    pub plan: &'a Plan,
    pub system: &'a System,
    pub now: Time,
    pub queue: Queue<Event>,
    pub division: Arc<Division>,
    /// This process' number among the processes of a divided run.
    pub process: u32,
    /// Observations that no recorder has seen yet, in order.
    pub observed: Observed,
    pub watches_packets: bool,
    /// The packet that has just arrived, if the recorder watches packets.
    pub seen: Option<Seen>,
    /// Cells that are followed hop by hop; a cell's stamp has its index plus one.
    pub traces: Vec<Trace>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        system: &'a System,
        division: &Arc<Division>,
        process: u32,
    ) -> Context<'a> {
        Context {
            plan,
            system,
            now: Time::ZERO,
            queue: Queue::share_of(division.processes),
            division: Arc::clone(division),
            process,
            observed: Vec::new(),
            watches_packets: false,
            seen: None,
            traces: Vec::new(),
        }
    }

    /// Logs an observation at the current time.
    pub(crate) fn record(&mut self, observation: Observation) {
        self.observed.push((self.now, observation));
    }

    /// Moves the log to a recorder.
    #[inline]
    pub(crate) fn tell(&mut self, recorder: &mut impl Recorder) {
        if let Some(seen) = self.seen.take() {
            recorder.packet(self.now, seen);
        }
        for (at, observation) in self.observed.drain(..) {
            recorder.record(at, &observation);
        }
    }

    /// Whether this process simulates a host.
    pub(crate) fn is_here(&self, host: u32) -> bool {
        self.division.hosts.process(host) == self.process
    }

    /// Whether a host is a relay.
    pub(crate) fn is_relay(&self, host: u32) -> bool {
        matches!(self.plan.hosts[host as usize].role, Role::Relay(_))
    }

    /// The hosts of this process.
    pub(crate) fn hosts(&self) -> Arc<[u32]> {
        self.division.hosts.of(self.process)
    }

    /// Starts to follow a cell of a circuit; returns the number for the cell's stamp.
    pub(crate) fn follow(&mut self, circuit: u32) -> u32 {
        self.traces.push(Trace { circuit, hop: 0 });
        self.traces.len() as u32
    }

    /// The circuit of a followed cell and the hop that it has just made; counts the hop.
    pub(crate) fn next_hop(&mut self, trace: u32) -> (u32, u8) {
        let trace = &mut self.traces[trace as usize - 1];
        trace.hop += 1;
        (trace.circuit, trace.hop - 1)
    }
}
