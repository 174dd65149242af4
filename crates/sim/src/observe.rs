//! Typed observations of a run; recorders receive them.
//!
//! The world hands each [`Observation`] to a [`Recorder`] the moment it happens. Metrics are folds over
//! this stream and keep only what they need, so a run's memory does not grow with its length.
//! [`crate::digest::Digest`] folds the same stream into one number: two runs agree if their digests do.

use std::ops::AddAssign;

use tidegate_control::units::{Span, Time};
use tidegate_proto::control::Totals;
use tidegate_proto::ending::Endings;
use tidegate_proto::flashflow::coordinator::{Failure, Outcome};

pub use tidegate_proto::switching::MoveTimes;

/// A circuit of one run, numbered in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circuit(pub u32);
/// A user of the plan (`Plan::users[i]`): the client end of circuits, with one kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User(pub u32);
/// A host of the plan (`Plan::hosts[i]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u32);
/// One request and its response, numbered in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer(pub u32);

#[expect(missing_docs, reason = "each variant explains its fields")]
/// Something that happened. Payload sizes are application bytes (no cell header, no padding).
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A user began to build a circuit over these relays (guard first).
    CircuitBegun { circuit: Circuit, user: User, path: [Host; 3] },
    /// The last CREATED/EXTENDED arrived: the circuit can carry streams.
    CircuitBuilt { circuit: Circuit, took: Span },
    /// The circuit was torn down before or after it was built.
    CircuitClosed { circuit: Circuit },
    /// A user asked for `bytes` of response (`u64::MAX`: endless) over this circuit.
    TransferBegun { transfer: Transfer, user: User, circuit: Circuit, bytes: u64 },
    /// Its stream was opened over this circuit, which differs from the first one if that was given up.
    StreamOpened { transfer: Transfer, circuit: Circuit },
    /// The stream's CONNECTED cell arrived at the client.
    TransferConnected { transfer: Transfer },
    /// The first response byte arrived at the client; `took` counts from `TransferBegun`.
    FirstByte { transfer: Transfer, took: Span },
    /// The last response byte arrived at the client; `took` counts from `TransferBegun`.
    LastByte { transfer: Transfer, took: Span },
    /// The transfer failed or timed out; `received` bytes had arrived.
    TransferTimedOut { transfer: Transfer, received: u64 },
    /// This host has moved a circuit to another connection or to other relays, in these times.
    Switched { at: Host, parts: MoveTimes },
    /// Application bytes were written by the source (server) of this circuit.
    Injected { circuit: Circuit, bytes: u64 },
    /// A data cell towards the client arrived at it. `packaged`: when the exit put the bytes into a cell
    /// (they entered the overlay); `departed`: when that cell left the exit's circuit queue.
    Delivered { circuit: Circuit, bytes: u32, packaged: Time, departed: Time },
    /// A sampled data cell's waiting at one hop between exit and client.
    Waited { circuit: Circuit, hop: u8, at: Host, waits: Waits },
    /// A regular sample of a relay's queues, and of its work since the last sample.
    RelaySample { relay: Host, sample: RelaySample },
    /// A regular sample of a client's reorder buffer for linked circuits (Conflux).
    OutOfOrder { client: Host, bytes: u64 },
    /// The relay of a measurement (`Plan::measurements[i]`) begins to echo, or has ended.
    MeasurementFlows { measurement: u32, flows: bool },
    /// A relay's own count of what it echoed in a second.
    Echoed { relay: Host, bytes: u64 },
    /// The result of a measurement.
    Measured { measurement: u32, result: Box<Result<Outcome, Failure>> },
    /// Totals of one host at the end of the run.
    HostTotals { host: Host, totals: Box<HostTotals> },
    /// Totals of the whole run, the last observation.
    RunTotals { events: u64, cells_delivered: u64, peak_pending_events: u64 },
}

/// How long one cell waited at one hop, by cause. Their sum is the time from entering this hop's circuit
/// queue (first hop: from packaging) to entering the next hop's circuit queue, or the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// In the circuit queue.
    pub circuit_queue: Span,
    /// In the connection's output buffer.
    pub output_buffer: Span,
    /// In the TCP send buffer, until the cell's last byte was first sent.
    pub send_buffer: Span,
    /// Until the transmission that got through (zero without loss).
    pub retransmission: Span,
    /// In the queues of the sender's uplink and the receiver's downlink, serialisation included.
    pub link_queue: Span,
    /// Propagation between the links.
    pub propagation: Span,
    /// At the receiver, from arrival until the cell is read: for earlier bytes of the same connection, tokens of the relay's
    /// bucket, or its processor.
    pub head_of_line: Span,
}

impl Waits {
    /// The waits in the order of their fields.
    pub fn spans(&self) -> [Span; 7] {
        [
            self.circuit_queue,
            self.output_buffer,
            self.send_buffer,
            self.retransmission,
            self.link_queue,
            self.propagation,
            self.head_of_line,
        ]
    }
}

/// A relay's queues at a moment and its work since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelaySample {
    /// Cells in all circuit queues.
    pub circuit_queue_cells: u64,
    /// Bytes in all connections' output buffers.
    pub output_buffer_bytes: u64,
    /// Bytes written to TCP and not yet sent, all connections.
    pub tcp_unsent_bytes: u64,
    /// Bytes in the uplink's queue.
    pub uplink_queue_bytes: u64,
    /// Bytes in the downlink's queue.
    pub downlink_queue_bytes: u64,
    /// Cells forwarded or consumed since the last sample.
    pub cells_processed: u64,
    /// Bytes that left on the uplink since the last sample.
    pub sent_bytes: u64,
    /// Bytes that arrived on the downlink since the last sample.
    pub received_bytes: u64,
}

/// A host's totals over the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTotals {
    /// Cells forwarded or consumed.
    pub cells_processed: u64,
    /// Bytes that left on the uplink, headers included.
    pub sent_bytes: u64,
    /// Bytes that arrived on the downlink, headers included.
    pub received_bytes: u64,
    /// Packets the uplink's or downlink's queue or the path dropped.
    pub dropped_packets: u64,
    /// Retransmitted TCP segments.
    pub retransmissions: u64,
    /// TCP retransmission timeouts.
    pub timeouts: u64,
    /// TCP connections opened by this host.
    pub connections: u64,
    /// Highest number of sockets open at one time (file descriptors).
    pub peak_descriptors: u64,
    /// Most bytes that the kernel held for its sockets at a sample: written and not yet acknowledged,
    /// received and not yet read.
    pub peak_kernel_bytes: u64,
    /// Time the uplink was sending.
    pub uplink_busy: Span,
    /// Time the downlink was sending.
    pub downlink_busy: Span,
    /// Totals of the relay's controller, if it counts.
    pub control: Option<Totals>,
    /// Circuits that the relay closed, by reason.
    pub endings: Endings,
}

impl AddAssign for HostTotals {
    /// Adds the counts and takes the higher peak.
    fn add_assign(&mut self, other: HostTotals) {
        self.cells_processed += other.cells_processed;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.dropped_packets += other.dropped_packets;
        self.retransmissions += other.retransmissions;
        self.timeouts += other.timeouts;
        self.endings += other.endings;
        self.connections += other.connections;
        self.peak_descriptors = self.peak_descriptors.max(other.peak_descriptors);
        self.peak_kernel_bytes = self.peak_kernel_bytes.max(other.peak_kernel_bytes);
        self.uplink_busy = self.uplink_busy + other.uplink_busy;
        self.downlink_busy = self.downlink_busy + other.downlink_busy;
        if let Some(did) = other.control {
            *self.control.get_or_insert_default() += did;
        }
    }
}

/// A delivered packet, as an observer on its path sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The sender.
    pub from: Host,
    /// The receiver.
    pub to: Host,
    /// Its TCP or QUIC connection; packets of one connection have the same addresses and ports.
    pub flow: u32,
    /// With all headers.
    pub bytes: u32,
}

/// Takes the observations of one run, in order of time.
pub trait Recorder {
    /// Whether it needs [`packet`](Recorder::packet) calls.
    const WATCHES_PACKETS: bool = false;
    /// A packet has arrived at its receiver.
    fn packet(&mut self, _now: Time, _seen: Seen) {}
    /// Whether it needs [`event`](Recorder::event) calls. If false, they cost nothing.
    const WATCHES_EVENTS: bool = false;
    /// An event is about to be handled, on this host.
    fn event(&mut self, _now: Time, _at: Host) {}
    /// Called at simulated time `now`; must not depend on anything but its arguments and its own state.
    fn record(&mut self, now: Time, observation: &Observation);
}

impl Recorder for Vec<(Time, Observation)> {
    fn record(&mut self, now: Time, observation: &Observation) {
        self.push((now, observation.clone()));
    }
}

impl<R: Recorder> Recorder for &mut R {
    const WATCHES_PACKETS: bool = R::WATCHES_PACKETS;
    fn packet(&mut self, now: Time, seen: Seen) {
        (**self).packet(now, seen);
    }
    const WATCHES_EVENTS: bool = R::WATCHES_EVENTS;
    fn event(&mut self, now: Time, at: Host) {
        (**self).event(now, at);
    }
    fn record(&mut self, now: Time, observation: &Observation) {
        (**self).record(now, observation);
    }
}

impl<A: Recorder, B: Recorder> Recorder for (A, B) {
    const WATCHES_PACKETS: bool = A::WATCHES_PACKETS || B::WATCHES_PACKETS;
    fn packet(&mut self, now: Time, seen: Seen) {
        self.0.packet(now, seen);
        self.1.packet(now, seen);
    }
    const WATCHES_EVENTS: bool = A::WATCHES_EVENTS || B::WATCHES_EVENTS;
    fn event(&mut self, now: Time, at: Host) {
        self.0.event(now, at);
        self.1.event(now, at);
    }
    fn record(&mut self, now: Time, observation: &Observation) {
        self.0.record(now, observation);
        self.1.record(now, observation);
    }
}
