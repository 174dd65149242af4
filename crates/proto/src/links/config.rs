//! Configuration of how a node moves cells.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::{Parameters, Wrong};
use tidegate_control::random::Seed;
use tidegate_control::units::{Bytes, Span};

use super::limits::Limits;
use crate::conflux::Split;
use crate::conflux::by_time::Throughput;
use crate::conflux::split::Splitter;
use crate::control::windows::{FixedWindows, Windows};
use crate::control::{Clock, Control, StreamFlow};
use crate::ids::RelayId;
use crate::scheduler::Discipline;
use crate::scheduler::round_robin::RoundRobin;
use crate::switching::Switching;
use crate::transport::Transport;

/// When a channel's output buffer takes cells from its circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct OutputBuffer {
    /// High mark: the buffer is filled up to this size, at least one cell. Source: tor's `OR_CONN_HIGHWATER`.
    #[serde(rename = "high", with = "tidegate_control::text::size")]
    #[schemars(with = "Bytes", extend("x-range" = "514 B..=4294967295 B"))]
    pub high_bytes: u32,
    /// Low mark: the buffer is filled again once it falls to this size. Source: tor's `OR_CONN_LOWWATER`.
    #[serde(rename = "low", with = "tidegate_control::text::size")]
    #[schemars(with = "Bytes", extend("x-range" = "..=4294967295 B"))]
    pub low_bytes: u32,
}

impl Parameters for OutputBuffer {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.low_bytes > self.high_bytes).then_some((
            "the output buffer's `high` is below `low`",
            "tor: high = \"32 KiB\", low = \"16 KiB\"",
        ))
    }
}

/// Circuit queue lengths at which an exit or client stops or resumes packaging, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CircuitQueue {
    /// The exit or client stops packaging at this length, which is at least what a circuit SENDME acknowledges. Source: tor's
    /// `cc_cellq_high`.
    #[schemars(range(min = 1))]
    pub high: u32,
    /// The exit or client resumes packaging at this length. Source: tor's `cc_cellq_low`.
    pub low: u32,
}

impl Default for CircuitQueue {
    fn default() -> CircuitQueue {
        CircuitQueue { high: 256, low: 10 }
    }
}

impl CircuitQueue {
    /// Checks that a SENDME is due before the queue stops an end. Cells may pass the queue, and only a SENDME wakes the end then.
    pub(crate) fn check(&self, increment: u32) -> Result<(), Wrong> {
        if self.high >= increment {
            return Ok(());
        }
        Err(Wrong {
            path: vec!["circuit-queue".into(), "high".into()],
            at_key: false,
            cause: format!("an end stops at {} cells, before a SENDME is due for {increment}", self.high),
            cure: format!("set at least {increment}, or lower `windows.circuit-increment`"),
        })
    }
}

impl Parameters for CircuitQueue {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.low > self.high)
            .then_some(("the circuit queue's `high` is below `low`", "tor: high = 256, low = 10"))
    }
}

impl Default for OutputBuffer {
    fn default() -> OutputBuffer {
        OutputBuffer { high_bytes: 32 << 10, low_bytes: 16 << 10 }
    }
}

/// KIST's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KistParameters {
    /// Minimum time between two runs. Source: tor's `KIST_SCHED_RUN_INTERVAL_DEFAULT`, 2 ms since 0.4.8.2; 10 ms before.
    #[schemars(extend("x-range" = "1 ms..=1 s"))]
    pub interval: Span,
    /// Congestion windows of unsent data that the kernel may hold beyond what it can send at once. Source: tor's
    /// `KISTSockBufSizeFactor`.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub buffer_factor: f64,
    /// Subtracts the unsent bytes that the kernel holds from what may be written. Shadow before 2.0 does not report them
    /// (SIOCOUTQNSD), so tor takes zero there, and kernel queues grow to the size of the socket's buffer. Source: tor's
    /// `update_socket_info_impl`.
    pub counts_unsent: bool,
}

impl Parameters for KistParameters {}

impl Default for KistParameters {
    fn default() -> KistParameters {
        KistParameters { interval: Span::from_millis(2), buffer_factor: 1.0, counts_unsent: true }
    }
}

/// Limits on a circuit's cells in flight, at both of its ends.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Control with windows, if it has them.
    pub control: Arc<dyn Control>,
    /// Fixed windows otherwise.
    pub windows: Windows,
}

/// Configuration of how a node moves cells.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which connection a circuit uses.
    pub transport: Transport,
    /// Relays that are not upgraded to `transport`: circuits to them share one connection.
    pub legacy: Arc<BTreeSet<RelayId>>,
    /// Whether shared connections that this node opened close with their last circuit. A connection that serves one
    /// circuit always does.
    pub close_unused: bool,
    /// Which circuit of a connection goes next.
    pub scheduler: Arc<dyn Discipline>,
    /// KIST, which moves cells of all connections at intervals. Without it each connection fills its output buffer as
    /// soon as that takes cells (tor: `Schedulers KIST` or `Vanilla`).
    pub kist: Option<KistParameters>,
    /// How circuits' rates are controlled.
    pub control: Arc<dyn Control>,
    /// Fixed windows, used unless `control` has its own windows.
    pub windows: Windows,
    /// Limits for circuits of clients that decline congestion control; `None`: the fixed `windows`.
    pub otherwise: Option<Ends>,
    /// Flow control of streams of circuits with congestion control.
    pub stream_flow: StreamFlow,
    /// The node's bandwidth in bytes per second, as it knows it; infinite if unlimited.
    pub bandwidth: f64,
    /// Connection output buffers.
    pub output_buffer: OutputBuffer,
    /// Length of a circuit queue that stops its own end from packaging (tor: cc_cellq_high, 256).
    pub queue_high: u32,
    /// Length of a circuit queue that lets its own end package again (tor: cc_cellq_low, 10).
    pub queue_low: u32,
    /// A circuit queue longer than this ends the circuit (tor: circ_max_cell_queue_size, 50,000).
    pub queue_limit: u32,
    /// Circuits on one channel; more are refused.
    pub circuits_per_channel: u32,
    /// Cells that windows do not limit, such as DESTROY, that a neighbour may leave unread in the output buffer before
    /// the channel is closed.
    pub unread_limit: u32,
    /// Limits on the resources that neighbours use; `None` trusts them, as simulations do.
    pub limits: Option<Limits>,
    /// Whether and how circuits move away from congested connections.
    pub switching: Option<Switching>,
    /// Whether and how clients' streams go over two circuits at once ([`crate::conflux`]).
    pub conflux: Option<Arc<dyn Split>>,
    /// Seed of the nonces of moves; secret, and different for each node.
    pub nonces: Seed,
    /// When the controller takes its steps.
    pub clock: Clock,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: Transport::Vanilla,
            legacy: Arc::default(),
            close_unused: false,
            scheduler: Arc::new(RoundRobin),
            kist: None,
            control: Arc::new(FixedWindows),
            windows: Windows::default(),
            otherwise: None,
            stream_flow: StreamFlow::default(),
            bandwidth: f64::INFINITY,
            output_buffer: OutputBuffer::default(),
            queue_high: CircuitQueue::default().high,
            queue_low: CircuitQueue::default().low,
            queue_limit: 50_000,
            circuits_per_channel: 1 << 16,
            unread_limit: 1 << 12,
            limits: None,
            switching: None,
            conflux: None,
            nonces: Seed::root(0),
            clock: Clock::default(),
        }
    }
}

impl Config {
    /// Creates the splitter that divides what this node sends among the legs of the set with this nonce.
    pub(crate) fn split(&self, nonce: &[u8; 32]) -> Box<dyn Splitter> {
        let number = nonce.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let seed = self.nonces.fork("split").fork_index(number);
        self.conflux.as_ref().map_or_else(|| Throughput.build(seed), |split| split.build(seed))
    }
}
