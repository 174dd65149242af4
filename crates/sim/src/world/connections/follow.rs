//! Where sampled cells wait: each hop of a followed cell, from its circuit queue to the next.

use tidegate_control::units::{Span, Time};

use crate::observe::Waits;

/// A followed cell on one connection, from the moment it was written.
#[derive(Clone, Debug)]
pub(super) struct Follow {
    /// Which cell.
    pub trace: u32,
    /// The end that wrote it.
    pub writer: u8,
    /// Stream offset just after its TLS record: the record can be read when all before it has arrived.
    pub end: u64,
    pub queued: Time,
    pub buffered: Time,
    pub written: Time,
    first_sent: Option<Time>,
    last_sent: Time,
    /// When the last byte first arrived, and how its packet had fared.
    arrived: Option<(Time, Span, Span)>,
}

impl Follow {
    /// A cell of which the record ends at `end` has been queued, buffered and written at these times.
    pub(crate) fn new(trace: u32, writer: u8, end: u64, [queued, buffered, written]: [Time; 3]) -> Follow {
        let (first_sent, last_sent, arrived) = (None, written, None);
        Follow { trace, writer, end, queued, buffered, written, first_sent, last_sent, arrived }
    }

    fn is_in(&self, seq: u64, len: u32) -> bool {
        seq < self.end && self.end <= seq + u64::from(len)
    }

    /// A segment with the record's last byte leaves TCP.
    pub(crate) fn transmitted(&mut self, now: Time, seq: u64, len: u32) {
        if self.is_in(seq, len) && self.arrived.is_none() {
            self.first_sent.get_or_insert(now);
            self.last_sent = now;
        }
    }

    /// A segment with the record's last byte arrives, sent at `sent`.
    pub(crate) fn arrived(
        &mut self,
        now: Time,
        seq: u64,
        len: u32,
        sent: Time,
        queue: Span,
        propagation: Span,
    ) {
        if self.is_in(seq, len) && self.arrived.is_none() {
            self.last_sent = sent;
            self.arrived = Some((now, queue, propagation));
        }
    }

    /// The cell is read: the account of its waiting, which sums to `now - queued`.
    pub(crate) fn read(&self, now: Time) -> Waits {
        let first_sent = self.first_sent.unwrap_or(self.written);
        let (arrived, link_queue, propagation) = self.arrived.unwrap_or((now, Span::ZERO, Span::ZERO));
        Waits {
            circuit_queue: self.buffered.since(self.queued),
            output_buffer: self.written.since(self.buffered),
            send_buffer: first_sent.since(self.written),
            retransmission: self.last_sent.since(first_sent),
            link_queue,
            propagation,
            head_of_line: now.since(arrived),
        }
    }
}

/// Which circuit a trace belongs to, and the hop it is on.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Trace {
    pub circuit: u32,
    pub hop: u8,
}
