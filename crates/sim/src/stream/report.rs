//! Results of a run of a stream.

use tidegate_control::units::Span;
use tidegate_stream::lag::Lags;
use tidegate_stream::message::Refusal;
use tidegate_stream::server::Counters;

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The viewers of the plan, in its order.
    pub viewers: Vec<Watched>,
    /// Bytes by account, as they left uplinks, with what QUIC, UDP and IP add.
    pub bytes: Accounts,
    /// The server's counters.
    pub server: Counters,
    /// Complaints that the server ignored.
    pub doubted: u64,
    /// Packets of the stream that were sent.
    pub packets: u64,
    /// Once a second: viewers in, mean depth over all slices, the deepest, orphans.
    pub seconds: Vec<Second>,
    /// The trees at the end: (slice, parent, child).
    pub edges: Vec<(usize, u16, u16)>,
    /// Mean latency to the server over trees and viewers at the end, microseconds, as the server knows it.
    pub tree_latency: f64,
    /// How long the server took to know that a viewer was dead, to the second above.
    pub found: Vec<f64>,
    /// Packets that viewers played and the source did not send.
    pub altered: u64,
    /// Events that the run took.
    pub events: u64,
    /// One number for the run.
    pub digest: u64,
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accounts {
    /// Video, parity and repairs.
    pub video: u64,
    /// Of that, what the server sent.
    pub server_video: u64,
    /// Exploration.
    pub exploration: u64,
    /// Manifests: the signatures of the stream.
    pub signatures: u64,
    /// Messages, handshakes, requests for repair.
    pub control: u64,
    /// Datagrams that uplinks dropped.
    pub dropped: u64,
}

impl Accounts {
    /// All bytes that left uplinks.
    fn sent(&self) -> u64 {
        self.video + self.exploration + self.control + self.signatures
    }
}

/// A second of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    /// Viewers in.
    pub viewers: usize,
    /// Mean depth of viewers over all slices.
    pub depth: f64,
    /// The deepest.
    pub deepest: usize,
    /// Subtrees without a parent.
    pub orphans: usize,
    /// Data slices in use.
    pub active: usize,
}

/// Results of a viewer.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Packets played.
    pub delivered: u64,
    /// Packets that should have been played: from its first to its end.
    pub expected: u64,
    /// Packets given up.
    pub gaps: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets made from parity.
    pub recovered: u64,
    /// From coming to the first packet played.
    pub start_up: Option<Span>,
    /// Why it is not in, if it is not.
    pub refused: Option<Refusal>,
    /// How long slices that fell silent were silent, ms.
    pub outages: Vec<u32>,
    /// Ages of packets when played.
    pub lags: Lags,
    /// Whether it was killed.
    pub killed: bool,
    /// Children over all slices at the end.
    pub children: usize,
}

impl Report {
    fn counted(&self) -> impl Iterator<Item = &Watched> {
        self.viewers.iter().filter(|viewer| !viewer.killed && viewer.start_up.is_some())
    }

    /// Packets played of those that should have been, over all viewers that were not killed.
    pub fn continuity(&self) -> f64 {
        let (played, expected) = self
            .counted()
            .fold((0, 0), |(p, e), viewer| (p + viewer.delivered.min(viewer.expected), e + viewer.expected));
        if expected == 0 { 0.0 } else { played as f64 / expected as f64 }
    }

    /// Packets that players gave up, over all viewers that were not killed.
    pub fn gaps(&self) -> u64 {
        self.counted().map(|viewer| viewer.gaps).sum()
    }

    /// A quantile of packets' ages when played, seconds.
    pub fn lag(&self, share: f64) -> f64 {
        let mut all = Lags::default();
        self.counted().for_each(|viewer| all.merge(&viewer.lags));
        all.quantile(share) as f64 / 1e3
    }

    /// A quantile of start-up delays, seconds.
    pub fn start_up(&self, share: f64) -> f64 {
        quantile(self.counted().filter_map(|viewer| viewer.start_up).map(|span| span.as_secs_f64()), share)
    }

    /// A quantile of orphans' outages, seconds; zero without any.
    pub fn outage(&self, share: f64) -> f64 {
        quantile(self.counted().flat_map(|viewer| &viewer.outages).map(|ms| f64::from(*ms) / 1e3), share)
    }

    /// Control, exploration and signatures as a share of all bytes.
    pub fn overhead(&self) -> f64 {
        let Accounts { exploration, control, signatures, .. } = self.bytes;
        (exploration + control + signatures) as f64 / self.bytes.sent().max(1) as f64
    }

    /// Signatures as a share of all bytes.
    pub fn signatures(&self) -> f64 {
        self.bytes.signatures as f64 / self.bytes.sent().max(1) as f64
    }
}

/// The quantile of a share.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}
