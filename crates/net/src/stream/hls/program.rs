//! The program that segments hold: its tables, its streams, and the stream that decides where segments begin.

use std::collections::BTreeMap;

use mpeg2ts_reader::packet::Packet;
use mpeg2ts_reader::psi::pat::PatSection;
use mpeg2ts_reader::psi::pmt::PmtSection;

use super::entry::Codec;
use super::psi::{CHECKSUM, HEADERS, Sections, packets, seal};

/// Programs of a transport stream that are looked at.
const MOST_PROGRAMS: usize = 32;
/// Table ids of the program association table and of program maps.
const PAT: u8 = 0;
const PMT: u8 = 2;

/// An elementary stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub pid: u16,
    pub kind: u8,
    pub role: Role,
}

/// The content of an elementary stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Video(Codec),
    Audio {
        adts: bool,
    },
    /// Subtitles and data.
    Other,
    /// Private data of an unknown format.
    Unknown,
}

/// A program as its map describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    number: u16,
    map_pid: u16,
    clock_pid: u16,
    pub streams: Vec<Stream>,
}

impl Program {
    /// The stream that decides where segments begin: the first video, or the first audio without video.
    pub(crate) fn leader(&self) -> Option<Stream> {
        let video = self.streams.iter().find(|stream| matches!(stream.role, Role::Video(_)));
        video.or_else(|| self.audio()).copied()
    }

    /// The first audio stream.
    pub(crate) fn audio(&self) -> Option<&Stream> {
        self.streams.iter().find(|stream| matches!(stream.role, Role::Audio { .. }))
    }

    fn has_video(&self) -> bool {
        self.streams.iter().any(|stream| matches!(stream.role, Role::Video(_)))
    }

    /// Whether packets of this PID belong to the program.
    pub(crate) fn holds(&self, pid: u16) -> bool {
        pid == self.clock_pid || self.streams.iter().any(|stream| stream.pid == pid)
    }
}

/// The tables of a transport stream, and the program that is chosen from them.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    association: Sections,
    /// Program number by PID of its map, with the map's sections.
    maps: BTreeMap<u16, (u16, Sections)>,
    stream_id: u16,
    chosen: Option<(Program, Vec<u8>)>,
    /// The streams of the last map without picture and sound.
    refused: Option<Vec<Stream>>,
    counters: [u8; 2],
}

impl Tables {
    /// The chosen program.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.chosen.as_ref().map(|(program, _)| program)
    }

    /// The streams of the last map that names neither picture nor sound.
    pub(crate) fn refused(&self) -> Option<&[Stream]> {
        self.refused.as_deref()
    }

    /// The streams of the chosen program, with their descriptors.
    pub(crate) fn described(&self) -> Vec<(Stream, Tags)> {
        let map = self.chosen.as_ref().and_then(|(_, map)| parse(map));
        map.map(|map| streams(&map).collect()).unwrap_or_default()
    }

    /// The PID of the first program map that the association names.
    pub(crate) fn first_map(&self) -> Option<u16> {
        self.maps.keys().next().copied()
    }

    /// Whether this PID carries tables.
    pub(crate) fn are_on(&self, pid: u16) -> bool {
        pid == 0 || self.maps.contains_key(&pid)
    }

    /// Takes a packet of a PID with tables. Returns whether the chosen program changed.
    pub(crate) fn push(&mut self, packet: &Packet<'_>) -> bool {
        let pid = u16::from(packet.pid());
        let mut changed = false;
        if pid == 0 {
            for section in self.association.push(packet) {
                changed |= self.associate(&section);
            }
        } else if let Some((number, sections)) = self.maps.get_mut(&pid) {
            let number = *number;
            for section in sections.push(packet) {
                changed |= self.map(pid, number, section);
            }
        }
        changed
    }

    /// Takes a program association section.
    fn associate(&mut self, section: &[u8]) -> bool {
        // Bit 0 of byte 5 says whether the section applies now or later.
        if section[0] != PAT || section[5] & 1 == 0 {
            return false;
        }
        self.stream_id = u16::from_be_bytes([section[3], section[4]]);
        let programs = PatSection::new(&section[HEADERS..section.len() - CHECKSUM]).programs();
        let mut named: BTreeMap<u16, u16> = BTreeMap::new();
        for program in programs.take(MOST_PROGRAMS) {
            if let mpeg2ts_reader::psi::pat::ProgramDescriptor::Program { program_number, pid } = program {
                named.entry(u16::from(pid)).or_insert(program_number);
            }
        }
        // The association may have several sections; a section of a later number only adds programs.
        if section[6] == 0 {
            self.maps.retain(|pid, (number, _)| named.get(pid) == Some(number));
        }
        for (pid, number) in named {
            if self.maps.len() < MOST_PROGRAMS && pid != 0 {
                self.maps.entry(pid).or_insert((number, Sections::default()));
            }
        }
        let gone = |program: &Program| !self.maps.contains_key(&program.map_pid);
        let ended = self.program().is_some_and(gone);
        if ended {
            self.chosen = None;
        }
        ended
    }

    /// Takes a program map section.
    fn map(&mut self, map_pid: u16, number: u16, section: Vec<u8>) -> bool {
        let of = u16::from_be_bytes([section[3], section[4]]);
        if section[0] != PMT || section[5] & 1 == 0 || of != number {
            return false;
        }
        let Some(program) = read_map(number, map_pid, &section) else { return false };
        if program.leader().is_none() {
            self.refused = Some(program.streams);
            return false;
        }
        let better = match self.program() {
            None => true,
            Some(known) if known.number == number => *known != program,
            // A transport stream of several programs: prefer one with a picture.
            Some(known) => program.has_video() && !known.has_video(),
        };
        let same = self.program().is_some_and(|known| known.number == number);
        if better || same {
            // Descriptors may change without a change of streams.
            self.chosen = Some((program, section));
        }
        better
    }

    /// The tables as packets: each segment begins with them. They name one program only (RFC 8216, section 3.2).
    pub(crate) fn packets(&mut self) -> Vec<u8> {
        let Some((program, map)) = &self.chosen else { return Vec::new() };
        let [id, number, pid] =
            [self.stream_id, program.number, 0xe000 | program.map_pid].map(u16::to_be_bytes);
        let association = seal([&[PAT, 0xb0, 13][..], &id, &[0xc1, 0, 0], &number, &pid].concat());
        let [of_association, of_map] = &mut self.counters;
        let mut out = packets(&association, 0, of_association);
        out.extend(packets(map, program.map_pid, of_map));
        out
    }
}

/// The descriptors of a stream: the tag of each, and its first four bytes if it has so many.
pub(crate) struct Tags(Vec<(u8, Option<Vec<u8>>)>);

impl Tags {
    /// Whether a descriptor has this tag.
    pub(crate) fn has(&self, tag: u8) -> bool {
        self.0.iter().any(|(known, _)| *known == tag)
    }

    /// Whether the registration descriptor (5) has this name.
    pub(crate) fn registers(&self, name: &[u8; 4]) -> bool {
        self.0.iter().any(|(tag, bytes)| *tag == 5 && bytes.as_deref() == Some(&name[..]))
    }

    /// The first bytes of the first descriptor with one of these tags.
    pub(crate) fn first_of(&self, tags: &[u8]) -> Option<&[u8]> {
        let (_, bytes) = self.0.iter().find(|(tag, _)| tags.contains(tag))?;
        bytes.as_deref()
    }
}

fn parse(section: &[u8]) -> Option<PmtSection<'_>> {
    PmtSection::from_bytes(&section[HEADERS..section.len() - CHECKSUM]).ok()
}

/// The streams of a map, with their descriptors.
fn streams(map: &PmtSection<'_>) -> impl Iterator<Item = (Stream, Tags)> {
    map.streams().map(|info| {
        let kind = info.stream_type().0;
        let descriptors = info.descriptors::<Raw<'_>>().map_while(Result::ok);
        let tag = |raw: Raw<'_>| (raw.tag, raw.bytes.get(..4).map(<[u8]>::to_vec));
        let tags = Tags(descriptors.map(tag).collect());
        (Stream { pid: u16::from(info.elementary_pid()), kind, role: role(kind, &tags) }, tags)
    })
}

/// Reads a map; `None` if it is malformed.
fn read_map(number: u16, map_pid: u16, section: &[u8]) -> Option<Program> {
    let map = parse(section)?;
    let streams = streams(&map).map(|(stream, _)| stream).collect();
    Some(Program { number, map_pid, clock_pid: u16::from(map.pcr_pid()), streams })
}

/// A descriptor as bytes.
struct Raw<'a> {
    tag: u8,
    bytes: &'a [u8],
}

impl<'a> mpeg2ts_reader::descriptor::Descriptor<'a> for Raw<'a> {
    fn from_bytes(bytes: &'a [u8]) -> Result<Raw<'a>, mpeg2ts_reader::descriptor::DescriptorError> {
        Ok(Raw { tag: bytes[0], bytes: &bytes[2..] })
    }
}

/// Stream types of ISO 13818-1 (table 2-34), ATSC, DVB and Blu-ray.
fn role(kind: u8, tags: &Tags) -> Role {
    match kind {
        0x01 | 0x02 => Role::Video(Codec::Mpeg2),
        0x1b => Role::Video(Codec::H264),
        0x24 => Role::Video(Codec::H265),
        0x10 => Role::Video(Codec::Mpeg4),
        0x1e | 0x21 | 0x32 | 0x33 | 0x42 | 0xd1 | 0xea => Role::Video(Codec::Other),
        0x06 if tags.registers(b"HEVC") => Role::Video(Codec::H265),
        0x06 if tags.registers(b"AV01") => Role::Video(Codec::Other),
        0x0f => Role::Audio { adts: true },
        0x03 | 0x04 | 0x11 | 0x1c | 0x2d | 0x2e | 0x80..=0x85 | 0x87 => Role::Audio { adts: false },
        // DVB: AC-3, enhanced AC-3, DTS and AAC descriptors.
        0x06 if [0x6a, 0x7a, 0x7b, 0x7c].into_iter().any(|tag| tags.has(tag)) => Role::Audio { adts: false },
        0x06 if [b"Opus", b"AC-3", b"EAC3", b"BSSD", b"DTS1", b"DTS2", b"DTS3"]
            .into_iter()
            .any(|name| tags.registers(name)) =>
        {
            Role::Audio { adts: false }
        }
        // Subtitles and other data have a descriptor that names their kind, besides the one of their language (10).
        0x06 if tags.0.iter().all(|(tag, _)| *tag == 10) => Role::Unknown,
        _ => Role::Other,
    }
}
