//! When KIST runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys;
use tidegate_control::units::{Span, Time};

use crate::control::Timer;
use crate::ids::ChannelId;

/// KIST's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KistParameters {
    /// Minimum time between two runs. Source: tor's `KISTSchedRunInterval`.
    #[schemars(extend("x-range" = "1 ms..=1 s"))]
    pub interval: Span,
    /// Congestion windows of unsent data that the kernel may hold beyond what it can send at once. Source: tor's
    /// `KISTSockBufSizeFactor`.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub buffer_factor: f64,
}

impl keys::Parameters for KistParameters {}

impl Default for KistParameters {
    fn default() -> KistParameters {
        KistParameters { interval: Span::from_millis(10), buffer_factor: 1.0 }
    }
}

/// When KIST runs, and for whom.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Channels with cells, in the order in which they got them.
    pub(super) pending: Vec<ChannelId>,
    pub(super) last: Option<Time>,
    pub(super) due: Option<Timer>,
    /// Channels of the run under way and what is known of their sockets, and how many are still to be asked about.
    pub(super) run: Vec<(ChannelId, Option<Limit>)>,
    pub(super) unasked: usize,
}

/// Bytes that a run may move to a channel's output buffer.
pub(super) type Limit = i64;

impl Runs {
    /// A channel has cells.
    pub(super) fn add(&mut self, now: Time, id: ChannelId, interval: Span) {
        if !self.pending.contains(&id) {
            self.pending.push(id);
        }
        if self.due.is_none() {
            let due = self.last.map_or(now, |last| now.max(last + interval));
            self.due = Some(Timer { due, set: now });
        }
    }

    /// A channel is gone.
    pub(super) fn remove(&mut self, id: ChannelId) {
        self.pending.retain(|other| *other != id);
        if let Some(at) = self.run.iter().position(|(other, _)| *other == id) {
            self.unasked -= usize::from(at + self.unasked >= self.run.len());
            self.run.remove(at);
        }
    }

    /// The run that was due begins; gives whom it is for.
    pub(super) fn begin(&mut self, now: Time) -> Vec<ChannelId> {
        (self.last, self.due) = (Some(now), None);
        std::mem::take(&mut self.pending)
    }

    /// The next channel whose socket must be looked at.
    pub(super) fn ask(&mut self) -> Option<ChannelId> {
        let at = self.run.len() - self.unasked;
        self.unasked = self.unasked.checked_sub(1)?;
        Some(self.run[at].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_an_interval_apart() {
        let mut runs = Runs::default();
        let interval = Span::from_millis(10);
        runs.add(Time(5), ChannelId(1), interval);
        assert_eq!(runs.due, Some(Timer { due: Time(5), set: Time(5) }));
        assert_eq!(runs.begin(Time(5)), [ChannelId(1)]);
        runs.add(Time(9), ChannelId(2), interval);
        runs.add(Time(9), ChannelId(1), interval);
        assert_eq!(runs.due, Some(Timer { due: Time(10_000_005), set: Time(9) }));
        runs.remove(ChannelId(2));
        assert_eq!(runs.begin(Time(10_000_005)), [ChannelId(1)]);
        assert_eq!(runs.due, None);
    }
}
