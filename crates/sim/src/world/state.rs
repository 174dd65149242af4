//! Everything a run knows, and what it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;
use tidegate_control::units::Time;
use tidegate_proto::cell::{Cell, RelayId};
use tidegate_proto::onion::Clear;

use super::borders::Borders;
use super::ends::{Connection, ConnectionId, EndId, Spare, Wire};
use super::event::Event;
use super::host::HostState;
use super::measurement::session::Measuring;
use super::users::Users;
use crate::byzantine::Byzantine;
use crate::division::{Division, Local};
use crate::observe::{Observation, Recorder, Seen};
use crate::plan::{Plan, System};
use crate::queue::Queue;
use crate::tcp;
use crate::underlay::Underlay;

/// Events handled between two calls of the progress function.
pub(super) const PROGRESS_EVERY: u32 = 1 << 14;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// Simulated time reached.
    pub reached: Time,
    /// Events handled.
    pub events: u64,
    /// Data cells that arrived at clients.
    pub cells_delivered: u64,
    /// Whether the run was stopped by the progress function.
    pub stopped: bool,
}

/// What was observed, and when.
pub(super) type Observed = Vec<(Time, Observation)>;

/// A run under way.
pub(super) struct World<'a> {
    pub plan: &'a Plan,
    pub system: &'a System,
    /// What was observed since somebody last asked, in order.
    pub observed: Observed,
    /// The packet that has just come through, if packets are watched.
    pub seen: Option<Seen>,
    pub watches_packets: bool,
    pub now: Time,
    pub queue: Queue<Event>,
    pub underlay: Underlay<Wire>,
    pub hosts: Local<HostState>,
    pub division: Arc<Division>,
    /// Which of the run's processes this is.
    pub process: u32,
    pub borders: Borders,
    /// Relays that are not upgraded to the system's transport.
    pub legacy: Arc<BTreeSet<RelayId>>,
    /// Never reused, so that a late packet or timer finds nothing instead of another one.
    pub connections: Vec<Option<Box<Connection>>>,
    /// Those of them that are open, and a few that no longer are.
    pub live: Vec<ConnectionId>,
    /// Memory for their cells under way.
    pub spare: Spare,
    /// QUIC connections by the two hosts, the lower number first.
    pub trunks: BTreeMap<(u32, u32), ConnectionId>,
    /// Messages on their way out of band, and whom they go to.
    pub out_of_band: Slab<(EndId, Cell<Clear>)>,
    /// TCP on each [`super::ends::TcpProfile`].
    pub tcp_parameters: [tcp::Config; 4],
    pub users: Users,
    pub byzantine: Byzantine,
    pub measuring: Measuring,
    /// Data cells packaged for clients, to pick those that are followed.
    pub packaged: u64,
    pub cells_delivered: u64,
}

impl World<'_> {
    pub(super) fn record(&mut self, observation: Observation) {
        self.observed.push((self.now, observation));
    }

    /// Tells a recorder what was observed, and forgets it.
    pub(super) fn tell(&mut self, recorder: &mut impl Recorder) {
        if let Some(seen) = self.seen.take() {
            recorder.packet(self.now, seen);
        }
        for (at, observation) in self.observed.drain(..) {
            recorder.record(at, &observation);
        }
    }
}
