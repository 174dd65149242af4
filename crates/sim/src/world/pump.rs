//! A host reads and writes what its token buckets and its processor allow.

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{CELL_BYTES, DATA_BYTES};
use tidegate_proto::ids::ChannelId;
use tidegate_proto::sink::Socket;

use super::ends::{Attached, EndId};
use super::event::Event;
use super::host::share;
use super::state::World;

impl World<'_> {
    /// Lets a gated host read and write what its buckets and its processor allow now.
    pub(super) fn pump(&mut self, host: u32) {
        let now = self.now;
        let Some(gate) = &mut self.hosts[host as usize].gate else { return };
        if gate.pumping <= now {
            gate.pumping = Time::NEVER;
        }
        if let Some(measurement) = gate.measured {
            return self.measured_pump(host, measurement);
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
        let now = self.now;
        if self.lane_arrived(end).is_some() {
            // A lane's share of the window is not known to anybody.
            return self.hosts[host as usize].node().socket(now, channel, None);
        }
        let Some((tcp, config)) = self.tcp(end) else { return };
        let info = tcp.info(config);
        let socket = Socket {
            window: info.cwnd,
            unacknowledged: info.unacked,
            unsent_bytes: info.not_sent,
            segment_bytes: info.mss,
        };
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
        let cell_cost = gate.cell_cost;
        let spent = match self.end(end).map(|end| end.attached) {
            Some(Attached::Stream(stream)) => {
                let gate = self.hosts[host as usize].gate.as_mut().expect("looked at above");
                let share = share(gate.read.as_mut(), now, DATA_BYTES.into());
                let most = if cell_cost > Span::ZERO { 1 } else { u64::MAX };
                let cells = share.div_ceil(DATA_BYTES.into()).min(most);
                let cells = u32::try_from(cells).unwrap_or(u32::MAX);
                let read = self.read_from_server(host, stream, end, cells);
                if read == 0 && cells > 0 {
                    return true;
                }
                read
            }
            _ if !self.can_read(end) => return true,
            _ => self.read_cells(host, end),
        };
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

    /// Reads a channel's share, or one cell where cells cost time; gives its bytes.
    fn read_cells(&mut self, host: u32, end: EndId) -> u64 {
        let Some(gate) = &mut self.hosts[host as usize].gate else { return 0 };
        // The share counts cells, the bucket what TLS adds as well.
        let (share, cell_cost) = (share(gate.read.as_mut(), self.now, CELL_BYTES.into()), gate.cell_cost);
        let (mut read, mut spent) = (0, 0);
        while read < share && self.can_read(end) {
            let (cell, overhead) = self.read_one(end);
            read += cell;
            spent += cell + overhead;
            if cell_cost > Span::ZERO {
                break;
            }
        }
        spent
    }

    /// The end that writes next: each in turn, or the quietest.
    pub(super) fn next_writer(&mut self, host: u32) -> Option<EndId> {
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
