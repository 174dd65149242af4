//! The streams besides the one that leads: they may go on while it is silent, and may jump before it does.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;

use super::timeline::{BACK, HOLE, HZ, Track};

/// A stream that jumped is at least this far from the one that leads.
const FAR: i64 = 3 * HZ;
/// The stream that leads must jump within this time too.
const SETTLED: i64 = HZ;
/// Packets of another time line wait for its first segment.
const NEVER: i64 = i64::MAX / 2;
/// Maximum number of bytes that wait.
const MOST_HELD: usize = 1 << 18;

/// The streams of a program besides the leading one.
#[derive(Debug, Default)]
pub(crate) struct Companions {
    /// The stream that leads while the picture is silent.
    pub sound: Option<u16>,
    tracks: BTreeMap<u16, Track>,
    held: Held,
    /// How far the sound is ahead of the picture, if it jumped to another time line.
    ahead: i64,
    /// Whether the sound jumped, and its next frame tells how far.
    jumped: bool,
}

/// Packets of streams that jumped. They belong to the next segment if the leading stream jumps too.
#[derive(Debug, Default)]
struct Held {
    pids: BTreeSet<u16>,
    packets: BytesMut,
    /// When the leading stream decoded its last frame before the jump.
    since: i64,
    /// Whether the last frame of the sound is on another time line. Subtitles and data may come at any time.
    stays: bool,
}

/// The fate of packets that are held back.
pub(crate) enum Settled {
    /// They wait, if packets are held back at all.
    Waits,
    /// Their stream came back.
    Back(BytesMut),
    /// Their stream stays on another time line, which the next segment begins.
    Apart,
}

impl Companions {
    /// The companions of a picture with this sound.
    pub(crate) fn new(sound: Option<u16>) -> Companions {
        Companions { sound, ..Companions::default() }
    }

    /// Whether a frame of this stream jumps.
    pub(crate) fn jumps(&self, pid: u16, time: i64, lead: Option<i64>) -> bool {
        let step = self.tracks.get(&pid).and_then(|track| track.step(time));
        let apart = lead.is_none_or(|lead| !(-FAR..=FAR).contains(&(time - lead)));
        step.is_some_and(|step| !(-BACK..=HOLE).contains(&step)) && apart
    }

    /// Takes the time of a frame that continues its stream.
    pub(crate) fn advance(&mut self, pid: u16, time: i64) {
        self.held.stays &= self.sound != Some(pid);
        self.tracks.entry(pid).or_default().advance(time, time);
    }

    /// Times of the sound.
    pub(crate) fn sound(&self) -> Option<&Track> {
        self.tracks.get(&self.sound?)
    }

    /// Takes the first time of the sound, while the leading stream is at another one.
    pub(crate) fn begin_sound(&mut self, sound: i64, lead: i64) {
        // Sound that did not jump is ahead only because the multiplexer delays the picture.
        if std::mem::take(&mut self.jumped) {
            self.ahead = apart(sound, lead);
        }
    }

    /// Measures again how far sound that jumped is ahead. Returns whether it came back.
    pub(crate) fn compare(&mut self, lead: i64) -> bool {
        let Some(end) = self.sound().and_then(Track::end).filter(|_| self.ahead != 0) else { return false };
        self.ahead = apart(end, lead);
        self.ahead == 0
    }

    /// A time of the sound on the leading stream's time line.
    pub(crate) fn shared(&self, sound: i64) -> i64 {
        sound - self.ahead
    }

    /// When the sound ends, on the leading stream's time line.
    pub(crate) fn sound_end(&self) -> Option<i64> {
        self.sound().and_then(Track::end).map(|end| self.shared(end))
    }

    /// Holds packets of this stream back from now on.
    pub(crate) fn hold(&mut self, pid: u16, lead: i64) {
        if self.held.pids.is_empty() {
            self.held.since = lead;
        }
        self.held.pids.insert(pid);
        self.held.stays |= self.sound == Some(pid);
    }

    /// Keeps a packet if its stream is held back.
    pub(crate) fn keep(&mut self, pid: u16, packet: &[u8]) -> bool {
        let is_held = self.held.pids.contains(&pid);
        if is_held {
            self.held.packets.extend_from_slice(packet);
        }
        is_held
    }

    /// Decides about packets that are held back, when the leading stream went on to this time.
    pub(crate) fn settle(&mut self, lead: i64) -> Settled {
        if self.held.pids.is_empty() || lead - self.held.since <= SETTLED {
            Settled::Waits
        } else if self.held.stays {
            self.held.since = NEVER;
            Settled::Apart
        } else {
            Settled::Back(self.release())
        }
    }

    /// Whether more packets wait than may.
    pub(crate) fn is_full(&self) -> bool {
        self.held.packets.len() > MOST_HELD
    }

    /// Returns the packets that are held back. Their streams begin again.
    pub(crate) fn release(&mut self) -> BytesMut {
        for pid in &self.held.pids {
            self.tracks.remove(pid);
        }
        self.jumped = self.held.stays;
        std::mem::take(&mut self.held).packets
    }

    /// Begins another time line. Packets that are held back belong to it.
    pub(crate) fn restart(&mut self) {
        self.tracks.clear();
        (self.ahead, self.jumped) = (0, false);
        self.held.since = NEVER;
    }
}

/// How far the sound is ahead, if that is far.
fn apart(sound: i64, lead: i64) -> i64 {
    Some(sound - lead).filter(|ahead| *ahead > FAR).unwrap_or(0)
}
