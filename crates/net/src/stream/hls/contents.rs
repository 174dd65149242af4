//! Lists the streams of a program, and says which ones browsers do not show.

use std::io;

use mpeg2ts_reader::packet::Packet;
use tidegate_control::units::{Span, Time};
use tidegate_stream::framer::{Framer, TS};

use super::Hls;
use super::entry::Codec;
use super::program::{Role, Tables, Tags};

/// The codec or the format of a stream.
fn format(kind: u8, role: Role, tags: &Tags) -> String {
    let name = match (kind, role) {
        (0x01, Role::Video(_)) => "MPEG-1",
        (_, Role::Video(Codec::Mpeg2)) => "MPEG-2",
        (_, Role::Video(Codec::Mpeg4)) => "MPEG-4 part 2",
        (_, Role::Video(Codec::H264)) => "H.264",
        (_, Role::Video(Codec::H265)) => "H.265",
        (0x03 | 0x04, Role::Audio { .. }) => "MPEG",
        (0x0f | 0x11, Role::Audio { .. }) => "AAC",
        (0x81, Role::Audio { .. }) => "AC-3",
        (0x84 | 0x87, Role::Audio { .. }) => "E-AC-3",
        (0x06, Role::Audio { .. }) if tags.registers(b"Opus") => "Opus",
        (0x06, Role::Audio { .. }) if tags.has(0x6a) || tags.registers(b"AC-3") => "AC-3",
        (0x06, Role::Audio { .. }) if tags.has(0x7a) || tags.registers(b"EAC3") => "E-AC-3",
        (0x06, Role::Other) if tags.has(0x59) => "DVB subtitles",
        (0x06, Role::Other) if tags.has(0x56) || tags.has(0x46) => "teletext",
        (0x06, Role::Other) if tags.registers(b"KLVA") => "KLV metadata",
        (0x15, Role::Other) if tags.has(0x26) => "timed metadata (ID3 or other)",
        (0x86, Role::Other) => "SCTE-35 cues",
        (0x90, Role::Other) => "PGS subtitles",
        (0x92, Role::Other) => "text subtitles",
        _ => return format!("type {kind:#04x}"),
    };
    name.into()
}

/// The language of a stream: three letters of ISO 639-2.
fn language(tags: &Tags) -> Option<String> {
    // The descriptors of languages, teletext (also of VBI) and DVB subtitles begin with it.
    let letters = tags.first_of(&[0x0a, 0x46, 0x56, 0x59])?.get(..3)?;
    letters.iter().all(u8::is_ascii_lowercase).then(|| String::from_utf8_lossy(letters).into_owned())
}

/// Describes the streams of the chosen program, in the order of its map.
fn contents(tables: &Tables) -> Vec<String> {
    let leader = tables.program().and_then(|program| program.leader()).map(|stream| stream.pid);
    let described = tables.described().into_iter().map(|(stream, tags)| {
        let format = format(stream.kind, stream.role, &tags);
        let what = match stream.role {
            Role::Video(_) => " picture",
            Role::Audio { .. } => " sound",
            Role::Unknown => " private data",
            Role::Other => "",
        };
        let language = language(&tags).map(|language| format!(" ({language})")).unwrap_or_default();
        let fate = match stream.role {
            _ if leader == Some(stream.pid) => "segments begin with it",
            Role::Video(_) | Role::Audio { .. } => "in segments",
            _ => "passed on unchanged, also in segments; browsers do not show it",
        };
        format!("{format}{what} on PID {:#x}{language}: {fate}", stream.pid)
    });
    described.collect()
}

impl Hls {
    /// Describes each stream of the program: its format, its language, and how players get it.
    pub(crate) fn contents(&self) -> Vec<String> {
        contents(&self.tables)
    }
}

/// Pause between two messages about other contents, and between two about bytes that are not MPEG-TS.
const PAUSE: Span = Span::from_secs(10);
/// Bytes without a TS packet after which the source is said not to be MPEG-TS. A payload is 1,316.
const NO_PACKETS: u64 = 1 << 14;

/// Reads the tables of a source, to say what it holds.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    framer: Framer,
    tables: Tables,
    said: Vec<String>,
    said_at: Option<Time>,
    /// Whether there was a TS packet, and the bytes since the last ones.
    has_packets: bool,
    strange: u64,
    warned_at: Option<Time>,
}

impl Survey {
    /// Takes bytes of the source.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let payloads = self.framer.push(bytes);
        self.has_packets |= !payloads.is_empty();
        self.strange = if payloads.is_empty() { self.strange + bytes.len() as u64 } else { 0 };
        for payload in payloads {
            for packet in payload.chunks_exact(TS).filter_map(Packet::try_new) {
                if self.tables.are_on(u16::from(packet.pid())) {
                    self.tables.push(&packet);
                }
            }
        }
    }

    /// Describes each stream of the source's program.
    pub(crate) fn contents(&self) -> Vec<String> {
        contents(&self.tables)
    }

    /// Checks, at the end of the source, that it was MPEG-TS.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it ended without a TS packet.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.has_packets |= self.framer.flush().is_some();
        let cause = match (self.has_packets, self.strange) {
            (true, _) => return Ok(()),
            (false, 0) => "ended without a byte".to_owned(),
            (false, bytes) => format!("is not MPEG-TS: {bytes} bytes without a TS packet"),
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, cause))
    }

    /// Says that the source is not MPEG-TS, at most every 10 s.
    pub(crate) fn warning(&mut self, now: Time) -> Option<String> {
        let early = self.warned_at.is_some_and(|at| now.since(at) < PAUSE);
        if early || self.strange < NO_PACKETS {
            return None;
        }
        self.warned_at = Some(now);
        let bytes = self.strange;
        Some(format!(
            "is not MPEG-TS: {bytes} bytes without a TS packet; let its sender write MPEG-TS (ffmpeg: -f mpegts)"
        ))
    }

    /// The list of streams if it changed, at most every 10 s.
    pub(crate) fn news(&mut self, now: Time) -> Option<String> {
        let contents = self.contents();
        let early = self.said_at.is_some_and(|at| now.since(at) < PAUSE);
        if early || contents.is_empty() || contents == self.said {
            return None;
        }
        (self.said, self.said_at) = (contents, Some(now));
        Some(format!("holds {}", self.said.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::input::pattern_packet;
    use super::*;

    /// Bytes without an order.
    fn noise(count: usize) -> Vec<u8> {
        (0..count as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect()
    }

    #[test]
    fn a_source_that_is_not_mpeg_ts_is_named() {
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let mut survey = Survey::default();
        let packets: Vec<u8> = (0..20).flat_map(pattern_packet).collect();
        survey.push(&noise(1000));
        assert_eq!(survey.warning(at(0)), None, "an encoder may begin in the middle of a packet");
        survey.push(&noise(100_000));
        assert!(survey.warning(at(1)).unwrap().contains("is not MPEG-TS: 101000 bytes"));
        assert_eq!(survey.warning(at(10)), None);
        survey.push(&noise(1000));
        assert!(survey.warning(at(11)).is_some());
        assert!(survey.end().unwrap_err().to_string().contains("is not MPEG-TS"));
        survey.push(&packets);
        assert!(survey.warning(at(30)).is_none() && survey.end().is_ok());

        assert!(Survey::default().end().unwrap_err().to_string().contains("without a byte"));
        // Fewer packets than a payload.
        let mut short = Survey::default();
        short.push(&packets[..3 * TS]);
        assert!(short.end().is_ok());
    }
}
