//! TCP's small queues (Linux, since 3.6): how much of a connection waits in its own host's uplink.
//!
//! A queue serves connections by what they have in it. So a connection puts only a few bursts there, what is more
//! waits in its send
//! buffer, and who has little to send, such as SENDMEs on the way back, does not wait behind who has much.

use std::collections::VecDeque;

use tidegate_control::units::Time;

/// Bytes of a connection that are still in the uplink.
#[derive(Clone, Debug)]
pub(super) struct SmallQueue {
    /// When each segment has left, and its payload.
    held: VecDeque<(Time, u32)>,
    bytes: u64,
}

impl SmallQueue {
    pub(crate) fn new() -> SmallQueue {
        SmallQueue { held: VecDeque::new(), bytes: 0 }
    }

    /// A segment was given to the uplink, which it leaves at `departs`: not before the one given before it.
    pub(crate) fn push(&mut self, departs: Time, bytes: u32) {
        self.held.push_back((departs, bytes));
        self.bytes += u64::from(bytes);
    }

    /// When the first segment leaves, if there are more than so many bytes.
    pub(crate) fn above(&mut self, now: Time, limit: u64) -> Option<Time> {
        while let Some((departs, bytes)) = self.held.front()
            && *departs <= now
        {
            self.bytes -= u64::from(*bytes);
            self.held.pop_front();
        }
        (self.bytes > limit).then(|| self.held.front().map_or(now, |(departs, _)| *departs))
    }
}
