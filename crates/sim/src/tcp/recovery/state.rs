//! Loss recovery state of a sender.

use tidegate_control::units::{Span, Time};

/// The sender's belief about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tcp) enum Phase {
    /// Nothing is amiss.
    Open,
    /// Something arrived out of order.
    Disorder,
    /// The window is being reduced without a loss in sight (a loss probe repaired it).
    Reduced,
    /// Lost segments are being repaired.
    Recovery,
    /// The retransmission timer fired.
    Loss,
}

/// What is needed only around a loss; freed afterwards.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Recovery {
    /// The phase ends when this offset is acknowledged.
    pub high: u64,
    /// Window and threshold to restore if the loss was spurious; a zero threshold disables this.
    pub prior_cwnd: u32,
    pub prior_threshold: u32,
    pub prr_delivered: u32,
    pub prr_out: u32,
    /// Set from the reduction until it is undone or confirmed.
    pub undo: bool,
    /// Retransmissions not yet reported as duplicates; negative before the first.
    pub undo_retransmissions: i32,
    /// When the first retransmission left, in milliseconds; zero: none.
    pub first_retransmission: u32,
    /// RACK: latest transmission known delivered, the offset after it, its round-trip time.
    pub latest_sent: Time,
    pub latest_end: u64,
    pub latest_rtt: Span,
    /// F-RTO is looking for evidence that the timeout was spurious, and meanwhile
    pub frto: bool,
    /// only new data leave.
    pub new_data_only: bool,
    /// A loss probe must be sent.
    pub probe: bool,
    /// A loss probe is under way; it is answered at this offset.
    pub probe_end: Option<u64>,
    /// It repeated data.
    pub probe_retransmitted: bool,
    /// RACK's reordering window in quarters of the smallest round-trip time.
    pub reorder_steps: u8,
}

/// Further effects of an acknowledgement, besides delivery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    pub advanced: bool,
    pub sacked: u32,
    pub duplicate: bool,
    /// Repeats the last acknowledgement and says nothing new.
    pub repeated: bool,
    pub echo: u32,
    pub original: bool,
}
