//! Time stamps of one stream: 33 bits of a 90 kHz clock, made continuous over their wrap.

use mpeg2ts_reader::packet::Packet;
use mpeg2ts_reader::pes::{PesContents, PesHeader, PtsDts};

/// Ticks per second.
pub(crate) const HZ: i64 = 90_000;
/// Time stamps count up to this and begin again.
const WRAP: i64 = 1 << 33;
/// A step backwards of more than the first, or forwards of more than the second, is another time line.
///
/// Pictures without decoding times go back by the depth of their reordering. Slide shows step forwards by seconds.
const BACK: i64 = HZ;
const FORTH: i64 = 10 * HZ;
/// Duration of a frame before it is measured, and the longest that is believed.
const FRAME: i64 = HZ / 25;
const LONGEST_FRAME: i64 = HZ;

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

/// The time line of a stream.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    last: Option<i64>,
    /// Latest end of a frame.
    end: i64,
    frame: Option<i64>,
}

impl Timeline {
    /// Takes a frame's times. Returns when it is shown and decoded, or `None` if it begins another time line.
    pub(crate) fn advance(&mut self, start: &Start<'_>) -> Option<(i64, i64)> {
        let step = self.last.map_or(0, |last| difference(start.decoded, last));
        if !(-BACK..=FORTH).contains(&step) {
            return None;
        }
        if (1..=LONGEST_FRAME).contains(&step) {
            self.frame = Some(step);
        }
        let decoded = self.last.map_or(start.decoded, |last| last + step);
        let presented = decoded + start.presented - start.decoded;
        self.last = Some(decoded);
        self.end = self.end.max(presented + self.frame());
        Some((presented, decoded))
    }

    /// End of the last frame that is shown.
    pub(crate) fn end(&self) -> i64 {
        self.end
    }

    /// Duration of a frame.
    pub(crate) fn frame(&self) -> i64 {
        self.frame.unwrap_or(FRAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: i64) -> Start<'static> {
        Start { presented: ticks + 3000, decoded: ticks, content: &[] }
    }

    #[test]
    fn time_goes_on_over_the_wrap_and_stops_at_jumps() {
        let mut timeline = Timeline::default();
        let first = WRAP - 2 * HZ;
        for n in 0..100 {
            let (presented, decoded) = timeline.advance(&at((first + n * 3600) % WRAP)).expect("goes on");
            assert_eq!((presented, decoded), (first + n * 3600 + 3000, first + n * 3600));
        }
        assert_eq!(timeline.end(), first + 100 * 3600 + 3000);
        let now = (first + 99 * 3600) % WRAP;
        assert!(timeline.advance(&at(now + HZ * 9)).is_some());
        assert!(timeline.advance(&at(now + HZ * 60)).is_none());
        assert!(timeline.advance(&at(now)).is_none());
    }
}
