//! Time stamps: 33 bits of a 90 kHz clock, made continuous over their wrap.

use mpeg2ts_reader::packet::Packet;
use mpeg2ts_reader::pes::{PesContents, PesHeader, PtsDts};

/// Ticks per second.
pub(crate) const HZ: i64 = 90_000;
/// Time stamps count up to this and begin again.
const WRAP: i64 = 1 << 33;
/// A larger step backwards, or forwards, is another time line.
///
/// Pictures without decoding times go back by the depth of their reordering. Slide shows step forwards by seconds.
pub(crate) const BACK: i64 = HZ;
pub(crate) const FORTH: i64 = 10 * HZ;
/// A larger step forwards is a hole.
pub(crate) const HOLE: i64 = HZ * 3 / 2;
/// Duration of a frame before it is measured.
const FRAME: i64 = HZ / 25;

/// The beginning of a frame: its times, and its first bytes.
pub(crate) struct Start<'a> {
    pub presented: i64,
    pub decoded: i64,
    pub content: &'a [u8],
}

/// Reads the header of a PES packet; `None` without a time stamp.
pub(crate) fn start<'a>(packet: &Packet<'a>) -> Option<Start<'a>> {
    let payload = packet.payload().filter(|_| packet.payload_unit_start_indicator())?;
    let PesContents::Parsed(Some(contents)) = PesHeader::from_bytes(payload)?.contents() else { return None };
    let (presented, decoded) = match contents.pts_dts().ok()? {
        PtsDts::PtsOnly(Ok(pts)) => (pts.value() as i64, pts.value() as i64),
        PtsDts::Both { pts: Ok(pts), dts: Ok(dts) } => (pts.value() as i64, dts.value() as i64),
        _ => return None,
    };
    // A picture is shown soon after it is decoded; another distance is wrong.
    let distance = difference(presented, decoded);
    let presented = decoded + if (0..FORTH).contains(&distance) { distance } else { 0 };
    Some(Start { presented, decoded, content: contents.payload() })
}

/// `a - b` for time stamps that wrap.
fn difference(a: i64, b: i64) -> i64 {
    let apart = (a - b).rem_euclid(WRAP);
    if apart < WRAP / 2 { apart } else { apart - WRAP }
}

/// The clock of a program: all of its streams share one.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    last: Option<i64>,
}

impl Clock {
    /// The time of a stamp, continuous over the wrap.
    pub(crate) fn time(&self, stamp: i64) -> i64 {
        self.last.map_or(stamp, |last| last + difference(stamp, last))
    }

    /// Notes that the program is at this time.
    pub(crate) fn advance(&mut self, time: i64) {
        self.last = Some(time);
    }
}

/// The times of one stream.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// When the last frame is decoded.
    pub last: Option<i64>,
    /// The latest time at which a frame is shown.
    top: Option<i64>,
    /// The last step, and the one before. The shorter one is the duration of a frame: the other may be a hole.
    steps: [Option<i64>; 2],
    /// Bytes of the last frame, and of the one before.
    size: usize,
    size_before: usize,
}

impl Track {
    /// Takes the times of the next frame.
    pub(crate) fn advance(&mut self, shown: i64, decoded: i64) {
        if let Some(step) = self.step(decoded)
            && (1..=FORTH).contains(&step)
        {
            self.steps = [Some(step), self.steps[0]];
        }
        self.last = Some(decoded);
        self.top = Some(self.top.map_or(shown, |top| top.max(shown)));
        (self.size_before, self.size) = (self.size, 0);
    }

    /// Begins again with a frame that is shown then.
    pub(crate) fn restart(&mut self, shown: i64) {
        self.top = Some(shown);
    }

    /// Counts bytes of the last frame.
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.size += bytes;
    }

    /// Time since the last frame.
    pub(crate) fn step(&self, decoded: i64) -> Option<i64> {
        self.last.map(|last| decoded - last)
    }

    /// Whether a frame that is shown then goes back behind frames before it.
    pub(crate) fn goes_back(&self, shown: i64) -> bool {
        // Encoders may overlap by the priming of their sound.
        self.top.is_some_and(|top| shown < top - HZ / 4)
    }

    /// End of the last frame that is shown.
    pub(crate) fn end(&self) -> Option<i64> {
        self.top.map(|top| top + self.frame())
    }

    /// The same, if a frame lasts as long as it has bytes: the last packet of a sound may hold less than others.
    pub(crate) fn end_by_size(&self) -> Option<i64> {
        let (size, before) = (self.size as i64, self.size_before as i64);
        let frame = if before > 0 { self.frame().min(self.frame() * size / before) } else { self.frame() };
        self.top.map(|top| top + frame)
    }

    /// Duration of a frame.
    pub(crate) fn frame(&self) -> i64 {
        self.steps.into_iter().flatten().min().unwrap_or(FRAME)
    }

    /// A step that is longer than usual: slide shows have regular holes.
    pub(crate) fn unusual(&self) -> i64 {
        if self.steps[0].is_some() { 3 * self.frame() } else { FORTH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_over_the_wrap() {
        let (mut clock, mut track) = (Clock::default(), Track::default());
        let first = WRAP - 2 * HZ;
        for n in 0..100 {
            let time = clock.time((first + n * 3600) % WRAP);
            assert_eq!(time, first + n * 3600);
            clock.advance(time);
            track.advance(time + 3000, time);
        }
        assert_eq!(track.end(), Some(first + 100 * 3600 + 3000));
        let now = first + 99 * 3600;
        assert_eq!(track.step(clock.time((now + HZ * 60) % WRAP)), Some(HZ * 60));
        assert_eq!(track.step(clock.time((now - HZ * 60) % WRAP)), Some(-HZ * 60));
        assert!(track.goes_back(now - HZ) && !track.goes_back(now));
    }

    #[test]
    fn the_last_packet_of_a_sound_lasts_as_long_as_it_has_bytes() {
        let mut track = Track::default();
        for n in 0..4 {
            track.advance(n * HZ, n * HZ);
            track.grow(if n < 3 { 1000 } else { 250 });
        }
        assert_eq!((track.end(), track.end_by_size()), (Some(4 * HZ), Some(3 * HZ + HZ / 4)));
    }
}
