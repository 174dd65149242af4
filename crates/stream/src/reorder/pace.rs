//! How the packets of one slice come.

use tidegate_control::units::Time;

use crate::packet::Video;

/// How a slice comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The group of the first packet, and of the newest, if one came.
    pub(super) first: Option<u32>,
    pub(super) newest: u32,
    pub(super) at: Time,
    /// Arrival by our clock less sending by the server's, ms: mean and deviation.
    pub(super) late: f32,
    pub(super) deviation: f32,
    /// Packets expected and not here in time since this was last asked.
    pub(super) expected: u32,
    pub(super) missed: u32,
}

impl Pace {
    /// A packet came by the slice's tree, or its first.
    pub(super) fn arrived(&mut self, now: Time, video: &Video) {
        let late = ((now.0 / 1_000_000) as i64 - i64::from(video.sent)) as f32;
        if self.first.is_none() {
            (self.first, self.newest, self.at) = (Some(video.key.group), video.key.group, now);
            (self.late, self.deviation) = (late, 20.0);
        }
        if video.key.group >= self.newest {
            self.expected += video.key.group - self.newest;
            (self.newest, self.at) = (video.key.group, now);
            // Repairs come late and say nothing about the slice; what comes in order does.
            self.deviation += 0.05 * ((late - self.late).abs() - self.deviation);
            self.late += 0.05 * (late - self.late);
        }
    }
}
