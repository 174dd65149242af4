//! Sections of program-specific information, put together from TS packets (ISO 13818-1, section 2.4.4).
//!
//! `mpeg2ts-reader` has an assembler too, but drops a section that has only part of its header in a packet.

use mpeg2ts_reader::mpegts_crc::sum32;
use mpeg2ts_reader::packet::Packet;

/// Largest section of a program association or map table, bytes.
const LONGEST: usize = 1024;
/// Bytes of a section before its length is known.
const HEAD: usize = 3;
/// Bytes of headers before a table's content, and of the checksum after it.
pub(crate) const HEADERS: usize = 8;
pub(crate) const CHECKSUM: usize = 4;

/// Collects the sections of one PID.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    /// An unfinished section; `None` before the first start of one.
    open: Option<Vec<u8>>,
}

impl Sections {
    /// Takes a packet and returns the sections that it completes, with a right checksum.
    pub(crate) fn push(&mut self, packet: &Packet<'_>) -> Vec<Vec<u8>> {
        let mut done = Vec::new();
        let Some(payload) = packet.payload() else { return done };
        if !packet.payload_unit_start_indicator() {
            self.extend(payload, &mut done);
            return done;
        }
        let (pointer, rest) = (usize::from(payload[0]), &payload[1..]);
        let Some((before, after)) = rest.split_at_checked(pointer) else {
            self.open = None;
            return done;
        };
        self.extend(before, &mut done);
        // A new section begins here, whatever the last one lacks.
        self.open = Some(Vec::new());
        self.extend(after, &mut done);
        done
    }

    fn extend(&mut self, mut bytes: &[u8], done: &mut Vec<Vec<u8>>) {
        while let Some(open) = &mut self.open {
            let wanted = match open.get(..HEAD) {
                Some(head) => HEAD + (usize::from(head[1] & 0x0f) << 8 | usize::from(head[2])),
                None => HEAD,
            };
            let (now, later) = bytes.split_at(bytes.len().min(wanted.saturating_sub(open.len())));
            open.extend_from_slice(now);
            bytes = later;
            if open.len() < wanted {
                return;
            }
            // A length of zero, or only the head is there.
            if wanted == HEAD && open.len() == HEAD && (open[1] & 0x0f, open[2]) != (0, 0) {
                continue;
            }
            let section = std::mem::take(open);
            let sound = (HEADERS + CHECKSUM..=LONGEST).contains(&section.len()) && sum32(&section) == 0;
            // Stuffing (0xff) fills the packet behind the last section.
            if !sound || bytes.first().is_none_or(|next| *next == 0xff) {
                self.open = None;
            }
            if sound {
                done.push(section);
            }
        }
    }
}

/// A section as TS packets of this PID, numbered from `counter` on.
pub(crate) fn packets(section: &[u8], pid: u16, counter: &mut u8) -> Vec<u8> {
    const ROOM: usize = 184;
    let content: Vec<u8> = std::iter::once(0).chain(section.iter().copied()).collect();
    let mut out = Vec::new();
    for (at, part) in content.chunks(ROOM).enumerate() {
        let start = if at == 0 { 0x40 } else { 0 };
        out.extend([0x47, start | (pid >> 8) as u8, pid as u8, 0x10 | *counter & 0xf]);
        out.extend_from_slice(part);
        out.resize(out.len() + ROOM - part.len(), 0xff);
        *counter = counter.wrapping_add(1);
    }
    out
}

/// Appends the checksum to a section.
pub(crate) fn seal(mut section: Vec<u8>) -> Vec<u8> {
    let sum = sum32(&section);
    section.extend(sum.to_be_bytes());
    section
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn section(id: u8, length: usize) -> Vec<u8> {
        let mut section = vec![id, 0xb0 | ((length + CHECKSUM - HEAD) >> 8) as u8];
        section.push((length + CHECKSUM - HEAD) as u8);
        section.resize(length, id);
        seal(section)
    }

    fn push(sections: &mut Sections, packets: &[u8]) -> Vec<Vec<u8>> {
        packets.chunks_exact(188).flat_map(|packet| sections.push(&Packet::new(packet))).collect()
    }

    #[test]
    fn sections_span_packets_and_share_them() {
        let mut sections = Sections::default();
        for length in [HEADERS, 100, 171, 172, 173, 500, LONGEST - CHECKSUM] {
            let made = section(2, length);
            assert_eq!(push(&mut sections, &packets(&made, 0x100, &mut 0)), [made], "{length}");
        }
        // Two sections in a row: the second begins in the packet where the first ends, in every alignment.
        for length in 150..200 {
            let (one, two) = (section(2, length), section(3, 40));
            let both = [&one[..], &two].concat();
            let read = push(&mut sections, &packets(&both, 0x100, &mut 0));
            // A section that begins with a packet needs a unit start in that packet, which `packets` does not set.
            let whole =
                if length == 183 - CHECKSUM { vec![one.clone()] } else { vec![one.clone(), two.clone()] };
            assert_eq!(read, whole, "{length}");
            // The same with a pointer to the second one.
            let mut split = packets(&one, 0x100, &mut 0);
            if split.len() > 188 {
                let rest = one.len() - 183;
                let mut last = vec![0x47, 0x41, 0, 0x11, rest as u8];
                last.extend(&one[183..]);
                last.extend(&two[..two.len().min(188 - last.len())]);
                last.resize(188, 0xff);
                split.splice(188.., last);
                assert_eq!(push(&mut sections, &split), [one, two], "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_packets_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 188 * 4)) {
            let mut sections = Sections::default();
            for packet in bytes.chunks_exact(188) {
                let mut packet = packet.to_vec();
                packet[0] = 0x47;
                sections.push(&Packet::new(&packet));
                prop_assert!(sections.open.as_ref().is_none_or(|open| open.len() <= 4096 + HEAD));
            }
        }
    }
}
