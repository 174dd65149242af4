//! Finds frames where decoding can begin, from the units of a coded picture.

/// Codecs with pictures that are looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// ITU-T H.262, and MPEG-1.
    Mpeg2,
    /// ISO 14496-2.
    Mpeg4,
    /// ITU-T H.264.
    H264,
    /// ITU-T H.265.
    H265,
    /// Any other: only the random-access flag counts.
    Other,
}

/// Bytes of a frame that are searched for its first slice. Behind them the flag decides.
const MOST: usize = 1 << 14;
/// Bytes of parameter sets that are compared.
const MOST_PARAMETERS: usize = 512;

/// Reads the beginning of one frame.
#[derive(Debug)]
pub(crate) struct Scanner {
    codec: Codec,
    /// The random-access flag of the frame's first packet.
    flag: bool,
    /// The last three bytes.
    last: u32,
    read: usize,
    unit: Unit,
    has_parameters: bool,
    recovers: bool,
    /// Size, profile and so on as coded: sequence parameter sets, or a sequence header.
    pub parameters: Vec<u8>,
}

/// The kind of unit that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Skipped,
    /// The next byte is the unit's header.
    Head,
    /// Parameters, of which so many bytes are compared.
    Parameters(usize),
    /// Supplemental information of H.264: its first byte is its type.
    Supplement,
    /// A picture header of MPEG-2 or MPEG-4. Byte 1 has the kind of picture.
    Picture(u8),
}

impl Scanner {
    /// A scanner for the next frame.
    pub(crate) fn new(codec: Codec, flag: bool) -> Scanner {
        Scanner {
            codec,
            flag,
            last: u32::MAX,
            read: 0,
            unit: Unit::Skipped,
            has_parameters: false,
            recovers: false,
            parameters: Vec::new(),
        }
    }

    /// The answer if the frame ends here.
    pub(crate) fn end(&self) -> bool {
        self.flag
    }

    /// Reads bytes of the frame. Returns whether decoding can begin with it, once that is known.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<bool> {
        if self.codec == Codec::Other {
            return Some(self.flag);
        }
        for byte in bytes {
            let found = match self.unit {
                Unit::Head => self.head(*byte),
                Unit::Parameters(left) => {
                    if left > 0 && self.parameters.len() < MOST_PARAMETERS {
                        self.parameters.push(*byte);
                        self.unit = Unit::Parameters(left - 1);
                    }
                    None
                }
                Unit::Supplement => {
                    // Payload type 6: a recovery point (H.264, annex D.1).
                    self.recovers |= *byte == 6;
                    self.unit = Unit::Skipped;
                    None
                }
                Unit::Picture(0) => {
                    self.unit = Unit::Picture(1);
                    None
                }
                Unit::Picture(_) => Some((self.has_parameters || self.flag) && self.is_intra(*byte)),
                Unit::Skipped => None,
            };
            if found.is_some() {
                return found;
            }
            self.last = self.last << 8 | u32::from(*byte);
            if self.last & 0xff_ffff == 1 {
                self.trim();
                self.unit = Unit::Head;
                self.last = u32::MAX;
            }
        }
        self.read += bytes.len();
        (self.read > MOST).then_some(self.flag)
    }

    /// Whether a byte of a picture header tells of an intra picture.
    fn is_intra(&self, byte: u8) -> bool {
        match self.codec {
            // vop_coding_type (ISO 14496-2, section 6.3.5).
            Codec::Mpeg4 => byte >> 6 == 0,
            // picture_coding_type (H.262, section 6.3.9).
            _ => byte >> 3 & 7 == 1,
        }
    }

    /// Removes the next unit's start code from the parameters.
    fn trim(&mut self) {
        if matches!(self.unit, Unit::Parameters(_)) && self.parameters.ends_with(&[0, 0, 1]) {
            self.parameters.truncate(self.parameters.len() - 3);
            while self.parameters.last() == Some(&0) {
                self.parameters.pop();
            }
        }
    }

    /// Reads a unit's first byte behind its start code.
    fn head(&mut self, byte: u8) -> Option<bool> {
        self.unit = Unit::Skipped;
        match self.codec {
            Codec::H264 => match byte & 0x1f {
                5 => return Some(true),
                // Without IDR pictures, decoding begins at a recovery point with parameters.
                1 | 2 => return Some(self.has_parameters && (self.flag || self.recovers)),
                6 => self.unit = Unit::Supplement,
                7 => self.begin_parameters(usize::MAX),
                _ => {}
            },
            Codec::H265 => match byte >> 1 & 0x3f {
                // Intra random access points (H.265, table 7-1).
                16..=23 => return Some(true),
                0..=31 => return Some(self.has_parameters && self.flag),
                33 => self.begin_parameters(usize::MAX),
                _ => {}
            },
            Codec::Mpeg2 => match byte {
                0x00 => self.unit = Unit::Picture(0),
                // Width, height, aspect ratio and frame rate.
                0xb3 => self.begin_parameters(4),
                _ => {}
            },
            Codec::Mpeg4 => match byte {
                0xb6 => self.unit = Unit::Picture(1),
                // A video object layer: size, time resolution and so on.
                0x20..=0x2f => self.begin_parameters(usize::MAX),
                _ => {}
            },
            Codec::Other => {}
        }
        None
    }

    fn begin_parameters(&mut self, bytes: usize) {
        self.has_parameters = true;
        self.unit = Unit::Parameters(bytes);
    }
}

/// The fields of an ADTS header that stay the same within a stream (ISO 13818-7, section 6.2).
pub(crate) fn adts_parameters(frame: &[u8]) -> Option<Vec<u8>> {
    let [0xff, sync, format, channels, ..] = frame else { return None };
    (sync & 0xf6 == 0xf0).then(|| vec![sync & 0xfe, format & 0xfd, channels & 0xc0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer for a frame, fed in chunks of any size.
    fn scan(codec: Codec, flag: bool, units: &[&[u8]]) -> (Option<bool>, Vec<u8>) {
        let frame: Vec<u8> = units.iter().flat_map(|unit| [&[0, 0, 0, 1], *unit].concat()).collect();
        let answers = [1, 3, 184].map(|size| {
            let mut scanner = Scanner::new(codec, flag);
            let found = frame.chunks(size).find_map(|chunk| scanner.feed(chunk));
            (found, scanner.parameters)
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        answers[0].clone()
    }

    #[test]
    fn frames_are_told_by_their_units() {
        let (sps, other): (&[u8], &[u8]) = (&[0x67, 1, 2, 3], &[0x67, 1, 2, 4]);
        let h264 = |flag, units: &[&[u8]]| scan(Codec::H264, flag, units).0;
        assert_eq!(h264(false, &[&[9, 0xf0], sps, &[0x68, 1], &[0x65, 9]]), Some(true));
        assert_eq!(h264(true, &[&[9, 0xf0], &[0x41, 9]]), Some(false), "the flag lies");
        assert_eq!(h264(false, &[sps, &[0x06, 6, 1], &[0x41, 9]]), Some(true), "a recovery point");
        assert_eq!(h264(false, &[sps, &[0x06, 5, 1], &[0x41, 9]]), Some(false));
        assert_eq!(h264(true, &[&[9, 0xf0]]), None, "no slice yet");
        let parameters = |sps| scan(Codec::H264, false, &[sps, &[0x68, 1], &[0x65, 9]]).1;
        assert_eq!(parameters(sps), [1, 2, 3]);
        assert_ne!(parameters(sps), parameters(other));
        let h265 = |flag, units: &[&[u8]]| scan(Codec::H265, flag, units).0;
        assert_eq!(h265(false, &[&[0x46, 1], &[0x42, 1, 7], &[0x2a, 1]]), Some(true), "CRA");
        assert_eq!(h265(true, &[&[0x46, 1], &[0x02, 1]]), Some(false));
        let mpeg2 = |flag, units: &[&[u8]]| scan(Codec::Mpeg2, flag, units).0;
        assert_eq!(mpeg2(false, &[&[0xb3, 1, 2, 3, 4, 5], &[0, 0, 0x08]]), Some(true));
        assert_eq!(mpeg2(false, &[&[0xb3, 1, 2, 3, 4, 5], &[0, 0, 0x10]]), Some(false), "predicted");
        let mpeg4 = |flag, units: &[&[u8]]| scan(Codec::Mpeg4, flag, units).0;
        assert_eq!(mpeg4(false, &[&[0x20, 1, 2, 3], &[0xb6, 0x10, 1]]), Some(true));
        assert_eq!(mpeg4(false, &[&[0x20, 1, 2, 3], &[0xb6, 0x50, 1]]), Some(false), "predicted");
        assert_eq!(mpeg4(true, &[&[0xb6, 0x50, 1]]), Some(false), "the flag lies");
        assert_eq!(scan(Codec::Other, true, &[&[1]]).0, Some(true));
        assert_eq!(Scanner::new(Codec::H264, true).feed(&[0xff; MOST + 1]), Some(true), "too long");
    }
}
