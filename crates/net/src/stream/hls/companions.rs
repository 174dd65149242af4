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
}

/// Packets of streams that jumped. They belong to the next segment if the leading stream jumps too.
#[derive(Debug, Default)]
struct Held {
    pids: BTreeSet<u16>,
    packets: BytesMut,
    /// When the leading stream decoded its last frame before the jump.
    since: i64,
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

    /// Takes a frame's time.
    pub(crate) fn advance(&mut self, pid: u16, time: i64) {
        self.tracks.entry(pid).or_default().advance(time, time);
    }

    /// Times of the sound.
    pub(crate) fn sound(&self) -> Option<&Track> {
        self.tracks.get(&self.sound?)
    }

    /// Holds packets of this stream back from now on.
    pub(crate) fn hold(&mut self, pid: u16, lead: i64) {
        if self.held.pids.is_empty() {
            self.held.since = lead;
        }
        self.held.pids.insert(pid);
    }

    /// Keeps a packet if its stream is held back.
    pub(crate) fn keep(&mut self, pid: u16, packet: &[u8]) -> bool {
        let is_held = self.held.pids.contains(&pid);
        if is_held {
            self.held.packets.extend_from_slice(packet);
        }
        is_held
    }

    /// Returns the packets that need not wait longer, because the leading stream went on to this time.
    pub(crate) fn settled(&mut self, lead: i64) -> Option<BytesMut> {
        let settled = lead - self.held.since > SETTLED;
        (!self.held.pids.is_empty() && settled).then(|| self.release())
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
        std::mem::take(&mut self.held).packets
    }

    /// Begins another time line. Packets that are held back belong to it.
    pub(crate) fn restart(&mut self) {
        self.tracks.clear();
        self.held.since = NEVER;
    }
}
