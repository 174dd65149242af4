//! What runs on a host, its token buckets and its processor.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::TokenBucket;
use tidegate_proto::client::Client;
use tidegate_proto::links::{ChannelId, Config};
use tidegate_proto::node::StreamKey;
use tidegate_proto::onion::Clear;
use tidegate_proto::relay::Relay;
use tidegate_proto::transport::Transport;

use crate::observe::{HostTotals, Recorder, RelaySample};
use crate::plan::Role;

use super::connection::EndId;
use super::{Event, SimNode, World};

/// One host while the run lasts.
pub(super) struct HostState {
    pub machine: Machine,
    /// Channel of the node -> end of a connection.
    channels: Vec<Option<EndId>>,
    /// Exit: stream -> this host's end of the connection to the server.
    pub streams: BTreeMap<StreamKey, EndId>,
    /// Limits on reading and writing, and processor time; `None` on hosts without any.
    pub gate: Option<Box<Gate>>,
    /// Counts of connections that are gone, and of those opened.
    pub totals: HostTotals,
    /// Sockets open now.
    pub descriptors: u64,
    /// A relay that speaks IPsec with others that do.
    pub secured: bool,
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
    read: Option<TokenBucket>,
    write: Option<TokenBucket>,
    cell_cost: Span,
    busy_until: Time,
    /// Ends with something to read, in turn.
    readers: VecDeque<EndId>,
    /// Ends that a bucket stopped from writing, in turn.
    writers: VecDeque<EndId>,
    /// A pump is scheduled for this time.
    pumping: Time,
}

impl HostState {
    pub fn new(role: &Role, config: &Config) -> HostState {
        let secured = matches!(role, Role::Relay(_)) && config.transport != Transport::Vanilla;
        let (machine, gate) = match role {
            Role::Relay(limits) => {
                let gated = limits.bucket.is_some() || limits.cell_cost > Span::ZERO;
                let gate = gated.then(|| {
                    Box::new(Gate {
                        read: limits.bucket.map(TokenBucket::new),
                        write: limits.bucket.map(TokenBucket::new),
                        cell_cost: limits.cell_cost,
                        busy_until: Time::ZERO,
                        readers: VecDeque::new(),
                        writers: VecDeque::new(),
                        pumping: Time::NEVER,
                    })
                });
                (Machine::Relay(Box::new(Relay::new(Clear, config.clone()))), gate)
            }
            Role::Client | Role::Server => {
                (Machine::Client(Box::new(Client::new(Clear, config.clone()))), None)
            }
        };
        let (totals, sampled) = (HostTotals::default(), RelaySample::default());
        HostState {
            machine,
            channels: Vec::new(),
            streams: BTreeMap::new(),
            gate,
            totals,
            descriptors: 0,
            secured,
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

    pub fn is_relay(&self) -> bool {
        matches!(self.machine, Machine::Relay(_))
    }

    pub fn cells_processed(&self) -> u64 {
        match &self.machine {
            Machine::Relay(relay) => relay.cells_processed(),
            Machine::Client(_) => 0,
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

impl Gate {
    /// Bytes that one connection may write in its turn: an eighth of the bucket in whole cells, between 4
    /// and 32 of them, as tor's `connection_bucket_get_share` has it.
    pub fn write_share(&mut self, now: Time) -> u64 {
        let Some(bucket) = &mut self.write else { return u64::MAX };
        let available = bucket.available(now);
        let cell = u64::from(tidegate_proto::cell::CELL_BYTES);
        (available / 8 / cell * cell).clamp(4 * cell, 32 * cell).min(available)
    }

    pub fn wrote(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.write {
            bucket.take(bytes);
        }
    }

    /// An end that its bucket stopped; it goes on in turn.
    pub fn wait_to_write(&mut self, end: EndId) {
        if !self.writers.contains(&end) {
            self.writers.push_back(end);
        }
    }

    /// An end that has something to read.
    pub fn wait_to_read(&mut self, end: EndId) {
        if !self.readers.contains(&end) {
            self.readers.push_back(end);
        }
    }

    /// Whether a cell of so many bytes may be read now, and if not, when to try again.
    fn admit(&mut self, now: Time, bytes: u64) -> Result<(), Time> {
        if self.busy_until > now {
            return Err(self.busy_until);
        }
        if let Some(bucket) = &mut self.read {
            if bucket.available(now) < bytes {
                return Err(bucket.next_refill());
            }
            bucket.take(bytes);
        }
        self.busy_until = now + self.cell_cost;
        Ok(())
    }
}

impl<R: Recorder> World<'_, R> {
    /// Lets a gated host read and write what its buckets and its processor allow now.
    pub(super) fn pump(&mut self, host: u32) {
        let now = self.now;
        if let Some(gate) = &mut self.hosts[host as usize].gate
            && gate.pumping <= now
        {
            gate.pumping = Time::NEVER;
        }
        self.pump_writers(host);
        loop {
            let Some(gate) = &mut self.hosts[host as usize].gate else { return };
            let Some(end) = gate.readers.pop_front() else { return };
            let Some(bytes) = self.next_read(end) else { continue };
            let gate = self.hosts[host as usize].gate.as_mut().expect("looked at above");
            match gate.admit(now, bytes) {
                Ok(()) => {
                    gate.readers.push_back(end);
                    self.read_one(end);
                }
                Err(later) => {
                    gate.readers.push_front(end);
                    return self.pump_at(host, later);
                }
            }
        }
    }

    fn pump_writers(&mut self, host: u32) {
        let waiting = self.hosts[host as usize].gate.as_ref().map_or(0, |gate| gate.writers.len());
        for _ in 0..waiting {
            let Some(end) = self.next_writer(host) else { return };
            self.flush(end);
            self.drain(host);
        }
    }

    /// The end that writes next: each in turn, or the quietest.
    fn next_writer(&mut self, host: u32) -> Option<EndId> {
        let writers = &self.hosts[host as usize].gate.as_ref()?.writers;
        let at = match self.system.connection_half_life {
            None => 0,
            Some(half_life) => {
                let count = |end: &EndId| {
                    let connection = self.connections[end.connection.0 as usize].as_deref();
                    let count = connection.map(|both| both.ends[usize::from(end.side)].loudness);
                    count.map_or(0.0, |count| count.value(self.now, half_life))
                };
                (0..writers.len()).min_by(|a, b| count(&writers[*a]).total_cmp(&count(&writers[*b])))?
            }
        };
        self.hosts[host as usize].gate.as_mut()?.writers.remove(at)
    }

    /// Schedules the next pump of a host with waiting writers: now if its bucket has `least` bytes left for
    /// the next in turn, else when it is refilled.
    pub(super) fn pump_writers_again(&mut self, host: u32, least: u64) {
        let now = self.now;
        let gate = self.hosts[host as usize].gate.as_mut().expect("only gated hosts wait");
        let bucket = gate.write.as_mut().expect("only a bucket stops a writer");
        let at = if bucket.available(now) >= least { now } else { bucket.next_refill() };
        self.pump_at(host, at);
    }

    fn pump_at(&mut self, host: u32, at: Time) {
        let gate = self.hosts[host as usize].gate.as_mut().expect("only gated hosts wait");
        if at < gate.pumping {
            gate.pumping = at;
            self.queue.push(at, Event::Pump(host));
        }
    }
}
