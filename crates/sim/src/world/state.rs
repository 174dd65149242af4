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
use crate::observe::{Observation, Recorder};
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

/// A run under way.
pub(super) struct World<'a, R: Recorder> {
    pub plan: &'a Plan,
    pub system: &'a System,
    pub recorder: R,
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

impl<R: Recorder> World<'_, R> {
    pub(super) fn record(&mut self, observation: Observation) {
        self.recorder.record(self.now, &observation);
    }
}
