//! The stream that decides where segments begin.

use bytes::BytesMut;
use mpeg2ts_reader::packet::Packet;
use tidegate_control::units::Span;

use super::entry::{Codec, Scanner};
use super::program::{Role, Stream};
use super::timeline::{HZ, Start, Track};

/// A picture of a known codec begins with a key frame, unless none came within this time.
const WITHOUT_KEY: Span = Span::from_secs(30);
/// The same for other pictures, where only a flag tells.
const WITHOUT_FLAG: Span = Span::from_secs(12);

/// The stream that decides where segments begin.
#[derive(Debug)]
pub(crate) struct Leader {
    pub stream: Stream,
    pub track: Track,
    /// The frame at the end of the stream, until its kind is known.
    pub pending: Option<Pending>,
    /// When the search for a key frame began.
    pub waits_since: Option<i64>,
    /// Whether a segment ended at a pause, so that the next frame begins one whatever its kind.
    pub resumes: bool,
    /// Whether the picture is missing, so that segments begin with sound.
    pub is_absent: bool,
    /// Parameters of picture and sound.
    parameters: [Vec<u8>; 2],
    /// Whether the format changed since the last segment began.
    pub changed: bool,
    /// The reason if it does not begin a segment.
    pub fault: Fault,
}

/// The reason why a stream does not begin a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The first frame has not begun.
    Silent,
    /// The last frame cannot be read.
    Scrambled,
    /// The last frame lacks a time stamp.
    Timeless,
    /// Decoding cannot begin with the frames so far.
    Keyless,
}

/// The times of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub shown: i64,
    pub decoded: i64,
    /// End of the frames before it.
    pub end: i64,
    /// Whether its time does not continue theirs.
    pub apart: bool,
}

/// A frame of unknown kind, with all packets since its beginning.
#[derive(Debug)]
pub(crate) struct Pending {
    pub frame: Frame,
    pub scanner: Scanner,
    pub packets: BytesMut,
}

impl Leader {
    pub(crate) fn new(stream: Stream) -> Leader {
        Leader {
            stream,
            track: Track::default(),
            pending: None,
            waits_since: None,
            resumes: false,
            is_absent: false,
            parameters: Default::default(),
            changed: false,
            fault: Fault::Silent,
        }
    }

    /// Notes whether a packet begins a frame that can be read.
    pub(crate) fn diagnose(&mut self, packet: &Packet<'_>, is_timed: bool) {
        if packet.payload_unit_start_indicator() {
            self.fault = match is_timed {
                true => Fault::Keyless,
                false if packet.transport_scrambling_control().is_scrambled() => Fault::Scrambled,
                false => Fault::Timeless,
            };
        }
    }

    /// Whether it is a picture.
    pub(crate) fn is_picture(&self) -> bool {
        matches!(self.stream.role, Role::Video(_))
    }

    /// How long a segment waits for a frame where decoding can begin.
    pub(crate) fn patience(&self) -> Span {
        if self.stream.role == Role::Video(Codec::Other) { WITHOUT_FLAG } else { WITHOUT_KEY }
    }

    /// Whether the search for a key frame has lasted too long.
    pub(crate) fn has_waited(&mut self, decoded: i64) -> bool {
        let since = *self.waits_since.get_or_insert(decoded);
        self.resumes || (decoded - since) as f64 / HZ as f64 > self.patience().as_secs_f64()
    }

    /// End of its last frame.
    pub(crate) fn end(&self) -> Option<i64> {
        if self.is_picture() { self.track.end() } else { self.track.end_by_size() }
    }

    /// A scanner for a frame that begins with this packet.
    pub(crate) fn scanner(&self, packet: &Packet<'_>, start: &Start<'_>) -> (Scanner, Option<bool>) {
        let flag = packet.adaptation_field().is_some_and(|field| field.random_access_indicator());
        let (codec, flag) = match self.stream.role {
            Role::Video(_) if packet.transport_scrambling_control().is_scrambled() => (Codec::Other, flag),
            Role::Video(codec) => (codec, flag),
            // Decoding can begin with any frame of sound.
            _ => (Codec::Other, true),
        };
        let mut scanner = Scanner::new(codec, flag);
        let entry = scanner.feed(start.content);
        (scanner, entry)
    }

    /// Notes the parameters of the picture (0) or the sound (1). Returns whether they changed.
    pub(crate) fn note(&mut self, which: usize, parameters: Vec<u8>) -> bool {
        let known = &mut self.parameters[which];
        let changed = !known.is_empty() && *known != parameters;
        *known = parameters;
        changed
    }
}
