//! Arrival statistics of a slice.

use tidegate_control::units::Time;

use crate::packet::Video;

/// Arrival statistics of a slice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Group of the first packet and of the newest, if any.
    pub(super) first: Option<u32>,
    pub(super) newest: u32,
    pub(super) at: Time,
    /// Arrival on our clock minus sending on the server's clock, ms: mean and deviation.
    pub(super) late: f32,
    pub(super) deviation: f32,
    /// Expected and late packets since the last query.
    pub(super) expected: u32,
    pub(super) missed: u32,
}

impl Pace {
    /// Counts a packet that came through the tree, or the first packet.
    pub(super) fn arrived(&mut self, now: Time, video: &Video) {
        let late = ((now.0 / 1_000_000) as i64 - i64::from(video.sent)) as f32;
        if self.first.is_none() {
            (self.first, self.newest, self.at) = (Some(video.key.group), video.key.group, now);
            (self.late, self.deviation) = (late, 20.0);
        }
        if video.key.group >= self.newest {
            self.expected += video.key.group - self.newest;
            (self.newest, self.at) = (video.key.group, now);
            // Repairs are late and say nothing about the slice, so only packets in order count.
            self.deviation += 0.05 * ((late - self.late).abs() - self.deviation);
            self.late += 0.05 * (late - self.late);
        }
    }
}
