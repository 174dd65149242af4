//! What a letter or an answer says about one stream: a chunk, and what arrived of the other direction.

use crate::letter::TEXT;

/// The text of a letter or an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The stream, drawn by whoever opened it.
    pub stream: u64,
    /// [`CHUNK`], [`LAST`], [`TAKEN`] and [`REFUSED`].
    pub flags: u8,
    /// Number of the chunk in `bytes`, if there is one.
    pub chunk: u64,
    /// The first chunk of the other direction that did not arrive.
    pub next: u64,
    /// Bit i: chunk `next` + 1 + i did.
    pub have: u128,
    /// At most [`FRAME_BYTES`].
    pub bytes: Vec<u8>,
}

/// There is a chunk.
pub(crate) const CHUNK: u8 = 1;
/// It is the stream's last.
pub(crate) const LAST: u8 = 2;
/// In an answer: the letter's chunk was taken, or there was none.
pub(crate) const TAKEN: u8 = 4;
/// In an answer: this stream cannot be.
pub(crate) const REFUSED: u8 = 8;

const HEAD: usize = 8 + 1 + 8 + 8 + 16;
/// Bytes of stream in one letter or answer.
pub const FRAME_BYTES: usize = TEXT - HEAD;
/// Chunks that can be on their way at once: what `have` can tell apart.
pub(crate) const WINDOW: u64 = 128;

impl Frame {
    pub fn parse(text: &[u8]) -> Option<Frame> {
        let (head, bytes) = text.split_first_chunk::<HEAD>()?;
        let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        let frame = Frame {
            stream: number(0)?,
            flags: head[8],
            chunk: number(9)?,
            next: number(17)?,
            have: u128::from_be_bytes(head[25..].try_into().ok()?),
            bytes: bytes.to_vec(),
        };
        (frame.flags < 16 && frame.chunk < u64::MAX / 2 && frame.next < u64::MAX / 2).then_some(frame)
    }

    pub fn text(&self) -> Vec<u8> {
        let Frame { stream, flags, chunk, next, have, bytes } = self;
        let mut text = Vec::with_capacity(HEAD + bytes.len());
        text.extend_from_slice(&stream.to_be_bytes());
        text.push(*flags);
        text.extend_from_slice(&chunk.to_be_bytes());
        text.extend_from_slice(&next.to_be_bytes());
        text.extend_from_slice(&have.to_be_bytes());
        text.extend_from_slice(bytes);
        text
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether the other side has chunk number `chunk`.
    pub fn other_has(&self, chunk: u64) -> bool {
        chunk < self.next
            || (chunk > self.next
                && chunk - self.next <= WINDOW
                && self.have >> (chunk - self.next - 1) & 1 == 1)
    }
}

/// `next` and `have` of what was put together so far.
pub(crate) fn seen(stream: &crate::download::Stream) -> (u64, u128) {
    let bit = |chunk: &u64| chunk.checked_sub(stream.next + 1).filter(|i| *i < WINDOW);
    let have = stream.held.keys().filter_map(bit).fold(0, |have, i| have | 1 << i);
    (stream.next, have)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_tells_who_has_what() {
        let frame =
            Frame { stream: 7, flags: CHUNK | LAST, chunk: 3, next: 5, have: 0b101, bytes: vec![1; 9] };
        assert_eq!(Frame::parse(&frame.text()), Some(frame.clone()));
        let other_has: Vec<u64> = (0..200).filter(|chunk| frame.other_has(*chunk)).collect();
        assert_eq!(other_has, [0, 1, 2, 3, 4, 6, 8]);
    }

    proptest! {
        #[test]
        fn garbage_is_no_frame_or_harmless(text in prop::collection::vec(any::<u8>(), 0..80), chunk in any::<u64>()) {
            if let Some(frame) = Frame::parse(&text) {
                prop_assert_eq!(frame.text(), text);
                frame.other_has(chunk);
            }
        }
    }
}
