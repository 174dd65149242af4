//! What runs on a host, its token buckets and its processor.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::TokenBucket;
use tidegate_proto::client::Client;
use tidegate_proto::control::Totals;
use tidegate_proto::links::{ChannelId, Config};
use tidegate_proto::node::{Node, StreamKey};
use tidegate_proto::onion::Clear;
use tidegate_proto::relay::Relay;
use tidegate_proto::transport::Transport;

use crate::observe::{HostTotals, RelaySample};
use crate::plan::Role;

use super::ends::EndId;

/// A node of the overlay in simulation.
pub(super) type SimNode = dyn Node<Clear>;

/// One host while the run lasts.
pub(super) struct HostState {
    pub machine: Machine,
    /// Channel of the node -> end of a connection.
    pub channels: Vec<Option<EndId>>,
    /// Exit: stream -> this host's end of the connection to the server.
    pub streams: BTreeMap<StreamKey, EndId>,
    /// Exit: ends of connections to servers, and what the cells read just now had for them.
    pub to_servers: Vec<(EndId, u64)>,
    /// Limits on reading and writing, and processor time; `None` on hosts without any.
    pub gate: Option<Box<Gate>>,
    /// Counts of connections that are gone, and of those opened.
    pub totals: HostTotals,
    /// Sockets open now.
    pub descriptors: u64,
    /// A node whose channels to others that do are lanes of QUIC connections.
    pub speaks_quic: bool,
    /// The node's timeout is pending for this time.
    pub timer: Time,
    /// Levels and counts at the last sample.
    pub sampled: RelaySample,
}

/// What runs on it.
pub(super) enum Machine {
    Relay(Box<Relay<Clear>>),
    /// Clients; servers are clients that never build a circuit.
    Client(Box<Client<Clear>>),
}

/// What makes a relay's cells wait: token buckets and processor time.
pub(super) struct Gate {
    pub read: Option<TokenBucket>,
    pub write: Option<TokenBucket>,
    pub retry_after: Span,
    pub cell_cost: Span,
    /// What an exit exchanges with servers waits here as well.
    servers: bool,
    pub busy_until: Time,
    /// Ends with something to read, in turn.
    pub readers: VecDeque<EndId>,
    /// Ends with something to write, in turn.
    pub writers: VecDeque<EndId>,
    /// Those that found a bucket empty, until `retry_at`.
    pub paused_readers: Vec<EndId>,
    pub paused_writers: Vec<EndId>,
    pub retry_at: Time,
    /// A pump is scheduled for this time.
    pub pumping: Time,
    /// The measurement whose pace rules here instead of the buckets.
    pub measured: Option<usize>,
}

impl HostState {
    /// `measured`: it will be; then it needs a gate. `other`: a client that asks for other ends.
    pub fn new(role: &Role, config: &Config, measured: bool, other: bool) -> HostState {
        let speaks_quic = config.transport == Transport::Quic;
        let (machine, gate) = match role {
            Role::Relay(limits) => {
                let gated = measured || limits.bucket.is_some() || limits.cell_cost > Span::ZERO;
                let gate = gated.then(|| {
                    Box::new(Gate {
                        read: limits.bucket.map(TokenBucket::new),
                        write: limits.bucket.map(TokenBucket::new),
                        retry_after: limits.retry_after,
                        cell_cost: limits.cell_cost,
                        servers: limits.servers,
                        busy_until: Time::ZERO,
                        readers: VecDeque::new(),
                        writers: VecDeque::new(),
                        paused_readers: Vec::new(),
                        paused_writers: Vec::new(),
                        retry_at: Time::NEVER,
                        pumping: Time::NEVER,
                        measured: None,
                    })
                });
                (Machine::Relay(Box::new(Relay::new(Clear::default(), config.clone()))), gate)
            }
            Role::Client | Role::Server | Role::Measurer | Role::Coordinator => {
                // Legs need it, be `control` without.
                let links = config.conflux.is_some() && config.control.window().is_none();
                let congestion_control = if other { Some(false) } else { links.then_some(true) };
                let onion = Clear { congestion_control };
                (Machine::Client(Box::new(Client::new(onion, config.clone()))), None)
            }
        };
        let (totals, sampled) = (HostTotals::default(), RelaySample::default());
        HostState {
            machine,
            channels: Vec::new(),
            streams: BTreeMap::new(),
            to_servers: Vec::new(),
            gate,
            totals,
            descriptors: 0,
            speaks_quic,
            timer: Time::NEVER,
            sampled,
        }
    }

    pub fn descriptor_opened(&mut self) {
        self.descriptors += 1;
        self.totals.peak_descriptors = self.totals.peak_descriptors.max(self.descriptors);
    }

    pub fn node(&mut self) -> &mut SimNode {
        match &mut self.machine {
            Machine::Relay(relay) => relay.as_mut(),
            Machine::Client(client) => client.as_mut(),
        }
    }

    pub fn cells_processed(&self) -> u64 {
        match &self.machine {
            Machine::Relay(relay) => relay.cells_processed(),
            Machine::Client(_) => 0,
        }
    }

    /// What a client's linked circuits hold until what precedes it has come; none of a relay.
    pub fn held_bytes(&self) -> Option<u64> {
        match &self.machine {
            Machine::Relay(_) => None,
            Machine::Client(client) => Some(client.held_bytes()),
        }
    }

    /// What a relay's controller has done, if it has one.
    pub fn control_totals(&self) -> Option<Totals> {
        match &self.machine {
            Machine::Relay(relay) => relay.control_totals(),
            Machine::Client(_) => None,
        }
    }

    pub fn channel(&self, channel: ChannelId) -> Option<EndId> {
        self.channels.get(channel.0 as usize).copied().flatten()
    }

    pub fn set_channel(&mut self, channel: ChannelId, end: Option<EndId>) {
        let index = channel.0 as usize;
        if self.channels.len() <= index {
            self.channels.resize(index + 1, None);
        }
        self.channels[index] = end;
    }
}

/// Bytes that one connection may read or write in its turn: an eighth of the bucket in whole cells,
/// between 4 and 32 of them, as tor's `connection_bucket_get_share` has it. Zero if the bucket is empty. `cell`: bytes of
/// a cell, or of what fits into one where there are no cells.
pub(super) fn share(bucket: Option<&mut TokenBucket>, now: Time, cell: u64) -> u64 {
    let Some(bucket) = bucket else { return u64::MAX };
    let available = bucket.available(now);
    (available / 8 / cell * cell).clamp(4 * cell, 32 * cell).min(available)
}

impl Gate {
    /// Bytes that one connection may write in its turn.
    pub fn write_share(&mut self, now: Time, cell: u64) -> u64 {
        if self.measured.is_some() { u64::MAX } else { share(self.write.as_mut(), now, cell) }
    }

    /// Whether what an exit exchanges with servers waits here now.
    pub fn holds_servers(&self) -> bool {
        self.servers && self.measured.is_none()
    }

    pub fn wrote(&mut self, bytes: u64) {
        if let (Some(bucket), None) = (&mut self.write, self.measured) {
            bucket.overdraw(bytes);
        }
    }

    /// A measurement's pace rules from now on; gives what is left of the bucket.
    pub fn measure(&mut self, measurement: usize, now: Time) -> u64 {
        self.measured = Some(measurement);
        self.retry_at = now;
        self.retry(now);
        self.read.as_mut().map_or(u64::MAX, |bucket| bucket.available(now))
    }

    /// The measurement is over. It left nothing in the buckets.
    pub fn measured(&mut self, now: Time) {
        self.measured = None;
        for bucket in [&mut self.read, &mut self.write].into_iter().flatten() {
            let left = bucket.available(now);
            bucket.take(left);
        }
        self.retry_at = now;
        self.retry(now);
    }

    /// An end that has something to read.
    pub fn wait_to_read(&mut self, end: EndId) {
        if !self.readers.contains(&end) && !self.paused_readers.contains(&end) {
            self.readers.push_back(end);
        }
    }

    /// An end whose share of writing is used up: it goes on in turn, or when the bucket is looked at again.
    pub fn wait_to_write(&mut self, now: Time, end: EndId) {
        let bucket = self.write.as_mut().expect("only a bucket stops a writer");
        if bucket.available(now) > 0 {
            if !self.writers.contains(&end) {
                self.writers.push_back(end);
            }
            return;
        }
        let refill = bucket.next_refill();
        self.pause(now, refill);
        if !self.paused_writers.contains(&end) {
            self.paused_writers.push(end);
        }
    }

    /// Somebody found a bucket empty that is refilled at `refill`.
    pub fn pause(&mut self, now: Time, refill: Time) {
        if self.retry_at == Time::NEVER {
            self.retry_at = if self.retry_after > Span::ZERO { now + self.retry_after } else { refill };
        }
    }

    /// Lets those that were paused try again once it is time: where they wait as in tor, in the order in which they
    /// were opened (`reenable_blocked_connections`); at every refill in turn, since a refill may be one's meal.
    pub fn retry(&mut self, now: Time) {
        if self.retry_at <= now {
            self.retry_at = Time::NEVER;
            for paused in [&mut self.paused_readers, &mut self.paused_writers] {
                if self.retry_after > Span::ZERO {
                    paused.sort_by_key(|end| end.connection.0);
                } else if !paused.is_empty() {
                    paused.rotate_left(1);
                }
            }
            self.readers.extend(self.paused_readers.drain(..));
            for end in self.paused_writers.drain(..) {
                if !self.writers.contains(&end) {
                    self.writers.push_back(end);
                }
            }
        }
    }

    /// When to pump again.
    pub fn next(&self, now: Time) -> Time {
        let waiting = !self.readers.is_empty() || !self.writers.is_empty();
        if waiting { self.retry_at.min(self.busy_until.max(now)) } else { self.retry_at }
    }
}
