//! What runs on a host, its token buckets and its processor.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::TokenBucket;
use tidegate_proto::cell::CELL_BYTES;
use tidegate_proto::client::Client;
use tidegate_proto::control::Totals;
use tidegate_proto::links::{ChannelId, Config, kist};
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
    read: Option<TokenBucket>,
    write: Option<TokenBucket>,
    retry_after: Span,
    cell_cost: Span,
    busy_until: Time,
    /// Ends with something to read, in turn.
    readers: VecDeque<EndId>,
    /// Ends with something to write, in turn.
    writers: VecDeque<EndId>,
    /// Those that found a bucket empty, until `retry_at`.
    paused_readers: Vec<EndId>,
    paused_writers: Vec<EndId>,
    retry_at: Time,
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
                        retry_after: limits.retry_after,
                        cell_cost: limits.cell_cost,
                        busy_until: Time::ZERO,
                        readers: VecDeque::new(),
                        writers: VecDeque::new(),
                        paused_readers: Vec::new(),
                        paused_writers: Vec::new(),
                        retry_at: Time::NEVER,
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

    pub fn is_relay(&self) -> bool {
        matches!(self.machine, Machine::Relay(_))
    }

    pub fn cells_processed(&self) -> u64 {
        match &self.machine {
            Machine::Relay(relay) => relay.cells_processed(),
            Machine::Client(_) => 0,
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
/// between 4 and 32 of them, as tor's `connection_bucket_get_share` has it. Zero if the bucket is empty.
fn share(bucket: Option<&mut TokenBucket>, now: Time) -> u64 {
    let Some(bucket) = bucket else { return u64::MAX };
    let (available, cell) = (bucket.available(now), u64::from(CELL_BYTES));
    (available / 8 / cell * cell).clamp(4 * cell, 32 * cell).min(available)
}

impl Gate {
    /// Bytes that one connection may write in its turn.
    pub fn write_share(&mut self, now: Time) -> u64 {
        share(self.write.as_mut(), now)
    }

    pub fn wrote(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.write {
            bucket.overdraw(bytes);
        }
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
    fn pause(&mut self, now: Time, refill: Time) {
        if self.retry_at == Time::NEVER {
            self.retry_at = if self.retry_after > Span::ZERO { now + self.retry_after } else { refill };
        }
    }

    /// Lets those that were paused try again once it is time, in the order in which they were opened (tor:
    /// `reenable_blocked_connections`).
    fn retry(&mut self, now: Time) {
        if self.retry_at <= now {
            self.retry_at = Time::NEVER;
            self.paused_readers.sort_by_key(|end| end.connection.0);
            self.paused_writers.sort_by_key(|end| end.connection.0);
            self.readers.extend(self.paused_readers.drain(..));
            for end in self.paused_writers.drain(..) {
                if !self.writers.contains(&end) {
                    self.writers.push_back(end);
                }
            }
        }
    }

    /// When to pump again.
    fn next(&self, now: Time) -> Time {
        let waiting = !self.readers.is_empty() || !self.writers.is_empty();
        if waiting { self.retry_at.min(self.busy_until.max(now)) } else { self.retry_at }
    }
}

impl<R: Recorder> World<'_, R> {
    /// Lets a gated host read and write what its buckets and its processor allow now.
    pub(super) fn pump(&mut self, host: u32) {
        let now = self.now;
        let Some(gate) = &mut self.hosts[host as usize].gate else { return };
        if gate.pumping <= now {
            gate.pumping = Time::NEVER;
        }
        gate.retry(now);
        let mut busy = false;
        while !busy {
            let Some(gate) = &mut self.hosts[host as usize].gate else { return };
            let (readers, writers) = (gate.readers.len(), gate.writers.len());
            for _ in 0..readers {
                busy |= !self.reading_turn(host);
            }
            for _ in 0..writers {
                let Some(end) = self.next_writer(host) else { break };
                self.flush(end);
                self.drain(host);
            }
            busy |= readers + writers == 0;
        }
        self.pump_again(host);
    }

    /// Tells a host's node the state of a channel's socket.
    pub(super) fn inspect(&mut self, host: u32, channel: ChannelId) {
        let Some(end) = self.hosts[host as usize].channel(channel) else { return };
        let Some((tcp, config)) = self.tcp(end) else { return };
        let info = tcp.info(config);
        let socket = kist::Socket {
            window: info.cwnd,
            unacknowledged: info.unacked,
            unsent_bytes: info.not_sent,
            segment_bytes: info.mss,
        };
        let now = self.now;
        self.hosts[host as usize].node().socket(now, channel, Some(socket));
    }

    /// The next end in turn reads its share, and then the host writes what came of it, as tor does once per read
    /// event (`connection_handle_read`); false if the processor has no time.
    fn reading_turn(&mut self, host: u32) -> bool {
        let now = self.now;
        let Some(gate) = &mut self.hosts[host as usize].gate else { return true };
        if gate.busy_until > now {
            return false;
        }
        let Some(end) = gate.readers.pop_front() else { return true };
        if !self.can_read(end) {
            return true;
        }
        let gate = self.hosts[host as usize].gate.as_mut().expect("looked at above");
        // The share counts cells, the bucket what TLS adds as well.
        let (share, cell_cost) = (share(gate.read.as_mut(), now), gate.cell_cost);
        let (mut read, mut spent) = (0, 0);
        while read < share && self.can_read(end) {
            let (cell, overhead) = self.read_one(end);
            read += cell;
            spent += cell + overhead;
            if cell_cost > Span::ZERO {
                break;
            }
        }
        self.drain(host);
        self.transmit(end);
        let gate = self.hosts[host as usize].gate.as_mut().expect("gates stay");
        gate.busy_until = now + cell_cost;
        if let Some(bucket) = &mut gate.read {
            bucket.overdraw(spent);
            if bucket.available(now) == 0 {
                let refill = bucket.next_refill();
                gate.pause(now, refill);
                gate.paused_readers.push(end);
                return true;
            }
        }
        gate.readers.push_back(end);
        true
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

    /// Schedules the next pump of a gated host, if it waits for something.
    pub(super) fn pump_again(&mut self, host: u32) {
        let now = self.now;
        let Some(gate) = &mut self.hosts[host as usize].gate else { return };
        let at = gate.next(now);
        if at < gate.pumping {
            gate.pumping = at;
            self.queue.push(at, Event::Pump(host));
        }
    }
}
