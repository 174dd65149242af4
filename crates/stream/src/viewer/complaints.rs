//! Complaints about silent parents, and reports to the server.

use tidegate_control::units::{Span, Time};

use super::{Phase, Slice, Viewer, total};
use crate::message::{Fault, Message, Report};
use crate::reorder::Counters;
use crate::tree::NOBODY;

/// Least time without packets after which a slice is silent, if other slices go on.
///
/// It is longer for slices with jitter and while a new parent connects; the last value is the maximum.
const SILENCE: Span = Span::from_millis(250);
const UNEVEN: u64 = 6;
const LONGEST_SILENCE: Span = Span::from_millis(1000);
/// Time between complaints about one parent.
const AGAIN: Span = Span::from_millis(600);
/// The viewer blames a parent that loses this share of a slice between two reports.
const LOSSY: f64 = 0.1;

impl Viewer {
    /// Complains about slices that are silent while the stream goes on.
    pub(super) fn listen(&mut self, now: Time) {
        let Phase::In(welcome) = self.phase else { return };
        let newest = self.reorder.newest().unwrap_or(0).max(self.newest);
        for slice in 0..total(&welcome) {
            let silence = self.silence(slice);
            // After a pause of the whole stream, slices resume one by one. Only the time since then counts.
            let heard = self.reorder.last(slice);
            let waits = self.slices[slice].heard;
            let quiet = |at: Time| now.since(at.max(self.resumed).max(waits)) > silence;
            let behind = heard.is_none_or(|(group, _)| newest > group + 1)
                && quiet(heard.map_or(Time::ZERO, |(_, at)| at));
            let Slice { parent, since, delivers, .. } = self.slices[slice];
            let since = if delivers { since } else { since + (self.round_trip * 2).min(LONGEST_SILENCE) };
            let running = newest > 0 && parent != NOBODY;
            if behind && running && now.since(since) > silence {
                let first = !std::mem::replace(&mut self.slices[slice].silent, true);
                if first || now.since(since) > AGAIN {
                    self.slices[slice].since = now;
                    self.tell(Message::Complaint { slice: slice as u8, parent, fault: Fault::Silent });
                }
            }
        }
    }

    /// Time without packets after which a slice is silent.
    fn silence(&self, slice: usize) -> Span {
        let uneven = self.reorder.deviation(slice) * UNEVEN;
        SILENCE.max(uneven.min(LONGEST_SILENCE)).max(self.reorder.spacing() * 3)
    }

    pub(super) fn report(&mut self, _now: Time) {
        let Phase::In(welcome) = self.phase else { return };
        for slice in 0..usize::from(welcome.slices) {
            let (expected, missed) = self.reorder.take_losses(slice);
            let Slice { parent, silent, .. } = self.slices[slice];
            let lossy = expected >= 10 && f64::from(missed) > LOSSY * f64::from(expected);
            if lossy && !silent && parent != NOBODY {
                self.tell(Message::Complaint { slice: slice as u8, parent, fault: Fault::Loses });
            }
        }
        let Counters { delivered, gaps, duplicates, recovered, .. } = self.reorder.counters;
        let report = Report {
            delivered: delivered as u32,
            gaps: gaps as u32,
            duplicates: duplicates as u32,
            recovered: recovered as u32,
            forwarded: self.counts.forwarded,
            lag: self.lags.recent_median(),
        };
        self.tell(Message::Report(report));
    }
}
