//! Token buckets and processor time: what limits a relay's reading and writing.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};
use tidegate_proto::bucket::TokenBucket;

use super::connections::EndId;
use crate::plan::RelayLimits;

/// A relay's limits: token buckets and processor time.
pub(super) struct Gate {
    read: Option<TokenBucket>,
    write: Option<TokenBucket>,
    retry_after: Span,
    pub cell_cost: Span,
    /// Traffic between an exit and servers waits here as well.
    servers: bool,
    pub busy_until: Time,
    /// Ends with something to read, in the order of their turns.
    pub readers: VecDeque<EndId>,
    /// Ends with something to write, in the order of their turns.
    pub writers: VecDeque<EndId>,
    /// Those that found a bucket empty, until `retry_at`.
    pub paused_readers: Vec<EndId>,
    pub paused_writers: Vec<EndId>,
    pub retry_at: Time,
    /// Time of the scheduled pump.
    pub pumping: Time,
    /// The measurement that replaces the buckets by its pace.
    pub measured: Option<usize>,
}

/// Bytes that one connection may read or write at once: an eighth of the bucket in whole cells,
/// between 4 and 32 of them, as tor's `connection_bucket_get_share` has it. Zero if the bucket is empty. `cell`: bytes
/// of a cell, or a cell's payload for traffic with servers.
fn share(bucket: Option<&mut TokenBucket>, now: Time, cell: u64) -> u64 {
    let Some(bucket) = bucket else { return u64::MAX };
    let available = bucket.available(now);
    (available / 8 / cell * cell).clamp(4 * cell, 32 * cell).min(available)
}

impl Gate {
    /// A gate with full buckets.
    pub(crate) fn new(limits: &RelayLimits) -> Gate {
        Gate {
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
        }
    }

    /// Bytes that one connection may read at once.
    pub(crate) fn read_share(&mut self, now: Time, cell: u64) -> u64 {
        share(self.read.as_mut(), now, cell)
    }

    /// An end has read its share: it reads again in its next turn, or when the bucket is refilled.
    pub(crate) fn has_read(&mut self, now: Time, end: EndId, bytes: u64) {
        self.busy_until = now + self.cell_cost;
        if let Some(bucket) = &mut self.read {
            bucket.overdraw(bytes);
            if bucket.available(now) == 0 {
                let refill = bucket.next_refill();
                self.pause(now, refill);
                self.paused_readers.push(end);
                return;
            }
        }
        self.readers.push_back(end);
    }

    /// Bytes that one connection may write at once.
    pub(crate) fn write_share(&mut self, now: Time, cell: u64) -> u64 {
        if self.measured.is_some() { u64::MAX } else { share(self.write.as_mut(), now, cell) }
    }

    /// Whether what an exit exchanges with servers waits here now. A measurement limits it as it limits cells.
    pub(crate) fn holds_servers(&self) -> bool {
        self.servers || self.measured.is_some()
    }

    pub(crate) fn wrote(&mut self, bytes: u64) {
        if let (Some(bucket), None) = (&mut self.write, self.measured) {
            bucket.overdraw(bytes);
        }
    }

    /// A measurement replaces the buckets; returns what is left of the read bucket.
    pub(crate) fn measure(&mut self, measurement: usize, now: Time) -> u64 {
        self.measured = Some(measurement);
        self.retry_at = now;
        self.retry(now);
        self.read.as_mut().map_or(u64::MAX, |bucket| bucket.available(now))
    }

    /// The measurement is over. It has emptied the buckets.
    pub(crate) fn measured(&mut self, now: Time) {
        self.measured = None;
        for bucket in [&mut self.read, &mut self.write].into_iter().flatten() {
            let left = bucket.available(now);
            bucket.take(left);
        }
        self.retry_at = now;
        self.retry(now);
    }

    /// An end that has something to read.
    pub(crate) fn wait_to_read(&mut self, end: EndId) {
        if !self.readers.contains(&end) && !self.paused_readers.contains(&end) {
            self.readers.push_back(end);
        }
    }

    /// Queues an end that has used up its share of writing: it continues in turn, or after the next refill.
    pub(crate) fn wait_to_write(&mut self, now: Time, end: EndId) {
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

    /// Schedules a retry for ends that found a bucket empty; it is refilled at `refill`.
    pub(crate) fn pause(&mut self, now: Time, refill: Time) {
        if self.retry_at == Time::NEVER {
            self.retry_at = if self.retry_after > Span::ZERO { now + self.retry_after } else { refill };
        }
    }

    /// Lets paused ends retry once it is time. With tor's waiting time, they retry in the order of opening
    /// (`reenable_blocked_connections`). At refills the order rotates, because one end may use up a whole refill.
    pub(crate) fn retry(&mut self, now: Time) {
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

    /// A pump begins; returns the measurement that rules here instead of the buckets, if there is one.
    pub(crate) fn begin_pump(&mut self, now: Time) -> Option<usize> {
        if self.pumping <= now {
            self.pumping = Time::NEVER;
        }
        self.measured
    }

    /// When to schedule the next pump, if something waits and no earlier pump is scheduled.
    pub(crate) fn next_pump(&mut self, now: Time) -> Option<Time> {
        let waiting = !self.readers.is_empty() || !self.writers.is_empty();
        let at = if waiting { self.retry_at.min(self.busy_until.max(now)) } else { self.retry_at };
        (at < self.pumping).then(|| {
            self.pumping = at;
            at
        })
    }
}
