//! Frame of a stream in a message, answer or cell: a chunk and acknowledgements of the other direction.

use crate::message::TEXT;
use crate::routes::CELL_TEXT;

/// A frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Frame {
    /// The stream, a number that its opener chose; zero for none.
    pub stream: u64,
    /// The flags below.
    pub flags: u8,
    /// Number of the packet on its route. An answer repeats it.
    pub number: u32,
    /// In an answer: the rate that the receiver offers to each source, bytes/s; zero if none.
    pub offer: f32,
    /// Number of the chunk in `bytes`, if any.
    pub chunk: u64,
    /// The first missing chunk of the other direction.
    pub next: u64,
    /// Bit i says that chunk `next` + 1 + i arrived.
    pub have: Have,
    /// A chunk, or receiver paths.
    pub bytes: Vec<u8>,
}

/// `bytes` holds a chunk.
pub(crate) const CHUNK: u8 = 1;
/// It is the last chunk of the stream.
pub(crate) const LAST: u8 = 2;
/// In an answer: the receiver accepted the chunk, if the packet had one.
pub(crate) const TAKEN: u8 = 4;
/// In an answer: the stream is refused.
pub(crate) const REFUSED: u8 = 8;
/// In an answer: more bytes of the stream wait.
pub(crate) const MORE: u8 = 16;
/// Chunks of this stream have the size of cells.
pub(crate) const WIDE: u8 = 32;
/// The sender needs receiver paths.
pub(crate) const WANTS: u8 = 64;
/// In an answer: `bytes` holds receiver paths.
pub(crate) const PATHS: u8 = 128;

const HEAD: usize = 8 + 1 + 4 + 4 + 8 + 8 + 1;
/// Length of `have` in a message and in a cell, bytes.
const HAVE: [usize; 2] = [16, 64];

/// Length of a chunk, bytes.
pub(crate) const fn chunk_bytes(wide: bool) -> usize {
    if wide { CELL_TEXT - HEAD - HAVE[1] } else { TEXT - HEAD - HAVE[0] }
}

/// Maximum number of chunks in flight, limited by `have`.
pub(crate) const fn window(wide: bool) -> u64 {
    8 * HAVE[wide as usize] as u64
}

/// A set of small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Have([u8; HAVE[1]]);

impl Default for Have {
    fn default() -> Have {
        Have([0; HAVE[1]])
    }
}

impl Have {
    fn set(&mut self, bit: u64) {
        self.0[(bit / 8) as usize] |= 1 << (bit % 8);
    }
}

impl Frame {
    pub(crate) fn parse(text: &[u8]) -> Option<Frame> {
        let (head, rest) = text.split_first_chunk::<HEAD>()?;
        let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        let short = |at: usize| head[at..at + 4].try_into().ok();
        let (have, bytes) = rest.split_at_checked(usize::from(head[HEAD - 1]))?;
        let mut set = Have::default();
        set.0.get_mut(..have.len())?.copy_from_slice(have);
        let offer = f32::from_be_bytes(short(13)?);
        let frame = Frame {
            stream: number(0)?,
            flags: head[8],
            number: u32::from_be_bytes(short(9)?),
            offer: if offer.is_finite() { offer.max(0.0) } else { 0.0 },
            chunk: number(17)?,
            next: number(25)?,
            have: set,
            bytes: bytes.to_vec(),
        };
        (frame.chunk < u64::MAX / 2 && frame.next < u64::MAX / 2).then_some(frame)
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let Frame { stream, flags, number, offer, chunk, next, have, bytes } = self;
        let used = have.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut text = Vec::with_capacity(HEAD + used + bytes.len());
        text.extend_from_slice(&stream.to_be_bytes());
        text.push(*flags);
        text.extend_from_slice(&number.to_be_bytes());
        text.extend_from_slice(&offer.to_be_bytes());
        text.extend_from_slice(&chunk.to_be_bytes());
        text.extend_from_slice(&next.to_be_bytes());
        text.push(used as u8);
        text.extend_from_slice(&have.0[..used]);
        text.extend_from_slice(bytes);
        text
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The chunks beyond `next` that the other side has.
    pub(crate) fn held(&self) -> impl Iterator<Item = u64> {
        let set = |(at, byte): (u64, u8)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * at + bit)
        };
        let next = self.next;
        (0..).zip(self.have.0).filter(|(_, byte)| *byte != 0).flat_map(set).map(move |bit| next + 1 + bit)
    }

    /// Writes the acknowledgements of a stream into the frame.
    pub(crate) fn tell(&mut self, stream: &crate::download::Stream, wide: bool) {
        self.next = stream.next;
        let bit = |chunk: &u64| chunk.checked_sub(stream.next + 1).filter(|bit| *bit < window(wide));
        stream.held.keys().filter_map(bit).for_each(|bit| self.have.set(bit));
    }
}

/// Arbitrary valid frames.
#[cfg(test)]
pub(crate) fn any_frame() -> impl proptest::strategy::Strategy<Value = Frame> {
    use proptest::prelude::*;
    let number = || prop_oneof![4 => 0u64..1500, 1 => 0..u64::MAX / 2];
    let bytes = prop::collection::vec(any::<u8>(), 0..chunk_bytes(true));
    let have = prop::collection::vec(any::<u8>(), HAVE[1]);
    (any::<u8>(), any::<u32>(), number(), number(), have, bytes).prop_map(
        |(flags, number, chunk, next, have, bytes)| {
            let have = Have(have.try_into().expect("as many"));
            Frame { stream: 7, flags, number, offer: 0.0, chunk, next, have, bytes }
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_round_trip_with_their_acknowledgements() {
        let mut frame = Frame {
            stream: 7,
            flags: CHUNK | LAST,
            number: 9,
            offer: 1500.0,
            chunk: 3,
            next: 5,
            bytes: vec![1; 9],
            ..Frame::default()
        };
        [0, 2, 300].into_iter().for_each(|bit| frame.have.set(bit));
        assert_eq!(Frame::parse(&frame.text()), Some(frame.clone()));
        assert_eq!(frame.held().collect::<Vec<u64>>(), [6, 8, 306]);
        let full = |wide| Frame { bytes: vec![0; chunk_bytes(wide)], ..Frame::default() };
        assert!(full(true).text().len() + HAVE[1] <= CELL_TEXT && full(false).text().len() + HAVE[0] <= TEXT);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_harmless(text in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Some(frame) = Frame::parse(&text) {
                prop_assert_eq!(Frame::parse(&frame.text()), Some(frame.clone()));
                prop_assert!(frame.held().all(|chunk| chunk > frame.next));
            }
        }
    }
}
