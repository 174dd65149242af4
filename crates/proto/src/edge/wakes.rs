//! The streams of a node that wait because their peers limit their rate, and until when.

use std::collections::BTreeSet;

use tidegate_control::units::Time;

use crate::ids::StreamKey;

/// When streams may go on. Each waiting stream has one entry.
#[derive(Debug, Default)]
pub(crate) struct Wakes(BTreeSet<(Time, StreamKey)>);

impl Wakes {
    /// When the next stream may go on.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(due, _)| *due)
    }

    /// Takes a stream that may go on at `now`.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<StreamKey> {
        let (due, _) = self.0.first()?;
        if *due <= now { self.0.pop_first().map(|(_, stream)| stream) } else { None }
    }

    /// Replaces the entry of a stream.
    pub(super) fn replace(&mut self, stream: StreamKey, old: Option<Time>, new: Option<Time>) {
        if let Some(old) = old {
            self.0.remove(&(old, stream));
        }
        if let Some(new) = new {
            self.0.insert((new, stream));
        }
    }
}
